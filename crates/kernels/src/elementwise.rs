//! Element-by-element steps: activations with their gradients, sums, dropout, rotary positions.

use crate::lanes::{LANES, Lanes, stamp};
use crate::math;
use crate::random;
use crate::split::Split;
use crate::team::Team;

/// Values a task takes.
const CHUNK: usize = 8192;
/// Rows a task takes where rows matter.
pub(crate) const ROW_CHUNK: usize = 64;

/// Calls `f(start, part)` for parts of `out` on the team.
pub(crate) fn chunks(team: &Team, out: &mut [f32], f: impl Fn(usize, &mut [f32]) + Sync) {
    let len = out.len();
    let out = Split::new(out);
    team.tasks(len.div_ceil(CHUNK), |i| {
        let range = i * CHUNK..((i + 1) * CHUNK).min(len);
        // SAFETY: chunks do not overlap.
        f(range.start, unsafe { out.part(range) });
    });
}

/// Calls `f(first_row, rows)` for runs of whole rows of `out` on the team.
pub(crate) fn row_chunks(
    team: &Team,
    out: &mut [f32],
    row_len: usize,
    f: impl Fn(usize, &mut [f32]) + Sync,
) {
    let rows = out.len().checked_div(row_len).unwrap_or(0);
    let out = Split::new(out);
    team.tasks(rows.div_ceil(ROW_CHUNK), |i| {
        let (from, to) = (i * ROW_CHUNK, ((i + 1) * ROW_CHUNK).min(rows));
        // SAFETY: chunks do not overlap.
        f(from, unsafe { out.part(from * row_len..to * row_len) });
    });
}

macro_rules! map_body {
    ($name:ident, $raw:ident, |$($x:ident),+| $e:expr) => {
        #[inline(always)]
        unsafe fn $name<S: Lanes>(out: &mut [f32], $($x: &[f32]),+) {
            // SAFETY: part loads and stores stay inside the equally long slices.
            unsafe {
                let n = out.len();
                let mut i = 0;
                while i < n {
                    let m = (n - i).min(LANES);
                    $(let $x = S::load_part($x.as_ptr().add(i), m);)+
                    let y: S = $e;
                    y.store_part(out.as_mut_ptr().add(i), m);
                    i += LANES;
                }
            }
        }
        stamp!(fn $raw(out: &mut [f32], $($x: &[f32]),+) = $name);
    };
}

map_body!(gelu_body, gelu_raw, |x| x.mul(math::normal(x).0));
map_body!(gelu_grad_body, gelu_grad_raw, |x, d| {
    let (cumulative, density) = math::normal(x);
    d.mul(x.fma(density, cumulative))
});
map_body!(add_body, add_raw, |a, b| a.add(b));
map_body!(relu2_body, relu2_raw, |x| {
    let y = x.max(S::splat(0.0));
    y.mul(y)
});
map_body!(relu2_grad_body, relu2_grad_raw, |x, d| {
    let y = x.max(S::splat(0.0));
    d.mul(y.add(y))
});
map_body!(gelu_tanh_body, gelu_tanh_raw, |x| gelu_tanh(x));
map_body!(gelu_gate_body, gelu_gate_raw, |gate, up| gelu_tanh(gate).mul(up));
map_body!(gelu_tanh_grad_body, gelu_tanh_grad_raw, |x, d| d.mul(gelu_tanh_slope(x)));
map_body!(gelu_gate_grad_body, gelu_gate_grad_raw, |gate, up, d| {
    d.mul(up).mul(gelu_tanh_slope(gate))
});

/// x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))/2 = x·sigmoid(twice what tanh is taken of).
#[inline(always)]
unsafe fn gelu_tanh<S: Lanes>(x: S) -> S {
    // SAFETY: as the caller's.
    unsafe {
        let inner = x.mul(x).mul(x).fma(S::splat(0.044_715), x);
        x.mul(sigmoid(inner.mul(S::splat(1.595_769))))
    }
}

