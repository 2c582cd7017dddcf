//! One optimizer step: batch, forward, backward, clip, update.

use crate::config::{OptimizerKind, Recipe, TrainConfig};
use crate::data::{BatchShape, Sequences};
use crate::muon::{self, Muon};
use crate::optimizer::AdamW;
use kernels::Team;
use ledger::{Account, Plan};
use models::{Batch, Dropout, Model, ModelConfig, Runner, Workload};
use std::sync::Arc;
use tensor::{Layout, Parameters};

/// A model in training: weights, gradients, moments, activations.
pub struct Trainer {
    /// The model.
    pub model: Model,
    /// Its moments.
    pub optimizer: AdamW,
    /// Its momentum, where Muon changes its matrices.
    pub muon: Option<Muon>,
    recipe: Recipe,
    gradients: Parameters,
    runner: Runner,
    batch: Batch,
    ids: Vec<u32>,
}

/// What one step did.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepReport {
    /// Sum of the losses of all real targets, nats.
    pub loss_sum: f64,
    /// Real targets.
    pub targets: u64,
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Whether it was clipped.
    pub clipped: bool,
    /// Whether weights were changed: not without targets, nor by a gradient that is not finite.
    pub applied: bool,
}

fn workload(shape: BatchShape, threads: usize) -> Workload {
    let BatchShape { rows, longest, sequences, .. } = shape;
    Workload { rows, sequences, longest, threads, training: true }
}

/// The places of the parameters that AdamW changes: all that learn, but for Muon's.
fn adams(config: &ModelConfig, recipe: &Recipe, layout: &Layout) -> Vec<usize> {
    let muons = match recipe.optimizer {
        OptimizerKind::Adamw => Vec::new(),
        OptimizerKind::Muon => muon::places(config, layout),
    };
    let learns = |&i: &usize| config.trains(&layout.specs()[i].name);
    let places = (0..layout.specs().len()).filter(learns);
    places.filter(|i| muons.binary_search(i).is_err()).collect()
}

impl Trainer {
    /// What [`Trainer::new`] will allocate.
    ///
    /// # Errors
    /// When the configuration makes no network.
    pub fn plan(
        config: &TrainConfig,
        shape: BatchShape,
        threads: usize,
    ) -> Result<Plan, models::Error> {
        let layout = Model::layout_of(&config.model)?;
        let mut plan = Model::plan(&config.model)?;
        let learning = layout.with_room_for(|spec| config.model.trains(&spec.name));
        plan.add(&learning.buffer_spec("gradients", Account::Gradients));
        let places = adams(&config.model, &config.train, &layout);
        plan.extend(AdamW::plan(&layout.of_some(places)));
        if config.train.optimizer == OptimizerKind::Muon {
            plan.extend(Muon::plan(&config.model, &layout));
        }
        let workload = workload(shape, threads);
        plan.extend(Runner::plan_recomputing(&config.model, &workload, shape.recompute)?);
        Ok(plan)
    }

    /// A fresh model, initialised from the recipe's seed, for batches of up to `shape`.
    ///
    /// # Errors
    /// When the configuration makes no network, or memory is not to be had.
    pub fn new(
        config: &TrainConfig,
        shape: BatchShape,
        team: &Arc<Team>,
    ) -> Result<Trainer, models::Error> {
        let mut model = Model::new(&config.model)?;
        model.weights_mut().initialise(config.train.seed);
        Trainer::of(model, &config.train, shape, team)
    }

    /// The same for a model that has weights.
    ///
    /// # Errors
    /// When there is no gradient for it, or memory is not to be had.
    pub fn of(
        model: Model,
        recipe: &Recipe,
        shape: BatchShape,
        team: &Arc<Team>,
    ) -> Result<Trainer, models::Error> {
        let layout = Arc::clone(model.layout());
        let config = model.config();
        let learning = Arc::new(layout.with_room_for(|spec| config.trains(&spec.name)));
        let gradients = Parameters::zeros(&learning, "gradients", Account::Gradients)?;
        let optimizer = AdamW::of_some(&layout, adams(config, recipe, &layout))?;
        let muon = match recipe.optimizer {
            OptimizerKind::Adamw => None,
            OptimizerKind::Muon => Some(Muon::new(config, &layout)?),
        };
        let workload = workload(shape, team.threads());
        let runner = Runner::recomputing(&model, workload, shape.recompute, team)?;
        Ok(Trainer {
            model,
            optimizer,
            muon,
            recipe: recipe.clone(),
            gradients,
            runner,
            batch: Batch::default(),
            ids: Vec::new(),
        })
    }

