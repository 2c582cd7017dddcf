//! Why a request cannot be answered: facts, not prose.

use decoding::DecodeError;
use decoding::beam::BeamError;
use decoding::stop::EmptyStop;

/// Why no tokens come, or no more.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// More tokens than the model can see.
    #[error(
        "the prompt has {found} tokens (with <bos>), the model sees {limit} at most; shorten it, \
         or let --truncate-prompt left or right do it"
    )]
    PromptTooLong {
        /// Tokens of the prompt, `<bos>` counted.
        found: usize,
        /// Tokens that the model can see.
        limit: usize,
    },
    /// A text to score that is longer than the model can see.
    #[error("the text has {found} tokens with <bos>, the model scores {limit} at most; shorten it")]
    TextTooLong {
        /// Tokens of the text, `<bos>` counted.
        found: usize,
        /// Tokens that can be scored: one more than the context, since the last is not read.
        limit: usize,
    },
    /// Nothing to begin from.
    #[error("the prompt is empty and the tokenizer has no <bos> to begin from; give a prompt")]
    NothingToBeginFrom,
    /// A token that the model does not know.
    #[error(
        "token {id} is not in the model's vocabulary of {vocabulary}; the tokenizer and the model \
         do not belong together"
    )]
    UnknownToken {
        /// The token.
        id: u32,
        /// Tokens that the model knows.
        vocabulary: usize,
    },
    /// A step goes on from what is not remembered.
    #[error("sequence {id} is not remembered up to token {read}; this is a fault of the program")]
    UnknownSequence {
        /// The sequence.
        id: u64,
        /// Tokens that it should have read.
        read: usize,
    },
    /// What the pages of the cache cannot hold.
    #[error(transparent)]
    Misfit(#[from] crate::serving::Misfit),
    /// A model without vectors to take the mean of.
    #[error("a count model has no vectors, so no text has an embedding; use a network")]
    NothingToPool,
    /// A grammar that allows no more tokens, or broke.
    #[error("the grammar cannot go on: {0}")]
    Constraint(String),
    /// A step of this request ended in a panic; others go on.
    #[error("a step of this request failed by a fault of the program: {what}")]
    Panicked {
        /// What the panic said.
        what: String,
    },
    /// No sequence was asked for.
    #[error("0 sequences asked for; expected at least 1")]
    NoSequences,
    /// An empty stop string.
    #[error(transparent)]
    Stop(#[from] EmptyStop),
    /// No token can be chosen; the source names the step.
    #[error("sequence {sequence}, {source}")]
    Decode {
        /// The sequence's index.
        sequence: u64,
        /// The step and the reason.
        source: DecodeError,
    },
    /// A beam that cannot be.
    #[error(transparent)]
    Beam(#[from] BeamError),
    /// What a search for the likeliest text has no use for.
    #[error("beam search takes the likeliest text and cannot use {what}; leave it out")]
    NotForBeams {
        /// A rule, or the stop strings.
        what: String,
    },
    /// More sequences asked for than there will be.
    #[error("{asked} sequences asked for, but {searched} are searched; ask for {searched} at most")]
    TooManySequences {
        /// Asked for.
        asked: usize,
        /// Width of the beam, or samples to choose among.
        searched: usize,
    },
    /// Memory is not to be had.
    #[error(transparent)]
    Memory(#[from] ledger::Error),
    /// Memory, or a model that is none.
    #[error(transparent)]
    Model(#[from] models::Error),
}

impl Error {
    /// Whether the model's output is at fault rather than what was asked for.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        let broken = |source: &DecodeError| {
            matches!(
                source,
                DecodeError::NotFinite { .. }
                    | DecodeError::AllImpossible { .. }
                    | DecodeError::Empty { .. }
                    | DecodeError::TooWide { .. }
            )
        };
        match self {
            Self::Decode { source, .. } => broken(source),
            Self::Model(_)
            | Self::Memory(_)
            | Self::UnknownSequence { .. }
            | Self::Constraint(_)
            | Self::Panicked { .. } => true,
            _ => false,
        }
    }
}
