//! Near-duplicates across sides: MinHash, LSH, then the exact Jaccard similarity.
//!
//! A message is the set of its runs of five words (lower-cased, marks left out); messages with fewer
//! words have none and are never near-duplicates. One-permutation MinHash (100 bins, an empty one
//! takes the value of another) in 20 bands of 5 finds candidates: at a similarity of 0.8 a pair is missed about once
//! in 3,000. Each candidate is then compared exactly, and counts from 0.8 on. Within a band, a message
//! is compared with at most [`MAX_PAIRS`] of those that share its bucket.
//!
//! Band hashes wait on disk, with the side of their message; those of one band and one part of the
//! hash space are sorted at a time. Memory: a bit a message, and one bucket is always held whole.

use super::spill::{Row, Spill};
use crate::{
    Error, Side,
    bits::Bits,
    hash::{mix, quick},
    scratch::{Scratch, ScratchWriter, part_of, parts},
};
use std::path::Path;
use tokenizer::{Words, lowercase_into};

const SHINGLE: usize = 5;
const BANDS: usize = 20;
const BAND_BINS: usize = 5;
const BINS: usize = BANDS * BAND_BINS;
const THRESHOLD: f64 = 0.8;
/// Comparisons a message and band.
const MAX_PAIRS: usize = 64;

/// How it is done, for the manifest.
pub(super) const METHOD: &str = "Jaccard similarity >= 0.8 of 5-word shingles (lower-cased, marks \
    left out); candidates by one-permutation MinHash, 20 bands of 5, then compared exactly";

/// What was found.
pub(super) struct Near {
    /// For every row whether it is a near-duplicate of a row on an earlier side.
    pub(super) rows: Bits,
    /// How many there are on each side.
    pub(super) by_side: [u64; 3],
}

/// Finds near-duplicates across sides, in tables of about `memory` bytes.
pub(super) fn find(
    spill: &Spill,
    side_of: &dyn Fn(&Row) -> Side,
    dir: &Path,
    memory: usize,
    tick: &mut dyn FnMut(u64) -> Result<(), Error>,
) -> Result<Near, Error> {
    let near = Near { rows: Bits::new(spill.len()), by_side: [0; 3] };
    let mut finder = Finder { spill, near, cached: None };
    let (parts, room) = parts(spill.len(), size_of::<Entry>(), memory);
    let mut entries = Vec::with_capacity(room);
    for band in write_bands(spill, side_of, dir, tick)? {
        for part in 0..parts {
            read_band(&band, |hash| part_of(hash, parts) == part, &mut entries)?;
            for bucket in entries.chunk_by(|a, b| a.hash == b.hash) {
                finder.compare(bucket)?;
            }
        }
    }
    Ok(finder.near)
}

/// The shingles of a text as hashes, in order, each once.
fn shingles(text: &str, lower: &mut String, out: &mut Vec<u64>) {
    lowercase_into(text, lower);
    out.clear();
    let mut last = [0u64; SHINGLE];
    let words = Words::new(lower).filter(|w| w.chars().next().is_some_and(char::is_alphanumeric));
    for (i, word) in words.enumerate() {
        last.rotate_left(1);
        last[SHINGLE - 1] = quick(word.as_bytes());
        if i + 1 >= SHINGLE {
            out.push(last.iter().fold(0, |h, &word| mix(h.rotate_left(7) ^ word)));
        }
    }
    out.sort_unstable();
    out.dedup();
}

/// MinHash signatures of sets.
struct Signer {
    /// For every bin the order in which others are asked when it is empty.
    order: Vec<[u8; BINS]>,
}

impl Signer {
    fn new() -> Self {
        let shuffled = |bin: usize| {
            let mut order: [u8; BINS] = std::array::from_fn(|i| i as u8);
            order.sort_unstable_by_key(|&other| mix((bin * BINS + other as usize) as u64 + 1));
            order
        };
        Self { order: (0..BINS).map(shuffled).collect() }
    }

    fn sign(&self, shingles: &[u64]) -> [u64; BINS] {
        let mut bins = [u64::MAX; BINS];
        if shingles.is_empty() {
            return bins;
        }
        let mut full = 0u128;
        for &shingle in shingles {
            let bin = ((u128::from(mix(shingle)) * BINS as u128) >> 64) as usize;
            bins[bin] = bins[bin].min(shingle);
            full |= 1 << bin;
        }
        for (bin, order) in self.order.iter().enumerate() {
            if full >> bin & 1 == 0
                && let Some(&other) = order.iter().find(|&&other| full >> other & 1 == 1)
            {
                bins[bin] = bins[other as usize];
            }
        }
        bins
    }
}

/// A file a band: 8 bytes a row, of which 62 bits are the band's hash and 2 are the side, from 1. 0
/// for rows without shingles.
fn write_bands(
    spill: &Spill,
    side_of: &dyn Fn(&Row) -> Side,
    dir: &Path,
    tick: &mut dyn FnMut(u64) -> Result<(), Error>,
) -> Result<Vec<Scratch>, Error> {
    let create = |band| ScratchWriter::create(&dir.join(format!("band-{band}.tmp")));
    let mut bands = (0..BANDS).map(create).collect::<Result<Vec<_>, _>>()?;
    let signer = Signer::new();
    let (mut lower, mut set) = (String::new(), Vec::new());
    spill.for_each(|i, row, text| {
        shingles(text, &mut lower, &mut set);
        let bins = signer.sign(&set);
        let side = side_of(row) as u64 + 1;
        for (band, part) in bands.iter_mut().zip(bins.chunks_exact(BAND_BINS)) {
            let hash = part.iter().fold(0, |h: u64, &bin| mix(h.rotate_left(9) ^ bin));
            let hash = if set.is_empty() { 0 } else { hash & !3 | side };
            band.push(&hash.to_le_bytes())?;
        }
        tick(i as u64)
    })?;
    bands.into_iter().map(ScratchWriter::finish).collect()
}

