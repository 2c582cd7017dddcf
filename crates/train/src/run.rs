//! A whole training run in a folder: steps, evaluations, checkpoints, metrics, resumption.

use crate::checkpoint;
use crate::config::{Recipe, TrainConfig};
use crate::data::{BatchShape, Sequences, epoch_order};
use crate::optimizer::learning_rate;
use crate::precision::{LossScale, Precision};
use crate::saved::{self, write_description};
use crate::trainer::{StepReport, Trainer};
use crate::zero::{Disagreement, Place, ShareError, Shared};
use kernels::Team;
use models::{Model, Recompute};
use ranks::{Collective, Traffic};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A model folder's files.
    #[error(transparent)]
    Saved(#[from] saved::Error),
    /// Checkpoints.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// The model cannot be made.
    #[error(transparent)]
    Model(#[from] models::Error),
    /// Ranks cannot train this together.
    #[error(transparent)]
    Share(#[from] ShareError),
    /// Ranks do not go on together.
    #[error(transparent)]
    Disagreement(#[from] Disagreement),
    /// A rank has gone.
    #[error(transparent)]
    Lost(#[from] ranks::Lost),
    /// The recipe is impossible.
    #[error(transparent)]
    Recipe(#[from] crate::RecipeError),
    /// The run folder.
    #[error("{path}: {source}{}", formats::hint(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The data does not fit the model.
    #[error("{0}")]
    Data(String),
    /// The loss or the gradient is no number any more.
    #[error(
        "step {step}: the {what}; the last good state is kept at step {kept} in \
         {run}; {cause}"
    )]
    NotFinite {
        /// The step.
        step: u64,
        /// Loss or gradient, and the tensor where it began.
        what: String,
        /// The step of the newest checkpoint.
        kept: u64,
        /// The run folder.
        run: PathBuf,
        /// What it comes from, or what to try.
        cause: &'static str,
    },
    /// Resumption was asked for where nothing is.
    #[error("{0}: no checkpoint to resume from; leave --resume away to start")]
    NothingToResume(PathBuf),
    /// Resumption was asked for where every checkpoint is damaged.
    #[error("{path}: none of its {count} checkpoints holds; start anew with --force")]
    AllDamaged {
        /// The run folder.
        path: PathBuf,
        /// Its checkpoints.
        count: usize,
    },
    /// The best weights of a run that is resumed are not there any more.
    #[error(
        "{reason}; the run's best weights so far, those of step {step}, must be there: put the file \
         back, or start anew with --force"
    )]
    BestLost {
        /// What does not hold, and where.
        reason: String,
        /// Their step.
        step: u64,
    },
    /// Another run's folder.
    #[error(
        "{path}: this run was started with other settings ({what}); give them again, or another folder"
    )]
    OtherRun {
        /// The folder.
        path: PathBuf,
        /// What differs.
        what: String,
    },
    /// A run over other data.
    #[error(
        "{path}: this run trains on {was}, and {is} is other data; give the run's own, or begin another \
         run with another --out"
    )]
    OtherData {
        /// The folder.
        path: PathBuf,
        /// The data that it was started with.
        was: DataMark,
        /// The data that it is given now.
        is: DataMark,
    },
}

/// A point of the learning curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Steps done.
    pub step: u64,
    /// Real targets seen.
    pub tokens: u64,
    /// Mean training loss since the point before, nats/token.
    pub train_loss: f64,
    /// Validation loss, nats/token.
    pub valid_loss: f64,
}

/// What a run's data is called, and its hash.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataMark {
    /// Its name.
    pub name: String,
    /// Its hash.
    pub hash: String,
}

impl fmt::Display for DataMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (hash {})", self.name, self.hash)
    }
}

