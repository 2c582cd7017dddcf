//! The way back: a tokenizer as GGUF files carry it.
//!
//! What a `tokenizer.json` spells out (normalizer, pre-tokenizer, merges), a GGUF file names: a kind
//! of vocabulary and a way of cutting text. A name fits when the tokenizer that it makes encodes a
//! text of many scripts, digits, signs and spaces to the same ids; where none does, there is an
//! error and no file.

use crate::vocabulary::{CONTROL, CUTS, UNKNOWN, USER_DEFINED, Vocabulary};
use crate::{Error, Specials, Tokenizer};
use serde_json::Value;
use std::collections::HashMap;

const NORMAL: i64 = 1;
const UNUSED: i64 = 5;
const BYTE: i64 = 6;
/// The score of a piece that no merge makes.
const NEVER_MADE: f32 = -1e9;
/// What two tokenizers must agree on.
const PROBE: &str = "Hello, world!  It's 2026-11-30; we'll pay $1,234,567.89 (or 50%)...\n\n\tfn main() \
    { let x = 0x1F; }\r\n   indented    text   \n \n don't can't I'M WE'RE o'clock ''quoted'' <s> \
    </s> <unk> <|x|> [INST] é e\u{301} Ångström naïve façade ﬁ ½ ² Ⅷ ١٢٣ १२३ Привет, как дела? \
    Γειά σου Κόσμε שלום עולם مرحبا بالعالم สวัสดีชาวโลก नमस्ते दुनिया 你好，世界！ こんにちは世界 \
    안녕하세요 🙂👨‍👩‍👧‍👦 🇩🇪 camelCase HTTPServer snake_case ALLCAPS a1b2c3 99bottles \u{a0}nbsp \
    \u{200b}zero \u{3000}wide ______ ------ ====== ```code``` https://example.com/a?b=c&d=e#f \
    a@b.example 1e-5 3.14159 ▁mark ▁▁ x\u{0}y zzz";

/// A vocabulary in a GGUF file's words, held.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnedVocabulary {
    /// "gpt2" or "llama".
    pub model: &'static str,
    /// How text is cut first ("gpt2" kind; "default" otherwise).
    pub pre: &'static str,
    /// The tokens by id.
    pub tokens: Vec<String>,
    /// A score a token ("llama" kind).
    pub scores: Vec<f32>,
    /// A type a token.
    pub types: Vec<i64>,
    /// Pairs in the order of their rank ("gpt2" kind).
    pub merges: Vec<String>,
    /// Ids with a meaning of their own.
    pub specials: Specials,
    /// Whether a text gets a space in front ("llama" kind).
    pub space_prefix: bool,
}

impl OwnedVocabulary {
    /// The same, lent.
    pub fn lent(&self) -> Vocabulary<'_> {
        Vocabulary {
            model: self.model,
            pre: self.pre,
            tokens: lent(&self.tokens),
            scores: &self.scores,
            types: &self.types,
            merges: self.scores.is_empty().then(|| lent(&self.merges)),
            specials: self.specials,
            space_prefix: self.space_prefix,
        }
    }
}

