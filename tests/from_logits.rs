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

/// Standard error of a run that succeeds.
#[track_caller]
fn notes(text: &str, args: &[&str]) -> String {
    let lesson = lesson(text);
    let output = run(&lesson.file, args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stderr).unwrap()
}

/// A history given by hand is generated text: every penalty of every preset that has it sees it.
#[test]
fn penalties_see_the_history() {
    for flag in ["--presence-penalty", "--frequency-penalty", "--repetition-penalty"] {
        let rows = json("[2, 2, 2]", &["--compare-presets", "--history", "1,1", flag, "1.5"]);
        let mut seen = 0;
        for row in rows.as_array().unwrap().iter().filter(|row| row["refused"].is_null()) {
            let changed = &row["answer"]["steps"][0]["changed"];
            assert_eq!(changed[0]["id"], 1, "{flag}: {row}");
            let to = changed[0]["to"].as_f64().unwrap();
            let expected = match flag {
                "--presence-penalty" => 0.5,
                "--frequency-penalty" => -1.0,
                _ => 2.0 / 1.5,
            };
            assert!((to - expected).abs() < 1e-6, "{flag}: {row}");
            seen += 1;
        }
        assert!(seen >= 4, "{flag}");
    }
    refused("[1, 2]", &["--history", "7"], &["--history", "token 7", "2 entries"]);
}

#[test]
fn flags_of_a_models_mode_are_refused() {
    let alone = ["--stream", "--ban-unk", "--ignore-eos", "--control-tokens"];
    let valued = [
        ("--n", "2"),
        ("--beam", "2"),
        ("--best-of", "2"),
        ("--stop", "x"),
        ("--max-tokens", "4"),
        ("--eos", "1"),
        ("--first-sequence", "1"),
        ("--truncate-prompt", "left"),
        ("--threads", "1"),
        ("--teacher", "x"),
    ];
    for flag in alone {
        refused("[1, 2]", &[flag], &[flag, "--from-logits"]);
    }
    for (flag, value) in valued {
        refused("[1, 2]", &[flag, value], &[flag, "--from-logits"]);
    }
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    refused("[1, 2]", &["--greedy", "--temperature", "0.7"], &["--greedy", "--temperature 0.7"]);
    for (flag, value) in [("--top-k", "2"), ("--top-p", "0.5"), ("--min-p", "0.5")] {
        refused("[1, 2]", &["--greedy", flag, value], &["--greedy", flag]);
    }
    assert_eq!(json("[1, 2]", &["--greedy", "--temperature", "0"])["choice"], 1);
    refused("[1, 2]", &["--logit-bias", "9=1"], &["--logit-bias", "token 9", "2 entries"]);
    refused("[1, 2]", &["--allow", "2"], &["--allow", "token 2", "from 0 to 1"]);
    let twice = ["--logit-bias", "1=1", "--logit-bias", "1=2"];
    refused("[1, 2]", &twice, &["--logit-bias", "token 1 twice"]);
}

#[test]
fn presets_in_eighty_columns_and_bad_input_refused() {
    let long: Vec<String> =
        (0..30).map(|i| format!(" a rather long word {i} {}", "x".repeat(90))).collect();
    let logits: Vec<f64> = (0..30).map(|i| f64::from(i) / 10.0).collect();
    let lesson = lesson(&serde_json::json!({"logits": logits, "tokens": long}).to_string());
    let args = [
        "--compare-presets",
        "--top-k",
        "20",
        "--top-p",
        "0.9",
        "--min-p",
        "0.01",
        "--temperature",
        "0.001",
        "--repetition-penalty",
        "1.2",
        "--logit-bias",
        "3=500",
    ];
    let output = run(&lesson.file, &args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    for words in ["note: temperature 0.001 raised", "keeps ", "chooses "] {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
    refused("[1, 2]", &["--compare-presets", "--temperature", "-1"], &["temperature", "-1"]);
    refused("[1, 2]", &["--compare-presets", "--top-p", "2"], &["top_p", "2"]);
    refused("[1, 2]", &["--compare-presets", "--top-k", "-5"], &["top_k", "-5"]);
    // What one system rejects is a finding, not bad input.
    let rows = json("[1, 2]", &["--compare-presets", "--top-k", "-1"]);
    assert!(rows[0]["refused"].is_string() && rows[2]["refused"].is_null(), "{rows}");
}

#[test]
fn doubtful_numbers_are_told() {
    assert!(notes("[0.5, 0.3, 0.2]", &[]).contains("read as logits"));
    assert!(notes("[0.5, 0.3, 0.2]", &[]).contains("probs"));
    for sure in ["[0.5, 0.3, 0.1]", "[1.5, -0.5]", r#"{"logits":[0.5,0.5]}"#] {
        assert_eq!(notes(sure, &[]), "", "{sure}");
    }
    assert!(notes(r#"{"probs":[5, 3, 2]}"#, &[]).contains("sum to 10"));
    assert_eq!(notes(r#"{"probs":[0.5, 0.3, 0.2003]}"#, &[]), "");
    refused(r#"{"probs":[0, 0]}"#, &[], &["2 probabilities that are all 0"]);
}

/// The example of the documentation is a chain that runs, rule by rule.
#[test]
fn the_documented_chain_runs() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/decoding.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, example) = page.split_once("```json\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let rules: Value = serde_json::from_str(example).unwrap();
    let help =
        Command::new(env!("CARGO_BIN_EXE_autoreg")).args(["generate", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let short = r#"[{"rule": "top_k", "k": 40}, {"rule": "temperature", "t": 0.7}]"#;
    assert!(help.contains(short), "{help}");
    let lesson = lesson("[1, 2, 3, 4, 5, 6, 7, 8]");
    let chain = lesson.folder.path().join("rules.json");
    for text in [example, short] {
        std::fs::write(&chain, text).unwrap();
        let output =
            run(&lesson.file, &["--rules", chain.to_str().unwrap(), "--history", "7", "--json"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let rules: Value = serde_json::from_str(text).unwrap();
        let count = rules.as_array().unwrap().len();
        assert_eq!(answer["steps"].as_array().unwrap().len(), count);
    }
    // Every rule there is stands in it.
    let names: Vec<_> = rules.as_array().unwrap().iter().map(|rule| rule["rule"].clone()).collect();
    assert_eq!(names.len(), 9, "all but allow: {names:?}");
    refused("[1, 2]", &["--rules", "no-such.json"], &["no-such.json", "list of rules"]);
}
