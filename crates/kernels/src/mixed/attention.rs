//! Causal attention of a training batch in 16 bits: products of 16-bit factors summed in FP32, softmax
//! in FP32, queries, keys, values and results kept in 16 bits.
//!
//! Tiles and running values are those of the FP32 kernel: 64 keys at positions divisible by 64 by 64
//! queries of one head, scores a line a key. Probabilities and their gradients are rounded while they
//! are packed. Every number is a chain over its own sequence: the same bits in any batch and on any
//! number of workers.

use super::pack::{Lines, Run, pack};
use super::rows::{load, store};
use super::{Place, STEP, STEP_WORDS, STRIP, Stored, Way, close_tiles, open_tiles};
use crate::attention::{
    AttentionShape, IOTA, KEY_TILE, LINE, masked_from, outside, score_gradients, softmax_tile,
};
use crate::halves::HalfKind;
use crate::lanes::{LANES, Lanes, stamp};
use crate::split::Split;
use crate::team::Team;

/// Words of packed 64×64 values.
const SQUARE: usize = LINE * KEY_TILE / 2;

/// D, filled up to whole strips.
fn padded(d: usize) -> usize {
    d.next_multiple_of(STRIP)
}

/// Words of 64 packed rows of D values, by rows or by columns.
fn packed_words(d: usize) -> usize {
    LINE * padded(d) / 2
}

/// Values of a strip that is widened, where products go by lanes.
fn wide_len(d: usize) -> usize {
    STRIP * padded(d).max(KEY_TILE)
}

fn forward_scratch(d: usize) -> usize {
    // Queries, keys, values; probabilities; scores; sums; maxima, sums and factors; a wide strip.
    3 * packed_words(d) + SQUARE + KEY_TILE * LINE + LINE * padded(d) + 3 * LINE + wide_len(d)
}

fn backward_scratch(d: usize, longest: usize) -> usize {
    // Of each line of queries: these and the output's gradients, each packed twice, the queries' own
    // gradients, one number a query.
    let line = 4 * packed_words(d) + LINE * padded(d) + LINE;
    // Keys packed twice, values; two tiles of scores, one packed; gradients; a wide strip.
    let tile = 3 * packed_words(d) + 2 * KEY_TILE * LINE + SQUARE + 2 * KEY_TILE * padded(d);
    longest.div_ceil(LINE) * line + tile + wide_len(d)
}

/// Values of workspace that both passes over sequences of up to `longest` tokens need.
pub fn mixed_attention_workspace(shape: &AttentionShape, threads: usize, longest: usize) -> usize {
    let d = shape.head_dim;
    threads * (forward_scratch(d).max(backward_scratch(d, longest)) + 1)
}

/// A worker's room, given out in parts.
struct Room<'a>(&'a mut [f32]);

impl<'a> Room<'a> {
    fn values(&mut self, n: usize) -> &'a mut [f32] {
        let (part, rest) = std::mem::take(&mut self.0).split_at_mut(n);
        self.0 = rest;
        part
    }

    fn words(&mut self, n: usize) -> &'a mut [u32] {
        let part = self.values(n);
        // SAFETY: any bits are a word and an f32, both of four bytes.
        unsafe { std::slice::from_raw_parts_mut(part.as_mut_ptr().cast(), n) }
    }
}

/// How a worker takes products.
struct Products<'a> {
    way: Way,
    kind: HalfKind,
    wide: &'a mut [f32],
}

