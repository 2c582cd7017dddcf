//! What clients send to `autoreg serve`: wrong, empty, too much; each is told what is wrong with it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/http.rs"]
mod http;

use http::{Answer, CHAT, COMPLETIONS, Server, fixture, llama, said};
use serde_json::{Value, json};
use std::io::Write;

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

/// A user message, and fields beside it.
fn asked(more: Value) -> Value {
    let mut body = json!({ "messages": said("hi"), "max_tokens": 4 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn a_grammar_that_cannot_go_on_is_the_clients_fault() {
    let server = llama(&[]);
    let schema = |schema: Value| json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": schema } } });
    let lark = |text: &str| json!({ "structured_outputs": { "grammar": text } });
    let wide: Vec<String> = (0..3000).map(|i| format!("\"x{i}\"")).collect();
    let long = format!("start: /a{}/", "b".repeat(300_000));
    for (more, param) in [
        (schema(json!({ "$ref": "#" })), "response_format"),
        (schema(json!({ "enum": [] })), "response_format"),
        (schema(json!({ "type": "integer", "minimum": 5, "maximum": 3 })), "response_format"),
        (
            schema(json!({ "allOf": [{ "type": "string" }, { "type": "integer" }] })),
            "response_format",
        ),
        (lark("start: start"), "structured_outputs"),
        (lark("start: a\na: b\nb: a"), "structured_outputs"),
        (lark(&long), "structured_outputs"),
    ] {
        let answer = server.post(CHAT, &asked(more));
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["param"]), (400, &json!(param)), "{error}");
        assert_eq!(error["code"], "invalid_grammar");
        assert!(!error["message"].as_str().unwrap().contains('\n'), "{error}");
    }
    // One that breaks on the way, too.
    let answer = server.post(CHAT, &asked(lark(&format!("start: {}", wide.join(" | ")))));
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (400, &json!("invalid_grammar")));
    // Many choices are one terminal, whatever their number.
    let many: Vec<String> = (0..3000).map(|i| format!("choice {i}")).collect();
    let answer = server
        .good(CHAT, &asked(json!({ "structured_outputs": { "choice": many }, "max_tokens": 20 })));
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(many.iter().any(|one| one == text), "{text}");
}

#[test]
fn prompts_are_taken_all_or_none() {
    let server = llama(&["--max-waiting", "8"]);
    let many = json!({ "prompt": vec!["a"; 9], "max_tokens": 1 });
    let refused = server.post(COMPLETIONS, &many);
    let error = &refused.json()["error"];
    assert_eq!((refused.status, &error["code"]), (400, &json!("too_many_sequences")), "{error}");
    assert_eq!((&error["details"]["asked"], &error["details"]["limit"]), (&json!(9), &json!(8)));
    // Nothing of it stands in anybody's way.
    let busy = json!({ "prompt": vec!["a"; 4], "n": 2, "max_tokens": 1 });
    assert_eq!(server.good(COMPLETIONS, &busy)["choices"].as_array().unwrap().len(), 8);
    // One prompt may have as many answers as it likes.
    let answers = json!({ "prompt": "a", "n": 12, "max_tokens": 1 });
    assert_eq!(server.good(COMPLETIONS, &answers)["choices"].as_array().unwrap().len(), 12);
    server.rest();
}

#[test]
fn bodies_that_are_no_bodies() {
    let server = llama(&[]);
    let deep = format!("{{\"messages\": {}{}}}", "[".repeat(50_000), "]".repeat(50_000));
    for body in
        ["", "{", "[]", "null", "a=b", "\u{feff}{}", r#"{"messages": "\ud83d"}"#, deep.as_str()]
    {
        for path in [CHAT, COMPLETIONS, "/v1/messages", "/v1/responses", "/replay", "/tokenize"] {
            let answer = server.ask("POST", path, "", body.as_bytes());
            assert_eq!(answer.status, 400, "{path} {body:.40}: {answer:?}");
            // Both shapes of the dialects' clients.
            let told = answer.json();
            assert_eq!(told["type"], "error");
            assert!(told["error"]["message"].is_string() && told["error"]["type"].is_string());
        }
    }
    let packed = server.ask("POST", CHAT, "Content-Encoding: gzip\r\n", b"{}");
    assert_eq!(packed.status, 415, "{packed:?}");
    assert!(packed.json()["error"]["message"].as_str().unwrap().contains("gzip"));
    server.good(COMPLETIONS, &json!({ "prompt": "a", "max_tokens": 1 }));
}

#[test]
fn a_character_of_many_tokens_is_streamed_whole() {
    let server = llama(&[]);
    let text = "é漢👩\u{200d}👩\u{200d}👧!";
    for cut in [text.len(), 1, 3, 8, 12] {
        let grammar = json!({ "choice": [text] });
        let body = asked(json!({ "structured_outputs": grammar, "max_tokens": cut }));
        let whole = server.good(CHAT, &body);
        let content = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        let mut streamed = body.clone();
        streamed["stream"] = true.into();
        let pieces = server.post(CHAT, &streamed).pieces();
        let texts: Vec<&str> =
            pieces.iter().filter_map(|p| p["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(texts.concat(), content, "{cut}");
        if cut == text.len() {
            assert_eq!(content, text);
            assert!(texts.iter().all(|piece| !piece.contains('\u{fffd}')), "{texts:?}");
        }
    }
}

#[test]
fn a_stream_that_ends_early_says_so_in_its_dialect() {
    let server = llama(&[]);
    // The only token that may come may not.
    let never = json!({ "allowed_token_ids": [5], "logit_bias": { "5": -100 }, "stream": true });
    for (path, more, named) in [
        (CHAT, json!({ "messages": said("hi") }), None),
        ("/v1/messages", json!({ "messages": said("hi"), "max_tokens": 4 }), Some("error")),
        ("/v1/responses", json!({ "input": "hi" }), Some("error")),
    ] {
        let mut body = never.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 200, "{path}: the head has gone out");
        let last = answer.body.split("\n\n").filter(|event| !event.is_empty()).last().unwrap();
        let (event, data) = match last.strip_prefix("event: ") {
            Some(rest) => {
                rest.split_once("\ndata: ").map(|(name, data)| (Some(name), data)).unwrap()
            }
            None => (None, last.strip_prefix("data: ").unwrap()),
        };
        // The chat's pieces have no names.
        assert_eq!(event, named, "{path}: {last}");
        let told: Value = serde_json::from_str(data).unwrap();
        assert_eq!(told["type"], "error", "{told}");
        let message =
            if path == "/v1/responses" { &told["message"] } else { &told["error"]["message"] };
        assert!(message.as_str().unwrap().contains("forbid"), "{told}");
        if path == "/v1/responses" {
            assert!(told["sequence_number"].as_u64().unwrap() >= 2, "{told}");
        }
    }
    server.rest();
}
