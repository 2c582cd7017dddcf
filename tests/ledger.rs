//! `--ledger` through the binary: terms that add up to the process, written with plots, of every command
//! that runs a model.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
#[path = "common/http.rs"]
mod http;

use common::works;
use http::{Server, fixture};
use serde_json::{Value, json};
use std::path::Path;

/// What a command wrote, held to what every ledger must hold.
#[track_caller]
fn check(dir: &Path, terms: &[&str]) -> Value {
    let text = std::fs::read_to_string(dir.join("ledger.json")).unwrap();
    let found: Value = serde_json::from_str(&text).unwrap();
    let rows = found["terms"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    terms.iter().for_each(|term| assert!(names.contains(term), "{term}: {names:?}"));
    let sum = |key: &str| rows.iter().map(|row| row[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("bytes"), found["total_bytes"].as_u64().unwrap());
    assert!(names.contains(&found["limiting_term"].as_str().unwrap()));
    // What no term explains of the process, at its peak.
    let share = found["unexplained_share"].as_f64().unwrap();
    assert!(share.abs() < 0.03, "{share}: {found}");
    let samples = found["timeline"]["samples"].as_array().unwrap();
    assert!(samples.len() > 2, "{found}");
    let step = found["timeline"]["step"]["samples"].as_array().unwrap();
    assert!(step.len() >= 2, "{found}");
    // Pages of a buffer count once they are touched; what was reserved is at least that.
    for row in rows {
        let [peak, used] = ["peak_bytes", "in_use_bytes"].map(|key| row[key].as_u64().unwrap());
        assert!(used <= peak.next_multiple_of(4096) + 4096 * 64, "{row}");
    }
    let page = std::fs::read_to_string(dir.join("ledger.html")).unwrap();
    assert_eq!(page.matches("<svg").count(), 2, "a plot over the run and one over a step");
    found
}

fn flag(dir: &Path) -> String {
    format!("--ledger={}", dir.display())
}

#[test]
fn generating_tells_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let model = fixture("llama");
    let ran = works(&["generate", &model, "some text", "--max-tokens", "20", &flag(dir.path())]);
    let found = check(dir.path(), &["weights", "K/V cache", "workspace", "runtime"]);
    assert!(ran.err.contains("unexplained") && !ran.out.contains("unexplained"), "{}", ran.err);
    for row in found["terms"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        if ["weights", "K/V cache", "workspace"].contains(&name) {
            assert_eq!(row["predicted_bytes"], row["peak_bytes"], "{row}");
        }
    }
    works(&["diagnose", dir.path().join("ledger.json").to_str().unwrap()]);
}

#[test]
fn a_real_model_is_predicted_and_the_file_it_was_read_from_is_told_apart() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/models/smollm2-135m-q4_1.gguf");
    if !Path::new(model).is_file() {
        println!("skipped: no {model}; scripts/fetch-test-models fetches it");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    works(&["generate", model, "The capital of France is", "--max-tokens", "8", &flag(dir.path())]);
    let found = check(dir.path(), &["weights", "K/V cache", "mapped files"]);
    let number = |key: &str| found[key].as_f64().unwrap();
    // A file is given back as it is read: a small part of its 98 MB stands beside the weights.
    let file = number("reclaimable_bytes");
    assert!(file < 30e6, "{found}");
    let ratio = number("predicted_process_bytes") / (number("peak_process_bytes") - file);
    assert!((ratio - 1.0).abs() < 0.03, "{ratio}");
}

#[test]
fn training_tells_its_bytes_in_the_run_folder() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let words = ["train", "--data", common::data(), "--model", "transformer", "--max-steps", "3"];
    let ran =
        works(&[&words[..], &["--quiet", "--ledger", "--out", out.to_str().unwrap()]].concat());
    assert!(ran.out.contains("unexplained"), "{}", ran.out);
    let found = check(&out, &["weights", "gradients", "optimizer", "activations", "data"]);
    let marks = found["timeline"]["marks"].as_array().unwrap();
    assert!(marks.iter().any(|mark| mark["what"].as_str().unwrap().contains("evaluation")));
    works(&["diagnose", out.to_str().unwrap()]);
}

#[test]
fn counting_tells_its_bytes_in_the_run_folder() {
    let dir = tempfile::tempdir().unwrap();
    for (model, order) in [("bigram", 2), ("ngram", 4)] {
        let out = dir.path().join(model);
        let words = ["train", "--data", common::data(), "--model", model, "--ledger", "--out"];
        let order = order.to_string();
        let more = if model == "ngram" { vec!["--order", &order] } else { vec![] };
        let ran = works(&[&words[..], &[out.to_str().unwrap()], &more[..]].concat());
        assert!(ran.out.contains("unexplained"), "{}", ran.out);
        let found = check(&out, &["weights", "workspace", "data", "runtime"]);
        let result = std::fs::read_to_string(out.join("result.json")).unwrap();
        let result: Value = serde_json::from_str(&result).unwrap();
        assert_eq!(found["parameters"], result["parameters"]);
        for row in found["terms"].as_array().unwrap() {
            let term = |key: &str| row[key].as_u64().unwrap();
            match row["name"].as_str().unwrap() {
                // The tables that are left, and what they were counted in.
                "weights" => {
                    assert_eq!(
                        term("predicted_bytes"),
                        result["parameter_bytes"].as_u64().unwrap()
                    );
                    assert_eq!(term("peak_bytes"), term("predicted_bytes"), "{row}");
                }
                "workspace" => {
                    let ratio = term("peak_bytes") as f64 / term("predicted_bytes") as f64;
                    assert!((0.9..1.1).contains(&ratio), "{ratio}: {row}");
                }
                "data" => assert_eq!(term("peak_bytes"), term("predicted_bytes"), "{row}"),
                _ => {}
            }
        }
        works(&["diagnose", out.to_str().unwrap()]);
    }
}

