//! One step of Muon on a matrix: momentum, orthogonalised by five Newton–Schulz steps.
//!
//! Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024),
//! <https://kellerjordan.github.io/posts/muon/>: m ← βm + (1-β)g; U = (1-β)g + βm (Nesterov);
//! O is U with its singular values pulled towards 1; W ← (1 - η·decay)·W - η·√max(1, rows/cols)·O.
//! An odd polynomial of X needs X·XᵀX alone, so X is kept long side down, whatever W's shape, and
//! its Gram matrix is as small as the short side.

use crate::elementwise::{chunks, row_chunks, scale};
use crate::halves::HalfKind;
use crate::matmul::{Init, Mat, matmul};
use crate::optimizer::sum_of_squares;
use crate::split::Split;
use crate::team::Team;
use std::sync::atomic::{AtomicU64, Ordering};

/// X ← a·X + X·(b·G + c·G²) with G = XᵀX: one step towards singular values around 1.
const COEFFICIENTS: [f32; 3] = [3.4445, -4.7750, 2.0315];
const STEPS: usize = 5;
/// Added to the norm that a matrix is divided by at first.
const EPSILON: f64 = 1e-7;

/// The numbers of one Muon step.
#[derive(Clone, Copy, Debug)]
pub struct MuonStep {
    /// Learning rate of this step.
    pub rate: f32,
    /// β.
    pub momentum: f32,
    /// Decoupled decay: w is first multiplied by 1 - rate·decay.
    pub decay: f32,
    /// The factor of gradient clipping, 1 for none.
    pub gradient_scale: f32,
}

/// Values that a step on a matrix works with.
pub fn muon_workspace(rows: usize, cols: usize) -> usize {
    let short = rows.min(cols);
    2 * (rows * cols + short * short)
}

/// One step on the weights `w` of a matrix (rows×cols, row-major) with gradient `g` and momentum
/// `m`; `work` holds [`muon_workspace`] values. With `w` come its 16 bits in mixed precision, which are
/// rounded anew. Answers with the number of weights that moved while their 16 bits stayed.
pub fn muon(
    team: &Team,
    step: MuonStep,
    (rows, cols): (usize, usize),
    (w, halves): (&mut [f32], Option<(HalfKind, &mut [u16])>),
    g: &[f32],
    m: &mut [f32],
    work: &mut [f32],
) -> u64 {
    let n = rows * cols;
    assert!(w.len() == n && g.len() == n && m.len() == n, "muon: lengths");
    let (x, rest) = work.split_at_mut(n);
    let (y, rest) = rest.split_at_mut(n);
    let short = rows.min(cols);
    let (gram, rest) = rest.split_at_mut(short * short);
    look_ahead(team, step, g, m, y);
    let norm = sum_of_squares(team, y).sqrt() + EPSILON;
    scale(team, y, (1.0 / norm) as f32);
    let wide = rows < cols;
    if wide {
        transpose(team, y, (rows, cols), x);
    } else {
        x.copy_from_slice(y);
    }
    let long = n.checked_div(short).unwrap_or(0);
    let (x, y) = orthogonalise(team, (long, short), x, y, gram, &mut rest[..short * short]);
    if wide {
        transpose(team, x, (cols, rows), y);
    } else {
        y.copy_from_slice(x);
    }
    let keep = 1.0 - step.rate * step.decay;
    let factor = step.rate * (rows as f32 / cols as f32).max(1.0).sqrt();
    move_by(team, (keep, factor), w, y, halves)
}

/// w ← keep·w - factor·o, and its 16 bits where there are any; how many of those stayed though w moved.
fn move_by(
    team: &Team,
    (keep, factor): (f32, f32),
    w: &mut [f32],
    o: &[f32],
    halves: Option<(HalfKind, &mut [u16])>,
) -> u64 {
    let Some((kind, bits)) = halves else {
        chunks(team, w, |at, w| {
            w.iter_mut().zip(&o[at..]).for_each(|(w, o)| *w = *w * keep - factor * o);
        });
        return 0;
    };
    assert_eq!(bits.len(), w.len(), "muon: 16 bits a weight");
    let (bits, lost) = (Split::new(bits), AtomicU64::new(0));
    chunks(team, w, |at, w| {
        // SAFETY: chunks do not overlap.
        let bits = unsafe { bits.part(at..at + w.len()) };
        let mut stayed = 0;
        for ((w, bits), o) in w.iter_mut().zip(bits).zip(&o[at..]) {
            let new = *w * keep - factor * o;
            let rounded = kind.bits(new);
            stayed += u64::from(new != *w && rounded == *bits);
            (*w, *bits) = (new, rounded);
        }
        lost.fetch_add(stayed, Ordering::Relaxed);
    });
    lost.into_inner()
}

