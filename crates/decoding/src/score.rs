//! What a row holds: f32 logits, as a model gives them, or f64 probabilities, as a lesson does.
//! Every rule is written once over this trait.
//!
//! A candidate's weight is its unnormalised probability at the temperature in force. For logits
//! it is exp((z − top)/T), in f64; a probability is its own weight at temperature 1, so that
//! sums such as 0.5 + 0.25 are exact.

use std::cmp::Ordering;

use crate::row::scan;

/// Sums over a whole row at one temperature.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Moments {
    /// Σ weight.
    pub mass: f64,
    /// Σ weight · log-weight, the latter relative to the best token. NaN if an entry is.
    pub log_moment: f64,
    /// Bound on the relative error of `mass`; 0 for a plain f64 sum.
    pub error: f64,
}

/// The best score of a row and its sums.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Survey<S> {
    pub top: S,
    pub moments: Moments,
}

/// One entry of a row.
pub(crate) trait Score: Copy + PartialOrd + std::fmt::Debug {
    /// The score of a token that cannot come.
    const IMPOSSIBLE: Self;
    /// What an entry is called in an error.
    const WHAT: &'static str;

    /// As a logit, in nats.
    fn to_logit(self) -> f64;
    /// From a logit; this is where an edited value is rounded to the row's type.
    fn from_logit(logit: f64) -> Self;
    /// Its value as f64, for an error message.
    fn value(self) -> f64;
    /// Whether it may stand in a row: a finite number or [`Self::IMPOSSIBLE`].
    fn is_sound(self) -> bool;
    /// The same value with a single representation of zero, so that equals compare as equal.
    fn canonical(self) -> Self;
    /// Total order of sound scores.
    fn order(self, other: Self) -> Ordering;
    /// Natural logarithm of the weight relative to the best token's.
    fn log_weight(self, top: Self, temperature: f64) -> f64;
    /// The weight.
    fn weight(self, top: Self, temperature: f64) -> f64;
    /// Best score and sums of a row, and if wanted the lane maxima as [`scan`] gives them; a row
    /// may have a faster way, within [`Moments::error`].
    fn survey(row: &[Self], temperature: f64, maxima: Option<&mut Vec<Self>>) -> Survey<Self> {
        exact_survey(row, temperature, maxima)
    }
}

/// A scan, then the plain sums.
pub(crate) fn exact_survey<S: Score>(
    row: &[S],
    temperature: f64,
    maxima: Option<&mut Vec<S>>,
) -> Survey<S> {
    let better = |top: S, &score: &S| if score > top { score } else { top };
    let top = match maxima {
        Some(maxima) => scan(row, maxima),
        None => row.iter().fold(S::IMPOSSIBLE, better).canonical(),
    };
    Survey { top, moments: exact_moments(row, top, temperature) }
}

/// The plain sums, one f64 exponential a token.
pub(crate) fn exact_moments<S: Score>(row: &[S], top: S, temperature: f64) -> Moments {
    let (mut mass, mut log_moment) = (0.0, 0.0);
    for score in row {
        let weight = score.weight(top, temperature);
        // A NaN passes on into the moment.
        if weight != 0.0 {
            mass += weight;
            log_moment += weight * score.log_weight(top, temperature);
        }
    }
    Moments { mass, log_moment, error: 0.0 }
}

impl Score for f32 {
    const IMPOSSIBLE: Self = f32::NEG_INFINITY;
    const WHAT: &'static str = "logit";

    fn to_logit(self) -> f64 {
        f64::from(self)
    }

    fn from_logit(logit: f64) -> Self {
        logit as f32
    }

    fn value(self) -> f64 {
        f64::from(self)
    }

    fn is_sound(self) -> bool {
        self < f32::INFINITY
    }

    fn canonical(self) -> Self {
        self + 0.0
    }

    fn order(self, other: Self) -> Ordering {
        self.total_cmp(&other)
    }

    fn log_weight(self, top: Self, temperature: f64) -> f64 {
        (f64::from(self) - f64::from(top)) / temperature
    }

    fn weight(self, top: Self, temperature: f64) -> f64 {
        self.log_weight(top, temperature).exp()
    }

    fn survey(row: &[Self], temperature: f64, maxima: Option<&mut Vec<Self>>) -> Survey<Self> {
        crate::row::survey(row, temperature, maxima)
    }
}

impl Score for f64 {
    const IMPOSSIBLE: Self = 0.0;
    const WHAT: &'static str = "probability";

    fn to_logit(self) -> f64 {
        self.ln()
    }

    fn from_logit(logit: f64) -> Self {
        logit.exp()
    }

    fn value(self) -> f64 {
        self
    }

    fn is_sound(self) -> bool {
        (0.0..f64::INFINITY).contains(&self)
    }

    fn canonical(self) -> Self {
        self + 0.0
    }

    fn order(self, other: Self) -> Ordering {
        self.total_cmp(&other)
    }

    fn log_weight(self, top: Self, temperature: f64) -> f64 {
        (self.ln() - top.ln()) / temperature
    }

    fn weight(self, top: Self, temperature: f64) -> f64 {
        if temperature == 1.0 { self } else { self.log_weight(top, temperature).exp() }
    }
}
