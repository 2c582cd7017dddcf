//! The passes over a whole row: best scores of interleaved lanes, and the softmax sums, together
//! where both are needed. Plain loops over fixed lanes that the compiler turns into the widest
//! vector code the processor has (chosen at run time); lanes, order of sums and fused operations
//! are the same on each, and so are the bits.
//!
//! The sums of a wide row use a polynomial exponential. x = (z − top)/T is taken to base 2,
//! relative to a running reference that changes in steps of whole powers of two, which scale
//! exactly, and split into an integer and g in [−1/2, 1/2]; 2^g is a polynomial of degree 5
//! (relative error below 2e-7) whose exponent bits take the integer. Lanes add 64 terms in f32,
//! then go into f64. The rounding of the argument costs |x|·1.5e-7 a term, the lanes 4e-6 at the
//! very worst, and so the sum is within [`Moments::error`] = 5e-6 + 1.5e-7·E|x| of the exact one,
//! where E|x| comes out of the pass itself; in practice it is nearer than 1e-6. A filter or draw
//! whose boundary lies within that error is decided again with the plain f64 sum, so that an
//! approximate sum never changes which tokens are kept or chosen.

use crate::score::{Moments, Score, Survey, exact_survey};

/// Lanes of a pass: four SSE2, two AVX2 or one AVX-512 register of f32.
pub(crate) const LANES: usize = 16;
/// Groups of lanes in a chunk, and so terms that a lane adds in f32 before it goes into f64.
const SCAN_GROUPS: usize = 64;
/// Entries in a chunk.
pub(crate) const SCAN_CHUNK: usize = LANES * SCAN_GROUPS;
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
            self.maxima.extend_from_slice(&best_lanes(chunk));
        }
    }
}

/// Best score, lane maxima (if wanted) and softmax sums of a row of logits, in one pass.
/// A row without a finite best has no sums worth reading.
pub(crate) fn survey(
    row: &[f32],
    temperature: f64,
    mut maxima: Option<&mut Vec<f32>>,
) -> Survey<f32> {
    let scale = std::f64::consts::LOG2_E / temperature;
    // Beyond f32's range the best token has all the mass, or all have the same.
    let scale = scale.clamp(f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX)) as f32;
    if row.len() > EXACT_WIDTH {
        let pass = SurveyPass { row, scale, maxima: maxima.as_deref_mut() };
        if let Some(survey) = pulp::Arch::new().dispatch(pass) {
            return survey;
        }
    }
    exact_survey(row, temperature, maxima)
}

/// Scaled logits up to this are still told apart by less than one step of an f32.
const LARGEST_REFERENCE: f32 = 4_194_304.0;
/// Weights below 2^−126 count as that: nothing, beside the best token's.
const LEAST: f32 = -126.0;
/// 1.5·2^23: adding it rounds to an integer and leaves that in the low bits.
const ROUND: f32 = 12_582_912.0;
/// Coefficients of 2^g from the constant up, fitted to the least largest relative error (9.2e-8)
/// on [−1/2, 1/2] with the constant held at 1.
#[expect(clippy::approx_constant, reason = "a fitted coefficient, near ln 2 but not it")]
const EXP2: [f32; 6] =
    [1.0, 0.693_147, 0.240_222_42, 0.055_507_336, 0.009_671_513, 0.001_326_472_7];

struct SurveyPass<'a> {
    row: &'a [f32],
    /// To base 2 and by temperature.
    scale: f32,
    maxima: Option<&'a mut Vec<f32>>,
}

