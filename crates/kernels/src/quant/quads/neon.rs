//! The dots of aarch64: four registers of four rows.
//!
//! The instruction that adds four products at once takes signed bytes on both sides, so codes of
//! eight bits are shifted by 128 and what that leaves out, 128·Σx, is added once for all rows.

use super::{BASE_BITS, Quads, four};
use crate::lanes::{self, Lanes};
use std::arch::aarch64::*;
use std::arch::asm;

/// Four registers of four rows. `DOTPROD`: by the dot-product instruction, which not every
/// processor has; else by products of 16 bits.
#[derive(Clone, Copy)]
pub(in super::super) struct Neon<const DOTPROD: bool>([uint8x16_t; 4]);

/// sums + Σ of four neighbouring products.
#[inline(always)]
unsafe fn signed_dot(mut sums: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: the caller has the instruction, which touches registers alone. The compiler has no
    // stable intrinsic for it.
    unsafe {
        asm!(
            ".arch_extension dotprod",
            "sdot {sums:v}.4s, {codes:v}.16b, {x:v}.16b",
            sums = inout(vreg) sums, codes = in(vreg) codes, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

/// As [`signed_dot`], for codes below 32: two products fit 16 bits.
#[inline(always)]
unsafe fn small_dot(sums: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: the caller has NEON.
    unsafe {
        let low = vmull_s8(vget_low_s8(codes), vget_low_s8(x));
        let pairs = vpaddq_s16(low, vmull_high_s8(codes, x));
        vpadalq_s16(sums, pairs)
    }
}

impl<const DOTPROD: bool> Neon<DOTPROD> {
    #[inline(always)]
    fn each(self, f: impl Fn(uint8x16_t) -> uint8x16_t) -> Self {
        Neon(self.0.map(f))
    }
}

/// The four i8 at p in all rows.
#[inline(always)]
unsafe fn spread(p: *const i8) -> int8x16_t {
    // SAFETY: the caller has NEON and gives four readable values.
    unsafe { vreinterpretq_s8_s32(vdupq_n_s32(four(p))) }
}

impl<const DOTPROD: bool> Quads for Neon<DOTPROD> {
    type Lanes = lanes::Neon;
    type Sums = [int32x4_t; 4];
    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: the caller has NEON and gives 64 readable bytes.
        Neon(unsafe {
            [vld1q_u8(p), vld1q_u8(p.add(16)), vld1q_u8(p.add(32)), vld1q_u8(p.add(48))]
        })
    }
    #[inline(always)]
    unsafe fn low(self) -> Self {
        // SAFETY: the caller has NEON.
        self.each(|codes| unsafe { vandq_u8(codes, vdupq_n_u8(15)) })
    }
    #[inline(always)]
    unsafe fn high(self) -> Self {
        // SAFETY: the caller has NEON.
        self.each(|codes| unsafe { vshrq_n_u8::<4>(codes) })
    }
    #[inline(always)]
    unsafe fn add_fifth(mut self, bits: u64) -> Self {
        const EACH: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
        let bytes = bits.to_le_bytes();
        // SAFETY: the caller has NEON; the array holds sixteen bytes.
        unsafe {
            let each = vld1q_u8(EACH.as_ptr());
            for (i, codes) in self.0.iter_mut().enumerate() {
                let mine = vcombine_u8(vdup_n_u8(bytes[2 * i]), vdup_n_u8(bytes[2 * i + 1]));
                let set = vtstq_u8(mine, each);
                *codes = vaddq_u8(*codes, vandq_u8(set, vdupq_n_u8(16)));
            }
        }
        self
    }
    #[inline(always)]
    unsafe fn sums(x: i32) -> Self::Sums {
        // SAFETY: the caller has NEON.
        [unsafe { vdupq_n_s32(x) }; 4]
    }
    #[inline(always)]
    unsafe fn dot_small(self, p: *const i8, mut sums: Self::Sums) -> Self::Sums {
        // SAFETY: the caller has the instructions and gives four readable values.
        unsafe {
            let x = spread(p);
            for (sum, codes) in sums.iter_mut().zip(self.0) {
                let codes = vreinterpretq_s8_u8(codes);
                *sum = if DOTPROD { signed_dot(*sum, codes, x) } else { small_dot(*sum, codes, x) };
            }
        }
        sums
    }
    #[inline(always)]
    unsafe fn dot(self, p: *const i8, mut sums: Self::Sums) -> Self::Sums {
        // SAFETY: the caller has the instructions and gives four readable values.
        unsafe {
            if !DOTPROD {
                // Halves of four bits are small.
                return Self::add_16(
                    self.low().dot_small(p, sums),
                    self.high().dot_small(p, Self::sums(0)),
                );
            }
            let (x, least) = (spread(p), vdupq_n_s8(i8::MIN));
            let left_out = signed_dot(vdupq_n_s32(0), least, x);
            for (sum, codes) in sums.iter_mut().zip(self.0) {
                let shifted = veorq_s8(vreinterpretq_s8_u8(codes), least);
                *sum = vsubq_s32(signed_dot(*sum, shifted, x), left_out);
            }
        }
        sums
    }
    #[inline(always)]
    unsafe fn add_16(mut low: Self::Sums, high: Self::Sums) -> Self::Sums {
        for (low, high) in low.iter_mut().zip(high) {
            // SAFETY: the caller has NEON.
            *low = unsafe { vaddq_s32(*low, vshlq_n_s32::<{ BASE_BITS as i32 }>(high)) };
        }
        low
    }
    #[inline(always)]
    unsafe fn floats(sums: Self::Sums) -> Self::Lanes {
        // SAFETY: the caller has NEON.
        lanes::Neon(sums.map(|x| unsafe { vcvtq_f32_s32(x) }))
    }
    #[inline(always)]
    unsafe fn halves(p: *const u8) -> Self::Lanes {
        // SAFETY: the caller has NEON and gives 32 readable bytes.
        unsafe { lanes::Neon::load_f16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn bytes(p: *const u8) -> Self::Lanes {
        // SAFETY: the caller has NEON and gives 16 readable bytes.
        unsafe { lanes::Neon::load_u8(p) }
    }
    #[inline(always)]
    unsafe fn signed_bytes(p: *const u8) -> Self::Lanes {
        // SAFETY: the caller has NEON and gives 16 readable bytes.
        unsafe { lanes::Neon::load_i8(p.cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Plain;
    use super::*;

    fn as_array(sums: [int32x4_t; 4]) -> [i32; 16] {
        let mut out = [0; 16];
        for (sum, out) in sums.into_iter().zip(out.as_chunks_mut::<4>().0) {
            // SAFETY: four values are written.
            unsafe { vst1q_s32(out.as_mut_ptr(), sum) }
        }
        out
    }

    /// Every code beside every other of a few x, the largest and the least among them.
    fn dots_are_those_of_plain_loops<const DOTPROD: bool>() {
        for round in 0..512u64 {
            let random = |salt: u64, i: usize| crate::mix(round << 20 ^ salt << 10 ^ i as u64);
            let codes: [u8; 64] = std::array::from_fn(|i| match round {
                0 => 255,
                1..=4 => (64 * (round - 1)) as u8 + i as u8,
                _ => random(1, i) as u8,
            });
            let x: [i8; 4] = std::array::from_fn(|i| match round % 4 {
                0 => i8::MIN,
                1 => i8::MAX,
                _ => random(2, i) as i8,
            });
            let (bits, start) = (random(3, 0), random(4, 0) as i32 >> 8);
            // SAFETY: the processor has the instructions; the arrays hold what is read.
            unsafe {
                let (fast, plain) =
                    (Neon::<DOTPROD>::load(codes.as_ptr()), Plain::load(codes.as_ptr()));
                let (sums, right) = (Neon::<DOTPROD>::sums(start), Plain::sums(start));
                let large = [fast.dot(x.as_ptr(), sums), fast.high().dot(x.as_ptr(), sums)];
                let right_large =
                    [plain.dot(x.as_ptr(), right), plain.high().dot(x.as_ptr(), right)];
                assert_eq!(large.map(as_array), right_large);
                let small = [fast.low().add_fifth(bits), fast.high().add_fifth(bits)]
                    .map(|codes| codes.dot_small(x.as_ptr(), sums));
                let right_small = [plain.low().add_fifth(bits), plain.high().add_fifth(bits)]
                    .map(|codes| codes.dot_small(x.as_ptr(), right));
                assert_eq!(small.map(as_array), right_small);
                let added = Neon::<DOTPROD>::add_16(small[0], large[0]);
                assert_eq!(as_array(added), Plain::add_16(right_small[0], right_large[0]));
                let floats = [
                    (Neon::<DOTPROD>::floats(added), Plain::floats(as_array(added))),
                    (Neon::<DOTPROD>::bytes(codes.as_ptr()), Plain::bytes(codes.as_ptr())),
                    (
                        Neon::<DOTPROD>::signed_bytes(codes.as_ptr()),
                        Plain::signed_bytes(codes.as_ptr()),
                    ),
                ];
                for (found, right) in floats {
                    assert_eq!(found.to_array(), right.to_array());
                }
            }
        }
    }

    #[test]
    fn products_of_16_bits_are_the_same_whole_numbers() {
        dots_are_those_of_plain_loops::<false>();
    }

    #[test]
    fn dot_product_instructions_are_the_same_whole_numbers() {
        if std::arch::is_aarch64_feature_detected!("dotprod") {
            dots_are_those_of_plain_loops::<true>();
        } else {
            println!("skipped: this processor has no dot-product instruction");
        }
    }
}
