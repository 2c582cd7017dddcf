//! A batch in pieces: whoever computes them, weights, losses and norms are the same to the bit.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Who, options, recipe, sequences};
use kernels::Team;
use models::{LoraConfig, LoraTarget, ModelConfig, RnnConfig, TransformerConfig};
use ranks::Ranks;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use train::{
    BatchShape, Event, OptimizerKind, Place, Precision, Recipe, SavedModel, Shared, Stage, Start,
    TrainConfig, Trainer, run, run_ranks,
};

const STEPS: u64 = 12;

fn transformer() -> TransformerConfig {
    TransformerConfig {
        hidden_size: 16,
        num_attention_heads: 2,
        intermediate_size: 32,
        tie_word_embeddings: true,
        ..TransformerConfig::email(64, 16)
    }
}

fn config(precision: Precision, pieces: usize) -> TrainConfig {
    let train = Recipe {
        epochs: 2,
        eval_every: 4,
        checkpoint_every: 2,
        max_steps: STEPS,
        learning_rate: 0.01,
        pieces,
        precision,
        ..recipe()
    };
    TrainConfig { model: ModelConfig::Transformer(transformer()), train }
}

/// Both sides; the last batch of an epoch has fewer sequences than there are pieces.
fn data() -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
    (sequences(64, 4..15, 51, 1), sequences(64, 4..15, 9, 2))
}

/// What a run leaves: the numbers of each line of its metrics, its weights, and those that were saved
/// as its best.
#[derive(Debug, PartialEq)]
struct Trace {
    lines: Vec<Vec<Option<u64>>>,
    weights: String,
    /// None of adapters.
    saved: Option<u64>,
}

fn trace(dir: &Path) -> Trace {
    let names = [
        "step",
        "loss_nats",
        "gradient_norm",
        "log_z_nats",
        "largest_attention_score",
        "lost_update_share",
        "loss_scale",
        "train_loss_nats",
        "valid_loss_nats",
    ];
    let text = std::fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
    let line = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        names.iter().map(|&name| value[name].as_f64().map(f64::to_bits)).collect()
    };
    let newest = train::checkpoints(dir).pop().unwrap();
    let weights = train::weights_digest(&newest).unwrap();
    let saved = match SavedModel::open(dir) {
        Ok(SavedModel::Network(model)) => {
            let values = model.weights().flat().iter();
            Some(values.fold(0, |hash, value| kernels::mix(hash ^ u64::from(value.to_bits()))))
        }
        _ => None,
    };
    Trace { lines: text.lines().map(line).collect(), weights, saved }
}

/// Trains until the end, or until a step.
fn go(config: &TrainConfig, dir: &Path, who: Who, resume: bool, stop_at: Option<u64>) {
    let (train, valid) = data();
    let one = |shared: Option<&Shared>| {
        let (team, stop) = (Arc::new(Team::new(1)), AtomicUsize::new(0));
        let options = options(config, (&train, &valid), dir, resume, &team, &stop);
        let tell = &mut |event: Event| match event {
            Event::Step { state, .. } if Some(state.step) == stop_at => {
                stop.store(15, Ordering::Relaxed);
            }
            Event::PassedOver(error) => panic!("{error}"),
            _ => {}
        };
        match shared {
            None => run(&options, tell).map(drop).unwrap(),
            Some(shared) => {
                run_ranks(Start::default(), shared, &options, tell).map(drop).unwrap();
                shared.ranks.finish();
            }
        }
    };
    match who {
        Who::Alone => one(None),
        Who::Ranks(size, stage) => std::thread::scope(|scope| {
            for ranks in Ranks::threads(size).unwrap() {
                let (shared, one) = (Shared { ranks: Arc::new(ranks), stage }, &one);
                scope.spawn(move || one(Some(&shared)));
            }
        }),
    }
}

fn whole(config: &TrainConfig, who: Who) -> Trace {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("run");
    go(config, &dir, who, false, None);
    trace(&dir)
}

