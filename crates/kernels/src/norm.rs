//! LayerNorm and RMSNorm over rows, with their gradients.

use crate::elementwise::row_chunks;
use crate::lanes::{LANES, Lanes, stamp};
use crate::split::Split;
use crate::team::Team;

/// Rows, their width and the number added to the variance.
#[derive(Clone, Copy, Debug)]
pub struct NormShape {
    /// R.
    pub rows: usize,
    /// C.
    pub width: usize,
    /// ε.
    pub epsilon: f32,
}

/// Two numbers a row that the backward pass needs: mean (0 for RMSNorm) and 1/deviation.
pub(crate) const STATS: usize = 2;

#[inline(always)]
unsafe fn row_sums<S: Lanes>(x: &[f32], center: f32) -> (f32, f32) {
    // SAFETY: part loads stay inside the row.
    unsafe {
        let n = x.len();
        let (mut sum, mut squares) = (S::splat(0.0), S::splat(0.0));
        let (ones, c) = ([1.0f32; LANES], S::splat(center));
        let mut i = 0;
        while i < n {
            let m = (n - i).min(LANES);
            let v = S::load_part(x.as_ptr().add(i), m);
            sum = sum.add(v);
            let d = v.sub(c).mul(S::load_part(ones.as_ptr(), m));
            squares = d.fma(d, squares);
            i += LANES;
        }
        (sum.sum(), squares.sum())
    }
}

#[inline(always)]
unsafe fn forward_body<S: Lanes>(
    x: &[f32],
    y: &mut [f32],
    stats: &mut [f32],
    gain: &[f32],
    bias: Option<&[f32]>,
    epsilon: f32,
    centered: bool,
) {
    // SAFETY: part loads and stores stay inside the rows.
    unsafe {
        let width = gain.len();
        let rows = x.chunks_exact(width).zip(y.chunks_exact_mut(width));
        for ((x, y), stats) in rows.zip(stats.chunks_exact_mut(STATS)) {
            let n = width as f32;
            let mean = if centered { row_sums::<S>(x, 0.0).0 / n } else { 0.0 };
            let variance = row_sums::<S>(x, mean).1 / n;
            let inverse = 1.0 / (variance + epsilon).sqrt();
            stats[0] = mean;
            stats[1] = inverse;
            let (m, s) = (S::splat(mean), S::splat(inverse));
            let mut i = 0;
            while i < width {
                let k = (width - i).min(LANES);
                let v = S::load_part(x.as_ptr().add(i), k).sub(m).mul(s);
                let g = S::load_part(gain.as_ptr().add(i), k);
                let out = match bias {
                    Some(b) => v.fma(g, S::load_part(b.as_ptr().add(i), k)),
                    None => v.mul(g),
                };
                out.store_part(y.as_mut_ptr().add(i), k);
                i += LANES;
            }
        }
    }
}
stamp!(fn forward_raw(
    x: &[f32], y: &mut [f32], stats: &mut [f32], gain: &[f32], bias: Option<&[f32]>, epsilon: f32,
    centered: bool
) = forward_body);

#[inline(always)]
unsafe fn backward_body<S: Lanes>(
    x: &[f32],
    stats: &[f32],
    gain: &[f32],
    d_y: &[f32],
    d_x: &mut [f32],
    centered: bool,
) {
    // SAFETY: part loads and stores stay inside the rows.
    unsafe {
        let width = gain.len();
        let rows = x.chunks_exact(width).zip(d_y.chunks_exact(width));
        let outs = d_x.chunks_exact_mut(width).zip(stats.chunks_exact(STATS));
        for ((x, d_y), (d_x, stats)) in rows.zip(outs) {
            let (m, s) = (S::splat(stats[0]), S::splat(stats[1]));
            let (mut sum, mut dot) = (S::splat(0.0), S::splat(0.0));
            let mut i = 0;
            while i < width {
                let k = (width - i).min(LANES);
                let g =
                    S::load_part(d_y.as_ptr().add(i), k).mul(S::load_part(gain.as_ptr().add(i), k));
                let v = S::load_part(x.as_ptr().add(i), k).sub(m).mul(s);
                sum = sum.add(g);
                dot = g.fma(v, dot);
                i += LANES;
            }
            let n = width as f32;
            let mean = S::splat(if centered { sum.sum() / n } else { 0.0 });
            let along = S::splat(dot.sum() / n);
            let mut i = 0;
            while i < width {
                let k = (width - i).min(LANES);
                let g =
                    S::load_part(d_y.as_ptr().add(i), k).mul(S::load_part(gain.as_ptr().add(i), k));
                let v = S::load_part(x.as_ptr().add(i), k).sub(m).mul(s);
                let d = g.sub(mean).sub(v.mul(along)).mul(s);
                d.add(S::load_part(d_x.as_ptr().add(i), k)).store_part(d_x.as_mut_ptr().add(i), k);
                i += LANES;
            }
        }
    }
}
stamp!(fn backward_raw(
    x: &[f32], stats: &[f32], gain: &[f32], d_y: &[f32], d_x: &mut [f32], centered: bool
) = backward_body);

