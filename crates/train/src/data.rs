//! Where token sequences come from, and the order in which an epoch sees them.

use crate::config::Recipe;
use crate::zero::Place;
use corpus::TokenFile;
use kernels::{stream_key, uniform_bits};
use models::{Batch, Recompute};

/// What evaluation wants to know of a sequence beside its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Its group.
    pub group: u32,
    /// Whether it holds a long run of tokens that the training side holds too.
    pub seen_run: bool,
}

/// Sequences of token ids, `<bos>` first; or packs of several, which count as one.
pub trait Sequences {
    /// How many.
    fn len(&self) -> usize;
    /// Tokens of one; of the longest of a pack.
    fn length(&self, index: usize) -> usize;
    /// Copies one over what `out` holds.
    fn copy(&self, index: usize, out: &mut Vec<u32>);
    /// What else is known of it.
    fn facts(&self, index: usize) -> Facts;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The longest.
    fn longest(&self) -> usize {
        (0..self.len()).map(|i| self.length(i)).max().unwrap_or(0)
    }
    /// Targets in all: every token but the first of each, where none is marked otherwise.
    fn targets(&self) -> u64 {
        (0..self.len()).map(|i| self.num_targets(i)).sum()
    }
    /// Sequences in one: more than one in a pack.
    fn parts(&self, _index: usize) -> usize {
        1
    }
    /// Tokens of one that are read: all but the last of each sequence.
    fn rows(&self, index: usize) -> usize {
        self.length(index).saturating_sub(1)
    }
    /// Targets of one.
    fn num_targets(&self, index: usize) -> u64 {
        self.rows(index) as u64
    }
    /// Adds one to a batch; `ids` is scratch.
    fn add_to(&self, index: usize, batch: &mut Batch, ids: &mut Vec<u32>) {
        self.copy(index, ids);
        batch.push_known(ids, index as u64);
    }
}

impl Sequences for TokenFile {
    fn len(&self) -> usize {
        TokenFile::len(self)
    }
    fn length(&self, index: usize) -> usize {
        TokenFile::length(self, index)
    }
    fn copy(&self, index: usize, out: &mut Vec<u32>) {
        self.sequence(index, out);
    }
    fn facts(&self, index: usize) -> Facts {
        Facts { group: self.group(index), seen_run: self.flags(index).seen_run }
    }
}

impl Sequences for Vec<Vec<u32>> {
    fn len(&self) -> usize {
        Vec::len(self)
    }
    fn length(&self, index: usize) -> usize {
        self[index].len()
    }
    fn copy(&self, index: usize, out: &mut Vec<u32>) {
        out.clear();
        out.extend_from_slice(&self[index]);
    }
    fn facts(&self, index: usize) -> Facts {
        Facts { group: index as u32, seen_run: false }
    }
}

/// The order of an epoch: a pure function of (seed, epoch, number of sequences).
pub fn epoch_order(seed: u64, epoch: u64, len: usize) -> Vec<u32> {
    const STREAM: u64 = 0x006f_7264_6572;
    let key = stream_key(seed, STREAM, epoch);
    let mut keyed: Vec<(u64, u32)> =
        (0..len as u32).map(|i| (uniform_bits(key, u64::from(i)), i)).collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, i)| i).collect()
}

/// Bytes that making and keeping an epoch's order takes.
pub fn order_bytes(len: usize) -> u64 {
    20 * len as u64
}

/// How large batches get and what is kept of them, known before the first step: orders are pure functions of the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchShape {
    /// Rows of the largest batch that is computed at once.
    pub rows: usize,
    /// Tokens of the longest sequence.
    pub longest: usize,
    /// Sequences that a batch computed at once holds at most.
    pub sequences: usize,
    /// What the backward pass computes again.
    pub recompute: Recompute,
}

impl BatchShape {
    /// Whole batches of sequences of `longest` tokens.
    pub fn full(recipe: &Recipe, longest: usize) -> BatchShape {
        let sequences = Place::ALONE.at_once(recipe);
        let rows = sequences * longest.saturating_sub(1).max(1);
        BatchShape { rows, longest, sequences, recompute: Recompute::None }
    }

    /// The largest that training and validation will meet.
    pub fn of(recipe: &Recipe, train: &dyn Sequences, valid: &dyn Sequences) -> BatchShape {
        BatchShape::of_place(recipe, train, valid, Place::ALONE)
    }

    /// The largest that a rank will meet.
    pub fn of_place(
        recipe: &Recipe,
        train: &dyn Sequences,
        valid: &dyn Sequences,
        place: Place,
    ) -> BatchShape {
        let micro = place.at_once(recipe);
        let mut shape = BatchShape {
            rows: 1,
            longest: train.longest().max(valid.longest()),
            sequences: 1,
            recompute: Recompute::None,
        };
        let mut meet = |data: &dyn Sequences, part: &[u32]| {
            let sum = |of: &dyn Fn(usize) -> usize| part.iter().map(|&i| of(i as usize)).sum();
            shape.rows = shape.rows.max(sum(&|i| data.rows(i)));
            shape.sequences = shape.sequences.max(sum(&|i| data.parts(i)));
        };
        let in_order: Vec<u32> = (0..valid.len() as u32).collect();
        let parts: Vec<&[u32]> = in_order.chunks(micro).collect();
        place.turns(&parts).into_iter().for_each(|(part, _)| meet(valid, part));
        for epoch in 0..recipe.epochs {
            let order = epoch_order(recipe.seed, epoch, train.len());
            for batch in order.chunks(recipe.batch) {
                let rounds = place.rounds(batch, recipe).into_iter();
                rounds.for_each(|part| meet(train, part.sequences));
            }
        }
        shape
    }

    /// The same with activations computed again.
    #[must_use]
    pub fn recomputing(self, recompute: Recompute) -> BatchShape {
        BatchShape { recompute, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_holds_everything_once_in_its_own_order() {
        let (first, second) = (epoch_order(1, 0, 64), epoch_order(1, 1, 64));
        assert_ne!(first, second);
        assert_eq!(first, epoch_order(1, 0, 64));
        assert_ne!(first, epoch_order(2, 0, 64));
        for order in [first, second] {
            let mut sorted = order;
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..64));
        }
    }
}
