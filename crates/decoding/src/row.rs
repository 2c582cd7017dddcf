//! The two passes over a whole row: best scores of interleaved lanes, and the softmax sums.
//! Plain loops over fixed lanes that the compiler turns into vector code; the lanes and the tree
//! of the sums do not depend on the width of the vectors, so neither do the bits.
//!
//! The sums of a wide row use a polynomial exponential: x = (z − top)/T is taken to base 2 and split
//! into an integer and g in [−1/2, 1/2]; 2^g is a polynomial of degree 5 (relative error below
//! 2e-7) whose exponent bits take the integer. Lanes add 32 terms in f32, then go into f64.
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

/// Best score of every lane of every chunk, and of the row: entry `c·LANES + l` of `maxima` covers
/// the entries `c·SCAN_CHUNK + g·LANES + l` of the row. NaNs are passed over; +inf is the best.
pub(crate) fn scan<S: Score>(row: &[S], maxima: &mut Vec<S>) -> S {
    maxima.clear();
    pulp::Arch::new().dispatch(ScanPass { row, maxima });
    let top = maxima.iter().fold(S::IMPOSSIBLE, |top, &m| if m > top { m } else { top });
    top.canonical()
}

struct ScanPass<'a, S> {
    row: &'a [S],
    maxima: &'a mut Vec<S>,
}

impl<S: Score> pulp::WithSimd for ScanPass<'_, S> {
    type Output = ();

    #[inline(always)]
    fn with_simd<A: pulp::Simd>(self, _: A) {
        for chunk in self.row.chunks(SCAN_CHUNK) {
            let mut best = [S::IMPOSSIBLE; LANES];
            let (groups, rest) = chunk.as_chunks::<LANES>();
            for group in groups {
                for lane in 0..LANES {
                    best[lane] = if group[lane] > best[lane] { group[lane] } else { best[lane] };
                }
            }
            for (best, &score) in best.iter_mut().zip(rest) {
                *best = if score > *best { score } else { *best };
            }
            self.maxima.extend_from_slice(&best);
        }
    }
}

/// Softmax sums of a row of logits whose best is `top`.
pub(crate) fn moments(row: &[f32], top: f32, temperature: f64) -> Moments {
    if row.len() <= EXACT_WIDTH {
        return exact_moments(row, top, temperature);
    }
    wide_moments(row, top, temperature)
}

/// Weights below 2^−126 count as that: nothing, beside the best token's 1.
const LEAST: f32 = -126.0;
/// 1.5·2^23: adding it rounds to an integer and leaves that in the low bits.
const ROUND: f32 = 12_582_912.0;
/// Coefficients of 2^g from the constant up, fitted to the least largest relative error (9.2e-8)
/// on [−1/2, 1/2] with the constant held at 1.
const EXP2: [f32; 6] =
    [1.0, 0.693_147, 0.240_222_42, 0.055_507_336, 0.009_671_513, 0.001_326_472_7];

fn wide_moments(row: &[f32], top: f32, temperature: f64) -> Moments {
    // Beyond f32's range the best token has all the mass, or all have the same.
    let scale = std::f64::consts::LOG2_E / temperature;
    let scale = scale.clamp(f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX)) as f32;
    let [mass, moment] = pulp::Arch::new().dispatch(SumPass { row, top, scale });
    let log_moment = moment * std::f64::consts::LN_2;
    Moments { mass, log_moment, error: 3e-6 + 1.5e-7 * (log_moment / mass).abs() }
}

/// Σ 2^t and Σ t·2^t over t = (z − top)·scale.
struct SumPass<'a> {
    row: &'a [f32],
    top: f32,
    scale: f32,
}

impl pulp::WithSimd for SumPass<'_> {
    type Output = [f64; 2];

    #[inline(always)]
    fn with_simd<A: pulp::Simd>(self, _: A) -> [f64; 2] {
        let (mut masses, mut moments) = ([0.0_f64; LANES], [0.0_f64; LANES]);
        for chunk in self.row.chunks(SUM_CHUNK) {
            let (mut mass, mut moment) = ([0.0_f32; LANES], [0.0_f32; LANES]);
            let (groups, rest) = chunk.as_chunks::<LANES>();
            for group in groups {
                self.add(group, &mut mass, &mut moment);
            }
            if !rest.is_empty() {
                let mut padded = [f32::NEG_INFINITY; LANES];
                padded[..rest.len()].copy_from_slice(rest);
                self.add(&padded, &mut mass, &mut moment);
            }
            for lane in 0..LANES {
                masses[lane] += f64::from(mass[lane]);
                moments[lane] += f64::from(moment[lane]);
            }
        }
        [masses.iter().sum(), moments.iter().sum()]
    }
}

