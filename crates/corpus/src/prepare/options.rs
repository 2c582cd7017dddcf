//! What a caller can choose, and what is told while it runs.

use crate::{Error, mail::Quotes, source::Format};
use serde::{Deserialize, Serialize};
use std::{fmt, path::PathBuf, str::FromStr};
use tokenizer::Tokenizer;

/// Where messages come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Files and folders.
    Files(Vec<PathBuf>),
    /// The generator: so many messages.
    Synthetic(usize),
}

/// What a group is. A split never puts one group on two sides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum GroupBy {
    /// The owner: the file, the folder, or the first part of a table's `file` column.
    #[default]
    Mailbox,
    /// The address in `From`.
    Sender,
    /// What message ids, references and the normalised subject connect. Finding threads takes memory
    /// for a while: 4 bytes a message and about 70 a thread.
    Thread,
    /// A header, column or key.
    Field(String),
}

impl fmt::Display for GroupBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mailbox => f.write_str("mailbox"),
            Self::Sender => f.write_str("sender"),
            Self::Thread => f.write_str("thread"),
            Self::Field(name) => write!(f, "field:{name}"),
        }
    }
}

impl FromStr for GroupBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "mailbox" => Ok(Self::Mailbox),
            "sender" => Ok(Self::Sender),
            "thread" => Ok(Self::Thread),
            _ => match text.strip_prefix("field:") {
                Some(name) if !name.is_empty() => Ok(Self::Field(name.to_owned())),
                _ => Err(format!("expected mailbox, sender, thread or field:NAME, found `{text}`")),
            },
        }
    }
}

impl Serialize for GroupBy {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GroupBy {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Kinds of vocabulary.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VocabularyKind {
    /// Lower-cased words and punctuation.
    #[default]
    Words,
    /// Byte-level BPE.
    Bpe,
    /// A model's own, which was not learnt here.
    Given,
}

/// What happens to near-duplicates on two sides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NearDuplicates {
    /// They are reported and kept out of valid and test.
    #[default]
    Drop,
    /// They are reported.
    Keep,
}

/// What happens when the output folder is there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Existing {
    /// It is an error.
    #[default]
    Refuse,
    /// A data set is replaced, when the new one is complete; anything else is still refused.
    Replace,
}

/// All choices of [`prepare`](super::prepare()).
#[derive(Debug, Clone)]
pub struct Options {
    /// Where messages come from.
    pub source: Source,
    /// The folder to make.
    pub out: PathBuf,
    /// What happens when it is there.
    pub existing: Existing,
    /// The format of all files; `None` tells it from each.
    pub format: Option<Format>,
    /// The column or key of tables with the message or text; `None` finds it.
    pub column: Option<String>,
    /// What a group is.
    pub group_by: GroupBy,
    /// Shares in percent: train, valid, test.
    pub split: [u32; 3],
    /// Decides the split, and all that the generator writes.
    pub seed: u64,
    /// The kind of vocabulary.
    pub vocabulary: VocabularyKind,
    /// Its entries, special tokens counted.
    pub vocab_size: usize,
    /// A model's tokenizer, with [`VocabularyKind::Given`]: a message stands between what it puts before
    /// a text, if anything, and its end token.
    pub tokenizer: Option<Tokenizer>,
    /// The cap in tokens, `<bos>` and `<eos>` counted.
    pub max_len: usize,
    /// Whether what others wrote stays.
    pub quotes: Quotes,
    /// What happens to near-duplicates on two sides.
    pub near_duplicates: NearDuplicates,
    /// Bytes that a table of hashes may take (duplicates, near-duplicates, leaks, threads). Less means
    /// more passes over files and the same result.
    pub memory: usize,
}

impl Options {
    /// The experiment's choices for a source and an output folder.
    pub fn new(source: Source, out: PathBuf) -> Self {
        Self {
            source,
            out,
            existing: Existing::default(),
            format: None,
            column: None,
            group_by: GroupBy::default(),
            split: [80, 10, 10],
            seed: 0,
            vocabulary: VocabularyKind::default(),
            vocab_size: 4000,
            tokenizer: None,
            max_len: 64,
            quotes: Quotes::default(),
            near_duplicates: NearDuplicates::default(),
            memory: 16 << 20,
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let fail = |option, found: String, expected| Err(Error::Option { option, found, expected });
        if !(2..=1 << 20).contains(&self.max_len) {
            let expected = "a cap from 2 (`<bos>` and one token) to 1048576";
            return fail("max-len", self.max_len.to_string(), expected);
        }
        let sum: u64 = self.split.iter().map(|&n| u64::from(n)).sum();
        if sum != 100 || self.split.contains(&0) {
            let found = self.split.map(|n| n.to_string()).join("/");
            return fail("split", found, "three shares above 0 that sum to 100, as 80/10/10");
        }
        if self.memory < 1 << 12 {
            return fail("memory", self.memory.to_string(), "at least 4096 bytes");
        }
        if let Source::Synthetic(0) = self.source {
            return fail("messages", "0".into(), "at least one");
        }
        Ok(())
    }
}

/// Steps of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Reading messages; counted in bytes of the input files (messages, for the generator).
    Read,
    /// Looking for near-duplicates; in messages.
    Compare,
    /// Counting and making the vocabulary; in messages.
    Vocabulary,
    /// Writing token files; in messages.
    Encode,
}

impl Stage {
    /// A word for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "reading",
            Self::Compare => "near-duplicates",
            Self::Vocabulary => "vocabulary",
            Self::Encode => "encoding",
        }
    }
}

/// Hears how far the work is, and can stop it.
pub trait Progress {
    /// A stage begins; `total` is how much there is to do.
    fn begin(&mut self, _stage: Stage, _total: u64) {}
    /// So much is done of the stage.
    fn done(&mut self, _done: u64) {}
    /// Whether to stop and leave nothing behind.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Nobody listens.
impl Progress for () {}
