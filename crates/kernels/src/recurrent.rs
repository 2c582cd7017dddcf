//! The simple recurrent layer: h_t = tanh(pre_t + W·h_{t-1} + b), sixteen sequences at a time.
//!
//! Sequences are independent, so each group runs from its first to its last token on one worker
//! and the recurrent weights stay in that worker's cache.

use crate::lanes::{LANES, Lanes, stamp};
use crate::math;
use crate::matmul::{Init, PANEL, Strided, block, packed_len, panel_width};
use crate::split::Split;
use crate::team::Team;

/// Sequences a task takes.
const GROUP: usize = 16;

/// Where the sequences of a batch stand.
#[derive(Clone, Copy, Debug)]
pub struct RnnShape<'a> {
    /// (first row, tokens) of each sequence.
    pub sequences: &'a [(usize, usize)],
    /// Hidden size.
    pub hidden: usize,
}

impl RnnShape<'_> {
    fn groups(&self) -> usize {
        self.sequences.len().div_ceil(GROUP)
    }

    /// The sequences of a group, longest first.
    fn group(&self, g: usize) -> Vec<usize> {
        let mut members: Vec<usize> =
            (g * GROUP..((g + 1) * GROUP).min(self.sequences.len())).collect();
        members.sort_by_key(|&s| (std::cmp::Reverse(self.sequences[s].1), s));
        members
    }

    fn active(&self, members: &[usize], t: usize) -> usize {
        members.iter().take_while(|&&s| self.sequences[s].1 > t).count()
    }
}

/// Values of workspace that the two passes need.
pub fn rnn_workspace(hidden: usize, threads: usize) -> usize {
    threads * 2 * GROUP * hidden
}

/// h ← tanh(h + W·h_{t-1} + b) token after token: `h` (R×hidden) holds the input's part on entry
/// and the states on return. `packed` is W (hidden×hidden) packed by
/// [`pack_transposed`](crate::pack_transposed). `states` (sequences×hidden) holds the state before
/// the first token and receives the one after the last; empty means from zero, not kept.
pub fn rnn_forward(
    team: &Team,
    shape: RnnShape,
    packed: &[f32],
    bias: &[f32],
    h: &mut [f32],
    states: &mut [f32],
    workspace: &mut [f32],
) {
    let n = shape.hidden;
    assert_eq!(packed.len(), packed_len(n, n), "recurrent weights are packed");
    assert!(bias.len() == n && workspace.len() >= rnn_workspace(n, team.threads()), "rnn: sizes");
    assert!(states.is_empty() || states.len() == shape.sequences.len() * n, "rnn: states");
    let keep_states = !states.is_empty();
    let (h, states, work) = (Split::new(h), Split::new(states), Split::new(workspace));
    team.worker_tasks(shape.groups(), |worker, g| {
        let members = shape.group(g);
        // SAFETY: a group's rows and states belong to one task, a worker's workspace to it.
        let work = unsafe { work.part(worker * 2 * GROUP * n..(worker + 1) * 2 * GROUP * n) };
        let (old, new) = work.split_at_mut(GROUP * n);
        for (i, &s) in members.iter().enumerate() {
            let row = &mut old[i * n..(i + 1) * n];
            if keep_states {
                // SAFETY: as above.
                row.copy_from_slice(unsafe { states.part(s * n..(s + 1) * n) });
            } else {
                row.fill(0.0);
            }
        }
        let longest = members.first().map_or(0, |&s| shape.sequences[s].1);
        for t in 0..longest {
            let active = shape.active(&members, t);
            for (row, &s) in new.chunks_exact_mut(n).zip(&members[..active]) {
                let at = (shape.sequences[s].0 + t) * n;
                // SAFETY: as above.
                let pre = unsafe { h.part(at..at + n) };
                row.iter_mut().zip(pre.iter().zip(bias)).for_each(|(x, (p, b))| *x = p + b);
            }
            for p in 0..n.div_ceil(PANEL) {
                let a = Strided { start: old.as_ptr(), row: n, col: 1 };
                let width = (n - p * PANEL).min(PANEL);
                // SAFETY: active rows of both halves of the workspace, one panel.
                unsafe {
                    let b = packed.as_ptr().add(p * PANEL * n);
                    let c = new.as_mut_ptr().add(p * PANEL);
                    block(a, b, panel_width(n, p), c, n, active, width, n, Init::Keep);
                }
            }
            tanh_slice(&mut new[..active * n]);
            for (i, &s) in members[..active].iter().enumerate() {
                let at = (shape.sequences[s].0 + t) * n;
                let row = &new[i * n..(i + 1) * n];
                // SAFETY: as above.
                unsafe { h.part(at..at + n) }.copy_from_slice(row);
                old[i * n..(i + 1) * n].copy_from_slice(row);
            }
        }
        if keep_states {
            for (row, &s) in old.chunks_exact(n).zip(&members) {
                // SAFETY: as above.
                unsafe { states.part(s * n..(s + 1) * n) }.copy_from_slice(row);
            }
        }
    });
}

