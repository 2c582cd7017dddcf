//! The model that training goes on from: weights as floats, and the words that belong to them.

use crate::cmd::model::located;
use crate::error::CliError;
use crate::term;
use chat::ChatTemplate;
use families::{Checkpoint, Words, can_export, export};
use models::{Model, ModelConfig};
use std::path::{Path, PathBuf};
use tokenizer::Tokenizer;
use train::SavedModel;

/// The folder in a run folder that transformers loads.
pub const EXPORTED: &str = "huggingface";

/// A model to go on from.
pub struct Init {
    weights: Weights,
    /// The network.
    pub config: ModelConfig,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// Tokens that end a text.
    pub ends: Vec<u32>,
    bos_token: Option<String>,
    eos_token: Option<String>,
    template: Option<String>,
}

/// Weights that are still in their files.
#[derive(Default)]
pub struct Weights {
    path: PathBuf,
    /// Published files that are open.
    checkpoint: Option<Box<Checkpoint>>,
}

impl Init {
    /// Opens a GGUF file, a Hugging Face folder or a run folder. No weight is read.
    pub fn open(path: &Path) -> Result<Init, CliError> {
        let path = &located(path)?;
        if !families::is_published(path) {
            return Init::run_folder(path);
        }
        let checkpoint = Checkpoint::open(path).map_err(CliError::input)?;
        for note in &checkpoint.notes {
            term::note(&format!("note: {note}"));
        }
        let specials = checkpoint.tokenizer.specials();
        let tokenizer = Tokenizer::from_bytes(&checkpoint.tokenizer.to_bytes());
        Ok(Init {
            config: checkpoint.model_config(),
            tokenizer: tokenizer.map_err(CliError::input)?.with_specials(specials),
            ends: checkpoint.ends.clone(),
            bos_token: checkpoint.bos_token.clone(),
            eos_token: checkpoint.eos_token.clone(),
            template: checkpoint.chat_template.clone(),
            weights: Weights { path: path.to_owned(), checkpoint: Some(Box::new(checkpoint)) },
        })
    }

    fn run_folder(path: &Path) -> Result<Init, CliError> {
        let file = path.join(train::CONFIG_FILE);
        let text = std::fs::read(&file).map_err(|e| {
            CliError::input(format!(
                "{}: {e}; give a GGUF file, a Hugging Face folder or a run folder",
                file.display()
            ))
        })?;
        let config: ModelConfig = serde_json::from_slice(&text)
            .map_err(|e| CliError::input(format!("{}: {e}", file.display())))?;
        if let ModelConfig::Ngram(_) = config {
            let kind = config.kind();
            return Err(CliError::input(format!(
                "{}: a {kind} model has counts, not weights; give a network to --init",
                path.display()
            )));
        }
        let tokenizer = Tokenizer::from_file(&path.join(train::TOKENIZER_FILE));
        let tokenizer = tokenizer.map_err(CliError::input)?;
        let ends = tokenizer.specials().eos.into_iter().collect();
        let (bos_token, eos_token, template) = (None, None, None);
        let weights = Weights { path: path.to_owned(), checkpoint: None };
        Ok(Init { weights, config, tokenizer, ends, bos_token, eos_token, template })
    }

    /// The weights, which are closed when they have been read.
    pub fn take_weights(&mut self) -> Weights {
        std::mem::take(&mut self.weights)
    }

    /// The chat template, where there is one.
    pub fn template(&self) -> Result<Option<ChatTemplate>, CliError> {
        let word = |token: &Option<String>| token.clone().unwrap_or_default();
        let (bos, eos) = (word(&self.bos_token), word(&self.eos_token));
        let made = self.template.as_ref().map(|source| ChatTemplate::new(source, &bos, &eos));
        made.transpose().map_err(CliError::input)
    }

    /// Writes the trained model as a Hugging Face folder; none where no family computes it.
    pub fn export(&self, run: &Path, model: &Model) -> Result<Option<PathBuf>, CliError> {
        if let Err(reason) = can_export(model.config()) {
            term::note(&format!("note: {reason}"));
            return Ok(None);
        }
        let folder = run.join(EXPORTED);
        let words = Words {
            tokenizer: &self.tokenizer,
            ends: &self.ends,
            bos_token: self.bos_token.as_deref(),
            eos_token: self.eos_token.as_deref(),
            chat_template: self.template.as_deref(),
        };
        export(&folder, model, &words).map_err(CliError::failed)?;
        Ok(Some(folder))
    }
}

impl Weights {
    /// Reads the weights and closes the files.
    pub fn load(self, threads: usize) -> Result<Model, CliError> {
        if let Some(checkpoint) = self.checkpoint {
            return checkpoint.load(threads).map_err(CliError::failed);
        }
        match SavedModel::open(&self.path).map_err(CliError::input)? {
            SavedModel::Network(model) => Ok(*model),
            SavedModel::Counts(_) => Err(CliError::input("counts are not trained by gradients")),
        }
    }

    /// The SHA-256 of the weights.
    pub fn digest(&self) -> Result<String, CliError> {
        let digest = match &self.checkpoint {
            Some(checkpoint) => {
                let files: Vec<PathBuf> = checkpoint.tensors.paths().map(Path::to_owned).collect();
                train::digest_of(&files)
            }
            None => SavedModel::digest(&self.path),
        };
        digest.map_err(CliError::input)
    }
}
