//! Every large byte under a name and an account, predicted and measured by one list.

use std::{fs::File, io, ops::Deref, path::Path};

/// A file mapped read-only into memory.
#[derive(Debug)]
pub struct MappedFile(Option<memmap2::Mmap>);

impl MappedFile {
    /// Maps the whole of the file at `path`.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(Self(None));
        }
        // SAFETY: the map is read-only and private; files of a data set are written once.
        Ok(Self(Some(unsafe { memmap2::Mmap::map(&file)? })))
    }
}

impl Deref for MappedFile {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or(&[])
    }
}
