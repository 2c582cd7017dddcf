//! One answer to a conversation, in the two other dialects that clients speak: `POST /v1/messages`
//! and `POST /v1/messages/count_tokens` (Anthropic's), `POST /v1/responses` (OpenAI's newer one,
//! nothing stored). Both are translated to the same conversation and back; see `messages.rs`
//! and `responses.rs` for the shapes.

use crate::answer::{Pieces, stream, whole};
use crate::app::{App, UnderWay};
use crate::call::{Call, Update};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::heard::{self, Listener, Part, Said};
use crate::prompt::{self, Turn};
use crate::receipt;
use crate::sampling::Sampling;
use crate::tools::Tools;
use axum::Json;
use axum::response::{IntoResponse, Response};
use engine::Finish;
use serde_json::Value;
use std::sync::Arc;
use std::time::Instant;
use tokio::task::block_in_place;

/// A dialect: the shapes of an answer, whole and in pieces.
pub trait Dialect: Send + 'static {
    /// The answer's name, which the ids of its calls follow from.
    fn name(&self) -> &str;
    /// The whole answer.
    fn whole(&self, told: &Told, call: &Call) -> Value;
    /// The pieces that come before anything is said.
    fn open(&mut self, call: &Call) -> Vec<Value>;
    /// The pieces of a part.
    fn part(&mut self, part: &Part) -> Vec<Value>;
    /// What ends a stream early.
    fn error(&mut self, error: &ApiError) -> Value {
        error.body()
    }
    /// The pieces that end a stream.
    fn close(&mut self, told: &Told, call: &Call) -> Vec<Value>;
}

/// An answer so far.
#[derive(Debug, Clone, Default)]
pub struct Told {
    /// What it said.
    pub said: Vec<Said>,
    /// Why it ended.
    pub finish: Option<Finish>,
    /// The stop text that came.
    pub stop: Option<String>,
    /// Fields without effect, and calls that did not hold.
    pub warnings: Vec<String>,
    stops: Vec<String>,
    listener: Listener,
}

impl Told {
    fn take(&mut self, update: Update, name: &str) -> Vec<Part> {
        let parts = match update {
            Update::Token(_, chosen) => {
                self.finish = chosen.finish;
                self.stop = chosen.stop.and_then(|at| self.stops.get(at).cloned());
                self.listener.hear(&chosen, name)
            }
            Update::Ended(_, finish) => {
                self.finish = Some(finish);
                self.listener.end(name)
            }
            Update::Prompt(..) | Update::Pooled(..) => Vec::new(),
        };
        parts.iter().for_each(|part| heard::add(&mut self.said, part));
        self.warnings.extend(self.listener.take_warnings());
        parts
    }

    /// What was said, where all of it is known: one text at least.
    #[must_use]
    pub fn whole(&self) -> Vec<Said> {
        match self.said.is_empty() {
            true => vec![Said::Text(String::new())],
            false => heard::whole(&self.said),
        }
    }

    /// Whether it ended with calls of tools.
    #[must_use]
    pub fn calls(&self) -> bool {
        self.listener.has_called() && matches!(self.finish, Some(Finish::Eos | Finish::Stop))
    }
}

/// A request in a dialect, translated.
pub struct Asked {
    /// When it came, and that it counts as under way.
    pub arrived: (Instant, UnderWay),
    /// The fields.
    pub fields: Fields,
    /// The conversation.
    pub turns: Vec<Turn>,
    /// What the answer may call.
    pub tools: Tools,
    /// New tokens at most.
    pub max_tokens: usize,
    /// Texts that end the answer, beside the field `stop`.
    pub stops: Vec<String>,
}

/// Answers in a dialect.
///
/// # Errors
/// What cannot be answered.
pub async fn talk(
    app: Arc<App>,
    mut asked: Asked,
    dialect: impl Dialect,
) -> Result<Response, ApiError> {
    let tools = &asked.tools;
    let mut sampling = Sampling::read(&app, &mut asked.fields)?.with_tools(&app, tools)?;
    sampling.stops.extend(asked.stops);
    if sampling.stops.iter().any(String::is_empty) {
        return Err(ApiError::field("stop_sequences", "stop_sequences: found an empty text"));
    }
    let ids = block_in_place(|| prompt::conversation(&app, &asked.turns, &tools.told(), true))?;
    let request = block_in_place(|| sampling.asked(&app, ids, 1, asked.max_tokens))?;
    let (arrived, under_way) = asked.arrived;
    let all = vec![request];
    let receipt = asked.fields.flag("receipt").then(|| receipt::request(&app, &sampling, &all));
    let mut call = Call::start(&app, under_way, arrived, all)?;
    let warnings = asked.fields.warnings.clone();
    let listener = tools.listener(&app);
    let mut told = Told { warnings, stops: sampling.stops, listener, ..Told::default() };
    if asked.fields.flag("stream") {
        let first = told.warnings.clone();
        return Ok(stream(call, Streamed { told, dialect, first, receipt }));
    }
    for update in whole(&mut call).await? {
        let _ = told.take(update, dialect.name());
    }
    let mut body = dialect.whole(&told, &call);
    receipt::finish(&mut body, receipt, &told.warnings, &call);
    Ok(Json(body).into_response())
}

struct Streamed<D> {
    told: Told,
    dialect: D,
    /// Warnings that the first piece tells.
    first: Vec<String>,
    receipt: Option<Value>,
}

impl<D: Dialect> Pieces for Streamed<D> {
    fn open(&mut self, call: &Call) -> Vec<Value> {
        self.dialect.open(call)
    }

    fn update(&mut self, update: Update) -> Vec<Value> {
        let parts = self.told.take(update, self.dialect.name());
        parts.iter().flat_map(|part| self.dialect.part(part)).collect()
    }

    fn close(&mut self, call: &Call) -> Vec<Value> {
        let mut pieces = self.dialect.close(&self.told, call);
        let late = &self.told.warnings[self.first.len()..];
        if let Some(last) = pieces.last_mut() {
            receipt::finish(last, self.receipt.take(), late, call);
        }
        pieces
    }

    fn error(&mut self, error: &ApiError) -> Value {
        self.dialect.error(error)
    }

    fn event(&self, piece: &Value) -> Option<String> {
        piece["type"].as_str().map(str::to_owned)
    }

    fn warnings(&self) -> &[String] {
        &self.first
    }

    fn last(&self) -> Option<&'static str> {
        None
    }
}

/// The counts of a call: read, of those cached, written.
#[must_use]
pub fn counts(call: &Call) -> (u64, u64, u64) {
    let usage = call.usage();
    let count = |path: &str| usage.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    (
        count("/prompt_tokens"),
        count("/prompt_tokens_details/cached_tokens"),
        count("/completion_tokens"),
    )
}
