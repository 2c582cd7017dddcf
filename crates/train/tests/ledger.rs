//! What is predicted is what is allocated: alone in its process, so that the books are its own.

use kernels::Team;
use ledger::{Account, snapshot};
use models::*;
use std::sync::Arc;
use train::{BatchShape, OptimizerKind, Recipe, TrainConfig, Trainer};

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
        for (threads, recompute, optimizer) in [
            (1, Recompute::None, OptimizerKind::Adamw),
            (3, Recompute::None, OptimizerKind::Muon),
            (2, Recompute::Attention, OptimizerKind::Adamw),
            (2, Recompute::Layer, OptimizerKind::Muon),
        ] {
            let train = Recipe { optimizer, ..Recipe::default() };
            let config = TrainConfig { model: model.clone(), train };
            let shape = BatchShape::full(&config.train, 65).recomputing(recompute);
            let plan = Trainer::plan(&config, shape, threads).unwrap();
            assert_eq!(snapshot().current.iter().sum::<u64>(), 0);
            let trainer = Trainer::new(&config, shape, &Arc::new(Team::new(threads))).unwrap();
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
