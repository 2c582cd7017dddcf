//! What is predicted is what is allocated: alone in its process, so that the books are its own.

use kernels::Team;
use ledger::{Account, snapshot};
use models::*;
use std::sync::Arc;
use train::{BatchShape, Recipe, TrainConfig, Trainer};

#[test]
fn the_plan_is_what_is_charged() {
    let vocab = 500;
    let models = [
        ModelConfig::Transformer(TransformerConfig::email(vocab, 64)),
        ModelConfig::Rnn(RnnConfig::email(vocab)),
    ];
    for model in models {
        for threads in [1, 3] {
            let config = TrainConfig { model: model.clone(), train: Recipe::default() };
            let plan =
                Trainer::plan(&config, BatchShape::full(&config.train, 65), threads).unwrap();
            assert_eq!(snapshot().current.iter().sum::<u64>(), 0);
            let trainer = Trainer::new(
                &config,
                BatchShape::full(&config.train, 65),
                &Arc::new(Team::new(threads)),
            )
            .unwrap();
            let books = snapshot();
            for account in Account::ALL {
                let (predicted, measured) = (plan.of(account), books.current[account as usize]);
                assert_eq!(predicted, measured, "{} of {}", account.name(), model.kind());
            }
            assert!(plan.of(Account::Activations) > 0 && plan.of(Account::Optimizer) > 0);
            drop(trainer);
        }
    }
}
