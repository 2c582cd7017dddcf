//! Bookkeeping of beam search: which hypotheses live, which are finished, when to stop. Pure data:
//! the caller runs the model, gives the best continuations of each live hypothesis, and reorders
//! its caches by the parents that come back.
//!
//! A hypothesis' score is its summed log-probability divided by (length)^α, its generated tokens
//! counted. α = 0 compares plain sums, which favours short texts; α = 1 compares means. Beam
//! search looks for the likeliest text and serves where there is one right answer; open-ended
//! text is better drawn (it comes out bland and repetitive from a beam).

use serde::{Deserialize, Serialize};

/// When the search ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Patience {
    /// When no live hypothesis can reach the worst of a full set of finished ones any more, taken
    /// at the largest length that is allowed. Exact for α ≥ 0.
    #[default]
    Exact,
    /// As soon as there are as many finished hypotheses as the beam is wide.
    Early,
}

/// How a beam search is run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BeamOptions {
    /// Hypotheses kept alive, and finished ones kept; at least 1.
    pub width: usize,
    /// Exponent α of the length.
    pub length_exponent: f64,
    /// Most generated tokens; at least 1.
    pub max_tokens: usize,
    /// When to stop.
    pub patience: Patience,
}

/// Options that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BeamError {
    /// No hypothesis could live.
    #[error("beam width is 0; expected at least 1 (1 is greedy search)")]
    Width,
    /// No token could be generated.
    #[error("the most tokens of a beam search are 0; expected at least 1")]
    MaxTokens,
    /// Lengths cannot be compared.
    #[error("length exponent is {found}; expected a finite number, 0 or above")]
    LengthExponent {
        /// What was given.
        found: f64,
    },
    /// The caller gave continuations for another number of hypotheses.
    #[error("continuations for {found} hypotheses, but {expected} are alive")]
    Rows {
        /// Rows given.
        found: usize,
        /// Hypotheses alive.
        expected: usize,
    },
    /// A log-probability that cannot be one.
    #[error("token {id} has the log-probability {found}; expected a number of at most 0")]
    LogProbability {
        /// The token.
        id: u32,
        /// What was given.
        found: f64,
    },
}

/// A sequence of tokens and its sum of log-probabilities, in nats.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Hypothesis {
    /// Generated tokens, an end-of-sequence token included.
    pub tokens: Vec<u32>,
    /// Sum of their log-probabilities.
    pub logprob: f64,
}

impl Hypothesis {
    /// The sum divided by length^α.
    #[must_use]
    pub fn score(&self, length_exponent: f64) -> f64 {
        normalised(self.logprob, self.tokens.len(), length_exponent)
    }
}

fn normalised(logprob: f64, length: usize, exponent: f64) -> f64 {
    logprob / (length.max(1) as f64).powf(exponent)
}

/// A token that may continue a hypothesis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Continuation {
    /// The token.
    pub id: u32,
    /// Its log-probability after the hypothesis, in nats.
    pub logprob: f64,
}

/// The state of one beam search.
#[derive(Debug, Clone, PartialEq)]
pub struct Beam {
    options: BeamOptions,
    live: Vec<Hypothesis>,
    finished: Vec<Hypothesis>,
}

impl Beam {
    /// A search that has generated nothing: one live, empty hypothesis.
    ///
    /// # Errors
    /// [`BeamError`] for options that mean nothing.
    pub fn new(options: BeamOptions) -> Result<Self, BeamError> {
        let found = options.length_exponent;
        if options.width == 0 {
            return Err(BeamError::Width);
        }
        if options.max_tokens == 0 {
            return Err(BeamError::MaxTokens);
        }
        if !(found.is_finite() && found >= 0.0) {
            return Err(BeamError::LengthExponent { found });
        }
        Ok(Self { options, live: vec![Hypothesis::default()], finished: Vec::new() })
    }

    /// The hypotheses that the next step continues, best first.
    #[must_use]
    pub fn live(&self) -> &[Hypothesis] {
        &self.live
    }

    /// How many continuations of each live hypothesis decide the step: so many that, even if
    /// every end-of-sequence token is among them, a full beam lives on.
    #[must_use]
    pub fn num_continuations(&self, num_end_tokens: usize) -> usize {
        self.options.width + num_end_tokens
    }

