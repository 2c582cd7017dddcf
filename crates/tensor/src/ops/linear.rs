//! y = W·x + b.

use super::adapter::{Adapter, frozen_input_gradient};
use crate::{Initial, Layout, Panels, ParamId, Parameters};
use kernels::{
    Factor, Init, Mat, Team, column_sums, half_matmul, matmul, pack_transposed, packed_len,
    quant_matmul, quantise_rows,
};
use std::cell::RefCell;
use std::ops::Range;

/// What products read beside the weights.
pub struct Packed<'a> {
    /// The packed forms of matrices of values: of all, or of those of a layer.
    pub matrices: &'a [f32],
    /// Where these begin among all.
    pub from: usize,
    /// Room for rounded rows of x, where matrices are quantised.
    pub rounded: RefCell<&'a mut [f32]>,
    /// Room for adapters, and for rows of matrices that do not learn.
    pub work: RefCell<&'a mut [f32]>,
}

/// A matrix W (outputs×inputs, row-major), with or without a bias. The forward pass reads W in a
/// packed form, made by [`Linear::pack`] whenever weights have changed; a matrix in panels is read
/// as it is.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: ParamId,
    bias: Option<ParamId>,
    inputs: usize,
    outputs: usize,
    /// Where its packed form starts.
    packed_at: usize,
    /// What learns in its place.
    adapters: Vec<Adapter>,
}

impl Linear {
    /// Adds `name.weight` (and `name.bias`) to the layout; `packed` grows by the packed form.
    pub fn new(
        layout: &mut Layout,
        packed: &mut usize,
        name: &str,
        (outputs, inputs): (usize, usize),
        bias: bool,
        initial: Initial,
    ) -> Linear {
        let weight = layout.add(&format!("{name}.weight"), &[outputs, inputs], initial, true);
        let bias = bias.then(|| {
            layout.add(&format!("{name}.bias"), &[outputs], Initial::Constant(0.0), false)
        });
        let mut whole = 0;
        let linear = Linear::of(&mut whole, weight, bias, (outputs, inputs));
        let packed_at = *packed;
        *packed += if layout.is_packed(weight) { 0 } else { whole };
        Linear { packed_at, ..linear }
    }

    /// The same over parameters that the layout already has.
    pub fn of(
        packed: &mut usize,
        weight: ParamId,
        bias: Option<ParamId>,
        (outputs, inputs): (usize, usize),
    ) -> Linear {
        let packed_at = *packed;
        *packed += packed_len(outputs, inputs);
        Linear { weight, bias, inputs, outputs, packed_at, adapters: Vec::new() }
    }

    /// Adds an adapter to what it computes.
    pub fn adapt(&mut self, adapter: Adapter) {
        self.adapters.push(adapter);
    }

    /// Whether something adds to what it computes.
    pub fn is_adapted(&self) -> bool {
        !self.adapters.is_empty()
    }

