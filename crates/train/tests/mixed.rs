//! Training in 16 bits with FP32 master weights: near FP32, the same bits in any company, resumed to
//! the bit, and what its telemetry says.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{options, recipe};
use kernels::Team;
use models::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use train::*;

const VOCAB: usize = 300;

fn model() -> TransformerConfig {
    TransformerConfig {
        hidden_size: 48,
        num_attention_heads: 3,
        num_key_value_heads: Some(1),
        intermediate_size: 80,
        norm: NormConfig::Rms,
        positions: PositionConfig::Rotary,
        mlp: MlpConfig::Swiglu,
        ..TransformerConfig::email(VOCAB, 40)
    }
}

fn config(model: TransformerConfig, precision: Precision) -> TrainConfig {
    TrainConfig { model: ModelConfig::Transformer(model), train: Recipe { precision, ..recipe() } }
}

fn sequences(count: u64, seed: u64) -> Vec<Vec<u32>> {
    common::sequences(VOCAB as u64, 20..40, count, seed)
}

fn with_muon(config: TrainConfig) -> TrainConfig {
    let train = Recipe { optimizer: OptimizerKind::Muon, ..config.train };
    TrainConfig { train, ..config }
}

fn trainer(config: &TrainConfig, threads: usize, recompute: Recompute) -> Trainer {
    let shape = BatchShape::full(&config.train, 40).recomputing(recompute);
    Trainer::new(config, shape, &Arc::new(Team::new(threads))).unwrap()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Loss and gradient lie near those of FP32, for every kind of layer there is.
#[test]
fn gradients_are_near_those_of_f32() {
    let every = TransformerConfig {
        qk_norm: true,
        post_norm: true,
        tie_word_embeddings: true,
        mlp: MlpConfig::GegluTanh,
        ..model()
    };
    for model in [model(), every, TransformerConfig::email(VOCAB, 40)] {
        let data = sequences(8, 5);
        let all: Vec<u32> = (0..8).collect();
        let run = |precision| {
            let mut t = trainer(&config(model.clone(), precision), 2, Recompute::None);
            let report = t.step(&data, &all, 0, 1e-3);
            (report, t.gradients().flat().to_vec())
        };
        let (right, gradient) = run(Precision::F32);
        for (precision, far) in [(Precision::Bf16, 0.02), (Precision::F16, 0.003)] {
            let (report, found) = run(precision);
            assert!(report.applied, "{precision:?}");
            let mean = (report.loss_sum - right.loss_sum).abs() / right.targets as f64;
            assert!(mean < far, "{precision:?}: loss {mean}");
            let squares =
                |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>();
            let size = squares(&mut gradient.iter().copied());
            let off = squares(&mut gradient.iter().zip(&found).map(|(a, b)| a - b));
            let off = (off / size).sqrt();
            assert!(off > 1e-6 && off < far, "{precision:?}: gradient off by {off}");
            assert!((report.log_z - right.log_z).abs() < far);
        }
    }
}

/// The same bits on any number of threads, and with activations computed again.
#[test]
fn bits_depend_neither_on_threads_nor_on_recomputation() {
    for precision in [Precision::Bf16, Precision::F16] {
        let data = sequences(24, 3);
        let run = |threads, recompute| {
            let mut t = trainer(&config(model(), precision), threads, recompute);
            for step in 0..3 {
                let order = epoch_order(0, step, data.len());
                assert!(t.step(&data, &order[..8], step, 3e-3).applied);
            }
            bits(t.model.weights().flat())
        };
        let one = run(1, Recompute::None);
        for (threads, recompute) in [
            (2, Recompute::None),
            (5, Recompute::None),
            (2, Recompute::Attention),
            (2, Recompute::Layer),
        ] {
            assert!(one == run(threads, recompute), "{precision:?} {threads} {recompute:?}");
        }
    }
}

/// A sequence's losses are the same bits alone and among others.
#[test]
fn losses_do_not_depend_on_the_batch() {
    let data = sequences(8, 6);
    let mut t = trainer(&config(model(), Precision::Bf16), 2, Recompute::None);
    let (model, runner) = t.evaluator();
    let mut losses = |indices: &[usize]| {
        let (mut batch, mut ids) = (Batch::default(), Vec::new());
        indices.iter().for_each(|&i| Sequences::add_to(&data, i, &mut batch, &mut ids));
        bits(runner.evaluate(model, &batch).0)
    };
    let all = losses(&[0, 1, 2, 3, 4, 5, 6, 7]);
    let mut at = 0;
    for i in 0..8 {
        let alone = losses(&[i]);
        assert_eq!(alone, all[at..at + alone.len()], "sequence {i}");
        at += alone.len();
    }
    assert_eq!(at, all.len());
}

/// Master weights, moments, the loss's factor: all is kept, and a run goes on to the bit.
#[test]
fn a_resumed_run_equals_an_uninterrupted_one() {
    for (precision, muon) in
        [(Precision::Bf16, false), (Precision::F16, false), (Precision::Bf16, true)]
    {
        let config = config(model(), precision);
        let config = if muon { with_muon(config) } else { config };
        let data = (sequences(64, 1), sequences(9, 2));
        let data = (&data.0, &data.1);
        let team = Arc::new(Team::new(2));
        let temp = tempfile::tempdir().unwrap();
        let (whole, cut) = (temp.path().join("whole"), temp.path().join("cut"));
        let (never, stop) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let right =
            run(&options(&config, data, &whole, false, &team, &never), &mut |_| {}).unwrap();
        let first = run(&options(&config, data, &cut, false, &team, &stop), &mut |event| {
            if let Event::Step { state, .. } = event
                && state.step == 11
            {
                stop.store(2, Ordering::Relaxed);
            }
        });
        assert_eq!(first.unwrap().state.step, 11);
        let second = run(&options(&config, data, &cut, true, &team, &never), &mut |_| {}).unwrap();
        assert_eq!(bits(second.model.weights().flat()), bits(right.model.weights().flat()));
        assert_eq!(second.state.curve, right.state.curve);
        assert_eq!(second.state.loss_scale, right.state.loss_scale);
        assert_eq!(right.state.loss_scale.is_some(), precision == Precision::F16);
        let text = std::fs::read_to_string(whole.join("metrics.jsonl")).unwrap();
        let line: serde_json::Value = serde_json::from_str(text.lines().nth(5).unwrap()).unwrap();
        let lost = line["lost_update_share"].as_f64().unwrap();
        assert!((0.0..1.0).contains(&lost), "{line}");
        assert!(line["log_z_nats"].as_f64().unwrap() > 1.0, "{line}");
        assert!(line["largest_attention_score"].as_f64().is_some(), "{line}");
        assert_eq!(line["loss_scale"].is_number(), precision == Precision::F16);
    }
}

/// An overflow halves the factor and changes nothing else; training goes on.
#[test]
fn an_overflow_in_half_precision_is_skipped() {
    let data = sequences(8, 5);
    let all: Vec<u32> = (0..8).collect();
    let mut t = trainer(&config(model(), Precision::F16), 2, Recompute::None);
    t.set_loss_scale(Some(LossScale { factor: 1e30, steady: 7 }));
    let before = bits(t.model.weights().flat());
    let report = t.step(&data, &all, 0, 1e-3);
    assert!(report.overflowed && !report.applied && t.broken().is_none());
    assert_eq!(before, bits(t.model.weights().flat()));
    assert_eq!(t.loss_scale(), Some(LossScale { factor: 5e29, steady: 0 }));
    t.set_loss_scale(Some(LossScale { factor: 1024.0, steady: 0 }));
    let report = t.step(&data, &all, 0, 1e-3);
    assert!(report.applied && !report.overflowed);
    assert_eq!((report.loss_scale, t.loss_scale().unwrap().steady), (Some(1024.0), 1));
}

/// Small steps are lost in 16 bits and not in the master weights.
#[test]
fn lost_updates_are_told() {
    let data = sequences(8, 5);
    let all: Vec<u32> = (0..8).collect();
    let share = |rate| {
        let mut t = trainer(&config(model(), Precision::Bf16), 2, Recompute::None);
        let before = bits(t.model.weights().flat());
        let report = t.step(&data, &all, 0, rate);
        let moved = before.iter().zip(bits(t.model.weights().flat())).filter(|(a, b)| **a != *b);
        assert!(moved.count() > 0);
        report.lost_share.unwrap()
    };
    let (small, large) = (share(1e-6), share(1e-1));
    assert!(small > 0.5 && large < 0.1, "{small} {large}");
}

/// Muon changes master weights, and computation reads their 16 bits rounded anew.
#[test]
fn muon_rounds_its_matrices_anew() {
    let data = sequences(8, 5);
    let all: Vec<u32> = (0..8).collect();
    let mut losses = Vec::new();
    for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
        let mut t = trainer(&with_muon(config(model(), precision)), 2, Recompute::None);
        let reports: Vec<StepReport> = (0..4).map(|_| t.step(&data, &all, 0, 1e-2)).collect();
        if let Some(kind) = precision.half() {
            let (values, halves) = t.model.weights_mut().values_and_halves_mut();
            let right: Vec<u16> = values.iter().map(|&w| kind.bits(w)).collect();
            assert!(halves.unwrap().1[..right.len()] == right, "{precision:?}");
        }
        let lost = reports[0].lost_share;
        assert_eq!(lost.is_some(), precision != Precision::F32);
        assert!(lost.is_none_or(|lost| lost > 0.0 && lost < 0.5), "{lost:?}");
        losses.push(reports[3].loss_sum / reports[3].targets as f64);
    }
    let (right, first) = (losses[0], (VOCAB as f64).ln());
    assert!(right < first - 0.05, "{losses:?}");
    assert!(losses[1..].iter().all(|&l| l != right && (l - right).abs() < 0.02), "{losses:?}");
}

