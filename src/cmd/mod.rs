//! One file a command.

pub mod bench;
pub mod bench_plot;
mod bench_serve;
pub mod chat;
pub mod compare;
pub mod compare_decoding;
pub mod config_file;
pub mod conversation;
pub mod convert;
pub mod data;
pub mod diagnose;
pub mod doctor;
pub mod documents;
pub mod draft;
pub mod eval;
pub mod from_logits;
pub mod generate;
pub mod init;
pub mod inspect;
pub mod model;
pub mod plan;
#[cfg(feature = "hub")]
pub mod pull;
pub mod quality;
pub mod recording;
pub mod score;
pub mod serve;
pub mod train;
pub mod verify;
mod verify_run;

use crate::error::CliError;
use crate::term::{self, mib};
use kernels::{Isa, KvKind, Team};
use std::sync::Arc;

/// How keys and values are kept between steps.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct KvArgs {
    /// How keys and values are kept: f32 as they are, f16 in half and q8 in about a quarter of the
    /// memory, read faster, for a little less exactness; the same bits in any company all the same
    #[arg(long, value_enum, value_name = "TYPE", default_value = "f32")]
    pub kv: Kv,
}

/// What is merged into a model's weights.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct AdapterArgs {
    /// A PEFT folder (LoRA) to merge into the weights of a GGUF file or a Hugging Face folder
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<std::path::PathBuf>,
}

/// A way of keeping keys and values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Kv {
    /// 4 bytes a value
    #[default]
    #[value(name = "f32")]
    F32,
    /// 2 bytes a value
    #[value(name = "f16")]
    F16,
    /// About 1.06 bytes a value: 8 bits, a scale for 32
    #[value(name = "q8")]
    Q8,
}

impl KvArgs {
    /// For the room that keeps them.
    pub fn kind(self) -> KvKind {
        match self.kv {
            Kv::F32 => KvKind::F32,
            Kv::F16 => KvKind::F16,
            Kv::Q8 => KvKind::Q8,
        }
    }
}

/// Sets the instruction set from the command line or the environment.
pub fn choose_isa(name: Option<&str>) -> Result<(), CliError> {
    let Some(name) = name else { return Ok(()) };
    let Some(isa) = Isa::from_name(name) else {
        return Err(CliError::input(format!(
            "--isa {name}: no such instruction set; choose plain, avx2, avx512, amx or neon"
        )));
    };
    if isa.force() != isa {
        let there: Vec<&str> = Isa::available().map(Isa::name).collect();
        return Err(CliError::input(format!(
            "--isa {name}: this processor offers {}; choose one of them or leave --isa out",
            there.join(", ")
        )));
    }
    Ok(())
}

/// The workers: as many as asked for, or as this process may use.
pub fn team(threads: Option<usize>) -> Result<Arc<Team>, CliError> {
    Ok(Arc::new(Team::new(self::threads(threads)?)))
}

/// How many workers there are. Far more than processors would wait for each other in every step.
pub fn threads(asked: Option<usize>) -> Result<usize, CliError> {
    let own = Team::available();
    let most = most_threads(own);
    match asked {
        Some(n) if n > most => Err(CliError::input(format!(
            "--threads {n}: this process may use {own} logical processors; give at most {most}, or leave \
             it away for {own}"
        ))),
        Some(n) => above_none(n),
        None => Ok(own),
    }
}

/// Workers for a number of processors, at most.
fn most_threads(processors: usize) -> usize {
    (4 * processors).max(32)
}

/// The workers of a plan, which may be for another machine: they are made to see what they hold.
pub fn planned_team(threads: Option<usize>) -> Result<Arc<Team>, CliError> {
    let threads = match threads {
        Some(n) if n > 1024 => {
            return Err(CliError::input(format!("--threads {n}: 1024 are the most")));
        }
        Some(n) => above_none(n)?,
        None => Team::available(),
    };
    Ok(Arc::new(Team::new(threads)))
}

fn above_none(threads: usize) -> Result<usize, CliError> {
    match threads {
        0 => Err(CliError::input("--threads 0: at least one is needed")),
        threads => Ok(threads),
    }
}

/// Refuses what would need more memory than there is; `hint` says what to try.
pub fn fit(plan: &ledger::Plan, what: &str, hint: &str) -> Result<(), CliError> {
    let (needed, free) = (plan.total(), ledger::available_bytes().unwrap_or(u64::MAX));
    if needed <= free {
        return Ok(());
    }
    let largest = plan.lines.iter().max_by_key(|line| line.bytes);
    let largest = largest
        .map_or(String::new(), |line| format!(", {} of it for {}", mib(line.bytes), line.name));
    Err(CliError::input(format!(
        "{what} needs {}{largest}; {} are free: {hint}",
        mib(needed),
        mib(free)
    )))
}

/// Holds an output folder, so that no other process writes into it.
pub fn hold(out: &std::path::Path) -> Result<formats::Hold, CliError> {
    let hold = formats::Hold::take(out).map_err(CliError::input)?;
    if let Some(error) = &hold.doubt {
        term::note(&format!(
            "note: {}: no file can be locked there ({error}), so another process that writes into it \
             would not be noticed",
            out.display()
        ));
    }
    Ok(hold)
}

/// Pretty JSON with a line end.
pub fn json(value: &impl serde::Serialize) -> Result<String, CliError> {
    serde_json::to_string_pretty(value).map(|text| text + "\n").map_err(CliError::failed)
}
