//! A cache of layers with a window goes round: what lies behind the window is written over, and every
//! logit is the same bits as with the whole past kept.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use kernels::{KvKind, Team, mix};
use models::{Batch, Cache, Model, ModelConfig, Runner, Workload};
use std::sync::Arc;

const TOKENS: usize = 700;

fn model(window: usize, kind: KvKind) -> Model {
    let config: ModelConfig = serde_json::from_value(serde_json::json!({
        "kind": "transformer", "vocab_size": 9, "hidden_size": 16, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 24,
        "max_position_embeddings": TOKENS, "positions": "rotary",
        "sliding_window": {"tokens": window, "layers": [0, 1]}
    }))
    .unwrap();
    let mut model = Model::new(&config).unwrap();
    model.weights_mut().initialise(5);
    model.keep_kv_as(kind);
    model
}

/// The logits after every token, read in pieces; in the midst the cache is exchanged for its copy.
fn read(model: &Model, pieces: &[usize], piece: usize) -> Vec<u32> {
    let workload =
        Workload { rows: piece, sequences: 1, longest: TOKENS, threads: 2, training: false };
    let mut runner = Runner::new(model, workload, &Arc::new(Team::new(2))).unwrap();
    let mut caches = [Cache::new(model, TOKENS, piece).unwrap()];
    let ids: Vec<u32> = (0..TOKENS as u64).map(|i| (mix(i) % 9) as u32).collect();
    let (mut at, mut all) = (0, Vec::new());
    for &n in pieces.iter().cycle() {
        let n = n.min(TOKENS - at);
        let mut batch = Batch::default();
        batch.push_inputs(&ids[at..at + n], at, 0);
        let rows: Vec<usize> = (0..n).collect();
        let mut logits = vec![0.0; n * 9];
        runner.logits(model, &batch, &mut caches, &rows, &mut logits);
        all.extend(logits.iter().map(|z| z.to_bits()));
        at += n;
        if at == TOKENS {
            return all;
        }
        caches = [caches[0].fork(model).unwrap()];
    }
    all
}

#[test]
fn a_cache_that_goes_round_gives_the_same_bits() {
    for (window, kind) in [(20, KvKind::F32), (64, KvKind::F16), (129, KvKind::Q8)] {
        let model = model(window, kind);
        let whole = read(&model, &[TOKENS], TOKENS);
        assert_eq!(read(&model, &[1], 1), whole, "one by one, window {window}");
        assert_eq!(read(&model, &[50, 3, 64, 1], 64), whole, "in pieces, window {window}");
    }
}

#[test]
fn such_a_cache_does_not_grow_with_the_text() {
    let model = model(64, KvKind::F32);
    // A head has 4 values, a row 2·2·4 of them: 64 bytes a token and layer.
    let bytes = |capacity, piece| Cache::plan(model.config(), capacity, piece).total();
    let page = 64 * 64;
    assert_eq!(bytes(640, 640), 640 * 64 * 3, "a piece as long as the text: all is kept");
    assert_eq!(bytes(640, 64), (10 + 2 * 4) * page, "three tiles are reached, and one more");
    assert_eq!(bytes(64_000, 64), (1000 + 2 * 4) * page);
}
