//! Causal attention in tiles with a running softmax: the score matrix is never stored.
//!
//! Keys come in tiles of 64 at absolute positions divisible by 64, queries 64 at a time. Scores
//! are kept transposed (a key a line, the queries as lanes), so that softmax needs no sum across
//! lanes; what lies far apart in the batch is gathered a tile at a time. A
//! query's result is one chain over the keys before it, so neither the chunking of a prompt nor
//! what follows changes its bits. After Dao et al., "FlashAttention", arXiv 2205.14135.

use crate::kv::{Kv, Run, gather};
use crate::lanes::{LANES, Lanes, stamp};
use crate::math;
use crate::matmul::{Init, Strided, block};
use crate::split::Split;
use crate::team::Team;

/// Keys a tile holds; tiles start at absolute positions divisible by it.
pub const KEY_TILE: usize = 64;
/// Queries a block holds: a line of lanes.
pub(crate) const LINE: usize = 64;
const VECS: usize = LINE / LANES;

/// Sizes of an attention layer.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// H.
    pub heads: usize,
    /// G; H is a multiple of it.
    pub kv_heads: usize,
    /// D.
    pub head_dim: usize,
    /// What scores are multiplied by, 1/√D as a rule.
    pub scale: f32,
    /// Positions that a query sees, its own counted; all before it when absent.
    pub window: Option<usize>,
}

impl AttentionShape {
    /// The first position that the query at `position` sees.
    pub(crate) fn first_seen(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

/// Rows of a batch that belong to one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The first row.
    pub row: usize,
    /// Rows: the sequence's new tokens.
    pub queries: usize,
    /// Positions before them; keys and values hold `past + queries` positions.
    pub past: usize,
    /// Its keys and values.
    pub kv: Kv<'a>,
}

fn forward_scratch(d: usize) -> usize {
    // Queries turned, scores, outputs, running maximum and sum, one factor a query, keys, values.
    d * LINE + KEY_TILE * LINE + LINE * d + 3 * LINE + 2 * KEY_TILE * d
}

fn backward_scratch(d: usize, longest: usize) -> usize {
    let lines = longest.next_multiple_of(LINE);
    // Queries and output gradients as they are and turned, query gradients, one number a query;
    // two tiles of scores; keys, values and their gradients.
    5 * d * lines + lines + 2 * KEY_TILE * LINE + 4 * KEY_TILE * d
}

/// Values of workspace that the forward pass needs, and with `longest > 0` the backward pass over
/// sequences of up to that many tokens: linear in the length.
pub fn attention_workspace(shape: &AttentionShape, threads: usize, longest: usize) -> usize {
    let forward = forward_scratch(shape.head_dim);
    let backward = if longest > 0 { backward_scratch(shape.head_dim, longest) } else { 0 };
    threads * (forward.max(backward) + 1)
}

/// The largest score of the forward passes since the last call; a workspace is one of
/// [`attention_workspace`].
pub fn largest_score(workspace: &mut [f32], threads: usize) -> f32 {
    let at = workspace.len() - threads;
    let largest = workspace[at..].iter().copied().fold(f32::NEG_INFINITY, f32::max);
    workspace[at..].fill(f32::NEG_INFINITY);
    largest
}

/// out[r, h] = Σ_j softmax_j(scale·q_r·k_j)·v_j over the positions up to r's own.
///
/// Queries start every row of `q`, `q_stride` apart (H·D values used); `out`: R×(H·D). `lse` (H×R,
/// R all rows of the batch, or empty) receives log Σ e^score, which the backward pass needs.
pub fn attention_forward(
    team: &Team,
    shape: &AttentionShape,
    segments: &[Segment],
    q: &[f32],
    q_stride: usize,
    out: &mut [f32],
    lse: &mut [f32],
    workspace: &mut [f32],
) {
    let (h, d) = (shape.heads, shape.head_dim);
    let rows = out.len() / (h * d);
    check(shape, segments, rows, q.len(), q_stride);
    let keep_lse = !lse.is_empty();
    assert!(!keep_lse || lse.len() == h * rows, "attention: a log-sum a head and row");
    let scratch = forward_scratch(d);
    assert!(workspace.len() >= team.threads() * (scratch + 1), "attention: workspace");
    let (workspace, largest) = workspace.split_at_mut(workspace.len() - team.threads());
    let largest = Split::new(largest);
    let work = pieces_of(shape, segments);
    let (out, lse, workspace) = (Split::new(out), Split::new(lse), Split::new(workspace));
    team.worker_tasks(work.len(), |worker, task| {
        let Piece { segment, first, head, heads } = work[task];
        let segment = &segments[segment];
        // SAFETY: a worker's workspace is its own.
        let scratch = unsafe { workspace.part(worker * scratch..(worker + 1) * scratch) };
        let desk = Desk::new(scratch, d);
        let count = LINE.min(segment.queries - first);
        let (row, position) = (segment.row + first, segment.past + first);
        let piece = Lines { shape, kv: &segment.kv, position, count, head, heads };
        let q = &q[row * q_stride + head * d..];
        let (sums, running) = if segment.kv.lanes == LANES && heads * count <= FEW {
            piece.few(q, q_stride, desk)
        } else {
            piece.many(q, q_stride, desk)
        };
        // SAFETY: a worker's place is its own.
        let most = unsafe { &mut largest.part(worker..worker + 1)[0] };
        *most = running[..heads * count].iter().copied().fold(*most, f32::max);
        for (lane, sums) in sums.chunks_exact(d).take(heads * count).enumerate() {
            let (head, i) = (head + lane / count, lane % count);
            let inverse = 1.0 / running[LINE + lane];
            let at = (row + i) * h * d + head * d;
            // SAFETY: a piece's rows and heads are its own.
            unsafe {
                let out = out.part(at..at + d);
                out.iter_mut().zip(sums).for_each(|(o, s)| *o = s * inverse);
                if keep_lse {
                    let at = head * rows + row + i;
                    lse.part(at..at + 1)[0] = running[lane] + running[LINE + lane].ln();
                }
            }
        }
    });
}

/// Rows of queries, over all heads of a piece, that are fewer than lanes pay for.
const FEW: usize = 12;

/// A worker's room.
struct Desk<'a> {
    /// Queries: turned (D×64), or row by row.
    queries: &'a mut [f32],
    /// 64×64: a line a key, or a row a query.
    scores: &'a mut [f32],
    /// A row of D a query.
    sums: &'a mut [f32],
    /// Maxima, sums, factors.
    running: &'a mut [f32],
    key_rows: &'a mut [f32],
    value_rows: &'a mut [f32],
}

