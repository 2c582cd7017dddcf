//! y = W·x by AMX tiles: eight to sixteen rows of x, an even number, times one panel.
//!
//! A row of x is its high and its low digits, so a code that is small enough stands twice in a tile, times
//! sixteen and as it is: one product is the sum over both digits. A block passes four stations, one
//! after another: its codes are unpacked, then multiplied, then the sums are stored while those of the
//! next block are made, then scaled and added. No tile is loaded from bytes that are still on their way
//! to the cache.
//!
//! Near tile instructions one of the two units that multiply and convert floats stands still, but both
//! add. So the sums begin with [`SHIFT`] where they are small: their bits are then those of a float that
//! much too large, and a subtraction makes the whole number a float, exactly. The sums are scaled as
//! everywhere else: the same bits.

use super::product::{Tile, ask_ahead, factors, first_sums, has_least, steps};
use super::quads::{Quads, Vnni};
use super::rows::{BASE_BITS, LINE, RowBlock};
use super::{BLOCK, QuantKind, Scales};
use crate::amx::{Shapes, Sums, apart, release, signed, store, unsigned};
use crate::lanes::Avx512;
use crate::lanes::Lanes as _;
use std::arch::asm;
use std::arch::x86_64::{
    __m512, _mm512_add_epi32, _mm512_castsi512_ps, _mm512_load_si512, _mm512_slli_epi32,
    _mm512_store_si512,
};
use std::mem::MaybeUninit;

/// Blocks between unpacking and multiplying, and between storing and adding.
const APART: usize = 2;
/// Blocks between unpacking and adding.
const LAST: usize = 2 * APART + 1;
/// Places of a ring: a power of two above [`APART`].
const RING: usize = 4;

/// 1.5·2^23: as a float, a whole number of less than 2^22 added to its bits is added to its value.
const SHIFT: f32 = 12_582_912.0;
static ZEROS: Sums = Sums([[0; 16]; 16]);
static SHIFTS: Sums = Sums([[SHIFT.to_bits().cast_signed(); 16]; 16]);

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
    let places = held.0.as_mut_ptr();
    // SAFETY: the caller has the instructions; the tile's panel holds `blocks` blocks, x M rows. Places
    // are written before they are read.
    unsafe {
        let mut sums = [first_sums::<Vnni>(tile); M];
        let mut step = 0;
        while step < blocks + LAST {
            stations::<M, false>(kind, tile, places, step, &mut sums);
            stations::<M, true>(kind, tile, places, step + 1, &mut sums);
            step += 2;
        }
        for (m, sum) in sums.into_iter().enumerate() {
            tile.store::<Vnni>(m, sum);
        }
    }
}

