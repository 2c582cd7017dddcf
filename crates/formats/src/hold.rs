//! A folder that one process at a time writes into, by an advisory lock on a file in it.
//!
//! The system gives the lock back when the process ends, however it ends: a file that a killed process
//! left behind holds nobody off.

use crate::folder::hint;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// The file that is locked.
pub const HOLD_FILE: &str = "in-use.lock";

/// Why a folder cannot be held.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// Another process holds it.
    #[error(
        "{folder}: another process{by} writes into it; wait until it has ended, stop it, or give \
         another --out"
    )]
    Held {
        /// The folder.
        folder: PathBuf,
        /// What the other one says of itself, in brackets.
        by: String,
    },
    /// The file of the lock cannot be made.
    #[error("{path}: {source}{}", hint(source))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A folder that is held until this is dropped. Its file goes then, and the folder too where it was
/// made for this and nothing came into it.
#[derive(Debug)]
pub struct Hold {
    folder: PathBuf,
    file: File,
    made: bool,
    /// Why nobody is held off, where the file system knows no locks.
    pub doubt: Option<io::Error>,
}

impl Hold {
    /// Holds a folder, which is made where there is none.
    ///
    /// # Errors
    /// [`HoldError::Held`] when another process holds it; nothing is changed then.
    pub fn take(folder: &Path) -> Result<Hold, HoldError> {
        let path = folder.join(HOLD_FILE);
        let io = |source| HoldError::Io { path: path.clone(), source };
        loop {
            let made = is_vacant(folder);
            fs::create_dir_all(folder)
                .map_err(|source| HoldError::Io { path: folder.to_owned(), source })?;
            let file =
                File::options().read(true).write(true).create(true).truncate(false).open(&path);
            let file = match file {
                // The folder has gone in between, with the hold of another process.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                other => other.map_err(io)?,
            };
            let doubt = match file.try_lock() {
                Ok(()) => None,
                Err(TryLockError::WouldBlock) => return Err(held(folder, file)),
                Err(TryLockError::Error(error)) => Some(error),
            };
            // Another process may have dropped its hold, and the file with it, before this lock.
            if doubt.is_some() || is_at(&file, &path) {
                // For the message of others; a full disk is no reason to stop.
                drop(file.set_len(0).and_then(|()| write!(&file, "{}", std::process::id())));
                return Ok(Hold { folder: folder.to_owned(), file, made, doubt });
            }
        }
    }

    /// Removes what the folder holds, but for the hold itself.
    ///
    /// # Errors
    /// As the system says.
    pub fn clear(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if entry.file_name() == HOLD_FILE {
                continue;
            }
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            } else {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        drop(fs::remove_file(self.folder.join(HOLD_FILE)));
        if self.made {
            // Only where it is empty.
            drop(fs::remove_dir(&self.folder));
        }
        drop(self.file.unlock());
    }
}

/// Whether there is no such folder, or nothing in it but what a hold leaves.
pub fn is_vacant(folder: &Path) -> bool {
    match fs::read_dir(folder) {
        Ok(mut entries) => {
            let mut held = false;
            let other = entries.any(|entry| match entry {
                Ok(entry) if entry.file_name() == HOLD_FILE => {
                    held = true;
                    false
                }
                _ => true,
            });
            held && !other
        }
        Err(e) => e.kind() == io::ErrorKind::NotFound,
    }
}

fn held(folder: &Path, mut file: File) -> HoldError {
    let mut said = String::new();
    let number = file.read_to_string(&mut said).ok().and_then(|_| said.trim().parse::<u32>().ok());
    let by = number.map_or(String::new(), |number| format!(" ({number})"));
    HoldError::Held { folder: folder.to_owned(), by }
}

/// Whether an open file is still the one at this path.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let (open, there) = (file.metadata().map(place), fs::metadata(path).map(place));
    matches!((open, there), (Ok(open), Ok(there)) if open == there)
}

/// Elsewhere an open file cannot be removed.
#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holds_a_folder_and_leaves_nothing_behind() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("run");
        assert!(is_vacant(&folder));
        let first = Hold::take(&folder).unwrap();
        let other = Hold::take(&folder).unwrap_err().to_string();
        assert!(other.contains(&format!("process ({})", std::process::id())), "{other}");
        assert!(is_vacant(&folder));
        drop(first);
        assert!(!folder.exists());
        let again = Hold::take(&folder).unwrap();
        fs::write(folder.join("weights"), "w").unwrap();
        fs::create_dir(folder.join("more")).unwrap();
        assert!(!is_vacant(&folder));
        again.clear().unwrap();
        assert!(is_vacant(&folder));
        fs::write(folder.join("weights"), "w").unwrap();
        drop(again);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn what_a_killed_process_left_holds_nobody_off() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("run");
        fs::create_dir(&folder).unwrap();
        assert!(!is_vacant(&folder), "somebody's own");
        for weights in [true, false] {
            fs::write(folder.join(HOLD_FILE), "1").unwrap();
            let file = folder.join("weights");
            if weights { fs::write(file, "w") } else { fs::remove_file(file) }.unwrap();
            drop(Hold::take(&folder).unwrap());
            assert_eq!(folder.join("weights").exists(), weights);
            assert_eq!(folder.exists(), weights);
        }
    }
}