/// Where a run stands: with weights and moments, all that resumption needs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Steps done.
    pub step: u64,
    /// Real targets seen.
    pub tokens: u64,
    /// Wall time of steps so far, seconds.
    pub seconds: f64,
    /// What of it went into reading batches.
    #[serde(default)]
    pub data_seconds: f64,
    /// Sum of training losses since the last point of the curve.
    pub loss_sum: f64,
    /// Targets since then.
    pub loss_targets: u64,
    /// Steps whose gradient was clipped.
    pub clipped: u64,
    /// Steps without a target.
    pub skipped: u64,
    /// The best validation loss so far.
    pub best_loss: Option<f64>,
    /// Its step.
    pub best_step: u64,
    /// Evaluations since then.
    pub worse: u64,
    /// The learning curve.
    pub curve: Vec<CurvePoint>,
    /// Hash of configuration and data.
    pub identity: String,
    /// The data; nothing in checkpoints of before.
    #[serde(default)]
    pub data: DataMark,
    /// Steps whose scaled gradient overflowed, in half precision.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub overflowed: u64,
    /// The factor of the loss, in half precision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// What a run is given.
pub struct RunOptions<'a> {
    /// Model and recipe.
    pub config: &'a TrainConfig,
    /// The training side.
    pub train: &'a dyn Sequences,
    /// The validation side. Where it is empty nothing is evaluated, and the last weights are the best.
    pub valid: &'a dyn Sequences,
    /// The tokenizer, to be kept with the model.
    pub tokenizer: &'a [u8],
    /// A hash that names the data.
    pub data_hash: &'a str,
    /// What the data is called.
    pub data_name: &'a str,
    /// The run folder.
    pub dir: &'a Path,
    /// Whether to go on from the newest checkpoint.
    pub resume: bool,
    /// The workers.
    pub team: &'a Arc<Team>,
    /// Set to a signal's number to stop after the step in progress.
    pub stop: &'a AtomicUsize,
}

