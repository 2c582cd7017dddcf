//! What is predicted is what is allocated: alone in its process, so that the books are its own.

use kernels::Team;
use ledger::{Account, snapshot};
use models::*;
use std::sync::Arc;
use train::{BatchShape, OptimizerKind, Precision, Recipe, TrainConfig, Trainer};

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
    for model in models {
        let (adamw, muon) = (OptimizerKind::Adamw, OptimizerKind::Muon);
        for (threads, recompute, optimizer, precision) in [
            (1, Recompute::None, adamw, Precision::F32),
            (3, Recompute::None, muon, Precision::F32),
            (2, Recompute::Attention, adamw, Precision::F32),
            (2, Recompute::Layer, muon, Precision::F32),
            (2, Recompute::None, adamw, Precision::Bf16),
            (2, Recompute::Attention, muon, Precision::Bf16),
            (1, Recompute::Layer, adamw, Precision::F16),
        ] {
            let train = Recipe { optimizer, precision, ..Recipe::default() };
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
            let whole = optimizer == adamw && !adapts;
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
}
