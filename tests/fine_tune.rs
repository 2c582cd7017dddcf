//! `autoreg train --init`: published models trained further on texts and conversations.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Ran, autoreg, json, works};
use std::path::{Path, PathBuf};

fn model(name: &str) -> String {
    format!("{}/crates/families/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Invented conversations, and a text.
fn data(place: &Path) -> (PathBuf, PathBuf) {
    let (chat, text) = (place.join("talks.jsonl"), place.join("words.txt"));
    std::fs::write(&chat, common::chats()).unwrap();
    std::fs::write(&text, "please send the figures to the office by noon. ".repeat(9)).unwrap();
    (chat, text)
}

fn words(path: &Path) -> &str {
    path.to_str().unwrap()
}

const RATE: [&str; 6] = ["--learning-rate", "0.01", "--warmup-steps", "2", "--batch", "2"];

/// Trains a fixture on the conversations into `out`.
fn train(name: &str, chat: &Path, out: &Path, more: &[&str]) -> serde_json::Value {
    let init = model(name);
    let mut all = vec!["train", "--init", &init, "--chat", words(chat), "--out", words(out)];
    all.extend(["--valid-share", "0.2", "--max-len", "40", "--threads", "2"]);
    all.extend(RATE);
    all.extend(more);
    json(&all)
}

#[test]
fn a_model_learns_conversations_and_is_a_model_again() {
    let place = tempfile::tempdir().unwrap();
    let (chat, text) = data(place.path());
    // gpt2's fixture has no beginning token, gemma3's has every feature; both have a template.
    for name in ["gpt2", "gemma3"] {
        let out = place.path().join(name);
        let done = train(name, &chat, &out, &["--epochs", "6"]);
        let curve = done["curve"].as_array().unwrap();
        let loss = |i: usize| curve[i]["valid_loss"].as_f64().unwrap();
        let best = done["valid_loss_nats"].as_f64().unwrap();
        assert!(best < loss(0) - 0.3, "{name}: {best} after {}", loss(0));
        let exported = out.join("huggingface");
        assert_eq!(done["huggingface"], words(&exported));
        for again in [&out, &exported] {
            works(&["generate", words(again), "and", "--max-tokens", "3"]);
        }
        let ask = |folder: &Path| works(&["score", words(folder), "it is 4."]).out;
        assert_eq!(ask(&exported), ask(&exported));
        let next = place.path().join(format!("{name}-next"));
        let from = exported.clone();
        json(
            &[
                &["train", "--init", words(&from), "--text", words(&text), "--valid", words(&text)]
                    [..],
                &["--out", words(&next), "--max-len", "30", "--max-steps", "2"],
            ]
            .concat(),
        );
        assert!(next.join("huggingface/model.safetensors").is_file());
    }
}

#[test]
fn what_is_computed_again_or_resumed_changes_no_bit() {
    let place = tempfile::tempdir().unwrap();
    let (chat, _) = data(place.path());
    let weights = |out: &Path| std::fs::read(out.join("model.safetensors")).unwrap();
    let kept = place.path().join("kept");
    train("gemma3", &chat, &kept, &["--epochs", "2"]);
    for way in ["attention", "block"] {
        let out = place.path().join(way);
        let done = train("gemma3", &chat, &out, &["--epochs", "2", "--recompute", way]);
        assert_eq!(done["recompute"], way);
        assert!(weights(&out) == weights(&kept), "{way}");
    }
    let out = place.path().join("resumed");
    let every = ["--epochs", "2", "--checkpoint-every", "1"];
    train("gemma3", &chat, &out, &every);
    let resumed_from = out.join("checkpoints");
    let newest = std::fs::read_dir(&resumed_from).unwrap().map(|e| e.unwrap().path()).max();
    std::fs::remove_dir_all(newest.unwrap()).unwrap();
    let resume = [&every[..], &["--resume"]].concat();
    train("gemma3", &chat, &out, &resume);
    assert!(weights(&out) == weights(&kept), "resumed");
}

#[test]
fn memory_decides_what_is_computed_again() {
    let place = tempfile::tempdir().unwrap();
    let (chat, _) = data(place.path());
    let out = place.path().join("plenty");
    let done = train("llama", &chat, &out, &["--recompute", "auto", "--memory", "8GiB"]);
    assert_eq!(done["recompute"], "none");
    let init = model("llama");
    let out = place.path().join("none");
    let ran = autoreg(
        &[
            &["train", "--init", &init, "--chat", words(&chat), "--out", words(&out)][..],
            &["--recompute", "auto", "--memory", "1MiB", "--quiet"],
        ]
        .concat(),
    );
    refused(&ran, &["--recompute none", "--recompute block", "1.0 MiB", "--micro-batch"]);
    assert!(!out.exists());
}

#[track_caller]
fn refused(ran: &Ran, facts: &[&str]) {
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    assert_eq!(ran.err.trim_end().lines().count(), 1, "{}", ran.err);
    for fact in facts {
        assert!(ran.err.contains(fact), "{fact:?} is not in: {}", ran.err);
    }
}

#[test]
fn a_token_folder_of_a_models_own_tokenizer_goes_on_from_it() {
    let place = tempfile::tempdir().unwrap();
    let (llama, folder) = (model("llama"), place.path().join("data"));
    let (folder, out) = (words(&folder), place.path().join("out"));
    works(&[
        "data",
        "prepare",
        "--messages",
        "300",
        "--tokenizer",
        &llama,
        "--max-len",
        "24",
        "--out",
        folder,
    ]);
    let shown = works(&["data", "inspect", folder, "--verify"]).out;
    assert!(shown.contains("a model's own"), "{shown}");
    let rest = ["--data", folder, "--max-steps", "3", "--warmup-steps", "1"];
    let trained = |init: &str, out: &Path, more: &[&str]| {
        json(&[&["train", "--init", init, "--out", words(out)][..], &rest, more].concat())
    };
    let losses = trained(&llama, &out, &[]);
    assert_eq!(losses["steps"], 3, "{losses}");
    trained(&llama, &place.path().join("adapted"), &["--lora", "rank=2"]);
    // What it became has the same words.
    trained(words(&out), &place.path().join("further"), &[]);
    // Another model's words are refused.
    let refused_by =
        autoreg(&["train", "--init", &model("gemma3"), "--data", folder, "--out", "no"]);
    refused(&refused_by, &["another tokenizer", "--tokenizer"]);
}

#[test]
fn a_single_text_and_few_conversations_have_a_validation_side() {
    let place = tempfile::tempdir().unwrap();
    let (file, lines) = (place.path().join("notes.txt"), place.path().join("talk.jsonl"));
    let llama = model("llama");
    let told = |kind: &str, file: &Path, name: &str| {
        let out = place.path().join(name);
        let ran = autoreg(&[
            "train",
            "--init",
            &llama,
            kind,
            words(file),
            "--out",
            words(&out),
            "--max-steps",
            "1",
            "--warmup-steps",
            "0",
        ]);
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        ran.err
    };
    std::fs::write(&file, "one text of one file, long enough for a few pieces of it").unwrap();
    let said = told("--text", &file, "text");
    assert!(said.contains("the end of the only text validates"), "{said}");
    // As others store them: parts, nothing beside calls, tools.
    let call = r#"{"type": "function", "function": {"name": "f", "arguments": {}}}"#;
    let line = format!(
        "{{\"messages\": [{{\"role\": \"user\", \"content\": [{{\"type\": \"text\", \"text\": \"a\"}}]}}, \
         {{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{call}]}}, \
         {{\"role\": \"assistant\", \"tool_calls\": [{call}]}}, \
         {{\"role\": \"tool\", \"content\": \"1\"}}, {{\"role\": \"assistant\", \"content\": \"b\"}}], \
         \"tools\": null}}\n"
    );
    std::fs::write(&lines, line.repeat(2)).unwrap();
    let said = told("--chat", &lines, "chat");
    assert!(said.contains("the last document validates"), "{said}");
}

/// Without a validation side nothing is evaluated, and what is kept are the last weights, those of
/// several ranks and of a run that was stopped and resumed too.
#[test]
fn a_run_without_validation_keeps_its_last_weights() {
    let place = tempfile::tempdir().unwrap();
    let (_, text) = data(place.path());
    let llama = model("llama");
    let trained = |name: &str, more: &[&str]| {
        let out = place.path().join(name);
        let mut all = vec!["train", "--init", &llama, "--text", words(&text), "--out", words(&out)];
        all.extend(["--valid-share", "0", "--max-len", "30", "--epochs", "2", "--threads", "1"]);
        all.extend(RATE);
        all.extend(more);
        (works(&all), out)
    };
    let (ran, out) = trained("one", &["--checkpoint-every", "1", "--average", "0.5"]);
    assert!(ran.err.contains("none to validate: nothing is evaluated"), "{}", ran.err);
    assert!(ran.out.contains("not validated, the weights at step"), "{}", ran.out);
    let result = std::fs::read(out.join("result.json")).unwrap();
    let result: serde_json::Value = serde_json::from_slice(&result).unwrap();
    assert!(result["valid_loss_nats"].is_null() && result["best_step"] == result["steps"]);
    assert!(result["curve"].as_array().unwrap().is_empty(), "{result}");
    let kept = |out: &Path| std::fs::read(out.join("model.safetensors")).unwrap();
    let right = kept(&out);
    // The file is that of the newest checkpoint, whose average it holds.
    let newest = std::fs::read_dir(out.join("checkpoints")).unwrap().map(|e| e.unwrap().path());
    std::fs::remove_dir_all(newest.max().unwrap()).unwrap();
    std::fs::remove_dir_all(out.join("huggingface")).unwrap();
    let (_, out) = trained("one", &["--checkpoint-every", "1", "--average", "0.5", "--resume"]);
    assert!(kept(&out) == right, "resumed");
    works(&["generate", words(&out.join("huggingface")), "please", "--max-tokens", "2"]);
    let (_, out) = trained("two", &["--ranks", "2", "--zero", "1"]);
    works(&["generate", words(&out), "please", "--max-tokens", "2"]);
}

#[test]
fn wrong_data_is_named_and_nothing_is_written() {
    let place = tempfile::tempdir().unwrap();
    let (chat, text) = data(place.path());
    let out = place.path().join("out");
    let bad = place.path().join("bad.jsonl");
    let llama = model("llama");
    let try_with = |kind: &str, file: &Path, more: &[&str]| {
        let mut all = vec!["train", "--quiet", "--init", &llama, kind, words(file)];
        all.extend(["--out", words(&out)]);
        all.extend(more);
        let ran = autoreg(&all);
        assert!(!out.exists(), "{all:?}");
        ran
    };
    std::fs::write(&bad, "{\"messages\": [{\"role\": \"user\"}]}\n").unwrap();
    refused(&try_with("--chat", &bad, &[]), &["bad.jsonl: line 1", "content"]);
    std::fs::write(&bad, "\n{\"texts\": 1}\n").unwrap();
    refused(&try_with("--text", &bad, &[]), &["bad.jsonl: line 2", "text"]);
    let evaluated = ["--valid-share", "0", "--patience", "2"];
    refused(&try_with("--text", &text, &evaluated), &["--patience", "--valid-share 0"]);
    refused(&try_with("--chat", &chat, &["--valid-share", "1.5"]), &["--valid-share 1.5"]);
    refused(&try_with("--chat", &chat, &["--max-len", "1"]), &["--max-len"]);
    let long = ["--valid", words(&text), "--max-len", "500"];
    refused(&try_with("--text", &text, &long), &["max_position_embeddings is 128"]);
    let silent = "{\"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]}\n".repeat(9);
    std::fs::write(&bad, silent).unwrap();
    refused(&try_with("--chat", &bad, &[]), &["training side has no document with a target"]);
    refused(&try_with("--text", &place.path().join("missing.txt"), &[]), &["missing.txt"]);
}
