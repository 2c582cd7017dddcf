//! `autoreg verify RUN`, the training's part: shows on this machine that a run goes on to the bit, that
//! ranks give the same bits whatever they share out (and, of a run in pieces, those of one process), and
//! that every checkpoint holds.
//!
//! Nothing of the run is changed: short runs from its weights, by its recipe, on invented tokens, in
//! folders of their own that go when they are done.

use crate::cmd::team;
use crate::error::CliError;
use crate::term;
use kernels::{Team, mix};
use models::{Model, ModelConfig};
use ranks::Ranks;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use train::{
    Event, RunOptions, SavedModel, Shared, Stage, Start, TrainConfig, run_from, run_ranks,
};

/// Steps of each short run.
const STEPS: u64 = 4;
/// Sequences a step, and pieces where the run has any: what two and four ranks divide.
const BATCH: usize = 4;
/// Tokens of a sequence at most.
const LENGTH: usize = 24;

/// What one check came to.
#[derive(Debug, Serialize)]
pub struct Row {
    check: String,
    /// Whether it holds.
    pub good: bool,
    /// What is compared, or what is wrong.
    found: String,
    seconds: f64,
}

/// Makes all checks of a run folder, and tells them as they end.
pub fn verify(run: &Path, threads: Option<usize>, tells: bool) -> Result<Vec<Row>, CliError> {
    let mut rows = Vec::new();
    let mut add = |row: Row| {
        if tells {
            term::print(&line(&row));
        }
        rows.push(row);
    };
    for checkpoint in train::checkpoints(run) {
        let started = Instant::now();
        let name = checkpoint.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let result = train::check_checkpoint(&checkpoint);
        add(Row {
            check: format!("checkpoint {name}"),
            good: result.is_ok(),
            found: match result {
                Ok((files, values)) => format!("{files} files, {values} values"),
                Err(error) => error.to_string(),
            },
            seconds: started.elapsed().as_secs_f64(),
        });
    }
    let place = Scratch::new()?;
    let Some(trial) = Trial::of(run, &place)? else {
        term::note(
            "resumption and stages are not checked: that takes a run that trains a whole network, and \
             this one is of adapters alone, or counts",
        );
        return Ok(rows);
    };
    let all = team(threads)?;
    let started = Instant::now();
    let whole = trial.alone("whole", &all, None)?;
    trial.alone("cut", &all, Some(STEPS / 2))?;
    let resumed = trial.resume("cut", &all)?;
    add(Row {
        check: format!("resumed after step {} of {STEPS}", STEPS / 2),
        good: whole == resumed,
        found: whole.compared(&resumed),
        seconds: started.elapsed().as_secs_f64(),
    });
    for size in [2, 4] {
        // Pieces give the same bits whatever the number of ranks.
        let mut first = trial.in_pieces().then(|| whole.clone());
        for stage in Stage::ALL {
            let started = Instant::now();
            let found = trial.ranks(&format!("{size}-{}", stage.number()), size, stage)?;
            let right = first.get_or_insert_with(|| found.clone());
            add(Row {
                check: format!("{size} ranks, ZeRO stage {}", stage.number()),
                good: *right == found,
                found: format!(
                    "{}, {:.1e} off one process",
                    right.compared(&found),
                    found.off(&whole)
                ),
                seconds: started.elapsed().as_secs_f64(),
            });
        }
    }
    Ok(rows)
}

fn line(row: &Row) -> String {
    let verdict = if row.good { "" } else { "  WRONG" };
    format!("{:<34}{}  {:>6.2} s{verdict}\n", row.check, row.found, row.seconds)
}

