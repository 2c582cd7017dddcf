//! The word-level rule: lower-cased words and punctuation.
//!
//! A word is a run of letters, marks and digits; `'s 't 're 've 'm 'll 'd` at the end of a word is a
//! token of its own; any other character that is not white space is one token. The same rule stands
//! as a regular expression in the `tokenizer.json` that training writes ([`PATTERN`]); this file is
//! the quick way to the same tokens.

use crate::chars::is_word;
use std::collections::HashMap;

/// The rule as a pattern for a `Split` pre-tokenizer (behaviour `Removed`, inverted).
pub(crate) const PATTERN: &str =
    r"['’](?:s|t|re|ve|m|ll|d)(?![\p{L}\p{M}\p{N}])|[\p{L}\p{M}\p{N}]+|[^\s\p{L}\p{M}\p{N}]";

/// The endings that follow an apostrophe as one token.
const ENDINGS: [&str; 7] = ["s", "t", "re", "ve", "m", "ll", "d"];

/// Writes `text` lower-cased, character by character, into `out` (cleared first).
pub fn lowercase_into(text: &str, out: &mut String) {
    out.clear();
    if text.is_ascii() {
        out.push_str(text);
        out.make_ascii_lowercase();
    } else {
        out.extend(text.chars().flat_map(char::to_lowercase));
    }
}

/// The words and punctuation marks of a text that is already lower-cased.
#[derive(Debug, Clone)]
pub struct Words<'a> {
    rest: &'a str,
}

impl<'a> Words<'a> {
    /// Iterates over the tokens of `lowercased` (see [`lowercase_into`]).
    pub fn new(lowercased: &'a str) -> Self {
        Self { rest: lowercased }
    }

    /// What has not been read yet.
    pub fn rest(&self) -> &'a str {
        self.rest
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        self.rest = self.rest.trim_start();
        let first = self.rest.chars().next()?;
        let len = match first {
            c if is_word(c) => word_len(self.rest),
            '\'' | '’' => first.len_utf8() + ending_len(&self.rest[first.len_utf8()..]),
            c => c.len_utf8(),
        };
        let (token, rest) = self.rest.split_at(len);
        self.rest = rest;
        Some(token)
    }
}

fn word_len(text: &str) -> usize {
    let ascii = text.bytes().take_while(u8::is_ascii_alphanumeric).count();
    match text.as_bytes().get(ascii) {
        Some(byte) if !byte.is_ascii() => text.find(|c: char| !is_word(c)).unwrap_or(text.len()),
        _ => ascii,
    }
}

fn ending_len(after: &str) -> usize {
    let ends = |e: &&&str| {
        after.strip_prefix(**e).is_some_and(|rest| !rest.chars().next().is_some_and(is_word))
    };
    ENDINGS.iter().find(ends).map_or(0, |e| e.len())
}

/// Looks words up in a vocabulary; the quick encoder of a word-level [`crate::Tokenizer`].
#[derive(Debug)]
pub(crate) struct WordEncoder {
    ids: HashMap<String, u32>,
    unk: u32,
}

impl WordEncoder {
    pub(crate) fn new(ids: HashMap<String, u32>, unk: u32) -> Self {
        Self { ids, unk }
    }

    pub(crate) fn encode(&self, text: &str, limit: usize) -> Vec<u32> {
        let mut lower = String::with_capacity(text.len());
        lowercase_into(text, &mut lower);
        Words::new(&lower)
            .take(limit)
            .map(|word| self.ids.get(word).copied().unwrap_or(self.unk))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[&str]) {
        let mut lower = String::new();
        lowercase_into(text, &mut lower);
        assert_eq!(Words::new(&lower).collect::<Vec<_>>(), expected, "{text:?}");
    }

    #[test]
    fn words_and_marks() {
        check(
            "Please send: the Q3-report.",
            &["please", "send", ":", "the", "q3", "-", "report", "."],
        );
        check(
            "I don't; she'll, 'tis O'Dell's",
            &["i", "don", "'t", ";", "she", "'ll", ",", "'", "tis", "o", "'", "dell", "'s"],
        );
        check("Él cobró 10 €—ya", &["él", "cobró", "10", "€", "—", "ya"]);
        check(" \t\n", &[]);
        check("a_b", &["a", "_", "b"]);
    }
}
