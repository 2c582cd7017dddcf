//! Matrix products: C = A·B, every output one chain of fused multiply-adds along K.
//!
//! The idea that makes it fast: A is read by broadcast, so any row and column stride will do
//! (its transpose costs nothing), and B by rows of up to 64 neighbouring columns, a tile of
//! outputs staying in registers for 256 steps of K. Blocking stores and reloads the chain; it
//! never splits it, so the bits are those of the plain loop. Operands whose neighbours lie far
//! apart are copied together first, a block at a time.

use crate::lanes::{LANES, Lanes, stamp};
use crate::split::Split;
use crate::team::Team;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Columns a packed panel is wide.
pub(crate) const PANEL: usize = 64;
/// Steps of K between a load and a store of the chain.
const K_BLOCK: usize = 256;
/// Rows of a tile of outputs, most often.
const TILE_ROWS: usize = 6;
/// Rows a task takes at most when rows are shared out, and half as many where rows are few.
const ROW_TASK: usize = 132;
/// A stride, in values, from which a block is copied together before it is read.
const FAR: usize = 256;
/// Rows of C from which the workers copy a block of B once for all.
const SHARED_ROWS: usize = 48;
/// Panels of such a block at most.
const SHARED_PANELS: usize = 12;

/// A matrix to read: element (i, j) stands at `i·row_stride + j·col_stride`.
#[derive(Clone, Copy, Debug)]
pub struct Mat<'a> {
    /// The values.
    pub data: &'a [f32],
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Distance of neighbours in a column.
    pub row_stride: usize,
    /// Distance of neighbours in a row.
    pub col_stride: usize,
}

impl<'a> Mat<'a> {
    /// A row-major matrix without gaps.
    pub fn new(data: &'a [f32], rows: usize, cols: usize) -> Self {
        Mat { data, rows, cols, row_stride: cols, col_stride: 1 }
    }

    /// The transpose: the same bytes, strides exchanged.
    pub fn transposed(self) -> Self {
        Mat {
            data: self.data,
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
        }
    }

    /// Columns `from .. from + cols` of a row-major matrix whose rows are `row_stride` apart.
    pub fn columns(
        data: &'a [f32],
        rows: usize,
        row_stride: usize,
        from: usize,
        cols: usize,
    ) -> Self {
        let data = if rows == 0 { &data[..0] } else { &data[from..] };
        Mat { data, rows, cols, row_stride, col_stride: 1 }
    }

    fn check(&self) {
        if self.rows > 0 && self.cols > 0 {
            let last = (self.rows - 1) * self.row_stride + (self.cols - 1) * self.col_stride;
            assert!(last < self.data.len(), "a matrix lies inside its slice");
        }
    }
}

/// What the chain of an output starts from.
#[derive(Clone, Copy, Debug)]
pub enum Init<'a> {
    /// Zero.
    Zero,
    /// What C holds: the product is added.
    Keep,
    /// A value a column.
    Bias(&'a [f32]),
}

/// Values that a packed form of a `cols`-column matrix with `depth` rows takes.
pub fn packed_len(cols: usize, depth: usize) -> usize {
    cols.next_multiple_of(LANES) * depth
}

/// Packs the transpose of `weight` (N×K, row-major) into panels of 64 columns of K rows each, so
/// that `matmul` reads it in order. The last panel is as wide as the lanes that remain need,
/// padded with zeros.
pub fn pack_transposed(team: &Team, weight: &[f32], n: usize, k: usize, packed: &mut [f32]) {
    assert_eq!(weight.len(), n * k, "weight is N×K");
    assert_eq!(packed.len(), packed_len(n, k), "packed form of N×K");
    let panels = n.div_ceil(PANEL);
    let packed = Split::new(packed);
    team.tasks(panels, |p| {
        let width = panel_width(n, p);
        let start = p * PANEL * k;
        // SAFETY: panels do not overlap.
        let panel = unsafe { packed.part(start..start + width * k) };
        for j in 0..width {
            let column = p * PANEL + j;
            if column < n {
                let row = &weight[column * k..(column + 1) * k];
                for (i, &w) in row.iter().enumerate() {
                    panel[i * width + j] = w;
                }
            } else {
                (0..k).for_each(|i| panel[i * width + j] = 0.0);
            }
        }
    });
}

