//! A Hugging Face folder: the family by `model_type`, the tokenizer from `tokenizer.json`.

use crate::checkpoint::{Source, Unread, Weights, Words};
use crate::family::Family;
use crate::keys::Keys;
use crate::{ALL, Error};
use models::TransformerConfig;
use serde_json::Value;
use std::io::ErrorKind;
use std::path::Path;
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
    if !path.join(TOKENIZER).exists() {
        return Err(Error::NoFile { path: path.to_owned(), name: TOKENIZER });
    }
    let weights = Weights {
        path: path.to_owned(),
        source: Source::Folder,
        family,
        config: numbers,
        tensors: formats::open_shards(path)?,
        name: config.get("_name_or_path").and_then(Value::as_str).map(str::to_owned),
        notes: Vec::new(),
    };
    let path = path.to_owned();
    Ok((weights, Box::new(move || words(&path, &config))))
}

fn words(path: &Path, config: &Value) -> Result<Words, Error> {
    let place = path.join(TOKENIZER);
    let tokenizer = Tokenizer::from_file(&place)
        .map_err(|source| Error::Tokenizer { path: place.clone(), source })?;
    let described = json(path, TOKENIZER_CONFIG)?.unwrap_or_default();
    let named = |key: &str| token_text(&described, key);
    let id = |key: &str| named(key).and_then(|name| tokenizer.id(&name));
    let specials = Specials {
        pad: id("pad_token"),
        unk: tokenizer.specials().unk,
        bos: tokenizer.put_before().first().copied(),
        eos: id("eos_token").or_else(|| config.get("eos_token_id").and_then(first_id)),
    };
    let generation = json(path, GENERATION)?.unwrap_or_default();
    let mut ends: Vec<u32> = specials.eos.into_iter().collect();
    for file in [config, &generation] {
        ends.extend(file.get("eos_token_id").map(all_ids).unwrap_or_default());
    }
    ends.sort_unstable();
    ends.dedup();
    Ok(Words {
        tokenizer: tokenizer.with_specials(specials),
        tokenizer_kind: TOKENIZER.to_owned(),
        ends,
        bos_token: named("bos_token"),
        eos_token: named("eos_token"),
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
    let found = config.get(key).and_then(Value::as_str).unwrap_or("missing").to_owned();
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

/// A token's text: a text, or an object that holds it.
fn token_text(config: &Value, key: &str) -> Option<String> {
    let value = config.get(key)?;
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

fn all_ids(value: &Value) -> Vec<u32> {
    let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    list.iter().filter_map(Value::as_u64).filter_map(|id| u32::try_from(id).ok()).collect()
}

fn first_id(value: &Value) -> Option<u32> {
    all_ids(value).first().copied()
}

/// The chat template: a file of its own, else in the tokenizer's configuration, alone or as the one
/// named `default` of several.
fn template(folder: &Path, described: &Value) -> Result<Option<String>, Error> {
    let path = folder.join(TEMPLATE);
    match std::fs::read_to_string(&path) {
        Ok(text) => return Ok(Some(text)),
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(source) => return Err(Error::Io { path, source }),
    }
    let value = described.get("chat_template");
    let named = value.and_then(Value::as_array).and_then(|list| {
        let default = list.iter().find(|entry| entry["name"] == "default");
        default.and_then(|entry| entry["template"].as_str())
    });
    Ok(value.and_then(Value::as_str).or(named).map(str::to_owned))
}
