//! `autoreg serve` through the built binary, on small published models.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/http.rs"]
mod http;

use http::{Answer, CHAT, COMPLETIONS, fixture, llama, said};
use serde_json::{Value, json};
use std::process::Command;

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
    // Here what was cached is counted apart.
    let read = ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"];
    let read: u64 = read.iter().map(|name| whole["usage"][name].as_u64().unwrap()).sum();
    assert_eq!(read, chat["usage"]["prompt_tokens"]);
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
    // What was cut off says so.
    let short = ask(json!({ "input": "hi", "max_output_tokens": 1, "stream": true }));
    let all = events(&server.post("/v1/responses", &short));
    let (name, last) = all.last().unwrap();
    assert_eq!(name, "response.incomplete");
    assert_eq!(last["response"]["output"][0]["status"], "incomplete");
    let done = all.iter().find(|(name, _)| name == "response.output_item.done").unwrap();
    assert_eq!(done.1["item"]["status"], "incomplete");
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
