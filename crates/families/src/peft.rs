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
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
/// What PEFT puts before a module's name.
const WRAPPED: &str = "base_model.model.";

/// A module of a layer in a PEFT folder: one map, or several that the family keeps in one matrix.
struct Module {
    name: String,
    /// Whether it is stored inputs by outputs.
    transposed: bool,
    /// Its maps, one below the other.
    targets: Vec<LoraTarget>,
}

/// The modules of a layer that can have an adapter.
fn modules(family: &Family, config: &TransformerConfig, layer: usize) -> Vec<Module> {
    let mut all: Vec<Module> = Vec::new();
    for target in LoraTarget::ALL.into_iter().filter(|target| target.is_in(config)) {
        let Some((name, transposed)) = module(family, layer, target) else { continue };
        match all.last_mut().filter(|last| last.name == name) {
            Some(last) => last.targets.push(target),
            None => all.push(Module { name, transposed, targets: vec![target] }),
        }
    }
    all
}

/// The name of a map's module and whether it is stored inputs by outputs.
fn module(family: &Family, layer: usize, target: LoraTarget) -> Option<(String, bool)> {
    let parameter = format!("layers.{layer}.{}", target.matrix());
    let pieces = family.tensors(false, &parameter);
    let piece = match (target, pieces.len()) {
        (_, 1) | (LoraTarget::Query, 3) => 0,
        (LoraTarget::Key, 3) => 1,
        (LoraTarget::Value, 3) => 2,
        _ => return None,
    };
    let (name, stored) = &pieces[piece];
    let name = name.strip_suffix(".weight")?.to_owned();
    Some((name, *stored == Stored::Transposed))
}

/// The maps of a model that can have an adapter in a PEFT folder.
pub fn lora_targets(family: &Family, config: &TransformerConfig) -> Vec<LoraTarget> {
    modules(family, config, 0).into_iter().flat_map(|module| module.targets).collect()
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
    let (mut written, mut of_first, mut turned) = (Vec::new(), Vec::new(), false);
    for layer in 0..config.num_hidden_layers {
        for module in modules(family, config, layer) {
            let learnt = |target: &&LoraTarget| lora.targets.contains(target);
            let learnt: Vec<LoraTarget> = module.targets.iter().filter(learnt).copied().collect();
            if learnt.is_empty() {
                continue;
            }
            turned |= module.transposed;
            let [a, b] = stacked(model, layer, &module, &learnt)?;
            written.push((format!("{WRAPPED}{}.lora_A.weight", module.name), a));
            written.push((format!("{WRAPPED}{}.lora_B.weight", module.name), b));
            if layer == 0 {
                of_first.push((suffix(&module.name), learnt.len()));
            }
        }
    }
    if of_first.iter().map(|(_, maps)| maps).sum::<usize>() != lora.targets.len() {
        return Err(ExportError::NoAdapter);
    }
    let tensors: Vec<TensorRef<'_>> = written
        .iter()
        .map(|(name, matrix)| TensorRef {
            name: name.clone(),
            shape: matrix.shape.to_vec(),
            values: Values::F32(&matrix.values),
        })
        .collect();
    let text = describe(lora, &of_first, turned, base);
    replace_folder(dir, |dir| {
        let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        write_tensors(&dir.join(WEIGHTS), &tensors, metadata)?;
        let path = dir.join(CONFIG);
        let text = serde_json::to_vec_pretty(&text).unwrap_or_default();
        std::fs::write(&path, text).map_err(|source| ExportError::Io { path, source })
    })
}

/// A or B of a module.
struct Matrix<'a> {
    shape: [usize; 2],
    values: Cow<'a, [f32]>,
}

