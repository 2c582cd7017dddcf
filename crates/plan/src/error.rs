//! What cannot be planned, each with its facts.

use std::path::PathBuf;

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A name that nothing has.
    #[error(
        "{name}: no such model; the nearest are {near}. Give one of the names of `autoreg plan \
         models`, a config.json, a folder or a GGUF file"
    )]
    UnknownModel {
        /// As given.
        name: String,
        /// Names that look like it.
        near: String,
    },
    /// A machine that nothing is known of.
    #[error(
        "--machine {name}: no such machine; the nearest are {near}. `autoreg plan machines` lists \
         them, `autoreg doctor` measures this one"
    )]
    UnknownMachine {
        /// As given.
        name: String,
        /// Names that look like it.
        near: String,
    },
    /// A product beyond 64 bits.
    #[error("{what} overflows 64 bits; make context, requests or batch smaller")]
    Overflow {
        /// What was computed.
        what: &'static str,
    },
    /// A file cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file does not hold what it should.
    #[error("{path}: {reason}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong and what was expected.
        reason: String,
    },
    /// Published files do not hold.
    #[error(transparent)]
    Families(#[from] families::Error),
    /// The numbers make no network.
    #[error("{name}: {source}")]
    Model {
        /// The model.
        name: String,
        /// Why not.
        source: models::Error,
    },
    /// The engine's lists cannot be made.
    #[error("{0}")]
    Engine(#[from] engine::Error),
    /// A number that makes no plan.
    #[error("{what} is {found}; {expected}")]
    Number {
        /// The flag or field.
        what: &'static str,
        /// Its value.
        found: String,
        /// What it must be.
        expected: String,
    },
    /// A question that this model or these settings have no answer to.
    #[error("{0}")]
    Unanswerable(String),
}

impl Error {
    /// A number that makes no plan.
    pub(crate) fn number(
        what: &'static str,
        found: impl ToString,
        expected: impl ToString,
    ) -> Error {
        Error::Number { what, found: found.to_string(), expected: expected.to_string() }
    }
}
