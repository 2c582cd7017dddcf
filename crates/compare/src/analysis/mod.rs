//! From records to conclusions: one row an arm, one pair for each two models, and what a reader
//! must be warned of. A pure function of the experiment, the audit and the records.

mod sample;
mod warnings;

use std::collections::BTreeMap;

use self::sample::{Resample, Resampled, Runs, Sample, second_grouping, sorted_runs};
use crate::statistics::correction::{bonferroni, draws_needed, holm};
use crate::statistics::power::Spread;
use crate::statistics::{Draws, Evidence, Interval, Verdict};
use crate::{Arm, Audit, Error, Experiment, ParameterCount, Record, Result, Score};

/// A number over seeds: the mean with an interval, and how far single seeds lie apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean over seeds.
    pub mean: f64,
    /// Its confidence interval.
    pub interval: Interval,
    /// Standard deviation over seeds; `None` where fewer than two seeds vary.
    pub spread: Option<f64>,
}

/// A quantity of the run itself: mean, least and most over seeds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The mean.
    pub mean: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

/// Test loss with and without messages that share a long run with the training side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeenGap {
    /// Over messages with such a run, all seeds.
    pub seen: Score,
    /// Over the others.
    pub unseen: Score,
}

/// Scores and measures of one arm.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// The arm.
    pub arm: &'a Arm,
    /// Its runs with a score, by seed.
    pub runs: Vec<&'a Record>,
    /// Its failed runs.
    pub failed: usize,
    /// Test loss, nats a token.
    pub loss: Option<Estimate>,
    /// Test accuracy.
    pub accuracy: Option<Estimate>,
    /// Mean test loss without `<unk>` targets.
    pub loss_known: Option<f64>,
    /// Mean test accuracy without `<unk>` targets.
    pub accuracy_known: Option<f64>,
    /// Test loss averaged by message.
    pub loss_by_message: Option<f64>,
    /// Loss on seen and unseen messages.
    pub seen: Option<SeenGap>,
    /// Numbers of the model.
    pub parameters: ParameterCount,
    /// Training time, seconds.
    pub seconds: Option<Measured>,
    /// Training speed, real target tokens a second.
    pub tokens_per_second: Option<Measured>,
    /// Peak bytes of the process, the harness included.
    pub peak_bytes: Option<Measured>,
    /// Peak bytes without the empty harness.
    pub model_bytes: Option<Measured>,
}

/// Two models compared: `a` minus `b`.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Index of the first row.
    pub a: usize,
    /// Index of the second row.
    pub b: usize,
    /// Loss difference with its corrected interval, nats a token.
    pub loss: Estimate,
    /// Accuracy difference with its corrected interval.
    pub accuracy: Estimate,
    /// Holm-adjusted p-value of the loss difference.
    pub p_value: f64,
    /// The smallest loss difference this run could have detected.
    pub detectable: Option<f64>,
    /// Common seeds; `None` where no seed changes anything.
    pub seeds: Option<usize>,
    /// The verdict.
    pub verdict: Verdict,
}

/// A run that gave no score.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure<'a> {
    /// Its arm.
    pub arm: &'a str,
    /// Its seed.
    pub seed: u64,
    /// Why.
    pub why: &'a str,
}

/// The same pairs in a comparison whose split was grouped by another key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Confirmation {
    /// The other key.
    pub group_by: String,
    /// (a, b) → corrected loss interval of a − b.
    pub pairs: BTreeMap<(String, String), (f64, f64)>,
}

/// Everything a report says.
#[derive(Clone, Debug)]
pub struct Analysis<'a> {
    /// What was varied and held.
    pub experiment: &'a Experiment,
    /// The facts behind it.
    pub audit: &'a Audit,
    /// One row an arm, in the experiment's order.
    pub rows: Vec<Row<'a>>,
    /// One pair for each two arms that are no anchors and have a common seed.
    pub pairs: Vec<Pair>,
    /// Runs that gave no score.
    pub failures: Vec<Failure<'a>>,
    /// Runs that are not recorded yet.
    pub missing: usize,
    /// Test groups.
    pub groups: usize,
    /// Draws that were made.
    pub draws: usize,
    /// Groupings under which the pairs were checked, the split's first.
    pub groupings: Vec<String>,
    /// What a reader must know before believing a number; may be empty.
    pub warnings: Vec<String>,
}

