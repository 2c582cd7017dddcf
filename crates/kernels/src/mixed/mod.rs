//! Products of matrices in 16 bits, summed in f32: C = init + A·B.
//!
//! Factors are f32 values, rounded on the way, or 16 bits as they are. B is packed once for all
//! workers, A a few strips at a time by the worker that needs them; both as steps of 32 values of K,
//! in pairs of neighbours along K, which is what AMX tiles read and what is easy to widen elsewhere.
//!
//! Every output is one chain over K in ascending order, whatever stands beside it: the same bits in
//! any batch and on any number of workers. AMX (`tdpbf16ps`, bf16 alone) adds even and odd places of
//! a step apart and takes denormal numbers for zero; AVX-512 BF16 (`vdpbf16ps`) adds pairs in its own
//! way and flushes likewise; elsewhere the chain is one of fused multiply-adds in f32. Between any
//! two, an output differs by no more than [`TOLERANCE`] times Σ|a·b|, or by what denormal factors
//! would have added.

mod attention;
mod pack;
mod rows;

pub use attention::{mixed_attention_backward, mixed_attention_forward, mixed_attention_workspace};
pub use rows::{
    adam_mixed, half_embedding, round_both, round_halves, rounded_values, softmax_gradient,
    widen_halves,
};

use crate::halves::HalfKind;
use crate::isa::Isa;
use crate::lanes::{LANES, Lanes, stamp};
use crate::matmul::{Init, Mat};
use crate::split::Split;
use crate::team::Team;
use pack::{Lines, Run, pack};

/// What products at two instruction sets may differ by, as a share of Σ|a·b|.
pub const TOLERANCE: f64 = 1.0 / (1u64 << 20) as f64;

/// Values of K a step holds.
const STEP: usize = 32;
/// Rows of A, or columns of B, a strip holds.
const STRIP: usize = 32;
/// Words of a step of a strip.
const STEP_WORDS: usize = STRIP * STEP / 2;
/// Values of K between a load and a store of the chain.
const DEPTH: usize = 2048;
/// Words that a worker packs A into.
const WORKER_WORDS: usize = 1 << 17;
/// Words that packed B takes at least and at most.
const SHARED_WORDS: std::ops::RangeInclusive<usize> = 1 << 16..=1 << 20;
/// Strips of A a task takes at most.
const TASK_STRIPS: usize = 8;

/// Where a factor's values stand.
#[derive(Clone, Copy, Debug)]
pub enum Stored<'a> {
    /// f32, to be rounded.
    Values(&'a [f32]),
    /// 16 bits of the product's kind.
    Halves(&'a [u16]),
}

/// A factor of a product: element (i, j) stands at `i·row_stride + j·col_stride`; one of the two is 1.
#[derive(Clone, Copy, Debug)]
pub struct Factor<'a> {
    stored: Stored<'a>,
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> Factor<'a> {
    /// A row-major matrix of 16 bits.
    pub fn halves(bits: &'a [u16], rows: usize, cols: usize) -> Self {
        Factor { stored: Stored::Halves(bits), rows, cols, row_stride: cols, col_stride: 1 }
    }

    /// The transpose: the same bytes.
    pub fn transposed(self) -> Self {
        Factor {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    fn check(&self) {
        let len = match self.stored {
            Stored::Values(x) => x.len(),
            Stored::Halves(x) => x.len(),
        };
        let last = (self.rows - 1) * self.row_stride + (self.cols - 1) * self.col_stride;
        assert!(last < len, "a factor lies inside its slice");
        assert!(self.row_stride == 1 || self.col_stride == 1, "a factor has neighbours");
    }
}

impl<'a> From<Mat<'a>> for Factor<'a> {
    fn from(mat: Mat<'a>) -> Self {
        let Mat { data, rows, cols, row_stride, col_stride } = mat;
        Factor { stored: Stored::Values(data), rows, cols, row_stride, col_stride }
    }
}

/// Words of workspace that [`mixed_matmul`] needs on so many workers; `largest` is the number of values
/// of the largest B it will see. More B than fits is taken in several parts.
pub fn mixed_workspace(threads: usize, largest: usize) -> usize {
    let shared = largest.div_ceil(2).clamp(*SHARED_WORDS.start(), *SHARED_WORDS.end());
    shared + threads * WORKER_WORDS
}

/// C[M×N] = init + A[M×K]·B[K×N], C's rows `c_stride` apart, starting at column `c_from`.
///
/// # Panics
/// When the shapes do not fit each other, or the workspace is smaller than [`mixed_workspace`] says.
pub fn mixed_matmul(
    team: &Team,
    kind: HalfKind,
    a: Factor,
    b: Factor,
    init: Init,
    c: &mut [f32],
    (c_stride, c_from): (usize, usize),
    work: &mut [f32],
) {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    assert_eq!(k, b.rows, "A's columns are B's rows");
    if m == 0 || n == 0 {
        return;
    }
    assert!(k > 0, "a product has terms");
    a.check();
    b.check();
    assert!(c_from + n <= c_stride && (m - 1) * c_stride + c_from + n <= c.len(), "C holds M×N");
    if let Init::Bias(bias) = init {
        assert_eq!(bias.len(), n, "a bias a column");
    }
    assert!(work.len() >= mixed_workspace(team.threads(), 0), "products' workspace");
    let (own, shared) = work.split_at_mut(team.threads() * WORKER_WORDS);
    let c = Split::new(c);
    for k0 in (0..k).step_by(DEPTH) {
        let depth = DEPTH.min(k - k0);
        let columns = shared.len() / (depth.div_ceil(STEP) * STEP_WORDS) * STRIP;
        for n0 in (0..n).step_by(columns) {
            let width = columns.min(n - n0);
            let init = match init {
                _ if k0 > 0 => Init::Keep,
                Init::Bias(bias) => Init::Bias(&bias[n0..n0 + width]),
                other => other,
            };
            let (a, b) = (a.into(), b.transposed().into());
            let part = Part { kind, a, b, k0, depth, n0, width };
            part.run(team, init, (&c, c_stride, c_from + n0), own, shared);
        }
    }
}

/// Columns of B, and a run of K, that are in work at a time.
struct Part<'a> {
    kind: HalfKind,
    a: Lines<'a>,
    b: Lines<'a>,
    k0: usize,
    depth: usize,
    n0: usize,
    width: usize,
}

