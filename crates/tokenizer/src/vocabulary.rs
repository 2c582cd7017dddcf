//! A vocabulary as GGUF files carry it, turned into the library's object.
//!
//! Two kinds: byte-level BPE with merges and a named way of cutting text first ("gpt2"), and
//! SentencePiece BPE, whose merges follow from the scores of its pieces ("llama"). What is not known
//! by name is refused: a text cut another way gives other ids without any error.

use crate::bpe::{Bpe, Ranks, Rule};
use crate::texts::Lookup;
use crate::tokenizer::{Encoder, Parts, hex};
use crate::{Error, Specials, Tokenizer};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::{NFC, Prepend, Replace, Sequence as Normalizers};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

/// The mark that stands for a space in SentencePiece vocabularies.
pub(crate) const MARK: &str = "▁";
/// Words as Llama 3 cuts them: numbers in groups of at most three.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with one digit a piece.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Words by upper and lower case, as Mistral's newer vocabularies cut them.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How text is cut before byte-level BPE looks at it.
#[derive(Clone, Copy)]
pub(crate) enum Cut {
    /// GPT-2's pattern.
    Gpt2,
    /// Single digits, then GPT-2's pattern.
    DigitsGpt2,
    /// A pattern of its own.
    Pattern(&'static str),
}

/// Names of ways to cut, and whether a piece that is a token stays whole whatever the merges say.
pub(crate) const CUTS: [(&str, Cut, bool); 13] = [
    ("gpt-2", Cut::Gpt2, false),
    ("default", Cut::Gpt2, false),
    ("smollm", Cut::DigitsGpt2, false),
    ("starcoder", Cut::DigitsGpt2, false),
    ("refact", Cut::DigitsGpt2, false),
    ("command-r", Cut::DigitsGpt2, false),
    ("llama-bpe", Cut::Pattern(LLAMA3), true),
    ("llama3", Cut::Pattern(LLAMA3), true),
    ("dbrx", Cut::Pattern(LLAMA3), false),
    ("smaug-bpe", Cut::Pattern(LLAMA3), false),
    ("qwen2", Cut::Pattern(QWEN2), false),
    ("deepseek-r1-qwen", Cut::Pattern(QWEN2), false),
    ("tekken", Cut::Pattern(TEKKEN), true),
];

/// A vocabulary in a GGUF file's words.
#[derive(Clone, Debug)]
pub struct Vocabulary<'a> {
    /// `tokenizer.ggml.model`: "gpt2" or "llama".
    pub model: &'a str,
    /// `tokenizer.ggml.pre`: how text is cut first ("gpt2" kind).
    pub pre: &'a str,
    /// The tokens by id.
    pub tokens: Vec<&'a str>,
    /// A score a token ("llama" kind).
    pub scores: &'a [f32],
    /// A type a token: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; all normal
    /// when there are none.
    pub types: &'a [i64],
    /// Pairs in the order of their rank ("gpt2" kind, which must say so even when there are none).
    pub merges: Option<Vec<&'a str>>,
    /// Ids with a meaning of their own; `bos` where a text begins with it.
    pub specials: Specials,
    /// Whether a text gets a space in front ("llama" kind).
    pub space_prefix: bool,
}

pub(crate) const UNKNOWN: i64 = 2;
pub(crate) const CONTROL: i64 = 3;
pub(crate) const USER_DEFINED: i64 = 4;

/// Whether the name of a token of this type is plain text unless asked otherwise.
pub(crate) fn is_control(kind: i64) -> bool {
    matches!(kind, CONTROL | UNKNOWN)
}