/// Adapters learn in f32 beside weights as they are stored, and tell the same log Z.
#[test]
fn adapters_are_refused_and_their_log_z_is_that_of_all_weights() {
    let lora = LoraConfig { rank: 3, alpha: 6.0, targets: LoraTarget::ALL.to_vec() };
    let adapted = TransformerConfig { lora: Some(lora), ..model() };
    let config_16 = config(adapted.clone(), Precision::Bf16);
    let error = config_16.check_recipe().unwrap_err().to_string();
    assert!(error.contains("precision is bf16") && error.contains("--lora"), "{error}");
    let shape = BatchShape::full(&config_16.train, 40);
    assert!(Trainer::plan(&config_16, shape, 1).is_err());

    let data = sequences(8, 5);
    let all: Vec<u32> = (0..8).collect();
    let step = |model| {
        let mut t = trainer(&config(model, Precision::F32), 2, Recompute::None);
        t.step(&data, &all, 0, 1e-3)
    };
    let (right, found) = (step(model()), step(adapted));
    assert!(right.log_z > 5.0 && (right.log_z - found.log_z).abs() < 1e-5);
    assert!((right.largest_score.unwrap() - found.largest_score.unwrap()).abs() < 1e-5);
}

/// What is no number is named where it began.
#[test]
fn the_first_tensor_that_is_no_number_is_named() {
    let data = sequences(8, 5);
    let all: Vec<u32> = (0..8).collect();
    for precision in Precision::ALL {
        let mut t = trainer(&config(model(), precision), 2, Recompute::None);
        let spec = t.model.layout().specs().iter().find(|s| s.name == "layers.1.norm2.weight");
        let at = spec.unwrap().range.start;
        t.model.weights_mut().flat_mut()[at + 3] = f32::NAN;
        t.weights_changed();
        let report = t.step(&data, &all, 0, 1e-3);
        assert!(!report.applied && !report.loss_sum.is_finite());
        assert_eq!(t.broken(), Some("weight layers.1.norm2.weight"));

        let mut t = trainer(&config(model(), precision), 2, Recompute::None);
        let spec = t.model.layout().specs().iter().find(|s| s.name == "layers.1.norm1.weight");
        let range = spec.unwrap().range.clone();
        t.model.weights_mut().flat_mut()[range].fill(1e38);
        t.weights_changed();
        let report = t.step(&data, &all, 0, 1e-3);
        assert!(!report.applied);
        let broken = t.broken().unwrap();
        assert!(broken.starts_with("layer 1 ") || broken.starts_with("gradient of "), "{broken}");
    }
}

