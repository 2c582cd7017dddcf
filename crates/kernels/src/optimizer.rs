//! One pass of Adam over a flat run of parameters, and the norm of a gradient.

use crate::lanes::{LANES, Lanes, stamp};
use crate::split::Split;
use crate::team::Team;

const CHUNK: usize = 8192;

/// The numbers of one AdamW step (Loshchilov and Hutter, arXiv 1711.05101).
#[derive(Clone, Copy, Debug)]
pub struct AdamStep {
    /// Learning rate of this step.
    pub rate: f32,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Decoupled decay: w is first multiplied by 1 - rate·decay.
    pub decay: f32,
    /// 1 - β1^t.
    pub correction1: f32,
    /// 1 - β2^t.
    pub correction2: f32,
    /// The factor of gradient clipping, 1 for none.
    pub gradient_scale: f32,
}

/// The new weights of `n` lanes; their moments are replaced where they stand.
///
/// # Safety
/// `n` values of both moments are readable and writable.
#[inline(always)]
pub(crate) unsafe fn update<S: Lanes>(
    s: AdamStep,
    w: S,
    g: S,
    (m, v): (*mut f32, *mut f32),
    n: usize,
) -> S {
    // SAFETY: as the caller's.
    unsafe {
        let grad = g.mul(S::splat(s.gradient_scale));
        let (first, second) = (S::load_part(m, n), S::load_part(v, n));
        let first = grad.sub(first).fma(S::splat((1.0 - s.beta1) as f32), first);
        let second = grad
            .mul(grad)
            .mul(S::splat((1.0 - s.beta2) as f32))
            .add(second.mul(S::splat(s.beta2 as f32)));
        first.store_part(m, n);
        second.store_part(v, n);
        let root = S::splat(1.0 / s.correction2.sqrt());
        let spread = second.sqrt().fma(root, S::splat(s.epsilon));
        let old = w.mul(S::splat(1.0 - s.rate * s.decay));
        old.sub(S::splat(s.rate / s.correction1).mul(first).div(spread))
    }
}

#[inline(always)]
unsafe fn adam_body<S: Lanes>(s: AdamStep, w: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
    for i in (0..w.len()).step_by(LANES) {
        let n = (w.len() - i).min(LANES);
        // SAFETY: part loads and stores stay inside the equally long slices.
        unsafe {
            let w = w.as_mut_ptr().add(i);
            let (m, v) = (m.as_mut_ptr().add(i), v.as_mut_ptr().add(i));
            let grad = S::load_part(g.as_ptr().add(i), n);
            update(s, S::load_part(w, n), grad, (m, v), n).store_part(w, n);
        }
    }
}
stamp!(fn adam_raw(s: AdamStep, w: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) = adam_body);

/// One AdamW step over equally long runs: weights, gradients, first and second moments.
pub fn adam(team: &Team, step: AdamStep, w: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
    let n = w.len();
    assert!(g.len() == n && m.len() == n && v.len() == n, "adam: lengths");
    let (w, m, v) = (Split::new(w), Split::new(m), Split::new(v));
    team.tasks(n.div_ceil(CHUNK), |i| {
        let range = i * CHUNK..((i + 1) * CHUNK).min(n);
        // SAFETY: chunks do not overlap.
        unsafe {
            let (w, m, v) = (w.part(range.clone()), m.part(range.clone()), v.part(range.clone()));
            adam_raw(step, w, &g[range], m, v);
        }
    });
}

#[inline(always)]
unsafe fn squares_body<S: Lanes>(x: &[f32]) -> f32 {
    // SAFETY: part loads stay inside the slice.
    unsafe {
        let mut sum = S::splat(0.0);
        for chunk in x.chunks(LANES) {
            let v = S::load_part(chunk.as_ptr(), chunk.len());
            sum = v.fma(v, sum);
        }
        sum.sum()
    }
}
stamp!(fn squares_raw(x: &[f32]) -> f32 = squares_body);

/// Σ x², chunks of 8,192 in f32 lanes, their sums in f64 in order.
pub fn sum_of_squares(team: &Team, x: &[f32]) -> f64 {
    let mut sums = vec![0.0f64; x.len().div_ceil(CHUNK)];
    let out = Split::new(&mut sums);
    team.tasks(x.len().div_ceil(CHUNK), |i| {
        let range = i * CHUNK..((i + 1) * CHUNK).min(x.len());
        // SAFETY: each task writes its own sum.
        unsafe { out.part(i..i + 1)[0] = f64::from(squares_raw(&x[range])) };
    });
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, reference};

    #[test]
    fn agrees_with_the_formula() {
        let _level = crate::isa::hold();
        let n = 10_001;
        let at = |seed| -> Vec<f32> { (0..n as u64).map(|i| crate::normal(seed, i)).collect() };
        let step = AdamStep {
            rate: 0.01,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            decay: 0.1,
            correction1: 1.0 - 0.9,
            correction2: 1.0 - 0.999,
            gradient_scale: 0.5,
        };
        let (w, g) = (at(1), at(2));
        let right: Vec<f64> = w
            .iter()
            .zip(&g)
            .map(|(&w, &g)| {
                let g = f64::from(g) * 0.5;
                let (m, v) = (0.1 * g / 0.1, 0.001 * g * g / 0.001);
                f64::from(w) * (1.0 - 0.001) - 0.01 * m / (v.sqrt() + 1e-8)
            })
            .collect();
        for isa in Isa::available() {
            isa.force();
            let team = Team::new(2);
            let (mut w, mut m, mut v) = (w.clone(), vec![0.0; n], vec![0.0; n]);
            adam(&team, step, &mut w, &g, &mut m, &mut v);
            reference::assert_close(&w, &right, 1e-6, "adam");
            let squares: f64 = g.iter().map(|&g| f64::from(g).powi(2)).sum();
            assert!((sum_of_squares(&team, &g) / squares - 1.0).abs() < 1e-6);
        }
    }
}
