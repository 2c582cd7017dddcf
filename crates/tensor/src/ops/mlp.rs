//! The position-wise network: down(act(up(x))), or down(silu(gate(x))·up(x)).
//!
//! Only up's output is saved; the activation is computed again in the backward pass, which runs
//! 512 rows at a time, so that its scratch does not grow with the batch. Chains over rows go on
//! from one run to the next, so the bits are those of one pass over all rows. In mixed precision up's
//! output is saved in 16 bits, and what is computed from it is computed from those.

use super::{Linear, Packed};
use crate::{Initial, Layout, Parameters};
use kernels::{
    HalfKind, Init, Team, geglu_tanh_backward, geglu_tanh_forward, gelu_backward, gelu_forward,
    gelu_tanh_backward, gelu_tanh_forward, relu2_backward, relu2_forward, round_both,
    swiglu_backward, swiglu_forward, widen_halves,
};

/// Rows in work at a time.
pub const MLP_ROWS: usize = 512;

/// Which activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlpKind {
    /// GELU of one projection.
    Gelu,
    /// SiLU of a gate times a second projection.
    SwiGlu,
    /// GELU of one projection, by its tanh approximation.
    GeluTanh,
    /// GELU of a gate, by its tanh approximation, times a second projection.
    GegluTanh,
    /// The square of one projection's positive part.
    Relu2,
}

impl MlpKind {
    /// Whether a second projection is a gate.
    pub fn is_gated(self) -> bool {
        matches!(self, MlpKind::SwiGlu | MlpKind::GegluTanh)
    }
}

/// Two or three matrices with an activation between.
#[derive(Clone, Debug)]
pub struct Mlp {
    kind: MlpKind,
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
    /// C
    width: usize,
    /// F
    inner: usize,
}

/// Scratch for a run of rows: activations and their gradients, and gradients of up's output.
#[derive(Debug)]
pub struct MlpScratch<'a> {
    /// MLP_ROWS×F; in mixed precision as [`Mlp::scratch_width`] says.
    pub act: &'a mut [f32],
    /// MLP_ROWS×(F or 2F); empty for inference.
    pub d_up: &'a mut [f32],
}

impl Mlp {
    /// Adds `name.gate`, `name.up` and `name.down` to the layout.
    pub fn new(
        layout: &mut Layout,
        packed: &mut usize,
        name: &str,
        kind: MlpKind,
        (width, inner): (usize, usize),
        bias: bool,
        (initial, initial_down): (Initial, Initial),
    ) -> Mlp {
        let mut linear = |part: &str, shape, initial| {
            Linear::new(layout, packed, &format!("{name}.{part}"), shape, bias, initial)
        };
        let gate = kind.is_gated().then(|| linear("gate", (inner, width), initial));
        let up = linear("up", (inner, width), initial);
        let down = linear("down", (width, inner), initial_down);
        Mlp { kind, gate, up, down, width, inner }
    }

