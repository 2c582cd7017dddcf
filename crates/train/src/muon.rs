//! Muon for the matrices between embeddings and output projection: one buffer of momentum instead of
//! two moments. [`AdamW`](crate::AdamW) takes the rest.

use crate::config::Recipe;
use kernels::{MuonStep, Team, muon, muon_workspace};
use ledger::{Account, Buffer, Plan, Spec};
use models::{HiddenMatrix, ModelConfig, hidden_matrices};
use std::sync::Arc;
use tensor::{Layout, Parameters};

/// The state of Muon.
#[derive(Debug)]
pub struct Muon {
    /// The momentum of each parameter that it changes.
    pub momentum: Parameters,
    matrices: Vec<Matrix>,
    work: Buffer<f32>,
}

/// Rows of one parameter, by its places in both layouts.
#[derive(Debug)]
struct Matrix {
    whole: HiddenMatrix,
    in_momentum: usize,
}

/// The places in the layout of the parameters that Muon changes, ascending.
pub(crate) fn places(config: &ModelConfig, layout: &Layout) -> Vec<usize> {
    let mut all: Vec<usize> =
        hidden_matrices(config, layout).into_iter().map(|m| m.parameter).collect();
    all.dedup();
    all
}

fn specs(layout: &Layout, momentum: &Layout, matrices: &[HiddenMatrix]) -> [Spec; 2] {
    let work = matrices.iter().map(|m| {
        let cols = layout.specs()[m.parameter].shape[1];
        muon_workspace(m.rows.len(), cols)
    });
    [
        momentum.buffer_spec("momentum", Account::Optimizer),
        Spec::new("orthogonalised matrix", Account::Workspace, work.max().unwrap_or(0)),
    ]
}

impl Muon {
    /// What [`Muon::new`] will allocate.
    pub fn plan(config: &ModelConfig, layout: &Layout) -> Plan {
        let some = layout.of_some(places(config, layout));
        let mut plan = Plan::default();
        let specs = specs(layout, &some, &hidden_matrices(config, layout));
        specs.iter().for_each(|spec| plan.add(spec));
        plan
    }

    /// No momentum yet.
    ///
    /// # Errors
    /// When memory is not to be had.
    pub fn new(config: &ModelConfig, layout: &Layout) -> Result<Muon, ledger::Error> {
        let places = places(config, layout);
        let some = Arc::new(layout.of_some(places.iter().copied()));
        let matrices = hidden_matrices(config, layout);
        let [_, work] = specs(layout, &some, &matrices);
        let place = |whole: HiddenMatrix| {
            let in_momentum = places.iter().position(|&i| i == whole.parameter);
            in_momentum.map(|in_momentum| Matrix { whole, in_momentum })
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
        let step = MuonStep {
            rate: (recipe.muon_learning_rate * share) as f32,
            momentum: recipe.muon_momentum as f32,
            decay: recipe.muon_weight_decay as f32,
            gradient_scale: gradient_scale as f32,
        };
        let layout = Arc::clone(weights.layout());
        let own = Arc::clone(self.momentum.layout());
        let (values, mut halves) = weights.values_and_halves_mut();
        let mut lost = 0;
        for Matrix { whole, in_momentum } in &self.matrices {
            let spec = &layout.specs()[whole.parameter];
            let cols = spec.shape[1];
            let part =
                |start: usize| start + whole.rows.start * cols..start + whole.rows.end * cols;
            let gradient = gradients.layout().specs()[whole.parameter].range.start;
            let place = part(spec.range.start);
            let bits = halves.as_mut().map(|(kind, bits)| (*kind, &mut bits[place.clone()]));
            lost += muon(
                team,
                step,
                (whole.rows.len(), cols),
                (&mut values[place], bits),
                &gradients.flat()[part(gradient)],
                &mut self.momentum.flat_mut()[part(own.specs()[*in_momentum].range.start)],
                &mut self.work,
            );
        }
        lost
    }
}
