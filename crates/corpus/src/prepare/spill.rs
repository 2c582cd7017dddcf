//! Messages on disk between passes: cleaned texts in one file, a row a message in another.

use crate::{
    Error,
    bits::Bits,
    error::IoContext,
    scratch::{Scratch, ScratchWriter, part_of, parts},
};
use std::{
    collections::HashSet,
    io::{self, Read},
    path::{Path, PathBuf},
};

/// What is known of a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// Where its text begins.
    offset: u64,
    /// Bytes of its text.
    len: u32,
    /// Its group: an index, or a node of the thread finder before threads are closed.
    pub(super) group: u32,
    /// Tokens under the cap, `<bos>` and `<eos>` counted (words, whatever the vocabulary).
    pub(super) tokens: u32,
}

/// Bytes of a row on disk.
const ROW: usize = 20;

impl Row {
    fn to_bytes(self) -> [u8; ROW] {
        let mut bytes = [0; ROW];
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        for (place, n) in bytes[8..].chunks_exact_mut(4).zip([self.len, self.group, self.tokens]) {
            place.copy_from_slice(&n.to_le_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: [u8; ROW]) -> Self {
        let n = |at: usize| bytes[at..at + 4].iter().rev().fold(0, |n, &b| n << 8 | u32::from(b));
        let offset = u64::from(n(0)) | u64::from(n(4)) << 32;
        Self { offset, len: n(8), group: n(12), tokens: n(16) }
    }
}

/// Messages being written.
pub(super) struct SpillWriter {
    dir: PathBuf,
    texts: ScratchWriter,
    rows: ScratchWriter,
    hashes: ScratchWriter,
}

impl SpillWriter {
    pub(super) fn create(dir: &Path) -> Result<Self, Error> {
        let create = |name: &str| ScratchWriter::create(&dir.join(name));
        Ok(Self {
            dir: dir.to_owned(),
            texts: create("texts.tmp")?,
            rows: create("all-rows.tmp")?,
            hashes: create("hashes.tmp")?,
        })
    }

    /// Writes a text; messages with the same `hash` are duplicates.
    pub(super) fn push(
        &mut self,
        text: &str,
        hash: u128,
        group: u32,
        tokens: u32,
    ) -> Result<(), Error> {
        let row = Row { offset: self.texts.len(), len: text.len() as u32, group, tokens };
        self.texts.push(text.as_bytes())?;
        self.hashes.push(&hash.to_le_bytes())?;
        self.rows.push(&row.to_bytes())
    }

    /// Leaves out duplicates but the first of each, in tables of at most `memory` bytes, and gives
    /// every group its final index.
    pub(super) fn finish(self, memory: usize, group: impl Fn(u32) -> u32) -> Result<Spill, Error> {
        let repeated = repeated(&self.hashes.finish()?, memory)?;
        let mut kept = ScratchWriter::create(&self.dir.join("rows.tmp"))?;
        for (i, row) in self.rows.finish()?.records().enumerate() {
            let row = Row::from_bytes(row?);
            if !repeated.get(i) {
                kept.push(&Row { group: group(row.group), ..row }.to_bytes())?;
            }
        }
        Ok(Spill { texts: self.texts.finish()?, rows: kept.finish()? })
    }
}

/// Which hashes stood before, one part of the hash space after the other.
fn repeated(hashes: &Scratch, memory: usize) -> Result<Bits, Error> {
    /// Bytes of an entry of a hash set, most of the time; it is at least 7/16 full.
    const ENTRY: usize = 40;
    let count = hashes.count::<16>();
    let (parts, room) = parts(count, ENTRY, memory);
    let mut repeated = Bits::new(count);
    let mut seen = HashSet::with_capacity(room);
    for part in 0..parts {
        seen.clear();
        for (i, hash) in hashes.records().enumerate() {
            let hash = u128::from_le_bytes(hash?);
            if part_of(hash as u64, parts) == part && !seen.insert(hash) {
                repeated.set(i);
            }
        }
    }
    Ok(repeated)
}

/// Messages written, no two the same.
pub(super) struct Spill {
    texts: Scratch,
    rows: Scratch,
}

impl Spill {
    /// Number of messages.
    pub(super) fn len(&self) -> usize {
        self.rows.count::<ROW>()
    }

    /// Every row, in order.
    pub(super) fn rows(&self) -> impl Iterator<Item = Result<Row, Error>> + '_ {
        self.rows.records().map(|row| row.map(Row::from_bytes))
    }

    /// Gives every row and its text, in order.
    pub(super) fn for_each(
        &self,
        mut each: impl FnMut(usize, &Row, &str) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut texts = self.texts.reader();
        let (mut at, mut bytes) = (0, Vec::new());
        for (i, row) in self.rows().enumerate() {
            let row = row?;
            let mut left_out = (&mut texts).take(row.offset - at);
            io::copy(&mut left_out, &mut io::sink()).at("read", self.texts.path())?;
            bytes.resize(row.len as usize, 0);
            texts.read_exact(&mut bytes).at("read", self.texts.path())?;
            at = row.offset + u64::from(row.len);
            each(i, &row, &String::from_utf8_lossy(&bytes))?;
        }
        Ok(())
    }

    /// The text of row `i`.
    pub(super) fn text(&self, i: usize) -> Result<String, Error> {
        let mut row = [0; ROW];
        self.rows.read_at((i * ROW) as u64, &mut row)?;
        let row = Row::from_bytes(row);
        let mut bytes = vec![0; row.len as usize];
        self.texts.read_at(row.offset, &mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_first_of_each_text_stays_whatever_the_memory(
            texts in prop::collection::vec(0u8..30, 0..100), memory in 1usize..5_000,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let mut writer = SpillWriter::create(dir.path()).unwrap();
            let (mut expected, mut seen) = (Vec::new(), HashSet::new());
            for (i, &n) in texts.iter().enumerate() {
                let text = "x".repeat(n as usize);
                let hash = u128::from(n) << 64 | u128::from(crate::hash::mix(n.into()));
                writer.push(&text, hash, i as u32, 7).unwrap();
                if seen.insert(n) {
                    expected.push((expected.len(), 2 * i as u32, text));
                }
            }
            let spill = writer.finish(memory, |group| 2 * group).unwrap();
            let mut found = Vec::new();
            spill
                .for_each(|i, row, text| {
                    assert_eq!((row.tokens, text), (7, spill.text(i)?.as_str()));
                    found.push((i, row.group, text.to_owned()));
                    Ok(())
                })
                .unwrap();
            prop_assert_eq!(spill.len(), expected.len());
            prop_assert_eq!(found, expected);
        }
    }
}