impl<'a> Analysis<'a> {
    /// Draws the conclusions. `confirmation` holds the pairs of the same experiment with the split
    /// grouped by another key, where it has been run.
    ///
    /// # Errors
    /// No run is recorded, or two runs were not scored on the same targets.
    pub fn new(
        experiment: &'a Experiment,
        audit: &'a Audit,
        records: &'a [Record],
        confirmation: Option<&Confirmation>,
    ) -> Result<Analysis<'a>> {
        let runs = sorted_runs(experiment, records);
        if runs.iter().all(|(_, records)| records.is_empty()) {
            return Err(Error::NoRecords { experiment: experiment.name.clone() });
        }
        let main = Sample::of(&runs, |record| record.test.as_ref().map(|t| t.groups.as_slice()))?;
        let second = second_grouping(&runs)?;
        let models: Vec<usize> =
            (0..runs.len()).filter(|&at| !runs[at].0.kind.is_anchor()).collect();
        let mut couples = Vec::new();
        for (at, &a) in models.iter().enumerate() {
            couples.extend(models[at + 1..].iter().map(|&b| (a, b)));
        }
        let draws = experiment.draws.max(draws_needed(experiment.confidence, couples.len()));
        let level = bonferroni(experiment.confidence, couples.len());
        let resampled = Resampled::new(&main, second.as_ref(), runs.len(), &couples, draws);
        let rows: Vec<_> = runs
            .iter()
            .enumerate()
            .map(|(at, (arm, records))| row(arm, records, &resampled.rows[at], experiment))
            .collect();
        let context = Context { experiment, rows: &rows, level, confirmation, second: &second };
        let mut pairs: Vec<_> = couples
            .iter()
            .zip(&resampled.pairs)
            .filter_map(|(couple, draws)| context.pair(*couple, draws))
            .collect();
        let p_values: Vec<_> = pairs.iter().map(|pair| pair.p_value).collect();
        pairs.iter_mut().zip(holm(&p_values)).for_each(|(pair, p)| pair.p_value = p);
        let mut groupings = vec![audit.data.group_by.clone()];
        groupings.extend(second.map(|(by, _)| by));
        groupings.extend(confirmation.map(|c| format!("{} (another split)", c.group_by)));
        let failures = failures(&runs);
        let recorded: usize = runs.iter().map(|(_, records)| records.len()).sum();
        let missing = experiment.runs().len().saturating_sub(recorded);
        let groups = main.tokens.len();
        let mut analysis = Analysis {
            experiment,
            audit,
            rows,
            pairs,
            failures,
            missing,
            groups,
            draws,
            groupings,
            warnings: Vec::new(),
        };
        analysis.warnings = warnings::warnings(&analysis);
        Ok(analysis)
    }

    /// The row with the lowest mean test loss among models, or among all where no model has one.
    pub fn best(&self) -> Option<usize> {
        let scored = |models: bool| {
            let rows = self.rows.iter().enumerate();
            rows.filter(move |(_, row)| !models || !row.arm.kind.is_anchor())
                .filter_map(|(at, row)| row.loss.map(|loss| (at, loss.mean)))
                .min_by(|a, b| a.1.total_cmp(&b.1))
                .map(|(at, _)| at)
        };
        scored(true).or_else(|| scored(false))
    }

    /// The verdict on the whole, in one or two sentences.
    pub fn headline(&self) -> String {
        let Some(best) = self.best() else {
            return "No decisive winner: no run gave a score.".to_owned();
        };
        let row = &self.rows[best];
        let name = &row.arm.name;
        let loss = row.loss.map_or(f64::NAN, |loss| loss.mean);
        let (mut beaten, mut level) = (Vec::new(), Vec::new());
        for pair in self.pairs.iter().filter(|pair| pair.a == best || pair.b == best) {
            let other = if pair.a == best { pair.b } else { pair.a };
            let side = if pair.verdict.outcome.is_decisive() { &mut beaten } else { &mut level };
            side.push(self.rows[other].arm.name.as_str());
        }
        let beats = format!("a lower test loss than {}, decisively", listed(&beaten));
        match (beaten.is_empty(), level.is_empty()) {
            (true, true) => format!(
                "{name} has a test loss of {loss:.3} nats a token; there is no second model to hold it against."
            ),
            (false, true) => format!("{name} is the winner: {loss:.3} nats a token, {beats}."),
            (true, false) => format!(
                "No decisive winner: {name} has the lowest test loss, {loss:.3} nats a token, but is not decisively ahead of {}.",
                listed(&level)
            ),
            (false, false) => format!(
                "No decisive winner between {name} and {}: {name} has the lowest test loss, {loss:.3} nats a token, but is decisively ahead of {} only.",
                listed(&level),
                listed(&beaten)
            ),
        }
    }
}

