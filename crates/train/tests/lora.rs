//! Adapters beside frozen weights, held against the model that has them merged in.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::adapted::{VOCAB, ab, adapters, base, pair};
use kernels::{HalfKind, QuantKind, Team};
use ledger::Account;
use models::*;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use tensor::{MatrixKind, Parameters};
use train::*;

/// Losses and gradients of one step.
fn step(model: &Model, recompute: Recompute) -> (Vec<f32>, Parameters) {
    let mut batch = Batch::default();
    for (key, tokens) in [(0u32, 33), (1, 2), (2, 20)] {
        let ids: Vec<u32> = (0..tokens).map(|t| (t * 7 + key) % VOCAB as u32).collect();
        batch.push_known(&ids, u64::from(key));
    }
    let team = Arc::new(Team::new(2));
    let workload =
        Workload { rows: batch.rows(), sequences: 3, longest: 33, threads: 2, training: true };
    let mut runner = Runner::recomputing(model, workload, recompute, &team).unwrap();
    let config = model.config();
    let layout = Arc::new(model.layout().with_room_for(|spec| config.trains(&spec.name)));
    let mut gradients = Parameters::zeros(&layout, "gradients", Account::Gradients).unwrap();
    let dropout = Some(Dropout { rate: 0.1, hidden: 0.0, stream: 9 });
    let losses = runner.train(model, &batch, 0.1, dropout, &mut gradients).to_vec();
    (losses, gradients)
}

fn close(got: &[f32], right: &[f32], tolerance: f32, what: &str) {
    assert_eq!(got.len(), right.len(), "{what}");
    let scale = right.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
    for (i, (a, b)) in got.iter().zip(right).enumerate() {
        assert!((a - b).abs() <= tolerance * scale, "{what}[{i}]: {a} for {b} of {scale}");
    }
}

fn check(kind: MlpConfig, kept: Option<MatrixKind>, tolerance: f32) {
    let (frozen, merged) = pair(kind, kept);
    let (losses, own) = step(&frozen, Recompute::None);
    let (right, whole) = step(&merged, Recompute::None);
    close(&losses, &right, tolerance, "losses");
    let c = base(kind, None);
    for i in 0..c.num_hidden_layers {
        for target in adapters(kind).targets {
            let what = format!("{kind:?} {kept:?} layer {i} {}", target.name());
            let name = format!("layers.{i}.{}", target.matrix());
            let spec = whole.layout().specs().iter().find(|s| s.name == name).unwrap();
            let (rows, inputs) = target.shape(&c);
            let d_w = &whole.flat()[spec.range.clone()][rows.start * inputs..rows.end * inputs];
            let (a, b) = ab(frozen.weights(), i, target);
            // W + s·B·A: d_A = s·Bᵀ·d_W, d_B = s·d_W·Aᵀ.
            let d_a: Vec<f32> = (0..3 * inputs)
                .map(|at| {
                    let (r, col) = (at / inputs, at % inputs);
                    let rows = 0..rows.len();
                    2.0 * rows.map(|row| b[row * 3 + r] * d_w[row * inputs + col]).sum::<f32>()
                })
                .collect();
            let d_b: Vec<f32> = (0..rows.len() * 3)
                .map(|at| {
                    let (row, r) = (at / 3, at % 3);
                    let cols = 0..inputs;
                    2.0 * cols.map(|col| a[r * inputs + col] * d_w[row * inputs + col]).sum::<f32>()
                })
                .collect();
            let (got_a, got_b) = ab(&own, i, target);
            close(got_a, &d_a, tolerance, &format!("{what} A"));
            close(got_b, &d_b, tolerance, &format!("{what} B"));
        }
    }
    let bits = |g: &Parameters| g.flat().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    for recompute in Recompute::ALL {
        let (again, gradients) = step(&frozen, recompute);
        assert!(again == losses && bits(&gradients) == bits(&own), "{}", recompute.name());
    }
}

