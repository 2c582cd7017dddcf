//! A folder that appears whole or not at all.

use super::options::Existing;
use crate::{Error, error::IoContext};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A folder being built beside its place. Dropped without [`commit`](Self::commit), it is removed.
pub(super) struct Staging {
    out: PathBuf,
    dir: PathBuf,
    existing: Existing,
    done: bool,
}

impl Staging {
    pub(super) fn begin(out: &Path, existing: Existing) -> Result<Self, Error> {
        check_place(out, existing)?;
        let name = out.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.ok_or(Error::Option {
            option: "out",
            found: out.display().to_string(),
            expected: "the path of a folder to make",
        })?;
        let parent = match out.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        fs::create_dir_all(parent).at("create the folder of", out)?;
        let dir = parent.join(format!(".{name}.{}.tmp", std::process::id()));
        clear_leftovers(parent, &name)?;
        fs::create_dir(&dir).at("create", &dir)?;
        Ok(Self { out: out.to_owned(), dir, existing, done: false })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Moves the folder into its place.
    pub(super) fn commit(mut self) -> Result<(), Error> {
        check_place(&self.out, self.existing)?;
        let old = self.dir.with_extension("old");
        let replaced = self.out.exists();
        if replaced {
            fs::rename(&self.out, &old).at("move aside", &self.out)?;
        }
        if let Err(source) = fs::rename(&self.dir, &self.out) {
            if replaced {
                // Put the old one back; the first error is the one to tell.
                let _ = fs::rename(&old, &self.out);
            }
            return Err(source).at("move into place", &self.out);
        }
        self.done = true;
        if replaced {
            fs::remove_dir_all(&old).at("remove", &old)?;
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.done {
            // Nothing better can be done with an error here.
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// Removes what runs that were killed left beside `name`: folders of processes that are no more.
fn clear_leftovers(parent: &Path, name: &str) -> Result<(), Error> {
    for entry in fs::read_dir(parent).at("list", parent)? {
        let path = entry.at("list", parent)?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let owner =
            file.strip_prefix(&format!(".{name}.")).and_then(|rest| rest.strip_suffix(".tmp"));
        let Some(owner) = owner.and_then(|id| id.parse::<u32>().ok()) else { continue };
        if owner == std::process::id() || !alive(owner) {
            fs::remove_dir_all(&path).at("clear", &path)?;
        }
    }
    Ok(())
}

/// Whether a process of this number may still be at work; where that cannot be told, yes.
fn alive(process: u32) -> bool {
    let all = Path::new("/proc/self");
    !all.exists() || Path::new(&format!("/proc/{process}")).exists()
}

fn check_place(out: &Path, existing: Existing) -> Result<(), Error> {
    if fs::symlink_metadata(out).is_err() {
        return Ok(());
    }
    if existing == Existing::Refuse {
        return Err(Error::OutputExists { path: out.to_owned() });
    }
    let empty = fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_none());
    if empty || out.join("manifest.json").is_file() && out.join("tokenizer.json").is_file() {
        Ok(())
    } else {
        Err(Error::NotReplaceable { path: out.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_killed_runs_go_and_others_stay() {
        let parent = tempfile::tempdir().unwrap();
        let beside = |name: &str| parent.path().join(name);
        // No process has the largest number; the first one is always alive.
        for name in [".mail.4294967295.tmp", ".mail.1.tmp", ".other.4294967295.tmp", ".mail.x.tmp"]
        {
            fs::create_dir(beside(name)).unwrap();
        }
        let staging = Staging::begin(&beside("mail"), Existing::Refuse).unwrap();
        let gone = cfg!(target_os = "linux");
        assert_eq!(beside(".mail.4294967295.tmp").exists(), !gone);
        for name in [".mail.1.tmp", ".other.4294967295.tmp", ".mail.x.tmp"] {
            assert!(beside(name).exists(), "{name}");
        }
        let own = staging.dir().to_owned();
        assert!(own.exists());
        drop(staging);
        assert!(!own.exists());
    }
}
