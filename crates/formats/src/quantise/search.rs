//! The kinds of 256 values: scales found by search.
//!
//! A group of values is fitted twice. First alone: several numbers of steps across its span are
//! tried, each rounded and its scale (and minimum) solved by weighted least squares. Then, when the
//! scale that the whole block shares has been rounded, among the group's whole-numbered scales next
//! to its own. Large values weigh more, because they meet large activations no less often and their
//! errors are what a product shows.

use super::{bounds, peak, put_half};
use half::f16;

/// Values a block.
const BLOCK: usize = 256;
/// Values with a scale and a minimum of their own.
const GROUP: usize = 32;
/// Values with a scale of their own, around 0.
const SIXTEEN: usize = 16;

/// What a group of values becomes: value ≈ scale·code − minimum.
#[derive(Clone, Copy, Default)]
struct Affine {
    scale: f32,
    minimum: f32,
}

/// How much a value's error counts.
fn weights<const N: usize>(x: &[f32; N]) -> [f32; N] {
    let power = x.iter().map(|v| v * v).sum::<f32>() / N as f32;
    let typical = power.sqrt();
    x.map(|v| typical + v.abs())
}

fn code(value: f32, top: f32) -> f32 {
    value.round_ties_even().clamp(0.0, top)
}

/// The weighted squared error of a group under a scale and a minimum.
fn affine_error(x: &[f32; GROUP], w: &[f32; GROUP], fit: Affine, top: f32) -> f32 {
    let inverse = super::inverse(fit.scale);
    let error = |(x, w): (&f32, &f32)| {
        let q = code((x + fit.minimum) * inverse, top);
        let away = fit.scale * q - fit.minimum - x;
        w * away * away
    };
    x.iter().zip(w).map(error).sum()
}

/// Scale and minimum (≥ 0, since a minimum above 0 cannot be stored) of a group alone.
fn affine(x: &[f32; GROUP], w: &[f32; GROUP], top: f32) -> Affine {
    let (lo, hi) = bounds(x);
    let lo = lo.min(0.0);
    if hi <= lo {
        return Affine { scale: 0.0, minimum: -lo };
    }
    let mut best = Affine { scale: (hi - lo) / top, minimum: -lo };
    let mut least = affine_error(x, w, best, top);
    for step in -10..=6i8 {
        let inverse = (top + 0.1 * f32::from(step)) / (hi - lo);
        let fit = solved(x, w, |v| code((v - lo) * inverse, top));
        let error = affine_error(x, w, fit, top);
        if error < least {
            (best, least) = (fit, error);
        }
    }
    best
}

/// The scale and minimum of least weighted squares for given codes.
fn solved(x: &[f32; GROUP], w: &[f32; GROUP], code: impl Fn(f32) -> f32) -> Affine {
    let [mut sw, mut sq, mut sqq, mut sx, mut sqx] = [0.0f32; 5];
    for (&x, &w) in x.iter().zip(w) {
        let q = code(x);
        sw += w;
        sq += w * q;
        sqq += w * q * q;
        sx += w * x;
        sqx += w * q * x;
    }
    let det = sw * sqq - sq * sq;
    if det > 0.0 {
        let (scale, minimum) = ((sw * sqx - sq * sx) / det, (sq * sqx - sqq * sx) / det);
        if minimum >= 0.0 && scale > 0.0 {
            return Affine { scale, minimum };
        }
    }
    Affine { scale: if sqq > 0.0 { (sqx / sqq).max(0.0) } else { 0.0 }, minimum: 0.0 }
}

/// A block with whole-numbered scales and minima (six bits) under two shared ones.
struct Whole {
    d: f32,
    m: f32,
    scales: [u8; 8],
    minima: [u8; 8],
    codes: [u8; BLOCK],
}

/// The unit in half precision of which `largest` is `count`; one step more where rounding made it so
/// small that `count` units fall short, as it does among the smallest numbers.
fn shared(largest: f32, count: f32) -> f32 {
    let unit = f16::from_f32(largest / count);
    let short = largest.abs() > unit.to_f32().abs() * (count.abs() + 0.5);
    if short { f16::from_bits(unit.to_bits() + 1).to_f32() } else { unit.to_f32() }
}

