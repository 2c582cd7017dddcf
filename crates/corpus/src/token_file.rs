//! Token files: ids of one side, mapped into memory and checked before use.
//!
//! Layout, all little-endian: a header of 160 bytes (magic, version, sizes, places of the sections,
//! SHA-256 of the body, SHA-256 of the header before it), the ids (2 bytes each where the vocabulary
//! has at most 65,536 entries, else 4) padded to 8, `sequences + 1` offsets of 8 bytes counted in
//! ids, a group of 4 bytes a sequence padded to 8, and a byte of flags a sequence.
//!
//! [`TokenFile::open`] checks everything but the body's hash and the ids themselves;
//! [`TokenFile::verify`] checks those. No bytes make either panic.

use crate::Error;
use ledger::MappedFile;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

pub(crate) const MAGIC: [u8; 8] = *b"ARTOKENS";
pub(crate) const VERSION: u32 = 1;
pub(crate) const HEADER_LEN: usize = 160;

/// What is known of a sequence besides its ids.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flags {
    /// The message was longer than the cap: no `<eos>`.
    pub truncated: bool,
    /// On valid and test: contains a run of at least [`RUN`](crate::RUN) tokens that train has too.
    pub seen_run: bool,
}

impl Flags {
    pub(crate) fn to_byte(self) -> u8 {
        u8::from(self.truncated) | u8::from(self.seen_run) << 1
    }

    fn from_byte(byte: u8) -> Self {
        Self { truncated: byte & 1 != 0, seen_run: byte & 2 != 0 }
    }
}

/// The header, in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) vocab_size: u32,
    pub(crate) max_len: u32,
    pub(crate) sequences: u64,
    pub(crate) tokens: u64,
    pub(crate) groups: u64,
    pub(crate) body_sha256: [u8; 32],
}

/// Places of the sections, in bytes from the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) id_bytes: usize,
    pub(crate) offsets_at: usize,
    pub(crate) groups_at: usize,
    pub(crate) flags_at: usize,
    pub(crate) len: usize,
}

impl Header {
    /// Bytes of an id.
    pub(crate) fn id_bytes(&self) -> usize {
        if self.vocab_size <= 65_536 { 2 } else { 4 }
    }

    /// Where everything is; `None` when the sizes are beyond any file.
    pub(crate) fn layout(&self) -> Option<Layout> {
        let id_bytes = self.id_bytes();
        let tokens = usize::try_from(self.tokens).ok()?;
        let sequences = usize::try_from(self.sequences).ok()?;
        let pad = |end: usize| end.checked_next_multiple_of(8);
        let offsets_at = pad(HEADER_LEN.checked_add(tokens.checked_mul(id_bytes)?)?)?;
        let groups_at = offsets_at.checked_add(sequences.checked_add(1)?.checked_mul(8)?)?;
        let flags_at = pad(groups_at.checked_add(sequences.checked_mul(4)?)?)?;
        let len = flags_at.checked_add(sequences)?;
        Some(Layout { id_bytes, offsets_at, groups_at, flags_at, len })
    }

    /// The bytes of the header, its own hash at the end.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_LEN);
        out.extend(MAGIC);
        let small = [VERSION, HEADER_LEN as u32, self.vocab_size, self.max_len];
        small.iter().for_each(|n| out.extend(n.to_le_bytes()));
        let large = [self.sequences, self.tokens, self.groups];
        large.iter().for_each(|n| out.extend(n.to_le_bytes()));
        out.extend(self.body_sha256);
        out.resize(HEADER_LEN - 32, 0);
        let hash = Sha256::digest(&out);
        out.extend(hash);
        out
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let Some(header) = bytes.get(..HEADER_LEN) else {
            return Err(format!(
                "{} bytes are too short for a header of {HEADER_LEN}",
                bytes.len()
            ));
        };
        if header[..8] != MAGIC {
            let found = String::from_utf8_lossy(&header[..8]).escape_debug().to_string();
            return Err(format!("expected it to begin with `ARTOKENS`, found `{found}`"));
        }
        let u32_at = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if u32_at(8) != VERSION {
            return Err(format!("expected version {VERSION}, found {}", u32_at(8)));
        }
        if Sha256::digest(&header[..HEADER_LEN - 32])[..] != header[HEADER_LEN - 32..] {
            return Err("the header does not match its own hash (damaged)".into());
        }
        let mut body_sha256 = [0; 32];
        body_sha256.copy_from_slice(&header[48..80]);
        Ok(Self {
            vocab_size: u32_at(16),
            max_len: u32_at(20),
            sequences: u64_at(24),
            tokens: u64_at(32),
            groups: u64_at(40),
            body_sha256,
        })
    }
}

