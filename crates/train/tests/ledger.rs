//! What is predicted is what is allocated: alone in its process, so that the books are its own.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use kernels::Team;
use ledger::{Account, snapshot};
use models::*;
use ranks::Ranks;
use std::sync::Arc;
use train::{
    BatchShape, OptimizerKind, Place, Precision, Recipe, Shared, Stage, TrainConfig, Trainer,
};

#[test]
fn the_plan_is_what_is_charged() {
    let vocab = 500;
    let email = TransformerConfig::email(vocab, 64);
    let every_norm = TransformerConfig {
        num_hidden_layers: 5,
        norm: NormConfig::Rms,
        positions: PositionConfig::Rotary,
        mlp: MlpConfig::GegluTanh,
        qk_norm: true,
        post_norm: true,
        ..email.clone()
    };
    let lora = LoraConfig { rank: 5, alpha: 8.0, targets: LoraTarget::ALL.to_vec() };
    let adapters = TransformerConfig { lora: Some(lora), ..every_norm.clone() };
    let mut kept = adapters.clone();
    let kind = tensor::MatrixKind::Quant(kernels::QuantKind::Q8_0);
    kept.storage.insert("tok_emb.weight".to_owned(), vec![(kind, vocab)]);
    kept.storage.insert("layers.1.mlp.down.weight".to_owned(), vec![(kind, 64)]);
    let models = [
        ModelConfig::Transformer(email),
        ModelConfig::Transformer(adapters),
        ModelConfig::Transformer(kept),
        ModelConfig::Transformer(every_norm),
        ModelConfig::Rnn(RnnConfig::email(vocab)),
    ];
    for model in models.clone() {
        let (adamw, muon) = (OptimizerKind::Adamw, OptimizerKind::Muon);
        for (threads, recompute, optimizer, precision, pieces) in [
            (1, Recompute::None, adamw, Precision::F32, 0),
            (3, Recompute::None, muon, Precision::F32, 0),
            (2, Recompute::Attention, adamw, Precision::F32, 0),
            (2, Recompute::Layer, muon, Precision::F32, 0),
            (2, Recompute::None, adamw, Precision::Bf16, 0),
            (2, Recompute::Attention, muon, Precision::Bf16, 0),
            (1, Recompute::Layer, adamw, Precision::F16, 0),
            (1, Recompute::None, adamw, Precision::F32, 8),
            (2, Recompute::None, muon, Precision::Bf16, 4),
        ] {
            let average = if threads == 3 || pieces == 8 { 0.9 } else { 0.0 };
            let train = Recipe { optimizer, precision, pieces, average, ..Recipe::default() };
            let config = TrainConfig { model: model.clone(), train };
            if config.check_recipe().is_err() {
                assert!(precision != Precision::F32);
                let plain = matches!(&model, ModelConfig::Transformer(c) if c.lora.is_none());
                assert!(!plain, "a transformer whose weights all learn");
                continue;
            }
            let shape = BatchShape::full(&config.train, 65).recomputing(recompute);
            let plan = Trainer::plan(&config, shape, threads).unwrap();
            assert_eq!(snapshot().current.iter().sum::<u64>(), 0);
            let trainer = Trainer::new(&config, shape, &Arc::new(Team::new(threads))).unwrap();
            let books = snapshot();
            for account in Account::ALL {
                let (predicted, measured) = (plan.of(account), books.current[account as usize]);
                assert_eq!(predicted, measured, "{} of {}", account.name(), model.kind());
            }
            let values = trainer.model.weights().flat().len() as u64;
            let state = match precision {
                Precision::F32 => [4, 0, 4, 8],
                _ => [2, 4, 4, 8],
            };
            let accounts =
                [Account::Weights, Account::Master, Account::Gradients, Account::Optimizer];
            let adapts = matches!(&model, ModelConfig::Transformer(c) if c.lora.is_some());
            // Muon has one buffer a matrix, and what is frozen has neither gradient nor moments.
            let whole = optimizer == adamw && !adapts && pieces == 0;
            for (account, bytes) in accounts.into_iter().zip(state).filter(|_| whole) {
                let right = (bytes * values).next_multiple_of(4);
                assert_eq!(books.current[account as usize], right, "{}", account.name());
            }
            assert!(plan.of(Account::Activations) > 0 && plan.of(Account::Optimizer) > 0);
            // What comes out of a training is weights and nothing else.
            let model = trainer.into_model();
            let books = snapshot().current;
            let (account, kept) = match precision {
                Precision::F32 => (Account::Weights, plan.of(Account::Weights)),
                _ => (Account::Master, 4 * values),
            };
            assert_eq!(books[account as usize], kept);
            assert_eq!(books.iter().sum::<u64>(), kept);
            drop(model);
        }
    }
    let (email, [_, adapters, kept, ..]) = (TransformerConfig::email(vocab, 64), models);
    let tied = TransformerConfig { tie_word_embeddings: true, ..email };
    let (num_hidden_layers, distinct_layers) = (5, Some(2));
    let cycle = TransformerConfig { num_hidden_layers, distinct_layers, ..tied.clone() };
    let [tied, cycle] = [tied, cycle].map(ModelConfig::Transformer);
    for model in [tied, cycle, adapters, kept] {
        ranks_hold_what_is_planned(&model);
    }
}

/// All ranks of one process together, with pieces and without.
fn ranks_hold_what_is_planned(model: &ModelConfig) {
    for (stage, precision, (pieces, optimizer, micro_batch, average)) in
        Stage::ALL.into_iter().flat_map(|stage| {
            let both = [Precision::F32, Precision::Bf16].into_iter();
            let (adamw, muon) = (OptimizerKind::Adamw, OptimizerKind::Muon);
            let kinds = [
                (0, adamw, 64, 0.0),
                (4, adamw, 64, 0.0),
                (4, muon, 64, 0.9),
                (0, muon, 8, 0.9),
                (4, adamw, 3, 0.0),
            ];
            both.flat_map(move |precision| kinds.map(|kind| (stage, precision, kind)))
        })
    {
        let train =
            Recipe { precision, pieces, optimizer, micro_batch, average, ..Recipe::default() };
        let config = TrainConfig { model: model.clone(), train };
        if config.check_recipe().is_err() {
            assert!(precision != Precision::F32);
            continue;
        }
        let shape = BatchShape::full(&config.train, 65);
        let plan = |rank| {
            let place = Place { rank, size: 2, stage };
            Trainer::plan_ranks(&config, shape, 1, place).unwrap()
        };
        let plans = [plan(0), plan(1)];
        std::thread::scope(|scope| {
            for ranks in Ranks::threads(2).unwrap() {
                let (config, plans) = (&config, &plans);
                scope.spawn(move || {
                    let shared = Shared { ranks: Arc::new(ranks), stage };
                    let team = Arc::new(Team::new(1));
                    let room = Trainer::room(config, shared.place()).unwrap();
                    let from = room.filter(|_| pieces > 0);
                    let trainer = Trainer::of_ranks(from, config, shape, &team, &shared).unwrap();
                    shared.ranks.barrier().unwrap();
                    let books = snapshot();
                    for account in Account::ALL {
                        let predicted: u64 = plans.iter().map(|plan| plan.of(account)).sum();
                        let what =
                            format!("{} of {stage:?} {precision:?} {pieces}", account.name());
                        assert_eq!(predicted, books.current[account as usize], "{what}");
                    }
                    shared.ranks.barrier().unwrap();
                    drop(trainer);
                    shared.ranks.finish();
                });
            }
        });
    }
}
