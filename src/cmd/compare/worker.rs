//! One run of a comparison, in a process of its own: train, score once on the test side, write the
//! record. Without an arm it is the empty harness: everything but a model.

use super::arms;
use crate::cmd::team;
use crate::error::CliError;
use crate::term::{self, Progress};
use clap::Args;
use compare::{
    Arm, CalibrationBin, CurvePoint, Experiment, GroupScore, LedgerTerm, MessageMean,
    ParameterCount, PositionScore, Record, Score, SeenSplit, TestScores, TrainingRun,
};
use corpus::{Dataset, Side};
use ledger::{Account, Report};
use models::ngram::{Counter, Ngram};
use models::{Batch, Model, ModelConfig, NgramConfig, Runner, Workload};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use train::{
    BatchShape, Event, RunOptions, SavedModel, Scores, Sequences, Tally, TrainConfig, Trainer,
};

/// The file in a run's folder that holds its record.
pub const RECORD: &str = "record.json";

/// Arguments of the process.
#[derive(Debug, Args)]
pub struct WorkerArgs {
    /// The data set
    #[arg(long)]
    data: PathBuf,
    /// The comparison's folder
    #[arg(long)]
    out: PathBuf,
    /// The arm; none for the empty harness
    #[arg(long, requires = "seed")]
    arm: Option<String>,
    /// The seed
    #[arg(long)]
    seed: Option<u64>,
    /// Workers
    #[arg(long)]
    threads: Option<usize>,
    /// No progress
    #[arg(long)]
    quiet: bool,
}

/// Runs as told.
pub fn run(args: &WorkerArgs) -> Result<(), CliError> {
    let data = Dataset::open(&args.data).map_err(CliError::input)?;
    let stop = crate::stop::on_signals()?;
    stop_with_input(Arc::clone(&stop));
    let (Some(name), Some(seed)) = (&args.arm, args.seed) else {
        let _team = team(args.threads)?;
        term::print(&format!("{}\n", ledger::peak_bytes()));
        return Ok(());
    };
    let path = args.out.join("experiment.toml");
    let origin = path.display().to_string();
    let text = fs::read_to_string(&path).map_err(|e| CliError::input(format!("{origin}: {e}")))?;
    let experiment = Experiment::from_toml(&text, &origin).map_err(CliError::input)?;
    let Some(arm) = experiment.arms.iter().find(|arm| arm.name == *name) else {
        return Err(CliError::input(format!("{origin}: no arm `{name}`")));
    };
    let dir = arms::folder(&args.out, &experiment, arm, seed);
    let config = arms::config(&experiment, arm, seed, &data)?;
    let work = Work { args, experiment: &experiment, data: &data, config, dir };
    let record = Record { arm: arm.name.clone(), seed, ..work.run(arm, &stop)? };
    let text = serde_json::to_vec(&record.sealed()).map_err(CliError::failed)?;
    let path = work.dir.join(RECORD);
    formats::replace_file(&path, |file| std::io::Write::write_all(file, &text))
        .map_err(|e| CliError::failed(format!("{}: {e}", path.display())))
}

/// The end of standard input means that whoever started this process stopped or is gone.
fn stop_with_input(stop: Arc<AtomicUsize>) {
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = stop.compare_exchange(
            0,
            signal_hook::consts::SIGTERM as usize,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    });
}

struct Work<'a> {
    args: &'a WorkerArgs,
    experiment: &'a Experiment,
    data: &'a Dataset,
    config: TrainConfig,
    dir: PathBuf,
}

