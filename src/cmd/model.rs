//! A MODEL argument opened for use: weights, tokenizer, workers.

use crate::cmd::team;
use crate::error::CliError;
use crate::term;
use corpus::Dataset;
use decoding::{Rule, Rules};
use engine::{Ahead, CountSource, Each, Error, NetworkSource, Room, Source};
use families::{Checkpoint, Weights};
#[cfg(feature = "hub")]
use hub::{Hub, Place, Wanted};
use kernels::{KvKind, Team};
use ledger::Plan;
use models::{Model, ModelConfig};
use std::io::Read;
use std::path::{Path, PathBuf};
use tokenizer::{Tokenizer, Utf8Stream};
use train::SavedModel;

/// Tokens for which memory is predicted before weights are read.
const LEAST_ROOM: usize = 512;

/// A model, read: a run folder, a GGUF file or a Hugging Face folder.
pub struct Opened {
    /// Where it was found.
    pub dir: PathBuf,
    /// The model.
    pub saved: SavedModel,
    /// The tokenizer that it was trained with.
    pub tokenizer: Tokenizer,
    /// The tokens that end a text.
    pub ends: Vec<u32>,
    /// What an empty prompt begins from: a published model may name a beginning token that it does
    /// not put before texts.
    pub begin: Option<u32>,
    /// How conversations are written, where the files say so.
    pub template: Option<Template>,
    /// The files of a published model's weights.
    files: Vec<PathBuf>,
}

/// A chat template and the tokens that it may name.
#[derive(Debug, Clone)]
pub struct Template {
    /// The template.
    pub source: String,
    /// What begins a text.
    pub bos_token: String,
    /// What ends one.
    pub eos_token: String,
}

/// Where a MODEL argument is: the path, or what the hub's cache has of a repository of that name.
///
/// # Errors
/// A name of a repository that the cache lacks.
#[cfg(feature = "hub")]
pub fn located(model: &Path) -> Result<PathBuf, CliError> {
    let name = model.to_str().filter(|name| name.split('/').count() == 2 && !model.exists());
    let wanted = name.filter(|name| !name.starts_with(['.', '/', '~']));
    let Some((name, wanted)) = wanted.and_then(|n| Some((n, n.parse::<Wanted>().ok()?))) else {
        return Ok(model.to_owned());
    };
    let Ok(place) = Place::from_env() else { return Ok(model.to_owned()) };
    let hub = Hub::new(Place { offline: true, ..place }).map_err(CliError::failed)?;
    let found = hub.pull(&wanted, &mut |_| {}).map_err(|error| {
        CliError::input(format!(
            "{name}: no such file or folder, and as a repository: {error}; `autoreg pull {name}` \
             fetches it"
        ))
    })?;
    Ok(found.model)
}

/// Where a MODEL argument is: the path. This program was built without the client of a hub.
///
/// # Errors
/// None.
#[cfg(not(feature = "hub"))]
pub fn located(model: &Path) -> Result<PathBuf, CliError> {
    Ok(model.to_owned())
}

impl Opened {
    /// Reads a model.
    pub fn open(dir: &Path) -> Result<Self, CliError> {
        Self::open_with(dir, KvKind::F32)
    }

    /// Reads a model whose keys and values are to be kept so.
    pub fn open_with(dir: &Path, kv: KvKind) -> Result<Self, CliError> {
        let mut opened = Self::any(&located(dir)?, kv)?;
        if let SavedModel::Network(model) = &mut opened.saved {
            model.keep_kv_as(kv);
        }
        Ok(opened)
    }

    /// The same with an adapter merged into its weights: a PEFT folder.
    pub fn open_adapted(dir: &Path, kv: KvKind, adapter: Option<&Path>) -> Result<Self, CliError> {
        let Some(adapter) = adapter else { return Self::open_with(dir, kv) };
        let dir = &located(dir)?;
        if !families::is_published(dir) {
            return Err(CliError::input(format!(
                "--adapter: {} is no published model; adapters belong to GGUF files and Hugging \
                 Face folders",
                dir.display()
            )));
        }
        Self::published(dir, kv, Some(adapter))
    }

    fn any(dir: &Path, kv: KvKind) -> Result<Self, CliError> {
        if families::is_published(dir) {
            return Self::published(dir, kv, None);
        }
        let saved = SavedModel::open(dir).map_err(CliError::input)?;
        let tokenizer = Tokenizer::from_file(&dir.join(train::TOKENIZER_FILE));
        let tokenizer = tokenizer.map_err(CliError::input)?;
        let ends = tokenizer.specials().eos.into_iter().collect();
        let (dir, begin) = (dir.to_owned(), tokenizer.specials().bos);
        Ok(Self { dir, saved, tokenizer, ends, begin, template: None, files: Vec::new() })
    }

