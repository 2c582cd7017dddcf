//! A tile of keys for a few queries: positions are lanes of the scores, places of a head lanes of what is
//! summed up, and keys and values are widened in registers as they are read. Every score and every sum is
//! the chain that many queries make.

use super::{KEY_TILE, LINE};
use crate::kept::{BLOCKS, Kept, by_kind};
use crate::kv::{KvKind, SHARE};
use crate::lanes::{LANES, Lanes, stamp};
use crate::math;
use std::marker::PhantomData;

/// Rows of queries, over all heads of a piece, that are fewer than lanes pay for.
pub(super) const FEW: usize = 12;
const _: () = assert!(FEW <= LANES, "a line of running values");
/// Rows that share what is widened.
const TOGETHER: usize = 4;

/// What a head has of a tile of positions.
pub(super) struct Tile {
    pub kind: KvKind,
    /// D.
    pub d: usize,
    /// Positions.
    pub keys: usize,
    /// Where blocks of sixteen keys begin.
    pub key_blocks: [*const u8; BLOCKS],
    /// Where the first rows of their values begin.
    pub value_blocks: [*const u8; BLOCKS],
    /// Where the keys of the next tile begin, which are asked for while values are summed up.
    pub next_keys: [*const u8; BLOCKS],
    /// Bytes from a row of values to the next.
    pub stride: usize,
}

impl Tile {
    /// Asks for the row of values that a row of keys is followed by.
    #[inline(always)]
    fn ask_for_values<S: Lanes>(&self, row: usize) {
        let block = self.value_blocks[row / LANES];
        self.ask::<S>(block.wrapping_add(row % LANES * self.stride));
    }

    /// Asks for a sixty-fourth of the next tile's keys.
    #[inline(always)]
    fn ask_for_keys<S: Lanes>(&self, part: usize) {
        let block = self.next_keys[part / LANES];
        self.ask::<S>(block.wrapping_add(part % LANES * self.kind.head_bytes(self.d)));
    }

    #[inline(always)]
    fn ask<S: Lanes>(&self, head: *const u8) {
        for at in (0..self.kind.head_bytes(self.d)).step_by(64) {
            S::prefetch_far(head.wrapping_add(at).cast());
        }
    }
}

/// A product whose sums stay in registers, M rows and N vectors at a time.
trait Tiled {
    /// # Safety
    /// The rows and vectors are there, and the processor offers the level.
    unsafe fn part<S: Lanes, const M: usize, const N: usize>(&self, row: usize, vector: usize);
}

/// All rows and vectors of a product, by parts that registers have room for.
#[inline(always)]
unsafe fn cover<S: Lanes>(work: &impl Tiled, rows: usize, vectors: usize) {
    let together = if S::VECTORS > TOGETHER { TOGETHER } else { 1 };
    let mut row = 0;
    while row < rows {
        // Evenly: five rows are three and two.
        let left = rows - row;
        let taken = left.div_ceil(left.div_ceil(together));
        // SAFETY: parts stay inside the product.
        unsafe {
            match taken {
                _ if together == 1 => cover_rows::<S, 1>(work, row, vectors),
                1 => cover_rows::<S, 1>(work, row, vectors),
                2 => cover_rows::<S, 2>(work, row, vectors),
                3 => cover_rows::<S, 3>(work, row, vectors),
                _ => cover_rows::<S, TOGETHER>(work, row, vectors),
            }
        }
        row += taken;
    }
}

/// All vectors of M rows; parts of more than one begin at an even vector.
#[inline(always)]
unsafe fn cover_rows<S: Lanes, const M: usize>(work: &impl Tiled, row: usize, vectors: usize) {
    let mut vector = 0;
    while vector < vectors {
        let left = vectors - vector;
        // SAFETY: as the caller's.
        unsafe {
            if 4 * M < S::VECTORS && left >= 4 {
                work.part::<S, M, 4>(row, vector);
                vector += 4;
            } else if 2 * M < S::VECTORS && left >= 2 {
                work.part::<S, M, 2>(row, vector);
                vector += 2;
            } else {
                work.part::<S, M, 1>(row, vector);
                vector += 1;
            }
        }
    }
}

/// Scores: vectors of sixteen keys.
struct Scores<'a, K> {
    tile: &'a Tile,
    /// A row of D a query.
    queries: *const f32,
    /// A row of 64 a query.
    out: *mut f32,
    kept: PhantomData<K>,
}

