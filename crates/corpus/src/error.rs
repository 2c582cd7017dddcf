//! What can go wrong between files and a data set.

use std::path::{Path, PathBuf};

/// An error of this crate: what, where, what was expected, what to try.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A path that was given does not exist or holds nothing to read.
    #[error("{}: no input here ({why}); give a file or a folder with mail or text", path.display())]
    NoInput {
        /// The path given.
        path: PathBuf,
        /// Why it gives nothing.
        why: String,
    },
    /// A file whose format could not be told.
    #[error(
        "{}: unknown format (starts with {start:?}); force one of {known} if it is one",
        path.display()
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// Its first characters, made printable.
        start: String,
        /// The formats there are.
        known: &'static str,
    },
    /// Reading or writing failed.
    #[error("{}: cannot {what}: {source}{}", path.display(), disk_hint(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// The output folder is there already.
    #[error("{}: the output folder exists; force to replace it, or choose another", path.display())]
    OutputExists {
        /// The folder.
        path: PathBuf,
    },
    /// Replacing was forced, but the folder is not a data set.
    #[error(
        "{}: exists and is not a data set (no manifest.json in it), so it is not replaced; \
         choose another folder",
        path.display()
    )]
    NotReplaceable {
        /// The folder.
        path: PathBuf,
    },
    /// No message with text was found.
    #[error(
        "the input gives an empty data set: {read} messages read, {unreadable} unreadable, {empty} \
         without text of their own; give more input{}",
        if *empty > 0 { " or keep quoted text" } else { "" }
    )]
    Empty {
        /// Messages read.
        read: u64,
        /// Messages that could not be read.
        unreadable: u64,
        /// Messages with no text left.
        empty: u64,
    },
    /// Too few groups for the sides.
    #[error(
        "the {side} side gets no group: {groups} group(s) by {group_by} for three sides; give more \
         input, or group by something finer (thread is the finest)"
    )]
    NoGroup {
        /// The side left empty.
        side: &'static str,
        /// Groups there are.
        groups: usize,
        /// What messages are grouped by.
        group_by: String,
    },
    /// Every message of a side is a near-duplicate of an earlier side's.
    #[error(
        "the {side} side gets no message: all of them are near-duplicates of messages on an earlier \
         side; keep near-duplicates, choose another seed, or give more varied input"
    )]
    NothingNew {
        /// The side left empty.
        side: &'static str,
    },
    /// An option out of its range.
    #[error("{option}: {found} is not possible; expected {expected}")]
    Option {
        /// The option.
        option: &'static str,
        /// The value found.
        found: String,
        /// What is possible.
        expected: &'static str,
    },
    /// A table without the column that is needed.
    #[error("{}: no column `{column}`; there are: {known}", path.display())]
    Column {
        /// The file.
        path: PathBuf,
        /// The column asked for.
        column: String,
        /// The columns of the file.
        known: String,
    },
    /// Vocabulary trouble.
    #[error(transparent)]
    Tokenizer(#[from] tokenizer::Error),
    /// A folder that is not a data set, or one of another version.
    #[error("{}: not a usable data set: {what}; prepare it again", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A token file that is foreign, cut or damaged.
    #[error("{}: not a usable token file: {what}; prepare the data again", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// What is wrong: expected and found.
        what: String,
    },
    /// The caller asked to stop.
    #[error("stopped before the data set was complete; nothing was written")]
    Cancelled,
}

fn disk_hint(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::StorageFull => "; free some space or choose another output folder",
        std::io::ErrorKind::PermissionDenied => "; check the permissions",
        _ => "",
    }
}

/// Adds the file and the deed to an input or output error.
pub(crate) trait IoContext<T> {
    fn at(self, what: &'static str, path: &Path) -> Result<T, Error>;
}

impl<T> IoContext<T> for std::io::Result<T> {
    fn at(self, what: &'static str, path: &Path) -> Result<T, Error> {
        self.map_err(|source| Error::Io { path: path.to_owned(), what, source })
    }
}
