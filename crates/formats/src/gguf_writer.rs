//! Writing a GGUF file (version 3): head first, then one tensor after another, whole or not at all.

use crate::TensorKind;
use crate::folder::replace_at;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Where tensors begin: at multiples of it.
const ALIGNMENT: usize = 32;

/// A key's value as it is written.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyValue {
    /// A 32-bit unsigned number.
    U32(u32),
    /// A 32-bit float.
    F32(f32),
    /// A truth value.
    Bool(bool),
    /// A text.
    Text(String),
    /// Texts.
    Texts(Vec<String>),
    /// 32-bit signed numbers.
    Wholes(Vec<i32>),
    /// 32-bit floats.
    Floats(Vec<f32>),
    /// Type and value as another file has them.
    Raw(Vec<u8>),
}

/// A tensor's place in a file that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorHead {
    /// Its name.
    pub name: String,
    /// How its values are stored.
    pub kind: TensorKind,
    /// Its shape, outermost dimension first; rows are whole blocks.
    pub shape: Vec<usize>,
}

impl TensorHead {
    /// Its bytes.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] when rows are no whole blocks or the size cannot be counted.
    pub fn bytes(&self) -> io::Result<usize> {
        let row = self.shape.last().copied().unwrap_or(1);
        let values = self.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let whole = values.filter(|_| row.is_multiple_of(self.kind.block_len()));
        whole.and_then(|n| self.kind.bytes_of(n)).ok_or_else(|| {
            let (name, kind, shape) = (&self.name, self.kind, &self.shape);
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("tensor {name}: rows of {shape:?} are no whole blocks of {kind}"),
            )
        })
    }
}

/// Counts what goes through, so that a tensor that came out too short or long is noticed.
struct Counted<'a> {
    out: &'a mut dyn Write,
    bytes: usize,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.bytes += n;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Runs `fill` for one tensor and checks that it wrote exactly its bytes.
pub(crate) fn fill_exactly<E: From<io::Error>>(
    out: &mut dyn Write,
    name: &str,
    expected: usize,
    fill: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<(), E> {
    let mut counted = Counted { out, bytes: 0 };
    fill(&mut counted)?;
    if counted.bytes == expected {
        return Ok(());
    }
    let found = counted.bytes;
    Err(io::Error::other(format!("tensor {name}: {found} bytes written, expected {expected}"))
        .into())
}

/// Writes keys and tensors to `path`; `fill` is asked for the bytes of one tensor after another, so
/// that nobody needs to hold them all.
///
/// # Errors
/// As the system says, or what `fill` returns; an old file is then untouched.
pub fn write_gguf<E: From<io::Error>>(
    path: &Path,
    keys: &[(String, KeyValue)],
    tensors: &[TensorHead],
    mut fill: impl FnMut(usize, &mut dyn Write) -> Result<(), E>,
) -> Result<(), E> {
    let head = head(keys, tensors)?;
    replace_at(path, |beside| {
        let mut out = BufWriter::new(File::create(beside)?);
        out.write_all(&head)?;
        pad(&mut out, head.len())?;
        for (index, tensor) in tensors.iter().enumerate() {
            let bytes = tensor.bytes()?;
            fill_exactly(&mut out, &tensor.name, bytes, |out| fill(index, out))?;
            pad(&mut out, bytes)?;
        }
        out.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok(())
    })
}

fn pad(out: &mut dyn Write, bytes: usize) -> io::Result<()> {
    out.write_all(&[0; ALIGNMENT][..bytes.next_multiple_of(ALIGNMENT) - bytes])
}

/// Everything before the tensors' bytes.
fn head(keys: &[(String, KeyValue)], tensors: &[TensorHead]) -> io::Result<Vec<u8>> {
    let mut out = crate::GGUF_MAGIC.to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((keys.len() as u64).to_le_bytes());
    for (key, value) in keys {
        text(&mut out, key);
        put_value(&mut out, value);
    }
    let mut offset = 0usize;
    for tensor in tensors {
        text(&mut out, &tensor.name);
        out.extend((tensor.shape.len() as u32).to_le_bytes());
        // The file names the innermost dimension first.
        tensor.shape.iter().rev().for_each(|&d| out.extend((d as u64).to_le_bytes()));
        out.extend(tensor.kind.number().to_le_bytes());
        out.extend((offset as u64).to_le_bytes());
        offset += tensor.bytes()?.next_multiple_of(ALIGNMENT);
    }
    Ok(out)
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &KeyValue) {
    let kinds: &[u32] = match value {
        KeyValue::U32(_) => &[4],
        KeyValue::F32(_) => &[6],
        KeyValue::Bool(_) => &[7],
        KeyValue::Text(_) => &[8],
        KeyValue::Texts(_) => &[9, 8],
        KeyValue::Wholes(_) => &[9, 5],
        KeyValue::Floats(_) => &[9, 6],
        KeyValue::Raw(_) => &[],
    };
    kinds.iter().for_each(|kind| out.extend(kind.to_le_bytes()));
    let count = |out: &mut Vec<u8>, n: usize| out.extend((n as u64).to_le_bytes());
    match value {
        KeyValue::U32(n) => out.extend(n.to_le_bytes()),
        KeyValue::F32(x) => out.extend(x.to_le_bytes()),
        KeyValue::Bool(b) => out.push(u8::from(*b)),
        KeyValue::Text(t) => text(out, t),
        KeyValue::Texts(all) => {
            count(out, all.len());
            all.iter().for_each(|t| text(out, t));
        }
        KeyValue::Wholes(all) => {
            count(out, all.len());
            all.iter().for_each(|n| out.extend(n.to_le_bytes()));
        }
        KeyValue::Floats(all) => {
            count(out, all.len());
            all.iter().for_each(|x| out.extend(x.to_le_bytes()));
        }
        KeyValue::Raw(bytes) => out.extend(bytes),
    }
}