impl<K: Kept> Tiled for Scores<'_, K> {
    #[inline(always)]
    unsafe fn part<S: Lanes, const M: usize, const N: usize>(&self, row: usize, vector: usize) {
        // SAFETY: as the caller's.
        unsafe {
            let d = self.tile.d;
            let queries = self.queries.add(row * d);
            let blocks = &self.tile.key_blocks[vector..vector + N];
            let mut sums = [[S::splat(0.0); N]; M];
            let (first, mut asked) = (row + vector == 0, 0);
            for share in 0..d.div_ceil(SHARE) {
                let mut scales = [S::splat(1.0); N];
                for (scales, &block) in scales.iter_mut().zip(blocks) {
                    *scales = K::key_scales::<S>(block, share);
                }
                for c in share * SHARE..d.min((share + 1) * SHARE) {
                    while first && asked * d < (c + 1) * self.tile.keys {
                        self.tile.ask_for_values::<S>(asked);
                        asked += 1;
                    }
                    let mut keys = [S::splat(0.0); N];
                    for (i, keys) in keys.iter_mut().enumerate() {
                        let values = blocks[i].add(LANES * K::scale_bytes(d));
                        *keys = K::keys::<S>(values, c, scales[i]);
                    }
                    for (m, sums) in sums.iter_mut().enumerate() {
                        let q = S::splat(*queries.add(m * d + c));
                        for (sum, keys) in sums.iter_mut().zip(keys) {
                            *sum = keys.fma(q, *sum);
                        }
                    }
                }
            }
            for (m, sums) in sums.iter().enumerate() {
                for (i, sum) in sums.iter().enumerate() {
                    sum.store(self.out.add((row + m) * KEY_TILE + (vector + i) * LANES));
                }
            }
        }
    }
}

/// Sums of values, weighted by a row of probabilities a query: vectors of sixteen places, or with `CUT`
/// one of those that are left.
struct Sums<'a, K, const CUT: bool> {
    tile: &'a Tile,
    /// The first place.
    from: usize,
    /// A row of 64 a query.
    probabilities: *const f32,
    /// What older sums are multiplied by; absent where there are none.
    factors: Option<&'a [f32]>,
    /// A row of D a query.
    out: *mut f32,
    kept: PhantomData<K>,
}

impl<K: Kept, const CUT: bool> Tiled for Sums<'_, K, CUT> {
    #[inline(always)]
    unsafe fn part<S: Lanes, const M: usize, const N: usize>(&self, row: usize, vector: usize) {
        // SAFETY: as the caller's.
        unsafe {
            let Tile { d, keys, stride, .. } = *self.tile;
            let width = if CUT { d % LANES } else { LANES };
            let place = self.from + vector * LANES;
            let out = self.out.add(row * d + place);
            let mut sums = [[S::splat(0.0); N]; M];
            if let Some(factors) = self.factors {
                for (m, sums) in sums.iter_mut().enumerate() {
                    let factor = S::splat(factors[row + m]);
                    for (i, sum) in sums.iter_mut().enumerate() {
                        let from = out.add(m * d + i * LANES).cast_const();
                        let old = if CUT { S::load_part(from, width) } else { S::load(from) };
                        *sum = old.mul(factor);
                    }
                }
            }
            for (block, &first) in self.tile.value_blocks.iter().enumerate() {
                for j in block * LANES..keys.min((block + 1) * LANES) {
                    let head = first.add((j - block * LANES) * stride);
                    if row + place == 0 {
                        self.tile.ask_for_keys::<S>(j);
                    }
                    let mut values = [S::splat(0.0); N];
                    for (i, values) in values.iter_mut().enumerate() {
                        let (at, share) = (place + i * LANES, place / SHARE + i / 2);
                        *values = K::row::<S>(head, d, at, width, share);
                    }
                    for (m, sums) in sums.iter_mut().enumerate() {
                        let p = S::splat(*self.probabilities.add((row + m) * KEY_TILE + j));
                        for (sum, values) in sums.iter_mut().zip(values) {
                            *sum = p.fma(values, *sum);
                        }
                    }
                }
            }
            for (m, sums) in sums.iter().enumerate() {
                for (i, sum) in sums.iter().enumerate() {
                    let to = out.add(m * d + i * LANES);
                    if CUT { sum.store_part(to, width) } else { sum.store(to) }
                }
            }
        }
    }
}

/// The scores of queries (a row of D a query) with a tile: a row of 64 a query, of which whole blocks
/// are written.
///
/// # Safety
/// The tile's blocks are there.
pub(super) unsafe fn scores(tile: &Tile, queries: &[f32], rows: &mut [[f32; KEY_TILE]]) {
    assert!(queries.len() >= rows.len() * tile.d, "a row of D a query");
    // SAFETY: the blocks by the contract, rows by the check above.
    unsafe { scores_raw(tile, queries.as_ptr(), rows) }
}

#[inline(always)]
unsafe fn scores_body<S: Lanes>(tile: &Tile, queries: *const f32, rows: &mut [[f32; KEY_TILE]]) {
    // SAFETY: as the caller's.
    unsafe { by_kind!(tile.kind, scores_of::<S>(tile, queries, rows)) }
}
stamp!(fn scores_raw(
    tile: &Tile, queries: *const f32, rows: &mut [[f32; KEY_TILE]]
) = scores_body);

#[inline(always)]
unsafe fn scores_of<S: Lanes, K: Kept>(
    tile: &Tile,
    queries: *const f32,
    rows: &mut [[f32; KEY_TILE]],
) {
    let out = rows.as_mut_ptr().cast();
    let work = Scores::<K> { tile, queries, out, kept: PhantomData };
    // SAFETY: as the caller's.
    unsafe { cover::<S>(&work, rows.len(), tile.keys.div_ceil(LANES)) }
}