#[inline(always)]
unsafe fn parameter_body<S: Lanes>(
    shape: NormShape,
    x: &[f32],
    stats: &[f32],
    d_y: &[f32],
    from: usize,
    d_gain: &mut [f32],
    d_bias: Option<&mut [f32]>,
) {
    // SAFETY: a window of at most sixteen columns of every row.
    unsafe {
        let k = d_gain.len();
        let mut gain = S::load_part(d_gain.as_ptr(), k);
        let mut bias = match &d_bias {
            Some(b) => S::load_part(b.as_ptr(), k),
            None => S::splat(0.0),
        };
        for r in 0..shape.rows {
            let at = r * shape.width + from;
            let d = S::load_part(d_y.as_ptr().add(at), k);
            let v = S::load_part(x.as_ptr().add(at), k)
                .sub(S::splat(stats[r * STATS]))
                .mul(S::splat(stats[r * STATS + 1]));
            gain = d.fma(v, gain);
            bias = bias.add(d);
        }
        gain.store_part(d_gain.as_mut_ptr(), k);
        if let Some(b) = d_bias {
            bias.store_part(b.as_mut_ptr(), k);
        }
    }
}
stamp!(fn parameter_raw(
    shape: NormShape, x: &[f32], stats: &[f32], d_y: &[f32], from: usize, d_gain: &mut [f32],
    d_bias: Option<&mut [f32]>
) = parameter_body);

fn forward(
    team: &Team,
    shape: NormShape,
    x: &[f32],
    gain: &[f32],
    bias: Option<&[f32]>,
    y: &mut [f32],
    stats: &mut [f32],
    centered: bool,
) {
    let width = shape.width;
    assert!(
        x.len() == shape.rows * width && y.len() == x.len() && gain.len() == width,
        "norm: R×C"
    );
    assert!(stats.len() >= shape.rows * STATS, "norm: two numbers a row");
    let stats = Split::new(stats);
    row_chunks(team, y, width, |row, y| {
        let rows = y.len() / width;
        // SAFETY: runs of rows do not overlap.
        unsafe {
            let stats = stats.part(row * STATS..(row + rows) * STATS);
            let x = &x[row * width..(row + rows) * width];
            forward_raw(x, y, stats, gain, bias, shape.epsilon, centered);
        }
    });
}

fn backward(
    team: &Team,
    shape: NormShape,
    x: &[f32],
    stats: &[f32],
    gain: &[f32],
    d_y: &[f32],
    d_x: &mut [f32],
    d_gain: &mut [f32],
    d_bias: Option<&mut [f32]>,
    centered: bool,
) {
    let width = shape.width;
    assert!(x.len() == shape.rows * width && d_y.len() == x.len() && d_x.len() == x.len(), "R×C");
    let trained = d_gain.len();
    assert!(gain.len() == width && [0, width].contains(&trained), "norm: a gain a column");
    row_chunks(team, d_x, width, |row, d_x| {
        let range = row * width..row * width + d_x.len();
        let stats = &stats[row * STATS..];
        // SAFETY: whole rows on all sides.
        unsafe { backward_raw(&x[range.clone()], stats, gain, &d_y[range], d_x, centered) }
    });
    let d_gain = Split::new(d_gain);
    let has_bias = d_bias.is_some();
    let mut none = [];
    let d_bias = Split::new(d_bias.unwrap_or(&mut none));
    team.tasks(trained.div_ceil(LANES), |i| {
        let range = i * LANES..((i + 1) * LANES).min(width);
        // SAFETY: windows of columns do not overlap.
        unsafe {
            let bias = has_bias.then(|| d_bias.part(range.clone()));
            parameter_raw(shape, x, stats, d_y, range.start, d_gain.part(range), bias);
        }
    });
}

