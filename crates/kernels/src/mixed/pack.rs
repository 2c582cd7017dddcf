//! Factors of a product in steps of 32 values of K: two blocks of sixteen lines by sixteen pairs.
//!
//! What stands in order along K is copied by lines, what stands in order across them by pairs of
//! neighbours along K; where the other form is wanted a block of 256 words is turned.

use super::{Factor, STEP, STEP_WORDS, Stored};
use crate::halves::HalfKind;
use crate::lanes::{LANES, Lanes, stamp};

/// A factor seen as lines along K.
#[derive(Clone, Copy)]
pub(super) struct Lines<'a> {
    stored: Stored<'a>,
    pub(super) lines: usize,
    line_stride: usize,
    k_stride: usize,
}

impl<'a> From<Factor<'a>> for Lines<'a> {
    fn from(f: Factor<'a>) -> Self {
        Lines {
            stored: f.stored,
            lines: f.rows,
            line_stride: f.row_stride,
            k_stride: f.col_stride,
        }
    }
}

impl Lines<'_> {
    /// The same, as if it ended at a line.
    pub(super) fn up_to(self, lines: usize) -> Self {
        Lines { lines: lines.min(self.lines), ..self }
    }
}

/// Words of a block.
const BLOCK: usize = STEP_WORDS / 2;

stamp!(pub(super) fn pack(
    kind: HalfKind, from: &Lines, first: usize, k0: usize, depth: usize, pairs_first: bool, to: *mut u32
) = pack_body);

/// Lines `first` to `first + 32` from place `k0` on, filled up with zeros; a block's words are
/// line-major, or pair-major where `pairs_first`.
///
/// # Safety
/// The factor holds the lines that it says, `k0 + depth` long; `to` takes all steps.
#[inline(always)]
unsafe fn pack_body<S: Lanes>(
    kind: HalfKind,
    from: &Lines,
    first: usize,
    k0: usize,
    depth: usize,
    pairs_first: bool,
    to: *mut u32,
) {
    for step in 0..depth.div_ceil(STEP) {
        for side in 0..2 {
            let first = first + side * LANES;
            let lines = from.lines.saturating_sub(first).min(LANES);
            let k = k0 + step * STEP;
            let count = STEP.min(depth - step * STEP);
            // SAFETY: inside the factor and the packed form by the contract.
            unsafe {
                let to = to.add(step * STEP_WORDS + side * BLOCK);
                if lines == 0 {
                    to.write_bytes(0, BLOCK);
                    continue;
                }
                let in_order = from.k_stride == 1;
                match (from.stored, in_order) {
                    (Stored::Values(x), true) => {
                        let x = x.as_ptr().add(first * from.line_stride + k);
                        by_line(lines, to, |i, line| {
                            round::<S>(kind, x.add(i * from.line_stride), count, line);
                        });
                    }
                    (Stored::Halves(x), true) => {
                        let x = x.as_ptr().add(first * from.line_stride + k);
                        by_line(lines, to, |i, line| copy(x.add(i * from.line_stride), count, line));
                    }
                    (Stored::Values(x), false) => {
                        let x = x.as_ptr().add(first + k * from.k_stride);
                        by_pair(count, to, |i, half| {
                            half_round::<S>(kind, x.add(i * from.k_stride), lines, half);
                        });
                    }
                    (Stored::Halves(x), false) => {
                        let x = x.as_ptr().add(first + k * from.k_stride);
                        by_pair(count, to, |i, half| {
                            std::ptr::copy_nonoverlapping(
                                x.add(i * from.k_stride),
                                half.as_mut_ptr(),
                                lines,
                            );
                        });
                    }
                }
                if in_order == pairs_first {
                    S::turn_words(to);
                }
            }
        }
    }
}

/// Fills the lines of a block; those past the last with zeros.
///
/// # Safety
/// `to` takes a block.
#[inline(always)]
unsafe fn by_line(lines: usize, to: *mut u32, fill: impl Fn(usize, *mut u16)) {
    // SAFETY: inside the block.
    unsafe {
        (0..lines).for_each(|i| fill(i, to.add(i * LANES).cast()));
        to.add(lines * LANES).write_bytes(0, (LANES - lines) * LANES);
    }
}

/// Fills the pairs of a block from lines across them; those past the last with zeros.
///
/// # Safety
/// `to` takes a block.
#[inline(always)]
unsafe fn by_pair(count: usize, to: *mut u32, fill: impl Fn(usize, &mut [u16; LANES])) {
    for pair in 0..STEP / 2 {
        let (mut low, mut high) = ([0; LANES], [0; LANES]);
        if 2 * pair < count {
            fill(2 * pair, &mut low);
        }
        if 2 * pair + 1 < count {
            fill(2 * pair + 1, &mut high);
        }
        let words: [u32; LANES] =
            std::array::from_fn(|i| u32::from(low[i]) | u32::from(high[i]) << 16);
        // SAFETY: inside the block.
        unsafe { to.add(pair * LANES).cast::<[u32; LANES]>().write_unaligned(words) };
    }
}

/// Sixteen halves, or the first `n` of them and zeros.
///
/// # Safety
/// `n` values are readable.
#[inline(always)]
unsafe fn half_round<S: Lanes>(kind: HalfKind, x: *const f32, n: usize, to: &mut [u16; LANES]) {
    // SAFETY: as the caller's.
    unsafe {
        let x = if n == LANES { S::load(x) } else { S::load_part(x, n) };
        match kind {
            HalfKind::F16 => x.store_f16(to.as_mut_ptr()),
            HalfKind::Bf16 => x.store_bf16(to.as_mut_ptr()),
        }
    }
}

/// A line of 32 halves, or the first `count` of them and zeros.
///
/// # Safety
/// `count` values are readable; the line is writable.
#[inline(always)]
unsafe fn round<S: Lanes>(kind: HalfKind, x: *const f32, count: usize, line: *mut u16) {
    // SAFETY: as the caller's.
    unsafe {
        let halves = &mut *line.cast::<[[u16; LANES]; 2]>();
        for (i, to) in halves.iter_mut().enumerate() {
            let n = count.saturating_sub(i * LANES).min(LANES);
            half_round::<S>(kind, x.wrapping_add(i * LANES), n, to);
        }
    }
}

/// The same of halves as they are.
///
/// # Safety
/// `count` halves are readable; the line is writable.
#[inline(always)]
unsafe fn copy(x: *const u16, count: usize, line: *mut u16) {
    // SAFETY: as the caller's.
    unsafe {
        std::ptr::copy_nonoverlapping(x, line, count);
        line.add(count).write_bytes(0, STEP - count);
    }
}
