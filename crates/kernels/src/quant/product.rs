//! y = W·x for quantised W.
//!
//! A panel of sixteen outputs meets up to eight rows of x at a time: its codes are unpacked once
//! for all of them. One row is bound by reading W, so what comes next is asked for ahead.

use super::quads::{self, Quads};
use super::rows::{LINE, Place};
#[cfg(target_arch = "x86_64")]
use super::tiles::{self, Held};
use super::{BLOCK, PANEL_ROWS, QuantKind, QuantRows, SUPER, Scales};
use crate::Isa;
use crate::lanes::Lanes;
use crate::split::Split;
use crate::team::Team;

/// What the products of this processor hold: nothing.
#[cfg(not(target_arch = "x86_64"))]
enum Held {}

/// Bytes that are asked for ahead of use.
const AHEAD: usize = 8 << 10;
/// Bytes of W a task takes at least.
const TASK_BYTES: usize = 32 << 10;
/// Rows of x a task takes at most.
const TASK_ROWS: usize = 64;

/// A matrix in panels.
#[derive(Clone, Copy, Debug)]
pub struct QuantMatrix<'a> {
    /// How it is stored.
    pub kind: QuantKind,
    /// N: outputs.
    pub rows: usize,
    /// K: inputs.
    pub cols: usize,
    /// `kind.matrix_bytes(rows, cols)` bytes.
    pub panels: &'a [u8],
}

/// y (R×N in rows of `y_stride` values, from column `y_from`) = W·x + b; `bias`: N or empty.
///
/// # Panics
/// When the shapes do not fit each other.
pub fn quant_matmul(
    team: &Team,
    x: &QuantRows,
    matrix: &QuantMatrix,
    bias: &[f32],
    y: &mut [f32],
    y_stride: usize,
    y_from: usize,
) {
    let QuantMatrix { kind, rows: n, cols, panels } = *matrix;
    assert_eq!(x.cols, cols, "x has the matrix's columns");
    assert!(cols.is_multiple_of(kind.granule()), "whole blocks");
    assert_eq!(panels.len(), kind.matrix_bytes(n, cols), "the matrix's panels");
    assert!(bias.is_empty() || bias.len() == n, "a bias an output");
    if x.rows == 0 || n == 0 {
        return;
    }
    assert!(y_from + n <= y_stride && (x.rows - 1) * y_stride + y_from + n <= y.len(), "y: R×N");
    let bytes = kind.panel_bytes(cols);
    let count = n.div_ceil(PANEL_ROWS);
    let group = TASK_BYTES.div_ceil(bytes.max(1)).min(count.div_ceil(team.threads())).max(1);
    let groups = count.div_ceil(group);
    let row_tasks = x.rows.div_ceil(TASK_ROWS);
    let y = Split::new(y);
    let path = Path::current();
    team.tasks(groups * row_tasks, |task| {
        let (rows, panels_of) = (task % row_tasks, task / row_tasks);
        let last = x.rows.min((rows + 1) * TASK_ROWS);
        let panels_of = panels_of * group..count.min((panels_of + 1) * group);
        // These rows of x stay in the nearest cache while the panels pass.
        let mut row = rows * TASK_ROWS;
        while row < last {
            let m = path.rows_at_a_time(last - row);
            let mut held = path.begin(kind, m);
            for p in panels_of.clone() {
                let from = p * PANEL_ROWS;
                let width = PANEL_ROWS.min(n - from);
                let tile = Tile {
                    panel: panels[p * bytes..].as_ptr(),
                    cols,
                    x: x.place(row),
                    bias: if bias.is_empty() { bias } else { &bias[from..from + width] },
                    y: y.pointer().wrapping_add(row * y_stride + y_from + from),
                    y_stride,
                    width,
                    first: row == 0,
                };
                // SAFETY: all lies inside the slices checked above; tasks write apart tiles.
                unsafe { path.tile(kind, m, &tile, &mut held) };
            }
            row += m;
        }
    });
}

