//! The two-level bootstrap: seeds, then groups, the same resample for every model.
//!
//! Every seed is scored on the same test groups, so seeds and groups are crossed, not nested: a
//! draw takes S seeds with replacement and, once for all of them, G groups with replacement (the
//! pigeonhole bootstrap, Owen 2007). The statistic is a ratio of sums, Σ nll / Σ tokens, so a long
//! thread weighs what it weighs in the loss.
//!
//! Few seeds make a percentile interval too narrow: with six it is meant for 95 % and covers about
//! 87 %. A draw is therefore kept in two parts, the mean over all seeds on the resampled groups and
//! the deviation that resampling the seeds adds; an interval stretches the second by
//! √(S/(S−1)) · t(S−1)/z at its own level (Hesterberg 2015, section 4.3). With one seed the second
//! part is unknown, not zero: [`Draws::seeds`] says so.

use super::random::Stream;
use super::student::{normal_quantile, t_quantile};

/// What is measured on a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Nats a token.
    Loss,
    /// Share of exact next tokens.
    Accuracy,
}

/// The scores of one arm: for each seed one sum a group.
#[derive(Clone, Debug, Default)]
pub struct Panel {
    /// Seed of each run; empty for an arm that has no valid run.
    pub seeds: Vec<u64>,
    /// Whether the seed changes nothing, so that the one run stands for every seed.
    pub deterministic: bool,
    /// (S, G) sums of the negative log-likelihood, nats.
    pub nll: Vec<Vec<f64>>,
    /// (S, G) numbers of correct tokens.
    pub correct: Vec<Vec<f64>>,
}

/// What a confidence interval is asked for: one arm, or one arm minus another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contrast {
    /// Index of the arm.
    pub plus: usize,
    /// Index of the arm that is subtracted.
    pub minus: Option<usize>,
    /// What is measured.
    pub metric: Metric,
}

/// A number between two others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// Whether zero lies outside.
    pub fn excludes_zero(self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

/// How resampling is done.
#[derive(Clone, Copy, Debug)]
pub struct Bootstrap {
    /// Number of draws.
    pub draws: usize,
    /// Seed of the resampling itself.
    pub seed: u64,
}

/// One contrast under resampling.
#[derive(Clone, Debug)]
pub struct Draws {
    /// The value on the data as they are.
    pub estimate: f64,
    /// The same for each seed.
    pub by_seed: Vec<f64>,
    /// Seeds behind it; `None` where no seed changes anything.
    pub seeds: Option<usize>,
    /// Groups behind it.
    pub groups: usize,
    /// A draw's mean over all seeds on the resampled groups.
    centre: Vec<f64>,
    /// What resampling the seeds adds to it.
    deviation: Vec<f64>,
}

impl Bootstrap {
    /// Resamples all contrasts together. `tokens` (G) are the targets of each group; every row of
    /// every panel has G entries. A contrast without a common seed is left out as `None`.
    pub fn run(
        self,
        tokens: &[f64],
        panels: &[Panel],
        contrasts: &[Contrast],
    ) -> Vec<Option<Draws>> {
        let sums = Sums::new(tokens, panels);
        let whole = sums.ratios(&vec![1.0; tokens.len()]);
        let terms: Vec<_> = contrasts.iter().map(|c| sums.terms(panels, *c)).collect();
        let mut results: Vec<_> = terms
            .iter()
            .map(|terms| terms.as_ref().map(|terms| terms.start(&whole, tokens.len(), self.draws)))
            .collect();
        let mut weights = vec![0.0; tokens.len()];
        for draw in 0..self.draws as u64 {
            let stream = Stream::new(self.seed, draw);
            resample(stream, &mut weights);
            let ratios = sums.ratios(&weights);
            for (terms, result) in terms.iter().zip(&mut results) {
                if let (Some(terms), Some(result)) = (terms, result) {
                    terms.draw(&ratios, stream, result);
                }
            }
        }
        results
    }
}

/// Fills `weights` (G) with how often each group was drawn in G draws with replacement.
fn resample(stream: Stream, weights: &mut [f64]) {
    weights.fill(0.0);
    for counter in 0..weights.len() {
        weights[stream.below(counter as u64, weights.len())] += 1.0;
    }
}

/// All rows of all panels in one list, each arm's runs by metric.
struct Sums<'a> {
    tokens: &'a [f64],
    rows: Vec<&'a [f64]>,
    first: Vec<usize>,
}

