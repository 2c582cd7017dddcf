//! Rows of activations rounded to 12 bits, a scale for 32 values.
//!
//! A code is two digits of base 16, each a signed byte: the higher one times sixteen and the lower
//! one. Sixteen rows stand together (the last ones: what is left), block after block; of a block, row
//! after row, first the 32 high digits and then the 32 low ones. So a product reads x from front to
//! end, whether it takes one row or sixteen.

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

/// The higher digit is worth so many of the lower, as a power of two.
pub(super) const BASE_BITS: u32 = 4;
/// Bytes that a row of a block takes: its high digits, then its low ones.
pub(super) const LINE: usize = 2 * BLOCK;
/// The code of the largest value of a block.
const LARGEST: f32 = (127 << BASE_BITS) as f32;

/// Values of workspace for `rows` rows of `cols` values.
pub fn quant_rows_len(rows: usize, cols: usize) -> usize {
    rows * cols.div_ceil(BLOCK) * (LINE + size_of::<RowBlock>()) / size_of::<f32>()
}

/// Rows that stand together.
pub(super) const TOGETHER: usize = 16;

/// Rounded rows in a workspace: first the codes, which are read by whole lines, then the numbers of
/// all blocks.
#[derive(Clone, Copy, Debug)]
pub struct QuantRows<'a> {
    blocks: &'a [RowBlock],
    codes: &'a [i8],
    /// R
    pub rows: usize,
    /// K, a multiple of 32.
    pub cols: usize,
}

/// A row and those after it that it stands together with.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Its first code; the next row's is 64 bytes on.
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
        Place {
            codes: self.codes[first * 2 * self.cols + (row - first) * LINE..].as_ptr(),
            blocks: self.blocks[first * (self.cols / BLOCK) + (row - first)..].as_ptr(),
            together,
        }
    }
}

/// Rounds x (R×K, rows without gaps, K a multiple of 32): d = max|x| / 2032 of the block, code = x / d
/// to the nearest, ties to even. A block with a number that is not finite has no finite scale.
///
/// # Panics
/// When `workspace` is shorter than [`quant_rows_len`].
pub fn quantise_rows<'a>(
    team: &Team,
    x: &[f32],
    cols: usize,
    workspace: &'a mut [f32],
) -> QuantRows<'a> {
    assert!(cols.is_multiple_of(BLOCK) && cols > 0 && x.len().is_multiple_of(cols), "R×K");
    let (rows, per_row, bytes) = (x.len() / cols, cols / BLOCK, 2 * cols);
    let (codes, rest) = workspace.split_at_mut(rows * bytes / size_of::<f32>());
    let head = &mut rest[..rows * per_row * size_of::<RowBlock>() / size_of::<f32>()];
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
                quantise_rows_raw(x, last - first, blocks, codes);
            }
        };
        let tiles = rows.div_ceil(TOGETHER);
        if rows * cols < 1 << 13 { (0..tiles).for_each(some) } else { team.tasks(tiles, some) }
    }
    QuantRows { blocks, codes, rows, cols }
}

/// Rounds rows that stand together.
#[inline(always)]
unsafe fn quantise_rows_body<S: Lanes>(
    x: &[f32],
    rows: usize,
    blocks: &mut [RowBlock],
    codes: &mut [i8],
) {
    let cols = x.len() / rows;
    for (row, x) in x.chunks_exact(cols).enumerate() {
        for (b, x) in x.as_chunks::<BLOCK>().0.iter().enumerate() {
            let at = b * rows + row;
            let codes = &mut codes[at * LINE..(at + 1) * LINE];
            // SAFETY: the caller has the instruction set.
            unsafe { quantise_block::<S>(x, &mut blocks[at], codes) }
        }
    }
}
stamp!(fn quantise_rows_raw(
    x: &[f32], rows: usize, blocks: &mut [RowBlock], codes: &mut [i8]
) = quantise_rows_body);

#[inline(always)]
unsafe fn quantise_block<S: Lanes>(x: &[f32; BLOCK], block: &mut RowBlock, codes: &mut [i8]) {
    let base = (1 << BASE_BITS) as f32;
    let (high, low) = codes.split_at_mut(BLOCK);
    // SAFETY: a block is two vectors, and so are its digits.
    unsafe {
        let [a, b] = [S::load(x.as_ptr()), S::load(x.as_ptr().add(LANES))];
        let zero = S::splat(0.0);
        let largest = a.max(zero.sub(a)).max(b.max(zero.sub(b))).largest();
        block.scale = largest / LARGEST;
        // Below that, the quotient would overflow; such values are zero beside any other.
        let inverse = if largest > 1e-30 { LARGEST / largest } else { 0.0 };
        let inverse = S::splat(inverse);
        let (mut sums, mut finite) = ([0i32; 2], true);
        for (half, x) in [a, b].into_iter().enumerate() {
            let whole = x.mul(inverse).round();
            let sum = whole.sum();
            sums[half] = sum as i32;
            finite &= sum.is_finite();
            // Ties go to the even one: the lower digit is then 8 or -8.
            let upper = whole.mul(S::splat(1.0 / base)).round();
            upper.store_i8(high.as_mut_ptr().add(half * LANES));
            let lower = whole.sub(upper.mul(S::splat(base)));
            lower.store_i8(low.as_mut_ptr().add(half * LANES));
        }
        // Codes cannot tell what is not a number: the scale does. Infinity times 0 is none either.
        if !finite {
            block.scale = f32::NAN;
        }
        block.half_sum = sums[0];
        block.sum = sums[0] + sums[1];
        block.scaled_sum = block.scale * block.sum as f32;
    }
}
