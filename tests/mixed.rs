//! Training in 16 bits through the binary: memory by term, near the loss of f32, resumed, refused.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{SMALL, autoreg, copy, data, json, model, works};
use serde_json::Value;
use std::fs;
use std::path::Path;

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("a number: {value}"))
}

/// Five steps of the email transformer: every term is what was predicted, and the process is near.
#[test]
fn memory_is_what_was_predicted_and_a_parameter_takes_18_bytes() {
    let words = ["--precision", "bf16", "--threads", "2"];
    let measured = json(&[&["bench", "train-memory"][..], &words].concat());
    let row = &measured["rows"][0];
    let parameters = number(&row["parameters"]);
    let mut seen = 0;
    for term in row["ledger"]["terms"].as_array().unwrap() {
        let (predicted, found) = (&term["predicted_bytes"], number(&term["bytes"]));
        assert_eq!(number(predicted), found, "{term}");
        let each = match term["name"].as_str().unwrap() {
            "weights" => 2.0,
            "master weights" | "gradients" => 4.0,
            "optimizer" => 8.0,
            _ => continue,
        };
        seen += 1;
        let share = found / (each * parameters);
        assert!((1.0..1.001).contains(&share), "{term}: {share}");
    }
    assert_eq!(seen, 4);
    let plan = ["plan", "train", "email-transformer", "--batch", "64", "--length", "64"];
    let plan = json(&[&plan[..], &words].concat());
    let (predicted, peak) = (number(&plan["total_bytes"]), number(&row["peak_process_bytes"]));
    assert!((predicted / peak - 1.0).abs() < 0.03, "predicted {predicted}, measured {peak}");
}

#[test]
fn the_loss_is_near_that_of_f32_and_the_run_says_what_it_did() {
    let temp = tempfile::tempdir().unwrap();
    let config = temp.path().join("small.toml");
    let run = |precision: &str, written: &str, words: &[&str]| {
        fs::write(&config, format!("{SMALL}precision = '{written}'\n")).unwrap();
        let out = temp.path().join(precision);
        let fixed = ["train", "--data", data(), "--config", config.to_str().unwrap()];
        let out = ["--out", out.to_str().unwrap(), "--quiet"];
        json(&[&fixed[..], &out, words].concat())
    };
    let right = run("f32", "f32", &[]);
    for precision in ["bf16", "f16"] {
        let found = run(precision, precision, &[]);
        assert_eq!(found["precision"], precision);
        let off = number(&found["valid_loss_nats"]) - number(&right["valid_loss_nats"]);
        assert!(off.abs() < 0.02 && off != 0.0, "{precision}: {off}");
        let metrics =
            fs::read_to_string(temp.path().join(precision).join("metrics.jsonl")).unwrap();
        let first: Value = serde_json::from_str(metrics.lines().next().unwrap()).unwrap();
        assert!(first["lost_update_share"].is_number() && first["log_z_nats"].is_number());
        assert_eq!(first["loss_scale"].is_number(), precision == "f16", "{first}");
        let eval = json(&["eval", temp.path().join(precision).to_str().unwrap(), "--data", data()]);
        assert!(number(&eval["test_loss_nats"]["mean"]).is_finite());
    }
    // The flag is stronger than the file, and another precision is another run.
    let flag = run("flag", "f32", &["--precision", "bf16", "--max-steps", "4"]);
    assert_eq!(flag["precision"], "bf16");
    let out = temp.path().join("flag");
    let words = ["train", "--data", data(), "--config", config.to_str().unwrap(), "--resume"];
    let out = ["--out", out.to_str().unwrap(), "--max-steps", "4"];
    autoreg(&[&words[..], &out].concat()).refused(2, &["other settings"]);
    let resumed = [&words[..], &out, &["--precision", "bf16", "--quiet"]].concat();
    works(&resumed);
}