#[test]
fn any_number_of_ranks_gives_the_bits_of_one_process() {
    for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
        let config = config(precision, 4);
        let right = whole(&config, Who::Alone);
        assert_eq!(right.lines.len() as u64, STEPS + 3);
        let stages: &[Stage] = match precision {
            Precision::F16 => &[Stage::Zero, Stage::Three],
            _ => &Stage::ALL,
        };
        for size in [1, 2, 4] {
            for &stage in stages {
                let found = whole(&config, Who::Ranks(size, stage));
                assert_eq!(found, right, "{precision:?}, {size} ranks, {stage:?}");
            }
        }
    }
}

#[test]
fn without_pieces_numbers_of_ranks_part() {
    // What the other tests hold is not so by chance.
    let config = config(Precision::Bf16, 0);
    let right = whole(&config, Who::Alone);
    assert_ne!(whole(&config, Who::Ranks(2, Stage::Zero)).weights, right.weights);
    let pieces = TrainConfig { train: Recipe { pieces: 4, ..config.train.clone() }, ..config };
    assert_ne!(whole(&pieces, Who::Alone).weights, right.weights);
}

#[test]
fn other_networks_and_muon_learn_in_pieces() {
    let targets = LoraTarget::ALL.into_iter().filter(|target| target.is_in(&transformer()));
    let lora = LoraConfig { rank: 3, alpha: 6.0, targets: targets.collect() };
    let adapted = TransformerConfig { lora: Some(lora), ..transformer() };
    let (adamw, muon) = (OptimizerKind::Adamw, OptimizerKind::Muon);
    for (model, optimizer, precision, stages) in [
        (ModelConfig::Transformer(transformer()), muon, Precision::Bf16, &Stage::ALL[..]),
        (ModelConfig::Transformer(adapted), adamw, Precision::F32, &Stage::ALL[..]),
        (ModelConfig::Rnn(RnnConfig::email(64)), adamw, Precision::F32, &Stage::ALL[..]),
        (ModelConfig::Rnn(RnnConfig::email(64)), muon, Precision::F32, &Stage::ALL[..]),
    ] {
        let config = config(precision, 8);
        let train = Recipe { optimizer, max_steps: 4, ..config.train };
        let config = TrainConfig { model, train };
        let right = whole(&config, Who::Alone);
        for &stage in stages {
            let found = whole(&config, Who::Ranks(2, stage));
            assert_eq!(found, right, "{} {optimizer:?} {stage:?}", config.model.kind());
        }
    }
}

/// Five layers of two kinds in turn.
fn cycle() -> ModelConfig {
    let (num_hidden_layers, distinct_layers) = (5, Some(2));
    ModelConfig::Transformer(TransformerConfig {
        num_hidden_layers,
        distinct_layers,
        ..transformer()
    })
}

#[test]
fn averages_layers_in_a_cycle_and_several_batches_of_a_piece_keep_the_bits() {
    let (adamw, muon) = (OptimizerKind::Adamw, OptimizerKind::Muon);
    for (precision, optimizer, cycles, average, micro_batch) in [
        (Precision::F32, adamw, false, 0.9, 8),
        (Precision::Bf16, muon, false, 0.9, 8),
        (Precision::F32, adamw, true, 0.0, 8),
        (Precision::Bf16, adamw, true, 0.0, 8),
        (Precision::F32, adamw, false, 0.0, 1),
        (Precision::Bf16, adamw, false, 0.0, 3),
        (Precision::F16, muon, true, 0.9, 3),
    ] {
        let mut config = config(precision, 2);
        (config.train.average, config.train.micro_batch) = (average, micro_batch);
        (config.train.optimizer, config.train.max_steps) = (optimizer, 7);
        if cycles {
            config.model = cycle();
        }
        let right = whole(&config, Who::Alone);
        let plain = Recipe { average: 0.0, ..config.train.clone() };
        let plain = whole(&TrainConfig { train: plain, ..config.clone() }, Who::Alone);
        // An average changes what is saved and not what is learnt.
        assert_eq!(plain.weights, right.weights);
        assert_eq!(plain.saved == right.saved, average == 0.0);
        for (size, stage) in [1, 2].into_iter().flat_map(|n| Stage::ALL.map(|stage| (n, stage))) {
            let what = format!("{:?}, {size} ranks, {stage:?}", config.train);
            assert_eq!(whole(&config, Who::Ranks(size, stage)), right, "{what}");
        }
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("cut");
        go(&config, &dir, Who::Ranks(2, Stage::Three), false, Some(3));
        go(&config, &dir, Who::Alone, true, Some(5));
        go(&config, &dir, Who::Ranks(2, Stage::One), true, None);
        assert_eq!(trace(&dir), right, "resumed: {:?}", config.train);
    }
}

