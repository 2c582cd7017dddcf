//! Files and folders that appear whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Writes a file beside `path`, syncs it, renames it over `path`. A stop at any moment leaves the
/// old file or the new one.
///
/// # Errors
/// As the system says; the old file is then untouched.
pub fn replace_file(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    replace_at(path, |beside| {
        let mut file = io::BufWriter::new(File::create(beside)?);
        write(&mut file)?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok(())
    })
}

/// As [`replace_file`], for whoever writes to a path of its own.
///
/// # Errors
/// As the system says; the old file is then untouched.
pub(crate) fn replace_at<E: From<io::Error>>(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.tmp"));
    let result = write(&beside).and_then(|()| {
        File::open(&beside)?.sync_all()?;
        fs::rename(&beside, path)?;
        sync_folder(path.parent().unwrap_or(Path::new(".")))?;
        Ok(())
    });
    if result.is_err() {
        drop(fs::remove_file(&beside));
    }
    result
}

/// Fills a folder beside `path`, syncs all its files, renames it to `path`. An existing folder at
/// `path` is replaced.
///
/// # Errors
/// As the system says; the old folder is then untouched.
pub fn replace_folder<E: From<io::Error>>(
    path: &Path,
    fill: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.tmp"));
    if beside.exists() {
        fs::remove_dir_all(&beside)?;
    }
    let result = (|| {
        fs::create_dir_all(&beside)?;
        fill(&beside)?;
        for entry in fs::read_dir(&beside)? {
            File::open(entry?.path())?.sync_all()?;
        }
        sync_folder(&beside)?;
        if path.exists() {
            fs::remove_dir_all(path)?;
        }
        fs::rename(&beside, path)?;
        sync_folder(path.parent().unwrap_or(Path::new(".")))?;
        Ok(())
    })();
    if result.is_err() {
        drop(fs::remove_dir_all(&beside));
    }
    result
}

/// What to try about an error of reading or writing, ready to follow it; empty where nothing is
/// known to help.
pub fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free some space or choose another folder"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; check the permissions or choose another folder"
        }
        _ => "",
    }
}

/// Makes renames in a folder last.
///
/// # Errors
/// As the system says.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        replace_file(&path, |f| f.write_all(b"old")).unwrap();
        let failed = replace_file(&path, |f| {
            f.write_all(b"ne")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert!(failed.is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_is_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("step");
        let fill =
            |text: &'static str| move |p: &Path| -> io::Result<()> { fs::write(p.join("a"), text) };
        replace_folder(&path, fill("1")).unwrap();
        replace_folder(&path, fill("2")).unwrap();
        let failed: io::Result<()> = replace_folder(&path, |p| {
            fs::write(p.join("a"), "3")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert!(failed.is_err());
        assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "2");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