    /// Takes one step: `rows` holds for each live hypothesis its best continuations. Returns for
    /// each hypothesis now alive the index of the one it continues.
    ///
    /// Candidates are ranked by summed log-probability, ties by hypothesis and then by token id.
    /// One that ends is finished if it ranks within the width; it takes no live place.
    ///
    /// # Errors
    /// [`BeamError::Rows`] and [`BeamError::LogProbability`]; the state is then unchanged.
    pub fn advance(
        &mut self,
        rows: &[Vec<Continuation>],
        is_end: impl Fn(u32) -> bool,
    ) -> Result<Vec<usize>, BeamError> {
        let candidates = self.ranked(rows)?;
        let (mut live, mut parents) = (Vec::new(), Vec::new());
        for (rank, (parent, logprob, id)) in candidates.into_iter().enumerate() {
            if live.len() == self.options.width {
                break;
            }
            let mut tokens = self.live[parent].tokens.clone();
            tokens.push(id);
            let hypothesis = Hypothesis { tokens, logprob };
            if !is_end(id) {
                live.push(hypothesis);
                parents.push(parent);
            } else if rank < self.options.width {
                self.finished.push(hypothesis);
            }
        }
        self.live = live;
        self.keep_best_finished();
        Ok(parents)
    }

    fn ranked(&self, rows: &[Vec<Continuation>]) -> Result<Vec<(usize, f64, u32)>, BeamError> {
        if rows.len() != self.live.len() {
            return Err(BeamError::Rows { found: rows.len(), expected: self.live.len() });
        }
        let mut candidates = Vec::new();
        for (parent, (row, hypothesis)) in rows.iter().zip(&self.live).enumerate() {
            for &Continuation { id, logprob } in row {
                // Rounding may leave a certain token a hair above 0.
                if logprob.is_nan() || logprob > 1e-6 {
                    return Err(BeamError::LogProbability { id, found: logprob });
                }
                if logprob > f64::NEG_INFINITY {
                    candidates.push((parent, hypothesis.logprob + logprob, id));
                }
            }
        }
        candidates.sort_by(|a, b| b.1.total_cmp(&a.1).then((a.0, a.2).cmp(&(b.0, b.2))));
        Ok(candidates)
    }

    fn keep_best_finished(&mut self) {
        let exponent = self.options.length_exponent;
        self.finished.sort_by(|a, b| b.score(exponent).total_cmp(&a.score(exponent)));
        self.finished.truncate(self.options.width);
    }

