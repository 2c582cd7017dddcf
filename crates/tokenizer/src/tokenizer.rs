//! The tokenizer: a `tokenizer.json` in use.
//!
//! Encoding is the Hugging Face library's, except for files of the two kinds that this crate writes:
//! those go through quicker scanners with the same result. Decoding is this crate's own (see
//! `decode.rs`), so that a stream and a whole text are the same.

use crate::{
    Error, Pieces,
    bpe::Bpe,
    decode::{DecodeRule, char_of},
    specials::Specials,
    texts::Texts,
    words::{self, WordEncoder},
};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::{
    collections::{HashMap, HashSet},
    fmt,
    path::Path,
    sync::Arc,
};
use tokenizers::Model;

/// Text to ids and back. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
    specials: Specials,
}

struct Inner {
    encoder: Encoder,
    rule: DecodeRule,
    hidden: HashSet<u32>,
    /// Names of control tokens by their first byte, longest first.
    controls: HashMap<u8, Vec<(String, u32)>>,
    bytes: Option<Vec<u8>>,
    sha256: String,
}

/// A part of a text in which control tokens may be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// Plain text.
    Text(&'a str),
    /// A control token.
    Control(u32),
}

/// What a tokenizer is put together from.
pub(crate) struct Parts<'a> {
    pub(crate) encoder: Encoder,
    /// The `decoder` value of a `tokenizer.json`.
    pub(crate) decoder: &'a Value,
    pub(crate) specials: Specials,
    /// The `tokenizer.json`, where there is one.
    pub(crate) bytes: Option<Vec<u8>>,
    pub(crate) sha256: String,
}

/// Text to ids.
pub(crate) enum Encoder {
    /// The library's object, quicker ways beside it, and the tokens by id.
    Library { library: Box<tokenizers::Tokenizer>, quick: Quick, texts: Texts },
    /// The vocabulary of a GGUF file.
    Bpe(Bpe),
}

impl Encoder {
    fn texts(&self) -> &Texts {
        match self {
            Encoder::Library { texts, .. } => texts,
            Encoder::Bpe(bpe) => bpe.texts(),
        }
    }

    fn id(&self, token: &str) -> Option<u32> {
        match self {
            Encoder::Library { library, .. } => library.token_to_id(token),
            Encoder::Bpe(bpe) => bpe.id(token),
        }
    }

    /// Names and ids of control tokens.
    fn controls(&self) -> Vec<(String, u32)> {
        match self {
            Encoder::Library { library, .. } => {
                let added = library.get_added_tokens_decoder().into_iter();
                let special = added.filter(|(_, token)| token.special);
                special.map(|(id, token)| (token.content, id)).collect()
            }
            Encoder::Bpe(bpe) => bpe.controls(),
        }
    }
}

/// How text is cut before the vocabulary is looked at.
pub(crate) enum Quick {
    /// Lower-cased words and marks, looked up.
    Words(WordEncoder),
    /// Byte-level pieces, each given to the library's merges.
    Pieces,
    /// All by the library.
    No,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("sha256", &self.sha256())
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// The file cannot be read, or as in [`from_bytes`](Self::from_bytes).
    pub fn from_file(path: &Path) -> Result<Self, Error> {
        let read = |source| Error::Read { path: path.to_owned(), source };
        Self::from_bytes(&std::fs::read(path).map_err(read)?)
    }

