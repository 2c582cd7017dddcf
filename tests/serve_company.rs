//! Requests to `autoreg serve` side by side: the same answers, fair turns, a queue, and an end.

#[path = "common/http.rs"]
mod http;

use http::{CHAT, COMPLETIONS, fixture, llama, read, said};
use serde_json::{Value, json};
use std::io::Read;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn o11_pages_after_the_client_leaves() {
    let server = llama(&["--max-sequences", "2"]);
    let greedy =
        json!({ "prompt": "check", "max_tokens": 30, "temperature": 0, "ignore_eos": true });
    let before = server.good(COMPLETIONS, &greedy)["choices"].clone();
    let mut open = Vec::new();
    for i in 0..8 {
        let body = json!({
            "prompt": vec![i + 1; 20], "max_tokens": 100, "n": 16, "ignore_eos": true,
            "stream": i % 2 == 0
        });
        open.push(server.send("POST", COMPLETIONS, "", body.to_string().as_bytes()));
    }
    let mut first = [0; 1];
    open[0].read_exact(&mut first).unwrap();
    let until = Instant::now() + Duration::from_secs(5);
    while server.figure("vllm:num_requests_waiting") == 0.0 {
        assert!(Instant::now() < until, "128 sequences, of which 2 run");
    }
    drop(open);
    let started = Instant::now();
    server.rest();
    assert!(started.elapsed() < Duration::from_secs(2));
    assert!(server.figure("autoreg_request_aborted_total") >= 7.0);
    let aborted = server.figure("autoreg_request_aborted_total");
    assert_eq!(server.good(COMPLETIONS, &greedy)["choices"], before);
    assert_eq!(server.figure("autoreg_request_aborted_total"), aborted, "an end is no abort");
}

#[test]
fn a_full_queue_says_when_to_come_again() {
    let server = llama(&["--max-sequences", "1", "--max-waiting", "20"]);
    let long = json!({ "prompt": "a", "max_tokens": 120, "n": 40, "ignore_eos": true });
    let running = server.send("POST", COMPLETIONS, "", long.to_string().as_bytes());
    let until = Instant::now() + Duration::from_secs(10);
    while server.figure("vllm:num_requests_running") == 0.0 {
        assert!(Instant::now() < until, "the long one was to come first");
    }
    // A request waits until its first sequence runs: behind the long one, this one does.
    let short = |n: usize| json!({ "prompt": "a", "n": n, "max_tokens": 5 });
    let waiting = server.send("POST", COMPLETIONS, "", short(15).to_string().as_bytes());
    while server.figure("vllm:num_requests_waiting") < 15.0 {
        assert!(Instant::now() < until, "the second one was to wait");
    }
    let refused = server.post(COMPLETIONS, &short(10));
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    assert_eq!(refused.json()["error"]["details"]["limit"], 20);
    drop((running, waiting));
    server.rest();
    server.good(COMPLETIONS, &json!({ "prompt": "a", "max_tokens": 1 }));
}

#[test]
fn a_server_told_to_end_finishes_what_it_began() {
    let server = llama(&["--max-sequences", "1"]);
    let long = json!({ "prompt": "a", "max_tokens": 120, "n": 40, "ignore_eos": true });
    let whole = server.send("POST", COMPLETIONS, "", long.to_string().as_bytes());
    let mut streamed = long.clone();
    streamed["stream"] = true.into();
    let streamed = server.send("POST", COMPLETIONS, "", streamed.to_string().as_bytes());
    let until = Instant::now() + Duration::from_secs(10);
    while server.figure("vllm:num_requests_running") == 0.0 {
        assert!(Instant::now() < until);
    }
    server.signal("-TERM");
    while server.get("/ready").status == 200 {
        assert!(Instant::now() < until);
    }
    let refused = server.post(COMPLETIONS, &json!({ "prompt": "a" }));
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("draining")));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(server.get("/health").status, 200);
    let whole = read(whole).json();
    assert_eq!(whole["usage"]["completion_tokens"], 40 * 120);
    let pieces = read(streamed).pieces();
    let ends = pieces.iter().filter(|p| !p["choices"][0]["finish_reason"].is_null()).count();
    assert_eq!(ends, 40);
    assert_eq!(server.ended(), Some(0));
}

/// One after the other and all at once, with a cache too small for all: the same answers.
#[test]
fn the_same_answer_in_any_company() {
    let server = llama(&[
        "--kv-tokens",
        "144",
        "--page-tokens",
        "8",
        "--step-tokens",
        "24",
        "--max-sequences",
        "8",
        "--draft-tokens",
        "4",
    ]);
    let quiet = llama(&["--no-prefix-cache", "--max-sequences", "1", "--threads", "1"]);
    let bodies: Vec<Value> = (0..30)
        .map(|i| {
            json!({
                "prompt": format!("{}{}", "a common beginning ".repeat(i % 3), i),
                "max_tokens": 10 + i, "seed": i % 4, "temperature": 0.3 * (i % 5) as f64,
                "n": 1 + i % 3, "logprobs": 2,
            })
        })
        .collect();
    let expected: Vec<Value> =
        bodies.iter().map(|body| quiet.good(COMPLETIONS, body)["choices"].clone()).collect();
    std::thread::scope(|scope| {
        for (i, (body, expected)) in bodies.iter().zip(&expected).enumerate() {
            let server = &server;
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis((i as u64 * 37) % 150));
                assert_eq!(server.good(COMPLETIONS, body)["choices"], *expected, "request {i}");
            });
        }
    });
    assert!(server.figure("vllm:num_preemptions_total") > 0.0, "the cache was too large");
    assert!(server.figure("vllm:prefix_cache_hits_total") > 0.0);
    let guessed = server.figure("vllm:spec_decode_num_draft_tokens_total");
    let accepted = server.figure("vllm:spec_decode_num_accepted_tokens_total");
    assert!(guessed >= accepted && guessed > 0.0, "{accepted} of {guessed}");
    server.rest();
}