/// Numbers that are too large stop a run with step, tensor and kept checkpoint.
#[test]
fn a_run_that_breaks_names_step_tensor_and_checkpoint() {
    let mut config = config(model(), Precision::Bf16);
    (config.train.learning_rate, config.train.clip, config.train.warmup_steps) = (1e30, 0.0, 0);
    let data = (sequences(64, 1), sequences(9, 2));
    let (team, never) = (Arc::new(Team::new(1)), AtomicUsize::new(0));
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("run");
    let opts = options(&config, (&data.0, &data.1), &dir, false, &team, &never);
    let error = run(&opts, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("step 2") && error.contains("first in: "), "{error}");
    assert!(error.contains("kept at step 0"), "{error}");
    assert!(resumable(&dir));
}

/// Only transformers are trained in 16 bits.
#[test]
fn other_networks_are_refused() {
    let model =
        ModelConfig::Rnn(RnnConfig { vocab_size: VOCAB, embedding_size: 8, hidden_size: 24 });
    let train = Recipe { precision: Precision::Bf16, ..Recipe::default() };
    let config = TrainConfig { model, train };
    let error = config.check_recipe().unwrap_err().to_string();
    assert!(error.contains("precision is bf16") && error.contains("f32"), "{error}");
    let shape = BatchShape::full(&config.train, 40);
    assert!(Trainer::plan(&config, shape, 1).is_err());
}
