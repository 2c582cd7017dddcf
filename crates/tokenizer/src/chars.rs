//! Unicode classes with the tables of the regex engine that reads `tokenizer.json`.
//!
//! Not `char::is_alphabetic` and friends: those are other sets than `\p{L}`, `\p{M}`, `\p{N}`, and
//! a word would then be cut at another place here than in the Hugging Face library.

use regex_syntax::hir::{Class, HirKind};
use std::sync::LazyLock;

/// A set of characters: ranges in order, both ends included.
struct Set(Vec<(u32, u32)>);

impl Set {
    fn parse(pattern: &str) -> Self {
        let hir = regex_syntax::parse(pattern).map(|hir| hir.into_kind());
        let Ok(HirKind::Class(Class::Unicode(class))) = hir else {
            unreachable!("{pattern} is a Unicode class");
        };
        Self(class.ranges().iter().map(|r| (r.start() as u32, r.end() as u32)).collect())
    }

    fn contains(&self, c: char) -> bool {
        let c = c as u32;
        let after = self.0.partition_point(|&(start, _)| start <= c);
        after > 0 && c <= self.0[after - 1].1
    }
}

static WORD: LazyLock<Set> = LazyLock::new(|| Set::parse(r"[\p{L}\p{M}\p{N}]"));
static LETTER: LazyLock<Set> = LazyLock::new(|| Set::parse(r"\p{L}"));
static NUMBER: LazyLock<Set> = LazyLock::new(|| Set::parse(r"\p{N}"));

/// `[\p{L}\p{M}\p{N}]`: what a word is made of.
pub(crate) fn is_word(c: char) -> bool {
    if c.is_ascii() { c.is_ascii_alphanumeric() } else { WORD.contains(c) }
}

/// `\p{L}`.
pub(crate) fn is_letter(c: char) -> bool {
    if c.is_ascii() { c.is_ascii_alphabetic() } else { LETTER.contains(c) }
}

/// `\p{N}`.
pub(crate) fn is_number(c: char) -> bool {
    if c.is_ascii() { c.is_ascii_digit() } else { NUMBER.contains(c) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_differ_from_std_where_unicode_says_so() {
        // A combining mark is \p{M}; the circled letter is So but Alphabetic; Roman twelve is \p{Nl}.
        assert!(is_word('\u{301}') && !is_letter('\u{301}'));
        assert!('\u{24D0}'.is_alphabetic() && !is_word('\u{24D0}'));
        assert!(is_number('\u{216B}') && !is_letter('\u{216B}'));
        assert!(is_word('é') && is_letter('日') && is_number('٣') && !is_word('—'));
    }
}
