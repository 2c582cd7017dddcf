//! A trained model on disk: `config.json`, `model.safetensors`, `tokenizer.json`.

use crate::config::TrainConfig;
use crate::zero::Zero;
use formats::{
    TensorFile, TensorHead, TensorKind, TensorRef, Values, replace_file, stream_tensors,
    write_tensors,
};
use ledger::Account;
use models::ngram::Ngram;
use models::{Model, ModelConfig, Residence};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tensor::{ParameterSpec, Parameters};

/// The weights of a model folder.
pub const WEIGHTS_FILE: &str = "model.safetensors";
/// The configuration of a model folder.
pub const CONFIG_FILE: &str = "config.json";
/// What a run that trains adapters alone has in place of weights.
pub const ADAPTER_FILE: &str = "adapter.safetensors";
/// How a run trains: model and recipe.
pub const RECIPE_FILE: &str = "recipe.json";
/// The tokenizer of a model folder.
pub const TOKENIZER_FILE: &str = "tokenizer.json";

/// Why a model folder cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error("{path}: {source}{}", formats::hint(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no model.
    #[error(
        "{path} is not a model: no {CONFIG_FILE} in it; give a run folder of `autoreg train`, a \
         .gguf file or a Hugging Face folder"
    )]
    NoModel {
        /// The folder.
        path: PathBuf,
    },
    /// The configuration cannot be understood.
    #[error("{path}: {reason}")]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The weights do not hold.
    #[error(transparent)]
    Tensors(#[from] formats::Error),
    /// The model cannot be made.
    #[error(transparent)]
    Model(#[from] models::Error),
    /// A rank has gone while weights were gathered.
    #[error(transparent)]
    Lost(#[from] ranks::Lost),
    /// While tensors were streamed.
    #[error("{0}")]
    Stream(#[from] io::Error),
}

/// A model that was read.
#[derive(Debug)]
pub enum SavedModel {
    /// A network.
    Network(Box<Model>),
    /// A count model.
    Counts(Ngram),
}

impl SavedModel {
    /// Reads a model folder.
    ///
    /// # Errors
    /// When it is none, or a file does not hold.
    pub fn open(dir: &Path) -> Result<SavedModel, Error> {
        let path = dir.join(CONFIG_FILE);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(e)
                if e.kind() == io::ErrorKind::NotFound
                    || e.kind() == io::ErrorKind::NotADirectory =>
            {
                return Err(Error::NoModel { path: dir.to_owned() });
            }
            Err(source) => return Err(Error::Io { path, source }),
        };
        let config: ModelConfig = serde_json::from_slice(&text).map_err(|e| {
            let value: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
            let reason = match value.get("kind") {
                Some(_) => e.to_string(),
                None => "neither a run's `kind` nor a Hugging Face `model_type` in it".to_owned(),
            };
            Error::Config { path: path.clone(), reason }
        })?;
        let file = TensorFile::open(&dir.join(WEIGHTS_FILE))?;
        match &config {
            ModelConfig::Ngram(c) => {
                let tables = (1..=c.order)
                    .map(|k| {
                        Ok((
                            file.read_u64(&format!("runs.{k}.keys"))?,
                            file.read_u32(&format!("runs.{k}.counts"))?,
                        ))
                    })
                    .collect::<Result<Vec<_>, formats::Error>>()?;
                let model = Ngram::from_tables(c, tables)
                    .map_err(|e| Error::Config { path, reason: e.to_string() })?;
                Ok(SavedModel::Counts(model))
            }
            _ => {
                let mut model = Model::new(&config)?;
                read_parameters(&file, model.weights_mut())?;
                Ok(SavedModel::Network(Box::new(model)))
            }
        }
    }

    /// The configuration.
    pub fn config(&self) -> ModelConfig {
        match self {
            SavedModel::Network(m) => m.config().clone(),
            SavedModel::Counts(m) => ModelConfig::Ngram(m.config().clone()),
        }
    }

    /// The SHA-256 of a model folder's weights.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn digest(dir: &Path) -> Result<String, Error> {
        let path = dir.join(WEIGHTS_FILE);
        crate::checkpoint::sha256(&path).map_err(|source| Error::Io { path, source })
    }
}

/// The SHA-256 of a model in several files: of one file its own, else of all of theirs.
///
/// # Errors
/// When a file cannot be read.
pub fn digest_of(files: &[PathBuf]) -> Result<String, Error> {
    let sha256 = |path: &PathBuf| {
        crate::checkpoint::sha256(path).map_err(|source| Error::Io { path: path.clone(), source })
    };
    let all = files.iter().map(sha256).collect::<Result<Vec<_>, _>>()?;
    Ok(match &all[..] {
        [one] => one.clone(),
        several => crate::checkpoint::sha256_of_text(&several.join("\n")),
    })
}

/// Copies every parameter out of a tensor file.
pub(crate) fn read_parameters(
    file: &TensorFile,
    to: &mut Parameters,
) -> Result<(), formats::Error> {
    read_some(file, to, |_| true)
}

/// Copies a model's parameters that learn out of a tensor file.
pub(crate) fn read_learnt(file: &TensorFile, model: &mut Model) -> Result<(), formats::Error> {
    let config = model.config().clone();
    read_some(file, model.weights_mut(), |name| config.trains(name))
}

/// A model that holds the adapters of a run folder, and no other weights.
pub(crate) fn read_adapters(dir: &Path, config: &ModelConfig) -> Result<Model, Error> {
    let layout = Model::layout_of(config)?.with_room_for(|spec| config.trains(&spec.name));
    let weights = Parameters::zeros(&Arc::new(layout), "adapters", Account::Weights);
    let weights = weights.map_err(models::Error::Memory)?;
    let mut model = Model::of_weights(config, weights, Residence::Whole)?;
    read_learnt(&TensorFile::open(&dir.join(ADAPTER_FILE))?, &mut model)?;
    Ok(model)
}

/// Sees that a run folder's file of best weights is there and has every tensor that learns; reads none.
///
/// # Errors
/// What does not hold.
pub fn check_weights(dir: &Path, config: &ModelConfig) -> Result<(), Error> {
    let layout = Model::layout_of(config)?;
    let file = TensorFile::open(&dir.join(learnt_file(config)))?;
    for spec in layout.specs().iter().filter(|spec| config.trains(&spec.name)) {
        file.read_f32_from(&spec.name, Some(&spec.shape), 0, &mut [])?;
    }
    Ok(())
}

fn read_some(
    file: &TensorFile,
    to: &mut Parameters,
    wanted: impl Fn(&str) -> bool,
) -> Result<(), formats::Error> {
    let layout = std::sync::Arc::clone(to.layout());
    for spec in layout.specs().iter().filter(|spec| wanted(&spec.name)) {
        file.read_f32(&spec.name, &spec.shape, &mut to.flat_mut()[spec.range.clone()])?;
    }
    Ok(())
}

/// Writes a model's parameters that learn to a tensor file.
pub(crate) fn write_learnt(
    path: &Path,
    model: &Model,
    metadata: HashMap<String, String>,
) -> Result<(), formats::Error> {
    write_some(path, &[("", model.weights())], metadata, |name| model.config().trains(name))
}

/// Writes every parameter to a tensor file.
pub(crate) fn write_parameters(
    path: &Path,
    from: &[(&str, &Parameters)],
    metadata: HashMap<String, String>,
) -> Result<(), formats::Error> {
    write_some(path, from, metadata, |_| true)
}

fn write_some(
    path: &Path,
    from: &[(&str, &Parameters)],
    metadata: HashMap<String, String>,
    wanted: impl Fn(&str) -> bool,
) -> Result<(), formats::Error> {
    let tensors: Vec<TensorRef> = from
        .iter()
        .flat_map(|(prefix, parameters)| {
            let specs = parameters.layout().specs().iter().filter(|spec| wanted(&spec.name));
            specs.map(move |spec| TensorRef {
                name: format!("{prefix}{}", spec.name),
                shape: spec.shape.clone(),
                values: Values::F32(&parameters.flat()[spec.range.clone()]),
            })
        })
        .collect();
    write_tensors(path, &tensors, metadata)
}

/// Writes what every model folder holds beside its weights.
///
/// # Errors
/// As the system says.
pub fn write_description(dir: &Path, config: &ModelConfig, tokenizer: &[u8]) -> Result<(), Error> {
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.join(name);
        replace_file(&path, |f| f.write_all(bytes)).map_err(|source| Error::Io { path, source })
    };
    let text = serde_json::to_vec_pretty(config)
        .map_err(|e| Error::Config { path: dir.join(CONFIG_FILE), reason: e.to_string() })?;
    write(CONFIG_FILE, &text)?;
    write(TOKENIZER_FILE, tokenizer)
}

