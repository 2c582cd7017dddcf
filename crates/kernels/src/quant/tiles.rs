//! y = W·x by AMX tiles: sixteen or eight rows of x times one panel.
//!
//! A block passes three stations, [`APART`] blocks apart, so that no tile is loaded from bytes that are
//! still on their way to the cache: its codes are unpacked, then multiplied, then the sums are scaled
//! and added. The sums are whole numbers and are scaled as everywhere else: the same bits.

use super::product::{Tile, ask_ahead, factors, first_sums, steps, store_sums};
use super::quads::{Quads, Vnni};
use super::rows::RowBlock;
use super::{BLOCK, PANEL_ROWS, QuantKind, Scales};
use crate::amx::{Shapes, Sums, byte_products, release};
use crate::lanes::Avx512;
use crate::lanes::Lanes as _;
use std::arch::x86_64::{
    __m512i, _mm_cvtsi32_si128, _mm512_add_epi32, _mm512_load_si512, _mm512_set1_epi32,
    _mm512_sll_epi32, _mm512_slli_epi32, _mm512_sub_epi32,
};

/// The codes of a block, four columns of sixteen rows a line.
#[repr(C, align(64))]
struct Codes([Vnni; 8]);

/// Blocks between a station and the next; one less than the places of a ring.
const APART: usize = 3;

static SHAPES: [Shapes; 4] = [
    Shapes::byte_products(8, 32),
    Shapes::byte_products(8, 16),
    Shapes::byte_products(16, 32),
    Shapes::byte_products(16, 16),
];

/// How many dots a block has: one, or two where the scale changes in its midst.
const fn parts(kind: QuantKind) -> usize {
    if matches!(kind.scales(), Scales::Sixteen) { 2 } else { 1 }
}

/// Holds the tiles of this thread in the shapes for some products, and the places between stations.
pub(super) struct Held {
    codes: [Codes; APART + 1],
    products: [[Sums; 2]; APART + 1],
}

