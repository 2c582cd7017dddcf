use super::*;
use crate::reference;

fn values(n: usize, seed: u64) -> Vec<f32> {
    (0..n as u64).map(|i| crate::normal(seed, i)).collect()
}

fn rounded(kind: HalfKind, x: &[f32]) -> Vec<u16> {
    x.iter().map(|&x| kind.bits(x)).collect()
}

/// A (m×k) and B (k×n), each also as its transpose and as halves: all ways to hold the same factor.
struct Case {
    kind: HalfKind,
    size: (usize, usize, usize),
    a: Vec<f32>,
    b: Vec<f32>,
    a_turned: Vec<f32>,
    b_turned: Vec<f32>,
    halves: [Vec<u16>; 4],
}

fn turned(x: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    (0..rows * cols).map(|i| x[i % rows * cols + i / rows]).collect()
}

impl Case {
    fn new(kind: HalfKind, m: usize, n: usize, k: usize) -> Case {
        let (a, b) = (values(m * k, 1), values(k * n, 2));
        let (a_turned, b_turned) = (turned(&a, m, k), turned(&b, k, n));
        let halves = [&a, &b, &a_turned, &b_turned].map(|x| rounded(kind, x));
        Case { kind, size: (m, n, k), a, b, a_turned, b_turned, halves }
    }

    fn factors(&self) -> [[Factor<'_>; 4]; 2] {
        let (m, n, k) = self.size;
        let [a, b, a_turned, b_turned] = &self.halves;
        [
            [
                Mat::new(&self.a, m, k).into(),
                Mat::new(&self.a_turned, k, m).transposed().into(),
                Factor::halves(a, m, k),
                Factor::halves(a_turned, k, m).transposed(),
            ],
            [
                Mat::new(&self.b, k, n).into(),
                Mat::new(&self.b_turned, n, k).transposed().into(),
                Factor::halves(b, k, n),
                Factor::halves(b_turned, n, k).transposed(),
            ],
        ]
    }

    fn product(&self, threads: usize, a: Factor, b: Factor, init: Init) -> Vec<f32> {
        let (m, n, _) = self.size;
        let mut c = vec![0.5; m * (n + 3)];
        let mut work = vec![0.0; mixed_workspace(threads, 0)];
        mixed_matmul(&Team::new(threads), self.kind, a, b, init, &mut c, (n + 3, 2), &mut work);
        for row in c.chunks(n + 3) {
            assert!([row[0], row[1], row[n + 2]] == [0.5; 3], "written beside the window");
        }
        c.chunks(n + 3).flat_map(|row| row[2..n + 2].to_vec()).collect()
    }

    /// (the product of the rounded factors, Σ|a·b|) of each output.
    fn right(&self) -> Vec<(f64, f64)> {
        let (m, n, k) = self.size;
        let value = |bits: &u16| f64::from(self.kind.value(*bits));
        let [a, b, ..] = &self.halves;
        (0..m * n)
            .map(|i| {
                let terms = (0..k).map(|t| value(&a[i / n * k + t]) * value(&b[t * n + i % n]));
                terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()))
            })
            .collect()
    }
}

