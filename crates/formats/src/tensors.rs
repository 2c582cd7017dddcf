//! Safetensors files, read by mapping and written whole.

use crate::folder::{hint, replace_at};
use ledger::MappedFile;
use safetensors::{Dtype, SafeTensorError, SafeTensors, View};
use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

/// What is wrong with a tensor file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read or written.
    #[error("{path}: {source}{}", hint(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Its header does not hold.
    #[error("{path}: not a safetensors file: {reason}; was it cut short or is it another format?")]
    Header {
        /// The file.
        path: PathBuf,
        /// What the reader said.
        reason: String,
    },
    /// It lacks a tensor.
    #[error("{path}: no tensor {name}; it holds {found}")]
    Missing {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Some of what is there.
        found: String,
    },
    /// A tensor is not as it must be.
    #[error("{path}: tensor {name} is {found}, expected {expected}")]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Type and shape in the file.
        found: String,
        /// Type and shape expected.
        expected: String,
    },
}

/// Values to write.
#[derive(Clone, Copy, Debug)]
pub enum Values<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// 32-bit unsigned numbers.
    U32(&'a [u32]),
    /// 64-bit unsigned numbers.
    U64(&'a [u64]),
}

/// A named tensor to write.
#[derive(Clone, Debug)]
pub struct TensorRef<'a> {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its values.
    pub values: Values<'a>,
}

impl View for &TensorRef<'_> {
    fn dtype(&self) -> Dtype {
        match self.values {
            Values::F32(_) => Dtype::F32,
            Values::U32(_) => Dtype::U32,
            Values::U64(_) => Dtype::U64,
        }
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        if cfg!(target_endian = "little") {
            return Cow::Borrowed(match self.values {
                Values::F32(v) => bytemuck::cast_slice(v),
                Values::U32(v) => bytemuck::cast_slice(v),
                Values::U64(v) => bytemuck::cast_slice(v),
            });
        }
        Cow::Owned(match self.values {
            Values::F32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Values::U32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Values::U64(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        })
    }
    fn data_len(&self) -> usize {
        match self.values {
            Values::F32(v) => 4 * v.len(),
            Values::U32(v) => 4 * v.len(),
            Values::U64(v) => 8 * v.len(),
        }
    }
}

/// Writes tensors and metadata to `path`, whole or not at all.
///
/// # Errors
/// As the system says; an old file is then untouched.
pub fn write_tensors(
    path: &Path,
    tensors: &[TensorRef],
    metadata: HashMap<String, String>,
) -> Result<(), Error> {
    let views = tensors.iter().map(|t| (t.name.as_str(), t));
    replace_at(path, |beside| {
        safetensors::serialize_to_file(views, Some(metadata), beside).map_err(|e| match e {
            SafeTensorError::IoError(source) => source,
            e => io::Error::other(e),
        })
    })
    .map_err(|source| Error::Io { path: path.to_owned(), source })
}

/// A safetensors file, checked when opened.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    map: MappedFile,
}

impl TensorFile {
    /// Opens a file and checks its header: sizes, offsets, types.
    ///
    /// # Errors
    /// When it cannot be read or its header does not hold.
    pub fn open(path: &Path) -> Result<TensorFile, Error> {
        let map =
            MappedFile::open(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
        let file = TensorFile { path: path.to_owned(), map };
        file.tensors()?;
        Ok(file)
    }

    fn tensors(&self) -> Result<SafeTensors<'_>, Error> {
        SafeTensors::deserialize(&self.map)
            .map_err(|e| Error::Header { path: self.path.clone(), reason: e.to_string() })
    }

    /// A metadata value.
    ///
    /// # Errors
    /// When the header does not hold.
    pub fn metadata(&self, key: &str) -> Result<Option<String>, Error> {
        let (_, header) = SafeTensors::read_metadata(&self.map)
            .map_err(|e| Error::Header { path: self.path.clone(), reason: e.to_string() })?;
        Ok(header.metadata().as_ref().and_then(|m| m.get(key).cloned()))
    }

    fn bytes(&self, name: &str, dtype: Dtype, shape: Option<&[usize]>) -> Result<&[u8], Error> {
        let tensors = self.tensors()?;
        let Ok(tensor) = tensors.tensor(name) else {
            let mut names: Vec<&str> = tensors.names();
            names.sort_unstable();
            names.truncate(6);
            let (path, name) = (self.path.clone(), name.to_owned());
            return Err(Error::Missing { path, name, found: names.join(", ") });
        };
        if tensor.dtype() != dtype || shape.is_some_and(|s| s != tensor.shape()) {
            return Err(Error::Mismatch {
                path: self.path.clone(),
                name: name.to_owned(),
                found: format!("{:?} {:?}", tensor.dtype(), tensor.shape()),
                expected: match shape {
                    Some(shape) => format!("{dtype:?} {shape:?}"),
                    None => format!("{dtype:?}"),
                },
            });
        }
        Ok(tensor.data())
    }

