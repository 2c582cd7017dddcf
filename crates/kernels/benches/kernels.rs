//! GFLOP/s of the products that training is made of: `cargo bench -p autoreg-kernels [-- THREADS]`.
//!
//! Medians of nine runs after two that are not counted. Compare ratios within a run: machines are
//! shared and their clocks move.
#![expect(clippy::print_stdout, reason = "a benchmark prints what it measures")]

use kernels::*;
use std::time::Instant;

fn values(n: usize) -> Vec<f32> {
    (0..n as u64).map(|i| normal(1, i)).collect()
}

fn report(what: &str, flops: f64, mut f: impl FnMut()) {
    let mut times: Vec<f64> = (0..11)
        .map(|_| {
            let started = Instant::now();
            f();
            started.elapsed().as_secs_f64()
        })
        .skip(2)
        .collect();
    times.sort_by(f64::total_cmp);
    let (median, best) = (times[times.len() / 2], times[0]);
    println!(
        "{what:<44}{:>9.2} ms{:>8.0} GFLOP/s   (best {:>6.0})",
        1e3 * median,
        flops / median / 1e9,
        flops / best / 1e9
    );
}

/// Forward, gradient by the input, gradient of the weights: of a layer of width 512.
const LAYER: [(usize, usize, usize); 3] = [(2048, 512, 512), (2048, 1408, 512), (2048, 512, 1408)];

fn in_f32(team: &Team) {
    for (m, n, k) in LAYER {
        let (x, d, w) = (values(m * k), values(m * n), values(n * k));
        let mut packed = vec![0.0; packed_len(n, k)];
        pack_transposed(team, &w, n, k, &mut packed);
        let mut c = vec![0.0; (m * n).max(m * k).max(n * k)];
        let flops = 2.0 * (m * n * k) as f64;
        let (x, d) = (Mat::new(&x, m, k), Mat::new(&d, m, n));
        let forward = Mat { data: &packed, rows: k, cols: n, row_stride: 0, col_stride: 1 };
        let mut product = |what: &str, a: Mat, b: Mat, init: fn() -> Init<'static>, n| {
            report(&format!("f32 {what} of {m}×{n}×{k}"), flops, || {
                matmul(team, a, b, init(), &mut c, n, 0);
            });
        };
        product("x·Wᵀ", x, forward, || Init::Zero, n);
        product("d·W", d, Mat::new(&w, n, k), || Init::Zero, k);
        product("dᵀ·x", d.transposed(), x, || Init::Keep, k);
    }
}

/// As [`in_f32`].
fn in_16_bits(team: &Team, threads: usize) {
    for (m, n, k) in LAYER {
        let (x, d, w) = (values(m * k), values(m * n), values(n * k));
        let mut bits = vec![0; w.len()];
        round_halves(team, HalfKind::Bf16, &w, &mut bits);
        let w = || Factor::halves(&bits, n, k);
        let (x, d) = (|| Mat::new(&x, m, k), || Mat::new(&d, m, n));
        let mut c = vec![0.0; (m * n).max(m * k).max(n * k)];
        let mut work = vec![0.0; mixed_workspace(threads, m.max(n) * k.max(n))];
        let flops = 2.0 * (m * n * k) as f64;
        let mut product = |what: &str, a: Factor, b: Factor, init: fn() -> Init<'static>, n| {
            report(&format!("bf16 {what} of {m}×{n}×{k}"), flops, || {
                mixed_matmul(team, HalfKind::Bf16, a, b, init(), &mut c, (n, 0), &mut work);
            });
        };
        product("x·Wᵀ", x().into(), w().transposed(), || Init::Zero, n);
        product("d·W", d().into(), w(), || Init::Zero, k);
        product("dᵀ·x", d().transposed().into(), x().into(), || Init::Keep, k);
    }
}