/// A panel and some rows of x.
pub(super) struct Tile<'a> {
    pub panel: *const u8,
    pub cols: usize,
    pub x: Place,
    bias: &'a [f32],
    y: *mut f32,
    y_stride: usize,
    width: usize,
    /// Whether nobody has read the panel before.
    first: bool,
}

impl Tile<'_> {
    /// Writes what row m of x makes.
    #[inline(always)]
    pub(super) unsafe fn store<Q: Quads>(&self, m: usize, sums: Q::Lanes) {
        // SAFETY: y holds so many rows of `width`.
        unsafe {
            let y = self.y.add(m * self.y_stride);
            if self.width == PANEL_ROWS { sums.store(y) } else { sums.store_part(y, self.width) }
        }
    }
}

/// Which instructions the dots take.
#[derive(Clone, Copy)]
enum Path {
    Plain,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Vnni,
    /// Tiles for eight rows of x and more, VNNI for fewer.
    #[cfg(target_arch = "x86_64")]
    Amx,
    #[cfg(target_arch = "aarch64")]
    Neon,
    #[cfg(target_arch = "aarch64")]
    Dotprod,
}

impl Path {
    fn current() -> Path {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            match Isa::current() {
                Isa::Amx => return Path::Amx,
                Isa::Avx512 if has!("avx512vnni") => return Path::Vnni,
                Isa::Avx512 | Isa::Avx2 if has!("f16c") => return Path::Avx2,
                _ => {}
            }
        }
        #[cfg(target_arch = "aarch64")]
        if Isa::current() == Isa::Neon {
            let has_dots = std::arch::is_aarch64_feature_detected!("dotprod");
            return if has_dots { Path::Dotprod } else { Path::Neon };
        }
        Path::Plain
    }

    /// How many rows of x, of those left, go through a panel together.
    fn rows_at_a_time(self, left: usize) -> usize {
        #[cfg(target_arch = "x86_64")]
        if self.has_tiles(left) {
            return left.min(16) / 2 * 2;
        }
        match left {
            8.. => 8,
            4.. => 4,
            _ => 1,
        }
    }

    /// Whether so many rows of x go by tiles.
    #[cfg(target_arch = "x86_64")]
    fn has_tiles(self, m: usize) -> bool {
        matches!(self, Path::Amx) && m >= tiles::LEAST_ROWS
    }

    /// What must be held while `m` rows of x are multiplied.
    #[cfg(target_arch = "x86_64")]
    fn begin(self, kind: QuantKind, m: usize) -> Option<Held> {
        // SAFETY: this path is taken where tiles are there.
        self.has_tiles(m).then(|| unsafe { Held::new(kind, m) })
    }

    /// Nothing need be held.
    #[cfg(not(target_arch = "x86_64"))]
    fn begin(self, _: QuantKind, _: usize) -> Option<Held> {
        None
    }

    unsafe fn tile(self, kind: QuantKind, m: usize, tile: &Tile, held: &mut Option<Held>) {
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(
                enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c"
            )]
            unsafe fn amx(kind: QuantKind, m: usize, tile: &Tile, held: &mut Held) {
                // SAFETY: the caller keeps the tile's contract.
                unsafe { tiles_by_kind(kind, m, tile, held) }
            }
            #[target_feature(
                enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c"
            )]
            unsafe fn vnni(kind: QuantKind, m: usize, tile: &Tile) {
                // SAFETY: the caller keeps the tile's contract.
                unsafe { by_kind::<quads::Vnni>(kind, m, tile) }
            }
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2(kind: QuantKind, m: usize, tile: &Tile) {
                // SAFETY: the caller keeps the tile's contract.
                unsafe { by_kind::<quads::Avx2>(kind, m, tile) }
            }
            if let Some(held) = held {
                // SAFETY: tiles are held for these rows; the contract is the caller's.
                return unsafe { amx(kind, m, tile, held) };
            }
            match self {
                // SAFETY: the processor has the instructions; the contract is the caller's.
                Path::Amx | Path::Vnni => return unsafe { vnni(kind, m, tile) },
                // SAFETY: as above.
                Path::Avx2 => return unsafe { avx2(kind, m, tile) },
                Path::Plain => {}
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            #[target_feature(enable = "neon,dotprod")]
            unsafe fn dotprod(kind: QuantKind, m: usize, tile: &Tile) {
                // SAFETY: the caller keeps the tile's contract.
                unsafe { by_kind::<quads::Neon<true>>(kind, m, tile) }
            }
            #[target_feature(enable = "neon")]
            unsafe fn neon(kind: QuantKind, m: usize, tile: &Tile) {
                // SAFETY: the caller keeps the tile's contract.
                unsafe { by_kind::<quads::Neon<false>>(kind, m, tile) }
            }
            match self {
                // SAFETY: the processor has the instructions; the contract is the caller's.
                Path::Dotprod => return unsafe { dotprod(kind, m, tile) },
                // SAFETY: as above.
                Path::Neon => return unsafe { neon(kind, m, tile) },
                Path::Plain => {}
            }
        }
        let _ = held;
        // SAFETY: the plain level needs no instruction set; the contract is the caller's.
        unsafe { by_kind::<quads::Plain>(kind, m, tile) }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn tiles_by_kind(kind: QuantKind, m: usize, tile: &Tile, held: &mut Held) {
    macro_rules! each {
        ($($kind:ident)*) => {
            match (kind, m) {
                $(
                    (QuantKind::$kind, 16) => tiles::panel::<16>(QuantKind::$kind, tile, held),
                    (QuantKind::$kind, 14) => tiles::panel::<14>(QuantKind::$kind, tile, held),
                    (QuantKind::$kind, 12) => tiles::panel::<12>(QuantKind::$kind, tile, held),
                    (QuantKind::$kind, 10) => tiles::panel::<10>(QuantKind::$kind, tile, held),
                    (QuantKind::$kind, _) => tiles::panel::<8>(QuantKind::$kind, tile, held),
                )*
            }
        };
    }
    // SAFETY: as the caller's. The kind is a constant in each branch.
    unsafe { each!(Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4K Q5K Q6K) }
}

