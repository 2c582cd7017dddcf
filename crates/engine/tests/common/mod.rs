//! Small random networks, a tokenizer of plain letters, and a request.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "each test file uses a part of it")]

use decoding::Rules;
use engine::{NetworkSource, Request};
use kernels::Team;
use models::{Model, ModelConfig};
use std::sync::Arc;
use tokenizer::Tokenizer;

/// Entries of the vocabulary.
pub const VOCABULARY: usize = 7;

/// A transformer that sees 40 tokens and a recurrent network, with random weights large enough to
/// have opinions.
pub fn networks() -> Vec<Model> {
    let configs = [
        serde_json::json!({
            "kind": "transformer", "vocab_size": VOCABULARY, "hidden_size": 16,
            "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
            "max_position_embeddings": 40
        }),
        serde_json::json!({
            "kind": "rnn", "vocab_size": VOCABULARY, "embedding_size": 8, "hidden_size": 16
        }),
    ];
    configs.into_iter().map(make).collect()
}

fn make(config: serde_json::Value) -> Model {
    let config: ModelConfig = serde_json::from_value(config).unwrap();
    let mut model = Model::new(&config).unwrap();
    model.weights_mut().initialise(5);
    let head = model.layout().specs().iter().find(|spec| spec.name == "head.weight");
    let range = head.unwrap().range.clone();
    model.weights_mut().flat_mut()[range].iter_mut().for_each(|w| *w *= 12.0);
    model
}

/// A transformer of which two layers in three see only the last 20 positions.
pub fn windowed() -> Model {
    make(serde_json::json!({
        "kind": "transformer", "vocab_size": VOCABULARY, "hidden_size": 16,
        "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32,
        "max_position_embeddings": 400, "sliding_window": {"tokens": 20, "layers": [0, 2]}
    }))
}

/// The transformer of [`networks`] in each way of keeping keys and values, and the recurrent one.
pub fn networks_by_kv() -> Vec<Model> {
    let mut all = Vec::new();
    for kind in kernels::KvKind::ALL {
        let mut models = networks();
        models.truncate(if kind == kernels::KvKind::F32 { 2 } else { 1 });
        models.iter_mut().for_each(|model| model.keep_kv_as(kind));
        all.append(&mut models);
    }
    all
}

/// A model at work on two threads.
pub fn source(model: &Model) -> NetworkSource<'_> {
    NetworkSource::new(model, &Arc::new(Team::new(2)))
}

/// One letter a token.
pub fn tokenizer() -> Tokenizer {
    let vocab: serde_json::Map<_, _> = (0..)
        .zip(["a", "b", "c", "d", "e", "f", "g"])
        .map(|(id, t): (u32, _)| (t.to_owned(), id.into()))
        .collect();
    let file = serde_json::json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    Tokenizer::from_bytes(file.to_string().as_bytes()).unwrap()
}

/// Two tokens of prompt, three new ones, no rule, token 0 ends.
pub fn request() -> Request {
    Request {
        prompt: vec![1, 2],
        rules: Rules::default(),
        seed: 9,
        first_sequence: 0,
        sequences: 1,
        max_tokens: 3,
        end: vec![0],
        stops: Vec::new(),
    }
}
