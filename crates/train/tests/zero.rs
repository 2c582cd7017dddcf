//! Ranks as threads: every stage gives the same bits, the bytes sent are those of the formulas, and
//! one process gives the same to rounding.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{recipe, sequences};
use kernels::Team;
use models::*;
use ranks::{Collective, Ranks, Traffic};
use std::sync::Arc;
use train::{
    BatchShape, OptimizerKind, Place, Precision, Recipe, Sequences, Shared, Stage, StepReport,
    TrainConfig, Trainer,
};

/// A network whose units are multiples of sixteen values for four ranks, so that nothing is padded.
fn config(precision: Precision, tied: bool) -> TrainConfig {
    let model = TransformerConfig {
        hidden_size: 32,
        num_attention_heads: 2,
        intermediate_size: 64,
        num_hidden_layers: 3,
        norm: NormConfig::Rms,
        mlp: MlpConfig::Swiglu,
        positions: PositionConfig::Rotary,
        bias: false,
        tie_word_embeddings: tied,
        ..TransformerConfig::email(96, 16)
    };
    let train = Recipe { dropout: 0.0, weight_decay: 0.1, precision, ..recipe() };
    TrainConfig { model: ModelConfig::Transformer(model), train }
}

fn data() -> Vec<Vec<u32>> {
    sequences(96, 5..16, 30, 1)
}

type Steps = Vec<StepReport>;