impl<'a> Desk<'a> {
    fn new(scratch: &'a mut [f32], d: usize) -> Desk<'a> {
        let (queries, rest) = scratch.split_at_mut(d * LINE);
        let (scores, rest) = rest.split_at_mut(KEY_TILE * LINE);
        let (sums, rest) = rest.split_at_mut(LINE * d);
        let (running, rest) = rest.split_at_mut(3 * LINE);
        let (key_rows, value_rows) = rest.split_at_mut(KEY_TILE * d);
        running[..LINE].fill(f32::NEG_INFINITY);
        running[LINE..].fill(0.0);
        Desk { queries, scores, sums, running, key_rows, value_rows }
    }
}

/// Some queries of a sequence, of some heads that share keys and values.
struct Lines<'a> {
    shape: &'a AttentionShape,
    kv: &'a Kv<'a>,
    /// Of the first query.
    position: usize,
    count: usize,
    /// The first head, and how many.
    head: usize,
    heads: usize,
}

impl Lines<'_> {
    fn group(&self) -> usize {
        self.head / (self.shape.heads / self.shape.kv_heads)
    }

    /// Where tiles of keys begin that any query sees, and how many keys each has. A tile that a query
    /// does not see leaves its running values as they are at the start, so that it does not matter which
    /// other queries stand beside it.
    fn tiles(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let end = self.position + self.count;
        let first = self.shape.first_seen(self.position) / KEY_TILE * KEY_TILE;
        (first..end).step_by(KEY_TILE).map(move |tile| (tile, KEY_TILE.min(end - tile)))
    }

    /// Queries are lanes, a line a key. Gives sums and running values.
    fn many<'d>(&self, q: &[f32], q_stride: usize, desk: Desk<'d>) -> (&'d [f32], &'d [f32]) {
        let (d, count, used) = (self.shape.head_dim, self.count, self.heads * self.count);
        let Desk { queries: turned, scores, sums, running, key_rows, value_rows } = desk;
        // Lanes beyond those used are not computed: one query costs a quarter of a line.
        let lanes = used.next_multiple_of(LANES);
        let mut places = [0.0; LINE];
        for i in 0..self.heads {
            turn(&q[i * d..], q_stride, count, self.shape.scale, i * count, turned);
            places[i * count..(i + 1) * count].copy_from_slice(&IOTA[..count]);
        }
        let mut start = Init::Zero;
        for (tile, keys) in self.tiles() {
            self.kv.gather(tile, keys, self.group(), key_rows, value_rows, d);
            let mut product = |keys: &[f32], stride: (usize, usize), from: usize, rows: usize| {
                let k = Strided { start: keys.as_ptr(), row: stride.0, col: stride.1 };
                let scores = scores[from * LINE..].as_mut_ptr();
                // SAFETY: so many keys of D values; scratch holds whole lines and whole tiles.
                unsafe {
                    block(k, turned.as_ptr(), LINE, scores, LINE, rows, lanes, d, Init::Zero);
                }
            };
            if self.kv.lanes == LANES {
                for from in (0..keys).step_by(LANES) {
                    let together = self.kv.block(tile + from, self.group(), d);
                    product(together, (1, LANES), from, LANES.min(keys - from));
                }
            } else {
                product(key_rows, (d, 1), 0, keys);
            }
            softmax_tile(
                &mut scores[..keys * LINE],
                lanes,
                1.0,
                running,
                &places,
                masked_from(tile, keys, self.position),
                outside(self.shape, tile, self.position, count),
            );
            if matches!(start, Init::Keep) {
                scale_rows(&mut sums[..used * d], &running[2 * LINE..], d);
            }
            let p = Strided { start: scores.as_ptr(), row: 1, col: LINE };
            // SAFETY: as above.
            unsafe { block(p, value_rows.as_ptr(), d, sums.as_mut_ptr(), d, used, d, keys, start) };
            start = Init::Keep;
        }
        (sums, running)
    }

    /// Keys are lanes, a row a query: what is read once is not copied together first. The same chains.
    fn few<'d>(&self, q: &[f32], q_stride: usize, desk: Desk<'d>) -> (&'d [f32], &'d [f32]) {
        let (d, count, used) = (self.shape.head_dim, self.count, self.heads * self.count);
        let Desk { queries, scores, sums, running, .. } = desk;
        for (lane, row) in queries.chunks_exact_mut(d).take(used).enumerate() {
            let q = &q[lane % count * q_stride + lane / count * d..];
            row.iter_mut().zip(q).for_each(|(out, q)| *out = q * self.shape.scale);
        }
        let mut start = Init::Zero;
        for (tile, keys) in self.tiles() {
            let block_of = |i: usize| {
                let from = if i * LANES < keys { i * LANES } else { 0 };
                self.kv.block(tile + from, self.group(), d).as_ptr()
            };
            let together = std::array::from_fn(block_of);
            let rows = &mut scores[..used * KEY_TILE];
            // SAFETY: a row of D values a query, D·16 values a block.
            unsafe { few_scores_raw(queries.as_ptr(), d, &together, rows) };
            for (lane, row) in rows.chunks_exact_mut(KEY_TILE).enumerate() {
                let position = self.position + lane % count;
                let last = (position + 1).saturating_sub(tile).min(keys);
                let first = self.shape.first_seen(position).saturating_sub(tile).min(last);
                row[..first].fill(f32::NEG_INFINITY);
                row[last..].fill(f32::NEG_INFINITY);
                // SAFETY: a tile of scores.
                unsafe { softmax_row_raw(row, first..last, running, lane) };
            }
            if matches!(start, Init::Keep) {
                scale_rows(&mut sums[..used * d], &running[2 * LINE..], d);
            }
            for Run { from, keys, values, stride } in self.kv.runs(tile, keys, self.group(), d) {
                let p = Strided { start: scores[from..].as_ptr(), row: KEY_TILE, col: 1 };
                let sums = sums.as_mut_ptr();
                // SAFETY: a run holds rows of D values.
                unsafe { block(p, values.as_ptr(), stride, sums, d, used, d, keys, start) };
                start = Init::Keep;
            }
        }
        (sums, running)
    }
}

