//! The forward pass: a block of queries, of heads that share keys and values, goes by all keys it sees.
//! Many queries are lanes, few are rows; both make the same chains.

use super::few::{self, FEW, Tile};
use super::{
    AttentionShape, IOTA, KEY_TILE, LINE, Segment, check, forward_scratch, masked_from, outside,
    softmax_tile, turn,
};
use crate::kept::BLOCKS;
use crate::kv::{Kv, KvKind};
use crate::lanes::LANES;
use crate::matmul::{Init, Strided, block};
use crate::split::Split;
use crate::team::Team;

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
    let work = pieces_of(shape, segments, team.threads());
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
            if self.kv.lanes == 1 {
                product(key_rows, (d, 1), 0, keys);
            } else if self.kv.kind == KvKind::F32 {
                for from in (0..keys).step_by(LANES) {
                    let together = self.kv.block(tile + from, self.group(), d);
                    product(together, (1, LANES), from, LANES.min(keys - from));
                }
            } else {
                self.kv.widen_together(tile, keys, self.group(), d, key_rows);
                product(key_rows, (1, KEY_TILE), 0, keys);
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
        let rows = &mut scores.as_chunks_mut::<KEY_TILE>().0[..used];
        let mut started = false;
        let mut tiles = self.tiles().peekable();
        while let Some((from, keys)) = tiles.next() {
            let mut tile = self.tile(from, keys);
            if let Some(&(from, keys)) = tiles.peek() {
                tile.next_keys = self.tile(from, keys).key_blocks;
            }
            // SAFETY: the blocks are there.
            unsafe { few::scores(&tile, queries, rows) };
            for (lane, row) in rows.iter_mut().enumerate() {
                let position = self.position + lane % count;
                let last = (position + 1).saturating_sub(from).min(keys);
                let first = self.shape.first_seen(position).saturating_sub(from).min(last);
                row[..first].fill(f32::NEG_INFINITY);
                row[last..].fill(f32::NEG_INFINITY);
            }
            few::softmax_rows(rows, running);
            let factors = started.then_some(&running[2 * LINE..]);
            // SAFETY: the blocks are there.
            unsafe { few::sums(&tile, rows, factors, sums) };
            started = true;
        }
        (sums, running)
    }

    /// What the group has of a tile, in blocks that stand together.
    fn tile(&self, from: usize, keys: usize) -> Tile {
        let (d, kind) = (self.shape.head_dim, self.kv.kind);
        let mut key_blocks = [std::ptr::null(); BLOCKS];
        let mut value_blocks = key_blocks;
        for i in 0..keys.div_ceil(LANES) {
            let (keys, values) = self.kv.together(from + i * LANES, self.group(), d);
            (key_blocks[i], value_blocks[i]) = (keys.as_ptr(), values.as_ptr());
        }
        let (next_keys, stride) = (key_blocks, 4 * self.kv.stride);
        Tile { kind, d, keys, key_blocks, value_blocks, next_keys, stride }
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

/// The costliest first. Heads that share keys and values are parted only where workers would be without
/// work else.
fn pieces_of(shape: &AttentionShape, segments: &[Segment], threads: usize) -> Vec<Piece> {
    let mut blocks: Vec<(usize, usize)> = segments
        .iter()
        .enumerate()
        .flat_map(|(i, s)| (0..s.queries).step_by(LINE).map(move |first| (i, first)))
        .collect();
    blocks.sort_by_key(|&(i, first)| std::cmp::Reverse(segments[i].past + first));
    let per_group = shape.heads / shape.kv_heads;
    let groups = (blocks.len() * shape.kv_heads).max(1);
    let most = per_group.div_ceil(threads.div_ceil(groups));
    let pieces_of_block = |(segment, first): (usize, usize)| {
        let segments: &[Segment] = segments;
        let together = (LINE / LINE.min(segments[segment].queries - first)).min(most);
        (0..shape.heads).step_by(per_group).flat_map(move |group| {
            (0..per_group).step_by(together).map(move |head| {
                let heads = together.min(per_group - head);
                Piece { segment, first, head: group + head, heads }
            })
        })
    };
    blocks.into_iter().flat_map(pieces_of_block).collect()
}

fn scale_rows(rows: &mut [f32], factors: &[f32], d: usize) {
    for (row, f) in rows.chunks_exact_mut(d).zip(factors) {
        row.iter_mut().for_each(|v| *v *= f);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_head_is_in_one_piece_and_no_worker_is_idle_without_need() {
        let kv = Kv::whole(&[], &[], 0);
        for (heads, kv_heads) in [(4, 1), (9, 3), (8, 8), (12, 2), (1, 1)] {
            let shape = AttentionShape { heads, kv_heads, head_dim: 64, scale: 1.0, window: None };
            for queries in [vec![1], vec![1, 1], vec![70], vec![3, 1, 65]] {
                let segments: Vec<Segment> = queries
                    .iter()
                    .map(|&queries| Segment { row: 0, queries, past: 5, kv })
                    .collect();
                let blocks: usize = queries.iter().map(|n| n.div_ceil(LINE)).sum();
                for threads in 1..=16 {
                    let pieces = pieces_of(&shape, &segments, threads);
                    let mut seen: Vec<_> = pieces
                        .iter()
                        .flat_map(|p| (p.head..p.head + p.heads).map(|h| (p.segment, p.first, h)))
                        .collect();
                    seen.sort_unstable();
                    seen.dedup();
                    assert_eq!(seen.len(), blocks * heads);
                    assert_eq!(pieces.iter().map(|p| p.heads).sum::<usize>(), blocks * heads);
                    let group = heads / kv_heads;
                    assert!(
                        pieces.iter().all(|p| p.head / group == (p.head + p.heads - 1) / group)
                    );
                    // Heads are parted evenly: at least half of the workers have some.
                    assert!(2 * pieces.len() >= threads.min(blocks * heads), "{shape:?} {threads}");
                }
            }
        }
    }
}