impl Vocabulary<'_> {
    /// How many spaces a user-defined token of a SentencePiece vocabulary stands for, if for nothing
    /// else: files hold them as spaces, or with a mark for each. Where a text gets a space in front,
    /// such tokens are taken as they are written.
    pub(crate) fn spaces(&self, id: usize) -> Option<usize> {
        let spaces = self.model == "llama" && !self.space_prefix && self.kind(id) == USER_DEFINED;
        let token = self.tokens.get(id).filter(|_| spaces)?;
        let all = |space: char| token.chars().all(|c| c == space);
        let count = token.chars().count();
        (count > 1 && (all(' ') || MARK.chars().all(all))).then_some(count)
    }

    pub(crate) fn kind(&self, id: usize) -> i64 {
        self.types.get(id).copied().unwrap_or(1)
    }

    fn check(&self) -> Result<(), Error> {
        let n = self.tokens.len();
        for (key, len) in [("scores", self.scores.len()), ("token_type", self.types.len())] {
            if len != 0 && len != n {
                let what = format!("`tokenizer.ggml.{key}` has {len} entries for {n} tokens");
                return Err(Error::Vocabulary { what });
            }
        }
        let named = [self.specials.bos, self.specials.eos, self.specials.pad, self.specials.unk];
        match named.into_iter().flatten().find(|&id| id as usize >= n) {
            Some(id) => {
                Err(Error::Vocabulary { what: format!("special token {id} of {n} tokens") })
            }
            None if n == 0 => Err(missing("tokens", self.model)),
            None => Ok(()),
        }
    }

    fn digest(&self) -> String {
        let mut hash = Sha256::new();
        let mut add = |text: &str| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        add(self.model);
        add(self.pre);
        self.tokens.iter().chain(self.merges.iter().flatten()).for_each(|text| add(text));
        self.scores.iter().for_each(|s| hash.update(s.to_le_bytes()));
        self.types.iter().for_each(|t| hash.update(t.to_le_bytes()));
        hash.update([u8::from(self.space_prefix), u8::from(self.specials.bos.is_some())]);
        hex(&hash.finalize())
    }
}

fn missing(key: &str, model: &str) -> Error {
    Error::Vocabulary {
        what: format!("key `tokenizer.ggml.{key}` is missing (a `{model}` vocabulary)"),
    }
}

fn library_error(error: tokenizers::Error) -> Error {
    Error::Vocabulary { what: error.to_string() }
}

impl Tokenizer {
    /// The tokenizer that a GGUF file's vocabulary describes.
    ///
    /// # Errors
    /// [`Error::Vocabulary`] names the key that is missing or does not fit, or the kind that is not
    /// known.
    pub fn from_vocabulary(vocabulary: &Vocabulary<'_>) -> Result<Self, Error> {
        vocabulary.check()?;
        Self::from_parts(Parts {
            encoder: Encoder::Bpe(Bpe::of(vocabulary)?),
            decoder: &decoder(vocabulary),
            specials: vocabulary.specials,
            bytes: None,
            sha256: vocabulary.digest(),
        })
    }
}

impl Bpe {
    /// What a vocabulary describes.
    pub(crate) fn of(vocabulary: &Vocabulary<'_>) -> Result<Self, Error> {
        match vocabulary.model {
            "gpt2" => Self::new(vocabulary, |pieces| ranks(vocabulary, pieces)),
            "llama" if vocabulary.scores.is_empty() => Err(missing("scores", "llama")),
            "llama" => Self::new(vocabulary, |pieces| {
                Ok(Rule::Scores {
                    scores: vocabulary.scores.to_vec(),
                    bytes: (0..=255u8).map(|byte| pieces.id(&format!("<{byte:#04X}>"))).collect(),
                    unk: vocabulary.specials.unk,
                    space_prefix: vocabulary.space_prefix,
                })
            }),
            other => {
                let what = format!("`tokenizer.ggml.model` is `{other}`, expected gpt2 or llama");
                Err(Error::Vocabulary { what })
            }
        }
    }

    /// The same as the library's object, which files are written from.
    pub(crate) fn library(&self) -> Result<tokenizers::Tokenizer, Error> {
        let texts = self.texts();
        let text = |id: u32| texts.get(id).unwrap_or_default();
        let types: Vec<i64> = self.kinds().collect();
        let plain = Vocabulary {
            model: "gpt2",
            pre: "default",
            tokens: (0..texts.len() as u32).map(text).collect(),
            scores: &[],
            types: &types,
            merges: None,
            specials: Specials::default(),
            space_prefix: false,
        };
        match self.rule() {
            Rule::Scores { scores, unk, space_prefix, .. } => library(&Vocabulary {
                model: "llama",
                scores,
                specials: Specials { unk: *unk, ..Specials::default() },
                space_prefix: *space_prefix,
                ..plain
            }),
            Rule::Ranks { ranks, pre, .. } => {
                let mut pairs: Vec<_> =
                    ranks.iter().map(|(&pair, &(rank, _))| (rank, pair)).collect();
                pairs.sort_unstable();
                let merge = |&(_, (a, b)): &(u32, (u32, u32))| format!("{} {}", text(a), text(b));
                let merges: Vec<String> = pairs.iter().map(merge).collect();
                let merges = Some(merges.iter().map(String::as_str).collect());
                library(&Vocabulary { pre, merges, ..plain })
            }
        }
    }
}

