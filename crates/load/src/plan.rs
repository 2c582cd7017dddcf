//! What is sent and when: decided before the first byte, from a seed.

use kernels::mix;

/// When requests are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// So many a second on average, at random times.
    Poisson {
        /// Requests a second.
        rate: f64,
    },
    /// So many clients, each sending when its last answer is there.
    Clients {
        /// Clients.
        count: usize,
    },
}

/// What requests ask.
#[derive(Debug, Clone)]
pub enum Prompts {
    /// Random token ids below a bound, so that none is in a cache.
    Random {
        /// Tokens of a prompt.
        tokens: usize,
        /// Ids below this.
        vocabulary: u32,
        /// Tokens at the beginning that all prompts share.
        shared: usize,
    },
    /// Texts, in turn.
    Texts(Vec<String>),
}

/// A whole load.
#[derive(Debug, Clone)]
pub struct Work {
    /// The server, as `http://host:port`.
    pub url: String,
    /// The model's name.
    pub model: String,
    /// A key, if the server asks for one.
    pub api_key: Option<String>,
    /// When.
    pub arrivals: Arrivals,
    /// Requests that are measured.
    pub requests: usize,
    /// Requests before them that are not.
    pub warm_up: usize,
    /// What they ask.
    pub prompts: Prompts,
    /// New tokens each.
    pub max_tokens: usize,
    /// Seed of arrivals and prompts.
    pub seed: u64,
}

impl Work {
    /// When request `i` is sent, in seconds from the beginning; sums of exponential gaps.
    #[must_use]
    pub fn times(&self, rate: f64) -> Vec<f64> {
        let gap = |i: u64| {
            // Above 0, so that the logarithm is finite.
            let u = ((mix(self.seed ^ mix(i)) >> 11) + 1) as f64 / (1_u64 << 53) as f64;
            -u.ln() / rate
        };
        let mut at = 0.0;
        (0..self.requests as u64)
            .map(|i| {
                at += gap(i);
                at
            })
            .collect()
    }

    /// The body of request `i`.
    #[must_use]
    pub fn body(&self, i: usize) -> serde_json::Value {
        let prompt = match &self.prompts {
            Prompts::Texts(texts) => texts[i % texts.len().max(1)].clone().into(),
            Prompts::Random { tokens, vocabulary, shared } => {
                let token = |j: usize| {
                    let of = if j < *shared { 0 } else { i as u64 + 1 };
                    mix(self.seed ^ mix(of << 32 | j as u64)) % u64::from((*vocabulary).max(1))
                };
                (0..*tokens).map(token).collect::<serde_json::Value>()
            }
        };
        serde_json::json!({
            "model": self.model, "prompt": prompt, "max_tokens": self.max_tokens,
            "temperature": 0.0, "ignore_eos": true, "stream": true,
            "stream_options": { "include_usage": true },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(prompts: Prompts) -> Work {
        Work {
            url: String::new(),
            model: "m".to_owned(),
            api_key: None,
            arrivals: Arrivals::Poisson { rate: 5.0 },
            requests: 20_000,
            warm_up: 0,
            prompts,
            max_tokens: 3,
            seed: 4,
        }
    }

    #[test]
    fn arrivals_have_the_rate_and_the_spread_of_a_poisson_process() {
        let times = work(Prompts::Texts(Vec::new())).times(5.0);
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // Standard error of the mean: 0.2/√20000 = 0.0014.
        assert!((mean - 0.2).abs() < 0.006, "{mean}");
        assert!((variance.sqrt() - 0.2).abs() < 0.01, "{variance}");
    }

    #[test]
    fn prompts_share_what_they_are_told_to() {
        let work = work(Prompts::Random { tokens: 9, vocabulary: 1000, shared: 4 });
        let ids = |i: usize| work.body(i)["prompt"].as_array().unwrap().clone();
        assert_eq!(ids(1)[..4], ids(2)[..4]);
        assert_ne!(ids(1)[4..], ids(2)[4..]);
        assert_eq!(ids(7), ids(7));
    }
}
