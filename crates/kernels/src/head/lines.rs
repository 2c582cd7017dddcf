//! Statistics of logits: a vocabulary entry a line, the rows as lanes.

use super::{HEAD_ROWS, STATS, TOP};
use crate::lanes::{LANES, Lanes, stamp};
use crate::math;

const VECS: usize = HEAD_ROWS / LANES;

#[inline(always)]
unsafe fn bias_and_max_body<S: Lanes>(lines: &mut [f32], bias: &[f32], max: &mut [f32]) {
    // SAFETY: lines and max hold whole lines of 64 values.
    unsafe {
        let mut top = [S::splat(f32::NEG_INFINITY); VECS];
        for (v, line) in lines.chunks_exact_mut(HEAD_ROWS).enumerate() {
            let b = S::splat(if bias.is_empty() { 0.0 } else { bias[v] });
            for (i, t) in top.iter_mut().enumerate() {
                let p = line.as_mut_ptr().add(i * LANES);
                let z = S::load(p).add(b);
                z.store(p);
                *t = t.max(z);
            }
        }
        for (i, t) in top.iter().enumerate() {
            t.store(max.as_mut_ptr().add(i * LANES));
        }
    }
}
stamp!(fn bias_and_max_raw(lines: &mut [f32], bias: &[f32], max: &mut [f32]) = bias_and_max_body);
pub(super) fn bias_and_max(lines: &mut [f32], bias: &[f32], max: &mut [f32]) {
    assert!(max.len() == HEAD_ROWS && lines.len().is_multiple_of(HEAD_ROWS));
    // SAFETY: whole lines.
    unsafe { bias_and_max_raw(lines, bias, max) }
}

#[inline(always)]
unsafe fn find_best_body<S: Lanes>(lines: &[f32], stats: &mut [f32], from: f32) {
    // SAFETY: lines hold whole lines, stats three of them.
    unsafe {
        for i in 0..VECS {
            let max = S::load(stats.as_ptr().add(i * LANES));
            let mut best = S::splat(0.0);
            for (v, line) in lines.chunks_exact(HEAD_ROWS).enumerate() {
                let z = S::load(line.as_ptr().add(i * LANES));
                let mark = S::splat(TOP - from - v as f32);
                best = best.max(mark.keep_at_least(z, max));
            }
            best.store(stats.as_mut_ptr().add(2 * HEAD_ROWS + i * LANES));
        }
    }
}
stamp!(fn find_best_raw(lines: &[f32], stats: &mut [f32], from: f32) = find_best_body);
pub(super) fn find_best(lines: &[f32], stats: &mut [f32], from: f32) {
    assert_eq!(stats.len(), 3 * HEAD_ROWS);
    // SAFETY: whole lines.
    unsafe { find_best_raw(lines, stats, from) }
}

#[inline(always)]
unsafe fn exp_and_sum_body<S: Lanes>(lines: &mut [f32], stats: &mut [f32]) {
    // SAFETY: lines hold whole lines, stats three of them.
    unsafe {
        let mut max = [S::splat(0.0); VECS];
        let mut sum = [S::splat(0.0); VECS];
        for (i, m) in max.iter_mut().enumerate() {
            *m = S::load(stats.as_ptr().add(i * LANES));
        }
        for line in lines.chunks_exact_mut(HEAD_ROWS) {
            for i in 0..VECS {
                let p = line.as_mut_ptr().add(i * LANES);
                let e = math::exp_share(S::load(p).sub(max[i]));
                e.store(p);
                sum[i] = sum[i].add(e);
            }
        }
        for (i, s) in sum.iter().enumerate() {
            s.store(stats.as_mut_ptr().add(HEAD_ROWS + i * LANES));
        }
    }
}
stamp!(fn exp_and_sum_raw(lines: &mut [f32], stats: &mut [f32]) = exp_and_sum_body);
pub(super) fn exp_and_sum(lines: &mut [f32], stats: &mut [f32]) {
    assert!(stats.len() == 3 * HEAD_ROWS && lines.len().is_multiple_of(HEAD_ROWS));
    // SAFETY: whole lines.
    unsafe { exp_and_sum_raw(lines, stats) }
}

