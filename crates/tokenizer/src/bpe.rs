//! Byte-pair encoding of vocabularies as GGUF files carry them: the best pair is merged first.
//!
//! The library wants every merge as a pair of strings: half a million of them for the quarter of a million
//! pieces of a SentencePiece vocabulary, a second and a hundred MiB. There the scores say the same, pair by
//! pair, when a text asks (Kudo and Richardson 2018, section 3.1); byte-level vocabularies list their
//! merges, which are kept as ids. The ids that come out are the library's, ties included: [`Weight`] is
//! the order of its ranks, and `merges_by_score` spells that order out for files.

use crate::Error;
use crate::texts::{Lookup, Texts};
use crate::vocabulary::{MARK, USER_DEFINED, Vocabulary, is_control};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use tokenizers::{
    NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
    PreTokenizerWrapper, normalizers::NFC,
};

/// Encodes by merging.
#[derive(Debug)]
pub(crate) struct Bpe {
    pieces: Lookup,
    kinds: Vec<u8>,
    rule: Rule,
    /// Lengths of control and user-defined tokens and the unknown one by their first byte, the longest
    /// first.
    whole: HashMap<u8, Vec<usize>>,
    /// Tokens that stand for several spaces and nothing else, and for how many; the longest first.
    spaces: Vec<(usize, u32)>,
}

/// Which pairs are merged, and what stands before that.
#[derive(Debug)]
pub(crate) enum Rule {
    /// SentencePiece: pairs whose text is a piece, by its score.
    Scores {
        /// A score a piece.
        scores: Vec<f32>,
        /// The pieces that stand for single bytes, where a character is none.
        bytes: Vec<Option<u32>>,
        /// What stands for the rest.
        unk: Option<u32>,
        /// Whether a text gets a space in front.
        space_prefix: bool,
    },
    /// Byte-level: listed pairs, in words.
    Ranks {
        /// The list.
        ranks: Ranks,
        /// How text is cut into words of byte-level signs.
        cut: Box<PreTokenizerWrapper>,
        /// Whether text is composed (NFC) first.
        composed: bool,
        /// Whether a word that is a piece stays whole whatever the merges say.
        words_whole: bool,
        /// The name of this way, for files.
        pre: String,
    },
}

/// Of pairs of pieces: the place in the list, and what they become.
pub(crate) type Ranks = hashbrown::HashMap<(u32, u32), (u32, u32)>;

/// What a pair weighs against others; the greatest is merged first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Weight {
    /// The score in the order of whole numbers; characters of the left and the right part; then the piece
    /// and the parts that come first in the vocabulary.
    Score(i32, (usize, usize), Reverse<(u32, (u32, u32))>),
    /// The first in the list.
    Rank(Reverse<u32>),
}

/// A pair that may become a piece: of equal weights the first in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    weight: Weight,
    at: Reverse<usize>,
    piece: u32,
}

/// A piece of a text on its way: its id and its neighbours.
struct Symbol {
    id: u32,
    before: Option<usize>,
    after: Option<usize>,
    gone: bool,
}

/// Whole numbers in the order that `f32::total_cmp` puts floats in.
fn in_order(score: f32) -> i32 {
    let bits = score.to_bits().cast_signed();
    bits ^ (((bits >> 31).cast_unsigned() >> 1).cast_signed())
}

impl Bpe {
    pub(crate) fn new(
        vocabulary: &Vocabulary<'_>,
        rule: impl FnOnce(&Lookup) -> Result<Rule, Error>,
    ) -> Result<Self, Error> {
        let texts: Texts = vocabulary.tokens.iter().map(|&text| Some(text)).collect();
        let pieces = Lookup::new(texts);
        // A type outside a byte is none of those that matter here.
        let kinds = (0..vocabulary.tokens.len())
            .map(|id| u8::try_from(vocabulary.kind(id)).unwrap_or_default())
            .collect();
        let mut whole: HashMap<u8, Vec<usize>> = HashMap::new();
        let spaces = |id: u32| Some((vocabulary.spaces(id as usize)?, id));
        let mut spaces: Vec<(usize, u32)> =
            (0..vocabulary.tokens.len() as u32).filter_map(spaces).collect();
        spaces.sort_unstable_by_key(|&(count, id)| (Reverse(count), id));
        for (id, token) in vocabulary.tokens.iter().enumerate() {
            if vocabulary.spaces(id).is_some() {
                continue;
            }
            if let Some(&first) = token.as_bytes().first()
                && (is_control(vocabulary.kind(id)) || vocabulary.kind(id) == USER_DEFINED)
            {
                whole.entry(first).or_default().push(token.len());
            }
        }
        for lengths in whole.values_mut() {
            lengths.sort_unstable_by_key(|&length| Reverse(length));
            lengths.dedup();
        }
        Ok(Self { rule: rule(&pieces)?, pieces, kinds, whole, spaces })
    }

