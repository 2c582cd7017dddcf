//! `POST /v1/chat/completions`.

use crate::answer::{Pieces, stream, whole};
use crate::app::{App, UnderWay, unix_seconds};
use crate::call::{Call, Update, reason};
use crate::completions::{include_usage, label};
use crate::error::ApiError;
use crate::fields::{Field, Fields, Kind, field};
use crate::heard::{Called, Listener, Part, Said, add, whole as as_whole};
use crate::prompt;
use crate::receipt;
use crate::sampling::{SAMPLING, Sampling};
use crate::tools::{Tools, Written};
use axum::Json;
use axum::response::{IntoResponse, Response};
use engine::Finish;
use engine::serving::{Asked, Chosen};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::task::block_in_place;

/// Fields of their own.
pub const CHAT: &[Field] = &[
    field("messages", Kind::List, "The conversation: objects with `role` and `content`"),
    field(
        "max_tokens",
        Kind::Integer(0, i64::MAX),
        "New tokens an answer, at most; what the context leaves where absent",
    ),
    field("max_completion_tokens", Kind::Integer(0, i64::MAX), "The newer name of `max_tokens`"),
    field("logprobs", Kind::Flag, "Send the log-probability of each token"),
    field(
        "top_logprobs",
        Kind::Integer(0, 20),
        "With `logprobs`: so many best tokens at each place",
    ),
    field(
        "tools",
        Kind::List,
        "Functions that the answer may call: {\"type\": \"function\", \"function\": {\"name\", \"description\", \"parameters\"}}",
    ),
    field(
        "tool_choice",
        Kind::Any,
        "none, auto, required, or {\"type\": \"function\", \"function\": {\"name\"}}; the last two are enforced",
    ),
    field("parallel_tool_calls", Kind::Flag, "Whether several calls may come; true where absent"),
    field("functions", Kind::Refused("the older name; use `tools`"), ""),
    field("function_call", Kind::Refused("the older name; use `tool_choice`"), ""),
    field("audio", Kind::Refused("this model writes text only"), ""),
];

/// Answers a body.
///
/// # Errors
/// What cannot be answered.
pub async fn chat_completions(
    app: Arc<App>,
    under_way: UnderWay,
    arrived: Instant,
    body: &[u8],
) -> Result<Response, ApiError> {
    let mut fields = Fields::read(body, &[SAMPLING, CHAT])?;
    let tools = Tools::read(&app, &mut fields, Written::Chat)?;
    let sampling = Sampling::read(&app, &mut fields)?.with_tools(&app, &tools)?;
    let turns = prompt::turns(fields.value("messages"))?;
    let ids = block_in_place(|| prompt::conversation(&app, &turns, &tools.told(), true))?;
    let include_usage = include_usage(&fields)?;
    let logprobs = fields.flag("logprobs");
    let top = fields.count("top_logprobs");
    if top.is_some_and(|top| top > 0) && !logprobs {
        return Err(ApiError::field("top_logprobs", "top_logprobs: only with `logprobs`: true"));
    }
    let newer = fields.count("max_completion_tokens");
    let max_tokens = newer.or(fields.count("max_tokens")).unwrap_or(app.engine.limit());
    let asked = block_in_place(|| sampling.asked(&app, ids, sampling.n, max_tokens))?;
    let asked = Asked { top: top.unwrap_or(0), ..asked };
    let all = vec![asked];
    let receipt = fields.flag("receipt").then(|| receipt::request(&app, &sampling, &all));
    let mut call = Call::start(&app, under_way, arrived, all)?;
    let number = app.next_answer.fetch_add(1, Ordering::Relaxed);
    let shape = Shape {
        id: format!("chatcmpl-{}-{number}", app.created),
        created: unix_seconds(),
        logprobs,
        include_usage,
        receipt,
        warnings: fields.warnings.clone(),
        heard: vec![Heard { listener: tools.listener(&app), calls: 0 }; call.choices()],
        app,
    };
    if fields.flag("stream") {
        return Ok(stream(call, shape));
    }
    let updates = whole(&mut call).await?;
    Ok(Json(shape.whole(&call, updates)).into_response())
}

struct Shape {
    app: Arc<App>,
    id: String,
    created: u64,
    logprobs: bool,
    include_usage: bool,
    receipt: Option<Value>,
    warnings: Vec<String>,
    heard: Vec<Heard>,
}

/// What a choice has said so far.
#[derive(Clone)]
struct Heard {
    listener: Listener,
    calls: usize,
}

#[derive(Clone, Default)]
struct Choice {
    said: Vec<Said>,
    finish: Option<&'static str>,
    logprobs: Vec<Value>,
}

