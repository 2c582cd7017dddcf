//! What every command shares: help, quiet pipes, plain logs, and JSON with stable keys.

mod common;

use common::{SMALL, autoreg, data, finish, json, mean, program, works};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use tempfile::tempdir;

const COMMANDS: [&[&str]; 15] = [
    &[],
    &["data"],
    &["data", "prepare"],
    &["data", "inspect"],
    &["train"],
    &["eval"],
    &["compare"],
    &["compare-decoding"],
    &["generate"],
    &["replay"],
    &["score"],
    &["bench"],
    &["bench", "train-memory"],
    &["bench", "train-speed"],
    &["bench", "attention"],
];

#[test]
fn every_command_helps_with_examples() {
    for command in COMMANDS {
        let ran = works(&[command, &["--help"]].concat());
        let name = [&["autoreg"], command].concat().join(" ");
        assert!(ran.err.is_empty() && ran.out.contains("Usage:"), "{name}: {}", ran.out);
        let after = ran.out.split_once("Examples:").map(|(_, examples)| examples.to_owned());
        let examples = after.unwrap_or_else(|| panic!("{name} --help shows no examples"));
        assert!(examples.contains(&name), "{name}: {examples}");
        assert!(!ran.out.contains('\x1b'), "{name}");
        works(&[command, &["-h"]].concat());
    }
}

/// The example of the help without a data set: its vocabulary fits, and leaves words for `<unk>`.
#[test]
fn synthetic_mail_needs_no_vocabulary_size() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("data");
    let words = ["data", "prepare", "--messages", "5000", "--out", out.to_str().unwrap()];
    let vocabulary = json(&words)["vocabulary"].clone();
    let [size, distinct] =
        ["size", "distinct_in_train"].map(|key| vocabulary[key].as_u64().unwrap());
    assert!(size < 4000 && size > distinct * 8 / 10 && size < distinct, "{vocabulary}");
    // A size that was asked for stands, or is refused with one that works.
    let asked = [&words[..], &["--force", "--vocab-size", "4000"]].concat();
    autoreg(&asked).refused(2, &["4000", "ask for at most"]);
}

/// Each example of the help is a command line that is understood: what may be missing is a file.
#[test]
fn examples_in_the_help_are_understood() {
    let folder = tempdir().unwrap();
    let mut seen = 0;
    for command in COMMANDS {
        let help = works(&[command, &["--help"]].concat()).out;
        let examples = help.split_once("Examples:").map_or("", |(_, examples)| examples);
        let lines = examples.lines().skip(1).take_while(|line| !line.trim().is_empty());
        for line in lines.filter(|line| line.trim_start().starts_with("autoreg ")) {
            let words = line.split("  ").find(|part| !part.trim().is_empty()).unwrap();
            let words: Vec<&str> = words.split_whitespace().skip(1).collect();
            seen += 1;
            // What would really run is not run here.
            if matches!(words[0], "bench" | "compare") || words == ["data", "prepare"] {
                continue;
            }
            let ran = finish(program().args(&words).current_dir(folder.path()));
            assert!(
                !ran.err.contains("Usage:") && !ran.err.contains("unexpected"),
                "{line}: {}",
                ran.err
            );
        }
    }
    assert!(seen >= 12, "{seen} examples");
}

#[test]
fn a_wrong_word_is_answered_with_the_nearest() {
    for (words, said) in [
        (vec!["trian"], "'train'"),
        (vec!["train", "--dat", "x"], "'--data'"),
        (vec!["train", "--data", "x", "--out", "y", "--model", "rn"], "'rnn'"),
        (vec!["data", "prepare", "--out", "x", "--split", "a/b"], "80/10/10"),
        (vec!["data", "prepare", "--out", "x", "--group-by", "owner"], "mailbox"),
    ] {
        let ran = autoreg(&words);
        assert_eq!(ran.code, Some(2), "{words:?}");
        assert!(ran.err.contains(said), "{words:?}: {}", ran.err);
    }
}

/// A reader that takes one line and goes away ends the program quietly.
#[test]
fn a_closed_pipe_is_quiet() {
    let inspect = ["data", "inspect", data(), "--samples", "100000", "--json"];
    let whole = works(&inspect).out;
    assert!(whole.len() > 1 << 16, "more than a pipe holds: {}", whole.len());
    let mut child =
        program().args(inspect).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line.trim_end(), whole.lines().next().unwrap());
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.is_empty(), "{said}");
    assert_eq!(ended.status.code(), Some(0));
}

/// Nobody reads the progress: the run goes on and ends well.
#[test]
fn nobody_listening_to_progress_is_no_fault() {
    let folder = tempdir().unwrap();
    let (file, out) = (folder.path().join("c.toml"), folder.path().join("run"));
    fs::write(&file, SMALL).unwrap();
    let mut command = program();
    command.args(["train", "--eval-every", "1", "--data", data(), "--config"]).arg(&file);
    let mut child = command
        .arg("--out")
        .arg(&out)
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(out.join("result.json").is_file());
}

