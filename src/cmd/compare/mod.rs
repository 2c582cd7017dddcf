//! `autoreg compare`: all rows of an experiment on one data set, each run in a process of its own,
//! then the report. What is stopped goes on with the same command.

mod arms;
mod facts;
mod worker;

pub use facts::{data_hash, description, machine};
pub use worker::WorkerArgs;

use crate::cmd::json;
use crate::error::CliError;
use crate::term;
use clap::Args;
use compare::{Analysis, Arm, Audit, Confirmation, Experiment, Record, Store, report};
use corpus::prepare::Source;
use corpus::{Dataset, Options, Side};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const AUDIT: &str = "audit.json";

/// Arguments of `compare`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  autoreg compare                                  synthetic mail, a small budget: a few minutes
  autoreg compare --data DATA --out runs/mail      six seeds, eight epochs
  autoreg compare --data DATA --experiment my.toml --out runs/mine

An experiment file; all keys but name and the arms may be left away:
  name = \"wider\"
  margin_nats = 0.02
  seeds = [1, 2, 3, 4, 5, 6]
  epochs = 8
  prompts = [\"please send the\"]
  [train]                       # shared by all arms, as in `autoreg train`
  learning_rate = 1e-2
  [[arm]]
  name = \"bigram\"
  kind = \"bigram\"               # uniform, unigram, bigram, ngram, rnn, transformer
  [[arm]]
  name = \"wide\"
  kind = \"transformer\"
  model = { hidden_size = 128, intermediate_size = 512 }

What was stopped goes on with the same command; finished runs are kept.")]
pub struct CompareArgs {
    /// A folder made by `autoreg data prepare`; without it, synthetic business mail is generated
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The comparison's folder [default: runs/compare]
    #[arg(long, value_name = "DIR", default_value = "runs/compare", hide_default_value = true)]
    out: PathBuf,
    /// A TOML file with the experiment; without it, bigram, RNN and transformer with two anchors
    #[arg(long, value_name = "FILE")]
    experiment: Option<PathBuf>,
    /// Add the row `tuned`: a transformer of the same size with what a search chose (docs/tuning.md)
    #[arg(long, conflicts_with_all = ["experiment", "report_only"])]
    tuned: bool,
    /// Seeds 1 to N [default: 6; on synthetic mail 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: Option<u64>,
    /// Passes over the training side [default: 8; on synthetic mail 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    epochs: Option<u32>,
    /// Show the top next tokens after this text; may be given again
    #[arg(long, value_name = "TEXT")]
    prompt: Vec<String>,
    /// results.json of the same experiment on a split grouped by another key: a winner must hold
    /// there, too
    #[arg(long, value_name = "FILE")]
    confirm: Option<PathBuf>,
    /// Write the report of the runs that are there, and start none
    #[arg(long)]
    report_only: bool,
    /// Replace the comparison in --out
    #[arg(long, conflicts_with = "report_only")]
    force: bool,
    /// Workers of each run (default: the processors this process may use)
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print results.json instead of tables
    #[arg(long)]
    json: bool,
    /// No progress
    #[arg(long, short)]
    quiet: bool,
}

/// Compares as told.
pub fn run(args: &CompareArgs) -> Result<(), CliError> {
    let confirmation = args.confirm.as_deref().map(confirmation).transpose()?;
    if args.report_only {
        let (experiment, records) = Store::read(&args.out).map_err(CliError::input)?;
        return publish(args, &experiment, &audit(&args.out)?, &records, confirmation.as_ref());
    }
    let experiment = experiment(args)?;
    let threads = crate::cmd::threads(args.threads)?;
    if args.force {
        may_be_replaced(&args.out)?;
    }
    let hold = crate::cmd::hold(&args.out)?;
    if args.force {
        hold.clear().map_err(|e| CliError::failed(format!("{}: {e}", args.out.display())))?;
    }
    let stop = crate::stop::on_signals()?;
    let folder = match &args.data {
        Some(folder) => folder.clone(),
        None => synthetic(args, &stop)?,
    };
    let data = Dataset::open(&folder).map_err(CliError::input)?;
    for side in Side::ALL {
        data.side(side).verify().map_err(CliError::input)?;
    }
    arms::check(&experiment, &data)?;
    let mut store = Store::open(&args.out, &experiment, &facts::data_hash(data.manifest()))
        .map_err(compare_error)?;
    let runs = Runs { args, folder: &folder, stop: &stop };
    let done = runs.all(&experiment, &mut store);
    let audit = facts::audit(&data, &args.out, threads);
    let path = args.out.join(AUDIT);
    let text = json(&audit)?;
    fs::write(&path, text).map_err(|e| CliError::failed(format!("{}: {e}", path.display())))?;
    done?;
    publish(args, &experiment, &audit, store.records(), confirmation.as_ref())
}

fn compare_error(error: compare::Error) -> CliError {
    if error.is_input() { CliError::input(error) } else { CliError::failed(error) }
}

/// The experiment that the file and the flags make.
fn experiment(args: &CompareArgs) -> Result<Experiment, CliError> {
    let mut experiment = match &args.experiment {
        Some(path) => {
            let name = path.display().to_string();
            let text =
                fs::read_to_string(path).map_err(|e| CliError::input(format!("{name}: {e}")))?;
            Experiment::from_toml(&text, &name).map_err(CliError::input)?
        }
        None => Experiment::standard(),
    };
    if args.tuned {
        experiment.arms.push(Experiment::tuned());
    }
    let small = args.data.is_none() && args.experiment.is_none();
    if let Some(seeds) = args.seeds.or(small.then_some(3)) {
        experiment.seeds = (1..=seeds).collect();
    }
    if let Some(epochs) = args.epochs.or(small.then_some(3)) {
        experiment.epochs = epochs;
    }
    if !args.prompt.is_empty() {
        experiment.prompts.clone_from(&args.prompt);
    }
    Ok(experiment)
}

fn confirmation(path: &Path) -> Result<Confirmation, CliError> {
    let fail = |what: String| CliError::input(format!("{}: {what}", path.display()));
    let text = fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
    let expected = "expected a results.json of `autoreg compare`";
    report::confirmation(&text).ok_or_else(|| fail(expected.to_owned()))
}

fn audit(out: &Path) -> Result<Audit, CliError> {
    let path = out.join(AUDIT);
    let fail = |what: String| CliError::input(format!("{}: {what}", path.display()));
    let text = fs::read(&path).map_err(|e| fail(e.to_string()))?;
    serde_json::from_slice(&text).map_err(|e| fail(e.to_string()))
}

/// Refuses to replace anything but a comparison.
fn may_be_replaced(out: &Path) -> Result<(), CliError> {
    if formats::is_vacant(out) || out.join("experiment.toml").exists() {
        return Ok(());
    }
    Err(CliError::input(format!(
        "{}: not a comparison, so --force does not replace it; give another --out",
        out.display()
    )))
}

/// The generated data set inside the comparison's folder; made once.
fn synthetic(args: &CompareArgs, stop: &AtomicUsize) -> Result<PathBuf, CliError> {
    let folder = args.out.join("data");
    if folder.exists() {
        return Ok(folder);
    }
    if !args.quiet {
        term::note("no --data: generating synthetic business mail");
    }
    fs::create_dir_all(&args.out)
        .map_err(|e| CliError::failed(format!("{}: {e}", args.out.display())))?;
    let source = Source::Synthetic(corpus::synthetic::DEFAULT_MESSAGES);
    let mut options = Options::new(source, folder.clone());
    options.group_by = corpus::prepare::GroupBy::Thread;
    corpus::prepare(&options, &mut Silent(stop))
        .map_err(|error| super::data::prepare_error(&error, stop))?;
    Ok(folder)
}

/// Shows nothing, and stops when told to.
struct Silent<'a>(&'a AtomicUsize);

