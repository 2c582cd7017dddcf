//! Byte-level BPE training: one linked list over all distinct pieces, one index from pairs to places.
//!
//! A merge touches only the places where its pair stands, so the work is near linear in the text,
//! also for one piece of a megabyte. Not a port of the Hugging Face trainer: that one moves the rest
//! of a piece at every merge and counts in 32 bits. An occurrence that overlaps itself (`aaa` has
//! two `aa`) counts each time; merging goes from left to right.

use crate::{Error, decode::char_of, specials::OURS};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet},
};

/// A finished vocabulary.
pub(super) struct Merged {
    /// Tokens by id: special tokens, bytes, merges.
    pub(super) tokens: Vec<String>,
    /// Pairs in the order of their rank.
    pub(super) merges: Vec<(u32, u32)>,
}

type Pair = (u32, u32);

/// Marks the end of a piece in the links, and a symbol that was merged into its left neighbour.
const NONE: u32 = u32::MAX;

/// A pair seen only once teaches nothing about other text.
const LEAST_COUNT: u64 = 2;

/// Merges until there are `vocab_size` tokens.
pub(super) fn merge(pieces: &[(&str, u64)], vocab_size: usize) -> Result<Merged, Error> {
    let (mut tokens, byte_ids) = alphabet();
    if vocab_size < tokens.len() {
        let least = tokens.len();
        return Err(Error::VocabularyTooSmall { asked: vocab_size, kind: "byte-level BPE", least });
    }
    let mut ids: HashMap<String, u32> = HashMap::new();
    ids.extend(tokens.iter().enumerate().map(|(id, token)| (token.clone(), id as u32)));
    let mut list = List::new(pieces, &byte_ids)?;
    let mut merges = Vec::new();
    while tokens.len() < vocab_size {
        let Some(pair) = list.best() else {
            return Err(Error::VocabularyTooLarge { asked: vocab_size, possible: tokens.len() });
        };
        let token = format!("{}{}", tokens[pair.0 as usize], tokens[pair.1 as usize]);
        if OURS.contains(&token.as_str()) {
            // Text that spells a special token must never become one.
            list.forbid(pair);
            continue;
        }
        let id = *ids.entry(token.clone()).or_insert(tokens.len() as u32);
        if id as usize == tokens.len() {
            tokens.push(token);
        }
        list.merge(pair, id);
        merges.push(pair);
    }
    Ok(Merged { tokens, merges })
}

/// The special tokens and the 256 bytes (by the code of the character that stands for each), and
/// the id of each byte.
fn alphabet() -> (Vec<String>, [u32; 256]) {
    let mut bytes: Vec<u8> = (0..=255).collect();
    bytes.sort_unstable_by_key(|&byte| char_of(byte));
    let mut ids = [0; 256];
    let mut tokens: Vec<String> = OURS.map(str::to_owned).into();
    for byte in bytes {
        ids[byte as usize] = tokens.len() as u32;
        tokens.push(char_of(byte).to_string());
    }
    (tokens, ids)
}

/// All distinct pieces as one linked list of symbols.
struct List {
    symbol: Vec<u32>,
    next: Vec<u32>,
    prev: Vec<u32>,
    piece: Vec<u32>,
    weights: Vec<u64>,
    pairs: HashMap<Pair, Places>,
    heap: BinaryHeap<(u64, Reverse<Pair>)>,
    forbidden: HashSet<Pair>,
}

/// Where a pair stands: its weight now, and the places of its left symbols (some may be past).
#[derive(Default)]
struct Places {
    weight: u64,
    at: Vec<u32>,
}

impl List {
    fn new(pieces: &[(&str, u64)], byte_ids: &[u32; 256]) -> Result<Self, Error> {
        let len: usize = pieces.iter().map(|(piece, _)| piece.len()).sum();
        if len >= NONE as usize {
            return Err(Error::TooMuchText { found: len, most: NONE as usize - 1 });
        }
        let mut list = Self {
            symbol: Vec::with_capacity(len),
            next: Vec::with_capacity(len),
            prev: Vec::with_capacity(len),
            piece: Vec::with_capacity(len),
            weights: pieces.iter().map(|(_, count)| *count).collect(),
            pairs: HashMap::new(),
            heap: BinaryHeap::new(),
            forbidden: HashSet::new(),
        };
        for (index, (piece, _)) in pieces.iter().enumerate() {
            list.add_piece(index as u32, piece.as_bytes(), byte_ids);
        }
        list.heap = list.pairs.iter().map(|(&pair, p)| (p.weight, Reverse(pair))).collect();
        Ok(list)
    }

    fn add_piece(&mut self, index: u32, bytes: &[u8], byte_ids: &[u32; 256]) {
        for (i, &byte) in bytes.iter().enumerate() {
            let at = self.symbol.len() as u32;
            self.symbol.push(byte_ids[byte as usize]);
            self.piece.push(index);
            self.prev.push(if i == 0 { NONE } else { at - 1 });
            self.next.push(if i + 1 == bytes.len() { NONE } else { at + 1 });
            if i > 0 {
                self.add_pair(at - 1, at);
            }
        }
    }

