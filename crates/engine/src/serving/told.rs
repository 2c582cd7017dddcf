//! What an engine is asked and what it tells.

use super::scheduler::Totals;
use crate::score::Scored;
use crate::{Error, Finish, Request};
use decoding::{Choice, Explanation};
use std::collections::BTreeMap;

/// Names a request.
pub type RequestId = u64;

/// A grammar at work on one sequence.
pub trait Constraint: Send {
    /// The tokens that may come next, one bit a token.
    ///
    /// # Errors
    /// What stops it.
    fn mask(&mut self) -> Result<&[u32], String>;

    /// The token that came.
    ///
    /// # Errors
    /// What stops it.
    fn accept(&mut self, token: u32) -> Result<(), String>;
}

/// A request with what is wanted beside its tokens.
pub struct Asked {
    /// From prompt to tokens.
    pub request: Request,
    /// Best tokens told of each choice, by the model's own order.
    pub top: usize,
    /// Whether the prompt's tokens are scored, and how many best ones are told of each.
    pub score_prompt: Option<usize>,
    /// Texts with different salts share no page.
    pub salt: String,
    /// Whether the mean of what the output projection reads is wanted instead of tokens.
    pub pool: bool,
    /// Whether every choice is told in full.
    pub explain: bool,
    /// Grammars, one a sequence, or none.
    pub constraints: Vec<Box<dyn Constraint>>,
}

impl Asked {
    /// Nothing beside the tokens.
    #[must_use]
    pub fn plain(request: Request) -> Self {
        Self {
            request,
            top: 0,
            score_prompt: None,
            salt: String::new(),
            pool: false,
            explain: false,
            constraints: Vec::new(),
        }
    }
}

/// A token of a prompt under the model.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptToken {
    /// Its score; the first token of a prompt has none.
    pub scored: Option<Scored>,
    /// The best tokens at its place: (token, log-probability).
    pub top: Vec<(u32, f64)>,
}

/// A chosen token.
#[derive(Debug, Clone, PartialEq)]
pub struct Chosen {
    /// Which of the request's sequences, from 0.
    pub index: usize,
    /// The choice.
    pub choice: Choice,
    /// Text that may be shown now.
    pub text: String,
    /// The best tokens: (token, log-probability).
    pub top: Vec<(u32, f64)>,
    /// The choice in full, where asked for.
    pub explanation: Option<Box<Explanation>>,
    /// Why the sequence ended, if it did.
    pub finish: Option<Finish>,
    /// Index of the stop string that came.
    pub stop: Option<usize>,
}

/// What became of a request.
#[derive(Debug)]
pub enum Event {
    /// Its first sequence runs; so many of its tokens were in the cache.
    Started {
        /// Tokens.
        cached: usize,
    },
    /// What ran between its arrival and its first token; told by a [`Handle`](super::Handle) only.
    Waited(Waited),
    /// It was sent back to wait.
    Preempted,
    /// Tokens were guessed ahead for it, and so many of them came.
    Guessed {
        /// Tokens guessed that ran.
        drafted: usize,
        /// Those that came.
        accepted: usize,
    },
    /// Its prompt is scored.
    Prompt(Vec<PromptToken>),
    /// The mean over its tokens of what the output projection reads (C), where asked for.
    Pooled(Vec<f32>),
    /// A token was chosen.
    Token(Box<Chosen>),
    /// A sequence ended without a token.
    Ended {
        /// Which, from 0.
        index: usize,
        /// Why.
        finish: Finish,
    },
    /// All of it ended with an error; nothing more comes.
    Failed(Error),
}

/// Whose work a request's first token waited for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Waited {
    /// Steps.
    pub steps: usize,
    /// Rows of its own in them.
    pub own_rows: usize,
    /// Rows of others: (request, rows).
    pub others: BTreeMap<RequestId, usize>,
}

impl Waited {
    /// One more step.
    pub(crate) fn add(&mut self, own: RequestId, work: &[(RequestId, usize)]) {
        self.steps += 1;
        for &(id, rows) in work {
            match id == own {
                true => self.own_rows += rows,
                false => *self.others.entry(id).or_default() += rows,
            }
        }
    }
}

/// What a step was, in numbers.
#[derive(Debug, Clone, Default)]
pub struct StepReport {
    /// Rows of sequences that lacked one token.
    pub decode_rows: usize,
    /// Rows of prompts, and of what is read again.
    pub prefill_rows: usize,
    /// Whose rows: (request, rows).
    pub work: Vec<(RequestId, usize)>,
    /// Sequences that wait.
    pub waiting: usize,
    /// Tokens of those.
    pub waiting_tokens: usize,
    /// Sequences that run.
    pub running: usize,
    /// Pages in all.
    pub pages: usize,
    /// Pages held by sequences.
    pub pages_held: usize,
    /// Free pages whose content is kept.
    pub pages_kept: usize,
    /// Kept pages whose place was needed, since the beginning.
    pub evictions: u64,
    /// Totals since the beginning.
    pub totals: Totals,
}