/// "a", "a and b", "a, b and c".
fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [many @ .., last] => format!("{} and {last}", many.join(", ")),
    }
}

fn failures<'a>(runs: &Runs<'a>) -> Vec<Failure<'a>> {
    let all = runs.iter().flat_map(|(_, records)| records.iter());
    all.filter_map(|record| {
        let why = record.failed.as_deref()?;
        Some(Failure { arm: &record.arm, seed: record.seed, why })
    })
    .collect()
}

fn estimate(draws: &Draws, confidence: f64) -> Estimate {
    Estimate { mean: draws.estimate, interval: draws.interval(confidence), spread: draws.spread() }
}

fn measured(runs: &[&Record], value: impl Fn(&Record) -> f64) -> Option<Measured> {
    let values: Vec<f64> = runs.iter().map(|run| value(run)).collect();
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    let least = values.iter().copied().reduce(f64::min)?;
    let most = values.iter().copied().reduce(f64::max)?;
    Some(Measured { mean, least, most })
}

fn row<'a>(
    arm: &'a Arm,
    records: &[&'a Record],
    resample: &Resample,
    experiment: &Experiment,
) -> Row<'a> {
    let runs: Vec<_> = records.iter().copied().filter(|record| record.test.is_some()).collect();
    let tests = || runs.iter().filter_map(|record| record.test.as_ref());
    let mean = |values: Vec<f64>| {
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let seen: Vec<_> = tests().filter_map(|test| test.seen_run).collect();
    let gap = SeenGap {
        seen: seen.iter().map(|split| split.seen).sum(),
        unseen: seen.iter().map(|split| split.unseen).sum(),
    };
    let by_message = tests()
        .filter(|test| test.messages.messages > 0)
        .map(|test| test.messages.loss / test.messages.messages as f64);
    let first = runs.first().or(records.first());
    Row {
        arm,
        failed: records.len() - runs.len(),
        loss: resample.loss.as_ref().map(|draws| estimate(draws, experiment.confidence)),
        accuracy: resample.accuracy.as_ref().map(|draws| estimate(draws, experiment.confidence)),
        loss_known: mean(tests().filter_map(|test| test.total_known().loss()).collect()),
        accuracy_known: mean(tests().filter_map(|test| test.total_known().accuracy()).collect()),
        loss_by_message: mean(by_message.collect()),
        seen: (!seen.is_empty()).then_some(gap),
        parameters: first.map(|record| record.parameters).unwrap_or_default(),
        seconds: measured(&runs, |run| run.training.seconds),
        tokens_per_second: measured(&runs, |run| run.training.tokens_per_second),
        peak_bytes: measured(&runs, |run| run.memory.peak_process_bytes as f64),
        model_bytes: measured(&runs, |run| run.memory.model_bytes() as f64),
        runs,
    }
}

struct Context<'c, 'a> {
    experiment: &'a Experiment,
    rows: &'c [Row<'a>],
    level: f64,
    confirmation: Option<&'c Confirmation>,
    second: &'c Option<(String, Sample)>,
}

