//! Sixteen virtual lanes of f32 on every instruction set, and the macro that stamps a kernel.
//!
//! A kernel written over [`Lanes`] does the same operations in the same order at every level:
//! one AVX-512 register, two AVX2 registers, four NEON registers, or an array that the compiler
//! vectorises. All methods are `inline(always)`, so that they melt into the stamped function that
//! enables the instructions; they must be called from nowhere else.

/// Lanes a virtual vector.
pub(crate) const LANES: usize = 16;

/// Sixteen f32 values.
///
/// # Safety
/// Every method needs the instruction set of its implementor; pointers must be valid for the
/// sixteen (or `n`) values read or written.
pub(crate) trait Lanes: Copy {
    /// Virtual vectors a tile of a matrix product is wide at most.
    const TILE_VECS: usize;
    /// Virtual vectors that the registers hold.
    const VECTORS: usize;
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(p: *const f32) -> Self;
    unsafe fn store(self, p: *mut f32);
    /// Whole numbers in [-128, 127] as sixteen i8.
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8) {
        // SAFETY: the caller gives sixteen writable bytes.
        unsafe {
            for (i, x) in self.to_array().into_iter().enumerate() {
                *p.add(i) = x as i8;
            }
        }
    }
    /// Sixteen upper halves of f32.
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: the caller gives sixteen readable halves.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        let values = bits.map(|b| f32::from_bits(u32::from(b) << 16));
        // SAFETY: the array holds sixteen values.
        unsafe { Self::load(values.as_ptr()) }
    }
    /// Sixteen half-precision numbers, exactly.
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: the caller gives sixteen readable halves.
        unsafe { Self::load(crate::kept::widen_sixteen(p).as_ptr()) }
    }
    /// A half-precision number, exactly, in all lanes.
    #[inline(always)]
    unsafe fn splat_f16(p: *const u16) -> Self {
        // SAFETY: the caller gives a readable half.
        unsafe { Self::splat(crate::halves::widened(p.read_unaligned())) }
    }
    /// Sixteen i8.
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        // SAFETY: the caller gives sixteen readable bytes.
        let codes = unsafe { p.cast::<[i8; LANES]>().read_unaligned() };
        let values = codes.map(f32::from);
        // SAFETY: the array holds sixteen values.
        unsafe { Self::load(values.as_ptr()) }
    }
    /// Rounds to sixteen upper halves of f32, to nearest, ties to even.
    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut u16) {
        // SAFETY: the caller gives sixteen writable halves.
        unsafe {
            let bits = self.to_array().map(crate::halves::bf16_bits);
            p.cast::<[u16; LANES]>().write_unaligned(bits);
        }
    }
    /// Rounds to sixteen half-precision numbers, to nearest, ties to even.
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        // SAFETY: the caller gives sixteen writable halves.
        unsafe {
            let bits = self.to_array().map(crate::halves::f16_bits);
            p.cast::<[u16; LANES]>().write_unaligned(bits);
        }
    }
    /// Rounded as by `store_bf16`, in the lower halves of sixteen words; `high`'s in the upper.
    #[inline(always)]
    unsafe fn store_bf16_pairs(self, high: Self, p: *mut u32) {
        let (mut a, mut b) = ([0; LANES], [0; LANES]);
        // SAFETY: sixteen halves each; the caller gives sixteen writable words.
        unsafe {
            self.store_bf16(a.as_mut_ptr());
            high.store_bf16(b.as_mut_ptr());
            p.cast::<[u32; LANES]>().write_unaligned(joined(a, b));
        }
    }
    /// Rounded as by `store_f16`, in the lower halves of sixteen words; `high`'s in the upper.
    #[inline(always)]
    unsafe fn store_f16_pairs(self, high: Self, p: *mut u32) {
        let (mut a, mut b) = ([0; LANES], [0; LANES]);
        // SAFETY: sixteen halves each; the caller gives sixteen writable words.
        unsafe {
            self.store_f16(a.as_mut_ptr());
            high.store_f16(b.as_mut_ptr());
            p.cast::<[u32; LANES]>().write_unaligned(joined(a, b));
        }
    }
    /// Sixteen lines of sixteen words, turned in place.
    #[inline(always)]
    unsafe fn turn_words(p: *mut u32) {
        for i in 0..LANES {
            for j in 0..i {
                // SAFETY: the caller gives 256 words.
                unsafe { std::ptr::swap(p.add(i * LANES + j), p.add(j * LANES + i)) };
            }
        }
    }
    /// Asks for the values at p, which need not be readable.
    #[inline(always)]
    fn prefetch(_p: *const f32) {}
    /// The same, no nearer than the second cache.
    #[inline(always)]
    fn prefetch_far(_p: *const f32) {}
    unsafe fn load_part(p: *const f32, n: usize) -> Self;
    unsafe fn store_part(self, p: *mut f32, n: usize);
    unsafe fn add(self, b: Self) -> Self;
    unsafe fn sub(self, b: Self) -> Self;
    unsafe fn mul(self, b: Self) -> Self;
    unsafe fn div(self, b: Self) -> Self;
    unsafe fn max(self, b: Self) -> Self;
    unsafe fn min(self, b: Self) -> Self;
    /// self·b + c
    unsafe fn fma(self, b: Self, c: Self) -> Self;
    unsafe fn sqrt(self) -> Self;
    /// To the nearest whole number, ties to even; |self| < 2^22.
    unsafe fn round(self) -> Self;
    /// self · 2^n for whole n in [-126, 127].
    unsafe fn scale2(self, n: Self) -> Self;
    /// self where x >= limit, else 0.
    unsafe fn keep_at_least(self, x: Self, limit: Self) -> Self;
    /// The sixteen values.
    #[inline(always)]
    unsafe fn to_array(self) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        // SAFETY: the array holds sixteen values.
        unsafe { self.store(out.as_mut_ptr()) };
        out
    }
    /// The largest of numbers that are not NaN.
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        // SAFETY: as the caller's.
        let mut a = unsafe { self.to_array() };
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                a[i] = if a[i + half] > a[i] { a[i + half] } else { a[i] };
            }
            half /= 2;
        }
        a[0]
    }
    /// The sum, in a fixed tree: halves are added until one is left.
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: as the caller's.
        let mut a = unsafe { self.to_array() };
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                a[i] += a[i + half];
            }
            half /= 2;
        }
        a[0]
    }
}