#[test]
fn products_agree_with_f64_within_the_tolerance_at_every_level() {
    let _level = crate::isa::hold();
    for kind in [HalfKind::Bf16, HalfKind::F16] {
        for (m, n, k) in [(1, 1, 1), (33, 31, 70), (64, 96, 128), (5, 130, 4100), (300, 40, 33)] {
            let case = Case::new(kind, m, n, k);
            let right = case.right();
            let bias = values(n, 3);
            for isa in Isa::available() {
                isa.force();
                for (start, init) in
                    [(0.0, Init::Zero), (0.5, Init::Keep), (f64::NAN, Init::Bias(&bias))]
                {
                    let [a, b] = case.factors();
                    let found = case.product(2, a[0], b[0], init);
                    for (i, (found, (right, size))) in found.iter().zip(&right).enumerate() {
                        let start = if start.is_nan() { f64::from(bias[i % n]) } else { start };
                        let far = (f64::from(*found) - right - start).abs();
                        let may = TOLERANCE * (size + start.abs());
                        assert!(far <= may, "{kind:?} {isa:?} {m}×{n}×{k} at {i}: {far} > {may}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_way_to_hold_a_factor_and_every_team_gives_the_same_bits() {
    let _level = crate::isa::hold();
    for kind in [HalfKind::Bf16, HalfKind::F16] {
        let case = Case::new(kind, 90, 75, 100);
        for isa in Isa::available() {
            isa.force();
            let [a, b] = case.factors();
            let first = case.product(1, a[0], b[0], Init::Zero);
            for (a, b) in a.iter().flat_map(|&a| b.iter().map(move |&b| (a, b))) {
                assert!(case.product(3, a, b, Init::Zero) == first, "{kind:?} {isa:?}");
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_the_rows_beside_it() {
    let _level = crate::isa::hold();
    let (m, n, k) = (70, 40, 96);
    let case = Case::new(HalfKind::Bf16, m, n, k);
    for isa in Isa::available() {
        isa.force();
        let [a, b] = case.factors();
        let all = case.product(2, a[0], b[0], Init::Zero);
        let mut work = vec![0.0; mixed_workspace(2, 0)];
        for r in [0, 31, 32, 69] {
            let row = Mat::new(&case.a[r * k..(r + 1) * k], 1, k).into();
            let mut c = vec![0.0; n];
            let team = Team::new(2);
            mixed_matmul(&team, case.kind, row, b[2], Init::Zero, &mut c, (n, 0), &mut work);
            assert!(c == all[r * n..(r + 1) * n], "{isa:?} row {r}");
        }
    }
}

#[test]
fn what_is_no_number_stays_none_and_denormal_factors_may_count_as_zero() {
    let _level = crate::isa::hold();
    for isa in Isa::available() {
        isa.force();
        let mut case = Case::new(HalfKind::Bf16, 40, 40, 64);
        case.a[64 + 3] = f32::NAN;
        let [a, b] = case.factors();
        let found = case.product(2, a[0], b[0], Init::Zero);
        let (none, some) = (&found[40..80], &found[80..]);
        assert!(none.iter().all(|x| x.is_nan()) && some.iter().all(|x| x.is_finite()));
        let (tiny, one) = (vec![1e-40; 64], vec![1.0; 64 * 32]);
        let team = Team::new(1);
        let (mut c, mut work) = (vec![0.0; 32], vec![0.0; mixed_workspace(1, 0)]);
        let (a, b) = (Mat::new(&tiny, 1, 64).into(), Mat::new(&one, 64, 32).into());
        mixed_matmul(&team, HalfKind::Bf16, a, b, Init::Zero, &mut c, (32, 0), &mut work);
        assert!(c.iter().all(|&x| (0.0..=64.0 * 1.01e-40).contains(&x)), "{isa:?}: {}", c[0]);
    }
}

#[test]
fn the_step_of_adam_is_the_same_and_lost_updates_are_counted() {
    let _level = crate::isa::hold();
    let n = 9001;
    let step = AdamStepOf(1e-4).get();
    for isa in Isa::available() {
        isa.force();
        for kind in [HalfKind::Bf16, HalfKind::F16] {
            let team = Team::new(2);
            let (mut w, mut g) = (values(n, 1), values(n, 2));
            g[..100].fill(0.0);
            let mut halves = rounded(kind, &w);
            let (before, bits_before) = (w.clone(), halves.clone());
            let (mut m, mut v) = (vec![0.0; n], vec![0.0; n]);
            let lost = adam_mixed(&team, step, (kind, &mut halves), &mut w, &g, &mut m, &mut v);
            let (mut w2, mut m2, mut v2) = (before.clone(), vec![0.0; n], vec![0.0; n]);
            crate::adam(&team, step, &mut w2, &g, &mut m2, &mut v2);
            assert!(w == w2 && m == m2 && v == v2);
            assert_eq!(halves, rounded(kind, &w));
            let right = (0..n).filter(|&i| {
                w[i] != before[i] && kind.value(halves[i]) == kind.value(bits_before[i])
            });
            let right = right.count() as u64;
            assert_eq!(lost, right);
            assert!(lost > n as u64 / 2 && lost < n as u64 - 100, "{kind:?}: {lost}");
        }
    }
}

struct AdamStepOf(f32);
impl AdamStepOf {
    fn get(self) -> crate::AdamStep {
        crate::AdamStep {
            rate: self.0,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            decay: 0.0,
            correction1: 0.1,
            correction2: 0.001,
            gradient_scale: 1.0,
        }
    }
}

#[test]
fn the_softmax_gradient_agrees_with_finite_differences() {
    let _level = crate::isa::hold();
    let (rows, vocab) = (5, 37);
    let z = values(rows * vocab, 4);
    let targets = [3, 36, u32::MAX, 0, 20];
    for cap in [None, Some(2.0f32)] {
        let bend = |z: f64| cap.map_or(z, |c| f64::from(c) * (z / f64::from(c)).tanh());
        let losses_of = |z: &[f64]| -> Vec<f64> {
            z.chunks(vocab)
                .zip(targets)
                .map(|(z, t)| match t {
                    u32::MAX => 0.0,
                    t => {
                        let log_z = z.iter().map(|&z| bend(z).exp()).sum::<f64>().ln();
                        log_z - bend(z[t as usize])
                    }
                })
                .collect()
        };
        let wide: Vec<f64> = z.iter().map(|&z| f64::from(z)).collect();
        let right = reference::numeric_gradient(&wide, |z| 0.25 * losses_of(z).iter().sum::<f64>());
        for isa in Isa::available() {
            isa.force();
            let team = Team::new(2);
            let mut d: Vec<f32> = z.clone();
            if let Some(limit) = cap {
                crate::soft_cap(&team, &mut d, limit);
            }
            let (mut losses, mut log_z) = (vec![0.0; rows], vec![0.0; rows]);
            softmax_gradient(&team, (vocab, cap), 0.25, &targets, &mut d, &mut losses, &mut log_z);
            reference::assert_close(&losses, &losses_of(&wide), 1e-6, "loss");
            reference::assert_close(&d, &right, 1e-6, "d_logits");
            assert!(log_z[2] == 0.0 && log_z[0] > 3.0);
        }
    }
}

#[test]
fn rows_of_a_table_and_both_ways_between_widths() {
    let _level = crate::isa::hold();
    let table = values(60, 5);
    for isa in Isa::available() {
        isa.force();
        for kind in [HalfKind::Bf16, HalfKind::F16] {
            let team = Team::new(2);
            let mut bits = vec![0; 60];
            round_halves(&team, kind, &table, &mut bits);
            assert_eq!(bits, rounded(kind, &table));
            let mut wide = vec![0.0; 60];
            widen_halves(&team, kind, &bits, &mut wide);
            let mut out = vec![1.0; 40];
            half_embedding(&team, (kind, &bits), &[2, 0], 20, Init::Keep, &mut out);
            let right = wide[40..].iter().chain(&wide[..20]).map(|x| x + 1.0);
            assert!(out.iter().copied().eq(right));
        }
    }
}