/// y = gain·(x - mean)/√(variance + ε) + bias over each row (Ba et al., arXiv 1607.06450).
/// x, y: R×C; `stats`: 2 a row, kept for the backward pass.
pub fn layer_norm_forward(
    team: &Team,
    shape: NormShape,
    x: &[f32],
    gain: &[f32],
    bias: &[f32],
    y: &mut [f32],
    stats: &mut [f32],
) {
    forward(team, shape, x, gain, Some(bias), y, stats, true);
}

/// Adds the gradients of [`layer_norm_forward`] to d_x, d_gain and d_bias; the last two are empty
/// where gain and bias do not learn.
pub fn layer_norm_backward(
    team: &Team,
    shape: NormShape,
    x: &[f32],
    stats: &[f32],
    gain: &[f32],
    d_y: &[f32],
    d_x: &mut [f32],
    d_gain: &mut [f32],
    d_bias: &mut [f32],
) {
    backward(team, shape, x, stats, gain, d_y, d_x, d_gain, Some(d_bias), true);
}

/// y = gain·x/√(mean of squares + ε) over each row (Zhang and Sennrich, arXiv 1910.07467).
pub fn rms_norm_forward(
    team: &Team,
    shape: NormShape,
    x: &[f32],
    gain: &[f32],
    y: &mut [f32],
    stats: &mut [f32],
) {
    forward(team, shape, x, gain, None, y, stats, false);
}

/// RMSNorm of each head in place: `heads` heads of gain.len() values from column `from` of x's rows,
/// `row_stride` apart.
pub fn head_norm(
    team: &Team,
    x: &mut [f32],
    row_stride: usize,
    from: usize,
    heads: usize,
    gain: &[f32],
    epsilon: f32,
) {
    let width = gain.len();
    assert!(from + heads * width <= row_stride, "head norm: heads lie in their rows");
    row_chunks(team, x, row_stride, |_, rows| {
        for row in rows.chunks_exact_mut(row_stride) {
            for head in row[from..from + heads * width].chunks_exact_mut(width) {
                let mut stats = [0.0; STATS];
                // SAFETY: one row; each vector of it is read before it is written.
                unsafe {
                    let old = std::slice::from_raw_parts(head.as_ptr(), width);
                    forward_raw(old, head, &mut stats, gain, None, epsilon, false);
                }
            }
        }
    });
}

/// Where heads stand that [`head_norm`] normed: `heads` of them from column `from` of rows `stride`
/// apart.
#[derive(Clone, Copy, Debug)]
pub struct HeadPlace {
    /// Values from one row to the next.
    pub stride: usize,
    /// The column of the first head.
    pub from: usize,
    /// Heads.
    pub heads: usize,
}

#[inline(always)]
unsafe fn inverse_body<S: Lanes>(head: &[f32], epsilon: f32, out: &mut [f32]) {
    // SAFETY: as row_sums.
    unsafe {
        let variance = row_sums::<S>(head, 0.0).1 / head.len() as f32;
        out[0] = 1.0 / (variance + epsilon).sqrt();
    }
}
stamp!(fn inverse_raw(head: &[f32], epsilon: f32, out: &mut [f32]) = inverse_body);

#[inline(always)]
unsafe fn head_gain_body<S: Lanes>(x: &[f32], d: &[f32], inverse: f32, d_gain: &mut [f32]) {
    // SAFETY: equally long slices of at most sixteen values.
    unsafe {
        let k = d_gain.len();
        let v = S::load_part(x.as_ptr(), k).mul(S::splat(inverse));
        let old = S::load_part(d_gain.as_ptr(), k);
        S::load_part(d.as_ptr(), k).fma(v, old).store_part(d_gain.as_mut_ptr(), k);
    }
}
stamp!(fn head_gain_raw(x: &[f32], d: &[f32], inverse: f32, d_gain: &mut [f32]) = head_gain_body);

