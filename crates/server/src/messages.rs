//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's dialect, text only.

use crate::app::{App, UnderWay};
use crate::call::Call;
use crate::error::ApiError;
use crate::fields::{Field, Fields, Kind, field, name_of};
use crate::prompt;
use crate::sampling::SAMPLING;
use crate::talk::{Asked, Dialect, Told, counts, talk};
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
    field("tools", Kind::Refused("calls of tools are not supported"), ""),
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
    let fields = Fields::read(body, &[MESSAGES, SAMPLING])?;
    let Some(max_tokens) = fields.count("max_tokens") else {
        return Err(ApiError::field("max_tokens", "max_tokens: missing; expected a whole number"));
    };
    one_answer(&fields)?;
    let messages = conversation(&fields)?;
    let stops = fields.texts("stop_sequences");
    let number = app.next_answer.fetch_add(1, Ordering::Relaxed);
    let id = format!("msg_{}_{number}", app.created);
    let shape = Shape { id, model: app.model.name.clone() };
    let asked = Asked { arrived: (arrived, under_way), fields, messages, max_tokens, stops };
    talk(app, asked, shape).await
}

/// Counts the tokens that a body's conversation has.
///
/// # Errors
/// What is no conversation.
pub fn count_tokens(app: &App, body: &[u8]) -> Result<Response, ApiError> {
    let fields = Fields::read(body, &[MESSAGES, SAMPLING])?;
    app.is_model(fields.text("model"))?;
    let ids = prompt::conversation(app, Some(&conversation(&fields)?), true)?;
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

fn conversation(fields: &Fields) -> Result<Value, ApiError> {
    let Some(Value::Array(list)) = fields.value("messages") else {
        return Err(ApiError::field("messages", "messages: missing; expected a list of messages"));
    };
    let mut all = Vec::new();
    match fields.value("system") {
        None => {}
        Some(system @ (Value::String(_) | Value::Array(_))) => {
            all.push(json!({ "role": "system", "content": system }));
        }
        Some(other) => {
            let message =
                format!("system: found {}, expected a text or a list of parts", name_of(other));
            return Err(ApiError::field("system", message));
        }
    }
    all.extend(list.iter().cloned());
    Ok(Value::Array(all))
}

struct Shape {
    id: String,
    model: String,
}

impl Shape {
    fn message(&self, content: Value, call: &Call) -> Value {
        let (read, cached, written) = counts(call);
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model,
            "content": content, "stop_reason": null, "stop_sequence": null,
            "usage": { "input_tokens": read, "cache_read_input_tokens": cached, "output_tokens": written },
        })
    }
}

fn reason(told: &Told) -> Value {
    match told.finish {
        Some(Finish::Eos) => "end_turn".into(),
        Some(Finish::Stop) => "stop_sequence".into(),
        Some(_) => "max_tokens".into(),
        None => Value::Null,
    }
}

impl Dialect for Shape {
    fn whole(&self, told: &Told, call: &Call) -> Value {
        let mut message = self.message(json!([{ "type": "text", "text": told.text }]), call);
        message["stop_reason"] = reason(told);
        message["stop_sequence"] = json!(told.stop);
        message
    }

    fn open(&mut self, call: &Call) -> Vec<Value> {
        let block = json!({ "type": "text", "text": "" });
        vec![
            json!({ "type": "message_start", "message": self.message(json!([]), call) }),
            json!({ "type": "content_block_start", "index": 0, "content_block": block }),
        ]
    }

    fn text(&mut self, text: &str) -> Value {
        let delta = json!({ "type": "text_delta", "text": text });
        json!({ "type": "content_block_delta", "index": 0, "delta": delta })
    }

    fn close(&mut self, told: &Told, call: &Call) -> Vec<Value> {
        let (read, cached, written) = counts(call);
        let usage = json!({
            "input_tokens": read, "cache_read_input_tokens": cached, "output_tokens": written,
        });
        let delta = json!({ "stop_reason": reason(told), "stop_sequence": told.stop });
        vec![
            json!({ "type": "content_block_stop", "index": 0 }),
            json!({ "type": "message_delta", "delta": delta, "usage": usage }),
            json!({ "type": "message_stop" }),
        ]
    }
}