    /// Copies a tensor of that shape.
    ///
    /// # Errors
    /// When it is absent or of another type or shape.
    pub fn read_f32(&self, name: &str, shape: &[usize], out: &mut [f32]) -> Result<(), Error> {
        let bytes = self.bytes(name, Dtype::F32, Some(shape))?;
        for (v, b) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *v = f32::from_le_bytes(*b);
        }
        Ok(())
    }

    /// Names of its tensors, sorted.
    ///
    /// # Errors
    /// When the header does not hold.
    pub fn names(&self) -> Result<Vec<String>, Error> {
        let tensors = self.tensors()?;
        let mut names: Vec<String> = tensors.names().into_iter().map(str::to_owned).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Values of a tensor.
    ///
    /// # Errors
    /// When it is absent.
    pub fn length(&self, name: &str) -> Result<usize, Error> {
        Ok(self.bytes(name, Dtype::F32, None)?.len() / 4)
    }

    /// Copies the values of a tensor, of that shape where one is given, from value `from` on.
    ///
    /// # Errors
    /// When it is absent, of another type or shape, or ends before `out` does.
    pub fn read_f32_from(
        &self,
        name: &str,
        shape: Option<&[usize]>,
        from: usize,
        out: &mut [f32],
    ) -> Result<(), Error> {
        let bytes = self.bytes(name, Dtype::F32, shape)?;
        let values = bytes.as_chunks::<4>().0;
        let Some(values) = values.get(from..from + out.len()) else {
            return Err(Error::Mismatch {
                path: self.path.clone(),
                name: name.to_owned(),
                found: format!("{} values", values.len()),
                expected: format!("values {from} to {}", from + out.len()),
            });
        };
        out.iter_mut().zip(values).for_each(|(v, b)| *v = f32::from_le_bytes(*b));
        Ok(())
    }

    /// A tensor of any shape.
    ///
    /// # Errors
    /// When it is absent or of another type.
    pub fn read_u32(&self, name: &str) -> Result<Vec<u32>, Error> {
        let bytes = self.bytes(name, Dtype::U32, None)?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect())
    }

    /// A tensor of any shape.
    ///
    /// # Errors
    /// When it is absent or of another type.
    pub fn read_u64(&self, name: &str) -> Result<Vec<u64>, Error> {
        let bytes = self.bytes(name, Dtype::U64, None)?;
        Ok(bytes.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_mistakes_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w.safetensors");
        let values = [1.5f32, -2.0, 3.25, 0.0, 5.0, 6.0];
        let counts = [7u32, 9];
        let tensors = [
            TensorRef { name: "a".into(), shape: vec![2, 3], values: Values::F32(&values) },
            TensorRef { name: "n".into(), shape: vec![2], values: Values::U32(&counts) },
        ];
        let metadata = HashMap::from([("step".to_owned(), "4".to_owned())]);
        write_tensors(&path, &tensors, metadata).unwrap();
        let file = TensorFile::open(&path).unwrap();
        let mut out = [0.0; 6];
        file.read_f32("a", &[2, 3], &mut out).unwrap();
        assert_eq!(out, values);
        assert_eq!(file.read_u32("n").unwrap(), counts);
        assert_eq!(file.metadata("step").unwrap().as_deref(), Some("4"));
        let shape = file.read_f32("a", &[3, 2], &mut out).unwrap_err().to_string();
        assert!(shape.contains("[2, 3]") && shape.contains("[3, 2]"), "{shape}");
        assert!(file.read_u32("b").unwrap_err().to_string().contains("a, n"));
    }

    #[test]
    fn foreign_and_short_files_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let lengths = [u64::MAX, 1 << 63, 0, 3].map(|n| n.to_le_bytes().to_vec());
        let texts: [&[u8]; 3] = [b"", b"GGUF", b"hello there, this is text"];
        for bytes in lengths.into_iter().chain(texts.map(<[u8]>::to_vec)) {
            std::fs::write(&path, &bytes).unwrap();
            assert!(matches!(TensorFile::open(&path), Err(Error::Header { .. })), "{bytes:?}");
        }
    }
}
