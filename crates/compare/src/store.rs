//! The folder of a comparison: the experiment as it was fixed, and one appended line a finished run.
//!
//! A line is written and synced whole; a crash can leave a torn last line, which the next opening
//! cuts off. One process at a time: the records file is locked while a store is open.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::{Arm, Error, Experiment, Record, Result};

const RECORDS: &str = "records.jsonl";
const EXPERIMENT: &str = "experiment.toml";

/// An open comparison.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    file: File,
    experiment: Experiment,
    data: String,
    records: Vec<Record>,
}

impl Store {
    /// Opens a folder for this experiment on this data (`data` is a hash of it); `folder` is made
    /// where it does not exist.
    ///
    /// # Errors
    /// The folder belongs to another experiment or other data, is in use, holds a broken line, or
    /// cannot be written.
    pub fn open(folder: &Path, experiment: &Experiment, data: &str) -> Result<Store> {
        fs::create_dir_all(folder).map_err(Error::io(folder, "make the folder"))?;
        let path = folder.join(RECORDS);
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create(true).open(&path);
        let mut file = file.map_err(Error::io(&path, "open the records"))?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => Error::Busy { path: path.clone() },
            TryLockError::Error(source) => Error::io(&path, "lock the records")(source),
        })?;
        fix(folder, experiment)?;
        let records = read(&path, &mut file)?;
        let (experiment, data) = (experiment.clone(), data.to_owned());
        let store = Store { path, file, experiment, data, records };
        match store.records.iter().find(|record| store.digest(record) != record.config_digest) {
            Some(Record { arm, seed, .. }) => {
                Err(Error::OtherData { path: store.path.clone(), arm: arm.clone(), seed: *seed })
            }
            None => Ok(store),
        }
    }

    /// The experiment and the finished runs of a folder, to report on them while it may still be
    /// at work; changes nothing.
    ///
    /// # Errors
    /// The folder holds no comparison, or a broken line.
    pub fn read(folder: &Path) -> Result<(Experiment, Vec<Record>)> {
        let path = folder.join(EXPERIMENT);
        let text = fs::read_to_string(&path).map_err(Error::io(&path, "read the experiment"))?;
        let experiment = Experiment::from_toml(&text, &path.display().to_string())?;
        let path = folder.join(RECORDS);
        let bytes = fs::read(&path).map_err(Error::io(&path, "read the records"))?;
        Ok((experiment, whole_lines(&path, &bytes)?.0))
    }

    /// The finished runs, in the order in which they were recorded.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// The runs still to be done, arm by arm within each seed, so that a comparison cut short has
    /// whole seeds.
    pub fn pending(&self) -> Vec<(&Arm, u64)> {
        let done: HashSet<_> = self.records.iter().map(|r| (r.arm.as_str(), r.seed)).collect();
        let runs = self.experiment.runs().into_iter();
        runs.filter(|(arm, seed)| !done.contains(&(arm.name.as_str(), *seed))).collect()
    }

    /// Writes one finished run, failed or not, with its digest; when this returns, the line is on
    /// disk.
    ///
    /// # Errors
    /// The line cannot be written; what was written of it is cut off.
    pub fn append(&mut self, record: Record) -> Result<()> {
        let mut record = record.sealed();
        record.config_digest = self.digest(&record);
        let mut line = serde_json::to_vec(&record).map_err(|error| {
            Error::io(&self.path, "write a record")(std::io::Error::other(error))
        })?;
        line.push(b'\n');
        let end = self.file.seek(SeekFrom::End(0));
        let end = end.map_err(Error::io(&self.path, "find the end of the records"))?;
        let written = self.file.write_all(&line).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // The first error is the one to tell; the next opening cuts a torn line all the same.
            let _ = self.file.set_len(end);
            return Err(Error::io(&self.path, "append a record")(error));
        }
        self.records.push(record);
        Ok(())
    }

    /// What the record's digest must be here; empty for an arm that this experiment does not have.
    fn digest(&self, record: &Record) -> String {
        let arm = self.experiment.arms.iter().find(|arm| arm.name == record.arm);
        arm.map_or(String::new(), |arm| self.experiment.run_digest(arm, record.seed, &self.data))
    }
}

/// Writes down the experiment at the first opening; holds a later one against it.
fn fix(folder: &Path, experiment: &Experiment) -> Result<()> {
    let path = folder.join(EXPERIMENT);
    if path.exists() {
        let text = fs::read_to_string(&path).map_err(Error::io(&path, "read the experiment"))?;
        let before = Experiment::from_toml(&text, &path.display().to_string())?;
        if before.digest() != experiment.digest() {
            let (expected, found) = (experiment.digest(), before.digest());
            return Err(Error::ExperimentChanged { path: folder.to_path_buf(), expected, found });
        }
        return Ok(());
    }
    let half = folder.join(format!("{EXPERIMENT}.tmp"));
    fs::write(&half, experiment.to_toml()).map_err(Error::io(&half, "write the experiment"))?;
    fs::rename(&half, &path).map_err(Error::io(&path, "name the experiment"))
}

