//! Randomness by counter: a number is a pure function of (key, counter).
//!
//! The generator is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable
//! pseudorandom number generators", 2014) applied twice to key and counter.

/// Mixes 64 bits so that every input bit reaches every output bit.
#[inline(always)]
pub fn mix(x: u64) -> u64 {
    let z = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A key from a seed and what the numbers are for.
pub fn stream_key(seed: u64, stream: u64, step: u64) -> u64 {
    mix(mix(mix(seed) ^ stream) ^ step)
}

/// 64 uniform bits.
#[inline(always)]
pub fn uniform_bits(key: u64, counter: u64) -> u64 {
    mix(key ^ mix(counter))
}

/// Uniform in [0, 1): the upper 53 bits over 2^53.
#[inline(always)]
pub fn uniform(key: u64, counter: u64) -> f64 {
    (uniform_bits(key, counter) >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
}

/// Standard normal, by Box and Muller's transform of two uniform numbers.
pub fn normal(key: u64, counter: u64) -> f32 {
    let u = 1.0 - uniform(key, 2 * counter);
    let v = uniform(key, 2 * counter + 1);
    ((-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_vectors() {
        assert_eq!(mix(0), 0xE220_A839_7B1D_CDAF);
        assert_eq!(mix(1), 0x910A_2DEC_8902_5CC1);
    }

    #[test]
    fn normal_has_mean_zero_and_variance_one() {
        let n = 100_000;
        let xs: Vec<f64> = (0..n).map(|i| f64::from(normal(7, i))).collect();
        let mean = xs.iter().sum::<f64>() / n as f64;
        let variance = xs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
    }
}
