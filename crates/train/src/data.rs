//! Where token sequences come from, and the order in which an epoch sees them.

use corpus::TokenFile;
use kernels::{stream_key, uniform_bits};

/// What evaluation wants to know of a sequence beside its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Its group.
    pub group: u32,
    /// Whether it holds a long run of tokens that the training side holds too.
    pub seen_run: bool,
}

/// Sequences of token ids, `<bos>` first.
pub trait Sequences {
    /// How many.
    fn len(&self) -> usize;
    /// Tokens of one.
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
    /// Targets in all: every token but the first of each.
    fn targets(&self) -> u64 {
        (0..self.len()).map(|i| self.length(i).saturating_sub(1) as u64).sum()
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
    let mut order: Vec<u32> = (0..len as u32).collect();
    order.sort_by_cached_key(|&i| (uniform_bits(key, u64::from(i)), i));
    order
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
