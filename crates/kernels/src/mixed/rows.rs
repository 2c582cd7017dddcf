//! What training in 16 bits needs beside products: rounding and widening, rows of a table, the
//! optimizer's step that keeps the 16-bit weights, softmax with its loss and gradient.

use crate::elementwise::row_chunks;
use crate::halves::HalfKind;
use crate::lanes::{LANES, Lanes, stamp};
use crate::math;
use crate::matmul::Init;
use crate::optimizer::{AdamStep, update};
use crate::split::Split;
use crate::team::Team;

/// Values that a task takes.
const CHUNK: usize = 8192;

/// Rounds x to 16 bits.
pub fn round_halves(team: &Team, kind: HalfKind, x: &[f32], out: &mut [u16]) {
    assert_eq!(x.len(), out.len(), "round: lengths");
    let out = Split::new(out);
    team.tasks(x.len().div_ceil(CHUNK), |i| {
        let range = i * CHUNK..((i + 1) * CHUNK).min(x.len());
        // SAFETY: chunks do not overlap.
        unsafe { round_raw(kind, &x[range.clone()], out.part(range)) };
    });
}

/// The same, and x becomes what the 16 bits say.
pub fn round_both(team: &Team, kind: HalfKind, x: &mut [f32], out: &mut [u16]) {
    let n = x.len();
    assert_eq!(n, out.len(), "round: lengths");
    let (x, out) = (Split::new(x), Split::new(out));
    team.tasks(n.div_ceil(CHUNK), |i| {
        let range = i * CHUNK..((i + 1) * CHUNK).min(n);
        // SAFETY: chunks do not overlap.
        unsafe {
            let (x, out) = (x.part(range.clone()), out.part(range));
            round_raw(kind, x, out);
            widen_raw(kind, out, x);
        }
    });
}

/// What 16 bits would say of x.
pub fn rounded_values(team: &Team, kind: HalfKind, x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "round: lengths");
    let out = Split::new(out);
    team.tasks(x.len().div_ceil(CHUNK), |i| {
        let range = i * CHUNK..((i + 1) * CHUNK).min(x.len());
        // SAFETY: chunks do not overlap.
        unsafe { rounded_raw(kind, &x[range.clone()], out.part(range)) };
    });
}

/// Widens 16 bits to f32, exactly.
pub fn widen_halves(team: &Team, kind: HalfKind, x: &[u16], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "widen: lengths");
    let out = Split::new(out);
    team.tasks(x.len().div_ceil(CHUNK), |i| {
        let range = i * CHUNK..((i + 1) * CHUNK).min(x.len());
        // SAFETY: chunks do not overlap.
        unsafe { widen_raw(kind, &x[range.clone()], out.part(range)) };
    });
}

stamp!(fn round_raw(kind: HalfKind, x: &[f32], out: &mut [u16]) = round_body);
stamp!(fn widen_raw(kind: HalfKind, x: &[u16], out: &mut [f32]) = widen_body);
stamp!(fn rounded_raw(kind: HalfKind, x: &[f32], out: &mut [f32]) = rounded_body);

/// Sixteen halves, or the first `n` of them.
///
/// # Safety
/// `n` halves are writable.
#[inline(always)]
pub(super) unsafe fn store<S: Lanes>(kind: HalfKind, x: S, to: *mut u16, n: usize) {
    // SAFETY: as the caller's; the end goes by way of sixteen places.
    unsafe {
        let mut bits = [0; LANES];
        let place = if n == LANES { to } else { bits.as_mut_ptr() };
        match kind {
            HalfKind::F16 => x.store_f16(place),
            HalfKind::Bf16 => x.store_bf16(place),
        }
        if n < LANES {
            std::ptr::copy_nonoverlapping(bits.as_ptr(), to, n);
        }
    }
}

/// Sixteen halves as f32, or the first `n` of them and zeros.
///
/// # Safety
/// `n` halves are readable.
#[inline(always)]
pub(super) unsafe fn load<S: Lanes>(kind: HalfKind, from: *const u16, n: usize) -> S {
    // SAFETY: as the caller's.
    unsafe {
        let mut bits = [0; LANES];
        if n < LANES {
            std::ptr::copy_nonoverlapping(from, bits.as_mut_ptr(), n);
        }
        let place = if n == LANES { from } else { bits.as_ptr() };
        match kind {
            HalfKind::F16 => S::load_f16(place),
            HalfKind::Bf16 => S::load_bf16(place),
        }
    }
}

