//! Rules from a row of logits to the next token: exact, explained, replayable.
//!
//! logits → edits (mask, bans, bias, penalties) → temperature and filters, in the order of the
//! chain → renormalise → one draw. [`Rules`] is that chain as data; [`decide`] runs it without
//! allocating; [`best`] gives the first places instead of a draw; [`explain`] runs the same code and
//! tells everything.
//!
//! - After the edits one total order holds: score descending, id ascending. Every filter keeps a
//!   prefix of it and works on the renormalised distribution that the one before left.
//! - The draw inverts the cumulative sum over the kept candidates in that order: the first whose
//!   cumulated probability exceeds u, sums in f64, the last one takes the remainder.
//! - Temperature acts where the chain says: before the filters in this project's own order (as
//!   in transformers and vLLM), after them in llama.cpp's.
//! - The uniform number of a step depends on (seed, stream, step) alone ([`Counter`]).
//! - NaN, +inf and a row of −inf alone are errors that name the step.
//!
//! Not here: models, text (but for stop strings), HTTP. Pure functions of their arguments.

pub mod beam;
mod chain;
mod decide;
mod divergence;
mod edit;
mod error;
mod explain;
mod history;
mod order;
mod preset;
mod random;
mod row;
mod rule;
mod score;
mod settings;
pub mod stop;

pub use decide::{Choice, Draw, Scratch, best, decide};
pub use divergence::{Divergence, divergence};
pub use error::{DecodeError, RulesError};
pub use explain::{Changed, Explained, Explanation, Row, RuleEffect, explain};
pub use history::{History, Mask};
pub use preset::{Preset, UnknownPreset};
pub use random::{Counter, philox4x32_10};
pub use rule::{Bias, Boundary, Measure, Note, Rule, Rules, Ties, Window};
pub use settings::{Method, Settings};