#[test]
fn a_run_goes_on_to_the_bit_with_any_number_of_ranks() {
    let (adamw, muon) = (OptimizerKind::Adamw, OptimizerKind::Muon);
    for (precision, optimizer) in
        [(Precision::F32, adamw), (Precision::Bf16, adamw), (Precision::Bf16, muon)]
    {
        let mut config = config(precision, 8);
        config.train.optimizer = optimizer;
        let right = whole(&config, Who::Alone);
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("cut");
        go(&config, &dir, Who::Ranks(4, Stage::Three), false, Some(3));
        go(&config, &dir, Who::Ranks(2, Stage::One), true, Some(5));
        go(&config, &dir, Who::Alone, true, Some(8));
        go(&config, &dir, Who::Ranks(8, Stage::Zero), true, Some(10));
        go(&config, &dir, Who::Ranks(2, Stage::Two), true, None);
        assert_eq!(trace(&dir), right, "{precision:?} {optimizer:?}");
    }
}

#[test]
fn a_gradient_is_the_chain_of_its_pieces() {
    // As many targets in each of four pieces: the gradient of a piece alone is four times its part.
    let data = sequences(64, 12..13, 8, 3);
    let recipe = Recipe { dropout: 0.0, weight_decay: 0.0, ..config(Precision::F32, 4).train };
    let model = ModelConfig::Transformer(transformer());
    let config = TrainConfig { model, train: recipe };
    let team = Arc::new(Team::new(2));
    let gradient = |pieces: usize, micro_batch: usize, indices: &[u32]| {
        let train = Recipe { pieces, micro_batch, ..config.train.clone() };
        let config = TrainConfig { train, ..config.clone() };
        let shape = BatchShape::full(&config.train, 12);
        let mut trainer = Trainer::new(&config, shape, &team).unwrap();
        let report = trainer.step(&data, indices, 0, 0.0);
        let gradients = trainer.gradients();
        let specs = gradients.layout().specs();
        let flat: Vec<f32> =
            specs.iter().flat_map(|s| gradients.flat()[s.range.clone()].to_vec()).collect();
        (flat, report)
    };
    let all = [0, 1, 2, 3, 4, 5, 6, 7];
    // A piece at once; a piece of three sequences and one more.
    for (pieces, micro_batch) in [(4, 8), (2, 3)] {
        let (found, report) = gradient(pieces, micro_batch, &all);
        let mut sum = vec![0.0_f32; found.len()];
        let mut loss = 0.0;
        for indices in all.chunks(8 / pieces) {
            let (piece, of) = gradient(0, micro_batch, indices);
            sum.iter_mut().zip(&piece).for_each(|(sum, g)| *sum += g / pieces as f32);
            loss += of.loss_sum;
        }
        assert_eq!(found, sum);
        assert_eq!(report.loss_sum.to_bits(), loss.to_bits());
        let norm = sum.iter().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>().sqrt();
        assert!((report.gradient_norm / norm - 1.0).abs() < 1e-6, "{norm}, {report:?}");
    }
}

#[test]
fn what_makes_no_pieces_is_refused() {
    let place = |size| Place { rank: 0, size, stage: Stage::Zero };
    let told = |size: usize, change: &dyn Fn(&mut TrainConfig)| {
        let mut config = config(Precision::F32, 4);
        change(&mut config);
        place(size).check(&config).unwrap_err().to_string()
    };
    let said = told(1, &|c| c.train.pieces = 3);
    assert!(said.contains("pieces is 3") && said.contains("batch of 8"), "{said}");
    assert!(said.contains("nearest batch that it divides is 9"), "{said}");
    let said = told(3, &|c| c.train.batch = 12);
    assert!(said.contains("pieces is 4, which 3 ranks do not divide"), "{said}");
    assert!(place(4).check(&config(Precision::F32, 4)).is_ok());
}

#[test]
fn a_miniature_is_evaluated_in_pieces_too() {
    // It was evaluated in batches that its buffers had no room for.
    Trainer::warm_up(&config(Precision::F32, 4), &Arc::new(Team::new(1)));
}