#[inline(always)]
unsafe fn by_kind<Q: Quads>(kind: QuantKind, m: usize, tile: &Tile) {
    // SAFETY: as the caller's. The kind is a constant in each branch, so all that depends on it is
    // decided when this is compiled.
    unsafe {
        match kind {
            QuantKind::Q4_0 => by_rows::<Q>(QuantKind::Q4_0, m, tile),
            QuantKind::Q4_1 => by_rows::<Q>(QuantKind::Q4_1, m, tile),
            QuantKind::Q5_0 => by_rows::<Q>(QuantKind::Q5_0, m, tile),
            QuantKind::Q5_1 => by_rows::<Q>(QuantKind::Q5_1, m, tile),
            QuantKind::Q8_0 => by_rows::<Q>(QuantKind::Q8_0, m, tile),
            QuantKind::Q4K => by_rows::<Q>(QuantKind::Q4K, m, tile),
            QuantKind::Q5K => by_rows::<Q>(QuantKind::Q5K, m, tile),
            QuantKind::Q6K => by_rows::<Q>(QuantKind::Q6K, m, tile),
        }
    }
}

#[inline(always)]
unsafe fn by_rows<Q: Quads>(kind: QuantKind, m: usize, tile: &Tile) {
    // SAFETY: as the caller's.
    unsafe {
        match m {
            8 => rows::<Q, 8>(kind, tile),
            4 => rows::<Q, 4>(kind, tile),
            _ => rows::<Q, 1>(kind, tile),
        }
    }
}

