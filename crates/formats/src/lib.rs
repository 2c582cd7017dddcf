//! Weight files: named tensors, nothing trusted before it is checked.
//!
//! Safetensors in, safetensors out; GGUF in; and folders that are either the whole old state or the
//! whole new one. A [`TensorStore`] is what a model is loaded from: types and raw bytes by name,
//! and [`dequantise`] for whoever wants floats. Nothing here knows models.

mod blocks;
mod dequantise;
mod folder;
mod gguf;
mod gguf_error;
mod kind;
mod metadata;
mod shards;
mod store;
mod tensors;

pub use blocks::quant_block;
pub use dequantise::dequantise;
pub use folder::{hint, replace_file, replace_folder, sync_folder};
pub use gguf::{GGUF_MAGIC, Gguf};
pub use gguf_error::GgufError;
pub use kind::TensorKind;
pub use metadata::{KeyError, MetaValue, Metadata};
pub use shards::open_shards;
pub use store::{StoredTensor, TensorStore};
pub use tensors::{Error, TensorFile, TensorRef, Values, write_tensors};
