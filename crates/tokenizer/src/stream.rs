//! Ids to text one by one, whole characters only.

use crate::Tokenizer;

/// Turns ids into pieces of text as they come.
///
/// The pieces, with what [`finish`](Self::finish) returns, are exactly `tokenizer.decode(all ids)`.
/// Only the bytes of one unfinished character are ever held back.
#[derive(Debug, Clone)]
pub struct Utf8Stream {
    tokenizer: Tokenizer,
    pending: Vec<u8>,
    first: bool,
}

impl Utf8Stream {
    /// A stream at the beginning of a text.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        Self { tokenizer: tokenizer.clone(), pending: Vec::new(), first: true }
    }

    /// Takes the next id and returns the text that is now certain (often empty inside a character).
    pub fn push(&mut self, id: u32) -> String {
        if self.tokenizer.push_bytes(id, self.first, &mut self.pending) {
            self.first = false;
        }
        take_text(&mut self.pending, false)
    }

    /// Ends the text: an unfinished character becomes one U+FFFD.
    pub fn finish(&mut self) -> String {
        self.first = true;
        take_text(&mut self.pending, true)
    }
}

/// Takes the longest certain text from the front of `bytes`, replacing what can never be UTF-8.
fn take_text(bytes: &mut Vec<u8>, end: bool) -> String {
    let mut text = String::new();
    let mut done = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        let invalid = chunk.invalid();
        let at_end = done + chunk.valid().len() + invalid.len() == bytes.len();
        done += chunk.valid().len();
        if invalid.is_empty() || (at_end && !end && may_continue(invalid)) {
            break;
        }
        text.push('\u{FFFD}');
        done += invalid.len();
    }
    bytes.drain(..done);
    text
}

/// Whether more bytes could make a character of these (at most three, a valid beginning).
fn may_continue(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::take_text;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_give_the_lossy_text(
            bytes in prop::collection::vec(prop::sample::select(
                vec![0x61u8, 0xF0, 0x9F, 0x98, 0x80, 0xE2, 0x82, 0xAC, 0xC3, 0xA9, 0xFF, 0xED, 0xA0]), 0..40),
            step in 1usize..5,
        ) {
            let mut pending = Vec::new();
            let mut text = String::new();
            for piece in bytes.chunks(step) {
                pending.extend_from_slice(piece);
                text.push_str(&take_text(&mut pending, false));
                prop_assert!(pending.len() <= 3);
            }
            text.push_str(&take_text(&mut pending, true));
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }
}