/// The gradient of [`head_norm`]: `d` (at its place, the gradient of what it made) becomes the
/// gradient of what it read; d_gain is added to, rows in ascending order (empty where it does not learn). Saved: `x`, what it read,
/// at a place of its own.
///
/// # Panics
/// When heads do not lie in their rows or hold more than 1024 values.
pub fn head_norm_backward(
    team: &Team,
    (x, x_place): (&[f32], HeadPlace),
    (d, d_place): (&mut [f32], HeadPlace),
    gain: &[f32],
    epsilon: f32,
    d_gain: &mut [f32],
) {
    let (width, heads) = (gain.len(), x_place.heads);
    let trained = d_gain.len();
    assert!(
        width <= MAX_HEAD && [0, width].contains(&trained) && heads == d_place.heads,
        "head norm: heads"
    );
    for place in [x_place, d_place] {
        assert!(place.from + heads * width <= place.stride, "head norm: heads lie in their rows");
    }
    let rows = d.len() / d_place.stride;
    let column =
        |place: HeadPlace, row: usize, head: usize| row * place.stride + place.from + head * width;
    let d_gain = Split::new(d_gain);
    let read = &*d;
    team.tasks(trained.div_ceil(LANES), |i| {
        let window = i * LANES..((i + 1) * LANES).min(width);
        // SAFETY: windows of columns do not overlap; slices are equally long.
        unsafe {
            let d_gain = d_gain.part(window.clone());
            let mut inverse = [0.0];
            for row in 0..rows {
                for head in 0..heads {
                    let from = column(x_place, row, head);
                    let x = &x[from..from + width];
                    inverse_raw(x, epsilon, &mut inverse);
                    let from = column(d_place, row, head) + window.start;
                    let d = &read[from..from + window.len()];
                    head_gain_raw(&x[window.clone()], d, inverse[0], d_gain);
                }
            }
        }
    });
    row_chunks(team, d, d_place.stride, |first, rows| {
        let mut d_y = [0.0; MAX_HEAD];
        for (i, row) in rows.chunks_exact_mut(d_place.stride).enumerate() {
            for head in 0..heads {
                let from = column(x_place, first + i, head);
                let x = &x[from..from + width];
                let d = &mut row[d_place.from + head * width..][..width];
                d_y[..width].copy_from_slice(d);
                d.fill(0.0);
                let mut stats = [0.0; STATS];
                // SAFETY: one row of equally long slices.
                unsafe {
                    inverse_raw(x, epsilon, &mut stats[1..]);
                    backward_raw(x, &stats, gain, &d_y[..width], d, false);
                }
            }
        }
    });
}

/// Values that a head holds at most.
const MAX_HEAD: usize = 1024;

