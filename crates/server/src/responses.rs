//! `POST /v1/responses`: OpenAI's newer dialect: texts, and calls of functions; nothing is stored.

use crate::app::{App, UnderWay, unix_seconds};
use crate::call::Call;
use crate::error::ApiError;
use crate::fields::{Field, Fields, Kind, field, name_of};
use crate::heard::{Part, Said};
use crate::messages::one_answer;
use crate::prompt::Turn;
use crate::sampling::SAMPLING;
use crate::talk::{Asked, Dialect, Told, counts, talk};
use crate::tools::{Choice, Tools, Written};
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
    field(
        "text",
        Kind::Object,
        "{\"format\": text, json_object or json_schema}: what the answer must follow",
    ),
    field("store", Kind::Flag, "Nothing is ever stored"),
    field(
        "previous_response_id",
        Kind::Refused("nothing is stored; send the whole conversation in `input`"),
        "",
    ),
    field("background", Kind::Refused("nothing is stored"), ""),
    field(
        "tools",
        Kind::List,
        "Functions that the answer may call: {\"type\": \"function\", \"name\", \"description\", \"parameters\"}",
    ),
    field(
        "tool_choice",
        Kind::Any,
        "none, auto, required, or {\"type\": \"function\", \"name\"}; the last two are enforced",
    ),
    field("parallel_tool_calls", Kind::Flag, "Whether several calls may come; true where absent"),
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
    if let Some(format) = fields.value("text").and_then(|text| text.get("format")).cloned() {
        fields.set("response_format", format);
    }
    if fields.flag("store") {
        fields.warnings.push("store: nothing is stored".to_owned());
    }
    let turns = conversation(&fields)?;
    let tools = Tools::read(&app, &mut fields, Written::Responses)?;
    let max_tokens = fields.count("max_output_tokens").unwrap_or(app.engine.limit());
    let number = app.next_answer.fetch_add(1, Ordering::Relaxed);
    let shape = Shape {
        number: format!("{}_{number}", app.created),
        model: app.model.name.clone(),
        created: unix_seconds(),
        repeated: repeated(&fields, &tools),
        sequence: 0,
        items: 0,
        under_way: None,
    };
    let (arrived, stops) = ((arrived, under_way), Vec::new());
    let asked = Asked { arrived, fields, turns, tools, max_tokens, stops };
    talk(app, asked, shape).await
}

/// What the answer repeats of the request.
fn repeated(fields: &Fields, tools: &Tools) -> Value {
    let choice = match tools.choice() {
        Choice::None => "none".into(),
        Choice::Auto => "auto".into(),
        Choice::Required => "required".into(),
        Choice::Named(name) => json!({ "type": "function", "name": name }),
    };
    json!({
        "tools": fields.value("tools").cloned().unwrap_or_else(|| json!([])),
        "tool_choice": choice, "parallel_tool_calls": tools.parallel(),
        "instructions": fields.value("instructions"),
    })
}

fn conversation(fields: &Fields) -> Result<Vec<Turn>, ApiError> {
    let mut all = Vec::new();
    if let Some(text) = fields.text("instructions") {
        let value = json!({ "role": "system", "content": text });
        all.push(Turn { at: "instructions".to_owned(), value });
    }
    match fields.value("input") {
        Some(Value::String(text)) => {
            let value = json!({ "role": "user", "content": text });
            all.push(Turn { at: "input".to_owned(), value });
        }
        Some(Value::Array(list)) => {
            for (i, item) in list.iter().enumerate() {
                translate(format!("input[{i}]"), item, &mut all)?;
            }
        }
        found => {
            let found = found.map_or("none", name_of);
            let message = format!("input: found {found}, expected a text or a list of messages");
            return Err(ApiError::field("input", message));
        }
    }
    Ok(all)
}