/// A block of C: its first value, and the distance of its rows.
#[derive(Clone, Copy)]
struct Place {
    c: *mut f32,
    stride: usize,
    rows: usize,
    cols: usize,
}

impl Part<'_> {
    fn strips(&self, first: usize, strips: usize, pairs_first: bool) -> Run {
        Run { first, strips, k0: self.k0, depth: self.depth, pairs_first }
    }

    fn run(
        &self,
        team: &Team,
        init: Init,
        (c, c_stride, c_from): (&Split<f32>, usize, usize),
        own: &mut [f32],
        shared: &mut [f32],
    ) {
        let steps = self.depth.div_ceil(STEP);
        let panels = self.width.div_ceil(STRIP);
        let words = steps * STEP_WORDS;
        let way = Way::of(self.kind);
        let (own, shared) = (Split::new(own), Split::new(shared));
        // Some panels together: a line across them is read whole.
        let together = (panels / (2 * team.threads())).clamp(1, TASK_STRIPS);
        team.tasks(panels.div_ceil(together), |task| {
            let first = task * together;
            let count = together.min(panels - first);
            let b = self.b.up_to(self.n0 + self.width);
            let first_line = self.n0 + first * STRIP;
            let run = self.strips(first_line, count, true);
            // SAFETY: a task packs its own panels.
            unsafe {
                let to = shared.part(first * words..(first + count) * words).as_mut_ptr();
                pack(self.kind, &b, &run, to.cast());
            }
        });
        let strips = self.a.lines.div_ceil(STRIP);
        // Strips that are widened take twice the room, beside one that is not yet.
        let room = WORKER_WORDS / words;
        let most = if way == Way::Lanes { (room - 1) / 2 } else { room };
        let even = strips.div_ceil(2 * team.threads());
        let group = most.clamp(1, TASK_STRIPS).min(even);
        let row_tasks = strips.div_ceil(group);
        // Few rows: share out the panels as well.
        let sides =
            if row_tasks >= 2 * team.threads() { 1 } else { panels.min(4 * team.threads()) };
        team.worker_tasks(row_tasks * sides, |worker, task| {
            let (rt, side) = (task / sides, task % sides);
            let rows = rt * group..strips.min((rt + 1) * group);
            let columns = panels * side / sides..panels * (side + 1) / sides;
            // SAFETY: a worker's room is its own, packed B is only read, tasks write apart blocks of
            // C that were checked to lie inside it.
            unsafe {
                let room = own.part(worker * WORKER_WORDS..(worker + 1) * WORKER_WORDS);
                let a_words = room.as_mut_ptr().cast::<u32>();
                if way == Way::Lanes {
                    for (i, strip) in rows.clone().enumerate() {
                        pack(self.kind, &self.a, &self.strips(strip * STRIP, 1, false), a_words);
                        widen_strip(self.kind, a_words, steps, a_words.add(words * (1 + 2 * i)));
                    }
                } else {
                    let run = self.strips(rows.start * STRIP, rows.len(), false);
                    pack(self.kind, &self.a, &run, a_words);
                }
                if way == Way::Tiles {
                    open_tiles();
                }
                // A strip stays near while panels go by.
                for (i, strip) in rows.enumerate() {
                    let rows = STRIP.min(self.a.lines - strip * STRIP);
                    let a = a_words.add(i * words);
                    for p in columns.clone() {
                        let b = shared.pointer().add(p * words).cast::<u32>().cast_const();
                        let cols = STRIP.min(self.width - p * STRIP);
                        let at = strip * STRIP * c_stride + c_from + p * STRIP;
                        let place = Place { c: c.pointer().add(at), stride: c_stride, rows, cols };
                        place.ask_for();
                        let keep = begin(&place, init, p * STRIP);
                        match way {
                            Way::Tiles => by_tiles(a, b, steps, &place, keep),
                            Way::Dots => by_dots(a, b, steps, &place, keep),
                            Way::Lanes => {
                                let a = a_words.add(words * (1 + 2 * i)).cast();
                                by_lanes(self.kind, a, b, steps, place, keep);
                            }
                        }
                    }
                }
                if way == Way::Tiles {
                    close_tiles();
                }
            }
        });
    }
}

