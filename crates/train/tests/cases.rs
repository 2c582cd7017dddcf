//! Faults that other trainers had, with the right values.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{options, recipe};
use kernels::Team;
use models::*;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use train::*;

const VOCAB: usize = 40;

fn transformer() -> ModelConfig {
    ModelConfig::Transformer(TransformerConfig {
        hidden_size: 16,
        num_attention_heads: 2,
        intermediate_size: 32,
        ..TransformerConfig::email(VOCAB, 16)
    })
}

fn rnn() -> ModelConfig {
    ModelConfig::Rnn(RnnConfig { vocab_size: VOCAB, embedding_size: 8, hidden_size: 24 })
}

fn sequences(count: u64, seed: u64) -> Vec<Vec<u32>> {
    common::sequences(VOCAB as u64, 2..16, count, seed)
}

/// Four layers of two kinds.
fn cycle() -> ModelConfig {
    let ModelConfig::Transformer(c) = transformer() else { unreachable!("a transformer") };
    let (num_hidden_layers, distinct_layers) = (4, Some(2));
    ModelConfig::Transformer(TransformerConfig { num_hidden_layers, distinct_layers, ..c })
}

fn trainer(model: &ModelConfig, train: Recipe, threads: usize) -> Trainer {
    let config = TrainConfig { model: model.clone(), train };
    Trainer::new(&config, BatchShape::full(&config.train, 16), &Arc::new(Team::new(threads)))
        .unwrap()
}

/// Gradient accumulation with unequal lengths: however a batch is cut, loss and gradient are those
/// of the whole, weighted by real targets.
#[test]
fn accumulation_is_weighted_by_targets() {
    for model in [transformer(), rnn()] {
        let data = sequences(7, 5);
        let all: Vec<u32> = (0..7).collect();
        let run = |micro_batch: usize| {
            let mut t = trainer(&model, Recipe { micro_batch, batch: 7, ..recipe() }, 1);
            let report = t.step(&data, &all, 0, 1e-3);
            (report, t.gradients().flat().to_vec(), t.model.weights().flat().to_vec())
        };
        let (whole, gradient, weights) = run(7);
        assert_eq!(whole.targets, data.iter().map(|s| s.len() as u64 - 1).sum::<u64>());
        for micro in [1, 2, 3] {
            let (cut, other, after) = run(micro);
            assert_eq!(cut.targets, whole.targets);
            assert!((cut.loss_sum / whole.loss_sum - 1.0).abs() < 1e-6);
            let norm = whole.gradient_norm as f32;
            let worst = gradient.iter().zip(&other).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
            assert!(worst / norm < 1e-6, "micro-batch {micro}: {worst} of {norm}");
            assert_eq!(weights.len(), after.len());
        }
    }
}

/// Losses 2 and 4 in one micro-batch, six of 1 in the other: 12 / 8 = 1.5, not (3 + 1) / 2.
#[test]
fn the_mean_of_means_is_not_taken() {
    let data = sequences(2, 9);
    let mut t =
        trainer(&transformer(), Recipe { micro_batch: 1, batch: 2, dropout: 0.0, ..recipe() }, 1);
    let single = |i: u32| {
        let mut t = trainer(&transformer(), Recipe { dropout: 0.0, ..recipe() }, 1);
        let r = t.step(&data, &[i], 0, 1e-3);
        (r.loss_sum, r.targets)
    };
    let ((a, n), (b, m)) = (single(0), single(1));
    assert_ne!(n, m, "the case needs unequal lengths");
    let both = t.step(&data, &[0, 1], 0, 1e-3);
    let mean = both.loss_sum / both.targets as f64;
    assert!((mean - (a + b) / (n + m) as f64).abs() < 1e-6);
}

/// Batches without a target: nothing is divided by zero, the step is skipped and said so.
#[test]
fn a_batch_without_targets_changes_nothing() {
    let data = vec![vec![2], vec![2, 5, 6], vec![2]];
    let mut t = trainer(&transformer(), Recipe { dropout: 0.0, ..recipe() }, 1);
    let before = t.model.weights().flat().to_vec();
    let empty = t.step(&data, &[0, 2], 0, 1e-2);
    assert_eq!((empty.targets, empty.applied), (0, false));
    assert_eq!(before, t.model.weights().flat());
    let mixed = t.step(&data, &[0, 1, 2], 0, 1e-2);
    let mut alone = trainer(&transformer(), Recipe { dropout: 0.0, ..recipe() }, 1);
    let single = alone.step(&data, &[1], 0, 1e-2);
    assert_eq!(mixed.loss_sum, single.loss_sum);
    assert_eq!(t.model.weights().flat(), alone.model.weights().flat());
}

