//! The `tokenizer.json` files that training writes: same vocabulary, same bytes.
//!
//! Keys of the small `json!` values stand in alphabetical order, so that the bytes do not depend on
//! whether some other crate asked `serde_json` to keep the order of maps.

use super::bpe::Merged;
use crate::{Error, decode::CLOSING_PATTERN, specials::OURS, words};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

/// The top level, in the order of the Hugging Face library.
#[derive(Serialize)]
struct File<M> {
    version: &'static str,
    truncation: Option<()>,
    padding: Option<()>,
    added_tokens: Vec<Added>,
    normalizer: Option<Tagged>,
    pre_tokenizer: Value,
    post_processor: Option<()>,
    decoder: Value,
    model: M,
}

#[derive(Serialize)]
struct Tagged {
    r#type: &'static str,
}

#[derive(Serialize)]
struct Added {
    id: u32,
    content: &'static str,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

#[derive(Serialize)]
struct WordLevel<'a> {
    r#type: &'static str,
    vocab: Vocabulary<'a, &'a str>,
    unk_token: &'static str,
}

#[derive(Serialize)]
struct Bpe<'a> {
    r#type: &'static str,
    dropout: Option<f32>,
    unk_token: Option<&'static str>,
    continuing_subword_prefix: Option<&'static str>,
    end_of_word_suffix: Option<&'static str>,
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    vocab: Vocabulary<'a, String>,
    merges: Vec<[&'a str; 2]>,
}

/// Written as a map from token to id, in the order of the ids.
struct Vocabulary<'a, T>(&'a [T]);

impl<T: AsRef<str>> Serialize for Vocabulary<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().enumerate().map(|(id, token)| (token.as_ref(), id)))
    }
}

fn added_tokens() -> Vec<Added> {
    let added = |(id, content): (usize, &'static str)| Added {
        id: id as u32,
        content,
        single_word: false,
        lstrip: false,
        rstrip: false,
        normalized: false,
        special: true,
    };
    OURS.into_iter().enumerate().map(added).collect()
}

fn to_bytes<M: Serialize>(file: &File<M>) -> Result<Vec<u8>, Error> {
    serde_json::to_vec_pretty(file).map_err(|error| Error::Format { what: error.to_string() })
}

/// A word-level file; `vocabulary` in the order of the ids.
pub(super) fn word_level(vocabulary: &[&str]) -> Result<Vec<u8>, Error> {
    to_bytes(&File {
        version: "1.0",
        truncation: None,
        padding: None,
        added_tokens: added_tokens(),
        normalizer: Some(Tagged { r#type: "Lowercase" }),
        pre_tokenizer: json!({
            "behavior": "Removed", "invert": true,
            "pattern": {"Regex": words::PATTERN}, "type": "Split",
        }),
        post_processor: None,
        decoder: json!({"decoders": [
            {"cleanup": false, "prefix": "##", "type": "WordPiece"},
            {"content": "", "pattern": {"Regex": CLOSING_PATTERN}, "type": "Replace"},
        ], "type": "Sequence"}),
        model: WordLevel { r#type: "WordLevel", vocab: Vocabulary(vocabulary), unk_token: OURS[1] },
    })
}

/// A byte-level BPE file.
pub(super) fn byte_level_bpe(merged: &Merged) -> Result<Vec<u8>, Error> {
    let tokens = &merged.tokens;
    let pair = |&(a, b): &(u32, u32)| [tokens[a as usize].as_str(), tokens[b as usize].as_str()];
    let byte_level = json!({
        "add_prefix_space": false, "trim_offsets": true, "type": "ByteLevel", "use_regex": true,
    });
    to_bytes(&File {
        version: "1.0",
        truncation: None,
        padding: None,
        added_tokens: added_tokens(),
        normalizer: None,
        pre_tokenizer: byte_level.clone(),
        post_processor: None,
        decoder: byte_level,
        model: Bpe {
            r#type: "BPE",
            dropout: None,
            unk_token: None,
            continuing_subword_prefix: None,
            end_of_word_suffix: None,
            fuse_unk: false,
            byte_fallback: false,
            ignore_merges: false,
            vocab: Vocabulary(tokens),
            merges: merged.merges.iter().map(pair).collect(),
        },
    })
}
