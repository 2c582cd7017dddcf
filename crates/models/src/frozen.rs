//! The loss of rows and its gradient by what an output projection reads, where the projection does
//! not learn: logits of a chunk of rows become their gradients, and go back through the matrix.

use crate::model::Parts;
use kernels::{
    HEAD_ROWS, HeadShape, Init, Mat, Team, head_logits, logits_workspace, matmul, row_gradients,
};
use tensor::Parameters;
use tensor::ops::{Packed, frozen_input_gradient, packed_product};

/// Values of workspace: a chunk of logits, and what makes them.
pub(crate) fn head_work(rows: usize, width: usize, vocab: usize, threads: usize) -> usize {
    HEAD_ROWS.min(rows) * vocab + logits_workspace(width, threads)
}

/// Losses and log Σ e^z of all rows (R each), and d_hidden (R×C) of Σ scale·loss.
pub(crate) fn head(
    team: &Team,
    (parts, weights): (Parts, &Parameters),
    (hidden, targets): (&[f32], &[u32]),
    scale: f32,
    ([losses, log_z], d_hidden): ([&mut [f32]; 2], &mut [f32]),
    packed: &Packed,
    work: &mut [f32],
) {
    let (width, vocab) = (parts.network.width(), parts.config.vocab_size());
    let (weight, soft_cap) = (parts.head.weight, parts.config.soft_cap());
    let bias: &[f32] = parts.head.bias.map_or(&[], |id| weights.get(id));
    let is_packed = weights.layout().is_packed(weight);
    let (logits, work) = work.split_at_mut(HEAD_ROWS.min(targets.len()) * vocab);
    for (i, targets) in targets.chunks(HEAD_ROWS).enumerate() {
        let (first, n) = (i * HEAD_ROWS, targets.len());
        let place = first * width..(first + n) * width;
        let (x, z) = (&hidden[place.clone()], &mut logits[..n * vocab]);
        if is_packed {
            packed_product(team, weights, weight, bias, packed, x, z, vocab, 0);
            if let Some(limit) = soft_cap {
                kernels::soft_cap(team, z, limit);
            }
        } else {
            let shape = HeadShape { rows: n, width, vocab, soft_cap };
            head_logits(team, shape, x, weights.get(weight), bias, z, work);
        }
        let made = [&mut losses[first..first + n], &mut log_z[first..first + n]];
        row_gradients(team, z, targets, (scale, soft_cap), made);
        let d_x = &mut d_hidden[place];
        if is_packed {
            let work = &mut packed.work.borrow_mut();
            frozen_input_gradient(team, weights, weight, (z, vocab, 0), (d_x, Init::Zero), work);
        } else {
            let w = Mat::new(weights.get(weight), vocab, width);
            matmul(team, Mat::new(z, n, vocab), w, Init::Zero, d_x, width, 0);
        }
    }
}