/// The same seed gives the same bits on any number of threads.
#[test]
fn bits_do_not_depend_on_threads() {
    for model in [transformer(), rnn()] {
        let data = sequences(30, 3);
        let run = |threads: usize| {
            let mut t = trainer(&model, recipe(), threads);
            for step in 0..4 {
                let order = epoch_order(0, step, data.len());
                t.step(&data, &order[..8], step, 3e-3);
            }
            t.model.weights().flat().iter().map(|w| w.to_bits()).collect::<Vec<_>>()
        };
        let one = run(1);
        assert_eq!(one, run(2));
        assert_eq!(one, run(5));
    }
}

/// Stopped in the middle of an epoch, at its end, and during accumulation; resumed to the bit.
#[test]
fn a_resumed_run_equals_an_uninterrupted_one() {
    let muon = Recipe { optimizer: OptimizerKind::Muon, ..recipe() };
    let more = Recipe { average: 0.9, hidden_dropout: 0.2, embedding_decay: 0.1, ..muon.clone() };
    for (model, train) in [
        (transformer(), recipe()),
        (transformer(), Recipe { micro_batch: 3, ..recipe() }),
        (transformer(), muon),
        (cycle(), more),
    ] {
        let config = TrainConfig { model, train };
        let (data, valid) = (sequences(64, 1), sequences(9, 2));
        let team = Arc::new(Team::new(2));
        let whole = tempfile::tempdir().unwrap();
        let never = AtomicUsize::new(0);
        let dir = whole.path().join("run");
        let right =
            run(&options(&config, (&data, &valid), &dir, false, &team, &never), &mut |_| {})
                .unwrap();
        assert_eq!(right.state.step, 24);
        for stop_at in [3, 8, 20] {
            let cut = tempfile::tempdir().unwrap();
            let dir = cut.path().join("run");
            let stop = AtomicUsize::new(0);
            let opts = options(&config, (&data, &valid), &dir, false, &team, &stop);
            let first = run(&opts, &mut |event| {
                if let Event::Step { state, .. } = event
                    && state.step == stop_at
                {
                    stop.store(2, std::sync::atomic::Ordering::Relaxed);
                }
            })
            .unwrap();
            assert_eq!((first.stopped_by, first.state.step), (Some(2), stop_at));
            let opts = options(&config, (&data, &valid), &dir, true, &team, &never);
            let second = run(&opts, &mut |_| {}).unwrap();
            assert_eq!(second.state.curve, right.state.curve);
            assert_eq!(second.state.tokens, right.state.tokens);
            let bits = |model: &Model| {
                model.weights().flat().iter().map(|w| w.to_bits()).collect::<Vec<_>>()
            };
            assert_eq!(bits(&second.model), bits(&right.model));
            let lines = |p: &Path| {
                std::fs::read_to_string(p.join("metrics.jsonl")).unwrap().lines().count()
            };
            assert_eq!(lines(&dir), lines(&whole.path().join("run")));
        }
    }
}

/// A damaged newest checkpoint is reported and passed over; stray temporaries are ignored.
#[test]
fn the_newest_whole_checkpoint_is_resumed() {
    let config = TrainConfig { model: rnn(), train: Recipe { checkpoint_every: 2, ..recipe() } };
    let (data, valid) = (sequences(64, 1), sequences(9, 2));
    let team = Arc::new(Team::new(1));
    let (temp, never, stop) =
        (tempfile::tempdir().unwrap(), AtomicUsize::new(0), AtomicUsize::new(0));
    let dir = temp.path().join("run");
    let opts = options(&config, (&data, &valid), &dir, false, &team, &stop);
    run(&opts, &mut |event| {
        if let Event::Step { state, .. } = event
            && state.step == 7
        {
            stop.store(15, std::sync::atomic::Ordering::Relaxed);
        }
    })
    .unwrap();
    let newest = dir.join("checkpoints/step-000000007/weights.safetensors");
    let bytes = std::fs::read(&newest).unwrap();
    std::fs::write(&newest, &bytes[..bytes.len() / 2]).unwrap();
    std::fs::create_dir(dir.join("checkpoints/.step-000000009.tmp")).unwrap();
    let mut passed = Vec::new();
    let mut from = 0;
    let opts = options(&config, (&data, &valid), &dir, true, &team, &never);
    let outcome = run(&opts, &mut |event| match event {
        Event::PassedOver(error) => passed.push(error.to_string()),
        Event::Resumed(state) => from = state.step,
        _ => {}
    })
    .unwrap();
    assert_eq!((from, outcome.state.step), (6, 24));
    assert!(passed.len() == 1 && passed[0].contains("step-000000007"), "{passed:?}");

    let other =
        TrainConfig { train: Recipe { learning_rate: 1e-4, ..config.train.clone() }, ..config };
    let opts = options(&other, (&data, &valid), &dir, true, &team, &never);
    let error = run(&opts, &mut |_| {}).unwrap_err();
    assert!(
        matches!(&error, train::Error::OtherRun { what, .. } if what.contains("learning_rate"))
    );
}

