//! The output projection in mixed precision: products in 16 bits, softmax and loss in FP32.
//!
//! Logits of some rows exist at a time, and become their gradient in place. How many depends on V
//! alone, so that no batch changes the chains of the weights' gradient.

use crate::model::Head;
use kernels::{
    Factor, HeadShape, Init, Mat, Team, column_sums, row_losses, soft_cap, softmax_gradient,
};
use tensor::Parameters;

/// Rows whose logits exist at a time.
fn rows_at_once(vocab: usize) -> usize {
    const VALUES: usize = 1 << 20;
    (VALUES / vocab).next_multiple_of(32).clamp(128, 256)
}

/// Values of workspace for batches of up to so many rows.
pub(crate) fn workspace(vocab: usize, rows: usize) -> usize {
    rows_at_once(vocab).min(rows) * vocab
}

/// The projection of one model.
pub(crate) struct MixedHead<'a> {
    pub(crate) team: &'a Team,
    pub(crate) weights: &'a Parameters,
    pub(crate) head: Head,
    pub(crate) shape: HeadShape,
    /// What [`workspace`] says.
    pub(crate) z: &'a mut [f32],
}

impl MixedHead<'_> {
    fn weight(&self) -> Factor<'_> {
        let bits = self.weights.half(self.head.weight).unwrap_or_default();
        Factor::halves(bits, self.shape.vocab, self.shape.width)
    }

    /// z (rows×V) = W·x + b, capped.
    pub(crate) fn logits(&self, x: &[f32], z: &mut [f32]) {
        let HeadShape { width, vocab, soft_cap: cap, .. } = self.shape;
        let x = Mat::new(x, x.len() / width, width).into();
        let init = self.head.bias.map_or(Init::Zero, |id| Init::Bias(self.weights.get(id)));
        self.weights.product(self.team, (x, self.weight().transposed()), init, z, (vocab, 0));
        if let Some(limit) = cap {
            soft_cap(self.team, z, limit);
        }
    }

    fn chunks(&self) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let (rows, step) = (self.shape.rows, rows_at_once(self.shape.vocab));
        (0..rows).step_by(step).map(move |first| first..rows.min(first + step))
    }

    /// Losses and log Σ e^z of all rows; the gradient of Σ scale·loss goes to `d_x` and is added to
    /// that of the weights.
    pub(crate) fn train(
        &mut self,
        (x, targets): (&[f32], &[u32]),
        scale: f32,
        d_x: &mut [f32],
        gradients: &mut Parameters,
        [losses, log_z]: [&mut [f32]; 2],
    ) {
        let HeadShape { width, vocab, soft_cap: cap, .. } = self.shape;
        let room = std::mem::take(&mut self.z);
        let (team, head) = (self.team, self.head);
        let (d_weight, d_bias) = gradients.pair_mut(head.weight, head.bias);
        for rows in self.chunks() {
            let n = rows.len();
            let z = &mut room[..n * vocab];
            let place = rows.start * width..rows.end * width;
            self.logits(&x[place.clone()], z);
            let (targets, losses, log_z) =
                (&targets[rows.clone()], &mut losses[rows.clone()], &mut log_z[rows]);
            softmax_gradient(team, (vocab, cap), scale, targets, z, losses, log_z);
            let d_z = Mat::new(z, n, vocab);
            let (d_x, x) = (&mut d_x[place.clone()], Mat::new(&x[place], n, width));
            let factors = (d_z.into(), self.weight());
            self.weights.product(team, factors, Init::Zero, d_x, (width, 0));
            let factors = (d_z.transposed().into(), x.into());
            self.weights.product(team, factors, Init::Keep, d_weight, (width, 0));
            column_sums(team, z, n, vocab, 0, d_bias);
        }
        self.z = room;
    }

    /// Losses, most probable ids and their probabilities.
    pub(crate) fn best(
        &mut self,
        (x, targets): (&[f32], &[u32]),
        losses: &mut [f32],
        ids: &mut [u32],
        best: &mut [f32],
    ) {
        let HeadShape { width, vocab, .. } = self.shape;
        let room = std::mem::take(&mut self.z);
        for rows in self.chunks() {
            let z = &mut room[..rows.len() * vocab];
            self.logits(&x[rows.start * width..rows.end * width], z);
            let (targets, losses) = (&targets[rows.clone()], &mut losses[rows.clone()]);
            let (ids, best) = (&mut ids[rows.clone()], &mut best[rows]);
            row_losses(self.team, z, targets, losses, ids, best);
        }
        self.z = room;
    }
}