/// Each station takes its block of this step, which is `ODD` or not.
#[inline(always)]
unsafe fn stations<const M: usize, const ODD: bool>(
    kind: QuantKind,
    tile: &Tile,
    places: *mut Places,
    step: usize,
    sums: &mut [Avx512; M],
) {
    let blocks = tile.cols / BLOCK;
    // SAFETY: as the caller's.
    unsafe {
        if step < blocks {
            let at = codes_at(kind, tile, step);
            ask_ahead::<Vnni>(kind, tile, at);
            unpack(kind, at, (&raw mut (*places).codes[step % RING]).cast());
        }
        if (APART..=blocks + APART).contains(&step) {
            multiply::<ODD>(kind, tile, places, step - APART);
        }
        if (LAST..blocks + LAST).contains(&step) {
            let b = step - LAST;
            let products = (&raw const (*places).products[b % RING * way(kind).sums()]).cast();
            add::<M>(kind, tile, b, products, sums);
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
    let zero = match kind.zero_bits() {
        Some(bits) => 1 << bits,
        None => 0,
    };
    // SAFETY: the caller has AVX-512; a block holds eight steps, a tile sixteen lines.
    unsafe {
        let put = |line: usize, codes: Vnni| {
            _mm512_store_si512(lines.add(line).cast(), codes.bits());
        };
        if way(kind) == Way::Merged {
            for line in 0..4 {
                let both = Vnni::load(at.add(64 * line));
                put(line, both.low_times_16().less(zero << BASE_BITS));
                put(4 + line, both.high_times_16().less(zero << BASE_BITS));
                put(8 + line, both.low().less(zero));
                put(12 + line, both.high().less(zero));
            }
            return;
        }
        for (line, step) in steps::<Vnni>(kind, at).into_iter().enumerate() {
            let step = step.less(zero);
            if way(kind) == Way::Doubled {
                put(line, step.times_8());
                put(8 + line, step);
            } else {
                put(line, step);
            }
        }
    }
}

/// Makes the products of block b, which is `ODD` or not, and stores those of the block before.
#[inline(always)]
unsafe fn multiply<const ODD: bool>(kind: QuantKind, tile: &Tile, places: *mut Places, b: usize) {
    let (is_signed, made) = (kind.zero_bits().is_some(), way(kind).sums());
    let (here, before) = (b < tile.cols / BLOCK, b > 0);
    // SAFETY: shapes for this kind are configured; x and codes are readable in them, where there is
    // such a block, and places writable.
    unsafe {
        let x = tile.x.codes.wrapping_add(b * tile.x.together * LINE);
        let codes = (&raw const (*places).codes[b % RING]).cast::<u8>();
        let place = |b: usize| (&raw mut (*places).products).cast::<Sums>().add(b % RING * made);
        if here {
            match way(kind) {
                Way::Merged if is_signed => signed::once::<ODD>(x, codes, &SHIFTS),
                Way::Merged => unsigned::once::<ODD>(x, codes, &SHIFTS),
                Way::Doubled if is_signed => signed::twice::<ODD>(x, codes, &SHIFTS),
                Way::Doubled => unsigned::twice::<ODD>(x, codes, &SHIFTS),
                Way::Apart => apart::<ODD>(x, BLOCK, codes, &ZEROS),
                Way::Halves => apart::<false>(x, BLOCK, codes, &SHIFTS),
            }
        }
        if before {
            let sums = place(b - 1);
            match (way(kind), ODD) {
                (Way::Merged | Way::Doubled, false) => store::<1>(sums),
                (Way::Merged | Way::Doubled, true) => store::<0>(sums),
                (Way::Apart, true) => store_two::<0, 1>(sums),
                (Way::Apart, false) => store_two::<6, 7>(sums),
                (Way::Halves, _) => store_two::<6, 7>(sums.add(2)),
            }
        }
        if here && way(kind) == Way::Halves {
            apart::<true>(x.add(BLOCK / 2), BLOCK, codes.add(4 * 64), &SHIFTS);
            store_two::<0, 1>(place(b));
        }
    }
}

#[inline(always)]
unsafe fn store_two<const FIRST: usize, const SECOND: usize>(sums: *mut Sums) {
    // SAFETY: the caller's.
    unsafe {
        store::<FIRST>(sums);
        store::<SECOND>(sums.add(1));
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
                    let (row, sum) = (blocks.add($m), &mut sums[$m].0);
                    let d = Avx512::splat((*row).scale);
                    add_product(sum, whole(kind, products.add($m)), scale.mul(d));
                    if has_least(kind) {
                        add_times(sum, other, &(*row).scaled_sum);
                    }
                    if kind.scales() == Scales::Sixteen {
                        add_product(sum, whole(kind, products.add(2 * 16 + $m)), other.mul(d));
                    }
                })*
            };
        }
        rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    }
}

/// sum += a·b, rounded once, in sum's own register: the compiler would change registers, and move
/// sixteen of them from step to step.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn add_product(sum: &mut __m512, a: Avx512, b: Avx512) {
    // SAFETY: the caller has AVX-512.
    unsafe {
        asm!(
            "vfmadd231ps {sum}, {a}, {b}",
            sum = inout(zmm_reg) *sum,
            a = in(zmm_reg) a.0,
            b = in(zmm_reg) b.0,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
}

/// As [`add_product`]; b is one number for all.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn add_times(sum: &mut __m512, a: Avx512, b: &f32) {
    // SAFETY: the caller has AVX-512.
    unsafe {
        asm!(
            "vfmadd231ps {sum}, {a}, dword ptr [{b}]{{1to16}}",
            sum = inout(zmm_reg) *sum,
            a = in(zmm_reg) a.0,
            b = in(reg) b,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
}

/// A row's sums over both digits, which stand together or in two tiles, as floats.
#[inline(always)]
unsafe fn whole(kind: QuantKind, row: *const [i32; 16]) -> Avx512 {
    // SAFETY: the caller has AVX-512; rows of sums are aligned.
    unsafe {
        let first = _mm512_load_si512(row.cast());
        let both = match way(kind) {
            Way::Merged | Way::Doubled => first,
            Way::Apart | Way::Halves => {
                let low = _mm512_load_si512(row.add(16).cast());
                _mm512_add_epi32(low, _mm512_slli_epi32::<BASE_BITS>(first))
            }
        };
        match way(kind) {
            // 127·2032·32 is more than the shift has room for.
            Way::Apart => Vnni::floats(both),
            _ => Avx512(_mm512_castsi512_ps(both)).sub(Avx512::splat(SHIFT)),
        }
    }
}