/// Adds the gradients of [`rms_norm_forward`] to d_x and d_gain, which is empty where the gain does
/// not learn.
pub fn rms_norm_backward(
    team: &Team,
    shape: NormShape,
    x: &[f32],
    stats: &[f32],
    gain: &[f32],
    d_y: &[f32],
    d_x: &mut [f32],
    d_gain: &mut [f32],
) {
    backward(team, shape, x, stats, gain, d_y, d_x, d_gain, None, false);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, reference};

    fn values(n: usize, seed: u64) -> Vec<f32> {
        (0..n as u64).map(|i| crate::normal(seed, i) + 0.3).collect()
    }
    fn wide(x: &[f32]) -> Vec<f64> {
        x.iter().map(|&x| f64::from(x)).collect()
    }

    fn plain(x: &[f64], gain: &[f64], bias: &[f64], centered: bool) -> Vec<f64> {
        let n = gain.len() as f64;
        x.chunks(gain.len())
            .flat_map(|row| {
                let mean = if centered { row.iter().sum::<f64>() / n } else { 0.0 };
                let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
                let s = 1.0 / (variance + 1e-5).sqrt();
                let out = row.iter().enumerate().map(|(i, v)| gain[i] * (v - mean) * s + bias[i]);
                out.collect::<Vec<_>>()
            })
            .collect()
    }

    #[test]
    fn heads_are_normed_where_they_stand() {
        let _level = crate::isa::hold();
        let team = Team::new(2);
        let (rows, stride, width) = (70, 50, 20);
        let (x, gain) = (values(rows * stride, 1), values(width, 2));
        let mut y = x.clone();
        head_norm(&team, &mut y, stride, 5, 2, &gain, 1e-5);
        for (x, y) in x.chunks(stride).zip(y.chunks(stride)) {
            assert_eq!((&x[..5], &x[45..]), (&y[..5], &y[45..]));
            let right = plain(&wide(&x[5..45]), &wide(&gain), &vec![0.0; width], false);
            reference::assert_close(&y[5..45], &right, 1e-6, "head norm");
        }
    }

    #[test]
    fn head_norms_agree_with_finite_differences() {
        let _level = crate::isa::hold();
        let (rows, width, heads) = (5, 20, 2);
        let read = HeadPlace { stride: 45, from: 3, heads };
        let made = HeadPlace { stride: 50, from: 5, heads };
        let (x, d) = (values(rows * read.stride, 1), values(rows * made.stride, 2));
        let gain = values(width, 3);
        let heads_of = |x: &[f32], place: HeadPlace| -> Vec<f64> {
            let row = |row: &[f32]| wide(&row[place.from..place.from + heads * width]);
            x.chunks(place.stride).flat_map(row).collect()
        };
        let (x64, d64) = (heads_of(&x, read), heads_of(&d, made));
        let loss = |x: &[f64], gain: &[f64]| -> f64 {
            let y = plain(x, gain, &vec![0.0; width], false);
            y.iter().zip(&d64).map(|(y, d)| y * d).sum()
        };
        let right = reference::numeric_gradient(&x64, |x| loss(x, &wide(&gain)));
        let right_gain = reference::numeric_gradient(&wide(&gain), |g| loss(&x64, g));
        for isa in Isa::available() {
            isa.force();
            let team = Team::new(2);
            let (mut got, mut d_gain) = (d.clone(), vec![0.25; width]);
            head_norm_backward(&team, (&x, read), (&mut got, made), &gain, 1e-5, &mut d_gain);
            let ours: Vec<f32> = heads_of(&got, made).iter().map(|&v| v as f32).collect();
            reference::assert_close(&ours, &right, 3e-6, "head norm d_x");
            let ours: Vec<f32> = d_gain.iter().map(|v| v - 0.25).collect();
            reference::assert_close(&ours, &right_gain, 3e-6, "head norm d_gain");
            for (got, d) in got.chunks(50).zip(d.chunks(50)) {
                assert_eq!(
                    (&got[..5], &got[45..]),
                    (&d[..5], &d[45..]),
                    "what is not of the heads"
                );
            }
        }
    }

    #[test]
    fn both_norms_agree_with_finite_differences() {
        let _level = crate::isa::hold();
        let shape = NormShape { rows: 7, width: 37, epsilon: 1e-5 };
        let n = shape.rows * shape.width;
        let (x, d) = (values(n, 1), values(n, 2));
        let (gain, bias) = (values(shape.width, 3), values(shape.width, 4));
        for isa in Isa::available() {
            isa.force();
            for centered in [true, false] {
                let team = Team::new(2);
                let (mut y, mut stats) = (vec![0.0; n], vec![0.0; shape.rows * STATS]);
                let bias64 = if centered { wide(&bias) } else { vec![0.0; shape.width] };
                let (mut dx, mut dg, mut db) =
                    (vec![0.5; n], vec![0.0; shape.width], vec![0.0; shape.width]);
                if centered {
                    layer_norm_forward(&team, shape, &x, &gain, &bias, &mut y, &mut stats);
                    layer_norm_backward(
                        &team, shape, &x, &stats, &gain, &d, &mut dx, &mut dg, &mut db,
                    );
                } else {
                    rms_norm_forward(&team, shape, &x, &gain, &mut y, &mut stats);
                    rms_norm_backward(&team, shape, &x, &stats, &gain, &d, &mut dx, &mut dg);
                }
                let right = plain(&wide(&x), &wide(&gain), &bias64, centered);
                reference::assert_close(&y, &right, 1e-6, "norm");
                let loss = |y: Vec<f64>| y.iter().zip(&d).map(|(y, &d)| y * f64::from(d)).sum();
                let right = reference::numeric_gradient(&wide(&x), |x| {
                    loss(plain(x, &wide(&gain), &bias64, centered))
                });
                let dx: Vec<f32> = dx.iter().map(|v| v - 0.5).collect();
                reference::assert_close(&dx, &right, 2e-6, "d_x");
                let right = reference::numeric_gradient(&wide(&gain), |g| {
                    loss(plain(&wide(&x), g, &bias64, centered))
                });
                reference::assert_close(&dg, &right, 2e-6, "d_gain");
                if centered {
                    let right: Vec<f64> = (0..shape.width)
                        .map(|c| (0..shape.rows).map(|r| f64::from(d[r * shape.width + c])).sum())
                        .collect();
                    reference::assert_close(&db, &right, 2e-6, "d_bias");
                }
            }
        }
    }
}
