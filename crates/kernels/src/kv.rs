//! Keys and values between steps: as they are, in half precision, or in blocks of 8 bits.
//!
//! A row (one token of one layer) is stored by the head, each head's values apart from the others'.
//! What is stored is what attention reads: a token's own key and value go through the same rounding
//! as those before it, so that a result is the same bits whatever was read in one step. Rounding
//! and widening are exact rules on single values, the same at every instruction set.

use crate::halves::widened;
use crate::kept::{BLOCKS, widen_keys, widen_rows};
use crate::lanes::LANES;
use crate::matmul::gather_raw;

/// Values of a head that share a scale.
pub(crate) const SHARE: usize = 32;

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvKind {
    /// As they are: 4 bytes a value.
    #[default]
    F32,
    /// Half precision, what is larger than 65,504 cut to it: 2 bytes a value.
    F16,
    /// A code from −127 to 127, and a scale in half precision for 32 values of a head: about 1.06
    /// bytes a value.
    Q8,
}

impl KvKind {
    /// Every kind.
    pub const ALL: [KvKind; 3] = [KvKind::F32, KvKind::F16, KvKind::Q8];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            KvKind::F32 => "f32",
            KvKind::F16 => "f16",
            KvKind::Q8 => "q8",
        }
    }

    /// Bytes that a head of `d` values takes.
    pub const fn head_bytes(self, d: usize) -> usize {
        match self {
            KvKind::F32 => 4 * d,
            KvKind::F16 => 2 * d,
            KvKind::Q8 => 2 * d.div_ceil(SHARE) + d,
        }
    }

    /// The distance of rows of `heads` heads, in units of four bytes.
    pub const fn row_words(self, heads: usize, d: usize) -> usize {
        (heads * self.head_bytes(d)).div_ceil(4)
    }

    /// Stores a row of heads of `d` values.
    ///
    /// # Panics
    /// When `out` is shorter than the row.
    pub fn store(self, row: &[f32], d: usize, out: &mut [f32]) {
        if self == KvKind::F32 {
            out[..row.len()].copy_from_slice(row);
            return;
        }
        self.store_among(row, d, (1, 0), out);
    }

    /// Stores a row as the `lane`th of `lanes` that stand together: what each has at a place of a head
    /// stands side by side, scales before values.
    fn store_among(self, row: &[f32], d: usize, place: (usize, usize), block: &mut [f32]) {
        let (lanes, lane) = place;
        if self == KvKind::F32 {
            for (value, together) in row.iter().zip(block.chunks_exact_mut(lanes)) {
                together[lane] = *value;
            }
            return;
        }
        // Raw bits: a word holds parts of values.
        let heads = bytes_mut(block).chunks_exact_mut(lanes * self.head_bytes(d));
        for (head, out) in row.chunks_exact(d).zip(heads) {
            if self == KvKind::F16 {
                let halves = out.as_chunks_mut::<2>().0.iter_mut().skip(lane).step_by(lanes);
                halves.zip(head).for_each(|(half, &x)| *half = half_of(x).to_le_bytes());
            } else {
                store_q8(head, place, out);
            }
        }
    }
}

/// Keys and values of one sequence, in pages: position j stands at row
/// `pages[j / page_tokens]·page_tokens + j % page_tokens`; rows start `stride` words of four bytes
/// apart, and the heads of a row stand end to end. What a page holds and where it lies changes no
/// bit of a result.
#[derive(Clone, Copy, Debug)]
pub struct Kv<'a> {
    /// Keys; raw bits where `kind` is not F32.
    pub keys: &'a [f32],
    /// Values, alike.
    pub values: &'a [f32],
    /// How both are kept.
    pub kind: KvKind,
    /// Distance of neighbouring rows in words.
    pub stride: usize,
    /// The page table.
    pub pages: &'a [u32],
    /// Positions that a page holds.
    pub page_tokens: usize,
    /// Neighbouring positions whose keys stand together: 1, or 16 in pages of so many positions. A head of
    /// all of them takes the place of as many rows' heads: their scales of the first share, if there are
    /// scales, those of the second, and so on; then their values of the first place, of the second, and
    /// so on; so one load takes a place of all of them.
    pub lanes: usize,
}

/// How many neighbouring positions' keys stand together in pages of `page_tokens`.
pub const fn key_lanes(page_tokens: usize) -> usize {
    if page_tokens.is_multiple_of(LANES) { LANES } else { 1 }
}

