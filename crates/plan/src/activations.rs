//! What a training step keeps of its forward pass, by formula, in 16-bit numbers.
//!
//! A layer of the textbook with tiled attention keeps a token: its two norms' inputs and outputs
//! (8C), queries, keys and values (2(H+2G)D), the attention's output (2HD), log-sums (4H), and the
//! MLP's (6F with a gate, 4F without); norms of heads keep 2(H+G)D more, dropout two masks (2C).
//! Attention that stores its scores keeps 5·H·T² more (4·H·T² without dropout's mask), as
//! Korthikanti et al. (arXiv 2205.05198) count. Lists of this program's own runs are in f32 and
//! come from [`crate::running`].

use crate::Error;
use crate::term::{product, sum};
use models::{MlpConfig, Recompute, TransformerConfig};

/// Whether scores are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attention {
    /// Tiles with a running softmax: memory linear in the length, as in this program.
    #[default]
    Tiled,
    /// The T×T scores of every head.
    Stored,
}

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Activations {
    /// Sequences computed at once.
    pub sequences: u64,
    /// Tokens of each.
    pub length: u64,
    /// Whether scores are stored.
    pub attention: Attention,
    /// What is computed again.
    pub recompute: Recompute,
    /// Whether dropout keeps its masks.
    pub dropout: bool,
}

/// Whether the MLP has a gate.
fn gated(config: &TransformerConfig) -> bool {
    matches!(config.mlp, MlpConfig::Swiglu | MlpConfig::GegluTanh)
}

/// Bytes that a layer keeps a token, scores apart.
pub fn layer_bytes_per_token(config: &TransformerConfig, dropout: bool) -> Result<u64, Error> {
    let (c, f) = (config.hidden_size as u64, config.intermediate_size as u64);
    let mlp = if gated(config) { 6 } else { 4 };
    let masks = if dropout { 2 } else { 0 };
    let branches = if config.post_norm { 4 } else { 0 };
    sum(
        "activations",
        &[
            product("activations", &[8 + masks + branches, c])?,
            attention_bytes_per_token(config)?,
            product("activations", &[mlp, f])?,
        ],
    )
}

/// Of them, what attention alone keeps.
fn attention_bytes_per_token(config: &TransformerConfig) -> Result<u64, Error> {
    let (h, g) = (config.num_attention_heads as u64, config.kv_heads() as u64);
    let d = config.head_size() as u64;
    let heads = if config.qk_norm { 2 * (h + g) * d } else { 0 };
    sum("activations", &[2 * (h + 2 * g) * d, 2 * h * d, 4 * h, heads])
}

impl Activations {
    /// (kept for all layers, one layer's that is computed again and lives during its backward pass).
    ///
    /// # Errors
    /// When they do not fit into 64 bits.
    pub fn bytes(&self, config: &TransformerConfig) -> Result<(u64, u64), Error> {
        let what = "activations";
        let rows = product(what, &[self.sequences, self.length])?;
        let layers = config.num_hidden_layers as u64;
        let token = layer_bytes_per_token(config, self.dropout)?;
        let heads = config.num_attention_heads as u64;
        let scores = match self.attention {
            Attention::Tiled => 0,
            Attention::Stored => {
                let each = if self.dropout { 5 } else { 4 };
                product(what, &[each, heads, self.length, rows])?
            }
        };
        let layer = sum(what, &[product(what, &[token, rows])?, scores])?;
        let input = product(what, &[2, config.hidden_size as u64, rows])?;
        match (self.recompute, self.attention) {
            (Recompute::None, _) => Ok((product(what, &[layer, layers])?, 0)),
            // Only the scores and what is made of them are computed again.
            (Recompute::Attention, Attention::Stored) => {
                let kept = product(what, &[token, rows, layers])?;
                Ok((kept, scores))
            }
            (Recompute::Attention, Attention::Tiled) => {
                let part = product(what, &[attention_bytes_per_token(config)?, rows])?;
                Ok((product(what, &[layer - part, layers])?, part))
            }
            (Recompute::Layer, _) => Ok((product(what, &[input, layers])?, layer)),
        }
    }
}