    pub(crate) fn texts(&self) -> &Texts {
        self.pieces.texts()
    }

    pub(crate) fn kinds(&self) -> impl Iterator<Item = i64> {
        self.kinds.iter().map(|&kind| i64::from(kind))
    }

    pub(crate) fn rule(&self) -> &Rule {
        &self.rule
    }

    pub(crate) fn id(&self, text: &str) -> Option<u32> {
        self.pieces.id(text)
    }

    /// Names and ids of control tokens, the unknown one among them.
    pub(crate) fn controls(&self) -> Vec<(String, u32)> {
        let ids = (0..self.texts().len() as u32).filter(|&id| is_control(self.kind(id)));
        ids.filter_map(|id| Some((self.texts().get(id)?.to_owned(), id))).collect()
    }

    fn kind(&self, id: u32) -> i64 {
        self.kinds.get(id as usize).map_or(0, |&kind| i64::from(kind))
    }

    /// Control and user-defined tokens, and the unknown one, are made of no parts and are no part.
    fn ordinary(&self, id: u32) -> bool {
        !is_control(self.kind(id)) && self.kind(id) != USER_DEFINED
    }

    pub(crate) fn encode(&self, text: &str) -> Vec<u32> {
        let (mut ids, mut from, mut at) = (Vec::new(), 0, 0);
        while at < text.len() {
            let Some((id, length)) = self.whole_at(text, at) else {
                at += 1;
                continue;
            };
            // The name of a control token is text.
            if !is_control(self.kind(id)) {
                self.encode_between(&text[from..at], &mut ids);
                ids.push(id);
                from = at + length;
            }
            at += length;
        }
        self.encode_between(&text[from..], &mut ids);
        ids
    }

    /// The longest control or user-defined token that begins here, and its length.
    fn whole_at(&self, text: &str, at: usize) -> Option<(u32, usize)> {
        // Marks in the text itself are such a token's name; spaces become marks later.
        if let Some(found) = text.get(at..).and_then(|rest| self.spaces_at(rest)) {
            return Some(found);
        }
        let lengths = self.whole.get(&text.as_bytes()[at])?;
        lengths.iter().find_map(|&length| {
            let id = self.id(text.get(at..at + length)?)?;
            (!self.ordinary(id)).then_some((id, length))
        })
    }

    /// The longest token of several spaces that marks at the beginning of a text stand for, and its
    /// length.
    fn spaces_at(&self, text: &str) -> Option<(u32, usize)> {
        self.spaces.first().filter(|_| text.starts_with(MARK))?;
        let marks = text.chars().take_while(|c| MARK.contains(*c)).count();
        let &(count, id) = self.spaces.iter().find(|(count, _)| *count <= marks)?;
        Some((id, count * MARK.len()))
    }

    /// Spaces are marks here.
    fn encode_marked(&self, text: &str, ids: &mut Vec<u32>) {
        let (mut from, mut at) = (0, 0);
        while let Some(mark) = text[at..].find(MARK).filter(|_| !self.spaces.is_empty()) {
            at += mark;
            match self.spaces_at(&text[at..]) {
                Some((id, length)) => {
                    self.encode_word(&text[from..at], ids);
                    ids.push(id);
                    at += length;
                    from = at;
                }
                None => at += MARK.len(),
            }
        }
        self.encode_word(&text[from..], ids);
    }

