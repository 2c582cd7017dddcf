//! The two passes over a whole row: best scores of interleaved lanes, and the softmax sums.
//! Plain loops over fixed lanes that the compiler turns into vector code; the lanes and the tree
//! of the sums do not depend on the width of the vectors, so neither do the bits.
//!
//! The sums of a wide row use a polynomial exponential: x = z − top is scaled to base 2 and split
//! into an integer and g in [−1/2, 1/2]; 2^g is a polynomial of degree 5 (relative error below
//! 1e-7) whose exponent bits take the integer. Lanes add 32 terms in f32, then go into f64.
//! The rounding of the argument costs |x|·1.5e-7 a term, the lanes 2e-6 at the very worst, and so
//! the sum is within [`Moments::error`] = 3e-6 + 1.5e-7·E|x| of the exact one, where E|x| comes
//! out of the pass itself. A filter or draw whose boundary lies within that error is decided
//! again with the plain f64 sum, so an approximate sum never changes which token is chosen.

use crate::score::{Moments, Score, exact_moments};

/// Lanes of a pass: four SSE2, two AVX2 or one AVX-512 register of f32.
pub(crate) const LANES: usize = 16;
/// Groups of lanes in a chunk of the scan.
const SCAN_GROUPS: usize = 64;
/// Entries in a chunk of the scan.
pub(crate) const SCAN_CHUNK: usize = LANES * SCAN_GROUPS;
/// Terms that a lane adds in f32 before it goes into f64.
const SUM_GROUPS: usize = 32;
const SUM_CHUNK: usize = LANES * SUM_GROUPS;
/// Rows up to this width are summed with f64 exponentials; it costs no more than tens of µs.
const EXACT_WIDTH: usize = 2048;

/// What a scan finds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scan<S> {
    /// The best score.
    pub top: S,
    /// Whether every entry is a number. An infinite one shows in `top`.
    pub all_numbers: bool,
}

/// Best score of every lane of every chunk: entry `c·LANES + l` of `maxima` covers the entries
/// `c·SCAN_CHUNK + g·LANES + l` of the row.
pub(crate) fn scan<S: Score>(row: &[S], maxima: &mut Vec<S>) -> Scan<S> {
    maxima.clear();
    let mut numbers = [true; LANES];
    for chunk in row.chunks(SCAN_CHUNK) {
        let mut best = [S::IMPOSSIBLE; LANES];
        let (groups, rest) = chunk.as_chunks::<LANES>();
        for group in groups {
            scan_group(group, &mut best, &mut numbers);
        }
        for (lane, &score) in rest.iter().enumerate() {
            best[lane] = if score > best[lane] { score } else { best[lane] };
            numbers[lane] &= score == score;
        }
        maxima.extend_from_slice(&best);
    }
    let top = maxima.iter().fold(S::IMPOSSIBLE, |top, &m| if m > top { m } else { top });
    Scan { top: top.canonical(), all_numbers: numbers.iter().all(|&n| n) }
}

#[inline(always)]
fn scan_group<S: Score>(group: &[S; LANES], best: &mut [S; LANES], numbers: &mut [bool; LANES]) {
    for lane in 0..LANES {
        let score = group[lane];
        best[lane] = if score > best[lane] { score } else { best[lane] };
        numbers[lane] &= score == score;
    }
}

/// Softmax sums of a row of logits whose best is `top`.
pub(crate) fn moments(row: &[f32], top: f32, temperature: f64) -> Moments {
    if row.len() <= EXACT_WIDTH {
        return exact_moments(row, top, temperature);
    }
    wide_moments(row, top, temperature)
}

/// Weights below exp(−87) count as that: nothing, beside the best token's 1.
const LEAST: f32 = -87.0;
/// 1.5·2^23: adding it rounds to an integer and leaves that in the low bits.
const ROUND: f32 = 12_582_912.0;
/// Coefficients of 2^g from the constant up, fitted to the least largest relative error.
const EXP2: [f32; 6] =
    [1.0, 0.693_147, 0.240_222_42, 0.055_507_336, 0.009_671_513, 0.001_326_472_7];

fn wide_moments(row: &[f32], top: f32, temperature: f64) -> Moments {
    // Beyond f32's range the best token has all the mass, or all have the same.
    let inverse = (1.0 / temperature).clamp(f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX));
    let scale = inverse as f32;
    let (mut masses, mut moments) = ([0.0_f64; LANES], [0.0_f64; LANES]);
    for chunk in row.chunks(SUM_CHUNK) {
        let (mut mass, mut moment) = ([0.0_f32; LANES], [0.0_f32; LANES]);
        let (groups, rest) = chunk.as_chunks::<LANES>();
        for group in groups {
            sum_group(group, top, scale, &mut mass, &mut moment);
        }
        if !rest.is_empty() {
            let mut padded = [f32::NEG_INFINITY; LANES];
            padded[..rest.len()].copy_from_slice(rest);
            sum_group(&padded, top, scale, &mut mass, &mut moment);
        }
        for lane in 0..LANES {
            masses[lane] += f64::from(mass[lane]);
            moments[lane] += f64::from(moment[lane]);
        }
    }
    let (mass, log_moment) = (masses.iter().sum::<f64>(), moments.iter().sum::<f64>());
    Moments { mass, log_moment, error: 3e-6 + 1.5e-7 * (log_moment / mass).abs() }
}

