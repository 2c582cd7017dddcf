//! Small random models of every family against the logits of Hugging Face transformers.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use families::{Checkpoint, Error};
use formats::{TensorRef, Values, dequantise, open_shards, write_tensors};
use kernels::Team;
use models::{Batch, Cache, Model, Runner, Workload};
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FIXTURES: [&str; 9] =
    ["llama", "llama3", "linear", "yarn", "mistral", "qwen2", "qwen3", "gemma3", "gpt2"];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The logits after every token, read in pieces of these lengths through a cache.
fn logits(model: &Model, ids: &[u32], pieces: &[usize]) -> Vec<f32> {
    let team = Arc::new(Team::new(2));
    let workload =
        Workload { rows: ids.len(), sequences: 1, longest: ids.len(), threads: 2, training: false };
    let mut runner = Runner::new(model, workload, &team).unwrap();
    let mut caches = [Cache::new(model, ids.len(), ids.len()).unwrap()];
    let (mut all, mut past) = (Vec::new(), 0);
    for &len in pieces {
        let mut batch = Batch::default();
        batch.push_inputs(&ids[past..past + len], past, 0);
        let mut out = vec![0.0; len * model.config().vocab_size()];
        let rows: Vec<usize> = (0..len).collect();
        runner.logits(model, &batch, &mut caches[..], &rows, &mut out);
        all.extend(out);
        past += len;
    }
    all
}

#[test]
fn logits_are_those_of_transformers() {
    for name in FIXTURES {
        let folder = fixture(name);
        let expected = json(&folder.join("expected.json"));
        let checkpoint = Checkpoint::open(&folder).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(checkpoint.notes, Vec::<String>::new(), "{name}");
        let model = checkpoint.load(2).unwrap();
        assert_eq!(model.layout().count() as u64, expected["parameters"], "{name}: parameters");
        let list = |v: &Value| v.as_array().unwrap().clone();
        let ids: Vec<u32> =
            list(&expected["ids"]).iter().map(|v| v.as_u64().unwrap() as u32).collect();
        let vocab = model.config().vocab_size();
        let found = logits(&model, &ids, &[ids.len()]);
        for (place, row) in list(&expected["places"]).iter().zip(list(&expected["logits"])) {
            let place = place.as_u64().unwrap() as usize;
            let right: Vec<f64> = list(&row).iter().map(|v| v.as_f64().unwrap()).collect();
            let largest = right.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
            for (v, (a, b)) in found[place * vocab..].iter().zip(&right).enumerate() {
                let off = (f64::from(*a) - b).abs() / largest;
                assert!(off < 1e-4, "{name}, place {place}, entry {v}: {a} is not {b}");
            }
        }
        let bits = |pieces: &[usize]| -> Vec<u32> {
            logits(&model, &ids, pieces).iter().map(|v| v.to_bits()).collect()
        };
        let whole: Vec<u32> = found.iter().map(|v| v.to_bits()).collect();
        assert_eq!(whole, bits(&[1; 70]), "{name}: step by step");
        assert_eq!(whole, bits(&[7, 1, 40, 22]), "{name}: in chunks");
    }
}

#[test]
fn what_begins_and_ends_a_text_comes_from_the_files() {
    let llama = Checkpoint::open(&fixture("llama")).unwrap();
    let specials = llama.tokenizer.specials();
    assert_eq!((specials.bos, specials.eos, specials.pad), (Some(256), Some(257), Some(258)));
    assert_eq!(llama.ends, [257, 259]);
    assert_eq!(llama.bos_token.as_deref(), Some("<|begin|>"));
    assert!(llama.chat_template.unwrap().contains("<|user|>"));
    let qwen = Checkpoint::open(&fixture("qwen2")).unwrap();
    assert_eq!((qwen.tokenizer.specials().bos, &qwen.ends[..]), (None, &[257][..]));
    assert_eq!(qwen.tokenizer.encode_with_controls("<|user|>a<|end|>"), [259, 64, 257]);
    assert!(!qwen.tokenizer.encode("<|user|>a").contains(&259));
}

#[test]
fn weights_are_read_while_the_vocabulary_is() {
    let path = fixture("llama");
    let (checkpoint, model) = Checkpoint::open_while(&path, |weights| weights.load(1)).unwrap();
    let plain = Checkpoint::open(&path).unwrap();
    let bits = |model: &Model| -> Vec<u32> {
        model.weights().flat().iter().map(|x| x.to_bits()).collect()
    };
    assert_eq!(bits(&model.unwrap()), bits(&plain.load(2).unwrap()));
    assert_eq!(checkpoint.tokenizer.sha256(), plain.tokenizer.sha256());
    // A vocabulary that is none is told whatever was done meanwhile.
    let broken = changed("llama", &[], &[]);
    std::fs::write(broken.path().join("tokenizer.json"), "{}").unwrap();
    let error = Checkpoint::open_while(broken.path(), |_| ()).err().unwrap();
    assert!(matches!(&error, Error::Tokenizer { .. }), "{error}");
    std::fs::remove_file(broken.path().join("tokenizer.json")).unwrap();
    let error = Checkpoint::open_while(broken.path(), |_| panic!("no weight is read")).err();
    assert!(matches!(error, Some(Error::NoFile { .. })));
}

