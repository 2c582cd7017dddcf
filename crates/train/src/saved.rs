//! A trained model on disk: `config.json`, `model.safetensors`, `tokenizer.json`.

use formats::{TensorFile, TensorRef, Values, replace_file, write_tensors};
use models::ngram::Ngram;
use models::{Model, ModelConfig};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tensor::Parameters;

/// The weights of a model folder.
pub const WEIGHTS_FILE: &str = "model.safetensors";
/// The configuration of a model folder.
pub const CONFIG_FILE: &str = "config.json";
/// What a run that trains adapters alone has in place of weights.
pub const ADAPTER_FILE: &str = "adapter.safetensors";
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
        let config: ModelConfig = serde_json::from_slice(&text)
            .map_err(|e| Error::Config { path: path.clone(), reason: e.to_string() })?;
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
    let fresh = !dir.exists();
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