pub(crate) fn panel_width(n: usize, panel: usize) -> usize {
    (n - panel * PANEL).min(PANEL).next_multiple_of(LANES)
}

/// Where B's columns stand.
#[derive(Clone, Copy)]
enum Columns {
    /// Rows `stride` apart.
    Rows { stride: usize },
    /// Packed panels.
    Panels,
}

/// C[M×N] = init + A[M×K]·B[K×N], C's rows `c_stride` apart, starting at column `c_from`.
///
/// B is row-major (its `col_stride` is 1), or packed by [`pack_transposed`] and then given as a
/// `Mat` with `row_stride` 0.
pub fn matmul(
    team: &Team,
    a: Mat,
    b: Mat,
    init: Init,
    c: &mut [f32],
    c_stride: usize,
    c_from: usize,
) {
    a.check();
    let (m, n, k) = (a.rows, b.cols, a.cols);
    assert_eq!(k, b.rows, "A's columns are B's rows");
    let columns = if b.row_stride == 0 && k > 0 {
        assert!(b.data.len() >= packed_len(n, k), "B is packed");
        Columns::Panels
    } else {
        assert_eq!(b.col_stride, 1, "B is read by rows");
        b.check();
        Columns::Rows { stride: b.row_stride }
    };
    if m == 0 || n == 0 {
        return;
    }
    assert!(c_from + n <= c_stride && (m - 1) * c_stride + c_from + n <= c.len(), "C holds M×N");
    if let Init::Bias(bias) = init {
        assert_eq!(bias.len(), n, "a bias a column");
    }
    let c = Split::new(c);
    let product = Product { a, b: b.data, columns, init, n, c: &c, c_stride, c_from };
    match columns {
        Columns::Rows { stride } if stride > FAR && m >= SHARED_ROWS => {
            product.by_shared_blocks(team, stride);
        }
        _ => product.by_tasks(team),
    }
}

/// A product whose shapes fit.
struct Product<'a> {
    a: Mat<'a>,
    b: &'a [f32],
    columns: Columns,
    init: Init<'a>,
    n: usize,
    c: &'a Split<'a, f32>,
    c_stride: usize,
    c_from: usize,
}