impl Work<'_> {
    fn run(&self, arm: &Arm, stop: &AtomicUsize) -> Result<Record, CliError> {
        let (mut record, model) = match &self.config.model {
            ModelConfig::Ngram(config) => {
                let (record, model) = self.count(config)?;
                (record, Some(SavedModel::Counts(model)))
            }
            _ => {
                let record = self.descend(arm, stop)?;
                let good = record.failed.is_none();
                let model = good.then(|| SavedModel::open(&self.dir)).transpose();
                (record, model.map_err(CliError::failed)?)
            }
        };
        if let Some(model) = model {
            let batch = self.config.train.micro_batch;
            let scores =
                crate::cmd::eval::score(&model, self.data, Side::Test, batch, self.args.threads)?;
            record.test = Some(test_scores(&scores));
            record.top_next = self.top_next(&model)?;
        }
        Ok(record)
    }

    /// Gradient descent in the run's folder; goes on from its newest checkpoint.
    fn descend(&self, arm: &Arm, stop: &AtomicUsize) -> Result<Record, CliError> {
        let team = team(self.args.threads)?;
        Trainer::warm_up(&self.config, &team);
        let runtime = ledger::resident_bytes();
        let (train, valid) = (self.data.side(Side::Train), self.data.side(Side::Valid));
        let shape = BatchShape::of(&self.config.train, train, valid);
        let mut plan =
            Trainer::plan(&self.config, shape, team.threads()).map_err(CliError::input)?;
        let _files = crate::cmd::train::plan_token_files(&mut plan, self.data);
        let tokenizer = self.data.tokenizer().to_bytes();
        let hash = super::facts::data_hash(self.data.manifest());
        let name = self.data.dir().display().to_string();
        let options = RunOptions {
            config: &self.config,
            train,
            valid,
            tokenizer: &tokenizer,
            data_hash: &hash,
            data_name: &name,
            dir: &self.dir,
            resume: train::resumable(&self.dir),
            team: &team,
            stop,
        };
        let total = train::total_steps(&self.config, Sequences::len(train));
        let mut progress = Progress::new(total, self.args.quiet);
        let outcome = train::run(&options, &mut |event| show(&mut progress, &event));
        progress.finish();
        let outcome = match outcome {
            Err(error @ train::Error::NotFinite { .. }) => {
                let words = error.to_string();
                let words = words.split(';').next().unwrap_or_default().to_owned();
                return Ok(Record { failed: Some(words), ..Record::default() });
            }
            other => other.map_err(CliError::input)?,
        };
        if let Some(signal) = outcome.stopped_by {
            let words = format!("{} stopped at step {} of {total}", arm.name, outcome.state.step);
            return Err(CliError::stopped(signal, words));
        }
        let peak = ledger::peak_bytes();
        let report = Report::new(&plan, &ledger::snapshot(), runtime, peak);
        let parameters = network_parameters(&outcome.model, plan.of(Account::Optimizer));
        let state = &outcome.state;
        let point = |p: &train::CurvePoint| CurvePoint {
            tokens: p.tokens,
            train_loss: Some(p.train_loss),
            validation_loss: Some(p.valid_loss),
        };
        let mut record = Record {
            parameters,
            training: TrainingRun {
                seconds: state.seconds,
                tokens: state.tokens,
                steps: state.step,
                tokens_per_second: state.tokens as f64 / state.seconds.max(1e-9),
                flops: 6.0 * parameters.non_embedding as f64 * state.tokens as f64,
                tuning_trials: 1,
                best_validation_loss: state.best_loss,
                best_step: Some(state.best_step),
            },
            curve: state.curve.iter().map(point).collect(),
            ..Record::default()
        };
        record.memory.peak_process_bytes = peak;
        record.memory.predicted_process_bytes = Some(report.predicted_process_bytes);
        let term = |row: &ledger::ReportRow| LedgerTerm {
            name: row.term.to_owned(),
            predicted_bytes: row.predicted_bytes,
            measured_bytes: row.measured_bytes,
        };
        record.memory.terms = report.rows.iter().map(term).collect();
        Ok(record)
    }

    /// Counts, smoothing chosen on the validation side.
    fn count(&self, config: &NgramConfig) -> Result<(Record, Ngram), CliError> {
        let started = Instant::now();
        let train = self.data.side(Side::Train);
        let mut counter = Counter::new(config).map_err(CliError::input)?;
        let mut ids = Vec::new();
        for i in 0..Sequences::len(train) {
            train.copy(i, &mut ids);
            counter.add(&ids);
        }
        let mut model = counter.finish();
        let held = sequences(self.data, Side::Valid);
        let trials = model.choose(held.iter().map(Vec::as_slice));
        let seconds = started.elapsed().as_secs_f64();
        let peak = ledger::peak_bytes();
        let failed = |e: train::SavedError| CliError::failed(e);
        fs::create_dir_all(&self.dir)
            .map_err(|e| CliError::failed(format!("{}: {e}", self.dir.display())))?;
        let saved = ModelConfig::Ngram(model.config().clone());
        let tokenizer = self.data.tokenizer().to_bytes();
        train::write_description(&self.dir, &saved, &tokenizer).map_err(failed)?;
        if config.order > 0 {
            train::write_counts(&self.dir, &model).map_err(failed)?;
        }
        let best = trials.iter().map(|trial| trial.loss).fold(f64::INFINITY, f64::min);
        let tokens = Sequences::targets(train);
        let choice = (trials.len() > 1)
            .then(|| format!("{}, best of {} tried on validation", words(&model), trials.len()));
        let mut record = Record {
            parameters: ParameterCount {
                dense: if config.order == 0 { 0 } else { model.dense_parameters() },
                non_embedding: if config.order == 0 { 0 } else { model.dense_parameters() },
                nonzero: model.nonzero_parameters(),
                bytes: model.bytes(),
                optimizer_bytes: 0,
            },
            training: TrainingRun {
                seconds,
                tokens,
                tokens_per_second: tokens as f64 / seconds.max(1e-9),
                tuning_trials: trials.len() as u32,
                best_validation_loss: best.is_finite().then_some(best),
                ..TrainingRun::default()
            },
            notes: choice.into_iter().collect(),
            ..Record::default()
        };
        record.memory.peak_process_bytes = peak;
        Ok((record, model))
    }

    /// The most probable next tokens after each prompt.
    fn top_next(
        &self,
        model: &SavedModel,
    ) -> Result<BTreeMap<String, Vec<(String, f64)>>, CliError> {
        let tokenizer = self.data.tokenizer();
        let list = |prompt: &String| {
            let mut ids: Vec<u32> = tokenizer.specials().bos.into_iter().collect();
            ids.extend(tokenizer.encode(prompt));
            let chances = next(model, &ids, self.args.threads)?;
            let mut order: Vec<u32> = (0..chances.len() as u32).collect();
            order.sort_by(|&a, &b| {
                chances[b as usize].total_cmp(&chances[a as usize]).then(a.cmp(&b))
            });
            let best = order.iter().take(self.experiment.top_next);
            let named = best.map(|&id| {
                (tokenizer.token(id).unwrap_or_else(|| format!("#{id}")), chances[id as usize])
            });
            Ok((prompt.clone(), named.collect()))
        };
        self.experiment.prompts.iter().map(list).collect()
    }
}