/// What a run tells while it goes.
#[derive(Debug)]
pub enum Event<'a> {
    /// A step was done.
    Step {
        /// Where the run stands.
        state: &'a State,
        /// Steps in all.
        total: u64,
        /// What the step did.
        report: StepReport,
        /// Its learning rate.
        rate: f64,
    },
    /// The validation side was scored.
    Evaluated {
        /// The new point.
        point: CurvePoint,
        /// Whether it is the best so far.
        best: bool,
    },
    /// A sample is due.
    Sample {
        /// Steps done.
        step: u64,
        /// The model as it is.
        model: &'a Model,
    },
    /// A damaged checkpoint was passed over.
    PassedOver(&'a checkpoint::Error),
    /// The run goes on from here.
    Resumed(&'a State),
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    /// The model: with its best weights, or as it was when a signal stopped the run.
    pub model: Model,
    /// Where it stands.
    pub state: State,
    /// The signal that stopped it, if one did.
    pub stopped_by: Option<usize>,
}

/// Steps that a recipe takes over `sequences` sequences.
pub fn total_steps(config: &TrainConfig, sequences: usize) -> u64 {
    let all = config.train.epochs * sequences.div_ceil(config.train.batch) as u64;
    if config.train.max_steps > 0 { all.min(config.train.max_steps) } else { all }
}

/// What a run starts with beside its options.
#[derive(Debug, Default)]
pub struct Start {
    /// Weights to go on from; fresh ones when absent. A resumed run needs none.
    pub model: Option<Model>,
    /// What the backward pass computes again; it changes no bit.
    pub recompute: Recompute,
    /// Steps between samples; none where absent.
    pub sample_every: Option<NonZeroU64>,
    /// Checkpoints that are kept; the newest two where absent.
    pub keep: Option<NonZeroUsize>,
}

/// Runs training to its end, to a signal, or to an error; a checkpoint is whole at every moment.
///
/// # Errors
/// See [`Error`].
pub fn run(options: &RunOptions, tell: &mut dyn FnMut(Event)) -> Result<Outcome, Error> {
    run_from(Start::default(), options, tell)
}

/// The same from given weights.
///
/// # Errors
/// See [`Error`].
pub fn run_from(
    start: Start,
    options: &RunOptions,
    tell: &mut dyn FnMut(Event),
) -> Result<Outcome, Error> {
    let Trained { trainer, state, stopped_by, .. } = train(start, None, options, tell)?;
    let model = best(trainer, options.dir, &state, stopped_by)?;
    Ok(Outcome { model, state, stopped_by })
}

/// The model with its best weights, or as it was when a signal stopped the run.
fn best(
    trainer: Trainer,
    dir: &Path,
    state: &State,
    stopped_by: Option<usize>,
) -> Result<Model, Error> {
    // Activations and moments go before the best weights are mapped, so that the peak is training's.
    let mut model = trainer.into_model();
    if stopped_by.is_none() && state.best_step > 0 {
        let path = dir.join(saved::learnt_file(model.config()));
        let best = formats::TensorFile::open(&path).map_err(saved::Error::from)?;
        saved::read_learnt(&best, &mut model).map_err(saved::Error::from)?;
    }
    Ok(model)
}

/// How one rank of several ended.
#[derive(Debug)]
pub struct RankOutcome {
    /// The best adapters, on rank 0 where adapters were trained to the end; they are all that it holds.
    /// All weights are in the run folder, and no rank need hold them.
    pub adapters: Option<Model>,
    /// Where the run stands.
    pub state: State,
    /// The signal that stopped it, if one did.
    pub stopped_by: Option<usize>,
    /// Steps that were taken now, not before a resumption.
    pub steps: u64,
    /// What this rank sent in these steps, evaluations and checkpoints not counted.
    pub sent: Vec<(Collective, Traffic)>,
}

/// One rank of several at the same; all are given the same start and options.
///
/// # Errors
/// See [`Error`].
pub fn run_ranks(
    start: Start,
    shared: &Shared,
    options: &RunOptions,
    tell: &mut dyn FnMut(Event),
) -> Result<RankOutcome, Error> {
    let trained = train(start, Some(shared), options, tell)?;
    let Trained { trainer, state, stopped_by, steps, sent } = trained;
    drop(trainer);
    let model = &options.config.model;
    let wanted = shared.ranks.is_first() && stopped_by.is_none() && !model.trains_all();
    let adapters = wanted.then(|| saved::read_adapters(options.dir, model)).transpose()?;
    Ok(RankOutcome { adapters, state, stopped_by, steps, sent })
}

/// A run's end, and what it has in memory.
struct Trained {
    trainer: Trainer,
    state: State,
    stopped_by: Option<usize>,
    steps: u64,
    sent: Vec<(Collective, Traffic)>,
}

fn train(
    start: Start,
    shared: Option<&Shared>,
    options: &RunOptions,
    tell: &mut dyn FnMut(Event),
) -> Result<Trained, Error> {
    let RunOptions { config, train, valid, dir, team, .. } = *options;
    let recipe = &config.train;
    check(config, train, valid)?;
    let keep = start.keep.map_or(checkpoint::KEPT, NonZeroUsize::get);
    let place = shared.map_or(Place::ALONE, Shared::place);
    place.check(config)?;
    shared.map_or(Ok(()), |shared| same_everywhere(shared, options))?;
    let shape = BatchShape::of_place(recipe, train, valid, place).recomputing(start.recompute);
    let identity = identity(options);
    if options.resume {
        let first = place.rank == 0;
        everywhere(shared, if first { same_run(options, &identity) } else { Ok(()) })?;
    }
    let made = match (start.model, shared) {
        (model, Some(shared)) => Trainer::of_ranks(model, config, shape, team, shared),
        (Some(model), None) => Trainer::of(model, recipe, shape, team),
        (None, None) => Trainer::new(config, shape, team),
    };
    let mut trainer = made?;
    let mut state = State { identity, data: data_of(options), ..State::default() };
    if options.resume {
        let found = checkpoint::load(dir, &mut trainer, &mut |e| tell(Event::PassedOver(e)))?;
        let (path, count) = (dir.to_owned(), checkpoint::checkpoints(dir).len());
        state = found.ok_or(Error::AllDamaged { path, count })?;
        let best_holds = || match state.best_step > 0 && place.rank == 0 {
            true => best_weights_hold(options, state.best_step),
            false => Ok(()),
        };
        everywhere(shared, best_holds())?;
        trainer.set_loss_scale(state.loss_scale);
        tell(Event::Resumed(&state));
    } else {
        let fresh = formats::is_vacant(dir);
        begin(options, &mut trainer, &state).inspect_err(|_| {
            if fresh && place.rank == 0 {
                drop(fs::remove_dir_all(dir));
            }
        })?;
    }
    let opened = (place.rank == 0).then(|| Metrics::open(dir, state.step)).transpose();
    let mut metrics = everywhere(shared, opened)?;
    let per_epoch = train.len().div_ceil(recipe.batch) as u64;
    let total = total_steps(config, train.len());
    let every = |asked: u64| if asked > 0 { asked } else { per_epoch };
    let validates = !valid.is_empty();
    let mut order: (u64, Vec<u32>) = (u64::MAX, Vec::new());
    let (mut saved_at, began) = (state.step, state.step);
    let mut all_sent = Vec::new();
    let mut stopped_by = None;
    let patient = |s: &State| recipe.patience == 0 || s.worse < recipe.patience;
    while state.step < total && patient(&state) {
        let (epoch, at) = (state.step / per_epoch, (state.step % per_epoch) as usize);
        if order.0 != epoch {
            order = (epoch, epoch_order(recipe.seed, epoch, train.len()));
        }
        let indices = &order.1[at * recipe.batch..((at + 1) * recipe.batch).min(train.len())];
        let rate = learning_rate(recipe, state.step, total);
        let started = Instant::now();
        trainer.pass_on(options.stop.load(Ordering::Relaxed));
        let before = shared.map(|shared| shared.ranks.traffic());
        let report = trainer.step(train, indices, epoch, rate);
        if let Some(lost) = trainer.lost() {
            return Err(lost.clone().into());
        }
        state.seconds += started.elapsed().as_secs_f64();
        state.data_seconds += report.data_seconds;
        if report.targets > 0 && !report.applied && !report.overflowed {
            let what = if report.loss_sum.is_finite() { "gradient" } else { "loss" };
            let first = trainer.broken().unwrap_or("no tensor that was looked at");
            let what = format!("{what} is not finite, first in: {first}");
            metrics.iter_mut().try_for_each(Metrics::sync)?;
            let (step, run, cause) =
                (state.step + 1, dir.to_owned(), cause(recipe, state.step, first));
            let error = Error::NotFinite { step, what, kept: saved_at, run, cause };
            // All ranks have seen it; the first one tells.
            return Err(if place.rank == 0 {
                error
            } else {
                Disagreement::Elsewhere { rank: 0, message: error.to_string() }.into()
            });
        }
        state.step += 1;
        state.tokens += report.targets;
        state.loss_sum += report.loss_sum;
        state.loss_targets += report.targets;
        state.clipped += u64::from(report.clipped);
        state.skipped += u64::from(report.targets == 0);
        state.overflowed += u64::from(report.overflowed);
        state.loss_scale = trainer.loss_scale();
        let sent = shared.zip(before).map(|(shared, before)| {
            let sent = since(&shared.ranks.traffic(), &before);
            add(&mut all_sent, &sent);
            sent
        });
        if let Some(metrics) = &mut metrics {
            metrics.step(&state, &report, rate, sent.as_deref())?;
        }
        tell(Event::Step { state: &state, total, report, rate });
        let at_end = state.step == total;
        if validates && (state.step.is_multiple_of(every(recipe.eval_every)) || at_end) {
            let (point, best) = validate(options, &mut trainer, &mut state)?;
            metrics.iter_mut().try_for_each(|metrics| metrics.evaluation(&point))?;
            tell(Event::Evaluated { point, best });
        }
        let sampled = |every: NonZeroU64| state.step.is_multiple_of(every.get());
        if start.sample_every.is_some_and(|every| sampled(every) || at_end) {
            tell(Event::Sample { step: state.step, model: &trainer.model });
        }
        // One process hears its signal at once, several ranks with their next step.
        let signal = trainer.heard().unwrap_or_else(|| options.stop.load(Ordering::Relaxed));
        let due = state.step.is_multiple_of(every(recipe.checkpoint_every));
        if due || signal != 0 || at_end {
            metrics.iter_mut().try_for_each(Metrics::sync)?;
            if !validates {
                trainer.swap_average();
                keep_weights(options, &mut trainer, &mut state)?;
                trainer.swap_average();
            }
            save(dir, &trainer, &state, keep)?;
            saved_at = state.step;
        }
        if signal != 0 && state.step < total {
            stopped_by = Some(signal);
            break;
        }
    }
    let steps = state.step - began;
    Ok(Trained { trainer, state, stopped_by, steps, sent: all_sent })
}

/// What a loss or a gradient that is no number comes from after so many steps, as far as the first tensor
/// that is none tells: weights that were read were looked at before.
fn cause(recipe: &Recipe, steps: u64, first: &str) -> &'static str {
    match recipe.precision {
        _ if first.starts_with("weight ") => SMALLER_STEPS,
        Precision::F16 if steps == 0 => {
            "half precision ends at 65,504, which a value has passed: try --precision bf16 or f32"
        }
        Precision::F16 => {
            "half precision ends at 65,504, which a value has passed: try --precision bf16 or f32, or a \
             smaller --learning-rate"
        }
        _ => SMALLER_STEPS,
    }
}