impl Products<'_> {
    /// Lines of `depth` values along K, in whole strips filled up with zeros.
    fn pack(&self, lines: Lines, depth: usize, pairs_first: bool, to: &mut [u32]) {
        let run = Run { first: 0, strips: lines.lines.div_ceil(STRIP), k0: 0, depth, pairs_first };
        assert!(run.strips * depth.div_ceil(STEP) * STEP_WORDS <= to.len(), "room for strips");
        assert!(lines.is_inside(depth), "lines lie inside their slice");
        // SAFETY: the lines lie inside what is stored and their strips inside the room, as checked.
        unsafe { pack(self.kind, &lines, &run, to.as_mut_ptr()) }
    }

    /// C (`rows`×`cols` filled up to whole strips, lines `stride` apart) = (C if `keep`) + A·B, both
    /// packed, K values deep.
    fn product(
        &mut self,
        (a, b): (&[u32], &[u32]),
        (rows, cols, depth): (usize, usize, usize),
        (c, stride): (&mut [f32], usize),
        keep: bool,
    ) {
        let (strips, panels, steps) =
            (rows.div_ceil(STRIP), cols.div_ceil(STRIP), depth.div_ceil(STEP));
        let words = steps * STEP_WORDS;
        assert!(strips * words <= a.len() && panels * words <= b.len(), "packed factors");
        assert!(panels * STRIP <= stride && strips * STRIP * stride <= c.len(), "whole blocks");
        assert!(self.wide.len() >= 2 * words, "a wide strip");
        for strip in 0..strips {
            let a = a[strip * words..].as_ptr();
            // SAFETY: whole strips, panels and blocks, by the checks above; tiles are open where
            // products go by them.
            unsafe {
                if self.way == Way::Lanes {
                    super::widen_strip(self.kind, a, steps, self.wide.as_mut_ptr().cast());
                }
                for panel in 0..panels {
                    let b = b[panel * words..].as_ptr();
                    let c = c.as_mut_ptr().add(strip * STRIP * stride + panel * STRIP);
                    let place = Place { c, stride, rows: STRIP, cols: STRIP };
                    match self.way {
                        Way::Tiles => super::by_tiles(a, b, steps, &place, keep),
                        Way::Dots => super::by_dots(a, b, steps, &place, keep),
                        Way::Lanes => {
                            let a = self.wide.as_ptr();
                            super::by_lanes(self.kind, a, b, steps, place, keep);
                        }
                    }
                }
            }
        }
    }
}

/// Rows of a matrix, seen as lines along its columns, or its columns as lines along its rows.
fn rows_of(stored: Stored, rows: usize, stride: usize) -> Lines {
    Lines { stored, lines: rows, line_stride: stride, k_stride: 1 }
}

fn columns_of(stored: Stored, columns: usize, stride: usize) -> Lines {
    Lines { stored, lines: columns, line_stride: 1, k_stride: stride }
}

