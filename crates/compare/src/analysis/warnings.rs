//! What a reader must know before believing a number.

use super::{Analysis, Failure, Row};
use crate::Score;

/// All warnings, in the order in which they matter.
pub(super) fn warnings(analysis: &Analysis) -> Vec<String> {
    let mut out = Vec::new();
    if analysis.missing > 0 {
        out.push(format!(
            "{} of {} runs are not recorded yet: this report is of an unfinished comparison",
            analysis.missing,
            analysis.experiment.runs().len()
        ));
    }
    for Failure { arm, seed, why } in &analysis.failures {
        out.push(format!("{arm}, seed {seed}, failed: {why}"));
    }
    if analysis.groups == 1 {
        out.push("the test side has one group: no interval can be given".to_owned());
    }
    if analysis.rows.iter().any(|row| !row.arm.kind.is_deterministic() && row.runs.len() == 1) {
        out.push(
            "one seed: an interval covers the choice of test groups only, not training".to_owned(),
        );
    }
    let unigram = analysis.rows.iter().find(|row| row.arm.kind == crate::ArmKind::Unigram);
    let unigram = unigram.and_then(|row| row.loss).map(|loss| loss.mean);
    for row in &analysis.rows {
        let (Some(loss), Some(unigram)) = (row.loss, unigram) else { continue };
        if !row.arm.kind.is_anchor() && loss.mean > unigram {
            out.push(format!(
                "{} is worse than word frequencies alone ({:.3} against {unigram:.3} nats): it is broken or was not trained",
                row.arm.name, loss.mean
            ));
        }
        out.extend(leak(row, analysis.experiment.margin_nats));
    }
    out
}

/// A warning where leaving out the messages with a long run seen in training moves the loss by
/// more than the margin.
fn leak(row: &Row, margin: f64) -> Option<String> {
    let gap = row.seen?;
    let all: Score = [gap.seen, gap.unseen].into_iter().sum();
    let moved = gap.unseen.loss()? - all.loss()?;
    (moved > margin).then(|| {
        format!(
            "{}: leaving out test messages that share a long run of tokens with training raises the loss by {moved:.3} nats: part of the score may be memory",
            row.arm.name
        )
    })
}
