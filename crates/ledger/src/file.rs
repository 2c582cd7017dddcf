//! A file seen as bytes: mapped, not read.

use crate::cut_short::Watched;
use crate::resident::Mapped;
use memmap2::Mmap;
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;

/// A read-only file in memory. Its pages belong to the page cache and can be reclaimed.
#[derive(Debug)]
pub struct MappedFile {
    // Goes before the pages do: their address may be another's at once.
    _place: Option<(Mapped, Watched)>,
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
        // end stops this process, with a line that says so; our own files are replaced by renaming.
        let map = unsafe { Mmap::map(&file)? };
        let (at, len) = (map.as_ptr() as usize, map.len());
        let place = (Mapped::new(at, len), Watched::new(path, at, len));
        Ok(MappedFile { _place: Some(place), map: Some(map) })
    }

    /// Says that `range` was read for the last time for now: its pages no longer count as this
    /// process's memory, and are read from the page cache should they be asked for again.
    pub fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Some(map) = &self.map {
            let Range { start, end } = range.start..range.end.min(map.len());
            if start < end {
                // SAFETY: the pages are those of a read-only map of a file: their content is the
                // file's whether they are resident or not. A refusal changes nothing.
                let done = unsafe {
                    let advice = memmap2::UncheckedAdvice::DontNeed;
                    map.unchecked_advise_range(advice, start, end - start)
                };
                drop(done);
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_bytes_read_as_before() {
        let path = std::env::temp_dir().join(format!("released-{}", std::process::id()));
        let bytes: Vec<u8> = (0..40_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = MappedFile::open(&path).unwrap();
        assert_eq!(*file, bytes);
        for range in [0..40_000, 100..9000, 39_000..90_000, 5..6, 7..7] {
            file.release(range);
            assert_eq!(*file, bytes);
        }
        drop(file);
        std::fs::remove_file(&path).unwrap();
    }
}
