//! Published files into published files: a Hugging Face folder or a GGUF file becomes the other, or
//! a GGUF file of other types. Weights go through a piece at a time and are never held together.

use crate::binding::{Binding, Stored};
use crate::checkpoint::{Checkpoint, Source};
use crate::export::{ExportError, Words, described, side_files};
use crate::gguf_keys::{ROPE_FACTORS, keys_of, row_in_parameter, word_keys};
use crate::mix::Mix;
use formats::{
    Gguf, KeyValue, StoredTensor, TensorHead, TensorKind, dequantise, largest, quantise,
    replace_folder, stream_tensors, write_gguf,
};
use models::{ModelConfig, RopeScaling};
use std::io::{self, Write};
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

/// What a model is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A Hugging Face folder; values of that type, or of the narrowest that holds the file's.
    Folder(Option<TensorKind>),
    /// A GGUF file whose tensors are stored by this rule.
    Gguf(Mix),
}

/// Why a model cannot become what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// It is one already.
    #[error("{path} is a Hugging Face folder already; choose one of the GGUF types for --to")]
    Already {
        /// The folder.
        path: PathBuf,
    },
    /// The configuration cannot be said in keys.
    #[error("the model cannot be written as a GGUF file: {what}")]
    NoKey {
        /// What cannot be said.
        what: String,
    },
    /// The vocabulary cannot be written.
    #[error("the tokenizer cannot be written: {source}")]
    Words {
        /// Why not.
        source: tokenizer::Error,
    },
    /// A value that the type cannot hold.
    #[error("tensor {tensor} holds {found}, more than {kind} can; choose {advice}")]
    Value {
        /// The tensor.
        tensor: String,
        /// The largest magnitude, or what is no number.
        found: f32,
        /// The type.
        kind: TensorKind,
        /// What to try.
        advice: &'static str,
    },
    /// Whoever was told of the progress said to stop.
    #[error("stopped; nothing was written")]
    Stopped,
    /// The files cannot be read again.
    #[error(transparent)]
    Source(#[from] crate::Error),
    /// No folder describes the model.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The new file cannot be written.
    #[error("{path}: {source}{}", formats::hint(source))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl ConvertError {
    /// Whether the machine failed, not the input.
    pub fn is_failure(&self) -> bool {
        matches!(self, ConvertError::Io { .. } | ConvertError::Stopped)
    }
}

/// An error on the way, when the file's name is known elsewhere.
enum Broken {
    Io(io::Error),
    Other(ConvertError),
}

impl From<io::Error> for Broken {
    fn from(source: io::Error) -> Broken {
        Broken::Io(source)
    }
}

/// How far it is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The tensor at work.
    pub tensor: &'a str,
    /// Values written.
    pub done: usize,
    /// Values in all.
    pub total: usize,
}

/// Is told of the progress and may stop the work.
pub type Watch<'a> = dyn FnMut(Progress<'_>) -> ControlFlow<()> + 'a;

/// What was written.
#[derive(Clone, Debug)]
pub struct Converted {
    /// (type, tensors, values, bytes) of each that occurs.
    pub types: Vec<(TensorKind, usize, usize, usize)>,
    /// What is odd but not wrong, a line each.
    pub notes: Vec<String>,
}

/// Writes the model of `checkpoint` to `path`, whole or not at all, with `threads` threads. Memory
/// is a few MiB a thread, or one tensor where rows and columns change places.
///
/// # Errors
/// [`ConvertError`]; an old file is then untouched.
pub fn convert(
    checkpoint: &Checkpoint,
    path: &Path,
    target: Target,
    threads: usize,
    watch: &mut Watch<'_>,
) -> Result<Converted, ConvertError> {
    match target {
        Target::Folder(kind) => to_folder(checkpoint, path, kind, threads, watch),
        Target::Gguf(mix) => to_gguf(checkpoint, path, mix, threads, watch),
    }
}