/// Lower and upper halves of words.
#[inline(always)]
fn joined(low: [u16; LANES], high: [u16; LANES]) -> [u32; LANES] {
    let mut words = [0; LANES];
    for i in 0..LANES {
        words[i] = u32::from(low[i]) | u32::from(high[i]) << 16;
    }
    words
}

/// a·b + c, rounded once as the instruction does. Where the target has none, the sum of the exact product
/// and c is rounded to odd in twice the precision, which the last rounding cannot see (Boldo and
/// Melquiond 2008).
#[inline(always)]
pub(crate) fn plain_fma(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(target_arch = "aarch64") {
        return a.mul_add(b, c);
    }
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    // What the sum lacks, exactly; not a number where the sum is not finite.
    let added = sum - product;
    let lacks = (product - (sum - added)) + (c - added);
    let bits = sum.to_bits();
    let beyond = (lacks > 0.0) == (sum > 0.0);
    let inexact_and_even = bits & 1 == 0 && lacks != 0.0 && lacks.is_finite();
    let odd = if beyond { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    f64::from_bits(if inexact_and_even { odd } else { bits }) as f32
}

/// 2^n for whole n in [-126, 127].
#[inline(always)]
fn exp2_whole(n: f32) -> f32 {
    f32::from_bits(((n as i32 + 127) << 23) as u32)
}

/// The array that the compiler vectorises for the build's baseline.
#[derive(Clone, Copy)]
pub(crate) struct Plain(pub [f32; LANES]);

macro_rules! per_lane {
    ($self:ident, $b:ident, |$x:ident, $y:ident| $e:expr) => {{
        let mut out = [0.0f32; LANES];
        for i in 0..LANES {
            let ($x, $y) = ($self.0[i], $b.0[i]);
            out[i] = $e;
        }
        Plain(out)
    }};
}

impl Lanes for Plain {
    const TILE_VECS: usize = 1;
    const VECTORS: usize = 2;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Plain([x; LANES])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller gives sixteen readable values.
        Plain(unsafe { p.cast::<[f32; LANES]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller gives sixteen writable values.
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self {
        let mut out = [0.0; LANES];
        for (i, o) in out.iter_mut().enumerate().take(n) {
            // SAFETY: the caller gives n readable values.
            *o = unsafe { *p.add(i) };
        }
        Plain(out)
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        for (i, x) in self.0.into_iter().enumerate().take(n) {
            // SAFETY: the caller gives n writable values.
            unsafe { *p.add(i) = x };
        }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        per_lane!(self, b, |x, y| x + y)
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        per_lane!(self, b, |x, y| x - y)
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        per_lane!(self, b, |x, y| x * y)
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        per_lane!(self, b, |x, y| x / y)
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        per_lane!(self, b, |x, y| if x > y { x } else { y })
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        per_lane!(self, b, |x, y| if x < y { x } else { y })
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        Plain(std::array::from_fn(|i| plain_fma(self.0[i], b.0[i], c.0[i])))
    }
    #[inline(always)]
    unsafe fn sqrt(self) -> Self {
        Plain(self.0.map(f32::sqrt))
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        // 1.5·2^23: adding it leaves no room for a fraction, under the default rounding.
        const MAGIC: f32 = 12_582_912.0;
        Plain(self.0.map(|x| (x + MAGIC) - MAGIC))
    }
    #[inline(always)]
    unsafe fn scale2(self, n: Self) -> Self {
        per_lane!(self, n, |x, y| x * exp2_whole(y))
    }
    #[inline(always)]
    unsafe fn keep_at_least(self, x: Self, limit: Self) -> Self {
        Plain(std::array::from_fn(|i| if x.0[i] >= limit.0[i] { self.0[i] } else { 0.0 }))
    }
}

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LANES, Lanes};
    use std::arch::x86_64::*;

    /// Two registers of eight lanes; halves are widened by F16C.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2(pub __m256, pub __m256);

    /// One register of sixteen lanes.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512(pub __m512);

    /// One number of eight by a fixed tree: halves meet until one is left.
    macro_rules! tree {
        ($eight:expr, $four:ident, $one:ident) => {{
            let eight = $eight;
            let four = $four(_mm256_extractf128_ps::<1>(eight), _mm256_castps256_ps128(eight));
            let two = $four(_mm_movehl_ps(four, four), four);
            _mm_cvtss_f32($one(_mm_shuffle_ps::<1>(two, two), two))
        }};
    }

    macro_rules! both {
        ($f:ident, $a:expr, $b:expr) => {
            // SAFETY: the caller has AVX2 and FMA.
            unsafe { Avx2($f($a.0, $b.0), $f($a.1, $b.1)) }
        };
    }

    impl Lanes for Avx2 {
        const TILE_VECS: usize = 1;
        const VECTORS: usize = 8;
        #[inline(always)]
        unsafe fn largest(self) -> f32 {
            // SAFETY: the caller has AVX2.
            unsafe { tree!(_mm256_max_ps(self.1, self.0), _mm_max_ps, _mm_max_ss) }
        }
        #[inline(always)]
        unsafe fn sum(self) -> f32 {
            // SAFETY: the caller has AVX2.
            unsafe { tree!(_mm256_add_ps(self.1, self.0), _mm_add_ps, _mm_add_ss) }
        }
        #[inline(always)]
        unsafe fn load_bf16(p: *const u16) -> Self {
            // SAFETY: the caller has AVX2 and gives sixteen readable halves.
            unsafe {
                let half = |p: *const u16| {
                    let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
                };
                Avx2(half(p), half(p.add(8)))
            }
        }
        #[inline(always)]
        unsafe fn load_f16(p: *const u16) -> Self {
            // SAFETY: the caller has F16C and gives sixteen readable halves.
            unsafe {
                let half = |p: *const u16| _mm256_cvtph_ps(_mm_loadu_si128(p.cast()));
                Avx2(half(p), half(p.add(8)))
            }
        }
        #[inline(always)]
        unsafe fn splat_f16(p: *const u16) -> Self {
            // SAFETY: the caller has F16C and gives a readable half.
            unsafe {
                let half = _mm256_cvtph_ps(_mm_set1_epi16(p.read_unaligned().cast_signed()));
                Avx2(half, half)
            }
        }
        #[inline(always)]
        unsafe fn load_i8(p: *const i8) -> Self {
            // SAFETY: the caller has AVX2 and gives sixteen readable bytes.
            unsafe {
                let half = |p: *const i8| {
                    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())))
                };
                Avx2(half(p), half(p.add(8)))
            }
        }
        #[inline(always)]
        fn prefetch(p: *const f32) {
            // SAFETY: a prefetch reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
        }
        #[inline(always)]
        fn prefetch_far(p: *const f32) {
            // SAFETY: a prefetch reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
        }
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: the caller has AVX2 and FMA.
            unsafe { Avx2(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // SAFETY: the caller gives sixteen readable values.
            unsafe { Avx2(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: the caller gives sixteen writable values.
            unsafe {
                _mm256_storeu_ps(p, self.0);
                _mm256_storeu_ps(p.add(8), self.1);
            }
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
            both!(_mm256_add_ps, self, b)
        }
        #[inline(always)]
        unsafe fn sub(self, b: Self) -> Self {
            both!(_mm256_sub_ps, self, b)
        }
        #[inline(always)]
        unsafe fn mul(self, b: Self) -> Self {
            both!(_mm256_mul_ps, self, b)
        }
        #[inline(always)]
        unsafe fn div(self, b: Self) -> Self {
            both!(_mm256_div_ps, self, b)
        }
        #[inline(always)]
        unsafe fn max(self, b: Self) -> Self {
            both!(_mm256_max_ps, self, b)
        }
        #[inline(always)]
        unsafe fn min(self, b: Self) -> Self {
            both!(_mm256_min_ps, self, b)
        }
        #[inline(always)]
        unsafe fn fma(self, b: Self, c: Self) -> Self {
            // SAFETY: the caller has AVX2 and FMA.
            unsafe { Avx2(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1)) }
        }
        #[inline(always)]
        unsafe fn sqrt(self) -> Self {
            // SAFETY: the caller has AVX2 and FMA.
            unsafe { Avx2(_mm256_sqrt_ps(self.0), _mm256_sqrt_ps(self.1)) }
        }
        #[inline(always)]
        unsafe fn round(self) -> Self {
            // SAFETY: the caller has AVX2 and FMA.
            unsafe {
                Avx2(
                    _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0),
                    _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.1),
                )
            }
        }
        #[inline(always)]
        unsafe fn scale2(self, n: Self) -> Self {
            // SAFETY: the caller has AVX2 and FMA.
            unsafe {
                let power = |n: __m256| {
                    let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
                    _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
                };
                Avx2(_mm256_mul_ps(self.0, power(n.0)), _mm256_mul_ps(self.1, power(n.1)))
            }
        }
        #[inline(always)]
        unsafe fn keep_at_least(self, x: Self, limit: Self) -> Self {
            // SAFETY: the caller has AVX2 and FMA.
            unsafe {
                Avx2(
                    _mm256_and_ps(self.0, _mm256_cmp_ps::<_CMP_GE_OQ>(x.0, limit.0)),
                    _mm256_and_ps(self.1, _mm256_cmp_ps::<_CMP_GE_OQ>(x.1, limit.1)),
                )
            }
        }
    }

    impl Avx512 {
        /// Rounded to upper halves; the lower ones are rubbish.
        ///
        /// # Safety
        /// The processor has AVX-512.
        #[inline(always)]
        unsafe fn upper(self) -> __m512i {
            // SAFETY: as the caller's.
            unsafe {
                let bits = _mm512_castps_si512(self.0);
                let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                let up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
                let rounded = _mm512_add_epi32(bits, up);
                let none = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
                let quiet = _mm512_set1_epi32(0x0040_0000);
                _mm512_mask_or_epi32(rounded, none, bits, quiet)
            }
        }
    }

    impl Lanes for Avx512 {
        const TILE_VECS: usize = 4;
        const VECTORS: usize = 32;
        #[inline(always)]
        unsafe fn largest(self) -> f32 {
            // SAFETY: the caller has AVX-512.
            unsafe {
                let high = _mm512_extractf32x8_ps::<1>(self.0);
                tree!(_mm256_max_ps(high, _mm512_castps512_ps256(self.0)), _mm_max_ps, _mm_max_ss)
            }
        }
        #[inline(always)]
        unsafe fn sum(self) -> f32 {
            // SAFETY: the caller has AVX-512.
            unsafe {
                let high = _mm512_extractf32x8_ps::<1>(self.0);
                tree!(_mm256_add_ps(high, _mm512_castps512_ps256(self.0)), _mm_add_ps, _mm_add_ss)
            }
        }
        #[inline(always)]
        unsafe fn load_bf16(p: *const u16) -> Self {
            // SAFETY: the caller has AVX-512 and gives sixteen readable halves.
            unsafe {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
                Avx512(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
            }
        }
        #[inline(always)]
        unsafe fn load_f16(p: *const u16) -> Self {
            // SAFETY: the caller has AVX-512 and gives sixteen readable halves.
            unsafe { Avx512(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))) }
        }
        #[inline(always)]
        unsafe fn splat_f16(p: *const u16) -> Self {
            // SAFETY: the caller has AVX-512 and gives a readable half.
            unsafe {
                let half = p.read_unaligned().cast_signed();
                Avx512(_mm512_cvtph_ps(_mm256_set1_epi16(half)))
            }
        }
        #[inline(always)]
        unsafe fn store_bf16(self, p: *mut u16) {
            // SAFETY: the caller has AVX-512 and gives sixteen writable halves.
            unsafe {
                let halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(self.upper()));
                _mm256_storeu_si256(p.cast(), halves);
            }
        }
        #[inline(always)]
        unsafe fn store_bf16_pairs(self, high: Self, p: *mut u32) {
            // SAFETY: the caller has AVX-512 and gives sixteen writable words.
            unsafe {
                let low = _mm512_srli_epi32::<16>(self.upper());
                let words = _mm512_mask_blend_epi16(0xAAAA_AAAA, low, high.upper());
                _mm512_storeu_si512(p.cast(), words);
            }
        }
        #[inline(always)]
        unsafe fn store_f16(self, p: *mut u16) {
            // SAFETY: the caller has AVX-512 and gives sixteen writable halves.
            unsafe {
                let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0);
                _mm256_storeu_si256(p.cast(), halves);
            }
        }
        #[inline(always)]
        unsafe fn turn_words(p: *mut u32) {
            // SAFETY: the caller has AVX-512 and gives 256 words.
            unsafe {
                let mut pairs = [_mm512_setzero_si512(); LANES];
                for i in 0..LANES / 2 {
                    let a = _mm512_loadu_si512(p.add(2 * i * LANES).cast());
                    let b = _mm512_loadu_si512(p.add((2 * i + 1) * LANES).cast());
                    pairs[2 * i] = _mm512_unpacklo_epi32(a, b);
                    pairs[2 * i + 1] = _mm512_unpackhi_epi32(a, b);
                }
                // fours[4g + c], quarter q: column 4q + c of lines 4g .. 4g + 4.
                let mut fours = [_mm512_setzero_si512(); LANES];
                for g in (0..LANES).step_by(4) {
                    fours[g] = _mm512_unpacklo_epi64(pairs[g], pairs[g + 2]);
                    fours[g + 1] = _mm512_unpackhi_epi64(pairs[g], pairs[g + 2]);
                    fours[g + 2] = _mm512_unpacklo_epi64(pairs[g + 1], pairs[g + 3]);
                    fours[g + 3] = _mm512_unpackhi_epi64(pairs[g + 1], pairs[g + 3]);
                }
                for c in 0..4 {
                    let [a, b, d, e] = [fours[c], fours[4 + c], fours[8 + c], fours[12 + c]];
                    let even = _mm512_shuffle_i32x4::<0x88>(a, b);
                    let even_high = _mm512_shuffle_i32x4::<0x88>(d, e);
                    let odd = _mm512_shuffle_i32x4::<0xDD>(a, b);
                    let odd_high = _mm512_shuffle_i32x4::<0xDD>(d, e);
                    let lines = [
                        _mm512_shuffle_i32x4::<0x88>(even, even_high),
                        _mm512_shuffle_i32x4::<0x88>(odd, odd_high),
                        _mm512_shuffle_i32x4::<0xDD>(even, even_high),
                        _mm512_shuffle_i32x4::<0xDD>(odd, odd_high),
                    ];
                    for (q, line) in lines.into_iter().enumerate() {
                        _mm512_storeu_si512(p.add((4 * q + c) * LANES).cast(), line);
                    }
                }
            }
        }
        #[inline(always)]
        unsafe fn load_i8(p: *const i8) -> Self {
            // SAFETY: the caller has AVX-512 and gives sixteen readable bytes.
            unsafe {
                let codes = _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()));
                Avx512(_mm512_cvtepi32_ps(codes))
            }
        }
        #[inline(always)]
        unsafe fn store_i8(self, p: *mut i8) {
            // SAFETY: the caller gives sixteen writable bytes.
            unsafe {
                let bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(self.0));
                _mm_storeu_si128(p.cast(), bytes);
            }
        }
        #[inline(always)]
        fn prefetch(p: *const f32) {
            // SAFETY: a prefetch reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
        }
        #[inline(always)]
        fn prefetch_far(p: *const f32) {
            // SAFETY: a prefetch reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
        }
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: the caller has AVX-512.
            unsafe { Avx512(_mm512_set1_ps(x)) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // SAFETY: the caller gives sixteen readable values.
            unsafe { Avx512(_mm512_loadu_ps(p)) }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: the caller gives sixteen writable values.
            unsafe { _mm512_storeu_ps(p, self.0) }
        }
        #[inline(always)]
        unsafe fn load_part(p: *const f32, n: usize) -> Self {
            // SAFETY: lanes past n are masked off.
            unsafe { Avx512(_mm512_maskz_loadu_ps(((1u32 << n) - 1) as u16, p)) }
        }
        #[inline(always)]
        unsafe fn store_part(self, p: *mut f32, n: usize) {
            // SAFETY: lanes past n are masked off.
            unsafe { _mm512_mask_storeu_ps(p, ((1u32 << n) - 1) as u16, self.0) }
        }
        #[inline(always)]
        unsafe fn add(self, b: Self) -> Self {
            // SAFETY: the caller has AVX-512.
            unsafe { Avx512(_mm512_add_ps(self.0, b.0)) }
        }
        #[inline(always)]
        unsafe fn sub(self, b: Self) -> Self {
            // SAFETY: the caller has AVX-512.
            unsafe { Avx512(_mm512_sub_ps(self.0, b.0)) }
        }
        #[inline(always)]
        unsafe fn mul(self, b: Self) -> Self {
            // SAFETY: the caller has AVX-512.
            unsafe { Avx512(_mm512_mul_ps(self.0, b.0)) }
        }
        #[inline(always)]
        unsafe fn div(self, b: Self) -> Self {
            // SAFETY: the caller has AVX-512.
            unsafe { Avx512(_mm512_div_ps(self.0, b.0)) }
        }
        #[inline(always)]
        unsafe fn max(self, b: Self) -> Self {
            // SAFETY: the caller has AVX-512.
            unsafe { Avx512(_mm512_max_ps(self.0, b.0)) }
        }
        #[inline(always)]
        unsafe fn min(self, b: Self) -> Self {
            // SAFETY: the caller has AVX-512.
            unsafe { Avx512(_mm512_min_ps(self.0, b.0)) }
        }
        #[inline(always)]
        unsafe fn fma(self, b: Self, c: Self) -> Self {
            // SAFETY: the caller has AVX-512.
            unsafe { Avx512(_mm512_fmadd_ps(self.0, b.0, c.0)) }
        }
        #[inline(always)]
        unsafe fn sqrt(self) -> Self {
            // SAFETY: the caller has AVX-512.
            unsafe { Avx512(_mm512_sqrt_ps(self.0)) }
        }
        #[inline(always)]
        unsafe fn round(self) -> Self {
            // SAFETY: the caller has AVX-512.
            unsafe {
                Avx512(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(
                    self.0,
                ))
            }
        }
        #[inline(always)]
        unsafe fn scale2(self, n: Self) -> Self {
            // SAFETY: the caller has AVX-512.
            unsafe {
                let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n.0), _mm512_set1_epi32(127));
                let power = _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased));
                Avx512(_mm512_mul_ps(self.0, power))
            }
        }
        #[inline(always)]
        unsafe fn keep_at_least(self, x: Self, limit: Self) -> Self {
            // SAFETY: the caller has AVX-512.
            unsafe {
                let mask = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(x.0, limit.0);
                Avx512(_mm512_maskz_mov_ps(mask, self.0))
            }
        }
    }
}