/// A loss that is no number stops the run; the last good checkpoint is kept and named.
#[test]
fn a_loss_that_is_no_number_stops_the_run() {
    let train = Recipe { learning_rate: 1e30, clip: 0.0, warmup_steps: 0, ..recipe() };
    let config = TrainConfig { model: transformer(), train };
    let (data, valid) = (sequences(64, 1), sequences(9, 2));
    let (team, never) = (Arc::new(Team::new(1)), AtomicUsize::new(0));
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("run");
    let opts = options(&config, (&data, &valid), &dir, false, &team, &never);
    let error = run(&opts, &mut |_| {}).unwrap_err();
    assert!(matches!(error, train::Error::NotFinite { .. }), "{error}");
    assert!(error.to_string().contains("step"), "{error}");
    assert!(resumable(&dir));
}

/// Evaluation carries nothing from one sequence to the next and leaves training as it was.
#[test]
fn evaluation_keeps_no_state() {
    for model in [transformer(), rnn()] {
        let data = sequences(9, 4);
        let mut t = trainer(&model, recipe(), 2);
        let mut score = |data: &Vec<Vec<u32>>, batch| {
            let (model, runner) = t.evaluator();
            evaluate(&mut Evaluator::Network(model, runner), data, batch, Some(1))
        };
        let all = score(&data, 4);
        assert_eq!(all, score(&data, 4), "twice the same");
        let alone = score(&data[3..4].to_vec(), 4).total;
        assert_eq!(all.groups[&3].0.nll, alone.nll, "a sequence scores the same in any company");
        let single = score(&data, 1);
        assert_eq!(all.total.tokens, single.total.tokens);
        assert!((all.total.nll - single.total.nll).abs() < 1e-9);

        let mut with = trainer(&model, recipe(), 1);
        let mut without = trainer(&model, recipe(), 1);
        let (m, r) = with.evaluator();
        evaluate(&mut Evaluator::Network(m, r), &data, 4, None);
        with.step(&data, &[0, 1, 2], 0, 1e-2);
        without.step(&data, &[0, 1, 2], 0, 1e-2);
        assert_eq!(with.model.weights().flat(), without.model.weights().flat());
    }
}

/// Token by token through a cache gives the bits of one pass over all tokens.
#[test]
fn cached_steps_equal_one_pass() {
    let llama = ModelConfig::Transformer(TransformerConfig {
        hidden_size: 16,
        num_attention_heads: 4,
        num_key_value_heads: Some(2),
        intermediate_size: 24,
        norm: NormConfig::Rms,
        positions: PositionConfig::Rotary,
        mlp: MlpConfig::Swiglu,
        bias: false,
        tie_word_embeddings: true,
        ..TransformerConfig::email(VOCAB, 90)
    });
    let long = ModelConfig::Transformer(TransformerConfig {
        hidden_size: 16,
        num_attention_heads: 2,
        intermediate_size: 32,
        ..TransformerConfig::email(VOCAB, 90)
    });
    for config in [long, llama, rnn()] {
        let mut model = Model::new(&config).unwrap();
        model.weights_mut().initialise(3);
        let ids: Vec<u32> = (0..80).map(|i| (kernels::mix(i) % VOCAB as u64) as u32).collect();
        let team = Arc::new(Team::new(2));
        let workload =
            Workload { rows: 90, sequences: 1, longest: 90, threads: 2, training: false };
        let mut runner = Runner::new(&model, workload, &team).unwrap();
        let mut whole = Batch::default();
        whole.push_inputs(&ids, 0, 0);
        let rows: Vec<usize> = (0..ids.len()).collect();
        let mut right = vec![0.0; ids.len() * VOCAB];
        runner.logits(&model, &whole, &mut [][..], &rows, &mut right);
        for pieces in [vec![1; 80], vec![37, 1, 1, 41]] {
            let mut caches = vec![Cache::new(&model, 90, 90).unwrap()];
            let (mut past, mut got) = (0, Vec::new());
            for n in pieces {
                let mut batch = Batch::default();
                batch.push_inputs(&ids[past..past + n], past, 0);
                let mut logits = vec![0.0; n * VOCAB];
                runner.logits(&model, &batch, &mut caches, &rows[..n], &mut logits);
                got.extend(logits);
                past += n;
            }
            let same = got.iter().zip(&right).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{}", config.kind());
        }
    }
}

