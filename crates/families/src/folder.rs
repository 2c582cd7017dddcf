//! A Hugging Face folder: the family by `model_type`, the tokenizer from `tokenizer.json`.

use crate::checkpoint::{Source, Unread, Weights, Words};
use crate::family::Family;
use crate::keys::Keys;
use crate::{ALL, Error};
use models::TransformerConfig;
use serde_json::Value;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use tokenizer::{Specials, Tokenizer};

/// The numbers of a model.
pub(crate) const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const GENERATION: &str = "generation_config.json";
const TEMPLATE: &str = "chat_template.jinja";

/// The weights, and the words of the folder still to be read.
pub(crate) fn open(path: &Path) -> Result<(Weights, Unread), Error> {
    let Some(config) = json(path, CONFIG)? else {
        return Err(Error::NoFile { path: path.to_owned(), name: CONFIG });
    };
    let file = path.join(CONFIG);
    let (family, numbers) = read(&file, &config)?;
    no_pickle(path, "model")?;
    if !path.join(TOKENIZER).exists() {
        return Err(Error::NoFile { path: path.to_owned(), name: TOKENIZER });
    }
    let weights = Weights {
        path: path.to_owned(),
        source: Source::Folder,
        family,
        config: numbers,
        tensors: formats::open_shards(path)?,
        name: file_of(path, CONFIG, &config).text("_name_or_path")?.map(str::to_owned),
        notes: Vec::new(),
    };
    let path = path.to_owned();
    Ok((weights, Box::new(move || words(&path, &config))))
}

/// Refuses a folder whose weights, files that begin with `name`, are pickled alone.
pub(crate) fn no_pickle(folder: &Path, name: &str) -> Result<(), Error> {
    let mut pickled = None;
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        if file.starts_with(name) && file.contains(".safetensors") {
            return Ok(());
        }
        let weights = ["pytorch_model", "adapter_model", "consolidated", "model"];
        let ends = [".bin", ".bin.index.json", ".pt", ".pth"];
        let is =
            weights.iter().any(|w| file.starts_with(w)) && ends.iter().any(|e| file.ends_with(e));
        if is && pickled.as_ref().is_none_or(|first| file < *first) {
            pickled = Some(file);
        }
    }
    pickled.map_or(Ok(()), |file| Err(Error::Pickled { path: folder.join(file) }))
}

fn words(path: &Path, config: &Value) -> Result<Words, Error> {
    let place = path.join(TOKENIZER);
    let tokenizer = Tokenizer::from_file(&place)
        .map_err(|source| Error::Tokenizer { path: place.clone(), source })?;
    let described = json(path, TOKENIZER_CONFIG)?.unwrap_or_default();
    let described = file_of(path, TOKENIZER_CONFIG, &described);
    let id = |name: Option<&str>| name.and_then(|name| tokenizer.id(name));
    let generation = json(path, GENERATION)?.unwrap_or_default();
    let mut ends = file_of(path, CONFIG, config).ids("eos_token_id")?;
    let eos = described.token("eos_token")?;
    let specials = Specials {
        pad: id(described.token("pad_token")?),
        unk: tokenizer.specials().unk,
        bos: tokenizer.put_before().first().copied(),
        eos: id(eos).or_else(|| ends.first().copied()),
    };
    ends.extend(specials.eos);
    ends.extend(file_of(path, GENERATION, &generation).ids("eos_token_id")?);
    ends.sort_unstable();
    ends.dedup();
    Ok(Words {
        tokenizer: tokenizer.with_specials(specials),
        tokenizer_kind: TOKENIZER.to_owned(),
        ends,
        bos_token: described.token("bos_token")?.map(str::to_owned),
        eos_token: eos.map(str::to_owned),
        chat_template: template(path, &described)?,
    })
}

/// The numbers that a `config.json` holds, as the family of its `model_type` reads them.
///
/// # Errors
/// A `model_type` of no family here; what does not hold in the file.
pub fn numbers(path: &Path, config: &Value) -> Result<TransformerConfig, Error> {
    read(path, config).map(|(_, numbers)| numbers)
}

fn read(path: &Path, config: &Value) -> Result<(&'static Family, TransformerConfig), Error> {
    let key = "model_type";
    let found = match config.get(key) {
        None => "missing".to_owned(),
        Some(value) => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
    };
    let Some(family) = ALL.into_iter().find(|f| f.model_types.contains(&found.as_str())) else {
        let known: Vec<&str> = ALL.iter().flat_map(|f| f.model_types).copied().collect();
        return Err(Error::Family { path: path.to_owned(), key, found, known: known.join(", ") });
    };
    let keys = Keys::Folder { path, config, tied: family.tied };
    Ok((family, (family.config)(&keys)?))
}

/// A JSON object of the folder; none where there is no such file.
fn json(folder: &Path, name: &str) -> Result<Option<Value>, Error> {
    let path = folder.join(name);
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::Io { path, source }),
    };
    match serde_json::from_slice::<Value>(&text) {
        Ok(value) if value.is_object() => Ok(Some(value)),
        Ok(_) => Err(Error::Json { path, reason: "not an object; expected {…}".to_owned() }),
        Err(e) => Err(Error::Json { path, reason: e.to_string() }),
    }
}

/// The words of a JSON file in a folder; null is as good as nothing.
struct WordsOf<'a> {
    path: PathBuf,
    value: &'a Value,
}

fn file_of<'a>(folder: &Path, name: &str, value: &'a Value) -> WordsOf<'a> {
    WordsOf { path: folder.join(name), value }
}

impl<'a> WordsOf<'a> {
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.value.get(key).filter(|value| !value.is_null())
    }

    fn wrong(&self, key: &str, expected: &str) -> Error {
        let found = self.value.get(key).unwrap_or(&Value::Null).to_string();
        let (path, key, expected) = (self.path.clone(), key.to_owned(), expected.to_owned());
        Error::Key { path, key, found, expected }
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(key, "a text"))
    }

    /// A token: a text, or an object that holds it.
    fn token(&self, key: &str) -> Result<Option<&'a str>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let text = value.as_str().or_else(|| value.get("content")?.as_str());
        text.map(Some).ok_or_else(|| self.wrong(key, "a text, or an object with its content"))
    }

    /// An id, or several.
    fn ids(&self, key: &str) -> Result<Vec<u32>, Error> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids: Option<Vec<u32>> = list.iter().map(id).collect();
        ids.ok_or_else(|| self.wrong(key, "the id of a token, or a list of ids"))
    }
}

/// The chat template: a file of its own, else in the tokenizer's configuration, alone or as the one
/// named `default` of several.
fn template(folder: &Path, described: &WordsOf<'_>) -> Result<Option<String>, Error> {
    let path = folder.join(TEMPLATE);
    match std::fs::read_to_string(&path) {
        Ok(text) => return Ok(Some(text)),
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(source) => return Err(Error::Io { path, source }),
    }
    let key = "chat_template";
    let wrong = || described.wrong(key, "a text, or a list of objects with name and template");
    let Some(value) = described.get(key) else { return Ok(None) };
    let Some(list) = value.as_array() else {
        return value.as_str().map(|text| Some(text.to_owned())).ok_or_else(wrong);
    };
    let mut default = None;
    for entry in list {
        let both = entry["name"].as_str().zip(entry["template"].as_str());
        let (name, template) = both.ok_or_else(wrong)?;
        if name == "default" {
            default.get_or_insert_with(|| template.to_owned());
        }
    }
    Ok(default)
}
