//! `POST /v1/completions`.

use crate::answer::{Pieces, stream, whole};
use crate::app::{App, UnderWay, unix_seconds};
use crate::call::{Call, Update, reason};
use crate::error::ApiError;
use crate::fields::{Field, Fields, Kind, field};
use crate::prompt::{self, Given};
use crate::receipt;
use crate::sampling::{SAMPLING, Sampling};
use axum::Json;
use axum::response::{IntoResponse, Response};
use engine::serving::{Asked, Chosen, PromptToken};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokenizer::Tokenizer;
use tokio::task::block_in_place;

/// Fields of their own.
pub const COMPLETIONS: &[Field] = &[
    field(
        "prompt",
        Kind::Any,
        "A text, a list of texts, a list of token ids, or a list of such lists",
    ),
    field(
        "max_tokens",
        Kind::Integer(0, i64::MAX),
        "New tokens an answer, at most; 16 where absent",
    ),
    field(
        "echo",
        Kind::Flag,
        "Begin the answer with the prompt; with `logprobs` its tokens are scored",
    ),
    field(
        "logprobs",
        Kind::Integer(0, 20),
        "Log-probabilities of the tokens, and of so many best ones",
    ),
    field(
        "best_of",
        Kind::Integer(1, 128),
        "Answers to draw; the `n` of the best mean log-probability are sent",
    ),
    field("suffix", Kind::Refused("there is no infilling; put what matters into the prompt"), ""),
];

/// Answers a body.
///
/// # Errors
/// What cannot be answered.
pub async fn completions(
    app: Arc<App>,
    under_way: UnderWay,
    arrived: Instant,
    body: &[u8],
) -> Result<Response, ApiError> {
    let mut fields = Fields::read(body, &[SAMPLING, COMPLETIONS])?;
    let sampling = Sampling::read(&app, &mut fields)?;
    let prompts = block_in_place(|| prompt::prompts(&app, "prompt", fields.value("prompt")))?;
    let streams = fields.flag("stream");
    let include_usage = include_usage(&fields)?;
    let best_of = fields.count("best_of").unwrap_or(sampling.n);
    if best_of < sampling.n || (streams && best_of > sampling.n) {
        let message = "best_of: expected `n` or more, and `n` itself with `stream`: what is best is known at the end";
        return Err(ApiError::field("best_of", message));
    }
    let (echo, logprobs) = (fields.flag("echo"), fields.count("logprobs"));
    let max_tokens = fields.count("max_tokens").unwrap_or(16);
    let asked = |given: &Given| {
        let asked = sampling.asked(&app, given.ids.clone(), best_of, max_tokens)?;
        let score_prompt = logprobs.filter(|_| echo);
        Ok(Asked { top: logprobs.unwrap_or(0), score_prompt, ..asked })
    };
    let all = block_in_place(|| prompts.iter().map(asked).collect::<Result<Vec<_>, ApiError>>())?;
    let receipt = fields.flag("receipt").then(|| receipt::request(&app, &sampling, &all));
    let mut call = Call::start(&app, under_way, arrived, all)?;
    let shape = Shape {
        id: format!("cmpl-{}-{}", app.created, app.next_answer.fetch_add(1, Ordering::Relaxed)),
        created: unix_seconds(),
        echo,
        logprobs: logprobs.is_some(),
        include_usage,
        best_of,
        choices: Vec::new(),
        receipt,
        warnings: fields.warnings,
        prompts,
        app,
    };
    if streams {
        return Ok(stream(call, shape));
    }
    let updates = whole(&mut call).await?;
    Ok(Json(shape.whole(&call, updates, sampling.n)).into_response())
}

/// Whether a stream ends with counts. Options without a stream are a mistake.
///
/// # Errors
/// The field at fault.
pub fn include_usage(fields: &Fields) -> Result<bool, ApiError> {
    let Some(options) = fields.value("stream_options") else { return Ok(false) };
    if !fields.flag("stream") {
        return Err(ApiError::field("stream_options", "stream_options: only with `stream`: true"));
    }
    match options.get("include_usage") {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(wanted)) => Ok(*wanted),
        Some(_) => Err(ApiError::field(
            "stream_options.include_usage",
            "stream_options.include_usage: expected true or false",
        )),
    }
}

#[derive(Clone, Default)]
struct Choice {
    text: String,
    finish: Option<&'static str>,
    sum: f64,
    tokens: usize,
    logprobs: Logprobs,
}

#[derive(Clone, Default)]
struct Logprobs {
    tokens: Vec<String>,
    logprobs: Vec<Option<f64>>,
    top: Vec<Option<Value>>,
    offsets: Vec<usize>,
    /// Characters of all tokens so far.
    length: usize,
}

impl Logprobs {
    fn push(&mut self, tokenizer: &Tokenizer, id: u32, logprob: Option<f64>, top: &[(u32, f64)]) {
        let text = label(tokenizer, id);
        self.offsets.push(self.length);
        self.length += text.chars().count();
        self.tokens.push(text);
        self.logprobs.push(logprob);
        let object = |top: &[(u32, f64)]| -> Value {
            top.iter().map(|&(id, logprob)| (label(tokenizer, id), json!(logprob))).collect()
        };
        self.top.push(logprob.map(|_| object(top)));
    }

    fn value(&self) -> Value {
        json!({
            "tokens": self.tokens, "token_logprobs": self.logprobs,
            "top_logprobs": self.top, "text_offset": self.offsets,
        })
    }

