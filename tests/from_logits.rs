//! `autoreg generate --from-logits` through the built binary.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

struct Lesson {
    folder: tempfile::TempDir,
    file: PathBuf,
}

fn lesson(text: &str) -> Lesson {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("logits.json");
    std::fs::write(&file, text).unwrap();
    Lesson { folder, file }
}

fn run(file: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_autoreg"))
        .arg("generate")
        .arg("--from-logits")
        .arg(file)
        .args(args)
        .output()
        .unwrap()
}

#[track_caller]
fn json(text: &str, args: &[&str]) -> Value {
    let lesson = lesson(text);
    let output = run(&lesson.file, &[args, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Exit code 2, one line on standard error that holds the words, nothing on standard output.
#[track_caller]
fn refused(text: &str, args: &[&str], words: &[&str]) {
    let lesson = lesson(text);
    let output = run(&lesson.file, args);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(output.stdout.is_empty());
    assert_eq!(message.trim_end().lines().count(), 1, "{message}");
    for word in words {
        assert!(message.contains(word), "{word:?} is not in {message}");
    }
}

const PROBABILITIES: &str = r#"{"probs":[0.5,0.3,0.2],"tokens":[" report"," me"," file"]}"#;

#[test]
fn a_fixed_draw_gives_the_second_with_the_stable_keys() {
    let answer = json(PROBABILITIES, &["--draw", "0.64"]);
    let keys: Vec<_> = answer.as_object().unwrap().keys().collect();
    let mut expected = ["kept", "draw", "choice", "logprob", "sample_logprob", "steps"];
    expected.sort_unstable();
    let mut found = keys.clone();
    found.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!(answer["choice"], 1);
    assert_eq!(answer["draw"], 0.64);
    assert_eq!(answer["kept"].as_array().unwrap().len(), 3);
    assert_eq!(answer["kept"][1]["id"], 1);
    assert_eq!(answer["kept"][1]["token"], " me");
    assert_eq!(answer["kept"][1]["probability"], 0.3);
    assert!((answer["logprob"].as_f64().unwrap() - 0.3_f64.ln()).abs() < 1e-15);
}

#[test]
fn steps_say_what_each_rule_dropped() {
    let args = ["--temperature", "0.5", "--top-p", "0.8", "--draw", "0.1"];
    let answer = json("[3, 2, 1]", &args);
    assert_eq!(answer["steps"][0]["rule"], "temperature");
    assert_eq!(answer["steps"][0]["dropped"], serde_json::json!([]));
    assert_eq!(answer["steps"][1]["rule"], "top_p");
    assert_eq!(answer["steps"][1]["settings"]["p"], 0.8);
    assert_eq!(answer["steps"][1]["dropped"], serde_json::json!([1, 2]));
    assert_eq!(answer["kept"], serde_json::json!([{"id": 0, "token": null, "probability": 1.0}]));
}

#[test]
fn presets_side_by_side() {
    let args = ["--compare-presets", "--top-k", "2", "--top-p", "0.5"];
    let rows = json(r#"{"probs":[0.4,0.3,0.2,0.1]}"#, &args);
    let kept: Vec<_> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            (row["preset"].as_str().unwrap(), row["answer"]["kept"].as_array().unwrap().len())
        })
        .collect();
    let expected = [("autoreg", 1), ("hf", 1), ("vllm", 1), ("llamacpp", 1), ("sglang", 2)];
    assert_eq!(kept, expected);
}

#[test]
fn a_chain_of_ones_own_and_a_seed_that_replays() {
    let lesson = lesson("[1, 2, 3, 4]");
    let chain = lesson.folder.path().join("rules.json");
    std::fs::write(&chain, r#"[{"rule":"top_k","k":3},{"rule":"temperature","t":2}]"#).unwrap();
    let seeded = |seed: &str, step: &str| {
        let rules = chain.to_str().unwrap();
        let output =
            run(&lesson.file, &["--rules", rules, "--seed", seed, "--step", step, "--json"]);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let first = seeded("7", "3");
    assert_eq!(first["steps"][0]["rule"], "top_k");
    assert_eq!(first, seeded("7", "3"));
    assert_ne!(first["draw"], seeded("7", "4")["draw"]);
    assert_ne!(first["draw"], seeded("8", "3")["draw"]);
}

#[test]
fn text_and_page() {
    let lesson = lesson(PROBABILITIES);
    let page = lesson.folder.path().join("report.html");
    let args = ["--draw", "0.64", "--top-p", "0.75", "--explain", page.to_str().unwrap()];
    let output = run(&lesson.file, &args);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("top_p 0.75") && text.contains("u = 0.640000"), "{text}");
    assert!(!text.contains('\x1b'), "colours without a terminal");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("type=\"application/json\""));
}

#[test]
fn bad_input_is_one_line_and_exit_code_2() {
    for bad in ["NaN", "Infinity", "1e39"] {
        for at in 0..3 {
            let mut numbers = ["1", "2", "3"];
            numbers[at] = bad;
            let text = format!("[{}]", numbers.join(","));
            refused(&text, &["--step", "4"], &["step 4", &format!("token {at}")]);
            refused(&text, &["--greedy"], &["step 0"]);
        }
    }
    refused("[-Infinity, -Infinity]", &[], &["all 2 logits"]);
    refused("[]", &[], &["empty"]);
    refused("[1, 2", &[], &["line 1"]);
    refused("[1, \"x\"]", &[], &["index 1"]);
    refused("3", &[], &["found a single number", "expected an array"]);
    refused("{}", &[], &["neither"]);
    refused(r#"{"logits":[1],"probs":[1]}"#, &[], &["both"]);
    refused(r#"{"logits":[1],"token":["a"]}"#, &[], &["unknown field `token`", "tokens"]);
    refused(r#"{"logits":[1,2],"tokens":["a"]}"#, &[], &["1 tokens for 2 numbers"]);
    refused(r#"{"probs":[0.5,-0.5]}"#, &[], &["token 1", "probability"]);
    refused("[1, 2]", &["--temperature", "-1"], &["temperature", "-1"]);
    refused("[1, 2]", &["--top-p", "0"], &["top_p"]);
    refused("[1, 2]", &["--draw", "1"], &["below 1"]);
    refused("[1, 2]", &["--ban", "0,1"], &["forbid every one"]);
    refused("[1, 2]", &["--ban", "9"], &["token 9", "2 entries"]);
    let missing = run(Path::new("no-such-file.json"), &[]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("no-such-file.json"));
}
