//! Whole runs over ranks: stopped and resumed by other numbers of ranks, checkpoints that have lost a
//! file, ranks that were given different things.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{options, recipe, sequences};
use kernels::Team;
use models::{ModelConfig, TransformerConfig};
use ranks::Ranks;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use train::{
    CurvePoint, Error, Event, Precision, RankOutcome, Recipe, RunOptions, SavedModel, Shared,
    Stage, Start, TrainConfig, run, run_ranks,
};

const STEPS: u64 = 12;

fn config(precision: Precision) -> TrainConfig {
    let model = TransformerConfig {
        hidden_size: 16,
        num_attention_heads: 2,
        intermediate_size: 32,
        tie_word_embeddings: true,
        ..TransformerConfig::email(64, 16)
    };
    let train = Recipe {
        epochs: 2,
        eval_every: 3,
        checkpoint_every: 2,
        max_steps: STEPS,
        precision,
        ..recipe()
    };
    TrainConfig { model: ModelConfig::Transformer(model), train }
}

/// Both sides; the last batch of an epoch is uneven.
fn data() -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
    (sequences(64, 4..15, 46, 1), sequences(64, 4..15, 9, 2))
}

/// What is asked of a run.
#[derive(Clone, Copy)]
struct Ask<'a> {
    config: &'a TrainConfig,
    dir: &'a Path,
    resume: bool,
    /// The step after which rank 1 hears a signal.
    stop_at: Option<u64>,
    data_hash: fn(usize) -> &'static str,
}

/// One rank; answers with what damaged checkpoints it was told of, too.
fn one(ask: Ask, shared: &Shared) -> (Result<RankOutcome, Error>, Vec<String>) {
    let (train, valid) = data();
    let (team, stop) = (Arc::new(Team::new(1)), AtomicUsize::new(0));
    let sides = (&train, &valid);
    let options = RunOptions {
        data_hash: (ask.data_hash)(shared.ranks.rank()),
        data_name: "data",
        ..options(ask.config, sides, ask.dir, ask.resume, &team, &stop)
    };
    let mut passed_over = Vec::new();
    let speaks = shared.ranks.rank() == 1;
    let result = run_ranks(Start::default(), shared, &options, &mut |event| match event {
        Event::Step { state, .. } if speaks && Some(state.step) == ask.stop_at => {
            stop.store(15, Ordering::Relaxed);
        }
        Event::PassedOver(error) => passed_over.push(error.to_string()),
        _ => {}
    });
    shared.ranks.finish();
    (result, passed_over)
}