fn to_folder(
    checkpoint: &Checkpoint,
    path: &Path,
    kind: Option<TensorKind>,
    threads: usize,
    watch: &mut Watch<'_>,
) -> Result<Converted, ConvertError> {
    if checkpoint.source == Source::Folder {
        return Err(ConvertError::Already { path: checkpoint.path.clone() });
    }
    let mut config = checkpoint.config.clone();
    // A folder has a word for factors only when they are those of a published scaling.
    if let Some(RopeScaling::Factors { factors }) = &config.rope_scaling
        && let Some(named) = RopeScaling::from_factors(factors, config.rope_theta)
    {
        config.rope_scaling = Some(named);
    }
    let (family, mut described) = described(&ModelConfig::Transformer(config))?;
    let mut work = bound(checkpoint, |parameter| family.tensors(false, parameter))?;
    let common = kind.unwrap_or_else(|| common_kind(&work));
    for planned in &mut work {
        planned.head.kind = match kind {
            // Single vectors stay as they are where the matrices' type would round them.
            None if planned.head.shape.len() == 1 && !planned.fits(common) => TensorKind::F32,
            _ => common,
        };
    }
    let name = match common {
        TensorKind::F16 => "float16",
        TensorKind::Bf16 => "bfloat16",
        _ => "float32",
    };
    described.insert("dtype".to_owned(), name.into());
    let words = Words {
        tokenizer: &checkpoint.tokenizer,
        ends: &checkpoint.ends,
        bos_token: checkpoint.bos_token.as_deref(),
        eos_token: checkpoint.eos_token.as_deref(),
        chat_template: checkpoint.chat_template.as_deref(),
    };
    let files = side_files(described, &words);
    let heads: Vec<TensorHead> = work.iter().map(|planned| planned.head.clone()).collect();
    let mut progress = Told::new(&work, watch);
    let written = replace_folder(path, |dir| {
        stream_tensors(&dir.join("model.safetensors"), &heads, |i, out| {
            work[i].write(threads, out, &mut progress)
        })?;
        files.iter().try_for_each(|(name, bytes)| Ok(std::fs::write(dir.join(name), bytes)?))
    });
    finish(path, written, &heads, Vec::new())
}

fn to_gguf(
    checkpoint: &Checkpoint,
    path: &Path,
    mix: Mix,
    threads: usize,
    watch: &mut Watch<'_>,
) -> Result<Converted, ConvertError> {
    let mut notes = Vec::new();
    let (mut keys, mut work) = match checkpoint.source {
        Source::Gguf => (keys_as_they_are(&checkpoint.path)?, same_tensors(checkpoint)),
        Source::Folder => {
            let numbers = keys_of(checkpoint)?;
            let (mut keys, factors) = (numbers.keys, numbers.factors);
            notes.extend(numbers.note);
            keys.extend(word_keys(checkpoint)?);
            let family = checkpoint.family;
            let mut work = bound(checkpoint, |parameter| family.tensors(true, parameter))?;
            work.extend(factors.map(Planned::factors));
            (keys, work)
        }
    };
    keys.push(("general.file_type".to_owned(), KeyValue::U32(mix.file_type())));
    keys.push(("general.quantization_version".to_owned(), KeyValue::U32(2)));
    let tied = checkpoint.config.tie_word_embeddings;
    let layers = checkpoint.config.num_hidden_layers;
    for planned in &mut work {
        let head = &mut planned.head;
        head.kind = mix.kind_of(&head.name, &head.shape, layers, tied);
    }
    let heads: Vec<TensorHead> = work.iter().map(|planned| planned.head.clone()).collect();
    let mut progress = Told::new(&work, watch);
    let written =
        write_gguf(path, &keys, &heads, |i, out| work[i].write(threads, out, &mut progress));
    finish(path, written, &heads, notes)
}

