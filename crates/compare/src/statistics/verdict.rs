//! The rule that passes a verdict on two models, and its words.
//!
//! A winner needs all of: the corrected interval of the loss difference excludes zero; the
//! difference is at least the declared margin; accuracy does not point the other way with an
//! interval that excludes zero; the sign holds under every grouping at hand; and what varies with
//! the seed was run with at least two seeds, none of the winner's failed. Otherwise there is no
//! decisive winner.

use super::Interval;

/// What is known of a pair, as numbers: a − b.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// Name of the first model.
    pub a: String,
    /// Name of the second.
    pub b: String,
    /// Loss difference, nats a token; below zero, `a` is better.
    pub loss: f64,
    /// Its corrected interval.
    pub loss_interval: Interval,
    /// Corrected interval of the accuracy difference; above zero, `a` is better.
    pub accuracy_interval: Interval,
    /// Corrected loss intervals under other groupings: the key, the interval.
    pub other_groupings: Vec<(String, Interval)>,
    /// The declared margin, nats a token.
    pub margin: f64,
    /// Common seeds; `None` where no seed changes anything.
    pub seeds: Option<usize>,
    /// Test groups.
    pub groups: usize,
    /// Failed runs of `a` and of `b`.
    pub failed: (usize, usize),
    /// The smallest difference this run could have detected, where that can be said.
    pub detectable: Option<f64>,
    /// Seeds with which a difference as large as the margin would be detectable.
    pub seeds_needed: Option<usize>,
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The first model has the lower loss, decisively.
    FirstBetter,
    /// The second has.
    SecondBetter,
    /// The interval lies within the margin on both sides: for this margin they are alike.
    Alike,
    /// The run does not say.
    Undecided,
}

impl Outcome {
    /// A stable word for programs.
    pub fn code(self) -> &'static str {
        match self {
            Outcome::FirstBetter => "a_better",
            Outcome::SecondBetter => "b_better",
            Outcome::Alike => "alike_within_margin",
            Outcome::Undecided => "undecided",
        }
    }

    /// Whether there is a winner.
    pub fn is_decisive(self) -> bool {
        matches!(self, Outcome::FirstBetter | Outcome::SecondBetter)
    }
}

/// A decision and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// What was decided.
    pub outcome: Outcome,
    /// One sentence, without the models' names where there is no winner: starts with
    /// "no decisive winner" in that case.
    pub text: String,
}

impl Verdict {
    /// Applies the rule.
    pub fn of(evidence: &Evidence) -> Verdict {
        let objections = objections(evidence);
        if objections.is_empty() {
            return winner(evidence);
        }
        let Interval { low, high } = evidence.loss_interval;
        let known = evidence.groups > 1 && evidence.seeds.is_none_or(|seeds| seeds > 1);
        let alike =
            known && evidence.failed == (0, 0) && low > -evidence.margin && high < evidence.margin;
        if alike {
            let margin = evidence.margin;
            let text = format!(
                "no decisive winner: alike within the declared margin of {margin} nats{}",
                power(evidence)
            );
            return Verdict { outcome: Outcome::Alike, text };
        }
        let text = format!("no decisive winner: {}{}", objections.join("; "), power(evidence));
        Verdict { outcome: Outcome::Undecided, text }
    }
}

fn winner(evidence: &Evidence) -> Verdict {
    let first = evidence.loss < 0.0;
    let (better, worse) =
        if first { (&evidence.a, &evidence.b) } else { (&evidence.b, &evidence.a) };
    let text = format!(
        "{better} has a lower loss than {worse} by {:.3} nats a token",
        evidence.loss.abs()
    );
    let outcome = if first { Outcome::FirstBetter } else { Outcome::SecondBetter };
    Verdict { outcome, text }
}

/// Every condition of a winner that does not hold, in words.
fn objections(evidence: &Evidence) -> Vec<String> {
    let mut out = Vec::new();
    if evidence.groups < 2 {
        out.push("one test group cannot say how the difference varies".to_owned());
    }
    if evidence.seeds.is_some_and(|seeds| seeds < 2) {
        out.push("one seed cannot say how the difference varies from run to run".to_owned());
    }
    if !evidence.loss_interval.excludes_zero() {
        out.push("the interval includes zero".to_owned());
    }
    if evidence.loss.abs() < evidence.margin {
        out.push(format!(
            "the difference of {:.3} is below the declared margin of {} nats",
            evidence.loss.abs(),
            evidence.margin
        ));
    }
    let accuracy = evidence.accuracy_interval;
    let against = if evidence.loss < 0.0 { accuracy.high < 0.0 } else { accuracy.low > 0.0 };
    if against && evidence.loss_interval.excludes_zero() {
        out.push("loss and accuracy point in opposite directions".to_owned());
    }
    for (by, interval) in &evidence.other_groupings {
        let holds = interval.excludes_zero() && (interval.low < 0.0) == (evidence.loss < 0.0);
        if !holds && evidence.loss_interval.excludes_zero() {
            out.push(format!("the sign does not hold when grouped by {by}"));
        }
    }
    let (winner, failed) = if evidence.loss < 0.0 {
        (&evidence.a, evidence.failed.0)
    } else {
        (&evidence.b, evidence.failed.1)
    };
    if failed > 0 {
        out.push(format!("{failed} of {winner}'s runs failed"));
    }
    out
}

