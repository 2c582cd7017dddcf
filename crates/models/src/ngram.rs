//! Count models: uniform, unigram, bigram and interpolated Kneser–Ney up to order 5.
//!
//! Runs of tokens are packed into 64-bit keys and kept sorted with their counts, so that all
//! continuations of a context are neighbours. Contexts stop at the sequence's first token.

use crate::config::{ConfigError, NgramConfig, Smoothing};
use ledger::{Account, Charge, Plan};
use std::collections::HashMap;

/// Runs of one length: sorted keys with what was counted.
#[derive(Clone, Debug, Default, PartialEq)]
struct Level {
    keys: Vec<u64>,
    counts: Vec<u32>,
    /// The discount of Kneser–Ney, n1/(n1 + 2·n2).
    discount: f64,
}

/// A count model.
#[derive(Debug)]
pub struct Ngram {
    config: NgramConfig,
    /// Bits an id takes in a key.
    bits: u32,
    /// `levels[k]`: runs of k + 1 tokens. The longest holds counts; under Kneser–Ney the others
    /// hold the number of different tokens seen before the run.
    levels: Vec<Level>,
    _charge: Charge,
}

/// A smoothing that was tried and what the validation side said.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// The smoothing.
    pub smoothing: Smoothing,
    /// Mean loss, nats/token.
    pub loss: f64,
}