impl Product<'_> {
    /// Each task reads B where it stands.
    fn by_tasks(&self, team: &Team) {
        let (m, k) = (self.a.rows, self.a.cols);
        let panels = self.n.div_ceil(PANEL);
        let shares = RowShares::of(m, team.threads());
        let row_tasks = shares.count;
        // Few rows: share out the panels as well.
        let panel_tasks = if row_tasks >= 4 * team.threads() { 1 } else { panels };
        team.tasks(row_tasks * panel_tasks, |task| {
            let (rt, pt) = (task / panel_tasks, task % panel_tasks);
            let rows = shares.rows(rt);
            let panels = if panel_tasks == 1 { 0..panels } else { pt..pt + 1 };
            let mut scratch = Scratch::new();
            let mut gathered = Room::<{ K_BLOCK * PANEL }>::new();
            for k0 in (0..k.max(1)).step_by(K_BLOCK) {
                let depth = K_BLOCK.min(k - k0);
                // SAFETY: A, B and C were checked; tasks write apart blocks of C.
                unsafe {
                    self.block(&rows, panels.clone(), k0, &mut scratch, |p| {
                        let (from, stride) = match self.columns {
                            Columns::Rows { stride } => (k0 * stride + p * PANEL, stride),
                            Columns::Panels => {
                                let padded = panel_width(self.n, p);
                                (p * PANEL * k + k0 * padded, padded)
                            }
                        };
                        let from = self.b.as_ptr().add(from);
                        if stride <= FAR || rows.len() < 12 {
                            return (from, stride);
                        }
                        let (to, width) = (gathered.start(), self.width(p));
                        gather_raw(from, stride, to, PANEL, width, depth);
                        (to.cast_const(), PANEL)
                    });
                }
            }
        });
    }

    /// The workers copy a block of B together, whose rows stand far apart, then all read it.
    fn by_shared_blocks(&self, team: &Team, stride: usize) {
        let (m, k) = (self.a.rows, self.a.cols);
        let panels = self.n.div_ceil(PANEL);
        let together = panels.div_ceil(panels.div_ceil(SHARED_PANELS));
        let shares = RowShares::of(m, team.threads());
        let mut room = Room::<{ K_BLOCK * PANEL * SHARED_PANELS }>::new();
        let room = Split::new(&mut room.0);
        for first in (0..panels).step_by(together) {
            let some = first..panels.min(first + together);
            for k0 in (0..k.max(1)).step_by(K_BLOCK) {
                let depth = K_BLOCK.min(k - k0);
                let place = |p: usize| {
                    room.pointer().wrapping_add((p - first) * K_BLOCK * PANEL).cast::<f32>()
                };
                team.tasks(some.len(), |i| {
                    let p = first + i;
                    // SAFETY: B was checked; each task fills its own panel.
                    unsafe {
                        let from = self.b.as_ptr().add(k0 * stride + p * PANEL);
                        gather_raw(from, stride, place(p), PANEL, self.width(p), depth);
                    }
                });
                team.tasks(shares.count, |task| {
                    let rows = shares.rows(task);
                    let of = |p| (place(p).cast_const(), PANEL);
                    // SAFETY: A and C were checked, the panels are filled; tasks write apart rows.
                    unsafe { self.block(&rows, some.clone(), k0, &mut Scratch::new(), of) }
                });
            }
        }
    }

    /// Columns of panel p.
    fn width(&self, p: usize) -> usize {
        (self.n - p * PANEL).min(PANEL)
    }

    /// Some rows of C and some panels: the steps of K from `k0` on. `b_of` a panel: the address and
    /// the stride of its rows in these steps.
    ///
    /// # Safety
    /// The shapes were checked; nobody else writes this block of C.
    #[inline(always)]
    unsafe fn block(
        &self,
        rows: &Range<usize>,
        panels: Range<usize>,
        k0: usize,
        scratch: &mut Scratch,
        mut b_of: impl FnMut(usize) -> (*const f32, usize),
    ) {
        let depth = K_BLOCK.min(self.a.cols - k0);
        // SAFETY: inside the matrices by the contract.
        unsafe {
            let a = self.a;
            let start = a.data.as_ptr().add(rows.start * a.row_stride + k0 * a.col_stride);
            let mut block_a = Strided { start, row: a.row_stride, col: a.col_stride };
            if a.row_stride == 1 && a.col_stride > FAR && rows.len() > 1 {
                block_a = scratch.gather_a(block_a, rows.len(), depth);
            }
            for p in panels {
                let width = self.width(p);
                let (b, stride) = b_of(p);
                let init = match self.init {
                    _ if k0 > 0 => Init::Keep,
                    Init::Bias(bias) => Init::Bias(&bias[p * PANEL..p * PANEL + width]),
                    other => other,
                };
                let at = rows.start * self.c_stride + self.c_from + p * PANEL;
                let c = self.c.pointer().add(at);
                block(block_a, b, stride, c, self.c_stride, rows.len(), width, depth, init);
            }
        }
    }
}

/// Rows shared out in tasks: many enough that a panel of B pays, few enough that all have work, and
/// equal but for a tile, so that workers end together.
struct RowShares {
    rows: usize,
    count: usize,
}

impl RowShares {
    fn of(rows: usize, threads: usize) -> RowShares {
        let many = rows.div_ceil(ROW_TASK) >= 4 * threads;
        let most = if many { ROW_TASK } else { ROW_TASK / 2 };
        let count = rows.div_ceil(most).next_multiple_of(threads).min(rows.div_ceil(TILE_ROWS));
        RowShares { rows, count }
    }

    fn rows(&self, task: usize) -> Range<usize> {
        let tiles = self.rows.div_ceil(TILE_ROWS);
        let from = |task| self.rows.min(tiles * task / self.count * TILE_ROWS);
        from(task)..from(task + 1)
    }
}

/// Lines of vectors; memory that is never read before it is written.
#[repr(align(64))]
struct Room<const LEN: usize>([MaybeUninit<f32>; LEN]);