/// A and B of a module. Where it has several maps, those of its adapters stand below each other in A
/// and beside each other in B, each at the rows of its own map: their product is the adapters' own.
fn stacked<'a>(
    model: &'a Model,
    layer: usize,
    module: &Module,
    learnt: &[LoraTarget],
) -> Result<[Matrix<'a>; 2], ExportError> {
    let models::ModelConfig::Transformer(config) = model.config() else {
        return Err(ExportError::NoAdapter);
    };
    let part = |target: LoraTarget, part: &str| {
        let name = format!("layers.{layer}.{}.{part}.weight", target.prefix());
        let spec = model.layout().specs().iter().find(|spec| spec.name == name);
        let spec = spec.ok_or(ExportError::NoAdapter)?;
        Ok::<_, ExportError>((&spec.shape, &model.weights().flat()[spec.range.clone()]))
    };
    if let ([target], 1) = (learnt, module.targets.len()) {
        let whole = |name| -> Result<Matrix<'a>, ExportError> {
            let (shape, values) = part(*target, name)?;
            Ok(Matrix { shape: [shape[0], shape[1]], values: Cow::Borrowed(values) })
        };
        return Ok([whole("lora_a")?, whole("lora_b")?]);
    }
    let (rows, inputs) = place(module, config);
    let rank = part(learnt[0], "lora_a")?.0[0];
    let width = rank * learnt.len();
    let (mut a, mut b) = (Vec::with_capacity(width * inputs), vec![0.0; rows.len() * width]);
    for (i, &target) in learnt.iter().enumerate() {
        a.extend_from_slice(part(target, "lora_a")?.1);
        let from = target.shape(config).0.start - rows.start;
        let own = part(target, "lora_b")?.1.chunks_exact(rank).enumerate();
        for (row, values) in own {
            let at = (from + row) * width + i * rank;
            b[at..at + rank].copy_from_slice(values);
        }
    }
    let matrix = |shape, values| Matrix { shape, values: Cow::Owned(values) };
    Ok([matrix([width, inputs], a), matrix([rows.len(), width], b)])
}

/// The rows of its matrix that a module's maps have, and what they read.
fn place(module: &Module, config: &TransformerConfig) -> (Range<usize>, usize) {
    let shapes = || module.targets.iter().map(|target| target.shape(config));
    let start = shapes().map(|(rows, _)| rows.start).min().unwrap_or(0);
    let end = shapes().map(|(rows, _)| rows.end).max().unwrap_or(0);
    (start..end, shapes().next().map_or(0, |(_, inputs)| inputs))
}

/// `modules` are those of a layer, each with the number of its maps that learn.
fn describe(lora: &LoraConfig, modules: &[(String, usize)], turned: bool, base: &str) -> Value {
    let names: Vec<&String> = modules.iter().map(|(name, _)| name).collect();
    // The adapters of several maps are one of so much more rank; what B·A is multiplied by stays.
    let of_several = || modules.iter().filter(|(_, maps)| *maps > 1);
    let ranks = of_several().map(|(name, maps)| (name.clone(), json!(lora.rank * maps)));
    let alphas = of_several().map(|(name, maps)| (name.clone(), json!(lora.alpha * *maps as f32)));
    json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "rank_pattern": ranks.collect::<Map<_, _>>(),
        "alpha_pattern": alphas.collect::<Map<_, _>>(),
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": names,
        "fan_in_fan_out": turned,
        "inference_mode": true,
        "init_lora_weights": true,
        "modules_to_save": null,
        "use_rslora": false,
        "use_dora": false,
    })
}

