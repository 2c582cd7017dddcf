//! Published files, opened: everything but the weights is read, and the weights can be loaded.

use crate::binding::{Binding, Stored};
use crate::family::Family;
use crate::{Error, folder, gguf};
use formats::{GGUF_MAGIC, StoredRow, TensorKind, TensorStore};
use models::{Model, ModelConfig, TransformerConfig};
use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::ops::{Deref, DerefMut};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use tensor::{HalfKind, MatrixKind, PANEL_ROWS, ParameterSpec, QuantPart, Storage, pack_panel};
use tokenizer::Tokenizer;

/// Which kind of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A GGUF file.
    Gguf,
    /// A Hugging Face folder.
    Folder,
}

/// Published files but for their vocabulary, which takes its time: weights can be read meanwhile.
pub struct Weights {
    /// What was given.
    pub path: PathBuf,
    /// Which kind.
    pub source: Source,
    /// The family.
    pub family: &'static Family,
    /// The numbers.
    pub config: TransformerConfig,
    /// The weights: types and raw bytes by name.
    pub tensors: TensorStore,
    /// The name that the files give themselves.
    pub name: Option<String>,
    /// What is odd but not wrong, a line each.
    pub notes: Vec<String>,
}

/// What published files say of text.
pub(crate) struct Words {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) tokenizer_kind: String,
    pub(crate) ends: Vec<u32>,
    pub(crate) bos_token: Option<String>,
    pub(crate) eos_token: Option<String>,
    pub(crate) chat_template: Option<String>,
}

/// Words that are still in their files.
pub(crate) type Unread = Box<dyn FnOnce() -> Result<Words, Error> + Send>;

/// Published files, opened; in everything that is not text it is its weights.
pub struct Checkpoint {
    weights: Weights,
    /// The tokenizer; its `bos` is there where a text begins with it.
    pub tokenizer: Tokenizer,
    /// What kind of tokenizer, in the file's words.
    pub tokenizer_kind: String,
    /// Every token that ends an answer.
    pub ends: Vec<u32>,
    /// The beginning token as the chat template names it, whether texts begin with it or not.
    pub bos_token: Option<String>,
    /// The end token as the chat template names it.
    pub eos_token: Option<String>,
    /// The chat template.
    pub chat_template: Option<String>,
}

impl Deref for Checkpoint {
    type Target = Weights;

    fn deref(&self) -> &Weights {
        &self.weights
    }
}

impl DerefMut for Checkpoint {
    fn deref_mut(&mut self) -> &mut Weights {
        &mut self.weights
    }
}

/// Whether `path` is for [`Checkpoint::open`]: a GGUF file, or a folder whose `config.json` names a
/// `model_type`. Files of this program are neither.
pub fn is_published(path: &Path) -> bool {
    if path.is_file() {
        return true;
    }
    let text = std::fs::read(path.join(folder::CONFIG)).unwrap_or_default();
    let config: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    config.get("kind").is_none() && config.get("model_type").is_some()
}

/// Tensors beside the parameters: what follows from the configuration, and factors of rotary positions
/// that are read as a key.
const SPARE: [&str; 6] = [
    crate::gguf_keys::ROPE_FACTORS,
    "rope_freqs",
    ".attn_rot_embd",
    ".rotary_emb.inv_freq",
    ".attn.bias",
    ".attn.masked_bias",
];

impl Checkpoint {
    /// Opens a GGUF file or a Hugging Face folder and checks that every tensor is there with the
    /// shape that its configuration needs. No weight is read.
    ///
    /// # Errors
    /// What does not hold, in one line.
    pub fn open(path: &Path) -> Result<Checkpoint, Error> {
        let (weights, words) = Weights::open(path)?;
        Self::of(weights, words()?)
    }