/// The gradient of [`rnn_forward`] from zero states: `d` holds d_h on entry and the gradient of
/// the input's part on return; d_weight (hidden×hidden) and d_bias are added to.
pub fn rnn_backward(
    team: &Team,
    shape: RnnShape,
    weight: &[f32],
    h: &[f32],
    d: &mut [f32],
    d_weight: &mut [f32],
    d_bias: &mut [f32],
    workspace: &mut [f32],
) {
    let n = shape.hidden;
    assert!(weight.len() == n * n && d_weight.len() == n * n && h.len() == d.len(), "rnn: sizes");
    assert!(workspace.len() >= rnn_workspace(n, team.threads()), "rnn: workspace");
    let rows = d.len() / n;
    {
        let (d, work) = (Split::new(d), Split::new(workspace));
        team.worker_tasks(shape.groups(), |worker, g| {
            let members = shape.group(g);
            // SAFETY: a group's rows belong to one task, a worker's workspace to it.
            let work = unsafe { work.part(worker * 2 * GROUP * n..(worker + 1) * 2 * GROUP * n) };
            let (carry, inner) = work.split_at_mut(GROUP * n);
            carry.fill(0.0);
            let longest = members.first().map_or(0, |&s| shape.sequences[s].1);
            for t in (0..longest).rev() {
                let active = shape.active(&members, t);
                for (i, &s) in members[..active].iter().enumerate() {
                    let at = (shape.sequences[s].0 + t) * n;
                    // SAFETY: as above.
                    let d = unsafe { d.part(at..at + n) };
                    let (h, carry) = (&h[at..at + n], &carry[i * n..(i + 1) * n]);
                    let inner = &mut inner[i * n..(i + 1) * n];
                    for c in 0..n {
                        let x = (d[c] + carry[c]) * (1.0 - h[c] * h[c]);
                        d[c] = x;
                        inner[c] = x;
                    }
                }
                let a = Strided { start: inner.as_ptr(), row: n, col: 1 };
                // SAFETY: active rows of both halves of the workspace.
                unsafe {
                    block(a, weight.as_ptr(), n, carry.as_mut_ptr(), n, active, n, n, Init::Zero);
                }
            }
        });
    }
    let d: &[f32] = d;
    // d_weight[i, j] += Σ d[r, i]·h[r - 1, j] over rows that have a row before them.
    row_chunks_of(team, d_weight, n, |first, part| {
        for &(row, tokens) in shape.sequences.iter().filter(|s| s.1 > 1) {
            let a = Strided { start: d[(row + 1) * n + first..].as_ptr(), row: 1, col: n };
            let m = part.len() / n;
            // SAFETY: tokens - 1 rows of d from the second on, as many of h from the first on.
            unsafe {
                block(
                    a,
                    h[row * n..].as_ptr(),
                    n,
                    part.as_mut_ptr(),
                    n,
                    m,
                    n,
                    tokens - 1,
                    Init::Keep,
                );
            }
        }
    });
    crate::reduce::column_sums(team, d, rows, n, 0, d_bias);
}

/// Runs of 24 rows: small matrices shared out finely.
fn row_chunks_of(team: &Team, out: &mut [f32], width: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    const ROWS: usize = 24;
    let rows = out.len() / width;
    let out = Split::new(out);
    team.tasks(rows.div_ceil(ROWS), |i| {
        let (from, to) = (i * ROWS, ((i + 1) * ROWS).min(rows));
        // SAFETY: runs do not overlap.
        f(from, unsafe { out.part(from * width..to * width) });
    });
}