/// Both kinds with minima: codes from 0 to `top`.
fn whole(x: &[f32; BLOCK], top: f32) -> Whole {
    let groups = x.as_chunks::<GROUP>().0;
    let mut fits = [Affine::default(); 8];
    for (fit, x) in fits.iter_mut().zip(groups) {
        *fit = affine(x, &weights(x), top);
    }
    let d = shared(fits.iter().fold(0.0, |most, fit| most.max(fit.scale)), 63.0);
    let m = shared(fits.iter().fold(0.0, |most, fit| most.max(fit.minimum)), 63.0);
    let mut out = Whole { d, m, scales: [0; 8], minima: [0; 8], codes: [0; BLOCK] };
    for (j, x) in groups.iter().enumerate() {
        (out.scales[j], out.minima[j]) = neighbours(x, fits[j], (d, m), top);
        let fit =
            Affine { scale: d * f32::from(out.scales[j]), minimum: m * f32::from(out.minima[j]) };
        let inverse = super::inverse(fit.scale);
        for (c, v) in out.codes[GROUP * j..].iter_mut().zip(x) {
            *c = code((v + fit.minimum) * inverse, top) as u8;
        }
    }
    out
}

/// The best of the whole numbers next to a group's own scale and minimum.
fn neighbours(x: &[f32; GROUP], fit: Affine, (d, m): (f32, f32), top: f32) -> (u8, u8) {
    let w = weights(x);
    let near = |value: f32, unit: f32| {
        let own = code(value * super::inverse(unit), 63.0);
        [own, own - 1.0, own + 1.0].map(|n| n.clamp(0.0, 63.0))
    };
    let (mut best, mut least) = ((0, 0), f32::INFINITY);
    for scale in near(fit.scale, d) {
        for minimum in near(fit.minimum, m) {
            let fit = Affine { scale: d * scale, minimum: m * minimum };
            let error = affine_error(x, &w, fit, top);
            if error < least {
                (best, least) = ((scale as u8, minimum as u8), error);
            }
        }
    }
    best
}

/// Eight scales and minima of six bits in twelve bytes.
fn put_six_bits(scales: &[u8; 8], minima: &[u8; 8], out: &mut [u8]) {
    for j in 0..4 {
        out[j] = scales[j] | scales[j + 4] >> 4 << 6;
        out[j + 4] = minima[j] | minima[j + 4] >> 4 << 6;
        out[j + 8] = scales[j + 4] & 15 | (minima[j + 4] & 15) << 4;
    }
}

/// Two groups share 32 bytes: the first in the low halves.
fn put_halves(codes: &[u8; BLOCK], out: &mut [u8]) {
    for (pair, out) in codes.as_chunks::<64>().0.iter().zip(out.chunks_exact_mut(32)) {
        for (l, b) in out.iter_mut().enumerate() {
            *b = pair[l] & 15 | (pair[l + 32] & 15) << 4;
        }
    }
}

pub(super) fn q4_k(x: &[f32; BLOCK], b: &mut [u8; 144]) {
    let found = whole(x, 15.0);
    put_half(b, 0, found.d);
    put_half(b, 2, found.m);
    put_six_bits(&found.scales, &found.minima, &mut b[4..16]);
    put_halves(&found.codes, &mut b[16..]);
}

pub(super) fn q5_k(x: &[f32; BLOCK], b: &mut [u8; 176]) {
    let found = whole(x, 31.0);
    put_half(b, 0, found.d);
    put_half(b, 2, found.m);
    put_six_bits(&found.scales, &found.minima, &mut b[4..16]);
    for (l, high) in b[16..48].iter_mut().enumerate() {
        let bit = |j: usize| (found.codes[GROUP * j + l] >> 4 & 1) << j;
        *high = (0..8).fold(0, |bits, j| bits | bit(j));
    }
    put_halves(&found.codes, &mut b[48..]);
}

/// The weighted squared error of sixteen values under a scale, codes from −32 to 31.
fn centred_error(x: &[f32; SIXTEEN], w: &[f32; SIXTEEN], scale: f32) -> f32 {
    let inverse = super::inverse(scale);
    let error = |(x, w): (&f32, &f32)| {
        let away = scale * centred_code(x * inverse) - x;
        w * away * away
    };
    x.iter().zip(w).map(error).sum()
}

fn centred_code(value: f32) -> f32 {
    value.round_ties_even().clamp(-32.0, 31.0)
}

