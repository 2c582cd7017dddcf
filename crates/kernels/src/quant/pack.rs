//! From blocks of codes to panels, and back.

use super::{BLOCK, PANEL_ROWS, QuantKind, Scales};

/// 32 neighbouring values of a row, as codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantBlock {
    /// The codes.
    pub codes: [u8; BLOCK],
    /// The bits of d, an f16.
    pub d: u16,
    /// The bits of m, an f16, where the kind has it.
    pub m: u16,
    /// Whole scales: one, or one for each half (bits of i8), where the kind has them.
    pub scale: [u8; 2],
    /// Whole minimum, where the kind has it.
    pub min: u8,
}

impl QuantBlock {
    /// All zero.
    pub const ZERO: QuantBlock =
        QuantBlock { codes: [0; BLOCK], d: 0, m: 0, scale: [0; 2], min: 0 };

    /// The values that the codes stand for.
    pub fn values(&self, kind: QuantKind) -> [f32; BLOCK] {
        let (d, m) = (crate::halves::widened(self.d), crate::halves::widened(self.m));
        let zero = kind.zero_bits().map_or(0.0, |bits| (1u32 << bits) as f32);
        std::array::from_fn(|i| {
            let code = f32::from(self.codes[i]);
            match kind.scales() {
                Scales::One => d * (code - zero),
                Scales::WithMin => d * code + m,
                Scales::Super => d * f32::from(self.scale[0]) * code - m * f32::from(self.min),
                Scales::Sixteen => {
                    let scale = self.scale[i / (BLOCK / 2)].cast_signed();
                    d * f32::from(scale) * (code - zero)
                }
            }
        })
    }
}

/// A row of a quantised matrix as it is stored somewhere.
pub trait QuantRow: Copy {
    /// The 32 values from `32·index` on, of a row of that kind.
    fn block(self, kind: QuantKind, index: usize) -> QuantBlock;

    /// Where that block stands, if it can be asked for ahead of its time.
    #[inline(always)]
    fn place(self, _kind: QuantKind, _index: usize) -> *const u8 {
        std::ptr::null()
    }
}

impl<F: Fn(QuantKind, usize) -> QuantBlock + Copy> QuantRow for F {
    fn block(self, kind: QuantKind, index: usize) -> QuantBlock {
        self(kind, index)
    }
}

/// Writes a panel of sixteen rows of `cols` values; `row_of` gives none past the matrix's last row. It is
/// asked for the sixteen rows after the panel's too: they are fetched while this one is written, for rows
/// come from far memory, and a block of each is too little for the processor to guess what comes next.
/// A row whose `block` is always inlined knows the kind when that is compiled: codes then go from one
/// order to the other without being taken apart.
///
/// # Panics
/// When `panel` is not `kind.panel_bytes(cols)` long or `cols` no multiple of the kind's granule.
pub fn pack_panel<R: QuantRow>(
    kind: QuantKind,
    cols: usize,
    panel: &mut [u8],
    row_of: impl Fn(usize) -> Option<R>,
) {
    assert!(cols.is_multiple_of(kind.granule()), "whole blocks");
    assert_eq!(panel.len(), kind.panel_bytes(cols), "a panel");
    let rows: [Option<R>; PANEL_ROWS] = std::array::from_fn(&row_of);
    let after = std::array::from_fn(|row| row_of(PANEL_ROWS + row));
    macro_rules! each {
        ($($kind:ident)*) => {
            match kind {
                $(QuantKind::$kind => pack(QuantKind::$kind, cols, panel, &rows, &after),)*
            }
        };
    }
    each!(Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4K Q5K Q6K);
}

/// [`pack_panel`] of a kind that is a constant.
#[inline(always)]
fn pack<R: QuantRow>(
    kind: QuantKind,
    cols: usize,
    panel: &mut [u8],
    rows: &[Option<R>; PANEL_ROWS],
    after: &[Option<R>; PANEL_ROWS],
) {
    for index in 0..cols / BLOCK {
        let (at, super_at) = kind.block_at(index);
        let codes_at = at + kind.scale_bytes();
        if kind.bits() == 5 {
            panel[codes_at + PANEL_ROWS * BLOCK / 2..codes_at + kind.code_bytes()].fill(0);
        }
        for (row, (stored, after)) in rows.iter().zip(after).enumerate() {
            if let Some(after) = *after {
                fetch(after.place(kind, index));
            }
            let block = match *stored {
                Some(stored) => stored.block(kind, index),
                None => QuantBlock::ZERO,
            };
            put_scales(kind, panel, (at, super_at), row, &block);
            put_codes(kind, &mut panel[codes_at..codes_at + kind.code_bytes()], row, &block.codes);
        }
    }
}

