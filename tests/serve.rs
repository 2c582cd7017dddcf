//! `autoreg serve` through the built binary, on small published models.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/http.rs"]
mod http;

use http::{Answer, Server, fixture, read};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::process::Command;
use std::time::{Duration, Instant};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn llama(more: &[&str]) -> Server {
    Server::start(&fixture("llama"), more)
}

fn said(text: &str) -> Value {
    json!([{ "role": "user", "content": text }])
}

#[test]
fn an_answer_is_what_generate_gives() {
    let server = llama(&[]);
    for (seed, temperature) in [(3, 0.0), (4, 0.9), (5, 1.3)] {
        let body = json!({
            "prompt": "Hello there", "max_tokens": 20, "seed": seed, "temperature": temperature,
            "logprobs": 3, "n": 2, "receipt": true
        });
        let answer = server.good(COMPLETIONS, &body);
        let record = Command::new(env!("CARGO_BIN_EXE_autoreg"))
            .args(["generate", &fixture("llama"), "Hello there", "--max-tokens", "20", "--json"])
            .args(["--n", "2", "--seed", &seed.to_string()])
            .args(["--temperature", &temperature.to_string()])
            .output()
            .unwrap();
        let record: Value = serde_json::from_slice(&record.stdout).unwrap();
        for i in 0..2 {
            let (choice, sequence) = (&answer["choices"][i], &record["sequences"][i]);
            assert_eq!(choice["text"], sequence["text"]);
            let tokens = sequence["tokens"].as_array().unwrap();
            let logprobs: Vec<Value> = tokens.iter().map(|t| t["logprob"].clone()).collect();
            assert_eq!(choice["logprobs"]["token_logprobs"], Value::from(logprobs));
            let finish = if sequence["finish"] == "eos" { "stop" } else { "length" };
            assert_eq!(choice["finish_reason"], finish);
            let top = choice["logprobs"]["top_logprobs"][0].as_object().unwrap();
            assert!((1..=3).contains(&top.len()), "bytes that are no text share a name");
        }
        let receipt = &answer["receipt"];
        assert_eq!(receipt["model"]["digest"], record["model"]["digest"]);
        assert_eq!(receipt["prompt_token_ids"][0], record["prompt_ids"]);
        assert_eq!(receipt["seed"], seed);
        let part = |name: &str| receipt["timings"][0][name]["ms"].as_f64().unwrap();
        let sum = part("queue") + part("prefill") + part("decode");
        assert!((sum - part("total")).abs() < 1e-6, "the phases are the whole: {receipt}");
    }
}

#[test]
fn a_stream_is_the_whole_answer_in_pieces() {
    let server = llama(&[]);
    for n in [1, 3] {
        let body = json!({
            "prompt": "abc", "max_tokens": 24, "seed": 1, "n": n, "logprobs": 1, "stop": ["zq"]
        });
        let whole = server.good(COMPLETIONS, &body);
        let mut streamed = body.clone();
        streamed["stream"] = true.into();
        let pieces = server.post(COMPLETIONS, &streamed).pieces();
        for index in 0..n {
            let own = || pieces.iter().map(|p| &p["choices"][0]).filter(|c| c["index"] == index);
            let text: String = own().map(|c| c["text"].as_str().unwrap()).collect();
            let choice = &whole["choices"][index as usize];
            assert_eq!(text, choice["text"].as_str().unwrap());
            for part in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                let all = own().flat_map(|c| c["logprobs"][part].as_array().unwrap().clone());
                assert_eq!(Value::from(all.collect::<Vec<_>>()), choice["logprobs"][part]);
            }
            let reasons: Vec<&Value> = own().map(|c| &c["finish_reason"]).collect();
            let (last, before) = reasons.split_last().unwrap();
            assert_eq!(**last, choice["finish_reason"]);
            assert!(before.iter().all(|reason| reason.is_null()));
        }
    }
}

