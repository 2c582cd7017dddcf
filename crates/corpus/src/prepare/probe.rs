//! The leak probe: which messages of valid and test contain a long run of tokens that train has too.
//!
//! All runs of [`RUN`] ids of a side (without `<bos>` and `<eos>`) are hashed, one part of the hash
//! space at a time so that memory stays within [`MEMORY`], and train's runs looked up among them.

use crate::{TokenFile, hash::mix};

/// The shortest run that counts, in tokens.
pub const RUN: usize = 20;

/// Bytes for the hashes of one part.
const MEMORY: usize = 64 << 20;

/// For every sequence of `file` whether it has a run that `train` has.
pub(super) fn seen_runs(train: &TokenFile, file: &TokenFile) -> Vec<bool> {
    seen_runs_within(train, file, MEMORY)
}

fn seen_runs_within(train: &TokenFile, file: &TokenFile, memory: usize) -> Vec<bool> {
    let mut seen = vec![false; file.len()];
    let parts = (file.num_tokens() * 8).div_ceil(memory).max(1) as u64;
    for part in 0..parts {
        let in_part = |hash: &u64| hash % parts == part;
        let mut wanted = Wanted::default();
        each_sequence(file, |_, ids| wanted.hashes.extend(runs(ids).filter(in_part)));
        wanted.build();
        each_sequence(train, |_, ids| runs(ids).filter(in_part).for_each(|hash| wanted.mark(hash)));
        each_sequence(file, |i, ids| {
            seen[i] |= runs(ids).filter(in_part).any(|hash| wanted.is_marked(hash));
        });
    }
    seen
}

/// Hashes to look for; most others are told apart by one bit.
#[derive(Default)]
struct Wanted {
    hashes: Vec<u64>,
    marked: Vec<bool>,
    filter: Vec<u64>,
}

impl Wanted {
    fn build(&mut self) {
        self.hashes.sort_unstable();
        self.hashes.dedup();
        self.marked = vec![false; self.hashes.len()];
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
            self.marked[at] = true;
        }
    }

    fn is_marked(&self, hash: u64) -> bool {
        self.hashes.binary_search(&hash).is_ok_and(|at| self.marked[at])
    }
}

/// The word and bit of a hash in a filter of `len` words (a power of two).
fn place(hash: u64, len: usize) -> (usize, u64) {
    ((hash >> 32) as usize & (len - 1), 1 << (hash >> 26 & 63))
}

fn each_sequence(file: &TokenFile, mut each: impl FnMut(usize, &[u32])) {
    let mut ids = Vec::new();
    for i in 0..file.len() {
        file.sequence(i, &mut ids);
        let end = ids.len() - usize::from(!file.flags(i).truncated).min(ids.len());
        each(i, ids.get(1..end).unwrap_or_default());
    }
}

fn runs(ids: &[u32]) -> impl Iterator<Item = u64> {
    ids.windows(RUN)
        .map(|run| run.iter().fold(0, |h: u64, &id| mix(h.rotate_left(5) ^ u64::from(id))))
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
            writer.finish(1, &[]).unwrap();
            TokenFile::open(&path).unwrap()
        };
        let train = write("train", &[(100..150).collect(), (500..519).collect()]);
        let twenty: Vec<u32> = [7, 7].into_iter().chain(120..140).chain([9]).collect();
        let nineteen: Vec<u32> = [7, 7].into_iter().chain(120..139).chain([9]).collect();
        // The end of a message is not part of a run.
        let with_end: Vec<u32> = (500..519).collect();
        let test = write("test", &[twenty, nineteen, with_end]);
        for memory in [MEMORY, 40] {
            assert_eq!(seen_runs_within(&train, &test, memory), [true, false, false]);
        }
    }
}
