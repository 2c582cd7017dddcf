//! One training step, and three, against PyTorch: `scripts/make_torch_fixtures.py` made the
//! numbers.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use kernels::Team;
use ledger::Account;
use models::*;
use serde_json::Value;
use std::sync::Arc;
use tensor::Parameters;
use train::{AdamW, Muon, OptimizerKind, Recipe, TrainConfig, Trainer};

fn fixture(name: &str) -> Value {
    let path = format!("{}/../models/tests/fixtures/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(items) => items.iter().flat_map(numbers).collect(),
        number => vec![number.as_f64().unwrap()],
    }
}

fn size(config: &Value, key: &str) -> usize {
    config[key].as_u64().unwrap() as usize
}

fn config(value: &Value) -> ModelConfig {
    let c = &value["config"];
    if c["kind"] == "rnn" {
        return ModelConfig::Rnn(RnnConfig {
            vocab_size: size(c, "vocabulary"),
            embedding_size: size(c, "embedding"),
            hidden_size: size(c, "hidden"),
        });
    }
    let llama = value["parameters"].get("layers.0.mlp.gate.weight").is_some();
    ModelConfig::Transformer(TransformerConfig {
        hidden_size: size(c, "hidden"),
        num_hidden_layers: size(c, "layers"),
        num_attention_heads: size(c, "heads"),
        num_key_value_heads: Some(size(c, "kv_heads")),
        intermediate_size: size(c, "mlp"),
        norm: if llama { NormConfig::Rms } else { NormConfig::Layer },
        norm_epsilon: if llama { 1e-6 } else { 1e-5 },
        positions: if llama { PositionConfig::Rotary } else { PositionConfig::Learned },
        mlp: match c["mlp_kind"].as_str() {
            Some("swiglu") => MlpConfig::Swiglu,
            Some("geglu_tanh") => MlpConfig::GegluTanh,
            _ => MlpConfig::Gelu,
        },
        qk_norm: c["qk_norm"] == true,
        post_norm: c["post_norm"] == true,
        embedding_scale: c["embedding_scale"].as_f64().map(|scale| scale as f32),
        query_pre_attn_scalar: c["scores"].as_f64(),
        sliding_window: c["window"].as_u64().map(|tokens| SlidingWindow {
            tokens: tokens as usize,
            layers: numbers(&c["window_layers"]).into_iter().map(|i| i as usize).collect(),
            rope_theta: c["window_theta"].as_f64(),
        }),
        final_logit_softcapping: c["soft_cap"].as_f64().map(|limit| limit as f32),
        bias: !llama,
        tie_word_embeddings: llama,
        ..TransformerConfig::email(size(c, "vocabulary"), size(c, "context"))
    })
}

fn check_all(got: &Parameters, right: &Value, tolerance: f64, what: &str) {
    for spec in got.layout().specs() {
        let values = numbers(&right[&spec.name]["values"]);
        let ours = &got.flat()[spec.range.clone()];
        assert_eq!(values.len(), ours.len(), "{what} {}", spec.name);
        let scale = values.iter().fold(1e-3f64, |m, v| m.max(v.abs()));
        let third = ours.len() / 3;
        for (i, (a, b)) in ours.iter().zip(&values).enumerate() {
            // The gradient of a key's bias is zero but for rounding, which Adam blows up.
            let key_bias = spec.name.ends_with("qkv.bias") && (third..2 * third).contains(&i);
            let tolerance = if key_bias && what == "after" { 0.04 / scale } else { tolerance };
            let error = (f64::from(*a) - b).abs() / scale;
            assert!(error <= tolerance, "{what} {}[{i}]: {a} for {b} ({error:e})", spec.name);
        }
    }
}