impl<const LEN: usize> Room<LEN> {
    #[inline(always)]
    fn new() -> Self {
        Room([const { MaybeUninit::uninit() }; LEN])
    }

    fn start(&mut self) -> *mut f32 {
        self.0.as_mut_ptr().cast()
    }
}

/// A block of A, copied together.
type Scratch = Room<{ K_BLOCK * ROW_TASK }>;

impl Scratch {
    /// Columns of A as lines of neighbouring rows.
    ///
    /// # Safety
    /// `a.row` is 1; at most ROW_TASK rows and K_BLOCK columns are readable.
    unsafe fn gather_a(&mut self, a: Strided, rows: usize, depth: usize) -> Strided {
        let to = self.start();
        // SAFETY: inside both by the contract.
        unsafe { gather_raw(a.start, a.col, to, ROW_TASK, rows, depth) };
        Strided { start: to, row: 1, col: ROW_TASK }
    }
}

/// Copies `depth` lines of `width` values.
#[inline(always)]
unsafe fn gather_body<S: Lanes>(
    from: *const f32,
    stride: usize,
    to: *mut f32,
    to_stride: usize,
    width: usize,
    depth: usize,
) {
    // SAFETY: the caller's lines are readable and writable for `width` values.
    unsafe {
        for line in 0..depth {
            let (from, to) = (from.add(line * stride), to.add(line * to_stride));
            let mut i = 0;
            while i + LANES <= width {
                S::load(from.add(i)).store(to.add(i));
                i += LANES;
            }
            if i < width {
                S::load_part(from.add(i), width - i).store_part(to.add(i), width - i);
            }
        }
    }
}
stamp!(pub(crate) fn gather_raw(
    from: *const f32, stride: usize, to: *mut f32, to_stride: usize, width: usize, depth: usize
) = gather_body);

/// The address and strides of a matrix to read.
#[derive(Clone, Copy)]
pub(crate) struct Strided {
    pub start: *const f32,
    pub row: usize,
    pub col: usize,
}

/// One worker's product: C[m×n] = init + A[m×k]·B[k×n], n at most 64 columns.
///
/// # Safety
/// All addresses are readable or writable for the shapes given; B's rows are readable up to the
/// next multiple of sixteen columns only if n is that multiple.
#[inline(always)]
pub(crate) unsafe fn block_body<S: Lanes>(
    a: Strided,
    b: *const f32,
    b_stride: usize,
    c: *mut f32,
    c_stride: usize,
    m: usize,
    n: usize,
    k: usize,
    init: Init,
) {
    // SAFETY: tiles stay inside the block.
    unsafe {
        let mut j = 0;
        while j < n {
            let left = n - j;
            let vecs = left.div_ceil(LANES).min(S::TILE_VECS);
            let width = left.min(vecs * LANES);
            let (b, c) = (b.add(j), c.add(j));
            let init = match init {
                Init::Bias(bias) => Init::Bias(&bias[j..j + width]),
                other => other,
            };
            match vecs {
                4 => rows::<S, 6, 4>(a, b, b_stride, c, c_stride, m, width, k, init),
                3 => rows::<S, 8, 3>(a, b, b_stride, c, c_stride, m, width, k, init),
                2 => rows::<S, 12, 2>(a, b, b_stride, c, c_stride, m, width, k, init),
                _ if S::TILE_VECS == 1 => {
                    rows::<S, 6, 1>(a, b, b_stride, c, c_stride, m, width, k, init)
                }
                _ => rows::<S, 12, 1>(a, b, b_stride, c, c_stride, m, width, k, init),
            }
            j += width;
        }
    }
}

stamp!(fn block_raw(
    a: Strided, b: *const f32, b_stride: usize, c: *mut f32, c_stride: usize,
    m: usize, n: usize, k: usize, init: Init
) = block_body);

