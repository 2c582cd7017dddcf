//! The leak probe: which messages of valid and test contain a long run of tokens that train has too.
//!
//! All runs of [`RUN`] ids of a side (without `<bos>` and `<eos>`) are hashed, one part of the hash
//! space at a time so that memory stays within bounds, and train's runs looked up among them.

use crate::{
    Error, TokenBody,
    bits::Bits,
    hash::mix,
    scratch::{part_of, parts},
};

/// The shortest run that counts, in tokens.
pub const RUN: usize = 20;

/// For every sequence of `body` whether it has a run that `train` has, by tables of about `memory`
/// bytes.
pub(super) fn seen_runs(train: &TokenBody, body: &TokenBody, memory: usize) -> Result<Bits, Error> {
    /// Bytes of a hash in [`Wanted`], at most.
    const ENTRY: usize = 13;
    let mut seen = Bits::new(body.len());
    let (parts, room) = parts(body.num_tokens(), ENTRY, memory);
    let mut wanted = Wanted { hashes: Vec::with_capacity(room), ..Wanted::default() };
    for part in 0..parts {
        let in_part = |hash: &u64| part_of(*hash, parts) == part;
        wanted.hashes.clear();
        each_text(body, |_, ids| wanted.hashes.extend(runs(ids).filter(in_part)))?;
        wanted.build();
        each_text(train, |_, ids| runs(ids).filter(in_part).for_each(|hash| wanted.mark(hash)))?;
        each_text(body, |i, ids| {
            if runs(ids).filter(in_part).any(|hash| wanted.is_marked(hash)) {
                seen.set(i);
            }
        })?;
    }
    Ok(seen)
}

/// Hashes to look for; most others are told apart by one bit.
#[derive(Default)]
struct Wanted {
    hashes: Vec<u64>,
    marked: Bits,
    filter: Vec<u64>,
}

impl Wanted {
    fn build(&mut self) {
        self.hashes.sort_unstable();
        self.hashes.dedup();
        self.marked = Bits::new(self.hashes.len());
        self.filter = vec![0; (self.hashes.len() / 4).next_power_of_two().max(8)];
        for &hash in &self.hashes {
            let (word, bit) = place(hash, self.filter.len());
            self.filter[word] |= bit;
        }
    }

    fn mark(&mut self, hash: u64) {
        let (word, bit) = place(hash, self.filter.len());
        if self.filter[word] & bit != 0
            && let Ok(at) = self.hashes.binary_search(&hash)
        {
            self.marked.set(at);
        }
    }

    fn is_marked(&self, hash: u64) -> bool {
        self.hashes.binary_search(&hash).is_ok_and(|at| self.marked.get(at))
    }
}

/// The word and bit of a hash in a filter of `len` words (a power of two). Low bits: the high ones
/// are much the same in a part.
fn place(hash: u64, len: usize) -> (usize, u64) {
    ((hash >> 6) as usize & (len - 1), 1 << (hash & 63))
}

/// Gives the ids of every sequence without `<bos>` and `<eos>`.
fn each_text(body: &TokenBody, mut each: impl FnMut(usize, &[u32])) -> Result<(), Error> {
    body.each_sequence(|i, ids, truncated| {
        let end = ids.len() - usize::from(!truncated).min(ids.len());
        each(i, ids.get(1..end).unwrap_or_default());
    })
}

/// A hash of each run of [`RUN`] ids: a polynomial that rolls from run to run, mixed.
fn runs(ids: &[u32]) -> impl Iterator<Item = u64> {
    const BASE: u64 = 0x9E37_79B9_7F4A_7C15;
    const GONE: u64 = BASE.wrapping_pow(RUN as u32);
    let mut sum = 0u64;
    ids.iter().enumerate().filter_map(move |(i, &id)| {
        sum = sum.wrapping_mul(BASE).wrapping_add(u64::from(id) + 1);
        if i >= RUN {
            sum = sum.wrapping_sub(GONE.wrapping_mul(u64::from(ids[i - RUN]) + 1));
        }
        (i + 1 >= RUN).then(|| mix(sum))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TokenWriter;

    #[test]
    fn finds_runs_of_twenty_and_not_of_nineteen() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, texts: &[Vec<u32>]| {
            let path = dir.path().join(name);
            let mut writer = TokenWriter::create(&path, 1000, 64).unwrap();
            for text in texts {
                let ids = [&[2], text.as_slice(), &[3]].concat();
                writer.push(&ids, 0, false).unwrap();
            }
            writer.end().unwrap()
        };
        let train = write("train", &[(100..150).collect(), (500..519).collect()]);
        let twenty: Vec<u32> = [7, 7].into_iter().chain(120..140).chain([9]).collect();
        let nineteen: Vec<u32> = [7, 7].into_iter().chain(120..139).chain([9]).collect();
        // The end of a message is not part of a run.
        let with_end: Vec<u32> = (500..519).collect();
        let test = write("test", &[twenty, nineteen, with_end]);
        for memory in [1 << 20, 40] {
            let seen = seen_runs(&train, &test, memory).unwrap();
            assert_eq!([0, 1, 2].map(|i| seen.get(i)), [true, false, false]);
        }
    }

    #[test]
    fn a_run_has_the_same_hash_wherever_it_stands() {
        let ids: Vec<u32> = (0..100).map(|i| i * i % 61).collect();
        let rolled: Vec<u64> = runs(&ids).collect();
        let alone: Vec<u64> = ids.windows(RUN).flat_map(runs).collect();
        assert_eq!(rolled, alone);
        assert_eq!(rolled.len(), 81);
        assert!(rolled[0] != rolled[1]);
        assert_eq!(runs(&ids[..RUN - 1]).count(), 0);
    }
}