fn finish(
    path: &Path,
    written: Result<(), Broken>,
    heads: &[TensorHead],
    notes: Vec<String>,
) -> Result<Converted, ConvertError> {
    match written {
        Ok(()) => {}
        Err(Broken::Io(source)) => return Err(ConvertError::Io { path: path.to_owned(), source }),
        Err(Broken::Other(error)) => return Err(error),
    }
    let row = |kind| {
        let mine = heads.iter().filter(|head| head.kind == kind);
        mine.fold((kind, 0, 0, 0), |(kind, tensors, values, bytes), head| {
            let count: usize = head.shape.iter().product();
            (kind, tensors + 1, values + count, bytes + kind.bytes_of(count).unwrap_or(0))
        })
    };
    let types = TensorKind::ALL.into_iter().map(row).filter(|row| row.1 > 0).collect();
    Ok(Converted { types, notes })
}

/// The keys of a GGUF file but those that the new file has its own of.
fn keys_as_they_are(path: &Path) -> Result<Vec<(String, KeyValue)>, ConvertError> {
    let own = ["general.file_type", "general.quantization_version", "general.alignment"];
    let gguf = Gguf::open(path).map_err(crate::Error::from)?;
    let kept = gguf.raw_keys().filter(|(key, _)| !own.contains(key) && !key.starts_with("split."));
    Ok(kept.map(|(key, bytes)| (key.to_owned(), KeyValue::Raw(bytes.to_vec()))).collect())
}

/// Where the values of a new tensor come from.
enum Origin<'a> {
    /// A tensor in the same order.
    Same(StoredTensor<'a>),
    /// A tensor that makes rows of a parameter in one order, of which the new one has another.
    Parameter(StoredTensor<'a>, Binding, Stored),
    /// These.
    Given(Vec<f32>),
}

/// A tensor that is to be written.
struct Planned<'a> {
    head: TensorHead,
    from: Origin<'a>,
}

/// All tensors of a GGUF file under their names.
fn same_tensors(checkpoint: &Checkpoint) -> Vec<Planned<'_>> {
    let planned = |name: &str| {
        let stored = checkpoint.tensors.get(name)?;
        let (name, shape) = (name.to_owned(), stored.shape.to_vec());
        let head = TensorHead { name, kind: stored.kind, shape };
        Some(Planned { head, from: Origin::Same(stored) })
    };
    checkpoint.tensors.names().filter_map(planned).collect()
}

/// The tensors of all parameters under the names of the new file.
fn bound<'a>(
    checkpoint: &'a Checkpoint,
    names: impl Fn(&str) -> Vec<(String, Stored)>,
) -> Result<Vec<Planned<'a>>, ConvertError> {
    let parameters = checkpoint.parameter_names()?;
    let mut work: Vec<Planned<'a>> = Vec::new();
    let mut place = (usize::MAX, 0);
    for binding in checkpoint.bindings()? {
        // A parameter's tensors come in the same order on both sides.
        place = if place.0 == binding.parameter {
            (place.0, place.1 + 1)
        } else {
            (binding.parameter, 0)
        };
        let named = names(&parameters[binding.parameter]).into_iter().nth(place.1);
        let stored = checkpoint.tensors.get(&binding.tensor);
        let (Some((name, new)), Some(stored)) = (named, stored) else { continue };
        let turned = |how: Stored| how == Stored::Transposed && stored.shape.len() == 2;
        let mut shape = stored.shape.to_vec();
        if turned(binding.stored) != turned(new) {
            shape.reverse();
        }
        let from = if binding.stored == new {
            Origin::Same(stored)
        } else {
            Origin::Parameter(stored, binding, new)
        };
        work.push(Planned { head: TensorHead { name, kind: stored.kind, shape }, from });
    }
    Ok(work)
}