/// The derivative of [`gelu_tanh`]: s + x·s·(1 - s)·z' with s = sigmoid(z), z twice what tanh is
/// taken of.
#[inline(always)]
unsafe fn gelu_tanh_slope<S: Lanes>(x: S) -> S {
    // SAFETY: as the caller's.
    unsafe {
        let square = x.mul(x);
        let z = square.mul(x).fma(S::splat(0.044_715), x).mul(S::splat(1.595_769));
        let slope = square.fma(S::splat(0.134_145), S::splat(1.0)).mul(S::splat(1.595_769));
        let s = sigmoid(z);
        x.mul(s).mul(S::splat(1.0).sub(s)).fma(slope, s)
    }
}

/// GELU by its tanh approximation (Hendrycks and Gimpel, arXiv 1606.08415).
pub fn gelu_tanh_forward(team: &Team, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "gelu: lengths");
    chunks(team, y, |at, y| {
        // SAFETY: equally long slices.
        unsafe { gelu_tanh_raw(y, &x[at..at + y.len()]) }
    });
}

/// The gradient of [`gelu_tanh_forward`]: d_x, d_y given in place of it.
pub fn gelu_tanh_backward(team: &Team, x: &[f32], d: &mut [f32]) {
    assert_eq!(x.len(), d.len(), "gelu: lengths");
    chunks(team, d, |at, d| {
        // SAFETY: as the body: each vector of `d` is read before it is written.
        unsafe {
            let old = std::slice::from_raw_parts(d.as_ptr(), d.len());
            gelu_tanh_grad_raw(d, &x[at..at + d.len()], old);
        }
    });
}

/// out = gelu(gate)·up for rows gate|up of 2·width values, GELU by its tanh approximation (Shazeer,
/// arXiv 2002.05202).
pub fn geglu_tanh_forward(team: &Team, gate_up: &[f32], width: usize, out: &mut [f32]) {
    assert_eq!(gate_up.len(), 2 * out.len(), "geglu: lengths");
    row_chunks(team, out, width, |first, rows| {
        for (i, out) in rows.chunks_exact_mut(width).enumerate() {
            let at = (first + i) * 2 * width;
            let (gate, up) = gate_up[at..at + 2 * width].split_at(width);
            // SAFETY: equally long slices.
            unsafe { gelu_gate_raw(out, gate, up) }
        }
    });
}

/// The gradient of [`geglu_tanh_forward`]: rows d_gate|d_up.
pub fn geglu_tanh_backward(
    team: &Team,
    gate_up: &[f32],
    width: usize,
    d_out: &[f32],
    d_gate_up: &mut [f32],
) {
    assert!(gate_up.len() == 2 * d_out.len() && gate_up.len() == d_gate_up.len(), "geglu: lengths");
    row_chunks(team, d_gate_up, 2 * width, |first, rows| {
        for (i, d_row) in rows.chunks_exact_mut(2 * width).enumerate() {
            let row = first + i;
            let (gate, up) = gate_up[row * 2 * width..(row + 1) * 2 * width].split_at(width);
            let d_out = &d_out[row * width..(row + 1) * width];
            let (d_gate, d_up) = d_row.split_at_mut(width);
            // SAFETY: equally long slices.
            unsafe {
                gelu_gate_grad_raw(d_gate, gate, up, d_out);
                gelu_gate_raw(d_up, gate, d_out);
            }
        }
    });
}

/// y = max(x, 0)² (So et al., arXiv 2109.08668).
pub fn relu2_forward(team: &Team, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "relu²: lengths");
    chunks(team, y, |at, y| {
        // SAFETY: equally long slices.
        unsafe { relu2_raw(y, &x[at..at + y.len()]) }
    });
}

/// d_x = d_y·2·max(x, 0), d_y given in place of d_x.
pub fn relu2_backward(team: &Team, x: &[f32], d: &mut [f32]) {
    assert_eq!(x.len(), d.len(), "relu²: lengths");
    chunks(team, d, |at, d| {
        // SAFETY: as the body: each vector of `d` is read before it is written.
        unsafe {
            let old = std::slice::from_raw_parts(d.as_ptr(), d.len());
            relu2_grad_raw(d, &x[at..at + d.len()], old);
        }
    });
}

