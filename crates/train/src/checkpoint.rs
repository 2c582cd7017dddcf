//! Checkpoints: folders that are either the whole old state or the whole new one.
//!
//! A checkpoint holds weights, moments and the run's state, all of one step; `state.json` carries
//! the hashes of the others. The newest whole one is resumed from; a damaged one is reported and
//! passed over; stray temporaries are ignored. The two newest are kept.

use crate::run::State;
use crate::saved::{read_learnt, write_learnt, write_parameters};
use crate::trainer::Trainer;
use formats::{TensorFile, replace_folder};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use tensor::Parameters;

const FOLDER: &str = "checkpoints";
const KEPT: usize = 2;

/// Why a checkpoint cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error("{path}: {source}{}", formats::hint(source))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A tensor file does not hold.
    #[error(transparent)]
    Tensors(#[from] formats::Error),
    /// It is damaged.
    #[error("{path}: {reason}")]
    Damaged {
        /// The folder.
        path: PathBuf,
        /// In what.
        reason: String,
    },
}

impl From<io::Error> for Error {
    fn from(source: io::Error) -> Self {
        Error::Io { path: PathBuf::from(FOLDER), source }
    }
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    version: u32,
    state: State,
    optimizer_steps: u64,
    sha256: HashMap<String, String>,
}

/// The SHA-256 of a file, in hexadecimal.
pub(crate) fn sha256(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let (mut hash, mut chunk) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        let n = file.read(&mut chunk)?;
        if n == 0 {
            let digest = hash.finalize();
            return Ok(digest.iter().map(|b| format!("{b:02x}")).collect());
        }
        hash.update(&chunk[..n]);
    }
}

/// The SHA-256 of a text, in hexadecimal.
pub(crate) fn sha256_of_text(text: &str) -> String {
    Sha256::digest(text).iter().map(|b| format!("{b:02x}")).collect()
}

/// Writes the checkpoint of `state.step` below a run folder and drops all but the newest two.
///
/// # Errors
/// As the system says; older checkpoints are then untouched.
pub(crate) fn save(run: &Path, trainer: &Trainer, state: &State) -> Result<(), Error> {
    let folder = run.join(FOLDER);
    fs::create_dir_all(&folder).map_err(|source| Error::Io { path: folder.clone(), source })?;
    let path = folder.join(format!("step-{:09}", state.step));
    let metadata = || HashMap::from([("step".to_owned(), state.step.to_string())]);
    replace_folder(&path, |dir| -> Result<(), Error> {
        write_learnt(&dir.join("weights.safetensors"), &trainer.model, metadata())?;
        let optimizer = &trainer.optimizer;
        let mut moments = vec![("first.", &optimizer.first), ("second.", &optimizer.second)];
        moments.extend(trainer.muon.iter().map(|muon| ("momentum.", &muon.momentum)));
        write_parameters(&dir.join("optimizer.safetensors"), &moments, metadata())?;
        let mut hashes = HashMap::new();
        for name in ["weights.safetensors", "optimizer.safetensors"] {
            hashes.insert(name.to_owned(), sha256(&dir.join(name))?);
        }
        let manifest = Manifest {
            version: 1,
            state: state.clone(),
            optimizer_steps: optimizer.steps,
            sha256: hashes,
        };
        let text = serde_json::to_vec_pretty(&manifest).map_err(io::Error::other)?;
        fs::write(dir.join("state.json"), text)?;
        Ok(())
    })?;
    let mut all = list(&folder);
    all.truncate(all.len().saturating_sub(KEPT));
    for old in all {
        fs::remove_dir_all(&old).map_err(|source| Error::Io { path: old.clone(), source })?;
    }
    Ok(())
}

/// Checkpoint folders, oldest first.
fn list(folder: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("step-")))
        .collect();
    all.sort();
    all
}

/// Whether a run folder has any checkpoint.
pub(crate) fn any(run: &Path) -> bool {
    !list(&run.join(FOLDER)).is_empty()
}

/// Loads the newest whole checkpoint into `trainer`; `skipped` hears of damaged ones. None when
/// there is none.
pub(crate) fn load(
    run: &Path,
    trainer: &mut Trainer,
    skipped: &mut dyn FnMut(&Error),
) -> Option<State> {
    for path in list(&run.join(FOLDER)).iter().rev() {
        match load_one(path, trainer) {
            Ok(state) => return Some(state),
            Err(error) => skipped(&error),
        }
    }
    None
}

fn load_one(path: &Path, trainer: &mut Trainer) -> Result<State, Error> {
    let damaged = |reason: String| Error::Damaged { path: path.to_owned(), reason };
    let text =
        fs::read(path.join("state.json")).map_err(|e| damaged(format!("state.json: {e}")))?;
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|e| damaged(format!("state.json: {e}")))?;
    if manifest.version != 1 {
        return Err(damaged(format!("version {} of 1", manifest.version)));
    }
    for (name, right) in &manifest.sha256 {
        let found = sha256(&path.join(name)).map_err(|e| damaged(format!("{name}: {e}")))?;
        if found != *right {
            return Err(damaged(format!("{name} is not what was written (its hash differs)")));
        }
    }
    let weights = TensorFile::open(&path.join("weights.safetensors"))?;
    let moments = TensorFile::open(&path.join("optimizer.safetensors"))?;
    let moment = |prefix: &str, to: &mut Parameters| -> Result<(), formats::Error> {
        let layout = std::sync::Arc::clone(to.layout());
        for spec in layout.specs() {
            let place = &mut to.flat_mut()[spec.range.clone()];
            moments.read_f32(&format!("{prefix}{}", spec.name), &spec.shape, place)?;
        }
        Ok(())
    };
    moment("first.", &mut trainer.optimizer.first)?;
    moment("second.", &mut trainer.optimizer.second)?;
    if let Some(muon) = &mut trainer.muon {
        moment("momentum.", &mut muon.momentum)?;
    }
    read_learnt(&weights, &mut trainer.model)?;
    trainer.optimizer.steps = manifest.optimizer_steps;
    trainer.weights_changed();
    Ok(manifest.state)
}