impl Ngram {
    /// Counts all runs of the given sequences. Without a smoothing in `config`, bigrams get
    /// add-one and longer runs Kneser–Ney until [`Ngram::choose`] finds a better one.
    ///
    /// # Errors
    /// When order and vocabulary do not fit a 64-bit key, or a number is impossible.
    pub fn count<'a>(
        config: &NgramConfig,
        sequences: impl Iterator<Item = &'a [u32]>,
    ) -> Result<Ngram, ConfigError> {
        let mut counter = Counter::new(config)?;
        sequences.for_each(|s| counter.add(s));
        Ok(counter.finish())
    }

    fn build(config: NgramConfig, bits: u32, levels: Vec<Level>) -> Ngram {
        let bytes = levels.iter().map(Level::bytes).sum();
        Ngram { config, bits, levels, _charge: Charge::new(Account::Weights, bytes) }
    }

    /// The configuration, its smoothing filled in.
    pub fn config(&self) -> &NgramConfig {
        &self.config
    }

    /// The smoothing in force.
    pub fn smoothing(&self) -> Smoothing {
        self.config.smoothing.unwrap_or(Smoothing::Add { add: 1.0 })
    }

    /// V.
    pub fn vocab_size(&self) -> usize {
        self.config.vocab_size
    }

    /// Entries of the table, every possible run counted: V^order.
    pub fn dense_parameters(&self) -> u64 {
        (self.vocab_size() as u64).saturating_pow(self.config.order as u32)
    }

    /// Runs that were seen, of all lengths kept.
    pub fn nonzero_parameters(&self) -> u64 {
        self.levels.iter().map(|l| l.keys.len() as u64).sum()
    }

    /// Runs that were seen, by their length from 1.
    pub fn runs(&self) -> Vec<u64> {
        self.levels.iter().map(|l| l.keys.len() as u64).collect()
    }

    /// Bytes of the tables.
    pub fn bytes(&self) -> u64 {
        RUN * self.nonzero_parameters()
    }

    /// Keys and counts of each length, for a file.
    pub fn tables(&self) -> impl Iterator<Item = (&[u64], &[u32])> {
        self.levels.iter().map(|l| (&l.keys[..], &l.counts[..]))
    }

    /// A model from tables that [`Ngram::tables`] gave.
    ///
    /// # Errors
    /// When a number is impossible or a table is not sorted or not of the right size.
    pub fn from_tables(
        config: &NgramConfig,
        tables: Vec<(Vec<u64>, Vec<u32>)>,
    ) -> Result<Ngram, ConfigError> {
        let bits = key_bits(config)?;
        let sorted = |keys: &[u64]| keys.windows(2).all(|w| w[0] < w[1]);
        let vocab = config.vocab_size as u64;
        let mask = (1u64 << bits) - 1;
        let known = |keys: &[u64], k: usize| {
            keys.iter().all(|&key| {
                (0..=k as u32).all(|i| (key >> (i * bits)) & mask < vocab)
                    && key.checked_shr((k as u32 + 1) * bits).unwrap_or(0) == 0
            })
        };
        let good = tables.len() == config.order
            && tables.iter().enumerate().all(|(k, (keys, counts))| {
                keys.len() == counts.len() && sorted(keys) && known(keys, k)
            });
        if !good {
            return Err(ConfigError {
                field: "tables",
                found: format!("{} of them", tables.len()),
                expected: "one sorted table of known ids a length".to_owned(),
            });
        }
        let levels = tables.into_iter().map(|(keys, counts)| Level::new(keys, counts)).collect();
        Ok(Ngram::build(config.clone(), bits, levels))
    }

    /// Tries the smoothings that fit the order on other sequences and keeps the best; answers with
    /// all that were tried. Kneser–Ney runs and orders without a choice try one.
    pub fn choose<'a>(&mut self, sequences: impl Iterator<Item = &'a [u32]> + Clone) -> Vec<Trial> {
        let order = self.config.order;
        let fixed = self.config.smoothing;
        let tried: Vec<Smoothing> = match (fixed, order) {
            (Some(Smoothing::KneserNey { discount: None }), _) if order > 0 => {
                [None, Some(0.6), Some(0.75), Some(0.85), Some(0.95)]
                    .map(|discount| Smoothing::KneserNey { discount })
                    .to_vec()
            }
            (Some(s), _) => vec![s],
            (None, 0 | 1) => vec![Smoothing::Add { add: 1.0 }],
            (None, 2) => {
                let adds = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0];
                let lambdas = [0.5, 0.6, 0.7, 0.8, 0.9, 0.95];
                adds.map(|add| Smoothing::Add { add })
                    .into_iter()
                    .chain(lambdas.map(|lambda| Smoothing::Interpolated { lambda }))
                    .collect()
            }
            (None, _) => vec![Smoothing::KneserNey { discount: None }],
        };
        let trials: Vec<Trial> = tried
            .into_iter()
            .map(|smoothing| {
                self.config.smoothing = Some(smoothing);
                let (mut nll, mut tokens) = (0.0, 0u64);
                for s in sequences.clone() {
                    for t in 1..s.len() {
                        nll -= self.probability(&s[..t], s[t]).ln();
                        tokens += 1;
                    }
                }
                Trial { smoothing, loss: nll / tokens as f64 }
            })
            .collect();
        let best = trials.iter().min_by(|a, b| a.loss.total_cmp(&b.loss));
        self.config.smoothing = best.map(|t| t.smoothing).or(fixed);
        trials
    }

    /// The last tokens that a prediction looks at.
    pub fn context<'a>(&self, before: &'a [u32]) -> &'a [u32] {
        &before[before.len() - before.len().min(self.config.order.saturating_sub(1))..]
    }

    fn key(&self, ids: &[u32]) -> u64 {
        ids.iter().fold(0, |key, &id| (key << self.bits) | u64::from(id))
    }

    /// Where the continuations of a context of k tokens stand in `levels[k]`.
    fn continuations(&self, context: &[u32]) -> (&[u64], &[u32]) {
        let Some(level) = self.levels.get(context.len()) else { return (&[], &[]) };
        if context.is_empty() {
            return (&level.keys, &level.counts);
        }
        let key = self.key(context);
        let from = level.keys.partition_point(|&k| k >> self.bits < key);
        let to = from + level.keys[from..].partition_point(|&k| k >> self.bits == key);
        (&level.keys[from..to], &level.counts[from..to])
    }

    /// The steps that build P(· | context), the shortest context first.
    fn steps(&self, before: &[u32]) -> Vec<Step<'_>> {
        let context = self.context(before);
        let v = self.vocab_size() as f64;
        let table = |length: usize| {
            let suffix = &context[context.len() - length..];
            let (keys, counts) = self.continuations(suffix);
            let total: f64 = counts.iter().map(|&c| f64::from(c)).sum();
            (Step { prefix: self.key(suffix), keys, counts, ..Step::default() }, total)
        };
        match self.smoothing() {
            _ if self.config.order == 0 => Vec::new(),
            Smoothing::Add { add } => {
                let (step, total) = table(context.len());
                let sum = total + add * v;
                let scale = if sum > 0.0 { 1.0 / sum } else { 0.0 };
                vec![Step { scale, add: add * scale, ..step }]
            }
            Smoothing::Interpolated { lambda } => {
                let (step, total) = table(0);
                let scale = 1.0 / (total + v);
                let mut steps = vec![Step { scale, add: scale, ..step }];
                for length in 1..=context.len() {
                    let (step, total) = table(length);
                    if total > 0.0 {
                        steps.push(Step { scale: lambda / total, keep: 1.0 - lambda, ..step });
                    }
                }
                steps
            }
            Smoothing::KneserNey { discount } => (0..=context.len())
                .filter_map(|length| {
                    let (step, total) = table(length);
                    let discount = discount.unwrap_or(self.levels[length].discount);
                    let kept = discount * step.keys.len() as f64 / total;
                    (total > 0.0).then_some(Step {
                        scale: 1.0 / total,
                        discount,
                        keep: kept,
                        ..step
                    })
                })
                .collect(),
        }
    }

    /// P(id | the tokens before it).
    pub fn probability(&self, before: &[u32], id: u32) -> f64 {
        self.steps(before).iter().fold(1.0 / self.vocab_size() as f64, |p, step| {
            let key = (step.prefix << self.bits) | u64::from(id);
            let seen = step.keys.binary_search(&key).map_or(0.0, |i| step.value(i));
            step.keep * p + step.add + seen
        })
    }

    /// P(· | the tokens before), V values.
    pub fn distribution(&self, before: &[u32], out: &mut [f64]) {
        out.fill(1.0 / self.vocab_size() as f64);
        let mask = (1u64 << self.bits) - 1;
        for step in self.steps(before) {
            out.iter_mut().for_each(|p| *p = step.keep * *p + step.add);
            for (i, key) in step.keys.iter().enumerate() {
                out[(key & mask) as usize] += step.value(i);
            }
        }
    }

    /// The most probable id (ties to the lowest) and its probability.
    pub fn best(&self, before: &[u32], scratch: &mut [f64]) -> (u32, f64) {
        self.distribution(before, scratch);
        let mut best = (0, f64::MIN);
        for (id, &p) in scratch.iter().enumerate() {
            if p > best.1 {
                best = (id as u32, p);
            }
        }
        best
    }
}