/// The sequences of one side. Cheap to open, whatever its size.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    bytes: MappedFile,
    header: Header,
    layout: Layout,
}

impl TokenFile {
    /// Maps and checks a token file.
    ///
    /// # Errors
    /// [`Error::TokenFile`] says what is foreign, cut or damaged.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let bytes = MappedFile::open(path).map_err(|source| Error::Io {
            path: path.to_owned(),
            what: "open",
            source,
        })?;
        let fail = |what| Error::TokenFile { path: path.to_owned(), what };
        let header = Header::parse(&bytes).map_err(fail)?;
        let layout = header.layout().filter(|layout| layout.len == bytes.len());
        let Some(layout) = layout else {
            let expected =
                header.layout().map_or("more than any file has".into(), |l| l.len.to_string());
            return Err(fail(format!(
                "expected {expected} bytes, found {} (cut or damaged)",
                bytes.len()
            )));
        };
        let file = Self { path: path.to_owned(), bytes, header, layout };
        file.check_sections().map_err(fail)?;
        Ok(file)
    }

    fn check_sections(&self) -> Result<(), String> {
        let mut before = self.offset(0);
        if before != 0 {
            return Err(format!("expected the first offset to be 0, found {before}"));
        }
        for i in 0..self.len() {
            let offset = self.offset(i + 1);
            let length = offset
                .checked_sub(before)
                .filter(|&n| n >= 1 && n <= u64::from(self.header.max_len));
            if length.is_none() {
                return Err(format!(
                    "sequence {i} runs from {before} to {offset}, longest is {}",
                    self.header.max_len
                ));
            }
            before = offset;
            let group = self.group(i);
            if u64::from(group) >= self.header.groups {
                return Err(format!(
                    "sequence {i} is of group {group}, but there are {}",
                    self.header.groups
                ));
            }
        }
        if before != self.header.tokens {
            return Err(format!(
                "expected the offsets to end at {}, found {before}",
                self.header.tokens
            ));
        }
        Ok(())
    }

    /// Checks the hash of the body and that every id is in the vocabulary: reads the whole file.
    ///
    /// # Errors
    /// [`Error::TokenFile`] when either is wrong.
    pub fn verify(&self) -> Result<(), Error> {
        let fail = |what| Error::TokenFile { path: self.path.clone(), what };
        if Sha256::digest(&self.bytes[HEADER_LEN..])[..] != self.header.body_sha256 {
            return Err(fail("the body does not match its hash (damaged)".into()));
        }
        let ids = self.bytes[HEADER_LEN..self.layout.offsets_at].chunks_exact(self.layout.id_bytes);
        let largest = ids.take(self.num_tokens()).map(id).max();
        match largest.filter(|&id| id >= self.header.vocab_size) {
            Some(id) => Err(fail(format!(
                "id {id} is outside the vocabulary of {}",
                self.header.vocab_size
            ))),
            None => Ok(()),
        }
    }

    /// The SHA-256 that the body should have ([`verify`](Self::verify) checks that it does).
    pub fn body_sha256(&self) -> &[u8; 32] {
        &self.header.body_sha256
    }

    /// Number of sequences.
    pub fn len(&self) -> usize {
        self.header.sequences as usize
    }

    /// Whether there is no sequence.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ids of all sequences together, `<bos>` and `<eos>` counted.
    pub fn num_tokens(&self) -> usize {
        self.header.tokens as usize
    }

    /// Ids that are predicted: all but the first of each sequence.
    pub fn num_targets(&self) -> usize {
        self.num_tokens() - self.len()
    }

    /// Entries of the vocabulary the ids are of.
    pub fn vocab_size(&self) -> usize {
        self.header.vocab_size as usize
    }

    /// The cap, in ids.
    pub fn max_len(&self) -> usize {
        self.header.max_len as usize
    }

    /// Ids of sequence `i`; 0 beyond the last.
    pub fn length(&self, i: usize) -> usize {
        self.range(i).len()
    }

    /// Puts the ids of sequence `i` into `out` (cleared first): `<bos>`, text, and `<eos>` unless the
    /// message was truncated. Nothing beyond the last sequence.
    pub fn sequence(&self, i: usize, out: &mut Vec<u32>) {
        out.clear();
        let range = self.range(i);
        let width = self.layout.id_bytes;
        let bytes = &self.bytes[HEADER_LEN + range.start * width..HEADER_LEN + range.end * width];
        out.extend(bytes.chunks_exact(width).map(id));
    }

    /// The group of sequence `i`: an index into [`Dataset::group_names`](crate::Dataset::group_names).
    pub fn group(&self, i: usize) -> u32 {
        if i >= self.len() {
            return 0;
        }
        let at = self.layout.groups_at + 4 * i;
        id(&self.bytes[at..at + 4])
    }

    /// The flags of sequence `i`.
    pub fn flags(&self, i: usize) -> Flags {
        let byte = self.bytes[self.layout.flags_at..].get(i);
        Flags::from_byte(byte.copied().unwrap_or(0))
    }

    fn range(&self, i: usize) -> std::ops::Range<usize> {
        if i < self.len() { self.offset(i) as usize..self.offset(i + 1) as usize } else { 0..0 }
    }

    fn offset(&self, i: usize) -> u64 {
        let at = self.layout.offsets_at + 8 * i;
        let bytes = &self.bytes[at..at + 8];
        u64::from(id(&bytes[..4])) | u64::from(id(&bytes[4..])) << 32
    }
}