/// M rows of x times one panel.
#[inline(always)]
unsafe fn rows<Q: Quads, const M: usize>(kind: QuantKind, tile: &Tile) {
    let blocks = tile.cols / BLOCK;
    // SAFETY: the tile's panel holds `blocks` blocks, x M rows of them, y M rows of `width`.
    unsafe {
        let mut sums = [first_sums::<Q>(tile); M];
        let mut at = tile.panel;
        let mut above = [Q::Lanes::splat(0.0); 2];
        for b in 0..blocks {
            if kind.super_bytes() > 0 && b % SUPER == 0 {
                above = supers::<Q>(kind, at);
                at = at.add(kind.super_bytes());
            }
            ask_ahead::<Q>(kind, tile, at);
            block::<Q, M>(kind, tile, at, b, above, &mut sums);
            at = at.add(kind.block_bytes());
        }
        for (m, sum) in sums.into_iter().enumerate() {
            tile.store::<Q>(m, sum);
        }
    }
}

/// Whether blocks have a minimum.
#[inline(always)]
pub(super) const fn has_least(kind: QuantKind) -> bool {
    matches!(kind.scales(), Scales::WithMin | Scales::Super)
}

/// Asks for the block that stands so far after `at`, the first time that a panel is read.
#[inline(always)]
pub(super) fn ask_ahead<Q: Quads>(kind: QuantKind, tile: &Tile, at: *const u8) {
    let mut ahead = 0;
    while tile.first && ahead < kind.block_bytes() {
        Q::Lanes::prefetch(at.wrapping_add(AHEAD + ahead).cast());
        ahead += 64;
    }
}

/// What a row's sums begin with: the bias.
#[inline(always)]
pub(super) unsafe fn first_sums<Q: Quads>(tile: &Tile) -> Q::Lanes {
    // SAFETY: the caller has the instruction set.
    unsafe {
        match tile.bias {
            [] => Q::Lanes::splat(0.0),
            bias => Q::Lanes::load_part(bias.as_ptr(), bias.len()),
        }
    }
}

/// The numbers of the super-block at `at`, where the kind has such.
#[inline(always)]
pub(super) unsafe fn supers<Q: Quads>(kind: QuantKind, at: *const u8) -> [Q::Lanes; 2] {
    // SAFETY: as the caller's.
    unsafe {
        let zero = Q::Lanes::splat(0.0);
        match kind.scales() {
            Scales::One | Scales::WithMin => [zero, zero],
            Scales::Super => [Q::halves(at), Q::halves(at.add(2 * PANEL_ROWS))],
            Scales::Sixteen => [Q::halves(at), zero],
        }
    }
}

/// What the dots of the block at `at` are multiplied by: the scale of all columns and the minimum,
/// or the scales of the first and the second sixteen columns.
#[inline(always)]
pub(super) unsafe fn factors<Q: Quads>(
    kind: QuantKind,
    at: *const u8,
    supers: [Q::Lanes; 2],
) -> [Q::Lanes; 2] {
    // SAFETY: as the caller's.
    unsafe {
        match kind.scales() {
            Scales::One => [Q::halves(at), supers[1]],
            Scales::WithMin => [Q::halves(at), Q::halves(at.add(2 * PANEL_ROWS))],
            Scales::Super => {
                let min = supers[1].mul(Q::bytes(at.add(PANEL_ROWS)));
                [supers[0].mul(Q::bytes(at)), Q::Lanes::splat(0.0).sub(min)]
            }
            Scales::Sixteen => [
                supers[0].mul(Q::signed_bytes(at)),
                supers[0].mul(Q::signed_bytes(at.add(PANEL_ROWS))),
            ],
        }
    }
}

