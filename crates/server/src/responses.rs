//! `POST /v1/responses`: OpenAI's newer dialect, text only; nothing is stored.

use crate::app::{App, UnderWay, unix_seconds};
use crate::call::Call;
use crate::error::ApiError;
use crate::fields::{Field, Fields, Kind, field, name_of};
use crate::messages::one_answer;
use crate::sampling::SAMPLING;
use crate::talk::{Asked, Dialect, Told, counts, talk};
use axum::response::Response;
use engine::Finish;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Fields of their own.
pub const RESPONSES: &[Field] = &[
    field("input", Kind::Any, "A text, or a list of messages"),
    field("instructions", Kind::Text, "What the model is told first"),
    field(
        "max_output_tokens",
        Kind::Integer(1, i64::MAX),
        "New tokens, at most; what the context leaves where absent",
    ),
    field("store", Kind::Flag, "Nothing is ever stored"),
    field(
        "previous_response_id",
        Kind::Refused("nothing is stored; send the whole conversation in `input`"),
        "",
    ),
    field("background", Kind::Refused("nothing is stored"), ""),
    field("tools", Kind::Refused("calls of tools are not supported"), ""),
];

/// Answers a body.
///
/// # Errors
/// What cannot be answered.
pub async fn responses(
    app: Arc<App>,
    under_way: UnderWay,
    arrived: Instant,
    body: &[u8],
) -> Result<Response, ApiError> {
    let mut fields = Fields::read(body, &[RESPONSES, SAMPLING])?;
    one_answer(&fields)?;
    if fields.flag("store") {
        fields.warnings.push("store: nothing is stored".to_owned());
    }
    let messages = conversation(&fields)?;
    let max_tokens = fields.count("max_output_tokens").unwrap_or(app.engine.limit());
    let number = app.next_answer.fetch_add(1, Ordering::Relaxed);
    let shape = Shape {
        number: format!("{}_{number}", app.created),
        model: app.model.name.clone(),
        created: unix_seconds(),
        sequence: 0,
    };
    let asked =
        Asked { arrived: (arrived, under_way), fields, messages, max_tokens, stops: Vec::new() };
    talk(app, asked, shape).await
}

fn conversation(fields: &Fields) -> Result<Value, ApiError> {
    let mut all = Vec::new();
    if let Some(text) = fields.text("instructions") {
        all.push(json!({ "role": "system", "content": text }));
    }
    match fields.value("input") {
        Some(Value::String(text)) => all.push(json!({ "role": "user", "content": text })),
        Some(Value::Array(list)) => all.extend(list.iter().cloned()),
        found => {
            let found = found.map_or("none", name_of);
            let message = format!("input: found {found}, expected a text or a list of messages");
            return Err(ApiError::field("input", message));
        }
    }
    Ok(Value::Array(all))
}

struct Shape {
    number: String,
    model: String,
    created: u64,
    /// Numbers the pieces.
    sequence: u64,
}

impl Shape {
    fn item(&self, text: Option<&str>) -> Value {
        let content = text.map(part).into_iter().collect::<Vec<_>>();
        let status = if text.is_some() { "completed" } else { "in_progress" };
        json!({
            "id": format!("msg_{}", self.number), "type": "message", "role": "assistant",
            "status": status, "content": content,
        })
    }

    fn response(&self, status: &str, output: Value, usage: Value) -> Value {
        json!({
            "id": format!("resp_{}", self.number), "object": "response", "created_at": self.created,
            "model": self.model, "status": status, "output": output, "usage": usage,
            "error": null, "incomplete_details": null, "store": false,
            "parallel_tool_calls": false, "tool_choice": "none", "tools": [],
        })
    }

    fn ended(&self, told: &Told, call: &Call) -> Value {
        let (read, cached, written) = counts(call);
        let total = read.as_u64().unwrap_or(0) + written.as_u64().unwrap_or(0);
        let usage = json!({
            "input_tokens": read, "input_tokens_details": { "cached_tokens": cached },
            "output_tokens": written, "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": total,
        });
        let whole = matches!(told.finish, Some(Finish::Eos | Finish::Stop));
        let status = if whole { "completed" } else { "incomplete" };
        let mut response = self.response(status, json!([self.item(Some(&told.text))]), usage);
        if !whole {
            response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        response
    }

    fn piece(&mut self, kind: &str, more: Value) -> Value {
        let mut piece = more;
        piece["type"] = kind.into();
        piece["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        piece
    }

    /// Where a piece of text belongs.
    fn place(&self) -> Value {
        json!({ "item_id": format!("msg_{}", self.number), "output_index": 0, "content_index": 0 })
    }
}

fn part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [] })
}

impl Dialect for Shape {
    fn whole(&self, told: &Told, call: &Call) -> Value {
        self.ended(told, call)
    }

    fn open(&mut self, _call: &Call) -> Vec<Value> {
        let response = self.response("in_progress", json!([]), Value::Null);
        let item = json!({ "output_index": 0, "item": self.item(None) });
        let mut place = self.place();
        place["part"] = part("");
        vec![
            self.piece("response.created", json!({ "response": response.clone() })),
            self.piece("response.in_progress", json!({ "response": response })),
            self.piece("response.output_item.added", item),
            self.piece("response.content_part.added", place),
        ]
    }

    fn text(&mut self, text: &str) -> Value {
        let mut place = self.place();
        place["delta"] = text.into();
        place["logprobs"] = json!([]);
        self.piece("response.output_text.delta", place)
    }

    fn close(&mut self, told: &Told, call: &Call) -> Vec<Value> {
        let (mut text, mut whole) = (self.place(), self.place());
        text["text"] = told.text.clone().into();
        text["logprobs"] = json!([]);
        whole["part"] = part(&told.text);
        let item = json!({ "output_index": 0, "item": self.item(Some(&told.text)) });
        let response = self.ended(told, call);
        let kind = format!("response.{}", response["status"].as_str().unwrap_or("completed"));
        vec![
            self.piece("response.output_text.done", text),
            self.piece("response.content_part.done", whole),
            self.piece("response.output_item.done", item),
            self.piece(&kind, json!({ "response": response })),
        ]
    }
}
