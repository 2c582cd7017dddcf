//! One answer to a conversation, in the two other dialects that clients speak: `POST /v1/messages`
//! and `POST /v1/messages/count_tokens` (Anthropic's), `POST /v1/responses` (OpenAI's newer one, text
//! only, nothing stored). Both are translated to the same conversation and back; see `messages.rs`
//! and `responses.rs` for the shapes.

use crate::answer::{Pieces, stream, whole};
use crate::app::{App, UnderWay};
use crate::call::{Call, Update};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::prompt;
use crate::sampling::Sampling;
use axum::Json;
use axum::response::{IntoResponse, Response};
use engine::Finish;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;
use tokio::task::block_in_place;

/// A dialect: the shapes of an answer, whole and in pieces.
pub trait Dialect: Send + 'static {
    /// The whole answer.
    fn whole(&self, told: &Told, call: &Call) -> Value;
    /// The pieces that come before any text.
    fn open(&mut self, call: &Call) -> Vec<Value>;
    /// A piece of text.
    fn text(&mut self, text: &str) -> Value;
    /// The pieces that end a stream.
    fn close(&mut self, told: &Told, call: &Call) -> Vec<Value>;
}

/// An answer so far.
#[derive(Debug, Clone, Default)]
pub struct Told {
    /// Its text.
    pub text: String,
    /// Why it ended.
    pub finish: Option<Finish>,
    /// The stop text that came.
    pub stop: Option<String>,
    /// Fields without effect.
    pub warnings: Vec<String>,
    stops: Vec<String>,
}

impl Told {
    fn take(&mut self, update: Update) -> Option<String> {
        match update {
            Update::Token(_, chosen) => {
                self.text.push_str(&chosen.text);
                self.finish = chosen.finish;
                self.stop = chosen.stop.and_then(|at| self.stops.get(at).cloned());
                Some(chosen.text)
            }
            Update::Ended(_, finish) => {
                self.finish = Some(finish);
                None
            }
            Update::Prompt(..) | Update::Pooled(..) => None,
        }
    }
}

/// A request in a dialect, translated.
pub struct Asked {
    /// When it came, and that it counts as under way.
    pub arrived: (Instant, UnderWay),
    /// The fields.
    pub fields: Fields,
    /// The conversation, as the chat interface has it.
    pub messages: Value,
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
    let mut sampling = Sampling::read(&app, &mut asked.fields)?;
    sampling.stops.extend(asked.stops);
    if sampling.stops.iter().any(String::is_empty) {
        return Err(ApiError::field("stop_sequences", "stop_sequences: found an empty text"));
    }
    let ids = block_in_place(|| prompt::conversation(&app, Some(&asked.messages), true))?;
    let request = block_in_place(|| sampling.asked(&app, ids, 1, asked.max_tokens))?;
    let (arrived, under_way) = asked.arrived;
    let mut call = Call::start(&app, under_way, arrived, vec![request])?;
    let warnings = asked.fields.warnings.clone();
    let mut told = Told { warnings, stops: sampling.stops, ..Told::default() };
    if asked.fields.flag("stream") {
        return Ok(stream(call, Streamed { told, dialect }));
    }
    for update in whole(&mut call).await? {
        let _ = told.take(update);
    }
    let mut body = dialect.whole(&told, &call);
    if !told.warnings.is_empty() {
        body["warnings"] = json!(told.warnings);
    }
    Ok(Json(body).into_response())
}

struct Streamed<D> {
    told: Told,
    dialect: D,
}

impl<D: Dialect> Pieces for Streamed<D> {
    fn open(&mut self, call: &Call) -> Vec<Value> {
        self.dialect.open(call)
    }

    fn update(&mut self, update: Update) -> Vec<Value> {
        let text = self.told.take(update).filter(|text| !text.is_empty());
        text.map(|text| self.dialect.text(&text)).into_iter().collect()
    }

    fn close(&mut self, call: &Call) -> Vec<Value> {
        self.dialect.close(&self.told, call)
    }

    fn event(&self, piece: &Value) -> Option<String> {
        piece["type"].as_str().map(str::to_owned)
    }

    fn warnings(&self) -> &[String] {
        &self.told.warnings
    }

    fn last(&self) -> Option<&'static str> {
        None
    }
}

/// The counts of a call: read, of those cached, written.
#[must_use]
pub fn counts(call: &Call) -> (Value, Value, Value) {
    let usage = call.usage();
    let cached = usage["prompt_tokens_details"]["cached_tokens"].clone();
    (usage["prompt_tokens"].clone(), cached, usage["completion_tokens"].clone())
}
