//! `manifest.json`: everything a sceptical reader asks about a data set, in one readable file.

use crate::{
    mail::{Mended, Quotes, Stripped},
    prepare::{GroupBy, NearDuplicates, VocabularyKind},
    source::Format,
};
use serde::{Deserialize, Serialize};

/// The `format` of a manifest.
pub const FORMAT: &str = "autoreg-data";
/// The version this build reads and writes.
pub const FORMAT_VERSION: u32 = 1;

/// What a data set is and how it came to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Always [`FORMAT`].
    pub format: String,
    /// The version of the folder's layout.
    pub format_version: u32,
    /// The version of this program.
    pub made_by: String,
    /// Whether the messages were invented by the generator; results must say so.
    pub synthetic: bool,
    /// The seed of the split (and of the generator).
    pub seed: u64,
    /// What a group is.
    pub group_by: GroupBy,
    /// Shares asked for, in percent: train, valid, test.
    pub split: [u32; 3],
    /// The cap in tokens, `<bos>` and `<eos>` counted.
    pub max_len: usize,
    /// Whether quotations were stripped.
    pub quotes: Quotes,
    /// The vocabulary.
    pub vocabulary: VocabularyInfo,
    /// Counts over all input.
    pub messages: MessageCounts,
    /// Counts a side.
    pub sides: Sides,
    /// Near-duplicates across sides.
    pub near_duplicates: NearReport,
    /// What quotation stripping took away.
    pub stripped: Stripped,
    /// What was mended in encodings.
    pub mended: Mended,
    /// Every file read.
    pub sources: Vec<SourceInfo>,
    /// Files below the folders given that are in no known format.
    pub skipped_files: Vec<String>,
    /// Messages that could not be read, the first [`MAX_UNREADABLE_LISTED`].
    pub unreadable: Vec<Unreadable>,
    /// Number of groups, all sides together; names and sizes are in `groups.tsv`.
    pub groups: u64,
    /// SHA-256 of `groups.tsv`.
    pub groups_sha256: String,
}

/// Unreadable messages are all counted; so many are listed.
pub const MAX_UNREADABLE_LISTED: usize = 1000;

/// The vocabulary of a data set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VocabularyInfo {
    /// Words or byte-level BPE.
    pub kind: VocabularyKind,
    /// Entries, special tokens counted.
    pub size: usize,
    /// Distinct words or pieces on the training side.
    pub distinct_in_train: usize,
    /// SHA-256 of `tokenizer.json`.
    pub sha256: String,
}

/// Where the messages of the input went. `read` is the sum of the others but `unreadable`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessageCounts {
    /// Messages that could be read.
    pub read: u64,
    /// Messages that could not.
    pub unreadable: u64,
    /// Messages with no text of their own after stripping.
    pub empty: u64,
    /// Exact duplicates (same text but for case and white space) of an earlier message.
    pub duplicates: u64,
    /// Near-duplicates dropped from valid or test.
    pub near_duplicates_dropped: u64,
    /// Messages in the token files.
    pub kept: u64,
    /// Lines of mbox files that might have been separators.
    pub doubtful_from_lines: u64,
    /// Messages whose text came from HTML.
    pub from_html: u64,
}

/// One file of the input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceInfo {
    /// The path as found.
    pub path: String,
    /// Its format.
    pub format: Format,
    /// Bytes after decompression.
    pub bytes: u64,
    /// Messages read.
    pub messages: u64,
    /// Messages that could not be read.
    pub unreadable: u64,
}

/// A message that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unreadable {
    /// The file.
    pub path: String,
    /// The number of the message in it.
    pub number: u64,
    /// Why.
    pub why: String,
}

/// The three sides.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sides {
    /// What models learn from.
    pub train: SideInfo,
    /// What choices are made on.
    pub valid: SideInfo,
    /// What results are measured on.
    pub test: SideInfo,
}

/// One side.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SideInfo {
    /// Messages.
    pub messages: u64,
    /// Groups.
    pub groups: u64,
    /// Ids, `<bos>` and `<eos>` counted.
    pub tokens: u64,
    /// Ids that are predicted.
    pub target_tokens: u64,
    /// This side's part of all tokens.
    pub token_share: f64,
    /// Targets that are `<unk>`.
    pub unk_targets: u64,
    /// Their part of the targets.
    pub unk_rate: f64,
    /// Messages cut at the cap.
    pub truncated: u64,
    /// Messages with a run of tokens that train has too (0 on train).
    pub seen_run: u64,
    /// Sequences by length in ids: `(longest of the bin, count)`.
    pub lengths: Vec<(u32, u64)>,
    /// The token file.
    pub file: String,
    /// Its SHA-256.
    pub sha256: String,
    /// The SHA-256 of its body, which its header holds: compared whenever the data set is opened.
    pub body_sha256: String,
}

/// Near-duplicates across sides.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NearReport {
    /// How they are found, in words.
    pub method: String,
    /// What was done with them.
    pub policy: NearDuplicates,
    /// Messages of valid that are near-duplicates of one in train.
    pub in_valid: u64,
    /// Messages of test that are near-duplicates of one in train or valid.
    pub in_test: u64,
}
