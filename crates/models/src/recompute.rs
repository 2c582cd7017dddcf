//! What a training step computes again instead of keeping it: less memory for more time.
//!
//! Each layer's input is kept. What is computed again is the same chain of operations on the same
//! numbers, so gradients are the same bits. Nothing is computed again for the last layer: when the
//! backward pass begins, its activations still stand in the place that all layers share.

use serde::{Deserialize, Serialize};

/// Which activations of a layer are kept for the backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    /// All are kept.
    #[default]
    None,
    /// Queries, keys, values and what attention made of them are computed again.
    Attention,
    /// All but the layer's input is computed again.
    #[serde(rename = "block")]
    Layer,
}

impl Recompute {
    /// From what takes most memory to what takes least.
    pub const ALL: [Recompute; 3] = [Recompute::None, Recompute::Attention, Recompute::Layer];

    /// The word for it on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Recompute::None => "none",
            Recompute::Attention => "attention",
            Recompute::Layer => "block",
        }
    }
}
