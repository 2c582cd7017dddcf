//! Rows that run together: tokens of several sequences, end to end, without padding.

use kernels::mix;

/// The target of a row that has none.
pub const IGNORED: u32 = u32::MAX;

/// Sequences end to end. Nothing is padded, so padding can enter nothing.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// R token ids.
    pub tokens: Vec<u32>,
    /// R positions in their sequences.
    pub positions: Vec<u32>,
    /// R ids to predict, or [`IGNORED`].
    pub targets: Vec<u32>,
    /// R keys for dropout: a row's fate does not depend on the batch around it.
    pub row_keys: Vec<u64>,
    /// (first row, rows) of each sequence.
    pub sequences: Vec<(usize, usize)>,
}

impl Batch {
    /// Removes all rows.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.targets.clear();
        self.row_keys.clear();
        self.sequences.clear();
    }

    /// Adds a sequence whose tokens are known: every token but the last is an input, every token
    /// but the first its target. `key` names the sequence for dropout.
    pub fn push_known(&mut self, ids: &[u32], key: u64) {
        let inputs = ids.len().saturating_sub(1);
        self.push_inputs(&ids[..inputs], 0, key);
        let first = self.targets.len() - inputs;
        self.targets[first..].copy_from_slice(&ids[ids.len() - inputs..]);
    }

    /// Adds tokens that follow `past` others of their sequence, without targets.
    pub fn push_inputs(&mut self, ids: &[u32], past: usize, key: u64) {
        self.sequences.push((self.tokens.len(), ids.len()));
        self.tokens.extend_from_slice(ids);
        self.positions.extend((past..past + ids.len()).map(|p| p as u32));
        self.targets.extend(std::iter::repeat_n(IGNORED, ids.len()));
        self.row_keys.extend((past..past + ids.len()).map(|p| mix(key ^ mix(p as u64))));
    }

    /// R.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Rows with a target.
    pub fn num_targets(&self) -> usize {
        self.targets.iter().filter(|&&t| t != IGNORED).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_the_inputs_shifted() {
        let mut batch = Batch::default();
        batch.push_known(&[2, 7, 8, 3], 1);
        batch.push_known(&[2], 2);
        batch.push_known(&[2, 9], 3);
        assert_eq!(batch.tokens, [2, 7, 8, 2]);
        assert_eq!(batch.targets, [7, 8, 3, 9]);
        assert_eq!(batch.positions, [0, 1, 2, 0]);
        assert_eq!(batch.sequences, [(0, 3), (3, 0), (3, 1)]);
        let mut again = Batch::default();
        again.push_known(&[2, 9], 3);
        assert_eq!(again.row_keys[0], batch.row_keys[3]);
    }
}