    fn encode_between(&self, text: &str, ids: &mut Vec<u32>) {
        match &self.rule {
            _ if text.is_empty() => {}
            Rule::Scores { space_prefix, .. } => {
                let prefix = if *space_prefix { MARK } else { "" };
                self.encode_marked(&(prefix.to_owned() + &text.replace(' ', MARK)), ids);
            }
            Rule::Ranks { cut, composed, words_whole, .. } => {
                let mut text = NormalizedString::from(text);
                let composing = if *composed { NFC.normalize(&mut text) } else { Ok(()) };
                let mut words = PreTokenizedString::from(text);
                // Neither fails: no pattern gives up on a text. A text without words has no ids.
                if composing.and_then(|()| cut.pre_tokenize(&mut words)).is_err() {
                    return;
                }
                for (word, ..) in words.get_splits(OffsetReferential::Normalized, OffsetType::Byte)
                {
                    match self.id(word).filter(|_| *words_whole) {
                        Some(id) => ids.push(id),
                        None => self.encode_word(word, ids),
                    }
                }
            }
        }
    }

    fn encode_word(&self, word: &str, ids: &mut Vec<u32>) {
        let mut symbols = self.symbols(word);
        self.merge(&mut symbols);
        ids.extend(symbols.iter().filter(|s| !s.gone).map(|s| s.id));
    }

    /// A symbol a character that is a piece; bytes for others, or unknown where a byte has no piece.
    fn symbols(&self, text: &str) -> Vec<Symbol> {
        let (bytes, unk) = match &self.rule {
            Rule::Scores { bytes, unk, .. } => (&bytes[..], *unk),
            Rule::Ranks { .. } => (&[][..], None),
        };
        let byte_piece = |byte: u8| bytes.get(usize::from(byte)).copied().flatten();
        let mut ids: Vec<u32> = Vec::with_capacity(text.len());
        let mut unknown = false;
        for c in text.chars() {
            let mut buffer = [0; 4];
            let c: &str = c.encode_utf8(&mut buffer);
            let from = ids.len();
            let known = match self.id(c) {
                Some(id) => {
                    ids.push(id);
                    true
                }
                None => c.bytes().all(|byte| {
                    byte_piece(byte).is_some_and(|id| {
                        ids.push(id);
                        true
                    })
                }),
            };
            if !known {
                ids.truncate(from);
                // Unknown characters in a row are one unknown token.
                ids.extend(unk.filter(|_| !unknown));
            }
            unknown = !known;
        }
        let last = ids.len().saturating_sub(1);
        let symbol = |(at, id): (usize, u32)| Symbol {
            id,
            before: at.checked_sub(1),
            after: (at < last).then_some(at + 1),
            gone: false,
        };
        ids.into_iter().enumerate().map(symbol).collect()
    }

    fn merge(&self, symbols: &mut [Symbol]) {
        let mut text = String::new();
        let pairs = (0..symbols.len().saturating_sub(1))
            .filter_map(|at| self.candidate(symbols, at, at + 1, &mut text));
        let mut queue: BinaryHeap<Candidate> = pairs.collect::<Vec<_>>().into();
        while let Some(Candidate { at: Reverse(at), piece, .. }) = queue.pop() {
            let Some(after) = symbols[at].after.filter(|_| !symbols[at].gone) else { continue };
            // The parts may have become others since; what they make together decides.
            let still = self.candidate(symbols, at, after, &mut text);
            if still.is_none_or(|now| now.piece != piece) {
                continue;
            }
            symbols[at].id = piece;
            symbols[after].gone = true;
            let next = symbols[after].after;
            symbols[at].after = next;
            if let Some(next) = next {
                symbols[next].before = Some(at);
                queue.extend(self.candidate(symbols, at, next, &mut text));
            }
            if let Some(before) = symbols[at].before {
                queue.extend(self.candidate(symbols, before, at, &mut text));
            }
        }
    }