#[test]
fn o12_usage_in_streams() {
    let server = llama(&[]);
    let body = |more: Value| {
        let mut body =
            json!({ "messages": said("hi"), "max_tokens": 5, "seed": 2, "stream": true });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for more in [json!({}), json!({ "stream_options": { "include_usage": false } })] {
        let pieces = server.post(CHAT, &body(more)).pieces();
        assert!(pieces.iter().all(|p| !p["choices"].as_array().unwrap().is_empty()));
        assert!(pieces.iter().all(|p| p.get("usage").is_none()));
    }
    for n in [1, 2] {
        let more = json!({ "stream_options": { "include_usage": true }, "n": n });
        let mut pieces = server.post(CHAT, &body(more)).pieces();
        let last = pieces.pop().unwrap();
        assert_eq!(last["choices"], json!([]));
        let whole = json!({ "messages": said("hi"), "max_tokens": 5, "seed": 2, "n": n });
        let mut usage = server.good(CHAT, &whole)["usage"].clone();
        // The second time the prompt may be in the cache.
        usage["prompt_tokens_details"] = last["usage"]["prompt_tokens_details"].clone();
        assert_eq!(last["usage"], usage);
        assert!(pieces.iter().all(|p| p["usage"].is_null() && p.get("usage").is_some()));
        for index in 0..n {
            let own: Vec<&Value> =
                pieces.iter().map(|p| &p["choices"][0]).filter(|c| c["index"] == index).collect();
            assert_eq!(own[0]["delta"]["role"], "assistant");
            let (last, before) = own.split_last().unwrap();
            assert!(!last["finish_reason"].is_null());
            assert!(before.iter().all(|c| c["finish_reason"].is_null()));
        }
    }
    let alone = json!({ "messages": said("hi"), "stream_options": { "include_usage": true } });
    assert_eq!(server.post(CHAT, &alone).status, 400);
}

#[test]
fn o13_wrong_types_and_impossible_values() {
    let server = llama(&[]);
    let raw = |text: &str| server.ask("POST", CHAT, "", text.as_bytes());
    #[track_caller]
    fn refused(answer: &Answer, param: Option<&str>) {
        assert_eq!(answer.status, 400, "{answer:?}");
        let error = &answer.json()["error"];
        for key in ["message", "type", "param", "code"] {
            assert!(error.get(key).is_some(), "{error}");
        }
        if let Some(param) = param {
            assert_eq!(error["param"], param, "{error}");
        }
    }
    for body in ["{", "[]", "", "\"text\"", "{\"max_tokens\": 1e400}"] {
        refused(&raw(body), None);
    }
    let deep = format!("{{\"messages\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    refused(&raw(&deep), None);
    for (field, value) in [
        ("stream", json!("true")),
        ("max_tokens", json!("256")),
        ("max_tokens", json!(-5)),
        ("max_tokens", json!(1.5)),
        ("temperature", json!("hot")),
        ("temperature", json!(-1)),
        ("temperature", json!("NaN")),
        ("top_p", json!(1.5)),
        ("top_p", json!(0)),
        ("top_k", json!(-2)),
        ("min_p", json!(-0.1)),
        ("n", json!(0)),
        ("n", json!(1_000_000)),
        ("seed", json!("one")),
        ("repetition_penalty", json!(0)),
        ("logit_bias", json!({ "262": 5 })),
        ("logit_bias", json!({ "-1": 5 })),
        ("logit_bias", json!({ "abc": 5 })),
        ("logit_bias", json!({ "0": 101 })),
        ("stop_token_ids", json!([-1])),
        ("stop_token_ids", json!([262])),
        ("top_logprobs", json!(3)),
        ("response_format", json!({ "type": "odd" })),
        ("tools", json!("other")),
        ("preset", json!("other")),
    ] {
        let mut body = json!({ "messages": said("hi"), "max_tokens": 2 });
        body[field] = value;
        refused(&server.post(CHAT, &body), Some(field));
    }
    refused(&server.post(CHAT, &json!({ "max_tokens": 2 })), Some("messages"));
    refused(&server.post(COMPLETIONS, &json!({ "prompt": "a", "suffix": "b" })), Some("suffix"));
    refused(&server.post(COMPLETIONS, &json!({ "prompt": [1, 999] })), Some("prompt"));
    refused(&server.post(COMPLETIONS, &json!({ "prompt": { "a": 1 } })), Some("prompt"));
    let unknown = server.post(CHAT, &json!({ "messages": said("hi"), "model": "gpt" }));
    assert_eq!((unknown.status, &unknown.json()["error"]["param"]), (404, &json!("model")));
    // What nobody knows is told, or refused where asked for.
    let odd = json!({ "messages": said("hi"), "max_tokens": 1, "colour": "red" });
    assert!(server.good(CHAT, &odd)["warnings"][0].as_str().unwrap().contains("colour"));
    let mut strict = odd.clone();
    strict["strict"] = true.into();
    refused(&server.post(CHAT, &strict), Some("colour"));
    strict["strict"] = false.into();
    strict["stream"] = true.into();
    assert!(server.post(CHAT, &strict).pieces()[0]["warnings"][0].is_string());
    // A ban is a ban.
    let ban = json!({ "prompt": "a", "max_tokens": 40, "logit_bias": { "0": -100 }, "seed": 1,
        "receipt": true, "logprobs": 0 });
    let answer = server.good(COMPLETIONS, &ban);
    let tokens = answer["choices"][0]["logprobs"]["tokens"].as_array().unwrap();
    let zero = server.good("/tokenize", &json!({ "prompt": "a" }))["tokens"].clone();
    assert!(zero.is_array() && tokens.len() <= 40);
    let forced = json!({ "prompt": "a", "max_tokens": 3, "logit_bias": { "0": 100 } });
    let forced = server.good(COMPLETIONS, &forced)["choices"][0]["text"].clone();
    let zero = server.good("/detokenize", &json!({ "tokens": [0, 0, 0] }))["prompt"].clone();
    assert_eq!(forced, zero);
    let one = server.good("/detokenize", &json!({ "tokens": [0] }))["prompt"].clone();
    assert!(!tokens.contains(&one));
}

#[test]
fn o14_content_as_a_list_of_parts() {
    let server = llama(&[]);
    let ask = |content: Value, role: &str| json!({ "messages": [{ "role": role, "content": content }], "max_tokens": 8, "temperature": 0 });
    let text = server.good(CHAT, &ask(json!("tell me a riddle"), "user"));
    let parts =
        json!([{ "type": "text", "text": "tell me a " }, { "type": "text", "text": "riddle" }]);
    for role in ["user", "system"] {
        let answer = server.good(CHAT, &ask(parts.clone(), role));
        assert_eq!(answer["choices"], text["choices"]);
        assert_eq!(answer["usage"]["prompt_tokens"], text["usage"]["prompt_tokens"]);
    }
    let empty = server.good(CHAT, &ask(json!([]), "user"));
    assert_eq!(empty["choices"], server.good(CHAT, &ask(json!(""), "user"))["choices"]);
    server.good(CHAT, &ask(Value::Null, "assistant"));
    for bad in [json!([{ "type": "image_url", "image_url": {} }]), json!([{ "type": "text" }])] {
        let answer = server.post(CHAT, &ask(bad, "user"));
        assert_eq!(answer.status, 400);
        assert_eq!(answer.json()["error"]["param"], "messages[0].content[0]");
    }
    assert_eq!(server.post(CHAT, &ask(Value::Null, "user")).status, 400);
    assert_eq!(server.post(CHAT, &ask(json!("x"), "narrator")).status, 400);
}

#[test]
fn o15_empty_things() {
    for (model, begins) in [("llama", true), ("gpt2", false)] {
        let server = Server::start(&fixture(model), &[]);
        for stop in [Value::Null, json!([])] {
            let body = json!({ "prompt": "ab", "max_tokens": 9, "stop": stop, "ignore_eos": true });
            assert_eq!(server.good(COMPLETIONS, &body)["usage"]["completion_tokens"], 9);
        }
        for stop in [json!(""), json!([""]), json!(["", "END"])] {
            let answer = server.post(COMPLETIONS, &json!({ "prompt": "ab", "stop": stop }));
            assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("stop")));
        }
        for prompt in [json!(""), json!([""])] {
            let answer = server.post(COMPLETIONS, &json!({ "prompt": prompt, "max_tokens": 2 }));
            assert_eq!(answer.status, if begins { 200 } else { 400 }, "{model}: {answer:?}");
            if begins {
                assert_eq!(answer.json()["usage"]["prompt_tokens"], 1);
            }
        }
        assert_eq!(server.post(COMPLETIONS, &json!({ "prompt": [] })).status, 400);
        assert_eq!(server.post(COMPLETIONS, &json!({ "prompt": [[]] })).status, 400);
        assert_eq!(server.post(CHAT, &json!({ "messages": [] })).status, 400);
        server.good(COMPLETIONS, &json!({ "prompt": "ab", "max_tokens": 2 }));
        let none = server.good(COMPLETIONS, &json!({ "prompt": "ab", "max_tokens": 0 }));
        assert_eq!(none["choices"][0]["finish_reason"], "length");
    }
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_with_both_counts() {
    let server = llama(&["--kv-tokens", "64"]);
    let too_long = |tokens: usize, limit: u64| {
        let answer = server.post(COMPLETIONS, &json!({ "prompt": vec![5; tokens] }));
        assert_eq!(answer.status, 400);
        let error = answer.json()["error"].clone();
        assert_eq!(error["details"]["prompt_tokens"], tokens);
        assert_eq!(error["details"]["limit_tokens"], limit);
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(&tokens.to_string()) && message.contains(&limit.to_string()));
    };
    too_long(200, 128);
    too_long(100, 64);
    server.good(COMPLETIONS, &json!({ "prompt": [5, 6, 7], "max_tokens": 2 }));
    let full = json!({ "prompt": vec![5; 60], "max_tokens": 64, "ignore_eos": true });
    let full = server.good(COMPLETIONS, &full);
    assert_eq!(full["choices"][0]["finish_reason"], "length");
    // The last token that is written needs no place.
    assert_eq!(full["usage"]["total_tokens"], 65);
}

