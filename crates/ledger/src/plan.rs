//! What will be allocated, line by line, and the report that holds it against what was.

use crate::book::{Account, Snapshot};
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
#[derive(Clone, Debug, Serialize)]
pub struct ReportRow {
    /// The term: an account, or the runtime.
    pub term: &'static str,
    /// What the plan says.
    pub predicted_bytes: u64,
    /// What was in use at the moment of the peak.
    pub measured_bytes: u64,
}

/// Predicted and measured side by side, at the moment of the peak.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// A row an account that has bytes on either side, then the runtime.
    pub rows: Vec<ReportRow>,
    /// The plan and the runtime together.
    pub predicted_process_bytes: u64,
    /// The largest resident size of the process.
    pub peak_process_bytes: u64,
    /// What the process held before the work: program, libraries, stacks.
    pub runtime_bytes: u64,
    /// Measured beyond all terms; negative when pages were never touched.
    pub unexplained_bytes: i64,
}

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
            .map(|account| ReportRow {
                term: account.name(),
                predicted_bytes: plan.of(account),
                measured_bytes: books.at_peak[account as usize],
            })
            .filter(|row| row.predicted_bytes + row.measured_bytes > 0)
            .collect();
        rows.push(ReportRow {
            term: "runtime",
            predicted_bytes: runtime_bytes,
            measured_bytes: runtime_bytes,
        });
        let measured: u64 = rows.iter().map(|r| r.measured_bytes).sum();
        Report {
            predicted_process_bytes: plan.total() + runtime_bytes,
            peak_process_bytes,
            runtime_bytes,
            unexplained_bytes: peak_process_bytes.cast_signed() - measured.cast_signed(),
            rows,
        }
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
        let report = Report::new(&plan, &books, 5000, 6100);
        assert_eq!(report.predicted_process_bytes, 6024);
        assert_eq!(report.unexplained_bytes, 100);
        assert_eq!(report.rows.len(), 3);
    }
}