/// One item of this dialect as a message of the chat: calls belong to the assistant's message.
fn translate(at: String, item: &Value, all: &mut Vec<Turn>) -> Result<(), ApiError> {
    let text = |name: &str| {
        item.get(name).and_then(Value::as_str).ok_or_else(|| {
            ApiError::field(format!("{at}.{name}"), format!("{at}.{name}: expected a text"))
        })
    };
    match item.get("type").and_then(Value::as_str) {
        None | Some("message") => all.push(Turn { at, value: item.clone() }),
        Some("function_call") => {
            let call = json!({
                "id": text("call_id")?, "type": "function",
                "function": { "name": text("name")?, "arguments": text("arguments")? },
            });
            let last = all.last_mut().filter(|last| last.value["role"] == "assistant");
            match last.and_then(|last| last.value.as_object_mut()) {
                Some(message) => {
                    let calls = message.entry("tool_calls").or_insert(json!([]));
                    calls.as_array_mut().into_iter().for_each(|calls| calls.push(call.clone()));
                }
                None => {
                    let value = json!({ "role": "assistant", "tool_calls": [call] });
                    all.push(Turn { at, value });
                }
            }
        }
        Some("function_call_output") => {
            let content = item.get("output").cloned().unwrap_or(Value::Null);
            let id = text("call_id")?;
            let value = json!({ "role": "tool", "tool_call_id": id, "content": content });
            all.push(Turn { at, value });
        }
        Some(other) => {
            let message = format!(
                "{at}.type: found {other:?}, expected message, function_call or function_call_output"
            );
            return Err(ApiError::field(format!("{at}.type"), message).code("unsupported"));
        }
    }
    Ok(())
}

/// How much of an item there is.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Begun,
    Whole,
    /// The answer ended before it did.
    CutOff,
}

fn is_whole(told: &Told) -> bool {
    matches!(told.finish, Some(Finish::Eos | Finish::Stop))
}

struct Shape {
    number: String,
    model: String,
    created: u64,
    repeated: Value,
    /// Numbers the pieces.
    sequence: u64,
    /// Items that a stream has begun.
    items: usize,
    /// The item under way.
    under_way: Option<Said>,
}

impl Shape {
    /// An item of the output, numbered.
    fn item(&self, number: usize, said: &Said, state: State) -> Value {
        let status = match (state, said) {
            (State::Begun, _) => "in_progress",
            (State::CutOff, _) => "incomplete",
            (_, Said::Call(called)) if called.broken.is_some() => "incomplete",
            (State::Whole, _) => "completed",
        };
        let done = state != State::Begun;
        match said {
            Said::Text(text) => {
                let content: Vec<Value> = done.then(|| self::part(text)).into_iter().collect();
                json!({
                    "id": format!("msg_{}_{number}", self.number), "type": "message",
                    "role": "assistant", "status": status, "content": content,
                })
            }
            Said::Call(called) => json!({
                "id": format!("fc_{}_{number}", self.number), "type": "function_call",
                "call_id": format!("call_{}", called.id), "name": called.name, "status": status,
                "arguments": if done { called.arguments.as_str() } else { "" },
            }),
        }
    }

    fn response(&self, status: &str, output: Value, usage: Value) -> Value {
        let mut response = json!({
            "id": format!("resp_{}", self.number), "object": "response", "created_at": self.created,
            "model": self.model, "status": status, "output": output, "usage": usage,
            "error": null, "incomplete_details": null, "store": false,
        });
        for (key, value) in self.repeated.as_object().into_iter().flatten() {
            response[key] = value.clone();
        }
        response
    }