/// Adds a tile's values, weighted by probabilities, to sums (a row of D a query), which are multiplied
/// by the factors first.
///
/// # Safety
/// The tile's blocks are there.
pub(super) unsafe fn sums(
    tile: &Tile,
    probabilities: &[[f32; KEY_TILE]],
    factors: Option<&[f32]>,
    out: &mut [f32],
) {
    let rows = probabilities.len();
    assert!(out.len() >= rows * tile.d, "a row of D a query");
    assert!(factors.is_none_or(|factors| factors.len() >= rows), "a factor a query");
    // SAFETY: the blocks by the contract, rows by the checks above.
    unsafe { sums_raw(tile, probabilities, factors, out.as_mut_ptr()) }
}

#[inline(always)]
unsafe fn sums_body<S: Lanes>(
    tile: &Tile,
    probabilities: &[[f32; KEY_TILE]],
    factors: Option<&[f32]>,
    out: *mut f32,
) {
    // SAFETY: as the caller's.
    unsafe { by_kind!(tile.kind, sums_of::<S>(tile, probabilities, factors, out)) }
}
stamp!(fn sums_raw(
    tile: &Tile, probabilities: &[[f32; KEY_TILE]], factors: Option<&[f32]>, out: *mut f32
) = sums_body);

#[inline(always)]
unsafe fn sums_of<S: Lanes, K: Kept>(
    tile: &Tile,
    rows: &[[f32; KEY_TILE]],
    factors: Option<&[f32]>,
    out: *mut f32,
) {
    let (d, kept) = (tile.d, PhantomData::<K>);
    let (from, probabilities) = (0, rows.as_ptr().cast());
    let whole = Sums::<K, false> { tile, from, probabilities, factors, out, kept };
    let from = d / LANES * LANES;
    let rest = Sums::<K, true> { tile, from, probabilities, factors, out, kept };
    // SAFETY: as the caller's.
    unsafe {
        cover::<S>(&whole, rows.len(), d / LANES);
        if from < d {
            for row in 0..rows.len() {
                rest.part::<S, 1, 1>(row, 0);
            }
        }
    }
}

/// Scores become probabilities relative to the running maxima, as
/// [`softmax_tile`](super::softmax_tile) makes them; what a query does not see is minus infinity.
pub(super) fn softmax_rows(rows: &mut [[f32; KEY_TILE]], running: &mut [f32]) {
    assert!(rows.len() <= FEW && running.len() == 3 * LINE, "a line of running values");
    // SAFETY: whole lines.
    unsafe { softmax_rows_raw(rows, running) }
}

#[inline(always)]
unsafe fn softmax_rows_body<S: Lanes>(rows: &mut [[f32; KEY_TILE]], running: &mut [f32]) {
    // SAFETY: whole lines.
    unsafe {
        let mut most = [f32::NEG_INFINITY; LANES];
        for (lane, row) in rows.iter().enumerate() {
            let mut max = S::splat(running[lane]);
            for block in row.chunks_exact(LANES) {
                max = max.max(S::load(block.as_ptr()));
            }
            most[lane] = max.largest();
        }
        let max = S::load(most.as_ptr());
        let safe = max.max(S::splat(f32::MIN));
        for (row, safe) in rows.iter_mut().zip(safe.to_array()) {
            for block in row.chunks_exact_mut(LANES) {
                let p = block.as_mut_ptr();
                math::exp_share(S::load(p).sub(S::splat(safe))).store(p);
            }
        }
        let sums = S::load(row_sums(rows).as_ptr());
        let factors = math::exp_share(S::load(running.as_ptr()).sub(safe));
        let totals = S::load(running.as_ptr().add(LINE)).fma(factors, sums);
        max.store(running.as_mut_ptr());
        totals.store(running.as_mut_ptr().add(LINE));
        factors.store(running.as_mut_ptr().add(2 * LINE));
    }
}
stamp!(fn softmax_rows_raw(
    rows: &mut [[f32; KEY_TILE]], running: &mut [f32]
) = softmax_rows_body);

/// Each row's sum, one after another as lanes of queries add; some rows side by side.
#[inline(always)]
fn row_sums(rows: &[[f32; KEY_TILE]]) -> [f32; LANES] {
    let mut all = [0.0; LANES];
    for (rows, all) in rows.chunks(TOGETHER).zip(all.chunks_exact_mut(TOGETHER)) {
        match rows {
            [a] => all[..1].copy_from_slice(&sums_of_rows([a])),
            [a, b] => all[..2].copy_from_slice(&sums_of_rows([a, b])),
            [a, b, c] => all[..3].copy_from_slice(&sums_of_rows([a, b, c])),
            [a, b, c, d] => all.copy_from_slice(&sums_of_rows([a, b, c, d])),
            _ => {}
        }
    }
    all
}

#[inline(always)]
fn sums_of_rows<const M: usize>(rows: [&[f32; KEY_TILE]; M]) -> [f32; M] {
    let mut sums = [0.0; M];
    for j in 0..KEY_TILE {
        for (sum, row) in sums.iter_mut().zip(rows) {
            *sum += row[j];
        }
    }
    sums
}
