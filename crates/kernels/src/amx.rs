//! AMX tiles: what the processor and the system must offer, the shapes of tiles, and products of
//! whole tiles. By inline assembly, as the compiler has no stable intrinsics for them.
//!
//! A tile holds up to sixteen rows of 64 bytes. No state lives between calls: whoever configures the
//! tiles releases them, so that a change of threads has no tiles to save.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::sync::OnceLock;

/// Whether byte products may be taken by tiles. Asks the system for the room of the tile registers at
/// the first call, for the whole process.
pub(crate) fn available() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| processor_has_tiles() && system_keeps_tiles() && permitted())
}

/// Whether [`bf16_products`] may be taken as well.
pub(crate) fn has_bf16() -> bool {
    const WANTED: u32 = 1 << 22;
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| available() && __cpuid_count(7, 0).edx & WANTED == WANTED)
}

/// AMX-TILE and AMX-INT8.
fn processor_has_tiles() -> bool {
    const WANTED: u32 = 1 << 24 | 1 << 25;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & WANTED == WANTED
}

/// Whether the system saves tile configuration and data (bits 17 and 18 of XCR0).
fn system_keeps_tiles() -> bool {
    const WANTED: u64 = 1 << 17 | 1 << 18;
    let has_xsave = __cpuid(1).ecx >> 27 & 1 == 1;
    // SAFETY: OSXSAVE says that the instruction is there.
    has_xsave && unsafe { xcr0() } & WANTED == WANTED
}

#[target_feature(enable = "xsave")]
unsafe fn xcr0() -> u64 {
    // SAFETY: the caller has XSAVE.
    unsafe { _xgetbv(0) }
}

/// Linux gives the tile registers to those who ask.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const TILE_DATA: u64 = 18;
    let answer: i64;
    // SAFETY: a system call that touches no memory of ours.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => answer,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    answer == 0
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// The shapes of the eight tiles, as the processor reads them.
#[repr(C, align(64))]
pub(crate) struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    /// For `rows` rows of x (up to 16): tiles 0, 1, 6 and 7 hold their sums for sixteen outputs; tiles 2
    /// and 3 take `columns` bytes of each row (up to 64, a multiple of 4), tiles 4 and 5 the codes that
    /// go with them.
    pub(crate) const fn of(rows: u8, columns: [u8; 2]) -> Shapes {
        let mut shapes = Shapes {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        let mut i = 0;
        while i < 2 {
            (shapes.rows[i], shapes.row_bytes[i]) = (rows, 64);
            (shapes.rows[6 + i], shapes.row_bytes[6 + i]) = (rows, 64);
            (shapes.rows[2 + i], shapes.row_bytes[2 + i]) = (rows, columns[i] as u16);
            (shapes.rows[4 + i], shapes.row_bytes[4 + i]) = (columns[i] / 4, 64);
            i += 1;
        }
        shapes
    }

    /// For [`bf16_products`]: eight whole tiles.
    pub(crate) const WHOLE: Shapes = Shapes {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
        rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
    };

    /// Gives all tiles of this thread their shapes, and zeros.
    ///
    /// # Safety
    /// [`available`] must have said yes.
    #[inline(always)]
    pub(crate) unsafe fn configure(&self) {
        // SAFETY: reads 64 bytes of self.
        unsafe { asm!("ldtilecfg [{}]", in(reg) self, options(nostack, readonly)) }
    }
}

/// Ends the use of tiles by this thread.
///
/// # Safety
/// [`available`] must have said yes.
#[inline(always)]
pub(crate) unsafe fn release() {
    // SAFETY: gives up state that nobody reads.
    unsafe { asm!("tilerelease", options(nostack)) }
}

/// Sixteen rows of sixteen sums.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Sums(pub(crate) [[i32; 16]; 16]);

/// How far rows of x, of codes and of sums lie apart.
const ROW: usize = 64;

