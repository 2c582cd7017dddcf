//! Stored keys and values, read sixteen at a time: of a row, neighbouring places of a head; of keys that
//! stand together, one place of sixteen positions. Either way a value is the same bits.

use crate::attention::KEY_TILE;
use crate::halves::widened;
use crate::kv::{KvKind, SHARE};
use crate::lanes::{LANES, Lanes, stamp};

/// How the values of a head are read. Scales, where there are any, stand before the values: one of a
/// share of 32 places, or sixteen where keys stand together.
///
/// # Safety
/// Addresses give a stored head of D values, or a block of sixteen; what is asked for lies inside.
pub(crate) trait Kept {
    /// Bytes that a value takes.
    const BYTES: usize;
    /// Whether there are scales.
    const SCALED: bool = false;

    /// Values `i .. i + 16`, without their scales.
    unsafe fn load<S: Lanes>(values: *const u8, i: usize) -> S;

    /// Bytes of a row's scales.
    #[inline(always)]
    fn scale_bytes(d: usize) -> usize {
        if Self::SCALED { 2 * d.div_ceil(SHARE) } else { 0 }
    }

    /// The scales of a share of sixteen keys.
    #[inline(always)]
    unsafe fn key_scales<S: Lanes>(block: *const u8, share: usize) -> S {
        // SAFETY: as the caller's.
        unsafe {
            if !Self::SCALED {
                return S::splat(1.0);
            }
            S::load_f16(block.add(2 * LANES * share).cast())
        }
    }

    /// Place `c` of sixteen keys.
    #[inline(always)]
    unsafe fn keys<S: Lanes>(values: *const u8, c: usize, scales: S) -> S {
        // SAFETY: as the caller's.
        unsafe {
            let keys = Self::load::<S>(values, c * LANES);
            if Self::SCALED { keys.mul(scales) } else { keys }
        }
    }

    /// Places `c .. c + n` of a row, n at most 16, all of one share; zeros after them.
    #[inline(always)]
    unsafe fn row<S: Lanes>(head: *const u8, d: usize, c: usize, n: usize, share: usize) -> S {
        // SAFETY: as the caller's; what is cut off is copied apart.
        unsafe {
            let values = head.add(Self::scale_bytes(d));
            let row = if n == LANES {
                Self::load::<S>(values, c)
            } else {
                let mut part = [0u8; 4 * LANES];
                let from = values.add(c * Self::BYTES);
                std::ptr::copy_nonoverlapping(from, part.as_mut_ptr(), n * Self::BYTES);
                Self::load::<S>(part.as_ptr(), 0)
            };
            if Self::SCALED { row.mul(S::splat_f16(head.add(2 * share).cast())) } else { row }
        }
    }
}

/// [`KvKind::F32`].
pub(crate) struct Whole;
/// [`KvKind::F16`].
pub(crate) struct Halves;
/// [`KvKind::Q8`].
pub(crate) struct Codes;

impl Kept for Whole {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Lanes>(values: *const u8, i: usize) -> S {
        // SAFETY: as the caller's.
        unsafe { S::load(values.add(4 * i).cast()) }
    }
}

impl Kept for Halves {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Lanes>(values: *const u8, i: usize) -> S {
        // SAFETY: as the caller's.
        unsafe { S::load_f16(values.add(2 * i).cast()) }
    }
}

impl Kept for Codes {
    const BYTES: usize = 1;
    const SCALED: bool = true;
    #[inline(always)]
    unsafe fn load<S: Lanes>(values: *const u8, i: usize) -> S {
        // SAFETY: as the caller's.
        unsafe { S::load_i8(values.add(i).cast()) }
    }
}

/// Calls a function of a [`Kept`] by the kind.
macro_rules! by_kind {
    ($kind:expr, $f:ident::<$s:ty>($($arg:expr),*)) => {
        match $kind {
            $crate::kv::KvKind::F32 => $f::<$s, $crate::kept::Whole>($($arg),*),
            $crate::kv::KvKind::F16 => $f::<$s, $crate::kept::Halves>($($arg),*),
            $crate::kv::KvKind::Q8 => $f::<$s, $crate::kept::Codes>($($arg),*),
        }
    };
}
pub(crate) use by_kind;

/// Blocks of keys that stand together and make a tile.
pub(crate) const BLOCKS: usize = KEY_TILE / LANES;

/// Widens the heads of `count` rows, `stride` bytes apart, to rows of D values end to end.
#[inline(always)]
unsafe fn widen_rows_body<S: Lanes>(
    kind: KvKind,
    from: *const u8,
    stride: usize,
    count: usize,
    d: usize,
    to: *mut f32,
) {
    // SAFETY: as the caller's.
    unsafe { by_kind!(kind, widen_rows_of::<S>(from, stride, count, d, to)) }
}
stamp!(pub(crate) fn widen_rows(
    kind: KvKind, from: *const u8, stride: usize, count: usize, d: usize, to: *mut f32
) = widen_rows_body);

#[inline(always)]
unsafe fn widen_rows_of<S: Lanes, K: Kept>(
    from: *const u8,
    stride: usize,
    count: usize,
    d: usize,
    to: *mut f32,
) {
    // SAFETY: as the caller's.
    unsafe {
        for i in 0..count {
            let (head, to) = (from.add(i * stride), to.add(i * d));
            let whole = d / LANES * LANES;
            for c in (0..whole).step_by(LANES) {
                K::row::<S>(head, d, c, LANES, c / SHARE).store(to.add(c));
            }
            if whole < d {
                let row = K::row::<S>(head, d, whole, d - whole, whole / SHARE);
                row.store_part(to.add(whole), d - whole);
            }
        }
    }
}

/// Widens blocks of sixteen keys of D values to D lines of 64.
#[inline(always)]
unsafe fn widen_keys_body<S: Lanes>(kind: KvKind, blocks: &[*const u8], d: usize, to: *mut f32) {
    // SAFETY: as the caller's.
    unsafe { by_kind!(kind, widen_keys_of::<S>(blocks, d, to)) }
}
stamp!(pub(crate) fn widen_keys(
    kind: KvKind, blocks: &[*const u8], d: usize, to: *mut f32
) = widen_keys_body);

#[inline(always)]
unsafe fn widen_keys_of<S: Lanes, K: Kept>(blocks: &[*const u8], d: usize, to: *mut f32) {
    // SAFETY: as the caller's.
    unsafe {
        for (i, &block) in blocks.iter().enumerate() {
            let (values, to) = (block.add(LANES * K::scale_bytes(d)), to.add(i * LANES));
            for share in 0..d.div_ceil(SHARE) {
                let scales = K::key_scales::<S>(block, share);
                for c in share * SHARE..d.min((share + 1) * SHARE) {
                    K::keys::<S>(values, c, scales).store(to.add(c * KEY_TILE));
                }
            }
        }
    }
}

/// Sixteen halves one by one.
///
/// # Safety
/// `p` gives sixteen readable halves.
#[inline(always)]
pub(crate) unsafe fn widen_sixteen(p: *const u16) -> [f32; LANES] {
    // SAFETY: as the caller's.
    let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
    bits.map(widened)
}
