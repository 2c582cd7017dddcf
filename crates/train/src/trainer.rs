//! One optimizer step: batch, forward, backward, clip, update.

use crate::average::Average;
use crate::config::{OptimizerKind, Recipe, TrainConfig};
use crate::data::{BatchShape, Sequences};
use crate::evaluate::{Evaluator, Tally, evaluate, evaluate_parts, evaluate_turns};
use crate::muon::{self, Muon};
use crate::optimizer::{AdamW, Applied};
use crate::precision::LossScale;
use crate::saved;
use crate::zero::{Flow, Losses, Part, Piece, Place, ShardMap, Shared, Stage, Zero, memory_of};
use kernels::{HalfKind, Team};
use ledger::{Account, Plan};
use models::{Batch, Dropout, Model, ModelConfig, Runner, Training, Workload};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tensor::{Layout, ParameterSpec, Parameters};

/// A model in training: weights, gradients, moments, activations.
pub struct Trainer {
    /// The model.
    pub model: Model,
    /// Its moments.
    pub optimizer: AdamW,
    /// Its momentum, where Muon changes its matrices.
    pub muon: Option<Muon>,
    /// The average of its weights, where the recipe keeps one.
    pub average: Option<Average>,
    recipe: Recipe,
    gradients: Parameters,
    runner: Runner,
    batch: Batch,
    ids: Vec<u32>,
    /// In half precision.
    scale: Option<LossScale>,
    /// The first tensor that was not finite.
    broken: Option<String>,
    /// One rank of several.
    pub(crate) zero: Option<Zero>,
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
    /// Seconds in which batches were read.
    pub data_seconds: f64,
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

/// A model with its first weights.
fn fresh(config: &TrainConfig) -> Result<Model, models::Error> {
    let mut model = Model::new(&config.model)?;
    model.weights_mut().initialise(config.train.seed);
    Ok(model)
}

/// The places of the parameters that learn.
fn learnt(config: &ModelConfig, layout: &Layout) -> Vec<usize> {
    let learns = |&i: &usize| config.trains(&layout.specs()[i].name);
    (0..layout.specs().len()).filter(learns).collect()
}

/// The places of the parameters that AdamW changes: all that learn, but for Muon's.
fn adams(config: &ModelConfig, recipe: &Recipe, layout: &Layout) -> Vec<usize> {
    let muons = match recipe.optimizer {
        OptimizerKind::Adamw => Vec::new(),
        OptimizerKind::Muon => muon::places(config, layout),
    };
    let mut places = learnt(config, layout);
    places.retain(|i| muons.binary_search(i).is_err());
    places
}

/// What moments, momentum and average take where nothing is shared out.
fn plan_whole(config: &TrainConfig, layout: &Layout) -> Plan {
    let TrainConfig { model, train } = config;
    let mut plan = AdamW::plan(&layout.of_some(adams(model, train, layout)));
    if train.optimizer == OptimizerKind::Muon {
        plan.extend(Muon::plan(model, layout));
    }
    plan.extend(Average::plan(train, &layout.of_some(learnt(model, layout))));
    plan
}

impl Trainer {
    /// What [`Trainer::of_ranks`] will allocate on a rank at this place.
    ///
    /// # Errors
    /// When the configuration makes no network.
    pub fn plan_ranks(
        config: &TrainConfig,
        shape: BatchShape,
        threads: usize,
        place: Place,
    ) -> Result<Plan, models::Error> {
        let layout = Arc::new(Model::layout_of(&config.model)?);
        let workload = workload(shape, threads);
        let half = config.train.precision.half();
        let mixed = half.map(|kind| Runner::mixed(&config.model, &workload, kind)).transpose()?;
        let split = place.split(&config.train);
        let map = ShardMap::new(&config.model, &layout, half.is_some(), split);
        let memory = memory_of(&map, place, mixed, Flow::new(config, place));
        let mut plan = memory.plan();
        plan.extend(match place.stage {
            Stage::Zero => plan_whole(config, &layout),
            _ => memory.plan_moments(&config.train),
        });
        let training = Training { recompute: shape.recompute, half };
        plan.extend(Runner::plan_training(&config.model, &workload, training)?);
        Ok(plan)
    }