    fn ended(&self, told: &Told, said: &[Said], call: &Call) -> Value {
        let (read, cached, written) = counts(call);
        let usage = json!({
            "input_tokens": read, "input_tokens_details": { "cached_tokens": cached },
            "output_tokens": written, "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": read + written,
        });
        let whole = is_whole(told);
        let status = if whole { "completed" } else { "incomplete" };
        let last = said.len().saturating_sub(1);
        let state = |i: usize| if i == last && !whole { State::CutOff } else { State::Whole };
        let items = said.iter().enumerate().map(|(i, one)| self.item(i, one, state(i))).collect();
        let mut response = self.response(status, items, usage);
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

    /// Begins an item.
    fn begin(&mut self, said: Said) -> Vec<Value> {
        let (at, item) = (self.items, self.item(self.items, &said, State::Begun));
        self.items += 1;
        let added = json!({ "output_index": at, "item": item });
        let mut pieces = vec![self.piece("response.output_item.added", added)];
        if let Said::Text(_) = said {
            let mut place = self.place();
            place["part"] = part("");
            pieces.push(self.piece("response.content_part.added", place));
        }
        self.under_way = Some(said);
        pieces
    }

    /// Where a piece of the item under way belongs.
    fn place(&self) -> Value {
        let at = self.items.saturating_sub(1);
        match self.under_way {
            Some(Said::Call(_)) => {
                json!({ "item_id": format!("fc_{}_{at}", self.number), "output_index": at })
            }
            _ => {
                let id = format!("msg_{}_{at}", self.number);
                json!({ "item_id": id, "output_index": at, "content_index": 0 })
            }
        }
    }

    /// Ends the item under way, if there is one.
    fn end(&mut self, state: State) -> Vec<Value> {
        let (mut first, mut second) = (self.place(), self.place());
        let Some(said) = self.under_way.take() else { return Vec::new() };
        let mut pieces = match &said {
            Said::Text(text) => {
                first["text"] = text.as_str().into();
                first["logprobs"] = json!([]);
                second["part"] = part(text);
                vec![
                    self.piece("response.output_text.done", first),
                    self.piece("response.content_part.done", second),
                ]
            }
            Said::Call(called) => {
                first["name"] = called.name.as_str().into();
                first["arguments"] = called.arguments.as_str().into();
                vec![self.piece("response.function_call_arguments.done", first)]
            }
        };
        let at = self.items.saturating_sub(1);
        let done = json!({ "output_index": at, "item": self.item(at, &said, state) });
        pieces.push(self.piece("response.output_item.done", done));
        pieces
    }
}

fn part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [] })
}

impl Dialect for Shape {
    fn name(&self) -> &str {
        &self.number
    }

    fn whole(&self, told: &Told, call: &Call) -> Value {
        self.ended(told, &told.whole(), call)
    }

    fn open(&mut self, _call: &Call) -> Vec<Value> {
        let response = self.response("in_progress", json!([]), Value::Null);
        vec![
            self.piece("response.created", json!({ "response": response.clone() })),
            self.piece("response.in_progress", json!({ "response": response })),
        ]
    }

    fn part(&mut self, part: &Part) -> Vec<Value> {
        let mut pieces = Vec::new();
        if let (Part::Text(_), Some(Said::Call(_)) | None) | (Part::Begin(_), _) =
            (part, &self.under_way)
        {
            pieces.extend(self.end(State::Whole));
            pieces.extend(self.begin(match part {
                Part::Begin(called) => Said::Call(called.clone()),
                _ => Said::Text(String::new()),
            }));
        }
        let mut place = self.place();
        match (part, &mut self.under_way) {
            (Part::Text(text), Some(Said::Text(all))) => {
                all.push_str(text);
                place["delta"] = text.as_str().into();
                place["logprobs"] = json!([]);
                pieces.push(self.piece("response.output_text.delta", place));
            }
            (Part::Arguments(more), Some(Said::Call(called))) => {
                called.arguments.push_str(more);
                place["delta"] = more.as_str().into();
                pieces.push(self.piece("response.function_call_arguments.delta", place));
            }
            (Part::Broken(text), Some(Said::Call(called))) => {
                called.broken = Some(text.clone());
                pieces.extend(self.end(State::Whole));
            }
            (Part::End, Some(Said::Call(_))) => pieces.extend(self.end(State::Whole)),
            _ => {}
        }
        pieces
    }

    fn error(&mut self, error: &ApiError) -> Value {
        let told = json!({ "code": error.code, "message": error.message, "param": error.param });
        self.piece("error", told)
    }

    fn close(&mut self, told: &Told, call: &Call) -> Vec<Value> {
        let mut pieces = match self.items {
            0 => self.begin(Said::Text(String::new())),
            _ => Vec::new(),
        };
        pieces.extend(self.end(if is_whole(told) { State::Whole } else { State::CutOff }));
        // What was sent stands.
        let said = if told.said.is_empty() { told.whole() } else { told.said.clone() };
        let response = self.ended(told, &said, call);
        let kind = format!("response.{}", response["status"].as_str().unwrap_or("completed"));
        pieces.push(self.piece(&kind, json!({ "response": response })));
        pieces
    }
}