fn check(name: &str) {
    let value = fixture(name);
    let config = config(&value);
    let mut model = Model::new(&config).unwrap();
    let layout = Arc::clone(model.layout());
    assert_eq!(layout.specs().len(), value["parameters"].as_object().unwrap().len(), "names");
    for spec in layout.specs() {
        let values = numbers(&value["parameters"][&spec.name]["values"]);
        let place = &mut model.weights_mut().flat_mut()[spec.range.clone()];
        place.iter_mut().zip(values).for_each(|(w, v)| *w = v as f32);
    }
    let mut batch = Batch::default();
    for (i, row) in value["rows"].as_array().unwrap().iter().enumerate() {
        let inputs = numbers(&row["inputs"]);
        let last = *numbers(&row["targets"]).last().unwrap();
        let ids: Vec<u32> = inputs.into_iter().chain([last]).map(|x| x as u32).collect();
        batch.push_known(&ids, i as u64);
    }
    for threads in [1, 2] {
        let team = Arc::new(Team::new(threads));
        let workload =
            Workload { rows: batch.rows(), sequences: 3, longest: 12, threads, training: true };
        let mut runner = Runner::new(&model, workload, &team).unwrap();
        let mut gradients = Parameters::zeros(&layout, "gradients", Account::Gradients).unwrap();
        let scale = 1.0 / batch.num_targets() as f32;
        let losses = runner.train(&model, &batch, scale, None, &mut gradients);
        let loss = losses.iter().map(|&l| f64::from(l)).sum::<f64>() * f64::from(scale);
        assert!((loss - value["loss"].as_f64().unwrap()).abs() < 2e-6, "{name} loss {loss}");
        check_all(&gradients, &value["gradients"], 3e-6, "gradient");

        let quiet = Workload { training: false, ..workload };
        let mut reader = Runner::new(&model, quiet, &team).unwrap();
        for row in value["logits"].as_array().unwrap() {
            let sequence = batch.sequences[size(row, "sequence")];
            let mut logits = vec![0.0; config.vocab_size()];
            let at = [sequence.0 + size(row, "position")];
            reader.logits(&model, &batch, &mut [][..], &at, &mut logits);
            for (a, b) in logits.iter().zip(numbers(&row["values"])) {
                assert!((f64::from(*a) - b).abs() < 2e-5, "{name} logit {a} for {b}");
            }
        }
    }

    let team = Arc::new(Team::new(2));
    let workload =
        Workload { rows: batch.rows(), sequences: 3, longest: 12, threads: 2, training: true };
    let mut runner = Runner::new(&model, workload, &team).unwrap();
    let mut gradients = Parameters::zeros(&layout, "gradients", Account::Gradients).unwrap();
    let recipe = Recipe { weight_decay: 0.1, clip: 1.0, ..Recipe::default() };
    let mut optimizer = AdamW::new(&layout).unwrap();
    let scale = 1.0 / batch.num_targets() as f32;
    for step in value["steps"].as_array().unwrap() {
        gradients.clear(&team);
        runner.train(&model, &batch, scale, None, &mut gradients);
        let done = optimizer.step(&team, &recipe, 1e-2, model.weights_mut(), &gradients);
        runner.weights_changed();
        let norm = step["gradient_norm"].as_f64().unwrap();
        assert!(
            (done.gradient_norm / norm - 1.0).abs() < 1e-4,
            "{} for {norm}",
            done.gradient_norm
        );
    }
    check_all(model.weights(), &value["parameters_after"], 2e-4, "after");
}