impl<'a> Sums<'a> {
    fn new(tokens: &'a [f64], panels: &'a [Panel]) -> Sums<'a> {
        let (mut rows, mut first) = (Vec::new(), Vec::new());
        for panel in panels {
            first.push(rows.len());
            rows.extend(panel.nll.iter().chain(&panel.correct).map(Vec::as_slice));
        }
        Sums { tokens, rows, first }
    }

    /// Σ w·row / Σ w·tokens for every row.
    fn ratios(&self, weights: &[f64]) -> Vec<f64> {
        let below = dot(weights, self.tokens);
        self.rows.iter().map(|row| dot(weights, row) / below).collect()
    }

    fn row(&self, panels: &[Panel], arm: usize, metric: Metric, run: usize) -> usize {
        let skip = if metric == Metric::Loss { 0 } else { panels[arm].nll.len() };
        self.first[arm] + skip + run
    }

    /// The pairs of rows of a contrast, one a common seed.
    fn terms(&self, panels: &[Panel], contrast: Contrast) -> Option<Terms> {
        let Contrast { plus, minus, metric } = contrast;
        let arms: Vec<usize> = [Some(plus), minus].into_iter().flatten().collect();
        if arms.iter().any(|&arm| panels[arm].nll.is_empty()) {
            return None;
        }
        let find = |arm: usize, seed: u64| {
            let panel = &panels[arm];
            let run = panel.seeds.iter().position(|&other| other == seed);
            run.or(panel.deterministic.then_some(0)).map(|run| self.row(panels, arm, metric, run))
        };
        let varied = arms.iter().find(|&&arm| !panels[arm].deterministic);
        let seeds = &panels[*varied.unwrap_or(&plus)].seeds;
        let pairs: Vec<_> = seeds
            .iter()
            .filter_map(|&seed| {
                let subtracted = match minus {
                    Some(arm) => Some(find(arm, seed)?),
                    None => None,
                };
                Some((find(plus, seed)?, subtracted))
            })
            .collect();
        let seeds = varied.map(|_| pairs.len());
        (!pairs.is_empty()).then_some(Terms { pairs, seeds })
    }
}

/// A contrast as places in the list of ratios.
struct Terms {
    pairs: Vec<(usize, Option<usize>)>,
    seeds: Option<usize>,
}

impl Terms {
    fn value(&self, ratios: &[f64], seed: usize) -> f64 {
        let (plus, minus) = self.pairs[seed];
        ratios[plus] - minus.map_or(0.0, |minus| ratios[minus])
    }

    fn mean(&self, ratios: &[f64]) -> f64 {
        let count = self.pairs.len();
        (0..count).map(|seed| self.value(ratios, seed)).sum::<f64>() / count as f64
    }

    fn start(&self, whole: &[f64], groups: usize, draws: usize) -> Draws {
        Draws {
            estimate: self.mean(whole),
            by_seed: (0..self.pairs.len()).map(|seed| self.value(whole, seed)).collect(),
            seeds: self.seeds,
            groups,
            centre: Vec::with_capacity(draws),
            deviation: Vec::with_capacity(draws),
        }
    }

    fn draw(&self, ratios: &[f64], stream: Stream, into: &mut Draws) {
        let (centre, count) = (self.mean(ratios), self.pairs.len());
        let drawn = (0..count).map(|k| {
            // Counters from the top, so that groups and seeds never share one.
            self.value(ratios, stream.below(u64::MAX - k as u64, count))
        });
        let drawn = drawn.sum::<f64>() / count as f64;
        into.centre.push(centre);
        into.deviation.push(drawn - centre);
    }
}

