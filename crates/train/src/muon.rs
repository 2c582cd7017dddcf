//! Muon for the matrices between embeddings and output projection: one buffer of momentum instead of
//! two moments. [`AdamW`](crate::AdamW) takes the rest.

use crate::config::Recipe;
use crate::zero::ShardMap;
use kernels::{HalfKind, MuonStep, Team, muon, muon_workspace};
use ledger::{Account, Buffer, Plan, Spec};
use models::{HiddenMatrix, ModelConfig, hidden_matrices};
use std::sync::Arc;
use tensor::{Layout, Parameters};

/// The state of Muon.
#[derive(Debug)]
pub struct Muon {
    /// The momentum of each parameter that it changes.
    pub momentum: Parameters,
    matrices: Vec<(HiddenMatrix, usize)>,
    work: Buffer<f32>,
}

/// Where a matrix stands: its first values in each buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatrixSpot {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) values: usize,
    /// In the buffer of 16-bit words, where there is one.
    pub(crate) bits: usize,
    pub(crate) gradient: usize,
    pub(crate) momentum: usize,
}

/// The places in the layout of the parameters that Muon changes, ascending.
pub(crate) fn places(config: &ModelConfig, layout: &Layout) -> Vec<usize> {
    let mut all: Vec<usize> =
        hidden_matrices(config, layout).into_iter().map(|m| m.parameter).collect();
    all.dedup();
    all
}

/// Momentum of a layout, and work for matrices of some rows and columns.
fn specs(momentum: &Layout, matrices: impl Iterator<Item = (usize, usize)>) -> [Spec; 2] {
    let work = matrices.map(|(rows, cols)| muon_workspace(rows, cols));
    [
        momentum.buffer_spec("momentum", Account::Optimizer),
        Spec::new("orthogonalised matrix", Account::Workspace, work.max().unwrap_or(0)),
    ]
}

/// Rows and columns of all matrices of a network.
fn sizes(matrices: &[HiddenMatrix], layout: &Layout) -> impl Iterator<Item = (usize, usize)> {
    matrices.iter().map(|m| (m.rows.len(), layout.specs()[m.parameter].shape[1]))
}

/// Those of a rank.
fn own_sizes(map: &ShardMap) -> impl Iterator<Item = (usize, usize)> {
    map.matrices.iter().map(|own| (own.rows, own.cols))
}

impl Muon {
    /// What [`Muon::new`] will allocate.
    pub fn plan(config: &ModelConfig, layout: &Layout) -> Plan {
        let some = layout.of_some(places(config, layout));
        let mut plan = Plan::default();
        let matrices = hidden_matrices(config, layout);
        specs(&some, sizes(&matrices, layout)).iter().for_each(|spec| plan.add(spec));
        plan
    }

    /// What [`Muon::of_rank`] will allocate.
    pub(crate) fn plan_rank(map: &ShardMap) -> Plan {
        let mut plan = Plan::default();
        specs(&map.momentum, own_sizes(map)).iter().for_each(|spec| plan.add(spec));
        plan
    }

    /// No momentum yet, of the matrices that a rank holds.
    ///
    /// # Errors
    /// When memory is not to be had.
    pub(crate) fn of_rank(map: &ShardMap) -> Result<Muon, ledger::Error> {
        let [_, work] = specs(&map.momentum, own_sizes(map));
        Ok(Muon {
            momentum: Parameters::zeros(&map.momentum, "momentum", Account::Optimizer)?,
            matrices: Vec::new(),
            work: Buffer::new(&work)?,
        })
    }

    /// No momentum yet.
    ///
    /// # Errors
    /// When memory is not to be had.
    pub fn new(config: &ModelConfig, layout: &Layout) -> Result<Muon, ledger::Error> {
        let places = places(config, layout);
        let some = Arc::new(layout.of_some(places.iter().copied()));
        let matrices = hidden_matrices(config, layout);
        let [_, work] = specs(&some, sizes(&matrices, layout));
        let place = |whole: HiddenMatrix| {
            let in_momentum = places.iter().position(|&i| i == whole.parameter);
            in_momentum.map(|in_momentum| (whole, in_momentum))
        };
        Ok(Muon {
            momentum: Parameters::zeros(&some, "momentum", Account::Optimizer)?,
            matrices: matrices.into_iter().filter_map(place).collect(),
            work: Buffer::new(&work)?,
        })
    }

    /// One step where the schedule stands at `share` of its largest rate; the gradient is multiplied
    /// by `gradient_scale`. Answers with the weights that moved while their 16 bits stayed, in mixed
    /// precision.
    pub fn step(
        &mut self,
        team: &Team,
        recipe: &Recipe,
        (share, gradient_scale): (f64, f64),
        weights: &mut Parameters,
        gradients: &Parameters,
    ) -> u64 {
        let (layout, own) = (Arc::clone(weights.layout()), Arc::clone(self.momentum.layout()));
        let spot = |(whole, in_momentum): &(HiddenMatrix, usize)| {
            let spec = &layout.specs()[whole.parameter];
            let cols = spec.shape[1];
            let from = |start: usize| start + whole.rows.start * cols;
            MatrixSpot {
                rows: whole.rows.len(),
                cols,
                values: from(spec.range.start),
                bits: from(spec.range.start),
                gradient: from(gradients.layout().specs()[whole.parameter].range.start),
                momentum: from(own.specs()[*in_momentum].range.start),
            }
        };
        let spots: Vec<MatrixSpot> = self.matrices.iter().map(spot).collect();
        let to = weights.values_and_halves_mut();
        self.apply(team, (recipe, share, gradient_scale), &spots, to, gradients.flat())
    }

    /// The same of matrices at given places.
    pub(crate) fn apply(
        &mut self,
        team: &Team,
        (recipe, share, gradient_scale): (&Recipe, f64, f64),
        spots: &[MatrixSpot],
        (values, mut halves): (&mut [f32], Option<(HalfKind, &mut [u16])>),
        gradients: &[f32],
    ) -> u64 {
        let step = MuonStep {
            rate: (recipe.muon_learning_rate * share) as f32,
            momentum: recipe.muon_momentum as f32,
            decay: recipe.muon_weight_decay as f32,
            gradient_scale: gradient_scale as f32,
        };
        let mut lost = 0;
        for spot in spots {
            let part = |start: usize| start..start + spot.rows * spot.cols;
            let bits = halves.as_mut().map(|(kind, bits)| (*kind, &mut bits[part(spot.bits)]));
            lost += muon(
                team,
                step,
                (spot.rows, spot.cols),
                (&mut values[part(spot.values)], bits),
                &gradients[part(spot.gradient)],
                &mut self.momentum.flat_mut()[part(spot.momentum)],
                &mut self.work,
            );
        }
        lost
    }
}
