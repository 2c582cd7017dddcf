//! What can go wrong between text and ids.

use std::path::PathBuf;

/// An error of this crate; each says what was expected and what to try.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be read.
    #[error("{}: cannot read the tokenizer: {source}", path.display())]
    Read {
        /// The file asked for.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The bytes are not a `tokenizer.json` this crate can use.
    #[error("not a usable tokenizer.json: {what}")]
    Format {
        /// What is wrong, naming the key.
        what: String,
    },
    /// A GGUF file's vocabulary cannot be used.
    #[error("the vocabulary in the file cannot be used: {what}")]
    Vocabulary {
        /// What is wrong, naming the key.
        what: String,
    },
    /// The decoder of the file is of a kind whose text cannot be streamed.
    #[error(
        "tokenizer.json: decoder `{kind}` is not supported (supported: ByteLevel, Metaspace, \
         WordPiece, BPEDecoder, and Sequences of Replace, ByteFallback, Fuse and Strip)"
    )]
    Decoder {
        /// The `type` found.
        kind: String,
    },
    /// Fewer entries than the special tokens (and the byte alphabet) need.
    #[error(
        "a vocabulary of {asked} entries is too small: {kind} needs at least {least}; \
         ask for more entries"
    )]
    VocabularyTooSmall {
        /// Entries asked for.
        asked: usize,
        /// Kind of vocabulary.
        kind: &'static str,
        /// The smallest size that works.
        least: usize,
    },
    /// More entries than the training text can give.
    #[error(
        "a vocabulary of {asked} entries is larger than the training text can give \
         ({possible}, special tokens counted); ask for at most {possible} entries or add text"
    )]
    VocabularyTooLarge {
        /// Entries asked for.
        asked: usize,
        /// Entries the text gives.
        possible: usize,
    },
    /// Ids do not fit in 32 bits, or the training text is beyond what this trainer indexes.
    #[error("the training text has {found} distinct symbols; this trainer takes at most {most}")]
    TooMuchText {
        /// Symbols found.
        found: usize,
        /// The limit.
        most: usize,
    },
}
