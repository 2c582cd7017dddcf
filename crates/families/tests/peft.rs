//! Adapters against the PEFT library: those that it made, merged here; those made here, loaded there.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use families::{Adapter, Checkpoint, lora_targets, write_peft};
use kernels::Team;
use models::{Batch, LoraConfig, Model, Runner, Workload, is_adapter};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn logits(model: &Model, ids: &[u32]) -> Vec<f32> {
    let team = Arc::new(Team::new(2));
    let workload =
        Workload { rows: ids.len(), sequences: 1, longest: ids.len(), threads: 2, training: false };
    let mut runner = Runner::new(model, workload, &team).unwrap();
    let mut batch = Batch::default();
    batch.push_inputs(ids, 0, 0);
    let rows: Vec<usize> = (0..ids.len()).collect();
    let mut out = vec![0.0; ids.len() * model.config().vocab_size()];
    runner.logits(model, &batch, &mut [][..], &rows, &mut out);
    out
}

#[track_caller]
fn close(ours: &[f32], theirs: &[f64], tolerance: f64, what: &str) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    let largest = theirs.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
    for (a, b) in ours.iter().zip(theirs) {
        let off = (f64::from(*a) - b).abs() / largest;
        assert!(off < tolerance, "{what}: {a} is not {b}");
    }
}