/// Reads all whole lines and cuts off a torn last one.
fn read(path: &Path, file: &mut File) -> Result<Vec<Record>> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(Error::io(path, "read the records"))?;
    let (records, whole) = whole_lines(path, &bytes)?;
    if whole < bytes.len() {
        file.set_len(whole as u64).map_err(Error::io(path, "cut a torn record"))?;
    }
    Ok(records)
}

/// The records of all lines that end, and the bytes they take.
fn whole_lines(path: &Path, bytes: &[u8]) -> Result<(Vec<Record>, usize)> {
    let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let lines = bytes[..whole].split(|&byte| byte == b'\n').enumerate();
    let records = lines.filter(|(_, line)| !line.iter().all(u8::is_ascii_whitespace)).map(
        |(number, line)| {
            serde_json::from_slice(line).map_err(|error| Error::BrokenRecord {
                path: path.to_path_buf(),
                line: number + 1,
                message: error.to_string(),
            })
        },
    );
    Ok((records.collect::<Result<_>>()?, whole))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invented;
    use proptest::prelude::*;

    #[test]
    fn finished_rows_are_skipped_after_a_crash_in_the_middle_of_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let experiment = invented::experiment();
        let mut store = Store::open(folder.path(), &experiment, "data").unwrap();
        let all = store.pending().len();
        store.append(invented::record("rnn", 1)).unwrap();
        store.append(invented::record("rnn", 2)).unwrap();
        drop(store);
        let path = folder.path().join(RECORDS);
        let torn = [fs::read(&path).unwrap(), b"{\"arm\":\"rnn\",\"se".to_vec()].concat();
        fs::write(&path, torn).unwrap();
        let (read, records) = Store::read(folder.path()).unwrap();
        assert_eq!((read.digest(), records.len()), (experiment.digest(), 2));

        let mut store = Store::open(folder.path(), &experiment, "data").unwrap();
        assert_eq!(store.records().len(), 2);
        let pending = store.pending();
        assert_eq!(pending.len(), all - 2);
        assert!(!pending.iter().any(|(arm, seed)| arm.name == "rnn" && *seed <= 2));
        store.append(invented::record("rnn", 3)).unwrap();
        drop(store);
        assert_eq!(Store::open(folder.path(), &experiment, "data").unwrap().records().len(), 3);
    }

    #[test]
    fn another_experiment_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        drop(Store::open(folder.path(), &invented::experiment(), "data").unwrap());
        let other = Experiment { margin_nats: 0.5, ..invented::experiment() };
        let error = Store::open(folder.path(), &other, "data").unwrap_err();
        assert!(matches!(error, Error::ExperimentChanged { .. }) && error.is_input(), "{error}");
    }

    #[test]
    fn a_second_process_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let experiment = invented::experiment();
        let _first = Store::open(folder.path(), &experiment, "data").unwrap();
        let error = Store::open(folder.path(), &experiment, "data").unwrap_err();
        assert!(matches!(error, Error::Busy { .. }), "{error}");
    }

    #[test]
    fn a_broken_line_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(RECORDS), "\n{\"arm\": 7}\n").unwrap();
        let error =
            Store::open(folder.path(), &invented::experiment(), "data").unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
    }

    #[test]
    fn records_of_other_data_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let experiment = invented::experiment();
        let mut store = Store::open(folder.path(), &experiment, "data").unwrap();
        store.append(invented::record("rnn", 1)).unwrap();
        drop(store);
        let error = Store::open(folder.path(), &experiment, "other").unwrap_err();
        assert!(matches!(&error, Error::OtherData { arm, seed: 1, .. } if arm == "rnn"), "{error}");
    }

    proptest! {
        #[test]
        fn no_bytes_make_reading_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = whole_lines(Path::new("x"), &bytes);
        }

        #[test]
        fn a_file_cut_anywhere_keeps_its_whole_lines(cut in 0.0f64..1.0) {
            let line = |seed| serde_json::to_string(&invented::record("unigram", seed)).unwrap() + "\n";
            let (one, two) = (line(1), line(2));
            let all = one.clone() + &two;
            let cut = (cut * all.len() as f64) as usize;
            let (records, whole) = whole_lines(Path::new("x"), &all.as_bytes()[..cut]).unwrap();
            prop_assert_eq!(records.len(), usize::from(cut >= one.len()));
            prop_assert_eq!(whole, if cut >= one.len() { one.len() } else { 0 });
        }
    }
}
