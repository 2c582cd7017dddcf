//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's dialect: texts, and calls of tools.

use crate::app::{App, UnderWay};
use crate::call::Call;
use crate::error::ApiError;
use crate::fields::{Field, Fields, Kind, field, name_of};
use crate::heard::{Called, Part, Said};
use crate::prompt::{self, Turn};
use crate::sampling::SAMPLING;
use crate::talk::{Asked, Dialect, Told, counts, talk};
use crate::tools::{Tools, Written};
use axum::Json;
use axum::response::{IntoResponse, Response};
use engine::Finish;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Fields of their own.
pub const MESSAGES: &[Field] = &[
    field("messages", Kind::List, "The conversation: objects with `role` and `content`"),
    field("system", Kind::Any, "What the model is told first: a text, or a list of text parts"),
    field(
        "max_tokens",
        Kind::Integer(1, i64::MAX),
        "New tokens, at most; this dialect asks for it",
    ),
    field("stop_sequences", Kind::Texts, "Texts that end the answer and are not part of it"),
    field(
        "tools",
        Kind::List,
        "Functions that the answer may call: {\"name\", \"description\", \"input_schema\"}",
    ),
    field(
        "tool_choice",
        Kind::Object,
        "{\"type\": auto, any, none, or tool with `name`}, perhaps with `disable_parallel_tool_use`; any and tool are enforced",
    ),
    field("thinking", Kind::Refused("there is no separate thinking"), ""),
];

/// Answers a body.
///
/// # Errors
/// What cannot be answered.
pub async fn messages(
    app: Arc<App>,
    under_way: UnderWay,
    arrived: Instant,
    body: &[u8],
) -> Result<Response, ApiError> {
    let mut fields = Fields::read(body, &[MESSAGES, SAMPLING])?;
    let Some(max_tokens) = fields.count("max_tokens") else {
        return Err(ApiError::field("max_tokens", "max_tokens: missing; expected a whole number"));
    };
    one_answer(&fields)?;
    let turns = conversation(&fields)?;
    let tools = Tools::read(&app, &mut fields, Written::Messages)?;
    let stops = fields.texts("stop_sequences");
    let number = app.next_answer.fetch_add(1, Ordering::Relaxed);
    let id = format!("msg_{}_{number}", app.created);
    let shape = Shape { id, model: app.model.name.clone(), blocks: 0, in_text: false };
    let arrived = (arrived, under_way);
    let asked = Asked { arrived, fields, turns, tools, max_tokens, stops };
    talk(app, asked, shape).await
}

/// Counts the tokens that a body's conversation has.
///
/// # Errors
/// What is no conversation.
pub fn count_tokens(app: &App, body: &[u8]) -> Result<Response, ApiError> {
    let mut fields = Fields::read(body, &[MESSAGES, SAMPLING])?;
    app.is_model(fields.text("model"))?;
    let tools = Tools::read(app, &mut fields, Written::Messages)?;
    let ids = prompt::conversation(app, &conversation(&fields)?, &tools.told(), true)?;
    Ok(Json(json!({ "input_tokens": ids.len() })).into_response())
}

/// Dialects that answer once refuse to be asked for more.
///
/// # Errors
/// An `n` above 1.
pub fn one_answer(fields: &Fields) -> Result<(), ApiError> {
    match fields.count("n") {
        Some(n) if n > 1 => {
            Err(ApiError::field("n", format!("n: found {n}; this path answers once")))
        }
        _ => Ok(()),
    }
}

fn conversation(fields: &Fields) -> Result<Vec<Turn>, ApiError> {
    let mut all = Vec::new();
    match fields.value("system") {
        None => {}
        Some(system @ (Value::String(_) | Value::Array(_))) => {
            let value = json!({ "role": "system", "content": system });
            all.push(Turn { at: "system".to_owned(), value });
        }
        Some(other) => {
            let message =
                format!("system: found {}, expected a text or a list of parts", name_of(other));
            return Err(ApiError::field("system", message));
        }
    }
    for turn in prompt::turns(fields.value("messages"))? {
        translate(turn, &mut all)?;
    }
    Ok(all)
}

