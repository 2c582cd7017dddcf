//! What can go wrong when rules are built and when a token is chosen: facts, not prose.

use crate::preset::Preset;

/// A setting, rule or chain that cannot be used. Found before any logits are seen.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RulesError {
    /// A number of a rule lies outside what the rule accepts.
    #[error("{rule}: found {found}, expected {expected}; {hint}")]
    Value {
        /// The rule or setting, by its name in the chain.
        rule: &'static str,
        /// What was given.
        found: f64,
        /// What is accepted.
        expected: &'static str,
        /// What to try.
        hint: &'static str,
    },
    /// A number is accepted here but not by the system whose preset was asked for.
    #[error("preset {preset} rejects {setting} {found}: expected {expected}; {hint}")]
    Rejected {
        /// The preset in force.
        preset: Preset,
        /// The setting, by its name in [`crate::Settings`].
        setting: &'static str,
        /// What was given.
        found: f64,
        /// What that system accepts.
        expected: &'static str,
        /// What to try.
        hint: &'static str,
    },
    /// The system whose preset was asked for has no such rule.
    #[error("preset {preset} has no {setting}; leave it out, or choose another preset")]
    Unsupported {
        /// The preset in force.
        preset: Preset,
        /// The setting, by its name in [`crate::Settings`].
        setting: &'static str,
    },
    /// A rule that edits logits stands behind one that has already shaped the distribution.
    #[error(
        "{edit} at position {position} of the chain stands behind {shaper}; rules that edit \
         logits come before temperature and filters: move it to the front"
    )]
    Order {
        /// The rule that came too late.
        edit: &'static str,
        /// Its index in the chain, from 0.
        position: usize,
        /// The first temperature or filter before it.
        shaper: &'static str,
    },
}

/// A step at which no token can be chosen. Every variant names the step.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The row has no entries.
    #[error("step {step}: the row of logits is empty; expected one number for each token")]
    Empty {
        /// The step, from 0.
        step: u64,
    },
    /// The row has more entries than there are token ids.
    #[error("step {step}: {found} logits, more than a 32-bit token id can name")]
    TooWide {
        /// The step, from 0.
        step: u64,
        /// Entries in the row.
        found: usize,
    },
    /// A NaN or +inf among the logits, or no valid weight among given probabilities.
    #[error(
        "step {step}: token {id} of {vocabulary} has the {what} {found}, which is no {what} \
         to draw from; look for an overflow or a bad weight in what made it"
    )]
    NotFinite {
        /// The step, from 0.
        step: u64,
        /// The first token with such a value.
        id: u32,
        /// Entries in the row.
        vocabulary: usize,
        /// "logit", "edited logit" or "probability".
        what: &'static str,
        /// The value.
        found: f64,
    },
    /// Every logit is −inf before any rule ran.
    #[error(
        "step {step}: all {vocabulary} logits are -inf, so no token is possible; the model's \
         output is broken or was masked before it came here"
    )]
    AllImpossible {
        /// The step, from 0.
        step: u64,
        /// Entries in the row.
        vocabulary: usize,
    },
    /// Bans, bias or the mask removed every token.
    #[error(
        "step {step}: the rules forbid every one of the {vocabulary} tokens (bans, bias or \
         mask); allow at least one"
    )]
    AllForbidden {
        /// The step, from 0.
        step: u64,
        /// Entries in the row.
        vocabulary: usize,
    },
    /// A token id that the vocabulary does not have.
    #[error("step {step}: {place} names token {id}, but the vocabulary has {vocabulary} entries")]
    UnknownToken {
        /// The step, from 0.
        step: u64,
        /// Where the id was found: a rule's name or "history".
        place: &'static str,
        /// The id.
        id: u32,
        /// Entries in the row.
        vocabulary: usize,
    },
    /// The mask has too few words for the vocabulary.
    #[error("step {step}: the mask covers {found} tokens, but the vocabulary has {vocabulary}")]
    MaskTooShort {
        /// The step, from 0.
        step: u64,
        /// Tokens that the mask covers.
        found: usize,
        /// Entries in the row.
        vocabulary: usize,
    },
    /// A fixed uniform number outside [0, 1).
    #[error("step {step}: the uniform number is {found}; expected at least 0 and below 1")]
    Draw {
        /// The step, from 0.
        step: u64,
        /// The number given.
        found: f64,
    },
}

impl DecodeError {
    /// The step at which it happened, from 0.
    #[must_use]
    pub fn step(&self) -> u64 {
        match *self {
            Self::Empty { step }
            | Self::TooWide { step, .. }
            | Self::NotFinite { step, .. }
            | Self::AllImpossible { step, .. }
            | Self::AllForbidden { step, .. }
            | Self::UnknownToken { step, .. }
            | Self::MaskTooShort { step, .. }
            | Self::Draw { step, .. } => step,
        }
    }
}
