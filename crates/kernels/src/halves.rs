//! y = W·x for W in 16 bits, widened in registers.
//!
//! A matrix is packed once into panels of sixteen rows, the sixteen values of a column side by side:
//! one load and one widening give the next step of sixteen outputs. Widening is exact and every
//! output is one chain of fused multiply-adds along K, as in `matmul.rs`: the bits are those of the
//! same matrix in f32. One row of x is bound by reading W; several share each panel.

use crate::PANEL_ROWS;
use crate::lanes::{Lanes, stamp};
use crate::split::Split;
use crate::team::Team;

/// Bytes that are asked for ahead of use.
const AHEAD: usize = 4 << 10;
/// Bytes of W a task takes at least.
const TASK_BYTES: usize = 64 << 10;
/// Rows of x a task takes at most.
const TASK_ROWS: usize = 64;

/// Which 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HalfKind {
    /// Half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
}

impl HalfKind {
    /// Bytes of a panel whose rows have `cols` values.
    pub const fn panel_bytes(self, cols: usize) -> usize {
        2 * PANEL_ROWS * cols
    }

    /// Bytes of a matrix of `rows` rows, the last panel filled up.
    pub const fn matrix_bytes(self, rows: usize, cols: usize) -> usize {
        rows.div_ceil(PANEL_ROWS) * self.panel_bytes(cols)
    }

    /// The value of some bits.
    pub fn value(self, bits: u16) -> f32 {
        match self {
            HalfKind::F16 => widened(bits),
            HalfKind::Bf16 => f32::from_bits(u32::from(bits) << 16),
        }
    }

    /// The bits of a value, to nearest, ties to even; what is too large for the kind becomes infinite
    /// and what is no number stays none.
    #[inline(always)]
    pub fn bits(self, x: f32) -> u16 {
        match self {
            HalfKind::F16 => f16_bits(x),
            HalfKind::Bf16 => bf16_bits(x),
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            HalfKind::F16 => "f16",
            HalfKind::Bf16 => "bf16",
        }
    }

    /// Writes a panel of sixteen rows from their bits: `bits(row, column)`.
    ///
    /// # Panics
    /// When the panel is of another size.
    pub fn pack_panel(self, cols: usize, panel: &mut [u8], bits: impl Fn(usize, usize) -> u16) {
        assert_eq!(panel.len(), self.panel_bytes(cols), "a panel");
        for (i, place) in panel.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            *place = bits(i % PANEL_ROWS, i / PANEL_ROWS).to_le_bytes();
        }
    }

    /// The value at a row and column of a panel.
    ///
    /// # Panics
    /// When it lies outside.
    pub fn at(self, panel: &[u8], row: usize, column: usize) -> f32 {
        let at = 2 * (column * PANEL_ROWS + row);
        self.value(u16::from_le_bytes([panel[at], panel[at + 1]]))
    }
}

/// A half-precision number as f32, exactly.
#[inline(always)]
pub(crate) fn widened(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let rest = u32::from(bits & 0x7FFF);
    // Exponent and fraction in their f32 places, then the exponents' difference as a factor: this
    // makes denormal numbers right, too.
    let value = f32::from_bits(rest << 13) * f32::from_bits(0x7780_0000);
    let value = if rest >= 0x7C00 { f32::from_bits(0x7F80_0000 | rest << 13) } else { value };
    f32::from_bits(value.to_bits() | sign)
}

/// The upper half of an f32, to nearest, ties to even.
#[inline(always)]
pub(crate) fn bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
    (if x.is_nan() { bits >> 16 | 0x40 } else { rounded }) as u16
}

/// The nearest half-precision number, ties to even; infinite from 65,520 on.
#[inline(always)]
pub(crate) fn f16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let (sign, size) = ((bits >> 16 & 0x8000) as u16, bits & 0x7FFF_FFFF);
    let rest = if size > 0x7F80_0000 {
        0x7E00
    } else if size >= 0x4780_0000 {
        0x7C00
    } else if size < 0x3880_0000 {
        // In steps of 2^-24: adding 1/2 leaves exactly these in the fraction.
        ((f32::from_bits(size) + 0.5).to_bits() - 0x3F00_0000) as u16
    } else {
        ((size - 0x3800_0000 + 0x0FFF + (size >> 13 & 1)) >> 13) as u16
    };
    sign | rest
}

/// A matrix in panels.
#[derive(Clone, Copy, Debug)]
pub struct HalfMatrix<'a> {
    /// Which 16 bits.
    pub kind: HalfKind,
    /// N: outputs.
    pub rows: usize,
    /// K: inputs.
    pub cols: usize,
    /// `kind.matrix_bytes(rows, cols)` bytes.
    pub panels: &'a [u8],
}

