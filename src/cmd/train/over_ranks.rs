//! `--zero`, `--ranks`, `--expect-ranks`: this process, or each of its threads, among those that train
//! one model together.
//!
//! Errors before the first step are told by one rank, and all end; an error of one rank alone later on
//! ends the others too.

use crate::error::CliError;
use crate::term::{self, thousands};
use clap::Args;
use kernels::Team;
use ledger::{Account, Plan};
use ranks::{Collective, Ranks, Traffic};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::cell::Cell;
use std::num::NonZeroUsize;
use std::sync::Arc;
use train::{
    Disagreement, Event, Place, RankOutcome, RunOptions, SentBytes, Shared, Stage, Start,
    TrainConfig,
};

/// Several ranks that train one model.
#[derive(Clone, Copy, Debug, Default, Args)]
#[command(next_help_heading = "Ranks")]
pub struct RankArgs {
    /// What ranks share out (ZeRO): 0 nothing, 1 master weights and moments, 2 gradients too, 3 weights
    /// too. Ranks are the processes of mpirun or srun, or those of --ranks
    #[arg(long, value_name = "STAGE", value_parser = stage)]
    pub zero: Option<Stage>,
    /// Train by so many ranks in this process, each a thread with workers of its own
    #[arg(long, value_name = "N")]
    pub ranks: Option<NonZeroUsize>,
    /// Compute each step in so many pieces of the batch and add their gradients up one after another:
    /// any number of ranks that divides them gives the same bits, one process too
    #[arg(long, value_name = "P")]
    pub pieces: Option<NonZeroUsize>,
    /// Refuse to start where other than so many ranks came up
    #[arg(long, value_name = "N")]
    pub expect_ranks: Option<usize>,
}

impl RankArgs {
    /// Puts what was given over a recipe.
    pub fn apply(&self, recipe: &mut train::Recipe) {
        recipe.pieces = self.pieces.map_or(recipe.pieces, NonZeroUsize::get);
    }
}

/// Reads 0 to 3.
fn stage(word: &str) -> Result<Stage, String> {
    let found = Stage::ALL.into_iter().find(|stage| stage.number().to_string() == word);
    found.ok_or_else(|| "choose 0, 1, 2 or 3".to_owned())
}

/// One rank of several.
pub struct Rank {
    shared: Shared,
    /// Ranks in this process.
    together: usize,
    /// Whether all ranks have begun.
    began: Cell<bool>,
    /// Whether this rank has an error that the others know nothing of.
    alone: Cell<bool>,
}

/// Where ranks come from.
const HOW: &str = if cfg!(feature = "mpi") {
    ", or start it by mpirun or srun"
} else {
    ", or build it with --features mpi and start it by mpirun or srun"
};

/// Runs `body` as one process or as each rank that this process has.
pub fn each(
    args: &RankArgs,
    body: impl Fn(Option<&Rank>) -> Result<(), CliError> + Sync,
) -> Result<(), CliError> {
    let stage = args.zero.unwrap_or_default();
    let all = come_up(args)?;
    let (together, size) = (all.len(), all.first().map_or(1, Ranks::size));
    if let Some(expected) = args.expect_ranks
        && expected != size
    {
        let speaks = all.first().is_none_or(Ranks::is_first);
        all.iter().for_each(Ranks::finish);
        return Err(if speaks { unexpected(expected, size) } else { CliError::told(2) });
    }
    if let Some(stage) = args.zero.filter(|_| size == 1) {
        let what = format!("--zero {}: it came up as one rank", stage.number());
        if all.is_empty() {
            return Err(CliError::input(format!("{what}; give --ranks N{HOW}")));
        }
        term::note(&format!("{what}, which shares nothing out"));
    }
    if size == 1 {
        all.iter().for_each(Ranks::finish);
        return body(None);
    }
    let run = |ranks: Ranks| {
        let shared = Shared { ranks: Arc::new(ranks), stage };
        let rank = Rank { shared, together, began: Cell::new(false), alone: Cell::new(false) };
        rank.settle(body(Some(&rank)))
    };
    std::thread::scope(|scope| {
        let mut all = all.into_iter();
        let first = all.next();
        let others: Vec<_> = all.map(|ranks| scope.spawn(|| run(ranks))).collect();
        let mut results: Vec<_> = first.into_iter().map(run).collect();
        let failed = |_| Err(CliError::failed("a rank of this process has panicked"));
        results.extend(others.into_iter().map(|rank| rank.join().unwrap_or_else(failed)));
        results.into_iter().collect()
    })
}

fn unexpected(expected: usize, size: usize) -> CliError {
    let why = if cfg!(feature = "mpi") {
        "the launcher does not speak to the MPI that this program is built with: start it by the mpirun \
         of that MPI, or by srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH)"
    } else {
        "this program is built without MPI (--features mpi); --ranks trains by threads of one process"
    };
    CliError::input(format!("--expect-ranks {expected}: {size} came up; {why}"))
}

