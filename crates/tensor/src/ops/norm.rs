//! LayerNorm and RMSNorm with their parameters.

use crate::{Initial, Layout, ParamId, Parameters};
use kernels::{
    HeadPlace, NormShape, Team, head_norm, head_norm_backward, layer_norm_backward,
    layer_norm_forward, rms_norm_backward, rms_norm_forward,
};

/// Which norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Centred, with gain and bias.
    Layer,
    /// Not centred, with a gain.
    Rms,
}

/// A norm over rows of `width` values.
#[derive(Clone, Debug)]
pub struct Norm {
    gain: ParamId,
    bias: Option<ParamId>,
    width: usize,
    epsilon: f32,
}

impl Norm {
    /// Values a row that the backward pass needs beside x.
    pub const STATS: usize = 2;

    /// Adds `name.weight` (and `name.bias` for LayerNorm) to the layout.
    pub fn new(
        layout: &mut Layout,
        name: &str,
        kind: NormKind,
        width: usize,
        epsilon: f32,
    ) -> Norm {
        let gain = layout.add(&format!("{name}.weight"), &[width], Initial::Constant(1.0), false);
        let bias = (kind == NormKind::Layer)
            .then(|| layout.add(&format!("{name}.bias"), &[width], Initial::Constant(0.0), false));
        Norm { gain, bias, width, epsilon }
    }

    /// RMSNorm of each of `heads` heads in place, from column `from` of rows `stride` apart.
    pub fn heads_forward(
        &self,
        team: &Team,
        weights: &Parameters,
        x: &mut [f32],
        stride: usize,
        (from, heads): (usize, usize),
    ) {
        head_norm(team, x, stride, from, heads, weights.get(self.gain), self.epsilon);
    }

    /// The gradient of [`Norm::heads_forward`]: what `d` holds at its place becomes the gradient by
    /// what was read; adds to that of the gain. Saved: x, what was read, at a place of its own.
    pub fn heads_backward(
        &self,
        team: &Team,
        weights: &Parameters,
        gradients: &mut Parameters,
        x: (&[f32], HeadPlace),
        d: (&mut [f32], HeadPlace),
    ) {
        let (gain, d_gain) = (weights.get(self.gain), gradients.get_mut(self.gain));
        head_norm_backward(team, x, d, gain, self.epsilon, d_gain);
    }

    fn shape(&self, x: &[f32]) -> NormShape {
        NormShape { rows: x.len() / self.width, width: self.width, epsilon: self.epsilon }
    }

    /// y = norm(x), both R×C; `stats`: 2 a row, kept for the backward pass.
    pub fn forward(
        &self,
        team: &Team,
        weights: &Parameters,
        x: &[f32],
        y: &mut [f32],
        stats: &mut [f32],
    ) {
        let gain = weights.get(self.gain);
        match self.bias {
            Some(bias) => {
                layer_norm_forward(team, self.shape(x), x, gain, weights.get(bias), y, stats);
            }
            None => rms_norm_forward(team, self.shape(x), x, gain, y, stats),
        }
    }

    /// Adds to d_x and to the gradients of gain and bias. Saved: x, stats.
    #[expect(clippy::too_many_arguments, reason = "a backward pass takes what the forward saved")]
    pub fn backward(
        &self,
        team: &Team,
        weights: &Parameters,
        gradients: &mut Parameters,
        x: &[f32],
        stats: &[f32],
        d_y: &[f32],
        d_x: &mut [f32],
    ) {
        let (shape, gain) = (self.shape(x), weights.get(self.gain));
        let (d_gain, d_bias) = gradients.pair_mut(self.gain, self.bias);
        match self.bias {
            Some(_) => layer_norm_backward(team, shape, x, stats, gain, d_y, d_x, d_gain, d_bias),
            None => rms_norm_backward(team, shape, x, stats, gain, d_y, d_x, d_gain),
        }
    }
}
