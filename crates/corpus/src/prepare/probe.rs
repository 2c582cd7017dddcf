//! The leak probe: which messages of valid and test contain a long run of tokens that train has too.
//!
//! All runs of [`RUN`] ids of train (without `<bos>` and `<eos>`) are hashed, one part of the hash
//! space at a time so that memory stays within [`MEMORY`], and the runs of the other sides looked up.

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
    let parts = (train.num_tokens() * 8).div_ceil(memory).max(1) as u64;
    for part in 0..parts {
        let in_part = |hash: &u64| hash % parts == part;
        let mut hashes = Vec::new();
        each_sequence(train, |_, ids| hashes.extend(runs(ids).filter(in_part)));
        hashes.sort_unstable();
        hashes.dedup();
        each_sequence(file, |i, ids| {
            seen[i] |= runs(ids).filter(in_part).any(|hash| hashes.binary_search(&hash).is_ok());
        });
    }
    seen
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