    /// Trains a miniature of the same kind for one step, so that the program's own code is in
    /// memory before the runtime's share is measured.
    pub fn warm_up(config: &TrainConfig, team: &Arc<Team>) {
        let mut small = config.clone();
        small.train.batch = 4;
        small.train.micro_batch = 4;
        match &mut small.model {
            ModelConfig::Transformer(c) => {
                (c.vocab_size, c.hidden_size, c.intermediate_size) = (64, 16, 32);
                (c.num_hidden_layers, c.num_attention_heads, c.max_position_embeddings) = (1, 1, 8);
                (c.num_key_value_heads, c.head_dim) = (None, None);
                (c.rope_scaling, c.sliding_window) = (None, None);
                c.storage.clear();
                c.lora.iter_mut().for_each(|lora| lora.rank = 2);
            }
            ModelConfig::Rnn(c) => (c.vocab_size, c.embedding_size, c.hidden_size) = (64, 16, 16),
            ModelConfig::Ngram(_) => return,
        }
        let data: Vec<Vec<u32>> = (0..4).map(|s| (s..s + 8).collect()).collect();
        if let Ok(mut trainer) = Trainer::new(&small, BatchShape::full(&small.train, 8), team) {
            trainer.step(&data, &[0, 1, 2, 3], 0, 1e-3);
            let (model, runner) = trainer.evaluator();
            crate::evaluate(&mut crate::Evaluator::Network(model, runner), &data, 4, None);
        }
        ledger::reset_peak();
    }

    /// One step over the sequences named by `indices`, `micro_batch` of them at a time: the loss is
    /// the mean over all their real targets, however they are cut. `epoch` and the index give a
    /// sequence its dropout.
    pub fn step(
        &mut self,
        data: &dyn Sequences,
        indices: &[u32],
        epoch: u64,
        rate: f64,
    ) -> StepReport {
        let targets: u64 = indices.iter().map(|&i| data.num_targets(i as usize)).sum();
        let mut report = StepReport { targets, ..StepReport::default() };
        if targets == 0 {
            return report;
        }
        let team = Arc::clone(self.runner.team());
        let scale = (1.0 / targets as f64) as f32;
        let dropout = (self.recipe.dropout > 0.0).then_some(Dropout {
            rate: self.recipe.dropout,
            stream: kernels::stream_key(self.recipe.seed, 0x6472_6f70, epoch),
        });
        self.gradients.clear(&team);
        for part in indices.chunks(self.recipe.micro_batch) {
            self.batch.clear();
            for &i in part {
                data.add_to(i as usize, &mut self.batch, &mut self.ids);
            }
            let losses =
                self.runner.train(&self.model, &self.batch, scale, dropout, &mut self.gradients);
            report.loss_sum += losses.iter().map(|&l| f64::from(l)).sum::<f64>();
        }
        if !report.loss_sum.is_finite() {
            report.gradient_norm = f64::NAN;
            return report;
        }
        let weights = self.model.weights_mut();
        let applied = self.optimizer.step(&team, &self.recipe, rate, weights, &self.gradients);
        if let Some(muon) = self.muon.as_mut().filter(|_| applied.gradient_norm.is_finite()) {
            let share = rate / self.recipe.learning_rate;
            muon.step(&team, &self.recipe, (share, applied.factor), weights, &self.gradients);
        }
        self.runner.weights_changed();
        report.gradient_norm = applied.gradient_norm;
        report.clipped = applied.clipped;
        report.applied = applied.gradient_norm.is_finite();
        report
    }

    /// The model and its runner, for evaluation between steps.
    pub fn evaluator(&mut self) -> (&Model, &mut Runner) {
        (&self.model, &mut self.runner)
    }

    /// Must be called after weights were replaced from outside.
    pub fn weights_changed(&mut self) {
        self.runner.weights_changed();
    }

    /// The model alone: all else is given back.
    pub fn into_model(self) -> Model {
        self.model
    }

    /// The gradients of the last step.
    pub fn gradients(&self) -> &Parameters {
        &self.gradients
    }
}