    /// The same; `meanwhile` runs while another thread reads the vocabulary.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn open_while<T>(
        path: &Path,
        meanwhile: impl FnOnce(&mut Weights) -> T,
    ) -> Result<(Checkpoint, T), Error> {
        let (mut weights, words) = Weights::open(path)?;
        let (words, done) = std::thread::scope(|scope| {
            let words = scope.spawn(words);
            let done = meanwhile(&mut weights);
            (words.join().unwrap_or_else(|panic| resume_unwind(panic)), done)
        });
        Ok((Self::of(weights, words?)?, done))
    }

    fn of(weights: Weights, words: Words) -> Result<Checkpoint, Error> {
        let (tokens, vocab) = (words.tokenizer.vocab_size(), weights.config.vocab_size);
        if tokens > vocab {
            return Err(Error::Vocabulary { path: weights.path, tokens, vocab });
        }
        let Words { tokenizer, tokenizer_kind, ends, bos_token, eos_token, chat_template } = words;
        Ok(Checkpoint {
            weights,
            tokenizer,
            tokenizer_kind,
            ends,
            bos_token,
            eos_token,
            chat_template,
        })
    }
}

impl Weights {
    fn open(path: &Path) -> Result<(Weights, Unread), Error> {
        let io = |source| Error::Io { path: path.to_owned(), source };
        let (mut weights, words) = if std::fs::metadata(path).map_err(io)?.is_dir() {
            folder::open(path)?
        } else {
            let mut magic = [0; 4];
            let read = File::open(path).and_then(|mut f| f.read(&mut magic)).map_err(io)?;
            if read < 4 || magic != GGUF_MAGIC {
                let name = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
                if name != "gguf" {
                    return Err(Error::NotAModel { path: path.to_owned() });
                }
            }
            gguf::open(path)?
        };
        // A file that does not fit is told before anything takes its time.
        weights.account_for_all()?;
        weights.compare_heads();
        Ok((weights, words))
    }

    /// Sees that every tensor of the file has a place in the model. One without would change what a
    /// GGUF file's writer meant; Hugging Face's own reader passes over those of a folder, and says so.
    fn account_for_all(&mut self) -> Result<(), Error> {
        let bindings = self.bindings()?;
        let bound: HashSet<&str> = bindings.iter().map(|b| b.tensor.as_str()).collect();
        let spare =
            |name: &&str| !bound.contains(name) && !SPARE.iter().any(|end| name.ends_with(end));
        let heads = ["output.weight", "lm_head.weight"];
        let tied = self.config.tie_word_embeddings;
        let left: Vec<&str> =
            self.tensors.names().filter(spare).filter(|n| !(tied && heads.contains(n))).collect();
        let Some(first) = left.iter().min() else { return Ok(()) };
        if self.is_gguf() {
            let (path, name) = (self.path.clone(), (*first).to_owned());
            return Err(Error::NoPlace { path, name, family: self.family.name });
        }
        let (count, family) = (left.len(), self.family.name);
        let them = if count == 1 { "1 tensor is" } else { &format!("{count} tensors are") };
        let note = format!(
            "{them} not used, because a {family} of this configuration has no place for: {first}{}",
            if count == 1 { "" } else { ", and so on" }
        );
        self.notes.push(note);
        Ok(())
    }

    /// A file may hold a second copy of tied heads: the embedding is used.
    fn compare_heads(&mut self) {
        if !self.config.tie_word_embeddings {
            return;
        }
        let tensor = |parameter| {
            let name = self.family.tensors(self.is_gguf(), parameter).into_iter().next();
            name.and_then(|(name, _)| self.find(&name)).and_then(|name| self.tensors.get(&name))
        };
        if let (Some(head), Some(table)) = (tensor("head.weight"), tensor("tok_emb.weight"))
            && (head.kind != table.kind || head.bytes != table.bytes)
        {
            self.notes.push(
                "heads are tied by the configuration, but the file holds another output projection: \
                 the embedding is used"
                    .to_owned(),
            );
        }
    }

    fn is_gguf(&self) -> bool {
        self.source == Source::Gguf
    }

    /// The model's configuration.
    pub fn model_config(&self) -> ModelConfig {
        ModelConfig::Transformer(self.config.clone())
    }

    fn model_error(&self, source: models::Error) -> Error {
        Error::Model { path: self.path.clone(), source }
    }

    /// The name under which the file has a tensor: some folders leave the first part away.
    fn find(&self, name: &str) -> Option<String> {
        if self.tensors.get(name).is_some() {
            return Some(name.to_owned());
        }
        let (_, rest) = name.split_once('.')?;
        let short = !self.is_gguf() && self.tensors.get(rest).is_some();
        short.then(|| rest.to_owned())
    }

