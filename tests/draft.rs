//! Guesses by a second model, through the built binary: the same answers in fewer steps.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/http.rs"]
mod http;

use http::{Server, fixture};
use serde_json::{Value, json};
use std::process::{Command, Output};

const PATH: &str = "/v1/completions";

fn bodies() -> Vec<Value> {
    let body = |i: u64| {
        json!({
            "prompt": format!("{} question {i}", "the same beginning ".repeat(i as usize % 3)),
            "max_tokens": 30, "temperature": ([0.0, 0.7, 1.2][i as usize % 3]), "top_k": 40,
            "seed": i, "n": 1 + i % 2, "logprobs": 2, "ignore_eos": (i.is_multiple_of(4)),
        })
    };
    (0..9).map(body).collect()
}

#[test]
fn a_draft_changes_no_answer() {
    // Itself, which always agrees, also with windows, and a stranger with the same vocabulary.
    for (model, draft, agrees) in
        [("llama", "llama", true), ("llama", "mistral", false), ("gemma3", "gemma3", true)]
    {
        let plain = Server::start(&fixture(model), &[]);
        let expected: Vec<Value> =
            bodies().iter().map(|body| plain.good(PATH, body)["choices"].clone()).collect();
        drop(plain);
        let server = Server::start(&fixture(model), &["--draft", &fixture(draft)]);
        std::thread::scope(|scope| {
            for (body, expected) in bodies().into_iter().zip(&expected) {
                let server = &server;
                scope.spawn(move || {
                    assert_eq!(server.good(PATH, &body)["choices"], *expected, "{body}");
                });
            }
        });
        let drafted = server.figure("vllm:spec_decode_num_draft_tokens_total");
        let accepted = server.figure("vllm:spec_decode_num_accepted_tokens_total");
        let rounds = server.figure("vllm:spec_decode_num_drafts_total");
        assert!(rounds > 0.0 && drafted >= rounds && accepted <= drafted);
        let by_place = server.figure("vllm:spec_decode_num_accepted_tokens_per_pos_total");
        assert_eq!(by_place, accepted);
        let share = accepted / drafted;
        assert!(
            if agrees { share > 0.85 } else { share < 0.6 },
            "{draft}: {accepted} of {drafted}"
        );
        // Told in the answer, and by whom in the receipt.
        let mut body = bodies()[0].clone();
        (body["receipt"], body["seed"]) = (true.into(), 77.into());
        let answer = server.good(PATH, &body);
        let details = &answer["usage"]["completion_tokens_details"];
        let told = |name: &str| details[name].as_u64().unwrap();
        let guesses = &answer["receipt"]["timings"][0]["guesses"];
        assert_eq!(guesses["accepted"], told("accepted_prediction_tokens"));
        assert_eq!(
            guesses["drafted"],
            told("accepted_prediction_tokens") + told("rejected_prediction_tokens")
        );
        assert_eq!(answer["receipt"]["draft"]["name"], draft);
        assert_eq!(answer["receipt"]["model"]["kv"], "f32");
        assert_eq!(server.good("/replay", &json!({ "receipt": answer["receipt"] }))["same"], true);
        // Its keys and values are in the books.
        let ledger = server.get("/ledger").json();
        assert_eq!(ledger["draft"]["name"], draft);
        let own = ledger["draft"]["kv_bytes"].as_u64().unwrap();
        assert!(own > 0 && own < ledger["kv"]["bytes"].as_u64().unwrap());
        server.rest();
    }
}

fn generate(more: &[&str]) -> Output {
    generate_by("llama", more)
}

fn generate_by(model: &str, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_autoreg"))
        .args(["generate", &fixture(model), "Hello there", "--max-tokens", "40"])
        .args(more)
        .output()
        .unwrap()
}

#[test]
fn generate_guesses_too() {
    for rules in [&["--greedy"][..], &["--temperature", "0.8", "--seed", "5"], &["--seed", "2"]] {
        let json = [rules, &["--json"]].concat();
        let expected = generate(&json);
        for (draft, tokens) in [("llama", "1"), ("llama", "7"), ("mistral", "4")] {
            let path = fixture(draft);
            let more = ["--draft", &path, "--draft-tokens", tokens];
            let found = generate(&[&json[..], &more].concat());
            assert_eq!(
                String::from_utf8_lossy(&found.stdout),
                String::from_utf8_lossy(&expected.stdout)
            );
            let said = String::from_utf8_lossy(&found.stderr).into_owned();
            let (_, told) = said.split_once("[draft: ").unwrap_or_else(|| panic!("{said}"));
            let numbers: Vec<usize> = told
                .split(|c: char| !c.is_ascii_digit())
                .filter_map(|word| word.parse().ok())
                .collect();
            let (accepted, drafted, passes) = (numbers[0], numbers[1], numbers[3]);
            if draft == "llama" {
                assert_eq!(accepted, drafted, "{told}");
            }
            let record: Value = serde_json::from_slice(&expected.stdout).unwrap();
            let tokens = record["sequences"][0]["tokens"].as_array().unwrap().len();
            assert!(accepted + passes + 1 == tokens, "{told} of {tokens} tokens");
        }
    }
}

/// Guesses are taken back also where a layer keeps no more than its window.
#[test]
fn windows_take_guesses_back() {
    for rules in [&["--greedy", "--json"][..], &["--seed", "4", "--json"]] {
        let expected = generate_by("gemma3", rules).stdout;
        for draft in ["gemma3", "llama"] {
            let path = fixture(draft);
            let found = generate_by("gemma3", &[rules, &["--draft", &path]].concat());
            let said = String::from_utf8_lossy(&found.stderr).into_owned();
            if said.contains("another vocabulary") {
                continue;
            }
            assert!(said.contains("[draft: "), "{said}");
            assert_eq!(String::from_utf8_lossy(&found.stdout), String::from_utf8_lossy(&expected));
        }
    }
}

#[test]
fn what_cannot_guess_is_refused_by_name() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let real = root.join("models/smollm2-135m-q4_1.gguf");
    let refused = |draft: &str, words: &[&str]| {
        let found = generate(&["--draft", draft]);
        let said = String::from_utf8_lossy(&found.stderr).into_owned();
        assert_eq!(found.status.code(), Some(2), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
        assert_eq!(said.trim().lines().count(), 1, "{said}");
    };
    if real.exists() {
        refused(real.to_str().unwrap(), &["another vocabulary", "token 0", "there", "here"]);
    } else {
        println!("skipped: no {}; run scripts/fetch-test-models", real.display());
    }
    refused("nowhere", &["nowhere"]);
}
