//! Writing a safetensors file one tensor after another, so that nobody needs to hold them all.

use crate::TensorKind;
use crate::folder::replace_at;
use crate::gguf_writer::{TensorHead, fill_exactly};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Writes tensors (F32, F16, BF16) to `path`, whole or not at all; `fill` is asked for the bytes of
/// one after another.
///
/// # Errors
/// As the system says, a kind that such files do not have, or what `fill` returns; an old file is
/// then untouched.
pub fn stream_tensors<E: From<io::Error>>(
    path: &Path,
    tensors: &[TensorHead],
    mut fill: impl FnMut(usize, &mut dyn Write) -> Result<(), E>,
) -> Result<(), E> {
    let mut infos = Vec::with_capacity(tensors.len());
    let mut offset = 0;
    for tensor in tensors {
        let end = offset + tensor.bytes()?;
        let dtype = dtype_of(tensor)?;
        let info = TensorInfo { dtype, shape: tensor.shape.clone(), data_offsets: (offset, end) };
        infos.push((tensor.name.clone(), info));
        offset = end;
    }
    let words = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(words), infos).map_err(io::Error::other)?;
    let mut head = serde_json::to_vec(&metadata).map_err(io::Error::other)?;
    head.resize(head.len().next_multiple_of(8), b' ');
    replace_at(path, |beside| {
        let mut out = BufWriter::new(File::create(beside)?);
        out.write_all(&(head.len() as u64).to_le_bytes())?;
        out.write_all(&head)?;
        for (index, tensor) in tensors.iter().enumerate() {
            fill_exactly(&mut out, &tensor.name, tensor.bytes()?, |out| fill(index, out))?;
        }
        out.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok(())
    })
}

fn dtype_of(tensor: &TensorHead) -> io::Result<Dtype> {
    match tensor.kind {
        TensorKind::F32 => Ok(Dtype::F32),
        TensorKind::F16 => Ok(Dtype::F16),
        TensorKind::Bf16 => Ok(Dtype::BF16),
        other => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("tensor {}: safetensors files have no {other}", tensor.name),
        )),
    }
}
