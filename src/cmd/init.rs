//! The model that training goes on from: weights as floats, and the words that belong to them.

use crate::cmd::model::located;
use crate::error::CliError;
use crate::term;
use chat::ChatTemplate;
use families::{
    Checkpoint, ExportError, Family, Words, can_export, export, export_file, lora_targets,
};
use formats::TensorStore;
use models::{LoraConfig, LoraTarget, Model, ModelConfig};
use std::path::{Path, PathBuf};
use tokenizer::Tokenizer;
use train::SavedModel;

/// The folder in a run folder that transformers loads.
pub const EXPORTED: &str = "huggingface";

/// A model to go on from.
pub struct Init {
    weights: Weights,
    /// Known where adapters learn.
    family: Option<&'static Family>,
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
            family: None,
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
        let family = None;
        Ok(Init { weights, family, config, tokenizer, ends, bos_token, eos_token, template })
    }

    fn published(&self) -> Result<&Checkpoint, CliError> {
        self.weights.checkpoint.as_deref().ok_or_else(|| unpublished(&self.weights.path))
    }

    /// The maps that can have an adapter.
    pub fn lora_targets(&self) -> Result<Vec<LoraTarget>, CliError> {
        let checkpoint = self.published()?;
        Ok(lora_targets(checkpoint.family, &checkpoint.config))
    }

    /// From now on adapters learn beside weights that stay as they are stored.
    pub fn freeze(&mut self, lora: LoraConfig) -> Result<(), CliError> {
        self.family = Some(self.published()?.family);
        if let Some(checkpoint) = &mut self.weights.checkpoint {
            checkpoint.keep_as_stored().map_err(CliError::input)?;
            checkpoint.config.lora = Some(lora);
            self.config = checkpoint.model_config();
        }
        self.config.check().map_err(CliError::input)
    }

    /// The family of a model that learns adapters.
    pub fn family(&self) -> Result<&'static Family, CliError> {
        self.family.ok_or_else(|| CliError::input("no published model to go on from"))
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

    /// Writes a model as a Hugging Face folder into its run folder; none where no family computes it.
    pub fn export(&self, run: &Path, model: &Model) -> Result<Option<PathBuf>, CliError> {
        self.write(run, model.config(), |folder, words| export(folder, model, words))
    }

    /// The same of the weights that the run folder has: one parameter is in memory at a time.
    pub fn export_run(&self, run: &Path) -> Result<Option<PathBuf>, CliError> {
        self.write(run, &self.config, |folder, words| {
            let weights = formats::TensorFile::open(&run.join(train::WEIGHTS_FILE))?;
            export_file(folder, &self.config, &weights, words)
        })
    }

    fn write(
        &self,
        run: &Path,
        config: &ModelConfig,
        export: impl FnOnce(&Path, &Words<'_>) -> Result<(), ExportError>,
    ) -> Result<Option<PathBuf>, CliError> {
        if let Err(reason) = can_export(config) {
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
        export(&folder, &words).map_err(CliError::failed)?;
        Ok(Some(folder))
    }
}

fn unpublished(path: &Path) -> CliError {
    CliError::input(format!(
        "{}: adapters are made for published models; give a GGUF file or a Hugging Face folder, such as \
         the huggingface/ of a run",
        path.display()
    ))
}

impl Weights {
    /// Sees that every tensor is there, and that all values are numbers.
    pub fn check(&self, config: &ModelConfig) -> Result<(), CliError> {
        let own;
        let (tensors, names): (&TensorStore, Vec<String>) = match &self.checkpoint {
            // That they are there was seen when it was opened.
            Some(checkpoint) => {
                let bindings = checkpoint.bindings().map_err(CliError::input)?;
                (&checkpoint.tensors, bindings.into_iter().map(|b| b.tensor).collect())
            }
            None => {
                train::check_weights(&self.path, config).map_err(CliError::input)?;
                let file = self.path.join(train::WEIGHTS_FILE);
                own = formats::open_tensors(&file).map_err(CliError::input)?;
                (&own, own.names().map(str::to_owned).collect())
            }
        };
        match tensors.first_not_finite(names.iter().map(String::as_str)) {
            None => Ok(()),
            Some((name, file)) => Err(CliError::input(format!(
                "{}: tensor {name} holds a value that is no finite number, which training would spread; \
                 give another copy of the model",
                file.display()
            ))),
        }
    }

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

    /// The same into a model that has a place for them: of a published model beside adapters, which
    /// are left as they are.
    pub fn load_into(self, mut model: Model, threads: usize) -> Result<Model, CliError> {
        let published = self.checkpoint.as_deref().ok_or_else(|| unpublished(&self.path))?;
        published.load_into(&mut model, threads).map_err(CliError::failed)?;
        Ok(model)
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
