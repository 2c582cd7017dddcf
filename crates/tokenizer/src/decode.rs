//! From one token to its bytes: what the `decoder` of a `tokenizer.json` does, token by token.
//!
//! Every supported decoder is a rule with one bit of memory (is this the first token?), so streamed
//! text and one-shot text come from the same function and cannot differ. Two places depart from
//! the Hugging Face library on purpose: a metaspace decoder takes away exactly one leading space
//! (theirs takes all that the first token has), and a byte that is not UTF-8 gives one U+FFFD for a
//! broken run as `String::from_utf8_lossy` does (theirs gives one a byte).

use crate::Error;
use serde_json::Value;

/// The pattern of the `Replace` step that joins closing marks and endings to the word before.
pub(crate) const CLOSING_PATTERN: &str = r"^ (?=[.,;:!?)\]}%]$|['’](?:s|t|re|ve|m|ll|d)$)";

/// How a token becomes bytes.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct DecodeRule {
    /// How the text of a token is read.
    base: Base,
    /// Replacements within one token, in order.
    replace: Vec<(String, String)>,
    /// Tokens written `<0xNN>` stand for that byte.
    byte_fallback: bool,
    /// Spaces taken from the beginning of the text.
    strip_leading: usize,
    /// Our own `CLOSING_PATTERN` step is present.
    closing: bool,
}

#[derive(Debug, Clone, Default, PartialEq)]
enum Base {
    /// No decoder: tokens joined by a space.
    #[default]
    Joined,
    /// Tokens written one after the other.
    Plain,
    /// Characters that stand for bytes, as GPT-2 does.
    ByteLevel,
    /// Joined by a space unless the token has the prefix.
    WordPiece { prefix: String, cleanup: bool },
    /// A visible mark for a space; the first space is dropped where `strip` says so.
    Metaspace { mark: char, strip: bool },
    /// A suffix that ends a word.
    WordSuffix(String),
}

impl DecodeRule {
    /// Reads the `decoder` value of a `tokenizer.json`.
    pub(crate) fn parse(decoder: &Value) -> Result<Self, Error> {
        let mut rule = Self::default();
        if decoder.is_null() {
            return Ok(rule);
        }
        let single = std::slice::from_ref(decoder);
        let steps = match decoder["decoders"].as_array() {
            Some(steps) if kind(decoder) == "Sequence" => steps.as_slice(),
            _ => single,
        };
        rule.base = Base::Plain;
        for step in steps {
            rule.add(step)?;
        }
        Ok(rule)
    }

    fn add(&mut self, step: &Value) -> Result<(), Error> {
        let text = |key: &str, default: &str| step[key].as_str().unwrap_or(default).to_owned();
        match kind(step) {
            "ByteLevel" => self.base = Base::ByteLevel,
            "WordPiece" => {
                let cleanup = step["cleanup"].as_bool().unwrap_or(true);
                self.base = Base::WordPiece { prefix: text("prefix", "##"), cleanup };
            }
            "Metaspace" => {
                let mark = text("replacement", "▁").chars().next().unwrap_or('▁');
                let never = step["prepend_scheme"].as_str() == Some("never")
                    || step["add_prefix_space"].as_bool() == Some(false);
                self.base = Base::Metaspace { mark, strip: !never };
            }
            "BPEDecoder" => self.base = Base::WordSuffix(text("suffix", "</w>")),
            "ByteFallback" => self.byte_fallback = true,
            "Fuse" => {}
            "Strip" if text("content", " ") == " " && step["stop"].as_u64().unwrap_or(0) == 0 => {
                self.strip_leading = step["start"].as_u64().unwrap_or(0) as usize;
            }
            "Replace" => self.add_replace(step)?,
            other => return Err(Error::Decoder { kind: other.to_owned() }),
        }
        Ok(())
    }

    fn add_replace(&mut self, step: &Value) -> Result<(), Error> {
        let content = step["content"].as_str().unwrap_or_default().to_owned();
        let pattern = &step["pattern"];
        if let Some(text) = pattern["String"].as_str() {
            self.replace.push((text.to_owned(), content));
        } else if pattern["Regex"].as_str() == Some(CLOSING_PATTERN) && content.is_empty() {
            self.closing = true;
        } else {
            return Err(Error::Decoder { kind: format!("Replace with pattern {pattern}") });
        }
        Ok(())
    }