#[inline(always)]
fn sum_group(
    group: &[f32; LANES],
    top: f32,
    scale: f32,
    mass: &mut [f32; LANES],
    moment: &mut [f32; LANES],
) {
    for lane in 0..LANES {
        let scaled = (group[lane] - top) * scale;
        let x = if scaled > LEAST { scaled } else { LEAST };
        let weight = exp(x);
        mass[lane] += weight;
        moment[lane] += weight * x;
    }
}

/// e^x for x in [−87, 0], to 1e-7 + 1.5e-7·|x|.
#[inline(always)]
fn exp(x: f32) -> f32 {
    let scaled = x * std::f32::consts::LOG2_E;
    let rounded = scaled + ROUND;
    let g = scaled - (rounded - ROUND);
    let [c0, c1, c2, c3, c4, c5] = EXP2;
    let polynomial = ((((c5 * g + c4) * g + c3) * g + c2) * g + c1) * g + c0;
    f32::from_bits(polynomial.to_bits().wrapping_add(rounded.to_bits() << 23))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Counter;

    /// A row whose logits look like a model's: a bulk and a few that stand out.
    fn logits(width: u64, spread: f64, seed: u64) -> Vec<f32> {
        let noise = Counter { seed, stream: 0 };
        let bell = |i: u64| (0..6).map(|j| noise.uniform(i * 6 + j)).sum::<f64>() - 3.0;
        (0..width).map(|i| (bell(i) * spread) as f32).collect()
    }

    #[test]
    fn the_polynomial_stays_within_its_bound() {
        let mut worst = 0.0_f64;
        for i in 0..=870_000 {
            let x = -(i as f32) * 1e-4;
            let exact = f64::from(x).exp();
            let relative = (f64::from(exp(x)) - exact).abs() / exact;
            let bound = 2e-7 + 1.5e-7 * f64::from(-x);
            assert!(relative <= bound, "exp({x}) is off by {relative:e}, bound {bound:e}");
            worst = worst.max(relative / bound);
        }
        assert!(worst > 0.05, "the bound says nothing: {worst}");
        assert_eq!(exp(0.0), 1.0);
    }

    #[test]
    fn wide_sums_stay_within_the_error_they_state() {
        for (spread, seed) in [(0.01, 1), (1.0, 2), (4.0, 3), (15.0, 4)] {
            for width in [2049, 4096, 32_000, 151_936] {
                let row = logits(width, spread, seed);
                let top = scan(&row, &mut Vec::new()).top;
                for temperature in [0.05, 0.7, 1.0, 3.0, 1e6] {
                    let fast = moments(&row, top, temperature);
                    let exact = exact_moments(&row, top, temperature);
                    let relative = (fast.mass - exact.mass).abs() / exact.mass;
                    assert!(relative <= fast.error, "{relative:e} above {:e}", fast.error);
                    assert!(relative < 1e-6, "log-probabilities would be off by {relative:e}");
                    let scale = 1.0 + exact.log_moment.abs();
                    let moment = (fast.log_moment - exact.log_moment).abs() / scale;
                    assert!(moment < 2e-6, "the moment is off by {moment:e}");
                }
            }
        }
    }

    #[test]
    fn impossible_tokens_add_nothing_to_a_wide_sum() {
        let mut row = logits(5000, 3.0, 9);
        let top = scan(&row, &mut Vec::new()).top;
        let all = exact_moments(&row, top, 1.0).mass;
        row.extend([f32::NEG_INFINITY; 777]);
        let relative = (wide_moments(&row, top, 1.0).mass - all).abs() / all;
        assert!(relative < 1e-6, "{relative:e}");
    }

    #[test]
    fn a_scan_sees_every_entry() {
        for width in [1, 15, 16, 17, 1023, 1024, 1025, 4111] {
            for place in 0..width {
                let mut row = vec![1.0_f32; width];
                row[place] = 2.0;
                assert_eq!(scan(&row, &mut Vec::new()), Scan { top: 2.0, all_numbers: true });
                row[place] = f32::NAN;
                assert!(!scan(&row, &mut Vec::new()).all_numbers, "{place} of {width}");
            }
        }
    }
}
