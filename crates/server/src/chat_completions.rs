//! `POST /v1/chat/completions`.

use crate::answer::{Pieces, stream, whole};
use crate::app::{App, UnderWay, unix_seconds};
use crate::call::{Call, Update, reason};
use crate::completions::{include_usage, label};
use crate::error::ApiError;
use crate::fields::{Field, Fields, Kind, field};
use crate::prompt;
use crate::receipt;
use crate::sampling::{SAMPLING, Sampling};
use axum::Json;
use axum::response::{IntoResponse, Response};
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
    field("tools", Kind::Refused("calls of tools are not supported"), ""),
    field("tool_choice", Kind::Refused("calls of tools are not supported"), ""),
    field("functions", Kind::Refused("calls of functions are not supported"), ""),
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
    let sampling = Sampling::read(&app, &mut fields)?;
    let ids = block_in_place(|| prompt::conversation(&app, fields.value("messages"), true))?;
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
}

#[derive(Clone, Default)]
struct Choice {
    text: String,
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

    fn whole(self, call: &Call, updates: Vec<Update>) -> Value {
        let mut choices = vec![Choice::default(); call.choices()];
        for update in updates {
            match update {
                Update::Token(at, chosen) => {
                    choices[at].text.push_str(&chosen.text);
                    choices[at].finish = chosen.finish.map(reason);
                    if self.logprobs {
                        choices[at].logprobs.push(self.logprob(&chosen));
                    }
                }
                Update::Ended(at, finish) => choices[at].finish = Some(reason(finish)),
                Update::Prompt(..) | Update::Pooled(..) => {}
            }
        }
        let choice = |(index, choice): (usize, Choice)| {
            let logprobs = match self.logprobs {
                true => json!({ "content": choice.logprobs, "refusal": null }),
                false => Value::Null,
            };
            json!({
                "index": index, "finish_reason": choice.finish, "logprobs": logprobs,
                "message": { "role": "assistant", "content": choice.text, "refusal": null },
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
        match update {
            Update::Token(at, chosen) => {
                let finish = chosen.finish.map(reason);
                if chosen.text.is_empty() && finish.is_none() && !self.logprobs {
                    return Vec::new();
                }
                let logprobs = match self.logprobs {
                    true => json!({ "content": [self.logprob(&chosen)], "refusal": null }),
                    false => Value::Null,
                };
                let delta = match chosen.text.is_empty() {
                    true => json!({}),
                    false => json!({ "content": chosen.text }),
                };
                vec![self.piece(at, &delta, logprobs, finish)]
            }
            Update::Ended(at, finish) => {
                vec![self.piece(at, &json!({}), Value::Null, Some(reason(finish)))]
            }
            Update::Prompt(..) | Update::Pooled(..) => Vec::new(),
        }
    }

    fn close(&mut self, call: &Call) -> Vec<Value> {
        let frame = self.frame("chat.completion.chunk", Vec::new());
        receipt::pieces(frame, self.include_usage, self.receipt.take(), call)
    }
}