/// Some steps of each of `size` ranks, the last of an uneven batch.
fn steps(
    config: &TrainConfig,
    size: usize,
    stage: Stage,
    recompute: Recompute,
) -> Vec<(Steps, Vec<(Collective, Traffic)>)> {
    let data = data();
    let rank = |ranks: Ranks| {
        let team = Arc::new(Team::new(1));
        let shared = Shared { ranks: Arc::new(ranks), stage };
        let place = shared.place();
        let shape = BatchShape::of_place(&config.train, &data, &data, place).recomputing(recompute);
        let mut trainer = Trainer::of_ranks(None, config, shape, &team, &shared).unwrap();
        let order: Vec<u32> = (0..data.len() as u32).collect();
        let batches = order.chunks(config.train.batch);
        let steps = batches.map(|batch| trainer.step(&data, batch, 0, 0.01)).collect();
        drop(trainer);
        let traffic = shared.ranks.traffic();
        shared.ranks.finish();
        (steps, traffic)
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = Ranks::threads(size).unwrap();
        let all: Vec<_> = all.into_iter().map(|ranks| scope.spawn(|| rank(ranks))).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn bits(steps: &Steps) -> Vec<[u64; 3]> {
    let of = |s: &StepReport| [s.loss_sum, s.gradient_norm, s.log_z].map(f64::to_bits);
    steps.iter().map(of).collect()
}

fn one_process(config: &TrainConfig) -> Steps {
    let data = data();
    let shape = BatchShape::of(&config.train, &data, &data);
    let mut trainer = Trainer::new(config, shape, &Arc::new(Team::new(1))).unwrap();
    let order: Vec<u32> = (0..data.len() as u32).collect();
    order.chunks(config.train.batch).map(|batch| trainer.step(&data, batch, 0, 0.01)).collect()
}

#[test]
fn every_stage_gives_the_same_bits_and_one_process_the_same_numbers() {
    for (precision, tied) in
        [(Precision::F32, false), (Precision::Bf16, true), (Precision::F16, false)]
    {
        let config = config(precision, tied);
        let alone = one_process(&config);
        for size in [1, 2, 4] {
            let mut first: Option<Vec<[u64; 3]>> = None;
            for stage in Stage::ALL {
                let ranks = steps(&config, size, stage, Recompute::None);
                for (rank, (own, _)) in ranks.iter().enumerate() {
                    let what = format!("{precision:?} {size} ranks, stage {stage:?}, rank {rank}");
                    let right = first.get_or_insert_with(|| bits(own));
                    assert_eq!(&bits(own), right, "{what}");
                    // Sums in another order; in 16 bits a weight may round the other way.
                    let near = if precision == Precision::F32 { 1e-6 } else { 1e-4 };
                    for (own, right) in own.iter().zip(&alone) {
                        let off = (own.loss_sum - right.loss_sum).abs() / right.loss_sum;
                        assert!(off < near, "{what}: {off}");
                        assert!(own.applied == right.applied && own.targets == right.targets);
                    }
                }
            }
        }
        assert!(alone[3].loss_sum / alone[3].targets as f64 > 0.0);
    }
}

#[test]
fn what_is_computed_again_changes_no_bit_and_pairs_of_stages_agree_on_small_pieces() {
    for precision in [Precision::F32, Precision::Bf16] {
        let mut config = config(precision, false);
        let right = bits(&steps(&config, 2, Stage::Three, Recompute::None)[0].0);
        for recompute in [Recompute::Attention, Recompute::Layer] {
            assert_eq!(bits(&steps(&config, 2, Stage::Three, recompute)[0].0), right);
        }
        config.train.micro_batch = 3;
        let [zero, one, two, three] =
            Stage::ALL.map(|stage| bits(&steps(&config, 2, stage, Recompute::None)[0].0));
        assert_eq!((zero, two.clone()), (one, three));
        // In 16 bits a weight may round the other way.
        let share = if precision == Precision::F32 { 1e-5 } else { 1e-2 };
        let near = |a: u64, b: u64| {
            let (a, b) = (f64::from_bits(a), f64::from_bits(b));
            (a - b).abs() < share * b.abs()
        };
        assert!(two.iter().zip(&right).all(|(a, b)| near(a[0], b[0]) && near(a[1], b[1])));
    }
}

#[test]
fn muon_shares_out_whole_matrices_with_the_bits_of_stage_0() {
    for (precision, near) in [(Precision::F32, 1e-5), (Precision::Bf16, 1e-2)] {
        let mut config = config(precision, true);
        config.train.optimizer = OptimizerKind::Muon;
        let alone = one_process(&config);
        for size in [2, 4] {
            let zero = steps(&config, size, Stage::Zero, Recompute::None);
            let right = bits(&zero[0].0);
            for (own, right) in zero[1].0.iter().zip(&alone) {
                assert!((own.loss_sum - right.loss_sum).abs() < near * right.loss_sum);
            }
            let lost = |steps: &Steps| steps.iter().map(|s| s.lost_share).collect::<Vec<_>>();
            for stage in [Stage::One, Stage::Two, Stage::Three] {
                for (own, _) in steps(&config, size, stage, Recompute::None) {
                    assert_eq!(bits(&own), right, "{precision:?} {size} ranks, {stage:?}");
                    assert_eq!(lost(&own), lost(&zero[0].0));
                }
            }
        }
    }
}

#[test]
fn layers_in_a_cycle_learn_at_every_stage_with_the_bits_of_stage_0() {
    for (precision, optimizer) in [
        (Precision::F32, OptimizerKind::Adamw),
        (Precision::Bf16, OptimizerKind::Adamw),
        (Precision::F32, OptimizerKind::Muon),
    ] {
        let mut config = config(precision, true);
        if let ModelConfig::Transformer(c) = &mut config.model {
            (c.num_hidden_layers, c.distinct_layers) = (5, Some(2));
        }
        config.train.optimizer = optimizer;
        let alone = one_process(&config);
        // Their gradients stay whole at every stage, so small pieces agree at all four.
        for (size, micro_batch) in [(2, 8), (4, 8), (2, 3)] {
            config.train.micro_batch = micro_batch;
            let right = bits(&steps(&config, size, Stage::Zero, Recompute::None)[0].0);
            for stage in Stage::ALL {
                for recompute in [Recompute::None, Recompute::Layer] {
                    let ranks = steps(&config, size, stage, recompute);
                    let what = format!("{precision:?} {optimizer:?} {size} ranks, {stage:?}");
                    assert!(ranks.iter().all(|(own, _)| bits(own) == right), "{what}");
                    let near = if precision == Precision::F32 { 1e-5 } else { 1e-2 };
                    for (own, right) in ranks[1].0.iter().zip(&alone) {
                        let off = (own.loss_sum - right.loss_sum).abs() / right.loss_sum;
                        assert!(off < near, "{what}: {off}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_bytes_of_layers_in_a_cycle_are_those_of_each_visit() {
    let mut config = config(Precision::F32, false);
    if let ModelConfig::Transformer(c) = &mut config.model {
        (c.num_hidden_layers, c.distinct_layers) = (5, Some(2));
    }
    config.train.micro_batch = 2;
    let layout = models::Model::layout_of(&config.model).unwrap();
    let count = |wanted: &dyn Fn(&str) -> bool| -> u64 {
        let specs = layout.specs().iter().filter(|spec| wanted(&spec.name));
        specs.map(|spec| spec.count() as u64).sum()
    };
    let (layer, outer) =
        (count(&|name| name.starts_with("layers.0.")), count(&|name| !name.starts_with("layers.")));
    let parameters = outer + 2 * layer;
    for stage in Stage::ALL {
        let ranks = steps(&config, 2, stage, Recompute::None);
        let sent = |kind: Collective| -> u64 {
            ranks.iter().map(|(_, traffic)| traffic[kind as usize].1.bytes).sum()
        };
        let steps = ranks[0].0.len() as u64;
        // A step of eight sequences is two batches on each of two ranks; the last one, of six, too.
        let (reduced, gathered) = match stage {
            Stage::Zero => (8 * parameters, 0),
            Stage::One | Stage::Two => (4 * parameters, 4 * parameters),
            // Both ways through five layers, twice. What still stands in its place is not asked for:
            // the last layer, and the first one of the second batch; nor are, on the way back, the
            // embeddings, which are not read there, and the output projection.
            Stage::Three => (4 * parameters, 4 * (2 * outer + 17 * layer)),
        };
        let gradients =
            sent(Collective::AllReduceGradients) + sent(Collective::ReduceScatterGradients);
        assert_eq!(gradients, steps * reduced, "{stage:?}");
        let before = if matches!(stage, Stage::One | Stage::Two) { 1 } else { 0 };
        let parameters = sent(Collective::GatherParameters);
        assert_eq!(parameters, (steps + before) * gathered, "{stage:?}");
    }
}

#[test]
fn a_recurrent_network_is_packed_when_its_weights_have_come() {
    // Stage 3 packed what stood in their place before.
    let train = config(Precision::F32, false).train;
    let config = TrainConfig { model: ModelConfig::Rnn(RnnConfig::email(96)), train };
    let right = bits(&steps(&config, 2, Stage::Zero, Recompute::None)[0].0);
    for stage in [Stage::One, Stage::Two, Stage::Three] {
        assert_eq!(bits(&steps(&config, 2, stage, Recompute::None)[1].0), right, "{stage:?}");
    }
}

#[test]
fn the_bytes_of_a_step_are_those_of_the_formulas() {
    for size in [2, 4] {
        for (precision, tied) in [(Precision::F32, false), (Precision::Bf16, true)] {
            let config = config(precision, tied);
            let parameters = models::Model::count_parameters(&config.model).unwrap() as u64;
            let layout = models::Model::layout_of(&config.model).unwrap();
            let count = |wanted: &dyn Fn(&tensor::ParameterSpec) -> bool| -> u64 {
                layout.specs().iter().filter(|s| wanted(s)).map(|s| s.count() as u64).sum()
            };
            let mixed = precision == Precision::Bf16;
            let vectors = if mixed { count(&|s| s.shape.len() == 1) } else { 0 };
            let matrices = parameters - vectors;
            let word = if mixed { 2 } else { 4 };
            let layer = count(&|s| s.name.starts_with("layers.2.") && s.shape.len() == 2)
                + if mixed { 0 } else { 2 * 32 };
            let outer = count(&|s| !s.name.starts_with("layers.")) - if mixed { 32 } else { 0 };
            for stage in Stage::ALL {
                let ranks = steps(&config, size, stage, Recompute::None);
                let count = ranks[0].0.len() as u64;
                let sent = |kind: Collective| -> u64 {
                    ranks.iter().map(|(_, traffic)| traffic[kind as usize].1.bytes).sum()
                };
                // At stage 3 the embeddings, the last layer and the output projection are still in
                // place when the backward pass comes to them.
                let (gradients, gathered) = match stage {
                    Stage::Zero => (8 * matrices, 0),
                    Stage::One | Stage::Two => (4 * matrices, word * matrices),
                    Stage::Three => (4 * matrices, word * (2 * matrices - layer - outer)),
                };
                // Norms stay whole on every rank in mixed precision: their gradients are all-reduced.
                let reduced = gradients + 8 * vectors;
                let others = size as u64 - 1;
                let what = format!("{precision:?} {size} ranks, stage {stage:?}");
                let found =
                    sent(Collective::AllReduceGradients) + sent(Collective::ReduceScatterGradients);
                assert_eq!(found, count * others * reduced, "gradients: {what}");
                // A fresh model is published once before the first step.
                let before = if matches!(stage, Stage::One | Stage::Two) { 1 } else { 0 };
                let found = sent(Collective::GatherParameters);
                assert_eq!(found, (count + before) * others * gathered, "parameters: {what}");
            }
        }
    }
}

#[test]
fn the_list_that_predicts_allocates() {
    // The ledger is the process's: ranks of this test are counted together, others not at all.
    let data = data();
    for precision in [Precision::F32, Precision::Bf16] {
        let config = config(precision, false);
        for stage in Stage::ALL {
            let place = Place { rank: 0, size: 4, stage };
            let shape = BatchShape::of_place(&config.train, &data, &data, place);
            let plan = Trainer::plan_ranks(&config, shape, 1, place).unwrap();
            let state = |account| plan.of(account);
            let (master, moments) =
                (state(ledger::Account::Master), state(ledger::Account::Optimizer));
            let gradients = state(ledger::Account::Gradients);
            let weights = state(ledger::Account::Weights);
            let parameters = 4 * models::Model::count_parameters(&config.model).unwrap() as u64;
            let share = |bytes: u64, of: u64, all: u64| {
                let ratio = bytes as f64 / all as f64;
                let right = if of == 1 { 1.0 } else { 1.0 / of as f64 };
                assert!((ratio / right - 1.0).abs() < 0.08, "{stage:?} {precision:?}: {ratio}");
            };
            let from = |first: Stage| if stage >= first { 4 } else { 1 };
            share(moments, from(Stage::One), 2 * parameters);
            share(gradients, from(Stage::Two), parameters);
            if precision == Precision::Bf16 {
                share(master, from(Stage::One), parameters);
                share(weights, from(Stage::Three), parameters / 2);
            } else {
                share(weights, from(Stage::Three), parameters);
            }
        }
    }
    assert!(data.targets() > 0);
}