    /// Reads the bytes of a `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::Format`] names the key that is missing or wrong; [`Error::Decoder`] a decoder whose
    /// text cannot be streamed.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let value: Value =
            serde_json::from_slice(bytes).map_err(|e| format_error(e.to_string()))?;
        check_shape(&value)?;
        let mut library: tokenizers::Tokenizer =
            tokenizers::Tokenizer::from_bytes(bytes).map_err(|e| format_error(e.to_string()))?;
        library.set_encode_special_tokens(true);
        library.with_padding(None);
        library.with_truncation(None).map_err(|e| format_error(e.to_string()))?;
        let texts = token_table(&library)?;
        let mut specials = Specials::find(|name| library.token_to_id(name));
        let unk_name = value["model"]["unk_token"].as_str();
        specials.unk = unk_name.and_then(|name| library.token_to_id(name)).or(specials.unk);
        Self::from_parts(Parts {
            encoder: Encoder::Library {
                quick: quick(&value, &library, specials.unk),
                library: Box::new(library),
                texts,
            },
            decoder: &value["decoder"],
            specials,
            bytes: Some(bytes.to_vec()),
            sha256: hex(&Sha256::digest(bytes)),
        })
    }

    pub(crate) fn from_parts(parts: Parts<'_>) -> Result<Self, Error> {
        let Parts { encoder, decoder, specials, bytes, sha256 } = parts;
        let rule = DecodeRule::parse(decoder)?;
        let controls = encoder.controls();
        // Control tokens have no text. The unknown token is shown: it stands where text was.
        let hidden = controls.iter().map(|&(_, id)| id).filter(|&id| Some(id) != specials.unk);
        let hidden = hidden.collect();
        let inner =
            Inner { encoder, rule, hidden, controls: by_first_byte(controls), bytes, sha256 };
        Ok(Self { inner: Arc::new(inner), specials })
    }

    /// The same with other ids for what begins, ends, fills and is unknown: published models say
    /// so beside their vocabulary.
    #[must_use]
    pub fn with_specials(mut self, specials: Specials) -> Self {
        self.specials = specials;
        self
    }

    /// The ids that the file itself puts before a text.
    pub fn put_before(&self) -> Vec<u32> {
        let Encoder::Library { library, .. } = &self.inner.encoder else { return Vec::new() };
        let Ok(encoding) = library.encode_fast("a", true) else { return Vec::new() };
        let own = library.encode_fast("a", false);
        let first = own.ok().and_then(|e| e.get_ids().first().copied());
        let ids = encoding.get_ids().iter().copied();
        ids.take_while(|&id| Some(id) != first && self.inner.hidden.contains(&id)).collect()
    }

    /// One more than the highest id.
    pub fn vocab_size(&self) -> usize {
        self.inner.encoder.texts().len()
    }

    /// The ids of a text. No special token is added, and the name of a special token in the text is
    /// plain text.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.encode_at_most(text, usize::MAX)
    }

    /// The first `limit` ids of [`encode`](Self::encode).
    pub fn encode_at_most(&self, text: &str, limit: usize) -> Vec<u32> {
        let mut ids = match &self.inner.encoder {
            Encoder::Library { quick: Quick::Words(words), .. } => words.encode(text, limit),
            Encoder::Library { quick: Quick::Pieces, library, .. } => {
                encode_pieces(library, text, limit)
            }
            // A model without an unknown token fails on text outside its alphabet: that part is lost
            // in every library; here the whole text gives nothing rather than something wrong.
            Encoder::Library { quick: Quick::No, library, .. } => library
                .encode_fast(text, false)
                .map_or_else(|_| Vec::new(), |e| e.get_ids().to_vec()),
            Encoder::Bpe(bpe) => bpe.encode(text),
        };
        ids.truncate(limit);
        ids
    }

    /// The ids of a text in which the names of control tokens stand for these tokens, as a chat
    /// template writes them. Text of people does not belong here.
    pub fn encode_with_controls(&self, text: &str) -> Vec<u32> {
        let ids = self.parts(text).into_iter().flat_map(|part| match part {
            Part::Text(text) => self.encode(text),
            Part::Control(id) => vec![id],
        });
        ids.collect()
    }

    /// A text cut at the names of control tokens.
    pub fn parts<'a>(&self, text: &'a str) -> Vec<Part<'a>> {
        let (mut parts, mut from, mut at) = (Vec::new(), 0, 0);
        let bytes = text.as_bytes();
        while at < bytes.len() {
            let names = self.inner.controls.get(&bytes[at]).map_or(&[][..], Vec::as_slice);
            let found = names.iter().find(|(name, _)| bytes[at..].starts_with(name.as_bytes()));
            let Some((name, id)) = found else {
                at += 1;
                continue;
            };
            if from < at {
                parts.push(Part::Text(&text[from..at]));
            }
            parts.push(Part::Control(*id));
            at += name.len();
            from = at;
        }
        if from < text.len() {
            parts.push(Part::Text(&text[from..]));
        }
        parts
    }

    /// The text of some ids. Padding, beginning, end and other control tokens give no text; the
    /// unknown token shows as it is written. Ids outside the vocabulary give nothing.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut bytes = Vec::new();
        let mut first = true;
        for &id in ids {
            first &= !self.push_bytes(id, first, &mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Appends the bytes of one id; says whether the id has text at all.
    pub(crate) fn push_bytes(&self, id: u32, first: bool, out: &mut Vec<u8>) -> bool {
        let token = self.inner.encoder.texts().get(id);
        let Some(token) = token.filter(|_| !self.inner.hidden.contains(&id)) else {
            return false;
        };
        self.inner.rule.push(token, first, out);
        true
    }

    /// The bytes that a token stands for inside a text; none for control tokens.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.push_bytes(id, false, &mut bytes);
        bytes
    }

    /// The token with this id, as the vocabulary writes it.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.encoder.texts().get(id).map(str::to_owned)
    }

    /// The id of a token, as the vocabulary writes it.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.encoder.id(token)
    }

    /// The ids with a meaning of their own.
    pub fn specials(&self) -> Specials {
        self.specials
    }

    /// Control tokens, which have no text: (name, id).
    pub fn controls(&self) -> impl Iterator<Item = (&str, u32)> {
        self.inner.controls.values().flatten().map(|(name, id)| (name.as_str(), *id))
    }

    /// The SHA-256 of the bytes of the `tokenizer.json`, or of what else it was made from, in hex.
    pub fn sha256(&self) -> &str {
        &self.inner.sha256
    }

    /// The bytes of the `tokenizer.json`, as they were read or trained; written anew for what was
    /// made from a vocabulary.
    pub fn to_bytes(&self) -> Vec<u8> {
        let written =
            |library: &tokenizers::Tokenizer| library.to_string(false).unwrap_or_default();
        match (&self.inner.bytes, &self.inner.encoder) {
            (Some(bytes), _) => bytes.clone(),
            (None, Encoder::Library { library, .. }) => written(library).into_bytes(),
            (None, Encoder::Bpe(bpe)) => {
                bpe.library().as_ref().map(written).unwrap_or_default().into_bytes()
            }
        }
    }
}

