//! The commands, one file each.
pub mod from_logits;