    /// The piece that two neighbours make, if any.
    fn candidate(
        &self,
        symbols: &[Symbol],
        left: usize,
        right: usize,
        text: &mut String,
    ) -> Option<Candidate> {
        let parts = (symbols[left].id, symbols[right].id);
        let (weight, piece) = match &self.rule {
            Rule::Ranks { ranks, .. } => {
                let &(rank, piece) = ranks.get(&parts)?;
                (Weight::Rank(Reverse(rank)), piece)
            }
            Rule::Scores { scores, .. } => {
                let (a, b) = (self.texts().get(parts.0)?, self.texts().get(parts.1)?);
                text.clear();
                text.push_str(a);
                text.push_str(b);
                let piece = self.id(text)?;
                if ![piece, parts.0, parts.1].into_iter().all(|id| self.ordinary(id)) {
                    return None;
                }
                let chars = (a.chars().count(), b.chars().count());
                let score = in_order(scores[piece as usize]);
                (Weight::Score(score, chars, Reverse((piece, parts))), piece)
            }
        };
        Some(Candidate { weight, at: Reverse(left), piece })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Specials;
    use proptest::prelude::*;

    /// A vocabulary of the pieces of a small alphabet, with equal scores among them, bytes, control
    /// and user-defined tokens.
    fn scored(scores: &[u8], space_prefix: bool) -> Bpe {
        let mut tokens: Vec<String> =
            ["<unk>", "<s>", "ab<", "a<", "\n\n"].map(str::to_owned).into();
        let mut types = vec![2, 3, 3, 4, 4];
        for byte in 0..=255u8 {
            tokens.push(format!("<{byte:#04X}>"));
            types.push(6);
        }
        let letters = ["a", "b", "▁", "é"];
        tokens.extend(letters.map(str::to_owned));
        for (a, b) in letters.iter().flat_map(|a| letters.iter().map(move |b| (a, b))) {
            tokens.push(format!("{a}{b}"));
            tokens.extend(letters.map(|c| format!("{a}{b}{c}")));
            tokens.push(format!("{a}{b}{b}{a}"));
        }
        tokens.push("<0".to_owned());
        tokens.push("<".to_owned());
        tokens.push("0".to_owned());
        types.resize(tokens.len(), 1);
        let scores = (0..tokens.len())
            .map(|id| f32::from(scores[id % scores.len()] % 8))
            .collect::<Vec<_>>();
        Bpe::of(&Vocabulary {
            model: "llama",
            pre: "default",
            tokens: tokens.iter().map(String::as_str).collect(),
            scores: &scores,
            types: &types,
            merges: None,
            specials: Specials { unk: Some(0), ..Specials::default() },
            space_prefix,
        })
        .unwrap()
    }

    proptest! {
        /// The ids are those of the library, for any scores: ties, added tokens, bytes, the space in front.
        #[test]
        fn as_the_library(
            scores in prop::collection::vec(any::<u8>(), 1..40),
            space_prefix in any::<bool>(),
            text in "([ab é<0]|a<|ab<|<s>|<unk>|\n|x|▁){0,40}",
        ) {
            let scored = scored(&scores, space_prefix);
            let library = scored.library().unwrap();
            let expected = library.encode_fast(text.as_str(), false).unwrap();
            prop_assert_eq!(scored.encode(&text), expected.get_ids());
        }

        /// The same for listed merges, however text is cut, and with words that stay whole.
        #[test]
        fn as_the_library_by_ranks(
            pairs in prop::collection::vec((0..12usize, 0..12usize), 0..60),
            pre in prop::sample::select(vec!["gpt-2", "smollm", "llama-bpe", "qwen2"]),
            text in "([ab é<0']|<s>|A\u{30a}|\n|  |[🙂漢]){0,40}",
        ) {
            let mut tokens: Vec<String> = ["<s>", "a<", "ab "].map(str::to_owned).into();
            tokens.extend((0..=255u8).map(|byte| crate::decode::char_of(byte).to_string()));
            let bytes = "ab <0\u{c3}\u{a9}A\n'\u{cc}\u{8a}";
            let mut pieces: Vec<String> =
                bytes.chars().map(|c| crate::decode::char_of(c as u8).to_string()).collect();
            let mut merges = Vec::new();
            for (a, b) in pairs {
                let (a, b) = (pieces[a * pieces.len() / 12].clone(), pieces[b * pieces.len() / 12].clone());
                let made = format!("{a}{b}");
                let merge = format!("{a} {b}");
                if !tokens.contains(&made) {
                    pieces.push(made.clone());
                    tokens.push(made);
                }
                if !merges.contains(&merge) {
                    merges.push(merge);
                }
            }
            let types: Vec<i64> = (0..tokens.len()).map(|id| [3, 4, 4].get(id).copied().unwrap_or(1)).collect();
            let bpe = Bpe::of(&Vocabulary {
                model: "gpt2",
                pre,
                tokens: tokens.iter().map(String::as_str).collect(),
                scores: &[],
                types: &types,
                merges: Some(merges.iter().map(String::as_str).collect()),
                specials: Specials::default(),
                space_prefix: false,
            })
            .unwrap();
            let library = bpe.library().unwrap();
            let expected = library.encode_fast(text.as_str(), false).unwrap();
            prop_assert_eq!(bpe.encode(&text), expected.get_ids());
        }
    }
}