const SMALLER_STEPS: &str = "try a smaller --learning-rate or a longer --warmup-steps";

/// What was sent between two moments.
fn since(
    now: &[(Collective, Traffic)],
    before: &[(Collective, Traffic)],
) -> Vec<(Collective, Traffic)> {
    now.iter().zip(before).map(|(now, before)| (now.0, now.1.since(&before.1))).collect()
}

fn add(sums: &mut Vec<(Collective, Traffic)>, more: &[(Collective, Traffic)]) {
    if sums.is_empty() {
        sums.extend(more.iter().map(|&(kind, _)| (kind, Traffic::default())));
    }
    sums.iter_mut().zip(more).for_each(|(sum, more)| sum.1.add(&more.1));
}

/// A result that ranks take together: an error of one is an error of all.
fn everywhere<T>(shared: Option<&Shared>, result: Result<T, Error>) -> Result<T, Error> {
    match shared {
        Some(shared) => shared.agree(result)?,
        None => result,
    }
}

/// Whether all ranks were given the same configuration and data.
fn same_everywhere(shared: &Shared, options: &RunOptions) -> Result<(), Error> {
    let config = serde_json::to_string(options.config).unwrap_or_default();
    let own = [hash_of(&config), hash_of(options.data_hash)].join(" ");
    let said = shared.ranks.gather_bytes(own.as_bytes())?;
    let words = |rank: usize| String::from_utf8_lossy(&said[rank]).into_owned();
    let first = words(0);
    let Some(rank) = (0..said.len()).find(|&rank| said[rank] != said[0]) else { return Ok(()) };
    let found = words(rank);
    let pairs = ["configuration", "data"].into_iter().zip(found.split(' ').zip(first.split(' ')));
    let differing = pairs.filter(|(_, (found, expected))| found != expected);
    let Some((what, (found, expected))) = differing.into_iter().next() else { return Ok(()) };
    let (found, expected) = (found.to_owned(), expected.to_owned());
    let error = Error::Share(ShareError::Differs { rank, what, found, expected });
    let own = if shared.ranks.is_first() { Err(error) } else { Ok(()) };
    shared.agree(own)?
}

