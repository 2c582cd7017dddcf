//! One optimizer step: batch, forward, backward, clip, update.

use crate::config::{OptimizerKind, Recipe, TrainConfig};
use crate::data::{BatchShape, Sequences};
use crate::muon::{self, Muon};
use crate::optimizer::AdamW;
use crate::precision::LossScale;
use kernels::{HalfKind, Team};
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
    /// In half precision.
    scale: Option<LossScale>,
    /// The first tensor that was not finite.
    broken: Option<String>,
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
    /// Whether the gradient of a scaled loss overflowed: the scale was halved, nothing else changed.
    pub overflowed: bool,
    /// The factor of the loss in half precision.
    pub loss_scale: Option<f32>,
    /// The share of weights that moved while their 16 bits stayed, in mixed precision.
    pub lost_share: Option<f64>,
    /// The largest attention score, scaled as softmax sees it.
    pub largest_score: Option<f32>,
    /// The mean of log Σ e^logit over real targets, nats.
    pub log_z: f64,
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
        let workload = workload(shape, threads);
        let half = config.train.precision.half();
        let mut plan = match half {
            Some(kind) => layout.mixed_specs(Runner::mixed(&config.model, &workload, kind)?),
            None => Model::plan(&config.model)?,
        };
        let learning = layout.with_room_for(|spec| config.model.trains(&spec.name));
        plan.add(&learning.buffer_spec("gradients", Account::Gradients));
        let places = adams(&config.model, &config.train, &layout);
        plan.extend(AdamW::plan(&layout.of_some(places)));
        if config.train.optimizer == OptimizerKind::Muon {
            plan.extend(Muon::plan(&config.model, &layout));
        }
        plan.extend(Runner::plan_training(&config.model, &workload, shape.recompute, half)?);
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
        mut model: Model,
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
        let half = recipe.precision.half();
        if let Some(kind) = half {
            let mixed = Runner::mixed(model.config(), &workload, kind)?;
            model.weights_mut().keep_halves(team, mixed)?;
        }
        let runner = Runner::recomputing(&model, workload, shape.recompute, team)?;
        let scaled = half == Some(HalfKind::F16);
        Ok(Trainer {
            model,
            optimizer,
            muon,
            recipe: recipe.clone(),
            gradients,
            runner,
            batch: Batch::default(),
            ids: Vec::new(),
            scale: scaled.then(LossScale::default),
            broken: None,
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
        let factor = self.scale.map_or(1.0, |scale| scale.factor);
        report.loss_scale = self.scale.map(|scale| scale.factor);
        let scale = (f64::from(factor) / targets as f64) as f32;
        let dropout = (self.recipe.dropout > 0.0).then_some(Dropout {
            rate: self.recipe.dropout,
            stream: kernels::stream_key(self.recipe.seed, 0x6472_6f70, epoch),
        });
        self.gradients.clear(&team);
        self.runner.largest_score();
        for part in indices.chunks(self.recipe.micro_batch) {
            self.batch.clear();
            for &i in part {
                data.add_to(i as usize, &mut self.batch, &mut self.ids);
            }
            let losses =
                self.runner.train(&self.model, &self.batch, scale, dropout, &mut self.gradients);
            report.loss_sum += losses.iter().map(|&l| f64::from(l)).sum::<f64>();
            let rows = self.batch.rows();
            let log_z = self.runner.log_z(rows).iter().map(|&z| f64::from(z)).sum::<f64>();
            report.log_z += log_z / targets as f64;
            if !report.loss_sum.is_finite() {
                self.broken = self.runner.first_not_finite(&self.model, rows);
                report.gradient_norm = f64::NAN;
                return report;
            }
        }
        report.largest_score = self.runner.largest_score();
        if factor != 1.0 {
            kernels::scale(&team, self.gradients.flat_mut(), 1.0 / factor);
        }
        let weights = self.model.weights_mut();
        let applied = self.optimizer.step(&team, &self.recipe, rate, weights, &self.gradients);
        let mut lost = applied.lost;
        if let Some(muon) = self.muon.as_mut().filter(|_| applied.gradient_norm.is_finite()) {
            let scales = (rate / self.recipe.learning_rate, applied.factor);
            let more = muon.step(&team, &self.recipe, scales, weights, &self.gradients);
            lost = lost.map(|lost| lost + more);
        }
        self.runner.weights_changed();
        report.gradient_norm = applied.gradient_norm;
        report.clipped = applied.clipped;
        report.applied = applied.gradient_norm.is_finite();
        let count = self.model.layout().count();
        report.lost_share = lost.map(|lost| lost as f64 / count as f64);
        self.rescale(&mut report);
        report
    }

    /// Adapts the scale of the loss to how its gradient came out, and remembers what broke.
    fn rescale(&mut self, report: &mut StepReport) {
        match &mut self.scale {
            Some(scale) if report.applied => scale.keep(),
            Some(scale) => report.overflowed = scale.fall(),
            None => {}
        }
        if !report.applied && !report.overflowed {
            // The last parameter's gradient is the first that the backward pass computes.
            let (specs, flat) = (self.gradients.layout().specs(), self.gradients.flat());
            let bad =
                |range: &std::ops::Range<usize>| flat[range.clone()].iter().any(|x| !x.is_finite());
            let spec = specs.iter().rev().find(|spec| bad(&spec.range));
            self.broken = spec.map(|spec| format!("gradient of {}", spec.name));
        }
    }

    /// The first tensor that was not finite, in the order of computation; after a step that was not
    /// applied.
    pub fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// The factor of the loss in half precision.
    pub fn loss_scale(&self) -> Option<LossScale> {
        self.scale
    }

    /// Goes on with a factor of the loss that was kept.
    pub fn set_loss_scale(&mut self, scale: Option<LossScale>) {
        self.scale = self.scale.and(scale).or(self.scale);
    }

    /// The model and its runner, for evaluation between steps.
    pub fn evaluator(&mut self) -> (&Model, &mut Runner) {
        (&self.model, &mut self.runner)
    }

    /// Must be called after weights were replaced from outside.
    pub fn weights_changed(&mut self) {
        self.model.weights_mut().round_halves(self.runner.team());
        self.runner.weights_changed();
    }

    /// The model alone: all else is given back.
    pub fn into_model(mut self) -> Model {
        self.model.weights_mut().drop_halves();
        self.model
    }

    /// The gradients of the last step.
    pub fn gradients(&self) -> &Parameters {
        &self.gradients
    }
}
