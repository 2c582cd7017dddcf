//! Adapters over ranks: what learns is shared out as all weights of a full model are, the base beside
//! it stays whole in whatever form it is.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::adapted::{VOCAB, pair};
use common::{Who, options, recipe, sequences};
use kernels::{HalfKind, QuantKind, Team};
use models::{MlpConfig, Model, Recompute, is_adapter};
use ranks::{Collective, Ranks, Traffic};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tensor::MatrixKind;
use train::{
    BatchShape, CurvePoint, Event, OptimizerKind, Place, RankOutcome, Recipe, Shared, Stage, Start,
    StepReport, TrainConfig, Trainer, checkpoints, run_from, run_ranks, weights_digest,
};

/// As values, in blocks of codes, in 16 bits.
const KINDS: [Option<MatrixKind>; 3] =
    [None, Some(MatrixKind::Quant(QuantKind::Q8_0)), Some(MatrixKind::Half(HalfKind::Bf16))];

/// Adapters of rank 3 beside a base kept as `kept` says; all are multiples of sixteen values.
fn base(kept: Option<MatrixKind>) -> Model {
    pair(MlpConfig::Swiglu, kept).0
}

fn config(kept: Option<MatrixKind>, change: impl FnOnce(&mut Recipe)) -> TrainConfig {
    let mut train = Recipe { learning_rate: 3e-2, weight_decay: 0.1, ..recipe() };
    change(&mut train);
    TrainConfig { model: base(kept).config().clone(), train }
}

fn data() -> Vec<Vec<u32>> {
    sequences(VOCAB as u64, 5..16, 30, 1)
}

type Steps = Vec<StepReport>;

