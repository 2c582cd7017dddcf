//! What can go wrong here, as facts: what, where, what was expected, what was found, what to try.

use std::path::{Path, PathBuf};

/// An error of this crate; one line each.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused a file.
    #[error("{path}: cannot {action}: {source}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried, as a verb with its object.
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// An experiment file is not TOML, or a value has the wrong type.
    #[error("{origin}, line {line}: {message}")]
    Syntax {
        /// The file, or a word for where the text came from.
        origin: String,
        /// Line, from 1.
        line: usize,
        /// What the reader said, on one line.
        message: String,
    },
    /// An experiment file has a key, or a name where only some are known, that does not exist.
    #[error("{origin}, line {line}: unknown {what} `{found}`; {hint}")]
    Unknown {
        /// The file, or a word for where the text came from.
        origin: String,
        /// Line, from 1.
        line: usize,
        /// `key` or `value`.
        what: &'static str,
        /// The word that was found.
        found: String,
        /// The nearest known word, or all of them.
        hint: String,
    },
    /// An experiment says something that cannot be run.
    #[error("{origin}: {what} is {found}, expected {expected}")]
    Invalid {
        /// The file, or a word for where the text came from.
        origin: String,
        /// The key in question.
        what: String,
        /// What would have been right.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// A complete line of a records file cannot be read.
    #[error(
        "{path}, line {line}: not a record: {message}; remove the line to run that arm and seed again",
        path = path.display()
    )]
    BrokenRecord {
        /// The records file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What the reader said.
        message: String,
    },
    /// A folder holds another experiment than the one asked for.
    #[error(
        "{path}: holds the experiment {found}, expected {expected}: an experiment is fixed before \
         its first run; give another folder, or remove this one",
        path = path.display()
    )]
    ExperimentChanged {
        /// The comparison's folder.
        path: PathBuf,
        /// Digest of the experiment asked for.
        expected: String,
        /// Digest of the experiment found.
        found: String,
    },
    /// A recorded run was made with other data or settings than those at hand.
    #[error(
        "{path}: arm `{arm}`, seed {seed}, was recorded with other data or settings than these; \
         give another folder, or remove this one",
        path = path.display()
    )]
    OtherData {
        /// The records file.
        path: PathBuf,
        /// The arm of the run.
        arm: String,
        /// Its seed.
        seed: u64,
    },
    /// Another process is writing to the same records.
    #[error("{path}: another comparison is running in this folder; wait for it, or give another", path = path.display())]
    Busy {
        /// The records file.
        path: PathBuf,
    },
    /// Two runs were not scored on the same targets, so they cannot be compared.
    #[error(
        "arm `{arm}`, seed {seed}: scored on {found}, expected {expected} as the other runs: all \
         rows must be scored on the same test targets"
    )]
    NotComparable {
        /// The arm of the run that differs.
        arm: String,
        /// Its seed.
        seed: u64,
        /// What the first run was scored on.
        expected: String,
        /// What this one was scored on.
        found: String,
    },
    /// Nothing to report: no run has been recorded.
    #[error("experiment `{experiment}`: no run is recorded yet, so there is nothing to report")]
    NoRecords {
        /// The experiment's name.
        experiment: String,
    },
}

impl Error {
    /// Whether the cause is what the user gave (exit code 2) and not the machine (exit code 1).
    pub fn is_input(&self) -> bool {
        !matches!(self, Error::Io { .. } | Error::NotComparable { .. })
    }

    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_path_buf();
        move |source| Error::Io { path, action, source }
    }
}