/// The ranks of this process; none where it trains alone.
fn come_up(args: &RankArgs) -> Result<Vec<Ranks>, CliError> {
    let launched = ranks::launched_size().filter(|&size| size > 1);
    // Without MPI whoever expects one rank may start as many of them side by side as they like.
    let launched = launched.filter(|_| cfg!(feature = "mpi") || args.expect_ranks != Some(1));
    if let Some(asked) = args.ranks {
        if launched.is_some() {
            let why = "it is for one process, and this was started as several";
            return Err(CliError::input(format!("--ranks {asked}: {why}; leave it away")));
        }
        if asked.get() > 256 {
            return Err(CliError::input(format!("--ranks {asked}: 256 are the most")));
        }
        return Ranks::threads(asked.get()).map_err(CliError::failed);
    }
    #[cfg(feature = "mpi")]
    if launched.is_some()
        || args.zero.is_some()
        || args.expect_ranks.is_some()
        || std::env::var_os("PMIX_RANK").is_some()
    {
        let ranks = Ranks::mpi().map_err(CliError::failed)?;
        if let (1, Some(size), None) = (ranks.size(), launched, args.expect_ranks) {
            ranks.finish();
            return Err(CliError::input(ranks::StartError::Alone { size }));
        }
        return Ok(vec![ranks]);
    }
    #[cfg(not(feature = "mpi"))]
    if let Some(size) = launched {
        return Err(CliError::input(ranks::StartError::Without { size }));
    }
    Ok(Vec::new())
}

/// Predicted and measured bytes of one term of one rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Term {
    term: String,
    predicted_bytes: u64,
    measured_bytes: u64,
}

/// A term beside the others: all that the process held, program and libraries included.
const PROCESS: &str = "whole process";

/// What ranks have to show at the end.
pub struct Company {
    place: Place,
    steps: u64,
    sent: Vec<(Collective, Traffic)>,
    /// What it should be, by formula.
    formula: SentBytes,
    /// Of each rank.
    memory: Vec<Vec<Term>>,
}

impl Rank {
    /// Its place.
    pub fn place(&self) -> Place {
        self.shared.place()
    }

    /// Whether it speaks for all.
    pub fn is_first(&self) -> bool {
        self.shared.ranks.is_first()
    }

    /// Ranks in this process.
    pub fn together(&self) -> u64 {
        self.together as u64
    }

    /// Workers of this rank: those asked for, or its share of what the ranks of this machine may use.
    pub fn threads(&self, asked: Option<usize>) -> Option<usize> {
        // Open MPI, MPICH, Slurm: ranks on this machine.
        let names = ["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"];
        let local = names.iter().find_map(|name| std::env::var(name).ok()?.parse().ok());
        let ranks = local.unwrap_or(1).max(self.together);
        asked.or(Some((Team::available() / ranks).max(1)))
    }

    /// Trains with the others, once all are ready.
    pub fn train(
        &self,
        start: Start,
        options: &RunOptions,
        tell: &mut dyn FnMut(Event),
    ) -> Result<RankOutcome, train::Error> {
        self.began.set(true);
        let ready: Result<(), CliError> = Ok(());
        drop(self.shared.agree(ready)?);
        train::run_ranks(start, &self.shared, options, tell)
    }

    /// An error of training: with words on the rank that is to say it.
    pub fn error(&self, error: train::Error) -> CliError {
        use train::{CheckpointError as Checkpoint, Error, SavedError as Saved};
        match error {
            Error::Disagreement(_)
            | Error::Lost(_)
            | Error::Checkpoint(Checkpoint::Disagreement(_) | Checkpoint::Lost(_))
            | Error::Saved(Saved::Lost(_)) => CliError::told(2),
            // One rank's alone.
            error @ (Error::Io { .. } | Error::Model(_)) => {
                self.alone.set(true);
                CliError::failed(error)
            }
            error @ (Error::Checkpoint(_) | Error::Saved(_)) => CliError::input(error),
            _ if !self.is_first() => CliError::told(2),
            error @ Error::NotFinite { .. } => CliError::failed(error),
            error => CliError::input(error),
        }
    }

    /// Ends this rank's part: in order where the others end too, else by ending them.
    fn settle(&self, result: Result<(), CliError>) -> Result<(), CliError> {
        let ranks = &self.shared.ranks;
        let result = match result {
            Err(error) if !self.began.get() => match self.shared.agree(Err::<(), _>(error)) {
                Ok(own) => own,
                Err(Disagreement::Elsewhere { .. } | Disagreement::Lost(_)) => {
                    Err(CliError::told(2))
                }
            },
            other => other,
        };
        // A launcher ends all when the first has ended badly: what there is to say is said before.
        let result = result.map_err(|error| {
            if !error.message.is_empty() {
                term::error(&error.message);
            }
            CliError::told(error.code)
        });
        match &result {
            Err(error) if self.alone.get() => ranks.abort(error.code),
            _ => ranks.finish(),
        }
        result
    }