fn list(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

/// A fixture with the adapters that PEFT made merged in.
fn merged(name: &str) -> Model {
    let mut checkpoint = Checkpoint::open(&fixture(name)).unwrap();
    checkpoint.keep_as_stored().unwrap();
    let folder = fixture(&format!("peft-{name}"));
    let adapter = Adapter::open(&folder, checkpoint.family, &checkpoint.config).unwrap();
    for changed in adapter.parameters() {
        checkpoint.config.storage.remove(changed);
    }
    let mut model = checkpoint.load(2).unwrap();
    adapter.merge(&mut model).unwrap();
    model
}

#[test]
fn what_peft_made_gives_the_logits_that_it_gives() {
    for name in ["llama", "gemma3", "gpt2"] {
        let expected = json(&fixture(&format!("peft-{name}")).join("expected.json"));
        let ids: Vec<u32> = list(&expected["ids"]).iter().map(|&v| v as u32).collect();
        let model = merged(name);
        let (found, vocab) = (logits(&model, &ids), model.config().vocab_size());
        let plain = logits(&Checkpoint::open(&fixture(name)).unwrap().load(2).unwrap(), &ids);
        assert!(found.iter().zip(&plain).any(|(a, b)| (a - b).abs() > 0.1), "{name}: no change");
        let rows = expected["logits"].as_array().unwrap();
        for (place, row) in list(&expected["places"]).into_iter().zip(rows) {
            let at = place as usize * vocab;
            close(&found[at..at + vocab], &list(row), 1e-4, name);
        }
    }
}

/// A fixture with random adapters on all maps that it can have.
fn adapted(name: &str) -> (Checkpoint, Model) {
    let mut checkpoint = Checkpoint::open(&fixture(name)).unwrap();
    let targets = lora_targets(checkpoint.family, &checkpoint.config);
    checkpoint.config.lora = Some(LoraConfig { rank: 3, alpha: 5.0, targets });
    let mut model = checkpoint.load(2).unwrap();
    let layout = Arc::clone(model.layout());
    for spec in layout.specs().iter().filter(|spec| is_adapter(&spec.name)) {
        let key = spec.name.bytes().map(u64::from).sum();
        let values = &mut model.weights_mut().flat_mut()[spec.range.clone()];
        values.iter_mut().enumerate().for_each(|(i, v)| *v = 0.2 * kernels::normal(key, i as u64));
    }
    (checkpoint, model)
}

const IDS: [u32; 12] = [1, 50, 200, 3, 7, 99, 254, 0, 12, 12, 5, 61];

#[test]
fn what_is_written_is_read_and_merges_to_the_same_logits() {
    let place = tempfile::tempdir().unwrap();
    for name in ["llama", "qwen2", "qwen3", "gemma3", "gpt2", "mistral"] {
        let (checkpoint, model) = adapted(name);
        let folder = place.path().join(name);
        write_peft(&folder, checkpoint.family, &model, "base").unwrap();
        let plain = Checkpoint::open(&fixture(name)).unwrap();
        let adapter = Adapter::open(&folder, plain.family, &plain.config).unwrap();
        let mut merged = plain.load(2).unwrap();
        adapter.merge(&mut merged).unwrap();
        let right: Vec<f64> = logits(&model, &IDS).into_iter().map(f64::from).collect();
        close(&logits(&merged, &IDS), &right, 1e-5, name);
    }
}

/// Ranks and alphas of single modules are what the same matrices would be with numbers for all.
#[test]
fn ranks_and_alphas_of_modules_are_read() {
    let (place, weights) = (tempfile::tempdir().unwrap(), "adapter_model.safetensors");
    let checkpoint = Checkpoint::open(&fixture("llama")).unwrap();
    let of = |change: &dyn Fn(&mut Value)| {
        let mut config = json(&fixture("peft-llama").join("adapter_config.json"));
        change(&mut config);
        std::fs::write(place.path().join("adapter_config.json"), config.to_string()).unwrap();
        std::fs::copy(fixture("peft-llama").join(weights), place.path().join(weights)).unwrap();
        let adapter = Adapter::open(place.path(), checkpoint.family, &checkpoint.config).unwrap();
        let mut model = checkpoint.load(2).unwrap();
        adapter.merge(&mut model).unwrap();
        logits(&model, &IDS)
    };
    let right = of(&|_| {});
    let rank = json(&fixture("peft-llama").join("adapter_config.json"))["r"].clone();
    let alpha = json(&fixture("peft-llama").join("adapter_config.json"))["lora_alpha"].clone();
    let pattern = |value: &Value| {
        let names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
        let one = |name: &&str| ((*name).to_owned(), value.clone());
        Value::Object(names.iter().map(one).collect())
    };
    let found = of(&|config| {
        (config["r"], config["rank_pattern"]) = (Value::from(64), pattern(&rank));
        (config["lora_alpha"], config["alpha_pattern"]) = (Value::from(1), pattern(&alpha));
    });
    assert_eq!(found, right);
    assert_ne!(of(&|config| config["alpha_pattern"] = pattern(&Value::from(1))), right);
}

#[test]
fn what_is_no_such_adapter_is_named() {
    let checkpoint = Checkpoint::open(&fixture("llama")).unwrap();
    let place = tempfile::tempdir().unwrap();
    let open = |folder: &Path| {
        let opened = Adapter::open(folder, checkpoint.family, &checkpoint.config);
        opened.unwrap_err().to_string()
    };
    let foreign = open(&fixture("peft-gpt2"));
    assert!(foreign.contains("belongs to no matrix") && foreign.contains("c_proj"), "{foreign}");
    for (key, value, says) in [
        ("use_dora", Value::Bool(true), "use_dora is true"),
        ("peft_type", Value::from("IA3"), "peft_type is \"IA3\""),
        ("r", Value::from(5), "shape [5, 24]"),
        ("lora_alpha", Value::Null, "lora_alpha is null"),
        ("modules_to_save", serde_json::json!(["lm_head"]), "modules_to_save"),
        ("rank_pattern", serde_json::json!({"q_proj": 7}), "shape [7, 24]"),
        ("rank_pattern", serde_json::json!({"q_proj|k_proj": 2}), "rank_pattern is {\"q_proj|"),
        ("alpha_pattern", serde_json::json!({"q_proj": "much"}), "alpha_pattern"),
    ] {
        let mut config = json(&fixture("peft-llama").join("adapter_config.json"));
        config[key] = value;
        let weights = "adapter_model.safetensors";
        std::fs::write(place.path().join("adapter_config.json"), config.to_string()).unwrap();
        std::fs::copy(fixture("peft-llama").join(weights), place.path().join(weights)).unwrap();
        let error = open(place.path());
        assert!(error.contains(says), "{key}: {error}");
    }
    std::fs::copy(
        fixture("peft-llama").join("adapter_config.json"),
        place.path().join("adapter_config.json"),
    )
    .unwrap();
    std::fs::remove_file(place.path().join("adapter_model.safetensors")).unwrap();
    assert!(open(place.path()).contains("adapter_model.safetensors"));
}

const SCRIPT: &str = "
import json, sys, torch, transformers, peft
ids = json.loads(sys.argv[1])
for base, folder in zip(sys.argv[2::2], sys.argv[3::2]):
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(model, folder).eval()
    with torch.no_grad():
        print(json.dumps(model(torch.tensor([ids])).logits[0].reshape(-1).tolist()))
";

#[test]
fn peft_loads_what_is_written_and_computes_the_same_logits() {
    let given = std::env::var_os("AUTOREG_PYTHON").map(PathBuf::from);
    let python = given
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python"));
    let known = Command::new(&python).args(["-c", "import peft, transformers"]).output();
    if !known.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no Python with peft and transformers; set AUTOREG_PYTHON");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let mut made = Vec::new();
    for name in ["llama", "qwen2", "qwen3", "gemma3", "gpt2", "mistral"] {
        let (checkpoint, model) = adapted(name);
        let folder = place.path().join(name);
        write_peft(&folder, checkpoint.family, &model, "base").unwrap();
        made.push((name, model, folder));
    }
    let ids = serde_json::to_string(&IDS).unwrap();
    let folders = made.iter().flat_map(|(name, _, folder)| [fixture(name), folder.clone()]);
    let output = Command::new(python).args(["-c", SCRIPT, &ids]).args(folders).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(!errors.contains("missing"), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), made.len());
    for (line, (name, model, _)) in text.lines().zip(&made) {
        let theirs: Vec<f64> = serde_json::from_str(line).unwrap();
        close(&logits(model, &IDS), &theirs, 2e-5, name);
    }
}