    /// Which tensors make which parameter; every shape is checked.
    ///
    /// # Errors
    /// A tensor that is missing or of another shape, by name; a configuration that makes no network.
    pub fn bindings(&self) -> Result<Vec<Binding>, Error> {
        let layout =
            Model::layout_of(&self.model_config()).map_err(|source| self.model_error(source))?;
        let mut all = Vec::new();
        // Adapters are in no file of the model.
        let own = layout.specs().iter().enumerate().filter(|(_, s)| !models::is_adapter(&s.name));
        for (parameter, spec) in own {
            self.bind(parameter, spec, &mut all)?;
        }
        Ok(all)
    }

    fn bind(
        &self,
        parameter: usize,
        spec: &ParameterSpec,
        all: &mut Vec<Binding>,
    ) -> Result<(), Error> {
        let pieces = self.family.tensors(self.is_gguf(), &spec.name);
        let c = &self.config;
        let d = c.head_size();
        // Queries, keys and values stand one below the other.
        let parts = [c.num_attention_heads * d, c.kv_heads() * d, c.kv_heads() * d];
        let mut from = 0;
        for (i, (name, stored)) in pieces.iter().enumerate() {
            let rows = if pieces.len() == parts.len() { parts[i] } else { spec.shape[0] };
            let mut expected = spec.shape.clone();
            expected[0] = rows;
            if *stored == Stored::Transposed {
                expected.reverse();
            }
            let path = || self.path.to_owned();
            let Some(tensor) = self.find(name) else {
                return Err(Error::MissingTensor { path: path(), name: name.clone() });
            };
            let found = self.tensors.get(&tensor);
            if let Some(found) = found.filter(|found| *found.shape != *expected) {
                let (name, found) = (tensor, found.describe());
                return Err(Error::Shape { path: path(), name, found, expected });
            }
            let rows = from..from + rows;
            from = rows.end;
            all.push(Binding { parameter, rows, tensor, stored: *stored, head_rows: d });
        }
        Ok(())
    }

    /// The names of the parameters, by their place in the layout.
    pub(crate) fn parameter_names(&self) -> Result<Vec<String>, Error> {
        let layout =
            Model::layout_of(&self.model_config()).map_err(|source| self.model_error(source))?;
        Ok(layout.specs().iter().map(|spec| spec.name.clone()).collect())
    }

    /// Keeps matrices as the file has them, quantised or in 16 bits, from now on:
    /// [`Weights::load`] repacks them, and products read them as they are.
    ///
    /// # Errors
    /// As [`Weights::bindings`].
    pub fn keep_as_stored(&mut self) -> Result<(), Error> {
        let layout =
            Model::layout_of(&self.model_config()).map_err(|source| self.model_error(source))?;
        let bindings = self.bindings()?;
        let mut storage = Storage::new();
        for (parameter, spec) in layout.specs().iter().enumerate() {
            let kind = |binding: &Binding| {
                let tensor = self.tensors.get(&binding.tensor)?;
                let by_rows = matches!(binding.stored, Stored::Plain | Stored::Interleaved);
                let kind = match tensor.kind {
                    TensorKind::F32 => return None,
                    TensorKind::F16 => MatrixKind::Half(HalfKind::F16),
                    TensorKind::Bf16 => MatrixKind::Half(HalfKind::Bf16),
                    _ => MatrixKind::Quant(tensor.kind.quant_kind().filter(|_| by_rows)?),
                };
                (binding.stored != Stored::LessOne).then_some((kind, binding.rows.len()))
            };
            let own = bindings.iter().filter(|binding| binding.parameter == parameter);
            let parts: Option<Vec<_>> = own.map(kind).collect();
            if let Some(parts) = parts.filter(|_| spec.shape.len() == 2) {
                storage.insert(spec.name.clone(), parts);
            }
        }
        self.config.storage = storage;
        Ok(())
    }

    /// The model with its weights as floats, but those that are kept as stored, read by `threads`
    /// threads.
    ///
    /// # Errors
    /// Memory that is not to be had; else as [`Weights::bindings`].
    pub fn load(&self, threads: usize) -> Result<Model, Error> {
        let mut model =
            Model::new(&self.model_config()).map_err(|source| self.model_error(source))?;
        self.load_into(&mut model, threads)?;
        Ok(model)
    }

