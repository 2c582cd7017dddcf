//! The lanes of aarch64: four registers of four.

use super::{LANES, Lanes};
use std::arch::aarch64::*;
use std::arch::asm;

/// Four registers of four lanes.
#[derive(Clone, Copy)]
pub(crate) struct Neon(pub [float32x4_t; 4]);

/// A value a register, by an expression of its index.
macro_rules! each {
    (|$i:ident| $value:expr) => {
        // SAFETY: the caller has NEON, and gives sixteen values where there is a pointer.
        unsafe {
            [
                {
                    let $i = 0;
                    $value
                },
                {
                    let $i = 1;
                    $value
                },
                {
                    let $i = 2;
                    $value
                },
                {
                    let $i = 3;
                    $value
                },
            ]
        }
    };
}

/// b where a is not the larger: what the other levels answer for zeros and for what is no number.
#[inline(always)]
unsafe fn larger(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: the caller has NEON.
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

/// One number by a fixed tree: halves meet, the upper one first, until one is left.
macro_rules! tree {
    ($x:expr, $meet:ident) => {{
        let [a, b, c, d] = $x.0;
        // SAFETY: the caller has NEON.
        unsafe {
            let four = $meet($meet(d, b), $meet(c, a));
            let two = $meet(vextq_f32::<2>(four, four), four);
            vgetq_lane_f32::<0>($meet(vextq_f32::<1>(two, two), two))
        }
    }};
}

/// Rounded to upper halves; the lower ones are rubbish.
#[inline(always)]
unsafe fn upper(x: float32x4_t) -> uint32x4_t {
    // SAFETY: the caller has NEON.
    unsafe {
        let bits = vreinterpretq_u32_f32(x);
        let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
        let rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
        let quiet = vorrq_u32(bits, vdupq_n_u32(0x0040_0000));
        vbslq_u32(vceqq_f32(x, x), rounded, quiet)
    }
}

/// Eight half-precision numbers, to nearest, ties to even.
#[inline(always)]
unsafe fn eight_halves(a: float32x4_t, b: float32x4_t) -> uint16x8_t {
    // SAFETY: the caller has NEON.
    unsafe {
        let half = |x| vreinterpret_u16_f16(vcvt_f16_f32(x));
        vcombine_u16(half(a), half(b))
    }
}

/// Four lines of four words, sixteen words apart, as their columns.
#[inline(always)]
unsafe fn columns(p: *const u32) -> [uint32x4_t; 4] {
    // SAFETY: the caller has NEON and gives four lines.
    unsafe {
        let [a, b] = [vld1q_u32(p), vld1q_u32(p.add(LANES))];
        let [c, d] = [vld1q_u32(p.add(2 * LANES)), vld1q_u32(p.add(3 * LANES))];
        let wide = |x| vreinterpretq_u64_u32(x);
        let [even, odd] = [wide(vtrn1q_u32(a, b)), wide(vtrn2q_u32(a, b))];
        let [even_below, odd_below] = [wide(vtrn1q_u32(c, d)), wide(vtrn2q_u32(c, d))];
        [
            vreinterpretq_u32_u64(vtrn1q_u64(even, even_below)),
            vreinterpretq_u32_u64(vtrn1q_u64(odd, odd_below)),
            vreinterpretq_u32_u64(vtrn2q_u64(even, even_below)),
            vreinterpretq_u32_u64(vtrn2q_u64(odd, odd_below)),
        ]
    }
}

/// Writes four lines of four words, sixteen words apart.
#[inline(always)]
unsafe fn put(lines: [uint32x4_t; 4], p: *mut u32) {
    for (i, line) in lines.into_iter().enumerate() {
        // SAFETY: the caller has NEON and gives four lines.
        unsafe { vst1q_u32(p.add(i * LANES), line) }
    }
}

impl Neon {
    /// Sixteen u8.
    ///
    /// # Safety
    /// The processor has NEON; sixteen bytes are readable.
    #[inline(always)]
    pub(crate) unsafe fn load_u8(p: *const u8) -> Self {
        // SAFETY: as the caller's.
        unsafe {
            let codes = vld1q_u8(p);
            let [a, b] = [vmovl_u8(vget_low_u8(codes)), vmovl_high_u8(codes)];
            let wide = [vmovl_u16(vget_low_u16(a)), vmovl_high_u16(a)];
            let high = [vmovl_u16(vget_low_u16(b)), vmovl_high_u16(b)];
            let [wide, high] = [wide.map(|x| vcvtq_f32_u32(x)), high.map(|x| vcvtq_f32_u32(x))];
            Neon([wide[0], wide[1], high[0], high[1]])
        }
    }
}

impl Lanes for Neon {
    // Six rows of one virtual vector: 24 of the 32 registers are sums.
    const TILE_VECS: usize = 1;
    const VECTORS: usize = 8;
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        tree!(self, larger)
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        tree!(self, vaddq_f32)
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        let wide = each!(|i| vmovl_u16(vld1_u16(p.add(4 * i))));
        Neon(each!(|i| vreinterpretq_f32_u32(vshlq_n_u32::<16>(wide[i]))))
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        Neon(each!(|i| vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p.add(4 * i))))))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        // SAFETY: the caller has NEON and gives sixteen readable bytes.
        unsafe {
            let codes = vld1q_s8(p);
            let [a, b] = [vmovl_s8(vget_low_s8(codes)), vmovl_high_s8(codes)];
            let wide = [vmovl_s16(vget_low_s16(a)), vmovl_high_s16(a)];
            let high = [vmovl_s16(vget_low_s16(b)), vmovl_high_s16(b)];
            let [wide, high] = [wide.map(|x| vcvtq_f32_s32(x)), high.map(|x| vcvtq_f32_s32(x))];
            Neon([wide[0], wide[1], high[0], high[1]])
        }
    }
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8) {
        let four = each!(|i| vmovn_s32(vcvtnq_s32_f32(self.0[i])));
        // SAFETY: the caller has NEON and gives sixteen writable bytes.
        unsafe {
            let [a, b] = [vcombine_s16(four[0], four[1]), vcombine_s16(four[2], four[3])];
            vst1q_s8(p, vcombine_s8(vmovn_s16(a), vmovn_s16(b)));
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut u16) {
        let four = each!(|i| vshrn_n_u32::<16>(upper(self.0[i])));
        each!(|i| vst1_u16(p.add(4 * i), four[i]));
    }
    #[inline(always)]
    unsafe fn store_bf16_pairs(self, high: Self, p: *mut u32) {
        let words = each!(|i| vsriq_n_u32::<16>(upper(high.0[i]), upper(self.0[i])));
        each!(|i| vst1q_u32(p.add(4 * i), words[i]));
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        // SAFETY: the caller has NEON and gives sixteen writable halves.
        unsafe {
            vst1q_u16(p, eight_halves(self.0[0], self.0[1]));
            vst1q_u16(p.add(8), eight_halves(self.0[2], self.0[3]));
        }
    }
    #[inline(always)]
    unsafe fn store_f16_pairs(self, high: Self, p: *mut u32) {
        // SAFETY: the caller has NEON and gives sixteen writable words.
        unsafe {
            for i in [0, 2] {
                let low = eight_halves(self.0[i], self.0[i + 1]);
                let high = eight_halves(high.0[i], high.0[i + 1]);
                let pairs = [vzip1q_u16(low, high), vzip2q_u16(low, high)];
                vst1q_u16(p.add(4 * i).cast(), pairs[0]);
                vst1q_u16(p.add(4 * i + 4).cast(), pairs[1]);
            }
        }
    }
    #[inline(always)]
    unsafe fn turn_words(p: *mut u32) {
        for i in (0..LANES).step_by(4) {
            for j in (0..=i).step_by(4) {
                // SAFETY: the caller has NEON and gives 256 words.
                unsafe {
                    let (here, there) = (p.add(i * LANES + j), p.add(j * LANES + i));
                    let turned = [columns(here), columns(there)];
                    put(turned[0], there);
                    put(turned[1], here);
                }
            }
        }
    }
    #[inline(always)]
    fn prefetch(p: *const f32) {
        // SAFETY: a prefetch reads nothing.
        unsafe { asm!("prfm pldl1keep, [{p}]", p = in(reg) p, options(nostack, preserves_flags)) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the caller has NEON.
        Neon([unsafe { vdupq_n_f32(x) }; 4])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Neon(each!(|i| vld1q_f32(p.add(4 * i))))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        each!(|i| vst1q_f32(p.add(4 * i), self.0[i]));
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self {
        let mut out = [0.0; LANES];
        // SAFETY: the caller gives n <= 16 readable values.
        unsafe {
            std::ptr::copy_nonoverlapping(p, out.as_mut_ptr(), n);
            Self::load(out.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        // SAFETY: the caller gives n <= 16 writable values.
        unsafe { std::ptr::copy_nonoverlapping(self.to_array().as_ptr(), p, n) }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        Neon(each!(|i| vaddq_f32(self.0[i], b.0[i])))
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        Neon(each!(|i| vsubq_f32(self.0[i], b.0[i])))
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        Neon(each!(|i| vmulq_f32(self.0[i], b.0[i])))
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        Neon(each!(|i| vdivq_f32(self.0[i], b.0[i])))
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        Neon(each!(|i| larger(self.0[i], b.0[i])))
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        Neon(each!(|i| vbslq_f32(vcltq_f32(self.0[i], b.0[i]), self.0[i], b.0[i])))
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        Neon(each!(|i| vfmaq_f32(c.0[i], self.0[i], b.0[i])))
    }
    #[inline(always)]
    unsafe fn sqrt(self) -> Self {
        Neon(each!(|i| vsqrtq_f32(self.0[i])))
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        Neon(each!(|i| vrndnq_f32(self.0[i])))
    }
    #[inline(always)]
    unsafe fn scale2(self, n: Self) -> Self {
        let biased = each!(|i| vaddq_s32(vcvtnq_s32_f32(n.0[i]), vdupq_n_s32(127)));
        let power = each!(|i| vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased[i])));
        Neon(each!(|i| vmulq_f32(self.0[i], power[i])))
    }
    #[inline(always)]
    unsafe fn keep_at_least(self, x: Self, limit: Self) -> Self {
        let kept = each!(|i| vcgeq_f32(x.0[i], limit.0[i]));
        let bits = each!(|i| vandq_u32(vreinterpretq_u32_f32(self.0[i]), kept[i]));
        Neon(each!(|i| vreinterpretq_f32_u32(bits[i])))
    }
}