/// An id of two or four bytes.
pub(crate) fn id(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |id, &byte| id << 8 | u32::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token_writer::TokenWriter;
    use proptest::prelude::*;

    fn write(dir: &Path, vocab_size: u32) -> PathBuf {
        let path = dir.join("side.tokens");
        let mut writer = TokenWriter::create(&path, vocab_size, 5).unwrap();
        writer.push(&[2, 7, 3], 0, false).unwrap();
        writer.push(&[2, 7, 8, 9, vocab_size - 1], 1, true).unwrap();
        writer.end().unwrap().finish(2, |i| i == 1).unwrap();
        path
    }

    #[test]
    fn reads_back_what_was_written() {
        for vocab_size in [10, 65_536, 65_537] {
            let dir = tempfile::tempdir().unwrap();
            let file = TokenFile::open(&write(dir.path(), vocab_size)).unwrap();
            file.verify().unwrap();
            assert_eq!((file.len(), file.num_tokens(), file.num_targets()), (2, 8, 6));
            let mut ids = vec![99];
            file.sequence(1, &mut ids);
            assert_eq!(ids, [2, 7, 8, 9, vocab_size - 1]);
            assert_eq!((file.length(0), file.group(1)), (3, 1));
            assert_eq!(file.flags(0), Flags::default());
            assert_eq!(file.flags(1), Flags { truncated: true, seen_run: true });
            file.sequence(2, &mut ids);
            assert!(ids.is_empty());
        }
    }

    #[test]
    fn foreign_and_cut_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let good = std::fs::read(write(dir.path(), 10)).unwrap();
        let bad = dir.path().join("bad");
        let refuse = |bytes: &[u8], word: &str| {
            std::fs::write(&bad, bytes).unwrap();
            let error = TokenFile::open(&bad).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        };
        refuse(b"", "too short");
        refuse(&[b'x'; 500], "ARTOKENS");
        refuse(&good[..good.len() - 1], "expected");
        refuse(&[&good[..], b"x"].concat(), "expected");
        let mut version = good.clone();
        version[8] = 9;
        refuse(&version, "version");
        let mut header = good.clone();
        header[30] ^= 1;
        refuse(&header, "hash");
        let mut body = good.clone();
        body[HEADER_LEN] ^= 1;
        std::fs::write(&bad, &body).unwrap();
        assert!(TokenFile::open(&bad).unwrap().verify().is_err());
    }

    /// A header that hashes rightly around any numbers.
    fn forged(sequences: u64, tokens: u64, groups: u64, body: &[u8]) -> Vec<u8> {
        let header =
            Header { vocab_size: 9, max_len: 5, sequences, tokens, groups, body_sha256: [0; 32] };
        [&header.to_bytes(), body].concat()
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(
            sequences in prop_oneof![0u64..6, any::<u64>()],
            tokens in prop_oneof![0u64..30, any::<u64>()],
            groups in 0u64..3,
            body in prop::collection::vec(0u8..12, 0..150),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("t");
            std::fs::write(&path, forged(sequences, tokens, groups, &body)).unwrap();
            if let Ok(file) = TokenFile::open(&path) {
                let _ = file.verify();
                let mut ids = Vec::new();
                for i in 0..file.len() + 1 {
                    file.sequence(i, &mut ids);
                    prop_assert_eq!(ids.len(), file.length(i));
                    let _ = (file.group(i), file.flags(i));
                }
            }
        }
    }
}