/// What is there by term adds up to what the process has, on a model of a hundred KiB, before and
/// after work, with most of the cache never touched.
#[test]
fn the_ledger_explains_the_process() {
    for more in [&[][..], &["--kv-tokens", "200000"], &["--draft-tokens", "4", "--threads", "2"]] {
        let server = llama(more);
        for round in 0..3 {
            let ledger = server.get("/ledger").json();
            let rows = ledger["terms"].as_array().unwrap();
            let sum: u64 = rows.iter().map(|row| row["resident_bytes"].as_u64().unwrap()).sum();
            let (process, rest) =
                (ledger["process_bytes"].as_u64().unwrap(), &ledger["unexplained_bytes"]);
            assert_eq!(process as i64 - sum as i64, rest.as_i64().unwrap());
            assert_eq!(ledger["within_tolerance"], true, "round {round}, {more:?}: {ledger}");
            assert_eq!(ledger["tolerance_share"], 0.03);
            for i in 0..6 {
                let text = format!("{} {i}", "some text ".repeat(1 + i));
                server.good(COMPLETIONS, &json!({ "prompt": text, "max_tokens": 20, "n": 2 }));
            }
        }
    }
}

#[test]
fn what_is_absent_has_a_known_meaning() {
    let server = llama(&["--draft-tokens", "2", "--kv", "f16"]);
    let told = server.get("/defaults").json();
    assert_eq!(
        (&told["preset"], &told["kv"], &told["draft_tokens"]),
        (&json!("autoreg"), &json!("f16"), &json!(2))
    );
    assert_eq!(told["rules"].as_object().unwrap().len(), 5);
    // A body without any of them has the chain that is told, behind the bans.
    let body = json!({ "prompt": "a", "max_tokens": 1, "receipt": true });
    let receipt = &server.good(COMPLETIONS, &body)["receipt"];
    let chain = receipt["rules"].as_array().unwrap();
    let own = told["rules"]["autoreg"].as_array().unwrap();
    assert!(chain.ends_with(own), "{chain:?} {own:?}");
    let k = |preset: &str| told["rules"][preset].to_string();
    assert!(k("llamacpp") != k("vllm"), "{told}");
    assert_eq!(receipt["model"]["kv"], "f16");
}

