//! Keys and values in fewer bytes, as a user meets them: records repeat, memory is predicted, words
//! that are none are refused.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn run(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_autoreg")).args(words).output().unwrap()
}

fn model() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/families/tests/fixtures/qwen3");
    folder.to_str().unwrap().to_owned()
}

fn told(words: &[&str]) -> Vec<u8> {
    let out = run(words);
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

#[test]
fn a_record_names_the_kind_and_is_repeated_with_it() {
    let (model, place) = (model(), tempfile::tempdir().unwrap());
    let file = place.path().join("record.json");
    let mut first = Vec::new();
    for kv in ["f32", "f16", "q8"] {
        let record = told(&["generate", &model, "ab", "--max-tokens", "12", "--kv", kv, "--json"]);
        std::fs::write(&file, &record).unwrap();
        let value: Value = serde_json::from_slice(&record).unwrap();
        let named = value["model"].get("kv").and_then(Value::as_str);
        assert_eq!(named, Some(kv).filter(|kv| *kv != "f32"));
        told(&["replay", file.to_str().unwrap()]);
        first.push(value["sequences"][0]["tokens"][4]["logprob"].as_f64().unwrap());
    }
    assert!(first[0] != first[2] && (first[0] - first[2]).abs() < 0.05, "{first:?}");
}

#[test]
fn memory_is_predicted_by_the_kind() {
    let model = model();
    let bytes = |kv: &str| {
        let out = told(&["inspect", &model, "--context", "100", "--kv", kv, "--json"]);
        let value: Value = serde_json::from_slice(&out).unwrap();
        value["memory"]["accounts"]["K/V cache"].as_u64().unwrap()
    };
    let [whole, half, eight] = ["f32", "f16", "q8"].map(bytes);
    assert_eq!(2 * half, whole);
    assert!(eight < half && 4 * eight > whole, "{eight} of {whole}");
}

#[test]
fn what_is_no_kind_is_refused() {
    let out = run(&["generate", &model(), "ab", "--kv", "q3"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(
        said.contains("q3") && said.contains("f16") && said.trim().lines().count() == 1,
        "{said}"
    );
}
