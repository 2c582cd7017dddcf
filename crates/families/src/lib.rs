//! Published models: from a GGUF file or a Hugging Face folder to a model and its tokenizer.
//!
//! A family is what departs from the textbook: one file that lists it, one line in [`ALL`]. The
//! network itself is `models`' one transformer. A [`Checkpoint`] is opened without reading a weight;
//! [`Weights::bindings`] says which tensors (types and raw bytes as the file has them) make which
//! parameter, and [`Weights::load`] fills a model with their values as floats.

mod binding;
mod checkpoint;
mod convert;
mod error;
mod export;
mod family;
mod folder;
mod gemma3;
mod gguf;
mod gguf_keys;
mod gpt2;
mod keys;
mod llama;
mod mix;
mod peft;
mod qwen2;
mod qwen3;
mod rope;

pub use binding::{Binding, Stored};
pub use checkpoint::{Checkpoint, Source, Weights, is_published};
pub use convert::{ConvertError, Converted, Progress, Target, Watch, convert};
pub use error::Error;
pub use export::{ExportError, Words, can_export, export, export_file};
pub use family::Family;
pub use folder::numbers;
pub use mix::Mix;
pub use peft::{Adapter, lora_targets, write_peft};

/// Every family.
pub const ALL: [&Family; 5] =
    [&llama::FAMILY, &qwen2::FAMILY, &qwen3::FAMILY, &gemma3::FAMILY, &gpt2::FAMILY];