impl pulp::WithSimd for SurveyPass<'_> {
    /// None where scaled logits are beyond [`LARGEST_REFERENCE`].
    type Output = Option<Survey<f32>>;

    #[inline(always)]
    fn with_simd<A: pulp::Simd>(mut self, _: A) -> Option<Survey<f32>> {
        let mut sums = Sums::default();
        let mut top = f32::NEG_INFINITY;
        if let Some(maxima) = &mut self.maxima {
            maxima.clear();
        }
        // The best of a chunk must be known before its sums: it is found while the chunk before it is
        // summed, which hides its loads.
        let mut chunks = self.row.chunks(SCAN_CHUNK).peekable();
        let mut best = chunks.peek().map_or([f32::NEG_INFINITY; LANES], |first| best_lanes(first));
        while let Some(chunk) = chunks.next() {
            let next = chunks.peek().copied().unwrap_or_default();
            if let Some(maxima) = &mut self.maxima {
                maxima.extend_from_slice(&best);
            }
            let chunk_top = best_of(best);
            top = if chunk_top > top { chunk_top } else { top };
            if chunk_top == f32::NEG_INFINITY {
                // Nothing possible here, but perhaps a NaN.
                if chunk.iter().any(|z| z.is_nan()) {
                    sums.moment[0] = f64::NAN;
                }
                best = best_lanes(next);
                continue;
            }
            sums.refer_to((chunk_top * self.scale).round());
            if sums.reference.abs() > LARGEST_REFERENCE {
                return None;
            }
            best = sums.add_chunk(chunk, self.scale, next);
        }
        Some(Survey { top: top.canonical(), moments: sums.relative_to(top, self.scale) })
    }
}

/// Σ 2^t and Σ t·2^t over t = z·scale − reference, a sum a lane.
struct Sums {
    reference: f32,
    mass: [f64; LANES],
    moment: [f64; LANES],
}

impl Default for Sums {
    fn default() -> Self {
        Self { reference: f32::NEG_INFINITY, mass: [0.0; LANES], moment: [0.0; LANES] }
    }
}

impl Sums {
    /// Raises the reference, so that no weight is far above 1.
    #[inline(always)]
    fn refer_to(&mut self, reference: f32) {
        if reference <= self.reference {
            return;
        }
        if self.reference.is_finite() {
            let shift = f64::from(self.reference) - f64::from(reference);
            let factor = shift.exp2();
            for (moment, mass) in self.moment.iter_mut().zip(&mut self.mass) {
                *moment = (*moment + shift * *mass) * factor;
                *mass *= factor;
            }
        }
        self.reference = reference;
    }

    /// Adds a chunk; gives the best lanes of the next, which is not longer.
    #[inline(always)]
    fn add_chunk(&mut self, chunk: &[f32], scale: f32, next: &[f32]) -> [f32; LANES] {
        let (mut mass, mut moment) = ([0.0_f32; LANES], [0.0_f32; LANES]);
        let (groups, rest) = chunk.as_chunks::<LANES>();
        let (ahead, ahead_rest) = next.as_chunks::<LANES>();
        let (beside, alone) = groups.split_at(ahead.len().min(groups.len()));
        let mut best = [f32::NEG_INFINITY; LANES];
        for (group, ahead) in beside.iter().zip(ahead) {
            add_group(group, scale, self.reference, &mut mass, &mut moment);
            raise(&mut best, ahead);
        }
        for group in alone {
            add_group(group, scale, self.reference, &mut mass, &mut moment);
        }
        if !rest.is_empty() {
            add_group(&padded(rest), scale, self.reference, &mut mass, &mut moment);
        }
        if !ahead_rest.is_empty() {
            raise(&mut best, &padded(ahead_rest));
        }
        widen(&mass, &mut self.mass);
        widen(&moment, &mut self.moment);
        best
    }

    fn relative_to(&self, top: f32, scale: f32) -> Moments {
        let top = f64::from(top) * f64::from(scale) - f64::from(self.reference);
        let factor = (-top).exp2();
        let (sum, moment) = (self.mass.iter().sum::<f64>(), self.moment.iter().sum::<f64>());
        let mass = sum * factor;
        let log_moment = (moment - top * sum) * factor * std::f64::consts::LN_2;
        Moments { mass, log_moment, error: 5e-6 + 1.5e-7 * (log_moment / mass).abs() }
    }
}

#[inline(always)]
fn best_lanes<S: Score>(chunk: &[S]) -> [S; LANES] {
    let (groups, rest) = chunk.as_chunks::<LANES>();
    let mut best = [S::IMPOSSIBLE; LANES];
    for group in groups {
        raise(&mut best, group);
    }
    if !rest.is_empty() {
        raise(&mut best, &padded(rest));
    }
    best
}

