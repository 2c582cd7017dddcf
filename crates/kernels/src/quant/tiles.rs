//! y = W·x by AMX tiles: eight to sixteen rows of x, an even number, times one panel.
//!
//! A row of x is its high and its low digits, so a code that is small enough stands twice in a tile, times
//! sixteen and as it is: one product is the sum over both digits. A block passes three stations,
//! [`APART`] blocks apart, so that no tile is loaded from bytes that are still on their way to the cache:
//! its codes are unpacked, then multiplied, then the sums are scaled and added. The sums are whole numbers
//! and are scaled as everywhere else: the same bits.

use super::product::{Tile, ask_ahead, factors, first_sums, has_least, steps};
use super::quads::{Quads, Vnni};
use super::rows::{BASE_BITS, LINE, RowBlock};
use super::{BLOCK, QuantKind, Scales};
use crate::amx::{Shapes, Sums, apart, release, signed, unsigned};
use crate::lanes::Avx512;
use crate::lanes::Lanes as _;
use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_load_si512, _mm512_slli_epi32, _mm512_store_si512,
};
use std::mem::MaybeUninit;

/// Blocks between a station and the next.
const APART: usize = 2;
/// Places of a ring: a power of two above that.
const RING: usize = 4;

/// The codes of a block as a tile reads them, four columns of sixteen rows a line.
#[repr(C, align(64))]
struct Codes([[u8; 64]; 16]);

/// What stands between the stations.
#[repr(C)]
struct Places {
    codes: [Codes; RING],
    products: [Sums; 4 * RING],
}

/// How a block's codes meet the digits of x.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// One product: lines of codes times sixteen, then of codes.
    Merged,
    /// Times eight and as they are; the high digits go twice.
    Doubled,
    /// The digits go apart.
    Apart,
    /// The digits go apart, and so do the two halves of the columns, which have their own scales.
    Halves,
}

const fn way(kind: QuantKind) -> Way {
    match kind {
        QuantKind::Q4_0 | QuantKind::Q4_1 | QuantKind::Q4K => Way::Merged,
        QuantKind::Q5_0 | QuantKind::Q5_1 | QuantKind::Q5K => Way::Doubled,
        QuantKind::Q8_0 => Way::Apart,
        QuantKind::Q6K => Way::Halves,
    }
}

impl Way {
    /// Tiles of sums that a block makes.
    const fn sums(self) -> usize {
        match self {
            Way::Merged | Way::Doubled => 1,
            Way::Apart => 2,
            Way::Halves => 4,
        }
    }

    const fn columns(self) -> [u8; 2] {
        match self {
            Way::Merged | Way::Doubled => [64, 32],
            Way::Apart => [32, 32],
            Way::Halves => [16, 16],
        }
    }
}

/// Rows of x that a tile takes at least.
pub(super) const LEAST_ROWS: usize = 8;

/// For 8, 10, 12, 14 and 16 rows.
static SHAPES: [[Shapes; 3]; 5] = [shapes(8), shapes(10), shapes(12), shapes(14), shapes(16)];

const fn shapes(rows: u8) -> [Shapes; 3] {
    [
        Shapes::of(rows, Way::Merged.columns()),
        Shapes::of(rows, Way::Apart.columns()),
        Shapes::of(rows, Way::Halves.columns()),
    ]
}

/// Holds the tiles of this thread in the shapes for some products, and room for what stands between
/// their steps.
pub(super) struct Held(MaybeUninit<Places>);

impl Held {
    /// For `m` rows of x, an even number from eight to sixteen.
    ///
    /// # Safety
    /// The processor must have AMX.
    pub(super) unsafe fn new(kind: QuantKind, m: usize) -> Held {
        let shapes = &SHAPES[(m - LEAST_ROWS) / 2][way(kind).sums() / 2];
        // SAFETY: the caller's.
        unsafe { shapes.configure() };
        Held(MaybeUninit::uninit())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: whoever made it has AMX.
        unsafe { release() }
    }
}

/// M rows of x (eight to sixteen) times one panel.
///
/// # Safety
/// The processor must have AVX-512 with VNNI; tiles are [`Held`] for this kind and M; the tile's
/// contract.
#[inline(always)]
pub(super) unsafe fn panel<const M: usize>(kind: QuantKind, tile: &Tile, held: &mut Held) {
    const { assert!(M <= 16) };
    let blocks = tile.cols / BLOCK;
    let made = way(kind).sums();
    let places = held.0.as_mut_ptr();
    // SAFETY: the caller has the instructions; the tile's panel holds `blocks` blocks, x M rows. Places
    // are written before they are read.
    unsafe {
        let mut sums = [first_sums::<Vnni>(tile); M];
        for step in 0..blocks + 2 * APART {
            if step < blocks {
                let at = codes_at(kind, tile, step);
                ask_ahead::<Vnni>(kind, tile, at);
                unpack(kind, at, (&raw mut (*places).codes[step % RING]).cast());
            }
            if (APART..blocks + APART).contains(&step) {
                let b = step - APART;
                let codes = (&raw const (*places).codes[b % RING]).cast();
                let x = tile.x.codes.add(b * tile.x.together * LINE);
                multiply(kind, x, codes, &raw mut (*places).products[b % RING * made]);
            }
            if step >= 2 * APART {
                let b = step - 2 * APART;
                let products = (&raw const (*places).products[b % RING * made]).cast();
                add::<M>(kind, tile, b, products, &mut sums);
            }
        }
        for (m, sum) in sums.into_iter().enumerate() {
            tile.store::<Vnni>(m, sum);
        }
    }
}