/// The listed merges as ids, and how text is cut before them.
fn ranks(vocabulary: &Vocabulary<'_>, pieces: &Lookup) -> Result<Rule, Error> {
    let (name, cut, words_whole) = cut_of(vocabulary)?;
    let lacks = || missing("merges", vocabulary.model);
    let merges = vocabulary.merges.as_ref().ok_or_else(lacks)?;
    let (mut ranks, mut made) = (Ranks::with_capacity(merges.len()), String::new());
    for (rank, pair) in (0..).zip(merges) {
        let (left, right) = halves(pair)?;
        made.clear();
        made.push_str(left);
        made.push_str(right);
        let id = |part: &str| {
            let lacks = || Error::Vocabulary {
                what: format!("merge {pair:?} needs the token {part:?}, which is not there"),
            };
            pieces.id(part).ok_or_else(lacks)
        };
        ranks.insert((id(left)?, id(right)?), (rank, id(&made)?));
    }
    let cut = Box::new(splitter(cut)?);
    let composed = composes(name);
    Ok(Rule::Ranks { ranks, cut, composed, words_whole, pre: name.to_owned() })
}

/// The parts of a merge. A token may begin with a space only as its byte-level sign, so this one parts
/// the two.
fn halves(pair: &str) -> Result<(&str, &str), Error> {
    let what = || Error::Vocabulary { what: format!("merge {pair:?} is no pair") };
    pair.split_once(' ').ok_or_else(what)
}

fn cut_of(vocabulary: &Vocabulary<'_>) -> Result<(&'static str, Cut, bool), Error> {
    CUTS.iter().find(|(name, ..)| *name == vocabulary.pre).copied().ok_or_else(|| {
        let known: Vec<&str> = CUTS.iter().map(|(name, ..)| *name).collect();
        let what =
            format!("`tokenizer.ggml.pre` is `{}`; known are {}", vocabulary.pre, known.join(", "));
        Error::Vocabulary { what }
    })
}

/// Whether vocabularies of this name compose text (NFC) first.
fn composes(name: &str) -> bool {
    name.contains("qwen")
}

