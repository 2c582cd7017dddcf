//! A yes or no for each of many, a bit each.

/// Bits by number; beyond the last they are unset.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    /// Unset bits for the numbers below `len`.
    pub(crate) fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)])
    }

    /// Sets a bit that was made.
    pub(crate) fn set(&mut self, i: usize) {
        self.0[i / 64] |= 1 << (i % 64);
    }

    pub(crate) fn get(&self, i: usize) -> bool {
        self.0.get(i / 64).is_some_and(|word| word >> (i % 64) & 1 == 1)
    }

    /// How many are set.
    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_apart_and_unset_beyond_the_last() {
        let mut bits = Bits::new(130);
        [0, 63, 64, 129].into_iter().for_each(|i| bits.set(i));
        let set: Vec<usize> = (0..300).filter(|&i| bits.get(i)).collect();
        assert_eq!((set, bits.count()), (vec![0, 63, 64, 129], 4));
        assert!(!Bits::default().get(0));
    }
}
