//! Commands.
pub mod data;