/// out[r, h] = Σ_j softmax_j(scale·q_r·k_j)·v_j over the positions of r's sequence up to its own.
///
/// Row r of `qkv` holds H·D queries, G·D keys, G·D values; `out`: R×(H·D); both in 16 bits. `lse`
/// (H×R) receives log Σ e^score, which the backward pass needs.
///
/// # Panics
/// When lengths do not fit each other, or the workspace is smaller than
/// [`mixed_attention_workspace`] says.
pub fn mixed_attention_forward(
    team: &Team,
    kind: HalfKind,
    shape: &AttentionShape,
    sequences: &[(usize, usize)],
    qkv: &[u16],
    out: &mut [u16],
    lse: &mut [f32],
    workspace: &mut [f32],
) {
    let (h, g, d) = (shape.heads, shape.kv_heads, shape.head_dim);
    let (rows, stride, wide) = (out.len() / (h * d), (h + 2 * g) * d, padded(d));
    check(shape, sequences, rows, [qkv.len(), lse.len()]);
    let scratch = forward_scratch(d);
    assert!(workspace.len() >= team.threads() * (scratch + 1), "attention: workspace");
    let (workspace, largest) = workspace.split_at_mut(workspace.len() - team.threads());
    let (out, lse) = (Split::new(out), Split::new(lse));
    let (workspace, largest) = (Split::new(workspace), Split::new(largest));
    let blocks_of = |&(row, tokens): &(usize, usize)| {
        (0..tokens).step_by(LINE).map(move |first| (row, first, LINE.min(tokens - first)))
    };
    let mut blocks: Vec<_> = sequences.iter().flat_map(blocks_of).collect();
    // The costliest first.
    blocks.sort_by_key(|&(_, first, _)| std::cmp::Reverse(first));
    team.worker_tasks(blocks.len() * h, |worker, task| {
        let ((row, first, count), head) = (blocks[task / h], task % h);
        let group = head / (h / g);
        // SAFETY: a worker's workspace is its own.
        let mut room = Room(unsafe { workspace.part(worker * scratch..(worker + 1) * scratch) });
        let [q, k, v] = [0; 3].map(|_| room.words(packed_words(d)));
        let p = room.words(SQUARE);
        let (scores, sums) = (room.values(KEY_TILE * LINE), room.values(LINE * wide));
        let running = room.values(3 * LINE);
        running[..LINE].fill(f32::NEG_INFINITY);
        running[LINE..].fill(0.0);
        let mut products = Products::open(kind, room.values(wide_len(d)));
        let at = |position: usize, column: usize| {
            Stored::Halves(&qkv[(row + position) * stride + column * d..])
        };
        products.pack(rows_of(at(first, head), count, stride), d, true, q);
        let end = first + count;
        let begin = shape.first_seen(first) / KEY_TILE * KEY_TILE;
        for tile in (begin..end).step_by(KEY_TILE) {
            let keys = KEY_TILE.min(end - tile);
            products.pack(rows_of(at(tile, h + group), keys, stride), d, false, k);
            products.product((k, q), (keys, count, d), (&mut *scores, LINE), false);
            softmax_tile(
                &mut scores[..keys * LINE],
                count.next_multiple_of(LANES),
                shape.scale,
                running,
                &IOTA,
                masked_from(tile, keys, first),
                outside(shape, tile, first, count),
            );
            if tile > begin {
                // SAFETY: whole lines.
                unsafe { scale_raw(&mut sums[..count * wide], &running[2 * LINE..][..count]) };
            }
            products.pack(columns_of(Stored::Values(scores), count, LINE), keys, false, p);
            products.pack(columns_of(at(tile, h + g + group), d, stride), keys, true, v);
            products.product((p, v), (count, d, keys), (&mut *sums, wide), tile > begin);
        }
        products.close();
        // SAFETY: a worker's place is its own; a task's rows and head are its own.
        unsafe {
            let most = &mut largest.part(worker..worker + 1)[0];
            *most = running[..count].iter().copied().fold(*most, f32::max);
            let log_sums = lse.part(head * rows + row + first..head * rows + row + first + count);
            for (i, log_sum) in log_sums.iter_mut().enumerate() {
                *log_sum = running[i] + running[LINE + i].ln();
                let at = (row + first + i) * h * d + head * d;
                let sums = &sums[i * wide..i * wide + d];
                quotient_raw(kind, sums, running[LINE + i], out.part(at..at + d));
            }
        }
    });
}