/// The scale of sixteen values alone; its sign lets the peak be the code that has no opposite.
fn centred(x: &[f32; SIXTEEN], w: &[f32; SIXTEEN]) -> f32 {
    let peak = peak(x);
    if peak == 0.0 {
        return 0.0;
    }
    let mut best = peak / -32.0;
    let mut least = centred_error(x, w, best);
    for step in -9..=9i8 {
        let inverse = -(32.0 + 0.1 * f32::from(step)) / peak;
        let (mut sqx, mut sqq) = (0.0, 0.0);
        for (x, w) in x.iter().zip(w) {
            let q = centred_code(x * inverse);
            sqx += w * q * x;
            sqq += w * q * q;
        }
        let scale = if sqq > 0.0 { sqx / sqq } else { 0.0 };
        let error = centred_error(x, w, scale);
        if error < least {
            (best, least) = (scale, error);
        }
    }
    best
}

pub(super) fn q6_k(x: &[f32; BLOCK], b: &mut [u8; 210]) {
    let groups = x.as_chunks::<SIXTEEN>().0;
    let mut fits = [0.0f32; 16];
    for (fit, x) in fits.iter_mut().zip(groups) {
        *fit = centred(x, &weights(x));
    }
    let d = shared(peak(&fits), -128.0);
    put_half(b, 208, d);
    let mut codes = [0u8; BLOCK];
    for (j, x) in groups.iter().enumerate() {
        let (own, w) = ((fits[j] * super::inverse(d)).round_ties_even(), weights(x));
        let (mut best, mut least) = (0.0, f32::INFINITY);
        for scale in [own, own - 1.0, own + 1.0].map(|n| n.clamp(-128.0, 127.0)) {
            let error = centred_error(x, &w, d * scale);
            if error < least {
                (best, least) = (scale, error);
            }
        }
        b[192 + j] = (best as i8).cast_unsigned();
        let inverse = super::inverse(d * best);
        for (c, v) in codes[SIXTEEN * j..].iter_mut().zip(x) {
            *c = (centred_code(v * inverse) + 32.0) as u8;
        }
    }
    put_six(&codes, b);
}

/// 256 codes of six bits: four bits here, two there, in two halves of 128.
fn put_six(codes: &[u8; BLOCK], b: &mut [u8; 210]) {
    for (n, codes) in codes.as_chunks::<128>().0.iter().enumerate() {
        for l in 0..32 {
            let quarter = |q: usize| codes[32 * q + l];
            b[64 * n + l] = quarter(0) & 15 | (quarter(2) & 15) << 4;
            b[64 * n + 32 + l] = quarter(1) & 15 | (quarter(3) & 15) << 4;
            let high = |q: usize| quarter(q) >> 4 << (2 * q);
            b[128 + 32 * n + l] = high(0) | high(1) | high(2) | high(3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TensorKind, dequantise, quantise};

    /// Numbers that look like weights: sums of uniform ones.
    fn normal_like(count: usize) -> Vec<f32> {
        let mut state = 1u32;
        let mut uniform = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f32>() * 0.02).collect()
    }

    fn relative_error(kind: TensorKind, x: &[f32]) -> f64 {
        let mut bytes = vec![0; kind.bytes_of(x.len()).unwrap()];
        quantise(kind, x, &mut bytes);
        let mut y = vec![0.0; x.len()];
        dequantise(kind, &bytes, &mut y);
        let square = |v: f32| f64::from(v) * f64::from(v);
        let away: f64 = x.iter().zip(&y).map(|(x, y)| square(x - y)).sum();
        (away / x.iter().map(|&v| square(v)).sum::<f64>()).sqrt()
    }

    #[test]
    fn searched_scales_beat_plain_rounding_by_what_was_measured() {
        let x = normal_like(1 << 16);
        let error = |kind| relative_error(kind, &x);
        let (four, five, six) =
            (error(TensorKind::Q4K), error(TensorKind::Q5K), error(TensorKind::Q6K));
        println!("Q4_K {four:.5} Q5_K {five:.5} Q6_K {six:.5} Q4_1 {:.5}", error(TensorKind::Q4_1));
        // Plain rounding of 32 values from their minimum, with exact scales, is Q4_1's error; a
        // search has to win although its scales have six bits.
        assert!(four < error(TensorKind::Q4_1), "{four}");
        assert!(four < 0.075 && five < 0.037 && six < 0.018, "{four} {five} {six}");
    }

    #[test]
    fn a_fit_is_no_worse_than_plain_rounding() {
        for block in normal_like(1 << 13).as_chunks::<GROUP>().0 {
            let w = weights(block);
            for top in [15.0, 31.0] {
                let (lo, hi) = bounds(block);
                let plain = Affine { scale: (hi - lo.min(0.0)) / top, minimum: -lo.min(0.0) };
                let found = affine_error(block, &w, affine(block, &w, top), top);
                assert!(found <= affine_error(block, &w, plain, top));
            }
        }
    }
}