/// One step of a mixture: p(w) ← keep·p(w) + add + scale·max(count(w) - discount, 0).
#[derive(Default)]
struct Step<'a> {
    prefix: u64,
    keys: &'a [u64],
    counts: &'a [u32],
    scale: f64,
    discount: f64,
    keep: f64,
    add: f64,
}

impl Step<'_> {
    fn value(&self, i: usize) -> f64 {
        (f64::from(self.counts[i]) - self.discount).max(0.0) * self.scale
    }
}

/// Bits an id takes.
fn key_bits(config: &NgramConfig) -> Result<u32, ConfigError> {
    let bits = usize::BITS - config.vocab_size.saturating_sub(1).leading_zeros();
    let bits = bits.max(1);
    if bits as usize * config.order > 64 {
        return Err(ConfigError {
            field: "order",
            found: config.order.to_string(),
            expected: format!(
                "{} tokens of a vocabulary of {} are the most",
                64 / bits,
                config.vocab_size
            ),
        });
    }
    Ok(bits)
}

/// Counts runs as sequences come in.
#[derive(Debug)]
pub struct Counter {
    config: NgramConfig,
    bits: u32,
    /// Per length: whole counts, and those of runs that start a sequence.
    counts: Vec<HashMap<u64, u32>>,
    starts: Vec<HashMap<u64, u32>>,
    /// Of the tables.
    bytes: u64,
    charge: Charge,
}

/// Bytes of a key with its count.
const PAIR: u64 = size_of::<(u64, u32)>() as u64;

/// Bytes of a hash table that has room for so many pairs: places are a power of two, of which seven of
/// eight are filled, with a byte of control each.
fn table_bytes(capacity: usize) -> u64 {
    let places = (capacity as u64 * 8 / 7).next_power_of_two();
    if capacity == 0 { 0 } else { places * (PAIR + 1) }
}

