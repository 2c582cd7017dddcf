//! A model as planning sees it: the numbers of its configuration, from a name or from files.

use crate::{Error, config_json, published};
use models::{Model, ModelConfig, TransformerConfig};
use std::path::Path;

/// A model to plan for.
#[derive(Clone, Debug)]
pub struct Architecture {
    /// Its name, or where it was found.
    pub name: String,
    /// Its numbers; matrices that a file has quantised are marked in them.
    pub config: ModelConfig,
    /// Whether it was read from weights that this program runs: its own lists then predict.
    pub runs_here: bool,
    /// Bytes of the weights' files, where there are any: they are mapped while weights are read.
    pub file_bytes: u64,
    /// Memory that opening the files took and using them keeps: the tokenizer.
    pub opened_bytes: u64,
    /// What should be known beside the numbers.
    pub notes: Vec<String>,
}

/// Parameters by the units that are gathered and reduced together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Units {
    /// Token and position tables.
    pub embedding: u64,
    /// One layer.
    pub layer: u64,
    /// The output projection and the last norm; without the projection where heads are tied.
    pub head: u64,
    /// Rows×C of the output projection, tied or not.
    pub projection: u64,
}

impl Architecture {
    /// The model of a name, a `config.json`, a folder or a GGUF file. Nothing is downloaded and no
    /// weight is read.
    ///
    /// # Errors
    /// A name that nothing has, with the nearest; what does not hold in a file.
    pub fn open(what: &str) -> Result<Architecture, Error> {
        let path = Path::new(what);
        if path.is_dir() {
            return folder(what, path);
        }
        if path.is_file() {
            let json = path.extension().is_some_and(|e| e == "json");
            return if json { config_json::read(path) } else { weights(what, path) };
        }
        let is_path = what.ends_with(".gguf") || what.ends_with(".json") || what.starts_with('.');
        if let Some(source) = std::fs::metadata(path).err().filter(|_| is_path) {
            return Err(Error::Io { path: path.to_owned(), source });
        }
        let (name, config) = published::find(what)?;
        let runs_here = matches!(config, ModelConfig::Rnn(_)) || name == "email-transformer";
        Architecture::of(name, config, runs_here)
    }

    /// A model by its configuration, which is checked.
    ///
    /// # Errors
    /// Numbers that make no network.
    pub fn of(name: &str, config: ModelConfig, runs_here: bool) -> Result<Architecture, Error> {
        let architecture = Architecture {
            name: name.to_owned(),
            config,
            runs_here,
            file_bytes: 0,
            opened_bytes: 0,
            notes: Vec::new(),
        };
        architecture.parameters()?;
        Ok(architecture)
    }

    /// Parameters, by the layout that would be allocated.
    ///
    /// # Errors
    /// Numbers that make no network.
    pub fn parameters(&self) -> Result<u64, Error> {
        Model::count_parameters(&self.config).map(|n| n as u64).map_err(|e| self.error(e))
    }

    pub(crate) fn error(&self, source: models::Error) -> Error {
        Error::Model { name: self.name.clone(), source }
    }

    /// What kind of numbers the products with its weights are made of, as this program runs it.
    pub fn own_weights(&self) -> crate::NumberKind {
        match &self.config {
            // Halves are widened in registers: their arithmetic is that of F32.
            ModelConfig::Transformer(c) if c.is_quantised() => crate::NumberKind::Q4,
            _ => crate::NumberKind::F32,
        }
    }

    /// The transformer's numbers.
    ///
    /// # Errors
    /// [`Error::Unanswerable`] for other kinds.
    pub fn transformer(&self) -> Result<&TransformerConfig, Error> {
        match &self.config {
            ModelConfig::Transformer(config) => Ok(config),
            other => Err(Error::Unanswerable(format!(
                "{}: a model of kind {} has no keys and values and no number formats to choose; only its \
                 training in f32 is planned",
                self.name,
                other.kind()
            ))),
        }
    }

    /// Parameters by unit, of the same layout.
    ///
    /// # Errors
    /// Numbers that make no network.
    pub fn units(&self) -> Result<Units, Error> {
        let layout = Model::layout_of(&self.config).map_err(|e| self.error(e))?;
        let count = |begins: &[&str]| -> u64 {
            let of = layout.specs().iter().filter(|s| begins.iter().any(|b| s.name.starts_with(b)));
            of.map(|s| s.count() as u64).sum()
        };
        let projection = match count(&["head.weight"]) {
            0 => count(&["tok_emb."]),
            own => own,
        };
        Ok(Units {
            embedding: count(&["tok_emb.", "pos_emb."]),
            layer: count(&["layers.0."]),
            head: count(&["head.", "norm."]),
            projection,
        })
    }
}

/// A folder: weights, or the numbers alone.
fn folder(name: &str, path: &Path) -> Result<Architecture, Error> {
    let config = path.join("config.json");
    if families::is_published(path) && has_weights(path) {
        return weights(name, path);
    }
    if let Err(source) = std::fs::metadata(&config) {
        return Err(Error::Io { path: config, source });
    }
    config_json::read(&config)
}

fn has_weights(path: &Path) -> bool {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.into_iter().any(|e| e.path().extension().is_some_and(|x| x == "safetensors"))
}

/// Published files that this program runs: matrices stay as stored.
fn weights(name: &str, path: &Path) -> Result<Architecture, Error> {
    let before = ledger::anonymous_bytes();
    let mut checkpoint = families::Checkpoint::open(path)?;
    let opened_bytes = ledger::anonymous_bytes().saturating_sub(before);
    checkpoint.keep_as_stored()?;
    let files = checkpoint.tensors.paths();
    let file_bytes = files.filter_map(|f| std::fs::metadata(f).ok()).map(|m| m.len()).sum();
    let notes = checkpoint.notes.clone();
    let found = Architecture::of(name, checkpoint.model_config(), true)?;
    Ok(Architecture { file_bytes, opened_bytes, notes, ..found })
}