    /// Inputs.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Outputs.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Its packed form.
    pub fn packed<'a>(&self, packed: &Packed<'a>) -> &'a [f32] {
        &packed.matrices[self.place(packed.from)]
    }

    /// Where its packed form stands in what begins at `from`.
    fn place(&self, from: usize) -> Range<usize> {
        let start = self.packed_at - from;
        start..start + packed_len(self.outputs, self.inputs)
    }

    /// Packs W from `weights` into its place in `packed`, which begins at `from` among all packed
    /// forms.
    pub fn pack(&self, team: &Team, weights: &Parameters, packed: &mut [f32], from: usize) {
        if weights.halves_kind().is_some() {
            return;
        }
        let adapters = self.adapters.iter().flat_map(Adapter::linears);
        adapters.for_each(|linear| linear.pack(team, weights, packed, from));
        if weights.layout().is_packed(self.weight) {
            return;
        }
        let place = self.place(from);
        pack_transposed(
            team,
            weights.get(self.weight),
            self.outputs,
            self.inputs,
            &mut packed[place],
        );
    }

    /// y (R×outputs, in rows of `y_stride` from column `y_from`) = W·x + b; x: R×inputs.
    #[expect(clippy::too_many_arguments, reason = "y may be a window of wider rows")]
    pub fn forward(
        &self,
        team: &Team,
        weights: &Parameters,
        packed: &Packed,
        x: &[f32],
        y: &mut [f32],
        y_stride: usize,
        y_from: usize,
    ) {
        if weights.layout().is_packed(self.weight) {
            let bias = self.bias.map_or(&[][..], |id| weights.get(id));
            packed_product(team, weights, self.weight, bias, packed, x, y, y_stride, y_from);
        } else {
            let init = self.bias.map_or(Init::Zero, |id| Init::Bias(weights.get(id)));
            self.product(team, weights, packed, x, init, (&mut *y, y_stride, y_from));
        }
        for adapter in &self.adapters {
            adapter.forward(team, weights, packed, x, (&mut *y, y_stride, y_from));
        }
    }

    /// y += W·x.
    pub(crate) fn add(
        &self,
        team: &Team,
        weights: &Parameters,
        packed: &Packed,
        x: &[f32],
        y: (&mut [f32], usize, usize),
    ) {
        self.product(team, weights, packed, x, Init::Keep, y);
    }

    fn product(
        &self,
        team: &Team,
        weights: &Parameters,
        packed: &Packed,
        x: &[f32],
        init: Init,
        (y, y_stride, y_from): (&mut [f32], usize, usize),
    ) {
        let rows = x.len() / self.inputs;
        if let Some(w) = self.halves(weights) {
            let factors = (Mat::new(x, rows, self.inputs).into(), w.transposed());
            return weights.product(team, factors, init, y, (y_stride, y_from));
        }
        let w = self.packed(packed);
        let b = Mat { row_stride: 0, ..Mat::new(w, self.inputs, self.outputs) };
        matmul(team, Mat::new(x, rows, self.inputs), b, init, y, y_stride, y_from);
    }

    /// Adds d_W = d_yᵀ·x and d_b = Σ d_y to `gradients`, where they learn; d_x = (init) + d_y·W where
    /// wanted. Saved: x.
    #[expect(clippy::too_many_arguments, reason = "a backward pass takes what the forward saved")]
    pub fn backward(
        &self,
        team: &Team,
        weights: &Parameters,
        gradients: &mut Parameters,
        packed: &Packed,
        x: &[f32],
        d_y: &[f32],
        d_y_stride: usize,
        d_y_from: usize,
        d_x: Option<(&mut [f32], Init)>,
    ) {
        let d = (d_y, d_y_stride, d_y_from);
        let Some((d_x, init)) = d_x else {
            self.backward_plain(team, weights, gradients, x, d, None);
            for adapter in &self.adapters {
                adapter.backward(team, weights, gradients, packed, x, d, None);
            }
            return;
        };
        if weights.layout().is_packed(self.weight) {
            let work = &mut packed.work.borrow_mut();
            frozen_input_gradient(team, weights, self.weight, d, (&mut *d_x, init), work);
        } else {
            let wanted = Some((&mut *d_x, init));
            self.backward_plain(team, weights, gradients, x, d, wanted);
        }
        for adapter in &self.adapters {
            adapter.backward(team, weights, gradients, packed, x, d, Some(&mut *d_x));
        }
    }

    /// The same for the matrix alone, kept as values.
    pub(crate) fn backward_plain(
        &self,
        team: &Team,
        weights: &Parameters,
        gradients: &mut Parameters,
        x: &[f32],
        (d_y, d_y_stride, d_y_from): (&[f32], usize, usize),
        d_x: Option<(&mut [f32], Init)>,
    ) {
        let rows = x.len() / self.inputs;
        let x = Mat::new(x, rows, self.inputs);
        if weights.halves_kind().is_some() {
            let d = (d_y, d_y_stride, d_y_from);
            return self.backward_mixed(team, weights, gradients, (x.into(), rows), d, d_x);
        }
        let d = Mat::columns(d_y, rows, d_y_stride, d_y_from, self.outputs);
        let (d_weight, d_bias) = gradients.pair_mut(self.weight, self.bias);
        if rows > 0 && !d_weight.is_empty() {
            matmul(team, d.transposed(), x, Init::Keep, d_weight, self.inputs, 0);
            column_sums(team, d_y, rows, d_y_stride, d_y_from, d_bias);
        }
        if let Some(wanted) = d_x {
            self.plain_input_gradient(team, weights, (d_y, d_y_stride, d_y_from), wanted);
        }
    }

    /// y = W·x + b in mixed precision, x in 16 bits.
    pub fn forward_halves(
        &self,
        team: &Team,
        weights: &Parameters,
        x: &[u16],
        (y, y_stride, y_from): (&mut [f32], usize, usize),
    ) {
        let init = self.bias.map_or(Init::Zero, |id| Init::Bias(weights.get(id)));
        let x = Factor::halves(x, x.len() / self.inputs, self.inputs);
        if let Some(w) = self.halves(weights) {
            weights.product(team, (x, w.transposed()), init, y, (y_stride, y_from));
        }
    }

    /// [`Linear::backward`] in mixed precision, x in 16 bits.
    pub fn backward_halves(
        &self,
        team: &Team,
        weights: &Parameters,
        gradients: &mut Parameters,
        x: &[u16],
        d_y: (&[f32], usize, usize),
        d_x: &mut [f32],
    ) {
        let rows = x.len() / self.inputs;
        let x = (Factor::halves(x, rows, self.inputs), rows);
        self.backward_mixed(team, weights, gradients, x, d_y, Some((d_x, Init::Zero)));
    }

    fn backward_mixed(
        &self,
        team: &Team,
        weights: &Parameters,
        gradients: &mut Parameters,
        (x, rows): (Factor, usize),
        (d_y, d_y_stride, d_y_from): (&[f32], usize, usize),
        d_x: Option<(&mut [f32], Init)>,
    ) {
        let d = Mat::columns(d_y, rows, d_y_stride, d_y_from, self.outputs);
        let (d_weight, d_bias) = gradients.pair_mut(self.weight, self.bias);
        if rows > 0 && !d_weight.is_empty() {
            let factors = (d.transposed().into(), x);
            weights.product(team, factors, Init::Keep, d_weight, (self.inputs, 0));
            column_sums(team, d_y, rows, d_y_stride, d_y_from, d_bias);
        }
        if let Some(wanted) = d_x {
            self.plain_input_gradient(team, weights, (d_y, d_y_stride, d_y_from), wanted);
        }
    }

    /// W in 16 bits, in mixed precision.
    fn halves<'a>(&self, weights: &'a Parameters) -> Option<Factor<'a>> {
        weights.half(self.weight).map(|bits| Factor::halves(bits, self.outputs, self.inputs))
    }

    /// d_x = d_y·W alone, d_y without gaps.
    pub fn input_gradient(
        &self,
        team: &Team,
        weights: &Parameters,
        packed: &Packed,
        d_y: &[f32],
        d_x: &mut [f32],
    ) {
        if weights.layout().is_packed(self.weight) {
            let (work, d) = (&mut packed.work.borrow_mut(), (d_y, self.outputs, 0));
            frozen_input_gradient(team, weights, self.weight, d, (&mut *d_x, Init::Zero), work);
        } else {
            self.plain_input_gradient(team, weights, (d_y, self.outputs, 0), (d_x, Init::Zero));
        }
        for adapter in &self.adapters {
            adapter.input_gradient(team, weights, packed, (d_y, self.outputs, 0), d_x);
        }
    }

    /// d_x = (init) + d_y·W for a matrix of values, or of their 16 bits.
    pub(crate) fn plain_input_gradient(
        &self,
        team: &Team,
        weights: &Parameters,
        (d_y, d_y_stride, d_y_from): (&[f32], usize, usize),
        (d_x, init): (&mut [f32], Init),
    ) {
        let rows = d_x.len() / self.inputs;
        let d = Mat::columns(d_y, rows, d_y_stride, d_y_from, self.outputs);
        if let Some(w) = self.halves(weights) {
            return weights.product(team, (d.into(), w), init, d_x, (self.inputs, 0));
        }
        let w = Mat::new(weights.get(self.weight), self.outputs, self.inputs);
        matmul(team, d, w, init, d_x, self.inputs, 0);
    }
}