impl Counter {
    /// An empty counter.
    ///
    /// # Errors
    /// When order and vocabulary do not fit a 64-bit key.
    pub fn new(config: &NgramConfig) -> Result<Counter, ConfigError> {
        let empty = vec![HashMap::new(); config.order];
        let bits = key_bits(config)?;
        let (config, starts) = (config.clone(), empty.clone());
        let charge = Charge::new(Account::Workspace, 0);
        Ok(Counter { config, bits, counts: empty, starts, bytes: 0, charge })
    }

    /// What counting so many runs of each length takes: the tables that they are hashed into, sorted one
    /// after the other, and the model.
    pub fn plan(runs: &[u64]) -> Plan {
        let mut plan = Plan::default();
        let hashed =
            |from: usize| runs[from..].iter().map(|&n| table_bytes(n as usize)).sum::<u64>();
        let most = (0..runs.len()).map(|at| hashed(at) + PAIR * runs[at]).max().unwrap_or(0);
        plan.add_bytes("counts, hashed and sorted", Account::Workspace, most);
        plan.add_bytes("counts", Account::Weights, RUN * runs.iter().sum::<u64>());
        plan
    }

    fn kneser_ney(&self) -> bool {
        match self.config.smoothing {
            Some(s) => matches!(s, Smoothing::KneserNey { .. }),
            None => self.config.order > 2,
        }
    }

    /// Counts the runs of one sequence. The first token is context only.
    pub fn add(&mut self, ids: &[u32]) {
        let kneser_ney = self.kneser_ney();
        for length in 1..=self.config.order {
            let whole = !kneser_ney || length == self.config.order;
            for end in length.max(2)..=ids.len() {
                let run = &ids[end - length..end];
                let key = run.iter().fold(0, |key, &id| (key << self.bits) | u64::from(id));
                if whole {
                    *self.counts[length - 1].entry(key).or_default() += 1;
                } else if end == length {
                    *self.starts[length - 1].entry(key).or_default() += 1;
                }
            }
        }
        self.account();
    }

    /// The model.
    pub fn finish(mut self) -> Ngram {
        if self.kneser_ney() {
            // A shorter run counts the different tokens before it, or, at a sequence's start where
            // none can stand, how often it was there.
            for length in (1..self.config.order).rev() {
                let mask = (1u64 << (length as u32 * self.bits)) - 1;
                let mut shorter = std::mem::take(&mut self.starts[length - 1]);
                let longer = self.counts[length].keys().chain(self.starts[length].keys());
                for key in longer {
                    *shorter.entry(key & mask).or_default() += 1;
                }
                self.counts[length - 1] = shorter;
            }
            self.config.smoothing.get_or_insert(Smoothing::KneserNey { discount: None });
            self.account();
        }
        let mut charge = Charge::new(Account::Weights, 0);
        let mut levels: Vec<Level> = Vec::new();
        for length in 0..self.counts.len() {
            let counts = std::mem::take(&mut self.counts[length]);
            let _sorting = Charge::new(Account::Workspace, PAIR * counts.len() as u64);
            let mut pairs: Vec<(u64, u32)> = counts.into_iter().collect();
            self.account();
            pairs.sort_unstable();
            let (keys, counts) = pairs.into_iter().unzip();
            levels.push(Level::new(keys, counts));
            charge.resize(levels.iter().map(Level::bytes).sum());
        }
        drop(charge);
        Ngram::build(self.config, self.bits, levels)
    }

    /// Books what the tables take now.
    fn account(&mut self) {
        let tables = self.counts.iter().chain(&self.starts);
        let bytes = tables.map(|table| table_bytes(table.capacity())).sum();
        if bytes != self.bytes {
            self.charge.resize(bytes);
            self.bytes = bytes;
        }
    }
}

/// Bytes of a run that was seen: its key and its count.
const RUN: u64 = (size_of::<u64>() + size_of::<u32>()) as u64;

impl Level {
    fn bytes(&self) -> u64 {
        RUN * self.keys.len() as u64
    }