    /// What [`Trainer::new`] will allocate.
    ///
    /// # Errors
    /// When the configuration makes no network.
    pub fn plan(
        config: &TrainConfig,
        shape: BatchShape,
        threads: usize,
    ) -> Result<Plan, models::Error> {
        if config.train.pieces > 0 {
            return Trainer::plan_ranks(config, shape, threads, Place::ALONE);
        }
        let layout = Model::layout_of(&config.model)?;
        let workload = workload(shape, threads);
        let half = config.train.precision.half();
        let mut plan = match half {
            Some(kind) => layout.mixed_specs(Runner::mixed(&config.model, &workload, kind)?),
            None => Model::plan(&config.model)?,
        };
        let learning = layout.with_room_for(|spec| config.model.trains(&spec.name));
        plan.add(&learning.buffer_spec("gradients", Account::Gradients));
        plan.extend(plan_whole(config, &layout));
        plan.extend(Runner::plan_training(
            &config.model,
            &workload,
            Training { recompute: shape.recompute, half },
        )?);
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
        Trainer::of(fresh(config)?, &config.train, shape, team)
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
        if recipe.pieces > 0 {
            let config = TrainConfig { model: model.config().clone(), train: recipe.clone() };
            return Trainer::of_ranks(Some(model), &config, shape, team, &Shared::alone()?);
        }
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
        let average = Average::of(recipe, &layout, &learnt(model.config(), &layout))?;
        Ok(Trainer { muon, average, ..Trainer::whole(model, optimizer, recipe, gradients, runner) })
    }

    /// A model whose weights that do not learn are to be read into the places where a rank has them:
    /// from stage 1 on beside adapters, which begin anew. None elsewhere: [`Model::new`] does.
    ///
    /// # Errors
    /// When the configuration makes no network, or memory is not to be had.
    pub fn room(config: &TrainConfig, place: Place) -> Result<Option<Model>, models::Error> {
        if place.stage == Stage::Zero || config.model.trains_all() {
            return Ok(None);
        }
        let layout = Arc::new(Model::layout_of(&config.model)?);
        let map = ShardMap::new(&config.model, &layout, false, place.split(&config.train));
        let memory = memory_of(&map, place, None, Flow::new(config, place));
        memory.room(&config.model).map(Some)
    }

    /// One rank's part of a model in training: of given weights, those of [`Trainer::room`] too, else of
    /// fresh ones. All ranks call it at the same time.
    ///
    /// # Errors
    /// As [`Trainer::of`].
    pub fn of_ranks(
        from: Option<Model>,
        config: &TrainConfig,
        shape: BatchShape,
        team: &Arc<Team>,
        shared: &Shared,
    ) -> Result<Trainer, models::Error> {
        let (recipe, place) = (&config.train, shared.place());
        let layout = Arc::new(Model::layout_of(&config.model)?);
        let workload = workload(shape, team.threads());
        let half = recipe.precision.half();
        let mixed = half.map(|kind| Runner::mixed(&config.model, &workload, kind)).transpose()?;
        let flow = Flow::new(config, place);
        let map = ShardMap::new(&config.model, &layout, half.is_some(), place.split(recipe));
        let memory = memory_of(&map, place, mixed, flow);
        let (truth, rooms) = (memory.truth()?, memory.new_rooms()?);
        let gradients = memory.new_gradients()?;
        let shares_out = place.stage > Stage::Zero;
        let from = match from {
            None if !shares_out || !config.model.trains_all() => Some(fresh(config)?),
            from => from,
        };
        let (mut model, from) = match from {
            Some(model) if !shares_out => (model, None),
            from => memory.model(&config.model, from)?,
        };
        if let Some(mixed) = mixed.filter(|_| !shares_out) {
            model.weights_mut().keep_halves(team, mixed)?;
        }
        let optimizer = match shares_out {
            true => AdamW::new(&map.moments)?,
            false => AdamW::of_some(&layout, adams(&config.model, recipe, &layout))?,
        };
        let muon = match recipe.optimizer {
            OptimizerKind::Adamw => None,
            OptimizerKind::Muon if shares_out => Some(Muon::of_rank(&map)?),
            OptimizerKind::Muon => Some(Muon::new(&config.model, &layout)?),
        };
        let mut zero = Zero::new(shared, map, (truth, rooms), (half, team), flow);
        let average = match shares_out {
            true => Average::of_runs(recipe, &zero.map.shard, zero.averaged())?,
            false => Average::of(recipe, &layout, &learnt(&config.model, &layout))?,
        };
        if shares_out {
            zero.fill(model.weights_mut(), |spec, at, out| {
                match &from {
                    Some(model) => copy_of(model, &spec.name, at, out),
                    None => spec.fill_initial(recipe.seed, at, out),
                }
                Ok::<(), models::Error>(())
            })?;
        }
        // Before activations are there.
        drop(from);
        let runner = Runner::recomputing(&model, workload, shape.recompute, team)?;
        let mut trainer = Trainer {
            zero: Some(zero),
            muon,
            average,
            ..Trainer::whole(model, optimizer, recipe, gradients, runner)
        };
        if shares_out {
            trainer.weights_changed();
        }
        Ok(trainer)
    }

