//! Vocabularies from text, as `tokenizer.json` files.
//!
//! Text is first counted ([`Counts`]), in any order and in any number of pieces, then a vocabulary
//! is made of the counts; so the result depends on the counts alone, and never on the order of the
//! input, on threads or on hashing.

mod bpe;
mod json;

use crate::{Error, Pieces, Tokenizer, Words, lowercase_into, specials::OURS};
use std::collections::HashMap;

/// How often each piece of text occurs.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    counts: HashMap<Box<str>, u64>,
    scratch: String,
}

impl Counts {
    /// Counts the lower-cased words and marks of `text`, the first `limit` of them.
    pub fn add_words(&mut self, text: &str, limit: usize) {
        let mut scratch = std::mem::take(&mut self.scratch);
        lowercase_into(text, &mut scratch);
        for word in Words::new(&scratch).take(limit) {
            self.add(word);
        }
        self.scratch = scratch;
    }

    /// Counts the pieces that byte-level BPE works on.
    pub fn add_pieces(&mut self, text: &str) {
        for piece in Pieces::new(text) {
            self.add(piece);
        }
    }

    fn add(&mut self, piece: &str) {
        match self.counts.get_mut(piece) {
            Some(count) => *count += 1,
            None => {
                self.counts.insert(piece.into(), 1);
            }
        }
    }

    /// Distinct pieces.
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Pieces with their counts: highest count first, ties by the order of bytes.
    fn ranked(&self) -> Vec<(&str, u64)> {
        let mut ranked: Vec<(&str, u64)> = self.counts.iter().map(|(w, &n)| (&**w, n)).collect();
        ranked.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        ranked
    }
}

/// A word-level vocabulary of exactly `vocab_size` entries: `<pad>` 0, `<unk>` 1, `<bos>` 2, `<eos>`
/// 3, then the words and marks by count, ties by the order of bytes.
///
/// # Errors
/// The size leaves no room for a word, or is larger than the counts can give.
pub fn train_words(counts: &Counts, vocab_size: usize) -> Result<Tokenizer, Error> {
    let least = OURS.len() + 1;
    if vocab_size < least {
        return Err(Error::VocabularyTooSmall {
            asked: vocab_size,
            kind: "a word vocabulary",
            least,
        });
    }
    let possible = OURS.len() + counts.len();
    if vocab_size > possible {
        return Err(Error::VocabularyTooLarge { asked: vocab_size, possible });
    }
    let words = counts.ranked().into_iter().map(|(word, _)| word);
    let vocabulary: Vec<&str> = OURS.into_iter().chain(words).take(vocab_size).collect();
    Tokenizer::from_bytes(&json::word_level(&vocabulary)?)
}

/// A byte-level BPE vocabulary of exactly `vocab_size` entries: the four special tokens, the 256
/// bytes, then merges. The next merge is the pair with the highest count; ties go to the smaller
/// left id, then to the smaller right id. Any text encodes and decodes to itself.
///
/// # Errors
/// The size is below 260, or the text runs out of pairs before it is reached.
pub fn train_bpe(counts: &Counts, vocab_size: usize) -> Result<Tokenizer, Error> {
    let merged = bpe::merge(&counts.ranked(), vocab_size)?;
    Tokenizer::from_bytes(&json::byte_level_bpe(&merged)?)
}
