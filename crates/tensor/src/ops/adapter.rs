//! Low-rank adapters of matrices that do not learn themselves (LoRA: Hu et al., arXiv 2106.09685):
//! y[rows] += s·B·(A·x). And what the matrix beside them then needs of a backward pass: the gradient
//! by its input, whatever it is kept as.

use super::{Linear, Packed};
use crate::{Initial, Layout, Panels, ParamId, Parameters};
use kernels::{Init, Mat, Team, matmul, scale, unpack_half_rows, unpack_quant_rows};
use std::ops::Range;

/// Two small matrices beside some rows of a large one.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// A: rank×inputs.
    down: Linear,
    /// B: rows×rank.
    up: Linear,
    /// Which outputs of the large one.
    rows: Range<usize>,
    /// s: α/rank.
    factor: f32,
}

impl Adapter {
    /// Adds `name.lora_a.weight` (uniform in ±1/√inputs) and `name.lora_b.weight` (zero) to the
    /// layout.
    pub fn new(
        layout: &mut Layout,
        packed: &mut usize,
        name: &str,
        (rows, inputs): (Range<usize>, usize),
        (rank, factor): (usize, f32),
    ) -> Adapter {
        let spread = Initial::Uniform((1.0 / inputs as f32).sqrt());
        let mut linear = |part: &str, shape, initial| {
            Linear::new(layout, packed, &format!("{name}.{part}"), shape, false, initial)
        };
        let down = linear("lora_a", (rank, inputs), spread);
        let up = linear("lora_b", (rows.len(), rank), Initial::Constant(0.0));
        Adapter { down, up, rows, factor }
    }

    /// A and B, to be packed.
    pub(crate) fn linears(&self) -> [&Linear; 2] {
        [&self.down, &self.up]
    }

    /// Values of workspace for `rows` rows of x: A·x and its gradient.
    pub fn work(rows: usize, rank: usize) -> usize {
        2 * rows * rank
    }

    /// y[rows] += s·B·(A·x); y in rows of `y_stride` from column `y_from`.
    pub(crate) fn forward(
        &self,
        team: &Team,
        weights: &Parameters,
        packed: &Packed,
        x: &[f32],
        (y, y_stride, y_from): (&mut [f32], usize, usize),
    ) {
        let work = &mut *packed.work.borrow_mut();
        let z = self.inner(team, weights, packed, x, work);
        self.up.add(team, weights, packed, z, (y, y_stride, y_from + self.rows.start));
    }

    /// s·A·x, at the start of the workspace.
    fn inner<'w>(
        &self,
        team: &Team,
        weights: &Parameters,
        packed: &Packed,
        x: &[f32],
        work: &'w mut [f32],
    ) -> &'w mut [f32] {
        let rank = self.down.outputs();
        let z = &mut work[..x.len() / self.down.inputs() * rank];
        self.down.forward(team, weights, packed, x, z, rank, 0);
        scale(team, z, self.factor);
        z
    }

    /// Adds the gradients of A and B, and those of x to d_x where wanted. Saved: x.
    #[expect(clippy::too_many_arguments, reason = "a backward pass takes what the forward saved")]
    pub(crate) fn backward(
        &self,
        team: &Team,
        weights: &Parameters,
        gradients: &mut Parameters,
        packed: &Packed,
        x: &[f32],
        (d_y, d_y_stride, d_y_from): (&[f32], usize, usize),
        d_x: Option<&mut [f32]>,
    ) {
        let rank = self.down.outputs();
        let mut guard = packed.work.borrow_mut();
        let (work, rest) = guard.split_at_mut(x.len() / self.down.inputs() * rank);
        let z = &*self.inner(team, weights, packed, x, work);
        let d_z = &mut rest[..z.len()];
        let (from, wanted) = (d_y_from + self.rows.start, Some((&mut *d_z, Init::Zero)));
        self.up.backward_plain(team, weights, gradients, z, (d_y, d_y_stride, from), wanted);
        scale(team, d_z, self.factor);
        let wanted = d_x.map(|d_x| (d_x, Init::Keep));
        self.down.backward_plain(team, weights, gradients, x, (d_z, rank, 0), wanted);
    }

    /// Adds the gradient of x alone to d_x.
    pub(crate) fn input_gradient(
        &self,
        team: &Team,
        weights: &Parameters,
        packed: &Packed,
        (d_y, d_y_stride, d_y_from): (&[f32], usize, usize),
        d_x: &mut [f32],
    ) {
        let rank = self.down.outputs();
        let work = &mut packed.work.borrow_mut();
        let d_z = &mut work[..d_x.len() / self.down.inputs() * rank];
        let d_y = (d_y, d_y_stride, d_y_from + self.rows.start);
        self.up.plain_input_gradient(team, weights, d_y, (&mut *d_z, Init::Zero));
        scale(team, d_z, self.factor);
        self.down.plain_input_gradient(team, weights, (d_z, rank, 0), (d_x, Init::Keep));
    }
}

/// Rows of a matrix in panels that are unpacked at a time.
pub const FROZEN_ROWS: usize = 256;

/// Values of workspace that [`frozen_input_gradient`] needs for matrices of up to `inputs` columns.
pub fn frozen_work(inputs: usize) -> usize {
    FROZEN_ROWS * inputs
}

/// d_x (R×K, from `init`) = d_y·W for W in panels; d_y in rows of `d_y_stride` from column
/// `d_y_from`. Rows of W are taken in ascending order.
pub fn frozen_input_gradient(
    team: &Team,
    weights: &Parameters,
    weight: ParamId,
    (d_y, d_y_stride, d_y_from): (&[f32], usize, usize),
    (d_x, mut init): (&mut [f32], Init),
    work: &mut [f32],
) {
    let inputs = weights.layout().specs()[weight.index()].shape[1];
    let rows = d_x.len() / inputs;
    for (range, panels) in weights.matrices(weight) {
        for first in (0..range.len()).step_by(FROZEN_ROWS) {
            let n = FROZEN_ROWS.min(range.len() - first);
            let tile = &mut work[..n * inputs];
            match panels {
                Panels::Half(matrix) => unpack_half_rows(team, &matrix, first, tile),
                Panels::Quant(matrix) => unpack_quant_rows(team, &matrix, first, tile),
            }
            let from = d_y_from + range.start + first;
            let d = Mat::columns(d_y, rows, d_y_stride, from, n);
            matmul(team, d, Mat::new(tile, n, inputs), init, d_x, inputs, 0);
            init = Init::Keep;
        }
    }
}
