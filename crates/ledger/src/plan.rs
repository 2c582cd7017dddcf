//! What will be allocated, line by line, and the report that holds it against what was.

use crate::book::{Account, ByAccount, Snapshot};
use crate::timeline::{Record, Sample};
use serde::Serialize;

/// A buffer to be: its name, its account and how many values of four bytes it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// What it is for.
    pub name: String,
    /// Why its bytes exist.
    pub account: Account,
    /// Values.
    pub len: usize,
}

impl Spec {
    /// A spec of `len` values.
    pub fn new(name: impl Into<String>, account: Account, len: usize) -> Spec {
        Spec { name: name.into(), account, len }
    }
}

/// One line of a plan.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// What it is for.
    pub name: String,
    /// Why its bytes exist.
    pub account: Account,
    /// How many.
    pub bytes: u64,
}

/// Lines whose sum is the prediction.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Plan {
    /// The lines, in the order of allocation.
    pub lines: Vec<Line>,
}

impl Plan {
    /// Adds the line of a spec of four-byte values.
    pub fn add(&mut self, spec: &Spec) {
        self.add_bytes(&spec.name, spec.account, 4 * spec.len as u64);
    }

    /// Adds a line of bytes.
    pub fn add_bytes(&mut self, name: &str, account: Account, bytes: u64) {
        self.lines.push(Line { name: name.to_owned(), account, bytes });
    }

    /// Adds another plan's lines.
    pub fn extend(&mut self, other: Plan) {
        self.lines.extend(other.lines);
    }

    /// The sum.
    pub fn total(&self) -> u64 {
        self.lines.iter().map(|l| l.bytes).sum()
    }

    /// The sum of an account's lines.
    pub fn of(&self, account: Account) -> u64 {
        self.lines.iter().filter(|l| l.account == account).map(|l| l.bytes).sum()
    }
}

/// Predicted and measured bytes of one term.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReportRow {
    /// The term: an account, the runtime, or mapped files.
    #[serde(rename = "name")]
    pub term: &'static str,
    /// What was in use at the moment of the peak: reserved, whether or not it was ever touched.
    #[serde(rename = "bytes")]
    pub measured_bytes: u64,
    /// What the plan says.
    pub predicted_bytes: u64,
    /// What is in use now.
    pub current_bytes: u64,
    /// The most that this term had, at a moment of its own.
    pub peak_bytes: u64,
    /// Of what was in use at the peak of the process, what was in memory: pages that were touched.
    pub resident_bytes: u64,
    /// The most that was in memory, at a moment of its own.
    pub in_use_bytes: u64,
}

/// Predicted and measured side by side, at the moment of the peak.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// A row an account that has bytes on either side, then the runtime, then mapped files if there
    /// were any.
    #[serde(rename = "terms")]
    pub rows: Vec<ReportRow>,
    /// The sum of what was in use at the peak.
    pub total_bytes: u64,
    /// The largest term.
    pub limiting_term: &'static str,
    /// The plan and the runtime together.
    pub predicted_process_bytes: u64,
    /// The largest resident size of the process.
    pub peak_process_bytes: u64,
    /// What the process held before the work: program, libraries, stacks.
    pub runtime_bytes: u64,
    /// Of the process at its peak, pages of mapped files that the system can take back.
    pub reclaimable_bytes: u64,
    /// Measured beyond all terms; negative when pages were never touched.
    pub unexplained_bytes: i64,
    /// The same as a share of the process.
    pub unexplained_share: f64,
    /// How the terms went, where that was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Record>,
}

/// What may stay unexplained, as a share of the process.
pub const TOLERANCE: f64 = 0.03;