#[inline(always)]
unsafe fn tanh_body<S: Lanes>(x: &mut [f32]) {
    // SAFETY: part loads and stores stay inside the slice.
    unsafe {
        for chunk in x.chunks_mut(LANES) {
            let v = S::load_part(chunk.as_ptr(), chunk.len());
            math::tanh(v).store_part(chunk.as_mut_ptr(), chunk.len());
        }
    }
}
stamp!(fn tanh_raw(x: &mut [f32]) = tanh_body);
fn tanh_slice(x: &mut [f32]) {
    // SAFETY: the body stays inside the slice.
    unsafe { tanh_raw(x) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, pack_transposed, reference};

    fn plain(
        pre: &[f64],
        w: &[f64],
        b: &[f64],
        sequences: &[(usize, usize)],
        n: usize,
    ) -> Vec<f64> {
        let mut h = pre.to_vec();
        for &(row, tokens) in sequences {
            for t in 0..tokens {
                for i in 0..n {
                    let mut x = pre[(row + t) * n + i] + b[i];
                    if t > 0 {
                        x += (0..n).map(|j| w[i * n + j] * h[(row + t - 1) * n + j]).sum::<f64>();
                    }
                    h[(row + t) * n + i] = x.tanh();
                }
            }
        }
        h
    }

    #[test]
    fn states_and_gradients_agree_with_finite_differences() {
        let _level = crate::isa::hold();
        let n = 7;
        let sequences: Vec<(usize, usize)> = [3usize, 1, 5, 2]
            .iter()
            .scan(0, |at, &l| {
                *at += l;
                Some((*at - l, l))
            })
            .collect();
        let rows = 11;
        let at = |seed: u64, n: usize| -> Vec<f32> {
            (0..n as u64).map(|i| 0.6 * crate::normal(seed, i)).collect()
        };
        let wide = |x: &[f32]| -> Vec<f64> { x.iter().map(|&x| f64::from(x)).collect() };
        let (pre, w, b, d) = (at(1, rows * n), at(2, n * n), at(3, n), at(4, rows * n));
        let (pre64, w64, b64) = (wide(&pre), wide(&w), wide(&b));
        for isa in Isa::available() {
            isa.force();
            let team = Team::new(2);
            let shape = RnnShape { sequences: &sequences, hidden: n };
            let mut packed = vec![0.0; packed_len(n, n)];
            pack_transposed(&team, &w, n, n, &mut packed);
            let mut work = vec![0.0; rnn_workspace(n, 2)];
            let mut h = pre.clone();
            rnn_forward(&team, shape, &packed, &b, &mut h, &mut [], &mut work);
            reference::assert_close(&h, &plain(&pre64, &w64, &b64, &sequences, n), 1e-6, "h");
            let (mut dpre, mut dw, mut db) = (d.clone(), vec![0.0; n * n], vec![0.0; n]);
            rnn_backward(&team, shape, &w, &h, &mut dpre, &mut dw, &mut db, &mut work);
            let loss = |h: Vec<f64>| h.iter().zip(&d).map(|(h, &d)| h * f64::from(d)).sum();
            let right =
                reference::numeric_gradient(&pre64, |p| loss(plain(p, &w64, &b64, &sequences, n)));
            reference::assert_close(&dpre, &right, 2e-6, "d_pre");
            let right =
                reference::numeric_gradient(&w64, |w| loss(plain(&pre64, w, &b64, &sequences, n)));
            reference::assert_close(&dw, &right, 2e-6, "d_weight");
            let right =
                reference::numeric_gradient(&b64, |b| loss(plain(&pre64, &w64, b, &sequences, n)));
            reference::assert_close(&db, &right, 2e-6, "d_bias");

            // Token by token with kept states: the same bits.
            let mut states = vec![0.0; sequences.len() * n];
            let mut steps = pre.clone();
            for t in 0..5 {
                for (s, &(row, tokens)) in sequences.iter().enumerate() {
                    if t < tokens {
                        let one = RnnShape { sequences: &[(0, 1)], hidden: n };
                        let h = &mut steps[(row + t) * n..(row + t + 1) * n];
                        let state = &mut states[s * n..(s + 1) * n];
                        rnn_forward(&team, one, &packed, &b, h, state, &mut work);
                    }
                }
            }
            assert_eq!(steps, h);
        }
    }
}
