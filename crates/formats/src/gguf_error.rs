//! What is wrong with a GGUF file.

use crate::KeyError;
use std::path::PathBuf;

/// What is wrong with a GGUF file: where, what was found, what was expected.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// It cannot be read.
    #[error("{path}: {source}{advice}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
        /// What to try.
        advice: &'static str,
    },
    /// The head of the file does not hold.
    #[error(
        "{path}: not a GGUF file that can be used: {what} (at byte {at}) is {found}, expected {expected}"
    )]
    Head {
        /// The file.
        path: PathBuf,
        /// The place.
        at: usize,
        /// The field.
        what: String,
        /// What it holds.
        found: String,
        /// What it must hold.
        expected: String,
    },
    /// A name occurs twice.
    #[error("{path}: {what} {name} occurs twice, expected once")]
    Twice {
        /// The file.
        path: PathBuf,
        /// Key or tensor.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// A tensor's bytes are not where they can be.
    #[error(
        "{path}: tensor {name} ({bytes} bytes at offset {offset} of the data) {what} (the file has {file} bytes)"
    )]
    Place {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// What is wrong.
        what: String,
        /// Its offset.
        offset: u64,
        /// Its size.
        bytes: usize,
        /// The file's size.
        file: usize,
    },
    /// A key has a value of another type.
    #[error("{path}: {source}")]
    Key {
        /// The file.
        path: PathBuf,
        /// The key.
        source: KeyError,
    },
    /// The parts of a split file do not belong together.
    #[error("{path}: {what}: {found}, expected {expected}; do all parts belong to one model?")]
    Parts {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        what: &'static str,
        /// Its value.
        found: usize,
        /// What it must be.
        expected: usize,
    },
    /// The other parts cannot be found from this one's name.
    #[error(
        "{path}: one of {parts} parts, but its name does not end in -NNNNN-of-{parts:05}.gguf; give it its name back"
    )]
    PartName {
        /// The file.
        path: PathBuf,
        /// Parts.
        parts: usize,
    },
}