#[test]
fn a_receipt_is_repeated() {
    let server = llama(&[]);
    for (path, key, prompt) in
        [(COMPLETIONS, "prompt", json!(["one", "two"])), (CHAT, "messages", said("hi"))]
    {
        let body = json!({
            key: prompt, "max_tokens": 12, "temperature": 1.2, "n": 2, "receipt": true,
            "top_k": 40, "stop": ["qq"]
        });
        let receipt = server.good(path, &body)["receipt"].clone();
        let again = server.good("/replay", &json!({ "receipt": receipt }));
        assert_eq!(again["same"], true, "{again}");
        let mut other = receipt.clone();
        other["answer_token_ids"][0][0] = json!(261);
        assert_eq!(server.good("/replay", &json!({ "receipt": other }))["same"], false);
        other["model"]["digest"] = "other".into();
        assert_eq!(server.post("/replay", &json!({ "receipt": other })).status, 400);
    }
    assert_eq!(server.post("/replay", &json!({ "receipt": {} })).status, 400);
    assert_eq!(server.post("/replay", &json!({})).status, 400);
}

#[test]
fn verify_prints_digests_that_are_the_same() {
    for model in ["llama", "gpt2", "gemma3"] {
        let done = Command::new(env!("CARGO_BIN_EXE_autoreg"))
            .args(["verify", &fixture(model), "--json", "--seed", "3"])
            .output()
            .unwrap();
        assert_eq!(done.status.code(), Some(0));
        let told: Value = serde_json::from_slice(&done.stdout).unwrap();
        let rows = told["rows"].as_array().unwrap();
        assert!(rows.len() >= 9 && rows.iter().all(|row| row["digest"] == rows[0]["digest"]));
        let sum = |name: &str| rows.iter().map(|row| row[name].as_u64().unwrap()).sum::<u64>();
        assert!(sum("preemptions") > 0 && sum("cached_tokens") > 0);
        assert_eq!((&told["same"], &rows[0]["cached_tokens"]), (&json!(true), &json!(0)));
    }
}

#[test]
fn a_load_is_measured_at_its_clients() {
    let server = llama(&["--draft-tokens", "2"]);
    let url = format!("http://{}", server.address);
    let bench = |tokens: &str, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_autoreg"));
        command.args(["bench", "serve", &url, "--json", "--prompt-tokens", tokens]);
        command.args(["--max-tokens", "12"]).args(more).output().unwrap()
    };
    let done = bench(
        "30",
        &["--clients", "1,4", "--rate", "50", "--requests", "10", "--objective", "60000,60000"],
    );
    let rows: Value = serde_json::from_slice(&done.stdout).unwrap();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 3);
    for row in rows {
        assert_eq!((&row["answered"], &row["failures"]), (&json!(10), &json!({})), "{row}");
        assert_eq!(row["completion_tokens"], 120);
        assert_eq!(row["prompt_tokens"], 300);
        assert_eq!(row["goodput"], row["requests_per_second"]);
        let p = |name: &str, at: &str| row[name][at].as_f64().unwrap();
        assert!(p("time_to_first_token", "p50_ms") <= p("end_to_end", "p50_ms"));
        assert!(p("end_to_end", "p50_ms") <= p("end_to_end", "p99_ms"));
    }
    let failed = bench("500", &["--requests", "3"]);
    let said = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert_eq!(failed.status.code(), Some(1));
    assert!(said.contains("status 400") && said.contains("500 tokens"), "{said}");
}

#[test]
fn a_receipt_says_whose_work_delayed_it() {
    let server = llama(&["--max-sequences", "1", "--no-prefix-cache"]);
    let alone =
        json!({ "prompt": "a short one", "max_tokens": 2, "receipt": true, "ignore_eos": true });
    let waited = |answer: &Value| answer["receipt"]["timings"][0]["before_first_token"].clone();
    let quiet = waited(&server.good(COMPLETIONS, &alone));
    assert_eq!(quiet, json!({ "steps": 1, "own_rows": 12, "other_rows": 0, "others": [] }));
    let long = json!({ "prompt": "b", "max_tokens": 120, "n": 6, "ignore_eos": true });
    let running = server.send("POST", COMPLETIONS, "", long.to_string().as_bytes());
    let until = Instant::now() + Duration::from_secs(10);
    while server.figure("vllm:num_requests_running") == 0.0 {
        assert!(Instant::now() < until);
    }
    let behind = waited(&server.good(COMPLETIONS, &alone));
    let (steps, rows) = (behind["steps"].as_u64().unwrap(), behind["other_rows"].as_u64().unwrap());
    // One sequence at a time: each step before its own was the other's.
    assert!(steps > 1 && behind["own_rows"] == 12, "{behind}");
    assert_eq!(behind["others"].as_array().unwrap().len(), 1);
    assert_eq!(behind["others"][0]["rows"], rows);
    assert!(rows >= steps - 1, "{behind}");
    assert_eq!(read(running).json()["usage"]["completion_tokens"], 720);
}
