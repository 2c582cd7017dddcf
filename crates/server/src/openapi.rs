//! `GET /openapi.json`, written from the tables that check the fields.

use crate::chat_completions::CHAT;
use crate::completions::COMPLETIONS;
use crate::embeddings::EMBEDDINGS;
use crate::fields::Field;
use crate::messages::MESSAGES;
use crate::other::{DETOKENIZE, TOKENIZE};
use crate::replay::{EXPLAIN, REPLAY};
use crate::responses::RESPONSES;
use crate::sampling::SAMPLING;
use serde_json::{Map, Value, json};

fn schema(tables: &[&[Field]], required: &[&str]) -> Value {
    let all = tables.iter().copied().flatten();
    let properties: Map<String, Value> =
        all.map(|field| (field.name.to_owned(), field.schema())).collect();
    json!({ "type": "object", "properties": properties, "required": required })
}

fn post(summary: &str, tables: &[&[Field]], required: &[&str], streams: bool) -> Value {
    let json_body = json!({ "schema": { "type": "object" } });
    let mut content = json!({ "application/json": json_body });
    if streams {
        content["text/event-stream"] = json!({ "schema": { "type": "string" } });
    }
    let error = |what: &str| {
        json!({ "description": what, "content": { "application/json": {
            "schema": { "$ref": "#/components/schemas/Error" } } } })
    };
    json!({ "post": {
        "summary": summary,
        "requestBody": { "required": true, "content": {
            "application/json": { "schema": schema(tables, required) } } },
        "responses": {
            "200": { "description": "The answer", "content": content },
            "400": error("The request is at fault; `param` names the field"),
            "401": error("No valid key"),
            "404": error("No such model"),
            "413": error("The body is too large"),
            "429": error("Too many requests wait; `Retry-After` says when to try again"),
            "503": error("The server is shutting down"),
            "504": error("The answer took too long"),
        },
    } })
}

fn get(summary: &str, kind: &str) -> Value {
    json!({ "get": { "summary": summary, "responses": {
        "200": { "description": summary, "content": { kind: { "schema": {} } } },
        "401": { "description": "No valid key" },
        "503": { "description": "The server is shutting down" },
    } } })
}

/// The document.
#[must_use]
pub fn document() -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "autoreg", "version": env!("CARGO_PKG_VERSION"),
            "description": "One language model on CPUs. Unknown fields are listed in `warnings`, or refused with `strict`.",
        },
        "paths": {
            "/v1/models": get("The model", "application/json"),
            "/v1/completions": post("Continues prompts", &[SAMPLING, COMPLETIONS], &[], true),
            "/v1/chat/completions": post("Answers a conversation", &[SAMPLING, CHAT], &["messages"], true),
            "/v1/embeddings": post("Vectors of texts", &[EMBEDDINGS], &["input"], false),
            "/v1/responses": post("Answers a conversation, OpenAI's newer dialect; nothing is stored", &[SAMPLING, RESPONSES], &["input"], true),
            "/v1/messages": post("Answers a conversation, Anthropic's dialect", &[SAMPLING, MESSAGES], &["messages", "max_tokens"], true),
            "/v1/messages/count_tokens": post("The tokens of a conversation", &[SAMPLING, MESSAGES], &["messages"], false),
            "/replay": post("Repeats the answer of a receipt", &[REPLAY], &["receipt"], false),
            "/explain": post("Shows, as a page, how each token of a receipt's answer was chosen", &[EXPLAIN], &["receipt"], false),
            "/": get("The playground", "text/html"),
            "/tokenize": post("The tokens of a text", &[TOKENIZE], &[], false),
            "/detokenize": post("The text of tokens", &[DETOKENIZE], &["tokens"], false),
            "/health": get("Alive", "application/json"),
            "/ready": get("Requests are taken", "application/json"),
            "/metrics": get("Figures for Prometheus", "application/openmetrics-text"),
            "/ledger": get("Bytes by term, predicted and measured", "application/json"),
        },
        "components": {
            "schemas": { "Error": { "type": "object", "required": ["error"], "properties": {
                "error": { "type": "object", "required": ["message", "type", "param", "code"], "properties": {
                    "message": { "type": "string" }, "type": { "type": "string" },
                    "param": { "type": ["string", "null"] }, "code": { "type": ["string", "null"] },
                    "details": {},
                } } } } },
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
        },
        "security": [{}, { "key": [] }],
    })
}
