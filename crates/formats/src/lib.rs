//! Weight files: named tensors, nothing trusted before it is checked.
//!
//! Safetensors and GGUF in and out; and folders that are either the whole old state or the
//! whole new one. A [`TensorStore`] is what a model is loaded from: types and raw bytes by name,
//! and [`dequantise`] for whoever wants floats; [`quantise`] is the way back. Nothing here knows models.

mod blocks;
mod dequantise;
mod folder;
mod gguf;
mod gguf_error;
mod gguf_writer;
mod hold;
mod kind;
mod metadata;
mod quantise;
mod safetensors_writer;
mod shards;
mod store;
mod tensors;

pub use blocks::StoredRow;
pub use dequantise::dequantise;
pub use folder::{hint, replace_file, replace_folder, sync_folder};
pub use gguf::{GGUF_MAGIC, Gguf};
pub use gguf_error::GgufError;
pub use gguf_writer::{KeyValue, TensorHead, write_gguf};
pub use hold::{HOLD_FILE, Hold, HoldError, is_vacant};
pub use kind::TensorKind;
pub use metadata::{KeyError, MetaValue, Metadata, TextList};
pub use quantise::{largest, quantise};
pub use safetensors_writer::stream_tensors;
pub use shards::{open_shards, open_tensors};
pub use store::{StoredTensor, TensorStore};
pub use tensors::{Error, TensorFile, TensorRef, Values, write_tensors};