/// Blocks of keys that make a tile.
const BLOCKS: usize = KEY_TILE / LANES;

/// The scores of queries (a row of D a query) with a tile of keys: a row of 64 a query.
#[inline(always)]
unsafe fn few_scores_body<S: Lanes>(
    q: *const f32,
    d: usize,
    keys: &[*const f32; BLOCKS],
    scores: &mut [f32],
) {
    const TOGETHER: usize = 3;
    let rows = scores.len() / KEY_TILE;
    // SAFETY: the caller's rows and blocks.
    unsafe {
        for row in (0..rows).step_by(TOGETHER) {
            let (q, out) = (q.add(row * d), scores[row * KEY_TILE..].as_mut_ptr());
            match rows - row {
                1 => score_rows::<S, 1>(q, d, keys, out),
                2 => score_rows::<S, 2>(q, d, keys, out),
                _ => score_rows::<S, TOGETHER>(q, d, keys, out),
            }
        }
    }
}
stamp!(fn few_scores_raw(
    q: *const f32, d: usize, keys: &[*const f32; BLOCKS], scores: &mut [f32]
) = few_scores_body);

#[inline(always)]
unsafe fn score_rows<S: Lanes, const M: usize>(
    q: *const f32,
    d: usize,
    keys: &[*const f32; BLOCKS],
    out: *mut f32,
) {
    // SAFETY: as the caller's.
    unsafe {
        let mut sums = [[S::splat(0.0); BLOCKS]; M];
        for c in 0..d {
            let keys = [0, 1, 2, 3].map(|i: usize| keys[i].add(c * LANES));
            for (m, sums) in sums.iter_mut().enumerate() {
                let q = S::splat(*q.add(m * d + c));
                for i in 0..BLOCKS {
                    sums[i] = S::load(keys[i]).fma(q, sums[i]);
                }
            }
        }
        for (m, sums) in sums.iter().enumerate() {
            for (i, sum) in sums.iter().enumerate() {
                sum.store(out.add(m * KEY_TILE + i * LANES));
            }
        }
    }
}