/// How a run folder's model is trained; none where the folder does not say.
///
/// # Errors
/// When it says what cannot be understood.
pub fn read_recipe(run: &Path) -> Result<Option<TrainConfig>, Error> {
    let path = run.join(RECIPE_FILE);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::Io { path, source }),
    };
    let config = serde_json::from_slice(&text);
    config.map(Some).map_err(|e| Error::Config { path, reason: e.to_string() })
}

/// Writes how a run's model is trained.
pub(crate) fn write_recipe(run: &Path, config: &TrainConfig) -> Result<(), Error> {
    let path = run.join(RECIPE_FILE);
    let text = serde_json::to_vec_pretty(config)
        .map_err(|e| Error::Config { path: path.clone(), reason: e.to_string() })?;
    replace_file(&path, |f| f.write_all(&text)).map_err(|source| Error::Io { path, source })
}

/// Writes the weights that ranks hold together, one unit at a time, so that no rank holds them all;
/// rank 0 writes. All ranks call it at the same time.
pub(crate) fn write_shared(
    dir: &Path,
    model: &Model,
    zero: &mut Zero,
    step: u64,
) -> Result<(), Error> {
    let whole = Arc::clone(&zero.map.whole);
    let first = zero.ranks.is_first();
    if std::ptr::eq(zero.truth_of(model), model.weights()) {
        return if first { write_weights(dir, model, step) } else { Ok(()) };
    }
    let path = dir.join(learnt_file(model.config()));
    let units = zero.map.units.len();
    let mut gathered = 0;
    let learns = |&index: &usize| model.config().trains(&whole.specs()[index].name);
    let learnt: Vec<usize> = (0..whole.specs().len()).filter(learns).collect();
    let heads: Vec<TensorHead> =
        learnt.iter().map(|&index| head_of(&whole.specs()[index])).collect();
    let result = if first {
        stream_tensors(&path, &heads, |index, out| -> Result<(), Error> {
            let index = learnt[index];
            let name = &whole.specs()[index].name;
            if let Some(values) = zero.vector(name) {
                return write_values(out, values).map_err(|source| io_error(&path, source));
            }
            let (at, place) = zero.map.place_of(index);
            while gathered <= at {
                zero.gather_master(gathered)?;
                gathered += 1;
            }
            write_values(out, zero.gathered(place)).map_err(|source| io_error(&path, source))
        })
    } else {
        Ok(())
    };
    // The others wait for every unit, whatever went wrong with the file.
    for rest in gathered..units {
        zero.gather_master(rest)?;
    }
    result
}