impl Context<'_, '_> {
    fn pair(&self, (a, b): (usize, usize), draws: &Resample) -> Option<Pair> {
        let (loss, accuracy) = (draws.loss.as_ref()?, draws.accuracy.as_ref()?);
        let spread = Spread::of(loss);
        let detectable = spread.map(|spread| spread.detectable(self.level));
        let (first, second) = (&self.rows[a], &self.rows[b]);
        let evidence = Evidence {
            a: first.arm.name.clone(),
            b: second.arm.name.clone(),
            loss: loss.estimate,
            loss_interval: loss.interval(self.level),
            accuracy_interval: accuracy.interval(self.level),
            other_groupings: self.other_groupings(first, second, draws),
            margin: self.experiment.margin_nats,
            seeds: loss.seeds,
            groups: loss.groups,
            failed: (first.failed, second.failed),
            detectable,
            seeds_needed: spread
                .and_then(|spread| spread.seeds_needed(self.level, self.experiment.margin_nats)),
        };
        Some(Pair {
            a,
            b,
            loss: estimate(loss, self.level),
            accuracy: estimate(accuracy, self.level),
            p_value: loss.p_value(),
            detectable,
            seeds: loss.seeds,
            verdict: Verdict::of(&evidence),
        })
    }

    /// Corrected loss intervals of a − b under every grouping but the split's own.
    fn other_groupings(&self, a: &Row, b: &Row, draws: &Resample) -> Vec<(String, Interval)> {
        let mut out = Vec::new();
        if let (Some((by, _)), Some(draws)) = (self.second, &draws.second) {
            out.push((by.clone(), draws.interval(self.level)));
        }
        if let Some(confirmation) = self.confirmation {
            let (a, b) = (a.arm.name.clone(), b.arm.name.clone());
            let straight = confirmation.pairs.get(&(a.clone(), b.clone())).copied();
            let swapped = confirmation.pairs.get(&(b, a)).map(|&(low, high)| (-high, -low));
            if let Some((low, high)) = straight.or(swapped) {
                let by = format!("{} (another split)", confirmation.group_by);
                out.push((by, Interval { low, high }));
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invented;
    use crate::statistics::Outcome;

    fn outcome(analysis: &Analysis, a: &str, b: &str) -> (Outcome, f64) {
        let index = |name: &str| analysis.rows.iter().position(|row| row.arm.name == name).unwrap();
        let (a, b) = (index(a), index(b));
        let pair = analysis.pairs.iter().find(|pair| (pair.a, pair.b) == (a, b)).unwrap();
        (pair.verdict.outcome, pair.loss.mean)
    }

    #[test]
    fn the_invented_experiment_has_the_verdicts_it_was_made_to_have() {
        let (experiment, audit, records) = invented::comparison();
        let analysis = Analysis::new(&experiment, &audit, &records, None).unwrap();
        assert_eq!(analysis.pairs.len(), 3, "anchors are in no pair");
        let (verdict, difference) = outcome(&analysis, "bigram", "rnn");
        assert_eq!(verdict, Outcome::SecondBetter);
        assert!((difference - invented::BIGRAM_OVER_RNN).abs() < 0.05, "{difference}");
        let (verdict, _) = outcome(&analysis, "rnn", "transformer");
        assert!(!verdict.is_decisive());
        assert!(analysis.headline().starts_with("No decisive winner between"));
        assert_eq!(analysis.missing, 0);
        assert_eq!(analysis.groupings, ["thread", "sender"]);
        let uniform = analysis.rows[0].loss.unwrap();
        assert!((uniform.mean - 4000f64.ln()).abs() < 1e-9);
        assert!((uniform.interval.high - uniform.interval.low).abs() < 1e-9);
    }

    #[test]
    fn a_row_is_a_micro_average_over_real_targets() {
        let (experiment, audit, records) = invented::comparison();
        let analysis = Analysis::new(&experiment, &audit, &records, None).unwrap();
        let runs = records.iter().filter(|r| r.arm == "rnn").filter_map(|r| r.test.as_ref());
        let losses: Vec<f64> = runs.map(|test| test.total().loss().unwrap()).collect();
        let mean = losses.iter().sum::<f64>() / losses.len() as f64;
        let row = analysis.rows.iter().find(|row| row.arm.name == "rnn").unwrap();
        assert!((row.loss.unwrap().mean - mean).abs() < 1e-12);
    }

    #[test]
    fn runs_on_other_targets_are_refused() {
        let (experiment, audit, mut records) = invented::comparison();
        records.last_mut().unwrap().test.as_mut().unwrap().groups[3].score.tokens += 1;
        let error = Analysis::new(&experiment, &audit, &records, None).unwrap_err();
        assert!(matches!(error, Error::NotComparable { .. }), "{error}");
    }

    #[test]
    fn failures_stay_in_the_report_and_cost_the_win() {
        let (experiment, audit, mut records) = invented::comparison();
        let at = records.iter().position(|r| r.arm == "rnn").unwrap();
        records[at].failed = Some("loss is NaN at step 210".to_owned());
        records[at] = records[at].clone().sealed();
        let analysis = Analysis::new(&experiment, &audit, &records, None).unwrap();
        assert_eq!(analysis.failures.len(), 1);
        assert_eq!(outcome(&analysis, "bigram", "rnn").0, Outcome::Undecided);
        assert!(analysis.warnings.iter().any(|line| line.contains("NaN at step 210")));
    }

    #[test]
    fn nothing_recorded_and_everything_failed_are_told_apart() {
        let (experiment, audit, mut records) = invented::comparison();
        assert!(Analysis::new(&experiment, &audit, &[], None).is_err());
        for record in &mut records {
            record.failed = Some("killed".to_owned());
            *record = record.clone().sealed();
        }
        let analysis = Analysis::new(&experiment, &audit, &records, None).unwrap();
        assert!(analysis.headline().contains("no run gave a score"));
        assert!(analysis.pairs.is_empty());
    }

    #[test]
    fn one_seed_or_one_group_gives_no_winner() {
        let (mut experiment, audit, records) = invented::comparison();
        experiment.seeds.truncate(1);
        let one: Vec<_> = records.iter().filter(|r| r.seed == 1).cloned().collect();
        let analysis = Analysis::new(&experiment, &audit, &one, None).unwrap();
        assert_eq!(outcome(&analysis, "bigram", "rnn").0, Outcome::Undecided);
        assert!(analysis.warnings.iter().any(|line| line.starts_with("one seed")));

        let (experiment, audit, mut records) = invented::comparison();
        for test in records.iter_mut().filter_map(|record| record.test.as_mut()) {
            test.groups.truncate(1);
            test.second_grouping = None;
        }
        let analysis = Analysis::new(&experiment, &audit, &records, None).unwrap();
        assert!(analysis.pairs.iter().all(|pair| !pair.verdict.outcome.is_decisive()));
    }

    #[test]
    fn another_split_must_agree_in_sign() {
        let (experiment, audit, records) = invented::comparison();
        let with = |low, high| Confirmation {
            group_by: "mailbox".to_owned(),
            pairs: [(("rnn".to_owned(), "bigram".to_owned()), (low, high))].into(),
        };
        for (confirmation, expected) in
            [(with(-0.5, -0.3), Outcome::SecondBetter), (with(-0.5, 0.1), Outcome::Undecided)]
        {
            let analysis =
                Analysis::new(&experiment, &audit, &records, Some(&confirmation)).unwrap();
            assert_eq!(outcome(&analysis, "bigram", "rnn").0, expected);
        }
    }

    #[test]
    fn warnings_name_leaks_and_broken_models() {
        let (experiment, audit, mut records) = invented::comparison();
        for record in records.iter_mut().filter(|record| record.arm == "transformer") {
            let split = record.test.as_mut().unwrap().seen_run.as_mut().unwrap();
            split.seen = Score { tokens: 5000, nll: 500.0, correct: 4500 };
        }
        for record in records.iter_mut().filter(|record| record.arm == "bigram") {
            let groups = &mut record.test.as_mut().unwrap().groups;
            groups.iter_mut().for_each(|group| group.score.nll *= 2.0);
        }
        let analysis = Analysis::new(&experiment, &audit, &records, None).unwrap();
        assert!(analysis.warnings.iter().any(|line| line.starts_with("transformer: leaving out")));
        assert!(analysis.warnings.iter().any(|line| line.starts_with("bigram is worse")));
        assert_eq!(analysis.warnings.len(), 2, "{:?}", analysis.warnings);
    }
}
