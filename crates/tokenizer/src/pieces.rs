//! The GPT-2 rule that cuts text before byte-level BPE.
//!
//! The same cuts as the `ByteLevel` pre-tokenizer of the Hugging Face library (with its regular
//! expression and no prefix space): `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|
//! \s+(?!\S)|\s+`, by hand, because training reads all text once more.

use crate::chars::{is_letter, is_number};

/// The pieces of a text; put together they are the text.
#[derive(Debug, Clone)]
pub struct Pieces<'a> {
    rest: &'a str,
}

impl<'a> Pieces<'a> {
    /// Cuts `text`.
    pub fn new(text: &'a str) -> Self {
        Self { rest: text }
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        if self.rest.is_empty() {
            return None;
        }
        let len = contraction_len(self.rest)
            .or_else(|| run_len(self.rest))
            .unwrap_or_else(|| space_len(self.rest));
        let (piece, rest) = self.rest.split_at(len);
        self.rest = rest;
        Some(piece)
    }
}

fn contraction_len(text: &str) -> Option<usize> {
    let rest = text.strip_prefix('\'')?;
    ["s", "t", "re", "ve", "m", "ll", "d"]
        .iter()
        .find(|e| rest.starts_with(**e))
        .map(|e| 1 + e.len())
}

#[derive(PartialEq, Clone, Copy)]
enum Kind {
    Letter,
    Number,
    Space,
    Other,
}

fn kind(c: char) -> Kind {
    if is_letter(c) {
        Kind::Letter
    } else if is_number(c) {
        Kind::Number
    } else if c.is_whitespace() {
        Kind::Space
    } else {
        Kind::Other
    }
}

/// An optional space and a run of one kind.
fn run_len(text: &str) -> Option<usize> {
    let body = text.strip_prefix(' ').unwrap_or(text);
    let skipped = text.len() - body.len();
    let first = kind(body.chars().next()?);
    if first == Kind::Space {
        return None;
    }
    Some(skipped + body.find(|c| kind(c) != first).unwrap_or(body.len()))
}

/// White space up to the last character before other text, which goes with that text's piece.
fn space_len(text: &str) -> usize {
    let run = text.find(|c: char| !c.is_whitespace()).unwrap_or(text.len());
    if run == text.len() {
        return run;
    }
    match text[..run].char_indices().next_back() {
        Some((at, _)) if at > 0 => at,
        _ => run,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokenizers::{
        OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
        pre_tokenizers::byte_level::ByteLevel,
    };

    fn library(text: &str) -> Vec<String> {
        let mut pre = PreTokenizedString::from(text);
        ByteLevel::new(false, false, true).pre_tokenize(&mut pre).unwrap();
        let splits = pre.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().map(|(_, (from, to), _)| text[from..to].to_owned()).collect()
    }

    proptest! {
        #[test]
        fn pieces_are_the_librarys(text in "(?s)([a-c]|[ \n\t]|'(s|ll|x)|[0-9]|[.,é日٣\u{301}\u{a0}\u{24D0}]){0,40}") {
            prop_assert_eq!(Pieces::new(&text).collect::<Vec<_>>(), library(&text));
        }
    }
}
