//! A model as planning sees it: the numbers of its configuration, from a name or from files.

use crate::term::{product, sum};
use crate::{Error, Experts, config_json, published};
use models::{Model, ModelConfig, TransformerConfig};
use std::path::Path;

/// A model to plan for.
#[derive(Clone, Debug)]
pub struct Architecture {
    /// Its name, or where it was found.
    pub name: String,
    /// Its numbers; matrices that a file has quantised are marked in them.
    pub config: ModelConfig,
    /// Its experts, where it is a mixture; the numbers are then those of what a token goes through.
    pub experts: Option<Experts>,
    /// Whether it was read from weights that this program runs: its own lists then predict.
    pub runs_here: bool,
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
    /// Of it, what a token goes through.
    pub active_layer: u64,
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
        published::find(what)
    }

    /// A model by its configuration, which is checked.
    ///
    /// # Errors
    /// Numbers that make no network.
    pub fn of(name: &str, config: ModelConfig, runs_here: bool) -> Result<Architecture, Error> {
        let architecture = Architecture {
            name: name.to_owned(),
            config,
            experts: None,
            runs_here,
            opened_bytes: 0,
            notes: Vec::new(),
        };
        architecture.parameters()?;
        Ok(architecture)
    }

    /// The same as a mixture of experts.
    ///
    /// # Errors
    /// Numbers that make no network.
    pub(crate) fn with_experts(mut self, experts: Option<Experts>) -> Result<Architecture, Error> {
        self.experts = experts;
        self.parameters()?;
        Ok(self)
    }

    /// Parameters, by the layout that would be allocated; of a mixture all experts'.
    ///
    /// # Errors
    /// Numbers that make no network.
    pub fn parameters(&self) -> Result<u64, Error> {
        let config = self.transformer().map_or(0, |c| c.num_hidden_layers as u64);
        let more = product("the experts", &[config, self.more_of_a_layer()?])?;
        sum("parameters", &[self.active_parameters()?, more])
    }

    /// Parameters that a token goes through, the router's apart.
    ///
    /// # Errors
    /// Numbers that make no network.
    pub fn active_parameters(&self) -> Result<u64, Error> {
        Model::count_parameters(&self.config).map(|n| n as u64).map_err(|e| self.error(e))
    }

    /// The share of all weights that a step of `tokens` tokens reads: all but a token table of which it
    /// reads rows, and experts that no token of it goes through.
    ///
    /// # Errors
    /// Numbers that make no network.
    pub(crate) fn read_share(&self, tokens: f64) -> Result<f64, Error> {
        let (config, all) = (self.transformer()?, self.parameters()? as f64);
        let rows_only = if config.tie_word_embeddings { 0 } else { self.units()?.embedding };
        let experts = self.experts.map_or(0.0, |experts| {
            let all = experts.of_a_layer(config) * config.num_hidden_layers as f64;
            all * (1.0 - experts.read_share(tokens))
        });
        Ok(1.0 - (rows_only as f64 + experts) / all)
    }

    fn more_of_a_layer(&self) -> Result<u64, Error> {
        match (&self.experts, &self.config) {
            (Some(experts), ModelConfig::Transformer(config)) => experts.more_of_a_layer(config),
            _ => Ok(0),
        }
    }

    /// Refuses what is not counted of mixtures.
    ///
    /// # Errors
    /// [`Error::Unanswerable`] where there are experts.
    pub(crate) fn without_experts(&self, what: &str) -> Result<(), Error> {
        match self.experts {
            None => Ok(()),
            Some(_) => Err(Error::Unanswerable(format!(
                "{}: {what} of a mixture of experts is not counted; leave it away",
                self.name
            ))),
        }
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
            layer: sum("parameters", &[count(&["layers.0."]), self.more_of_a_layer()?])?,
            active_layer: count(&["layers.0."]),
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
    let notes = checkpoint.notes.clone();
    let found = Architecture::of(name, checkpoint.model_config(), true)?;
    Ok(Architecture { opened_bytes, notes, ..found })
}