/// y (rows of `y_stride` from column `y_from`) = W·x + b for W in panels, x without gaps.
#[expect(clippy::too_many_arguments, reason = "y may be a window of wider rows")]
pub fn packed_product(
    team: &Team,
    weights: &Parameters,
    weight: ParamId,
    bias: &[f32],
    packed: &Packed,
    x: &[f32],
    y: &mut [f32],
    y_stride: usize,
    y_from: usize,
) {
    let inputs = weights.layout().specs()[weight.index()].shape[1];
    let of = |rows: &Range<usize>| if bias.is_empty() { bias } else { &bias[rows.clone()] };
    let parts = || weights.matrices(weight);
    for (rows, panels) in parts() {
        if let Panels::Half(matrix) = panels {
            half_matmul(team, x, &matrix, of(&rows), y, y_stride, y_from + rows.start);
        }
    }
    if !parts().any(|(_, panels)| matches!(panels, Panels::Quant(_))) {
        return;
    }
    let mut workspace = packed.rounded.borrow_mut();
    let x = quantise_rows(team, x, inputs, &mut workspace);
    for (rows, panels) in parts() {
        if let Panels::Quant(matrix) = panels {
            quant_matmul(team, &x, &matrix, of(&rows), y, y_stride, y_from + rows.start);
        }
    }
}