/// A run of panels and some rows of x.
#[derive(Clone, Copy)]
struct Tile {
    kind: HalfKind,
    panel: *const u8,
    cols: usize,
    x: *const f32,
    /// Values a panel starts from: none, or as many as there are outputs.
    bias: *const f32,
    y: *mut f32,
    y_stride: usize,
    /// Outputs of these panels.
    width: usize,
    /// (rows of x, panels).
    size: (usize, usize),
}

/// y (R×N in rows of `y_stride` values, from column `y_from`) = W·x + b; x: R×K; `bias`: N or empty.
///
/// # Panics
/// When the shapes do not fit each other.
pub fn half_matmul(
    team: &Team,
    x: &[f32],
    matrix: &HalfMatrix,
    bias: &[f32],
    y: &mut [f32],
    y_stride: usize,
    y_from: usize,
) {
    let HalfMatrix { kind, rows: n, cols, panels } = *matrix;
    let count_x = x.len().checked_div(cols).unwrap_or(0);
    assert_eq!(x.len(), count_x * cols, "x: R×K");
    assert_eq!(panels.len(), kind.matrix_bytes(n, cols), "the matrix's panels");
    assert!(bias.is_empty() || bias.len() == n, "a bias an output");
    if count_x == 0 || n == 0 {
        return;
    }
    assert!(y_from + n <= y_stride && (count_x - 1) * y_stride + y_from + n <= y.len(), "y: R×N");
    let bytes = kind.panel_bytes(cols);
    let count = n.div_ceil(PANEL_ROWS);
    // Four panels go together when there is one row: the chains of one wait for each other.
    let group = TASK_BYTES.div_ceil(bytes.max(1)).min(count.div_ceil(team.threads()));
    let group = group.next_multiple_of(4);
    let row_tasks = count_x.div_ceil(TASK_ROWS);
    let y = Split::new(y);
    team.tasks(count.div_ceil(group) * row_tasks, |task| {
        let (rows, panels_of) = (task % row_tasks, task / row_tasks);
        let last = count_x.min((rows + 1) * TASK_ROWS);
        let end = count.min((panels_of + 1) * group);
        let mut row = rows * TASK_ROWS;
        while row < last {
            let m = match last - row {
                8.. => 8,
                4.. => 4,
                _ => 1,
            };
            let mut p = panels_of * group;
            while p < end {
                let together = if m == 1 && end - p >= 4 { 4 } else { 1 };
                let from = p * PANEL_ROWS;
                let tile = Tile {
                    kind,
                    panel: panels[p * bytes..].as_ptr(),
                    cols,
                    x: x[row * cols..].as_ptr(),
                    bias: if bias.is_empty() { std::ptr::null() } else { bias[from..].as_ptr() },
                    y: y.pointer().wrapping_add(row * y_stride + y_from + from),
                    y_stride,
                    width: (together * PANEL_ROWS).min(n - from),
                    size: (m, together),
                };
                // SAFETY: all lies inside the slices checked above; tasks write apart tiles.
                unsafe { run(&tile) };
                p += together;
            }
            row += m;
        }
    });
}

stamp!(fn run(tile: &Tile) = run_body);

/// # Safety
/// The tile's panels hold `cols` columns, x its rows, y its outputs.
#[inline(always)]
unsafe fn run_body<S: Lanes>(tile: &Tile) {
    // SAFETY: as the caller's.
    unsafe {
        match (tile.kind, tile.size) {
            (HalfKind::F16, (8, _)) => chains::<S, 8, 1, true>(tile),
            (HalfKind::F16, (4, _)) => chains::<S, 4, 1, true>(tile),
            (HalfKind::F16, (_, 4)) => chains::<S, 1, 4, true>(tile),
            (HalfKind::F16, _) => chains::<S, 1, 1, true>(tile),
            (HalfKind::Bf16, (8, _)) => chains::<S, 8, 1, false>(tile),
            (HalfKind::Bf16, (4, _)) => chains::<S, 4, 1, false>(tile),
            (HalfKind::Bf16, (_, 4)) => chains::<S, 1, 4, false>(tile),
            (HalfKind::Bf16, _) => chains::<S, 1, 1, false>(tile),
        }
    }
}

