//! Weight files: named tensors, nothing trusted before it is checked.
//!
//! Safetensors in, safetensors out, and folders that are either the whole old state or the whole
//! new one. Nothing here knows models.

mod folder;
mod tensors;

pub use folder::{hint, replace_file, replace_folder, sync_folder};
pub use tensors::{Error, TensorFile, TensorRef, Values, write_tensors};
