//! Comparing models honestly: what is varied and held, one measured run a line, numbers with
//! intervals, a verdict in words, and a report that is a pure function of those.
//!
//! ```text
//! Experiment ──► Store::pending ──► (the caller trains and measures) ──► Store::append(Record)
//!                                                                             │
//!                     Experiment, Audit, [Record] ──► Analysis ──► report::{terminal, json, html}
//! ```
//!
//! What it is not: it trains nothing, opens no model and no data set. A caller fills a [`Record`]
//! from a run and an [`Audit`] from the data, the machine and the program.

mod analysis;
mod audit;
mod chart;

pub mod decoding;
mod error;
mod experiment;
mod record;
pub mod report;

pub mod statistics;
mod store;

#[cfg(test)]
mod invented;

pub use analysis::{Analysis, Confirmation, Estimate, Failure, Measured, Pair, Row, SeenGap};
pub use audit::{Audit, DataAudit, MachineAudit, NearDuplicates, ProgramAudit, SideAudit};
pub use error::Error;
pub use experiment::{Arm, ArmKind, Experiment};
pub use record::{
    CalibrationBin, CurvePoint, GroupScore, Grouping, LedgerTerm, MemoryUse, MessageMean,
    ParameterCount, PositionScore, Record, Score, SeenSplit, TestScores, TrainingRun,
};
pub use store::Store;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