    /// What came since the last time.
    fn take(&mut self) -> Value {
        let value = self.value();
        let length = self.length;
        *self = Self { length, ..Self::default() };
        value
    }
}

/// A token as a text of its own; one without text goes by its name.
#[must_use]
pub fn label(tokenizer: &Tokenizer, id: u32) -> String {
    let bytes = tokenizer.token_bytes(id);
    if bytes.is_empty() {
        return tokenizer.token(id).unwrap_or_else(|| format!("#{id}"));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

struct Shape {
    app: Arc<App>,
    id: String,
    created: u64,
    prompts: Vec<Given>,
    echo: bool,
    logprobs: bool,
    include_usage: bool,
    best_of: usize,
    choices: Vec<Choice>,
    receipt: Option<Value>,
    warnings: Vec<String>,
}

impl Shape {
    fn frame(&self, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id, "object": "text_completion", "created": self.created,
            "model": self.app.model.name, "choices": choices,
        })
    }

    fn begin(&mut self, call: &Call) {
        self.choices = vec![Choice::default(); call.choices()];
        if self.echo {
            for (i, choice) in self.choices.iter_mut().enumerate() {
                choice.text.clone_from(&self.prompts[i / self.best_of].text);
            }
        }
    }

    fn take(&mut self, update: Update) -> Option<usize> {
        match update {
            Update::Prompt(job, tokens) => {
                self.score(job, &tokens);
                None
            }
            Update::Token(at, chosen) => {
                self.push(at, &chosen);
                Some(at)
            }
            Update::Pooled(..) => None,
            Update::Ended(at, finish) => {
                self.choices[at].finish = Some(reason(finish));
                Some(at)
            }
        }
    }

    fn score(&mut self, job: usize, tokens: &[PromptToken]) {
        let tokenizer = &self.app.model.tokenizer;
        let mut all = Logprobs::default();
        for (id, token) in self.prompts[job].ids.iter().zip(tokens) {
            all.push(tokenizer, *id, token.scored.map(|s| finite(s.logprob)), &token.top);
        }
        for choice in &mut self.choices[job * self.best_of..(job + 1) * self.best_of] {
            // What the choice has of its own comes behind the prompt.
            let mut own = std::mem::replace(&mut choice.logprobs, all.clone());
            let shift = choice.logprobs.length;
            choice.logprobs.tokens.append(&mut own.tokens);
            choice.logprobs.logprobs.append(&mut own.logprobs);
            choice.logprobs.top.append(&mut own.top);
            choice.logprobs.offsets.extend(own.offsets.iter().map(|at| at + shift));
            choice.logprobs.length += own.length;
        }
    }

    fn push(&mut self, at: usize, chosen: &Chosen) {
        let choice = &mut self.choices[at];
        choice.text.push_str(&chosen.text);
        choice.sum += chosen.choice.logprob;
        choice.tokens += 1;
        choice.finish = chosen.finish.map(reason);
        if self.logprobs {
            let (tokenizer, logprob) = (&self.app.model.tokenizer, chosen.choice.logprob);
            choice.logprobs.push(tokenizer, chosen.choice.id, Some(logprob), &chosen.top);
        }
    }

    fn whole(mut self, call: &Call, updates: Vec<Update>, n: usize) -> Value {
        self.begin(call);
        for update in updates {
            let _ = self.take(update);
        }
        let mut sent = Vec::new();
        for group in self.choices.chunks(self.best_of) {
            let mut order: Vec<&Choice> = group.iter().collect();
            if self.best_of > n {
                let mean = |choice: &Choice| choice.sum / choice.tokens.max(1) as f64;
                order.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
            }
            sent.extend(order.into_iter().take(n).cloned());
        }
        let choice = |(index, choice): (usize, &Choice)| {
            json!({
                "index": index, "text": choice.text, "finish_reason": choice.finish,
                "logprobs": if self.logprobs { choice.logprobs.value() } else { Value::Null },
            })
        };
        let mut body = self.frame(sent.iter().enumerate().map(choice).collect());
        body["usage"] = call.usage();
        receipt::finish(&mut body, self.receipt, &self.warnings, call);
        body
    }
}

/// JSON has no infinity; what the model holds impossible is as low as a number can say.
#[must_use]
pub fn finite(logprob: f64) -> f64 {
    logprob.max(-9999.0)
}

impl Pieces for Shape {
    fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn open(&mut self, call: &Call) -> Vec<Value> {
        self.begin(call);
        Vec::new()
    }

    fn update(&mut self, update: Update) -> Vec<Value> {
        let Some(at) = self.take(update) else { return Vec::new() };
        let choice = &mut self.choices[at];
        let text = std::mem::take(&mut choice.text);
        if text.is_empty() && choice.finish.is_none() && !self.logprobs {
            return Vec::new();
        }
        let logprobs = if self.logprobs { choice.logprobs.take() } else { Value::Null };
        let finish = choice.finish;
        let mut piece = self.frame(vec![json!({
            "index": at, "text": text, "logprobs": logprobs, "finish_reason": finish,
        })]);
        if self.include_usage {
            piece["usage"] = Value::Null;
        }
        vec![piece]
    }

    fn close(&mut self, call: &Call) -> Vec<Value> {
        receipt::pieces(self.frame(Vec::new()), self.include_usage, self.receipt.take(), call)
    }
}