/// Adds block `b`, which stands at `at`, to the sums of M rows.
#[inline(always)]
unsafe fn block<Q: Quads, const M: usize>(
    kind: QuantKind,
    tile: &Tile,
    at: *const u8,
    b: usize,
    supers: [Q::Lanes; 2],
    sums: &mut [Q::Lanes; M],
) {
    // SAFETY: as the caller's.
    unsafe {
        let steps = steps::<Q>(kind, at.add(kind.scale_bytes()));
        let [scale, other] = factors::<Q>(kind, at, supers);
        let bits = kind.zero_bits().unwrap_or_default();
        let centred = kind.zero_bits().is_some();
        for (m, sum) in sums.iter_mut().enumerate() {
            let x = tile.x.codes.add((b * tile.x.together + m) * LINE);
            let row = &*tile.x.blocks.add(b * tile.x.together + m);
            let d = Q::Lanes::splat(row.scale);
            if kind.scales() == Scales::Sixteen {
                let (first, second) = (row.half_sum, row.sum - row.half_sum);
                let first = dots::<Q>(kind, &steps, 0, 4, x, -(first << bits));
                *sum = Q::floats(first).fma(scale.mul(d), *sum);
                let second = dots::<Q>(kind, &steps, 4, 8, x, -(second << bits));
                *sum = Q::floats(second).fma(other.mul(d), *sum);
            } else {
                let start = if centred { -(row.sum << bits) } else { 0 };
                let whole = dots::<Q>(kind, &steps, 0, 8, x, start);
                *sum = Q::floats(whole).fma(scale.mul(d), *sum);
                if has_least(kind) {
                    *sum = other.fma(Q::Lanes::splat(row.scaled_sum), *sum);
                }
            }
        }
    }
}

/// start + Σ codes·x over some steps.
#[inline(always)]
unsafe fn dots<Q: Quads>(
    kind: QuantKind,
    steps: &[Q; 8],
    from: usize,
    to: usize,
    x: *const i8,
    start: i32,
) -> Q::Sums {
    // SAFETY: x holds the high and the low digits of a block.
    unsafe {
        let high = digit_dots::<Q>(kind, steps, from, to, x, Q::sums(0));
        let low = digit_dots::<Q>(kind, steps, from, to, x.add(BLOCK), Q::sums(start));
        Q::add_16(low, high)
    }
}

#[inline(always)]
unsafe fn digit_dots<Q: Quads>(
    kind: QuantKind,
    steps: &[Q; 8],
    from: usize,
    to: usize,
    x: *const i8,
    mut sums: Q::Sums,
) -> Q::Sums {
    // SAFETY: x holds a block.
    unsafe {
        let mut step = from;
        while step < to {
            let x = x.add(4 * step);
            sums = if kind.bits() == 8 {
                steps[step].dot(x, sums)
            } else {
                steps[step].dot_small(x, sums)
            };
            step += 1;
        }
        sums
    }
}