fn show(progress: &mut Progress, event: &Event) {
    if let Event::PassedOver(error) = event {
        progress.warn(&format!("checkpoint passed over: {error}"));
    }
    if let Event::Step { state, total, report, .. } = event {
        progress.at(state.step, *total, || {
            let speed = state.tokens as f64 / state.seconds.max(1e-9);
            let loss = report.loss_sum / report.targets.max(1) as f64;
            let left = state.seconds / state.step as f64 * (total - state.step) as f64;
            let speed = term::thousands(speed as u64);
            format!("loss {loss:.3}, {speed} tokens/s, {} left", term::duration(left))
        });
    }
}

fn sequences(data: &Dataset, side: Side) -> Vec<Vec<u32>> {
    let side = data.side(side);
    let copy = |i| {
        let mut ids = Vec::new();
        side.copy(i, &mut ids);
        ids
    };
    (0..Sequences::len(side)).map(copy).collect()
}

/// The smoothing of a model of counts in words.
fn words(model: &Ngram) -> String {
    match model.smoothing() {
        models::Smoothing::Add { add } => format!("{add} added to every count"),
        models::Smoothing::Interpolated { lambda } => {
            format!("interpolated with the unigram, weight {lambda}")
        }
        models::Smoothing::KneserNey { discount: Some(discount) } => {
            format!("Kneser–Ney with a discount of {discount}")
        }
        models::Smoothing::KneserNey { discount: None } => {
            "Kneser–Ney with a discount by its formula".to_owned()
        }
    }
}

