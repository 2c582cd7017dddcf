//! Scores of a tile become probabilities, and gradients of probabilities those of scores.

use super::{IOTA, LINE};
use crate::lanes::{LANES, Lanes, stamp};
use crate::math;

/// Scores, times `factor`, become probabilities relative to the running maximum; `running` holds maxima,
/// sums and, on return, the factors that older sums must be multiplied by. `places`: each lane's query,
/// counted from the first of the block.
#[inline(always)]
unsafe fn softmax_tile_body<S: Lanes>(
    scores: &mut [f32],
    lanes: usize,
    factor: f32,
    running: &mut [f32],
    places: &[f32; LINE],
    mask: Option<f32>,
    outside: Option<f32>,
) {
    // SAFETY: whole lines.
    unsafe {
        let changed = mask.is_some() || outside.is_some() || factor != 1.0;
        for i in 0..lanes / LANES {
            let old = S::load(running.as_ptr().add(i * LANES));
            let lane = S::load(places.as_ptr().add(i * LANES));
            let mut max = old;
            for (j, line) in scores.chunks_exact_mut(LINE).enumerate() {
                let p = line.as_mut_ptr().add(i * LANES);
                let mut z = S::load(p).mul(S::splat(factor));
                if let Some(shift) = mask {
                    // Hidden where lane < j - shift: minus infinity is added there.
                    let hidden = S::splat(f32::NEG_INFINITY)
                        .keep_at_least(S::splat(j as f32 - shift - 1.0), lane);
                    z = z.add(hidden);
                }
                if let Some(shift) = outside {
                    // Hidden where lane - j >= shift.
                    let hidden =
                        S::splat(f32::NEG_INFINITY).keep_at_least(lane, S::splat(j as f32 + shift));
                    z = z.add(hidden);
                }
                if changed {
                    z.store(p);
                }
                max = max.max(z);
            }
            let safe = max.max(S::splat(f32::MIN));
            let mut sum = S::splat(0.0);
            for line in scores.chunks_exact_mut(LINE) {
                let p = line.as_mut_ptr().add(i * LANES);
                let e = math::exp_share(S::load(p).sub(safe));
                e.store(p);
                sum = sum.add(e);
            }
            let older = math::exp_share(old.sub(safe));
            let total = S::load(running.as_ptr().add(LINE + i * LANES)).fma(older, sum);
            max.store(running.as_mut_ptr().add(i * LANES));
            total.store(running.as_mut_ptr().add(LINE + i * LANES));
            older.store(running.as_mut_ptr().add(2 * LINE + i * LANES));
        }
    }
}
stamp!(fn softmax_tile_raw(
    scores: &mut [f32], lanes: usize, factor: f32, running: &mut [f32], places: &[f32; LINE],
    mask: Option<f32>, outside: Option<f32>
) = softmax_tile_body);
pub(crate) fn softmax_tile(
    scores: &mut [f32],
    lanes: usize,
    factor: f32,
    running: &mut [f32],
    places: &[f32; LINE],
    mask: Option<f32>,
    outside: Option<f32>,
) {
    assert!(scores.len().is_multiple_of(LINE) && running.len() == 3 * LINE && lanes <= LINE);
    // SAFETY: whole lines, of which the first lanes are touched.
    unsafe { softmax_tile_raw(scores, lanes, factor, running, places, mask, outside) }
}

/// p: scores, times the first factor → probabilities; ds: d_probability → d_score = p·(ds - δ) times
/// the second.
#[inline(always)]
unsafe fn score_gradients_body<S: Lanes>(
    p: &mut [f32],
    ds: &mut [f32],
    log_sums: &[f32; LINE],
    delta: &[f32],
    [factor, scale]: [f32; 2],
    [mask, outside]: [Option<f32>; 2],
) {
    // SAFETY: whole lines.
    unsafe {
        for i in 0..LINE / LANES {
            let log_sum = S::load(log_sums.as_ptr().add(i * LANES));
            let delta = S::load(delta.as_ptr().add(i * LANES));
            let lane = S::load(IOTA.as_ptr().add(i * LANES));
            let lines = p.chunks_exact_mut(LINE).zip(ds.chunks_exact_mut(LINE));
            for (j, (p, ds)) in lines.enumerate() {
                let (p, ds) = (p.as_mut_ptr().add(i * LANES), ds.as_mut_ptr().add(i * LANES));
                let mut e = math::exp_share(S::load(p).mul(S::splat(factor)).sub(log_sum));
                if let Some(shift) = mask {
                    e = e.keep_at_least(lane, S::splat(j as f32 - shift));
                }
                if let Some(shift) = outside {
                    e = e.keep_at_least(S::splat(j as f32 + shift - 1.0), lane);
                }
                e.store(p);
                e.mul(S::load(ds).sub(delta)).mul(S::splat(scale)).store(ds);
            }
        }
    }
}
stamp!(fn score_gradients_raw(
    p: &mut [f32], ds: &mut [f32], log_sums: &[f32; LINE], delta: &[f32], factors: [f32; 2],
    hidden: [Option<f32>; 2]
) = score_gradients_body);
pub(crate) fn score_gradients(
    p: &mut [f32],
    ds: &mut [f32],
    log_sums: &[f32; LINE],
    delta: &[f32],
    factors: [f32; 2],
    hidden: [Option<f32>; 2],
) {
    assert!(p.len() == ds.len() && p.len().is_multiple_of(LINE) && delta.len() == LINE);
    // SAFETY: whole lines.
    unsafe { score_gradients_raw(p, ds, log_sums, delta, factors, hidden) }
}