#[test]
fn muon_steps_as_pytorch_does() {
    let (start, right) = (fixture("transformer"), fixture("muon"));
    let config = config(&start);
    let mut model = Model::new(&config).unwrap();
    let layout = Arc::clone(model.layout());
    for spec in layout.specs() {
        let values = numbers(&start["parameters"][&spec.name]["values"]);
        let place = &mut model.weights_mut().flat_mut()[spec.range.clone()];
        place.iter_mut().zip(values).for_each(|(w, v)| *w = v as f32);
    }
    let data: Vec<Vec<u32>> = start["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let last = *numbers(&row["targets"]).last().unwrap();
            numbers(&row["inputs"]).into_iter().chain([last]).map(|x| x as u32).collect()
        })
        .collect();
    let train = Recipe {
        batch: 3,
        micro_batch: 2,
        learning_rate: 1e-2,
        weight_decay: 0.1,
        optimizer: OptimizerKind::Muon,
        muon_learning_rate: 0.02,
        muon_weight_decay: 0.05,
        ..Recipe::default()
    };
    let team = Arc::new(Team::new(2));
    let shape = train::BatchShape::full(&train, 13);
    let mut trainer = Trainer::of(model, &train, shape, &team).unwrap();
    for step in right["steps"].as_array().unwrap() {
        let done = trainer.step(&data, &[0, 1, 2], 0, 1e-2);
        let loss = done.loss_sum / done.targets as f64;
        let (right, norm) =
            (step["loss"].as_f64().unwrap(), step["gradient_norm"].as_f64().unwrap());
        assert!((loss / right - 1.0).abs() < 2e-6, "{loss} for {right}");
        assert!((done.gradient_norm / norm - 1.0).abs() < 1e-4, "{}", done.gradient_norm);
    }
    check_all(trainer.model.weights(), &right["parameters_after"], 2e-4, "after");

    // One buffer for the matrices, two for the rest.
    let bytes = |optimizer| {
        let train = Recipe { optimizer, ..train.clone() };
        let config = TrainConfig { model: config.clone(), train };
        let plan = Trainer::plan(&config, shape, 2).unwrap();
        plan.of(Account::Optimizer)
    };
    let hidden: u64 = 2 * (3 * 16 * 16 + 16 * 16 + 2 * 16 * 64) * 4;
    assert_eq!(bytes(OptimizerKind::Adamw) - bytes(OptimizerKind::Muon), hidden);
    assert_eq!(Muon::plan(&config, &layout).of(Account::Optimizer), hidden);
}

#[test]
fn transformer_steps_as_pytorch_does() {
    check("transformer");
}

#[test]
fn rnn_steps_as_pytorch_does() {
    check("rnn");
}

#[test]
fn llama_kind_steps_as_pytorch_does() {
    check("llama");
}

#[test]
fn gemma_kind_steps_as_pytorch_does() {
    check("gemma");
}

/// Gradients and losses of one step on odd sequences, dropout on, as bits.
fn step_bits(config: &ModelConfig, recompute: Recompute) -> Vec<u32> {
    let mut model = Model::new(config).unwrap();
    model.weights_mut().initialise(3);
    let mut batch = Batch::default();
    for (key, tokens) in [(0, 70), (1, 3), (2, 131)] {
        let ids: Vec<u32> = (0..tokens).map(|t| (t * 7 + key) % 37).collect();
        batch.push_known(&ids, u64::from(key));
    }
    let team = Arc::new(Team::new(2));
    let workload =
        Workload { rows: batch.rows(), sequences: 3, longest: 131, threads: 2, training: true };
    let mut runner = Runner::recomputing(&model, workload, recompute, &team).unwrap();
    let layout = Arc::clone(model.layout());
    let mut gradients = Parameters::zeros(&layout, "gradients", Account::Gradients).unwrap();
    let dropout = Some(Dropout { rate: 0.1, hidden: 0.2, stream: 9 });
    let losses = runner.train(&model, &batch, 0.01, dropout, &mut gradients).to_vec();
    losses.iter().chain(gradients.flat()).map(|v| v.to_bits()).collect()
}

#[test]
fn what_is_computed_again_has_the_same_bits_and_takes_less_memory() {
    for name in ["transformer", "llama", "gemma"] {
        let mut value = fixture(name);
        (value["config"]["context"], value["config"]["layers"]) = (200.into(), 4.into());
        let config = config(&value);
        let kept = step_bits(&config, Recompute::None);
        let workload =
            Workload { rows: 201, sequences: 3, longest: 131, threads: 2, training: true };
        let mut bytes = Vec::new();
        for recompute in Recompute::ALL {
            assert!(step_bits(&config, recompute) == kept, "{name} {}", recompute.name());
            let plan = Runner::plan_recomputing(&config, &workload, recompute).unwrap();
            bytes.push(plan.of(Account::Activations));
        }
        assert!(bytes.windows(2).all(|pair| pair[1] < pair[0]), "{name}: {bytes:?}");
    }
}