impl Held {
    /// For `m` rows of x, sixteen or eight.
    ///
    /// # Safety
    /// The processor must have AMX.
    pub(super) unsafe fn new(kind: QuantKind, m: usize) -> Held {
        // SAFETY: the caller's.
        unsafe { SHAPES[m / 16 * 2 + parts(kind) - 1].configure() };
        Held {
            codes: [const { Codes([Vnni::ZERO; 8]) }; APART + 1],
            products: [const { [Sums([[[0; 16]; 16]; 2]), Sums([[[0; 16]; 16]; 2])] }; APART + 1],
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: whoever made it has AMX.
        unsafe { release() }
    }
}

/// M rows of x (sixteen or eight, of two digits) times one panel.
///
/// # Safety
/// The processor must have AVX-512 with VNNI; tiles are [`Held`] for this kind and M; the tile's
/// contract.
#[inline(always)]
pub(super) unsafe fn panel<const M: usize>(kind: QuantKind, tile: &Tile, held: &mut Held) {
    const { assert!(M <= 16) };
    let blocks = tile.cols / BLOCK;
    let parts = parts(kind);
    let Held { codes, products } = held;
    // SAFETY: the caller has the instructions; the tile's panel holds `blocks` blocks, x M rows.
    unsafe {
        let mut sums = [first_sums::<Vnni>(tile); M];
        for step in 0..blocks + 2 * APART {
            if step < blocks && kind.bits() < 8 {
                codes[step % (APART + 1)].0 = steps::<Vnni>(kind, codes_at(kind, tile, step));
            }
            if (APART..blocks + APART).contains(&step) {
                let b = step - APART;
                ask_ahead::<Vnni>(kind, tile, codes_at(kind, tile, b));
                let at = match kind.bits() {
                    8 => codes_at(kind, tile, b),
                    _ => (&raw const codes[b % (APART + 1)]).cast::<u8>(),
                };
                let line = tile.x.together * BLOCK;
                let x = tile.x.codes.add(2 * line * b);
                for (part, into) in products[b % (APART + 1)][..parts].iter_mut().enumerate() {
                    let columns = part * BLOCK / 2;
                    let at = at.add(columns * PANEL_ROWS);
                    byte_products(x.add(columns), BLOCK, line, at, into);
                }
            }
            if step >= 2 * APART {
                let b = step - 2 * APART;
                add::<M>(kind, tile, b, &products[b % (APART + 1)], &mut sums);
            }
        }
        store_sums::<Vnni, M>(tile, &sums);
    }
}

#[inline(always)]
unsafe fn codes_at(kind: QuantKind, tile: &Tile, b: usize) -> *const u8 {
    // SAFETY: block b is in the panel.
    unsafe { tile.panel.add(kind.block_at(b).0 + kind.scale_bytes()) }
}

/// Scales the products of block b and adds them to the sums of M rows.
#[inline(always)]
unsafe fn add<const M: usize>(
    kind: QuantKind,
    tile: &Tile,
    b: usize,
    products: &[Sums],
    sums: &mut [Avx512; M],
) {
    // SAFETY: as the caller's.
    unsafe {
        let (at, above) = kind.block_at(b);
        let supers = super::product::supers::<Vnni>(kind, tile.panel.add(above));
        let [scale, other] = factors::<Vnni>(kind, tile.panel.add(at), supers);
        let blocks = tile.x.blocks.add(b * tile.x.together);
        // One by one and not by a loop, so that all sums stay in registers.
        macro_rules! rows {
            ($($m:literal)*) => {
                $(if $m < M {
                    let row = &*blocks.add($m);
                    add_row(kind, row, products, $m, [scale, other], &mut sums[$m]);
                })*
            };
        }
        rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    }
}

/// Adds row m's products.
#[inline(always)]
unsafe fn add_row(
    kind: QuantKind,
    row: &RowBlock,
    products: &[Sums],
    m: usize,
    [scale, other]: [Avx512; 2],
    sum: &mut Avx512,
) {
    // SAFETY: as the caller's.
    unsafe {
        let d = Avx512::splat(row.scale);
        if kind.scales() == Scales::Sixteen {
            let first = centred(kind, whole(&products[0], m), row.half_sum);
            *sum = sum.add(Vnni::floats(first).mul(scale.mul(d)));
            let second = centred(kind, whole(&products[1], m), row.sum - row.half_sum);
            *sum = sum.add(Vnni::floats(second).mul(other.mul(d)));
        } else if kind.zero_bits().is_some() {
            let whole = centred(kind, whole(&products[0], m), row.sum);
            *sum = sum.add(Vnni::floats(whole).mul(scale.mul(d)));
        } else {
            *sum = sum.add(Vnni::floats(whole(&products[0], m)).mul(scale.mul(d)));
            *sum = sum.add(other.mul(Avx512::splat(row.scaled_sum)));
        }
    }
}

/// Without what the code of 0 added to each product.
#[inline(always)]
unsafe fn centred(kind: QuantKind, whole: __m512i, sum: i32) -> __m512i {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let bits = _mm_cvtsi32_si128(kind.zero_bits().unwrap_or_default().cast_signed());
        _mm512_sub_epi32(whole, _mm512_sll_epi32(_mm512_set1_epi32(sum), bits))
    }
}

/// The low digit's sums + 128 times the high digit's, of row m.
#[inline(always)]
unsafe fn whole(products: &Sums, m: usize) -> __m512i {
    // SAFETY: the caller has AVX-512; rows of sums are aligned.
    unsafe {
        let row = |digit: usize| products.0[digit][m].as_ptr();
        let (high, low) = (_mm512_load_si512(row(0).cast()), _mm512_load_si512(row(1).cast()));
        _mm512_add_epi32(low, _mm512_slli_epi32::<7>(high))
    }
}