#[inline(always)]
unsafe fn factors_of(kind: QuantKind, tile: &Tile, b: usize) -> [Avx512; 2] {
    // SAFETY: block b is in the panel.
    unsafe {
        let (at, above) = kind.block_at(b);
        let supers = super::product::supers::<Vnni>(kind, tile.panel.add(above));
        factors::<Vnni>(kind, tile.panel.add(at), supers)
    }
}

#[inline(always)]
unsafe fn codes_at(kind: QuantKind, tile: &Tile, b: usize) -> *const u8 {
    // SAFETY: block b is in the panel.
    unsafe { tile.panel.add(kind.block_at(b).0 + kind.scale_bytes()) }
}

/// Unpacks the codes of a block to lines: less the code of 0 where the kind has such.
#[inline(always)]
unsafe fn unpack(kind: QuantKind, at: *const u8, lines: *mut [u8; 64]) {
    // SAFETY: the caller has AVX-512; a block holds eight steps, a tile sixteen lines.
    unsafe {
        let steps = steps::<Vnni>(kind, at);
        let mut line = 0;
        while line < 8 {
            let step = match kind.zero_bits() {
                Some(bits) => steps[line].less(1 << bits),
                None => steps[line],
            };
            let plain = match way(kind) {
                Way::Merged | Way::Doubled => {
                    let shift = if way(kind) == Way::Merged { BASE_BITS } else { BASE_BITS - 1 };
                    _mm512_store_si512(lines.add(line).cast(), step.times(shift).bits());
                    8
                }
                Way::Apart | Way::Halves => 0,
            };
            _mm512_store_si512(lines.add(plain + line).cast(), step.bits());
            line += 1;
        }
    }
}

/// The products of a block.
#[inline(always)]
unsafe fn multiply(kind: QuantKind, x: *const i8, codes: *const u8, sums: *mut Sums) {
    let is_signed = kind.zero_bits().is_some();
    // SAFETY: shapes for this kind are configured; x and codes are readable in them.
    unsafe {
        match way(kind) {
            Way::Merged if is_signed => signed::once(x, codes, sums),
            Way::Merged => unsigned::once(x, codes, sums),
            Way::Doubled if is_signed => signed::twice(x, codes, sums),
            Way::Doubled => unsigned::twice(x, codes, sums),
            Way::Apart => apart(x, BLOCK, codes, [sums, sums.add(1)]),
            Way::Halves => {
                apart(x, BLOCK, codes, [sums, sums.add(1)]);
                let (x, codes) = (x.add(BLOCK / 2), codes.add(4 * 64));
                apart(x, BLOCK, codes, [sums.add(2), sums.add(3)]);
            }
        }
    }
}

/// Scales the products of block b and adds them to the sums of M rows.
#[inline(always)]
unsafe fn add<const M: usize>(
    kind: QuantKind,
    tile: &Tile,
    b: usize,
    products: *const [i32; 16],
    sums: &mut [Avx512; M],
) {
    // SAFETY: as the caller's.
    unsafe {
        let [scale, other] = factors_of(kind, tile, b);
        let blocks: *const RowBlock = tile.x.blocks.add(b * tile.x.together);
        // One by one and not by a loop, so that all sums stay in registers.
        macro_rules! rows {
            ($($m:literal)*) => {
                $(if $m < M {
                    let d = Avx512::splat((*blocks.add($m)).scale);
                    let first = Vnni::floats(whole(kind, products.add($m)));
                    sums[$m] = first.fma(scale.mul(d), sums[$m]);
                    if has_least(kind) {
                        let sum = Avx512::splat((*blocks.add($m)).scaled_sum);
                        sums[$m] = other.fma(sum, sums[$m]);
                    }
                    if kind.scales() == Scales::Sixteen {
                        let second = Vnni::floats(whole(kind, products.add(2 * 16 + $m)));
                        sums[$m] = second.fma(other.mul(d), sums[$m]);
                    }
                })*
            };
        }
        rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    }
}

/// A row's sums over both digits, which stand together or in two tiles.
#[inline(always)]
unsafe fn whole(kind: QuantKind, row: *const [i32; 16]) -> __m512i {
    // SAFETY: the caller has AVX-512; rows of sums are aligned.
    unsafe {
        let first = _mm512_load_si512(row.cast());
        match way(kind) {
            Way::Merged | Way::Doubled => first,
            Way::Apart | Way::Halves => {
                let low = _mm512_load_si512(row.add(16).cast());
                _mm512_add_epi32(low, _mm512_slli_epi32::<BASE_BITS>(first))
            }
        }
    }
}
