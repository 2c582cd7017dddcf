//! Rows of activations rounded to 8 bits, a scale for 32 values.

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

/// Rounded rows in a workspace: first the numbers of all blocks, then the codes.
#[derive(Clone, Copy, Debug)]
pub struct QuantRows<'a> {
    pub(super) blocks: &'a [RowBlock],
    /// A row's digits, the high ones of all columns first where there are two.
    pub(super) codes: &'a [i8],
    pub(super) digits: Digits,
    /// R
    pub rows: usize,
    /// K, a multiple of 32.
    pub cols: usize,
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
        let one = |row: usize| {
            let x = &x[row * cols..(row + 1) * cols];
            // SAFETY: each task writes its own row.
            unsafe {
                let blocks = blocks.part(row * per_row..(row + 1) * per_row);
                let codes = codes.part(row * bytes..(row + 1) * bytes);
                quantise_row_raw(x, digits, blocks, codes);
            }
        };
        if rows * cols < 1 << 13 { (0..rows).for_each(one) } else { team.tasks(rows, one) }
    }
    QuantRows { blocks, codes, digits, rows, cols }
}

#[inline(always)]
unsafe fn quantise_row_body<S: Lanes>(
    x: &[f32],
    digits: Digits,
    blocks: &mut [RowBlock],
    codes: &mut [i8],
) {
    let largest_code = if digits == Digits::One { 127.0 } else { 127.0 * 128.0 };
    let (high, low) = codes.split_at_mut(x.len());
    for (b, (x, block)) in x.as_chunks::<BLOCK>().0.iter().zip(blocks).enumerate() {
        // SAFETY: a block is two vectors.
        let rounded = unsafe {
            let [a, b] = [S::load(x.as_ptr()), S::load(x.as_ptr().add(LANES))];
            let zero = S::splat(0.0);
            let size = a.max(zero.sub(a)).max(b.max(zero.sub(b)));
            let mut largest = 0.0f32;
            for size in size.to_array() {
                largest = if size > largest { size } else { largest };
            }
            block.scale = largest / largest_code;
            // Below that, the quotient would overflow; such values are zero beside any other.
            let inverse = if largest > 1e-30 { largest_code / largest } else { 0.0 };
            let inverse = S::splat(inverse);
            [a.mul(inverse).round(), b.mul(inverse).round()]
        };
        let mut sums = [0i32; 2];
        for half in 0..2 {
            let at = b * BLOCK + half * LANES;
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
}
stamp!(fn quantise_row_raw(
    x: &[f32], digits: Digits, blocks: &mut [RowBlock], codes: &mut [i8]
) = quantise_row_body);
