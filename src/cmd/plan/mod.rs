//! `autoreg plan`: what serving or training a model takes, before anything runs.

mod against;
mod fleet;
mod rehearsal;
mod serve;
mod steps;
mod train;

use crate::cmd::json;
use crate::error::CliError;
use crate::term::{self, thousands};
use clap::{Args, Subcommand, ValueEnum};
use fleet::FleetArgs;
use plan::{Architecture, Machine, both};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Arguments of `plan`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  autoreg plan serve qwen3-8b --context 32768 --requests 16 --kv f16 --budget 48GiB
  autoreg plan serve models/smollm2-135m-q4_1.gguf --context 2048 --requests 8 --machine measured
  autoreg plan train qwen3-8b --batch 8 --length 2048 --recompute block --zero 3 --ranks 8
  autoreg plan train qwen3-0.6b --budget 24GiB
  autoreg plan fleet llama-3-8b --machine l4 --rate 4 --objective 1000,100
  autoreg plan train 7500000000 --as zero-paper --zero 2 --ranks 64

MODEL is a published name (`autoreg plan models`), a config.json, a folder or a GGUF file; nothing is
downloaded and no weight is read. GB is 10^9 bytes and GiB 2^30; both are printed, and a size that
could be either is refused.")]
pub struct PlanArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Weights, K/V and workspace of serving; the longest context and the most requests that fit
    Serve(serve::ServeArgs),
    /// States, activations, logits and communication of training, a rank; the plans that fit
    Train(train::TrainArgs),
    /// Several servers under a load, simulated with the server's own scheduler: percentiles, and how
    /// many servers an objective needs
    Fleet(fleet::FleetArgs),
    /// Every model that has a name, with its parameters
    Models(ListArgs),
    /// Every machine that has a name, with its figures and their source
    Machines(ListArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What bytes are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    /// The lists that this program allocates by
    Engine,
    /// Formulas, for whatever this program does not run
    Formula,
}

/// Where a plan goes, and the machine that it is for.
#[derive(Debug, Args)]
pub struct Common {
    /// Bytes that may be taken, like 24GiB or 24GB [default: the machine's memory, where it is known]
    #[arg(long, value_name = "SIZE", value_parser = plan::parse_bytes)]
    pub budget: Option<u64>,
    /// Add times on this machine: a name of `autoreg plan machines`, a file of `autoreg doctor`, or
    /// `measured` for what doctor last measured here
    #[arg(long, value_name = "NAME|FILE|measured")]
    pub machine: Option<String>,
    /// Also write the plan as one self-contained page with sliders
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl Common {
    /// The machine that was asked for.
    fn machine(&self) -> Result<Option<Machine>, CliError> {
        self.machine.as_deref().map(machine).transpose()
    }

    /// What may be taken: as asked for, or the memory of the machine.
    fn budget_on(&self, machine: Option<&Machine>) -> Option<u64> {
        self.budget.or(machine.and_then(|machine| machine.memory_bytes))
    }
}

/// A machine of a name, of a file, or of this machine as measured.
pub fn machine(what: &str) -> Result<Machine, CliError> {
    if what == "measured" {
        let path = super::doctor::saved_at();
        if !path.is_file() {
            return Err(CliError::input(format!(
                "--machine measured: {} is not there; run `autoreg doctor` first",
                path.display()
            )));
        }
        return Machine::open(&path.display().to_string()).map_err(CliError::input);
    }
    Machine::open(what).map_err(CliError::input)
}

/// Plans as told.
pub fn run(args: &PlanArgs) -> Result<(), CliError> {
    match &args.what {
        What::Serve(args) => serve::run(args),
        What::Train(args) => train::run(args),
        What::Fleet(args) => fleet::run(args),
        What::Models(args) => models(args),
        What::Machines(args) => machines(args),
    }
}

/// Writes a page whole or not at all.
fn write_page(path: &Path, text: &str) -> Result<(), CliError> {
    formats::replace_file(path, |file| file.write_all(text.as_bytes())).map_err(|e| {
        CliError::input(format!("--html {}: {e}{}", path.display(), formats::hint(&e)))
    })
}

fn models(args: &ListArgs) -> Result<(), CliError> {
    let mut rows = Vec::new();
    let mut text = format!("{:<18}{:>16}{:>30}\n", "name", "parameters", "at two bytes each");
    for name in plan::names() {
        let parameters = Architecture::open(name).and_then(|model| model.parameters());
        let parameters = parameters.map_err(CliError::failed)?;
        let bytes = both(2 * parameters);
        text += &format!("{name:<18}{:>16}{bytes:>30}\n", thousands(parameters));
        rows.push(json!({"name": name, "parameters": parameters}));
    }
    term::print(&if args.json { json(&rows)? } else { text });
    Ok(())
}

fn machines(args: &ListArgs) -> Result<(), CliError> {
    let rows: Vec<Machine> = plan::machines().collect();
    if args.json {
        term::print(&json(&rows)?);
        return Ok(());
    }
    let mut text = format!("{:<16}{:>10}{:>12}{:>30}\n", "name", "GB/s", "TFLOP/s", "memory");
    for row in &rows {
        let memory = row.memory_bytes.map_or("-".to_owned(), both);
        text += &format!(
            "{:<16}{:>10.1}{:>12.2}{memory:>30}\n    {}\n",
            row.name,
            row.bandwidth_bytes_per_second / 1e9,
            row.flops_per_second / 1e12,
            row.source
        );
    }
    term::print(&text);
    Ok(())
}

/// Reads a kind of numbers by name.
fn kind(word: &str) -> Result<plan::NumberKind, String> {
    let word = if word == "q8" { "q8_0" } else { word };
    plan::NumberKind::from_name(word).ok_or_else(|| {
        let names: Vec<&str> = plan::NumberKind::ALL.iter().map(|kind| kind.name()).collect();
        format!("choose one of {}", names.join(", "))
    })
}

/// Seconds as people read them: 4.2 ms, 1.7 s.
fn seconds(s: f64) -> String {
    if s < 1e-3 {
        format!("{:.1} us", s * 1e6)
    } else if s < 1.0 {
        format!("{:.1} ms", s * 1e3)
    } else {
        format!("{s:.2} s")
    }
}