/// One query's scores become probabilities relative to its running maximum, as [`softmax_tile`] makes
/// them; `seen` are the keys that it sees.
#[inline(always)]
unsafe fn softmax_row_body<S: Lanes>(
    row: &mut [f32],
    seen: std::ops::Range<usize>,
    running: &mut [f32],
    lane: usize,
) {
    // SAFETY: a tile of scores.
    unsafe {
        let old = running[lane];
        let mut most = S::splat(old);
        for block in row.chunks_exact(LANES) {
            most = most.max(S::load(block.as_ptr()));
        }
        let max = most.largest();
        let safe = if max > f32::MIN { max } else { f32::MIN };
        for block in row.chunks_exact_mut(LANES) {
            let p = block.as_mut_ptr();
            math::exp_share(S::load(p).sub(S::splat(safe))).store(p);
        }
        // One after another, as lanes of queries add them; what is hidden would add 0.
        let sum = row[seen].iter().fold(0.0, |sum, e| sum + e);
        let factor = math::exp_share(S::splat(old).sub(S::splat(safe)));
        let total = S::splat(running[LINE + lane]).fma(factor, S::splat(sum));
        running[lane] = max;
        running[LINE + lane] = total.to_array()[0];
        running[2 * LINE + lane] = factor.to_array()[0];
    }
}
stamp!(fn softmax_row_raw(
    row: &mut [f32], seen: std::ops::Range<usize>, running: &mut [f32], lane: usize
) = softmax_row_body);

/// The gradient of [`attention_forward`] for sequences without a past whose keys and values stand
/// in the batch itself: row r of `qkv` holds H·D queries, G·D keys, G·D values; `d_qkv` alike is
/// written.
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