fn encode_pieces(library: &tokenizers::Tokenizer, text: &str, limit: usize) -> Vec<u32> {
    let mut ids = Vec::new();
    let mut piece = String::new();
    for bytes in Pieces::new(text) {
        if ids.len() >= limit {
            break;
        }
        piece.clear();
        piece.extend(bytes.bytes().map(char_of));
        let tokens = library.get_model().tokenize(&piece).unwrap_or_default();
        ids.extend(tokens.into_iter().map(|token| token.id));
    }
    ids
}

fn format_error(what: String) -> Error {
    Error::Format { what }
}

/// Names the first key that is missing, where the library would only say that nothing matched.
fn check_shape(value: &Value) -> Result<(), Error> {
    let model = value.get("model").ok_or_else(|| format_error("key `model` is missing".into()))?;
    let Some(kind) = model.get("type").and_then(Value::as_str) else {
        return Err(format_error("key `model.type` is missing".into()));
    };
    let needed: &[&str] = match kind {
        "BPE" => &["vocab", "merges"],
        "WordLevel" => &["vocab", "unk_token"],
        "WordPiece" | "Unigram" => &["vocab"],
        other => {
            let known = "BPE, WordLevel, WordPiece, Unigram";
            return Err(format_error(format!("model.type `{other}` is not one of {known}")));
        }
    };
    match needed.iter().find(|key| model.get(**key).is_none_or(Value::is_null)) {
        Some(key) => Err(format_error(format!("key `model.{key}` is missing (a {kind} model)"))),
        None => Ok(()),
    }
}

/// All tokens by id. Ids may have gaps, but not absurd ones: the table is as long as the largest id.
fn token_table(library: &tokenizers::Tokenizer) -> Result<Texts, Error> {
    let vocabulary = library.get_vocab(true);
    let largest = vocabulary.values().copied().max();
    let len = largest.map_or(0, |id| id as usize + 1);
    if len > 16 * vocabulary.len() + 65_536 {
        let count = vocabulary.len();
        return Err(format_error(format!(
            "largest id is {} but there are {count} tokens",
            len - 1
        )));
    }
    let mut tokens = vec![None; len];
    for (token, id) in vocabulary {
        tokens[id as usize] = Some(token);
    }
    // Of several names for one id, the library's own answer.
    for (id, token) in tokens.iter_mut().enumerate() {
        *token = library.id_to_token(id as u32).or(token.take());
    }
    Ok(tokens.iter().map(Option::as_deref).collect())
}

/// Names of control tokens by their first byte, longest first, so that the longest match wins.
fn by_first_byte(controls: Vec<(String, u32)>) -> HashMap<u8, Vec<(String, u32)>> {
    let mut names: HashMap<u8, Vec<(String, u32)>> = HashMap::new();
    for (name, id) in controls {
        if let Some(&first) = name.as_bytes().first() {
            names.entry(first).or_default().push((name, id));
        }
    }
    for list in names.values_mut() {
        list.sort_unstable_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| a.cmp(b)));
    }
    names
}

/// The quick way, where the file says exactly what this crate writes.
fn quick(value: &Value, library: &tokenizers::Tokenizer, unk: Option<u32>) -> Quick {
    let added = value["added_tokens"].as_array();
    let special = added.is_none_or(|list| list.iter().all(|token| token["special"] == true));
    if !special || !value["post_processor"].is_null() {
        return Quick::No;
    }
    let (normal, split, model) = (&value["normalizer"], &value["pre_tokenizer"], &value["model"]);
    let words = model["type"] == "WordLevel"
        && normal["type"] == "Lowercase"
        && split["type"] == "Split"
        && split["pattern"]["Regex"] == words::PATTERN
        && split["behavior"] == "Removed"
        && split["invert"] == true;
    let pieces = model["type"] == "BPE"
        && normal.is_null()
        && split["type"] == "ByteLevel"
        && split["add_prefix_space"] == false
        && split["use_regex"] == true;
    match unk {
        Some(unk) if words => Quick::Words(WordEncoder::new(library.get_vocab(false), unk)),
        _ if pieces => Quick::Pieces,
        _ => Quick::No,
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