fn main() {
    let threads = std::env::args().filter_map(|a| a.parse().ok()).next().unwrap_or(1);
    let team = Team::new(threads);
    println!("{threads} threads, {}", Isa::current().name());
    for (m, n, k) in
        [(4096, 64, 64), (4096, 192, 64), (4096, 256, 64), (4096, 64, 256), (1024, 1024, 1024)]
    {
        let (a, b) = (values(m * k), values(k * n));
        let mut c = vec![0.0; m * n];
        let flops = 2.0 * (m * n * k) as f64;
        report(&format!("A·B {m}×{n}×{k}"), flops, || {
            matmul(&team, Mat::new(&a, m, k), Mat::new(&b, k, n), Init::Zero, &mut c, n, 0);
        });
        let mut c = vec![0.0; n * k];
        let d = values(m * n);
        report(&format!("Aᵀ·B {n}×{k}×{m}"), flops, || {
            let d = Mat::new(&d, m, n).transposed();
            matmul(&team, d, Mat::new(&a, m, k), Init::Keep, &mut c, k, 0);
        });
    }
    in_f32(&team);
    in_16_bits(&team, threads);
    for width in [64, 96] {
        let (rows, vocab) = (4096, 4000);
        let w: Vec<f32> = values(vocab * width).iter().map(|w| 0.1 * w).collect();
        let (x, b) = (values(rows * width), values(vocab));
        let targets: Vec<u32> = (0..rows as u32).map(|r| r % vocab as u32).collect();
        let (mut losses, mut dx) = (vec![0.0; rows], vec![0.0; rows * width]);
        let (mut dw, mut db) = (vec![0.0; vocab * width], vec![0.0; vocab]);
        let mut work = vec![0.0; head_workspace(width, vocab, true)];
        let mut log_z = vec![0.0; rows];
        let shape = HeadShape { rows, width, vocab, soft_cap: None };
        let flops = 6.0 * (rows * width * vocab) as f64;
        report(&format!("head {rows}×{width}×{vocab}, with gradients"), flops, || {
            let (d_x, d_weight, d_bias) = (&mut dx[..], &mut dw[..], &mut db[..]);
            let log_z = &mut log_z[..];
            let mut out = HeadOutput::Gradients { scale: 1e-3, d_x, d_weight, d_bias, log_z };
            head_cross_entropy(
                &team,
                shape,
                &x,
                &w,
                &b,
                &targets,
                &mut losses,
                &mut out,
                &mut work,
            );
        });
    }
    for (sequences, tokens, heads, d) in [(64, 64, 4, 16), (1, 1024, 9, 64), (1, 4096, 9, 64)] {
        let shape =
            AttentionShape { heads, kv_heads: heads, head_dim: d, scale: 0.125, window: None };
        let (rows, c) = (sequences * tokens, heads * d);
        let (qkv, d_out) = (values(rows * 3 * c), values(rows * c));
        let (mut out, mut lse) = (vec![0.0; rows * c], vec![0.0; rows * heads]);
        let mut d_qkv = vec![0.0; qkv.len()];
        let mut work = vec![0.0; attention_workspace(&shape, threads, tokens)];
        let spans: Vec<(usize, usize)> = (0..sequences).map(|s| (s * tokens, tokens)).collect();
        let segments: Vec<Segment> = spans
            .iter()
            .map(|&(row, queries)| {
                let from = row * 3 * c + c;
                let kv = Kv::whole(&qkv[from..], &qkv[from + c..], 3 * c);
                Segment { row, queries, past: 0, kv }
            })
            .collect();
        let pairs = sequences as f64 * (tokens * tokens) as f64 / 2.0;
        let one = 2.0 * pairs * c as f64;
        report(&format!("attention {sequences}×{tokens}, {heads}×{d}"), 2.0 * one, || {
            attention_forward(&team, &shape, &segments, &qkv, 3 * c, &mut out, &mut lse, &mut work);
        });
        report("  its gradient", 5.0 * one, || {
            attention_backward(
                &team, &shape, &spans, &qkv, &out, &lse, &d_out, &mut d_qkv, &mut work,
            );
        });
    }
    let (sequences, tokens, n) = (64, 64, 96);
    let spans: Vec<(usize, usize)> = (0..sequences).map(|s| (s * tokens, tokens)).collect();
    let shape = RnnShape { sequences: &spans, hidden: n };
    let (w, b) = (values(n * n), values(n));
    let mut packed = vec![0.0; packed_len(n, n)];
    pack_transposed(&team, &w, n, n, &mut packed);
    let mut h = values(sequences * tokens * n);
    let mut work = vec![0.0; rnn_workspace(n, threads)];
    let flops = 2.0 * (sequences * tokens * n * n) as f64;
    report("rnn 64×64, 96", flops, || {
        rnn_forward(&team, shape, &packed, &b, &mut h, &mut [], &mut work)
    });
    let mut d = values(h.len());
    let (mut dw, mut db) = (vec![0.0; n * n], vec![0.0; n]);
    report("  its gradient", 2.0 * flops, || {
        rnn_backward(&team, shape, &w, &h, &mut d, &mut dw, &mut db, &mut work);
    });
}