impl<'a> Products<'a> {
    fn open(kind: HalfKind, wide: &'a mut [f32]) -> Products<'a> {
        let way = Way::of(kind);
        if way == Way::Tiles {
            // SAFETY: that is the way.
            unsafe { open_tiles() }
        }
        Products { way, kind, wide }
    }

    fn close(self) {
        if self.way == Way::Tiles {
            // SAFETY: that is the way.
            unsafe { close_tiles() }
        }
    }
}

fn check(
    shape: &AttentionShape,
    sequences: &[(usize, usize)],
    rows: usize,
    [qkv, lse]: [usize; 2],
) {
    let (h, g, d) = (shape.heads, shape.kv_heads, shape.head_dim);
    assert!(g > 0 && h.is_multiple_of(g), "attention: heads are shared out evenly");
    assert!(qkv == rows * (h + 2 * g) * d && lse == h * rows, "attention: R×(H+2G)D and H×R");
    assert!(sequences.iter().all(|s| s.0 + s.1 <= rows), "attention: sequences lie in the batch");
}

/// The gradient of [`mixed_attention_forward`], from that of `out` (R×(H·D)), in FP32; `d_qkv`, alike
/// in FP32, is written.
///
/// # Panics
/// As [`mixed_attention_forward`].
pub fn mixed_attention_backward(
    team: &Team,
    kind: HalfKind,
    shape: &AttentionShape,
    sequences: &[(usize, usize)],
    (qkv, out, lse): (&[u16], &[u16], &[f32]),
    d_out: &[f32],
    d_qkv: &mut [f32],
    workspace: &mut [f32],
) {
    let (h, g, d) = (shape.heads, shape.kv_heads, shape.head_dim);
    let rows = out.len() / (h * d);
    check(shape, sequences, rows, [qkv.len(), lse.len()]);
    assert!(d_qkv.len() == qkv.len() && d_out.len() == out.len(), "attention: R×(H+2G)D and R×HD");
    let longest = sequences.iter().map(|s| s.1).max().unwrap_or(0);
    let scratch = backward_scratch(d, longest);
    assert!(workspace.len() >= team.threads() * scratch, "attention: workspace");
    let (d_qkv, workspace) = (Split::new(d_qkv), Split::new(workspace));
    team.worker_tasks(sequences.len() * g, |worker, task| {
        let ((row, tokens), group) = (sequences[task / g], task % g);
        if tokens == 0 {
            return;
        }
        // SAFETY: a worker's workspace is its own.
        let room = Room(unsafe { workspace.part(worker * scratch..(worker + 1) * scratch) });
        let read = Read { kind, shape, rows, row, tokens, group, qkv, out, lse, d_out };
        read.backward(&d_qkv, room);
    });
}

/// What belongs to a sequence and a group of heads.
struct Read<'a> {
    kind: HalfKind,
    shape: &'a AttentionShape,
    rows: usize,
    row: usize,
    tokens: usize,
    group: usize,
    qkv: &'a [u16],
    out: &'a [u16],
    lse: &'a [f32],
    d_out: &'a [f32],
}

