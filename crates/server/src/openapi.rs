//! `GET /openapi.json`, written from the tables that check the fields.

use crate::chat_completions::CHAT;
use crate::completions::COMPLETIONS;
use crate::embeddings::EMBEDDINGS;
use crate::fields::{Field, Kind};
use crate::messages::MESSAGES;
use crate::other::{DETOKENIZE, TOKENIZE};
use crate::replay::{EXPLAIN, REPLAY};
use crate::responses::RESPONSES;
use crate::sampling::SAMPLING;
use serde_json::{Map, Value, json};

fn schema(tables: &[&[Field]], required: &[&str], model: &str) -> Value {
    let all = tables.iter().copied().flatten();
    let property = |field: &Field| {
        let mut schema = field.schema();
        if let (Some(more), Some(map)) = (inside(field, model), schema.as_object_mut()) {
            map.extend(more.as_object().cloned().unwrap_or_default());
        }
        (field.name.to_owned(), schema)
    };
    let properties: Map<String, Value> = all.map(property).collect();
    json!({ "type": "object", "properties": properties, "required": required })
}

/// What a field's value looks like inside, where its kind does not say.
fn inside(field: &Field, model: &str) -> Option<Value> {
    let text = json!({ "type": "string" });
    let named = |name: &str| json!({ "$ref": format!("#/components/schemas/{name}") });
    let ids =
        json!({ "type": "array", "minItems": 1, "items": { "type": "integer", "minimum": 0 } });
    Some(match (field.name, field.kind) {
        (_, Kind::Refused(_)) => json!({ "enum": [null, false, ""] }),
        ("model", _) => json!({ "enum": [model] }),
        ("messages", _) => json!({ "minItems": 1, "items": named("Message") }),
        ("preset", _) => json!({ "enum": decoding::Preset::ALL.map(decoding::Preset::name) }),
        ("encoding_format", _) => json!({ "enum": ["float", "base64"] }),
        ("prompt", Kind::Any) => json!({ "anyOf": [text, named("Texts"), ids, named("Tokens")] }),
        ("input", Kind::Any) => json!({ "anyOf": [text, named("Texts"), ids, named("Tokens"),
            { "type": "array", "minItems": 1, "items": named("Message") }] }),
        ("system", _) => json!({ "anyOf": [text, { "type": "array", "items": named("Part") }] }),
        ("tools", _) => json!({ "items": named("Tool") }),
        ("tool_choice", Kind::Any) => json!({ "anyOf": [
            { "enum": ["none", "auto", "required"] },
            { "type": "object", "required": ["type"], "properties": {
                "type": { "const": "function" }, "name": text,
                "function": { "type": "object", "properties": { "name": text } } } }] }),
        ("tool_choice", _) => json!({ "required": ["type"], "properties": {
            "type": { "enum": ["auto", "any", "none", "tool"] }, "name": text,
            "disable_parallel_tool_use": { "type": "boolean" } } }),
        ("response_format", _) => json!({ "required": ["type"], "properties": {
            "type": { "enum": ["text", "json_object", "json_schema"] },
            "json_schema": { "type": "object", "required": ["schema"], "properties": {
                "schema": { "type": "object" }, "name": text, "strict": { "type": "boolean" } } } } }),
        ("structured_outputs", _) => json!({ "minProperties": 1, "maxProperties": 1,
            "additionalProperties": false, "properties": {
            "json": { "type": "object" }, "regex": text, "grammar": text, "choice": named("Texts") } }),
        ("logit_bias", _) => json!({ "additionalProperties": {
            "type": "number", "minimum": -100, "maximum": 100 } }),
        ("stream_options", _) => {
            json!({ "properties": { "include_usage": { "type": "boolean" } } })
        }
        _ => return None,
    })
}

/// Schemas that others name.
fn components() -> Value {
    let text = json!({ "type": "string" });
    let named = |name: &str| json!({ "$ref": format!("#/components/schemas/{name}") });
    json!({
        "Error": { "type": "object", "required": ["error"], "properties": {
            "error": { "type": "object", "required": ["message", "type", "param", "code"], "properties": {
                "message": { "type": "string" }, "type": { "type": "string" },
                "param": { "type": ["string", "null"] }, "code": { "type": ["string", "null"] },
                "details": {},
            } } } },
        "Texts": { "type": "array", "minItems": 1, "items": text },
        "Tokens": { "type": "array", "minItems": 1, "items": { "type": "array", "minItems": 1,
            "items": { "type": "integer", "minimum": 0 } } },
        "Part": { "type": "object", "required": ["type", "text"], "properties": {
            "type": { "enum": ["text", "input_text", "output_text"] }, "text": text } },
        "Message": { "type": "object", "required": ["role", "content"], "properties": {
            "role": { "enum": ["system", "developer", "user", "assistant", "tool"] },
            "content": { "anyOf": [text, { "type": "array", "items": named("Part") }] } } },
        "Tool": { "type": "object", "description": "A function by its name, what it does, and the JSON schema of its arguments: `function` in chat completions, beside `type` in responses, with `input_schema` in messages" },
    })
}

fn post(
    summary: &str,
    (tables, model): (&[&[Field]], &str),
    required: &[&str],
    streams: bool,
) -> Value {
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
            "application/json": { "schema": schema(tables, required, model) } } },
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
pub fn document(model: &str) -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "autoreg", "version": env!("CARGO_PKG_VERSION"),
            "description": "One language model on CPUs. Unknown fields are listed in `warnings`, or refused with `strict`.",
        },
        "paths": {
            "/v1/models": get("The model", "application/json"),
            "/v1/completions": post("Continues prompts", (&[SAMPLING, COMPLETIONS], model), &[], true),
            "/v1/chat/completions": post("Answers a conversation", (&[SAMPLING, CHAT], model), &["messages"], true),
            "/v1/embeddings": post("Vectors of texts", (&[EMBEDDINGS], model), &["input"], false),
            "/v1/responses": post("Answers a conversation, OpenAI's newer dialect; nothing is stored", (&[SAMPLING, RESPONSES], model), &["input"], true),
            "/v1/messages": post("Answers a conversation, Anthropic's dialect", (&[SAMPLING, MESSAGES], model), &["messages", "max_tokens"], true),
            "/v1/messages/count_tokens": post("The tokens of a conversation", (&[SAMPLING, MESSAGES], model), &["messages"], false),
            "/replay": post("Repeats the answer of a receipt", (&[REPLAY], model), &["receipt"], false),
            "/explain": post("Shows, as a page, how each token of a receipt's answer was chosen", (&[EXPLAIN], model), &["receipt"], false),
            "/": get("The playground", "text/html"),
            "/tokenize": post("The tokens of a text", (&[TOKENIZE], model), &[], false),
            "/detokenize": post("The text of tokens", (&[DETOKENIZE], model), &["tokens"], false),
            "/health": get("Alive", "application/json"),
            "/ready": get("Requests are taken", "application/json"),
            "/metrics": get("Figures for Prometheus", "application/openmetrics-text"),
            "/defaults": get("What sampling fields mean where they are absent", "application/json"),
            "/ledger": get("Bytes by term, predicted and measured", "application/json"),
        },
        "components": {
            "schemas": components(),
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
        },
        "security": [{}, { "key": [] }],
    })
}
