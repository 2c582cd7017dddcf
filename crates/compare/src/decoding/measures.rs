//! What is measured on texts, each as a sum over prompts above another, so that one bootstrap over
//! groups of prompts serves all of them.

use super::{CONFIDENCE, DRAWS, Text};
use crate::statistics::student::normal_quantile;
use crate::statistics::{Bootstrap, Contrast, Interval, Metric, Panel};
use std::collections::{BTreeMap, BTreeSet};

/// A mean and what is known of its error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The mean over all texts.
    pub mean: f64,
    /// Its interval; none where the texts that have the measure come from fewer than two groups,
    /// because nothing then tells how another group would differ.
    pub interval: Option<Interval>,
}

impl Measured {
    /// Low and high end for a chart; the mean itself where there is no interval.
    pub(super) fn ends(&self) -> (f64, f64) {
        self.interval.map_or((self.mean, self.mean), |interval| (interval.low, interval.high))
    }
}

/// A measure of what a rule writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Distinct tokens of a text above its tokens, mean over texts.
    Distinct1,
    /// The same of pairs.
    Distinct2,
    /// The same of runs of three.
    Distinct3,
    /// Distinct pairs of all texts together above all their pairs (Li et al. 2016): how far texts
    /// differ from each other. Its interval is the jackknife's: a resample would count copies.
    DistinctPooled,
    /// Share of a text's runs of four tokens that stood in it before (Welleck et al. 2020).
    Repetition,
    /// The model's log-probability a token, nats, before any rule, over all tokens.
    LogProbability,
    /// Tokens of a text, the end not counted.
    Length,
    /// Share of texts that the end token ended.
    Ended,
    /// Tokens that text and reference share, whatever their order: F1 of the two bags of tokens.
    Overlap,
    /// Tokens before the text first leaves the reference.
    SharedPrefix,
    /// Milliseconds a token, prompt and end included.
    Milliseconds,
}

/// A text's part of the sum above and of the sum below.
type Parts = (f64, f64);

impl Measure {
    /// Every measure, in the order of tables.
    pub const ALL: [Measure; 11] = [
        Measure::Distinct1,
        Measure::Distinct2,
        Measure::Distinct3,
        Measure::DistinctPooled,
        Measure::Repetition,
        Measure::LogProbability,
        Measure::Length,
        Measure::Ended,
        Measure::Overlap,
        Measure::SharedPrefix,
        Measure::Milliseconds,
    ];

    /// Its key in JSON.
    pub fn key(self) -> &'static str {
        match self {
            Measure::Distinct1 => "distinct_1",
            Measure::Distinct2 => "distinct_2",
            Measure::Distinct3 => "distinct_3",
            Measure::DistinctPooled => "distinct_2_all_texts",
            Measure::Repetition => "repetition_rate",
            Measure::LogProbability => "mean_logprob_nats",
            Measure::Length => "length_tokens",
            Measure::Ended => "ended_share",
            Measure::Overlap => "reference_overlap_f1",
            Measure::SharedPrefix => "reference_prefix_tokens",
            Measure::Milliseconds => "ms_per_token",
        }
    }

    /// Its heading on a page.
    pub fn heading(self) -> &'static str {
        match self {
            Measure::Distinct1 => "Distinct-1",
            Measure::Distinct2 => "Distinct-2",
            Measure::Distinct3 => "Distinct-3",
            Measure::DistinctPooled => "Distinct-2, all texts",
            Measure::Repetition => "Repetition",
            Measure::LogProbability => "Log-probability a token",
            Measure::Length => "Length, tokens",
            Measure::Ended => "Ended by itself",
            Measure::Overlap => "Overlap with reference",
            Measure::SharedPrefix => "Agrees for, tokens",
            Measure::Milliseconds => "Time a token, ms",
        }
    }

    /// Decimals that it is shown with.
    pub(super) fn decimals(self) -> usize {
        match self {
            Measure::Length => 1,
            Measure::SharedPrefix | Measure::Ended => 2,
            _ => 3,
        }
    }

    /// Whether it says something of the reference itself.
    pub(super) fn fits_the_reference(self) -> bool {
        !matches!(self, Measure::Overlap | Measure::SharedPrefix | Measure::Milliseconds)
    }

    /// The measure over all texts with its interval; none where no text has it or a token was
    /// impossible.
    pub(super) fn estimate(
        self,
        texts: &[&Text],
        references: &[&Text],
        groups: &[u32],
    ) -> Option<Measured> {
        if self == Measure::DistinctPooled {
            return pooled_distinct(texts, groups, 2);
        }
        let pairs = texts.iter().zip(references);
        let parts: Vec<Parts> = pairs.map(|(text, truth)| self.parts(text, truth)).collect();
        bootstrap(&parts, groups)
    }

    fn parts(self, text: &Text, truth: &Text) -> Parts {
        let ids = &text.ids;
        let tokens = (ids.len() + usize::from(text.ended)) as f64;
        match self {
            Measure::Distinct1 => mean_of(distinct(ids, 1)),
            Measure::Distinct2 => mean_of(distinct(ids, 2)),
            Measure::Distinct3 => mean_of(distinct(ids, 3)),
            Measure::DistinctPooled => (0.0, 0.0),
            Measure::Repetition => mean_of(distinct(ids, 4).map(|share| 1.0 - share)),
            Measure::LogProbability => (text.logprob, tokens),
            Measure::Length => (ids.len() as f64, 1.0),
            Measure::Ended => (f64::from(u8::from(text.ended)), 1.0),
            Measure::Overlap => mean_of(overlap(ids, &truth.ids)),
            Measure::SharedPrefix => {
                let same = ids.iter().zip(&truth.ids).take_while(|(a, b)| a == b);
                (same.count() as f64, 1.0)
            }
            Measure::Milliseconds => {
                text.seconds.map_or((0.0, 0.0), |seconds| (1e3 * seconds, tokens))
            }
        }
    }
}