/// A line of queries, packed, and what is gathered for it.
struct QueryLine<'a> {
    /// Along D, and along the queries.
    q: [&'a mut [u32]; 2],
    /// The output's gradients, alike.
    d_out: [&'a mut [u32]; 2],
    d_q: &'a mut [f32],
    delta: &'a mut [f32],
}

impl Read<'_> {
    fn stride(&self) -> usize {
        (self.shape.heads + 2 * self.shape.kv_heads) * self.shape.head_dim
    }

    /// From a position on, the columns of the `column`th D.
    fn at(&self, position: usize, column: usize) -> Stored<'_> {
        let from = (self.row + position) * self.stride() + column * self.shape.head_dim;
        Stored::Halves(&self.qkv[from..])
    }

    fn backward(&self, d_qkv: &Split<f32>, mut room: Room) {
        let (h, g, d) = (self.shape.heads, self.shape.kv_heads, self.shape.head_dim);
        let wide = padded(d);
        let mut lines: Vec<QueryLine> = (0..self.tokens)
            .step_by(LINE)
            .map(|_| QueryLine {
                q: [0; 2].map(|_| room.words(packed_words(d))),
                d_out: [0; 2].map(|_| room.words(packed_words(d))),
                d_q: room.values(LINE * wide),
                delta: room.values(LINE),
            })
            .collect();
        let [k, k_columns, v] = [0; 3].map(|_| room.words(packed_words(d)));
        let scores = [0; 2].map(|_| room.values(KEY_TILE * LINE));
        let packed = room.words(SQUARE);
        let (d_k, d_v) = (room.values(KEY_TILE * wide), room.values(KEY_TILE * wide));
        let mut products = Products::open(self.kind, room.values(wide_len(d)));
        let [p, ds] = scores;
        let (stride, per_group) = (self.stride(), h / g);
        let [key_column, value_column] = [h + self.group, h + g + self.group];
        for (order, head) in (self.group * per_group..(self.group + 1) * per_group).enumerate() {
            for (i, line) in lines.iter_mut().enumerate() {
                self.pack_line(&products, head, i * LINE, line);
            }
            for tile in (0..self.tokens).step_by(KEY_TILE) {
                let keys = KEY_TILE.min(self.tokens - tile);
                let (key, value) = (self.at(tile, key_column), self.at(tile, value_column));
                products.pack(rows_of(key, keys, stride), d, false, k);
                products.pack(columns_of(key, d, stride), keys, true, k_columns);
                products.pack(rows_of(value, keys, stride), d, false, v);
                for (i, line) in lines.iter_mut().enumerate().skip(tile / LINE) {
                    let first = i * LINE;
                    let first_tile = self.shape.first_seen(first) / KEY_TILE * KEY_TILE;
                    if tile < first_tile {
                        break;
                    }
                    let count = LINE.min(self.tokens - first);
                    products.product((k, line.q[0]), (keys, count, d), (p, LINE), false);
                    products.product((v, line.d_out[0]), (keys, count, d), (ds, LINE), false);
                    let mut log_sums = [f32::INFINITY; LINE];
                    let from = head * self.rows + self.row + first;
                    log_sums[..count].copy_from_slice(&self.lse[from..from + count]);
                    score_gradients(
                        &mut p[..keys * LINE],
                        &mut ds[..keys * LINE],
                        &log_sums,
                        line.delta,
                        [self.shape.scale; 2],
                        [masked_from(tile, keys, first), outside(self.shape, tile, first, count)],
                    );
                    let (again, sizes) = (first > tile, (keys, d, count));
                    products.pack(rows_of(Stored::Values(p), keys, LINE), count, false, packed);
                    products.product((packed, line.d_out[1]), sizes, (d_v, wide), again);
                    products.pack(rows_of(Stored::Values(ds), keys, LINE), count, false, packed);
                    products.product((packed, line.q[1]), sizes, (d_k, wide), again);
                    products.pack(columns_of(Stored::Values(ds), count, LINE), keys, false, packed);
                    let (again, sizes) = (tile > first_tile, (count, d, keys));
                    products.product((packed, k_columns), sizes, (line.d_q, wide), again);
                }
                for (column, rows) in [(key_column, &*d_k), (value_column, &*d_v)] {
                    self.write(d_qkv, (tile, keys), column, rows, order > 0);
                }
            }
            for (i, line) in lines.iter().enumerate() {
                let count = LINE.min(self.tokens - i * LINE);
                self.write(d_qkv, (i * LINE, count), head, line.d_q, false);
            }
        }
        products.close();
    }

    /// Packs what belongs to a head's queries from `first` on.
    fn pack_line(&self, products: &Products, head: usize, first: usize, line: &mut QueryLine) {
        let (h, d, stride) = (self.shape.heads, self.shape.head_dim, self.stride());
        let count = LINE.min(self.tokens - first);
        let q = self.at(first, head);
        products.pack(rows_of(q, count, stride), d, true, line.q[0]);
        products.pack(columns_of(q, d, stride), count, true, line.q[1]);
        let from = (self.row + first) * h * d + head * d;
        let (out, d_out) = (&self.out[from..], &self.d_out[from..]);
        let values = Stored::Values(d_out);
        products.pack(rows_of(values, count, h * d), d, true, line.d_out[0]);
        products.pack(columns_of(values, d, h * d), count, true, line.d_out[1]);
        line.delta.fill(0.0);
        for (i, delta) in line.delta.iter_mut().enumerate().take(count) {
            let place = i * h * d..i * h * d + d;
            // SAFETY: rows of D values.
            *delta = unsafe { dot_raw(self.kind, &out[place.clone()], &d_out[place]) };
        }
    }

    /// Writes gradients of rows from a position on to the columns of the `column`th D, or adds them.
    fn write(
        &self,
        d_qkv: &Split<f32>,
        (first, count): (usize, usize),
        column: usize,
        rows: &[f32],
        add: bool,
    ) {
        let d = self.shape.head_dim;
        for (i, row) in rows.chunks_exact(padded(d)).enumerate().take(count) {
            let at = (self.row + first + i) * self.stride() + column * d;
            // SAFETY: a task writes the rows of its sequence at its own heads.
            let place = unsafe { d_qkv.part(at..at + d) };
            if add {
                place.iter_mut().zip(row).for_each(|(p, r)| *p += r);
            } else {
                place.copy_from_slice(&row[..d]);
            }
        }
    }
}