/// Stores a row of keys as the `inside`th of a page whose first word is `at`.
///
/// # Panics
/// When the page is shorter.
pub fn store_keys(
    kind: KvKind,
    row: &[f32],
    d: usize,
    (stride, lanes): (usize, usize),
    inside: usize,
    page: &mut [f32],
) {
    let first = inside / lanes * lanes;
    let block = &mut page[first * stride..(first + lanes) * stride];
    if lanes == 1 {
        return kind.store(row, d, block);
    }
    kind.store_among(row, d, (lanes, inside - first), block);
}

impl<'a> Kv<'a> {
    /// Positions in order from the beginning: a single page.
    pub fn whole(keys: &'a [f32], values: &'a [f32], stride: usize) -> Kv<'a> {
        let (kind, pages) = (KvKind::F32, &[0]);
        Kv { keys, values, kind, stride, pages, page_tokens: usize::MAX, lanes: 1 }
    }

    /// What head `group` has of sixteen positions from `position` on whose keys stand together: all their
    /// keys, and their rows of values from the first's head to the last's.
    pub(crate) fn together(&self, position: usize, group: usize, d: usize) -> (&'a [u8], &'a [u8]) {
        let ((row, _), size) = (self.run_at(position, 1), self.kind.head_bytes(d));
        let keys = 4 * row + group * size * self.lanes;
        let values = 4 * row + group * size;
        let rows = (self.lanes - 1) * 4 * self.stride + size;
        let (all_keys, all_values) = (bytes(self.keys), bytes(self.values));
        (&all_keys[keys..][..size * self.lanes], &all_values[values..][..rows])
    }

    /// The keys of head `group` of positions that stand together from `position` on, as F32: D·16 values.
    pub(crate) fn block(&self, position: usize, group: usize, d: usize) -> &'a [f32] {
        let (row, _) = self.run_at(position, 1);
        &self.keys[row + group * d * self.lanes..][..d * self.lanes]
    }

    /// Widens the keys of head `group` of `count` positions that stand together, from `from` on: D lines
    /// of 64 positions.
    pub(crate) fn widen_together(
        &self,
        from: usize,
        count: usize,
        group: usize,
        d: usize,
        to: &mut [f32],
    ) {
        let mut blocks = [std::ptr::null(); BLOCKS];
        let blocks = &mut blocks[..count.div_ceil(LANES)];
        for (i, block) in blocks.iter_mut().enumerate() {
            *block = self.together(from + i * LANES, group, d).0.as_ptr();
        }
        assert!(self.lanes == LANES && to.len() >= BLOCKS * LANES * d, "a tile of keys");
        // SAFETY: sixteen heads a block, and room for a tile, by the check above.
        unsafe { widen_keys(self.kind, blocks, d, to.as_mut_ptr()) }
    }

    /// Where the row of a position starts, in words, and how many of the next `count` positions
    /// follow it in its page.
    fn run_at(&self, position: usize, count: usize) -> (usize, usize) {
        let (page, inside) = (position / self.page_tokens, position % self.page_tokens);
        let row = (self.pages[page] as usize * self.page_tokens + inside) * self.stride;
        (row, count.min(self.page_tokens - inside))
    }

    /// Copies what head `group` has of `count` positions from `from` on, end to end, as f32: keys, where
    /// they do not stand together, and values.
    pub(crate) fn gather(
        &self,
        from: usize,
        count: usize,
        group: usize,
        keys: &mut [f32],
        values: &mut [f32],
        d: usize,
    ) {
        let mut done = 0;
        while done < count {
            let (row, run) = self.run_at(from + done, count - done);
            if self.lanes == 1 {
                self.gather_run(self.keys, (row, group), run, d, &mut keys[done * d..]);
            }
            self.gather_run(self.values, (row, group), run, d, &mut values[done * d..]);
            done += run;
        }
    }

    /// The same of neighbouring rows, from the word `row` on.
    fn gather_run(
        &self,
        words: &[f32],
        (row, group): (usize, usize),
        count: usize,
        d: usize,
        to: &mut [f32],
    ) {
        let (stride, size) = (4 * self.stride, self.kind.head_bytes(d));
        let stored = &bytes(words)[4 * row + group * size..];
        assert!(
            (count - 1) * stride + size <= stored.len() && count * d <= to.len(),
            "rows inside"
        );
        // SAFETY: all rows lie inside both, by the check above.
        unsafe { widen_rows(self.kind, stored.as_ptr(), stride, count, d, to.as_mut_ptr()) }
    }

    /// Whether the pages hold so many positions, of which `width` words each are read.
    pub(crate) fn holds(&self, positions: usize, width: usize) -> bool {
        let pages = positions.div_ceil(self.page_tokens);
        let (keys, values) = (self.keys.len(), self.values.len());
        pages <= self.pages.len()
            && self.pages[..pages].iter().enumerate().all(|(i, &page)| {
                let used = (positions - i * self.page_tokens).min(self.page_tokens);
                let used = used.next_multiple_of(self.lanes);
                let last = page as usize * self.page_tokens + used - 1;
                last * self.stride + width <= keys.min(values)
            })
    }
}