/// A row in a band.
struct Entry {
    hash: u64,
    row: u32,
    side: u8,
}

/// The entries of a band whose hash is wanted, sorted by hash, then row.
fn read_band(
    band: &Scratch,
    wanted: impl Fn(u64) -> bool,
    entries: &mut Vec<Entry>,
) -> Result<(), Error> {
    entries.clear();
    for (row, bits) in band.records().enumerate() {
        let bits = u64::from_le_bytes(bits?);
        let hash = bits & !3;
        if bits != 0 && wanted(hash) {
            entries.push(Entry { hash, row: row as u32, side: (bits & 3) as u8 - 1 });
        }
    }
    entries.sort_unstable_by_key(|entry| (entry.hash, entry.row));
    Ok(())
}

struct Finder<'a> {
    spill: &'a Spill,
    near: Near,
    cached: Option<(u32, Vec<u64>)>,
}

impl Finder<'_> {
    /// Compares each row of a bucket with those on earlier sides.
    fn compare(&mut self, bucket: &[Entry]) -> Result<(), Error> {
        let least = bucket.iter().map(|entry| entry.side).min().unwrap_or(0);
        for entry in bucket.iter().filter(|entry| entry.side > least) {
            if self.near.rows.get(entry.row as usize) {
                continue;
            }
            let earlier = bucket.iter().filter(|other| other.side < entry.side);
            for other in earlier.take(MAX_PAIRS) {
                if self.similar(entry.row, other.row)? {
                    self.near.rows.set(entry.row as usize);
                    self.near.by_side[entry.side as usize] += 1;
                    break;
                }
            }
        }
        Ok(())
    }

    fn similar(&mut self, row: u32, other: u32) -> Result<bool, Error> {
        let ours = match self.cached.take() {
            Some((cached, set)) if cached == row => set,
            _ => self.shingles_of(row)?,
        };
        let theirs = self.shingles_of(other)?;
        let similar = jaccard(&ours, &theirs) >= THRESHOLD;
        self.cached = Some((row, ours));
        Ok(similar)
    }

    fn shingles_of(&self, row: u32) -> Result<Vec<u64>, Error> {
        let mut set = Vec::new();
        shingles(&self.spill.text(row as usize)?, &mut String::new(), &mut set);
        Ok(set)
    }
}

/// Common shingles over all shingles of two sorted sets.
fn jaccard(a: &[u64], b: &[u64]) -> f64 {
    let (mut i, mut j, mut common) = (0, 0, 0usize);
    while i < a.len() && j < b.len() {
        match a[i].cmp(&b[j]) {
            std::cmp::Ordering::Less => i += 1,
            std::cmp::Ordering::Greater => j += 1,
            std::cmp::Ordering::Equal => {
                common += 1;
                i += 1;
                j += 1;
            }
        }
    }
    common as f64 / (a.len() + b.len() - common).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prepare::spill::SpillWriter;

    fn near(texts: &[(&str, Side)]) -> Vec<bool> {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = SpillWriter::create(dir.path()).unwrap();
        for (i, (text, side)) in texts.iter().enumerate() {
            writer.push(text, i as u128, *side as u32, 0).unwrap();
        }
        let spill = writer.finish(1 << 20, |group| group).unwrap();
        let side = |row: &Row| Side::ALL[row.group as usize];
        let find = |memory| {
            let near = find(&spill, &side, dir.path(), memory, &mut |_| Ok(())).unwrap();
            assert_eq!(near.by_side.iter().sum::<u64>(), near.rows.count());
            (0..texts.len()).map(|i| near.rows.get(i)).collect::<Vec<_>>()
        };
        let found = find(1 << 20);
        assert_eq!(found, find(32), "more passes change nothing");
        found
    }

    #[test]
    fn later_sides_give_way_and_short_or_different_texts_stay() {
        let words: Vec<String> = (0..60).map(|i| format!("w{i}")).collect();
        let whole = words.join(" ");
        let changed = format!("{} other", words[..58].join(" "));
        let half = format!(
            "{} {}",
            words[..30].join(" "),
            (0..30).map(|i| format!("x{i}")).collect::<String>()
        );
        let found = near(&[
            (&whole, Side::Train),
            (&changed, Side::Test),
            (&half, Side::Test),
            ("thanks a lot", Side::Train),
            ("Thanks a lot!", Side::Test),
            (&changed.to_uppercase(), Side::Train),
        ]);
        assert_eq!(found, [false, true, false, false, false, false]);
    }

    #[test]
    fn pairs_at_the_threshold_are_found() {
        // 40 shingles of which 4 change: Jaccard 36/44 = 0.818.
        let mut missed = 0;
        for n in 0..200 {
            let words: Vec<String> = (0..44).map(|i| format!("w{n}a{i}")).collect();
            let mut other = words.clone();
            other[43] = "zzz".into();
            other[42] = "yyy".into();
            other[41] = "xxx".into();
            other[40] = "vvv".into();
            missed += usize::from(
                !near(&[(&words.join(" "), Side::Train), (&other.join(" "), Side::Valid)])[1],
            );
        }
        assert!(missed <= 2, "{missed} of 200 missed");
    }

    #[test]
    fn jaccard_by_hand() {
        assert_eq!(jaccard(&[1, 2, 3, 4], &[2, 3, 4, 5]), 0.6);
        assert_eq!(jaccard(&[], &[]), 0.0);
    }
}
