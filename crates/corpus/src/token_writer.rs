//! Writes token files: ids as they come, what is known of sequences to a file beside, which becomes the
//! rest at the end. Memory holds buffers, whatever the number of sequences.

use crate::{
    Error,
    error::IoContext,
    scratch::{ReadFrom, Scratch, ScratchWriter},
    token_file::{Flags, HEADER_LEN, Header, id},
};
use sha2::{Digest, Sha256};
use std::{
    fs::File,
    io::{BufWriter, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// A token file being written.
#[derive(Debug)]
pub struct TokenWriter {
    path: PathBuf,
    file: BufWriter<File>,
    header: Header,
    rows: ScratchWriter,
    hash: Sha256,
    scratch: Vec<u8>,
}

/// What is known of a sequence besides its ids.
struct Row {
    /// Its length in ids.
    len: u32,
    group: u32,
    truncated: bool,
}

/// Bytes of a row on disk.
const ROW: usize = 9;

impl Row {
    fn to_bytes(&self) -> [u8; ROW] {
        let mut bytes = [0; ROW];
        bytes[..4].copy_from_slice(&self.len.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.group.to_le_bytes());
        bytes[8] = u8::from(self.truncated);
        bytes
    }

    fn from_bytes(bytes: [u8; ROW]) -> Self {
        Self { len: id(&bytes[..4]), group: id(&bytes[4..8]), truncated: bytes[8] != 0 }
    }
}

impl TokenWriter {
    /// Begins a file for ids below `vocab_size` in sequences of at most `max_len`.
    ///
    /// # Errors
    /// The file, or one beside it, cannot be made.
    pub fn create(path: &Path, vocab_size: u32, max_len: u32) -> Result<Self, Error> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path);
        let mut file = BufWriter::with_capacity(1 << 16, file.at("create", path)?);
        file.write_all(&[0; HEADER_LEN]).at("write", path)?;
        let header = Header {
            vocab_size,
            max_len,
            sequences: 0,
            tokens: 0,
            groups: 0,
            body_sha256: [0; 32],
        };
        let rows = ScratchWriter::create(&path.with_extension("rows.tmp"))?;
        let (hash, scratch) = (Sha256::new(), Vec::new());
        Ok(Self { path: path.to_owned(), file, header, rows, hash, scratch })
    }

    /// Adds a sequence.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn push(&mut self, ids: &[u32], group: u32, truncated: bool) -> Result<(), Error> {
        self.scratch.clear();
        let id_bytes = self.header.id_bytes();
        for id in ids {
            self.scratch.extend_from_slice(&id.to_le_bytes()[..id_bytes]);
        }
        self.header.sequences += 1;
        self.header.tokens += ids.len() as u64;
        self.rows.push(&Row { len: ids.len() as u32, group, truncated }.to_bytes())?;
        self.hash.update(&self.scratch);
        self.file.write_all(&self.scratch).at("write", &self.path)
    }

    /// Number of sequences so far.
    pub fn len(&self) -> usize {
        self.header.sequences as usize
    }

    /// Whether nothing was added yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends the ids.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn end(mut self) -> Result<TokenBody, Error> {
        self.file.flush().at("write", &self.path)?;
        let Self { path, file, header, rows, hash, .. } = self;
        Ok(TokenBody { path, file, header, rows: rows.finish()?, hash })
    }
}

/// A token file with all its ids, that lacks its header and what is known of sequences.
#[derive(Debug)]
pub struct TokenBody {
    path: PathBuf,
    file: BufWriter<File>,
    header: Header,
    rows: Scratch,
    hash: Sha256,
}

impl TokenBody {
    /// Number of sequences.
    pub(crate) fn len(&self) -> usize {
        self.header.sequences as usize
    }

    /// Ids of all sequences together.
    pub(crate) fn num_tokens(&self) -> usize {
        self.header.tokens as usize
    }

    /// Gives every sequence: its number, its ids, whether it was truncated.
    pub(crate) fn each_sequence(
        &self,
        mut each: impl FnMut(usize, &[u32], bool),
    ) -> Result<(), Error> {
        let id_bytes = self.header.id_bytes();
        let mut file = ReadFrom::buffered(self.file.get_ref(), HEADER_LEN as u64);
        let (mut bytes, mut ids) = (Vec::new(), Vec::new());
        for (i, row) in rows(&self.rows).enumerate() {
            let row = row?;
            bytes.resize(row.len as usize * id_bytes, 0);
            file.read_exact(&mut bytes).at("read", &self.path)?;
            ids.clear();
            ids.extend(bytes.chunks_exact(id_bytes).map(id));
            each(i, &ids, row.truncated);
        }
        Ok(())
    }

    /// Completes the file and gives the SHA-256 of its body; `groups` is how many groups there are in
    /// all, `seen_run` says of a sequence whether it has that flag.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(
        mut self,
        groups: u64,
        seen_run: impl Fn(usize) -> bool,
    ) -> Result<[u8; 32], Error> {
        self.header.groups = groups;
        let mut tail = Tail { file: &mut self.file, hash: self.hash, path: &self.path };
        let ids_end = HEADER_LEN as u64 + self.header.tokens * self.header.id_bytes() as u64;
        tail.pad(ids_end)?;
        let mut offset = 0u64;
        tail.put(&offset.to_le_bytes())?;
        for row in rows(&self.rows) {
            offset += u64::from(row?.len);
            tail.put(&offset.to_le_bytes())?;
        }
        for row in rows(&self.rows) {
            tail.put(&row?.group.to_le_bytes())?;
        }
        tail.pad(4 * self.header.sequences)?;
        for (i, row) in rows(&self.rows).enumerate() {
            let flags = Flags { truncated: row?.truncated, seen_run: seen_run(i) };
            tail.put(&[flags.to_byte()])?;
        }
        let body_sha256 = tail.hash.finalize().into();
        self.header.body_sha256 = body_sha256;
        self.file.seek(SeekFrom::Start(0)).at("write", &self.path)?;
        self.file.write_all(&self.header.to_bytes()).at("write", &self.path)?;
        self.file.flush().at("write", &self.path)?;
        self.file.get_ref().sync_all().at("write", &self.path)?;
        Ok(body_sha256)
    }
}

fn rows(scratch: &Scratch) -> impl Iterator<Item = Result<Row, Error>> + '_ {
    scratch.records().map(|row| row.map(Row::from_bytes))
}

/// Everything after the ids, hashed as it is written.
struct Tail<'a> {
    file: &'a mut BufWriter<File>,
    hash: Sha256,
    path: &'a Path,
}

impl Tail<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.hash.update(bytes);
        self.file.write_all(bytes).at("write", self.path)
    }

    /// Zeros from `end` to the next multiple of 8.
    fn pad(&mut self, end: u64) -> Result<(), Error> {
        self.put(&[0; 8][..(end.next_multiple_of(8) - end) as usize])
    }
}
