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

const BLOCK_BYTES: usize = BLOCK + size_of::<RowBlock>();

/// Bytes of workspace for `rows` rows of `cols` values.
pub fn rows_bytes(rows: usize, cols: usize) -> usize {
    rows * cols.div_ceil(BLOCK) * BLOCK_BYTES
}

/// Rounded rows in a workspace: first the numbers of all blocks, then the codes.
#[derive(Clone, Copy, Debug)]
pub struct QuantRows<'a> {
    pub(super) blocks: &'a [RowBlock],
    pub(super) codes: &'a [i8],
    /// R
    pub rows: usize,
    /// K, a multiple of 32.
    pub cols: usize,
}

/// Rounds x (R×K, rows without gaps, K a multiple of 32): d = max|x| / 127 of the block,
/// code = x / d to the nearest, ties to even.
///
/// # Panics
/// When `workspace` is shorter than [`rows_bytes`] or not aligned to 4.
pub fn quantise_rows<'a>(
    team: &Team,
    x: &[f32],
    cols: usize,
    workspace: &'a mut [u8],
) -> QuantRows<'a> {
    assert!(cols.is_multiple_of(BLOCK) && cols > 0 && x.len().is_multiple_of(cols), "R×K");
    let (rows, per_row) = (x.len() / cols, cols / BLOCK);
    let (head, codes) = workspace.split_at_mut(rows * per_row * size_of::<RowBlock>());
    let codes = &mut codes[..rows * cols];
    let address = head.as_mut_ptr();
    assert!(address.align_offset(align_of::<RowBlock>()) == 0, "an aligned workspace");
    // SAFETY: the bytes are aligned, as many as the blocks take, and any bits are a RowBlock.
    let blocks =
        unsafe { std::slice::from_raw_parts_mut(address.cast::<RowBlock>(), rows * per_row) };
    let address = codes.as_mut_ptr().cast::<i8>();
    // SAFETY: i8 and u8 have the same layout.
    let codes = unsafe { std::slice::from_raw_parts_mut(address, rows * cols) };
    {
        let (blocks, codes) = (Split::new(blocks), Split::new(codes));
        let one = |row: usize| {
            let x = &x[row * cols..(row + 1) * cols];
            // SAFETY: each task writes its own row.
            unsafe {
                let blocks = blocks.part(row * per_row..(row + 1) * per_row);
                let codes = codes.part(row * cols..(row + 1) * cols);
                quantise_row_raw(x, blocks, codes);
            }
        };
        if rows * cols < 1 << 13 { (0..rows).for_each(one) } else { team.tasks(rows, one) }
    }
    QuantRows { blocks, codes, rows, cols }
}

#[inline(always)]
unsafe fn quantise_row_body<S: Lanes>(x: &[f32], blocks: &mut [RowBlock], codes: &mut [i8]) {
    for ((x, block), codes) in
        x.as_chunks::<BLOCK>().0.iter().zip(blocks).zip(codes.as_chunks_mut::<BLOCK>().0)
    {
        // SAFETY: a block is two vectors.
        let rounded = unsafe {
            let [a, b] = [S::load(x.as_ptr()), S::load(x.as_ptr().add(LANES))];
            let zero = S::splat(0.0);
            let size = a.max(zero.sub(a)).max(b.max(zero.sub(b)));
            let largest = size.to_array().into_iter().fold(0.0f32, f32::max);
            block.scale = largest / 127.0;
            // Below that, the quotient would overflow; such values are zero beside any other.
            let inverse = if largest > 1e-30 { 127.0 / largest } else { 0.0 };
            let inverse = S::splat(inverse);
            [a.mul(inverse).round().to_array(), b.mul(inverse).round().to_array()]
        };
        let mut sums = [0i32; 2];
        for (half, sum) in sums.iter_mut().enumerate() {
            for (i, &v) in rounded[half].iter().enumerate() {
                let code = v as i32;
                codes[half * LANES + i] = code as i8;
                *sum += code;
            }
        }
        block.half_sum = sums[0];
        block.sum = sums[0] + sums[1];
        block.scaled_sum = block.scale * block.sum as f32;
    }
}
stamp!(fn quantise_row_raw(x: &[f32], blocks: &mut [RowBlock], codes: &mut [i8]) = quantise_row_body);