/// The type that all matrices have, where it is one of plain numbers; else F32, which rounds none.
fn common_kind(work: &[Planned<'_>]) -> TensorKind {
    let mut kinds = work.iter().filter(|p| p.head.shape.len() > 1).map(|p| p.head.kind);
    let first = kinds.next().unwrap_or(TensorKind::F32);
    let plain = matches!(first, TensorKind::F16 | TensorKind::Bf16);
    if plain && kinds.all(|kind| kind == first) { first } else { TensorKind::F32 }
}

/// Values that a thread has in hand.
const CHUNK: usize = 1 << 18;

impl<'a> Planned<'a> {
    fn factors(values: Vec<f32>) -> Planned<'a> {
        let (name, shape) = (ROPE_FACTORS.to_owned(), vec![values.len()]);
        let head = TensorHead { name, kind: TensorKind::F32, shape };
        Planned { head, from: Origin::Given(values) }
    }

    fn len(&self) -> usize {
        self.head.shape.iter().product()
    }

    /// (rows, values a row).
    fn rows(&self) -> (usize, usize) {
        let width = self.head.shape.last().copied().unwrap_or(1).max(1);
        (self.len() / width, width)
    }

    /// Whether the type holds the values without rounding; only asked of single vectors.
    fn fits(&self, kind: TensorKind) -> bool {
        let mut values = vec![0.0; self.len()];
        self.read_all(&mut values);
        let mut bytes = vec![0; kind.bytes_of(values.len()).unwrap_or(0)];
        let mut back = vec![0.0; values.len()];
        quantise(kind, &values, &mut bytes);
        dequantise(kind, &bytes, &mut back);
        values == back
    }

    /// Writes the tensor's bytes.
    fn write(
        &self,
        threads: usize,
        out: &mut dyn Write,
        told: &mut Told<'_, '_>,
    ) -> Result<(), Broken> {
        let (rows, width) = self.rows();
        if let Origin::Same(stored) = &self.from
            && stored.kind == self.head.kind
        {
            let piece = stored.kind.bytes_of(width * (CHUNK / width).max(1)).unwrap_or(CHUNK);
            for bytes in stored.bytes.chunks(piece.max(1)) {
                out.write_all(bytes)?;
                told.more(&self.head.name, bytes.len() * self.len() / stored.bytes.len().max(1))?;
            }
            return Ok(());
        }
        // What changes rows for columns, or has no rows, is read whole.
        let whole = self.needs_all().then(|| {
            let mut values = vec![0.0; self.len()];
            self.read_all(&mut values);
            values
        });
        let chunk = (CHUNK / width).max(1);
        for first in (0..rows).step_by(chunk * threads.max(1)) {
            let starts = (first..rows).step_by(chunk).take(threads.max(1));
            let parts: Vec<Range<usize>> = starts.map(|at| at..(at + chunk).min(rows)).collect();
            let encoded: Vec<Result<Vec<u8>, ConvertError>> = std::thread::scope(|scope| {
                let encode = |part: Range<usize>| {
                    let whole = whole.as_deref();
                    scope.spawn(move || self.encoded(part, width, whole))
                };
                let running: Vec<_> = parts.iter().cloned().map(encode).collect();
                let stopped = |_| Err(ConvertError::Stopped);
                running.into_iter().map(|one| one.join().unwrap_or_else(stopped)).collect()
            });
            for (part, bytes) in parts.iter().zip(encoded) {
                out.write_all(&bytes.map_err(Broken::Other)?)?;
                told.more(&self.head.name, part.len() * width)?;
            }
        }
        Ok(())
    }

    fn needs_all(&self) -> bool {
        match &self.from {
            Origin::Same(_) => false,
            Origin::Given(_) => true,
            Origin::Parameter(_, binding, new) => {
                self.head.shape.len() == 1 || [binding.stored, *new].contains(&Stored::Transposed)
            }
        }
    }

    /// The bytes of some rows.
    fn encoded(
        &self,
        rows: Range<usize>,
        width: usize,
        whole: Option<&[f32]>,
    ) -> Result<Vec<u8>, ConvertError> {
        let mut own = Vec::new();
        let values = match whole {
            Some(all) => &all[rows.start * width..rows.end * width],
            None => {
                own.resize(rows.len() * width, 0.0);
                self.read_rows(rows, width, &mut own);
                &own[..]
            }
        };
        let kind = self.head.kind;
        let found = largest(values);
        let most = match kind {
            TensorKind::F32 | TensorKind::Bf16 => f32::MAX,
            _ => f32::from(half::f16::MAX),
        };
        if found.is_nan() || found > most {
            let advice = match kind {
                _ if !found.is_finite() => "another model: these weights are broken",
                _ => "bf16",
            };
            let tensor = self.head.name.clone();
            return Err(ConvertError::Value { tensor, found, kind, advice });
        }
        let mut bytes = vec![0; kind.bytes_of(values.len()).unwrap_or(0)];
        quantise(kind, values, &mut bytes);
        Ok(bytes)
    }

    /// The values of some rows, where rows stay rows.
    fn read_rows(&self, rows: Range<usize>, width: usize, out: &mut [f32]) {
        match &self.from {
            Origin::Given(values) => {
                out.copy_from_slice(&values[rows.start * width..][..out.len()])
            }
            Origin::Same(stored) => {
                let bytes = stored.kind.bytes_of(width).unwrap_or(0);
                dequantise(stored.kind, &stored.bytes[rows.start * bytes..rows.end * bytes], out);
            }
            Origin::Parameter(stored, binding, new) => {
                let bytes = stored.kind.bytes_of(width).unwrap_or(0);
                for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
                    let row = row_in_parameter(*new, binding.head_rows, row);
                    let at = binding.row_in_file(row) * bytes;
                    dequantise(stored.kind, &stored.bytes[at..at + bytes], out);
                    less_one(binding.stored, *new, out);
                }
            }
        }
    }

    /// All values in the new order.
    fn read_all(&self, out: &mut [f32]) {
        let Origin::Parameter(stored, binding, new) = &self.from else {
            let (rows, width) = self.rows();
            return self.read_rows(0..rows, width, out);
        };
        let mut ours = vec![0.0; out.len()];
        binding.fill(stored, &mut ours);
        less_one(Stored::Plain, *new, &mut ours);
        let rows = binding.rows.len();
        let width = out.len() / rows.max(1);
        match new {
            Stored::Transposed => {
                out.iter_mut()
                    .enumerate()
                    .for_each(|(i, v)| *v = ours[i % rows * width + i / rows]);
            }
            _ => {
                for (row, out) in out.chunks_exact_mut(width).enumerate() {
                    let row = row_in_parameter(*new, binding.head_rows, row);
                    out.copy_from_slice(&ours[row * width..(row + 1) * width]);
                }
            }
        }
    }
}

/// Takes gains from one way of storing them to the other.
fn less_one(old: Stored, new: Stored, values: &mut [f32]) {
    match (old == Stored::LessOne, new == Stored::LessOne) {
        (true, false) => values.iter_mut().for_each(|v| *v += 1.0),
        (false, true) => values.iter_mut().for_each(|v| *v -= 1.0),
        _ => {}
    }
}

/// Counts, tells, and hears when to stop.
struct Told<'a, 'w> {
    done: usize,
    total: usize,
    watch: &'a mut Watch<'w>,
}

impl<'a, 'w> Told<'a, 'w> {
    fn new(work: &[Planned<'_>], watch: &'a mut Watch<'w>) -> Told<'a, 'w> {
        Told { done: 0, total: work.iter().map(Planned::len).sum(), watch }
    }

    fn more(&mut self, tensor: &str, values: usize) -> Result<(), Broken> {
        self.done += values;
        match (self.watch)(Progress { tensor, done: self.done, total: self.total }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Broken::Other(ConvertError::Stopped)),
        }
    }
}