    fn published(path: &Path, kv: KvKind, adapter: Option<&Path>) -> Result<Self, CliError> {
        let adapter_of = |weights: &Weights| {
            let open = |path| families::Adapter::open(path, weights.family, &weights.config);
            adapter.map(open).transpose().map_err(CliError::input)
        };
        // The vocabulary is read meanwhile.
        let read = |weights: &mut Weights| {
            weights.config.kv = kv;
            weights.keep_as_stored().map_err(CliError::input)?;
            let adapter = adapter_of(weights)?;
            // What an adapter changes is kept as values.
            for changed in adapter.iter().flat_map(|adapter| adapter.parameters()) {
                weights.config.storage.remove(changed);
            }
            for note in &weights.notes {
                term::note(&format!("note: {note}"));
            }
            let threads = Team::available();
            room_for(weights, path, threads)?;
            let mut model = weights.load(threads).map_err(CliError::failed)?;
            if let Some(adapter) = &adapter {
                adapter.merge(&mut model).map_err(CliError::failed)?;
            }
            Ok((model, adapter))
        };
        let (checkpoint, read) = Checkpoint::open_while(path, read).map_err(CliError::input)?;
        let (model, adapter) = read?;
        let own = checkpoint.tokenizer.specials().bos;
        let named = checkpoint.bos_token.as_deref();
        let begin = own.or_else(|| named.and_then(|name| checkpoint.tokenizer.id(name)));
        let files = checkpoint.tensors.paths().map(Path::to_owned);
        let files = files.chain(adapter.iter().flat_map(|adapter| adapter.files())).collect();
        Ok(Self {
            dir: path.to_owned(),
            saved: SavedModel::Network(Box::new(model)),
            template: checkpoint.chat_template.map(|source| Template {
                source,
                bos_token: checkpoint.bos_token.unwrap_or_default(),
                eos_token: checkpoint.eos_token.unwrap_or_default(),
            }),
            tokenizer: checkpoint.tokenizer,
            ends: checkpoint.ends,
            begin,
            files,
        })
    }

    /// How keys and values are kept, where it is not as they are.
    pub fn kv(&self) -> Option<String> {
        match self.saved.config() {
            ModelConfig::Transformer(c) if c.kv != KvKind::F32 => Some(c.kv.name().to_owned()),
            _ => None,
        }
    }

    /// The SHA-256 of the weights.
    pub fn digest(&self) -> Result<String, CliError> {
        if self.files.is_empty() {
            return SavedModel::digest(&self.dir).map_err(CliError::failed);
        }
        train::digest_of(&self.files).map_err(CliError::failed)
    }

    /// The model as a source of logits.
    pub fn source(&self, threads: Option<usize>) -> Result<AnySource<'_>, CliError> {
        Ok(match &self.saved {
            SavedModel::Network(model) => {
                AnySource::Network(Box::new(NetworkSource::new(model, &team(threads)?)))
            }
            SavedModel::Counts(model) => AnySource::Counts(CountSource::new(model)),
        })
    }

    /// Whether the token ids of a data set mean to the model what they mean there.
    pub fn belongs_to(&self, data: &Dataset) -> Result<(), CliError> {
        if self.tokenizer.sha256() == data.tokenizer().sha256() {
            return Ok(());
        }
        Err(CliError::input(format!(
            "{} was trained with another tokenizer than {} has; their token ids mean different words",
            self.dir.display(),
            data.dir().display()
        )))
    }

    /// Its parameters; of counts, all that there could be.
    pub fn parameters(&self) -> Option<u64> {
        match &self.saved {
            SavedModel::Network(model) => {
                Model::count_parameters(model.config()).ok().map(|n| n as u64)
            }
            SavedModel::Counts(model) => Some(model.dense_parameters()),
        }
    }

    /// What its weights take.
    pub fn weights_plan(&self) -> Result<ledger::Plan, CliError> {
        match &self.saved {
            SavedModel::Network(model) => Model::plan(model.config()).map_err(CliError::failed),
            SavedModel::Counts(_) => Ok(ledger::Plan::default()),
        }
    }

    /// Tokens that are never written: padding and the beginning, and `<unk>` if asked for.
    pub fn never(&self, ban_unk: bool) -> Vec<u32> {
        let specials = self.tokenizer.specials();
        let unk = specials.unk.filter(|_| ban_unk);
        let mut ids: Vec<u32> = [specials.pad, specials.bos, unk].into_iter().flatten().collect();
        // Some tokenizers begin and end with the same token, which must be able to come.
        ids.retain(|id| !self.ends.contains(id));
        ids
    }

    /// A chain behind the ban of [`never`](Self::never).
    pub fn rules(&self, asked: &Rules, ban_unk: bool) -> Result<Rules, CliError> {
        let ids = self.never(ban_unk);
        let mut chain = asked.chain().to_vec();
        if !ids.is_empty() {
            chain.insert(0, Rule::Ban { ids });
        }
        Rules::new(chain).map_err(CliError::input)
    }

    /// The tokens of a text, in which names of control tokens stand for them or are plain text.
    pub fn encode(&self, text: &str, control_tokens: bool) -> Vec<u32> {
        if control_tokens {
            self.tokenizer.encode_with_controls(text)
        } else {
            self.tokenizer.encode(text)
        }
    }

    /// A token as pictures show it: its text, bytes that are no character, or its name.
    pub fn label(&self, id: u32) -> String {
        explain::shown(id, &self.tokenizer.token_bytes(id), self.tokenizer.token(id))
    }

    /// The text that each token adds to those before it, as `generate --json` tells it; together
    /// they are the text. A character's text comes with its last byte.
    pub fn pieces(&self, ids: &[u32]) -> Vec<String> {
        let mut stream = Utf8Stream::new(&self.tokenizer);
        let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(id)).collect();
        if let Some(last) = pieces.last_mut() {
            *last += &stream.finish();
        }
        pieces
    }
}