fn splitter(cut: Cut) -> Result<PreTokenizerWrapper, Error> {
    let bytes = |regex| PreTokenizerWrapper::from(ByteLevel::new(false, true, regex));
    Ok(match cut {
        Cut::Gpt2 => bytes(true),
        Cut::DigitsGpt2 => Sequence::new(vec![Digits::new(true).into(), bytes(true)]).into(),
        Cut::Pattern(pattern) => {
            let pattern = SplitPattern::Regex(pattern.to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
            Sequence::new(vec![split.map_err(library_error)?.into(), bytes(false)]).into()
        }
    })
}

/// A vocabulary as the library's object.
fn library(vocabulary: &Vocabulary<'_>) -> Result<tokenizers::Tokenizer, Error> {
    let mut library = match vocabulary.model {
        "llama" => pieces(vocabulary)?,
        _ => byte_level(vocabulary)?,
    };
    let decode = serde_json::from_value::<tokenizers::DecoderWrapper>(decoder(vocabulary))
        .map_err(|e| Error::Vocabulary { what: e.to_string() })?;
    library.with_decoder(Some(decode));
    let added = |special: bool| {
        let kind = |id: usize| vocabulary.kind(id);
        let is = move |&id: &usize| {
            if special { is_control(kind(id)) } else { kind(id) == USER_DEFINED }
        };
        let ids = (0..vocabulary.tokens.len()).filter(is);
        ids.map(move |id| {
            let spaces = vocabulary.spaces(id).is_some();
            AddedToken::from(vocabulary.tokens[id], special).normalized(spaces)
        })
    };
    library.add_special_tokens(added(true)).map_err(library_error)?;
    library.add_tokens(added(false)).map_err(library_error)?;
    library.set_encode_special_tokens(true);
    Ok(library)
}

fn ids(tokens: &[&str]) -> Vocab {
    (0..).zip(tokens).map(|(id, &token)| (token.into(), id)).collect()
}

fn byte_level(vocabulary: &Vocabulary<'_>) -> Result<tokenizers::Tokenizer, Error> {
    let (name, cut, words_whole) = cut_of(vocabulary)?;
    let merges = vocabulary.merges.iter().flatten();
    let owned = merges.map(|pair| halves(pair).map(|(a, b)| (a.to_owned(), b.to_owned())));
    let bpe = BPE::builder()
        .vocab_and_merges(ids(&vocabulary.tokens), owned.collect::<Result<Vec<_>, _>>()?)
        .ignore_merges(words_whole)
        .build()
        .map_err(library_error)?;
    let mut library = tokenizers::Tokenizer::new(bpe);
    library.with_pre_tokenizer(Some(splitter(cut)?));
    if composes(name) {
        library.with_normalizer(Some(NFC)).map_err(library_error)?;
    }
    Ok(library)
}

fn pieces(vocabulary: &Vocabulary<'_>) -> Result<tokenizers::Tokenizer, Error> {
    let unknown = vocabulary.specials.unk.and_then(|id| vocabulary.tokens.get(id as usize));
    let mut builder = BPE::builder()
        .vocab_and_merges(ids(&vocabulary.tokens), merges_by_score(vocabulary))
        .byte_fallback(true)
        .fuse_unk(true);
    if let Some(unknown) = unknown {
        builder = builder.unk_token((*unknown).to_owned());
    }
    let mut library = tokenizers::Tokenizer::new(builder.build().map_err(library_error)?);
    let marks = NormalizerWrapper::from(Replace::new(" ", MARK).map_err(library_error)?);
    let normalizer = if vocabulary.space_prefix {
        Normalizers::new(vec![Prepend::new(MARK.to_owned()).into(), marks])
    } else {
        Normalizers::new(vec![marks])
    };
    library.with_normalizer(Some(normalizer)).map_err(library_error)?;
    Ok(library)
}

/// How pieces become text again, in a `tokenizer.json`'s words.
fn decoder(vocabulary: &Vocabulary<'_>) -> serde_json::Value {
    if vocabulary.model == "gpt2" {
        return serde_json::json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true
        });
    }
    let mut steps = vec![
        serde_json::json!({"type": "Replace", "pattern": {"String": MARK}, "content": " "}),
        serde_json::json!({"type": "ByteFallback"}),
        serde_json::json!({"type": "Fuse"}),
    ];
    if vocabulary.space_prefix {
        steps.push(serde_json::json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    serde_json::json!({"type": "Sequence", "decoders": steps})
}

/// (score, left, right) of the pairs that make tokens, in the tokens' order.
fn pairs_of(
    vocabulary: &Vocabulary<'_>,
    places: &HashMap<&str, usize>,
    ordinary: impl Fn(usize) -> bool,
) -> Vec<(f32, usize, usize)> {
    let mut all = Vec::with_capacity(2 * vocabulary.tokens.len());
    for id in (0..vocabulary.tokens.len()).filter(|&id| ordinary(id)) {
        let (token, from) = (&vocabulary.tokens[id], all.len());
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(&left), Some(&right)) = (places.get(left), places.get(right)) {
                all.push((vocabulary.scores[id], left, right));
            }
        }
        all[from..].sort_unstable_by_key(|&(_, left, right)| (left, right));
    }
    all
}

/// The pairs that make a piece, the best piece first; of one piece's pairs the one whose parts come
/// first in the vocabulary. Control and user-defined tokens, and the unknown one, are made of no parts.
fn merges_by_score(vocabulary: &Vocabulary<'_>) -> Vec<(String, String)> {
    let ordinary = |id: usize| !matches!(vocabulary.kind(id), CONTROL | UNKNOWN | USER_DEFINED);
    let places: HashMap<&str, usize> = vocabulary
        .tokens
        .iter()
        .enumerate()
        .filter(|&(id, _)| ordinary(id))
        .map(|(id, &token)| (token, id))
        .collect();
    let mut all = pairs_of(vocabulary, &places, ordinary);
    let chars = |id: usize| vocabulary.tokens[id].chars().count();
    let lengths: Vec<usize> = (0..vocabulary.tokens.len()).map(chars).collect();
    all.sort_by(|a, b| {
        let key = |m: &(f32, usize, usize)| (lengths[m.1], lengths[m.2]);
        b.0.total_cmp(&a.0).then_with(|| key(b).cmp(&key(a)))
    });
    let text = |id: usize| vocabulary.tokens[id].to_owned();
    all.into_iter().map(|(_, left, right)| (text(left), text(right))).collect()
}
