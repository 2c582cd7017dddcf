//! Rows of activations rounded to 8 bits, a scale for 32 values.
//!
//! Sixteen rows stand together (the last ones: what is left), block after block: of each block first
//! the high digits of all these rows, then the low ones. So a product reads x from front to end,
//! whether it takes one row or sixteen.

use super::BLOCK;
use crate::lanes::{LANES, Lanes, stamp};
use crate::split::Split;
use crate::team::Team;

/// What belongs to a block of 32 codes.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(super) struct RowBlock {
    /// d: the value of a code of 1.
    pub scale: f32,
    /// d·Σ codes
    pub scaled_sum: f32,
    /// Σ codes
    pub sum: i32,
    /// Σ of the first sixteen codes
    pub half_sum: i32,
}

/// How finely a value is rounded: a code is one signed byte, or two of them, the higher one worth
/// 128 times the lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Digits {
    /// |code| up to 127.
    One,
    /// |code| up to 127·128.
    Two,
}

impl Digits {
    const fn count(self) -> usize {
        match self {
            Digits::One => 1,
            Digits::Two => 2,
        }
    }
}

/// Values of workspace for `rows` rows of `cols` values.
pub fn quant_rows_len(rows: usize, cols: usize, digits: Digits) -> usize {
    let bytes = digits.count() * BLOCK + size_of::<RowBlock>();
    rows * cols.div_ceil(BLOCK) * bytes / size_of::<f32>()
}

/// Rows that stand together.
pub(super) const TOGETHER: usize = 16;

/// Rounded rows in a workspace: first the numbers of all blocks, then the codes.
#[derive(Clone, Copy, Debug)]
pub struct QuantRows<'a> {
    blocks: &'a [RowBlock],
    codes: &'a [i8],
    pub(super) digits: Digits,
    /// R
    pub rows: usize,
    /// K, a multiple of 32.
    pub cols: usize,
}

/// A row and those after it that it stands together with.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Its first code; the next row's is 32 bytes on.
    pub codes: *const i8,
    /// The numbers of its first block; the next row's follow.
    pub blocks: *const RowBlock,
    /// How many rows stand together.
    pub together: usize,
}

impl QuantRows<'_> {
    pub(super) fn place(&self, row: usize) -> Place {
        let first = row / TOGETHER * TOGETHER;
        let together = TOGETHER.min(self.rows - first);
        let bytes = self.cols * self.digits.count();
        Place {
            codes: self.codes[first * bytes + (row - first) * BLOCK..].as_ptr(),
            blocks: self.blocks[first * (self.cols / BLOCK) + (row - first)..].as_ptr(),
            together,
        }
    }
}

/// Rounds x (R×K, rows without gaps, K a multiple of 32): d = max|x| / (largest code) of the
/// block, code = x / d to the nearest, ties to even.
///
/// # Panics
/// When `workspace` is shorter than [`quant_rows_len`].
pub fn quantise_rows<'a>(
    team: &Team,
    x: &[f32],
    cols: usize,
    digits: Digits,
    workspace: &'a mut [f32],
) -> QuantRows<'a> {
    assert!(cols.is_multiple_of(BLOCK) && cols > 0 && x.len().is_multiple_of(cols), "R×K");
    let (rows, per_row, bytes) = (x.len() / cols, cols / BLOCK, cols * digits.count());
    let (head, rest) =
        workspace.split_at_mut(rows * per_row * size_of::<RowBlock>() / size_of::<f32>());
    let codes = &mut rest[..rows * bytes / size_of::<f32>()];
    // SAFETY: a RowBlock is four values of 32 bits, aligned as they are; any bits are one.
    let blocks =
        unsafe { std::slice::from_raw_parts_mut(head.as_mut_ptr().cast(), rows * per_row) };
    // SAFETY: four i8 a value; any bits are one.
    let codes = unsafe { std::slice::from_raw_parts_mut(codes.as_mut_ptr().cast(), rows * bytes) };
    {
        let (blocks, codes) = (Split::new(blocks), Split::new(codes));
        let some = |tile: usize| {
            let (first, last) = (tile * TOGETHER, rows.min((tile + 1) * TOGETHER));
            let x = &x[first * cols..last * cols];
            // SAFETY: each task writes its own rows.
            unsafe {
                let blocks = blocks.part(first * per_row..last * per_row);
                let codes = codes.part(first * bytes..last * bytes);
                quantise_rows_raw(x, last - first, digits, blocks, codes);
            }
        };
        let tiles = rows.div_ceil(TOGETHER);
        if rows * cols < 1 << 13 { (0..tiles).for_each(some) } else { team.tasks(tiles, some) }
    }
    QuantRows { blocks, codes, digits, rows, cols }
}