impl Draws {
    /// The percentile interval at this confidence, the seeds' part stretched for few seeds.
    pub fn interval(&self, confidence: f64) -> Interval {
        let draws = self.sorted(self.stretch(confidence));
        let tail = (1.0 - confidence) / 2.0;
        Interval { low: quantile(&draws, tail), high: quantile(&draws, 1.0 - tail) }
    }

    /// Two-sided p-value of "the contrast is zero": one minus the greatest confidence at which the
    /// interval excludes zero, so that the two never disagree. At best 2 / (draws + 1).
    pub fn p_value(&self) -> f64 {
        let excludes = |p: f64| self.interval(1.0 - p).excludes_zero();
        let (mut low, mut high) = (2.0 / (self.centre.len() + 1) as f64, 1.0);
        if excludes(low) {
            return low;
        }
        if !excludes(0.999) {
            return 1.0;
        }
        // Halving the logarithm: after 20 rounds p is known to five digits.
        for _ in 0..20 {
            let middle = (low * high).sqrt();
            if excludes(middle) { high = middle } else { low = middle }
        }
        high
    }

    /// Variance of the estimate that the choice of groups adds.
    pub fn group_variance(&self) -> f64 {
        variance(&self.centre) * (self.centre.len() - 1) as f64 / self.centre.len() as f64
    }

    /// Variance of the estimate that the choice of seeds adds; `None` where one seed cannot say.
    pub fn seed_variance(&self) -> Option<f64> {
        match self.seeds {
            None => Some(0.0),
            Some(0 | 1) => None,
            Some(seeds) => Some(variance(&self.by_seed) / seeds as f64),
        }
    }

    /// Standard deviation over seeds; `None` with fewer than two.
    pub fn spread(&self) -> Option<f64> {
        (self.seeds? > 1).then(|| variance(&self.by_seed).sqrt())
    }

    fn stretch(&self, confidence: f64) -> f64 {
        let upper = (1.0 + confidence) / 2.0;
        match self.seeds {
            Some(seeds) if seeds > 1 => {
                let free = (seeds - 1) as f64;
                (seeds as f64 / free).sqrt() * t_quantile(upper, free) / normal_quantile(upper)
            }
            _ => 1.0,
        }
    }

