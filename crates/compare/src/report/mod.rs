//! The report in three forms, each a pure function of an [`Analysis`]: a table for the terminal,
//! `results.json` for programs, and one page that needs nothing but itself.

mod figures;
mod html;
mod json;
mod numbers;
mod tables;
mod terminal;

use std::fs;
use std::path::{Path, PathBuf};

pub use html::html;
pub use json::{confirmation, json};
pub use terminal::terminal;

use crate::{Analysis, Error, Result};

/// Writes `results.json` and `report.html` into a folder, each whole or not at all, and returns
/// their paths.
///
/// # Errors
/// A file cannot be written.
pub fn write(folder: &Path, analysis: &Analysis) -> Result<[PathBuf; 2]> {
    fs::create_dir_all(folder).map_err(Error::io(folder, "make the folder"))?;
    let results = folder.join("results.json");
    replace(&results, &format!("{:#}\n", json(analysis)))?;
    let page = folder.join("report.html");
    replace(&page, &html(analysis))?;
    Ok([results, page])
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