    /// Whether another step cannot change the result, or is not allowed.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let Some(best) = self.live.first() else { return true };
        if best.tokens.len() >= self.options.max_tokens {
            return true;
        }
        if self.finished.len() < self.options.width {
            return false;
        }
        let exponent = self.options.length_exponent;
        let worst = self.finished.last().map_or(f64::NEG_INFINITY, |h| h.score(exponent));
        match self.options.patience {
            Patience::Early => true,
            // The sum can only fall, and the largest length divides it by most.
            Patience::Exact => normalised(best.logprob, self.options.max_tokens, exponent) <= worst,
        }
    }

    /// The best hypotheses, best first: the finished ones, and where the tokens ran out the live
    /// ones too.
    #[must_use]
    pub fn into_best(mut self) -> Vec<Hypothesis> {
        let is_cut = |h: &Hypothesis| h.tokens.len() >= self.options.max_tokens;
        if self.finished.is_empty() || self.live.first().is_some_and(is_cut) {
            self.finished.append(&mut self.live);
        }
        self.keep_best_finished();
        self.finished
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Counter;

    const END: u32 = 0;
    const VOCABULARY: u32 = 4;

    /// A small language model by noise: log-probabilities after a prefix.
    fn model(seed: u64, prefix: &[u32]) -> Vec<f64> {
        let place = prefix.iter().fold(1, |hash, &id| hash * 7 + u64::from(id) + 1);
        let noise = Counter { seed, stream: place };
        let z: Vec<f64> = (0..u64::from(VOCABULARY)).map(|i| 3.0 * noise.uniform(i)).collect();
        let mass: f64 = z.iter().map(|z| z.exp()).sum();
        z.iter().map(|z| z - mass.ln()).collect()
    }

    fn search(seed: u64, options: BeamOptions) -> Vec<Hypothesis> {
        let mut beam = Beam::new(options).unwrap();
        while !beam.is_done() {
            let row = |h: &Hypothesis| {
                let mut row: Vec<_> = (0..)
                    .zip(model(seed, &h.tokens))
                    .map(|(id, logprob)| Continuation { id, logprob })
                    .collect();
                row.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
                row.truncate(beam.num_continuations(1));
                row
            };
            let rows: Vec<_> = beam.live().iter().map(row).collect();
            let before = beam.live().to_vec();
            let parents = beam.advance(&rows, |id| id == END).unwrap();
            for (parent, now) in parents.iter().zip(beam.live()) {
                assert!(now.tokens.starts_with(&before[*parent].tokens));
            }
        }
        beam.into_best()
    }

    /// Every text of at most so many tokens that ends, or is cut there.
    fn all_texts(seed: u64, max_tokens: usize) -> Vec<Hypothesis> {
        let (mut open, mut done) = (vec![Hypothesis::default()], Vec::new());
        while let Some(text) = open.pop() {
            for (id, logprob) in (0..).zip(model(seed, &text.tokens)) {
                let mut longer = text.clone();
                longer.tokens.push(id);
                longer.logprob += logprob;
                let is_done = id == END || longer.tokens.len() == max_tokens;
                if is_done { done.push(longer) } else { open.push(longer) }
            }
        }
        done
    }

    fn options(width: usize, length_exponent: f64) -> BeamOptions {
        BeamOptions { width, length_exponent, max_tokens: 4, patience: Patience::Exact }
    }

    #[test]
    fn a_beam_as_wide_as_all_texts_finds_the_best_of_them() {
        for seed in 0..30 {
            for exponent in [0.0, 0.7, 1.0] {
                let mut all = all_texts(seed, 4);
                all.sort_by(|a, b| b.score(exponent).total_cmp(&a.score(exponent)));
                let found = search(seed, options(200, exponent));
                for (found, expected) in found.iter().zip(&all).take(5) {
                    assert_eq!(found.tokens, expected.tokens, "seed {seed}, exponent {exponent}");
                    assert!((found.logprob - expected.logprob).abs() < 1e-12);
                }
            }
        }
    }

    #[test]
    fn width_one_is_greedy_and_wider_is_no_worse_here() {
        let mut better = 0;
        for seed in 0..60 {
            let mut greedy = Hypothesis::default();
            while greedy.tokens.len() < 4 && greedy.tokens.last() != Some(&END) {
                let row = model(seed, &greedy.tokens);
                let best = (0..VOCABULARY)
                    .max_by(|&a, &b| row[a as usize].total_cmp(&row[b as usize]).then(b.cmp(&a)));
                greedy.logprob += row[best.unwrap() as usize];
                greedy.tokens.push(best.unwrap());
            }
            let one = search(seed, options(1, 0.0));
            let two = search(seed, options(3, 0.0));
            better += usize::from(two[0].logprob > greedy.logprob + 1e-9);
            // The first to end within a beam of one is the greedy text.
            assert!(one[0].tokens == greedy.tokens || one[0].logprob > greedy.logprob);
        }
        assert!(better > 5, "a wider beam was better in {better} of 60");
    }

    #[test]
    fn length_normalisation_turns_the_order() {
        let short = Hypothesis { tokens: vec![1, END], logprob: -2.0 };
        let long = Hypothesis { tokens: vec![1, 2, 3, END], logprob: -3.0 };
        assert!(short.score(0.0) > long.score(0.0));
        assert!(short.score(1.0) < long.score(1.0));
    }

    #[test]
    fn early_patience_stops_at_a_full_set() {
        let mut beam =
            Beam::new(BeamOptions { patience: Patience::Early, ..options(1, 1.0) }).unwrap();
        let row = |end: f64, other: f64| {
            vec![vec![
                Continuation { id: END, logprob: end },
                Continuation { id: 1, logprob: other },
            ]]
        };
        beam.advance(&row(-0.5, -1.0), |id| id == END).unwrap();
        let mut exact = beam.clone();
        exact.options.patience = Patience::Exact;
        assert!(beam.is_done() && !exact.is_done());
        assert_eq!(beam.into_best()[0].tokens, [END]);
    }

    #[test]
    fn what_means_nothing_is_refused() {
        assert_eq!(Beam::new(options(0, 1.0)), Err(BeamError::Width));
        assert!(Beam::new(options(1, f64::NAN)).is_err());
        assert!(Beam::new(options(1, -1.0)).is_err());
        assert!(Beam::new(BeamOptions { max_tokens: 0, ..options(1, 1.0) }).is_err());
        let mut beam = Beam::new(options(2, 1.0)).unwrap();
        let before = beam.clone();
        assert_eq!(beam.advance(&[], |_| false), Err(BeamError::Rows { found: 0, expected: 1 }));
        for bad in [f64::NAN, 0.5] {
            let row = vec![Continuation { id: 3, logprob: bad }];
            assert!(beam.advance(&[row], |_| false).is_err());
        }
        assert_eq!(beam, before);
        // Nothing possible: the search ends with what there is.
        beam.advance(&[vec![Continuation { id: 3, logprob: f64::NEG_INFINITY }]], |_| false)
            .unwrap();
        assert!(beam.is_done() && beam.into_best().is_empty());
    }
}
