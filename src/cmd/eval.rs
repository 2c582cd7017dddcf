//! `autoreg eval`: what a model makes of one side of a data set.

use crate::cmd::model::Opened;
use crate::cmd::{KvArgs, json, team};
use crate::error::CliError;
use crate::term::{self, thousands};
use clap::{Args, ValueEnum};
use compare::statistics::{Bootstrap, Contrast, Metric, Panel};
use corpus::{Dataset, Side};
use models::{Runner, Workload};
use serde_json::json;
use std::path::{Path, PathBuf};
use train::{Evaluator, SavedModel, Scores, Sequences, evaluate};

mod text;

/// A side of a data set.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum SideName {
    /// The training side
    Train,
    /// The validation side
    Valid,
    /// The test side
    Test,
}

impl SideName {
    /// The side that it names.
    pub fn side(self) -> Side {
        match self {
            Self::Train => Side::Train,
            Self::Valid => Side::Valid,
            Self::Test => Side::Test,
        }
    }
}

/// Arguments of `eval`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  autoreg eval runs/t1 --data DATA
  autoreg eval runs/t1 --data DATA --split valid --json
  autoreg eval models/smollm2-135m-q4_1.gguf --text notes.txt")]
pub struct EvalArgs {
    /// A run folder of `autoreg train`, a GGUF file or a Hugging Face folder
    pub model: PathBuf,
    /// A folder made by `autoreg data prepare`
    #[arg(long, value_name = "DIR", required_unless_present = "text")]
    pub data: Option<PathBuf>,
    /// Instead of a data set: the perplexity of a text file, in windows that do not overlap
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    pub text: Option<PathBuf>,
    /// With --text: tokens a window, the beginning token counted
    #[arg(long, value_name = "N", default_value_t = 512, requires = "text")]
    pub window: usize,
    /// With --text: how keys and values are kept
    #[command(flatten)]
    pub kv: KvArgs,
    /// The side to score
    #[arg(long, value_enum, default_value = "test")]
    pub split: SideName,
    /// Sequences computed at once
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub batch: usize,
    /// Workers (default: the processors this process may use)
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Scores as told.
pub fn run(args: EvalArgs) -> Result<(), CliError> {
    match (&args.data, &args.text) {
        (_, Some(text)) => text::run(&args, text),
        (Some(data), None) => on_data(&args, data),
        (None, None) => Err(CliError::input("no data given; give --data DIR or --text FILE")),
    }
}

fn on_data(args: &EvalArgs, data: &Path) -> Result<(), CliError> {
    if args.kv.kind() != kernels::KvKind::F32 {
        return Err(CliError::input("--kv is for --text: a data set is scored without a cache"));
    }
    let data = Dataset::open(data).map_err(CliError::input)?;
    let opened = Opened::open(&args.model)?;
    opened.belongs_to(&data)?;
    let model = &opened.saved;
    let side = args.split.side();
    data.side(side).verify().map_err(CliError::input)?;
    let scores = score(model, &data, side, args.batch, args.threads)?;
    let (total, known) = (scores.total, scores.known);
    let name = side.name();
    if args.json {
        let value = json!({
            "model": model.config().kind(),
            "split": name,
            "synthetic": data.manifest().synthetic,
            "sequences": scores.messages,
            "tokens": total.tokens,
            "groups": scores.groups.len(),
            "parameters": parameters(model),
            "parameter_bytes": parameter_bytes(model),
            format!("{name}_loss_nats"): interval(&scores, Metric::Loss),
            format!("{name}_accuracy"): interval(&scores, Metric::Accuracy),
            "loss_is_infinite": total.loss().is_some_and(f64::is_infinite),
            "perplexity": total.loss().map(f64::exp),
            "without_unk": {
                "tokens": known.tokens,
                format!("{name}_loss_nats"): known.loss(),
                format!("{name}_accuracy"): known.accuracy(),
                "perplexity": known.loss().map(f64::exp),
            },
            "peak_process_bytes": ledger::peak_bytes(),
        });
        term::print(&json(&value)?);
        return Ok(());
    }
    let row = |what: &str, t: train::Tally| {
        format!(
            "{what:<14}{:>12}{:>12}{:>14}{:>12}\n",
            thousands(t.tokens),
            t.loss().map_or("-".into(), |l| format!("{l:.4}")),
            t.loss().map_or("-".into(), |l| format!("{:.2}", l.exp())),
            t.accuracy().map_or("-".into(), |a| format!("{:.2} %", 100.0 * a)),
        )
    };
    let synthetic = if data.manifest().synthetic { " (synthetic mail)" } else { "" };
    term::print(&format!(
        "{} on the {name} side{synthetic}: {} sequences\n{:<14}{:>12}{:>12}{:>14}{:>12}\n{}{}",
        model.config().kind(),
        thousands(scores.messages),
        "targets",
        "tokens",
        "nats/token",
        "perplexity",
        "accuracy",
        row("all", total),
        row("without <unk>", known),
    ));
    Ok(())
}

/// A score with the interval that resampling its groups gives (one run: seeds are not in it).
fn interval(scores: &Scores, metric: Metric) -> serde_json::Value {
    let groups = || scores.groups.values().map(|(all, _)| all);
    let tokens: Vec<f64> = groups().map(|t| t.tokens as f64).collect();
    let panel = Panel {
        seeds: vec![0],
        deterministic: true,
        nll: vec![groups().map(|t| t.nll).collect()],
        correct: vec![groups().map(|t| t.correct as f64).collect()],
    };
    let contrast = Contrast { plus: 0, minus: None, metric };
    let draws = Bootstrap { draws: 10_000, seed: 0 }.run(&tokens, &[panel], &[contrast]);
    match draws.into_iter().next().flatten() {
        Some(draws) => {
            let ends = draws.interval(0.95);
            json!({ "mean": draws.estimate, "low": ends.low, "high": ends.high })
        }
        None => serde_json::Value::Null,
    }
}

fn parameters(model: &SavedModel) -> u64 {
    match model {
        SavedModel::Network(m) => m.layout().count() as u64,
        SavedModel::Counts(m) => m.dense_parameters(),
    }
}

fn parameter_bytes(model: &SavedModel) -> u64 {
    match model {
        SavedModel::Network(m) => 4 * m.layout().count() as u64,
        SavedModel::Counts(m) => m.bytes(),
    }
}

/// A model's scores on a side.
pub fn score(
    model: &SavedModel,
    data: &Dataset,
    side: Side,
    batch: usize,
    threads: Option<usize>,
) -> Result<Scores, CliError> {
    let (sequences, unknown) = (data.side(side), data.tokenizer().specials().unk);
    match model {
        SavedModel::Counts(counts) => {
            Ok(evaluate(&mut Evaluator::Counts(counts), sequences, batch, unknown))
        }
        SavedModel::Network(network) => {
            let team = team(threads)?;
            let longest = Sequences::longest(sequences);
            if let Some(limit) = network.config().context_limit()
                && longest.saturating_sub(1) > limit
            {
                return Err(CliError::input(format!(
                    "the data has sequences of {longest} tokens; this model sees {limit} at most"
                )));
            }
            let batch = batch.max(1);
            let rows = batch * longest.max(2);
            let workload = Workload {
                rows,
                sequences: batch,
                longest,
                threads: team.threads(),
                training: false,
            };
            let mut runner = Runner::new(network, workload, &team).map_err(CliError::failed)?;
            Ok(evaluate(&mut Evaluator::Network(network, &mut runner), sequences, batch, unknown))
        }
    }
}