/// [`block_body`] at the current instruction set, for any number of columns.
///
/// # Safety
/// As [`block_body`]; a bias holds n values.
pub(crate) unsafe fn block(
    a: Strided,
    b: *const f32,
    b_stride: usize,
    c: *mut f32,
    c_stride: usize,
    m: usize,
    n: usize,
    k: usize,
    init: Init,
) {
    let mut j = 0;
    while j < n {
        let width = (n - j).min(PANEL);
        let init = match init {
            Init::Bias(bias) => Init::Bias(&bias[j..j + width]),
            other => other,
        };
        // SAFETY: columns j .. j + width of the caller's matrices.
        unsafe { block_raw(a, b.add(j), b_stride, c.add(j), c_stride, m, width, k, init) };
        j += width;
    }
}

#[inline(always)]
unsafe fn rows<S: Lanes, const M: usize, const N: usize>(
    a: Strided,
    b: *const f32,
    b_stride: usize,
    c: *mut f32,
    c_stride: usize,
    m: usize,
    width: usize,
    k: usize,
    init: Init,
) {
    // SAFETY: as the caller's.
    unsafe {
        let mut i = 0;
        while i + M <= m {
            let at = Strided { start: a.start.add(i * a.row), ..a };
            if matches!(init, Init::Keep) {
                // The next rows of C come while these are in work.
                for r in i + M..m.min(i + 2 * M) {
                    (0..N).for_each(|v| S::prefetch(c.wrapping_add(r * c_stride + v * LANES)));
                }
            }
            tile::<S, M, N>(at, b, b_stride, c.add(i * c_stride), c_stride, width, k, init);
            i += M;
        }
        while i + 4 <= m {
            let at = Strided { start: a.start.add(i * a.row), ..a };
            tile::<S, 4, N>(at, b, b_stride, c.add(i * c_stride), c_stride, width, k, init);
            i += 4;
        }
        while i < m {
            let at = Strided { start: a.start.add(i * a.row), ..a };
            tile::<S, 1, N>(at, b, b_stride, c.add(i * c_stride), c_stride, width, k, init);
            i += 1;
        }
    }
}

