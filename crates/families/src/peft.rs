//! Adapters as folders of the PEFT library: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! Modules are named as the Hugging Face folder of the family names its tensors, so an adapter
//! belongs to a GGUF file of the same model as well. Only what adds B·A to a matrix is read: other
//! kinds of adapters are refused by name.

use crate::binding::Stored;
use crate::family::Family;
use crate::{Error, ExportError};
use formats::{
    TensorRef, TensorStore, Values, dequantise, open_tensors, replace_folder, write_tensors,
};
use models::{ConfigError, LoraConfig, LoraTarget, Model, TransformerConfig};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
/// What PEFT puts before a module's name.
const WRAPPED: &str = "base_model.model.";

/// The module of a layer's map and whether it is stored inputs by outputs; none where the family has
/// one module for several maps.
fn module(family: &Family, layer: usize, target: LoraTarget) -> Option<(String, bool)> {
    let parameter = format!("layers.{layer}.{}", target.matrix());
    let pieces = family.tensors(false, &parameter);
    let piece = match (target, pieces.len()) {
        (LoraTarget::Query, 3) | (LoraTarget::Out, 1) => 0,
        (LoraTarget::Key, 3) => 1,
        (LoraTarget::Value, 3) => 2,
        (LoraTarget::Gate | LoraTarget::Up | LoraTarget::Down, 1) => 0,
        _ => return None,
    };
    let (name, stored) = &pieces[piece];
    let name = name.strip_suffix(".weight")?.to_owned();
    Some((name, *stored == Stored::Transposed))
}

/// The maps of a model that can have an adapter in a PEFT folder.
pub fn lora_targets(family: &Family, config: &TransformerConfig) -> Vec<LoraTarget> {
    let can = |t: &LoraTarget| t.is_in(config) && module(family, 0, *t).is_some();
    LoraTarget::ALL.into_iter().filter(can).collect()
}

/// The last two parts of a module's name: no other module of the family ends so.
fn suffix(module: &str) -> String {
    let mut parts: Vec<&str> = module.rsplit('.').take(2).collect();
    parts.reverse();
    parts.join(".")
}

/// Writes a model's adapters as a PEFT folder, whole or not at all; `base` says which model they
/// belong to.
///
/// # Errors
/// As the system says; a model without adapters, or whose adapters have no module of their own.
pub fn write_peft(
    dir: &Path,
    family: &Family,
    model: &Model,
    base: &str,
) -> Result<(), ExportError> {
    let models::ModelConfig::Transformer(config) = model.config() else {
        return Err(ExportError::NoAdapter);
    };
    let lora = config.lora.as_ref().ok_or(ExportError::NoAdapter)?;
    let (mut tensors, mut modules, mut turned) = (Vec::new(), Vec::new(), false);
    for layer in 0..config.num_hidden_layers {
        for &target in &lora.targets {
            let (name, transposed) = module(family, layer, target).ok_or(ExportError::NoAdapter)?;
            turned |= transposed;
            if layer == 0 {
                modules.push(suffix(&name));
            }
            for (ours, theirs) in [("lora_a", "lora_A"), ("lora_b", "lora_B")] {
                let own = format!("layers.{layer}.{}.{ours}.weight", target.prefix());
                let spec = model.layout().specs().iter().find(|spec| spec.name == own);
                let spec = spec.ok_or(ExportError::NoAdapter)?;
                tensors.push(TensorRef {
                    name: format!("{WRAPPED}{name}.{theirs}.weight"),
                    shape: spec.shape.clone(),
                    values: Values::F32(&model.weights().flat()[spec.range.clone()]),
                });
            }
        }
    }
    let text = describe(lora, &modules, turned, base);
    replace_folder(dir, |dir| {
        let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        write_tensors(&dir.join(WEIGHTS), &tensors, metadata)?;
        let path = dir.join(CONFIG);
        let text = serde_json::to_vec_pretty(&text).unwrap_or_default();
        std::fs::write(&path, text).map_err(|source| ExportError::Io { path, source })
    })
}