/// Refuses weights that do not fit in memory, before any is read.
fn room_for(weights: &Weights, path: &Path, threads: usize) -> Result<(), CliError> {
    let plan = predicted(&weights.model_config(), LEAST_ROOM, threads)?;
    let (needed, free) = (plan.total(), ledger::available_bytes().unwrap_or(u64::MAX));
    if needed <= free {
        return Ok(());
    }
    Err(CliError::input(format!(
        "{}: running it needs {}; {} are free: close other programs or take a smaller model",
        path.display(),
        term::mib(needed),
        term::mib(free)
    )))
}

/// What running a model on texts of `tokens` tokens will allocate: the lists that do allocate it.
pub fn predicted(
    config: &ModelConfig,
    tokens: usize,
    threads: usize,
) -> Result<ledger::Plan, CliError> {
    let room = Room { sequences: 1, tokens };
    let mut plan = Model::plan(config).map_err(CliError::input)?;
    plan.extend(NetworkSource::plan(config, tokens, room, threads).map_err(engine_error)?);
    Ok(plan)
}

/// An engine's error with its exit code.
pub fn engine_error(error: Error) -> CliError {
    if error.is_failure() { CliError::failed(error) } else { CliError::input(error) }
}

/// The text of an argument; `-` is standard input, of which the last line end does not count.
pub fn text_of(argument: &str) -> Result<String, CliError> {
    if argument != "-" {
        return Ok(argument.to_owned());
    }
    let mut text = String::new();
    std::io::stdin()
        .lock()
        .read_to_string(&mut text)
        .map_err(|e| CliError::input(format!("standard input: {e}; give UTF-8 text")))?;
    Ok(without_last_line_end(text))
}

/// Drops one line end at the end.
pub fn without_last_line_end(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    text
}

/// Either kind of model.
pub enum AnySource<'a> {
    /// A network.
    Network(Box<NetworkSource<'a>>),
    /// Counts.
    Counts(CountSource<'a>),
}

macro_rules! each {
    ($self:expr, $source:ident => $call:expr) => {
        match $self {
            AnySource::Network($source) => $call,
            AnySource::Counts($source) => $call,
        }
    };
}

impl Ahead for AnySource<'_> {
    fn read_ahead(&mut self, tokens: usize) {
        each!(self, source => source.read_ahead(tokens))
    }

    fn read_on(&mut self, tokens: &[u32], logits: &mut [f32]) {
        each!(self, source => source.read_on(tokens, logits))
    }

    fn rewind(&mut self, read: usize) {
        each!(self, source => source.rewind(read))
    }
}

impl Source for AnySource<'_> {
    fn vocab_size(&self) -> usize {
        each!(self, source => source.vocab_size())
    }

    fn context_limit(&self) -> Option<usize> {
        each!(self, source => source.context_limit())
    }

    fn plan(&self, prompt: usize, room: Room) -> Result<Plan, Error> {
        each!(self, source => source.plan(prompt, room))
    }

    fn begin(&mut self, prompt: &[u32], room: Room, logits: &mut [f32]) -> Result<(), Error> {
        each!(self, source => source.begin(prompt, room, logits))
    }

    fn step(&mut self, tokens: &[u32], logits: &mut [f32]) {
        each!(self, source => source.step(tokens, logits))
    }

    fn select(&mut self, parents: &[usize]) -> Result<(), Error> {
        each!(self, source => source.select(parents))
    }

    fn pass(&mut self, ids: &[u32], each: &mut Each<'_>) -> Result<(), Error> {
        each!(self, source => source.pass(ids, each))
    }
}
