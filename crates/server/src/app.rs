//! What every handler shares: the model as clients know it, the engine's door, options, figures.

use crate::error::ApiError;
use crate::grammar::{Grammar, Grammars};
use crate::metrics::Metrics;
use crate::tls::Tls;
use axum::http::StatusCode;
use chat::ChatTemplate;
use engine::serving::{Constraint, Handle};
use ledger::Plan;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokenizer::Tokenizer;

/// The model as clients know it.
pub struct Served {
    /// Its name in `/v1/models`.
    pub name: String,
    /// SHA-256 of its weights.
    pub digest: String,
    /// `transformer`, `rnn` or a count model's kind.
    pub kind: String,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Tokens that end a text.
    pub ends: Vec<u32>,
    /// Tokens that are never written: padding and the beginning.
    pub never: Vec<u32>,
    /// How conversations are written, where the files say so.
    pub template: Option<ChatTemplate>,
    /// Tokens that the model sees at most.
    pub context: Option<usize>,
    /// How keys and values are kept: `f32`, `f16` or `q8`.
    pub kv: &'static str,
    /// The model that guesses ahead, if one does.
    pub draft: Option<Guesser>,
    /// What running it was predicted to take, with the one that guesses.
    pub plan: Plan,
    /// What the process held before anything of the plan.
    pub runtime_bytes: u64,
    /// Its parameters.
    pub parameters: Option<u64>,
    /// What could be changed to take less: a list, as `/ledger` tells it.
    pub levers: serde_json::Value,
    /// What other settings are worked out from, as `/ledger` tells it; null where nothing is.
    pub what_if: serde_json::Value,
}

/// A model that guesses ahead.
#[derive(Debug, Clone)]
pub struct Guesser {
    /// Its name.
    pub name: String,
    /// SHA-256 of its weights.
    pub digest: String,
    /// Tokens that it guesses at a time, at most.
    pub tokens: usize,
    /// What it was predicted to take.
    pub plan: Plan,
}

impl Guesser {
    /// As receipts name it.
    #[must_use]
    pub fn told(&self) -> serde_json::Value {
        json!({ "name": self.name, "digest": self.digest, "tokens": self.tokens })
    }
}

/// What a server may be told.
#[derive(Debug, Clone)]
pub struct Options {
    /// Keys of which clients must give one; none asks for none.
    pub api_keys: Vec<String>,
    /// Bytes of a body, at most.
    pub body_bytes: usize,
    /// How long an answer may take.
    pub request_time: Duration,
    /// How long running requests may go on after the signal to end.
    pub drain_time: Duration,
    /// Connections at a time.
    pub connections: usize,
    /// The origin that browsers may call from, or `*`; none answers no foreign page.
    pub cors_origin: Option<String>,
    /// Whether requests are logged, one line each, without any text of theirs.
    pub log: bool,
    /// What connections are encrypted by; none where they are not.
    pub tls: Option<Tls>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            api_keys: Vec::new(),
            body_bytes: 4 << 20,
            request_time: Duration::from_secs(600),
            drain_time: Duration::from_secs(60),
            connections: 1024,
            cors_origin: None,
            log: false,
            tls: None,
        }
    }
}

/// What every handler shares.
pub struct App {
    /// The model.
    pub model: Served,
    /// The engine's door.
    pub engine: Handle,
    /// Options.
    pub options: Options,
    /// Figures.
    pub metrics: Arc<Metrics>,
    /// Seconds since 1970 when the server began.
    pub created: u64,
    /// Numbers answers.
    pub next_answer: AtomicUsize,
    grammars: Grammars,
    under_way: AtomicUsize,
    draining: AtomicBool,
    began: Instant,
}

impl App {
    /// A server's shared state.
    #[must_use]
    pub fn new(model: Served, engine: Handle, options: Options, metrics: Arc<Metrics>) -> Self {
        Self {
            model,
            engine,
            options,
            metrics,
            created: unix_seconds(),
            next_answer: AtomicUsize::new(0),
            grammars: Grammars::default(),
            under_way: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
            began: Instant::now(),
        }
    }

    /// A grammar at work for each sequence, if there is one.
    ///
    /// # Errors
    /// A grammar that cannot be used.
    pub fn constraints(
        &self,
        grammar: Option<&Grammar>,
        sequences: usize,
    ) -> Result<Vec<Box<dyn Constraint>>, ApiError> {
        let Some(grammar) = grammar else { return Ok(Vec::new()) };
        let tokens = (self.engine.vocab_size(), &self.model.ends[..]);
        self.grammars.constraints(grammar, sequences, &self.model.tokenizer, tokens)
    }

    /// Takes no new requests from now on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    /// Whether the server is on its way out.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Requests under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way.load(Ordering::SeqCst)
    }

    /// How long the server has been up.
    #[must_use]
    pub fn up(&self) -> Duration {
        self.began.elapsed()
    }

    /// Counts a request until the answer is dropped; none is taken while draining.
    ///
    /// # Errors
    /// 503.
    pub fn enter(self: &Arc<Self>) -> Result<UnderWay, ApiError> {
        // Counted first, so that who drains sees it or it sees the draining.
        let counted = UnderWay(Arc::clone(self));
        self.under_way.fetch_add(1, Ordering::SeqCst);
        if self.is_draining() {
            let message = "the server is shutting down and takes no new requests; ask another";
            let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code("draining");
            return Err(ApiError { retry_after: Some(1), ..error });
        }
        Ok(counted)
    }

    /// Whether a name is the model's.
    ///
    /// # Errors
    /// 404 with the name that is.
    pub fn is_model(&self, name: Option<&str>) -> Result<(), ApiError> {
        match name {
            Some(name) if name != self.model.name => {
                let message = format!(
                    "model: no model is called {name:?}; this server has {:?}",
                    self.model.name
                );
                let error = ApiError::new(StatusCode::NOT_FOUND, message).code("model_not_found");
                Err(ApiError {
                    param: Some("model".to_owned()),
                    details: Some(Box::new(json!({ "models": [self.model.name] }))),
                    ..error
                })
            }
            _ => Ok(()),
        }
    }
}

/// A request under way.
pub struct UnderWay(Arc<App>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Seconds since 1970.
#[must_use]
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
