//! Counter-based randomness: the draw of a step is a function of (seed, stream, step) alone.
//!
//! The generator is Philox4x32 with 10 rounds (Salmon, Moraes, Dror and Shaw, "Parallel random
//! numbers: as easy as 1, 2, 3", SC 2011). The 64-bit key is the seed (low word first); the
//! 128-bit counter is the step (words 0 and 1, low word first) and the stream (words 2 and 3).
//! The uniform number takes output words 0 and 1 as one 64-bit integer (word 1 high), drops the
//! low 11 bits and multiplies by 2^-53: a multiple of 2^-53 in [0, 1).
//! Nothing is remembered between draws, so a sequence replays from any step, in any batch.

use serde::{Deserialize, Serialize};

/// Names one sequence of draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counter {
    /// The seed of the request.
    pub seed: u64,
    /// Which of the request's sequences, so that several choices of one request differ.
    pub stream: u64,
}

impl Counter {
    /// The uniform number of `step`, in [0, 1).
    #[must_use]
    pub fn uniform(self, step: u64) -> f64 {
        let [w0, w1, ..] = philox4x32_10(words(step, self.stream), halves(self.seed));
        let bits = (u64::from(w1) << 32) | u64::from(w0);
        // 53 bits are exact in an f64.
        (bits >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }
}

/// Philox4x32 with 10 rounds: four random words from a counter and a key.
#[must_use]
pub fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = 0xD251_1F53 * u64::from(counter[0]);
        let b = 0xCD9E_8D57 * u64::from(counter[2]);
        let ([a_low, a_high], [b_low, b_high]) = (halves(a), halves(b));
        counter = [b_high ^ counter[1] ^ key[0], b_low, a_high ^ counter[3] ^ key[1], a_low];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

fn halves(x: u64) -> [u32; 2] {
    [(x & 0xFFFF_FFFF) as u32, (x >> 32) as u32]
}

fn words(low: u64, high: u64) -> [u32; 4] {
    let ([a, b], [c, d]) = (halves(low), halves(high));
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers published with the paper's reference code (Random123, philox4x32-10).
    #[test]
    fn philox_known_answers() {
        assert_eq!(
            philox4x32_10([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox4x32_10([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32_10(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    /// The mapping to [0, 1), pinned: seed 0, stream 0, step 0 uses the first known answer.
    #[test]
    fn uniform_is_pinned() {
        let first = 0xe169_c58d_6627_e8d5_u64 >> 11;
        assert_eq!(Counter::default().uniform(0), first as f64 / 9_007_199_254_740_992.0);
        let counter = Counter { seed: 0x299f_31d0_a409_3822, stream: 0x0370_7344_1319_8a2e };
        let bits = 0x94fd_cceb_d16c_fe09_u64 >> 11;
        let u = counter.uniform(0x85a3_08d3_243f_6a88);
        assert_eq!(u, bits as f64 / 9_007_199_254_740_992.0);
    }

    #[test]
    fn streams_seeds_and_steps_differ() {
        let base = Counter { seed: 7, stream: 0 };
        let u = base.uniform(3);
        assert_ne!(u, base.uniform(4));
        assert_ne!(u, Counter { seed: 8, ..base }.uniform(3));
        assert_ne!(u, Counter { stream: 1, ..base }.uniform(3));
        assert_eq!(u, base.uniform(3));
    }

    #[test]
    fn never_reaches_one() {
        let top = (u64::MAX >> 11) as f64 * (1.0 / (1_u64 << 53) as f64);
        assert!(top < 1.0);
    }
}
