//! Causal attention in tiles with a running softmax: the score matrix is never stored.
//!
//! Keys come in tiles of 64 at absolute positions divisible by 64, queries 64 at a time. Scores
//! are kept transposed (a key a line, the queries as lanes), so that softmax needs no sum across
//! lanes; what lies far apart in the batch is gathered a tile at a time. A
//! query's result is one chain over the keys before it, so neither the chunking of a prompt nor
//! what follows changes its bits. After Dao et al., "FlashAttention", arXiv 2205.14135.

mod backward;
mod few;
mod forward;
mod tile;

pub use backward::attention_backward;
pub use forward::attention_forward;
pub(crate) use tile::{score_gradients, softmax_tile};

use crate::kv::Kv;

/// Keys a tile holds; tiles start at absolute positions divisible by it.
pub const KEY_TILE: usize = 64;
/// Queries a block holds: a line of lanes.
pub(crate) const LINE: usize = 64;

/// Sizes of an attention layer.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// H.
    pub heads: usize,
    /// G; H is a multiple of it.
    pub kv_heads: usize,
    /// D.
    pub head_dim: usize,
    /// What scores are multiplied by, 1/√D as a rule.
    pub scale: f32,
    /// Positions that a query sees, its own counted; all before it when absent.
    pub window: Option<usize>,
}

impl AttentionShape {
    /// The first position that the query at `position` sees.
    pub(crate) fn first_seen(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

/// Rows of a batch that belong to one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The first row.
    pub row: usize,
    /// Rows: the sequence's new tokens.
    pub queries: usize,
    /// Positions before them; keys and values hold `past + queries` positions.
    pub past: usize,
    /// Its keys and values.
    pub kv: Kv<'a>,
}

fn forward_scratch(d: usize) -> usize {
    // Queries turned, scores, outputs, running maximum and sum, one factor a query, keys, values.
    d * LINE + KEY_TILE * LINE + LINE * d + 3 * LINE + 2 * KEY_TILE * d
}

fn backward_scratch(d: usize, longest: usize) -> usize {
    let lines = longest.next_multiple_of(LINE);
    // Queries and output gradients as they are and turned, query gradients, one number a query;
    // two tiles of scores; keys, values and their gradients.
    5 * d * lines + lines + 2 * KEY_TILE * LINE + 4 * KEY_TILE * d
}

/// Values of workspace that the forward pass needs, and with `longest > 0` the backward pass over
/// sequences of up to that many tokens: linear in the length.
pub fn attention_workspace(shape: &AttentionShape, threads: usize, longest: usize) -> usize {
    let forward = forward_scratch(shape.head_dim);
    let backward = if longest > 0 { backward_scratch(shape.head_dim, longest) } else { 0 };
    threads * (forward.max(backward) + 1)
}

/// The largest score of the forward passes since the last call; a workspace is one of
/// [`attention_workspace`].
pub fn largest_score(workspace: &mut [f32], threads: usize) -> f32 {
    let at = workspace.len() - threads;
    let largest = workspace[at..].iter().copied().fold(f32::NEG_INFINITY, f32::max);
    workspace[at..].fill(f32::NEG_INFINITY);
    largest
}

fn check(shape: &AttentionShape, segments: &[Segment], rows: usize, q_len: usize, q_stride: usize) {
    let (h, g, d) = (shape.heads, shape.kv_heads, shape.head_dim);
    assert!(g > 0 && h.is_multiple_of(g), "attention: heads are shared out evenly");
    for s in segments.iter().filter(|s| s.queries > 0) {
        assert!(s.row + s.queries <= rows, "attention: a segment lies in the batch");
        assert!((s.row + s.queries - 1) * q_stride + h * d <= q_len, "attention: queries");
        let width = s.kv.kind.row_words(g, d);
        assert!(s.kv.holds(s.past + s.queries, width), "attention: keys and values");
    }
}

/// The number by which the first key's position lies before the first query's, as lines count it:
/// key j is hidden from query i when j - i > this; `None` when no key of the tile is hidden.
pub(crate) fn masked_from(tile: usize, keys: usize, position: usize) -> Option<f32> {
    (tile + keys - 1 > position).then_some(position as f32 - tile as f32)
}

/// As [`masked_from`], for the other end of a window: key j is hidden from query i when i - j is at
/// least this; `None` when every key of the tile lies in the window of every query.
pub(crate) fn outside(
    shape: &AttentionShape,
    tile: usize,
    position: usize,
    count: usize,
) -> Option<f32> {
    let window = shape.window?;
    (shape.first_seen(position + count - 1) > tile)
        .then_some((tile + window) as f32 - position as f32)
}

/// xᵀ·factor: D lines, of which `count` lanes from `lane` on, from `count` rows.
fn turn(x: &[f32], stride: usize, count: usize, factor: f32, lane: usize, out: &mut [f32]) {
    let lines = out.chunks_exact_mut(LINE);
    for (c, line) in lines.enumerate() {
        for (i, v) in line[lane..lane + count].iter_mut().enumerate() {
            *v = x[i * stride + c] * factor;
        }
    }
}

pub(crate) const IOTA: [f32; LINE] = {
    let mut out = [0.0; LINE];
    let mut i = 0;
    while i < LINE {
        out[i] = i as f32;
        i += 1;
    }
    out
};

#[cfg(test)]
mod tests;
