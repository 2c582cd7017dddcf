//! Counter-based randomness: (seed, stream, counter) → number, with no state to carry.
//!
//! Each number is SplitMix64's output function (Steele, Lea and Flood 2014) at a place that the
//! three numbers fix, so a draw is the same whatever was drawn before it and on whichever thread.

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A stream of numbers, each found by its counter.
#[derive(Clone, Copy)]
pub(super) struct Stream(u64);

impl Stream {
    pub(super) fn new(seed: u64, stream: u64) -> Stream {
        Stream(mix(mix(seed.wrapping_add(GOLDEN)) ^ stream.wrapping_mul(GOLDEN)))
    }

    pub(super) fn bits(self, counter: u64) -> u64 {
        mix(self.0.wrapping_add(counter.wrapping_add(1).wrapping_mul(GOLDEN)))
    }

    /// A whole number below `n`, which must not be 0; the bias is below n / 2^64.
    pub(super) fn below(self, counter: u64, n: usize) -> usize {
        ((u128::from(self.bits(counter)) * n as u128) >> 64) as usize
    }

    /// A standard normal number by the Box–Muller transform; takes counters 2k and 2k + 1.
    #[cfg(test)]
    pub(super) fn normal(self, k: u64) -> f64 {
        let unit = |bits: u64| ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        let (u, v) = (unit(self.bits(2 * k)), unit(self.bits(2 * k + 1)));
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_even_and_streams_differ() {
        let mut counts = [0u32; 7];
        let stream = Stream::new(1, 2);
        (0..70_000).for_each(|k| counts[stream.below(k, 7)] += 1);
        // Chi-square with 6 degrees of freedom: 22.5 is passed once in a thousand.
        let chi: f64 = counts.iter().map(|&n| (f64::from(n) - 1e4).powi(2) / 1e4).sum();
        assert!(chi < 22.5, "{counts:?}");
        let other = Stream::new(1, 3);
        let equal = (0..7000).filter(|&k| stream.below(k, 7) == other.below(k, 7)).count();
        assert!((850..1150).contains(&equal), "{equal}");
    }

    #[test]
    fn normal_numbers_have_mean_zero_and_variance_one() {
        let stream = Stream::new(5, 0);
        let n = 40_000;
        let draws: Vec<f64> = (0..n).map(|k| stream.normal(k)).collect();
        let mean = draws.iter().sum::<f64>() / n as f64;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
    }
}
