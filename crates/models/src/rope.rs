//! Rotary positions of published models: stretched for longer contexts, and layers that see only
//! near positions.

use crate::config::{ConfigError, require};
use serde::{Deserialize, Serialize};
use tensor::ops::Rotary;

/// How the frequencies of rotary positions are changed for contexts longer than those trained on,
/// named as published `config.json` files name it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rope_type", rename_all = "snake_case")]
pub enum RopeScaling {
    /// All frequencies are divided by `factor` (Chen et al., arXiv 2306.15595).
    Linear {
        /// How much longer contexts become.
        factor: f64,
    },
    /// Long waves are divided by `factor`, short ones kept, those between mixed (Llama 3.1).
    Llama3 {
        /// How much longer contexts become.
        factor: f64,
        /// Waves longer than original/this are divided.
        low_freq_factor: f64,
        /// Waves shorter than original/this are kept.
        high_freq_factor: f64,
        /// The context trained on.
        original_max_position_embeddings: usize,
    },
    /// Waves by how often they turn in the context trained on; cosines and sines grow with the
    /// logarithm of `factor` (Peng et al., arXiv 2309.00071).
    Yarn {
        /// How much longer contexts become.
        factor: f64,
        /// The context trained on.
        original_max_position_embeddings: usize,
        /// Waves that turn more often are kept.
        beta_fast: f64,
        /// Waves that turn less often are divided by `factor`.
        beta_slow: f64,
        /// What cosines and sines are multiplied by; 0.1·ln(factor) + 1 when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attention_factor: Option<f64>,
    },
    /// Each frequency is divided by its own number.
    Factors {
        /// D/2 numbers.
        factors: Vec<f32>,
    },
}

/// Layers whose queries see only the last positions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlidingWindow {
    /// Positions that a query sees, its own counted.
    pub tokens: usize,
    /// Which layers, from 0.
    pub layers: Vec<usize>,
    /// θ of these layers' rotary positions, not stretched; as the other layers when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_theta: Option<f64>,
}

/// (factor, low and high frequency factor, context trained on) that published models of the
/// [`RopeScaling::Llama3`] kind have.
const LLAMA3: [(f64, f64, f64, usize); 2] = [(8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192)];

impl RopeScaling {
    /// The same as a number for each frequency, where it is nothing else than that.
    #[must_use]
    pub fn as_factors(&self, head_dim: usize, theta: f64) -> Option<Vec<f32>> {
        match *self {
            RopeScaling::Factors { ref factors } => Some(factors.clone()),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: original,
            } => {
                let divisor = |i: usize| {
                    let f = theta.powf(-((2 * i) as f64) / head_dim as f64);
                    (1.0 / llama3_share(f, factor, (low, high), original)) as f32
                };
                Some((0..head_dim / 2).map(divisor).collect())
            }
            _ => None,
        }
    }

    /// The published scaling whose numbers these factors are.
    #[must_use]
    pub fn from_factors(factors: &[f32], theta: f64) -> Option<RopeScaling> {
        let candidates = LLAMA3.map(|(factor, low, high, original)| RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings: original,
        });
        candidates.into_iter().find(|candidate| {
            let own = candidate.as_factors(2 * factors.len(), theta).unwrap_or_default();
            own.iter().zip(factors).all(|(a, b)| (a - b).abs() <= 1e-4 * a)
        })
    }

    /// What YaRN multiplies cosines and sines by where the model does not say.
    #[must_use]
    pub fn yarn_growth(factor: f64) -> f64 {
        if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 }
    }

    /// Rotary positions of heads of `head_dim` with base `theta`, stretched.
    pub(crate) fn rotary(&self, head_dim: usize, theta: f64) -> Rotary {
        let plain = Rotary::new(head_dim, theta);
        match *self {
            RopeScaling::Linear { factor } => plain.scaled(1.0, |_, f| f / factor),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: original,
            } => plain.scaled(1.0, |_, f| f * llama3_share(f, factor, (low, high), original)),
            RopeScaling::Yarn {
                factor,
                original_max_position_embeddings: original,
                beta_fast,
                beta_slow,
                attention_factor,
            } => {
                // The index of the pair that turns that often in the context trained on.
                let index = |turns: f64| {
                    let d = head_dim as f64;
                    d * (original as f64 / (turns * std::f64::consts::TAU)).ln()
                        / (2.0 * theta.ln())
                };
                let first = index(beta_fast).floor().max(0.0);
                let last = index(beta_slow).ceil().min(head_dim as f64 - 1.0);
                let width = if last > first { last - first } else { 0.001 };
                let grown = attention_factor.unwrap_or_else(|| RopeScaling::yarn_growth(factor));
                plain.scaled(grown, |i, f| {
                    let divided = ((i as f64 - first) / width).clamp(0.0, 1.0);
                    f * (1.0 - divided + divided / factor)
                })
            }
            RopeScaling::Factors { ref factors } => {
                plain.scaled(1.0, |i, f| f / factors.get(i).map_or(1.0, |&x| f64::from(x)))
            }
        }
    }

    pub(crate) fn check(&self, head_dim: usize) -> Result<(), ConfigError> {
        let above = |field, value: f64| {
            require(value > 0.0 && value.is_finite(), field, value, "it must be above 0")
        };
        match self {
            RopeScaling::Linear { factor } => above("rope_scaling.factor", *factor),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => {
                above("rope_scaling.factor", *factor)?;
                above("rope_scaling.low_freq_factor", *low_freq_factor)?;
                above(
                    "rope_scaling.high_freq_factor - low_freq_factor",
                    high_freq_factor - low_freq_factor,
                )?;
                above(
                    "rope_scaling.original_max_position_embeddings",
                    *original_max_position_embeddings as f64,
                )
            }
            RopeScaling::Yarn {
                factor,
                original_max_position_embeddings,
                beta_fast,
                beta_slow,
                attention_factor,
            } => {
                above("rope_scaling.factor", *factor)?;
                above(
                    "rope_scaling.original_max_position_embeddings",
                    *original_max_position_embeddings as f64,
                )?;
                above("rope_scaling.beta_slow", *beta_slow)?;
                above("rope_scaling.beta_fast - beta_slow", beta_fast - beta_slow)?;
                above("rope_scaling.attention_factor", attention_factor.unwrap_or(1.0))
            }
            RopeScaling::Factors { factors } => {
                let good = factors.len() == head_dim / 2
                    && factors.iter().all(|f| *f > 0.0 && f.is_finite());
                let found = format!("{} numbers", factors.len());
                let expected = format!("it must be {} numbers above 0", head_dim / 2);
                require(good, "rope_scaling.factors", found, &expected)
            }
        }
    }
}