fn head_of(spec: &ParameterSpec) -> TensorHead {
    TensorHead { name: spec.name.clone(), kind: TensorKind::F32, shape: spec.shape.clone() }
}

fn io_error(path: &Path, source: io::Error) -> Error {
    Error::Io { path: path.to_owned(), source }
}

fn write_values(out: &mut dyn io::Write, values: &[f32]) -> io::Result<()> {
    values.chunks(1 << 12).try_for_each(|some| {
        let bytes: Vec<u8> = some.iter().flat_map(|v| v.to_le_bytes()).collect();
        out.write_all(&bytes)
    })
}

/// Writes a network's weights, whole or not at all; adapters alone where nothing else learns.
///
/// # Errors
/// As the system says; old weights are then untouched.
pub fn write_weights(dir: &Path, model: &Model, step: u64) -> Result<(), Error> {
    let metadata = HashMap::from([("step".to_owned(), step.to_string())]);
    Ok(write_learnt(&dir.join(learnt_file(model.config())), model, metadata)?)
}

/// The file of a run folder that holds what a model of this configuration has learnt.
pub(crate) fn learnt_file(config: &ModelConfig) -> &'static str {
    if config.trains_all() { WEIGHTS_FILE } else { ADAPTER_FILE }
}

/// Writes a count model's folder. When that fails and there was none, none is left.
///
/// # Errors
/// As the system says.
pub fn write_count_model(dir: &Path, model: &Ngram, tokenizer: &[u8]) -> Result<(), Error> {
    let fresh = formats::is_vacant(dir);
    let write = || {
        fs::create_dir_all(dir).map_err(|source| Error::Io { path: dir.to_owned(), source })?;
        write_description(dir, &ModelConfig::Ngram(model.config().clone()), tokenizer)?;
        write_counts(dir, model)
    };
    write().inspect_err(|_| {
        if fresh {
            drop(fs::remove_dir_all(dir));
        }
    })
}

/// Writes a count model's tables.
///
/// # Errors
/// As the system says; old tables are then untouched.
pub fn write_counts(dir: &Path, model: &Ngram) -> Result<(), Error> {
    let tensors: Vec<TensorRef> = model
        .tables()
        .enumerate()
        .flat_map(|(k, (keys, counts))| {
            let shape = vec![keys.len()];
            let name = |what: &str| format!("runs.{}.{what}", k + 1);
            [
                TensorRef { name: name("keys"), shape: shape.clone(), values: Values::U64(keys) },
                TensorRef { name: name("counts"), shape, values: Values::U32(counts) },
            ]
        })
        .collect();
    Ok(write_tensors(&dir.join(WEIGHTS_FILE), &tensors, HashMap::new())?)
}
