//! Why files are not here.

use std::path::PathBuf;

/// Why files are not here.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The argument is no repository.
    #[error("{text:?}: {what}")]
    Name {
        /// What was given.
        text: String,
        /// What it must be.
        what: &'static str,
    },
    /// There is no place for a cache.
    #[error("no home folder is known; set HF_HOME to the folder that is to hold the cache")]
    NoHome,
    /// The hub says that there is no such thing, or that it is not for everybody.
    #[error("{what}: the hub at {endpoint} answers {status}: {advice}")]
    Refused {
        /// The repository or file.
        what: String,
        /// The hub.
        endpoint: String,
        /// Its answer.
        status: u16,
        /// What to try.
        advice: &'static str,
    },
    /// The hub cannot be reached or broke off.
    #[error("{what}: {reason}; what has arrived is kept, the same command goes on with it")]
    Broken {
        /// The repository or file.
        what: String,
        /// What the library said.
        reason: String,
    },
    /// The answer is not what a hub answers.
    #[error("{what}: the server's answer is not a hub's: {reason}")]
    Answer {
        /// The repository or file.
        what: String,
        /// What is wrong.
        reason: String,
    },
    /// Nothing in the repository fits.
    #[error("{what}: {reason}; it holds {found}")]
    NoFile {
        /// The repository, with the file asked for.
        what: String,
        /// What is missing or not clear.
        reason: String,
        /// Some of what is there.
        found: String,
    },
    /// What arrived is not what the hub has.
    #[error("{path}: {reason}; it was thrown away, the same command fetches it again")]
    Content {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },
    /// Without a network there is only the cache, and it lacks something.
    #[error("{what} is not in the cache {cache}, and {reason}")]
    NotCached {
        /// The repository or file.
        what: String,
        /// The cache.
        cache: PathBuf,
        /// Why the hub was not asked.
        reason: String,
    },
    /// The cache cannot be written.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl Error {
    /// Whether the network or the machine failed, not the input.
    pub fn is_failure(&self) -> bool {
        matches!(
            self,
            Error::Broken { .. } | Error::Answer { .. } | Error::Content { .. } | Error::Io { .. }
        )
    }
}