    /// The same into a model of this configuration, whose weights stand in the same order, wherever its
    /// adapters are.
    ///
    /// # Errors
    /// As [`Weights::bindings`].
    pub fn load_into(&self, model: &mut Model, threads: usize) -> Result<(), Error> {
        let bindings = self.bindings()?;
        let (layout, mut values, mut blocks) = model.weights_mut().parts_mut();
        let (mut value_at, mut block_at) = (0, 0);
        let mut work = Vec::with_capacity(bindings.len());
        for binding in &bindings {
            let spec = &layout.specs()[binding.parameter];
            let part = spec.parts.iter().find(|part| part.rows == binding.rows);
            if let Some(part) = part {
                let out = take(&mut blocks, &mut block_at, part.bytes.clone());
                let bytes = part.kind.panel_bytes(spec.shape[1]);
                for (i, panels) in out.chunks_mut(bytes * TASK_PANELS).enumerate() {
                    work.push(Piece::Panels { binding, part, first: i * TASK_PANELS, panels });
                }
            } else {
                let width = spec.count() / spec.shape[0];
                let start = spec.range.start + binding.rows.start * width;
                let range = start..start + binding.rows.len() * width;
                work.push(Piece::Values(binding, take(&mut values, &mut value_at, range)));
            }
        }
        let work = Mutex::new(work.into_iter());
        let next = || work.lock().ok().and_then(|mut work| work.next());
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| {
                    while let Some(piece) = next() {
                        piece.read(&self.tensors);
                    }
                });
            }
        });
        Ok(())
    }
}

/// Panels that a thread repacks at a time.
const TASK_PANELS: usize = 64;

/// A piece of the weights to be read.
enum Piece<'a> {
    Values(&'a Binding, &'a mut [f32]),
    Panels { binding: &'a Binding, part: &'a QuantPart, first: usize, panels: &'a mut [u8] },
}

impl Piece<'_> {
    fn read(self, tensors: &TensorStore) {
        match self {
            Piece::Values(binding, out) => {
                if let Some(tensor) = tensors.get(&binding.tensor) {
                    binding.fill(&tensor, out);
                    tensors.release(&binding.tensor, 0..tensor.bytes.len());
                }
            }
            Piece::Panels { binding, part, first, panels } => {
                let Some(tensor) = tensors.get(&binding.tensor) else { return };
                let turned = binding.stored == Stored::Transposed;
                let (rows, cols) = (part.rows.len(), tensor.shape[usize::from(!turned)]);
                let row_bytes = tensor.bytes.len() / rows;
                let each = panels.chunks_exact_mut(part.kind.panel_bytes(cols)).enumerate();
                for (i, panel) in each {
                    let row_of = |row: usize| {
                        let row = (first + i) * PANEL_ROWS + row;
                        (row < rows).then(|| binding.row_in_file(row))
                    };
                    let bytes_of = |row: usize| {
                        let at = row_of(row)? * row_bytes;
                        Some(StoredRow(&tensor.bytes[at..at + row_bytes]))
                    };
                    match part.kind {
                        MatrixKind::Quant(kind) => {
                            pack_panel(kind, cols, panel, bytes_of);
                        }
                        MatrixKind::Half(kind) => kind.pack_panel(cols, panel, |row, column| {
                            let Some(row) = row_of(row) else { return 0 };
                            let at = if turned { column * rows + row } else { row * cols + column };
                            u16::from_le_bytes([tensor.bytes[2 * at], tensor.bytes[2 * at + 1]])
                        }),
                    }
                }
                if !turned {
                    let rows = PANEL_ROWS * first..PANEL_ROWS * (first + TASK_PANELS);
                    tensors.release(&binding.tensor, rows.start * row_bytes..rows.end * row_bytes);
                }
            }
        }
    }
}

/// Cuts `range` out of what is left of a slice that once began at 0; `at` is where it begins now.
fn take<'a, T>(
    rest: &mut &'a mut [T],
    at: &mut usize,
    range: std::ops::Range<usize>,
) -> &'a mut [T] {
    let (_, tail) = std::mem::take(rest).split_at_mut(range.start - *at);
    let (out, tail) = tail.split_at_mut(range.len());
    *at = range.end;
    *rest = tail;
    out
}