/// Weights are read as floats, become master weights, and are floats again when the folder is exported: no
/// term has more than was predicted at any moment.
#[test]
fn fine_tuning_in_16_bits_never_reserves_more_than_predicted() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("words.txt");
    std::fs::write(&text, "please send the figures to the office by noon. ".repeat(9)).unwrap();
    let (text, model) = (text.to_str().unwrap(), fixture("llama"));
    for precision in ["f32", "bf16"] {
        let out = dir.path().join(precision);
        let words = ["train", "--init", &model, "--text", text, "--valid", text, "--max-len", "30"];
        let more = ["--max-steps", "2", "--ledger", "--quiet", "--precision", precision];
        works(&[&words[..], &more, &["--out", out.to_str().unwrap()]].concat());
        let found = check(&out, &["weights", "gradients", "optimizer", "activations"]);
        for row in found["terms"].as_array().unwrap() {
            let name = row["name"].as_str().unwrap();
            if ["weights", "master weights", "gradients", "optimizer"].contains(&name) {
                assert_eq!(row["predicted_bytes"], row["peak_bytes"], "{precision}: {row}");
            }
        }
        assert!(found["fits"].as_bool().unwrap() && found["parameters"].as_u64().unwrap() > 1000);
        assert_eq!(found["ranks"][0]["total_bytes"], found["total_bytes"]);
        assert!(out.join("huggingface/model.safetensors").is_file());
    }
}

#[test]
fn serving_tells_its_bytes_when_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&fixture("llama"), &[&flag(dir.path())]);
    server.good("/v1/completions", &json!({"prompt": "some text", "max_tokens": 12}));
    let own = tempfile::tempdir().unwrap();
    let url = format!("http://{}", server.address);
    let words =
        ["bench", "serve", &url, "--requests", "2", "--max-tokens", "4", "--prompt-tokens", "8"];
    let ran = works(&[&words[..], &["--vocabulary", "60", &flag(own.path())]].concat());
    assert!(ran.err.contains("K/V cache"), "{}", ran.err);
    let told: Value =
        serde_json::from_str(&std::fs::read_to_string(own.path().join("ledger.json")).unwrap())
            .unwrap();
    assert!(told["kv"]["reserved_bytes"].as_u64().unwrap() > 0);
    for key in ["fits", "budget_bytes", "parameters"] {
        assert!(!told[key].is_null(), "{key}: {told}");
    }
    assert!(told["levers"].is_array(), "{told}");
    server.signal("-TERM");
    assert_eq!(server.ended(), Some(0));
    let found = check(dir.path(), &["weights", "K/V cache", "workspace", "runtime"]);
    let marks = found["timeline"]["marks"].as_array().unwrap();
    assert!(marks.iter().any(|mark| mark["what"] == "ready"), "{marks:?}");
}

#[test]
fn benches_tell_their_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let model = fixture("llama");
    for words in [
        &["bench", "prefill", &model, "--tokens", "16", "--repeat", "1"][..],
        &["bench", "decode", &model, "--tokens", "4", "--repeat", "1"],
    ] {
        works(&[words, &[&flag(dir.path())]].concat());
        check(dir.path(), &["weights", "K/V cache"]);
    }
    works(&["generate", &model, "some text", "--compare-presets", &flag(dir.path())]);
    check(dir.path(), &["weights", "K/V cache"]);
    let of_benches: [(&[&str], &[&str]); 3] = [
        (&["bench", "attention", "--length", "64", "--backward"], &["gradients", "workspace"]),
        (&["bench", "attention-memory", "--length", "64,2048"], &["data", "workspace"]),
        (&["bench", "scaling", &model, "--from", "8", "--to", "16"], &["weights", "K/V cache"]),
    ];
    for (words, terms) in of_benches {
        works(&[words, &[&flag(dir.path())]].concat());
        let found = check(dir.path(), terms);
        for row in found["terms"].as_array().unwrap() {
            if terms.contains(&row["name"].as_str().unwrap()) {
                assert_eq!(row["predicted_bytes"], row["peak_bytes"], "{words:?}: {row}");
            }
        }
    }
    works(&["bench", "train-memory", "--threads", "1", &flag(dir.path())]);
    for model in ["rnn", "transformer"] {
        let found =
            check(&dir.path().join(model), &["weights", "gradients", "optimizer", "activations"]);
        let [predicted, peak] = ["predicted_process_bytes", "peak_process_bytes"]
            .map(|key| found[key].as_f64().unwrap());
        assert!((predicted / peak - 1.0).abs() < 0.03, "{model}: {predicted} {peak}");
    }
    common::autoreg(&["bench", "prefill", &model, "--ledger=/nowhere/at/all"])
        .refused(2, &["/nowhere/at/all", "no such folder"]);
}