stamp!(fn scale_raw(lines: &mut [f32], factors: &[f32]) = scale_body);
stamp!(fn quotient_raw(kind: HalfKind, sums: &[f32], by: f32, out: &mut [u16]) = quotient_body);
stamp!(fn dot_raw(kind: HalfKind, a: &[u16], b: &[f32]) -> f32 = dot_body);

/// Equal lines, of whole strips, times a factor each.
#[inline(always)]
unsafe fn scale_body<S: Lanes>(lines: &mut [f32], factors: &[f32]) {
    let width = lines.len() / factors.len();
    for (line, &factor) in lines.chunks_exact_mut(width).zip(factors) {
        for values in line.chunks_exact_mut(LANES) {
            let p = values.as_mut_ptr();
            // SAFETY: sixteen values.
            unsafe { S::load(p).mul(S::splat(factor)).store(p) };
        }
    }
}

#[inline(always)]
unsafe fn quotient_body<S: Lanes>(kind: HalfKind, sums: &[f32], by: f32, out: &mut [u16]) {
    let inverse = 1.0 / by;
    for (sums, out) in sums.chunks(LANES).zip(out.chunks_mut(LANES)) {
        let n = sums.len();
        // SAFETY: as many on both sides.
        unsafe {
            let quotients = S::load_part(sums.as_ptr(), n).mul(S::splat(inverse));
            store(kind, quotients, out.as_mut_ptr(), n);
        }
    }
}

