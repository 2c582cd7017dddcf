//! `autoreg train --lora` and `--adapter`: adapters beside models as they are stored.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{autoreg, json, works};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn model(name: &str) -> String {
    format!("{}/crates/families/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn words(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// An invented text.
fn text(place: &Path) -> PathBuf {
    let path = place.join("words.txt");
    std::fs::write(&path, "please send the figures to the office by noon. ".repeat(30)).unwrap();
    path
}

fn train(base: &str, out: &Path, more: &[&str]) -> Value {
    let text = text(out.parent().unwrap());
    let mut all = vec!["train", "--init", base, "--text", words(&text), "--valid", words(&text)];
    all.extend(["--out", words(out), "--max-len", "40", "--batch", "4"]);
    all.extend(["--epochs", "4", "--learning-rate", "0.02", "--warmup-steps", "2"]);
    all.extend(more);
    json(&all)
}

fn score(base: &str, more: &[&str]) -> Vec<f64> {
    let all = [&["score", base, "please send the figures"][..], more].concat();
    let tokens = json(&all)["tokens"].as_array().unwrap().clone();
    tokens.iter().filter_map(|t| t["logprob"].as_f64()).collect()
}

#[test]
fn adapters_are_learnt_used_merged_and_resumed() {
    let place = tempfile::tempdir().unwrap();
    // 24 wide: too narrow for blocks; 16 bits stay 16 bits.
    for name in ["qwen3", "gpt2"] {
        let (base, out) = (model(name), place.path().join(name));
        let ask = ["--lora", "rank=4,alpha=8,targets=o,up,down", "--merge"];
        let done = train(&base, &out, &ask);
        let curve = done["curve"].as_array().unwrap();
        let (first, best) = (&curve[0]["valid_loss"], &done["valid_loss_nats"]);
        assert!(best.as_f64() < first.as_f64(), "{curve:?}");
        let trained = done["trained_parameters"].as_u64().unwrap();
        assert!(trained * 4 < done["parameters"].as_u64().unwrap(), "{done}");
        let (adapter, merged) = (out.join("adapter"), out.join("huggingface"));
        assert_eq!(done["adapter"], words(&adapter));
        assert_eq!(done["huggingface"], words(&merged));
        let (plain, with) = (score(&base, &[]), score(&base, &["--adapter", words(&adapter)]));
        assert!(with.iter().sum::<f64>() > plain.iter().sum::<f64>() + 1.0, "{plain:?} {with:?}");
        for (a, b) in with.iter().zip(score(words(&merged), &[])) {
            assert!((a - b).abs() < 1e-4, "{name}: {a} and {b} merged");
        }
        works(&["generate", &base, "please", "--max-tokens", "3", "--adapter", words(&adapter)]);
    }
    // Queries, keys and values learn where they are one matrix, too: all of them, or some.
    for (targets, modules) in [("all", 4), ("q,v", 1), ("k", 1)] {
        let (base, out) = (model("gpt2"), place.path().join(format!("gpt2-{targets}")));
        let ask = ["--lora", &format!("rank=4,alpha=8,targets={targets}"), "--merge"];
        train(&base, &out, &ask);
        let (adapter, merged) = (out.join("adapter"), out.join("huggingface"));
        let file = std::fs::read(adapter.join("adapter_config.json")).unwrap();
        let written: Value = serde_json::from_slice(&file).unwrap();
        let names = written["target_modules"].as_array().unwrap();
        assert!(names.len() == modules && names.contains(&"attn.c_attn".into()), "{written}");
        let with = score(&base, &["--adapter", words(&adapter)]);
        assert!(with.iter().zip(score(&base, &[])).any(|(a, b)| (a - b).abs() > 1e-3));
        for (a, b) in with.iter().zip(score(words(&merged), &[])) {
            assert!((a - b).abs() < 1e-4, "{targets}: {a} and {b} merged");
        }
    }
    let (base, out) = (model("qwen3"), place.path().join("cut"));
    let ask = ["--lora", "rank=4,alpha=8,targets=o,up,down", "--checkpoint-every", "1"];
    train(&base, &out, &ask);
    let newest = std::fs::read_dir(out.join("checkpoints")).unwrap().map(|e| e.unwrap().path());
    std::fs::remove_dir_all(newest.max().unwrap()).unwrap();
    train(&base, &out, &[&ask[..], &["--resume"]].concat());
    let file = "adapter/adapter_model.safetensors";
    let bytes = |run: &str| std::fs::read(place.path().join(run).join(file)).unwrap();
    assert!(bytes("cut") == bytes("qwen3"), "resumed");
    // Two ranks learn what one process does, to rounding.
    let out = place.path().join("two");
    let ask = ["--lora", "rank=4,alpha=8,targets=o,up,down", "--ranks", "2", "--threads", "1"];
    let done = train(&base, &out, &ask);
    assert_eq!(done["adapter"], words(&out.join("adapter")));
    let with =
        |run: &str| score(&base, &["--adapter", words(&place.path().join(run).join("adapter"))]);
    for (a, b) in with("two").iter().zip(with("qwen3")) {
        assert!((a - b).abs() < 1e-3, "{a} and {b} over ranks");
    }
}

#[test]
fn a_quantised_model_stays_so() {
    let place = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let models = std::env::var_os("AUTOREG_MODELS");
    let models = models.map_or_else(|| root.join("models"), PathBuf::from);
    let published = models.join("smollm2-135m-q4_1.gguf");
    if !published.is_file() {
        println!("skipped: no {}", published.display());
        return;
    }
    let (base, out) = (words(&published), place.path().join("run"));
    let ask = ["--lora", "rank=2,targets=q,v", "--max-steps", "1", "--ledger"];
    let done = train(base, &out, &ask);
    assert_eq!(done["trained_parameters"], 30 * 2 * ((576 + 576) + (576 + 192)));
    // Blocks of 4 bits and adapters: far from the 538 MB that all weights as values take.
    let peak = done["peak_process_bytes"].as_u64().unwrap();
    assert!(peak < 450_000_000, "{peak}");
    let predicted = done["predicted_process_bytes"].as_u64().unwrap();
    let off = peak as f64 / predicted as f64;
    assert!((0.95..1.05).contains(&off), "{peak} measured, {predicted} predicted");
    let adapter = out.join("adapter");
    works(&["generate", base, "it", "--max-tokens", "2", "--adapter", words(&adapter)]);
}

#[test]
fn what_cannot_be_adapted_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let (text, out) = (text(place.path()), place.path().join("out"));
    let refused = |base: &str, more: &[&str], says: &[&str]| {
        let mut all = vec!["train", "--quiet", "--init", base, "--text", words(&text)];
        all.extend(["--out", words(&out)]);
        all.extend(more);
        let ran = autoreg(&all);
        assert_eq!(ran.code, Some(2), "{}", ran.err);
        says.iter().for_each(|fact| assert!(ran.err.contains(fact), "{fact}: {}", ran.err));
        assert!(!out.exists(), "{all:?}");
    };
    let (gpt2, llama) = (model("gpt2"), model("llama"));
    refused(&gpt2, &["--lora", "rank=2,targets=gate"], &["target gate", "there are q, k, v, o"]);
    refused(&llama, &["--lora", "rank=0"], &["lora rank", "1 to the model's width, 24"]);
    refused(&llama, &["--lora", "rank"], &["no value"]);
    refused(&llama, &["--merge"], &["--lora"]);
    let both = ["--lora", "rank=2", "--precision", "bf16"];
    refused(&llama, &both, &["precision is bf16", "must be f32 with --lora"]);
    let ran = autoreg(&["score", &llama, "it", "--adapter", &model("peft-gpt2")]);
    assert!(ran.code == Some(2) && ran.err.contains("belongs to no matrix"), "{}", ran.err);
}