/// The codes of a block, unpacked.
#[inline(always)]
pub(super) unsafe fn steps<Q: Quads>(kind: QuantKind, at: *const u8) -> [Q; 8] {
    // SAFETY: as the caller's.
    unsafe {
        // Not by closures: they would not have the instruction set of the caller.
        let mut all = [Q::load(at); 8];
        let mut step = 0;
        while step < 8 {
            if kind.bits() == 8 {
                all[step] = Q::load(at.add(64 * step));
            } else {
                let both = Q::load(at.add(64 * (step % 4)));
                all[step] = if step < 4 { both.low() } else { both.high() };
            }
            if kind.bits() == 5 {
                let bits = at.add(PANEL_ROWS * BLOCK / 2 + 8 * step).cast::<u64>();
                all[step] = all[step].add_fifth(u64::from_le(bits.read_unaligned()));
            }
            step += 1;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::super::{QuantBlock, pack_panel, quant_rows_len, quantise_rows, unpack_block};
    use super::*;

    fn random(seed: u64, i: usize) -> u64 {
        crate::uniform_bits(seed, i as u64)
    }

    /// Blocks with every code and awkward scales, as files hold them.
    fn invented(kind: QuantKind, row: usize, index: usize) -> QuantBlock {
        let at = row * 1000 + index;
        let limit = match kind {
            QuantKind::Q6K => 64,
            QuantKind::Q8_0 => 256,
            _ => 1 << kind.bits(),
        };
        let mut block = QuantBlock::ZERO;
        for (i, code) in block.codes.iter_mut().enumerate() {
            *code = (random(1, at * BLOCK + i) % limit) as u8;
        }
        // f16 between 2^-8 and 2^-4, either sign; one super-block has one d and m.
        let of = if kind.super_bytes() > 0 { row * 1000 + index / SUPER } else { at };
        let bits = |seed| {
            (0x1C00 + random(seed, of) % 0x1000 + (random(seed, of) >> 40 & 1) * 0x8000) as u16
        };
        block.d = bits(2);
        match kind.scales() {
            Scales::One => {}
            Scales::WithMin => block.m = bits(3),
            Scales::Super => {
                block.m = bits(3);
                block.scale[0] = (random(4, at) % 64) as u8;
                block.min = (random(5, at) % 64) as u8;
            }
            Scales::Sixteen => block.scale = [random(4, at) as u8, random(5, at) as u8],
        }
        block
    }

    fn packed(kind: QuantKind, rows: usize, cols: usize) -> Vec<u8> {
        let mut panels = vec![0xAA; kind.matrix_bytes(rows, cols)];
        for (p, panel) in panels.chunks_exact_mut(kind.panel_bytes(cols)).enumerate() {
            pack_panel(kind, cols, panel, |row| {
                let row = p * PANEL_ROWS + row;
                (row < rows).then_some(move |kind, index| invented(kind, row, index))
            });
        }
        panels
    }

    #[test]
    fn packing_keeps_every_block() {
        for kind in QuantKind::ALL {
            let (rows, cols) = (21, 512);
            let panels = packed(kind, rows, cols);
            for (row, index) in [(0, 0), (5, 7), (15, 15), (16, 8), (20, 3)] {
                let panel = &panels[row / PANEL_ROWS * kind.panel_bytes(cols)..];
                let block = unpack_block(kind, panel, row % PANEL_ROWS, index);
                assert_eq!(block, invented(kind, row, index), "{kind:?} {row} {index}");
            }
        }
    }

    #[test]
    fn products_are_those_of_the_values_and_the_same_bits_at_every_level() {
        let _level = crate::isa::hold();
        let (n, cols) = (37, 512);
        let x: Vec<f32> = (0..29 * cols).map(|i| crate::normal(9, i as u64)).collect();
        let bias: Vec<f32> = (0..n).map(|i| crate::normal(8, i as u64)).collect();
        // 29 rows go by sixteen, twelve and one, where there are tiles; ten and fourteen by themselves.
        let cases =
            QuantKind::ALL.into_iter().flat_map(|kind| [(kind, 29), (kind, 10), (kind, 15)]);
        for (kind, m) in cases {
            let panels = packed(kind, n, cols);
            let matrix = QuantMatrix { kind, rows: n, cols, panels: &panels };
            let x = &x[..m * cols];
            let mut seen: Vec<Vec<u32>> = Vec::new();
            for isa in Isa::available() {
                isa.force();
                for threads in [1, 3] {
                    let team = Team::new(threads);
                    let mut work = vec![0.0; quant_rows_len(m, cols)];
                    let rows = quantise_rows(&team, x, cols, &mut work);
                    let mut y = vec![f32::NAN; m * (n + 3)];
                    quant_matmul(&team, &rows, &matrix, &bias, &mut y, n + 3, 2);
                    check(&matrix, &rows, &bias, &y);
                    // Alone, a row has the same bits.
                    let row = &x[4 * cols..5 * cols];
                    let alone = quantise_rows(&team, row, cols, &mut work);
                    let mut single = vec![0.0; n];
                    quant_matmul(&team, &alone, &matrix, &bias, &mut single, n, 0);
                    assert_eq!(single[..], y[4 * (n + 3) + 2..4 * (n + 3) + 2 + n], "{kind:?}");
                    seen.push(y.iter().map(|v| v.to_bits()).collect());
                }
            }
            assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "{kind:?}");
        }
    }

    fn code(x: &QuantRows, row: usize, column: usize) -> i32 {
        let (place, index, within) = (x.place(row), column / BLOCK, column % BLOCK);
        // SAFETY: inside the codes of the block.
        let digit = |from: usize| unsafe {
            i32::from(*place.codes.add(index * place.together * LINE + from + within))
        };
        16 * digit(0) + digit(BLOCK)
    }

    fn scale(x: &QuantRows, row: usize, index: usize) -> f32 {
        let place = x.place(row);
        // SAFETY: inside the blocks.
        unsafe { (*place.blocks.add(index * place.together)).scale }
    }

    /// y against sums in f64 over the values of W and of the rounded x.
    fn check(matrix: &QuantMatrix, x: &QuantRows, bias: &[f32], y: &[f32]) {
        let (kind, n, cols) = (matrix.kind, matrix.rows, matrix.cols);
        for r in 0..x.rows {
            for (o, b) in bias.iter().enumerate() {
                let (mut right, mut size) = (f64::from(*b), 0.0);
                for index in 0..cols / BLOCK {
                    let panel = &matrix.panels[o / PANEL_ROWS * kind.panel_bytes(cols)..];
                    let w = unpack_block(kind, panel, o % PANEL_ROWS, index).values(kind);
                    let d = f64::from(scale(x, r, index));
                    for (i, w) in w.iter().enumerate() {
                        let x = d * f64::from(code(x, r, index * BLOCK + i));
                        right += f64::from(*w) * x;
                        size += (f64::from(*w) * x).abs();
                    }
                }
                let found = f64::from(y[r * (n + 3) + 2 + o]);
                assert!((found - right).abs() <= 3e-6 * size + 1e-6, "{kind:?}: {found} {right}");
            }
        }
    }

    #[test]
    fn rounding_is_within_its_bound_and_zero_stays_zero() {
        let _level = crate::isa::hold();
        let team = Team::new(1);
        let mut x: Vec<f32> = (0..96).map(|i| crate::normal(3, i)).collect();
        x[32..64].fill(0.0);
        let mut work = vec![0.0; quant_rows_len(1, 96)];
        let rows = quantise_rows(&team, &x, 96, &mut work);
        for (i, &value) in x.iter().enumerate() {
            let largest = x[i / BLOCK * BLOCK..][..BLOCK].iter().fold(0f32, |a, b| a.max(b.abs()));
            let scale = scale(&rows, 0, i / BLOCK);
            assert!((scale - largest / 2032.0).abs() <= 1e-6 * scale);
            assert!((value - scale * code(&rows, 0, i) as f32).abs() <= scale * 0.51);
        }
        assert!((32..64).all(|i| code(&rows, 0, i) == 0) && scale(&rows, 0, 1) == 0.0);
    }

    #[test]
    fn what_is_not_finite_is_told() {
        let _level = crate::isa::hold();
        let team = Team::new(1);
        let (n, cols) = (16, 256);
        for kind in [QuantKind::Q4_1, QuantKind::Q6K] {
            let panels = packed(kind, n, cols);
            let matrix = QuantMatrix { kind, rows: n, cols, panels: &panels };
            for (isa, m) in Isa::available().flat_map(|isa| [(isa, 1), (isa, 8)]) {
                isa.force();
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut x: Vec<f32> =
                        (0..m * cols).map(|i| crate::normal(3, i as u64)).collect();
                    x[40] = bad;
                    let mut work = vec![0.0; quant_rows_len(m, cols)];
                    let rows = quantise_rows(&team, &x, cols, &mut work);
                    let mut y = vec![0.0; m * n];
                    quant_matmul(&team, &rows, &matrix, &[], &mut y, n, 0);
                    let (first, others) = y.split_at(n);
                    assert!(first.iter().all(|y| !y.is_finite()), "{isa:?} {bad}");
                    assert!(others.iter().all(|y| y.is_finite()), "{isa:?} {bad}");
                }
            }
        }
    }

    #[test]
    fn halves_widen_exactly() {
        for (bits, value) in [
            (0x0000, 0.0),
            (0x3C00, 1.0),
            (0xC000, -2.0),
            (0x7BFF, 65504.0),
            (0x0001, 5.960_464_5e-8),
            (0x83FF, -6.097_555e-5),
        ] {
            assert_eq!(crate::halves::widened(bits), value);
        }
        assert!(crate::halves::widened(0x7C00).is_infinite());
        assert!(crate::halves::widened(0x7E00).is_nan());
    }
}
