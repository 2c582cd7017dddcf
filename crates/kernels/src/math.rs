//! exp, tanh and the normal distribution function over lanes.

use crate::lanes::{Lanes, stamp};

/// e^x for x up to 0, 0 below -64: a share of a softmax that no sum in f32 would feel, cut off
/// before it or a product with it becomes denormal, which costs a hundred times the time.
#[inline(always)]
pub(crate) unsafe fn exp_share<S: Lanes>(x: S) -> S {
    // SAFETY: as the caller's.
    unsafe { exp_above(x, -64.0) }
}

/// e^x with at most 2 units in the last place of error for x in [-87.3, 88.7]; 0 below, and the
/// value at 88.7 above.
#[inline(always)]
pub(crate) unsafe fn exp<S: Lanes>(x: S) -> S {
    // SAFETY: as the caller's.
    unsafe { exp_above(x, -87.3) }
}

/// Range reduction by ln 2 in two parts, then a polynomial of degree 6; 0 below `low`.
#[inline(always)]
unsafe fn exp_above<S: Lanes>(x: S, low: f32) -> S {
    // SAFETY: as the caller's.
    unsafe {
        let low = S::splat(low);
        let clamped = x.max(low).min(S::splat(88.7));
        let n = clamped.mul(S::splat(std::f32::consts::LOG2_E)).round().min(S::splat(127.0));
        let r = n.fma(S::splat(-0.693_359_4), clamped);
        let r = n.fma(S::splat(2.121_944_4e-4), r);
        let mut p = S::splat(1.987_569_1e-4);
        for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
            p = p.fma(r, S::splat(c));
        }
        let p = p.fma(r.mul(r), r.add(S::splat(1.0)));
        p.scale2(n).keep_at_least(x, low)
    }
}

/// tanh x = 1 - 2 / (e^{2x} + 1), absolute error below 2e-7.
#[inline(always)]
pub(crate) unsafe fn tanh<S: Lanes>(x: S) -> S {
    // SAFETY: as the caller's.
    unsafe {
        let bounded = x.max(S::splat(-15.0)).min(S::splat(15.0));
        let e = exp(bounded.add(bounded));
        S::splat(1.0).sub(S::splat(2.0).div(e.add(S::splat(1.0))))
    }
}

/// The normal distribution: (cumulative, density) at x, absolute error below 2e-7.
/// Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
#[inline(always)]
pub(crate) unsafe fn normal<S: Lanes>(x: S) -> (S, S) {
    // SAFETY: as the caller's.
    unsafe {
        let magnitude = x.max(S::splat(0.0).sub(x));
        let e = exp(x.mul(x).mul(S::splat(-0.5)));
        let z = magnitude.mul(S::splat(std::f32::consts::FRAC_1_SQRT_2));
        let t = S::splat(1.0).div(z.fma(S::splat(0.327_591_1), S::splat(1.0)));
        let mut p = S::splat(1.061_405_4);
        for c in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
            p = p.fma(t, S::splat(c));
        }
        let tail = p.mul(t).mul(e).mul(S::splat(0.5));
        let upper = S::splat(1.0).sub(tail);
        let positive = upper.keep_at_least(x, S::splat(0.0));
        let negative = tail.sub(tail.keep_at_least(x, S::splat(0.0)));
        (positive.add(negative), e.mul(S::splat(0.398_942_3)))
    }
}

#[inline(always)]
unsafe fn exp_slice_body<S: Lanes>(x: &mut [f32]) {
    // SAFETY: part loads and stores stay inside the slice.
    unsafe {
        for chunk in x.chunks_mut(crate::lanes::LANES) {
            let v = S::load_part(chunk.as_ptr(), chunk.len());
            exp(v).store_part(chunk.as_mut_ptr(), chunk.len());
        }
    }
}
stamp!(fn exp_slice_raw(x: &mut [f32]) = exp_slice_body);

/// x ← e^x, element by element.
#[cfg_attr(not(test), expect(dead_code, reason = "the door through which tests reach exp"))]
pub(crate) fn exp_slice(x: &mut [f32]) {
    // SAFETY: the body stays inside the slice.
    unsafe { exp_slice_raw(x) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    #[test]
    fn exp_agrees_with_f64() {
        let _level = crate::isa::hold();
        for isa in Isa::available() {
            isa.force();
            let xs: Vec<f32> = (-8730..=8800).map(|i| i as f32 * 0.01 + 0.003).collect();
            let mut ys = xs.clone();
            exp_slice(&mut ys);
            for (x, y) in xs.iter().zip(&ys) {
                let right = f64::from(*x).exp();
                if *x > -87.3 && *x < 88.7 {
                    assert!((f64::from(*y) / right - 1.0).abs() < 3e-7, "{isa:?} exp({x}) = {y}");
                }
            }
            let mut edge = [f32::NEG_INFINITY, -1e30, -88.0, 0.0];
            exp_slice(&mut edge);
            assert_eq!(edge, [0.0, 0.0, 0.0, 1.0]);
        }
    }
}