/// Copies `count` rows of `d` values, `stride` apart, end to end.
pub(crate) fn gather(from: &[f32], stride: usize, count: usize, d: usize, to: &mut [f32]) {
    if count == 0 {
        return;
    }
    assert!((count - 1) * stride + d <= from.len() && count * d <= to.len(), "rows inside");
    // SAFETY: all rows lie inside both, by the check above.
    unsafe { gather_raw(from.as_ptr(), stride, to.as_mut_ptr(), d, d, count) }
}

fn bytes_mut(words: &mut [f32]) -> &mut [u8] {
    let len = size_of_val(words);
    // SAFETY: any bits are an f32 and any bytes are bytes; u8 has the smaller alignment.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), len) }
}

/// The raw bits of words that hold parts of values.
pub(crate) fn bytes(words: &[f32]) -> &[u8] {
    // SAFETY: any bytes are bytes; u8 has the smaller alignment.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

/// The nearest half-precision number, ties to even; what is too large becomes the largest, and
/// infinity NaN, so that nothing hides it.
fn half_of(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let size = bits & 0x7FFF_FFFF;
    if size >= 0x7F80_0000 {
        return sign | 0x7E00;
    }
    // 65,504 is the largest; what would round beyond it is cut.
    if size >= 0x477F_F000 {
        return sign | 0x7BFF;
    }
    if size < 0x3880_0000 {
        // Below the smallest normal number: in steps of 2^-24. Adding 1/2 leaves exactly these
        // steps in the fraction, rounded as additions are.
        let stepped = f32::from_bits(size) + 0.5;
        return sign | (stepped.to_bits() - 0x3F00_0000) as u16;
    }
    let odd = size >> 13 & 1;
    let rounded = size - 0x3800_0000 + 0x0FFF + odd;
    sign | (rounded >> 13) as u16
}

/// The nearest whole number from −127 to 127, ties to even.
#[inline(always)]
fn code_of(x: f32) -> i8 {
    // 1.5·2^23: adding it leaves no room for a fraction.
    const MAGIC: f32 = 12_582_912.0;
    ((x.clamp(-127.0, 127.0) + MAGIC) - MAGIC) as i8
}

fn store_q8(head: &[f32], (lanes, lane): (usize, usize), out: &mut [u8]) {
    let (scales, codes) = out.split_at_mut(2 * lanes * head.len().div_ceil(SHARE));
    let scales = scales.as_chunks_mut::<2>().0.iter_mut().skip(lane).step_by(lanes);
    let shares = head.chunks(SHARE).zip(codes.chunks_mut(SHARE * lanes));
    for ((values, codes), scale) in shares.zip(scales) {
        // NaN goes on in the scale: nothing may hide it.
        let top =
            values.iter().fold(0.0f32, |m, v| if m.is_nan() || v.abs() <= m { m } else { v.abs() });
        let bits = half_of(top / 127.0);
        let d = widened(bits);
        *scale = bits.to_le_bytes();
        let mut rounded = [0; SHARE];
        if d > 0.0 {
            rounded.iter_mut().zip(values).for_each(|(code, v)| *code = code_of(v / d));
        }
        let places = codes.iter_mut().skip(lane).step_by(lanes).take(values.len());
        places.zip(rounded).for_each(|(place, code)| *place = code.cast_unsigned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stored head, widened.
    fn load(kind: KvKind, head: &[u8], d: usize) -> Vec<f32> {
        let mut out = vec![0.0; d];
        // SAFETY: a head of d values.
        unsafe { widen_rows(kind, head.as_ptr(), 0, 1, d, out.as_mut_ptr()) };
        out
    }

    #[test]
    fn every_half_comes_back_and_between_them_the_nearest_is_taken() {
        let mut before = 0.0;
        for bits in 0..=0x7BFFu16 {
            let x = widened(bits);
            assert_eq!(half_of(x), bits);
            assert_eq!(half_of(-x), bits | 0x8000);
            if bits > 0 {
                let middle = (f64::from(before) + f64::from(x)) / 2.0;
                let even = if bits % 2 == 0 { bits } else { bits - 1 };
                assert_eq!(half_of(middle as f32), even, "{middle}");
                assert_eq!(half_of((middle as f32).next_up()), bits);
                assert_eq!(half_of((middle as f32).next_down()), bits - 1);
            }
            before = x;
        }
        for large in [65_520.0, 1e9] {
            assert_eq!((half_of(large), half_of(-large)), (0x7BFF, 0xFBFF));
        }
        for none in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(widened(half_of(none)).is_nan());
        }
    }

    #[test]
    fn what_is_stored_is_near_and_the_same_bits_at_every_level() {
        let _level = crate::isa::hold();
        for (kind, most) in [(KvKind::F32, 0.0), (KvKind::F16, 0.0005), (KvKind::Q8, 0.0045)] {
            for d in [6, 16, 33, 64, 80] {
                let row: Vec<f32> =
                    (0..3 * d).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.31).collect();
                let mut stored = vec![0.0; kind.row_words(3, d)];
                kind.store(&row, d, &mut stored);
                let mut levels = Vec::new();
                for isa in crate::Isa::available() {
                    isa.force();
                    let heads = bytes(&stored).chunks_exact(kind.head_bytes(d)).take(3);
                    let out: Vec<f32> = heads.flat_map(|head| load(kind, head, d)).collect();
                    let far = row.iter().zip(&out).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
                    assert!(far <= most * 15.5, "{kind:?} {d}: {far}");
                    levels.push(out.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
                }
                crate::Isa::detect().force();
                assert!(levels.iter().all(|bits| *bits == levels[0]), "{kind:?} {d}");
            }
        }
    }

    #[test]
    fn keys_that_stand_together_are_those_of_the_rows() {
        let _level = crate::isa::hold();
        for (kind, d) in
            KvKind::ALL.into_iter().flat_map(|kind| [6, 16, 33, 64, 80].map(|d| (kind, d)))
        {
            let stride = kind.row_words(3, d);
            let mut page = vec![f32::NAN; 32 * stride];
            let row_of = |j: usize| -> Vec<f32> {
                (0..3 * d).map(|i| crate::normal(j as u64, i as u64)).collect()
            };
            (0..30).for_each(|j| store_keys(kind, &row_of(j), d, (stride, 16), j, &mut page));
            let kv = Kv { kind, stride, page_tokens: 32, lanes: 16, ..Kv::whole(&page, &page, 0) };
            for isa in crate::Isa::available() {
                isa.force();
                for group in 0..3 {
                    let mut lines = vec![0.0; d * 64];
                    kv.widen_together(0, 30, group, d, &mut lines);
                    for j in 0..30 {
                        let mut row = vec![0.0; stride];
                        kind.store(&row_of(j), d, &mut row);
                        let size = kind.head_bytes(d);
                        let right = load(kind, &bytes(&row)[group * size..], d);
                        let found: Vec<f32> = lines.chunks(64).map(|line| line[j]).collect();
                        assert_eq!(found, right, "{kind:?} {d}, {isa:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn codes_are_the_nearest_ties_to_even() {
        for i in -2100i16..=2100 {
            let x = f32::from(i) / 16.0;
            assert_eq!(code_of(x), x.round_ties_even().clamp(-127.0, 127.0) as i8, "{x}");
        }
        assert_eq!([f32::NAN, 1e30, -1e30].map(code_of), [0, 127, -127]);
    }

    #[test]
    fn what_is_no_number_stays_none() {
        for kind in KvKind::ALL {
            let mut row = [1.0; 32];
            row[7] = f32::NAN;
            let mut stored = vec![0.0; kind.row_words(1, 32)];
            kind.store(&row, 32, &mut stored);
            assert!(load(kind, bytes(&stored), 32)[7].is_nan(), "{kind:?}");
        }
    }
}