    fn new(keys: Vec<u64>, counts: Vec<u32>) -> Level {
        let n = |c: u32| counts.iter().filter(|&&x| x == c).count() as f64;
        let (once, twice) = (n(1), n(2));
        let discount = if once > 0.0 { once / (once + 2.0 * twice) } else { 0.5 };
        Level { keys, counts, discount }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(order: usize, smoothing: Option<Smoothing>, data: &[&[u32]]) -> Ngram {
        let config = NgramConfig { vocab_size: 3, order, smoothing };
        Ngram::count(&config, data.iter().copied()).unwrap()
    }

    /// Field case: a b a b a c with V = 3.
    #[test]
    fn add_one_bigram_has_the_right_values() {
        let m = model(2, Some(Smoothing::Add { add: 1.0 }), &[&[0, 1, 0, 1, 0, 2]]);
        assert!((m.probability(&[0], 1) - 0.5).abs() < 1e-12);
        assert!((m.probability(&[1], 2) - 0.2).abs() < 1e-12);
        let loss = -(m.probability(&[0], 1).ln() + m.probability(&[0, 1], 2).ln()) / 2.0;
        assert!((loss - 1.151_293).abs() < 1e-6 && (loss.exp() - 10f64.sqrt()).abs() < 1e-9);
        for x in 0..3 {
            assert!((m.probability(&[2], x) - 1.0 / 3.0).abs() < 1e-12);
        }
        let none = model(2, Some(Smoothing::Add { add: 0.0 }), &[&[0, 1, 0, 1, 0, 2]]);
        assert_eq!(none.probability(&[1], 2), 0.0);
        assert_eq!(none.probability(&[2], 2), 0.0);
    }

    #[test]
    fn every_distribution_sums_to_one_and_agrees_with_single_ids() {
        let data: Vec<Vec<u32>> = (0..40u64)
            .map(|s| {
                (0..9)
                    .map(|i| if i == 0 { 2 } else { (kernels::mix(s * 9 + i) % 3) as u32 })
                    .collect()
            })
            .collect();
        let rows: Vec<&[u32]> = data.iter().map(Vec::as_slice).collect();
        let smoothings = [
            (0, None),
            (1, None),
            (2, Some(Smoothing::Add { add: 0.3 })),
            (2, Some(Smoothing::Interpolated { lambda: 0.7 })),
            (2, Some(Smoothing::KneserNey { discount: None })),
            (3, None),
            (5, Some(Smoothing::KneserNey { discount: Some(0.4) })),
        ];
        for (order, smoothing) in smoothings {
            let m = model(order, smoothing, &rows);
            for before in [&[2][..], &[2, 1], &[2, 0, 1, 1], &[0, 0, 0, 0, 0, 1]] {
                let mut p = [0.0; 3];
                m.distribution(before, &mut p);
                assert!((p.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{order} {smoothing:?} {p:?}");
                for (id, &p) in p.iter().enumerate() {
                    assert!((m.probability(before, id as u32) - p).abs() < 1e-12);
                }
            }
        }
    }

    #[test]
    fn the_best_smoothing_of_the_validation_side_is_kept() {
        let mut m = model(2, None, &[&[0, 1, 0, 1, 0, 2]]);
        let valid: [&[u32]; 1] = [&[0, 2, 1, 2, 0]];
        let trials = m.choose(valid.iter().copied());
        assert_eq!(trials.len(), 13);
        let best = trials.iter().min_by(|a, b| a.loss.total_cmp(&b.loss)).unwrap();
        assert_eq!(m.smoothing(), best.smoothing);
    }

    #[test]
    fn tables_go_both_ways_and_foreign_ones_are_refused() {
        let m = model(3, None, &[&[0, 1, 0, 1, 0, 2]]);
        let tables: Vec<(Vec<u64>, Vec<u32>)> =
            m.tables().map(|(k, c)| (k.to_vec(), c.to_vec())).collect();
        let again = Ngram::from_tables(m.config(), tables.clone()).unwrap();
        assert_eq!(again.levels, m.levels);
        let mut bad = tables;
        bad[1].0[0] = u64::MAX;
        assert!(Ngram::from_tables(m.config(), bad).is_err());
        let wide = NgramConfig { vocab_size: 1 << 20, order: 5, smoothing: None };
        assert!(Counter::new(&wide).unwrap_err().to_string().contains("order"));
    }
}