/// A folder that goes when it is dropped.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new() -> Result<Scratch, CliError> {
        let name = format!("autoreg-verify-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder)
            .map_err(|e| CliError::failed(format!("{}: {e}", folder.display())))?;
        Ok(Scratch(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// What a short run leaves: each step's loss, and its weights.
#[derive(Clone, PartialEq)]
struct Trace {
    losses: Vec<u64>,
    weights: String,
}

impl Trace {
    fn compared(&self, other: &Trace) -> String {
        let short = |digest: &str| digest.get(..16).unwrap_or(digest).to_owned();
        match self == other {
            true => format!("weights {}", short(&self.weights)),
            false => format!("weights {} and {}", short(&self.weights), short(&other.weights)),
        }
    }

    /// The largest difference of a step's loss, as a share.
    fn off(&self, other: &Trace) -> f64 {
        let pairs = self.losses.iter().zip(&other.losses);
        pairs
            .map(|(a, b)| (f64::from_bits(*a), f64::from_bits(*b)))
            .map(|(a, b)| ((a - b) / b).abs())
            .fold(0.0, f64::max)
    }
}

/// The short runs of one run folder.
struct Trial<'a> {
    run: &'a Path,
    place: &'a Scratch,
    config: TrainConfig,
    data: Vec<Vec<u32>>,
}

impl<'a> Trial<'a> {
    /// None where the run is of adapters alone: it has no model of its own.
    fn of(run: &'a Path, place: &'a Scratch) -> Result<Option<Trial<'a>>, CliError> {
        if !run.join(train::CONFIG_FILE).is_file() {
            return Ok(None);
        }
        let mut config = match train::read_recipe(run).map_err(CliError::input)? {
            Some(config) => config,
            None => {
                let SavedModel::Network(model) = SavedModel::open(run).map_err(CliError::input)?
                else {
                    return Ok(None);
                };
                TrainConfig { model: model.config().clone(), train: train::Recipe::default() }
            }
        };
        if matches!(config.model, ModelConfig::Ngram(_)) {
            return Ok(None);
        }
        let recipe = &mut config.train;
        (recipe.batch, recipe.micro_batch, recipe.epochs) = (BATCH, BATCH, STEPS);
        recipe.pieces = if recipe.pieces > 0 { BATCH } else { 0 };
        (recipe.warmup_steps, recipe.max_steps) = (1, STEPS);
        (recipe.eval_every, recipe.checkpoint_every, recipe.patience) = (STEPS, 1, 0);
        let longest = LENGTH.min(config.model.context_limit().unwrap_or(LENGTH)) as u64;
        let vocab = config.model.vocab_size() as u64;
        let sequence = |i: u64| {
            let length = 2 + mix(i) % longest.max(1);
            (0..length).map(|t| (mix(i << 20 | t) % vocab) as u32).collect()
        };
        let data = (0..BATCH as u64).map(sequence).collect();
        Ok(Some(Trial { run, place, config, data }))
    }

    fn in_pieces(&self) -> bool {
        self.config.train.pieces > 0
    }

    fn model(&self) -> Result<Option<Model>, CliError> {
        match SavedModel::open(self.run).map_err(CliError::input)? {
            SavedModel::Network(model) => Ok(Some(*model)),
            SavedModel::Counts(_) => Ok(None),
        }
    }

    fn alone(&self, name: &str, team: &Arc<Team>, stop: Option<u64>) -> Result<Trace, CliError> {
        self.go(name, team, (stop, false), None)
    }

    fn resume(&self, name: &str, team: &Arc<Team>) -> Result<Trace, CliError> {
        self.go(name, team, (None, true), None)
    }

    /// By ranks that are threads of this process, a worker each.
    fn ranks(&self, name: &str, size: usize, stage: Stage) -> Result<Trace, CliError> {
        let ranks = Ranks::threads(size).map_err(CliError::failed)?;
        std::thread::scope(|scope| {
            let rank = |ranks: Ranks| {
                let shared = Shared { ranks: Arc::new(ranks), stage };
                scope.spawn(move || {
                    let team = Arc::new(Team::new(1));
                    let trace = self.go(name, &team, (None, false), Some(&shared));
                    match &trace {
                        Ok(_) => shared.ranks.finish(),
                        Err(error) => shared.ranks.abort(error.code),
                    }
                    trace
                })
            };
            let all: Vec<_> = ranks.into_iter().map(rank).collect();
            let failed = |_| Err(CliError::failed("a rank has panicked"));
            let ended = all.into_iter().map(|rank| rank.join().unwrap_or_else(failed));
            let mut traces = ended.collect::<Result<Vec<_>, _>>()?;
            Ok(traces.swap_remove(0))
        })
    }

    fn go(
        &self,
        name: &str,
        team: &Arc<Team>,
        (stop_at, resume): (Option<u64>, bool),
        shared: Option<&Shared>,
    ) -> Result<Trace, CliError> {
        let dir = self.place.0.join(name);
        let stop = AtomicUsize::new(0);
        let options = RunOptions {
            config: &self.config,
            train: &self.data,
            valid: &self.data,
            tokenizer: b"{}",
            data_hash: "invented",
            data_name: "invented data",
            dir: &dir,
            resume,
            team,
            stop: &stop,
        };
        let tell = &mut |event: Event| {
            if let Event::Step { state, .. } = event
                && Some(state.step) == stop_at
            {
                stop.store(1, Ordering::Relaxed);
            }
        };
        let start = Start { model: self.model()?, ..Start::default() };
        match shared {
            Some(shared) => run_ranks(start, shared, &options, tell).map(drop),
            None => run_from(start, &options, tell).map(drop),
        }
        .map_err(CliError::failed)?;
        // Ranks that are not the first may read before it has written.
        if let Some(shared) = shared {
            shared.ranks.barrier().map_err(CliError::failed)?;
        }
        trace(&dir)
    }
}

fn trace(dir: &Path) -> Result<Trace, CliError> {
    let read = |name: &str| {
        let path = dir.join(name);
        std::fs::read(&path).map_err(|e| CliError::failed(format!("{}: {e}", path.display())))
    };
    let metrics = read("metrics.jsonl")?;
    let lines = metrics.split(|&b| b == b'\n');
    let losses = lines
        .filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok())
        .filter_map(|line| line["loss_nats"].as_f64().map(f64::to_bits));
    Ok(Trace { losses: losses.collect(), weights: newest_weights(dir)? })
}

/// The SHA-256 of the newest checkpoint's weights, whoever holds them.
fn newest_weights(dir: &Path) -> Result<String, CliError> {
    let newest = train::checkpoints(dir).pop();
    let newest = newest.ok_or_else(|| CliError::failed("a short run left no checkpoint"))?;
    train::weights_digest(&newest).map_err(CliError::failed)
}