/// Writes a checkpoint, of one process or of all ranks.
fn save(dir: &Path, trainer: &Trainer, state: &State, keep: usize) -> Result<(), Error> {
    let saved = match &trainer.zero {
        Some(zero) => checkpoint::save_shared(dir, trainer, zero, state, keep),
        None => checkpoint::save(dir, trainer, state, keep),
    };
    saved.map_err(Error::from)
}

/// Makes the run folder: all that resumption needs before the first step.
fn begin(options: &RunOptions, trainer: &mut Trainer, state: &State) -> Result<(), Error> {
    let dir = options.dir;
    let describe = || -> Result<(), Error> {
        fs::create_dir_all(dir).map_err(|source| Error::Io { path: dir.to_owned(), source })?;
        // Adapters are no model by themselves: their folder does not look like one.
        if options.config.model.trains_all() {
            write_description(dir, &options.config.model, options.tokenizer)?;
        }
        Ok(saved::write_recipe(dir, options.config)?)
    };
    let shared = trainer.zero.as_ref().map(|zero| zero.shared());
    let first = shared.as_ref().is_none_or(|shared| shared.ranks.is_first());
    everywhere(shared.as_ref(), if first { describe() } else { Ok(()) })?;
    let written = trainer.write_weights(dir, 0).map_err(Error::from);
    everywhere(shared.as_ref(), written)?;
    save(dir, trainer, state, checkpoint::KEPT)
}

/// Whether a run folder holds something to resume.
pub fn resumable(dir: &Path) -> bool {
    checkpoint::any(dir)
}

