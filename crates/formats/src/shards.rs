//! The weights of a Hugging Face folder: one safetensors file, or several under an index.

use crate::store::{Entry, TensorStore};
use crate::{Error, TensorKind};
use ledger::MappedFile;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};
use std::sync::Arc;

/// The only file.
const SINGLE: &str = "model.safetensors";
/// The list of several.
const INDEX: &str = "model.safetensors.index.json";

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Opens the weights in `folder`: what `model.safetensors.index.json` lists, else
/// `model.safetensors`. Tensors of other types than F32, F16 and BF16 are left out.
///
/// # Errors
/// When there are none, a file does not hold, or the index and the files differ.
pub fn open_shards(folder: &Path) -> Result<TensorStore, Error> {
    let index = folder.join(INDEX);
    let mut store = TensorStore::default();
    if !index.exists() {
        add_file(&folder.join(SINGLE), &mut store)?;
        return Ok(store);
    }
    let wrong = |reason: String| Error::Header { path: index.clone(), reason };
    let text = std::fs::read(&index).map_err(|source| Error::Io { path: index.clone(), source })?;
    let list: Index = serde_json::from_slice(&text).map_err(|e| wrong(e.to_string()))?;
    let files: BTreeSet<&String> = list.weight_map.values().collect();
    for name in files {
        let mut parts = Path::new(name).components();
        if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
            return Err(wrong(format!("{name:?} is no file name in the same folder")));
        }
        add_file(&folder.join(name), &mut store)?;
    }
    for (tensor, file) in &list.weight_map {
        let entry = store.entries.get(tensor);
        let place = entry.and_then(|e| store.files.get(e.file)).map(|(path, _)| path);
        if place.is_some_and(|path| *path != folder.join(file)) {
            return Err(wrong(format!("tensor {tensor} is said to be in {file} and is not")));
        }
    }
    Ok(store)
}

/// Opens one safetensors file, whatever its name.
///
/// # Errors
/// When it does not hold.
pub fn open_tensors(path: &Path) -> Result<TensorStore, Error> {
    let mut store = TensorStore::default();
    add_file(path, &mut store)?;
    Ok(store)
}

fn add_file(path: &Path, store: &mut TensorStore) -> Result<(), Error> {
    let map =
        MappedFile::open(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
    let wrong = |reason: String| Error::Header { path: path.to_owned(), reason };
    let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|e| wrong(e.to_string()))?;
    let data = header + 8;
    for name in metadata.offset_keys() {
        let Some(info) = metadata.info(&name) else { continue };
        let kind = match info.dtype {
            Dtype::F32 => TensorKind::F32,
            Dtype::F16 => TensorKind::F16,
            Dtype::BF16 => TensorKind::Bf16,
            _ => continue,
        };
        let (from, to) = info.data_offsets;
        let range = data + from..data + to;
        let values = info.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        if values.and_then(|n| kind.bytes_of(n)) != Some(range.len()) || range.end > map.len() {
            return Err(wrong(format!("tensor {name} has {} bytes", range.len())));
        }
        let entry = Entry { file: store.files.len(), kind, shape: info.shape.clone(), range };
        if !store.add(name.clone(), entry) {
            return Err(wrong(format!("tensor {name} occurs twice")));
        }
    }
    store.files.push((path.to_owned(), Arc::new(map)));
    Ok(())
}