/// x ← limit·tanh(x/limit): large values are bent towards ±limit.
pub fn soft_cap(team: &Team, x: &mut [f32], limit: f32) {
    chunks(team, x, |_, x| x.iter_mut().for_each(|v| *v = limit * (*v / limit).tanh()));
}

/// y = x·Φ(x) with the normal distribution Φ (Hendrycks and Gimpel, arXiv 1606.08415).
pub fn gelu_forward(team: &Team, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "gelu: lengths");
    chunks(team, y, |at, y| {
        // SAFETY: equally long slices.
        unsafe { gelu_raw(y, &x[at..at + y.len()]) }
    });
}

/// d_x = d_y·(Φ(x) + x·φ(x)), d_y given in place of d_x.
pub fn gelu_backward(team: &Team, x: &[f32], d: &mut [f32]) {
    assert_eq!(x.len(), d.len(), "gelu: lengths");
    chunks(team, d, |at, d| {
        // SAFETY: as the body: each vector of `d` is read before it is written.
        unsafe {
            let old = std::slice::from_raw_parts(d.as_ptr(), d.len());
            gelu_grad_raw(d, &x[at..at + d.len()], old);
        }
    });
}

/// x ← x + y.
pub fn add_assign(team: &Team, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "add: lengths");
    chunks(team, x, |at, x| {
        // SAFETY: as the body: each vector of `x` is read before it is written.
        unsafe {
            let old = std::slice::from_raw_parts(x.as_ptr(), x.len());
            add_raw(x, old, &y[at..at + x.len()]);
        }
    });
}

/// y ← x.
pub fn copy(team: &Team, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "copy: lengths");
    chunks(team, y, |at, y| y.copy_from_slice(&x[at..at + y.len()]));
}

/// x ← 0, whatever it was.
pub fn clear(team: &Team, x: &mut [f32]) {
    chunks(team, x, |_, x| x.fill(0.0));
}

/// x ← factor·x.
pub fn scale(team: &Team, x: &mut [f32], factor: f32) {
    chunks(team, x, |_, x| x.iter_mut().for_each(|v| *v *= factor));
}

/// Adds `bias` (width) to every row of x (R×width).
pub fn add_bias_rows(team: &Team, x: &mut [f32], bias: &[f32]) {
    row_chunks(team, x, bias.len(), |_, rows| {
        for row in rows.chunks_exact_mut(bias.len()) {
            row.iter_mut().zip(bias).for_each(|(v, b)| *v += b);
        }
    });
}

#[inline(always)]
unsafe fn swiglu_body<S: Lanes>(rows: &[f32], width: usize, out: &mut [f32]) {
    // SAFETY: part loads and stores stay inside the rows.
    unsafe {
        for (row, out) in rows.chunks_exact(2 * width).zip(out.chunks_exact_mut(width)) {
            let mut i = 0;
            while i < width {
                let m = (width - i).min(LANES);
                let gate = S::load_part(row.as_ptr().add(i), m);
                let up = S::load_part(row.as_ptr().add(width + i), m);
                gate.mul(sigmoid(gate)).mul(up).store_part(out.as_mut_ptr().add(i), m);
                i += LANES;
            }
        }
    }
}
stamp!(fn swiglu_raw(rows: &[f32], width: usize, out: &mut [f32]) = swiglu_body);

#[inline(always)]
unsafe fn swiglu_grad_body<S: Lanes>(
    rows: &[f32],
    width: usize,
    d_out: &[f32],
    d_rows: &mut [f32],
) {
    // SAFETY: part loads and stores stay inside the rows.
    unsafe {
        for ((row, d_out), d_row) in rows
            .chunks_exact(2 * width)
            .zip(d_out.chunks_exact(width))
            .zip(d_rows.chunks_exact_mut(2 * width))
        {
            let mut i = 0;
            while i < width {
                let m = (width - i).min(LANES);
                let gate = S::load_part(row.as_ptr().add(i), m);
                let up = S::load_part(row.as_ptr().add(width + i), m);
                let d = S::load_part(d_out.as_ptr().add(i), m);
                let s = sigmoid(gate);
                let slope = s.mul(S::splat(1.0).add(gate.mul(S::splat(1.0).sub(s))));
                d.mul(up).mul(slope).store_part(d_row.as_mut_ptr().add(i), m);
                d.mul(gate.mul(s)).store_part(d_row.as_mut_ptr().add(width + i), m);
                i += LANES;
            }
        }
    }
}
stamp!(fn swiglu_grad_raw(rows: &[f32], width: usize, d_out: &[f32], d_rows: &mut [f32]) = swiglu_grad_body);