/// Whether a recipe can be followed on these sides; touches nothing.
///
/// # Errors
/// [`Error::Recipe`], or [`Error::Data`] when the sides do not fit the model.
pub fn check(
    config: &TrainConfig,
    train: &dyn Sequences,
    valid: &dyn Sequences,
) -> Result<(), Error> {
    config.check_recipe()?;
    let longest = train.longest().max(valid.longest());
    const MOST: usize = 1 << 30;
    let sequences = Place::ALONE.at_once(&config.train);
    if sequences.checked_mul(longest).is_none_or(|tokens| tokens > MOST) {
        return Err(Error::Data(format!(
            "{sequences} sequences of {longest} tokens at once are more than {MOST} tokens; make \
             micro_batch smaller"
        )));
    }
    if train.targets() == 0 {
        return Err(Error::Data(
            "the training side holds no target token; prepare it again".into(),
        ));
    }
    if let Some(limit) = config.model.context_limit()
        && longest.saturating_sub(1) > limit
    {
        return Err(Error::Data(format!(
            "the data has sequences of {longest} tokens, but max_position_embeddings is {limit}; \
             raise it to {} or prepare the data with --max-len {}",
            longest - 1,
            limit + 1
        )));
    }
    Ok(())
}

/// Whether a run folder's newest checkpoint that can be asked is of this configuration and data. Asked
/// before anything is read of it: tensors of another configuration would look like damage.
fn same_run(options: &RunOptions, identity: &str) -> Result<(), Error> {
    let path = options.dir.to_owned();
    if !checkpoint::any(&path) {
        return Err(Error::NothingToResume(path));
    }
    let Some(state) = checkpoint::newest_state(&path).filter(|s| s.identity != identity) else {
        return Ok(());
    };
    let is = data_of(options);
    // Other data often makes other settings, the size of the vocabulary among them.
    if state.data != DataMark::default() && state.data.hash != is.hash {
        return Err(Error::OtherData { path, was: state.data, is });
    }
    let was = saved::read_recipe(&path)?.and_then(|config| serde_json::to_value(config).ok());
    let is = serde_json::to_value(options.config).unwrap_or_default();
    let what = was.and_then(|was| difference("", &was, &is));
    let what = what.unwrap_or_else(|| "the data, or a setting that is not written down".to_owned());
    Err(Error::OtherRun { path, what })
}

/// Whether the best weights of before, which end the run unless better ones come, can be read.
fn best_weights_hold(options: &RunOptions, step: u64) -> Result<(), Error> {
    let checked = saved::check_weights(options.dir, &options.config.model);
    checked.map_err(|error| Error::BestLost { reason: error.to_string(), step })
}

/// The first value that differs, by its name.
fn difference(name: &str, was: &serde_json::Value, is: &serde_json::Value) -> Option<String> {
    let (Some(was), Some(is)) = (was.as_object(), is.as_object()) else {
        return (was != is).then(|| format!("{name} was {was} and is {is}"));
    };
    let none = serde_json::Value::Null;
    let keys = was.keys().chain(is.keys().filter(|key| !was.contains_key(*key)));
    keys.map(|key| {
        let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
        difference(&name, was.get(key).unwrap_or(&none), is.get(key).unwrap_or(&none))
    })
    .find_map(|difference| difference)
}

fn data_of(options: &RunOptions) -> DataMark {
    DataMark { name: options.data_name.to_owned(), hash: hash_of(options.data_hash) }
}

fn identity(options: &RunOptions) -> String {
    let config = serde_json::to_string(options.config).unwrap_or_default();
    hash_of(&format!("{config}\n{}", options.data_hash))
}

fn hash_of(text: &str) -> String {
    format!("{:016x}", text.bytes().fold(0u64, |h, b| kernels::mix(h ^ u64::from(b))))
}

fn validate(
    options: &RunOptions,
    trainer: &mut Trainer,
    state: &mut State,
) -> Result<(CurvePoint, bool), Error> {
    trainer.swap_average();
    let total = trainer.validate(options.valid);
    let train_loss = state.loss_sum / state.loss_targets.max(1) as f64;
    let valid_loss = total.loss().unwrap_or(train_loss);
    let point = CurvePoint { step: state.step, tokens: state.tokens, train_loss, valid_loss };
    state.curve.push(point);
    (state.loss_sum, state.loss_targets) = (0.0, 0);
    let best = valid_loss.is_finite() && state.best_loss.is_none_or(|b| valid_loss < b);
    if best {
        (state.best_loss, state.worse) = (Some(valid_loss), 0);
        keep_weights(options, trainer, state)?;
    } else {
        state.worse += 1;
    }
    trainer.swap_average();
    Ok((point, best))
}

