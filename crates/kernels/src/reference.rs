//! The plain loops, in f64 where it matters: what every fast kernel is tested against.

/// A[m×k]·B[n×k]ᵀ (+ bias), in f64.
pub fn matmul_transposed(
    a: &[f32],
    b: &[f32],
    bias: Option<&[f32]>,
    m: usize,
    n: usize,
    k: usize,
) -> Vec<f64> {
    let mut c = vec![0.0; m * n];
    for i in 0..m {
        for j in 0..n {
            let mut sum = bias.map_or(0.0, |b| f64::from(b[j]));
            for s in 0..k {
                sum += f64::from(a[i * k + s]) * f64::from(b[j * k + s]);
            }
            c[i * n + j] = sum;
        }
    }
    c
}

/// Causal attention of one sequence and one head, in f64: (outputs, log-sum-exp a query).
/// Query i stands at position `past + i`; q is n×d, k and v are (past + n)×d.
pub fn attention(
    q: &[f64],
    k: &[f64],
    v: &[f64],
    d: usize,
    past: usize,
    scale: f64,
) -> (Vec<f64>, Vec<f64>) {
    let n = q.len() / d;
    let (mut out, mut lse) = (vec![0.0; n * d], vec![0.0; n]);
    for i in 0..n {
        let scores: Vec<f64> = (0..=past + i)
            .map(|j| scale * (0..d).map(|c| q[i * d + c] * k[j * d + c]).sum::<f64>())
            .collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
        lse[i] = top + sum.ln();
        for (j, s) in scores.iter().enumerate() {
            let p = (s - lse[i]).exp();
            (0..d).for_each(|c| out[i * d + c] += p * v[j * d + c]);
        }
    }
    (out, lse)
}

/// Central differences of `f` at `x`, one coordinate after the other.
pub fn numeric_gradient(x: &[f64], f: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let mut at = x.to_vec();
    (0..x.len())
        .map(|i| {
            let h = 1e-5 * x[i].abs().max(1.0);
            at[i] = x[i] + h;
            let above = f(&at);
            at[i] = x[i] - h;
            let below = f(&at);
            at[i] = x[i];
            (above - below) / (2.0 * h)
        })
        .collect()
}

/// Panics unless every value is within `tolerance` of the reference, relative to the larger of
/// one and the largest reference value.
pub fn assert_close(got: &[f32], right: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), right.len(), "{what}: lengths");
    let scale = right.iter().fold(1.0f64, |m, x| m.max(x.abs()));
    for (i, (g, r)) in got.iter().zip(right).enumerate() {
        let error = (f64::from(*g) - r).abs() / scale;
        assert!(error <= tolerance, "{what}[{i}]: {g} for {r}, error {error:e} > {tolerance:e}");
    }
}