impl Report {
    /// Holds `plan` against the books and the process. `runtime_bytes` is the resident size of
    /// the same program before it allocated anything of the plan.
    pub fn new(
        plan: &Plan,
        books: &Snapshot,
        runtime_bytes: u64,
        peak_process_bytes: u64,
    ) -> Report {
        let mut rows: Vec<ReportRow> = Account::ALL
            .into_iter()
            .map(|account| {
                let of = |all: &ByAccount| all[account as usize];
                ReportRow {
                    term: account.name(),
                    measured_bytes: of(&books.at_peak),
                    predicted_bytes: plan.of(account),
                    current_bytes: of(&books.current),
                    peak_bytes: of(&books.most),
                    resident_bytes: of(&books.at_peak),
                    in_use_bytes: of(&books.most),
                }
            })
            .filter(|row| row.predicted_bytes + row.peak_bytes > 0)
            .collect();
        rows.push(ReportRow {
            predicted_bytes: runtime_bytes,
            ..of_bytes("runtime", runtime_bytes)
        });
        let mut report = Report {
            total_bytes: 0,
            limiting_term: "",
            predicted_process_bytes: plan.total() + runtime_bytes,
            peak_process_bytes,
            runtime_bytes,
            reclaimable_bytes: 0,
            unexplained_bytes: 0,
            unexplained_share: 0.0,
            timeline: None,
            rows,
        };
        report.sum_up(peak_process_bytes);
        report
    }

    /// The same with what was recorded: the rows then say what was in memory at the moment at which
    /// the process was largest, and nothing is taken for granted of the runtime.
    #[must_use]
    pub fn recorded(mut self, record: Record) -> Report {
        if let Some(peak) = record.peak() {
            for row in &mut self.rows {
                let account = Account::ALL.into_iter().find(|a| a.name() == row.term);
                let of = |s: &Sample| account.map_or(s.runtime, |a| s.resident[a as usize]);
                (row.resident_bytes, row.in_use_bytes) = (of(peak), record.most(of));
                if account.is_none() {
                    (row.measured_bytes, row.peak_bytes) = (of(peak), row.in_use_bytes);
                    row.current_bytes = record.samples.last().map_or(0, of);
                }
            }
            let most = record.most(|s| s.mapped);
            if most > 0 {
                let row = of_bytes("mapped files", peak.mapped);
                let current_bytes = record.samples.last().map_or(0, |s| s.mapped);
                let (peak_bytes, in_use_bytes) = (most, most);
                self.rows.push(ReportRow { current_bytes, peak_bytes, in_use_bytes, ..row });
            }
            self.reclaimable_bytes = peak.mapped;
            self.sum_up(peak.process);
        }
        self.timeline = Some(record);
        self
    }

    fn sum_up(&mut self, process: u64) {
        self.total_bytes = self.rows.iter().map(|row| row.measured_bytes).sum();
        let own = self.rows.iter().filter(|row| row.term != "mapped files");
        let largest = own.max_by_key(|row| row.measured_bytes);
        self.limiting_term = largest.map_or("", |row| row.term);
        let explained: u64 = self.rows.iter().map(|row| row.resident_bytes).sum();
        self.unexplained_bytes = process.cast_signed() - explained.cast_signed();
        self.unexplained_share = self.unexplained_bytes as f64 / process.max(1) as f64;
    }
}

/// A row of bytes that are there.
fn of_bytes(term: &'static str, bytes: u64) -> ReportRow {
    ReportRow {
        term,
        measured_bytes: bytes,
        predicted_bytes: 0,
        current_bytes: bytes,
        peak_bytes: bytes,
        resident_bytes: bytes,
        in_use_bytes: bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_sums_up() {
        let mut plan = Plan::default();
        plan.add(&Spec::new("w", Account::Weights, 250));
        plan.add_bytes("d", Account::Data, 24);
        let mut books = Snapshot::default();
        books.at_peak[Account::Weights as usize] = 1000;
        books.most = books.at_peak;
        let report = Report::new(&plan, &books, 5000, 6100);
        assert_eq!(report.predicted_process_bytes, 6024);
        assert_eq!(report.unexplained_bytes, 100);
        assert_eq!((report.rows.len(), report.limiting_term), (3, "runtime"));
        // At the peak of the process, half of the weights had been touched.
        let mut sample = crate::Sample {
            seconds: 1.0,
            resident: ByAccount::default(),
            runtime: 5100,
            mapped: 700,
            process: 6350,
        };
        sample.resident[Account::Weights as usize] = 500;
        let record = Record { samples: vec![sample], ..Record::default() };
        let report = report.recorded(record);
        assert_eq!((report.unexplained_bytes, report.reclaimable_bytes), (50, 700));
        assert_eq!((report.rows[0].measured_bytes, report.rows[0].resident_bytes), (1000, 500));
        assert_eq!(report.rows.last().unwrap().term, "mapped files");
    }
}