#[inline(always)]
fn raise<S: Score>(best: &mut [S; LANES], group: &[S; LANES]) {
    for lane in 0..LANES {
        best[lane] = if group[lane] > best[lane] { group[lane] } else { best[lane] };
    }
}

#[inline(always)]
fn padded<S: Score>(rest: &[S]) -> [S; LANES] {
    let mut group = [S::IMPOSSIBLE; LANES];
    group[..rest.len()].copy_from_slice(rest);
    group
}

/// The best lane, by halves. Not inlined: in one piece with the loop over groups, that loop would be
/// compiled in pairs of lanes.
#[inline(never)]
fn best_of<S: Score>(mut best: [S; LANES]) -> S {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            if best[lane + half] > best[lane] {
                best[lane] = best[lane + half];
            }
        }
        half /= 2;
    }
    best[0]
}

#[inline(always)]
fn widen(from: &[f32; LANES], into: &mut [f64; LANES]) {
    for lane in 0..LANES {
        into[lane] += f64::from(from[lane]);
    }
}

#[inline(always)]
fn add_group(
    group: &[f32; LANES],
    scale: f32,
    reference: f32,
    mass: &mut [f32; LANES],
    moment: &mut [f32; LANES],
) {
    for lane in 0..LANES {
        let scaled = group[lane].mul_add(scale, -reference);
        // In this order a NaN passes on into the moment.
        let t = if scaled < LEAST { LEAST } else { scaled };
        let weight = exp2(t);
        mass[lane] += weight;
        moment[lane] = weight.mul_add(t, moment[lane]);
    }
}

/// 2^t for t in [−126, 1]. Fused throughout, so that every instruction set gives the same bits.
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
    use crate::score::exact_moments;

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
                let mut lanes = Vec::new();
                let top = scan(&row, &mut lanes);
                for temperature in [0.05, 0.7, 1.0, 3.0, 1e6] {
                    let mut maxima = Vec::new();
                    let survey = survey(&row, temperature, Some(&mut maxima));
                    assert_eq!((survey.top, &maxima), (top, &lanes));
                    let fast = survey.moments;
                    assert!(fast.error > 0.0, "the wide pass was not taken");
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
    fn sums_do_not_depend_on_where_the_row_stands() {
        // Impossible stretches, a best token at the end, rows far from 0.
        let noise = logits(5000, 3.0, 9);
        for offset in [0.0, -300.0, 250.0, 90_000.0] {
            let mut row = vec![f32::NEG_INFINITY; 1500];
            row.extend(noise.iter().map(|z| z + offset));
            row.extend([f32::NEG_INFINITY; 2100]);
            row.push(offset + 30.0);
            let found = survey(&row, 1.0, None);
            let exact = exact_moments(&row, found.top, 1.0);
            let relative = (found.moments.mass - exact.mass).abs() / exact.mass;
            assert_eq!(found.top, offset + 30.0);
            assert!(found.moments.error > 0.0 && relative < 1e-6, "{offset}: {relative:e}");
        }
    }

    #[test]
    fn logits_beyond_the_scaled_range_take_the_plain_sum() {
        for huge in [3e38_f32, -3e38] {
            let mut row = vec![huge; 3000];
            row[7] = huge / 2.0;
            let found = survey(&row, 1.0, None);
            let exact = exact_moments(&row, found.top, 1.0);
            assert_eq!((found.moments, found.top), (exact, huge.max(huge / 2.0)));
        }
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
                    let sums = survey(&row, 1.0, None).moments;
                    assert!(sums.log_moment.is_nan(), "{place} of {width}: {sums:?}");
                    row[place] = 1.0;
                }
            }
            assert!(!survey(&row, 1.0, None).moments.log_moment.is_nan());
            row[0] = f32::NAN;
            row[1..].fill(f32::NEG_INFINITY);
            assert!(survey(&row, 1.0, None).moments.log_moment.is_nan(), "{width}");
        }
    }
}