/// Some steps of each of `size` ranks, the last of an uneven batch, and what each sent.
fn steps(
    config: &TrainConfig,
    kept: Option<MatrixKind>,
    (size, stage): (usize, Stage),
    recompute: Recompute,
) -> Vec<(Steps, Vec<(Collective, Traffic)>)> {
    let data = data();
    let rank = |ranks: Ranks| {
        let (team, shared) = (Arc::new(Team::new(1)), Shared { ranks: Arc::new(ranks), stage });
        let place = shared.place();
        place.check(config).unwrap();
        let shape = BatchShape::of_place(&config.train, &data, &data, place).recomputing(recompute);
        let from = Some(base(kept));
        let mut trainer = Trainer::of_ranks(from, config, shape, &team, &shared).unwrap();
        let before = shared.ranks.traffic();
        let order: Vec<u32> = (0..data.len() as u32).collect();
        let batches = order.chunks(config.train.batch);
        let steps = batches.map(|batch| trainer.step(&data, batch, 0, 0.03)).collect();
        drop(trainer);
        let after = shared.ranks.traffic();
        let sent = after.iter().zip(&before).map(|(now, then)| (now.0, now.1.since(&then.1)));
        shared.ranks.finish();
        (steps, sent.collect())
    };
    std::thread::scope(|scope| {
        let all = Ranks::threads(size).unwrap().into_iter();
        let all: Vec<_> = all.map(|ranks| scope.spawn(|| rank(ranks))).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn bits(steps: &Steps) -> Vec<[u64; 3]> {
    let of = |s: &StepReport| [s.loss_sum, s.gradient_norm, s.log_z].map(f64::to_bits);
    steps.iter().map(of).collect()
}

fn one_process(config: &TrainConfig, kept: Option<MatrixKind>) -> Steps {
    let data = data();
    let shape = BatchShape::of(&config.train, &data, &data);
    let team = Arc::new(Team::new(1));
    let mut trainer = Trainer::of(base(kept), &config.train, shape, &team).unwrap();
    let order: Vec<u32> = (0..data.len() as u32).collect();
    order.chunks(config.train.batch).map(|batch| trainer.step(&data, batch, 0, 0.03)).collect()
}

#[test]
fn every_stage_gives_the_bits_of_stage_0_beside_a_base_in_any_form() {
    for (kept, optimizer) in KINDS
        .into_iter()
        .map(|kept| (kept, OptimizerKind::Adamw))
        .chain([(None, OptimizerKind::Muon)])
    {
        let config = config(kept, |recipe| recipe.optimizer = optimizer);
        let alone = one_process(&config, kept);
        // Products with codes round what they read: from the second step on it may go the other way.
        let near = if kept == KINDS[1] { 1e-3 } else { 1e-6 };
        for size in [1, 2, 4] {
            let right = bits(&steps(&config, kept, (size, Stage::Zero), Recompute::None)[0].0);
            for stage in Stage::ALL {
                for (rank, (own, _)) in
                    steps(&config, kept, (size, stage), Recompute::None).iter().enumerate()
                {
                    let what = format!("{kept:?} {optimizer:?} {size} ranks, {stage:?}, {rank}");
                    assert_eq!(bits(own), right, "{what}");
                    assert!((own[0].loss_sum / alone[0].loss_sum - 1.0).abs() < 1e-14, "{what}");
                    for (own, right) in own.iter().zip(&alone) {
                        let off = (own.loss_sum - right.loss_sum).abs() / right.loss_sum;
                        assert!(off < near, "{what}: {off}");
                        assert!(own.applied && own.targets == right.targets);
                    }
                }
            }
        }
        assert!(alone[3].gradient_norm != alone[0].gradient_norm);
    }
}

/// Of the same base, read into its place: what a rank starts with.
fn read_into_place(config: &TrainConfig, kept: Option<MatrixKind>, place: Place) -> Option<Model> {
    let mut room = Trainer::room(config, place).unwrap()?;
    let mut base = base(kept);
    let layouts = [base.layout(), room.layout()].map(Arc::clone);
    let (_, from, panels) = base.weights_mut().parts_mut();
    let (_, to, room_for_panels) = room.weights_mut().parts_mut();
    room_for_panels.copy_from_slice(panels);
    for (own, placed) in layouts[0].specs().iter().zip(layouts[1].specs()) {
        if !is_adapter(&own.name) {
            to[placed.range.clone()].copy_from_slice(&from[own.range.clone()]);
        }
    }
    Some(room)
}

#[test]
fn a_base_may_be_read_into_its_place() {
    for (kept, stage) in
        KINDS.into_iter().flat_map(|kept| Stage::ALL[1..].iter().map(move |&stage| (kept, stage)))
    {
        let config = config(kept, |_| {});
        // Adapters begin anew there.
        let mut fresh = base(kept);
        fresh.weights_mut().initialise_some(config.train.seed, |spec| is_adapter(&spec.name));
        let data = data();
        let shape = BatchShape::of(&config.train, &data, &data);
        let order: Vec<u32> = (0..8).collect();
        let losses = |from: Option<Model>, stage: Stage| {
            let ranks = Ranks::threads(1).unwrap().swap_remove(0);
            let (team, shared) = (Arc::new(Team::new(1)), Shared { ranks: Arc::new(ranks), stage });
            let mut trainer = Trainer::of_ranks(from, &config, shape, &team, &shared).unwrap();
            let steps = (0..3).map(|_| trainer.step(&data, &order, 0, 0.03)).collect();
            drop(trainer);
            shared.ranks.finish();
            bits(&steps)
        };
        let right = losses(Some(fresh), Stage::Zero);
        let place = Place { rank: 0, size: 1, stage };
        let found = losses(read_into_place(&config, kept, place), stage);
        assert_eq!(found, right, "{kept:?} {stage:?}");
        assert!(Trainer::room(&config, Place::ALONE).unwrap().is_none());
    }
}

#[test]
fn what_is_computed_again_changes_no_bit() {
    let kept = KINDS[1];
    let config = config(kept, |_| {});
    let right = bits(&steps(&config, kept, (2, Stage::Three), Recompute::None)[0].0);
    for recompute in [Recompute::Attention, Recompute::Layer] {
        assert_eq!(bits(&steps(&config, kept, (2, Stage::Three), recompute)[1].0), right);
    }
}

#[test]
fn the_bytes_of_a_step_are_those_of_the_formulas_for_adapters_alone() {
    let kept = KINDS[1];
    let config = config(kept, |_| {});
    let layout = Model::layout_of(&config.model).unwrap();
    let count = |wanted: &dyn Fn(&str) -> bool| -> u64 {
        let learnt = layout.specs().iter().filter(|spec| is_adapter(&spec.name));
        learnt.filter(|spec| wanted(&spec.name)).map(|spec| spec.count() as u64).sum()
    };
    let (adapters, last) = (count(&|_| true), count(&|name| name.starts_with("layers.1.")));
    assert!(last > 0 && adapters == 2 * last);
    for size in [2, 4] {
        for stage in Stage::ALL {
            let ranks = steps(&config, kept, (size, stage), Recompute::None);
            let count = ranks[0].0.len() as u64 * (size as u64 - 1);
            let sent = |kind: Collective| -> u64 {
                ranks.iter().map(|(_, traffic)| traffic[kind as usize].1.bytes).sum()
            };
            let (reduced, gathered) = match stage {
                Stage::Zero => (8 * adapters, 0),
                Stage::One | Stage::Two => (4 * adapters, 4 * adapters),
                // The last layer is still in its place when the backward pass begins.
                Stage::Three => (4 * adapters, 4 * (2 * adapters - last)),
            };
            let gradients =
                sent(Collective::AllReduceGradients) + sent(Collective::ReduceScatterGradients);
            assert_eq!(gradients, count * reduced, "gradients: {size} ranks, {stage:?}");
            let parameters = sent(Collective::GatherParameters);
            assert_eq!(parameters, count * gathered, "parameters: {size} ranks, {stage:?}");
        }
    }
}

/// What a run leaves: its curve, the adapters of its last checkpoint, and those it ended with.
#[derive(Debug, PartialEq)]
struct Trace {
    curve: Vec<CurvePoint>,
    weights: String,
    /// Nothing where it was stopped.
    adapters: Vec<(String, Vec<u32>)>,
}

fn adapters_of(model: &Model) -> Vec<(String, Vec<u32>)> {
    let learnt = model.layout().specs().iter().filter(|spec| is_adapter(&spec.name));
    let bits = |range: std::ops::Range<usize>| {
        model.weights().flat()[range].iter().map(|value| value.to_bits()).collect()
    };
    learnt.map(|spec| (spec.name.clone(), bits(spec.range.clone()))).collect()
}

/// Trains until the end, or until a step.
fn go(
    config: &TrainConfig,
    kept: Option<MatrixKind>,
    dir: &Path,
    who: Who,
    (resume, stop_at): (bool, Option<u64>),
) -> Trace {
    let (train, valid) = (data(), data()[..7].to_vec());
    let one = |shared: Option<&Shared>| {
        let (team, stop) = (Arc::new(Team::new(1)), AtomicUsize::new(0));
        let options = options(config, (&train, &valid), dir, resume, &team, &stop);
        let start = Start { model: Some(base(kept)), ..Start::default() };
        let tell = &mut |event: Event| match event {
            Event::Step { state, .. } if Some(state.step) == stop_at => {
                stop.store(15, Ordering::Relaxed);
            }
            Event::PassedOver(error) => panic!("{error}"),
            _ => {}
        };
        match shared {
            None => {
                let done = run_from(start, &options, tell).unwrap();
                (done.state, Some(done.model).filter(|_| done.stopped_by.is_none()))
            }
            Some(shared) => {
                let done = run_ranks(start, shared, &options, tell).unwrap();
                shared.ranks.finish();
                let RankOutcome { state, adapters, .. } = done;
                assert!(adapters.is_none() || shared.ranks.is_first());
                (state, adapters)
            }
        }
    };
    let (state, model) = match who {
        Who::Alone => one(None),
        Who::Ranks(size, stage) => std::thread::scope(|scope| {
            let all = Ranks::threads(size).unwrap().into_iter();
            let start = |ranks| {
                let (shared, one) = (Shared { ranks: Arc::new(ranks), stage }, &one);
                scope.spawn(move || one(Some(&shared)))
            };
            let all: Vec<_> = all.map(start).collect();
            let mut all = all.into_iter().map(|rank| rank.join().unwrap());
            let first = all.next().unwrap();
            all.for_each(drop);
            first
        }),
    };
    assert!(!dir.join(train::WEIGHTS_FILE).exists() && dir.join(train::ADAPTER_FILE).is_file());
    Trace {
        curve: state.curve,
        weights: weights_digest(&checkpoints(dir).pop().unwrap()).unwrap(),
        adapters: model.as_ref().map_or(Vec::new(), adapters_of),
    }
}

fn short(recipe: &mut Recipe) {
    (recipe.epochs, recipe.eval_every, recipe.checkpoint_every) = (3, 4, 2);
}

#[test]
fn a_run_goes_on_by_other_stages_to_the_bit() {
    for kept in [KINDS[0], KINDS[1]] {
        let config = config(kept, short);
        let place = tempfile::tempdir().unwrap();
        let fresh = (false, None);
        let whole = place.path().join("whole");
        let right = go(&config, kept, &whole, Who::Ranks(2, Stage::Zero), fresh);
        assert!(right.adapters.len() > 20 && right.curve.len() == 3);
        for stage in [Stage::One, Stage::Two, Stage::Three] {
            let cut = place.path().join(format!("cut-{}", stage.number()));
            let found = go(&config, kept, &cut, Who::Ranks(2, stage), (false, Some(5)));
            assert!(found.adapters.is_empty());
            let found = go(&config, kept, &cut, Who::Ranks(2, Stage::Three), (true, None));
            assert_eq!(found, right, "{kept:?} {stage:?}");
        }
    }
}

#[test]
fn in_pieces_any_number_of_ranks_gives_and_goes_on_with_the_bits_of_one_process() {
    let kept = KINDS[1];
    let config = config(kept, |recipe| {
        short(recipe);
        recipe.pieces = 4;
    });
    let place = tempfile::tempdir().unwrap();
    let right = go(&config, kept, &place.path().join("alone"), Who::Alone, (false, None));
    for (size, stage) in [1, 2, 4].into_iter().flat_map(|n| Stage::ALL.map(|stage| (n, stage))) {
        let dir = place.path().join(format!("{size}-{}", stage.number()));
        let found = go(&config, kept, &dir, Who::Ranks(size, stage), (false, None));
        assert_eq!(found, right, "{size} ranks, {stage:?}");
    }
    let cut = place.path().join("cut");
    go(&config, kept, &cut, Who::Ranks(4, Stage::Three), (false, Some(3)));
    go(&config, kept, &cut, Who::Ranks(2, Stage::One), (true, Some(5)));
    go(&config, kept, &cut, Who::Alone, (true, Some(7)));
    assert_eq!(go(&config, kept, &cut, Who::Ranks(2, Stage::Two), (true, None)), right);
}
