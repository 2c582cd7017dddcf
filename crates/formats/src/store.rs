//! Named tensors in one or several mapped files: what both readers give.

use crate::{TensorKind, dequantise};
use ledger::MappedFile;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A tensor in a file.
#[derive(Clone, Copy, Debug)]
pub struct StoredTensor<'a> {
    /// How its values are stored.
    pub kind: TensorKind,
    /// Its shape, outermost dimension first.
    pub shape: &'a [usize],
    /// Its bytes: whole blocks, row by row.
    pub bytes: &'a [u8],
}

impl StoredTensor<'_> {
    /// Its number of values.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Type and shape, for messages.
    pub fn describe(&self) -> String {
        format!("{} {:?}", self.kind, self.shape)
    }
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) file: usize,
    pub(crate) kind: TensorKind,
    pub(crate) shape: Vec<usize>,
    /// Bytes in the file; checked to lie inside it.
    pub(crate) range: Range<usize>,
}

/// Tensors by name. Every range was checked against its file when the store was opened.
#[derive(Debug, Default)]
pub struct TensorStore {
    pub(crate) files: Vec<(PathBuf, Arc<MappedFile>)>,
    pub(crate) entries: HashMap<String, Entry>,
    /// Names in the order of the files.
    pub(crate) names: Vec<String>,
}

impl TensorStore {
    /// Adds a tensor; false when there is one of that name.
    pub(crate) fn add(&mut self, name: String, entry: Entry) -> bool {
        if self.entries.contains_key(&name) {
            return false;
        }
        self.names.push(name.clone());
        self.entries.insert(name, entry);
        true
    }

    /// A tensor.
    pub fn get(&self, name: &str) -> Option<StoredTensor<'_>> {
        let entry = self.entries.get(name)?;
        let (_, map) = self.files.get(entry.file)?;
        let bytes = map.get(entry.range.clone())?;
        Some(StoredTensor { kind: entry.kind, shape: &entry.shape, bytes })
    }

    /// Gives back the memory of some of a tensor's bytes, which were read for the last time for now.
    pub fn release(&self, name: &str, bytes: Range<usize>) {
        if let Some(entry) = self.entries.get(name)
            && let Some((_, map)) = self.files.get(entry.file)
        {
            let place = |at: usize| entry.range.start.saturating_add(at).min(entry.range.end);
            map.release(place(bytes.start)..place(bytes.end));
        }
    }

    /// The first of these tensors with a value that is no finite number, and its file. Reads them all,
    /// a piece at a time.
    pub fn first_not_finite<'a>(
        &self,
        mut names: impl Iterator<Item = &'a str>,
    ) -> Option<(&'a str, &Path)> {
        // Whole blocks of every kind.
        const VALUES: usize = 1 << 14;
        let mut values = vec![0.0; VALUES];
        let name = names.find(|name| {
            let Some(tensor) = self.get(name) else { return false };
            let (kind, len) = (tensor.kind, tensor.len());
            let piece = kind.bytes_of(VALUES).unwrap_or(usize::MAX);
            let broken = tensor.bytes.chunks(piece).enumerate().any(|(i, bytes)| {
                let values = &mut values[..VALUES.min(len - i * VALUES)];
                dequantise(kind, bytes, values);
                values.iter().any(|value| !value.is_finite())
            });
            self.release(name, 0..tensor.bytes.len());
            broken
        })?;
        let entry = self.entries.get(name)?;
        Some((name, &self.files.get(entry.file)?.0))
    }

    /// The names, in the order of the files.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// The files, in order.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(path, _)| path.as_path())
    }

    /// The first file's path, for messages.
    pub fn path(&self) -> PathBuf {
        self.paths().next().unwrap_or(Path::new("")).to_owned()
    }

    /// (kind, tensors, values, bytes) of each kind that occurs.
    pub fn census(&self) -> Vec<(TensorKind, usize, usize, usize)> {
        let count = |kind| {
            let mine = self.entries.values().filter(|e| e.kind == kind);
            mine.fold((kind, 0, 0, 0), |(kind, tensors, values, bytes), e| {
                let product: usize = e.shape.iter().product();
                (kind, tensors + 1, values + product, bytes + e.range.len())
            })
        };
        TensorKind::ALL.into_iter().map(count).filter(|row| row.1 > 0).collect()
    }
}