/// A copy of a fixture with some keys of `config.json` changed and some tensors left out.
fn changed(name: &str, keys: &[(&str, Value)], without: &[&str]) -> tempfile::TempDir {
    let (from, to) = (fixture(name), tempfile::tempdir().unwrap());
    let mut config = json(&from.join("config.json"));
    for (key, value) in keys {
        config[*key] = value.clone();
    }
    std::fs::write(to.path().join("config.json"), config.to_string()).unwrap();
    std::fs::copy(from.join("tokenizer.json"), to.path().join("tokenizer.json")).unwrap();
    let store = open_shards(&from).unwrap();
    let values: Vec<(String, Vec<usize>, Vec<f32>)> = store
        .names()
        .filter(|name| !without.contains(name))
        .map(|name| {
            let tensor = store.get(name).unwrap();
            let mut out = vec![0.0; tensor.len()];
            dequantise(tensor.kind, tensor.bytes, &mut out);
            (name.to_owned(), tensor.shape.to_vec(), out)
        })
        .collect();
    let tensors: Vec<TensorRef<'_>> = values
        .iter()
        .map(|(name, shape, values)| TensorRef {
            name: name.clone(),
            shape: shape.clone(),
            values: Values::F32(values),
        })
        .collect();
    write_tensors(&to.path().join("model.safetensors"), &tensors, HashMap::new()).unwrap();
    to
}

fn refused(name: &str, keys: &[(&str, Value)], without: &[&str], facts: &[&str]) {
    let folder = changed(name, keys, without);
    let error = Checkpoint::open(folder.path()).err().unwrap().to_string();
    for fact in facts {
        assert!(error.contains(fact), "{fact:?} is not in: {error}");
    }
    assert!(!error.contains('\n'), "{error}");
}

#[test]
fn heads_are_tied_or_not_as_the_files_say() {
    let tied = ("tie_word_embeddings", Value::Bool(true));
    let off_present = Checkpoint::open(&fixture("llama")).unwrap();
    let ids = [1, 2, 3, 4, 5];
    let own = logits(&off_present.load(1).unwrap(), &ids, &[5]);
    let with_both = changed("llama", std::slice::from_ref(&tied), &[]);
    let on_present = Checkpoint::open(with_both.path()).unwrap();
    assert!(on_present.notes[0].contains("the embedding is used"));
    let without = changed("llama", &[tied], &["lm_head.weight"]);
    let on_absent = Checkpoint::open(without.path()).unwrap();
    assert!(on_absent.notes.is_empty());
    let by_embedding = logits(&on_present.load(1).unwrap(), &ids, &[5]);
    assert_eq!(by_embedding, logits(&on_absent.load(1).unwrap(), &ids, &[5]));
    assert_ne!(by_embedding, own);
    refused("llama", &[], &["lm_head.weight"], &["lm_head.weight", "missing"]);
}

#[test]
fn stretched_positions_are_read_whole_or_refused() {
    let with = |more: Value| {
        let mut scaling = serde_json::json!({
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
        });
        let (map, more) = (scaling.as_object_mut().unwrap(), more.as_object().unwrap().clone());
        map.extend(more);
        let path = fixture("llama").join("config.json");
        let mut config = json(&path);
        config["rope_parameters"] = scaling;
        families::numbers(&path, &config).map(|numbers| numbers.rope_scaling.unwrap())
    };
    let grown = |more: Value| match with(more).unwrap() {
        models::RopeScaling::Yarn { attention_factor, .. } => attention_factor,
        other => panic!("{other:?}"),
    };
    // get_mscale(s, m) = 0.1·m·ln(s) + 1, one through the other, where both are told.
    let both = grown(serde_json::json!({ "mscale": 0.7, "mscale_all_dim": 0.4 })).unwrap();
    let right = (0.07 * 4.0f64.ln() + 1.0) / (0.04 * 4.0f64.ln() + 1.0);
    assert!((both - right).abs() < 1e-12, "{both} and {right}");
    assert_eq!(grown(serde_json::json!({ "mscale": 1.0, "mscale_all_dim": 1.0 })), Some(1.0));
    assert_eq!(grown(serde_json::json!({ "mscale": 0.7 })), None);
    assert_eq!(grown(serde_json::json!({ "truncate": true, "finetuned": true })), None);
    for (more, key) in [
        (serde_json::json!({ "truncate": false }), "truncate"),
        (serde_json::json!({ "temperature": 2.0 }), "temperature"),
        (serde_json::json!({ "beta_fast": "much" }), "beta_fast"),
    ] {
        let error = with(more).unwrap_err().to_string();
        assert!(error.contains(&format!("rope_parameters.{key}")), "{error}");
    }
    refused("llama", &[("rope_parameters", "linear".into())], &[], &["rope_parameters", "object"]);
}