fn describe(lora: &LoraConfig, modules: &[String], turned: bool, base: &str) -> Value {
    json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": modules,
        "fan_in_fan_out": turned,
        "inference_mode": true,
        "init_lora_weights": true,
        "modules_to_save": null,
        "use_rslora": false,
        "use_dora": false,
    })
}

/// B·A of one map of one layer.
#[derive(Debug)]
struct Delta {
    parameter: String,
    layer: usize,
    target: LoraTarget,
    rank: usize,
    /// rank×inputs
    a: Vec<f32>,
    /// rows×rank
    b: Vec<f32>,
}

/// A PEFT folder, read.
#[derive(Debug)]
pub struct Adapter {
    /// Where it was found.
    pub path: PathBuf,
    /// Per layer and map.
    deltas: Vec<Delta>,
    /// What B·A is multiplied by.
    factor: f32,
}

impl Adapter {
    /// Reads a folder for a model of a family.
    ///
    /// # Errors
    /// A file that does not hold, a kind of adapter that adds something else than B·A, a tensor that
    /// belongs to no matrix of the model or does not fit it.
    pub fn open(dir: &Path, family: &Family, config: &TransformerConfig) -> Result<Adapter, Error> {
        let path = dir.join(CONFIG);
        let text =
            std::fs::read(&path).map_err(|source| Error::Io { path: path.clone(), source })?;
        let wrong = |reason: String| Error::Json { path: path.clone(), reason };
        let json: Value = serde_json::from_slice(&text).map_err(|e| wrong(e.to_string()))?;
        let (rank, factor) = numbers(&json).map_err(wrong)?;
        let store = open_tensors(&dir.join(WEIGHTS))?;
        let (mut deltas, mut used) = (Vec::new(), 0);
        for layer in 0..config.num_hidden_layers {
            for target in lora_targets(family, config) {
                let Some((name, _)) = module(family, layer, target) else { continue };
                let Some((a, b)) = matrices(&store, &name, rank, target, config)? else { continue };
                used += 2;
                let parameter = format!("layers.{layer}.{}", target.matrix());
                deltas.push(Delta { parameter, layer, target, rank, a, b });
            }
        }
        if used == 0 || used != store.names().count() {
            return Err(foreign(&store, family, config, path));
        }
        Ok(Adapter { path: dir.to_owned(), deltas, factor })
    }

    /// The files.
    pub fn files(&self) -> [PathBuf; 2] {
        [self.path.join(CONFIG), self.path.join(WEIGHTS)]
    }

    /// The parameters that it changes; they must be kept as values.
    pub fn parameters(&self) -> impl Iterator<Item = &str> {
        self.deltas.iter().map(|delta| &delta.parameter[..])
    }

    /// Adds B·A to the weights.
    ///
    /// # Errors
    /// A parameter that it changes is not kept as values.
    pub fn merge(&self, model: &mut Model) -> Result<(), Error> {
        let models::ModelConfig::Transformer(config) = model.config().clone() else {
            return Ok(());
        };
        let layout = std::sync::Arc::clone(model.layout());
        for delta in &self.deltas {
            let (rows, inputs) = delta.target.shape(&config);
            let spec = layout.specs().iter().find(|spec| spec.name == delta.parameter);
            let Some(spec) = spec.filter(|spec| !spec.range.is_empty()) else {
                let reason = format!("{} of layer {}", delta.target.name(), delta.layer);
                let source = ConfigError {
                    field: "storage",
                    found: reason,
                    expected: "it must be kept as values to be changed".to_owned(),
                };
                let source = models::Error::Config(source);
                return Err(Error::Model { path: self.path.clone(), source });
            };
            let start = spec.range.start + rows.start * inputs;
            let w = &mut model.weights_mut().flat_mut()[start..start + rows.len() * inputs];
            for (w, b) in w.chunks_exact_mut(inputs).zip(delta.b.chunks_exact(delta.rank)) {
                for (a, b) in delta.a.chunks_exact(inputs).zip(b) {
                    w.iter_mut().zip(a).for_each(|(w, a)| *w += self.factor * b * a);
                }
            }
        }
        Ok(())
    }
}