/// M rows of x times P panels.
///
/// # Safety
/// As for `run_body`, for M rows and P panels.
#[inline(always)]
unsafe fn chains<S: Lanes, const M: usize, const P: usize, const F16: bool>(tile: &Tile) {
    let Tile { cols, x, y_stride, width, .. } = *tile;
    let panel = |p: usize| tile.panel.wrapping_add(p * 2 * PANEL_ROWS * cols).cast::<u16>();
    let outputs = |p: usize| PANEL_ROWS.min(width.saturating_sub(p * PANEL_ROWS));
    // SAFETY: as the caller's.
    unsafe {
        let mut sums = [[S::splat(0.0); P]; M];
        if !tile.bias.is_null() {
            for p in 0..P {
                let bias = S::load_part(tile.bias.wrapping_add(p * PANEL_ROWS), outputs(p));
                sums.iter_mut().for_each(|row| row[p] = bias);
            }
        }
        for k in 0..cols {
            for p in 0..P {
                let at = panel(p).add(k * PANEL_ROWS);
                if M == 1 && k % 2 == 0 {
                    S::prefetch(at.wrapping_byte_add(AHEAD).cast());
                }
                let w = if F16 { S::load_f16(at) } else { S::load_bf16(at) };
                for (r, row) in sums.iter_mut().enumerate() {
                    row[p] = S::splat(*x.add(r * cols + k)).fma(w, row[p]);
                }
            }
        }
        for (r, row) in sums.iter().enumerate() {
            for (p, sum) in row.iter().enumerate() {
                sum.store_part(tile.y.wrapping_add(r * y_stride + p * PANEL_ROWS), outputs(p));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Init, Isa, Mat, matmul};

    #[test]
    fn rounding_gives_the_nearest_and_hides_nothing() {
        for kind in [HalfKind::F16, HalfKind::Bf16] {
            let top = if kind == HalfKind::F16 { 0x7C00 } else { 0x7F80 };
            for bits in 0..top - 1u16 {
                let (x, next) = (kind.value(bits), kind.value(bits + 1));
                assert_eq!((kind.bits(x), kind.bits(-x)), (bits, bits | 0x8000));
                let middle = ((f64::from(x) + f64::from(next)) / 2.0) as f32;
                let even = bits + bits % 2;
                assert_eq!(kind.bits(middle), even, "{kind:?} {x} {next}");
                assert_eq!(kind.bits(middle.next_up()), bits + 1);
                assert_eq!(kind.bits(middle.next_down()), bits);
            }
            assert_eq!(kind.bits(f32::INFINITY), top);
            assert_eq!(kind.bits(f32::MAX), top);
            for nan in [f32::NAN, f32::from_bits(0x7F80_0001), f32::from_bits(0xFFFF_FFFF)] {
                assert!(kind.value(kind.bits(nan)).is_nan());
            }
        }
    }

    #[test]
    fn the_bits_are_those_of_the_same_matrix_in_f32() {
        let _level = crate::isa::hold();
        let value = |i: usize, salt: usize| ((i * 31 + salt * 17) % 97) as f32 / 48.5 - 1.0;
        for isa in Isa::available() {
            isa.force();
            for kind in [HalfKind::F16, HalfKind::Bf16] {
                for (n, k, rows) in [(1, 1, 1), (5, 7, 2), (80, 33, 13), (150, 64, 70), (64, 24, 1)]
                {
                    let bits = |r: usize, c: usize| {
                        let bits = value(r * k + c, n).to_bits();
                        let half = if kind == HalfKind::F16 {
                            bits >> 19 & 0x3FF | 0x3800
                        } else {
                            bits >> 16
                        };
                        half as u16
                    };
                    let w: Vec<f32> = (0..n * k).map(|i| kind.value(bits(i / k, i % k))).collect();
                    let mut panels = vec![0; kind.matrix_bytes(n, k)];
                    for (p, panel) in panels.chunks_exact_mut(kind.panel_bytes(k)).enumerate() {
                        kind.pack_panel(k, panel, |row, column| {
                            let row = p * PANEL_ROWS + row;
                            if row < n { bits(row, column) } else { 0 }
                        });
                        assert_eq!(kind.at(panel, 0, k - 1), w[p * PANEL_ROWS * k + k - 1]);
                    }
                    let turned: Vec<f32> = (0..k * n).map(|i| w[i % n * k + i / n]).collect();
                    let x: Vec<f32> = (0..rows * k).map(|i| value(i, 3)).collect();
                    let bias: Vec<f32> = (0..n).map(|i| value(i, 5)).collect();
                    for threads in [1, 3] {
                        for bias in [&[][..], &bias] {
                            let team = Team::new(threads);
                            let (mut right, mut found) =
                                (vec![9.0; rows * (n + 3)], vec![9.0; rows * (n + 3)]);
                            let init = if bias.is_empty() { Init::Zero } else { Init::Bias(bias) };
                            let b = Mat::new(&turned, k, n);
                            matmul(&team, Mat::new(&x, rows, k), b, init, &mut right, n + 3, 2);
                            let matrix = HalfMatrix { kind, rows: n, cols: k, panels: &panels };
                            half_matmul(&team, &x, &matrix, bias, &mut found, n + 3, 2);
                            let same = |a: &[f32], b: &[f32]| {
                                a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
                            };
                            assert!(same(&found, &right), "{isa:?} {kind:?} {n}×{k} {rows}");
                        }
                    }
                }
            }
        }
        Isa::detect().force();
    }
}