impl SumPass<'_> {
    #[inline(always)]
    fn add(&self, group: &[f32; LANES], mass: &mut [f32; LANES], moment: &mut [f32; LANES]) {
        for lane in 0..LANES {
            let scaled = (group[lane] - self.top) * self.scale;
            // In this order a NaN passes on into the moment.
            let t = if scaled < LEAST { LEAST } else { scaled };
            let weight = exp2(t);
            mass[lane] += weight;
            moment[lane] = weight.mul_add(t, moment[lane]);
        }
    }
}

/// 2^t for t in [−126, 0]. Fused throughout, so that every instruction set gives the same bits.
#[inline(always)]
fn exp2(t: f32) -> f32 {
    let rounded = t + ROUND;
    let g = t - (rounded - ROUND);
    let [c0, c1, c2, c3, c4, c5] = EXP2;
    let fifth = c5.mul_add(g, c4).mul_add(g, c3).mul_add(g, c2).mul_add(g, c1).mul_add(g, c0);
    f32::from_bits(fifth.to_bits().wrapping_add(rounded.to_bits() << 23))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Counter;

    #[test]
    #[ignore]
    fn time_passes() {
        let row = logits(151_936, 4.0, 1);
        let mut maxima = Vec::new();
        let best = |name: &str, f: &mut dyn FnMut()| {
            let mut t: Vec<f64> = (0..2000)
                .map(|_| {
                    let s = std::time::Instant::now();
                    f();
                    s.elapsed().as_secs_f64() * 1e6
                })
                .collect();
            t.sort_by(f64::total_cmp);
            println!("{name} min {:.1} p10 {:.1} median {:.1}", t[0], t[200], t[1000]);
        };
        best("scan", &mut || {
            std::hint::black_box(scan(std::hint::black_box(&row), &mut maxima));
        });
        best("moments", &mut || {
            std::hint::black_box(wide_moments(std::hint::black_box(&row), 16.0, 0.8));
        });
    }
    /// A row whose logits look like a model's: a bulk and a few that stand out.
    fn logits(width: u64, spread: f64, seed: u64) -> Vec<f32> {
        let noise = Counter { seed, stream: 0 };
        let bell = |i: u64| (0..6).map(|j| noise.uniform(i * 6 + j)).sum::<f64>() - 3.0;
        (0..width).map(|i| (bell(i) * spread) as f32).collect()
    }

    #[test]
    fn the_polynomial_stays_within_its_bound() {
        let mut worst = 0.0_f64;
        for i in 0..=1_260_000 {
            let t = -(i as f32) * 1e-4;
            let exact = f64::from(t).exp2();
            let relative = (f64::from(exp2(t)) - exact).abs() / exact;
            worst = worst.max(relative);
            assert!(relative <= 2e-7, "2^{t} is off by {relative:e}");
        }
        assert!(worst > 5e-8, "the bound says nothing: {worst}");
        assert_eq!(exp2(0.0), 1.0);
    }

    #[test]
    fn wide_sums_stay_within_the_error_they_state() {
        for (spread, seed) in [(0.01, 1), (1.0, 2), (4.0, 3), (15.0, 4)] {
            for width in [2049, 4096, 32_000, 151_936] {
                let row = logits(width, spread, seed);
                let top = scan(&row, &mut Vec::new());
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
        let top = scan(&row, &mut Vec::new());
        let all = exact_moments(&row, top, 1.0).mass;
        row.extend([f32::NEG_INFINITY; 777]);
        let relative = (wide_moments(&row, top, 1.0).mass - all).abs() / all;
        assert!(relative < 1e-6, "{relative:e}");
    }

    #[test]
    fn a_scan_sees_every_entry() {
        for width in [1, 15, 16, 17, 1023, 1024, 1025, 4111] {
            let mut row = vec![1.0_f32; width];
            for place in 0..width {
                row[place] = 2.0;
                assert_eq!(scan(&row, &mut Vec::new()), 2.0, "{place} of {width}");
                row[place] = 1.0;
            }
        }
    }

    #[test]
    fn a_nan_shows_in_the_moment() {
        for width in [1, 40, 2049, 5000] {
            let mut row = vec![1.0_f32; width];
            for place in [0, width / 3, width / 2, width - 1] {
                for bad in [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001)] {
                    row[place] = bad;
                    let sums = moments(&row, 1.0, 1.0);
                    assert!(sums.log_moment.is_nan(), "{place} of {width}: {sums:?}");
                    row[place] = 1.0;
                }
            }
            assert!(!moments(&row, 1.0, 1.0).log_moment.is_nan());
        }
    }
}