/// Rounds rows that stand together.
#[inline(always)]
unsafe fn quantise_rows_body<S: Lanes>(
    x: &[f32],
    rows: usize,
    digits: Digits,
    blocks: &mut [RowBlock],
    codes: &mut [i8],
) {
    let cols = x.len() / rows;
    for (row, x) in x.chunks_exact(cols).enumerate() {
        for (b, x) in x.as_chunks::<BLOCK>().0.iter().enumerate() {
            let at = (b * digits.count() * rows + row) * BLOCK;
            let (high, low) = codes[at..].split_at_mut(BLOCK);
            let low = low.get_mut((rows - 1) * BLOCK..).unwrap_or_default();
            // SAFETY: the caller has the instruction set.
            unsafe { quantise_block::<S>(x, digits, &mut blocks[b * rows + row], high, low) }
        }
    }
}
stamp!(fn quantise_rows_raw(
    x: &[f32], rows: usize, digits: Digits, blocks: &mut [RowBlock], codes: &mut [i8]
) = quantise_rows_body);

#[inline(always)]
unsafe fn quantise_block<S: Lanes>(
    x: &[f32; BLOCK],
    digits: Digits,
    block: &mut RowBlock,
    high: &mut [i8],
    low: &mut [i8],
) {
    let largest_code = if digits == Digits::One { 127.0 } else { 127.0 * 128.0 };
    // SAFETY: a block is two vectors.
    let rounded = unsafe {
        let [a, b] = [S::load(x.as_ptr()), S::load(x.as_ptr().add(LANES))];
        let zero = S::splat(0.0);
        let size = a.max(zero.sub(a)).max(b.max(zero.sub(b)));
        let mut sizes = size.to_array();
        let mut half = LANES / 2;
        while half > 0 {
            for lane in 0..half {
                let other = sizes[lane + half];
                sizes[lane] = if other > sizes[lane] { other } else { sizes[lane] };
            }
            half /= 2;
        }
        let largest = sizes[0];
        block.scale = largest / largest_code;
        // Below that, the quotient would overflow; such values are zero beside any other.
        let inverse = if largest > 1e-30 { largest_code / largest } else { 0.0 };
        let inverse = S::splat(inverse);
        [a.mul(inverse).round(), b.mul(inverse).round()]
    };
    let mut sums = [0i32; 2];
    for half in 0..2 {
        let at = half * LANES;
        // SAFETY: the codes of a vector.
        unsafe {
            let whole = rounded[half];
            sums[half] = whole.sum() as i32;
            if digits == Digits::One {
                whole.store_i8(high[at..at + LANES].as_mut_ptr());
            } else {
                // Ties go to the even one: the lower digit is then 64 or -64.
                let upper = whole.mul(S::splat(1.0 / 128.0)).round();
                upper.store_i8(high[at..at + LANES].as_mut_ptr());
                let lower = whole.sub(upper.mul(S::splat(128.0)));
                lower.store_i8(low[at..at + LANES].as_mut_ptr());
            }
        }
    }
    block.half_sum = sums[0];
    block.sum = sums[0] + sums[1];
    block.scaled_sum = block.scale * block.sum as f32;
}