#[inline(always)]
unsafe fn round_body<S: Lanes>(kind: HalfKind, x: &[f32], out: &mut [u16]) {
    for i in (0..x.len()).step_by(LANES) {
        let n = (x.len() - i).min(LANES);
        // SAFETY: n values from i on.
        unsafe { store(kind, S::load_part(x.as_ptr().add(i), n), out.as_mut_ptr().add(i), n) };
    }
}

#[inline(always)]
unsafe fn widen_body<S: Lanes>(kind: HalfKind, x: &[u16], out: &mut [f32]) {
    for i in (0..x.len()).step_by(LANES) {
        let n = (x.len() - i).min(LANES);
        // SAFETY: n values from i on.
        unsafe {
            let wide: S = load(kind, x.as_ptr().add(i), n);
            wide.store_part(out.as_mut_ptr().add(i), n);
        }
    }
}

#[inline(always)]
unsafe fn rounded_body<S: Lanes>(kind: HalfKind, x: &[f32], out: &mut [f32]) {
    for (x, out) in x.chunks(LANES).zip(out.chunks_mut(LANES)) {
        let (n, mut bits) = (x.len(), [0; LANES]);
        // SAFETY: as many on both sides.
        unsafe {
            store(kind, S::load_part(x.as_ptr(), n), bits.as_mut_ptr(), LANES);
            load::<S>(kind, bits.as_ptr(), LANES).store_part(out.as_mut_ptr(), n);
        }
    }
}

/// `out[r, :] = (init) + table[ids[r], :]` for a table in 16 bits; every id is below its rows.
pub fn half_embedding(
    team: &Team,
    (kind, table): (HalfKind, &[u16]),
    ids: &[u32],
    width: usize,
    init: Init,
    out: &mut [f32],
) {
    assert_eq!(out.len(), ids.len() * width, "embedding: R×width");
    row_chunks(team, out, width, |first, rows| {
        for (i, row) in rows.chunks_exact_mut(width).enumerate() {
            let entry = &table[ids[first + i] as usize * width..][..width];
            let values = entry.iter().map(|&bits| kind.value(bits));
            match init {
                Init::Keep => row.iter_mut().zip(values).for_each(|(x, e)| *x += e),
                Init::Zero => row.iter_mut().zip(values).for_each(|(x, e)| *x = e),
                Init::Bias(bias) => {
                    row.iter_mut().zip(values).zip(bias).for_each(|((x, e), b)| *x = e + b);
                }
            }
        }
    });
}

/// One AdamW step over equally long runs that also rounds the new weights to 16 bits. Answers with the
/// number of weights that moved while their 16 bits stayed.
pub fn adam_mixed(
    team: &Team,
    step: AdamStep,
    (kind, halves): (HalfKind, &mut [u16]),
    w: &mut [f32],
    g: &[f32],
    m: &mut [f32],
    v: &mut [f32],
) -> u64 {
    let n = w.len();
    assert!(g.len() == n && m.len() == n && v.len() == n && halves.len() == n, "adam: lengths");
    let (w, m, v, halves) = (Split::new(w), Split::new(m), Split::new(v), Split::new(halves));
    let lost = std::sync::atomic::AtomicU64::new(0);
    team.tasks(n.div_ceil(CHUNK), |i| {
        let range = i * CHUNK..((i + 1) * CHUNK).min(n);
        // SAFETY: chunks do not overlap.
        let stayed = unsafe {
            let (w, m, v) = (w.part(range.clone()), m.part(range.clone()), v.part(range.clone()));
            adam_raw(step, kind, halves.part(range.clone()), w, &g[range], m, v)
        };
        lost.fetch_add(stayed, std::sync::atomic::Ordering::Relaxed);
    });
    lost.into_inner()
}

stamp!(fn adam_raw(
    step: AdamStep, kind: HalfKind, halves: &mut [u16], w: &mut [f32], g: &[f32], m: &mut [f32],
    v: &mut [f32]
) -> u64 = adam_body);

#[inline(always)]
unsafe fn adam_body<S: Lanes>(
    step: AdamStep,
    kind: HalfKind,
    halves: &mut [u16],
    w: &mut [f32],
    g: &[f32],
    m: &mut [f32],
    v: &mut [f32],
) -> u64 {
    let mut lost = 0;
    for i in (0..w.len()).step_by(LANES) {
        let n = (w.len() - i).min(LANES);
        // SAFETY: n values from i on.
        unsafe {
            let (w, halves) = (w.as_mut_ptr().add(i), halves.as_mut_ptr().add(i));
            let (m, v) = (m.as_mut_ptr().add(i), v.as_mut_ptr().add(i));
            let old = S::load_part(w, n);
            let new = update(step, old, S::load_part(g.as_ptr().add(i), n), (m, v), n);
            new.store_part(w, n);
            // What the 16 bits say, before and after: equal values have equal bits, but for a zero
            // that changes its sign.
            let before: S = load(kind, halves, n);
            store(kind, new, halves, n);
            let after: S = load(kind, halves, n);
            let (before, after) = (before.to_array(), after.to_array());
            let (old, new) = (old.to_array(), new.to_array());
            let mut stayed = 0u32;
            for l in 0..LANES {
                stayed += u32::from((before[l] == after[l]) & (old[l] != new[l]));
            }
            lost += u64::from(stayed);
        }
    }
    lost
}

