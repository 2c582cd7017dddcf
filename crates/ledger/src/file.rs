//! A file seen as bytes: mapped, not read.

use crate::resident::Mapped;
use memmap2::Mmap;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

/// A read-only file in memory. Its pages belong to the page cache and can be reclaimed.
#[derive(Debug)]
pub struct MappedFile {
    // Goes before the pages do: their address may be another's at once.
    _place: Option<Mapped>,
    map: Option<Mmap>,
}

impl MappedFile {
    /// Maps the file at `path`; an empty file gives no bytes.
    ///
    /// # Errors
    /// When it cannot be opened or mapped.
    pub fn open(path: &Path) -> io::Result<MappedFile> {
        let file = File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(MappedFile { _place: None, map: None });
        }
        // SAFETY: the map is read-only. Should another process cut the file short, a read past its
        // end stops this process; our own files are replaced by renaming, never cut.
        let map = unsafe { Mmap::map(&file)? };
        let place = Mapped::new(map.as_ptr() as usize, map.len());
        Ok(MappedFile { _place: Some(place), map: Some(map) })
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        crate::timeline::about_to_shrink();
    }
}

impl Deref for MappedFile {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or(&[])
    }
}