impl Shape {
    fn frame(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created,
            "model": self.app.model.name, "choices": choices,
        })
    }

    fn piece(&self, at: usize, delta: &Value, logprobs: Value, finish: Option<&str>) -> Value {
        let choice = json!({
            "index": at, "delta": delta, "logprobs": logprobs, "finish_reason": finish,
        });
        let mut piece = self.frame("chat.completion.chunk", vec![choice]);
        if self.include_usage {
            piece["usage"] = Value::Null;
        }
        piece
    }

    fn logprob(&self, chosen: &Chosen) -> Value {
        let tokenizer = &self.app.model.tokenizer;
        let told = |id: u32, logprob: f64| json!({ "token": label(tokenizer, id), "logprob": logprob, "bytes": tokenizer.token_bytes(id) });
        let mut own = told(chosen.choice.id, chosen.choice.logprob);
        own["sample_logprob"] = json!(chosen.choice.sample_logprob);
        own["top_logprobs"] = chosen.top.iter().map(|&(id, logprob)| told(id, logprob)).collect();
        own
    }

    /// What an update says, and why its choice ended.
    fn hear(&mut self, at: usize, update: &Update) -> (Vec<Part>, Option<&'static str>) {
        let name = format!("{} {at}", self.id);
        let listener = &mut self.heard[at].listener;
        let (parts, finish) = match update {
            Update::Token(_, chosen) => (listener.hear(chosen, &name), chosen.finish),
            Update::Ended(_, finish) => (listener.end(&name), Some(*finish)),
            Update::Prompt(..) | Update::Pooled(..) => (Vec::new(), None),
        };
        let finish = finish.map(|finish| match finish {
            Finish::Eos | Finish::Stop if listener.has_called() => "tool_calls",
            finish => reason(finish),
        });
        (parts, finish)
    }

    fn whole(mut self, call: &Call, updates: Vec<Update>) -> Value {
        let mut choices = vec![Choice::default(); call.choices()];
        for update in updates {
            let (Update::Token(at, _) | Update::Ended(at, _)) = update else { continue };
            let (parts, finish) = self.hear(at, &update);
            let choice = &mut choices[at];
            choice.finish = finish;
            parts.iter().for_each(|part| add(&mut choice.said, part));
            if let Update::Token(_, chosen) = &update
                && self.logprobs
            {
                choices[at].logprobs.push(self.logprob(chosen));
            }
        }
        for heard in &mut self.heard {
            self.warnings.extend(heard.listener.take_warnings());
        }
        let choice = |(index, choice): (usize, Choice)| {
            let logprobs = match self.logprobs {
                true => json!({ "content": choice.logprobs, "refusal": null }),
                false => Value::Null,
            };
            let (mut text, mut calls) = (String::new(), Vec::new());
            for one in as_whole(&choice.said) {
                match one {
                    Said::Text(more) => text.push_str(&more),
                    Said::Call(called) => calls.push(told(&called)),
                }
            }
            let silent = text.is_empty() && !calls.is_empty();
            let content = if silent { Value::Null } else { text.into() };
            let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
            if !calls.is_empty() {
                message["tool_calls"] = calls.into();
            }
            json!({
                "index": index, "finish_reason": choice.finish, "logprobs": logprobs,
                "message": message,
            })
        };
        let choices = choices.into_iter().enumerate().map(choice).collect();
        let mut body = self.frame("chat.completion", choices);
        body["usage"] = call.usage();
        receipt::finish(&mut body, self.receipt, &self.warnings, call);
        body
    }
}

impl Pieces for Shape {
    fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn open(&mut self, call: &Call) -> Vec<Value> {
        let role = json!({ "role": "assistant", "content": "" });
        (0..call.choices()).map(|at| self.piece(at, &role, Value::Null, None)).collect()
    }

    fn update(&mut self, update: Update) -> Vec<Value> {
        let (Update::Token(at, _) | Update::Ended(at, _)) = update else { return Vec::new() };
        let (parts, finish) = self.hear(at, &update);
        let mut deltas: Vec<Value> = Vec::new();
        for part in parts {
            let number = self.heard[at].calls.saturating_sub(1);
            let of_call = |call: Value| json!({ "tool_calls": [call] });
            match part {
                Part::Text(text) => deltas.push(json!({ "content": text })),
                Part::Begin(called) => {
                    let mut head = told(&called);
                    head["index"] = self.heard[at].calls.into();
                    self.heard[at].calls += 1;
                    deltas.push(of_call(head));
                }
                Part::Arguments(more) => {
                    let more = json!({ "index": number, "function": { "arguments": more } });
                    deltas.push(of_call(more));
                }
                // What was sent stands; a warning tells the rest.
                Part::End | Part::Broken(_) => {}
            }
        }
        let mut logprobs = match &update {
            Update::Token(_, chosen) if self.logprobs => {
                json!({ "content": [self.logprob(chosen)], "refusal": null })
            }
            _ => Value::Null,
        };
        // An end, a log-probability or a warning is told even where no text came with it.
        let late = self.heard[at].listener.take_warnings();
        if deltas.is_empty() && (finish.is_some() || self.logprobs || !late.is_empty()) {
            deltas.push(json!({}));
        }
        let last = deltas.len().saturating_sub(1);
        let mut pieces = Vec::new();
        for (i, delta) in deltas.iter().enumerate() {
            let finish = finish.filter(|_| i == last);
            pieces.push(self.piece(at, delta, std::mem::take(&mut logprobs), finish));
        }
        if let Some(piece) = pieces.last_mut().filter(|_| !late.is_empty()) {
            piece["warnings"] = json!(late);
        }
        pieces
    }

    fn close(&mut self, call: &Call) -> Vec<Value> {
        let frame = self.frame("chat.completion.chunk", Vec::new());
        receipt::pieces(frame, self.include_usage, self.receipt.take(), call)
    }
}

/// A call, as far as it came.
fn told(called: &Called) -> Value {
    json!({
        "id": id(called), "type": "function",
        "function": { "name": called.name, "arguments": called.arguments },
    })
}

fn id(called: &Called) -> String {
    match called.id.len() {
        9 => called.id.clone(),
        _ => format!("call_{}", called.id),
    }
}