/// One message of this dialect as messages of the chat: calls and their results stand in its content.
fn translate(turn: Turn, all: &mut Vec<Turn>) -> Result<(), ApiError> {
    let Some(Value::Array(blocks)) = turn.value.get("content") else {
        all.push(turn);
        return Ok(());
    };
    let role = turn.value.get("role").cloned().unwrap_or(Value::Null);
    let (mut texts, mut calls, mut results) = (Vec::new(), Vec::new(), Vec::new());
    for (j, block) in blocks.iter().enumerate() {
        let at = format!("{}.content[{j}]", turn.at);
        let text = |name: &str| {
            block.get(name).and_then(Value::as_str).ok_or_else(|| {
                ApiError::field(&at, format!("{at}.{name}: missing; expected a text"))
            })
        };
        match block.get("type").and_then(Value::as_str) {
            Some("tool_use") => calls.push(json!({
                "id": text("id")?, "type": "function", "function": {
                    "name": text("name")?, "arguments": block.get("input").unwrap_or(&Value::Null),
                },
            })),
            Some("tool_result") => {
                let content = block.get("content").cloned().unwrap_or_else(|| "".into());
                let value = json!({
                    "role": "tool", "tool_call_id": text("tool_use_id")?, "content": content,
                });
                results.push(Turn { at, value });
            }
            _ => texts.push(block.clone()),
        }
    }
    let only_results = texts.is_empty() && calls.is_empty() && !results.is_empty();
    all.extend(results);
    if !only_results {
        let mut value = json!({ "role": role, "content": texts });
        if !calls.is_empty() {
            value["tool_calls"] = calls.into();
        }
        all.push(Turn { at: turn.at, value });
    }
    Ok(())
}

struct Shape {
    id: String,
    model: String,
    /// Blocks that a stream has begun.
    blocks: usize,
    /// Whether the last of them is a text that may go on.
    in_text: bool,
}

impl Shape {
    fn message(&self, content: Value, call: &Call) -> Value {
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model,
            "content": content, "stop_reason": null, "stop_sequence": null,
            "usage": usage(call),
        })
    }

    fn begin(&mut self, block: &Value) -> Value {
        self.blocks += 1;
        json!({ "type": "content_block_start", "index": self.blocks - 1, "content_block": block })
    }

    fn delta(&self, delta: &Value) -> Value {
        json!({ "type": "content_block_delta", "index": self.blocks - 1, "delta": delta })
    }

    fn end(&mut self) -> Value {
        self.in_text = false;
        json!({ "type": "content_block_stop", "index": self.blocks - 1 })
    }
}

/// A part as a block of the content.
fn block(said: &Said) -> Value {
    match said {
        Said::Text(text) => json!({ "type": "text", "text": text }),
        Said::Call(called) => {
            let input = serde_json::from_str::<Value>(&called.arguments);
            begun(called, input.unwrap_or_else(|_| json!({})))
        }
    }
}

fn begun(called: &Called, input: Value) -> Value {
    let id = format!("toolu_{}", called.id);
    json!({ "type": "tool_use", "id": id, "name": called.name, "input": input })
}

/// In this dialect tokens that were cached are counted apart.
fn usage(call: &Call) -> Value {
    let (read, cached, written) = counts(call);
    json!({
        "input_tokens": read - cached, "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached, "output_tokens": written,
    })
}

fn reason(told: &Told) -> Value {
    match told.finish {
        _ if told.calls() => "tool_use".into(),
        Some(Finish::Eos) => "end_turn".into(),
        Some(Finish::Stop) => "stop_sequence".into(),
        Some(_) => "max_tokens".into(),
        None => Value::Null,
    }
}

impl Dialect for Shape {
    fn name(&self) -> &str {
        &self.id
    }

    fn whole(&self, told: &Told, call: &Call) -> Value {
        let content = told.whole().iter().map(block).collect();
        let mut message = self.message(content, call);
        message["stop_reason"] = reason(told);
        message["stop_sequence"] = json!(told.stop);
        message
    }

    fn open(&mut self, call: &Call) -> Vec<Value> {
        vec![json!({ "type": "message_start", "message": self.message(json!([]), call) })]
    }

    fn part(&mut self, part: &Part) -> Vec<Value> {
        let mut pieces = Vec::new();
        match part {
            Part::Text(text) => {
                if !self.in_text {
                    pieces.push(self.begin(&json!({ "type": "text", "text": "" })));
                    self.in_text = true;
                }
                pieces.push(self.delta(&json!({ "type": "text_delta", "text": text })));
            }
            Part::Begin(called) => {
                if self.in_text {
                    pieces.push(self.end());
                }
                pieces.push(self.begin(&begun(called, json!({}))));
            }
            Part::Arguments(more) => {
                let delta = json!({ "type": "input_json_delta", "partial_json": more });
                pieces.push(self.delta(&delta));
            }
            Part::End | Part::Broken(_) => pieces.push(self.end()),
        }
        pieces
    }

    fn close(&mut self, told: &Told, call: &Call) -> Vec<Value> {
        let delta = json!({ "stop_reason": reason(told), "stop_sequence": told.stop });
        let mut pieces = Vec::new();
        if self.blocks == 0 {
            pieces.push(self.begin(&json!({ "type": "text", "text": "" })));
            self.in_text = true;
        }
        if self.in_text {
            pieces.push(self.end());
        }
        pieces.push(json!({ "type": "message_delta", "delta": delta, "usage": usage(call) }));
        pieces.push(json!({ "type": "message_stop" }));
        pieces
    }
}
