//! The operations that networks are made of.

mod adapter;
mod embedding;
mod linear;
mod mlp;
mod norm;
mod rotary;

pub use adapter::{Adapter, FROZEN_ROWS, frozen_input_gradient, frozen_work};
pub use embedding::Embedding;
pub use linear::{Linear, Packed, packed_product};
pub use mlp::{MLP_ROWS, Mlp, MlpKind, MlpScratch};
pub use norm::{Norm, NormKind};
pub use rotary::{Rotary, turn, turn_back};