/// Asks for the line at `place`, which need not be readable.
#[inline(always)]
fn fetch(place: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

#[inline(always)]
fn put_scales(
    kind: QuantKind,
    panel: &mut [u8],
    (at, super_at): (usize, usize),
    row: usize,
    block: &QuantBlock,
) {
    let mut put = |at: usize, bits: u16| panel[at..at + 2].copy_from_slice(&bits.to_le_bytes());
    match kind.scales() {
        Scales::One => put(at + 2 * row, block.d),
        Scales::WithMin => {
            put(at + 2 * row, block.d);
            put(at + 2 * (PANEL_ROWS + row), block.m);
        }
        Scales::Super => {
            put(super_at + 2 * row, block.d);
            put(super_at + 2 * (PANEL_ROWS + row), block.m);
            panel[at + row] = block.scale[0];
            panel[at + PANEL_ROWS + row] = block.min;
        }
        Scales::Sixteen => {
            put(super_at + 2 * row, block.d);
            panel[at + row] = block.scale[0];
            panel[at + PANEL_ROWS + row] = block.scale[1];
        }
    }
}

/// Where the low bits of a code stand: (byte, shift).
#[inline(always)]
fn place(kind: QuantKind, row: usize, column: usize) -> (usize, u32) {
    let (step, inside) = (column / 4, column % 4);
    if kind.bits() == 8 {
        (step * 64 + row * 4 + inside, 0)
    } else {
        // Steps 0 to 3 are the low halves, 4 to 7 the high ones.
        (step % 4 * 64 + row * 4 + inside, 4 * (step / 4) as u32)
    }
}

/// Where the fifth bit of a code stands: (byte, shift). Eight bytes a step.
#[inline(always)]
fn fifth(row: usize, column: usize) -> (usize, u32) {
    let bit = row * 4 + column % 4;
    (PANEL_ROWS * BLOCK / 2 + column / 4 * 8 + bit / 8, bit as u32 % 8)
}

/// Writes a row's codes into a block whose fifth bits are 0.
#[inline(always)]
fn put_codes(kind: QuantKind, codes: &mut [u8], row: usize, block: &[u8; BLOCK]) {
    let mut put = |step: usize, four: &[u8]| {
        let (byte, _) = place(kind, row, 4 * step);
        codes[byte..byte + 4].copy_from_slice(four);
    };
    if kind.bits() == 8 {
        block.chunks_exact(4).enumerate().for_each(|(step, four)| put(step, four));
        return;
    }
    let halves: [u8; BLOCK / 2] =
        std::array::from_fn(|i| block[i] & 15 | (block[i + BLOCK / 2] & 15) << 4);
    halves.chunks_exact(4).enumerate().for_each(|(step, four)| put(step, four));
    if kind.bits() == 5 {
        let bits = fifths(block);
        for step in 0..BLOCK / 4 {
            let (byte, shift) = fifth(row, 4 * step);
            codes[byte] |= ((bits >> (4 * step) & 15) << shift) as u8;
        }
    }
}

/// The fifth bits of codes, the first lowest.
#[inline(always)]
fn fifths(codes: &[u8; BLOCK]) -> u32 {
    let eights = codes.as_chunks::<8>().0.iter().rev();
    eights.fold(0, |bits, &eight| {
        // Eight bits that stand eight apart, side by side in the highest byte: no two sums meet.
        let ones = u64::from_le_bytes(eight) >> 4 & 0x0101_0101_0101_0101;
        bits << 8 | (ones.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32
    })
}

/// Block `index` of row `row` of a panel, as it was packed.
///
/// # Panics
/// When the block lies outside the panel.
pub fn unpack_block(kind: QuantKind, panel: &[u8], row: usize, index: usize) -> QuantBlock {
    let (at, super_at) = kind.block_at(index);
    let get = |at: usize| u16::from_le_bytes([panel[at], panel[at + 1]]);
    let mut block = QuantBlock::ZERO;
    match kind.scales() {
        Scales::One => block.d = get(at + 2 * row),
        Scales::WithMin => {
            block.d = get(at + 2 * row);
            block.m = get(at + 2 * (PANEL_ROWS + row));
        }
        Scales::Super => {
            block.d = get(super_at + 2 * row);
            block.m = get(super_at + 2 * (PANEL_ROWS + row));
            block.scale[0] = panel[at + row];
            block.min = panel[at + PANEL_ROWS + row];
        }
        Scales::Sixteen => {
            block.d = get(super_at + 2 * row);
            block.scale = [panel[at + row], panel[at + PANEL_ROWS + row]];
        }
    }
    let codes = &panel[at + kind.scale_bytes()..at + kind.block_bytes()];
    for (column, code) in block.codes.iter_mut().enumerate() {
        let (byte, shift) = place(kind, row, column);
        *code = match kind.bits() {
            8 => codes[byte],
            4 => codes[byte] >> shift & 15,
            _ => {
                let (high, bit) = fifth(row, column);
                codes[byte] >> shift & 15 | (codes[high] >> bit & 1) << 4
            }
        };
    }
    block
}
