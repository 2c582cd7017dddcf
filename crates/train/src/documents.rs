//! Documents in memory, packed: token ids with a mark on those that count as targets.
//!
//! A document is a sequence of its own: attention, positions and targets end where it ends. A pack
//! is as many whole documents as its room holds and is what an epoch's order and a batch count. So
//! packing evens out the tokens of a step and changes no document's loss.

use crate::data::{Facts, Sequences};
use ledger::{Account, Charge};
use models::{Batch, IGNORED};
use std::collections::BTreeMap;
use std::ops::Range;

/// Documents to be packed.
#[derive(Debug, Default)]
pub struct DocumentList {
    ids: Vec<u32>,
    counted: Vec<bool>,
    ends: Vec<usize>,
}

impl DocumentList {
    /// Adds a document; `counted` says of each token whether it is a target. The first never is.
    /// A document without a target is left out: false.
    pub fn push(&mut self, tokens: impl IntoIterator<Item = (u32, bool)>) -> bool {
        let start = self.ids.len();
        for (id, counted) in tokens {
            self.counted.push(counted && self.ids.len() > start);
            self.ids.push(id);
        }
        let kept = self.counted[start..].contains(&true);
        if kept {
            self.ends.push(self.ids.len());
        } else {
            self.ids.truncate(start);
            self.counted.truncate(start);
        }
        kept
    }

    /// Documents.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Tokens.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    fn range(&self, document: usize) -> Range<usize> {
        let start = if document == 0 { 0 } else { self.ends[document - 1] };
        start..self.ends[document]
    }

    /// Packs documents: the longest first, each into the fullest pack that has room for it. A pack
    /// holds `room` tokens that are read; one document may be longer than that.
    pub fn pack(self, room: usize) -> Documents {
        let rows = |document: usize| self.range(document).len() - 1;
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_by_key(|&d| (std::cmp::Reverse(rows(d)), d));
        let mut packs: Vec<Vec<usize>> = Vec::new();
        // Room left → packs, so that the fullest that fits is found at once.
        let mut open: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for document in order {
            let needed = rows(document);
            let found = open.range(needed..).next().map(|(&left, _)| left);
            let pack = found.and_then(|left| {
                let packs = open.get_mut(&left)?;
                let pack = packs.pop();
                if packs.is_empty() {
                    open.remove(&left);
                }
                pack
            });
            let pack = pack.unwrap_or_else(|| {
                packs.push(Vec::new());
                packs.len() - 1
            });
            packs[pack].push(document);
            let left = found.unwrap_or(room).saturating_sub(needed);
            if left > 0 {
                open.entry(left).or_default().push(pack);
            }
        }
        let bytes = self.ids.len() * 5 + self.ends.len() * 16 + packs.len() * 24;
        let charge = Charge::new(Account::Data, bytes as u64);
        Documents { list: self, packs, bytes: bytes as u64, _charge: charge }
    }
}

/// Packs of documents.
#[derive(Debug)]
pub struct Documents {
    list: DocumentList,
    packs: Vec<Vec<usize>>,
    bytes: u64,
    _charge: Charge,
}

impl Documents {
    /// Bytes that they take.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Documents in all.
    pub fn documents(&self) -> usize {
        self.list.len()
    }

    fn ranges(&self, index: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
        self.packs[index].iter().map(|&d| (d, self.list.range(d)))
    }
}

impl Sequences for Documents {
    fn len(&self) -> usize {
        self.packs.len()
    }
    fn length(&self, index: usize) -> usize {
        self.ranges(index).map(|(_, r)| r.len()).max().unwrap_or(0)
    }
    /// All documents of a pack, end to end.
    fn copy(&self, index: usize, out: &mut Vec<u32>) {
        out.clear();
        self.ranges(index).for_each(|(_, r)| out.extend_from_slice(&self.list.ids[r]));
    }
    fn facts(&self, index: usize) -> Facts {
        Facts { group: index as u32, seen_run: false }
    }
    fn parts(&self, index: usize) -> usize {
        self.packs[index].len()
    }
    fn rows(&self, index: usize) -> usize {
        self.ranges(index).map(|(_, r)| r.len() - 1).sum()
    }
    fn num_targets(&self, index: usize) -> u64 {
        let count = |r: Range<usize>| self.list.counted[r].iter().filter(|&&c| c).count();
        self.ranges(index).map(|(_, r)| count(r) as u64).sum()
    }
    fn add_to(&self, index: usize, batch: &mut Batch, _: &mut Vec<u32>) {
        for (document, range) in self.ranges(index) {
            batch.push_known(&self.list.ids[range.clone()], document as u64);
            let first = batch.targets.len() + 1 - range.len();
            let counted = &self.list.counted[range][1..];
            for (target, &counted) in batch.targets[first..].iter_mut().zip(counted) {
                if !counted {
                    *target = IGNORED;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(lengths: &[usize]) -> DocumentList {
        let mut list = DocumentList::default();
        for (d, &n) in lengths.iter().enumerate() {
            list.push((0..n as u32).map(|t| (100 * d as u32 + t, t % 2 == 1)));
        }
        list
    }

    #[test]
    fn every_document_is_in_one_pack_and_packs_keep_their_room() {
        let lengths = [5, 9, 2, 3, 3, 8, 2, 2, 6];
        let packed = list(&lengths).pack(8);
        let mut seen: Vec<usize> = packed.packs.iter().flatten().copied().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..lengths.len()).collect::<Vec<_>>());
        assert!((0..Sequences::len(&packed)).all(|p| packed.rows(p) <= 8));
        // 31 tokens are read: four packs of eight are the fewest.
        assert_eq!(Sequences::len(&packed), 4);
    }

    #[test]
    fn documents_end_where_they_end_and_only_marked_tokens_are_targets() {
        let packed = list(&[4, 3]).pack(8);
        let mut batch = Batch::default();
        packed.add_to(0, &mut batch, &mut Vec::new());
        assert_eq!(batch.tokens, [0, 1, 2, 100, 101]);
        assert_eq!(batch.targets, [1, IGNORED, 3, 101, IGNORED]);
        assert_eq!(batch.positions, [0, 1, 2, 0, 1]);
        assert_eq!(batch.sequences, [(0, 3), (3, 2)]);
        assert_eq!((packed.num_targets(0), packed.rows(0), packed.parts(0)), (3, 5, 2));
        assert_eq!(packed.targets(), 3);
    }

    #[test]
    fn a_document_without_a_target_is_left_out() {
        let mut list = DocumentList::default();
        assert!(!list.push([(1, true)]));
        assert!(!list.push([(1, false), (2, false)]));
        assert!(list.push([(1, false), (2, true)]));
        assert_eq!((list.len(), list.tokens()), (1, 2));
    }
}