/// A value that counts once, or not at all.
fn mean_of(value: Option<f64>) -> Parts {
    value.map_or((0.0, 0.0), |value| (value, 1.0))
}

/// Distinct runs of n tokens above all of them; none where the text is shorter.
fn distinct(ids: &[u32], n: usize) -> Option<f64> {
    let all = ids.windows(n);
    let count = all.len();
    (count > 0).then(|| all.collect::<BTreeSet<_>>().len() as f64 / count as f64)
}

fn overlap(text: &[u32], truth: &[u32]) -> Option<f64> {
    let mut left: BTreeMap<u32, usize> = BTreeMap::new();
    truth.iter().for_each(|id| *left.entry(*id).or_default() += 1);
    let mut shared = 0;
    for id in text {
        if let Some(count) = left.get_mut(id).filter(|count| **count > 0) {
            *count -= 1;
            shared += 1;
        }
    }
    let both = text.len() + truth.len();
    (both > 0).then(|| 2.0 * f64::from(shared) / both as f64)
}

/// Σ above / Σ below, and its percentile interval under resampling of groups.
fn bootstrap(parts: &[Parts], groups: &[u32]) -> Option<Measured> {
    let mut sums: BTreeMap<u32, Parts> = BTreeMap::new();
    for ((above, below), group) in parts.iter().zip(groups).filter(|(parts, _)| parts.1 > 0.0) {
        let sum = sums.entry(*group).or_default();
        *sum = (sum.0 + above, sum.1 + below);
    }
    let (above, below): (Vec<f64>, Vec<f64>) = sums.into_values().unzip();
    if above.is_empty() || !above.iter().all(|sum| sum.is_finite()) {
        return None;
    }
    if above.len() < 2 {
        return Some(Measured { mean: above[0] / below[0], interval: None });
    }
    // What a panel calls nll is any sum above the one below.
    let panel = Panel { seeds: vec![0], deterministic: true, nll: vec![above], correct: vec![] };
    let contrast = Contrast { plus: 0, minus: None, metric: Metric::Loss };
    let drawn = Bootstrap { draws: DRAWS, seed: 0 }.run(&below, &[panel], &[contrast]);
    let draws = drawn.into_iter().next().flatten()?;
    // Where all groups say the same, sums in another order miss the mean by a rounding.
    let (mean, Interval { low, high }) = (draws.estimate, draws.interval(CONFIDENCE));
    let interval = Interval { low: low.min(mean), high: high.max(mean) };
    Some(Measured { mean, interval: Some(interval) })
}

