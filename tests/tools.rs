//! Calls of tools through the built binary, in each dialect and in the ways of three families.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/family.rs"]
mod family;
#[path = "common/http.rs"]
mod http;

use family::{Family, family};
use http::{Answer, CHAT};
use serde_json::{Value, json};

const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

fn schema() -> Value {
    json!({ "type": "object", "required": ["unit", "days"], "properties": {
        "unit": { "enum": ["celsius", "kelvin"] }, "days": { "type": "integer", "minimum": 1, "maximum": 9 },
    } })
}

fn tools() -> Value {
    let one = |name: &str| {
        json!({ "type": "function", "function": {
        "name": name, "description": "tells", "parameters": schema(),
    } })
    };
    json!([one("weather"), one("tide")])
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

fn body(more: Value) -> Value {
    let mut body = json!({
        "messages": [user("how is it?")], "tools": tools(), "max_tokens": 300, "seed": 5,
        "parallel_tool_calls": false,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[track_caller]
fn holds(name: &Value, arguments: &str) {
    assert!(["weather", "tide"].contains(&name.as_str().unwrap()), "{name}");
    let read: Value = serde_json::from_str(arguments).unwrap();
    assert!(["celsius", "kelvin"].contains(&read["unit"].as_str().unwrap()), "{read}");
    assert!((1..=9).contains(&read["days"].as_u64().unwrap()), "{read}");
    assert_eq!(read.as_object().unwrap().len(), 2);
}

#[test]
fn a_call_that_must_come_follows_its_schema() {
    for (template, id_length) in [
        (Some("qwen.jinja"), 29),
        (Some("llama3.jinja"), 29),
        (Some("mistral.jinja"), 9),
        (None, 29),
    ] {
        let Family { server, _folder } = family(template);
        let named = json!({ "type": "function", "function": { "name": "tide" } });
        for (choice, seed) in [(json!("required"), 1), (json!("required"), 2), (named, 3)] {
            let asked =
                body(json!({ "tool_choice": choice, "seed": seed, "n": 2, "receipt": true }));
            let answer = server.good(CHAT, &asked);
            for i in 0..2 {
                let told = &answer["choices"][i];
                assert_eq!(told["finish_reason"], "tool_calls", "{template:?} {answer}");
                assert!(told["message"]["content"].is_null());
                let calls = told["message"]["tool_calls"].as_array().unwrap();
                assert_eq!(calls.len(), 1);
                let function = &calls[0]["function"];
                holds(&function["name"], function["arguments"].as_str().unwrap());
                assert_eq!(calls[0]["id"].as_str().unwrap().len(), id_length, "{calls:?}");
                assert_eq!(calls[0]["type"], "function");
                if choice.is_object() {
                    assert_eq!(function["name"], "tide");
                }
            }
            assert_ne!(
                answer["choices"][0]["message"]["tool_calls"][0]["id"],
                answer["choices"][1]["message"]["tool_calls"][0]["id"]
            );
            // The grammar is part of the receipt.
            let again = server.good("/replay", &json!({ "receipt": answer["receipt"] }));
            assert_eq!(again["same"], true);
            // In pieces it is the same.
            let mut streamed = asked.clone();
            streamed["stream"] = true.into();
            let pieces = server.post(CHAT, &streamed).pieces();
            for i in 0..2 {
                let own: Vec<&Value> = pieces
                    .iter()
                    .filter_map(|p| p["choices"].get(0))
                    .filter(|c| c["index"] == i)
                    .collect();
                let deltas: Vec<&Value> =
                    own.iter().filter_map(|c| c["delta"]["tool_calls"].get(0)).collect();
                assert!(deltas.iter().all(|delta| delta["index"] == 0));
                let whole = &answer["choices"][i]["message"]["tool_calls"][0]["function"];
                assert_eq!(deltas[0]["function"]["name"], whole["name"]);
                // As they are generated: a token here is a byte.
                assert!(deltas.len() > 10, "{deltas:?}");
                assert!(deltas[1..].iter().all(|d| d["function"].get("name").is_none()));
                let arguments: String =
                    deltas.iter().filter_map(|d| d["function"]["arguments"].as_str()).collect();
                assert_eq!(arguments, whole["arguments"].as_str().unwrap());
                assert_eq!(own.last().unwrap()["finish_reason"], "tool_calls");
                assert!(own[..own.len() - 1].iter().all(|c| c["finish_reason"].is_null()));
            }
        }
    }
}

#[test]
fn what_the_model_writes_by_itself_is_read() {
    let Family { server, _folder } = family(Some("qwen.jinja"));
    // The answer is dictated, so that it is known what is to be read in it.
    let dictated = |text: &str, more: Value| {
        let mut asked = body(json!({
            "structured_outputs": { "choice": [text] }, "parallel_tool_calls": true,
        }));
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.good(CHAT, &asked)
    };
    let call = |name: &str| {
        format!(
            "<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{\"days\": 2}}}}\n</tool_call>"
        )
    };
    let two = format!("Let me see.\n{}\n{}", call("weather"), call("tide"));
    let answer = dictated(&two, json!({}));
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["content"], "Let me see.");
    let names: Vec<&Value> =
        message["tool_calls"].as_array().unwrap().iter().map(|c| &c["function"]["name"]).collect();
    assert_eq!(names, ["weather", "tide"]);
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    assert!(answer.get("warnings").is_none(), "{answer}");
    let one = dictated(&two, json!({ "parallel_tool_calls": false }));
    assert_eq!(one["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 1);
    assert!(one["warnings"][0].as_str().unwrap().contains("tide"), "{one}");
    // What does not hold is the text that it is.
    for broken in
        [call("rm"), call("tide").replace("2}}", ""), "<tool_call>\n{\"name\":".to_owned()]
    {
        let answer = dictated(&broken, json!({}));
        assert_eq!(answer["choices"][0]["message"]["content"], broken.as_str());
        assert!(answer["choices"][0]["message"].get("tool_calls").is_none());
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        let warning = answer["warnings"][0].as_str().unwrap();
        assert!(warning.contains("given as text") || warning.contains("does not hold"), "{answer}");
        let streamed = json!({ "stream": true, "structured_outputs": { "choice": [broken] } });
        let pieces = server.post(CHAT, &body(streamed)).pieces();
        let texts = |path: &str| -> String {
            let said =
                pieces.iter().filter_map(|p| p["choices"][0]["delta"].pointer(path)?.as_str());
            said.collect()
        };
        // A call that has begun stands as far as it came.
        match broken.contains(": {\"days\"") && !broken.contains("rm") {
            true => assert_eq!(texts("/tool_calls/0/function/arguments").trim(), "{\"days\":"),
            false => assert_eq!(texts("/content"), broken),
        }
        assert!(pieces.iter().any(|p| p["warnings"][0].is_string()), "{pieces:?}");
    }
    // A grammar of the request's own stands above a strict schema, and that is told.
    let mut strict = tools();
    strict[0]["function"]["strict"] = true.into();
    let answer = dictated("no call", json!({ "tools": strict }));
    assert!(answer["warnings"][0].as_str().unwrap().contains("strict"), "{answer}");
    // Told not to call, nothing is read and the model is not told of tools.
    let none = dictated(&two, json!({ "tool_choice": "none" }));
    assert_eq!(none["choices"][0]["message"]["content"], two.as_str());
    let plain = server.good(CHAT, &json!({ "messages": [user("how is it?")], "max_tokens": 1 }));
    assert_eq!(none["usage"]["prompt_tokens"], plain["usage"]["prompt_tokens"]);
    let with = server.good(CHAT, &body(json!({ "max_tokens": 1 })));
    assert!(with["usage"]["prompt_tokens"].as_u64() > plain["usage"]["prompt_tokens"].as_u64());
}

#[test]
fn calls_and_results_are_part_of_the_conversation() {
    for template in [Some("qwen.jinja"), Some("llama3.jinja"), Some("mistral.jinja"), None] {
        let Family { server, _folder } = family(template);
        let call = json!({ "id": "call_1", "type": "function", "function": {
            "name": "weather", "arguments": "{\"days\": 2}" } });
        let result =
            |text: &str| json!({ "role": "tool", "tool_call_id": "call_1", "content": text });
        let told = |text: &str| {
            let asked = json!({ "messages": [user("how?"),
                { "role": "assistant", "content": null, "tool_calls": [call] }, result(text)],
                "tools": tools(), "max_tokens": 1 });
            server.good(CHAT, &asked)["usage"]["prompt_tokens"].as_u64().unwrap()
        };
        assert_eq!(told("grey sky"), told("grey sk") + 1, "a byte more, a token more");
        let anthropic = json!({ "max_tokens": 1, "messages": [user("how?"),
            { "role": "assistant", "content": [
                { "type": "tool_use", "id": "call_1", "name": "weather", "input": { "days": 2 } }] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "call_1", "content": [{ "type": "text", "text": "grey sky" }] }] }],
            "tools": [{ "name": "weather", "description": "tells", "input_schema": schema() },
                      { "name": "tide", "description": "tells", "input_schema": schema() }] });
        let answer = server.good(MESSAGES, &anthropic);
        let read = answer["usage"]["input_tokens"].as_u64().unwrap()
            + answer["usage"]["cache_read_input_tokens"].as_u64().unwrap();
        assert_eq!(read, told("grey sky"));
        assert_eq!(
            server.good("/v1/messages/count_tokens", &anthropic)["input_tokens"],
            told("grey sky")
        );
        let items = json!({ "max_output_tokens": 1, "input": [user("how?"),
            { "type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{\"days\": 2}" },
            { "type": "function_call_output", "call_id": "call_1", "output": "grey sky" }],
            "tools": [{ "type": "function", "name": "weather", "description": "tells", "parameters": schema() },
                      { "type": "function", "name": "tide", "description": "tells", "parameters": schema() }] });
        assert_eq!(server.good(RESPONSES, &items)["usage"]["input_tokens"], told("grey sky"));
    }
}

fn events(answer: &Answer) -> Vec<Value> {
    let data = |text: &str| serde_json::from_str(text.split_once("\ndata: ").unwrap().1).unwrap();
    answer.body.split("\n\n").filter(|text| !text.is_empty()).map(data).collect()
}

fn kinds(all: &[Value]) -> Vec<&str> {
    all.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

fn without_repeats(all: &[Value]) -> Vec<&str> {
    let mut kinds = kinds(all);
    kinds.dedup();
    kinds
}

#[test]
fn a_strict_schema_holds_in_calls_that_the_model_makes_by_itself() {
    for template in [Some("qwen.jinja"), Some("llama3.jinja"), Some("mistral.jinja"), None] {
        let Family { server, _folder } = family(template);
        // The model is a small random one: a bias towards what opens a call makes it call.
        let opening = match template {
            Some("llama3.jinja") => json!({ "90": 100 }),
            Some("mistral.jinja") => json!({ "258": 100 }),
            _ => json!({}),
        };
        let calls = opening != json!({});
        let mut strict = tools();
        strict[0]["function"]["strict"] = true.into();
        strict[1]["function"]["strict"] = calls.into();
        let asked = body(json!({ "tools": strict, "logit_bias": opening, "receipt": true }));
        let answer = server.good(CHAT, &asked);
        assert!(answer.get("warnings").is_none() || template.is_none(), "{answer}");
        let grammar = &answer["receipt"]["grammar"];
        assert_eq!(grammar["kind"], "lark", "{answer}");
        assert_eq!(server.good("/replay", &json!({ "receipt": answer["receipt"] }))["same"], true);
        let message = &answer["choices"][0]["message"];
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let arguments = call["function"]["arguments"].as_str().unwrap();
            match calls || call["function"]["name"] == "weather" {
                true => holds(&call["function"]["name"], arguments),
                false => assert!(serde_json::from_str::<Value>(arguments).unwrap().is_object()),
            }
        }
        if calls {
            assert_eq!(message["tool_calls"].as_array().map(Vec::len), Some(1), "{answer}");
        }
        // Where no tool is strict, nothing is masked.
        let plain = server.good(CHAT, &body(json!({ "receipt": true, "max_tokens": 2 })));
        assert!(plain["receipt"]["grammar"].is_null());
    }
}

#[test]
fn the_other_dialects_call_too() {
    let Family { server, _folder } = family(Some("qwen.jinja"));
    let mut asked = json!({ "messages": [user("how?")], "max_tokens": 300, "seed": 4,
        "tools": [{ "name": "tide", "input_schema": schema() }],
        "tool_choice": { "type": "any", "disable_parallel_tool_use": true } });
    let whole = server.good(MESSAGES, &asked);
    assert_eq!(
        (&whole["stop_reason"], whole["content"].as_array().unwrap().len()),
        (&json!("tool_use"), 1)
    );
    let block = &whole["content"][0];
    assert_eq!(block["type"], "tool_use");
    assert!(block["id"].as_str().unwrap().starts_with("toolu_"));
    holds(&block["name"], &block["input"].to_string());
    asked["stream"] = true.into();
    let all = events(&server.post(MESSAGES, &asked));
    assert!(kinds(&all).len() > 15, "the input comes in pieces: {all:?}");
    assert_eq!(
        without_repeats(&all),
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    assert_eq!(all[1]["content_block"]["input"], json!({}));
    let json: String = all.iter().filter_map(|e| e["delta"]["partial_json"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), block["input"]);
    assert_eq!(all[all.len() - 2]["delta"]["stop_reason"], "tool_use");

    let mut asked = json!({ "input": "how?", "max_output_tokens": 300, "seed": 4,
        "tools": [{ "type": "function", "name": "tide", "parameters": schema() }],
        "tool_choice": { "type": "function", "name": "tide" }, "parallel_tool_calls": false });
    let whole = server.good(RESPONSES, &asked);
    let item = &whole["output"][0];
    assert_eq!((&item["type"], &item["status"]), (&json!("function_call"), &json!("completed")));
    holds(&item["name"], item["arguments"].as_str().unwrap());
    assert_eq!(whole["tool_choice"]["name"], "tide");
    asked["stream"] = true.into();
    let all = events(&server.post(RESPONSES, &asked));
    assert!(kinds(&all).len() > 15, "the arguments come in pieces: {all:?}");
    assert_eq!(
        without_repeats(&all)[2..],
        [
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed"
        ]
    );
    let json: String = all.iter().filter_map(|e| e["delta"].as_str()).collect();
    assert_eq!(json, item["arguments"].as_str().unwrap());
    let done = all.iter().find(|e| e["type"] == "response.function_call_arguments.done").unwrap();
    assert_eq!((&done["arguments"], &done["name"]), (&item["arguments"], &item["name"]));
    let last = &all[all.len() - 1]["response"]["output"][0];
    assert_eq!(last["arguments"], item["arguments"]);
    let numbers: Vec<u64> = all.iter().map(|e| e["sequence_number"].as_u64().unwrap()).collect();
    assert!(numbers.iter().copied().eq(0..all.len() as u64), "{numbers:?}");
}

#[test]
fn what_cannot_be_called_is_refused_by_name() {
    let Family { server, _folder } = family(Some("qwen.jinja"));
    let function = |function: Value| json!([{ "type": "function", "function": function }]);
    for (more, param) in [
        (json!({ "tools": "x" }), "tools"),
        (json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type"),
        (json!({ "tools": function(json!({})) }), "tools[0]"),
        (json!({ "tools": function(json!({ "name": "a b" })) }), "tools[0]"),
        (json!({ "tools": function(json!({ "name": "a", "parameters": [] })) }), "tools[0]"),
        (json!({ "tools": [tools()[0], tools()[0]] }), "tools[1]"),
        (json!({ "tool_choice": "any" }), "tool_choice"),
        (json!({ "tool_choice": 7 }), "tool_choice"),
        (
            json!({ "tool_choice": { "type": "function", "function": { "name": "rm" } } }),
            "tool_choice",
        ),
        (json!({ "tools": [], "tool_choice": "required" }), "tool_choice"),
        (
            json!({ "tool_choice": "required", "response_format": { "type": "json_object" } }),
            "tool_choice",
        ),
        (json!({ "functions": [{}] }), "functions"),
        (
            json!({ "messages": [{ "role": "assistant", "tool_calls": [{ "function": { "name": "a", "arguments": "{" } }] }] }),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            json!({ "messages": [{ "role": "user", "content": "", "tool_calls": [{}] }] }),
            "messages[0].tool_calls",
        ),
        (json!({ "messages": [{ "role": "tool" }] }), "messages[0].content"),
        (
            json!({ "tool_choice": "required", "tools": function(json!({ "name": "a",
            "parameters": { "type": "object", "properties": { "x": { "pattern": "(" } } } })) }),
            "tools",
        ),
    ] {
        let answer = server.post(CHAT, &body(more.clone()));
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (400, &json!(param)),
            "{more} {answer:?}"
        );
    }
    // Cut off inside a call, it is a text that was cut off.
    let cut = server.good(CHAT, &body(json!({ "tool_choice": "required", "max_tokens": 20 })));
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    assert!(cut["choices"][0]["message"]["content"].as_str().unwrap().starts_with("<tool_call>"));
    assert!(cut["warnings"][0].is_string());
    // In pieces a call that has begun stands as far as it came.
    let long = json!({ "tool_choice": "required", "max_tokens": 60, "stream": true });
    let pieces = server.post(CHAT, &body(long)).pieces();
    let begun = pieces.iter().find_map(|p| p["choices"][0]["delta"].pointer("/tool_calls/0/id"));
    assert!(begun.is_some(), "{pieces:?}");
    assert_eq!(pieces.last().unwrap()["choices"][0]["finish_reason"], "length");
}