/// Softmax, cross-entropy and its gradient for rows of V logits, in place: logits become
/// scale·(p - 1 at the target), zero in rows without a target (`u32::MAX`), times the slope of a soft
/// cap that the logits went through. `losses` and `log_z` (log Σ e^z) in nats, one a row.
///
/// # Panics
/// When a target is not below V, or lengths do not fit each other.
pub fn softmax_gradient(
    team: &Team,
    (vocab, soft_cap): (usize, Option<f32>),
    scale: f32,
    targets: &[u32],
    logits: &mut [f32],
    losses: &mut [f32],
    log_z: &mut [f32],
) {
    let rows = targets.len();
    assert!(logits.len() == rows * vocab && vocab > 0, "softmax: R×V");
    assert!(losses.len() == rows && log_z.len() == rows, "softmax: one a row");
    let (logits, losses, log_z) = (Split::new(logits), Split::new(losses), Split::new(log_z));
    team.tasks(rows, |r| {
        // SAFETY: each task has its own row.
        let (z, loss, log_z) = unsafe {
            let z = logits.part(r * vocab..(r + 1) * vocab);
            (z, &mut losses.part(r..r + 1)[0], &mut log_z.part(r..r + 1)[0])
        };
        let target = targets[r];
        if target == u32::MAX {
            z.fill(0.0);
            (*loss, *log_z) = (0.0, 0.0);
            return;
        }
        let right = z[target as usize];
        // SAFETY: a row.
        let sum = unsafe { softmax_raw(z, scale, soft_cap.map(|limit| 1.0 / limit)) };
        *log_z = sum;
        *loss = sum - right;
        let slope = soft_cap.map_or(1.0, |limit| 1.0 - (right / limit).powi(2));
        z[target as usize] -= scale * slope;
    });
}

stamp!(fn softmax_raw(z: &mut [f32], scale: f32, inverse_cap: Option<f32>) -> f32 = softmax_body);

/// z becomes scale·p, times 1 - (z/cap)²; answers with log Σ e^z.
#[inline(always)]
unsafe fn softmax_body<S: Lanes>(z: &mut [f32], scale: f32, inverse_cap: Option<f32>) -> f32 {
    let n = z.len();
    let whole = n / LANES * LANES;
    let mut end = [f32::NEG_INFINITY; LANES];
    end[..n - whole].copy_from_slice(&z[whole..]);
    // SAFETY: whole vectors, and what is left in one filled up.
    unsafe {
        let end = S::load(end.as_ptr());
        let mut top = end;
        for i in (0..whole).step_by(LANES) {
            top = top.max(S::load(z.as_ptr().add(i)));
        }
        let top = top.to_array().into_iter().fold(f32::NEG_INFINITY, f32::max);
        let shift = S::splat(top);
        let mut sums = math::exp_share(end.sub(shift));
        for i in (0..whole).step_by(LANES) {
            sums = sums.add(math::exp_share(S::load(z.as_ptr().add(i)).sub(shift)));
        }
        let sum = sums.sum();
        let (factor, inverse) = (S::splat(scale / sum), S::splat(inverse_cap.unwrap_or(0.0)));
        for i in (0..whole).step_by(LANES) {
            let p = z.as_mut_ptr().add(i);
            gradient(S::load(p), shift, factor, inverse).store(p);
        }
        let last = gradient(end, shift, factor, inverse);
        last.store_part(z.as_mut_ptr().add(whole), n - whole);
        top + sum.ln()
    }
}

/// factor·e^{z - shift}·(1 - (z·inverse)²).
#[inline(always)]
unsafe fn gradient<S: Lanes>(z: S, shift: S, factor: S, inverse: S) -> S {
    // SAFETY: as the caller's.
    unsafe {
        let t = z.mul(inverse);
        let share = math::exp_share(z.sub(shift)).mul(factor);
        share.mul(S::splat(1.0).sub(t.mul(t)))
    }
}