/// Layers that share weights compute what layers with equal weights do, and their gradient is the sum.
#[test]
fn layers_in_a_cycle_are_layers_with_equal_weights() {
    let data = sequences(8, 5);
    let all: Vec<u32> = (0..8).collect();
    let ModelConfig::Transformer(c) = cycle() else { unreachable!("a transformer") };
    let apart = ModelConfig::Transformer(TransformerConfig { distinct_layers: None, ..c });
    let (mut one, mut other) = (trainer(&cycle(), recipe(), 2), trainer(&apart, recipe(), 2));
    // `layers.3.` is read as `layers.1.` is.
    let shared = |name: &str| {
        let (layer, rest) = name.strip_prefix("layers.")?.split_once('.')?;
        Some(format!("layers.{}.{rest}", layer.parse::<usize>().ok()? % 2))
    };
    let place = |t: &Trainer, name: &str| {
        let specs = t.model.layout().specs();
        specs.iter().find(|spec| spec.name == name).unwrap().range.clone()
    };
    let names: Vec<String> = other.model.layout().specs().iter().map(|s| s.name.clone()).collect();
    for name in &names {
        let from = place(&one, &shared(name).unwrap_or(name.clone()));
        let values = one.model.weights().flat()[from].to_vec();
        let to = place(&other, name);
        other.model.weights_mut().flat_mut()[to].copy_from_slice(&values);
    }
    other.weights_changed();
    let (found, right) = (one.step(&data, &all, 0, 1e-3), other.step(&data, &all, 0, 1e-3));
    assert_eq!(found.loss_sum.to_bits(), right.loss_sum.to_bits());
    let count = |model| Model::count_parameters(model).unwrap();
    assert!(count(&cycle()) < count(&apart));
    let mut sums = vec![0.0; one.gradients().flat().len()];
    for name in &names {
        let to = place(&one, &shared(name).unwrap_or(name.clone()));
        let values = &other.gradients().flat()[place(&other, name)];
        sums[to].iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    }
    let off = sums.iter().zip(one.gradients().flat()).map(|(a, b)| (a - b).abs());
    assert!(off.fold(0f32, f32::max) < 1e-6 * found.gradient_norm as f32);
}

/// The gradient under dropout is that of the loss with the same values dropped.
#[test]
fn dropout_is_in_the_gradient() {
    let mut model = Model::new(&cycle()).unwrap();
    model.weights_mut().initialise(5);
    let mut batch = Batch::default();
    for (key, ids) in sequences(8, 5).iter().enumerate() {
        batch.push_known(ids, key as u64);
    }
    let (rows, team) = (batch.rows(), Arc::new(Team::new(1)));
    let workload = Workload { rows, sequences: 8, longest: 16, threads: 1, training: true };
    let mut runner = Runner::new(&model, workload, &team).unwrap();
    let layout = Arc::clone(model.layout());
    let mut gradients =
        tensor::Parameters::zeros(&layout, "gradients", ledger::Account::Gradients).unwrap();
    let sum = |losses: &[f32]| losses.iter().map(|&l| f64::from(l)).sum::<f64>();
    for (rate, hidden) in [(0.0, 0.3), (0.2, 0.0), (0.2, 0.3)] {
        let dropout = Some(Dropout { rate, hidden, stream: 3 });
        gradients.clear(&team);
        let mut loss = |model: &Model, gradients: &mut tensor::Parameters| {
            runner.weights_changed();
            sum(runner.train(model, &batch, 1.0, dropout, gradients))
        };
        let here = loss(&model, &mut gradients);
        // A step along the gradient: the difference is its length times the step.
        let along = gradients.flat().to_vec();
        let norm = along.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
        let mut at = |step: f64| {
            let weights = model.weights().flat().to_vec();
            let moved = model.weights_mut().flat_mut().iter_mut().zip(&along);
            moved.for_each(|(w, &g)| *w += (step * f64::from(g) / norm) as f32);
            let loss = loss(&model, &mut gradients);
            model.weights_mut().flat_mut().copy_from_slice(&weights);
            loss
        };
        let slope = (at(3e-4) - at(-3e-4)) / 6e-4;
        assert!((slope / norm - 1.0).abs() < 5e-3, "{rate} {hidden}: {slope} and {norm}");
        assert!(at(0.0) == here, "the same values are dropped");
    }
}

/// The sizes of the email experiment, exactly.
#[test]
fn the_email_models_have_their_sizes() {
    let transformer = ModelConfig::Transformer(TransformerConfig::email(4000, 64));
    assert_eq!(Model::count_parameters(&transformer).unwrap(), 620_192);
    assert_eq!(
        Model::count_parameters(&ModelConfig::Rnn(RnnConfig::email(4000))).unwrap(),
        659_552
    );
}
