//! Why published files make no model: where, what was found, what was expected.

use std::path::PathBuf;

/// Why published files make no model.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("{path}: {source}{}", formats::hint(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file of another kind.
    #[error(
        "{path} is not a model: no GGUF file and no folder; give a .gguf file, a Hugging Face folder \
         or a run folder of `autoreg train`"
    )]
    NotAModel {
        /// The file.
        path: PathBuf,
    },
    /// A file that must be there is not.
    #[error(
        "{path}: no {name} in it; give a folder with config.json, the weights and tokenizer.json"
    )]
    NoFile {
        /// The folder.
        path: PathBuf,
        /// The file.
        name: &'static str,
    },
    /// Weights that are a pickle of Python's.
    #[error(
        "{path}: a pickle, which is not read because reading one runs what is in it; write it as \
         safetensors, for a model by Python's AutoModelForCausalLM.from_pretrained(FOLDER)\
         .save_pretrained(OUT, safe_serialization=True)"
    )]
    Pickled {
        /// The file.
        path: PathBuf,
    },
    /// A JSON file does not hold.
    #[error("{path}: {reason}")]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The family is not known.
    #[error("{path}: {key} is {found}; known are {known}")]
    Family {
        /// The file.
        path: PathBuf,
        /// The key that names it.
        key: &'static str,
        /// Its value.
        found: String,
        /// What is known.
        known: String,
    },
    /// A key is missing.
    #[error("{path}: key {key} is missing")]
    MissingKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// A key has a value that cannot be used.
    #[error("{path}: key {key} is {found}, expected {expected}")]
    Key {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What it must be.
        expected: String,
    },
    /// A tensor is missing.
    #[error("{path}: tensor {name} is missing; the model cannot be run without it")]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
    /// A tensor that the model has no place for.
    #[error(
        "{path}: tensor {name} has no place in a {family} of this configuration; without it the model \
         would be another"
    )]
    NoPlace {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The family.
        family: &'static str,
    },
    /// A tensor is not as the configuration says.
    #[error(
        "{path}: tensor {name} is {found}, expected the shape {expected:?} by the configuration"
    )]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Type and shape.
        found: String,
        /// The shape expected.
        expected: Vec<usize>,
    },
    /// The vocabulary is larger than the model's table.
    #[error(
        "{path}: the tokenizer has {tokens} tokens, the model a table of {vocab} rows; do they belong together?"
    )]
    Vocabulary {
        /// The file.
        path: PathBuf,
        /// Tokens.
        tokens: usize,
        /// Rows.
        vocab: usize,
    },
    /// The tokenizer cannot be used.
    #[error("{path}: {source}")]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: tokenizer::Error,
    },
    /// The GGUF file does not hold.
    #[error(transparent)]
    Gguf(#[from] formats::GgufError),
    /// The weights do not hold.
    #[error(transparent)]
    Tensors(#[from] formats::Error),
    /// The model cannot be made.
    #[error("{path}: {source}")]
    Model {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: models::Error,
    },
}