    /// Fills what this rank of several holds of the weights, from stage 1 on;
    /// [`Trainer::weights_changed`] is due then. `read` is given a parameter, its first value and the
    /// place for it.
    pub(crate) fn fill_own<E>(
        &mut self,
        read: impl FnMut(&ParameterSpec, usize, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        match &mut self.zero {
            Some(zero) => zero.fill(self.model.weights_mut(), read),
            None => Ok(()),
        }
    }

    /// Whether this rank holds a part of weights or moments alone.
    pub(crate) fn is_shared_out(&self) -> bool {
        self.zero.as_ref().is_some_and(|zero| zero.place.stage > Stage::Zero)
    }

    /// What this rank holds of each parameter, and the model's own layout.
    pub(crate) fn pieces(&self) -> (Vec<Piece>, Arc<Layout>) {
        let Some(zero) = &self.zero else {
            return (Vec::new(), Arc::clone(self.model.layout()));
        };
        (zero.map.pieces.clone(), Arc::clone(&zero.map.whole))
    }

    /// A trainer of one process.
    fn whole(
        model: Model,
        optimizer: AdamW,
        recipe: &Recipe,
        gradients: Parameters,
        runner: Runner,
    ) -> Trainer {
        let scaled = recipe.precision.half() == Some(HalfKind::F16);
        Trainer {
            model,
            optimizer,
            muon: None,
            average: None,
            recipe: recipe.clone(),
            gradients,
            runner,
            batch: Batch::default(),
            ids: Vec::new(),
            scale: scaled.then(LossScale::default),
            broken: None,
            zero: None,
        }
    }

    /// Trains a miniature of the same kind for one step, so that the program's own code is in
    /// memory before the runtime's share is measured.
    pub fn warm_up(config: &TrainConfig, team: &Arc<Team>) {
        let mut small = config.clone();
        small.train.batch = 4;
        small.train.micro_batch = 4;
        small.train.pieces = small.train.pieces.min(2);
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
            let batch = Place::ALONE.at_once(&small.train);
            crate::evaluate(&mut crate::Evaluator::Network(model, runner), &data, batch, None);
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
        let (inner, hidden) = (self.recipe.dropout, self.recipe.hidden_dropout);
        let dropout = (inner > 0.0 || hidden > 0.0).then_some(Dropout {
            rate: inner,
            hidden,
            stream: kernels::stream_key(self.recipe.seed, 0x6472_6f70, epoch),
        });
        self.gradients.clear(&team);
        self.runner.largest_score();
        let place = self.zero.as_mut().map_or(Place::ALONE, |zero| {
            zero.clear();
            zero.place
        });
        // Of this rank, or of each of its pieces.
        let mut sums: Vec<Losses> = Vec::new();
        let (mut begins, mut rounds) =
            (true, place.rounds(indices, &self.recipe).into_iter().peekable());
        while let Some(Part { sequences, counts, ends }) = rounds.next() {
            let started = Instant::now();
            self.batch.clear();
            for &i in sequences {
                data.add_to(i as usize, &mut self.batch, &mut self.ids);
            }
            report.data_seconds += started.elapsed().as_secs_f64();
            let scale = if counts { scale } else { 0.0 };
            let losses = match &mut self.zero {
                None => {
                    let (batch, gradients) = (&self.batch, &mut self.gradients);
                    self.runner.train(&self.model, batch, scale, dropout, gradients)
                }
                Some(zero) => {
                    zero.begin(ends, rounds.peek().is_none());
                    let (batch, gradients) = ((&self.batch, dropout), &mut self.gradients);
                    self.runner.train_kept(&mut self.model, zero, batch, scale, gradients)
                }
            };
            if std::mem::replace(&mut begins, ends) {
                sums.push(Losses::default());
            }
            let loss = losses.iter().map(|&l| f64::from(l)).sum::<f64>();
            let rows = self.batch.rows();
            let log_z = self.runner.log_z(rows).iter().map(|&z| f64::from(z)).sum::<f64>();
            if let Some(zero) = &mut self.zero {
                zero.end(&mut self.gradients);
            }
            if !counts {
                continue;
            }
            if let Some([all_loss, all_log_z]) = sums.last_mut() {
                *all_loss += loss;
                *all_log_z += log_z / targets as f64;
            }
            report.loss_sum += loss;
            report.log_z += log_z / targets as f64;
            if self.zero.is_none() && !report.loss_sum.is_finite() {
                self.broken = self.runner.first_not_finite(&self.model, rows);
                report.gradient_norm = f64::NAN;
                return report;
            }
        }
        report.largest_score = self.runner.largest_score();
        let applied = match self.zero.is_some() {
            false => self.update(&team, rate, 1.0 / factor),
            true => self.update_shared(rate, 1.0 / factor, &sums, &mut report),
        };
        let shared_out = self.is_shared_out();
        let weights = self.model.weights_mut();
        let mut lost = applied.lost;
        let muon = self.muon.as_mut().filter(|_| !shared_out);
        if let Some(muon) = muon.filter(|_| applied.gradient_norm.is_finite()) {
            let scales = (rate / self.recipe.learning_rate, applied.factor);
            let gradients = added_up(self.zero.as_ref(), &self.gradients);
            let more = muon.step(&team, &self.recipe, scales, weights, gradients);
            lost = lost.map(|lost| lost + more);
        }
        if let Some(average) = self.average.as_mut().filter(|_| applied.gradient_norm.is_finite()) {
            let truth =
                self.zero.as_ref().map_or(self.model.weights(), |z| z.truth_of(&self.model));
            average.add(truth.flat(), self.optimizer.steps, self.recipe.average);
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

    /// Changes the weights by the gradients, which are scaled before.
    fn update(&mut self, team: &Team, rate: f64, scale: f32) -> Applied {
        if scale != 1.0 {
            kernels::scale(team, self.gradients.flat_mut(), scale);
        }
        let weights = self.model.weights_mut();
        self.optimizer.step(team, &self.recipe, rate, weights, &self.gradients)
    }

    /// The same with the gradients of all ranks; the report's sums become those of all.
    fn update_shared(
        &mut self,
        rate: f64,
        scale: f32,
        sums: &[Losses],
        report: &mut StepReport,
    ) -> Applied {
        let mut none = Applied { gradient_norm: f64::NAN, factor: 0.0, clipped: false, lost: None };
        let Some(zero) = &mut self.zero else { return none };
        if scale != 1.0 {
            zero.scale(&mut self.gradients, scale);
        }
        let score = report.largest_score.map_or(f64::NEG_INFINITY, f64::from);
        let all = zero.agree(sums, score, &self.gradients);
        (report.loss_sum, report.log_z) = (all.loss, all.log_z);
        report.largest_score = report.largest_score.map(|_| all.score as f32);
        // A loss that is no number leaves no gradient that is one.
        let norm = if all.loss.is_finite() { all.squares.sqrt() } else { f64::NAN };
        none.gradient_norm = norm;
        if zero.lost().is_some() {
            return none;
        }
        let weights = self.model.weights_mut();
        if zero.place.stage == Stage::Zero {
            let (how, gradients) =
                ((&self.recipe, rate, norm), zero.own_gradients(&self.gradients));
            return self.optimizer.step_of_norm(self.runner.team(), how, weights, gradients);
        }
        let how = (&self.recipe, rate, norm);
        let optimizers = (&mut self.optimizer, self.muon.as_mut());
        let mut applied = zero.optimize(optimizers, how, weights, &self.gradients);
        if norm.is_finite() {
            zero.publish(weights);
            if let Some(own) = applied.lost {
                let told = zero.tell(&[own as f64]);
                applied.lost = Some(told.iter().flatten().sum::<f64>() as u64);
            }
        }
        applied
    }

    /// Adapts the scale of the loss to how its gradient came out, and remembers what broke.
    fn rescale(&mut self, report: &mut StepReport) {
        match &mut self.scale {
            Some(scale) if report.applied => scale.keep(),
            // No scale helps where the loss itself is no number.
            Some(scale) => report.overflowed = report.loss_sum.is_finite() && scale.fall(),
            None => {}
        }
        if !report.applied
            && !report.overflowed
            && let Some(zero) = &mut self.zero
        {
            let name = zero.first_not_finite(&self.gradients);
            self.broken = name.map(|name| format!("gradient of {name}"));
        } else if !report.applied && !report.overflowed {
            // The last parameter's gradient is the first that the backward pass computes.
            let (specs, flat) = (self.gradients.layout().specs(), self.gradients.flat());
            let bad =
                |range: &std::ops::Range<usize>| flat[range.clone()].iter().any(|x| !x.is_finite());
            let spec = specs.iter().rev().find(|spec| bad(&spec.range));
            self.broken = spec.map(|spec| format!("gradient of {}", spec.name));
        }
    }

    /// Whether another rank has gone: what was computed since is worth nothing.
    pub(crate) fn lost(&self) -> Option<&ranks::Lost> {
        self.zero.as_ref().and_then(Zero::lost)
    }

    /// Tells all ranks a signal with the next step.
    pub(crate) fn pass_on(&mut self, signal: usize) {
        if let Some(zero) = &mut self.zero {
            zero.say(signal);
        }
    }

    /// The largest signal that a rank told with the last step; none where one process trains.
    pub(crate) fn heard(&self) -> Option<usize> {
        self.zero.as_ref().map(Zero::heard)
    }

    /// Mean loss over a side: its sum and its targets, those of all ranks together.
    pub(crate) fn validate(&mut self, data: &dyn Sequences) -> Tally {
        let place = self.zero.as_ref().map_or(Place::ALONE, |zero| zero.place);
        let batch = place.at_once(&self.recipe);
        let Some(zero) = &mut self.zero else {
            let evaluator = &mut Evaluator::Network(&self.model, &mut self.runner);
            return evaluate(evaluator, data, batch, None).total;
        };
        let evaluator = &mut Evaluator::Kept(&mut self.model, &mut self.runner, zero);
        // With pieces the sum is one over batches in their order, which ranks take turns at.
        let own = match self.recipe.pieces > 0 {
            true => evaluate_parts(evaluator, data, batch, place),
            false => vec![evaluate_turns(evaluator, data, batch, None, place).total],
        };
        let words = |own: &Tally| [own.tokens as f64, own.nll, own.correct as f64];
        let told = zero.tell(&own.iter().flat_map(words).collect::<Vec<f64>>());
        let mut all = Tally::default();
        for turn in 0..own.len() {
            for said in &told {
                let Some([tokens, nll, correct]) = said.as_chunks().0.get(turn) else { continue };
                all.tokens += *tokens as u64;
                all.nll += nll;
                all.correct += *correct as u64;
            }
        }
        all
    }

    /// Puts the averaged weights in the place of the weights, and the other way round; nothing where
    /// the recipe averages none.
    pub(crate) fn swap_average(&mut self) {
        if let Some(average) = &mut self.average {
            let weights = self.model.weights_mut();
            match &mut self.zero {
                Some(zero) => zero.swap(average, weights),
                None => average.swap(weights.flat_mut()),
            }
            self.weights_changed();
        }
    }

    /// Writes the weights as a model folder holds them. All ranks call it at the same time.
    pub(crate) fn write_weights(&mut self, dir: &Path, step: u64) -> Result<(), saved::Error> {
        match &mut self.zero {
            Some(zero) => saved::write_shared(dir, &self.model, zero, step),
            None => saved::write_weights(dir, &self.model, step),
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

    /// Must be called after weights were replaced from outside; by all ranks at the same time.
    pub fn weights_changed(&mut self) {
        if let Some(zero) = &mut self.zero {
            zero.publish(self.model.weights_mut());
        }
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
        added_up(self.zero.as_ref(), &self.gradients)
    }
}

/// What a step's gradients have been added up to.
fn added_up<'a>(zero: Option<&'a Zero>, gradients: &'a Parameters) -> &'a Parameters {
    zero.map_or(gradients, |zero| zero.own_gradients(gradients))
}

/// Values of a model's parameter from value `at` on.
fn copy_of(model: &Model, name: &str, at: usize, out: &mut [f32]) {
    let spec = model.layout().specs().iter().find(|spec| spec.name == name);
    if let Some(spec) = spec {
        let start = spec.range.start + at;
        out.copy_from_slice(&model.weights().flat()[start..start + out.len()]);
    }
}