#[inline(always)]
unsafe fn sigmoid<S: Lanes>(x: S) -> S {
    // SAFETY: as the caller's.
    unsafe { S::splat(1.0).div(S::splat(1.0).add(math::exp(S::splat(0.0).sub(x)))) }
}

/// out = silu(gate)·up for rows gate|up of 2·width values (Shazeer, arXiv 2002.05202).
pub fn swiglu_forward(team: &Team, gate_up: &[f32], width: usize, out: &mut [f32]) {
    assert_eq!(gate_up.len(), 2 * out.len(), "swiglu: lengths");
    row_chunks(team, out, width, |row, out| {
        let from = row * 2 * width;
        // SAFETY: whole rows on both sides.
        unsafe { swiglu_raw(&gate_up[from..from + 2 * out.len()], width, out) }
    });
}

/// The gradient of [`swiglu_forward`]: rows d_gate|d_up.
pub fn swiglu_backward(
    team: &Team,
    gate_up: &[f32],
    width: usize,
    d_out: &[f32],
    d_gate_up: &mut [f32],
) {
    assert!(
        gate_up.len() == 2 * d_out.len() && gate_up.len() == d_gate_up.len(),
        "swiglu: lengths"
    );
    row_chunks(team, d_gate_up, 2 * width, |row, d_rows| {
        let n = d_rows.len();
        let rows = &gate_up[row * 2 * width..row * 2 * width + n];
        // SAFETY: whole rows on all sides.
        unsafe { swiglu_grad_raw(rows, width, &d_out[row * width..row * width + n / 2], d_rows) }
    });
}

/// Zeroes values with probability `rate` and scales the others by 1/(1 - rate), in place; the same
/// call on the gradient is its backward. A value's fate depends on its row's key, `stream` and its
/// column alone, so nothing is stored and no batch changes it.
pub fn dropout(team: &Team, x: &mut [f32], row_keys: &[u64], stream: u64, rate: f32) {
    if rate <= 0.0 || row_keys.is_empty() {
        return;
    }
    let width = x.len() / row_keys.len();
    let limit = (f64::from(rate) * 4_294_967_296.0) as u64;
    let kept = 1.0 / (1.0 - rate);
    row_chunks(team, x, width, |first, rows| {
        for (i, row) in rows.chunks_exact_mut(width).enumerate() {
            let key = random::mix(row_keys[first + i] ^ random::mix(stream));
            for (pair, values) in row.chunks_mut(2).enumerate() {
                let bits = random::uniform_bits(key, pair as u64);
                for (v, bits) in values.iter_mut().zip([bits >> 32, bits & 0xFFFF_FFFF]) {
                    *v = if bits < limit { 0.0 } else { *v * kept };
                }
            }
        }
    });
}

