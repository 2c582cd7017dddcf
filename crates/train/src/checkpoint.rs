//! Checkpoints: folders that are either the whole old state or the whole new one.
//!
//! A checkpoint holds weights, moments and the run's state, all of one step; `state.json` carries
//! the hashes of the others. What it holds are logical tensors: whole ones of one process, or runs of
//! them in a file a rank, with a map; either is read by any number of ranks. The newest whole one is resumed from; a damaged one is reported and
//! passed over; stray temporaries are ignored. The newest are kept, two where nothing else is said.

use crate::run::State;
use crate::saved::{write_learnt, write_parameters};
use crate::trainer::Trainer;
use crate::zero::{Disagreement, Zero};
use formats::{TensorFile, TensorRef, Values, replace_folder, write_tensors};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use tensor::{ParameterSpec, Parameters};

const FOLDER: &str = "checkpoints";
/// Checkpoints that are kept where nothing is said.
pub(crate) const KEPT: usize = 2;

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
    /// Another rank said it.
    #[error("{reason}")]
    Told {
        /// What it said.
        reason: String,
    },
    /// Ranks do not go on together.
    #[error(transparent)]
    Disagreement(#[from] Disagreement),
    /// A rank has gone.
    #[error(transparent)]
    Lost(#[from] ranks::Lost),
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

/// `state.json`, which is written last.
#[derive(Serialize, Deserialize)]
struct Manifest {
    /// 1: logical tensors whole; 2: cut among ranks.
    version: u32,
    state: State,
    optimizer_steps: u64,
    sha256: BTreeMap<String, String>,
    /// The shard map: of each file the tensors that it holds a run of, and its first value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    shards: BTreeMap<String, BTreeMap<String, usize>>,
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

/// Writes the checkpoint of `state.step` below a run folder and drops all but the newest `keep`.
///
/// # Errors
/// As the system says; older checkpoints are then untouched.
pub(crate) fn save(run: &Path, trainer: &Trainer, state: &State, keep: usize) -> Result<(), Error> {
    let folder = run.join(FOLDER);
    fs::create_dir_all(&folder).map_err(|source| Error::Io { path: folder.clone(), source })?;
    let path = folder.join(format!("step-{:09}", state.step));
    let metadata = || HashMap::from([("step".to_owned(), state.step.to_string())]);
    replace_folder(&path, |dir| -> Result<(), Error> {
        write_learnt(&dir.join("weights.safetensors"), &trainer.model, metadata())?;
        let optimizer = &trainer.optimizer;
        let mut moments = vec![(FIRST, &optimizer.first), (SECOND, &optimizer.second)];
        moments.extend(trainer.muon.iter().map(|muon| (MOMENTUM, &muon.momentum)));
        moments.extend(trainer.average.iter().map(|average| (AVERAGE, &average.weights)));
        write_parameters(&dir.join("optimizer.safetensors"), &moments, metadata())?;
        let mut hashes = BTreeMap::new();
        for name in ["weights.safetensors", "optimizer.safetensors"] {
            hashes.insert(name.to_owned(), sha256(&dir.join(name))?);
        }
        let manifest = Manifest {
            version: 1,
            state: state.clone(),
            optimizer_steps: optimizer.steps,
            sha256: hashes,
            shards: BTreeMap::new(),
        };
        let text = serde_json::to_vec_pretty(&manifest).map_err(io::Error::other)?;
        fs::write(dir.join("state.json"), text)?;
        Ok(())
    })?;
    drop_old(&folder, keep)
}

/// Drops all but the newest `keep`.
fn drop_old(folder: &Path, keep: usize) -> Result<(), Error> {
    let mut all = list(folder);
    all.truncate(all.len().saturating_sub(keep));
    for old in all {
        fs::remove_dir_all(&old).map_err(|source| Error::Io { path: old.clone(), source })?;
    }
    Ok(())
}

/// What a rank has written of a checkpoint.
#[derive(Serialize, Deserialize)]
struct Written {
    file: String,
    sha256: String,
    /// Its tensors, and their first values.
    from: BTreeMap<String, usize>,
}

/// The same over ranks: each writes what it holds, at the same time; rank 0 writes the manifest when
/// all have, and renames. All ranks call it at the same time.
///
/// # Errors
/// As the system says on any rank; older checkpoints are then untouched.
pub(crate) fn save_shared(
    run: &Path,
    trainer: &Trainer,
    zero: &Zero,
    state: &State,
    keep: usize,
) -> Result<(), Error> {
    let folder = run.join(FOLDER);
    let name = format!("step-{:09}", state.step);
    let (path, beside) = (folder.join(&name), folder.join(format!(".{name}.tmp")));
    let io = |source| Error::Io { path: path.clone(), source };
    let first = zero.ranks.is_first();
    let made = if first { fresh_folder(&beside).map_err(io) } else { Ok(()) };
    zero.shared().agree(made)??;
    let written = zero.shared().agree(write_shard(&beside, trainer, zero, state.step))??;
    let own = serde_json::to_vec(&written).map_err(io::Error::other).map_err(io)?;
    let all = zero.ranks.gather_bytes(&own)?;
    let commit = || -> Result<(), Error> {
        let mut manifest = Manifest {
            version: 2,
            state: state.clone(),
            optimizer_steps: trainer.optimizer.steps,
            sha256: BTreeMap::new(),
            shards: BTreeMap::new(),
        };
        for said in &all {
            let Written { file, sha256, from } =
                serde_json::from_slice(said).map_err(io::Error::other).map_err(io)?;
            manifest.sha256.insert(file.clone(), sha256);
            manifest.shards.insert(file, from);
        }
        let text = serde_json::to_vec_pretty(&manifest).map_err(io::Error::other).map_err(io)?;
        formats::replace_file(&beside.join("state.json"), |file| file.write_all(&text))
            .map_err(io)?;
        if path.exists() {
            fs::remove_dir_all(&path).map_err(io)?;
        }
        fs::rename(&beside, &path).map_err(io)?;
        formats::sync_folder(&folder).map_err(io)?;
        drop_old(&folder, keep)
    };
    zero.shared().agree(if first { commit() } else { Ok(()) })?
}

fn fresh_folder(path: &Path) -> io::Result<()> {
    if path.exists() {
        fs::remove_dir_all(path)?;
    }
    fs::create_dir_all(path)
}

/// This rank's runs of weights and moments, in a file of its own.
fn write_shard(dir: &Path, trainer: &Trainer, zero: &Zero, step: u64) -> Result<Written, Error> {
    let optimizer = &trainer.optimizer;
    let mut held = vec![
        (WEIGHTS, zero.truth_of(&trainer.model)),
        (FIRST, &optimizer.first),
        (SECOND, &optimizer.second),
    ];
    held.extend(trainer.muon.iter().map(|muon| (MOMENTUM, &muon.momentum)));
    held.extend(trainer.average.iter().map(|average| (AVERAGE, &average.weights)));
    let (mut tensors, mut from) = (Vec::new(), BTreeMap::new());
    for (prefix, parameters) in held {
        for (name, start, values) in zero.pieces_of(parameters) {
            let name = format!("{prefix}{name}");
            from.insert(name.clone(), start);
            tensors.push(TensorRef {
                name,
                shape: vec![values.len()],
                values: Values::F32(values),
            });
        }
    }
    let file = format!("shard-{:05}-of-{:05}.safetensors", zero.place.rank, zero.place.size);
    let path = dir.join(&file);
    let metadata = HashMap::from([("step".to_owned(), step.to_string())]);
    write_tensors(&path, &tensors, metadata)?;
    let sha256 = sha256(&path).map_err(|source| Error::Io { path: path.clone(), source })?;
    Ok(Written { file, sha256, from })
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

/// What the newest checkpoint that can be asked says of its run.
pub(crate) fn newest_state(run: &Path) -> Option<State> {
    let state = |path: PathBuf| {
        let text = fs::read(path.join("state.json")).ok()?;
        Some(serde_json::from_slice::<Manifest>(&text).ok()?.state)
    };
    list(&run.join(FOLDER)).into_iter().rev().find_map(state)
}

/// Loads the newest whole checkpoint into `trainer`, whoever wrote it: as many ranks as now, others,
/// or one process. `skipped` hears of damaged ones. None when there is none.
///
/// # Errors
/// When a rank has gone.
pub(crate) fn load(
    run: &Path,
    trainer: &mut Trainer,
    skipped: &mut dyn FnMut(&Error),
) -> Result<Option<State>, Error> {
    let mut all = list(&run.join(FOLDER));
    if let Some(zero) = &trainer.zero {
        // All ranks try what rank 0 sees.
        let seen = serde_json::to_vec(&all).map_err(io::Error::other)?;
        let seen = zero.ranks.broadcast(&seen)?;
        all = serde_json::from_slice(&seen).map_err(io::Error::other)?;
    }
    for path in all.iter().rev() {
        let result = load_one(path, trainer);
        let result = match &trainer.zero {
            Some(zero) => match zero.shared().agree(result) {
                Ok(own) => own,
                Err(Disagreement::Elsewhere { message: reason, .. }) => Err(Error::Told { reason }),
                Err(Disagreement::Lost(lost)) => return Err(lost.into()),
            },
            None => result,
        };
        match result {
            Ok(state) => {
                trainer.weights_changed();
                return Ok(Some(state));
            }
            Err(error) => skipped(&error),
        }
    }
    Ok(None)
}

const WEIGHTS: &str = "weights.";
const FIRST: &str = "first.";
const SECOND: &str = "second.";
const MOMENTUM: &str = "momentum.";
const AVERAGE: &str = "average.";

/// A checkpoint's logical tensors, wherever their values are.
#[derive(Debug)]
pub(crate) struct Reader {
    path: PathBuf,
    files: Vec<(TensorFile, Option<BTreeMap<String, usize>>)>,
    /// Where the run stood.
    pub(crate) state: State,
    optimizer_steps: u64,
}

impl Reader {
    /// Opens a checkpoint; of several readers, number `turn` of `turns` checks the hashes of its
    /// share of the files.
    ///
    /// # Errors
    /// When a file is missing, or is not what was written.
    pub(crate) fn open(path: &Path, (turn, turns): (usize, usize)) -> Result<Reader, Error> {
        let damaged = |reason: String| Error::Damaged { path: path.to_owned(), reason };
        let text =
            fs::read(path.join("state.json")).map_err(|e| damaged(format!("state.json: {e}")))?;
        let manifest: Manifest =
            serde_json::from_slice(&text).map_err(|e| damaged(format!("state.json: {e}")))?;
        if !(1..=2).contains(&manifest.version) {
            return Err(damaged(format!("version {}; 1 and 2 are known", manifest.version)));
        }
        let right = format!("step-{:09}", manifest.state.step);
        if path.file_name().is_some_and(|name| name != right.as_str()) {
            return Err(damaged(format!("state.json is of {right}")));
        }
        for (i, (name, right)) in manifest.sha256.iter().enumerate() {
            let file = path.join(name);
            if !file.exists() {
                let all = manifest.sha256.len();
                return Err(damaged(format!("{name} is missing, one of {all} files")));
            }
            if i % turns != turn {
                continue;
            }
            let found = sha256(&file).map_err(|e| damaged(format!("{name}: {e}")))?;
            if found != *right {
                return Err(damaged(format!("{name} is not what was written (its hash differs)")));
            }
        }
        let open = |name: &str| TensorFile::open(&path.join(name));
        let files = match manifest.version {
            1 => ["weights.safetensors", "optimizer.safetensors"]
                .into_iter()
                .map(|name| Ok((open(name)?, None)))
                .collect::<Result<_, Error>>()?,
            _ => manifest
                .shards
                .into_iter()
                .map(|(name, from)| Ok((open(&name)?, Some(from))))
                .collect::<Result<_, Error>>()?,
        };
        let (state, optimizer_steps) = (manifest.state, manifest.optimizer_steps);
        Ok(Reader { path: path.to_owned(), files, state, optimizer_steps })
    }

    /// Copies the values of a logical tensor from value `from` on.
    fn read(
        &self,
        prefix: &str,
        (parameter, shape): (&str, Option<&[usize]>),
        from: usize,
        out: &mut [f32],
    ) -> Result<(), Error> {
        let name = format!("{prefix}{parameter}");
        let end = from + out.len();
        let mut found = 0;
        for (index, (file, runs)) in self.files.iter().enumerate() {
            let Some(runs) = runs else {
                // Whole tensors: weights in the first file without a prefix, moments in the second.
                let weights = prefix == WEIGHTS;
                if weights != (index == 0) {
                    continue;
                }
                let name = if weights { parameter } else { &name };
                file.read_f32_from(name, shape, from, out)?;
                return Ok(());
            };
            let Some(&start) = runs.get(&name) else { continue };
            let len = file.length(&name)?;
            let (first, last) = (from.max(start), end.min(start + len));
            if first < last {
                let place = &mut out[first - from..last - from];
                file.read_f32_from(&name, None, first - start, place)?;
                found += last - first;
            }
        }
        if found == out.len() {
            return Ok(());
        }
        let reason = format!(
            "{name}: {found} of its values {from} to {end} are there; it was written by another \
             configuration, or a shard is missing from its map"
        );
        Err(Error::Damaged { path: self.path.clone(), reason })
    }

    /// Values of each logical tensor, as far as any file has them.
    fn lengths(&self, prefix: &str) -> Result<BTreeMap<String, usize>, Error> {
        let mut lengths = BTreeMap::new();
        for (index, (file, runs)) in self.files.iter().enumerate() {
            for name in file.names()? {
                let start = runs.as_ref().map(|runs| runs.get(&name).copied().unwrap_or(0));
                let parameter = match (start, prefix == WEIGHTS) {
                    (None, true) => (index == 0).then_some(name.as_str()),
                    (None, false) if index == 0 => None,
                    _ => name.strip_prefix(prefix),
                };
                if let Some(parameter) = parameter {
                    let end = start.unwrap_or(0) + file.length(&name)?;
                    let length = lengths.entry(parameter.to_owned()).or_insert(0);
                    *length = end.max(*length);
                }
            }
        }
        Ok(lengths)
    }

    /// Reads every logical tensor, in the order of their names.
    fn each(&self, prefix: &str, tell: &mut dyn FnMut(&[f32])) -> Result<(), Error> {
        let mut values = Vec::new();
        for (name, length) in self.lengths(prefix)? {
            values.clear();
            values.resize(length, 0.0);
            self.read(prefix, (&name, None), 0, &mut values)?;
            tell(&values);
        }
        Ok(())
    }

    /// Fills parameters with logical tensors of the same names: those that are wanted, whole.
    fn read_whole(
        &self,
        prefix: &str,
        to: &mut Parameters,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<(), Error> {
        let layout = std::sync::Arc::clone(to.layout());
        for spec in layout.specs().iter().filter(|spec| wanted(&spec.name)) {
            self.read(prefix, named(spec), 0, &mut to.flat_mut()[spec.range.clone()])?;
        }
        Ok(())
    }
}

/// How a parameter is asked for.
fn named(spec: &ParameterSpec) -> (&str, Option<&[usize]>) {
    (&spec.name, Some(&spec.shape))
}

/// The checkpoints of a run folder, oldest first.
pub fn checkpoints(run: &Path) -> Vec<PathBuf> {
    list(&run.join(FOLDER))
}

/// Reads a checkpoint whole: every file is what was written, every tensor has all its values.
/// Answers with its files and their values.
///
/// # Errors
/// What does not hold.
pub fn check_checkpoint(path: &Path) -> Result<(usize, u64), Error> {
    let reader = Reader::open(path, (0, 1))?;
    let mut count = 0;
    for prefix in [WEIGHTS, FIRST, SECOND, MOMENTUM, AVERAGE] {
        reader.each(prefix, &mut |values| count += values.len() as u64)?;
    }
    Ok((reader.files.len(), count))
}

/// The SHA-256 of a checkpoint's weights, tensor by tensor in the order of their names, whoever wrote
/// them.
///
/// # Errors
/// When they cannot be read.
pub fn weights_digest(path: &Path) -> Result<String, Error> {
    let reader = Reader::open(path, (0, 1))?;
    let mut hash = Sha256::new();
    reader.each(WEIGHTS, &mut |values| {
        values.iter().for_each(|value| hash.update(value.to_le_bytes()));
    })?;
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn load_one(path: &Path, trainer: &mut Trainer) -> Result<State, Error> {
    let turns = trainer.zero.as_ref().map_or((0, 1), |zero| (zero.place.rank, zero.place.size));
    let reader = Reader::open(path, turns)?;
    if trainer.is_shared_out() {
        let (pieces, whole) = trainer.pieces();
        let optimizer = &mut trainer.optimizer;
        let mut held =
            vec![(FIRST, &mut optimizer.first, false), (SECOND, &mut optimizer.second, false)];
        held.extend(trainer.muon.iter_mut().map(|muon| (MOMENTUM, &mut muon.momentum, true)));
        for (prefix, moments, muon) in held {
            for piece in pieces.iter().filter(|piece| piece.muon == muon) {
                let spec = &whole.specs()[piece.param];
                let place = &mut moments.flat_mut()[piece.moment.clone()];
                reader.read(prefix, named(spec), piece.from, place)?;
            }
        }
        if let Some(average) = &mut trainer.average {
            for piece in &pieces {
                let place = &mut average.weights.flat_mut()[piece.at.clone()];
                reader.read(AVERAGE, named(&whole.specs()[piece.param]), piece.from, place)?;
            }
        }
        trainer.fill_own(|spec, from, out| reader.read(WEIGHTS, named(spec), from, out))?;
    } else {
        let config = trainer.model.config().clone();
        let (optimizer, weights) = (&mut trainer.optimizer, trainer.model.weights_mut());
        reader.read_whole(FIRST, &mut optimizer.first, |_| true)?;
        reader.read_whole(SECOND, &mut optimizer.second, |_| true)?;
        if let Some(muon) = &mut trainer.muon {
            reader.read_whole(MOMENTUM, &mut muon.momentum, |_| true)?;
        }
        if let Some(average) = &mut trainer.average {
            reader.read_whole(AVERAGE, &mut average.weights, |_| true)?;
        }
        reader.read_whole(WEIGHTS, weights, |name| config.trains(name))?;
    }
    trainer.optimizer.steps = reader.optimizer_steps;
    Ok(reader.state)
}