    /// Appends the bytes of `token` to `out`; `first` says that no token came before it.
    pub(crate) fn push(&self, token: &str, first: bool, out: &mut Vec<u8>) {
        if self.byte_fallback
            && let Some(byte) = fallback_byte(token)
        {
            out.push(byte);
            return;
        }
        let mut text = self.base_text(token, first, out);
        if let Some(text) = &mut text {
            for (from, to) in &self.replace {
                *text = text.replace(from.as_str(), to);
            }
            let skip = if first { leading_spaces(text, self.strip_leading) } else { 0 };
            out.extend_from_slice(&text.as_bytes()[skip..]);
        }
    }

    /// The text of the token, or `None` where its bytes already went to `out`.
    fn base_text(&self, token: &str, first: bool, out: &mut Vec<u8>) -> Option<String> {
        match &self.base {
            Base::ByteLevel => {
                byte_level(token, out);
                None
            }
            Base::Plain => Some(token.to_owned()),
            Base::Joined if first => Some(token.to_owned()),
            Base::Joined => Some(format!(" {token}")),
            Base::Metaspace { mark, strip } => {
                let token = if first && *strip {
                    token.strip_prefix(*mark).unwrap_or(token)
                } else {
                    token
                };
                Some(token.replace(*mark, " "))
            }
            Base::WordSuffix(suffix) => Some(token.replace(suffix.as_str(), " ")),
            Base::WordPiece { prefix, cleanup } => {
                let mut text = match token.strip_prefix(prefix.as_str()) {
                    _ if first => token.to_owned(),
                    Some(rest) => rest.to_owned(),
                    None if self.closing && is_closing(token) => token.to_owned(),
                    None => format!(" {token}"),
                };
                if *cleanup {
                    text = clean_up(&text);
                }
                Some(text)
            }
        }
    }
}

fn kind(value: &Value) -> &str {
    value["type"].as_str().unwrap_or("?")
}

fn leading_spaces(text: &str, most: usize) -> usize {
    text.bytes().take(most).take_while(|&b| b == b' ').count()
}

fn fallback_byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}

fn is_closing(token: &str) -> bool {
    let mut chars = token.chars();
    match (chars.next(), chars.as_str()) {
        (Some('.' | ',' | ';' | ':' | '!' | '?' | ')' | ']' | '}' | '%'), "") => true,
        (Some('\'' | '’'), rest) => matches!(rest, "s" | "t" | "re" | "ve" | "m" | "ll" | "d"),
        _ => false,
    }
}

/// The clean-up that a WordPiece decoder of the Hugging Face library does within one token.
fn clean_up(text: &str) -> String {
    const JOIN: [&str; 8] = [" .", " ?", " !", " ,", " n't", " 'm", " 's", " 've"];
    let mut text = text.replace(" ' ", "'").replace(" do not", " don't").replace(" 're", "'re");
    for from in JOIN {
        text = text.replace(from, &from[1..]);
    }
    text
}

/// The byte that a character of the byte-level alphabet stands for.
pub(crate) fn byte_of(c: char) -> Option<u8> {
    match c as u32 {
        c @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => Some(c as u8),
        c @ 0x100..=0x120 => Some((c - 0x100) as u8),
        c @ 0x121..=0x142 => Some((c - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// The character of the byte-level alphabet that stands for a byte.
pub(crate) fn char_of(byte: u8) -> char {
    let code = match byte {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u32::from(byte),
        0..=0x20 => 0x100 + u32::from(byte),
        0x7F..=0xA0 => 0x121 + u32::from(byte) - 0x7F,
        0xAD => 0x143,
    };
    char::from_u32(code).unwrap_or('\u{FFFD}')
}

fn byte_level(token: &str, out: &mut Vec<u8>) {
    let start = out.len();
    for c in token.chars() {
        match byte_of(c) {
            Some(byte) => out.push(byte),
            None => {
                // An added token outside the alphabet: its text as it stands.
                out.truncate(start);
                out.extend_from_slice(token.as_bytes());
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_alphabet_is_a_bijection() {
        for byte in 0..=255u8 {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        assert_eq!(char_of(b' '), 'Ġ');
        assert_eq!(char_of(b'\n'), 'Ċ');
    }

    #[test]
    fn unknown_decoders_are_refused_by_name() {
        let error = DecodeRule::parse(&serde_json::json!({"type": "CTC"})).unwrap_err();
        assert!(error.to_string().contains("CTC"), "{error}");
    }
}
