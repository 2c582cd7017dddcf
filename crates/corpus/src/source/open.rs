//! Opens files, decompressed by what their first bytes say.

use crate::{Error, error::IoContext};
use std::{
    fs::File,
    io::{self, BufReader, Cursor, Read},
    path::Path,
};

/// Opens `path`; gzip and zstd are told by their magic numbers, not by the name.
pub(super) fn open(path: &Path) -> Result<Box<dyn Read>, Error> {
    let mut file = File::open(path).at("open", path)?;
    let mut magic = [0; 4];
    let mut len = 0;
    while len < 4 {
        match file.read(&mut magic[len..]).at("read", path)? {
            0 => break,
            n => len += n,
        }
    }
    let whole = Cursor::new(magic).take(len as u64).chain(file);
    Ok(match magic {
        [0x1F, 0x8B, ..] => {
            Box::new(flate2::bufread::MultiGzDecoder::new(BufReader::with_capacity(1 << 16, whole)))
        }
        [0x28, 0xB5, 0x2F, 0xFD] => Box::new(zstd::Decoder::new(whole).at("decompress", path)?),
        _ => Box::new(whole),
    })
}

/// The first bytes of a file, decompressed.
pub(super) fn peek(path: &Path, most: usize) -> Result<Vec<u8>, Error> {
    let mut start = Vec::new();
    match open(path)?.take(most as u64).read_to_end(&mut start) {
        Ok(_) => Ok(start),
        // A broken archive is reported where it is read.
        Err(_) if !start.is_empty() => Ok(start),
        Err(source) => Err(source).at("read", path),
    }
}

/// Counts what passes through.
pub(super) struct Counted<R> {
    source: R,
    bytes: u64,
}

impl<R> Counted<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source, bytes: 0 }
    }

    pub(super) fn passed(&self) -> u64 {
        self.bytes
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.source.read(out)?;
        self.bytes += n as u64;
        Ok(n)
    }
}