    /// Every rank's memory by term, and what this one sent. All ranks call it at the same time.
    pub fn company(
        &self,
        config: &TrainConfig,
        plan: &Plan,
        outcome: &RankOutcome,
        runtime: u64,
    ) -> Result<Company, CliError> {
        let books = ledger::snapshot();
        // Ranks of one process have their books in common.
        let term = |account: Account| Term {
            term: account.name().to_owned(),
            predicted_bytes: plan.of(account),
            measured_bytes: books.at_peak[account as usize] / self.together(),
        };
        let mut own: Vec<Term> = Account::ALL
            .into_iter()
            .map(term)
            .filter(|term| term.predicted_bytes + term.measured_bytes > 0)
            .collect();
        if self.together == 1 {
            own.push(Term {
                term: PROCESS.to_owned(),
                predicted_bytes: plan.total() + runtime,
                measured_bytes: ledger::peak_bytes(),
            });
        }
        let own = serde_json::to_vec(&own).map_err(CliError::failed)?;
        let all = self.shared.ranks.gather_bytes(&own).map_err(|_| CliError::told(1))?;
        let memory = all
            .iter()
            .map(|said| serde_json::from_slice(said))
            .collect::<Result<_, _>>()
            .map_err(CliError::failed)?;
        let (place, steps, sent) = (self.place(), outcome.steps, outcome.sent.clone());
        let formula = SentBytes::of(config, place).map_err(CliError::failed)?;
        Ok(Company { place, steps, sent, formula, memory })
    }
}

impl Company {
    /// Each rank's terms as they were measured.
    pub fn ranks(&self) -> Vec<plan::Rank> {
        let of = |(rank, all): (usize, &Vec<Term>)| {
            let mut terms = plan::Terms::default();
            let own = all.iter().filter(|term| term.term != PROCESS);
            own.for_each(|term| terms.add(&term.term, term.measured_bytes));
            let total_bytes = terms.total().unwrap_or(u64::MAX);
            plan::Rank { rank: rank as u64, terms, total_bytes }
        };
        self.memory.iter().enumerate().map(of).collect()
    }

    /// Bytes of gradients and parameters that this rank sent a step.
    pub fn sent_per_step(&self) -> u64 {
        let values = self.sent.iter().filter(|(kind, _)| *kind != Collective::Words);
        values.map(|(_, sum)| sum.bytes).sum::<u64>() / self.steps.max(1)
    }

    /// For `result.json`.
    pub fn json(&self) -> Value {
        json!({
            "ranks": self.place.size,
            "stage": self.place.stage.number(),
            "memory": self.memory,
            "steps": self.steps,
            "collectives": train::collectives(&self.sent),
            "formula_bytes_per_parameter": self.formula.per_parameter,
            "formula_bytes_per_step": self.formula.per_step,
        })
    }

    /// For people.
    pub fn text(&self) -> String {
        let Place { size, stage, .. } = self.place;
        let mut out = format!("{size} ranks, ZeRO stage {}; memory of rank 0:\n", stage.number());
        let mut row = |name: &str, predicted: u64, measured: u64| {
            let ratio = measured as f64 / predicted.max(1) as f64;
            let (predicted, measured) = (plan::binary(predicted), plan::binary(measured));
            out += &format!("  {name:<16}{predicted:>14}{measured:>14}{ratio:>9.3}\n");
        };
        let sum = |terms: &[Term]| {
            let both = |t: &Term| (t.predicted_bytes, t.measured_bytes);
            terms
                .iter()
                .filter(|t| t.term != PROCESS)
                .map(both)
                .fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
        };
        let first = self.memory.first().map_or(&[][..], Vec::as_slice);
        first.iter().for_each(|t| row(&t.term, t.predicted_bytes, t.measured_bytes));
        for (rank, terms) in self.memory.iter().enumerate() {
            let (predicted, measured) = sum(terms);
            row(&format!("all of rank {rank}"), predicted, measured);
        }
        out += "sent by rank 0 in its steps:\n";
        let steps = self.steps.max(1);
        for (kind, sum) in self.sent.iter().filter(|(_, sum)| sum.calls > 0) {
            out += &format!(
                "  {:<26}{:>14} bytes a step{:>10.2} ms, {:>3.0} % of it beside computation\n",
                kind.name(),
                thousands(sum.bytes / steps),
                1e3 * sum.seconds / steps as f64,
                100.0 * sum.overlap(),
            );
        }
        let SentBytes { per_parameter, per_step } = self.formula;
        out + &format!(
            "  {} bytes a step; the formula {per_parameter}Ψ·(N−1)/N says {}\n",
            thousands(self.sent_per_step()),
            thousands(per_step)
        )
    }
}