    /// Its matrices, to be packed.
    pub fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.gate.iter().chain([&self.up, &self.down])
    }

    /// Its matrices (gate, up, down), to be given adapters.
    pub fn parts_mut(&mut self) -> (Option<&mut Linear>, &mut Linear, &mut Linear) {
        (self.gate.as_mut(), &mut self.up, &mut self.down)
    }

    /// Values a row that are saved: F, or 2F with a gate.
    pub fn saved_width(kind: MlpKind, inner: usize) -> usize {
        if kind.is_gated() { 2 * inner } else { inner }
    }

    /// Whether the first `count` saved values are finite; of 16 bits in mixed precision.
    pub fn saved_is_finite(up: &[f32], count: usize, half: Option<HalfKind>) -> bool {
        let Some(kind) = half else { return up[..count].iter().all(|x| x.is_finite()) };
        let bits: &[u16] = bytemuck::cast_slice(up);
        bits[..count].iter().all(|&bits| kind.value(bits).is_finite())
    }

    /// Values a row of scratch: F, and in mixed precision as many as are saved.
    pub fn scratch_width(kind: MlpKind, inner: usize, mixed: bool) -> usize {
        inner + if mixed { Mlp::saved_width(kind, inner) } else { 0 }
    }

    fn saved(&self) -> usize {
        Mlp::saved_width(self.kind, self.inner)
    }

    /// x, y: R×C; `up`: R×F (gate|up: R×2F), saved, 16 bits of them in mixed precision; `act`:
    /// scratch.
    #[expect(clippy::too_many_arguments, reason = "inputs, outputs, saved and scratch")]
    pub fn forward(
        &self,
        team: &Team,
        weights: &Parameters,
        packed: &Packed,
        x: &[f32],
        y: &mut [f32],
        up: &mut [f32],
        act: &mut [f32],
    ) {
        let (c, f, saved) = (self.width, self.inner, self.saved());
        let rows = x.len() / c;
        let kind = weights.halves_kind();
        let (act, wide) = self.scratch(kind, act);
        for first in (0..rows).step_by(MLP_ROWS) {
            let n = MLP_ROWS.min(rows - first);
            let x = &x[first * c..(first + n) * c];
            let up = self.project(team, (weights, packed), x, up, (first, n), wide);
            let act = &mut act[..n * f];
            debug_assert_eq!(up.len(), n * saved);
            self.activate(team, up, act);
            self.down.forward(team, weights, packed, act, &mut y[first * c..(first + n) * c], c, 0);
        }
    }

    /// Computes `up` again, alone: what the backward pass needs of the forward pass. x: R×C; `act`:
    /// scratch.
    pub fn recompute(
        &self,
        team: &Team,
        weights: &Parameters,
        packed: &Packed,
        x: &[f32],
        up: &mut [f32],
        act: &mut [f32],
    ) {
        let (c, rows) = (self.width, x.len() / self.width);
        let (_, wide) = self.scratch(weights.halves_kind(), act);
        for first in (0..rows).step_by(MLP_ROWS) {
            let n = MLP_ROWS.min(rows - first);
            let x = &x[first * c..(first + n) * c];
            self.project(team, (weights, packed), x, up, (first, n), wide);
        }
    }

    /// Scratch for activations, and for up's output as f32 in mixed precision.
    fn scratch<'a>(
        &self,
        kind: Option<HalfKind>,
        act: &'a mut [f32],
    ) -> (&'a mut [f32], &'a mut [f32]) {
        let rows = match kind {
            Some(_) => act.len() / Mlp::scratch_width(self.kind, self.inner, true),
            None => act.len() / self.inner,
        };
        act.split_at_mut(rows * self.inner)
    }

    /// Up's output of n rows from `first` on, saved in `up`; answers with the values to go on with.
    fn project<'a>(
        &self,
        team: &Team,
        (weights, packed): (&Parameters, &Packed),
        x: &[f32],
        up: &'a mut [f32],
        (first, n): (usize, usize),
        wide: &'a mut [f32],
    ) -> &'a [f32] {
        let (f, saved) = (self.inner, self.saved());
        let place = first * saved..(first + n) * saved;
        let kind = weights.halves_kind();
        let (values, bits) = match kind {
            Some(_) => (&mut wide[..n * saved], &mut bytemuck::cast_slice_mut(up)[place]),
            None => (&mut up[place], &mut [][..]),
        };
        if let Some(gate) = &self.gate {
            gate.forward(team, weights, packed, x, values, saved, 0);
        }
        self.up.forward(team, weights, packed, x, values, saved, saved - f);
        if let Some(kind) = kind {
            round_both(team, kind, values, bits);
        }
        values
    }

    fn activate(&self, team: &Team, up: &[f32], act: &mut [f32]) {
        match self.kind {
            MlpKind::Gelu => gelu_forward(team, up, act),
            MlpKind::SwiGlu => swiglu_forward(team, up, self.inner, act),
            MlpKind::GeluTanh => gelu_tanh_forward(team, up, act),
            MlpKind::GegluTanh => geglu_tanh_forward(team, up, self.inner, act),
            MlpKind::Relu2 => relu2_forward(team, up, act),
        }
    }

    /// d_x = gradient by x, from d_y; both R×C. Saved: x, up.
    #[expect(clippy::too_many_arguments, reason = "a backward pass takes what the forward saved")]
    pub fn backward(
        &self,
        team: &Team,
        weights: &Parameters,
        gradients: &mut Parameters,
        packed: &Packed,
        x: &[f32],
        up: &[f32],
        d_y: &[f32],
        d_x: &mut [f32],
        scratch: &mut MlpScratch,
    ) {
        let (c, f, saved) = (self.width, self.inner, self.saved());
        let rows = x.len() / c;
        let kind = weights.halves_kind();
        let (act, wide) = self.scratch(kind, scratch.act);
        for first in (0..rows).step_by(MLP_ROWS) {
            let n = MLP_ROWS.min(rows - first);
            let x = &x[first * c..(first + n) * c];
            let place = first * saved..(first + n) * saved;
            let up = match kind {
                Some(kind) => {
                    let wide = &mut wide[..n * saved];
                    widen_halves(team, kind, &bytemuck::cast_slice(up)[place], wide);
                    &*wide
                }
                None => &up[place],
            };
            let d_y = &d_y[first * c..(first + n) * c];
            let d_x = &mut d_x[first * c..(first + n) * c];
            let act = &mut act[..n * f];
            let d_up = &mut scratch.d_up[..n * saved];
            self.activate(team, up, act);
            match self.kind {
                MlpKind::Gelu | MlpKind::GeluTanh | MlpKind::Relu2 => {
                    let wanted = Some((&mut *d_up, Init::Zero));
                    self.down.backward(team, weights, gradients, packed, act, d_y, c, 0, wanted);
                    match self.kind {
                        MlpKind::Gelu => gelu_backward(team, up, d_up),
                        MlpKind::Relu2 => relu2_backward(team, up, d_up),
                        _ => gelu_tanh_backward(team, up, d_up),
                    }
                }
                MlpKind::SwiGlu | MlpKind::GegluTanh => {
                    // The activation is not needed once d_down is known: its place takes d_act.
                    self.down.backward(team, weights, gradients, packed, act, d_y, c, 0, None);
                    self.down.input_gradient(team, weights, packed, d_y, act);
                    if self.kind == MlpKind::SwiGlu {
                        swiglu_backward(team, up, f, act, d_up);
                    } else {
                        geglu_tanh_backward(team, up, f, act, d_up);
                    }
                }
            }
            let wanted = Some((&mut *d_x, Init::Zero));
            self.up.backward(team, weights, gradients, packed, x, d_up, saved, saved - f, wanted);
            if let Some(gate) = &self.gate {
                let wanted = Some((d_x, Init::Keep));
                gate.backward(team, weights, gradients, packed, x, d_up, saved, 0, wanted);
            }
        }
    }
}
