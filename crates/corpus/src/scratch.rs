//! Files without a name: what waits on disk between passes, written front to back, then read in order
//! or anywhere. Their space is free again when they are dropped, also when the process is killed.

use crate::{Error, error::IoContext};
use std::{
    fs::{self, File},
    io::{self, BufReader, BufWriter, Read, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// Bytes of a buffer between a file and what reads or writes it.
const BUFFER: usize = 1 << 15;

/// A file being written.
#[derive(Debug)]
pub(crate) struct ScratchWriter {
    path: PathBuf,
    file: BufWriter<File>,
    len: u64,
}

impl ScratchWriter {
    /// An empty file on the disk of `path`, whose last part must be free and is so again at once.
    pub(crate) fn create(path: &Path) -> Result<Self, Error> {
        let file = File::options().read(true).write(true).create_new(true).open(path);
        let file = BufWriter::with_capacity(BUFFER, file.at("create", path)?);
        fs::remove_file(path).at("remove", path)?;
        Ok(Self { path: path.to_owned(), file, len: 0 })
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.len += bytes.len() as u64;
        self.file.write_all(bytes).at("write", &self.path)
    }

    /// Bytes so far.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn finish(self) -> Result<Scratch, Error> {
        let file = self.file.into_inner().map_err(|e| e.into_error()).at("write", &self.path)?;
        Ok(Scratch { path: self.path, file, len: self.len })
    }
}

/// A file written.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    file: File,
    len: u64,
}

impl Scratch {
    /// How many records of `N` bytes it holds.
    pub(crate) fn count<const N: usize>(&self) -> usize {
        (self.len / N as u64) as usize
    }

    /// All records of `N` bytes, in order.
    pub(crate) fn records<const N: usize>(
        &self,
    ) -> impl Iterator<Item = Result<[u8; N], Error>> + '_ {
        let mut reader = self.reader();
        (0..self.count::<N>()).map(move |_| {
            let mut record = [0; N];
            reader.read_exact(&mut record).at("read", &self.path)?;
            Ok(record)
        })
    }

    /// Fills `bytes` with what begins at `at`.
    pub(crate) fn read_at(&self, at: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.file.read_exact_at(bytes, at).at("read", &self.path)
    }

    /// Reads from the beginning.
    pub(crate) fn reader(&self) -> BufReader<ReadFrom<'_>> {
        ReadFrom::buffered(&self.file, 0)
    }

    /// What it was before it lost its name, for errors.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Reads a file from a place on, whoever else reads it.
#[derive(Debug)]
pub(crate) struct ReadFrom<'f> {
    file: &'f File,
    at: u64,
}

impl<'f> ReadFrom<'f> {
    pub(crate) fn buffered(file: &'f File, at: u64) -> BufReader<Self> {
        BufReader::with_capacity(BUFFER, Self { file, at })
    }
}

impl Read for ReadFrom<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read_at(bytes, self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}

/// In how many parts `count` entries of `bytes` each stay within `memory`, and room for the entries of
/// one: hashes do not fall quite evenly.
pub(crate) fn parts(count: usize, bytes: usize, memory: usize) -> (u64, usize) {
    let parts = (count * bytes).div_ceil(memory).max(1);
    let share = count / parts;
    (parts as u64, if parts == 1 { count } else { share + share / 8 })
}

/// The part of a hash among so many.
pub(crate) fn part_of(hash: u64, parts: u64) -> u64 {
    ((u128::from(hash) * u128::from(parts)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_in_order_and_from_anywhere_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = ScratchWriter::create(&dir.path().join("x.tmp")).unwrap();
        // More than a buffer holds.
        (0..10_000u64).for_each(|n| writer.push(&n.to_le_bytes()).unwrap());
        assert_eq!(writer.len(), 80_000);
        let scratch = writer.finish().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let read = scratch.records::<8>().map(|n| u64::from_le_bytes(n.unwrap()));
        assert!(read.eq(0..10_000));
        let mut bytes = [0; 8];
        scratch.read_at(8 * 1234, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), 1234);
        let error = scratch.read_at(80_000, &mut bytes).unwrap_err().to_string();
        assert!(error.contains("x.tmp: cannot read"), "{error}");
    }

    #[test]
    fn parts_hold_what_memory_allows_and_cover_all_hashes() {
        assert_eq!(parts(1000, 16, 16_000), (1, 1000));
        assert_eq!(parts(1001, 16, 16_000), (2, 562));
        assert_eq!(parts(0, 16, 16_000), (1, 0));
        assert_eq!((part_of(0, 3), part_of(u64::MAX / 2, 3), part_of(u64::MAX, 3)), (0, 1, 2));
    }
}
