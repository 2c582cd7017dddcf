//! Sixteen groups of four codes on every instruction set: one step of a block's dot products.
//!
//! All results are whole numbers, the same at every level.

use super::rows::BASE_BITS;

/// Sixteen rows, four unsigned codes each, and the 32-bit sums that go with them.
///
/// # Safety
/// Every method needs the instruction set of its implementor; pointers must be readable for the
/// bytes named.
pub(super) trait Quads: Copy {
    /// The f32 lanes that go with it.
    type Lanes: crate::lanes::Lanes;
    /// Sixteen i32.
    type Sums: Copy;
    /// 64 bytes.
    unsafe fn load(p: *const u8) -> Self;
    /// The low four bits of each byte.
    unsafe fn low(self) -> Self;
    /// The high four bits of each byte.
    unsafe fn high(self) -> Self;
    /// Adds 16 to each byte whose bit is set.
    unsafe fn add_fifth(self, bits: u64) -> Self;
    /// Sixteen times x.
    unsafe fn sums(x: i32) -> Self::Sums;
    /// sums + Σ of four products of codes below 32 with the four i8 at p.
    unsafe fn dot_small(self, p: *const i8, sums: Self::Sums) -> Self::Sums;
    /// As `dot_small` for any codes.
    unsafe fn dot(self, p: *const i8, sums: Self::Sums) -> Self::Sums;
    /// low + 16·high
    unsafe fn add_16(low: Self::Sums, high: Self::Sums) -> Self::Sums;
    /// As f32, to the nearest.
    unsafe fn floats(sums: Self::Sums) -> Self::Lanes;
    /// Sixteen f16 as f32.
    unsafe fn halves(p: *const u8) -> Self::Lanes;
    /// Sixteen u8 as f32.
    unsafe fn bytes(p: *const u8) -> Self::Lanes;
    /// Sixteen i8 as f32.
    unsafe fn signed_bytes(p: *const u8) -> Self::Lanes;
}

/// Four i8 as the bytes of an i32.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
unsafe fn four(p: *const i8) -> i32 {
    // SAFETY: the caller gives four readable values.
    unsafe { p.cast::<i32>().read_unaligned() }
}

/// Plain loops.
#[derive(Clone, Copy)]
pub(super) struct Plain([u8; 64]);

