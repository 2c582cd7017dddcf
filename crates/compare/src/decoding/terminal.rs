//! The findings for a terminal of 80 columns: a value, and under it half of its interval.

use super::{CONFIDENCE, Findings, Measure, TITLE};
use crate::report::numbers::fixed;
use crate::report::wrapped;
use crate::statistics::Interval;

/// Measures that 80 columns hold, and their short headings.
const COLUMNS: [(Measure, &str); 8] = [
    (Measure::Distinct1, "dist-1"),
    (Measure::Distinct2, "dist-2"),
    (Measure::Distinct3, "dist-3"),
    (Measure::Repetition, "repeat"),
    (Measure::LogProbability, "logprob"),
    (Measure::Length, "length"),
    (Measure::Overlap, "overlap"),
    (Measure::Milliseconds, "ms/tok"),
];
const NAME: usize = 14;

/// The table with a line on what its columns are.
pub fn terminal(found: &Findings) -> String {
    let synthetic = if found.study.facts.synthetic { " [synthetic data]" } else { "" };
    let mut out =
        format!("{TITLE}{synthetic}\n{}\n{:<NAME$}", wrapped(&found.lead(), 80, ""), "rule");
    COLUMNS.iter().for_each(|(_, heading)| out += &format!("{heading:>8}"));
    for row in &found.rows {
        let name: String = row.name.chars().take(NAME - 1).collect();
        let (mut values, mut reaches) = (format!("\n{name:<NAME$}"), format!("\n{:<NAME$}", ""));
        for (measure, _) in COLUMNS {
            let (decimals, value) = (measure.decimals(), row.value(measure));
            let mean = value.map_or("-".to_owned(), |value| fixed(value.mean, decimals));
            let reach = value.map_or(String::new(), |value| {
                let half = |i: Interval| format!("±{}", fixed((i.high - i.low) / 2.0, decimals));
                value.interval.map_or("-".to_owned(), half)
            });
            values += &format!("{mean:>8}");
            reaches += &format!("{reach:>8}");
        }
        out += &values;
        out += reaches.trim_end();
    }
    let note = format!(
        "± half the {:.0} % interval, from resampling groups of prompts. dist-n: distinct runs of n \
         tokens in a text. repeat: share of runs of four seen before in it. logprob: the model's, \
         nats a token. overlap: F1 with the true continuation. length: tokens.",
        100.0 * CONFIDENCE
    );
    out += "\n\n";
    if let Some(note) = found.note() {
        out += &wrapped(&format!("note: {note}"), 80, "");
    }
    out + &wrapped(&note, 80, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_group_has_no_intervals_and_says_so() {
        let text = terminal(&Findings::new(&super::super::tests::one_group()));
        let table = text.split("\n\n").nth(1).unwrap();
        assert!(!table.contains('±') && table.contains("       -"), "{text}");
        assert!(text.contains("note: no intervals") && !text.contains("1 groups"), "{text}");
    }

    #[test]
    fn it_fits_eighty_columns_and_shows_every_row() {
        let mut study = super::super::tests::study();
        study.facts.model = "m".to_owned();
        study.arms[0].name = "a very long name of a rule".to_owned();
        let text = terminal(&Findings::new(&study));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("a very long n ") && text.contains("[synthetic data]"), "{text}");
        assert!(text.contains("\nreference ") && text.contains("  -0.500"), "{text}");
    }
}
