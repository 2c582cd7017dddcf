//! From the words of a prompt to the tokens that a model begins with.

use crate::Error;
use serde::{Deserialize, Serialize};
use tokenizer::Tokenizer;

/// What to do with a prompt that is longer than the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Truncate {
    /// Refuse it.
    #[default]
    Never,
    /// Drop its beginning (`<bos>` stays).
    Left,
    /// Drop its end.
    Right,
}

/// The tokens that a model begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// `<bos>`, if the tokenizer has one, and the tokens of the text; at least one.
    pub ids: Vec<u32>,
    /// Tokens of the text that were dropped.
    pub dropped: usize,
}

impl Prompt {
    /// Encodes a text for a model that sees `limit` tokens at most.
    ///
    /// # Errors
    /// [`Error::PromptTooLong`] with both numbers, unless it may be cut;
    /// [`Error::NothingToBeginFrom`] for an empty text without a `<bos>`.
    pub fn encode(
        tokenizer: &Tokenizer,
        text: &str,
        limit: Option<usize>,
        truncate: Truncate,
    ) -> Result<Self, Error> {
        Self::from_ids(tokenizer.specials().bos, tokenizer.encode(text), limit, truncate)
    }

    /// The same from the tokens of a text. `bos` is put before them unless they begin with it.
    ///
    /// # Errors
    /// As [`Prompt::encode`].
    pub fn from_ids(
        bos: Option<u32>,
        text: Vec<u32>,
        limit: Option<usize>,
        truncate: Truncate,
    ) -> Result<Self, Error> {
        let first = usize::from(bos.is_some());
        let mut ids: Vec<u32> = bos.filter(|_| text.first() != bos.as_ref()).into_iter().collect();
        ids.extend(text);
        let dropped = ids.len().saturating_sub(limit.unwrap_or(usize::MAX));
        if dropped > 0 {
            match truncate {
                Truncate::Left => drop(ids.drain(first..(first + dropped).min(ids.len()))),
                Truncate::Right => ids.truncate(ids.len() - dropped),
                Truncate::Never => {
                    let (found, limit) = (ids.len(), ids.len() - dropped);
                    return Err(Error::PromptTooLong { found, limit });
                }
            }
        }
        if ids.is_empty() { Err(Error::NothingToBeginFrom) } else { Ok(Self { ids, dropped }) }
    }
}