    fn sorted(&self, stretch: f64) -> Vec<f64> {
        let parts = self.centre.iter().zip(&self.deviation);
        let mut draws: Vec<f64> = parts.map(|(c, d)| c + stretch * d).collect();
        draws.sort_by(f64::total_cmp);
        draws
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Unbiased variance; 0 with fewer than two numbers.
fn variance(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64
}

/// Linear interpolation between the order statistics of a sorted, non-empty list.
fn quantile(sorted: &[f64], p: f64) -> f64 {
    let place = p * (sorted.len() - 1) as f64;
    let (below, part) = (place.floor() as usize, place.fract());
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + part * (sorted[above] - sorted[below])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LOSS: Contrast = Contrast { plus: 0, minus: None, metric: Metric::Loss };
    const DIFFERENCE: Contrast = Contrast { plus: 0, minus: Some(1), metric: Metric::Loss };

    fn panel(seeds: &[u64], nll: Vec<Vec<f64>>) -> Panel {
        let correct = nll.iter().map(|row| vec![0.0; row.len()]).collect();
        Panel { seeds: seeds.to_vec(), deterministic: false, nll, correct }
    }

    fn one(tokens: &[f64], panels: &[Panel], contrast: Contrast) -> Draws {
        let run = Bootstrap { draws: 4000, seed: 7 }.run(tokens, panels, &[contrast]);
        run.into_iter().next().unwrap().unwrap()
    }

    /// value(seed, group) = mean + a(seed) + b(group) + e(seed, group), all normal.
    fn simulated(
        trial: u64,
        seeds: usize,
        groups: usize,
        (of_seed, of_group, of_both): (f64, f64, f64),
    ) -> Panel {
        let (a, b, e) = (Stream::new(trial, 1), Stream::new(trial, 2), Stream::new(trial, 3));
        let row = |s: usize| {
            let value = |g: usize| {
                of_seed * a.normal(s as u64)
                    + of_group * b.normal(g as u64)
                    + of_both * e.normal((s * groups + g) as u64)
            };
            (0..groups).map(value).collect()
        };
        panel(&(0..seeds as u64).collect::<Vec<_>>(), (0..seeds).map(row).collect())
    }

    fn coverage(seeds: usize, groups: usize, parts: (f64, f64, f64), stretched: bool) -> f64 {
        let trials = 600;
        let tokens = vec![1.0; groups];
        let hit = |trial: u64| {
            let data = simulated(trial, seeds, groups, parts);
            let run = Bootstrap { draws: 600, seed: trial }.run(&tokens, &[data], &[LOSS]);
            let draws = run[0].as_ref().unwrap();
            let interval = if stretched {
                draws.interval(0.95)
            } else {
                let sorted = draws.sorted(1.0);
                Interval { low: quantile(&sorted, 0.025), high: quantile(&sorted, 0.975) }
            };
            interval.low <= 0.0 && interval.high >= 0.0
        };
        (0..trials).filter(|&trial| hit(trial)).count() as f64 / trials as f64
    }

    #[test]
    fn group_variance_is_the_textbook_one() {
        // One deterministic arm, equal tokens: the variance of a mean of G numbers.
        let groups = 200;
        let mut data = simulated(3, 1, groups, (0.0, 1.0, 0.0));
        data.deterministic = true;
        let expected = variance(&data.nll[0]) * (groups - 1) as f64 / (groups * groups) as f64;
        let draws = one(&vec![1.0; groups], &[data], LOSS);
        assert_eq!(draws.seeds, None);
        let found = draws.group_variance();
        assert!((found / expected - 1.0).abs() < 0.08, "{found} {expected}");
        assert_eq!(draws.seed_variance(), Some(0.0));
    }

    #[test]
    fn seed_interval_is_students() {
        // No group varies: the interval of a mean of six numbers is t(5) · sd / √6.
        let values = [1.0, 2.0, 4.0, 3.0, 2.5, 3.5];
        let data = panel(&[1, 2, 3, 4, 5, 6], values.iter().map(|v| vec![*v; 30]).collect());
        let draws = one(&[1.0; 30], &[data], LOSS);
        let interval = draws.interval(0.95);
        let expected = t_quantile(0.975, 5.0) * (variance(&values) / 6.0).sqrt();
        let found = (interval.high - interval.low) / 2.0;
        assert!((found / expected - 1.0).abs() < 0.08, "{found} {expected}");
        assert!((draws.estimate - 16.0 / 6.0).abs() < 1e-12);
        let spread = draws.spread().unwrap();
        assert!((spread * spread - variance(&values)).abs() < 1e-12);
    }

    #[test]
    fn intervals_cover_and_plain_percentiles_do_not() {
        let seeds_only = (1.0, 0.0, 0.0);
        let plain = coverage(6, 2, seeds_only, false);
        assert!(plain < 0.91, "plain percentile with six seeds: {plain}");
        for (parts, seeds, groups) in [
            (seeds_only, 6, 2),
            ((0.0, 1.0, 0.1), 6, 60),
            ((0.1, 1.0, 0.3), 6, 60),
            ((0.2, 0.5, 0.5), 3, 60),
        ] {
            let found = coverage(seeds, groups, parts, true);
            // 600 trials: a standard error of 0.009 at 0.95.
            assert!((0.915..=0.995).contains(&found), "{parts:?}, {seeds} seeds: {found}");
        }
    }

    #[test]
    fn a_common_shift_cancels_in_the_difference() {
        let shared = simulated(5, 6, 80, (0.5, 2.0, 1.0));
        let mut other = shared.clone();
        other.nll.iter_mut().flatten().for_each(|value| *value += 0.25);
        let draws = one(&[1.0; 80], &[other, shared.clone()], DIFFERENCE);
        let interval = draws.interval(0.95);
        assert!((interval.low - 0.25).abs() < 1e-9 && (interval.high - 0.25).abs() < 1e-9);
        assert!(one(&[1.0; 80], &[shared], LOSS).interval(0.95).high > 0.3);
    }

    #[test]
    fn long_groups_weigh_more() {
        let data = panel(&[1], vec![vec![10.0, 900.0]]);
        let draws = one(&[10.0, 300.0], &[data], LOSS);
        assert!((draws.estimate - 910.0 / 310.0).abs() < 1e-12);
    }

    #[test]
    fn only_common_seeds_are_compared() {
        let a = panel(&[1, 2, 3], vec![vec![5.0; 4], vec![6.0; 4], vec![90.0; 4]]);
        let b = panel(&[2, 1], vec![vec![4.0; 4], vec![2.0; 4]]);
        let draws = one(&[1.0; 4], &[a, b], DIFFERENCE);
        assert_eq!((draws.by_seed.clone(), draws.seeds), (vec![3.0, 2.0], Some(2)));
    }

    #[test]
    fn a_deterministic_arm_meets_every_seed() {
        let a = panel(&[4, 5], vec![vec![5.0; 4], vec![6.0; 4]]);
        let mut b = panel(&[1], vec![vec![1.0; 4]]);
        b.deterministic = true;
        for (plus, minus, expected) in [(0, 1, vec![4.0, 5.0]), (1, 0, vec![-4.0, -5.0])] {
            let contrast = Contrast { plus, minus: Some(minus), metric: Metric::Loss };
            let draws = one(&[1.0; 4], &[a.clone(), b.clone()], contrast);
            assert_eq!(draws.by_seed, expected);
        }
    }

    #[test]
    fn one_seed_and_one_group_give_a_point_and_say_so() {
        let draws = one(&[3.0], &[panel(&[1], vec![vec![6.0]])], LOSS);
        assert_eq!((draws.seeds, draws.groups, draws.seed_variance()), (Some(1), 1, None));
        assert_eq!(draws.interval(0.95), Interval { low: 2.0, high: 2.0 });
        let empty = Bootstrap { draws: 10, seed: 1 };
        assert!(empty.run(&[3.0], &[Panel::default()], &[LOSS])[0].is_none());
    }

    #[test]
    fn p_value_agrees_with_the_interval() {
        for (seeds, shift) in [(6, 0.0), (6, 0.2), (6, 0.4), (6, 0.9), (2, 0.3), (3, 0.3)] {
            let mut data = simulated(9, seeds, 50, (0.1, 1.0, 0.1));
            let all = (seeds * 50) as f64;
            let centre: f64 = data.nll.iter().flatten().sum::<f64>() / all;
            data.nll.iter_mut().flatten().for_each(|value| *value += shift - centre);
            let draws = one(&[1.0; 50], &[data], LOSS);
            let p = draws.p_value();
            assert!((2.0 / 4001.0..=1.0).contains(&p), "{p}");
            for confidence in [0.5, 0.9, 0.95, 0.99] {
                let excludes = draws.interval(confidence).excludes_zero();
                assert_eq!(excludes, p <= 1.0 - confidence, "{seeds} {shift} {confidence} {p}");
            }
            assert_eq!(shift == 0.0, p > 0.8, "{p}");
        }
    }

    proptest! {
        #[test]
        fn the_difference_is_antisymmetric(trial in 0u64..1000, seeds in 1usize..5, groups in 1usize..9) {
            let a = simulated(trial, seeds, groups, (1.0, 1.0, 1.0));
            let b = simulated(trial + 5000, seeds, groups, (1.0, 1.0, 1.0));
            let back = Contrast { plus: 1, minus: Some(0), metric: Metric::Loss };
            let run = Bootstrap { draws: 200, seed: trial };
            let tokens = vec![2.0; groups];
            let both = run.run(&tokens, &[a, b], &[DIFFERENCE, back]);
            let (there, back) = (both[0].as_ref().unwrap(), both[1].as_ref().unwrap());
            prop_assert!((there.estimate + back.estimate).abs() < 1e-9);
            let (x, y) = (there.interval(0.9), back.interval(0.9));
            prop_assert!((x.low + y.high).abs() < 1e-9 && (x.high + y.low).abs() < 1e-9);
            prop_assert!(x.low <= x.high);
        }
    }
}
