//! Running the pieces of a step on a model.

use crate::Error;
use kernels::Team;
use ledger::{Account, Buffer, Plan, Spec};
use models::ngram::Ngram;
use models::{
    Batch, Cache, KvPages, KvPool, Model, ModelConfig, PagedPast, Past, Runner, Workload,
};
use std::collections::HashMap;
use std::sync::Arc;

use super::pool::PageId;
use super::scheduler::{Limits, SequenceId};

/// The rows of logits that are wanted of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// None: more tokens follow.
    None,
    /// The rows after its tokens from this place of the text on: the last, or more.
    From(usize),
    /// The row after each of its tokens.
    Every,
}

/// Tokens of one sequence that run now.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// The sequence.
    pub id: SequenceId,
    /// All tokens up to the last that runs now.
    pub known: &'a [u32],
    /// How many of them are computed.
    pub from: usize,
    /// The sequence's pages.
    pub pages: &'a [PageId],
    /// Those of layers that see only near positions; behind the window any number may stand.
    pub near: &'a [PageId],
    /// What is wanted.
    pub rows: Rows,
}

impl<'a> Piece<'a> {
    fn past(&self) -> PagedPast<'a> {
        PagedPast { pages: self.pages, near: self.near, len: self.from }
    }
}

/// A model that runs steps.
///
/// A row of logits depends on the sequence's tokens alone: not on the pieces that it came in, the
/// sequences beside it or the pages it lies in. Running a step again gives the same.
pub trait Executor: Send {
    /// V.
    fn vocab_size(&self) -> usize;

    /// Tokens that the model can see at most, if there is a limit.
    fn context_limit(&self) -> Option<usize>;

