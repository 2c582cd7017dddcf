//! The numbers of a model under two names: the GGUF key and the one of `config.json`.

use crate::Error;
use formats::{KeyError, Metadata, TensorStore, dequantise};
use serde_json::Value;
use std::path::Path;

/// A number's two names: (GGUF key behind the architecture's prefix, key of `config.json`).
pub(crate) type Pair = (&'static str, &'static str);

/// What a GGUF file's tensors say of a model's numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyTensors {
    /// Rows of the token table.
    pub(crate) vocab: Option<usize>,
    /// Whether there is an output projection of its own.
    pub(crate) has_head: bool,
    /// What each frequency of rotary positions is divided by.
    pub(crate) rope_factors: Option<Vec<f32>>,
}

impl KeyTensors {
    pub(crate) fn of(tensors: &TensorStore) -> KeyTensors {
        let factors = tensors.get("rope_freqs.weight").map(|tensor| {
            let mut factors = vec![0.0; tensor.len()];
            dequantise(tensor.kind, tensor.bytes, &mut factors);
            factors
        });
        KeyTensors {
            vocab: tensors.get("token_embd.weight").and_then(|t| t.shape.first().copied()),
            has_head: tensors.get("output.weight").is_some(),
            rope_factors: factors,
        }
    }
}

/// Where the numbers stand.
pub(crate) enum Keys<'a> {
    /// In the head of a GGUF file.
    Gguf {
        /// The file.
        path: &'a Path,
        /// The architecture's prefix.
        prefix: &'a str,
        /// The keys.
        metadata: &'a Metadata,
        /// What its tensors say of the numbers.
        tensors: &'a KeyTensors,
    },
    /// In a `config.json`.
    Folder {
        /// The file.
        path: &'a Path,
        /// Its value, an object.
        config: &'a Value,
        /// Whether heads are tied where the file does not say.
        tied: bool,
    },
}

impl Keys<'_> {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Keys::Gguf { path, .. } | Keys::Folder { path, .. } => path,
        }
    }

    /// The name of the one that is in use.
    pub(crate) fn name(&self, pair: Pair) -> String {
        match self {
            Keys::Gguf { prefix, .. } => format!("{prefix}.{}", pair.0),
            Keys::Folder { .. } => pair.1.to_owned(),
        }
    }

    fn typed<T>(&self, result: Result<T, KeyError>) -> Result<T, Error> {
        result.map_err(|e| self.wrong(e.key, e.found, e.expected))
    }

    /// The error of a value that cannot be used.
    pub(crate) fn wrong(
        &self,
        key: String,
        found: impl ToString,
        expected: impl ToString,
    ) -> Error {
        let (found, expected) = (found.to_string(), expected.to_string());
        Error::Key { path: self.path().to_owned(), key, found, expected }
    }

    /// The value in `config.json`; none for a GGUF file, `null` is none.
    pub(crate) fn json(&self, key: &str) -> Option<&Value> {
        match self {
            Keys::Folder { config, .. } => config.get(key).filter(|v| !v.is_null()),
            Keys::Gguf { .. } => None,
        }
    }

    pub(crate) fn size(&self, pair: Pair) -> Result<Option<usize>, Error> {
        let key = self.name(pair);
        if let Keys::Gguf { metadata, .. } = self {
            return self.typed(metadata.size(&key));
        }
        let Some(value) = self.json(pair.1) else { return Ok(None) };
        match value.as_u64().and_then(|n| usize::try_from(n).ok()) {
            Some(n) => Ok(Some(n)),
            None => Err(self.wrong(key, value, "a size")),
        }
    }

    pub(crate) fn number(&self, pair: Pair) -> Result<Option<f64>, Error> {
        let key = self.name(pair);
        if let Keys::Gguf { metadata, .. } = self {
            return self.typed(metadata.number(&key));
        }
        let Some(value) = self.json(pair.1) else { return Ok(None) };
        match value.as_f64() {
            Some(x) => Ok(Some(x)),
            None => Err(self.wrong(key, value, "a number")),
        }
    }

    /// A text of a GGUF file.
    pub(crate) fn gguf_text(&self, key: &str) -> Result<Option<&str>, Error> {
        match self {
            Keys::Gguf { prefix, metadata, .. } => {
                self.typed(metadata.text(&format!("{prefix}.{key}")))
            }
            Keys::Folder { .. } => Ok(None),
        }
    }

    /// A truth value of `config.json`.
    pub(crate) fn flag(&self, key: &'static str) -> Result<Option<bool>, Error> {
        let Some(value) = self.json(key) else { return Ok(None) };
        match value.as_bool() {
            Some(flag) => Ok(Some(flag)),
            None => Err(self.wrong(key.to_owned(), value, "true or false")),
        }
    }

    pub(crate) fn need_size(&self, pair: Pair) -> Result<usize, Error> {
        self.size(pair)?.ok_or_else(|| self.missing(pair))
    }

    pub(crate) fn need_number(&self, pair: Pair) -> Result<f64, Error> {
        self.number(pair)?.ok_or_else(|| self.missing(pair))
    }

    pub(crate) fn missing(&self, pair: Pair) -> Error {
        Error::MissingKey { path: self.path().to_owned(), key: self.name(pair) }
    }

    /// Refuses a feature that is on: the key is there and not one of `known`.
    pub(crate) fn only(&self, pair: Pair, known: &[&str]) -> Result<(), Error> {
        let found = match self {
            Keys::Gguf { metadata, .. } => {
                let value = metadata.get(&self.name(pair));
                value.map(|v| v.describe().trim_matches('"').to_owned())
            }
            Keys::Folder { .. } => {
                let value = self.json(pair.1);
                value.map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
            }
        };
        match found.filter(|found| !known.contains(&found.as_str())) {
            Some(found) => {
                let known = if known.is_empty() { "no such key" } else { &known.join(" or ") };
                Err(self.wrong(self.name(pair), found, known))
            }
            None => Ok(()),
        }
    }

    /// V: rows of the token table in a GGUF file, `vocab_size` in `config.json`.
    pub(crate) fn vocab(&self) -> Result<usize, Error> {
        let Keys::Gguf { tensors, path, .. } = self else {
            return self.need_size(("vocab_size", "vocab_size"));
        };
        let name = || "token_embd.weight".to_owned();
        let missing = || Error::MissingTensor { path: path.to_path_buf(), name: name() };
        let rows = tensors.vocab.ok_or_else(missing)?;
        let said = ("vocab_size", "");
        match self.size(said)?.filter(|&said| said != rows) {
            Some(found) => {
                let expected = format!("{rows}, the rows of token_embd.weight");
                Err(self.wrong(self.name(said), found, expected))
            }
            None => Ok(rows),
        }
    }

    /// Whether the output projection is the token embedding: a GGUF file then lacks the other.
    pub(crate) fn tied(&self) -> Result<bool, Error> {
        match self {
            Keys::Gguf { tensors, .. } => Ok(!tensors.has_head),
            Keys::Folder { tied, .. } => Ok(self.flag("tie_word_embeddings")?.unwrap_or(*tied)),
        }
    }
}