/// Products of signed bytes x with codes, four neighbouring codes of sixteen outputs standing together,
/// left in a tile: sums[r][n] = start[r][n] + Σ over k of x[r][k]·codes[k][n]. Rows of x lie 64 bytes
/// apart. A tile is stored best while the products of another are on their way: [`store`].
macro_rules! products {
    ($(#[$doc:meta])* $name:ident, $product:literal) => {
        $(#[$doc])*
        pub(crate) mod $name {
            use super::{ROW, Sums, asm};

            /// Tile 2's columns, in tile 0, or 1 if `ODD`.
            ///
            /// # Safety
            /// Shapes are configured; x and codes are readable in those of tiles 2 and 4.
            #[inline(always)]
            pub(crate) unsafe fn once<const ODD: bool>(x: *const i8, codes: *const u8, start: &Sums) {
                macro_rules! into {
                    ($sums:literal) => {
                        asm!(
                            concat!("tileloadd ", $sums, ", [{start} + {row}*1]"),
                            "tileloadd tmm4, [{codes} + {row}*1]",
                            "tileloadd tmm2, [{x} + {row}*1]",
                            concat!($product, " ", $sums, ", tmm2, tmm4"),
                            codes = in(reg) codes,
                            row = in(reg) ROW,
                            x = in(reg) x,
                            start = in(reg) start,
                            options(nostack, readonly),
                        )
                    };
                }
                // SAFETY: reads what the caller promises.
                unsafe { if ODD { into!("tmm1") } else { into!("tmm0") } }
            }

            /// Tile 2's columns, and those of tile 3 once more, from the same places.
            ///
            /// # Safety
            /// As [`once`]; tiles 3 and 5 are no wider than 2 and 4.
            #[inline(always)]
            pub(crate) unsafe fn twice<const ODD: bool>(x: *const i8, codes: *const u8, start: &Sums) {
                macro_rules! into {
                    ($sums:literal) => {
                        asm!(
                            "tileloadd tmm5, [{codes} + {row}*1]",
                            "tileloadd tmm3, [{x} + {row}*1]",
                            concat!($product, " ", $sums, ", tmm3, tmm5"),
                            codes = in(reg) codes,
                            row = in(reg) ROW,
                            x = in(reg) x,
                            options(nostack, readonly),
                        )
                    };
                }
                // SAFETY: reads what the caller promises.
                unsafe {
                    once::<ODD>(x, codes, start);
                    if ODD { into!("tmm1") } else { into!("tmm0") }
                }
            }
        }
    };
}

products!(
    /// Codes are unsigned bytes.
    unsigned, "tdpbsud"
);
products!(
    /// Codes are signed bytes.
    signed, "tdpbssd"
);

/// As [`signed`], of tile 2's columns of x, and of tile 3's `further` bytes on, each with its own sums:
/// the first from nothing, the second from `start`; in tiles 0 and 1, or 6 and 7 if `ODD`.
///
/// # Safety
/// As [`signed::once`]; x is readable there too.
#[inline(always)]
pub(crate) unsafe fn apart<const ODD: bool>(
    x: *const i8,
    further: usize,
    codes: *const u8,
    start: &Sums,
) {
    macro_rules! into {
        ($first:literal, $second:literal) => {
            asm!(
                concat!("tilezero ", $first),
                concat!("tileloadd ", $second, ", [{start} + {row}*1]"),
                "tileloadd tmm4, [{codes} + {row}*1]",
                "tileloadd tmm2, [{x} + {row}*1]",
                concat!("tdpbssd ", $first, ", tmm2, tmm4"),
                "tileloadd tmm3, [{y} + {row}*1]",
                concat!("tdpbssd ", $second, ", tmm3, tmm4"),
                codes = in(reg) codes,
                row = in(reg) ROW,
                x = in(reg) x,
                y = in(reg) x.wrapping_add(further),
                start = in(reg) start,
                options(nostack, readonly),
            )
        };
    }
    // SAFETY: reads what the caller promises.
    unsafe { if ODD { into!("tmm6", "tmm7") } else { into!("tmm0", "tmm1") } }
}

/// Stores tile `TILE` of sums: 0, 1, 6 or 7.
///
/// # Safety
/// Shapes are configured; `sums` is writable.
#[inline(always)]
pub(crate) unsafe fn store<const TILE: usize>(sums: *mut Sums) {
    macro_rules! tile {
        ($tile:literal) => {
            asm!(
                concat!("tilestored [{sums} + {row}*1], ", $tile),
                row = in(reg) ROW,
                sums = in(reg) sums,
                options(nostack),
            )
        };
    }
    const { assert!(matches!(TILE, 0 | 1 | 6 | 7)) };
    // SAFETY: writes the 1 KiB of sums.
    unsafe {
        match TILE {
            0 => tile!("tmm0"),
            1 => tile!("tmm1"),
            6 => tile!("tmm6"),
            _ => tile!("tmm7"),
        }
    }
}

/// C (32×32, lines `stride` bytes apart) = (C if `keep`, else 0) + A·B over `steps` times 32 values of
/// K. A step of A is two tiles of sixteen rows of 32 values, a step of B two tiles of sixteen columns:
/// sixteen lines of pairs of neighbours along K.
///
/// Each step adds the products with even k and those with odd k apart, in ascending order, then their
/// sum to C; denormal numbers count as zero.
///
/// # Safety
/// [`has_bf16`] said yes and [`Shapes::WHOLE`] is configured; all is readable or writable in those
/// shapes.
#[inline(always)]
pub(crate) unsafe fn bf16_products(
    a: *const u32,
    b: *const u32,
    steps: usize,
    c: *mut f32,
    stride: usize,
    keep: bool,
) {
    let lower = c.wrapping_byte_add(16 * stride);
    // SAFETY: the caller's.
    unsafe {
        if keep {
            asm!(
                "tileloadd tmm0, [{c} + {stride}*1]",
                "tileloadd tmm1, [{c} + {stride}*1 + 64]",
                "tileloadd tmm2, [{lower} + {stride}*1]",
                "tileloadd tmm3, [{lower} + {stride}*1 + 64]",
                c = in(reg) c,
                lower = in(reg) lower,
                stride = in(reg) stride,
                options(nostack, readonly),
            );
        } else {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                options(nostack, nomem)
            );
        }
        // What the next step reads is asked for between products: a load of a tile waits for each of
        // its sixteen lines.
        macro_rules! product {
            ($product:literal, $quarter:literal) => {
                concat!(
                    $product,
                    "\n.irpc line,01234567",
                    "\nprefetcht0 [{a} + 2048 + ",
                    $quarter,
                    " + 64*\\line]",
                    "\nprefetcht0 [{b} + 2048 + ",
                    $quarter,
                    " + 64*\\line]",
                    "\n.endr",
                )
            };
        }
        asm!(
            "2:",
            "tileloadd tmm4, [{a} + {line}*1]",
            "tileloadd tmm6, [{b} + {line}*1]",
            "tileloadd tmm7, [{b} + {line}*1 + 1024]",
            product!("tdpbf16ps tmm0, tmm4, tmm6", "0"),
            "tileloadd tmm5, [{a} + {line}*1 + 1024]",
            product!("tdpbf16ps tmm1, tmm4, tmm7", "512"),
            product!("tdpbf16ps tmm2, tmm5, tmm6", "1024"),
            product!("tdpbf16ps tmm3, tmm5, tmm7", "1536"),
            "add {a}, 2048",
            "add {b}, 2048",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{c} + {stride}*1], tmm0",
            "tilestored [{c} + {stride}*1 + 64], tmm1",
            "tilestored [{lower} + {stride}*1], tmm2",
            "tilestored [{lower} + {stride}*1 + 64], tmm3",
            a = inout(reg) a => _,
            b = inout(reg) b => _,
            steps = inout(reg) steps => _,
            line = in(reg) 64usize,
            c = in(reg) c,
            lower = in(reg) lower,
            stride = in(reg) stride,
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_those_of_plain_loops() {
        if !available() {
            return;
        }
        let x: Vec<i8> = (0..16 * 64 + 64).map(|i| (i * 37 % 255 - 127) as i8).collect();
        let codes: Vec<u8> = (0..1024).map(|i| (i * 91 % 256) as u8).collect();
        let right = |signed: bool, from: usize, r: usize, n: usize, columns: u8| -> i32 {
            let product = |k: usize| {
                let code = codes[k / 4 * 64 + n * 4 + k % 4];
                let code = if signed { code.cast_signed().into() } else { i32::from(code) };
                i32::from(x[r * ROW + from + k]) * code
            };
            (0..columns.into()).map(product).sum()
        };
        for (rows, [wide, narrow]) in [(16, [64, 32]), (8, [64, 16]), (5, [32, 32])] {
            for is_signed in [false, true] {
                let mut sums = [Sums([[-1; 16]; 16]); 4];
                let [once, twice, first, second] = &mut sums;
                let start = Sums([[7; 16]; 16]);
                // SAFETY: tiles are there; the slices hold the shapes.
                unsafe {
                    Shapes::of(rows, [wide, narrow]).configure();
                    let (x, codes) = (x.as_ptr(), codes.as_ptr());
                    if is_signed {
                        signed::once::<false>(x, codes, &start);
                        signed::twice::<true>(x, codes, &start);
                    } else {
                        unsigned::once::<false>(x, codes, &start);
                        unsigned::twice::<true>(x, codes, &start);
                    }
                    store::<0>(once);
                    store::<1>(twice);
                    Shapes::of(rows, [narrow, narrow]).configure();
                    apart::<true>(x, 32, codes, &start);
                    store::<6>(first);
                    store::<7>(second);
                    release();
                }
                for r in 0..16 {
                    for n in 0..16 {
                        let here = |from, columns| right(is_signed, from, r, n, columns);
                        let signed = |from| right(true, from, r, n, narrow);
                        let expected = match r < rows.into() {
                            true => [
                                7 + here(0, wide),
                                7 + here(0, wide) + here(0, narrow),
                                signed(0),
                                7 + signed(32),
                            ],
                            false => [-1; 4],
                        };
                        assert_eq!(sums.map(|s| s.0[r][n]), expected);
                    }
                }
            }
        }
    }
}