#[inline(always)]
unsafe fn dot_body<S: Lanes>(kind: HalfKind, a: &[u16], b: &[f32]) -> f32 {
    // SAFETY: equally long slices.
    unsafe {
        let mut sums = S::splat(0.0);
        for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
            let wide: S = load(kind, a.as_ptr(), a.len());
            sums = wide.fma(S::load_part(b.as_ptr(), b.len()), sums);
        }
        sums.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Isa, Kv, Segment, attention_backward, attention_forward, attention_workspace, normal,
        round_halves, widen_halves,
    };

    const SEQUENCES: [(usize, usize); 4] = [(0, 70), (70, 3), (73, 1), (74, 130)];
    const ROWS: usize = 204;

    struct Case {
        shape: AttentionShape,
        kind: HalfKind,
        qkv: Vec<u16>,
        d_out: Vec<f32>,
    }

    fn cases() -> impl Iterator<Item = Case> {
        let kinds = [HalfKind::Bf16, HalfKind::F16];
        let sizes = [(5, None), (40, None), (64, Some(70)), (16, Some(10))];
        kinds.into_iter().flat_map(move |kind| {
            sizes.map(|(head_dim, window)| {
                let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim, scale: 0.3, window };
                let values = |n: usize, seed| (0..n as u64).map(move |i| normal(seed, i)).collect();
                let qkv: Vec<f32> = values(ROWS * 8 * head_dim, 1);
                let mut bits = vec![0; qkv.len()];
                round_halves(&Team::new(1), kind, &qkv, &mut bits);
                Case { shape, kind, qkv: bits, d_out: values(ROWS * 4 * head_dim, 2) }
            })
        })
    }

    /// Results as f32, log-sums, gradients.
    fn run(case: &Case, threads: usize, sequences: &[(usize, usize)]) -> [Vec<f32>; 3] {
        let Case { shape, kind, qkv, d_out } = case;
        let team = Team::new(threads);
        let mut work = vec![0.0; mixed_attention_workspace(shape, threads, 130)];
        let (mut out, mut lse) = (vec![0; d_out.len()], vec![0.0; 4 * ROWS]);
        let mut d_qkv = vec![0.0; qkv.len()];
        mixed_attention_forward(&team, *kind, shape, sequences, qkv, &mut out, &mut lse, &mut work);
        let read = (&qkv[..], &out[..], &lse[..]);
        mixed_attention_backward(
            &team, *kind, shape, sequences, read, d_out, &mut d_qkv, &mut work,
        );
        let mut wide = vec![0.0; out.len()];
        widen_halves(&team, *kind, &out, &mut wide);
        [wide, lse, d_qkv]
    }

    /// Of the same 16-bit numbers, FP32 attention gives what this gives, but for rounding.
    #[test]
    fn results_and_gradients_are_those_of_f32() {
        let _level = crate::isa::hold();
        let team = Team::new(1);
        for case in cases() {
            let (shape, d) = (&case.shape, case.shape.head_dim);
            let mut qkv = vec![0.0; case.qkv.len()];
            widen_halves(&team, case.kind, &case.qkv, &mut qkv);
            let segments = SEQUENCES.map(|(row, queries)| {
                let (k, v) = (&qkv[row * 8 * d + 4 * d..], &qkv[row * 8 * d + 6 * d..]);
                Segment { row, queries, past: 0, kv: Kv::whole(k, v, 8 * d) }
            });
            let mut work = vec![0.0; attention_workspace(shape, 1, 130)];
            let (mut out, mut lse) = (vec![0.0; case.d_out.len()], vec![0.0; 4 * ROWS]);
            let mut d_qkv = vec![0.0; qkv.len()];
            attention_forward(&team, shape, &segments, &qkv, 8 * d, &mut out, &mut lse, &mut work);
            attention_backward(
                &team,
                shape,
                &SEQUENCES,
                &qkv,
                &out,
                &lse,
                &case.d_out,
                &mut d_qkv,
                &mut work,
            );
            for isa in Isa::available() {
                isa.force();
                let found = run(&case, 2, &SEQUENCES);
                let step = if case.kind == HalfKind::Bf16 { 1.0 / 256.0 } else { 1.0 / 2048.0 };
                for (right, found) in [&out, &lse, &d_qkv].into_iter().zip(&found) {
                    let size = |x: &mut dyn Iterator<Item = f32>| {
                        x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt()
                    };
                    let off = size(&mut right.iter().zip(found).map(|(a, b)| a - b));
                    let off = off / size(&mut right.iter().copied());
                    let (kind, window) = (case.kind, shape.window);
                    assert!(off < step, "{kind:?} {d} {window:?} {}: {off}", isa.name());
                }
            }
        }
    }

    #[test]
    fn bits_depend_neither_on_workers_nor_on_company() {
        let _level = crate::isa::hold();
        for isa in Isa::available() {
            isa.force();
            for case in cases() {
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                let all = run(&case, 1, &SEQUENCES).map(|x| bits(&x));
                assert!(all == run(&case, 3, &SEQUENCES).map(|x| bits(&x)), "workers");
                let d = case.shape.head_dim;
                for (row, tokens) in SEQUENCES {
                    let alone = run(&case, 2, &[(row, tokens)]).map(|x| bits(&x));
                    for (i, width) in [(0, 4 * d), (2, 8 * d)] {
                        let place = row * width..(row + tokens) * width;
                        assert!(alone[i][place.clone()] == all[i][place], "sequence at {row}");
                    }
                }
            }
        }
    }
}