/// Stamps a generic `inline(always)` body for every instruction set and chooses at run time.
///
/// `stamp!(fn name(a: T, b: U) = body);` defines an unsafe `name` that calls `body::<S>(a, b)`
/// with the lanes of the current [`Isa`](crate::Isa).
macro_rules! stamp {
    ($vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident) => {
        #[inline]
        $vis unsafe fn $name($($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
                unsafe fn avx512($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: the caller keeps the body's contract.
                    unsafe { $body::<$crate::lanes::Avx512>($($arg),*) }
                }
                #[target_feature(enable = "avx2,fma,f16c")]
                unsafe fn avx2($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: the caller keeps the body's contract.
                    unsafe { $body::<$crate::lanes::Avx2>($($arg),*) }
                }
                match $crate::Isa::current() {
                    // SAFETY: the processor offers this level; the contract is the caller's.
                    $crate::Isa::Amx | $crate::Isa::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    $crate::Isa::Avx2 => return unsafe { avx2($($arg),*) },
                    $crate::Isa::Plain | $crate::Isa::Neon => {}
                }
            }
            #[cfg(target_arch = "aarch64")]
            if $crate::Isa::current() == $crate::Isa::Neon {
                #[target_feature(enable = "neon")]
                unsafe fn neon($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: the caller keeps the body's contract.
                    unsafe { $body::<$crate::lanes::Neon>($($arg),*) }
                }
                // SAFETY: the processor offers this level; the contract is the caller's.
                return unsafe { neon($($arg),*) };
            }
            // SAFETY: the plain level needs no instruction set; the contract is the caller's.
            unsafe { $body::<$crate::lanes::Plain>($($arg),*) }
        }
    };
}
pub(crate) use stamp;

#[cfg(test)]
mod tests;