fn lent(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

impl Tokenizer {
    /// The vocabulary as GGUF files carry it, with `rows` tokens: a model's table may have more
    /// rows than there are tokens, and such files must name them all.
    ///
    /// # Errors
    /// [`Error::Vocabulary`] says what such files have no word for.
    pub fn to_vocabulary(&self, rows: usize) -> Result<OwnedVocabulary, Error> {
        let json: Value = serde_json::from_slice(&self.to_bytes())
            .map_err(|e| Error::Vocabulary { what: e.to_string() })?;
        let kind = json["model"]["type"].as_str().unwrap_or("BPE");
        if kind != "BPE" {
            return Err(no_word(format!("model.type `{kind}`, only BPE")));
        }
        let mut found = OwnedVocabulary {
            model: "gpt2",
            pre: "default",
            tokens: (0..rows.max(self.vocab_size())).map(|id| format!("[PAD{id}]")).collect(),
            scores: Vec::new(),
            types: vec![UNUSED; rows.max(self.vocab_size())],
            merges: Vec::new(),
            specials: self.specials(),
            space_prefix: false,
        };
        self.fill_tokens(&json, &mut found);
        if json["model"]["byte_fallback"] == true {
            self.agreeing(self.as_pieces(&json, found))
        } else {
            self.agreeing(as_byte_level(&json, found))
        }
    }

    fn fill_tokens(&self, json: &Value, to: &mut OwnedVocabulary) {
        for id in 0..self.vocab_size() {
            if let Some(token) = self.token(id as u32) {
                (to.tokens[id], to.types[id]) = (token, NORMAL);
            }
        }
        let unknown = json["model"]["unk_token"].as_str();
        for added in json["added_tokens"].as_array().into_iter().flatten() {
            let id = added["id"].as_u64().and_then(|id| usize::try_from(id).ok());
            let Some(id) = id.filter(|&id| id < to.types.len()) else { continue };
            let special = added["special"] == true;
            to.types[id] = if special { CONTROL } else { USER_DEFINED };
        }
        if let Some(id) = unknown.and_then(|name| self.id(name)) {
            to.types[id as usize] = UNKNOWN;
        }
    }

    /// SentencePiece BPE: a piece's score is the rank of the first merge that makes it.
    fn as_pieces(&self, json: &Value, mut found: OwnedVocabulary) -> Vec<OwnedVocabulary> {
        found.model = "llama";
        let mut ranks: HashMap<String, usize> = HashMap::new();
        for (rank, (left, right)) in merges(json).into_iter().enumerate() {
            ranks.entry(left + &right).or_insert(rank);
        }
        found.scores = found
            .tokens
            .iter()
            .map(|token| ranks.get(token).map_or(NEVER_MADE, |&rank| -(rank as f32)))
            .collect();
        for (token, kind) in found.tokens.iter().zip(&mut found.types) {
            let hex = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
            if hex.is_some_and(|hex| hex.len() == 2) && *kind == NORMAL {
                *kind = BYTE;
            }
        }
        let with_space = OwnedVocabulary { space_prefix: true, ..found.clone() };
        vec![with_space, found]
    }

    /// The first of some vocabularies whose tokenizer encodes as this one.
    fn agreeing(
        &self,
        candidates: impl IntoIterator<Item = OwnedVocabulary>,
    ) -> Result<OwnedVocabulary, Error> {
        // Parts too: what stands at the beginning of a text may be treated on its own.
        let texts = || PROBE.split('\n').chain([PROBE, "a", " a", "  a", "▁a"]);
        let right: Vec<Vec<u32>> = texts().map(|text| self.encode(text)).collect();
        let mut first_error = None;
        for candidate in candidates {
            match Tokenizer::from_vocabulary(&candidate.lent()) {
                Ok(made) if texts().zip(&right).all(|(text, ids)| made.encode(text) == *ids) => {
                    return Ok(candidate);
                }
                Ok(_) => {}
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.unwrap_or_else(|| {
            no_word(
                "this way of cutting text: none that is known by name gives the same ids".into(),
            )
        }))
    }
}

fn no_word(what: String) -> Error {
    Error::Vocabulary { what: format!("GGUF files have no word for {what}") }
}

/// The merges, which files write as pairs or as texts.
fn merges(json: &Value) -> Vec<(String, String)> {
    let pair = |merge: &Value| match merge {
        Value::String(text) => text.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())),
        _ => Some((merge.get(0)?.as_str()?.to_owned(), merge.get(1)?.as_str()?.to_owned())),
    };
    json["model"]["merges"].as_array().into_iter().flatten().filter_map(pair).collect()
}