/// Rotates pairs (i, i + D/2) of each head of x's rows: cosines and sines come from `angles`, `D`
/// values a row (D/2 cosines, then D/2 sines). `backward` turns the other way (Su et al., arXiv
/// 2104.09864).
pub fn rope(
    team: &Team,
    x: &mut [f32],
    row_stride: usize,
    from: usize,
    heads: usize,
    head_dim: usize,
    angles: &[f32],
    backward: bool,
) {
    let half = head_dim / 2;
    row_chunks(team, x, row_stride, |first, rows| {
        for (i, row) in rows.chunks_exact_mut(row_stride).enumerate() {
            let at = (first + i) * head_dim;
            let (cos, sin) = angles[at..at + head_dim].split_at(half);
            for head in row[from..from + heads * head_dim].chunks_exact_mut(head_dim) {
                let (low, high) = head.split_at_mut(half);
                for j in 0..half {
                    let (a, b) = (low[j], high[j]);
                    let s = if backward { -sin[j] } else { sin[j] };
                    low[j] = a * cos[j] - b * s;
                    high[j] = b * cos[j] + a * s;
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, reference};

    fn values(n: usize, seed: u64) -> Vec<f32> {
        (0..n as u64).map(|i| 2.0 * crate::normal(seed, i)).collect()
    }

    /// The normal distribution in f64, by the series of erf or a continued fraction's stand-in:
    /// Simpson's rule over the density, fine enough for 1e-12.
    fn phi(x: f64) -> f64 {
        let n = 2000;
        let h = x / f64::from(n);
        let f = |t: f64| (-0.5 * t * t).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let inner: f64 =
            (1..n).map(|i| f(f64::from(i) * h) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
        0.5 + (f(0.0) + inner + f(x)) * h / 3.0
    }

    fn tanh_gelu(x: f64) -> f64 {
        let z = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
        0.5 * x * (1.0 + z.tanh())
    }

    #[test]
    fn tanh_gelus_agree_with_finite_differences() {
        let _level = crate::isa::hold();
        let (rows, width) = (70, 21);
        let (x, d) = (values(rows * 2 * width, 1), values(rows * width, 2));
        let wide = |x: &[f32]| x.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
        for isa in Isa::available() {
            isa.force();
            let team = Team::new(2);
            let mut got = d.clone();
            gelu_tanh_backward(&team, &x[..d.len()], &mut got);
            let pairs = wide(&x).into_iter().zip(wide(&d));
            let right: Vec<f64> = pairs
                .map(|(x, d)| d * reference::numeric_gradient(&[x], |x| tanh_gelu(x[0]))[0])
                .collect();
            reference::assert_close(&got, &right, 2e-6, "tanh gelu");
            let mut got = vec![9.0; x.len()];
            geglu_tanh_backward(&team, &x, width, &d, &mut got);
            let right = reference::numeric_gradient(&wide(&x), |x| {
                let rows = x.chunks(2 * width).zip(d.chunks(width));
                rows.map(|(row, d)| -> f64 {
                    (0..width).map(|i| tanh_gelu(row[i]) * row[width + i] * f64::from(d[i])).sum()
                })
                .sum()
            });
            reference::assert_close(&got, &right, 2e-6, "tanh geglu");
        }
    }

    #[test]
    fn squared_relu_and_its_gradient() {
        let _level = crate::isa::hold();
        let (x, d) = (values(1003, 1), values(1003, 2));
        let square = |x: f64| x.max(0.0).powi(2);
        let wide = |x: &[f32]| x.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
        let right: Vec<f64> = wide(&x).into_iter().map(square).collect();
        let slopes: Vec<f64> = wide(&x)
            .into_iter()
            .zip(wide(&d))
            .map(|(x, d)| d * reference::numeric_gradient(&[x], |x| square(x[0]))[0])
            .collect();
        for isa in Isa::available() {
            isa.force();
            let team = Team::new(2);
            let mut y = vec![9.0; x.len()];
            relu2_forward(&team, &x, &mut y);
            reference::assert_close(&y, &right, 1e-6, "relu²");
            let mut dx = d.clone();
            relu2_backward(&team, &x, &mut dx);
            reference::assert_close(&dx, &slopes, 1e-5, "relu² gradient");
        }
    }

    #[test]
    fn gelu_and_its_gradient() {
        let _level = crate::isa::hold();
        let (x, d) = (values(1003, 1), values(1003, 2));
        let xs: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        let right: Vec<f64> = xs.iter().map(|&x| x * phi(x)).collect();
        let slopes: Vec<f64> = xs
            .iter()
            .zip(&d)
            .map(|(&x, &d)| {
                let g = reference::numeric_gradient(&[x], |x| x[0] * phi(x[0]));
                f64::from(d) * g[0]
            })
            .collect();
        for isa in Isa::available() {
            isa.force();
            let team = Team::new(2);
            let mut y = vec![0.0; x.len()];
            gelu_forward(&team, &x, &mut y);
            reference::assert_close(&y, &right, 3e-7, "gelu");
            let mut dx = d.clone();
            gelu_backward(&team, &x, &mut dx);
            reference::assert_close(&dx, &slopes, 1e-6, "gelu gradient");
        }
    }

    #[test]
    fn gelu_by_tanh_with_and_without_a_gate() {
        let _level = crate::isa::hold();
        let (rows, width) = (5, 19);
        let x = values(rows * 2 * width, 1);
        let gelu = |x: f32| {
            let x = f64::from(x);
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        };
        let right: Vec<f64> = x.iter().map(|&x| gelu(x)).collect();
        let gated: Vec<f64> = x
            .chunks(2 * width)
            .flat_map(|row| (0..width).map(|i| gelu(row[i]) * f64::from(row[width + i])))
            .collect();
        for isa in Isa::available() {
            isa.force();
            let team = Team::new(2);
            let mut y = vec![0.0; x.len()];
            gelu_tanh_forward(&team, &x, &mut y);
            reference::assert_close(&y, &right, 1e-6, "gelu by tanh");
            let mut y = vec![0.0; x.len() / 2];
            geglu_tanh_forward(&team, &x, width, &mut y);
            reference::assert_close(&y, &gated, 1e-6, "gated gelu by tanh");
        }
        let mut capped = [0.1, 100.0, -100.0];
        soft_cap(&Team::new(1), &mut capped, 30.0);
        assert!((capped[0] - 0.1).abs() < 1e-5 && capped[1] < 30.0 && capped[1] > 29.9);
        assert_eq!(capped[1], -capped[2]);
    }

    #[test]
    fn swiglu_and_its_gradient() {
        let _level = crate::isa::hold();
        let (rows, width) = (5, 19);
        let (x, d) = (values(rows * 2 * width, 1), values(rows * width, 2));
        let xs: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        let f = |x: &[f64]| -> Vec<f64> {
            let mut out = Vec::new();
            for row in x.chunks(2 * width) {
                for i in 0..width {
                    out.push(row[i] / (1.0 + (-row[i]).exp()) * row[width + i]);
                }
            }
            out
        };
        let right = f(&xs);
        let slopes = reference::numeric_gradient(&xs, |x| {
            f(x).iter().zip(&d).map(|(y, &d)| y * f64::from(d)).sum()
        });
        for isa in Isa::available() {
            isa.force();
            let team = Team::new(2);
            let mut y = vec![0.0; rows * width];
            swiglu_forward(&team, &x, width, &mut y);
            reference::assert_close(&y, &right, 1e-6, "swiglu");
            let mut dx = vec![0.0; x.len()];
            swiglu_backward(&team, &x, width, &d, &mut dx);
            reference::assert_close(&dx, &slopes, 1e-6, "swiglu gradient");
        }
    }

    #[test]
    fn dropout_keeps_the_mean_and_is_its_own_backward() {
        let _level = crate::isa::hold();
        let team = Team::new(2);
        let keys: Vec<u64> = (0..500).collect();
        let mut x = vec![1.0; 500 * 64];
        dropout(&team, &mut x, &keys, 3, 0.25);
        let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / x.len() as f64;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        let mut alone = vec![1.0; 64];
        dropout(&team, &mut alone, &keys[77..78], 3, 0.25);
        assert_eq!(alone, x[77 * 64..78 * 64]);
    }

    #[test]
    fn rope_turns_there_and_back() {
        let _level = crate::isa::hold();
        let team = Team::new(1);
        let (d, positions) = (8, [0, 3, 5]);
        let angles: Vec<f32> = positions
            .into_iter()
            .flat_map(|p| {
                let angle = move |j: i32| p as f32 / 10f32.powi(j);
                (0..4).map(move |j| angle(j).cos()).chain((0..4).map(move |j| angle(j).sin()))
            })
            .collect();
        let x = values(3 * 20, 4);
        let mut y = x.clone();
        rope(&team, &mut y, 20, 2, 2, d, &angles, false);
        assert_eq!(x[..20], y[..20]);
        let angle = 3.0f32;
        assert!((y[22] - (x[22] * angle.cos() - x[26] * angle.sin())).abs() < 1e-5);
        rope(&team, &mut y, 20, 2, 2, d, &angles, true);
        assert!(x.iter().zip(&y).all(|(a, b)| (a - b).abs() < 1e-5));
    }
}