impl Place {
    /// Asks for its lines, to be written: by the time that tiles are stored they are there. A store
    /// of a tile would wait for each of sixteen.
    #[inline(always)]
    fn ask_for(&self) {
        #[cfg(target_arch = "x86_64")]
        for r in 0..self.rows {
            for side in [0, LANES] {
                use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
                let p = self.c.wrapping_add(r * self.stride + side).cast_const();
                // SAFETY: a prefetch reads nothing.
                unsafe { _mm_prefetch::<_MM_HINT_ET0>(p.cast()) };
            }
        }
    }
}

/// How products are taken.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "only x86 has tiles, or pairs that keep to the tolerance")
)]
enum Way {
    /// By AMX tiles.
    Tiles,
    /// By dot products of pairs, sixteen at a time.
    Dots,
    /// Widened, by f32 lanes.
    Lanes,
}

impl Way {
    fn of(kind: HalfKind) -> Way {
        #[cfg(target_arch = "x86_64")]
        if kind == HalfKind::Bf16 {
            match Isa::current() {
                Isa::Amx if crate::amx::has_bf16() => return Way::Tiles,
                Isa::Amx | Isa::Avx512 if is_x86_feature_detected!("avx512bf16") => {
                    return Way::Dots;
                }
                _ => {}
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (kind, Isa::current());
        Way::Lanes
    }
}

/// # Safety
/// The way is [`Way::Tiles`].
unsafe fn open_tiles() {
    #[cfg(target_arch = "x86_64")]
    {
        static SHAPES: crate::amx::Shapes = crate::amx::Shapes::WHOLE;
        // SAFETY: as the caller's.
        unsafe { SHAPES.configure() }
    }
}

/// # Safety
/// The way is [`Way::Tiles`].
unsafe fn close_tiles() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as the caller's.
    unsafe {
        crate::amx::release();
    }
}

/// Writes a bias, from column `from` on, where the chain starts from one; whether it starts from what C
/// holds.
///
/// # Safety
/// The place is writable.
unsafe fn begin(place: &Place, init: Init, from: usize) -> bool {
    if let Init::Bias(bias) = init {
        for r in 0..place.rows {
            // SAFETY: inside the place.
            let row = unsafe {
                std::slice::from_raw_parts_mut(place.c.add(r * place.stride), place.cols)
            };
            row.copy_from_slice(&bias[from..from + place.cols]);
        }
    }
    !matches!(init, Init::Zero)
}

/// # Safety
/// Tiles are open; a and b hold so many steps; the place is readable and writable.
unsafe fn by_tiles(a: *const u32, b: *const u32, steps: usize, place: &Place, keep: bool) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as the caller's; a block that is not whole goes through one that is.
    unsafe {
        let Place { c, stride, rows, cols } = *place;
        if rows == STRIP && cols == STRIP {
            return crate::amx::bf16_products(a, b, steps, c, 4 * stride, keep);
        }
        let mut whole = [0.0f32; STRIP * STRIP];
        let line = |r: usize| c.add(r * stride);
        if keep {
            for (r, to) in whole.chunks_exact_mut(STRIP).enumerate().take(rows) {
                std::ptr::copy_nonoverlapping(line(r), to.as_mut_ptr(), cols);
            }
        }
        crate::amx::bf16_products(a, b, steps, whole.as_mut_ptr(), 4 * STRIP, keep);
        for (r, from) in whole.chunks_exact(STRIP).enumerate().take(rows) {
            std::ptr::copy_nonoverlapping(from.as_ptr(), line(r), cols);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (a, b, steps, place, keep);
}

/// # Safety
/// The way is [`Way::Dots`]; a and b hold so many steps; the place is readable and writable.
unsafe fn by_dots(a: *const u32, b: *const u32, steps: usize, place: &Place, keep: bool) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as the caller's.
    unsafe {
        dots(a, b, steps, place, keep);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (a, b, steps, place, keep);
}

/// Eight rows by two vectors at a time.
///
/// # Safety
/// As for [`by_dots`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,avx2,fma")]
unsafe fn dots(a: *const u32, b: *const u32, steps: usize, place: &Place, keep: bool) {
    use std::arch::x86_64::{
        __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps,
        _mm512_set1_epi32, _mm512_setzero_ps,
    };
    const ROWS: usize = 8;
    let Place { c, stride, rows, cols } = *place;
    let mut masks = [0u16; 2];
    for (v, mask) in masks.iter_mut().enumerate() {
        *mask = ((1u32 << LANES.min(cols.saturating_sub(v * LANES))) - 1) as u16;
    }
    for i in (0..rows).step_by(ROWS) {
        let here = ROWS.min(rows - i);
        // SAFETY: rows past the last are packed zeros and are not stored; columns are masked off.
        unsafe {
            let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
            for (r, row) in sums.iter_mut().enumerate().take(if keep { here } else { 0 }) {
                for (v, sum) in row.iter_mut().enumerate() {
                    let p = c.wrapping_add((i + r) * stride + v * LANES);
                    *sum = _mm512_maskz_loadu_ps(masks[v], p);
                }
            }
            for pair in 0..steps * STEP / 2 {
                let (step, line) = (pair / (STEP / 2), pair % (STEP / 2));
                let words = b.add(step * STEP_WORDS + line * LANES);
                let both = [
                    words.cast::<__m512i>().read_unaligned(),
                    words.add(STEP_WORDS / 2).cast::<__m512i>().read_unaligned(),
                ]
                .map(|words| std::mem::transmute::<__m512i, __m512bh>(words));
                let x = a.add(step * STEP_WORDS + i * LANES + line);
                for (r, row) in sums.iter_mut().enumerate() {
                    let x = _mm512_set1_epi32((*x.add(r * LANES)).cast_signed());
                    let x = std::mem::transmute::<__m512i, __m512bh>(x);
                    row[0] = _mm512_dpbf16_ps(row[0], x, both[0]);
                    row[1] = _mm512_dpbf16_ps(row[1], x, both[1]);
                }
            }
            for (r, row) in sums.iter().enumerate().take(here) {
                for (v, &sum) in row.iter().enumerate() {
                    let p = c.wrapping_add((i + r) * stride + v * LANES);
                    _mm512_mask_storeu_ps(p, masks[v], sum);
                }
            }
        }
    }
}

stamp!(fn widen_strip(kind: HalfKind, from: *const u32, steps: usize, to: *mut u32) = widen_body);

/// A packed strip of A as 32 rows of `steps`·32 f32.
///
/// # Safety
/// Both hold so many steps and do not overlap.
#[inline(always)]
unsafe fn widen_body<S: Lanes>(kind: HalfKind, from: *const u32, steps: usize, to: *mut u32) {
    let (from, to) = (from.cast::<u16>(), to.cast::<f32>());
    for r in 0..STRIP {
        for step in 0..steps {
            // SAFETY: inside both by the contract.
            unsafe {
                let from = from.add((step * STRIP + r) * STEP);
                let to = to.add((r * steps + step) * STEP);
                for half in [0, LANES] {
                    let x = match kind {
                        HalfKind::F16 => S::load_f16(from.add(half)),
                        HalfKind::Bf16 => S::load_bf16(from.add(half)),
                    };
                    x.store(to.add(half));
                }
            }
        }
    }
}

stamp!(fn by_lanes(
    kind: HalfKind, a: *const f32, b: *const u32, steps: usize, place: Place, keep: bool
) = lanes_body);

/// # Safety
/// a holds 32 rows, b a panel, of so many steps; the place is readable and writable.
#[inline(always)]
unsafe fn lanes_body<S: Lanes>(
    kind: HalfKind,
    a: *const f32,
    b: *const u32,
    steps: usize,
    place: Place,
    keep: bool,
) {
    // SAFETY: as the caller's.
    unsafe {
        match (kind, S::TILE_VECS) {
            (HalfKind::F16, 4) => block::<S, true, 8, 2>(a, b, steps, &place, keep),
            (HalfKind::F16, _) => block::<S, true, 4, 1>(a, b, steps, &place, keep),
            (HalfKind::Bf16, 4) => block::<S, false, 8, 2>(a, b, steps, &place, keep),
            (HalfKind::Bf16, _) => block::<S, false, 4, 1>(a, b, steps, &place, keep),
        }
    }
}

/// M rows by N vectors at a time.
///
/// # Safety
/// As for [`by_lanes`].
#[inline(always)]
unsafe fn block<S: Lanes, const F16: bool, const M: usize, const N: usize>(
    a: *const f32,
    b: *const u32,
    steps: usize,
    place: &Place,
    keep: bool,
) {
    let Place { c, stride, rows, cols } = *place;
    for j in (0..cols.div_ceil(LANES)).step_by(N) {
        for i in (0..rows).step_by(M) {
            let left = cols - j * LANES;
            let c = c.wrapping_add(i * stride + j * LANES);
            // SAFETY: rows past the last are packed zeros and are not stored.
            unsafe {
                let mut sums = [[S::splat(0.0); N]; M];
                if keep {
                    for (r, row) in sums.iter_mut().enumerate().take(rows - i) {
                        for (v, sum) in row.iter_mut().enumerate() {
                            let n = LANES.min(left.saturating_sub(v * LANES));
                            *sum = S::load_part(c.wrapping_add(r * stride + v * LANES), n);
                        }
                    }
                }
                for pair in 0..steps * STEP / 2 {
                    let (step, line) = (pair / (STEP / 2), pair % (STEP / 2));
                    let mut both = [[S::splat(0.0); 2]; N];
                    for (v, both) in both.iter_mut().enumerate() {
                        let words = b.add(step * STEP_WORDS + (j + v) * 256 + line * LANES);
                        *both = pairs::<S, F16>(words);
                    }
                    for (r, row) in sums.iter_mut().enumerate() {
                        let x = a.add((i + r) * steps * STEP + 2 * pair);
                        let (even, odd) = (S::splat(*x), S::splat(*x.add(1)));
                        for (v, sum) in row.iter_mut().enumerate() {
                            *sum = odd.fma(both[v][1], even.fma(both[v][0], *sum));
                        }
                    }
                }
                for (r, row) in sums.iter().enumerate().take(rows - i) {
                    for (v, sum) in row.iter().enumerate() {
                        let n = LANES.min(left.saturating_sub(v * LANES));
                        sum.store_part(c.wrapping_add(r * stride + v * LANES), n);
                    }
                }
            }
        }
    }
}

/// The lower and the upper halves of sixteen words.
///
/// # Safety
/// Sixteen words are readable.
#[inline(always)]
unsafe fn pairs<S: Lanes, const F16: bool>(words: *const u32) -> [S; 2] {
    // SAFETY: as the caller's.
    unsafe {
        let words = words.cast::<[u32; LANES]>().read_unaligned();
        if F16 {
            let (mut low, mut high) = ([0u16; LANES], [0u16; LANES]);
            for i in 0..LANES {
                (low[i], high[i]) = (words[i] as u16, (words[i] >> 16) as u16);
            }
            return [S::load_f16(low.as_ptr()), S::load_f16(high.as_ptr())];
        }
        let (mut low, mut high) = ([0.0f32; LANES], [0.0f32; LANES]);
        for i in 0..LANES {
            low[i] = f32::from_bits(words[i] << 16);
            high[i] = f32::from_bits(words[i] & 0xFFFF_0000);
        }
        [S::load(low.as_ptr()), S::load(high.as_ptr())]
    }
}

#[cfg(test)]
mod tests;