impl corpus::Progress for Silent<'_> {
    fn cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

/// The runs of a comparison, one process after another.
struct Runs<'a> {
    args: &'a CompareArgs,
    folder: &'a Path,
    stop: &'a AtomicUsize,
}

impl Runs<'_> {
    fn all(&self, experiment: &Experiment, store: &mut Store) -> Result<(), CliError> {
        let pending: Vec<(Arm, u64)> =
            store.pending().into_iter().map(|(arm, seed)| (arm.clone(), seed)).collect();
        let total = experiment.runs().len();
        let kept = total - pending.len();
        if kept > 0 && !self.args.quiet {
            term::note(&format!("{kept} of {total} runs are there already"));
        }
        if pending.is_empty() {
            return Ok(());
        }
        let baseline = self.baseline()?;
        for (number, (arm, seed)) in pending.iter().enumerate() {
            if !self.args.quiet {
                let at = kept + number + 1;
                term::note(&format!("run {at} of {total}: {}, seed {seed}", arm.name));
            }
            let mut record = self.one(experiment, arm, *seed)?;
            record.memory.baseline_process_bytes = baseline;
            store.append(record).map_err(compare_error)?;
        }
        Ok(())
    }

    /// Peak memory of the same process with nothing to do.
    fn baseline(&self) -> Result<u64, CliError> {
        let output = self.wait(self.command().stdout(Stdio::piped()), "the empty harness")?;
        let text = String::from_utf8_lossy(&output);
        let bytes = text.trim().parse();
        bytes.map_err(|_| CliError::failed(format!("the empty harness printed `{}`", text.trim())))
    }

    fn one(&self, experiment: &Experiment, arm: &Arm, seed: u64) -> Result<Record, CliError> {
        let folder = arms::folder(&self.args.out, experiment, arm, seed);
        let mut command = self.command();
        command.arg("--arm").arg(&arm.name).arg("--seed").arg(seed.to_string());
        self.wait(command.stdout(Stdio::null()), &format!("{}, seed {seed}", arm.name))?;
        let path = folder.join(worker::RECORD);
        let fail = |what: String| CliError::failed(format!("{}: {what}", path.display()));
        let text = fs::read(&path).map_err(|e| fail(e.to_string()))?;
        serde_json::from_slice(&text).map_err(|e| fail(e.to_string()))
    }

    fn command(&self) -> Command {
        // Without a path of its own, a process can still be found by its name.
        let program = std::env::current_exe().unwrap_or_else(|_| "autoreg".into());
        let mut command = Command::new(program);
        command.arg("compare-run").arg("--data").arg(self.folder).arg("--out").arg(&self.args.out);
        if let Some(threads) = self.args.threads {
            command.arg("--threads").arg(threads.to_string());
        }
        if self.args.quiet {
            command.arg("--quiet");
        }
        command.stdin(Stdio::piped());
        command
    }

    /// Waits for a process and answers with what it printed. When this process is told to stop, it
    /// closes the other's input, which stops it in an orderly way; so does the end of this process.
    fn wait(&self, command: &mut Command, what: &str) -> Result<Vec<u8>, CliError> {
        let fail = |e: std::io::Error| CliError::failed(format!("{what}: {e}"));
        let mut child = command.spawn().map_err(fail)?;
        let mut input = child.stdin.take();
        let status = loop {
            if let Some(status) = child.try_wait().map_err(fail)? {
                break status;
            }
            if self.stop.load(Ordering::Relaxed) != 0 {
                drop(input.take());
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let signal = self.stop.load(Ordering::Relaxed);
        if signal != 0 {
            let words =
                format!("stopped in {what}; the same command goes on, finished runs are kept");
            return Err(CliError::stopped(signal, words));
        }
        match status.code() {
            Some(0) => read_all(&mut child).map_err(fail),
            // The process has said why.
            Some(code @ 1..=2) => Err(CliError::told(code as u8)),
            _ => Err(CliError::failed(format!(
                "{what} ended with {status}; finished runs are kept, the same command goes on"
            ))),
        }
    }
}

fn read_all(child: &mut Child) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(output) = &mut child.stdout {
        std::io::Read::read_to_end(output, &mut bytes)?;
    }
    Ok(bytes)
}

fn publish(
    args: &CompareArgs,
    experiment: &Experiment,
    audit: &Audit,
    records: &[Record],
    confirmation: Option<&Confirmation>,
) -> Result<(), CliError> {
    let analysis =
        Analysis::new(experiment, audit, records, confirmation).map_err(compare_error)?;
    let [results, page] = report::write(&args.out, &analysis).map_err(compare_error)?;
    if args.json {
        term::print(&json(&report::json(&analysis))?);
        return Ok(());
    }
    let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).unwrap_or(110);
    term::print(&report::terminal(&analysis, columns));
    term::print(&format!("\n{}\n{}\n", results.display(), page.display()));
    Ok(())
}

/// Runs one arm with one seed: what [`run`] starts.
pub fn run_one(args: &WorkerArgs) -> Result<(), CliError> {
    worker::run(args)
}