/// What is left of a frequency: all of short waves, 1/factor of long ones.
fn llama3_share(frequency: f64, factor: f64, (low, high): (f64, f64), original: usize) -> f64 {
    let turns = original as f64 * frequency / std::f64::consts::TAU;
    let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
    kept + (1.0 - kept) / factor
}

impl SlidingWindow {
    pub(crate) fn check(&self, layers: usize) -> Result<(), ConfigError> {
        require(self.tokens > 0, "sliding_window.tokens", self.tokens, "it must be at least 1")?;
        let largest = self.layers.iter().copied().max().unwrap_or(0);
        let expected = format!("each must be below {layers}");
        require(largest < layers, "sliding_window.layers", largest, &expected)?;
        let theta = self.rope_theta.unwrap_or(2.0);
        require(
            theta > 1.0 && theta.is_finite(),
            "sliding_window.rope_theta",
            theta,
            "it must be above 1",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cosine of pair i at position 1, turned back into a frequency.
    fn frequencies(rotary: &Rotary) -> Vec<f64> {
        let mut row = vec![0.0; rotary.width()];
        rotary.angles(&[1], &mut row);
        let half = row.len() / 2;
        (0..half).map(|i| f64::from(row[half + i]).atan2(f64::from(row[i]))).collect()
    }

    #[test]
    fn short_waves_are_kept_and_long_ones_divided() {
        let plain = frequencies(&Rotary::new(64, 10_000.0));
        let llama = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 128,
        };
        let yarn = RopeScaling::Yarn {
            factor: 8.0,
            original_max_position_embeddings: 128,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: None,
        };
        for scaling in [llama, yarn] {
            scaling.check(64).unwrap();
            let found = frequencies(&scaling.rotary(64, 10_000.0));
            assert!((found[0] / plain[0] - 1.0).abs() < 1e-6, "{scaling:?}");
            assert!((found[31] / plain[31] - 0.125).abs() < 1e-4, "{scaling:?}");
            assert!(found.windows(2).all(|w| w[0] > w[1]));
        }
    }

    #[test]
    fn impossible_numbers_are_named() {
        let bad = RopeScaling::Linear { factor: 0.0 }.check(64).unwrap_err();
        assert_eq!(bad.field, "rope_scaling.factor");
        let few = RopeScaling::Factors { factors: vec![1.0; 3] }.check(64).unwrap_err();
        assert!(few.to_string().contains("3 numbers") && few.to_string().contains("32"), "{few}");
        let window = SlidingWindow { tokens: 4, layers: vec![0, 9], rope_theta: None };
        assert!(window.check(9).unwrap_err().to_string().contains("sliding_window.layers is 9"));
    }
}