#[inline(always)]
unsafe fn tile<S: Lanes, const M: usize, const N: usize>(
    a: Strided,
    b: *const f32,
    b_stride: usize,
    c: *mut f32,
    c_stride: usize,
    width: usize,
    k: usize,
    init: Init,
) {
    // SAFETY: loads and stores of the last vector are cut to the width.
    unsafe {
        let last = width - (N - 1) * LANES;
        let whole = last == LANES;
        let mut acc = [[S::splat(0.0); N]; M];
        match init {
            Init::Zero => {}
            Init::Keep => {
                for (r, row) in acc.iter_mut().enumerate() {
                    for (v, x) in row.iter_mut().enumerate() {
                        let p = c.add(r * c_stride + v * LANES).cast_const();
                        *x = if v + 1 < N || whole { S::load(p) } else { S::load_part(p, last) };
                    }
                }
            }
            Init::Bias(bias) => {
                for v in 0..N {
                    let p = bias.as_ptr().add(v * LANES);
                    let x = if v + 1 < N || whole { S::load(p) } else { S::load_part(p, last) };
                    for row in &mut acc {
                        row[v] = x;
                    }
                }
            }
        }
        if whole {
            for step in 0..k {
                let mut bv = [S::splat(0.0); N];
                for (v, x) in bv.iter_mut().enumerate() {
                    *x = S::load(b.add(step * b_stride + v * LANES));
                }
                for (r, row) in acc.iter_mut().enumerate() {
                    let x = S::splat(*a.start.add(r * a.row + step * a.col));
                    for (v, y) in row.iter_mut().enumerate() {
                        *y = x.fma(bv[v], *y);
                    }
                }
            }
        } else {
            for step in 0..k {
                let mut bv = [S::splat(0.0); N];
                for (v, x) in bv.iter_mut().enumerate() {
                    let p = b.add(step * b_stride + v * LANES);
                    *x = if v + 1 < N { S::load(p) } else { S::load_part(p, last) };
                }
                for (r, row) in acc.iter_mut().enumerate() {
                    let x = S::splat(*a.start.add(r * a.row + step * a.col));
                    for (v, y) in row.iter_mut().enumerate() {
                        *y = x.fma(bv[v], *y);
                    }
                }
            }
        }
        for (r, row) in acc.iter().enumerate() {
            for (v, x) in row.iter().enumerate() {
                let p = c.add(r * c_stride + v * LANES);
                if v + 1 < N || whole { x.store(p) } else { x.store_part(p, last) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, reference};

    fn values(n: usize, seed: u64) -> Vec<f32> {
        (0..n as u64).map(|i| crate::normal(seed, i)).collect()
    }

    #[test]
    fn agrees_with_the_plain_loop_at_odd_shapes() {
        let _level = crate::isa::hold();
        let shapes =
            [(1, 1, 1), (3, 17, 5), (64, 64, 64), (7, 100, 300), (130, 37, 16), (1, 96, 600)];
        for isa in Isa::available() {
            isa.force();
            for (m, n, k) in shapes {
                let (a, b, bias) = (values(m * k, 1), values(n * k, 2), values(n, 3));
                let mut packed = vec![0.0; packed_len(n, k)];
                let team = Team::new(2);
                pack_transposed(&team, &b, n, k, &mut packed);
                let mut c = vec![0.0; m * n];
                let weight = Mat { row_stride: 0, ..Mat::new(&packed, k, n) };
                matmul(&team, Mat::new(&a, m, k), weight, Init::Bias(&bias), &mut c, n, 0);
                let right = reference::matmul_transposed(&a, &b, Some(&bias), m, n, k);
                crate::reference::assert_close(&c, &right, 2e-6 * k as f64, "packed");

                let bt: Vec<f32> = (0..k * n).map(|i| b[(i % n) * k + i / n]).collect();
                let mut rows = vec![1.0; m * n];
                matmul(&team, Mat::new(&a, m, k), Mat::new(&bt, k, n), Init::Zero, &mut rows, n, 0);
                matmul(&team, Mat::new(&a, m, k), Mat::new(&bt, k, n), Init::Keep, &mut rows, n, 0);
                let zero = vec![0.0; n];
                let once = reference::matmul_transposed(&a, &b, Some(&zero), m, n, k);
                let twice: Vec<f64> = once.iter().map(|x| 2.0 * x).collect();
                crate::reference::assert_close(&rows, &twice, 4e-6 * k as f64, "rows, twice");
            }
        }
    }

    #[test]
    fn bits_do_not_depend_on_rows_around_or_threads_or_level() {
        let _level = crate::isa::hold();
        let (m, n, k) = (67, 150, 333);
        let (a, b) = (values(m * k, 1), values(k * n, 2));
        let mut all: Vec<Vec<f32>> = Vec::new();
        for isa in Isa::available() {
            isa.force();
            for threads in [1, 3] {
                let team = Team::new(threads);
                let mut c = vec![0.0; m * n];
                matmul(&team, Mat::new(&a, m, k), Mat::new(&b, k, n), Init::Zero, &mut c, n, 0);
                all.push(c);
                let mut single = vec![0.0; m * n];
                for i in 0..m {
                    let row = Mat::new(&a[i * k..(i + 1) * k], 1, k);
                    let out = &mut single[i * n..(i + 1) * n];
                    matmul(&team, row, Mat::new(&b, k, n), Init::Zero, out, n, 0);
                }
                all.push(single);
            }
        }
        for other in all.iter().skip(1) {
            assert!(all[0].iter().zip(other).all(|(x, y)| x.to_bits() == y.to_bits()));
        }
    }

    #[test]
    fn transposed_a_and_column_windows() {
        let _level = crate::isa::hold();
        let (m, n, k) = (20, 33, 41);
        let (a, b) = (values(k * m, 1), values(k * n, 2));
        let team = Team::new(1);
        let mut c = vec![9.0; m * (n + 7)];
        matmul(
            &team,
            Mat::new(&a, k, m).transposed(),
            Mat::new(&b, k, n),
            Init::Zero,
            &mut c,
            n + 7,
            4,
        );
        for i in 0..m {
            for j in 0..n {
                let right: f64 =
                    (0..k).map(|s| f64::from(a[s * m + i]) * f64::from(b[s * n + j])).sum();
                assert!((f64::from(c[i * (n + 7) + 4 + j]) - right).abs() < 1e-4);
            }
            assert_eq!(c[i * (n + 7) + 3], 9.0);
            assert_eq!(c[i * (n + 7) + 4 + n], 9.0);
        }
    }
}