fn check(shape: &AttentionShape, segments: &[Segment], rows: usize, q_len: usize, q_stride: usize) {
    let (h, g, d) = (shape.heads, shape.kv_heads, shape.head_dim);
    assert!(g > 0 && h.is_multiple_of(g), "attention: heads are shared out evenly");
    for s in segments.iter().filter(|s| s.queries > 0) {
        assert!(s.row + s.queries <= rows, "attention: a segment lies in the batch");
        assert!((s.row + s.queries - 1) * q_stride + h * d <= q_len, "attention: queries");
        let width = s.kv.kind.row_words(g, d);
        assert!(s.kv.holds(s.past + s.queries, width), "attention: keys and values");
    }
}

/// What a worker does at a time: a block of queries, and as many heads that share keys and values as
/// a line has room for.
#[derive(Clone, Copy)]
struct Piece {
    segment: usize,
    /// The first query.
    first: usize,
    /// The first head, and how many.
    head: usize,
    heads: usize,
}

/// The costliest first.
fn pieces_of(shape: &AttentionShape, segments: &[Segment]) -> Vec<Piece> {
    let mut blocks: Vec<(usize, usize)> = segments
        .iter()
        .enumerate()
        .flat_map(|(i, s)| (0..s.queries).step_by(LINE).map(move |first| (i, first)))
        .collect();
    blocks.sort_by_key(|&(i, first)| std::cmp::Reverse(segments[i].past + first));
    let per_group = shape.heads / shape.kv_heads;
    let pieces_of_block = |(segment, first): (usize, usize)| {
        let segments: &[Segment] = segments;
        let together = (LINE / LINE.min(segments[segment].queries - first)).min(per_group);
        (0..shape.heads).step_by(per_group).flat_map(move |group| {
            (0..per_group).step_by(together).map(move |head| {
                let heads = together.min(per_group - head);
                Piece { segment, first, head: group + head, heads }
            })
        })
    };
    blocks.into_iter().flat_map(pieces_of_block).collect()
}

/// The number by which the first key's position lies before the first query's, as lines count it:
/// key j is hidden from query i when j - i > this; `None` when no key of the tile is hidden.
pub(crate) fn masked_from(tile: usize, keys: usize, position: usize) -> Option<f32> {
    (tile + keys - 1 > position).then_some(position as f32 - tile as f32)
}

/// As [`masked_from`], for the other end of a window: key j is hidden from query i when i - j is at
/// least this; `None` when every key of the tile lies in the window of every query.
pub(crate) fn outside(
    shape: &AttentionShape,
    tile: usize,
    position: usize,
    count: usize,
) -> Option<f32> {
    let window = shape.window?;
    (shape.first_seen(position + count - 1) > tile)
        .then_some((tile + window) as f32 - position as f32)
}

/// xᵀ·factor: D lines, of which `count` lanes from `lane` on, from `count` rows.
fn turn(x: &[f32], stride: usize, count: usize, factor: f32, lane: usize, out: &mut [f32]) {
    let lines = out.chunks_exact_mut(LINE);
    for (c, line) in lines.enumerate() {
        for (i, v) in line[lane..lane + count].iter_mut().enumerate() {
            *v = x[i * stride + c] * factor;
        }
    }
}

fn scale_rows(rows: &mut [f32], factors: &[f32], d: usize) {
    for (row, f) in rows.chunks_exact_mut(d).zip(factors) {
        row.iter_mut().for_each(|v| *v *= f);
    }
}