#[test]
fn logs_hold_plain_lines() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("c.toml");
    fs::write(&file, SMALL).unwrap();
    let (file, run) = (file.to_str().unwrap(), folder.path().join("run"));
    let run = run.to_str().unwrap();
    let ran =
        works(&["train", "--eval-every", "5", "--data", data(), "--config", file, "--out", run]);
    let steps: Vec<&str> = ran.err.lines().collect();
    assert!(steps.len() >= 3 && steps.iter().all(|line| line.contains("valid")), "{}", ran.err);
    for text in [&ran.out, &ran.err] {
        assert!(!text.contains(['\r', '\x1b']), "{text:?}");
    }
    let quiet = ["train", "--quiet", "--force", "--data", data(), "--config", file, "--out", run];
    assert!(works(&quiet).err.is_empty());
    let prepared = folder.path().join("data");
    let prepared = prepared.to_str().unwrap();
    let ran =
        works(&["data", "prepare", "--messages", "300", "--vocab-size", "50", "--out", prepared]);
    assert!(!format!("{}{}", ran.out, ran.err).contains(['\r', '\x1b']));
}

#[track_caller]
fn numbers(value: &Value, keys: &[&str]) {
    for key in keys {
        let at = &value[key];
        assert!(at.as_f64().is_some_and(|n| n > 0.0), "{key} is {at} in {value}");
    }
}

#[test]
fn data_commands_print_their_manifest() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("data");
    let out = out.to_str().unwrap();
    let words = ["data", "prepare", "--messages", "300", "--vocab-size", "50", "--out", out];
    let prepared = json(&words);
    let shown = json(&["data", "inspect", out, "--samples", "2", "--top", "3"]);
    assert_eq!(prepared, shown["manifest"]);
    assert_eq!(prepared["synthetic"], true);
    assert_eq!(prepared["vocabulary"]["size"], 50);
    numbers(&prepared["messages"], &["read", "kept"]);
    for side in ["train", "valid", "test"] {
        numbers(&prepared["sides"][side], &["messages", "groups", "tokens", "target_tokens"]);
    }
    assert_eq!(shown["samples"].as_array().unwrap().len(), 2);
    assert_eq!(shown["frequent"].as_array().unwrap().len(), 3);
}

#[test]
fn train_and_eval_have_the_names_of_a_row() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("c.toml");
    fs::write(&file, SMALL).unwrap();
    let file = file.to_str().unwrap();
    let models = [
        (vec!["--config", file], "transformer"),
        (vec!["--model", "rnn", "--warmup-steps", "4", "--epochs", "2", "--batch", "16"], "rnn"),
        (vec!["--model", "bigram"], "bigram"),
        (vec!["--model", "ngram", "--order", "3"], "ngram"),
    ];
    for (words, kind) in models {
        let run = folder.path().join(kind);
        let run = run.to_str().unwrap();
        let trained =
            json(&[&["train", "--data", data(), "--out", run], words.as_slice()].concat());
        assert_eq!(trained["model"], kind);
        let keys = ["parameters", "parameter_bytes", "train_seconds", "tokens_per_second"];
        numbers(&trained, &keys);
        numbers(&trained, &["peak_process_bytes", "valid_loss_nats", "train_tokens"]);
        let kept: Value = serde_json::from_slice(
            &fs::read(folder.path().join(kind).join("result.json")).unwrap(),
        )
        .unwrap();
        assert_eq!(kept, trained);
        let scored = json(&["eval", run, "--data", data(), "--split", "test"]);
        assert_eq!(scored["model"], kind);
        numbers(&scored, &["tokens", "groups", "peak_process_bytes", "parameters"]);
        let (loss, accuracy) = (mean(&scored["test_loss_nats"]), mean(&scored["test_accuracy"]));
        assert!(loss > 0.0 && loss < 200f64.ln(), "{kind} learns: {loss}");
        assert!((0.0..1.0).contains(&accuracy), "{kind}: {accuracy}");
        assert!((scored["perplexity"].as_f64().unwrap() - loss.exp()).abs() < 1e-9);
        let known = scored["without_unk"]["tokens"].as_u64().unwrap();
        assert!(known > 0 && known < scored["tokens"].as_u64().unwrap(), "{scored}");
        assert!(scored["without_unk"]["test_loss_nats"].is_number(), "{scored}");
        // The validation loss that training reports is the one that scoring finds.
        let valid = json(&["eval", run, "--data", data(), "--split", "valid"]);
        let (again, said) = (mean(&valid["valid_loss_nats"]), &trained["valid_loss_nats"]);
        assert!((again - said.as_f64().unwrap()).abs() < 1e-6, "{kind}: {again} {said}");
    }
}

#[test]
fn the_memory_probe_has_a_row_a_model() {
    let probe = json(&["bench", "train-memory", "--threads", "1"]);
    let rows = probe["rows"].as_array().unwrap();
    let facts: Vec<(&str, u64)> = rows
        .iter()
        .map(|row| (row["model"].as_str().unwrap(), row["parameters"].as_u64().unwrap()))
        .collect();
    assert_eq!(facts, [("rnn", 659_552), ("transformer", 620_192)]);
    for row in rows {
        numbers(row, &["parameter_bytes", "peak_process_bytes", "predicted_process_bytes"]);
        assert_eq!(row["parameter_bytes"].as_u64(), row["parameters"].as_u64().map(|n| 4 * n));
    }
}
