//! Writes token files: ids as they come, the rest at the end.

use crate::{
    Error,
    error::IoContext,
    token_file::{Flags, HEADER_LEN, Header},
};
use sha2::{Digest, Sha256};
use std::{
    fs::File,
    io::{BufWriter, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// A token file being written. Keeps 13 bytes a sequence; the ids go to the file at once.
#[derive(Debug)]
pub struct TokenWriter {
    path: PathBuf,
    file: BufWriter<File>,
    header: Header,
    offsets: Vec<u64>,
    groups: Vec<u32>,
    truncated: Vec<bool>,
    hash: Sha256,
    scratch: Vec<u8>,
}

impl TokenWriter {
    /// Begins a file for ids below `vocab_size` in sequences of at most `max_len`.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn create(path: &Path, vocab_size: u32, max_len: u32) -> Result<Self, Error> {
        let mut file = BufWriter::with_capacity(1 << 16, File::create(path).at("create", path)?);
        file.write_all(&[0; HEADER_LEN]).at("write", path)?;
        let header = Header {
            vocab_size,
            max_len,
            sequences: 0,
            tokens: 0,
            groups: 0,
            body_sha256: [0; 32],
        };
        Ok(Self {
            path: path.to_owned(),
            file,
            header,
            offsets: vec![0],
            groups: Vec::new(),
            truncated: Vec::new(),
            hash: Sha256::new(),
            scratch: Vec::new(),
        })
    }

    /// Adds a sequence.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn push(&mut self, ids: &[u32], group: u32, truncated: bool) -> Result<(), Error> {
        self.scratch.clear();
        let id_bytes = if self.header.vocab_size <= 65_536 { 2 } else { 4 };
        for id in ids {
            self.scratch.extend_from_slice(&id.to_le_bytes()[..id_bytes]);
        }
        self.header.tokens += ids.len() as u64;
        self.offsets.push(self.header.tokens);
        self.groups.push(group);
        self.truncated.push(truncated);
        self.hash.update(&self.scratch);
        self.file.write_all(&self.scratch).at("write", &self.path)
    }

    /// Number of sequences so far.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Whether nothing was added yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends the file; `groups` is how many groups there are in all, `seen_run` has a flag a sequence
    /// (or none). May be called again with other flags.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(&mut self, groups: u64, seen_run: &[bool]) -> Result<(), Error> {
        self.header.sequences = self.len() as u64;
        self.header.groups = groups;
        let (ids_end, tail) = self.tail(seen_run);
        let mut hash = self.hash.clone();
        hash.update(&tail);
        self.header.body_sha256.copy_from_slice(&hash.finalize());
        let path = &self.path;
        self.file.seek(SeekFrom::Start(ids_end)).at("write", path)?;
        self.file.write_all(&tail).at("write", path)?;
        self.file.seek(SeekFrom::Start(0)).at("write", path)?;
        self.file.write_all(&self.header.to_bytes()).at("write", path)?;
        self.file.flush().at("write", path)?;
        self.file.get_ref().sync_all().at("write", path)
    }

    /// Everything after the ids, and where it begins.
    fn tail(&self, seen_run: &[bool]) -> (u64, Vec<u8>) {
        let id_bytes = if self.header.vocab_size <= 65_536 { 2 } else { 4 };
        let ids_end = HEADER_LEN as u64 + self.header.tokens * id_bytes;
        let mut tail = vec![0; (ids_end.next_multiple_of(8) - ids_end) as usize];
        tail.extend(self.offsets.iter().flat_map(|n| n.to_le_bytes()));
        tail.extend(self.groups.iter().flat_map(|n| n.to_le_bytes()));
        tail.resize(tail.len() + 4 * (self.len() % 2), 0);
        let flags = self.truncated.iter().enumerate().map(|(i, &truncated)| {
            Flags { truncated, seen_run: seen_run.get(i).copied().unwrap_or(false) }.to_byte()
        });
        tail.extend(flags);
        (ids_end, tail)
    }
}
