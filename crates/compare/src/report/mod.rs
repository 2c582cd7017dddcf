//! The report in three forms, each a pure function of an [`Analysis`]: a table for the terminal,
//! `results.json` for programs, and one page that needs nothing but itself.

mod figures;
mod html;
mod json;
pub(crate) mod numbers;
mod tables;
mod terminal;

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

pub use html::html;
pub use json::{confirmation, json};
pub use terminal::terminal;
pub(crate) use terminal::wrapped;

use crate::{Analysis, Error, Result};

/// The style of every page.
pub(crate) const STYLE: &str = include_str!("style.css");

/// Writes `results.json` and `report.html` into a folder, each whole or not at all, and returns
/// their paths.
///
/// # Errors
/// A file cannot be written.
pub fn write(folder: &Path, analysis: &Analysis) -> Result<[PathBuf; 2]> {
    write_both(folder, &json(analysis), &html(analysis))
}

/// Writes `results.json` and `report.html` of the comparison of decoding rules, likewise.
///
/// # Errors
/// A file cannot be written.
pub fn write_decoding(folder: &Path, found: &crate::decoding::Findings) -> Result<[PathBuf; 2]> {
    write_both(folder, &crate::decoding::json(found), &crate::decoding::html(found))
}

fn write_both(folder: &Path, results: &Value, page: &str) -> Result<[PathBuf; 2]> {
    fs::create_dir_all(folder).map_err(Error::io(folder, "make the folder"))?;
    let paths = [folder.join("results.json"), folder.join("report.html")];
    replace(&paths[0], &format!("{results:#}\n"))?;
    replace(&paths[1], page)?;
    Ok(paths)
}

fn replace(path: &Path, text: &str) -> Result<()> {
    let half = path.with_extension("tmp");
    fs::write(&half, text).map_err(Error::io(&half, "write"))?;
    fs::rename(&half, path).map_err(Error::io(path, "replace"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invented;

    #[test]
    fn both_files_are_written_and_are_the_same_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let (experiment, audit, records) = invented::comparison();
        let analysis = Analysis::new(&experiment, &audit, &records, None).unwrap();
        let paths = write(folder.path(), &analysis).unwrap();
        let first: Vec<_> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
        let again = Analysis::new(&experiment, &audit, &records, None).unwrap();
        write(folder.path(), &again).unwrap();
        let second: Vec<_> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
        assert!(first == second);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no half-written file is left");
    }
}