/// Distinct runs of all texts together above all runs; the interval by leaving out one group at a
/// time (the jackknife).
fn pooled_distinct(texts: &[&Text], groups: &[u32], n: usize) -> Option<Measured> {
    // For each run, the one group that has it, or none if several do.
    let mut owners: BTreeMap<&[u32], Option<u32>> = BTreeMap::new();
    let mut totals: BTreeMap<u32, usize> = BTreeMap::new();
    for (text, &group) in texts.iter().zip(groups) {
        for run in text.ids.windows(n) {
            let owner = owners.entry(run).or_insert(Some(group));
            *owner = owner.filter(|owner| *owner == group);
            *totals.entry(group).or_default() += 1;
        }
    }
    let total: usize = totals.values().sum();
    if total == 0 {
        return None;
    }
    let mean = owners.len() as f64 / total as f64;
    if totals.len() < 2 {
        return Some(Measured { mean, interval: None });
    }
    let mut own: BTreeMap<u32, usize> = BTreeMap::new();
    owners.values().flatten().for_each(|group| *own.entry(*group).or_default() += 1);
    let without = |(group, count): (&u32, &usize)| {
        let rest = total - count;
        let runs = owners.len() - own.get(group).copied().unwrap_or(0);
        (rest > 0).then(|| runs as f64 / rest as f64)
    };
    let left: Vec<f64> = totals.iter().filter_map(without).collect();
    let count = left.len() as f64;
    let centre = left.iter().sum::<f64>() / count.max(1.0);
    let squares: f64 = left.iter().map(|value| (value - centre).powi(2)).sum();
    let error = (squares * (count - 1.0).max(0.0) / count.max(1.0)).sqrt();
    let reach = normal_quantile((1.0 + CONFIDENCE) / 2.0) * error;
    let interval = Interval { low: (mean - reach).max(0.0), high: (mean + reach).min(1.0) };
    Some(Measured { mean, interval: Some(interval) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        assert_eq!(distinct(&[1, 2, 1, 2, 1], 1), Some(0.4));
        assert_eq!(distinct(&[1, 2, 1, 2, 1], 2), Some(0.5));
        assert_eq!(distinct(&[1, 2, 1, 2, 1], 3), Some(2.0 / 3.0));
        assert_eq!(distinct(&[1, 2], 3), None);
        assert_eq!(overlap(&[1, 1, 2], &[1, 3, 2, 2]), Some(4.0 / 7.0));
        assert_eq!(overlap(&[], &[]), None);
        assert_eq!(overlap(&[], &[1]), Some(0.0));
    }

    #[test]
    fn each_measure_is_the_sum_that_it_says() {
        let text = |ids: &[u32], logprob, ended| Text {
            ids: ids.to_vec(),
            ended,
            logprob,
            seconds: Some(0.01),
        };
        let texts = [text(&[1, 2, 3], -4.0, true), text(&[1, 1, 1, 1, 1, 1], -2.0, false)];
        let truths = [text(&[1, 2, 4], 0.0, true), text(&[1, 2], 0.0, true)];
        let texts: Vec<&Text> = texts.iter().collect();
        let truths: Vec<&Text> = truths.iter().collect();
        let mean = |measure: Measure| measure.estimate(&texts, &truths, &[0, 1]).unwrap().mean;
        assert_eq!(mean(Measure::Distinct1), (1.0 + 1.0 / 6.0) / 2.0);
        // Only the second text has runs of four: three of them, two seen before.
        assert!((mean(Measure::Repetition) - 2.0 / 3.0).abs() < 1e-12);
        assert_eq!(mean(Measure::LogProbability), -6.0 / 10.0);
        assert_eq!((mean(Measure::Length), mean(Measure::Ended)), (4.5, 0.5));
        assert_eq!(mean(Measure::SharedPrefix), 1.5);
        assert_eq!(mean(Measure::Overlap), (4.0 / 6.0 + 2.0 / 8.0) / 2.0);
        assert!((mean(Measure::Milliseconds) - 2.0).abs() < 1e-12);
        // Pairs: 12, 23 and five times 11.
        assert_eq!(mean(Measure::DistinctPooled), 3.0 / 7.0);
    }

    #[test]
    fn an_impossible_text_has_no_mean_log_probability() {
        let text = Text { ids: vec![1], logprob: f64::NEG_INFINITY, ..Text::default() };
        assert!(Measure::LogProbability.estimate(&[&text], &[&text], &[0]).is_none());
        assert!(Measure::Length.estimate(&[&text], &[&text], &[0]).is_some());
        assert!(Measure::Distinct2.estimate(&[&text], &[&text], &[0]).is_none());
    }

    /// One group says nothing of how another would differ: a mean, and no interval.
    #[test]
    fn one_group_gives_no_interval() {
        let text = |ids: &[u32]| Text { ids: ids.to_vec(), logprob: -1.0, ..Text::default() };
        let texts = [text(&[1, 2, 3, 4, 5]), text(&[1, 1, 1, 1, 2])];
        let texts: Vec<&Text> = texts.iter().collect();
        for measure in Measure::ALL {
            let interval = |groups: &[u32; 2]| {
                measure.estimate(&texts, &texts, groups).map(|found| found.interval.is_some())
            };
            let has = (measure != Measure::Milliseconds).then_some(());
            assert_eq!(interval(&[4, 4]), has.map(|()| false), "{measure:?}");
            assert_eq!(interval(&[4, 5]), has.map(|()| true), "{measure:?}");
        }
    }

    /// The interval covers the true mean about as often as it says: lengths drawn at random.
    #[test]
    fn intervals_hold_what_they_promise() {
        let (mut covered, rounds) = (0, 200_u64);
        for round in 0..rounds {
            // A linear congruence is random enough for lengths from 0 to 9, whose mean is 4.5.
            let mut state = round * 7919 + 17;
            let mut next = || {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % 10
            };
            let texts: Vec<Text> = (0..60)
                .map(|_| Text { ids: vec![1; next() as usize], ..Text::default() })
                .collect();
            let texts: Vec<&Text> = texts.iter().collect();
            let groups: Vec<u32> = (0..60).collect();
            let found =
                Measure::Length.estimate(&texts, &texts, &groups).unwrap().interval.unwrap();
            covered += u64::from(found.low <= 4.5 && 4.5 <= found.high);
        }
        assert!((180..=199).contains(&covered), "{covered} of {rounds}");
    }
}