    /// Counts the pair at two neighbouring places and returns it.
    fn add_pair(&mut self, left: u32, right: u32) -> Pair {
        let pair = (self.symbol[left as usize], self.symbol[right as usize]);
        let places = self.pairs.entry(pair).or_default();
        places.weight += self.weights[self.piece[left as usize] as usize];
        places.at.push(left);
        pair
    }

    fn remove_pair(&mut self, left: u32, right: u32) {
        let pair = (self.symbol[left as usize], self.symbol[right as usize]);
        let weight = self.weights[self.piece[left as usize] as usize];
        if let Some(places) = self.pairs.get_mut(&pair) {
            places.weight = places.weight.saturating_sub(weight);
        }
    }

    /// The pair to merge next. Entries of the heap may be too high; they are put right when they
    /// come up.
    fn best(&mut self) -> Option<Pair> {
        while let Some((weight, Reverse(pair))) = self.heap.pop() {
            let now = self.pairs.get(&pair).map_or(0, |places| places.weight);
            if now < LEAST_COUNT || self.forbidden.contains(&pair) {
                continue;
            }
            if now == weight {
                return Some(pair);
            }
            self.heap.push((now, Reverse(pair)));
        }
        None
    }

    fn forbid(&mut self, pair: Pair) {
        self.forbidden.insert(pair);
    }

    /// Replaces the pair by `id` everywhere.
    fn merge(&mut self, pair: Pair, id: u32) {
        let Some(mut places) = self.pairs.remove(&pair) else { return };
        places.at.sort_unstable();
        places.at.dedup();
        let mut changed = HashSet::new();
        for left in places.at {
            let right = self.next[left as usize];
            let stands =
                right != NONE && (self.symbol[left as usize], self.symbol[right as usize]) == pair;
            if stands {
                self.merge_at(left, right, id, &mut changed);
            }
        }
        self.pairs.remove(&pair);
        for pair in changed {
            if let Some(places) = self.pairs.get(&pair) {
                self.heap.push((places.weight, Reverse(pair)));
            }
        }
    }

    fn merge_at(&mut self, left: u32, right: u32, id: u32, changed: &mut HashSet<Pair>) {
        let (before, after) = (self.prev[left as usize], self.next[right as usize]);
        if before != NONE {
            self.remove_pair(before, left);
        }
        if after != NONE {
            self.remove_pair(right, after);
            self.prev[after as usize] = left;
        }
        self.symbol[left as usize] = id;
        self.next[left as usize] = after;
        self.symbol[right as usize] = NONE;
        self.next[right as usize] = NONE;
        if before != NONE {
            changed.insert(self.add_pair(before, left));
        }
        if after != NONE {
            changed.insert(self.add_pair(left, after));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same rule, told plainly: count everything anew for each merge.
    fn plain(pieces: &[(&str, u64)], merges: usize) -> Vec<Pair> {
        let (tokens, byte_ids) = alphabet();
        let mut words: Vec<(Vec<u32>, u64)> = pieces
            .iter()
            .map(|(p, n)| (p.bytes().map(|b| byte_ids[b as usize]).collect(), *n))
            .collect();
        let mut done = Vec::new();
        while done.len() < merges {
            let mut counts: HashMap<Pair, u64> = HashMap::new();
            for (word, n) in &words {
                word.windows(2).for_each(|w| *counts.entry((w[0], w[1])).or_default() += n);
            }
            let best = counts.into_iter().filter(|c| c.1 >= LEAST_COUNT);
            let Some((pair, _)) = best.max_by_key(|&(pair, n)| (n, Reverse(pair))) else { break };
            let id = (tokens.len() + done.len()) as u32;
            for (word, _) in &mut words {
                let mut i = 0;
                while i + 1 < word.len() {
                    if (word[i], word[i + 1]) == pair {
                        word.splice(i..i + 2, [id]);
                    }
                    i += 1;
                }
            }
            done.push(pair);
        }
        done
    }

    #[test]
    fn agrees_with_the_plain_rule() {
        let pieces: &[(&str, u64)] =
            &[("banana", 3), ("bandana", 2), ("aaaaaaa", 5), ("ab", 9), ("nab", 1), ("bbbab", 4)];
        // No merge of these makes one token by two ways, so ids line up.
        let expected = plain(pieces, 8);
        let merged = merge(pieces, 260 + 8).unwrap();
        assert_eq!(merged.merges, expected);
    }

    #[test]
    fn ties_go_to_the_smaller_ids() {
        let a = merge(&[("xy", 2), ("ab", 2)], 262).unwrap();
        assert_eq!(a.tokens[260], "ab");
        assert_eq!(a.tokens[261], "xy");
    }

    #[test]
    fn text_that_spells_a_special_token_stays_text() {
        let merged = merge(&[("<pad>", 50)], 260 + 3).unwrap();
        assert!(merged.merges.iter().all(|&(a, b)| a > 3 && b > 3));
        assert_eq!(merged.tokens.iter().filter(|t| *t == "<pad>").count(), 1);
        // `<pad>` itself is the fourth merge, and is refused.
        assert!(merge(&[("<pad>", 50)], 260 + 4).is_err());
    }
}