pub(crate) const IOTA: [f32; LINE] = {
    let mut out = [0.0; LINE];
    let mut i = 0;
    while i < LINE {
        out[i] = i as f32;
        i += 1;
    }
    out
};

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
        for i in 0..VECS {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, KvKind, key_lanes, reference, store_keys};

    fn values(n: usize, seed: u64) -> Vec<f32> {
        (0..n as u64).map(|i| crate::normal(seed, i)).collect()
    }

    fn head(
        x: &[f32],
        rows: std::ops::Range<usize>,
        stride: usize,
        from: usize,
        d: usize,
    ) -> Vec<f64> {
        rows.flat_map(|r| x[r * stride + from..r * stride + from + d].iter().map(|&v| f64::from(v)))
            .collect()
    }

    #[test]
    fn forward_and_backward_agree_with_the_plain_loop() {
        let _level = crate::isa::hold();
        let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 5, scale: 0.4, window: None };
        let (h, g, d) = (4, 2, 5);
        let stride = (h + 2 * g) * d;
        let sequences = [(0, 70), (70, 3), (73, 1), (74, 130)];
        let rows = 204;
        let (qkv, d_out) = (values(rows * stride, 1), values(rows * h * d, 2));
        for isa in Isa::available() {
            isa.force();
            for threads in [1, 2] {
                let team = Team::new(threads);
                let segments: Vec<Segment> = sequences
                    .iter()
                    .map(|&(row, queries)| Segment {
                        row,
                        queries,
                        past: 0,
                        kv: Kv::whole(
                            &qkv[row * stride + h * d..],
                            &qkv[row * stride + (h + g) * d..],
                            stride,
                        ),
                    })
                    .collect();
                let (mut out, mut lse) = (vec![0.0; rows * h * d], vec![0.0; h * rows]);
                let mut work = vec![0.0; attention_workspace(&shape, threads, 130)];
                attention_forward(
                    &team, &shape, &segments, &qkv, stride, &mut out, &mut lse, &mut work,
                );
                let mut d_qkv = vec![3.0; qkv.len()];
                attention_backward(
                    &team, &shape, &sequences, &qkv, &out, &lse, &d_out, &mut d_qkv, &mut work,
                );
                for &(row, tokens) in &sequences {
                    let span = row..row + tokens;
                    let (mut dk, mut dv) =
                        (vec![vec![0.0; tokens * d]; g], vec![vec![0.0; tokens * d]; g]);
                    for head_index in 0..h {
                        let group = head_index / 2;
                        let q = head(&qkv, span.clone(), stride, head_index * d, d);
                        let k = head(&qkv, span.clone(), stride, (h + group) * d, d);
                        let v = head(&qkv, span.clone(), stride, (h + g + group) * d, d);
                        let (right, right_lse) = reference::attention(&q, &k, &v, d, 0, 0.4);
                        let got: Vec<f32> = head(&out, span.clone(), h * d, head_index * d, d)
                            .iter()
                            .map(|&x| x as f32)
                            .collect();
                        reference::assert_close(&got, &right, 3e-6, "out");
                        reference::assert_close(
                            &lse[head_index * rows + row..][..tokens],
                            &right_lse,
                            2e-6,
                            "lse",
                        );
                        if tokens > 8 {
                            continue;
                        }
                        let go = head(&d_out, span.clone(), h * d, head_index * d, d);
                        let loss = |q: &[f64], k: &[f64], v: &[f64]| -> f64 {
                            reference::attention(q, k, v, d, 0, 0.4)
                                .0
                                .iter()
                                .zip(&go)
                                .map(|(o, g)| o * g)
                                .sum()
                        };
                        let dq = reference::numeric_gradient(&q, |q| loss(q, &k, &v));
                        let got: Vec<f32> = head(&d_qkv, span.clone(), stride, head_index * d, d)
                            .iter()
                            .map(|&x| x as f32)
                            .collect();
                        reference::assert_close(&got, &dq, 1e-5, "d_q");
                        let add = |a: &mut Vec<f64>, b: Vec<f64>| {
                            a.iter_mut().zip(b).for_each(|(a, b)| *a += b)
                        };
                        add(&mut dk[group], reference::numeric_gradient(&k, |k| loss(&q, k, &v)));
                        add(&mut dv[group], reference::numeric_gradient(&v, |v| loss(&q, &k, v)));
                    }
                    if tokens <= 8 {
                        for group in 0..g {
                            for (from, right) in
                                [(h + group, &dk[group]), (h + g + group, &dv[group])]
                            {
                                let got: Vec<f32> = head(&d_qkv, span.clone(), stride, from * d, d)
                                    .iter()
                                    .map(|&x| x as f32)
                                    .collect();
                                reference::assert_close(&got, right, 1e-5, "d_k, d_v");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn backward_across_tiles_and_windows() {
        for window in [None, Some(1), Some(10), Some(64), Some(70), Some(149)] {
            backward_across_tiles(window);
        }
    }

    /// Long sequences cross tiles: checked against the softmax Jacobian written out in f64.
    fn backward_across_tiles(window: Option<usize>) {
        let _level = crate::isa::hold();
        let shape = AttentionShape { heads: 1, kv_heads: 1, head_dim: 3, scale: 0.5, window };
        let (d, n) = (3, 150);
        let (qkv, d_out) = (values(n * 9, 5), values(n * 3, 6));
        let (q, k, v) =
            (head(&qkv, 0..n, 9, 0, d), head(&qkv, 0..n, 9, 3, d), head(&qkv, 0..n, 9, 6, d));
        let go: Vec<f64> = d_out.iter().map(|&x| f64::from(x)).collect();
        let mut right = vec![0.0; n * 9];
        for i in 0..n {
            let seen = window.map_or(0, |w| (i + 1).saturating_sub(w))..=i;
            let score = |j: usize| 0.5 * (0..d).map(|c| q[i * d + c] * k[j * d + c]).sum::<f64>();
            let sum: f64 = seen.clone().map(|j| score(j).exp()).sum();
            let share = |j: usize| score(j).exp() / sum;
            let o = |c: usize| seen.clone().map(|j| share(j) * v[j * d + c]).sum::<f64>();
            let delta: f64 = (0..d).map(|c| go[i * d + c] * o(c)).sum();
            for j in seen.clone() {
                let p = share(j);
                let dp: f64 = (0..d).map(|c| go[i * d + c] * v[j * d + c]).sum();
                let ds = p * (dp - delta) * 0.5;
                for c in 0..d {
                    right[i * 9 + c] += ds * k[j * d + c];
                    right[j * 9 + 3 + c] += ds * q[i * d + c];
                    right[j * 9 + 6 + c] += p * go[i * d + c];
                }
            }
        }
        let team = Team::new(2);
        let kv = Kv::whole(&qkv[3..], &qkv[6..], 9);
        let segment = Segment { row: 0, queries: n, past: 0, kv };
        let (mut out, mut lse, mut d_qkv) = (vec![0.0; n * 3], vec![0.0; n], vec![0.0; n * 9]);
        let mut work = vec![0.0; attention_workspace(&shape, 2, n)];
        attention_forward(&team, &shape, &[segment], &qkv, 9, &mut out, &mut lse, &mut work);
        attention_backward(
            &team,
            &shape,
            &[(0, n)],
            &qkv,
            &out,
            &lse,
            &d_out,
            &mut d_qkv,
            &mut work,
        );
        reference::assert_close(&d_qkv, &right, 1e-5, "d_qkv");
    }

    #[test]
    fn a_window_hides_what_lies_before_it() {
        let _level = crate::isa::hold();
        let (n, window) = (150, 70);
        let (q, k, v) = (values(n * 3, 1), values(n * 3, 2), values(n * 3, 3));
        let wide = |x: &[f32]| x.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
        let (q64, k64, v64) = (wide(&q), wide(&k), wide(&v));
        let mut right = Vec::new();
        for i in 0..n {
            let seen = (i + 1).saturating_sub(window)..i + 1;
            let score = |j: usize| (0..3).map(|c| q64[i * 3 + c] * k64[j * 3 + c]).sum::<f64>();
            let e: Vec<f64> = seen.clone().map(|j| (0.5 * score(j)).exp()).collect();
            let sum: f64 = e.iter().sum();
            right.extend(
                (0..3).map(|c| {
                    seen.clone().zip(&e).map(|(j, e)| e / sum * v64[j * 3 + c]).sum::<f64>()
                }),
            );
        }
        let shape =
            AttentionShape { heads: 1, kv_heads: 1, head_dim: 3, scale: 0.5, window: Some(window) };
        for isa in Isa::available() {
            isa.force();
            let team = Team::new(2);
            let mut work = vec![0.0; attention_workspace(&shape, 2, 0)];
            let kv = Kv::whole(&k, &v, 3);
            let segment = Segment { row: 0, queries: n, past: 0, kv };
            let mut out = vec![0.0; n * 3];
            attention_forward(&team, &shape, &[segment], &q, 3, &mut out, &mut [], &mut work);
            reference::assert_close(&out, &right, 1e-5, "windowed attention");
        }
    }

    #[test]
    fn chunks_and_single_steps_give_the_same_bits() {
        same_bits(None);
        for window in [1, 64, 65, 100] {
            same_bits(Some(window));
        }
    }

    /// Keys and values scattered over pages of several sizes, read in several pieces.
    #[test]
    fn pages_give_the_same_bits() {
        let _level = crate::isa::hold();
        for isa in Isa::available() {
            isa.force();
            pages_give_the_same_bits_here();
        }
    }

    fn pages_give_the_same_bits_here() {
        let n = 150;
        let (q, k, v) = (values(n * 16, 1), values(n * 8, 2), values(n * 8, 3));
        let team = Team::new(2);
        for window in [None, Some(70)] {
            let shape = AttentionShape { heads: 2, kv_heads: 1, head_dim: 8, scale: 0.35, window };
            let mut work = vec![0.0; attention_workspace(&shape, 2, 0)];
            let mut run = |kv: Kv, pieces: &[usize]| {
                let (mut all, mut past) = (Vec::new(), 0);
                for &queries in pieces {
                    let mut out = vec![0.0; queries * 16];
                    let segment = Segment { row: 0, queries, past, kv };
                    let q = &q[past * 16..];
                    attention_forward(
                        &team,
                        &shape,
                        &[segment],
                        q,
                        16,
                        &mut out,
                        &mut [],
                        &mut work,
                    );
                    all.extend(out.iter().map(|x: &f32| x.to_bits()));
                    past += queries;
                }
                all
            };
            let whole = run(Kv::whole(&k, &v, 8), &[n]);
            for page_tokens in [1, 5, 16, 64, 128] {
                let count = n.div_ceil(page_tokens);
                // Backwards, with a page of rubbish between any two.
                let pages: Vec<u32> = (0..count as u32).rev().map(|p| 2 * p).collect();
                let rows = 2 * count * page_tokens;
                let (mut keys, mut values) = (vec![f32::NAN; rows * 8], vec![f32::NAN; rows * 8]);
                let kind = KvKind::F32;
                let lanes = key_lanes(kind, page_tokens);
                for j in 0..n {
                    let (page, inside) = (pages[j / page_tokens] as usize, j % page_tokens);
                    let place = page * page_tokens * 8..(page + 1) * page_tokens * 8;
                    let key = &k[j * 8..][..8];
                    store_keys(kind, key, 8, (8, lanes), inside, &mut keys[place.clone()]);
                    values[place][inside * 8..][..8].copy_from_slice(&v[j * 8..][..8]);
                }
                let kv = Kv {
                    keys: &keys,
                    values: &values,
                    kind,
                    stride: 8,
                    pages: &pages,
                    page_tokens,
                    lanes,
                };
                assert_eq!(whole, run(kv, &[n]), "pages of {page_tokens}");
                assert_eq!(whole, run(kv, &[7, 64, 1, 63, 15]), "pages of {page_tokens}");
                assert_eq!(whole, run(kv, &[1; 150]), "pages of {page_tokens}, one by one");
                assert_eq!(whole, run(kv, &[6, 5, 3, 64, 2, 6, 64]), "pages of {page_tokens}");
            }
        }
    }

    fn same_bits(window: Option<usize>) {
        let _level = crate::isa::hold();
        let shape = AttentionShape { heads: 2, kv_heads: 1, head_dim: 8, scale: 0.35, window };
        let (n, q_width) = (150, 16);
        let (q, k, v) = (values(n * q_width, 1), values(n * 8, 2), values(n * 8, 3));
        let kv = Kv::whole(&k, &v, 8);
        let team = Team::new(2);
        let mut work = vec![0.0; attention_workspace(&shape, 2, 0)];
        let mut run = |pieces: &[usize]| {
            let mut all = Vec::new();
            let mut past = 0;
            for &queries in pieces {
                let mut out = vec![0.0; queries * q_width];
                let segment = Segment { row: 0, queries, past, kv };
                attention_forward(
                    &team,
                    &shape,
                    &[segment],
                    &q[past * q_width..],
                    q_width,
                    &mut out,
                    &mut [],
                    &mut work,
                );
                all.extend(out.iter().map(|x: &f32| x.to_bits()));
                past += queries;
            }
            all
        };
        let whole = run(&[150]);
        assert_eq!(whole, run(&[1; 150]));
        assert_eq!(whole, run(&[7, 64, 1, 63, 15]));
    }
}