/// The rank and what B·A is multiplied by.
fn numbers(json: &Value) -> Result<(usize, f32), String> {
    if json["peft_type"] != "LORA" {
        return Err(format!("peft_type is {}, expected \"LORA\"", json["peft_type"]));
    }
    let empty = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(items) => items.is_empty(),
        Value::String(word) => word == "none",
        _ => false,
    };
    for key in [
        "use_dora",
        "modules_to_save",
        "rank_pattern",
        "alpha_pattern",
        "bias",
        "lora_bias",
        "layer_replication",
        "trainable_token_indices",
    ] {
        if !empty(&json[key]) {
            let found = &json[key];
            return Err(format!("{key} is {found}; only adapters that add B·A are read"));
        }
    }
    let rank = json["r"].as_u64().filter(|&r| (1..=1 << 17).contains(&r));
    let rank = rank.ok_or(format!("r is {}, expected a rank", json["r"]))?;
    let alpha = json["lora_alpha"].as_f64().filter(|a| a.is_finite());
    let alpha = alpha.ok_or(format!("lora_alpha is {}, expected a number", json["lora_alpha"]))?;
    let root = json["use_rslora"] == true;
    let over = if root { (rank as f64).sqrt() } else { rank as f64 };
    Ok((rank as usize, (alpha / over) as f32))
}

type Pair = (Vec<f32>, Vec<f32>);

/// A and B of a module; none where it has no adapter.
fn matrices(
    store: &TensorStore,
    module: &str,
    rank: usize,
    target: LoraTarget,
    config: &TransformerConfig,
) -> Result<Option<Pair>, Error> {
    let (rows, inputs) = target.shape(config);
    let get = |part: &str, expected: [usize; 2]| -> Result<Option<Vec<f32>>, Error> {
        let name = format!("{WRAPPED}{module}.{part}.weight");
        let Some(tensor) = store.get(&name) else { return Ok(None) };
        if *tensor.shape != expected {
            let (path, found) = (store.path(), tensor.describe());
            return Err(Error::Shape { path, name, found, expected: expected.to_vec() });
        }
        let mut values = vec![0.0; expected[0] * expected[1]];
        dequantise(tensor.kind, tensor.bytes, &mut values);
        Ok(Some(values))
    };
    let a = get("lora_A", [rank, inputs])?;
    let b = get("lora_B", [rows.len(), rank])?;
    match (a, b) {
        (Some(a), Some(b)) => Ok(Some((a, b))),
        (None, None) => Ok(None),
        (a, _) => {
            let part = if a.is_some() { "lora_B" } else { "lora_A" };
            let name = format!("{WRAPPED}{module}.{part}.weight");
            Err(Error::MissingTensor { path: store.path(), name })
        }
    }
}

/// A tensor that belongs to no matrix of the model, or no tensor at all.
fn foreign(
    store: &TensorStore,
    family: &Family,
    config: &TransformerConfig,
    path: PathBuf,
) -> Error {
    let known: Vec<String> = (0..config.num_hidden_layers)
        .flat_map(|layer| {
            let targets = lora_targets(family, config).into_iter();
            targets.filter_map(move |t| module(family, layer, t)).map(|(name, _)| name)
        })
        .collect();
    let belongs = |name: &str| {
        let inner = name.strip_prefix(WRAPPED).unwrap_or(name);
        let parts = [".lora_A.weight", ".lora_B.weight"];
        parts.iter().any(|p| inner.strip_suffix(p).is_some_and(|m| known.iter().any(|k| k == m)))
    };
    let reason = match store.names().find(|name| !belongs(name)) {
        Some(name) => format!(
            "tensor {name} of {WEIGHTS} belongs to no matrix of a layer of this {} model",
            family.name
        ),
        None => format!("{WEIGHTS} holds no adapter"),
    };
    Error::Json { path, reason }
}
