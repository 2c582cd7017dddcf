//! Models written as Hugging Face folders: read again by us, and by transformers where Python is
//! at hand (`AUTOREG_PYTHON`, or `.venv/bin/python` beside the workspace).
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use families::{Checkpoint, ExportError, Words, can_export, export};
use kernels::Team;
use ledger::Account;
use models::{Batch, Model, ModelConfig, RnnConfig, Runner, TransformerConfig, Workload};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tensor::Parameters;

const FIXTURES: [&str; 9] =
    ["llama", "llama3", "linear", "yarn", "mistral", "qwen2", "qwen3", "gemma3", "gpt2"];

fn open(name: &str) -> Checkpoint {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    Checkpoint::open(&folder).unwrap()
}

fn words(checkpoint: &Checkpoint) -> Words<'_> {
    Words {
        tokenizer: &checkpoint.tokenizer,
        ends: &checkpoint.ends,
        bos_token: checkpoint.bos_token.as_deref(),
        eos_token: checkpoint.eos_token.as_deref(),
        chat_template: checkpoint.chat_template.as_deref(),
    }
}

const IDS: [u32; 31] = [
    7, 99, 3, 250, 12, 12, 64, 1, 200, 31, 5, 77, 8, 140, 2, 90, 11, 45, 61, 17, 33, 29, 4, 128, 6,
    73, 19, 210, 88, 54, 0,
];

/// The model after one step down its gradient: no weight is a 16-bit number any more.
fn trained(checkpoint: &Checkpoint) -> Model {
    let mut model = checkpoint.load(2).unwrap();
    let mut batch = Batch::default();
    batch.push_known(&IDS, 0);
    let team = Arc::new(Team::new(2));
    let workload = Workload { rows: 30, sequences: 1, longest: 31, threads: 2, training: true };
    let mut runner = Runner::new(&model, workload, &team).unwrap();
    let layout = Arc::clone(model.layout());
    let mut gradients = Parameters::zeros(&layout, "gradients", Account::Gradients).unwrap();
    let before: f32 = runner.train(&model, &batch, 1.0 / 30.0, None, &mut gradients).iter().sum();
    let weights = model.weights_mut().flat_mut();
    weights.iter_mut().zip(gradients.flat()).for_each(|(w, g)| *w -= 0.01 * g);
    runner.weights_changed();
    let after: f32 = runner.train(&model, &batch, 1.0 / 30.0, None, &mut gradients).iter().sum();
    assert!(after < before, "{after} is not below {before}");
    model
}

fn logits(model: &Model) -> Vec<f32> {
    let team = Arc::new(Team::new(2));
    let workload = Workload { rows: 31, sequences: 1, longest: 31, threads: 2, training: false };
    let mut runner = Runner::new(model, workload, &team).unwrap();
    let mut batch = Batch::default();
    batch.push_inputs(&IDS, 0, 0);
    let mut out = vec![0.0; 31 * model.config().vocab_size()];
    runner.logits(model, &batch, &mut [][..], &(0..31).collect::<Vec<_>>(), &mut out);
    out
}

#[test]
fn every_family_is_trained_written_and_read_again_with_the_same_bits() {
    for name in FIXTURES {
        let (checkpoint, place) = (open(name), tempfile::tempdir().unwrap());
        let (model, folder) = (trained(&checkpoint), place.path().join("out"));
        export(&folder, &model, &words(&checkpoint)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let again = Checkpoint::open(&folder).unwrap();
        assert_eq!(again.family.name, checkpoint.family.name);
        assert_eq!(
            (&again.ends, &again.chat_template),
            (&checkpoint.ends, &checkpoint.chat_template)
        );
        assert_eq!(again.tokenizer.specials(), checkpoint.tokenizer.specials(), "{name}");
        let bits = |model: &Model| logits(model).iter().map(|z| z.to_bits()).collect::<Vec<_>>();
        let reread = again.load(2).unwrap();
        // A gain less one does not come back to the bit.
        if name == "gemma3" {
            let pairs = logits(&model).into_iter().zip(logits(&reread));
            assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() < 1e-5), "{name}");
        } else {
            assert!(bits(&model) == bits(&reread), "{name}");
        }
    }
}

#[test]
fn what_no_family_computes_is_refused() {
    let email = ModelConfig::Transformer(TransformerConfig::email(50, 16));
    for config in [email, ModelConfig::Rnn(RnnConfig::email(50))] {
        let error = can_export(&config).unwrap_err();
        assert!(matches!(error, ExportError::NoFamily { .. }));
        assert!(error.to_string().contains("llama"), "{error}");
    }
}

const SCRIPT: &str = "
import json, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
ids = json.loads(sys.argv[1])
for folder in sys.argv[2:]:
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation='eager').eval()
    assert model.dtype == torch.float32, model.dtype
    AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        print(json.dumps(model(torch.tensor([ids])).logits[0].reshape(-1).tolist()))
";

fn python() -> Option<PathBuf> {
    let given = std::env::var_os("AUTOREG_PYTHON").map(PathBuf::from);
    let python = given
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python"));
    let known = Command::new(&python).args(["-c", "import torch, transformers"]).output();
    known.is_ok_and(|output| output.status.success()).then_some(python)
}

#[test]
fn transformers_loads_what_was_trained_and_computes_the_same_logits() {
    let Some(python) = python() else {
        eprintln!("skipped: no Python with torch and transformers; set AUTOREG_PYTHON");
        return;
    };
    let place = tempfile::tempdir().unwrap();
    let mut models = Vec::new();
    for name in FIXTURES {
        let (checkpoint, folder) = (open(name), place.path().join(name));
        let model = trained(&checkpoint);
        export(&folder, &model, &words(&checkpoint)).unwrap();
        models.push((name, model, folder));
    }
    let ids = serde_json::to_string(&IDS).unwrap();
    let folders = models.iter().map(|(_, _, folder)| folder);
    let output = Command::new(python).args(["-c", SCRIPT, &ids]).args(folders).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), models.len());
    for (line, (name, model, _)) in text.lines().zip(&models) {
        let theirs: Vec<f64> = serde_json::from_str(line).unwrap();
        let ours = logits(model);
        assert_eq!(ours.len(), theirs.len(), "{name}");
        let largest = theirs.iter().fold(0.0, |m: f64, z| m.max(z.abs()));
        for (a, b) in ours.iter().zip(&theirs) {
            let off = (f64::from(*a) - b).abs() / largest;
            assert!(off < 2e-5, "{name}: {a} is not {b}");
        }
    }
}
