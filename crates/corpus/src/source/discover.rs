//! Which files there are, in which format, and whose mailbox each is.
//!
//! Files come in the order of their paths, each once, so the same data gives the same result however
//! it is named on the command line. A file's mailbox is the first folder below the folder given, or
//! the file's own name without its endings.

use super::{Format, open, table::looks_like_mail};
use crate::{Error, error::IoContext};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// One file to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// Where it is.
    pub path: PathBuf,
    /// What it is.
    pub format: Format,
    /// Whose it is: the group of all its messages when grouping by mailbox.
    pub mailbox: String,
}

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Discovered {
    /// Files to read, in the order of their paths.
    pub files: Vec<SourceFile>,
    /// Files below folders that are in no format known here.
    pub skipped: Vec<PathBuf>,
}

/// Looks at every path; `forced` is the format of all files.
///
/// # Errors
/// A path does not exist, gives no file, or is a file whose format cannot be told.
pub fn discover(paths: &[PathBuf], forced: Option<Format>) -> Result<Discovered, Error> {
    let mut files: BTreeMap<PathBuf, SourceFile> = BTreeMap::new();
    let mut skipped = Vec::new();
    for root in paths {
        let before = files.len() + skipped.len();
        let kind = fs::metadata(root)
            .map_err(|e| Error::NoInput { path: root.clone(), why: e.to_string() })?;
        if kind.is_file() {
            let format = match forced {
                Some(format) => format,
                None => told(root)?.ok_or_else(|| unknown(root))?,
            };
            add(&mut files, root, format, stem(root));
        } else {
            walk(root, root, forced, &mut files, &mut skipped)?;
        }
        if files.is_empty() && before == files.len() + skipped.len() {
            return Err(Error::NoInput {
                path: root.clone(),
                why: "the folder holds no file".into(),
            });
        }
    }
    if files.is_empty() {
        let path = paths.first().cloned().unwrap_or_default();
        let why = match skipped.first() {
            Some(first) => format!(
                "no file in a known format, {} skipped, as {}",
                skipped.len(),
                first.display()
            ),
            None => "no path given".into(),
        };
        return Err(Error::NoInput { path, why });
    }
    skipped.sort();
    Ok(Discovered { files: files.into_values().collect(), skipped })
}

fn add(files: &mut BTreeMap<PathBuf, SourceFile>, path: &Path, format: Format, mailbox: String) {
    let key = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    files.entry(key).or_insert(SourceFile { path: path.to_owned(), format, mailbox });
}

fn walk(
    root: &Path,
    folder: &Path,
    forced: Option<Format>,
    files: &mut BTreeMap<PathBuf, SourceFile>,
    skipped: &mut Vec<PathBuf>,
) -> Result<(), Error> {
    let is_maildir = ["cur", "new"].iter().all(|sub| folder.join(sub).is_dir());
    let mut entries: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).at("list", folder)? {
        entries.push(entry.at("list", folder)?.path());
    }
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let kind = fs::metadata(&path).at("find", &path)?;
        if kind.is_dir() {
            if is_maildir && (name == "cur" || name == "new") {
                add_maildir(root, &path, files)?;
            } else if !(is_maildir && name == "tmp") {
                walk(root, &path, forced, files, skipped)?;
            }
            continue;
        }
        let hidden = name.starts_with('.');
        let format = match forced {
            _ if !kind.is_file() || hidden || is_maildir => None,
            Some(format) => Some(format),
            None => told(&path)?,
        };
        match format {
            Some(format) => add(files, &path, format, owner(root, &path)),
            None if hidden || is_maildir => {}
            None => skipped.push(path),
        }
    }
    Ok(())
}

fn add_maildir(
    root: &Path,
    folder: &Path,
    files: &mut BTreeMap<PathBuf, SourceFile>,
) -> Result<(), Error> {
    for entry in fs::read_dir(folder).at("list", folder)? {
        let path = entry.at("list", folder)?.path();
        let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if path.is_file() && !hidden {
            let maildir = folder.parent().unwrap_or(folder);
            add(files, &path, Format::Maildir, owner(root, &maildir.join("x")));
        }
    }
    Ok(())
}

/// The first folder below `root`, or the name of the file (of `root` itself, for a message file).
fn owner(root: &Path, path: &Path) -> String {
    let below = path.strip_prefix(root).unwrap_or(path);
    let mut parts = below.components();
    let first = parts.next().map(|part| part.as_os_str().to_string_lossy().into_owned());
    match first {
        Some(folder) if parts.next().is_some() => folder,
        _ if is_one_message(path) => name_of_folder(root),
        _ => stem(path),
    }
}

/// Whether a file is one message, so that its folder is the mailbox.
fn is_one_message(path: &Path) -> bool {
    !matches!(by_name(path), Some(Format::Mbox | Format::Csv | Format::Jsonl | Format::Text))
}

fn name_of_folder(folder: &Path) -> String {
    let full = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    full.file_name().map_or_else(|| "mail".into(), |name| name.to_string_lossy().into_owned())
}

/// The name without the endings that say how it is stored.
fn stem(path: &Path) -> String {
    let mut name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for ending in ["gz", "zst", "mbox", "mbx", "eml", "csv", "jsonl", "ndjson", "txt"] {
        if let Some(short) = name.strip_suffix(ending).and_then(|n| n.strip_suffix('.'))
            && !short.is_empty()
        {
            name = short.to_owned();
        }
    }
    name
}

/// By the ending of the name.
fn by_name(path: &Path) -> Option<Format> {
    let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
    let name = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(&name);
    match name.rsplit_once('.')?.1 {
        "mbox" | "mbx" => Some(Format::Mbox),
        "eml" => Some(Format::Eml),
        "csv" => Some(Format::Csv),
        "jsonl" | "ndjson" => Some(Format::Jsonl),
        "txt" => Some(Format::Text),
        _ => None,
    }
}

/// By the name, then by the first bytes.
fn told(path: &Path) -> Result<Option<Format>, Error> {
    let named = by_name(path);
    if named.is_some_and(|format| format != Format::Mbox) {
        return Ok(named);
    }
    let start = open::peek(path, 64 << 10)?;
    if start.trim_ascii_start().starts_with(b"From ") {
        let cl2 = has_content_length(&start);
        return Ok(Some(if cl2 { Format::Mboxcl2 } else { Format::Mbox }));
    }
    if named.is_none() && looks_like_mail(&start) {
        return Ok(Some(Format::Eml));
    }
    Ok(named)
}

/// Whether the first message carries `Content-Length`, and no escaped line speaks against it.
fn has_content_length(start: &[u8]) -> bool {
    let head =
        start.split(|&b| b == b'\n').skip(1).take_while(|line| !line.trim_ascii().is_empty());
    let any = { head }
        .any(|line| line.get(..15).is_some_and(|n| n.eq_ignore_ascii_case(b"content-length:")));
    any && memchr::memmem::find(start, b"\n>From ").is_none()
}

fn unknown(path: &Path) -> Error {
    let start = open::peek(path, 32).unwrap_or_default();
    let start = String::from_utf8_lossy(&start).chars().take(24).collect();
    Error::UnknownFormat { path: path.to_owned(), start, known: Format::NAMES }
}
