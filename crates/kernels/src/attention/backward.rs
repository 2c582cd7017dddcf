//! The backward pass: probabilities are made again tile by tile, a sequence and a group of heads a task.

use super::{
    AttentionShape, KEY_TILE, LINE, backward_scratch, masked_from, outside, score_gradients, turn,
};
use crate::kv::gather;
use crate::matmul::{Init, Strided, block};
use crate::split::Split;
use crate::team::Team;

/// The gradient of [`attention_forward`](super::attention_forward) for sequences without a past
/// whose keys and values stand in the batch itself: row r of `qkv` holds H·D queries, G·D keys, G·D
/// values; `d_qkv` alike is written.
pub fn attention_backward(
    team: &Team,
    shape: &AttentionShape,
    sequences: &[(usize, usize)],
    qkv: &[f32],
    out: &[f32],
    lse: &[f32],
    d_out: &[f32],
    d_qkv: &mut [f32],
    workspace: &mut [f32],
) {
    let (h, g, d) = (shape.heads, shape.kv_heads, shape.head_dim);
    let stride = (h + 2 * g) * d;
    let rows = out.len() / (h * d);
    assert!(qkv.len() == rows * stride && d_qkv.len() == qkv.len(), "attention: R×(H+2G)D");
    assert!(d_out.len() == out.len() && lse.len() == h * rows, "attention: R×HD and H×R");
    assert!(sequences.iter().all(|s| s.0 + s.1 <= rows), "attention: sequences lie in the batch");
    let longest = sequences.iter().map(|s| s.1).max().unwrap_or(0);
    let scratch = backward_scratch(d, longest);
    assert!(workspace.len() >= team.threads() * scratch, "attention: workspace");
    let (d_qkv, workspace) = (Split::new(d_qkv), Split::new(workspace));
    team.worker_tasks(sequences.len() * g, |worker, task| {
        let (row, tokens) = sequences[task / g];
        let group = task % g;
        if tokens == 0 {
            return;
        }
        // SAFETY: a worker's workspace is its own.
        let scratch = unsafe { workspace.part(worker * scratch..(worker + 1) * scratch) };
        let lines = tokens.next_multiple_of(LINE);
        let mut rest = scratch;
        let mut take = |n: usize| {
            let (part, tail) = std::mem::take(&mut rest).split_at_mut(n);
            rest = tail;
            part
        };
        let (q_turned, d_turned) = (take(d * lines), take(d * lines));
        let (q_rows, d_rows, d_q) = (take(d * lines), take(d * lines), take(d * lines));
        let delta = take(lines);
        let (p, ds) = (take(KEY_TILE * LINE), take(KEY_TILE * LINE));
        let (k_rows, v_rows) = (take(KEY_TILE * d), take(KEY_TILE * d));
        let (d_k, d_v) = (take(KEY_TILE * d), take(KEY_TILE * d));
        for (order, head) in (group * (h / g)..(group + 1) * (h / g)).enumerate() {
            for first in (0..tokens).step_by(LINE) {
                let count = LINE.min(tokens - first);
                let span = first * d..(first + LINE) * d;
                let q = &qkv[(row + first) * stride + head * d..];
                let (q_lines, d_lines) = (&mut q_turned[span.clone()], &mut d_turned[span.clone()]);
                if count < LINE {
                    q_lines.fill(0.0);
                    d_lines.fill(0.0);
                }
                turn(q, stride, count, shape.scale, 0, q_lines);
                gather(q, stride, count, d, &mut q_rows[span.clone()]);
                let o = (row + first) * h * d + head * d;
                turn(&d_out[o..], h * d, count, 1.0, 0, d_lines);
                gather(&d_out[o..], h * d, count, d, &mut d_rows[span]);
                for i in 0..LINE {
                    delta[first + i] = if i < count {
                        let at = o + i * h * d;
                        out[at..at + d].iter().zip(&d_out[at..at + d]).map(|(o, g)| o * g).sum()
                    } else {
                        0.0
                    };
                }
            }
            for tile in (0..tokens).step_by(KEY_TILE) {
                let keys = KEY_TILE.min(tokens - tile);
                let k_at = (row + tile) * stride + (h + group) * d;
                let v_at = k_at + g * d;
                gather(&qkv[k_at..], stride, keys, d, k_rows);
                gather(&qkv[v_at..], stride, keys, d, v_rows);
                for first in (tile..tokens).step_by(LINE) {
                    let first_tile = shape.first_seen(first) / KEY_TILE * KEY_TILE;
                    if tile < first_tile {
                        break;
                    }
                    let count = LINE.min(tokens - first);
                    let at = first * d;
                    // SAFETY: scratch holds whole lines and whole tiles.
                    unsafe {
                        let product = |rows: &[f32], turned: &[f32], out: &mut [f32]| {
                            let a = Strided { start: rows.as_ptr(), row: d, col: 1 };
                            let (b, c) = (turned[at..].as_ptr(), out.as_mut_ptr());
                            block(a, b, LINE, c, LINE, keys, LINE, d, Init::Zero);
                        };
                        product(k_rows, q_turned, p);
                        product(v_rows, d_turned, ds);
                        let mut log_sums = [f32::INFINITY; LINE];
                        let from = head * rows + row + first;
                        log_sums[..count].copy_from_slice(&lse[from..from + count]);
                        let n = keys * LINE;
                        let mask = masked_from(tile, keys, first);
                        let delta = &delta[first..first + LINE];
                        score_gradients(
                            &mut p[..n],
                            &mut ds[..n],
                            &log_sums,
                            delta,
                            [1.0, shape.scale],
                            [mask, outside(shape, tile, first, count)],
                        );
                        let start = if first == tile { Init::Zero } else { Init::Keep };
                        let gradient = |lines: &[f32], rows: &[f32], out: &mut [f32]| {
                            let a = Strided { start: lines.as_ptr(), row: LINE, col: 1 };
                            let (b, c) = (rows[at..].as_ptr(), out.as_mut_ptr());
                            block(a, b, d, c, d, keys, d, count, start);
                        };
                        gradient(p, d_rows, d_v);
                        gradient(ds, q_rows, d_k);
                        let a = Strided { start: ds.as_ptr(), row: 1, col: LINE };
                        let start = if tile == first_tile { Init::Zero } else { Init::Keep };
                        let c = d_q[at..].as_mut_ptr();
                        block(a, k_rows.as_ptr(), d, c, d, count, d, keys, start);
                    }
                }
                let add = order > 0;
                // SAFETY: a task writes the rows of its sequence at its own heads.
                unsafe {
                    scatter(&d_qkv, k_at, stride, d, &d_k[..keys * d], add);
                    scatter(&d_qkv, v_at, stride, d, &d_v[..keys * d], add);
                }
            }
            // SAFETY: as above.
            unsafe {
                scatter(&d_qkv, row * stride + head * d, stride, d, &d_q[..tokens * d], false)
            };
        }
    });
}

/// Writes rows of `d` values to places `stride` apart, or adds them there.
///
/// # Safety
/// No other worker uses those places at the same time.
unsafe fn scatter(to: &Split<f32>, at: usize, stride: usize, d: usize, rows: &[f32], add: bool) {
    for (i, row) in rows.chunks_exact(d).enumerate() {
        // SAFETY: the caller's contract.
        let place = unsafe { to.part(at + i * stride..at + i * stride + d) };
        if add {
            place.iter_mut().zip(row).for_each(|(p, r)| *p += r);
        } else {
            place.copy_from_slice(row);
        }
    }
}