impl Quads for Plain {
    type Lanes = crate::lanes::Plain;
    type Sums = [i32; 16];
    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: the caller gives 64 readable bytes.
        Plain(unsafe { p.cast::<[u8; 64]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn low(self) -> Self {
        Plain(self.0.map(|b| b & 15))
    }
    #[inline(always)]
    unsafe fn high(self) -> Self {
        Plain(self.0.map(|b| b >> 4))
    }
    #[inline(always)]
    unsafe fn add_fifth(self, bits: u64) -> Self {
        Plain(std::array::from_fn(|i| self.0[i] + ((bits >> i & 1) as u8) * 16))
    }
    #[inline(always)]
    unsafe fn sums(x: i32) -> Self::Sums {
        [x; 16]
    }
    #[inline(always)]
    unsafe fn dot_small(self, p: *const i8, sums: Self::Sums) -> Self::Sums {
        // SAFETY: as the caller's.
        unsafe { self.dot(p, sums) }
    }
    #[inline(always)]
    unsafe fn dot(self, p: *const i8, mut sums: Self::Sums) -> Self::Sums {
        // SAFETY: the caller gives four readable values.
        let x = unsafe { p.cast::<[i8; 4]>().read_unaligned() }.map(i32::from);
        for (sum, codes) in sums.iter_mut().zip(self.0.as_chunks::<4>().0) {
            for (&code, x) in codes.iter().zip(x) {
                *sum += i32::from(code) * x;
            }
        }
        sums
    }
    #[inline(always)]
    unsafe fn add_16(low: Self::Sums, high: Self::Sums) -> Self::Sums {
        let mut sums = low;
        sums.iter_mut().zip(high).for_each(|(sum, high)| *sum += high << BASE_BITS);
        sums
    }
    #[inline(always)]
    unsafe fn floats(sums: Self::Sums) -> Self::Lanes {
        crate::lanes::Plain(sums.map(|x| x as f32))
    }
    #[inline(always)]
    unsafe fn halves(p: *const u8) -> Self::Lanes {
        // SAFETY: the caller gives 32 readable bytes.
        let bits = unsafe { p.cast::<[[u8; 2]; 16]>().read_unaligned() };
        crate::lanes::Plain(bits.map(|b| crate::halves::widened(u16::from_le_bytes(b))))
    }
    #[inline(always)]
    unsafe fn bytes(p: *const u8) -> Self::Lanes {
        // SAFETY: the caller gives 16 readable bytes.
        crate::lanes::Plain(unsafe { p.cast::<[u8; 16]>().read_unaligned() }.map(f32::from))
    }
    #[inline(always)]
    unsafe fn signed_bytes(p: *const u8) -> Self::Lanes {
        // SAFETY: the caller gives 16 readable bytes.
        crate::lanes::Plain(unsafe { p.cast::<[i8; 16]>().read_unaligned() }.map(f32::from))
    }
}

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
pub(super) use neon::Neon;
#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Vnni};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{BASE_BITS, Quads, four};
    use std::arch::x86_64::*;

    /// Two registers of eight rows.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx2([__m256i; 2]);

    /// One register of sixteen rows, and the instruction that adds four products at once.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Vnni(__m512i);

    impl Vnni {
        /// Bytes less a number.
        #[inline(always)]
        pub(in super::super) unsafe fn less(self, zero: u8) -> Vnni {
            // SAFETY: the caller has AVX-512 BW.
            unsafe { Vnni(_mm512_sub_epi8(self.0, _mm512_set1_epi8(zero.cast_signed()))) }
        }
        /// Bytes times eight, which fits a byte.
        #[inline(always)]
        pub(in super::super) unsafe fn times_8(self) -> Vnni {
            // SAFETY: the caller has AVX-512 BW.
            unsafe {
                let kept = _mm512_set1_epi8(0xF8u8.cast_signed());
                Vnni(_mm512_and_si512(_mm512_slli_epi16::<3>(self.0), kept))
            }
        }
        /// Sixteen times the low four bits of each byte.
        #[inline(always)]
        pub(in super::super) unsafe fn low_times_16(self) -> Vnni {
            // SAFETY: the caller has AVX-512 BW.
            unsafe { Vnni(_mm512_slli_epi16::<4>(self.0)).high_times_16() }
        }
        /// Sixteen times the high four bits of each byte.
        #[inline(always)]
        pub(in super::super) unsafe fn high_times_16(self) -> Vnni {
            // SAFETY: the caller has AVX-512.
            unsafe { Vnni(_mm512_and_si512(self.0, _mm512_set1_epi8(0xF0u8.cast_signed()))) }
        }
        #[inline(always)]
        pub(in super::super) fn bits(self) -> __m512i {
            self.0
        }
    }

    // Functions, not closures: those would not have the instruction set of their caller.

    #[inline(always)]
    unsafe fn add_fifth(codes: __m256i, bits: u32) -> __m256i {
        // SAFETY: the caller has AVX2.
        unsafe {
            let each = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
            let spread = _mm256_setr_epi64x(
                0,
                0x0101_0101_0101_0101,
                0x0202_0202_0202_0202,
                0x0303_0303_0303_0303,
            );
            let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits.cast_signed()), spread);
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, each), each);
            _mm256_add_epi8(codes, _mm256_and_si256(set, _mm256_set1_epi8(16)))
        }
    }

    #[inline(always)]
    unsafe fn dot_half(codes: __m256i, x: __m256i, sum: __m256i) -> __m256i {
        // SAFETY: the caller has AVX2; 2·31·128 fits the 16-bit sums of pairs.
        unsafe {
            let pairs = _mm256_maddubs_epi16(codes, x);
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }

    impl Quads for Avx2 {
        type Lanes = crate::lanes::Avx2;
        type Sums = [__m256i; 2];
        #[inline(always)]
        unsafe fn load(p: *const u8) -> Self {
            // SAFETY: the caller gives 64 readable bytes.
            unsafe { Avx2([_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())]) }
        }
        #[inline(always)]
        unsafe fn low(self) -> Self {
            // SAFETY: the caller has AVX2.
            unsafe {
                let mask = _mm256_set1_epi8(15);
                Avx2([_mm256_and_si256(self.0[0], mask), _mm256_and_si256(self.0[1], mask)])
            }
        }
        #[inline(always)]
        unsafe fn high(self) -> Self {
            // SAFETY: the caller has AVX2.
            unsafe {
                Avx2([_mm256_srli_epi16::<4>(self.0[0]), _mm256_srli_epi16::<4>(self.0[1])]).low()
            }
        }
        #[inline(always)]
        unsafe fn add_fifth(self, bits: u64) -> Self {
            // SAFETY: the caller has AVX2.
            unsafe {
                Avx2([add_fifth(self.0[0], bits as u32), add_fifth(self.0[1], (bits >> 32) as u32)])
            }
        }
        #[inline(always)]
        unsafe fn sums(x: i32) -> Self::Sums {
            // SAFETY: the caller has AVX2.
            unsafe { [_mm256_set1_epi32(x); 2] }
        }
        #[inline(always)]
        unsafe fn dot_small(self, p: *const i8, sums: Self::Sums) -> Self::Sums {
            // SAFETY: the caller has AVX2.
            unsafe {
                let x = _mm256_set1_epi32(four(p));
                [dot_half(self.0[0], x, sums[0]), dot_half(self.0[1], x, sums[1])]
            }
        }
        #[inline(always)]
        unsafe fn dot(self, p: *const i8, sums: Self::Sums) -> Self::Sums {
            // SAFETY: the caller has AVX2; halves of four bits do not overflow.
            unsafe {
                let zero = Self::sums(0);
                let high = self.high().dot_small(p, zero);
                let sums = self.low().dot_small(p, sums);
                [
                    _mm256_add_epi32(sums[0], _mm256_slli_epi32::<4>(high[0])),
                    _mm256_add_epi32(sums[1], _mm256_slli_epi32::<4>(high[1])),
                ]
            }
        }
        #[inline(always)]
        unsafe fn add_16(low: Self::Sums, high: Self::Sums) -> Self::Sums {
            // SAFETY: the caller has AVX2.
            unsafe {
                [
                    _mm256_add_epi32(low[0], _mm256_slli_epi32::<{ BASE_BITS as i32 }>(high[0])),
                    _mm256_add_epi32(low[1], _mm256_slli_epi32::<{ BASE_BITS as i32 }>(high[1])),
                ]
            }
        }
        #[inline(always)]
        unsafe fn floats(sums: Self::Sums) -> Self::Lanes {
            // SAFETY: the caller has AVX2.
            unsafe { crate::lanes::Avx2(_mm256_cvtepi32_ps(sums[0]), _mm256_cvtepi32_ps(sums[1])) }
        }
        #[inline(always)]
        unsafe fn halves(p: *const u8) -> Self::Lanes {
            // SAFETY: the caller gives 32 readable bytes.
            unsafe {
                let (low, high) = (_mm_loadu_si128(p.cast()), _mm_loadu_si128(p.add(16).cast()));
                crate::lanes::Avx2(_mm256_cvtph_ps(low), _mm256_cvtph_ps(high))
            }
        }
        #[inline(always)]
        unsafe fn bytes(p: *const u8) -> Self::Lanes {
            // SAFETY: the caller gives 16 readable bytes.
            unsafe {
                let (low, high) = (_mm_loadl_epi64(p.cast()), _mm_loadl_epi64(p.add(8).cast()));
                let (low, high) = (_mm256_cvtepu8_epi32(low), _mm256_cvtepu8_epi32(high));
                crate::lanes::Avx2(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
            }
        }
        #[inline(always)]
        unsafe fn signed_bytes(p: *const u8) -> Self::Lanes {
            // SAFETY: the caller gives 16 readable bytes.
            unsafe {
                let (low, high) = (_mm_loadl_epi64(p.cast()), _mm_loadl_epi64(p.add(8).cast()));
                let (low, high) = (_mm256_cvtepi8_epi32(low), _mm256_cvtepi8_epi32(high));
                crate::lanes::Avx2(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
            }
        }
    }

    impl Quads for Vnni {
        type Lanes = crate::lanes::Avx512;
        type Sums = __m512i;
        #[inline(always)]
        unsafe fn load(p: *const u8) -> Self {
            // SAFETY: the caller gives 64 readable bytes.
            unsafe { Vnni(_mm512_loadu_si512(p.cast())) }
        }
        #[inline(always)]
        unsafe fn low(self) -> Self {
            // SAFETY: the caller has AVX-512.
            unsafe { Vnni(_mm512_and_si512(self.0, _mm512_set1_epi8(15))) }
        }
        #[inline(always)]
        unsafe fn high(self) -> Self {
            // SAFETY: the caller has AVX-512.
            unsafe { Vnni(_mm512_srli_epi16::<4>(self.0)).low() }
        }
        #[inline(always)]
        unsafe fn add_fifth(self, bits: u64) -> Self {
            // SAFETY: the caller has AVX-512 BW.
            unsafe { Vnni(_mm512_mask_add_epi8(self.0, bits, self.0, _mm512_set1_epi8(16))) }
        }
        #[inline(always)]
        unsafe fn sums(x: i32) -> Self::Sums {
            // SAFETY: the caller has AVX-512.
            unsafe { _mm512_set1_epi32(x) }
        }
        #[inline(always)]
        unsafe fn dot_small(self, p: *const i8, sums: Self::Sums) -> Self::Sums {
            // SAFETY: as the caller's.
            unsafe { self.dot(p, sums) }
        }
        #[inline(always)]
        unsafe fn dot(self, p: *const i8, sums: Self::Sums) -> Self::Sums {
            // SAFETY: the caller has AVX-512 VNNI.
            unsafe { _mm512_dpbusd_epi32(sums, self.0, _mm512_set1_epi32(four(p))) }
        }
        #[inline(always)]
        unsafe fn add_16(low: Self::Sums, high: Self::Sums) -> Self::Sums {
            // SAFETY: the caller has AVX-512.
            unsafe { _mm512_add_epi32(low, _mm512_slli_epi32::<{ BASE_BITS }>(high)) }
        }
        #[inline(always)]
        unsafe fn floats(sums: Self::Sums) -> Self::Lanes {
            // SAFETY: the caller has AVX-512.
            unsafe { crate::lanes::Avx512(_mm512_cvtepi32_ps(sums)) }
        }
        #[inline(always)]
        unsafe fn halves(p: *const u8) -> Self::Lanes {
            // SAFETY: the caller gives 32 readable bytes.
            unsafe { crate::lanes::Avx512(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))) }
        }
        #[inline(always)]
        unsafe fn bytes(p: *const u8) -> Self::Lanes {
            // SAFETY: the caller gives 16 readable bytes.
            unsafe {
                let wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
                crate::lanes::Avx512(_mm512_cvtepi32_ps(wide))
            }
        }
        #[inline(always)]
        unsafe fn signed_bytes(p: *const u8) -> Self::Lanes {
            // SAFETY: the caller gives 16 readable bytes.
            unsafe {
                let wide = _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()));
                crate::lanes::Avx512(_mm512_cvtepi32_ps(wide))
            }
        }
    }
}
