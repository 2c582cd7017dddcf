//! Keys and values in fewer bytes: what they cost in memory and in quality, and that a result is
//! still the same bits by every way.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use decoding::divergence;
use engine::{NetworkSource, Room, Route, Source, score};
use kernels::{KvKind, Team};
use ledger::Account;
use models::{Model, ModelConfig};
use std::sync::Arc;

const VOCABULARY: usize = 50;

/// A transformer with heads of 64 whose attention matters, and a text of 120 tokens.
fn model(kind: KvKind) -> Model {
    let config = serde_json::json!({
        "kind": "transformer", "vocab_size": VOCABULARY, "hidden_size": 128,
        "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 256,
        "max_position_embeddings": 160
    });
    let config: ModelConfig = serde_json::from_value(config).unwrap();
    let mut model = Model::new(&config).unwrap();
    model.weights_mut().initialise(11);
    let loud = |name: &str| name.ends_with("attn.qkv.weight") || name == "head.weight";
    let specs: Vec<_> = model.layout().specs().to_vec();
    for spec in specs.iter().filter(|spec| loud(&spec.name)) {
        model.weights_mut().flat_mut()[spec.range.clone()].iter_mut().for_each(|w| *w *= 4.0);
    }
    model.keep_kv_as(kind);
    model
}

fn text() -> Vec<u32> {
    (0..120u64).map(|i| (kernels::mix(i) % VOCABULARY as u64) as u32).collect()
}

fn rows(model: &Model) -> Vec<Vec<f32>> {
    let mut source = NetworkSource::new(model, &Arc::new(Team::new(2)));
    let mut all = Vec::new();
    source
        .pass(&text(), &mut |_, logits| {
            all.push(logits.to_vec());
            Ok(())
        })
        .unwrap();
    all
}

#[test]
fn fewer_bytes_cost_little_and_something() {
    let exact = rows(&model(KvKind::F32));
    let mut found = Vec::new();
    for kind in [KvKind::F16, KvKind::Q8] {
        let rough = rows(&model(kind));
        let pairs = exact.iter().zip(&rough);
        let kl: f64 = pairs.map(|(a, b)| divergence(a, b, 0).unwrap().kl).sum();
        found.push(kl / exact.len() as f64);
    }
    println!("mean KL: f16 {:.3e}, q8 {:.3e} nats", found[0], found[1]);
    assert!(found[0] > 0.0 && found[0] < 1e-4, "f16 {}", found[0]);
    assert!(found[1] > found[0] && found[1] < 0.05, "q8 {}", found[1]);
}

#[test]
fn one_pass_and_step_by_step_are_the_same_bits() {
    for kind in KvKind::ALL {
        let model = model(kind);
        let scores = |route| {
            let mut source = NetworkSource::new(&model, &Arc::new(Team::new(2)));
            let all = score(&mut source, &text(), route).unwrap();
            all.iter().map(|one| one.logprob.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(scores(Route::OnePass), scores(Route::Cached), "{kind:?}");
    }
}

#[test]
fn the_plan_says_what_is_saved() {
    // 2 (keys and values) · 3 layers · 2 heads · 112 tokens: places are counted in sixteens
    let heads = 2 * 3 * 2 * 112;
    for (kind, head) in [(KvKind::F32, 256), (KvKind::F16, 128), (KvKind::Q8, 68)] {
        let model = model(kind);
        let room = Room { sequences: 1, tokens: 100 };
        let plan = NetworkSource::plan(model.config(), 10, room, 2).unwrap();
        assert_eq!(plan.of(Account::KvCache), heads * head, "{kind:?}");
    }
}