fn power(evidence: &Evidence) -> String {
    let Some(detectable) = evidence.detectable else {
        return String::new();
    };
    let mut text = format!("; this run could have detected a difference of {detectable:.3} nats");
    let within_reach = detectable <= evidence.margin;
    match evidence.seeds_needed {
        _ if within_reach => {}
        Some(needed) => {
            text.push_str(&format!(", {needed} seeds would detect one of {} nats", evidence.margin))
        }
        None => text.push_str(&format!(
            ", and no number of seeds would detect one of {} nats: the test side is too small",
            evidence.margin
        )),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clear() -> Evidence {
        Evidence {
            a: "transformer".to_owned(),
            b: "bigram".to_owned(),
            loss: -0.4,
            loss_interval: Interval { low: -0.45, high: -0.35 },
            accuracy_interval: Interval { low: 0.03, high: 0.05 },
            other_groupings: vec![("sender".to_owned(), Interval { low: -0.5, high: -0.3 })],
            margin: 0.02,
            seeds: Some(6),
            groups: 100,
            failed: (0, 0),
            detectable: Some(0.05),
            seeds_needed: Some(30),
        }
    }

    fn check(change: impl FnOnce(&mut Evidence), outcome: Outcome, words: &str) {
        let mut evidence = clear();
        change(&mut evidence);
        let verdict = Verdict::of(&evidence);
        assert_eq!(verdict.outcome, outcome, "{}", verdict.text);
        assert!(verdict.text.contains(words), "{} lacks {words}", verdict.text);
        let decisive = verdict.outcome.is_decisive();
        assert_eq!(verdict.text.starts_with("no decisive winner"), !decisive);
    }

    #[test]
    fn a_clear_difference_wins_in_both_directions() {
        check(|_| (), Outcome::FirstBetter, "transformer has a lower loss than bigram by 0.400");
        check(
            |e| {
                e.loss = 0.4;
                e.loss_interval = Interval { low: 0.35, high: 0.45 };
                e.accuracy_interval = Interval { low: -0.05, high: -0.03 };
                e.other_groupings.clear();
            },
            Outcome::SecondBetter,
            "bigram has a lower loss than transformer",
        );
    }

    #[test]
    fn each_condition_alone_takes_the_win_away() {
        let no = Outcome::Undecided;
        check(|e| e.loss_interval.high = 0.01, no, "includes zero");
        check(|e| e.margin = 0.5, Outcome::Alike, "alike within the declared margin of 0.5");
        check(|e| e.margin = 0.42, no, "below the declared margin");
        check(|e| e.accuracy_interval = Interval { low: -0.2, high: -0.1 }, no, "opposite");
        check(|e| e.other_groupings[0].1.high = 0.1, no, "grouped by sender");
        check(
            |e| e.other_groupings[0].1 = Interval { low: 0.1, high: 0.2 },
            no,
            "grouped by sender",
        );
        check(|e| e.seeds = Some(1), no, "one seed");
        check(|e| e.groups = 1, no, "one test group");
        check(|e| e.failed = (1, 0), no, "1 of transformer's runs failed");
    }

    #[test]
    fn what_takes_no_win_away() {
        let win = Outcome::FirstBetter;
        check(|e| e.failed = (0, 2), win, "transformer");
        check(|e| e.seeds = None, win, "transformer");
        check(|e| e.accuracy_interval = Interval { low: -0.1, high: 0.1 }, win, "transformer");
    }

    #[test]
    fn an_undecided_run_says_what_it_could_have_seen() {
        let wide = |e: &mut Evidence| e.loss_interval = Interval { low: -0.9, high: 0.1 };
        check(wide, Outcome::Undecided, "could have detected a difference of 0.050 nats, 30 seeds");
        check(
            |e| {
                wide(e);
                e.seeds_needed = None;
            },
            Outcome::Undecided,
            "the test side is too small",
        );
        check(
            |e| {
                wide(e);
                e.detectable = None;
                e.seeds = Some(1);
            },
            Outcome::Undecided,
            "one seed cannot say",
        );
    }
}