/// A key that is read and holds something else than it may is told, not taken for absent.
#[test]
fn keys_of_other_types_are_told() {
    use serde_json::json as value;
    let numbers = [
        ("rope_theta", value!("abc"), "a number"),
        ("tie_word_embeddings", value!(1), "true or false"),
        ("eos_token_id", value!("x"), "the id of a token"),
        ("eos_token_id", value!([257, -1]), "the id of a token"),
        ("layer_types", value!("full_attention"), "a list"),
        ("_name_or_path", value!(5), "a text"),
        ("model_type", value!(5), "known are"),
    ];
    for (key, found, expected) in numbers {
        // Only some families read the kinds of layers.
        let name = if key == "layer_types" { "gemma3" } else { "llama" };
        refused(
            name,
            &[(key, found.clone())],
            &[],
            &["config.json", key, &found.to_string(), expected],
        );
    }
    let kinds = value!(["full_attention", "linear_attention", "full_attention", "full_attention"]);
    refused("gemma3", &[("layer_types", kinds)], &[], &["layer_types", "linear_attention"]);
    let words = [
        ("generation_config.json", "eos_token_id", value!({"a": 1}), "the id of a token"),
        ("generation_config.json", "eos_token_id", value!([257, "x"]), "the id of a token"),
        ("tokenizer_config.json", "bos_token", value!(256), "a text, or an object"),
        ("tokenizer_config.json", "eos_token", value!({"text": "a"}), "a text, or an object"),
        ("tokenizer_config.json", "pad_token", value!([]), "a text, or an object"),
        ("tokenizer_config.json", "chat_template", value!(7), "a text, or a list"),
        ("tokenizer_config.json", "chat_template", value!(["a"]), "a text, or a list"),
    ];
    for (file, key, found, expected) in words {
        let folder = changed("llama", &[], &[]);
        let path = folder.path().join(file);
        let mut all = json(&fixture("llama").join(file));
        all[key] = found.clone();
        std::fs::write(&path, all.to_string()).unwrap();
        let error = Checkpoint::open(folder.path()).err().unwrap().to_string();
        for fact in [file, key, &found.to_string(), expected] {
            assert!(error.contains(fact), "{fact:?} is not in: {error}");
        }
        all[key] = Value::Null;
        std::fs::write(&path, all.to_string()).unwrap();
        assert!(Checkpoint::open(folder.path()).is_ok(), "{key}: null is nothing");
    }
}

#[test]
fn what_cannot_be_run_is_named() {
    let text = |t: &str| Value::String(t.to_owned());
    refused("llama", &[("model_type", text("mamba"))], &[], &["mamba", "qwen3"]);
    refused("llama", &[("hidden_act", text("relu"))], &[], &["hidden_act", "relu", "silu"]);
    refused("llama", &[("hidden_size", 25.into())], &[], &["embed_tokens", "[262, 25]"]);
    refused("llama", &[("hidden_size", "many".into())], &[], &["hidden_size", "many", "a size"]);
    refused("llama", &[("intermediate_size", 41.into())], &[], &["gate_proj", "[41, 24]"]);
    refused("llama", &[("vocab_size", 100.into())], &[], &["[262, 24]", "[100, 24]"]);
    refused("llama", &[("num_hidden_layers", 3.into())], &[], &["model.layers.2", "missing"]);
    refused("llama", &[("num_hidden_layers", Value::Null)], &[], &["num_hidden_layers"]);
    refused("llama", &[("num_hidden_layers", 1_000_000_000.into())], &[], &["num_hidden_layers"]);
    refused("llama", &[("rms_norm_eps", Value::Null)], &[], &["rms_norm_eps", "missing"]);
    refused("llama", &[("attention_bias", true.into())], &[], &["attention_bias"]);
    let rope = serde_json::json!({"rope_type": "longrope", "factor": 2.0});
    refused("llama", &[("rope_parameters", rope)], &[], &["longrope", "yarn"]);
    refused(
        "qwen3",
        &[],
        &["model.layers.1.self_attn.k_norm.weight"],
        &["layers.1.self_attn.k_norm"],
    );
    for names in [&["pytorch_model.bin"][..], &["pytorch_model-00001-of-00002.bin", "vocab.txt"]] {
        let pickled = changed("llama", &[], &[]);
        std::fs::remove_file(pickled.path().join("model.safetensors")).unwrap();
        names.iter().for_each(|name| std::fs::write(pickled.path().join(name), "PK").unwrap());
        let error = Checkpoint::open(pickled.path()).err().unwrap().to_string();
        for fact in [names[0], "a pickle", "save_pretrained(OUT, safe_serialization=True)"] {
            assert!(error.contains(fact) && !error.contains('\n'), "{fact}: {error}");
        }
    }
    let empty = tempfile::tempdir().unwrap();
    let error = Checkpoint::open(empty.path()).err().unwrap();
    assert!(matches!(error, Error::NoFile { name: "config.json", .. }), "{error}");
    let no_words = changed("llama", &[], &[]);
    std::fs::remove_file(no_words.path().join("tokenizer.json")).unwrap();
    let error = Checkpoint::open(no_words.path()).err().unwrap().to_string();
    assert!(error.contains("tokenizer.json"), "{error}");
}
