//! Cleaned texts on disk between passes, so that memory holds a few numbers a message.

use crate::{Error, error::IoContext};
use std::{
    fs::File,
    io::{BufReader, BufWriter, Read, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// What memory keeps of a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// Where its text begins.
    pub(super) offset: u64,
    /// Bytes of its text.
    pub(super) len: u32,
    /// Its group: an index, or a node of the thread finder before threads are closed.
    pub(super) group: u32,
    /// Tokens under the cap, `<bos>` and `<eos>` counted (words, whatever the vocabulary).
    pub(super) tokens: u32,
}

/// Texts being written.
pub(super) struct SpillWriter {
    path: PathBuf,
    file: BufWriter<File>,
    offset: u64,
}

impl SpillWriter {
    pub(super) fn create(dir: &Path) -> Result<Self, Error> {
        let path = dir.join("texts.tmp");
        let file = BufWriter::with_capacity(1 << 18, File::create(&path).at("create", &path)?);
        Ok(Self { path, file, offset: 0 })
    }

    /// Writes a text; gives its place.
    pub(super) fn push(&mut self, text: &str) -> Result<u64, Error> {
        let at = self.offset;
        self.file.write_all(text.as_bytes()).at("write", &self.path)?;
        self.offset += text.len() as u64;
        Ok(at)
    }

    pub(super) fn finish(mut self) -> Result<Spill, Error> {
        self.file.flush().at("write", &self.path)?;
        let file = File::open(&self.path).at("open", &self.path)?;
        Ok(Spill { path: self.path, file })
    }
}

/// Texts written.
pub(super) struct Spill {
    path: PathBuf,
    file: File,
}

impl Spill {
    /// Gives every text in the order of the rows.
    pub(super) fn for_each(
        &self,
        rows: &[Row],
        mut each: impl FnMut(usize, &Row, &str) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let file = File::open(&self.path).at("open", &self.path)?;
        let mut file = BufReader::with_capacity(1 << 18, file);
        let mut bytes = Vec::new();
        for (i, row) in rows.iter().enumerate() {
            bytes.resize(row.len as usize, 0);
            file.read_exact(&mut bytes).at("read", &self.path)?;
            match std::str::from_utf8(&bytes) {
                Ok(text) => each(i, row, text)?,
                Err(_) => each(i, row, &String::from_utf8_lossy(&bytes))?,
            }
        }
        Ok(())
    }

    /// The text of one row.
    pub(super) fn text(&self, row: &Row) -> Result<String, Error> {
        let mut bytes = vec![0; row.len as usize];
        self.file.read_exact_at(&mut bytes, row.offset).at("read", &self.path)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}