/// B·A of one module of one layer.
#[derive(Debug)]
struct Delta {
    parameter: String,
    layer: usize,
    target: LoraTarget,
    /// Of the parameter.
    rows: Range<usize>,
    inputs: usize,
    rank: usize,
    /// What B·A is multiplied by.
    factor: f32,
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
    /// Per layer and module.
    deltas: Vec<Delta>,
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
        let numbers = Numbers::read(&json).map_err(wrong)?;
        crate::folder::no_pickle(dir, "adapter_model")?;
        let store = open_tensors(&dir.join(WEIGHTS))?;
        let (mut deltas, mut used) = (Vec::new(), 0);
        for layer in 0..config.num_hidden_layers {
            for module in modules(family, config, layer) {
                let (rank, factor) = numbers.of(&module.name);
                let (rows, inputs) = place(&module, config);
                let shape = (rows.len(), inputs);
                let Some((a, b)) = matrices(&store, &module.name, rank, shape)? else { continue };
                used += 2;
                let target = module.targets[0];
                let parameter = format!("layers.{layer}.{}", target.matrix());
                deltas.push(Delta { parameter, layer, target, rows, inputs, rank, factor, a, b });
            }
        }
        if used == 0 || used != store.names().count() {
            return Err(foreign(&store, family, config, path));
        }
        Ok(Adapter { path: dir.to_owned(), deltas })
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
        let layout = std::sync::Arc::clone(model.layout());
        for delta in &self.deltas {
            let (rows, inputs) = (&delta.rows, delta.inputs);
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
                    w.iter_mut().zip(a).for_each(|(w, a)| *w += delta.factor * b * a);
                }
            }
        }
        Ok(())
    }
}

/// Ranks, and what B·A is multiplied by.
struct Numbers {
    rank: u64,
    alpha: f64,
    /// Over the root of the rank instead of the rank.
    root: bool,
    /// Of modules by the ends of their names.
    ranks: Vec<(String, u64)>,
    alphas: Vec<(String, f64)>,
}

impl Numbers {
    /// The rank of a module and what its B·A is multiplied by.
    fn of(&self, module: &str) -> (usize, f32) {
        let is =
            |end: &str| module.strip_suffix(end).is_some_and(|m| m.is_empty() || m.ends_with('.'));
        let rank = self.ranks.iter().find(|(end, _)| is(end)).map_or(self.rank, |found| found.1);
        let alpha = self.alphas.iter().find(|(end, _)| is(end)).map_or(self.alpha, |found| found.1);
        let over = if self.root { (rank as f64).sqrt() } else { rank as f64 };
        (rank as usize, (alpha / over) as f32)
    }

    fn read(json: &Value) -> Result<Numbers, String> {
        plain(json)?;
        let rank = |value: &Value| value.as_u64().filter(|&r| (1..=1 << 17).contains(&r));
        let alpha = |value: &Value| value.as_f64().filter(|alpha| alpha.is_finite());
        let wrong = |key: &str, what: &str| format!("{key} is {}, expected {what}", json[key]);
        Ok(Numbers {
            rank: rank(&json["r"]).ok_or_else(|| wrong("r", "a rank"))?,
            alpha: alpha(&json["lora_alpha"]).ok_or_else(|| wrong("lora_alpha", "a number"))?,
            root: json["use_rslora"] == true,
            ranks: pattern(json, "rank_pattern", rank)?,
            alphas: pattern(json, "alpha_pattern", alpha)?,
        })
    }
}

/// Numbers of modules by their names; PEFT would take any regular expression.
fn pattern<T>(
    json: &Value,
    key: &str,
    number: impl Fn(&Value) -> Option<T>,
) -> Result<Vec<(String, T)>, String> {
    let named = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    let one = |(name, value): (&String, &Value)| {
        let read = number(value).filter(|_| name.chars().all(named));
        read.map(|number| (name.clone(), number))
    };
    let wrong = || format!("{key} is {}, expected names of modules with a number each", json[key]);
    match &json[key] {
        Value::Null => Ok(Vec::new()),
        Value::Object(map) => map.iter().map(one).collect::<Option<_>>().ok_or_else(wrong),
        _ => Err(wrong()),
    }
}

/// Refuses whatever adds something else than B·A.
fn plain(json: &Value) -> Result<(), String> {
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
    Ok(())
}

type Pair = (Vec<f32>, Vec<f32>);

/// A and B of a module; none where it has no adapter.
fn matrices(
    store: &TensorStore,
    module: &str,
    rank: usize,
    (rows, inputs): (usize, usize),
) -> Result<Option<Pair>, Error> {
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
    let b = get("lora_B", [rows, rank])?;
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
        .flat_map(|layer| modules(family, config, layer))
        .map(|module| module.name)
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
