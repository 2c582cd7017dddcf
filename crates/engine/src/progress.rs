//! One sequence under way: its tokens, its text, and whether it has ended.

use crate::{Error, Request};
use decoding::stop::{StopMatcher, StopText};
use decoding::{Choice, Counter, History, Mask, Scratch, decide};
use serde::{Deserialize, Serialize};
use tokenizer::{Tokenizer, Utf8Stream};

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// An end token was chosen.
    Eos,
    /// As many tokens as were asked for.
    Length,
    /// The model can see no more.
    Context,
    /// A stop string came.
    Stop,
    /// Whoever watched wanted no more.
    Cancelled,
}

impl Finish {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Eos => "eos",
            Self::Length => "length",
            Self::Context => "context",
            Self::Stop => "stop",
            Self::Cancelled => "cancelled",
        }
    }
}

/// One generated token.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// What was chosen and what is said of it.
    pub choice: Choice,
    /// The text that became certain with it: empty inside a character and for an end token.
    pub text: String,
}

/// A finished sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Sequence {
    /// Its index: the stream of its random numbers.
    pub index: u64,
    /// Its tokens, the end token (if one came) and those of a stop string included.
    pub tokens: Vec<Token>,
    /// Its text, without end token and stop string.
    pub text: String,
    /// Why it ended.
    pub finish: Finish,
    /// Index of the stop string that came, if one did.
    pub stop: Option<usize>,
}

impl Sequence {
    /// Sum of the model's log-probabilities, in nats.
    #[must_use]
    pub fn logprob(&self) -> f64 {
        self.tokens.iter().map(|token| token.choice.logprob).sum()
    }

    /// That sum divided by (tokens)^α: α = 0 favours short texts, α = 1 compares means.
    #[must_use]
    pub fn score(&self, length_exponent: f64) -> f64 {
        self.logprob() / (self.tokens.len().max(1) as f64).powf(length_exponent)
    }
}

/// A sequence under way.
pub(crate) struct Progress {
    index: u64,
    ids: Vec<u32>,
    tokens: Vec<Token>,
    text: String,
    stream: Utf8Stream,
    matcher: StopMatcher,
    finish: Option<Finish>,
    stop: Option<usize>,
}

impl Progress {
    pub fn new(index: u64, tokenizer: &Tokenizer, stops: &[String]) -> Result<Self, Error> {
        Ok(Self {
            index,
            ids: Vec::new(),
            tokens: Vec::new(),
            text: String::new(),
            stream: Utf8Stream::new(tokenizer),
            matcher: StopMatcher::new(stops.to_vec(), StopText::Exclude)?,
            finish: None,
            stop: None,
        })
    }

    pub fn index(&self) -> u64 {
        self.index
    }

    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    pub fn is_live(&self) -> bool {
        self.finish.is_none()
    }

    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// Chooses the next token from a row of logits (V) and appends it. Answers with the choice and
    /// the text that may be shown now.
    pub fn advance(
        &mut self,
        request: &Request,
        limit: Option<usize>,
        logits: &[f32],
        scratch: &mut Scratch,
    ) -> Result<(Choice, String), Error> {
        self.advance_among(request, limit, logits, None, scratch)
    }

    /// The same among the tokens that a mask allows.
    pub fn advance_among(
        &mut self,
        request: &Request,
        limit: Option<usize>,
        logits: &[f32],
        mask: Option<Mask<'_>>,
        scratch: &mut Scratch,
    ) -> Result<(Choice, String), Error> {
        let history = History::new(&request.prompt, &self.ids);
        let history = mask.map_or(history, |mask| history.with_mask(mask));
        let (step, rng) =
            (self.ids.len() as u64, Counter { seed: request.seed, stream: self.index });
        let choice = decide(&request.rules, logits, &history, rng, step, scratch)
            .map_err(|source| Error::Decode { sequence: self.index, source })?;
        Ok((choice, self.append(request, limit, choice)))
    }

    /// Appends a choice. Answers with the text that may be shown now.
    pub fn append(&mut self, request: &Request, limit: Option<usize>, choice: Choice) -> String {
        let is_end = request.end.contains(&choice.id);
        self.ids.push(choice.id);
        let piece = if is_end { String::new() } else { self.stream.push(choice.id) };
        let mut shown = self.show(&piece);
        self.tokens.push(Token { choice, text: piece });
        if is_end {
            self.finish = Some(Finish::Eos);
        }
        self.end_at_limits(request, limit);
        if !self.is_live() {
            shown += &self.last_text();
        }
        shown
    }

    /// Ends a sequence that is still under way.
    pub fn cancel(&mut self) {
        if self.is_live() {
            self.finish = Some(Finish::Cancelled);
            self.last_text();
        }
    }

    fn show(&mut self, piece: &str) -> String {
        let released = self.matcher.push(piece);
        if released.stopped.is_some() {
            (self.finish, self.stop) = (Some(Finish::Stop), released.stopped);
        }
        self.text.push_str(&released.text);
        released.text
    }

    /// The cap that was asked for, then what the model can see: the next step would read one token
    /// more than `limit`.
    pub fn end_at_limits(&mut self, request: &Request, limit: Option<usize>) {
        let read = request.prompt.len() + self.ids.len();
        if self.is_live() && self.ids.len() >= request.max_tokens {
            self.finish = Some(Finish::Length);
        } else if self.is_live() && limit.is_some_and(|limit| read > limit) {
            self.finish = Some(Finish::Context);
        }
    }

    /// What was held back: an unfinished character, the beginning of a stop string that did not come.
    fn last_text(&mut self) -> String {
        if self.finish == Some(Finish::Stop) {
            return String::new();
        }
        let rest = self.stream.finish();
        let finish = self.finish;
        let mut shown = self.show(&rest);
        // The text is over: what ends it stays why it ended.
        (self.finish, self.stop) = (finish, None);
        let held = self.matcher.held().to_owned();
        self.text.push_str(&held);
        shown.push_str(&held);
        shown
    }

    /// Index of the stop string that came, if one did.
    pub fn stop(&self) -> Option<usize> {
        self.stop
    }

    pub fn done(self) -> Sequence {
        let Self { index, tokens, text, finish, stop, .. } = self;
        Sequence { index, tokens, text, finish: finish.unwrap_or(Finish::Length), stop }
    }
}
