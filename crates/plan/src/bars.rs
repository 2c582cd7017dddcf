//! Terms as bars for a terminal of 80 columns.

use crate::{Prediction, Terms, both};
use page::separated;
use std::fmt::Write;

/// Columns of a bar.
const BAR: usize = 22;

/// A line a term, then the sum: name, bar, both units, share.
pub fn bars(terms: &Terms, total: u64) -> String {
    let mut out = String::new();
    let largest = terms.0.iter().map(|term| term.bytes).max().unwrap_or(1).max(1);
    for term in &terms.0 {
        let share = term.bytes as f64 / largest as f64;
        let percent = 100.0 * term.bytes as f64 / total.max(1) as f64;
        let _ = writeln!(
            out,
            "{:<17}{:<BAR$} {:>30} {percent:>5.1} %",
            term.name,
            bar(share),
            both(term.bytes)
        );
    }
    let _ = writeln!(out, "{:<17}{:<BAR$} {:>30}", "total", "", both(total));
    out
}

/// A bar in eighths of a column; a sliver for whatever is not nothing.
fn bar(share: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = ((share * (8 * BAR) as f64).round() as usize).clamp(1, 8 * BAR);
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

/// A prediction as text: what was counted, bars, budget, levers, notes.
pub fn text(plan: &Prediction) -> String {
    let balance = &plan.balance;
    let mut out = format!(
        "{}: {} parameters, counted by {}\n\n{}",
        plan.model,
        separated(balance.parameters.unwrap_or(0)),
        plan.counted_by,
        bars(&balance.terms, balance.total_bytes)
    );
    if let Some(bytes) = plan.kv_bytes_per_token {
        let _ = writeln!(out, "K/V a token: {} B", separated(bytes));
    }
    if let Some(bytes) = balance.communication_bytes_per_step {
        let _ = writeln!(out, "sent by each rank an optimizer step: {}", both(bytes));
    }
    if let (Some(fits), Some(budget)) = (balance.fits, balance.budget_bytes) {
        let word = if fits { "fits" } else { "does not fit" };
        let rest = crate::serve::over(balance.total_bytes, budget);
        let _ = writeln!(out, "{word} {}: {rest}", both(budget));
    }
    let _ = writeln!(out, "the largest term is {}", balance.limiting_term);
    if !balance.levers.is_empty() {
        out += "\nwhat would change it, the largest saving first:\n";
        for lever in &balance.levers {
            let _ = writeln!(out, "  {:<30} saves {}", lever.change, lever.gain());
            out += &wrapped("      ", &format!("costs {}", lever.costs));
        }
    }
    if !plan.notes.is_empty() {
        out += "\nnotes:\n";
        plan.notes.iter().for_each(|note| out += &wrapped("  ", note));
    }
    out
}

/// A text in lines of 78 columns, each behind `indent`.
pub fn wrapped(indent: &str, text: &str) -> String {
    page::wrapped(text, (indent, indent), 78)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eighty_columns_are_enough() {
        let mut terms = Terms::default();
        terms.add("master weights", u64::MAX / 4);
        terms.add("communication", 3);
        terms.add("recomputed layer", 999_999_999_999);
        let text = bars(&terms, terms.total().unwrap());
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("communication    ▏"));
        let note = wrapped("    ", &"word ".repeat(60));
        assert!(note.lines().all(|line| line.chars().count() <= 80) && note.lines().count() > 3);
    }
}
