//! Adapters beside frozen weights, held against the model that has them merged in.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use kernels::{HalfKind, QuantKind, Team};
use ledger::Account;
use models::*;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use tensor::{MatrixKind, PANEL_ROWS, Parameters, QuantBlock, Storage, pack_panel};
use train::*;

const VOCAB: usize = 70;
const F: usize = 64;

fn base(kind: MlpConfig, lora: Option<LoraConfig>) -> TransformerConfig {
    TransformerConfig {
        hidden_size: 32,
        num_attention_heads: 4,
        num_key_value_heads: Some(2),
        intermediate_size: F,
        norm: NormConfig::Rms,
        positions: PositionConfig::Rotary,
        mlp: kind,
        bias: false,
        qkv_bias: Some(true),
        qk_norm: true,
        post_norm: true,
        tie_word_embeddings: kind != MlpConfig::Gelu,
        final_logit_softcapping: Some(4.0),
        lora,
        ..TransformerConfig::email(VOCAB, 40)
    }
}

fn adapters(kind: MlpConfig) -> LoraConfig {
    let targets = LoraTarget::ALL.into_iter();
    let targets = targets.filter(|t| t.is_in(&base(kind, None))).collect();
    LoraConfig { rank: 3, alpha: 6.0, targets }
}

fn bits_of(row: usize, column: usize) -> u64 {
    kernels::mix((row * 1000 + column) as u64)
}

/// A matrix of a kind, packed; and its values.
fn matrix(kind: MatrixKind, rows: usize, cols: usize) -> (Vec<u8>, Vec<f32>) {
    let half = |row: usize, column: usize| {
        let (sign, rest) = ((bits_of(row, column) & 1) << 15, bits_of(row, column) / 2);
        // Of 0.03 to 0.25 in either kind.
        let bf16 = kind == MatrixKind::Half(HalfKind::Bf16);
        (sign + if bf16 { 0x3D00 + rest % 0x180 } else { 0x2800 + rest % 0xC00 }) as u16
    };
    let block = |row: usize, index: usize| {
        let codes = std::array::from_fn(|i| bits_of(row, index * 32 + i) as u8);
        QuantBlock { codes, d: 0x1000, ..QuantBlock::ZERO }
    };
    let mut panels = vec![0; kind.matrix_bytes(rows, cols)];
    for (p, panel) in panels.chunks_exact_mut(kind.panel_bytes(cols)).enumerate() {
        let first = p * PANEL_ROWS;
        match kind {
            MatrixKind::Half(kind) => {
                kind.pack_panel(cols, panel, |row, column| half(first + row, column));
            }
            MatrixKind::Quant(kind) => {
                pack_panel(kind, cols, panel, |row| {
                    Some(move |_, index| block(first + row, index))
                });
            }
        }
    }
    let value = |at: usize| match kind {
        MatrixKind::Half(kind) => kind.value(half(at / cols, at % cols)),
        MatrixKind::Quant(kind) => block(at / cols, at % cols / 32).values(kind)[at % 32],
    };
    (panels, (0..rows * cols).map(value).collect())
}

/// A model with adapters whose B is not zero, kept as `kind` says; and the same with all weights as
/// values and the adapters merged in.
fn pair(kind: MlpConfig, kept: Option<MatrixKind>) -> (Model, Model) {
    let lora = adapters(kind);
    let full = ModelConfig::Transformer(base(kind, None));
    let mut merged = Model::new(&full).unwrap();
    merged.weights_mut().initialise(5);
    let mut config = base(kind, Some(lora.clone()));
    let layout = Arc::clone(merged.layout());
    let matrices = || layout.specs().iter().filter(|s| s.shape.len() == 2);
    config.storage = match kept {
        Some(kind) => matrices().map(|s| (s.name.clone(), vec![(kind, s.shape[0])])).collect(),
        None => Storage::new(),
    };
    if let Some(kind) = kept {
        for spec in matrices() {
            let (_, values) = matrix(kind, spec.shape[0], spec.shape[1]);
            merged.weights_mut().flat_mut()[spec.range.clone()].copy_from_slice(&values);
        }
    }
    let mut frozen = Model::new(&ModelConfig::Transformer(config)).unwrap();
    let own = Arc::clone(frozen.layout());
    for spec in own.specs() {
        let (_, values, blocks) = frozen.weights_mut().parts_mut();
        let place = &mut values[spec.range.clone()];
        if let Some(part) = spec.parts.first() {
            blocks[part.bytes.clone()]
                .copy_from_slice(&matrix(part.kind, spec.shape[0], spec.shape[1]).0);
        } else if is_adapter(&spec.name) {
            let key = spec.name.len() as u64;
            place
                .iter_mut()
                .enumerate()
                .for_each(|(i, v)| *v = 0.2 * kernels::normal(key, i as u64));
        } else {
            let same = layout.specs().iter().find(|s| s.name == spec.name).unwrap();
            place.copy_from_slice(&merged.weights().flat()[same.range.clone()]);
        }
    }
    let c = base(kind, None);
    for i in 0..c.num_hidden_layers {
        for &target in &lora.targets {
            let name = format!("layers.{i}.{}", target.matrix());
            let spec = layout.specs().iter().find(|s| s.name == name).unwrap();
            let (rows, inputs) = target.shape(&c);
            let (a, b) = ab(frozen.weights(), i, target);
            let start = spec.range.start + rows.start * inputs;
            let w = &mut merged.weights_mut().flat_mut()[start..start + rows.len() * inputs];
            for (at, w) in w.iter_mut().enumerate() {
                let (row, col) = (at / inputs, at % inputs);
                *w += (0..3).map(|r| 2.0 * b[row * 3 + r] * a[r * inputs + col]).sum::<f32>();
            }
        }
    }
    (frozen, merged)
}

/// A (3×inputs) and B (rows×3) of an adapter, or their gradients.
fn ab(of: &Parameters, layer: usize, target: LoraTarget) -> (&[f32], &[f32]) {
    let get = |part: &str| {
        let name = format!("layers.{layer}.{}.{part}.weight", target.prefix());
        let spec = of.layout().specs().iter().find(|s| s.name == name).unwrap();
        &of.flat()[spec.range.clone()]
    };
    (get("lora_a"), get("lora_b"))
}

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
