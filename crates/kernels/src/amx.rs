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
    /// For [`byte_products`]: `rows` rows (up to 16) of `columns` bytes (up to 64, a multiple of 4)
    /// times as many rows of sixteen codes.
    pub(crate) const fn byte_products(rows: u8, columns: u8) -> Shapes {
        let mut shapes = Shapes {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        let mut sum = 0;
        while sum < 2 {
            (shapes.rows[sum], shapes.row_bytes[sum]) = (rows, 64);
            (shapes.rows[2 + sum], shapes.row_bytes[2 + sum]) = (rows, columns as u16);
            sum += 1;
        }
        (shapes.rows[4], shapes.row_bytes[4]) = (columns / 4, 64);
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

/// Sixteen rows of sixteen sums, twice.
#[repr(C, align(64))]
pub(crate) struct Sums(pub(crate) [[[i32; 16]; 16]; 2]);

/// `sums[digit][r][n]` = Σ over k of x[digit][r][k]·codes[k][n], x signed and codes unsigned bytes.
/// Rows of x lie `stride` bytes apart, the second digit `second` bytes after the first; four
/// neighbouring codes of sixteen outputs stand together.
///
/// # Safety
/// Shapes for byte products are configured; x and codes are readable in those shapes.
#[inline(always)]
pub(crate) unsafe fn byte_products(
    x: *const i8,
    stride: usize,
    second: usize,
    codes: *const u8,
    sums: &mut Sums,
) {
    // SAFETY: reads what the caller promises, writes the 2 KiB of sums.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tileloadd tmm4, [{codes} + {line}*1]",
            "tileloadd tmm2, [{x} + {stride}*1]",
            "tdpbsud tmm0, tmm2, tmm4",
            "tileloadd tmm3, [{second} + {stride}*1]",
            "tdpbsud tmm1, tmm3, tmm4",
            "tilestored [{sums} + {line}*1], tmm0",
            "tilestored [{sums} + {line}*1 + 1024], tmm1",
            codes = in(reg) codes,
            line = in(reg) 64usize,
            x = in(reg) x,
            stride = in(reg) stride,
            second = in(reg) x.wrapping_add(second),
            sums = in(reg) sums,
            options(nostack),
        );
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
        asm!(
            "2:",
            "tileloadd tmm4, [{a} + {line}*1]",
            "tileloadd tmm6, [{b} + {line}*1]",
            "tileloadd tmm7, [{b} + {line}*1 + 1024]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{a} + {line}*1 + 1024]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
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
        let x: Vec<i8> = (0..16 * 200).map(|i| (i * 37 % 255 - 127) as i8).collect();
        let codes: Vec<u8> = (0..512).map(|i| (i * 91 % 256) as u8).collect();
        for (rows, columns) in [(16, 32), (8, 32), (5, 16)] {
            let mut sums = Sums([[[-1; 16]; 16]; 2]);
            // SAFETY: tiles are there; the slices hold the shapes.
            unsafe {
                Shapes::byte_products(rows, columns).configure();
                byte_products(x.as_ptr(), 200, 100, codes.as_ptr(), &mut sums);
                release();
            }
            for digit in 0..2 {
                for (r, found) in sums.0[digit].iter().enumerate().take(rows.into()) {
                    for (n, &found) in found.iter().enumerate() {
                        let product = |k: usize| {
                            let code = codes[k / 4 * 64 + n * 4 + k % 4];
                            i32::from(x[r * 200 + digit * 100 + k]) * i32::from(code)
                        };
                        assert_eq!(found, (0..columns.into()).map(product).sum::<i32>());
                    }
                }
            }
            assert!(sums.0[0].iter().skip(rows.into()).flatten().all(|&sum| sum == -1));
        }
    }
}