#[test]
fn gradients_are_those_of_the_merged_model() {
    for kind in [MlpConfig::Swiglu, MlpConfig::Gelu, MlpConfig::Relu2] {
        check(kind, None, 2e-5);
        check(kind, Some(MatrixKind::Half(HalfKind::Bf16)), 2e-5);
        check(kind, Some(MatrixKind::Half(HalfKind::F16)), 2e-5);
        // Quantised products round activations to 15 bits.
        check(kind, Some(MatrixKind::Quant(QuantKind::Q8_0)), 3e-3);
    }
}

fn sequences(seed: u64) -> Vec<Vec<u32>> {
    let one = |s: u64| (0..20).map(|t| ((s * 3 + t * (seed + 1)) % VOCAB as u64) as u32).collect();
    (0..24).map(one).collect()
}

/// Only what adapters need is allocated beside the frozen weights, and it is what was planned; a run
/// that is stopped goes on to the bit; frozen weights stay as they are.
#[test]
fn a_run_learns_adapters_alone_and_resumes_to_the_bit() {
    for (kept, optimizer) in [
        (None, OptimizerKind::Adamw),
        (Some(MatrixKind::Quant(QuantKind::Q8_0)), OptimizerKind::Adamw),
        (Some(MatrixKind::Half(HalfKind::Bf16)), OptimizerKind::Muon),
    ] {
        let made = || pair(MlpConfig::Swiglu, kept).0;
        let train = Recipe {
            batch: 8,
            micro_batch: 4,
            epochs: 6,
            learning_rate: 3e-2,
            warmup_steps: 2,
            optimizer,
            ..Recipe::default()
        };
        let config = TrainConfig { model: made().config().clone(), train };
        let (data, valid) = (sequences(1), sequences(1)[..5].to_vec());
        let (team, temp) = (Arc::new(Team::new(2)), tempfile::tempdir().unwrap());
        let run_in = |name: &str, resume: bool, stop_at: u64| {
            let (stop, dir) = (AtomicUsize::new(0), temp.path().join(name));
            let options = RunOptions {
                config: &config,
                train: &data,
                valid: &valid,
                tokenizer: b"{}",
                data_hash: "d",
                data_name: "data",
                dir: &dir,
                resume,
                team: &team,
                stop: &stop,
            };
            let start = Start { model: Some(made()), ..Start::default() };
            run_from(start, &options, &mut |event| {
                if let Event::Step { state, .. } = event
                    && state.step == stop_at
                {
                    stop.store(2, std::sync::atomic::Ordering::Relaxed);
                }
            })
            .unwrap()
        };
        let whole = run_in("whole", false, 0);
        let curve = &whole.state.curve;
        assert!(whole.state.best_loss.unwrap() < curve[0].valid_loss - 0.05, "{curve:?}");
        assert_eq!(run_in("cut", false, 7).stopped_by, Some(2));
        let again = run_in("cut", true, 0);
        assert_eq!(again.state.curve, whole.state.curve);
        let bits = |m: &Model| m.weights().flat().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert!(bits(&again.model) == bits(&whole.model), "{kept:?}");
        let before = made();
        for spec in before.layout().specs().iter().filter(|s| !is_adapter(&s.name)) {
            let range = spec.range.clone();
            assert_eq!(whole.model.weights().flat()[range.clone()], before.weights().flat()[range]);
        }
        let folder = temp.path().join("whole");
        assert!(folder.join(ADAPTER_FILE).is_file() && !folder.join(CONFIG_FILE).exists());

        let shape = BatchShape::full(&config.train, 20);
        let plan = Trainer::plan(&config, shape, 2).unwrap();
        let adapters = before.layout().specs().iter().filter(|s| is_adapter(&s.name));
        let values: u64 = adapters.map(|s| s.count().next_multiple_of(16) as u64).sum();
        let gradients = plan.of(Account::Gradients);
        assert!((4 * values - 64..=4 * values).contains(&gradients), "{gradients} for {values}");
    }
}
