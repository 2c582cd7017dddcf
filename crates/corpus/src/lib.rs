//! Mail and text to grouped, split, memory-mapped token files.
//!
//! [`prepare()`] turns files (or the [`synthetic`] generator) into a folder; [`Dataset`] opens it.
//! The road of a message: `source` (files to records) → `mail` (bytes to a person's text) →
//! `prepare` (duplicates, groups, split, vocabulary, ids) → `token_writer`. Nothing here knows models.

mod bits;
mod dataset;
mod error;
mod hash;
pub mod mail;
pub mod manifest;
pub mod prepare;
mod scratch;
pub mod source;
pub mod synthetic;
mod token_file;
mod token_writer;

pub use dataset::{Dataset, Side, read_manifest};
pub use error::Error;
pub use manifest::Manifest;
pub use prepare::{Options, Progress, RUN, Report, Stage, prepare};
pub use token_file::{Flags, TokenFile};
pub use token_writer::{TokenBody, TokenWriter};