    /// Runs the pieces and writes the wanted rows (V each) in order.
    ///
    /// # Errors
    /// When memory is not to be had, or a sequence is not known.
    fn run(&mut self, pieces: &[Piece<'_>], logits: &mut [f32]) -> Result<(), Error>;

    /// C: values of what the output projection reads; 0 where a model has none.
    fn width(&self) -> usize;

    /// What the output projection read in the last run, one row a token in order (rows×C).
    fn hidden(&mut self) -> &[f32];

    /// The sequence has ended or starts from the beginning again.
    fn forget(&mut self, id: SequenceId);
}

/// What a network remembers of sequences.
enum Memory {
    /// Pages of K/V.
    Pages(KvPool),
    /// A state a sequence, with the tokens that it has read.
    States(HashMap<SequenceId, (usize, Cache)>),
}

/// A network at work for many sequences.
pub struct NetworkExecutor {
    model: Arc<Model>,
    runner: Runner,
    memory: Memory,
    batch: Batch,
    rows: Vec<usize>,
}

fn workload(config: &ModelConfig, limits: &Limits, threads: usize) -> Workload {
    let longest = config.context_limit().unwrap_or(usize::MAX).min(limits.capacity());
    let (rows, sequences) = (limits.step_tokens, limits.sequences);
    Workload { rows, sequences, longest, threads, training: false }
}

impl NetworkExecutor {
    /// What [`NetworkExecutor::new`] will allocate.
    ///
    /// # Errors
    /// When the configuration makes no network.
    pub fn plan(config: &ModelConfig, limits: &Limits, threads: usize) -> Result<Plan, Error> {
        let mut plan = Runner::plan(config, &workload(config, limits, threads))?;
        if let ModelConfig::Transformer(c) = config {
            plan.extend(KvPool::plan(c, limits.kv_pages()));
        }
        Ok(plan)
    }

    /// Whether what such a model remembers lies in pages that sequences can share.
    #[must_use]
    pub fn shares(config: &ModelConfig) -> bool {
        matches!(config, ModelConfig::Transformer(_))
    }

    /// Bytes that a token takes in the pages of layers that see everything.
    #[must_use]
    pub fn bytes_per_token(config: &ModelConfig) -> u64 {
        match config {
            ModelConfig::Transformer(c) => {
                KvPool::plan(c, KvPages { pages: 1, near: 0, page_tokens: 1 }).total()
            }
            _ => 0,
        }
    }

    /// Bytes of the pages of a model.
    #[must_use]
    pub fn pool_bytes(config: &ModelConfig, limits: &Limits) -> u64 {
        match config {
            ModelConfig::Transformer(c) => KvPool::plan(c, limits.kv_pages()).total(),
            _ => 0,
        }
    }

    /// Buffers and pool.
    ///
    /// # Errors
    /// When memory is not to be had.
    pub fn new(model: Arc<Model>, limits: &Limits, team: &Arc<Team>) -> Result<Self, Error> {
        let workload = workload(model.config(), limits, team.threads());
        let memory = match model.config() {
            ModelConfig::Transformer(c) => Memory::Pages(KvPool::new(c, limits.kv_pages())?),
            _ => Memory::States(HashMap::new()),
        };
        let runner = Runner::new(&model, workload, team)?;
        Ok(Self { model, runner, memory, batch: Batch::default(), rows: Vec::new() })
    }

    fn gather(&mut self, pieces: &[Piece<'_>]) {
        self.batch.clear();
        self.rows.clear();
        for piece in pieces {
            self.batch.push_inputs(&piece.known[piece.from..], piece.from, 0);
            let end = self.batch.rows();
            match piece.rows {
                Rows::None => {}
                Rows::From(place) => self.rows.extend(end - (piece.known.len() - place)..end),
                Rows::Every => self.rows.extend(end - (piece.known.len() - piece.from)..end),
            }
        }
    }
}

impl Executor for NetworkExecutor {
    fn vocab_size(&self) -> usize {
        self.model.config().vocab_size()
    }

    fn context_limit(&self) -> Option<usize> {
        self.model.config().context_limit()
    }

    fn run(&mut self, pieces: &[Piece<'_>], logits: &mut [f32]) -> Result<(), Error> {
        self.gather(pieces);
        let Self { model, runner, memory, batch, rows } = self;
        match memory {
            Memory::Pages(pool) => {
                let past: Vec<PagedPast<'_>> = pieces.iter().map(Piece::past).collect();
                let past = Past::Pages { pool, sequences: &past };
                runner.logits(model, batch, past, rows, logits);
            }
            Memory::States(states) => {
                let mut caches = Vec::with_capacity(pieces.len());
                for piece in pieces {
                    caches.push(match states.get(&piece.id) {
                        Some((read, cache)) if *read == piece.from => cache.fork(model)?,
                        _ if piece.from == 0 => Cache::new(model, 0, 0)?,
                        _ => return Err(Error::UnknownSequence { id: piece.id, read: piece.from }),
                    });
                }
                runner.logits(model, batch, &mut caches, rows, logits);
                // Only now, so that a step that failed can be run again.
                for (piece, cache) in pieces.iter().zip(caches) {
                    states.insert(piece.id, (piece.known.len(), cache));
                }
            }
        }
        Ok(())
    }

    fn width(&self) -> usize {
        self.model.width()
    }

    fn hidden(&mut self) -> &[f32] {
        self.runner.hidden(&self.model, self.batch.rows())
    }

    fn forget(&mut self, id: SequenceId) {
        if let Memory::States(states) = &mut self.memory {
            states.remove(&id);
        }
    }
}

/// A count model at work: it looks at the last tokens and remembers nothing.
pub struct CountExecutor {
    model: Arc<Ngram>,
    /// V probabilities.
    chances: Buffer<f64>,
}

impl CountExecutor {
    /// An executor.
    ///
    /// # Errors
    /// When memory is not to be had.
    pub fn new(model: Arc<Ngram>) -> Result<Self, Error> {
        let spec = Spec::new("probabilities", Account::Workspace, model.vocab_size());
        Ok(Self { chances: Buffer::new(&spec)?, model })
    }
}

impl Executor for CountExecutor {
    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn context_limit(&self) -> Option<usize> {
        None
    }

    fn run(&mut self, pieces: &[Piece<'_>], logits: &mut [f32]) -> Result<(), Error> {
        let mut rows = logits.chunks_exact_mut(self.model.vocab_size());
        for piece in pieces {
            let first = match piece.rows {
                Rows::None => continue,
                Rows::From(place) => place + 1,
                Rows::Every => piece.from + 1,
            };
            for (end, row) in (first..=piece.known.len()).zip(&mut rows) {
                self.model.distribution(&piece.known[..end], &mut self.chances);
                for (logit, chance) in row.iter_mut().zip(self.chances.iter()) {
                    *logit = chance.ln() as f32;
                }
            }
        }
        Ok(())
    }

    fn width(&self) -> usize {
        0
    }

    fn hidden(&mut self) -> &[f32] {
        &[]
    }

    fn forget(&mut self, _id: SequenceId) {}
}
