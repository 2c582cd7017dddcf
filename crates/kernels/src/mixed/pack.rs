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
    pub(super) stored: Stored<'a>,
    pub(super) lines: usize,
    pub(super) line_stride: usize,
    pub(super) k_stride: usize,
}

impl<'a> From<Factor<'a>> for Lines<'a> {
    fn from(f: Factor<'a>) -> Self {
        Lines { stored: f.stored, lines: f.rows, line_stride: f.row_stride, k_stride: f.col_stride }
    }
}

impl Lines<'_> {
    /// Whether it is inside what is stored, `depth` values long.
    pub(super) fn is_inside(&self, depth: usize) -> bool {
        let len = match self.stored {
            Stored::Values(x) => x.len(),
            Stored::Halves(x) => x.len(),
        };
        let last = (self.lines - 1) * self.line_stride + (depth - 1) * self.k_stride;
        self.lines > 0 && depth > 0 && last < len
    }

    /// The same, as if it ended at a line.
    pub(super) fn up_to(self, lines: usize) -> Self {
        Lines { lines: lines.min(self.lines), ..self }
    }
}

/// Words of a block.
const BLOCK: usize = STEP_WORDS / 2;

/// Which lines of a factor are packed, from which place on, in which form.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) first: usize,
    pub(super) strips: usize,
    pub(super) k0: usize,
    pub(super) depth: usize,
    /// Whether a block's words are pair-major; line-major otherwise.
    pub(super) pairs_first: bool,
}

stamp!(pub(super) fn pack(kind: HalfKind, from: &Lines, run: &Run, to: *mut u32) = pack_body);

/// Strips of 32 lines, one after another, filled up with zeros. Lines in order along K are read one
/// after another, others side by side, as memory has them.
///
/// # Safety
/// The factor holds the lines that it says, `k0 + depth` long; `to` takes all strips.
#[inline(always)]
unsafe fn pack_body<S: Lanes>(kind: HalfKind, from: &Lines, run: &Run, to: *mut u32) {
    let steps = run.depth.div_ceil(STEP);
    let (outer, inner) = match from.k_stride {
        1 => (run.strips, steps),
        _ => (steps, run.strips),
    };
    for o in 0..outer {
        for i in 0..inner {
            let (strip, step) = if from.k_stride == 1 { (o, i) } else { (i, o) };
            // SAFETY: as the caller's.
            unsafe {
                let to = to.add((strip * steps + step) * STEP_WORDS);
                pack_step::<S>(kind, from, run, (strip, step), to);
            }
        }
    }
}

/// A step of a strip.
///
/// # Safety
/// As for [`pack_body`].
#[inline(always)]
unsafe fn pack_step<S: Lanes>(
    kind: HalfKind,
    from: &Lines,
    run: &Run,
    (strip, step): (usize, usize),
    to: *mut u32,
) {
    let Run { first, k0, depth, pairs_first, .. } = *run;
    for side in 0..2 {
        let first = first + strip * 2 * LANES + side * LANES;
        let lines = from.lines.saturating_sub(first).min(LANES);
        let k = k0 + step * STEP;
        let count = STEP.min(depth - step * STEP);
        // SAFETY: inside the factor and the packed form by the contract.
        unsafe {
            let to = to.add(side * BLOCK);
            if lines == 0 {
                to.write_bytes(0, BLOCK);
                continue;
            }
            let in_order = from.k_stride == 1;
            let at = match in_order {
                true => first * from.line_stride + k,
                false => first + k * from.k_stride,
            };
            match (from.stored, in_order) {
                (Stored::Values(x), true) => {
                    lines_of_values::<S>(
                        kind,
                        (x.as_ptr().add(at), from.line_stride),
                        lines,
                        count,
                        to,
                    );
                }
                (Stored::Halves(x), true) => {
                    lines_of_halves((x.as_ptr().add(at), from.line_stride), lines, count, to);
                }
                (Stored::Values(x), false) => {
                    pairs_of_values::<S>(
                        kind,
                        (x.as_ptr().add(at), from.k_stride),
                        lines,
                        count,
                        to,
                    );
                }
                (Stored::Halves(x), false) => {
                    pairs_of_halves((x.as_ptr().add(at), from.k_stride), lines, count, to);
                }
            }
            if in_order == pairs_first {
                S::turn_words(to);
            }
        }
    }
}