/// Changes the values of one F32 tensor of a safetensors file.
fn change(file: &Path, tensor: &str, change: impl Fn(f32) -> f32) {
    let mut bytes = fs::read(file).unwrap();
    let head = 8 + usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    let header: Value = serde_json::from_slice(&bytes[8..head]).unwrap();
    let at = |i: usize| {
        let at = header[tensor]["data_offsets"][i].as_u64().unwrap_or_else(|| panic!("{header}"));
        head + usize::try_from(at).unwrap()
    };
    for value in bytes[at(0)..at(1)].as_chunks_mut::<4>().0 {
        *value = change(f32::from_le_bytes(*value)).to_le_bytes();
    }
    fs::write(file, bytes).unwrap();
}

/// What is not a number is told by where it comes from, not as a learning rate's fault.
#[test]
fn a_loss_that_is_no_number_is_told_by_its_cause() {
    let temp = tempfile::tempdir().unwrap();
    let again = |init: &Path, out: &str, words: &[&str]| {
        let out = temp.path().join(out);
        let fixed = ["train", "--quiet", "--max-steps", "2", "--data", data(), "--init"];
        let paths = [init.to_str().unwrap(), "--out", out.to_str().unwrap()];
        autoreg(&[&fixed[..], &paths, words].concat())
    };
    let large = temp.path().join("large");
    copy(model(), &large);
    change(&large.join("model.safetensors"), "layers.0.mlp.up.weight", |w| w * 1e7);
    let ran = again(&large, "f16", &["--precision", "f16"]);
    ran.refused(1, &["step 1", "first in: layer 0 mlp", "65,504", "--precision bf16 or f32"]);
    assert!(!ran.err.contains("--learning-rate"), "{}", ran.err);
    assert_eq!(again(&large, "bf16", &["--precision", "bf16"]).code, Some(0));

    let odd = temp.path().join("odd");
    copy(model(), &odd);
    change(&odd.join("model.safetensors"), "layers.0.mlp.up.weight", |_| f32::NAN);
    let said =
        ["odd/model.safetensors", "layers.0.mlp.up.weight", "no finite number", "another copy"];
    again(&odd, "nan", &[]).refused(2, &said);
    assert!(!temp.path().join("nan").exists());
}

#[test]
fn steps_that_changed_nothing_are_told_at_the_end() {
    let temp = tempfile::tempdir().unwrap();
    let (config, out) = (temp.path().join("small.toml"), temp.path().join("run"));
    fs::write(&config, SMALL).unwrap();
    let paths = ["--config", config.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let words = ["train", "--data", data(), "--precision", "f16", "--checkpoint-every", "1"];
    let words = [&words[..], &paths, &["--quiet", "--max-steps", "2"]].concat();
    assert!(!works(&words).out.contains("changed nothing"));
    // A scale that no gradient bears.
    let checkpoints = out.join("checkpoints");
    fs::remove_dir_all(checkpoints.join("step-000000002")).unwrap();
    let file = checkpoints.join("step-000000001/state.json");
    let mut state: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    state["state"]["loss_scale"]["factor"] = 1e30.into();
    fs::write(&file, state.to_string()).unwrap();
    let told = works(&[&words[..], &["--resume"]].concat()).out;
    assert!(told.contains("1 of 2 steps changed nothing") && told.contains("bf16"), "{told}");
}

#[test]
fn what_cannot_be_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("run");
    let train = ["train", "--data", data(), "--out", out.to_str().unwrap()];
    let refused = |words: &[&str], says: &[&str]| {
        autoreg(&[&train[..], words].concat()).refused(2, says);
        assert!(!out.exists());
    };
    refused(&["--model", "rnn", "--precision", "bf16"], &["precision is bf16", "transformers"]);
    let word = autoreg(&[&train[..], &["--precision", "int8"]].concat());
    assert_eq!(word.code, Some(2));
    assert!(word.err.contains("choose f32, bf16 or f16"), "{}", word.err);
    let mid = ["bench", "train-speed", "--preset", "mid", "--model", "rnn"];
    autoreg(&mid).refused(2, &["--preset mid"]);
}
