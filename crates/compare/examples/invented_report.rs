//! Writes the report of an invented comparison into a folder, to look at the page or to time the
//! statistics: `cargo run -p autoreg-compare --example invented_report -- DIR`.

use std::path::PathBuf;
use std::time::Instant;

use compare::{
    Analysis, Audit, CalibrationBin, CurvePoint, DataAudit, Experiment, GroupScore, Grouping,
    LedgerTerm, MachineAudit, MemoryUse, MessageMean, NearDuplicates, ParameterCount,
    PositionScore, ProgramAudit, Record, Score, SeenSplit, SideAudit, TestScores, TrainingRun,
    report,
};

#[path = "../src/invented.rs"]
mod invented;

#[expect(clippy::print_stdout, reason = "an example talks to a person")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder: PathBuf = std::env::args().nth(1).ok_or("give a folder to write into")?.into();
    let (experiment, audit, records) = invented::comparison();
    let start = Instant::now();
    let analysis = Analysis::new(&experiment, &audit, &records, None)?;
    let paths = report::write(&folder, &analysis)?;
    println!("{}", report::terminal(&analysis, 120));
    println!("{} and {} in {:?}", paths[0].display(), paths[1].display(), start.elapsed());
    Ok(())
}
