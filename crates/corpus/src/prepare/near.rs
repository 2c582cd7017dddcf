//! Near-duplicates across sides: MinHash, LSH, then the exact Jaccard similarity.
//!
//! A message is the set of its runs of five words (lower-cased, marks left out); messages with fewer
//! words have none and are never near-duplicates. One-permutation MinHash (100 bins, an empty one
//! takes the value of another) in 20 bands of 5 finds candidates: at a similarity of 0.8 a pair is missed about once
//! in 3,000. Each candidate is then compared exactly, and counts from 0.8 on. Within a band, a message
//! is compared with at most [`MAX_PAIRS`] of those that share its bucket.
//!
//! Memory: 12 bytes a message while one band is sorted; band hashes wait on disk.

use super::spill::{Row, Spill};
use crate::{
    Error, Side,
    error::IoContext,
    hash::{mix, quick},
};
use std::{
    fs::File,
    io::{BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
};
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

/// For every row whether it is a near-duplicate of a row on an earlier side.
pub(super) fn find(
    rows: &[Row],
    spill: &Spill,
    side_of: &dyn Fn(&Row) -> Side,
    dir: &Path,
    tick: &mut dyn FnMut(u64) -> Result<(), Error>,
) -> Result<Vec<bool>, Error> {
    let bands = write_bands(rows, spill, dir, tick)?;
    let mut near = vec![false; rows.len()];
    let mut finder = Finder { rows, spill, side_of, cached: None };
    for path in &bands {
        for bucket in buckets(&read_band(path, rows.len())?) {
            finder.compare(bucket, &mut near)?;
        }
        std::fs::remove_file(path).at("remove", path)?;
    }
    Ok(near)
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

/// A file a band: a hash of 8 bytes a row, 0 for rows without shingles.
fn write_bands(
    rows: &[Row],
    spill: &Spill,
    dir: &Path,
    tick: &mut dyn FnMut(u64) -> Result<(), Error>,
) -> Result<Vec<PathBuf>, Error> {
    let paths: Vec<PathBuf> = (0..BANDS).map(|band| dir.join(format!("band-{band}.tmp"))).collect();
    let mut files = Vec::new();
    for path in &paths {
        files.push(BufWriter::with_capacity(1 << 14, File::create(path).at("create", path)?));
    }
    let signer = Signer::new();
    let (mut lower, mut set) = (String::new(), Vec::new());
    spill.for_each(rows, |i, _, text| {
        shingles(text, &mut lower, &mut set);
        let bins = signer.sign(&set);
        for (band, file) in files.iter_mut().enumerate() {
            let part = &bins[band * BAND_BINS..(band + 1) * BAND_BINS];
            let hash = part.iter().fold(0, |h: u64, &bin| mix(h.rotate_left(9) ^ bin));
            let hash = if set.is_empty() { 0 } else { hash | 1 };
            file.write_all(&hash.to_le_bytes()).at("write", &paths[band])?;
        }
        tick(i as u64)
    })?;
    for (file, path) in files.iter_mut().zip(&paths) {
        file.flush().at("write", path)?;
    }
    Ok(paths)
}

/// A band's hashes with their rows, sorted.
fn read_band(path: &Path, rows: usize) -> Result<Vec<(u64, u32)>, Error> {
    let mut file = BufReader::with_capacity(1 << 16, File::open(path).at("open", path)?);
    let mut band = Vec::with_capacity(rows);
    let mut bytes = [0; 8];
    for row in 0..rows {
        file.read_exact(&mut bytes).at("read", path)?;
        match u64::from_le_bytes(bytes) {
            0 => {}
            hash => band.push((hash, row as u32)),
        }
    }
    band.sort_unstable();
    Ok(band)
}

/// Rows with the same hash, where there are several.
fn buckets(band: &[(u64, u32)]) -> impl Iterator<Item = &[(u64, u32)]> {
    band.chunk_by(|a, b| a.0 == b.0).filter(|bucket| bucket.len() > 1)
}

struct Finder<'a> {
    rows: &'a [Row],
    spill: &'a Spill,
    side_of: &'a dyn Fn(&Row) -> Side,
    cached: Option<(u32, Vec<u64>)>,
}

impl Finder<'_> {
    fn compare(&mut self, bucket: &[(u64, u32)], near: &mut [bool]) -> Result<(), Error> {
        let side = |row: u32| (self.side_of)(&self.rows[row as usize]) as u8;
        let least = bucket.iter().map(|&(_, row)| side(row)).min().unwrap_or(0);
        let later: Vec<u32> = bucket
            .iter()
            .map(|b| b.1)
            .filter(|&row| side(row) > least && !near[row as usize])
            .collect();
        for row in later {
            let own = (self.side_of)(&self.rows[row as usize]) as u8;
            let mut compared = 0;
            for &(_, other) in bucket {
                if (self.side_of)(&self.rows[other as usize]) as u8 >= own || compared == MAX_PAIRS
                {
                    continue;
                }
                compared += 1;
                if self.similar(row, other)? {
                    near[row as usize] = true;
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
        shingles(&self.spill.text(&self.rows[row as usize])?, &mut String::new(), &mut set);
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
        let mut rows = Vec::new();
        for (text, side) in texts {
            let offset = writer.push(text).unwrap();
            rows.push(Row { offset, len: text.len() as u32, group: *side as u32, tokens: 0 });
        }
        let spill = writer.finish().unwrap();
        let side = |row: &Row| Side::ALL[row.group as usize];
        find(&rows, &spill, &side, dir.path(), &mut |_| Ok(())).unwrap()
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