#[inline(always)]
unsafe fn combine_body<S: Lanes>(stats: &[f32], max: &mut [f32], sum: &mut [f32]) {
    // SAFETY: one vector of max and sum; the statistics of a step hold three lines.
    unsafe {
        let mut top = S::splat(f32::NEG_INFINITY);
        for stats in stats.chunks(STATS * HEAD_ROWS) {
            top = top.max(S::load(stats.as_ptr()));
        }
        let mut total = S::splat(0.0);
        for stats in stats.chunks(STATS * HEAD_ROWS) {
            let factor = math::exp_share(S::load(stats.as_ptr()).sub(top));
            total = S::load(stats.as_ptr().add(HEAD_ROWS)).fma(factor, total);
        }
        top.store(max.as_mut_ptr());
        total.store(sum.as_mut_ptr());
    }
}
stamp!(fn combine_raw(stats: &[f32], max: &mut [f32], sum: &mut [f32]) = combine_body);
/// The maximum of the steps' maxima and Σ sum·e^{their maximum - max}, one vector of rows.
pub(super) fn combine(stats: &[f32], max: &mut [f32], sum: &mut [f32]) {
    assert!(max.len() == LANES && sum.len() == LANES);
    assert!(stats.chunks(STATS * HEAD_ROWS).all(|s| s.len() >= HEAD_ROWS + LANES));
    // SAFETY: checked above.
    unsafe { combine_raw(stats, max, sum) }
}

#[inline(always)]
unsafe fn scale_lines_body<S: Lanes>(
    lines: &mut [f32],
    local: &[f32],
    max: &[f32],
    factor: &[f32],
) {
    // SAFETY: whole lines.
    unsafe {
        let mut f = [S::splat(0.0); VECS];
        for (i, f) in f.iter_mut().enumerate() {
            let [local, max, factor] =
                [local, max, factor].map(|x| S::load(x.as_ptr().add(i * LANES)));
            *f = math::exp_share(local.sub(max)).mul(factor);
        }
        for line in lines.chunks_exact_mut(HEAD_ROWS) {
            for (i, f) in f.iter().enumerate() {
                let p = line.as_mut_ptr().add(i * LANES);
                S::load(p).mul(*f).store(p);
            }
        }
    }
}
stamp!(fn scale_lines_raw(
    lines: &mut [f32], local: &[f32], max: &[f32], factor: &[f32]
) = scale_lines_body);
/// Every line times e^{local - max}·factor.
pub(super) fn scale_lines(lines: &mut [f32], local: &[f32], max: &[f32], factor: &[f32]) {
    assert!([local, max, factor].iter().all(|x| x.len() == HEAD_ROWS));
    assert!(lines.len().is_multiple_of(HEAD_ROWS));
    // SAFETY: whole lines.
    unsafe { scale_lines_raw(lines, local, max, factor) }
}

#[inline(always)]
unsafe fn add_line_sums_body<S: Lanes>(lines: &[f32], out: &mut [f32]) {
    // SAFETY: whole lines.
    unsafe {
        for (line, out) in lines.chunks_exact(HEAD_ROWS).zip(out) {
            let mut sum = S::load(line.as_ptr());
            for i in 1..VECS {
                sum = sum.add(S::load(line.as_ptr().add(i * LANES)));
            }
            *out += sum.sum();
        }
    }
}
stamp!(fn add_line_sums_raw(lines: &[f32], out: &mut [f32]) = add_line_sums_body);
pub(super) fn add_line_sums(lines: &[f32], out: &mut [f32]) {
    assert_eq!(lines.len(), out.len() * HEAD_ROWS);
    // SAFETY: whole lines.
    unsafe { add_line_sums_raw(lines, out) }
}