/// Writes the weights as the best so far.
fn keep_weights(
    options: &RunOptions,
    trainer: &mut Trainer,
    state: &mut State,
) -> Result<(), Error> {
    state.best_step = state.step;
    let shared = trainer.zero.as_ref().map(|zero| zero.shared());
    let written = trainer.write_weights(options.dir, state.step).map_err(Error::from);
    everywhere(shared.as_ref(), written)
}

/// Calls, bytes that this rank sent, seconds and overlap of each collective.
pub fn collectives(sent: &[(Collective, Traffic)]) -> serde_json::Value {
    let line = |sum: &Traffic| {
        serde_json::json!({
            "calls": sum.calls, "bytes": sum.bytes, "seconds": sum.seconds, "overlap": sum.overlap(),
        })
    };
    let used = sent.iter().filter(|(_, sum)| sum.calls > 0);
    let all = used.map(|(kind, sum)| (kind.name().replace([' ', '-'], "_"), line(sum)));
    all.collect::<serde_json::Map<_, _>>().into()
}

/// `metrics.jsonl`: a line a step and a line an evaluation.
struct Metrics {
    path: PathBuf,
    file: io::BufWriter<File>,
}

impl Metrics {
    /// Opens the file and drops lines past `step`, which a resumed run writes again.
    fn open(dir: &Path, step: u64) -> Result<Metrics, Error> {
        let path = dir.join("metrics.jsonl");
        let fail = |source| Error::Io { path: path.clone(), source };
        let mut kept = String::new();
        if step > 0 && path.exists() {
            for line in BufReader::new(File::open(&path).map_err(fail)?).lines() {
                let line = line.map_err(fail)?;
                let value: Option<serde_json::Value> = serde_json::from_str(&line).ok();
                if value.and_then(|v| v["step"].as_u64()).is_some_and(|s| s <= step) {
                    kept.push_str(&line);
                    kept.push('\n');
                }
            }
        }
        formats::replace_file(&path, |f| f.write_all(kept.as_bytes())).map_err(fail)?;
        let file = OpenOptions::new().append(true).open(&path).map_err(fail)?;
        Ok(Metrics { file: io::BufWriter::new(file), path })
    }

    fn write(&mut self, value: &serde_json::Value) -> Result<(), Error> {
        writeln!(self.file, "{value}")
            .map_err(|source| Error::Io { path: self.path.clone(), source })
    }

    fn step(
        &mut self,
        state: &State,
        report: &StepReport,
        rate: f64,
        sent: Option<&[(Collective, Traffic)]>,
    ) -> Result<(), Error> {
        let loss = report.loss_sum / report.targets.max(1) as f64;
        let mut line = serde_json::json!({
            "step": state.step, "tokens": state.tokens, "loss_nats": loss,
            "targets": report.targets, "learning_rate": rate,
            "gradient_norm": report.gradient_norm, "clipped": report.clipped,
            "seconds": state.seconds, "data_seconds": state.data_seconds,
            "log_z_nats": report.log_z,
        });
        if let Some(score) = report.largest_score {
            line["largest_attention_score"] = score.into();
        }
        if let Some(share) = report.lost_share {
            line["lost_update_share"] = share.into();
        }
        if let Some(scale) = report.loss_scale {
            line["loss_scale"] = scale.into();
            line["overflowed"] = report.overflowed.into();
        }
        if let Some(sent) = sent {
            line["collectives"] = collectives(sent);
        }
        self.write(&line)
    }

    fn evaluation(&mut self, point: &CurvePoint) -> Result<(), Error> {
        self.write(&serde_json::json!({
            "step": point.step, "tokens": point.tokens,
            "train_loss_nats": point.train_loss, "valid_loss_nats": point.valid_loss,
        }))
    }

    fn sync(&mut self) -> Result<(), Error> {
        self.file.flush().map_err(|source| Error::Io { path: self.path.clone(), source })
    }
}
