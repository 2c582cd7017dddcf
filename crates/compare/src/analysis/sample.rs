//! From records to panels of scores on the same groups, and their resampling.

use std::collections::BTreeMap;

use crate::statistics::{Bootstrap, Contrast, Draws, Metric, Panel};
use crate::{Arm, Error, Experiment, GroupScore, Record, Result, Score};

/// Seed of the resampling: part of the method, not of the experiment.
const RESAMPLING_SEED: u64 = 20_230_401;

pub(super) type Runs<'a> = Vec<(&'a Arm, Vec<&'a Record>)>;

/// Each arm with its records by seed; a later record of the same run replaces an earlier one.
pub(super) fn sorted_runs<'a>(experiment: &'a Experiment, records: &'a [Record]) -> Runs<'a> {
    let of_arm = |arm: &'a Arm| {
        let own = records.iter().filter(|record| record.arm == arm.name);
        let by_seed: BTreeMap<u64, &Record> = own.map(|record| (record.seed, record)).collect();
        (arm, by_seed.into_values().collect())
    };
    experiment.arms.iter().map(of_arm).collect()
}

/// Scores of all arms on the same groups.
pub(super) struct Sample {
    pub(super) tokens: Vec<f64>,
    pub(super) panels: Vec<Panel>,
}

impl Sample {
    /// Collects what `groups` finds in each record; all must have the same groups and tokens.
    pub(super) fn of<'a>(
        runs: &Runs<'a>,
        groups: impl Fn(&'a Record) -> Option<&'a [GroupScore]>,
    ) -> Result<Sample> {
        let mut sample = Sample { tokens: Vec::new(), panels: Vec::new() };
        let mut first: Option<Vec<(u32, u64)>> = None;
        for (arm, records) in runs {
            let deterministic = arm.kind.is_deterministic();
            let mut panel = Panel { deterministic, ..Panel::default() };
            for record in records {
                let Some(groups) = groups(record) else { continue };
                let groups: BTreeMap<u32, Score> =
                    groups.iter().map(|g| (g.group, g.score)).collect();
                let targets: Vec<_> = groups.iter().map(|(g, score)| (*g, score.tokens)).collect();
                let expected = first.get_or_insert_with(|| targets.clone());
                if *expected != targets {
                    return Err(Error::NotComparable {
                        arm: arm.name.clone(),
                        seed: record.seed,
                        expected: described(expected),
                        found: described(&targets),
                    });
                }
                panel.seeds.push(record.seed);
                panel.nll.push(groups.values().map(|score| score.nll).collect());
                panel.correct.push(groups.values().map(|score| score.correct as f64).collect());
            }
            sample.panels.push(panel);
        }
        let targets = first.unwrap_or_default();
        sample.tokens = targets.iter().map(|(_, tokens)| *tokens as f64).collect();
        Ok(sample)
    }
}

fn described(targets: &[(u32, u64)]) -> String {
    let tokens: u64 = targets.iter().map(|(_, tokens)| tokens).sum();
    let mut print = 0u64;
    for (group, tokens) in targets {
        print = print.rotate_left(7) ^ (u64::from(*group) << 32) ^ tokens;
    }
    format!("{} groups with {tokens} tokens (fingerprint {print:016x})", targets.len())
}

/// The sample under a second key, where every scored run has one by the same name.
pub(super) fn second_grouping(runs: &Runs) -> Result<Option<(String, Sample)>> {
    let scored = runs.iter().flat_map(|(_, records)| records.iter());
    let mut keys = scored
        .filter_map(|record| record.test.as_ref())
        .map(|test| test.second_grouping.as_ref().map(|grouping| grouping.by.as_str()));
    let Some(Some(by)) = keys.next() else { return Ok(None) };
    if keys.any(|key| key != Some(by)) {
        return Ok(None);
    }
    let sample = Sample::of(runs, |record| {
        Some(record.test.as_ref()?.second_grouping.as_ref()?.groups.as_slice())
    })?;
    Ok(Some((by.to_owned(), sample)))
}

/// Loss and accuracy of one contrast, and its loss under the second grouping.
pub(super) struct Resample {
    pub(super) loss: Option<Draws>,
    pub(super) accuracy: Option<Draws>,
    pub(super) second: Option<Draws>,
}

pub(super) struct Resampled {
    pub(super) rows: Vec<Resample>,
    pub(super) pairs: Vec<Resample>,
}

impl Resampled {
    pub(super) fn new(
        main: &Sample,
        second: Option<&(String, Sample)>,
        rows: usize,
        couples: &[(usize, usize)],
        draws: usize,
    ) -> Resampled {
        let bootstrap = Bootstrap { draws, seed: RESAMPLING_SEED };
        let sides = (0..rows).map(|row| (row, None));
        let sides: Vec<_> = sides.chain(couples.iter().map(|&(a, b)| (a, Some(b)))).collect();
        let contrasts = |metric: Metric| {
            sides.iter().map(move |&(plus, minus)| Contrast { plus, minus, metric })
        };
        let both: Vec<_> = contrasts(Metric::Loss).chain(contrasts(Metric::Accuracy)).collect();
        let mut loss = bootstrap.run(&main.tokens, &main.panels, &both);
        let accuracy = loss.split_off(sides.len());
        let second = match second {
            Some((_, sample)) => {
                let contrasts: Vec<_> = contrasts(Metric::Loss).collect();
                bootstrap.run(&sample.tokens, &sample.panels, &contrasts)
            }
            None => sides.iter().map(|_| None).collect(),
        };
        let all = loss.into_iter().zip(accuracy).zip(second);
        let mut all: Vec<_> =
            all.map(|((loss, accuracy), second)| Resample { loss, accuracy, second }).collect();
        let pairs = all.split_off(rows);
        Resampled { rows: all, pairs }
    }
}