/// m ← βm + (1-β)g and u = (1-β)g + βm.
fn look_ahead(team: &Team, step: MuonStep, g: &[f32], m: &mut [f32], u: &mut [f32]) {
    let (old, new) = (step.momentum, (1.0 - step.momentum) * step.gradient_scale);
    chunks(team, m, |at, m| {
        m.iter_mut().zip(&g[at..]).for_each(|(m, g)| *m = old * *m + new * g);
    });
    chunks(team, u, |at, u| {
        let read = g[at..].iter().zip(&m[at..]);
        u.iter_mut().zip(read).for_each(|(u, (g, m))| *u = new * g + old * m);
    });
}

/// out (cols×rows) = xᵀ for x (rows×cols).
fn transpose(team: &Team, x: &[f32], (rows, cols): (usize, usize), out: &mut [f32]) {
    row_chunks(team, out, rows, |first, part| {
        for (i, row) in part.chunks_exact_mut(rows).enumerate() {
            let column = x[first + i..].iter().step_by(cols);
            row.iter_mut().zip(column).for_each(|(to, &from)| *to = from);
        }
    });
}

/// Five steps over x (long×short); answers with where the result stands, and with the other place.
fn orthogonalise<'a>(
    team: &Team,
    (long, short): (usize, usize),
    mut x: &'a mut [f32],
    mut y: &'a mut [f32],
    gram: &mut [f32],
    square: &mut [f32],
) -> (&'a mut [f32], &'a mut [f32]) {
    let [a, b, c] = COEFFICIENTS;
    for _ in 0..STEPS {
        let tall = Mat::new(x, long, short);
        matmul(team, tall.transposed(), tall, Init::Zero, gram, short, 0);
        let inner = Mat::new(gram, short, short);
        matmul(team, inner, inner, Init::Zero, square, short, 0);
        chunks(team, square, |at, square| {
            square.iter_mut().zip(&gram[at..]).for_each(|(s, g)| *s = b * g + c * *s);
        });
        chunks(team, y, |at, y| y.iter_mut().zip(&x[at..]).for_each(|(y, x)| *y = a * x));
        matmul(team, tall, Mat::new(square, short, short), Init::Keep, y, short, 0);
        std::mem::swap(&mut x, &mut y);
    }
    (x, y)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, reference};

    /// The formulas in f64, without a transpose anywhere.
    fn right(step: MuonStep, (rows, cols): (usize, usize), w: &[f32], g: &[f32]) -> Vec<f64> {
        let s = |x: f32| f64::from(x);
        let product = |a: &[f64], b: &[f64], (m, k, n): (usize, usize, usize)| -> Vec<f64> {
            let at = |i: usize| (0..k).map(|j| a[i / n * k + j] * b[j * n + i % n]).sum();
            (0..m * n).map(at).collect()
        };
        let grad = g.iter().map(|&g| s(g) * s(step.gradient_scale));
        let beta = s(step.momentum);
        let mut x: Vec<f64> = grad.map(|g| (1.0 - beta) * g * (1.0 + beta)).collect();
        let norm = x.iter().map(|v| v * v).sum::<f64>().sqrt() + EPSILON;
        x.iter_mut().for_each(|v| *v /= norm);
        let [a, b, c] = COEFFICIENTS.map(f64::from);
        for _ in 0..STEPS {
            let turned: Vec<f64> =
                (0..rows * cols).map(|i| x[i % rows * cols + i / rows]).collect();
            let gram = product(&x, &turned, (rows, cols, rows));
            let square = product(&gram, &gram, (rows, rows, rows));
            let inner: Vec<f64> = gram.iter().zip(&square).map(|(g, q)| b * g + c * q).collect();
            let more = product(&inner, &x, (rows, rows, cols));
            x = x.iter().zip(&more).map(|(x, m)| a * x + m).collect();
        }
        let factor = s(step.rate) * (rows as f64 / cols as f64).max(1.0).sqrt();
        let keep = 1.0 - s(step.rate) * s(step.decay);
        w.iter().zip(&x).map(|(&w, o)| s(w) * keep - factor * o).collect()
    }

    #[test]
    fn agrees_with_the_formula_tall_square_and_wide() {
        let _level = crate::isa::hold();
        let step = MuonStep { rate: 0.02, momentum: 0.95, decay: 0.1, gradient_scale: 0.5 };
        for (rows, cols) in [(7, 7), (40, 24), (24, 40), (1, 9), (130, 3)] {
            let at = |seed| -> Vec<f32> {
                (0..(rows * cols) as u64).map(|i| crate::normal(seed, i)).collect()
            };
            let (start, g) = (at(1), at(2));
            let right = right(step, (rows, cols), &start, &g);
            let mut bits: Option<Vec<u32>> = None;
            for isa in Isa::available() {
                isa.force();
                for threads in [1, 3] {
                    let team = Team::new(threads);
                    let (mut w, mut m) = (start.clone(), vec![0.0; g.len()]);
                    let mut work = vec![9.0; muon_workspace(rows, cols)];
                    muon(&team, step, (rows, cols), (&mut w, None), &g, &mut m, &mut work);
                    reference::assert_close(&w, &right, 1e-5, "muon");
                    let now: Vec<u32> = w.iter().map(|v| v.to_bits()).collect();
                    assert_eq!(*bits.get_or_insert_with(|| now.clone()), now, "{isa:?}");
                }
            }
        }
    }

    #[test]
    fn singular_values_come_near_one_and_zeros_stay() {
        let _level = crate::isa::hold();
        let team = Team::new(1);
        let step = MuonStep { rate: 1.0, momentum: 0.0, decay: 0.0, gradient_scale: 1.0 };
        let mut work = vec![0.0; muon_workspace(2, 2)];
        // Singular values 3 and 0.5 along the axes.
        let (mut w, mut m) = ([0.0; 4], [0.0; 4]);
        muon(&team, step, (2, 2), (&mut w, None), &[3.0, 0.0, 0.0, 0.5], &mut m, &mut work);
        assert!(w[1] == 0.0 && w[2] == 0.0, "{w:?}");
        assert!((0.6..1.3).contains(&-w[0]) && (0.6..1.3).contains(&-w[3]), "{w:?}");
        let mut still = [2.0; 4];
        muon(&team, step, (2, 2), (&mut still, None), &[0.0; 4], &mut [0.0; 4], &mut work);
        assert_eq!(still, [2.0; 4]);
    }

    #[test]
    fn sixteen_bits_are_rounded_anew_and_the_lost_are_counted() {
        let _level = crate::isa::hold();
        let (rows, cols) = (150, 70);
        let at = |seed| -> Vec<f32> {
            (0..(rows * cols) as u64).map(|i| crate::normal(seed, i)).collect()
        };
        let (start, g) = (at(1), at(2));
        let team = Team::new(3);
        for (rate, kind) in [(1e-4, HalfKind::Bf16), (0.1, HalfKind::Bf16), (0.1, HalfKind::F16)] {
            let step = MuonStep { rate, momentum: 0.95, decay: 0.1, gradient_scale: 1.0 };
            let run = |w: &mut [f32], halves| {
                let mut work = vec![0.0; muon_workspace(rows, cols)];
                muon(&team, step, (rows, cols), (w, halves), &g, &mut vec![0.0; g.len()], &mut work)
            };
            let (mut plain, mut w) = (start.clone(), start.clone());
            let old: Vec<u16> = start.iter().map(|&w| kind.bits(w)).collect();
            let mut bits = old.clone();
            assert_eq!(run(&mut plain, None), 0);
            let lost = run(&mut w, Some((kind, &mut bits)));
            assert_eq!(plain, w);
            assert!(w.iter().zip(&bits).all(|(&w, &bits)| kind.bits(w) == bits));
            let moved = start.iter().zip(&w).zip(old.iter().zip(&bits));
            let right = moved.filter(|((a, b), (old, new))| a != b && old == new).count();
            assert!(lost == right as u64 && right > 0 && right < bits.len(), "{lost} {right}");
        }
    }
}
