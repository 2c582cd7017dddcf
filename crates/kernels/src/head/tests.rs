use super::*;
use crate::{Isa, reference};

fn values(n: usize, seed: u64, scale: f32) -> Vec<f32> {
    (0..n as u64).map(|i| scale * crate::normal(seed, i)).collect()
}
fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

fn plain(
    x: &[f64],
    w: &[f64],
    b: &[f64],
    (width, cap): (usize, Option<f32>),
    targets: &[u32],
) -> Vec<f64> {
    let bend = |z: f64| cap.map_or(z, |cap| f64::from(cap) * (z / f64::from(cap)).tanh());
    x.chunks(width)
        .zip(targets)
        .map(|(x, &t)| {
            if t == u32::MAX {
                return 0.0;
            }
            let z: Vec<f64> = w
                .chunks(width)
                .enumerate()
                .map(|(v, w)| {
                    let z = w.iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
                    bend(z + b.get(v).copied().unwrap_or(0.0))
                })
                .collect();
            let top = z.iter().copied().fold(f64::MIN, f64::max);
            top + z.iter().map(|z| (z - top).exp()).sum::<f64>().ln() - z[t as usize]
        })
        .collect()
}

#[test]
fn loss_and_gradients_agree_with_finite_differences() {
    for soft_cap in [None, Some(1.5), Some(30.0)] {
        loss_and_gradients(soft_cap);
    }
}

fn loss_and_gradients(soft_cap: Option<f32>) {
    let _level = crate::isa::hold();
    let (rows, width, vocab) = (70, 5, 9);
    let (x, w, b) =
        (values(rows * width, 1, 1.0), values(vocab * width, 2, 1.0), values(vocab, 3, 1.0));
    let mut targets: Vec<u32> = (0..rows as u32).map(|r| r * 7 % 9).collect();
    targets[3] = u32::MAX;
    for isa in Isa::available() {
        isa.force();
        let team = Team::new(2);
        let shape = HeadShape { rows, width, vocab, soft_cap };
        let mut losses = vec![0.0; rows];
        let (mut dx, mut dw, mut db) =
            (vec![7.0; rows * width], vec![0.0; vocab * width], vec![0.0; vocab]);
        let mut work = vec![0.0; head_workspace(width, vocab, true)];
        let mut log_z = vec![7.0; rows];
        let mut out = HeadOutput::Gradients {
            scale: 0.5,
            d_x: &mut dx,
            d_weight: &mut dw,
            d_bias: &mut db,
            log_z: &mut log_z,
        };
        head_cross_entropy(&team, shape, &x, &w, &b, &targets, &mut losses, &mut out, &mut work);
        let (x64, w64, b64) = (wide(&x), wide(&w), wide(&b));
        reference::assert_close(
            &losses,
            &plain(&x64, &w64, &b64, (width, soft_cap), &targets),
            1e-6,
            "loss",
        );
        for (r, &target) in targets.iter().enumerate() {
            let z = |v: usize| -> f64 {
                let (x, w) = (&x64[r * width..], &w64[v * width..(v + 1) * width]);
                let z = b64[v] + w.iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
                soft_cap.map_or(z, |cap| f64::from(cap) * (z / f64::from(cap)).tanh())
            };
            let right = match target {
                u32::MAX => 0.0,
                _ => (0..vocab).map(|v| z(v).exp()).sum::<f64>().ln(),
            };
            assert!((f64::from(log_z[r]) - right).abs() < 1e-5, "log_z of row {r}");
        }
        let sum = |l: Vec<f64>| 0.5 * l.iter().sum::<f64>();
        let right = reference::numeric_gradient(&x64, |x| {
            sum(plain(x, &w64, &b64, (width, soft_cap), &targets))
        });
        reference::assert_close(&dx, &right, 1e-6, "d_x");
        let right = reference::numeric_gradient(&w64, |w| {
            sum(plain(&x64, w, &b64, (width, soft_cap), &targets))
        });
        reference::assert_close(&dw, &right, 3e-6, "d_weight");
        let right = reference::numeric_gradient(&b64, |b| {
            sum(plain(&x64, &w64, b, (width, soft_cap), &targets))
        });
        reference::assert_close(&db, &right, 3e-6, "d_bias");
    }
}

#[test]
fn best_is_the_lowest_of_equals_and_bits_do_not_depend_on_threads() {
    let _level = crate::isa::hold();
    let (rows, width, vocab) = (130, 24, 1000);
    let x = values(rows * width, 1, 1.0);
    let mut w = values(vocab * width, 2, 1.0);
    // Entry 900 repeats entry 17: a tie wherever one of them is best.
    let copy: Vec<f32> = w[17 * width..18 * width].iter().map(|v| v * 3.0).collect();
    w[17 * width..18 * width].copy_from_slice(&copy);
    w[900 * width..901 * width].copy_from_slice(&copy);
    let targets: Vec<u32> = (0..rows as u32).collect();
    let mut seen = Vec::new();
    for isa in Isa::available() {
        isa.force();
        for threads in [1, 2, 3] {
            let team = Team::new(threads);
            let (mut ids, mut p, mut losses) = (vec![0; rows], vec![0.0; rows], vec![0.0; rows]);
            let mut work = vec![0.0; head_workspace(width, vocab, true)];
            let shape = HeadShape { rows, width, vocab, soft_cap: None };
            let mut out = HeadOutput::Best { ids: &mut ids, probabilities: &mut p };
            head_cross_entropy(
                &team,
                shape,
                &x,
                &w,
                &[],
                &targets,
                &mut losses,
                &mut out,
                &mut work,
            );
            for r in 0..rows {
                let z: Vec<f64> = reference::matmul_transposed(
                    &x[r * width..(r + 1) * width],
                    &w,
                    None,
                    1,
                    vocab,
                    width,
                );
                let top = z.iter().copied().fold(f64::MIN, f64::max);
                let right = z.iter().position(|&z| z == top).unwrap();
                assert_eq!(ids[r] as usize, right, "row {r}");
            }
            assert!(ids.contains(&17) && !ids.contains(&900));
            let (mut dx, mut dw) = (vec![0.0; rows * width], vec![0.0; vocab * width]);
            let mut log_z = vec![0.0; rows];
            let mut out = HeadOutput::Gradients {
                scale: 0.01,
                d_x: &mut dx,
                d_weight: &mut dw,
                d_bias: &mut [],
                log_z: &mut log_z,
            };
            head_cross_entropy(
                &team,
                shape,
                &x,
                &w,
                &[],
                &targets,
                &mut losses,
                &mut out,
                &mut work,
            );
            let bits: Vec<u32> =
                losses.iter().chain(&dx).chain(&dw).chain(&p).map(|x| x.to_bits()).collect();
            seen.push(bits);
        }
    }
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]));
}