#[test]
fn refusals_carry_numbers() {
    let server = llama(&["--kv-tokens", "64", "--page-tokens", "8", "--max-sequences", "1"]);
    let ids = vec![5; 90];
    let answer = server.post(COMPLETIONS, &json!({ "prompt": ids, "max_tokens": 10 }));
    let error = &answer.json()["error"];
    assert_eq!((answer.status, &error["code"]), (400, &json!("cache_too_small")));
    let told =
        |name: &str| error["details"][name].as_u64().unwrap_or_else(|| panic!("{name}: {error}"));
    assert_eq!((told("prompt_tokens"), told("limit_tokens"), told("kv_pages")), (90, 64, 8));
    assert_eq!((told("free_kv_pages"), told("largest_request_now_tokens")), (8, 64));
    // 90 tokens, and none behind them: the limit is reached.
    assert_eq!(told("predicted_kv_pages"), 12);
    let a_page = told("free_kv_bytes") / 8;
    // Keys and values of two layers, two heads, six values of four bytes, eight tokens.
    assert_eq!((a_page, told("predicted_kv_bytes")), (2 * 2 * 2 * 6 * 4 * 8, 12 * a_page));
    assert!(error["details"]["predicted_wait_s"].is_number());
    let long = server.post(COMPLETIONS, &json!({ "prompt": "x".repeat(300) }));
    let details = &long.json()["error"]["details"];
    assert_eq!(details["prompt_tokens"].as_u64().unwrap(), 301, "{long:?}");
    assert_eq!(details["free_kv_pages"], 8);
}

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
fn keys_are_asked_for() {
    let server = llama(&["--api-key", "one", "--api-key", "two"]);
    let with = |head: &str| server.ask("GET", "/v1/models", head, b"").status;
    assert_eq!(with(""), 401);
    assert_eq!(with("Authorization: Bearer three\r\n"), 401);
    assert_eq!(with("Authorization: Bearer \r\n"), 401);
    assert_eq!(with("Authorization: Bearer two\r\n"), 200);
    assert_eq!(with("x-api-key: one\r\n"), 200);
    let refused = server.ask("POST", COMPLETIONS, "", b"{}").json();
    assert_eq!(refused["error"]["type"], "authentication_error");
    for path in ["/health", "/ready", "/metrics"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
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

#[test]
fn what_is_not_there_is_told_in_the_same_shape() {
    let server = llama(&["--max-body", "1"]);
    let large = server.ask("POST", COMPLETIONS, "", &vec![b' '; 60_000]);
    assert_eq!((large.status, large.json()["error"]["param"].is_null()), (413, true));
    assert_eq!(server.get("/v2/models").json()["error"]["type"], "not_found_error");
    assert_eq!(server.get(COMPLETIONS).status, 405);
    assert!(server.get(COMPLETIONS).json()["error"]["message"].is_string());
    assert_eq!(server.get("/v1/models/other").status, 404);
    assert_eq!(server.get("/v1/models/tiny").json()["max_model_len"], 128);
    let mut odd = std::net::TcpStream::connect(&server.address).unwrap();
    odd.write_all(b"\x16\x03\x01 what is this\r\n\r\n").unwrap();
    drop(odd);
    assert_eq!(server.get("/health").json()["status"], "ok");
}

#[test]
fn tokens_there_and_back() {
    let server = llama(&[]);
    let text = "Grüße, 世界 🎉 <|end|>";
    let told = server.good("/tokenize", &json!({ "prompt": text }));
    assert_eq!(told["tokens"][0], 256);
    let ids = told["tokens"].as_array().unwrap();
    assert_eq!(told["count"], ids.len());
    assert!(!ids.contains(&json!(257)), "a name in a text is plain text");
    let back = server.good("/detokenize", &json!({ "tokens": ids }));
    assert_eq!(back["prompt"], text);
    let chat = server.good("/tokenize", &json!({ "messages": said("hi <|end|>") }));
    let chat = chat["tokens"].as_array().unwrap();
    assert_eq!(chat.iter().filter(|id| **id == json!(257)).count(), 1, "the template's own");
}

#[test]
fn a_prompt_can_be_scored_and_echoed() {
    let server = llama(&[]);
    let body = json!({ "prompt": "score me", "max_tokens": 0, "echo": true, "logprobs": 1 });
    let answer = server.good(COMPLETIONS, &body);
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "score me");
    let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
    assert_eq!((logprobs.len(), logprobs[0].is_null()), (9, true));
    let score = Command::new(env!("CARGO_BIN_EXE_autoreg"))
        .args(["score", &fixture("llama"), "score me", "--json"])
        .output()
        .unwrap();
    let score: Value = serde_json::from_slice(&score.stdout).unwrap();
    let expected: Vec<Value> =
        score["tokens"].as_array().unwrap().iter().map(|t| t["logprob"].clone()).collect();
    assert_eq!(logprobs[9 - expected.len()..], expected[..]);
    let both = json!({ "prompt": "score me", "max_tokens": 3, "echo": true, "logprobs": 1, "seed": 1,
        "ignore_eos": true });
    let both = server.good(COMPLETIONS, &both)["choices"][0].clone();
    assert!(both["text"].as_str().unwrap().starts_with("score me"));
    assert_eq!(both["logprobs"]["tokens"].as_array().unwrap().len(), 12);
    assert_eq!(both["logprobs"]["token_logprobs"].as_array().unwrap()[..9], logprobs[..]);
    let best =
        json!({ "prompt": "a", "max_tokens": 5, "n": 1, "best_of": 6, "seed": 3, "logprobs": 0 });
    let best = server.good(COMPLETIONS, &best);
    let mut all = json!({ "prompt": "a", "max_tokens": 5, "n": 6, "seed": 3, "logprobs": 0 });
    let mean = |choice: &Value| {
        let all = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        all.iter().map(|l| l.as_f64().unwrap()).sum::<f64>() / all.len() as f64
    };
    let every = server.good(COMPLETIONS, &all)["choices"].as_array().unwrap().clone();
    let top = every.iter().map(mean).fold(f64::NEG_INFINITY, f64::max);
    assert_eq!(mean(&best["choices"][0]), top);
    all["best_of"] = 2.into();
    assert_eq!(server.post(COMPLETIONS, &all).status, 400);
}

#[test]
fn figures_add_up() {
    let server = llama(&["--page-tokens", "4"]);
    let body = json!({ "prompt": "the same beginning", "max_tokens": 6, "temperature": 0, "ignore_eos": true });
    let first = server.good(COMPLETIONS, &body);
    let second = server.good(COMPLETIONS, &body);
    assert_eq!(first["choices"], second["choices"]);
    let prompt = first["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert_eq!(cached, (prompt - 1) / 4 * 4);
    let salted = {
        let mut body = body.clone();
        body["cache_salt"] = "mine".into();
        server.good(COMPLETIONS, &body)
    };
    assert_eq!(salted["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    server.rest();
    for (name, expected) in [
        ("vllm:prompt_tokens_total", 3 * prompt),
        ("vllm:generation_tokens_total", 18),
        ("vllm:request_success_total", 3),
        ("vllm:prefix_cache_queries_total", 3 * prompt),
        ("vllm:prefix_cache_hits_total", cached),
        ("vllm:time_to_first_token_seconds_count", 3),
        ("vllm:inter_token_latency_seconds_count", 15),
        ("vllm:e2e_request_latency_seconds_count", 3),
        ("vllm:request_time_per_output_token_seconds_count", 3),
        ("vllm:num_preemptions_total", 0),
        // Of six tokens the last is not read.
        ("vllm:iteration_tokens_total_sum", 3 * prompt - cached + 15),
    ] {
        assert_eq!(server.figure(name), expected as f64, "{name}");
    }
    let sum = |name: &str| server.figure(&format!("vllm:{name}_seconds_sum"));
    let parts =
        sum("request_queue_time") + sum("request_prefill_time") + sum("request_decode_time");
    assert!((parts - sum("e2e_request_latency")).abs() < 1e-6);
    let text = server.get("/metrics").body;
    assert!(text.contains("vllm:cache_config_info{") && text.contains("block_size=\"4\""));
    let ledger = server.get("/ledger").json();
    for row in ledger["terms"].as_array().unwrap() {
        let (predicted, measured) = (&row["predicted_bytes"], &row["bytes"]);
        assert!(row["name"] == "runtime" || predicted == measured, "{row}");
        let bytes = |name: &str| row[name].as_u64().unwrap();
        assert!(bytes("resident_bytes") <= bytes("bytes").next_multiple_of(4096), "{row}");
    }
    assert_eq!(ledger["kv"]["page_tokens"], 4);
}

#[test]
fn the_document_says_what_is_checked() {
    let server = llama(&[]);
    let document = server.get("/openapi.json").json();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let answer = server.ask(&method.to_uppercase(), path, "", b"{}");
            assert!(![404, 405].contains(&answer.status), "{method} {path}: {answer:?}");
        }
    }
    let properties = &document["paths"][COMPLETIONS]["post"]["requestBody"]["content"]["application/json"]
        ["schema"]["properties"];
    for (name, schema) in properties.as_object().unwrap() {
        assert!(schema["description"].as_str().is_some_and(|d| !d.is_empty()), "{name}");
        let mut body = json!({ "prompt": "a", "max_tokens": 1 });
        body[name] = json!({ "odd": [1] });
        if !["stream_options", "logit_bias", "response_format"].contains(&name.as_str()) {
            let answer = server.post(COMPLETIONS, &body);
            assert_eq!(answer.json()["error"]["param"], *name, "{answer:?}");
        }
    }
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
fn answers_follow_a_grammar() {
    let server = llama(&[]);
    let schema = json!({
        "type": "object", "required": ["name", "age"], "additionalProperties": false,
        "properties": {
            "name": { "type": "string", "maxLength": 6 },
            "age": { "type": "integer", "minimum": 0, "maximum": 99 },
        }
    });
    for seed in 0..6 {
        let format =
            json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
        let body = json!({ "messages": said("hi"), "response_format": format, "seed": seed,
            "max_tokens": 80, "temperature": 0.8, "n": 2, "receipt": true });
        let answer = server.good(CHAT, &body);
        for i in 0..2 {
            let choice = &answer["choices"][i];
            assert_eq!(choice["finish_reason"], "stop", "{answer}");
            let text = choice["message"]["content"].as_str().unwrap();
            let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
            assert!(value["name"].as_str().unwrap().chars().count() <= 6, "{text}");
            assert!((0..=99).contains(&value["age"].as_i64().unwrap()), "{text}");
        }
        let again = server.good("/replay", &json!({ "receipt": answer["receipt"] }));
        assert_eq!(again["same"], true);
    }
    let ask = |outputs: Value| json!({ "prompt": "a", "max_tokens": 40, "structured_outputs": outputs, "seed": 1 });
    let text = |outputs: Value| {
        server.good(COMPLETIONS, &ask(outputs))["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let chosen = text(json!({ "choice": ["yes", "no \"really\"", "nö"] }));
    assert!(["yes", "no \"really\"", "nö"].contains(&chosen.as_str()), "{chosen}");
    let digits = text(json!({ "regex": "[0-9]{3}-[a-c]+x" }));
    assert!(digits.len() > 5 && digits.ends_with('x') && digits.as_bytes()[3] == b'-', "{digits}");
    assert_eq!(text(json!({ "grammar": "start: \"ab\" \"cd\"" })), "abcd");
    for bad in [
        json!({ "grammar": "start: nothing_there" }),
        json!({ "regex": "(" }),
        json!({ "json": { "type": "odd" } }),
        json!({ "choice": [] }),
        json!({ "choice": [1] }),
        json!({ "regex": "a", "json": {} }),
        json!({}),
    ] {
        let answer = server.post(COMPLETIONS, &ask(bad));
        assert_eq!(answer.status, 400, "{answer:?}");
        assert_eq!(answer.json()["error"]["param"], "structured_outputs");
    }
    server.good(COMPLETIONS, &json!({ "prompt": "a", "max_tokens": 1 }));
}

/// Named events of a stream, in order.
fn events(answer: &Answer) -> Vec<(String, Value)> {
    let event = |text: &str| {
        let (name, data) = text.split_once("\ndata: ").unwrap();
        let name = name.strip_prefix("event: ").unwrap().to_owned();
        let value: Value = serde_json::from_str(data).unwrap();
        assert_eq!(value["type"], name);
        (name, value)
    };
    answer.body.split("\n\n").filter(|text| !text.is_empty()).map(event).collect()
}

#[test]
fn other_dialects_give_the_same_answer() {
    let server = llama(&[]);
    let common = json!({ "seed": 7, "temperature": 0.9 });
    let ask = |more: Value| {
        let mut body = common.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let messages =
        json!([{ "role": "system", "content": "be" }, { "role": "user", "content": "hi" }]);
    let chat = server.good(CHAT, &ask(json!({ "messages": messages, "max_tokens": 20 })));
    let text = chat["choices"][0]["message"]["content"].as_str().unwrap();

    let body = ask(json!({ "system": "be", "messages": said("hi"), "max_tokens": 20 }));
    let whole = server.good("/v1/messages", &body);
    assert_eq!(whole["content"][0]["text"], text);
    assert_eq!(whole["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
    let count = server.good("/v1/messages/count_tokens", &body);
    assert_eq!(count["input_tokens"], chat["usage"]["prompt_tokens"]);
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let all = events(&server.post("/v1/messages", &streamed));
    let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..2], ["message_start", "content_block_start"]);
    assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let pieces: String =
        all.iter().filter_map(|(_, value)| value["delta"]["text"].as_str()).collect();
    assert_eq!(pieces, text);
    let delta = &all[all.len() - 2].1;
    assert_eq!(delta["delta"]["stop_reason"], whole["stop_reason"]);
    assert_eq!(delta["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
    let first = text.chars().find(|c| *c != '\u{FFFD}').unwrap().to_string();
    let mut stops = body.clone();
    stops["stop_sequences"] = json!([first]);
    let stopped = server.good("/v1/messages", &stops);
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!(first))
    );
    for (field, value) in
        [("max_tokens", Value::Null), ("stop_sequences", json!([""])), ("n", json!(2))]
    {
        let mut bad = body.clone();
        bad[field] = value;
        let answer = server.post("/v1/messages", &bad);
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(field)));
    }

    let body = ask(json!({ "instructions": "be", "input": "hi", "max_output_tokens": 20 }));
    let whole = server.good("/v1/responses", &body);
    assert_eq!(whole["output"][0]["content"][0]["text"], text);
    assert_eq!(whole["usage"]["total_tokens"], chat["usage"]["total_tokens"]);
    let parts = json!([{ "role": "developer", "content": "be" },
        { "role": "user", "content": [{ "type": "input_text", "text": "hi" }] }]);
    let listed = ask(json!({ "input": parts, "max_output_tokens": 20 }));
    assert_eq!(
        server.good("/v1/responses", &listed)["output"][0]["content"],
        whole["output"][0]["content"]
    );
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let all = events(&server.post("/v1/responses", &streamed));
    let numbers: Vec<u64> =
        all.iter().map(|(_, v)| v["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..all.len() as u64).collect::<Vec<_>>());
    let pieces: String = all.iter().filter_map(|(_, value)| value["delta"].as_str()).collect();
    assert_eq!(pieces, text);
    let (name, last) = all.last().unwrap();
    assert_eq!(*name, format!("response.{}", whole["status"].as_str().unwrap()));
    assert_eq!(last["response"]["output"][0]["content"], whole["output"][0]["content"]);
    let stored = ask(json!({ "input": "hi", "previous_response_id": "resp_1" }));
    assert_eq!(server.post("/v1/responses", &stored).status, 400);
}

#[test]
fn texts_have_vectors() {
    let server = llama(&[]);
    let ask = |body: Value| server.good("/v1/embeddings", &body);
    let all = ask(json!({ "input": ["one text", "another", "one text"] }));
    let vector = |answer: &Value, i: usize| -> Vec<f64> {
        let values = answer["data"][i]["embedding"].as_array().unwrap();
        values.iter().map(|x| x.as_f64().unwrap()).collect()
    };
    assert_eq!(vector(&all, 0).len(), 24);
    assert_eq!(vector(&all, 0), vector(&all, 2));
    assert_ne!(vector(&all, 0), vector(&all, 1));
    let length: f64 = vector(&all, 1).iter().map(|x| x * x).sum();
    assert!((length - 1.0).abs() < 1e-5);
    let alone = ask(json!({ "input": "another" }));
    assert_eq!(vector(&alone, 0), vector(&all, 1));
    let tokens = server.good("/tokenize", &json!({ "prompt": "another" }))["tokens"].clone();
    assert_eq!(alone["usage"]["prompt_tokens"], tokens.as_array().unwrap().len());
    assert_eq!(vector(&ask(json!({ "input": tokens })), 0), vector(&alone, 0));
    let coded = ask(json!({ "input": "another", "encoding_format": "base64" }));
    // 24 floats are 96 bytes.
    assert_eq!(coded["data"][0]["embedding"].as_str().unwrap().len(), 128);
    for (field, value) in [
        ("input", json!(7)),
        ("input", json!([])),
        ("encoding_format", json!("x")),
        ("dimensions", json!(3)),
    ] {
        let mut body = json!({ "input": "a" });
        body[field] = value;
        let answer = server.post("/v1/embeddings", &body);
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(field)));
    }
    server.rest();
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
