//! Operations with their gradients, one file each, over parameters kept in one flat buffer.
//!
//! An operation knows its shapes and which parameters are its own; arithmetic is the kernels'.
//! Gradients are explicit: each `backward` stands beside its `forward` and says what is saved
//! between them. Nothing here knows files or models.
//!
//! Shape letters as in the kernels: R rows, C hidden size, H heads, G K/V heads, D head size, F MLP
//! size, V vocabulary.

mod halves;
pub mod ops;
mod parameters;

pub use halves::{Mixed, halves_in, halves_in_mut};
pub use kernels::{HalfKind, PANEL_ROWS, QUANT_BLOCK, QuantBlock, QuantKind, QuantRow, pack_panel};
pub use ops::Packed;
pub use parameters::{
    Initial, Layout, MatrixKind, Panels, ParamId, ParameterSpec, Parameters, QuantPart, Storage,
};