fn all(ask: Ask, size: usize, stage: Stage) -> Vec<(Result<RankOutcome, Error>, Vec<String>)> {
    std::thread::scope(|scope| {
        let start = |ranks: Ranks| {
            let shared = Shared { ranks: Arc::new(ranks), stage };
            scope.spawn(move || one(ask, &shared))
        };
        let all: Vec<_> = Ranks::threads(size).unwrap().into_iter().map(start).collect();
        all.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The curve of a run over ranks that must end well.
fn curve(ask: Ask, size: usize, stage: Stage) -> Vec<CurvePoint> {
    let mut outcomes = all(ask, size, stage);
    let (result, passed_over) = outcomes.swap_remove(0);
    assert!(passed_over.is_empty(), "{passed_over:?}");
    let outcome = result.unwrap();
    assert_eq!(outcome.stopped_by, ask.stop_at.map(|_| 15));
    outcome.state.curve
}

fn alone(config: &TrainConfig, dir: &Path, resume: bool) -> Vec<CurvePoint> {
    let (train, valid) = data();
    let (team, stop) = (Arc::new(Team::new(1)), AtomicUsize::new(0));
    let options = options(config, (&train, &valid), dir, resume, &team, &stop);
    run(&options, &mut |_| {}).unwrap().state.curve
}

fn near(found: &[CurvePoint], right: &[CurvePoint], share: f64) {
    assert_eq!(found.len(), right.len());
    for (found, right) in found.iter().zip(right) {
        assert_eq!((found.step, found.tokens), (right.step, right.tokens));
        for (a, b) in [(found.train_loss, right.train_loss), (found.valid_loss, right.valid_loss)] {
            assert!((a - b).abs() < share * b, "step {}: {a} and {b}", found.step);
        }
    }
}

fn ask<'a>(config: &'a TrainConfig, dir: &'a Path) -> Ask<'a> {
    Ask { config, dir, resume: false, stop_at: None, data_hash: |_| "d" }
}

#[test]
fn a_run_goes_on_with_any_number_of_ranks() {
    for (precision, share) in [(Precision::F32, 1e-6), (Precision::Bf16, 2e-3)] {
        let config = config(precision);
        let place = tempfile::tempdir().unwrap();
        let (whole, cut) = (place.path().join("whole"), place.path().join("cut"));
        let right = alone(&config, &whole, false);
        let first = ask(&config, &cut);
        curve(Ask { stop_at: Some(3), ..first }, 4, Stage::Three);
        let on = Ask { resume: true, ..first };
        curve(Ask { stop_at: Some(6), ..on }, 2, Stage::One);
        curve(Ask { stop_at: Some(8), ..on }, 8, Stage::Zero);
        near(&curve(Ask { stop_at: Some(10), ..on }, 2, Stage::Two), &right[..3], share);
        near(&alone(&config, &cut, true), &right, share);
        // The weights are a model folder without another step.
        let names = ["model.safetensors", "config.json", "tokenizer.json"];
        assert!(names.iter().all(|name| cut.join(name).is_file()));
        assert!(matches!(SavedModel::open(&cut).unwrap(), SavedModel::Network(_)));
    }
}

#[test]
fn a_resumed_run_of_as_many_ranks_has_the_same_bits_at_every_stage() {
    for (precision, average) in [
        (Precision::F32, 0.0),
        (Precision::F16, 0.0),
        (Precision::F32, 0.8),
        (Precision::Bf16, 0.8),
    ] {
        let mut config = config(precision);
        config.train.average = average;
        let place = tempfile::tempdir().unwrap();
        let whole = place.path().join("whole");
        // Three ranks do not divide the batch of eight; two do.
        let right = curve(ask(&config, &whole), 2, Stage::Two);
        let weights = |dir: &Path| {
            let SavedModel::Network(model) = SavedModel::open(dir).unwrap() else { panic!() };
            model.weights().flat().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        for stage in Stage::ALL {
            let cut = place.path().join(format!("cut-{}", stage.number()));
            let first = ask(&config, &cut);
            curve(Ask { stop_at: Some(5), ..first }, 2, stage);
            assert_eq!(curve(Ask { resume: true, ..first }, 2, Stage::Three), right);
            assert!(weights(&cut) == weights(&whole), "{stage:?} {average}: other weights");
        }
    }
}

#[test]
fn a_checkpoint_without_a_shard_is_passed_over_by_name() {
    let config = config(Precision::F32);
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("run");
    let first = ask(&config, &dir);
    curve(Ask { stop_at: Some(5), ..first }, 2, Stage::Three);
    let newest = dir.join("checkpoints/step-000000006");
    let shard = newest.join("shard-00001-of-00002.safetensors");
    std::fs::remove_file(&shard).unwrap();
    // A byte of the one before, in the other rank's file.
    let outcomes = all(Ask { resume: true, ..first }, 2, Stage::Three);
    assert!(outcomes.iter().all(|(result, _)| result.as_ref().unwrap().state.step == STEPS));
    let told: Vec<&String> = outcomes.iter().flat_map(|(_, told)| told).collect();
    assert!(told.iter().all(|t| t.contains("shard-00001-of-00002") && t.contains("missing")));
    assert_eq!(told.len(), 2, "{told:?}");
}

#[test]
fn ranks_that_were_given_different_data_do_not_start() {
    let config = config(Precision::F32);
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("run");
    let differing =
        Ask { data_hash: |rank| if rank == 2 { "other" } else { "d" }, ..ask(&config, &dir) };
    let outcomes = all(differing, 4, Stage::One);
    for (rank, (result, _)) in outcomes.into_iter().enumerate() {
        let error = result.unwrap_err();
        match error {
            Error::Share(error) if rank == 0 => {
                let words = error.to_string();
                assert!(words.contains("rank 2") && words.contains("another data"), "{words}");
            }
            Error::Disagreement(_) if rank > 0 => {}
            other => panic!("rank {rank}: {other}"),
        }
    }
    assert!(!dir.exists(), "something was written");
}

#[test]
fn a_batch_that_ranks_do_not_divide_is_refused_with_one_that_they_do() {
    let config = config(Precision::F32);
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("run");
    for (result, _) in all(ask(&config, &dir), 3, Stage::One) {
        let words = result.unwrap_err().to_string();
        assert!(words.contains("batch is 8, which 3 ranks do not divide"), "{words}");
        assert!(words.contains("is 9"), "{words}");
    }
    assert!(!dir.exists());
}
