//! What is predicted is what is allocated: alone in its process, so that the books are its own.

use kernels::Team;
use ledger::{Account, snapshot};
use models::*;
use std::sync::Arc;
use train::{BatchShape, Precision, Recipe, TrainConfig, Trainer};

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
    let models = [
        ModelConfig::Transformer(email),
        ModelConfig::Transformer(every_norm),
        ModelConfig::Rnn(RnnConfig::email(vocab)),
    ];
    for model in models {
        for (threads, recompute, precision) in [
            (1, Recompute::None, Precision::F32),
            (3, Recompute::None, Precision::F32),
            (2, Recompute::Attention, Precision::F32),
            (2, Recompute::Layer, Precision::F32),
            (2, Recompute::None, Precision::Bf16),
            (1, Recompute::Layer, Precision::F16),
        ] {
            let train = Recipe { precision, ..Recipe::default() };
            let config = TrainConfig { model: model.clone(), train };
            if config.check_recipe().is_err() {
                assert!(matches!(model, ModelConfig::Rnn(_)) && precision != Precision::F32);
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
            for (account, bytes) in accounts.into_iter().zip(state) {
                let right = (bytes * values).next_multiple_of(4);
                assert_eq!(books.current[account as usize], right, "{}", account.name());
            }
            assert!(plan.of(Account::Activations) > 0 && plan.of(Account::Optimizer) > 0);
            // What comes out of a training is weights and nothing else.
            let model = trainer.into_model();
            let books = snapshot().current;
            assert_eq!(books[Account::Weights as usize], 4 * values);
            assert_eq!(books.iter().sum::<u64>(), 4 * values);
            drop(model);
        }
    }
}