/// Byte-level BPE, once for each known way of cutting; those that treat whole words as the file does
/// come first.
fn as_byte_level(json: &Value, found: OwnedVocabulary) -> impl Iterator<Item = OwnedVocabulary> {
    let merges: Vec<String> = merges(json).into_iter().map(|(a, b)| a + " " + &b).collect();
    let whole = json["model"]["ignore_merges"] == true;
    let (first, second): (Vec<_>, Vec<_>) = CUTS.iter().partition(|(_, _, keeps)| *keeps == whole);
    let named = first.into_iter().chain(second);
    named.map(move |&(pre, ..)| OwnedVocabulary { pre, merges: merges.clone(), ..found.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn byte_tokens() -> Vec<String> {
        (0..=255u8).map(|b| crate::decode::char_of(b).to_string()).collect()
    }

    fn check(made: &OwnedVocabulary) {
        let tokenizer = Tokenizer::from_vocabulary(&made.lent()).unwrap();
        let back = tokenizer.to_vocabulary(made.tokens.len()).unwrap();
        assert_eq!(back.tokens, made.tokens);
        assert_eq!(back.types, made.types);
        assert_eq!((back.model, back.space_prefix), (made.model, made.space_prefix));
        let again = Tokenizer::from_vocabulary(&back.lent()).unwrap();
        for text in ["the cat, 12 times", "then  then\n", "über ▁x <end>"] {
            assert_eq!(again.encode(text), tokenizer.encode(text));
        }
    }

    #[test]
    fn byte_level_vocabularies_come_back() {
        let mut tokens = byte_tokens();
        tokens.extend(["th", "the", "<end>", "[PAD259]"].map(str::to_owned));
        let mut types = vec![NORMAL; 256 + 2];
        types.extend([CONTROL, UNUSED]);
        let merges = vec!["t h".to_owned(), "th e".to_owned()];
        for (pre, ..) in CUTS {
            let made = OwnedVocabulary {
                model: "gpt2",
                pre,
                tokens: tokens.clone(),
                scores: Vec::new(),
                types: types.clone(),
                merges: merges.clone(),
                specials: Specials { eos: Some(258), ..Specials::default() },
                space_prefix: false,
            };
            let tokenizer = Tokenizer::from_vocabulary(&made.lent()).unwrap();
            let back = tokenizer.to_vocabulary(260).unwrap();
            assert_eq!((&back.merges, &back.types[..259]), (&made.merges, &made.types[..259]));
            let again = Tokenizer::from_vocabulary(&back.lent()).unwrap();
            assert_eq!(again.encode(PROBE), tokenizer.encode(PROBE), "{pre} as {}", back.pre);
        }
    }

    #[test]
    fn piece_vocabularies_come_back_by_scores() {
        let mut tokens: Vec<String> = vec!["<unk>".into(), "<s>".into(), "<end>".into()];
        let mut types = vec![UNKNOWN, CONTROL, CONTROL];
        tokens.extend((0..=255u8).map(|b| format!("<0x{b:02X}>")));
        types.extend([BYTE; 256]);
        let pieces = ["▁t", "he", "▁the", "re", "there", "▁there", "▁", "t", "h", "e", "r"];
        tokens.extend(pieces.map(str::to_owned));
        types.extend([NORMAL; 11]);
        let scores: Vec<f32> = (0..tokens.len()).map(|id| 259.0 - id as f32).collect();
        for space_prefix in [true, false] {
            check(&OwnedVocabulary {
                model: "llama",
                pre: "default",
                tokens: tokens.clone(),
                scores: scores.clone(),
                types: types.clone(),
                merges: Vec::new(),
                specials: Specials { unk: Some(0), bos: Some(1), ..Specials::default() },
                space_prefix,
            });
        }
    }

    #[test]
    fn what_has_no_word_is_refused() {
        let words = serde_json::json!({"version": "1.0", "added_tokens": [],
            "model": {"type": "WordLevel", "vocab": {"a": 0, "<unk>": 1}, "unk_token": "<unk>"}});
        let tokenizer = Tokenizer::from_bytes(words.to_string().as_bytes()).unwrap();
        let refused = tokenizer.to_vocabulary(2).unwrap_err().to_string();
        assert!(refused.contains("WordLevel"), "{refused}");
    }
}