fn network_parameters(model: &Model, optimizer_bytes: u64) -> ParameterCount {
    let dense = model.layout().count() as u64;
    let specs = model.layout().specs().iter();
    let embeddings = specs
        .filter(|spec| spec.name.starts_with("tok_emb.") || spec.name.starts_with("pos_emb."))
        .map(|spec| spec.range.len() as u64);
    let non_embedding = dense - embeddings.sum::<u64>();
    let nonzero = model.weights().flat().iter().filter(|weight| **weight != 0.0).count() as u64;
    ParameterCount { dense, non_embedding, nonzero, bytes: 4 * dense, optimizer_bytes }
}

/// The distribution of the token after `ids`.
fn next(model: &SavedModel, ids: &[u32], threads: Option<usize>) -> Result<Vec<f64>, CliError> {
    let mut chances = vec![0.0; model.config().vocab_size()];
    match model {
        SavedModel::Counts(counts) => counts.distribution(ids, &mut chances),
        SavedModel::Network(network) => {
            let team = team(threads)?;
            let workload = Workload {
                rows: ids.len(),
                sequences: 1,
                longest: ids.len(),
                threads: team.threads(),
                training: false,
            };
            let mut runner = Runner::new(network, workload, &team).map_err(CliError::failed)?;
            let mut batch = Batch::default();
            batch.push_inputs(ids, 0, 0);
            let mut logits = vec![0.0f32; chances.len()];
            runner.logits(network, &batch, &mut [][..], &[ids.len() - 1], &mut logits);
            let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let powers = logits.iter().map(|logit| f64::from(logit - most).exp());
            chances = powers.collect();
            let sum: f64 = chances.iter().sum();
            chances.iter_mut().for_each(|chance| *chance /= sum);
        }
    }
    Ok(chances)
}

fn score(tally: Tally) -> Score {
    Score { tokens: tally.tokens, nll: tally.nll, correct: tally.correct }
}

/// The scores of the test side in the form of a record.
fn test_scores(scores: &Scores) -> TestScores {
    let groups = |pick: fn(&(Tally, Tally)) -> Tally| {
        let all = scores.groups.iter();
        all.map(|(group, tallies)| GroupScore { group: *group, score: score(pick(tallies)) })
            .collect()
    };
    let position = |(at, tally): (usize, &Tally)| PositionScore {
        position: at as u32 + 1,
        score: score(*tally),
    };
    let bin = |bin: &train::Bin| CalibrationBin {
        count: bin.count,
        confidence: bin.confidence,
        correct: bin.correct,
    };
    TestScores {
        groups: groups(|tallies| tallies.0),
        known: groups(|tallies| tallies.1),
        second_grouping: None,
        seen_run: Some(SeenSplit { seen: score(scores.seen), unseen: score(scores.unseen) }),
        messages: MessageMean {
            messages: scores.messages,
            loss: scores.message_loss,
            accuracy: scores.message_accuracy,
        },
        positions: scores.positions.iter().enumerate().map(position).collect(),
        calibration: scores.calibration.iter().map(bin).collect(),
    }
}