// No closures below: they would not be compiled for the instruction set that they are called at.

/// Lines in order along K, rounded.
///
/// # Safety
/// `lines` lines of `count` values are readable; `to` takes a block.
#[inline(always)]
unsafe fn lines_of_values<S: Lanes>(
    kind: HalfKind,
    (x, stride): (*const f32, usize),
    lines: usize,
    count: usize,
    to: *mut u32,
) {
    // SAFETY: as the caller's.
    unsafe {
        for i in 0..lines {
            let (x, to) = (x.add(i * stride), to.add(i * LANES).cast::<u16>());
            for side in [0, LANES] {
                let n = count.saturating_sub(side).min(LANES);
                let x = x.wrapping_add(side);
                let x = if n == LANES { S::load(x) } else { S::load_part(x, n) };
                match kind {
                    HalfKind::F16 => x.store_f16(to.add(side)),
                    HalfKind::Bf16 => x.store_bf16(to.add(side)),
                }
            }
        }
        to.add(lines * LANES).write_bytes(0, (LANES - lines) * LANES);
    }
}

/// The same of halves as they are.
///
/// # Safety
/// As for [`lines_of_values`].
#[inline(always)]
unsafe fn lines_of_halves(
    (x, stride): (*const u16, usize),
    lines: usize,
    count: usize,
    to: *mut u32,
) {
    // SAFETY: as the caller's.
    unsafe {
        for i in 0..lines {
            let (x, to) = (x.add(i * stride), to.add(i * LANES).cast::<u16>());
            if count == STEP {
                to.cast::<[u16; STEP]>().write_unaligned(x.cast::<[u16; STEP]>().read_unaligned());
            } else {
                std::ptr::copy_nonoverlapping(x, to, count);
                to.add(count).write_bytes(0, STEP - count);
            }
        }
        to.add(lines * LANES).write_bytes(0, (LANES - lines) * LANES);
    }
}

/// Pairs of neighbours along K from lines across it, rounded.
///
/// # Safety
/// `count` lines of `lines` values are readable; `to` takes a block.
#[inline(always)]
unsafe fn pairs_of_values<S: Lanes>(
    kind: HalfKind,
    (x, stride): (*const f32, usize),
    lines: usize,
    count: usize,
    to: *mut u32,
) {
    // SAFETY: as the caller's.
    unsafe {
        for pair in 0..STEP / 2 {
            let x = x.wrapping_add(2 * pair * stride);
            let low = if 2 * pair < count { S::load_part(x, lines) } else { S::splat(0.0) };
            let next = x.wrapping_add(stride);
            S::prefetch(x.wrapping_add(STEP * stride));
            S::prefetch(next.wrapping_add(STEP * stride));
            let high = if 2 * pair + 1 < count { S::load_part(next, lines) } else { S::splat(0.0) };
            match kind {
                HalfKind::F16 => low.store_f16_pairs(high, to.add(pair * LANES)),
                HalfKind::Bf16 => low.store_bf16_pairs(high, to.add(pair * LANES)),
            }
        }
    }
}

/// The same of halves as they are.
///
/// # Safety
/// As for [`pairs_of_values`].
#[inline(always)]
unsafe fn pairs_of_halves(
    (x, stride): (*const u16, usize),
    lines: usize,
    count: usize,
    to: *mut u32,
) {
    // SAFETY: as the caller's.
    unsafe {
        for pair in 0..STEP / 2 {
            let (mut low, mut high) = ([0u16; LANES], [0u16; LANES]);
            for (side, half) in [&mut low, &mut high].into_iter().enumerate() {
                let x = x.wrapping_add((2 * pair + side) * stride);
                if 2 * pair + side < count && lines == LANES {
                    *half = x.cast::<[u16; LANES]>().read_unaligned();
                } else if 2 * pair + side < count {
                    std::ptr::copy_nonoverlapping(x, half.as_mut_ptr(), lines);
                }
            }
            let mut words = [0u32; LANES];
            for i in 0..LANES {
                words[i] = low[i] as u32 | (high[i] as u32) << 16;
            }
            to.add(pair * LANES).cast::<[u32; LANES]>().write_unaligned(words);
        }
    }
}
