//! A network as a source: one cache a sequence, one forward pass a step for all of them.

use crate::guessed::Ahead;
use crate::source::select_places;
use crate::{Each, Error, Room, Source};
use kernels::Team;
use ledger::{Account, Buffer, Plan, Spec};
use models::{Batch, Cache, Model, ModelConfig, Runner, Workload};
use std::sync::Arc;

/// Tokens of a prompt that run together; a longer one is read in pieces, with the same result.
pub const MOST_ROWS: usize = 128;
/// Logits that a pass over a known text holds at once: 16 MiB.
const MOST_LOGITS: usize = 1 << 22;

/// A network with what it remembers.
pub struct NetworkSource<'a> {
    model: &'a Model,
    team: Arc<Team>,
    runner: Option<Runner>,
    /// One a sequence.
    caches: Vec<Cache>,
    /// Tokens that each sequence has read.
    read: Vec<usize>,
    batch: Batch,
    /// The rows whose logits are wanted.
    rows: Vec<usize>,
    /// Tokens that a pass after the prompt may have.
    ahead: usize,
}

impl<'a> NetworkSource<'a> {
    /// A source that remembers nothing yet; buffers come with the first request.
    #[must_use]
    pub fn new(model: &'a Model, team: &Arc<Team>) -> Self {
        Self {
            model,
            team: Arc::clone(team),
            runner: None,
            caches: Vec::new(),
            read: Vec::new(),
            batch: Batch::default(),
            rows: Vec::new(),
            ahead: 1,
        }
    }

    /// What a request with a prompt of `prompt` tokens will allocate beside the weights.
    ///
    /// # Errors
    /// When the configuration makes no network.
    pub fn plan(
        config: &ModelConfig,
        prompt: usize,
        room: Room,
        threads: usize,
    ) -> Result<Plan, Error> {
        let workload = workload(config, prompt.min(MOST_ROWS), room, threads);
        let mut plan = Runner::plan(config, &workload)?;
        for _ in 0..room.sequences {
            plan.extend(Cache::plan(config, workload.longest, workload.rows));
        }
        Ok(plan)
    }

    /// Buffers and one empty cache for a new request.
    fn reset(&mut self, rows: usize, room: Room) -> Result<(), Error> {
        self.runner = None;
        self.caches.clear();
        let workload = workload(self.model.config(), rows, room, self.team.threads());
        self.caches.push(Cache::new(self.model, workload.longest, workload.rows)?);
        self.read = vec![0];
        self.runner = Some(Runner::new(self.model, workload, &self.team)?);
        Ok(())
    }

    /// Reads tokens into the only sequence; writes the logits after the last `wanted` of them.
    fn read(&mut self, ids: &[u32], wanted: usize, logits: &mut [f32]) {
        self.batch.clear();
        self.batch.push_inputs(ids, self.read[0], 0);
        self.read[0] += ids.len();
        self.rows.clear();
        self.rows.extend(ids.len() - wanted..ids.len());
        self.run(logits);
    }

    fn run(&mut self, logits: &mut [f32]) {
        if let Some(runner) = &mut self.runner {
            runner.logits(self.model, &self.batch, &mut self.caches, &self.rows, logits);
        }
    }
}

/// Batches of up to `rows` rows for what is to be remembered, within the model's context.
fn workload(config: &ModelConfig, rows: usize, room: Room, threads: usize) -> Workload {
    let longest = config.context_limit().map_or(room.tokens, |limit| room.tokens.min(limit));
    let (rows, sequences) = (rows.max(room.sequences), room.sequences);
    Workload { rows, sequences, longest, threads, training: false }
}

impl Source for NetworkSource<'_> {
    fn vocab_size(&self) -> usize {
        self.model.config().vocab_size()
    }

    fn context_limit(&self) -> Option<usize> {
        self.model.config().context_limit()
    }

    fn plan(&self, prompt: usize, room: Room) -> Result<Plan, Error> {
        let rows = prompt.max(self.ahead);
        NetworkSource::plan(self.model.config(), rows, room, self.team.threads())
    }

    fn begin(&mut self, prompt: &[u32], room: Room, logits: &mut [f32]) -> Result<(), Error> {
        self.reset(prompt.len().max(self.ahead).min(MOST_ROWS), room)?;
        let mut pieces = prompt.chunks(MOST_ROWS).peekable();
        while let Some(piece) = pieces.next() {
            self.read(piece, usize::from(pieces.peek().is_none()), logits);
        }
        for _ in 1..room.sequences {
            self.caches.push(self.caches[0].fork(self.model)?);
            self.read.push(self.read[0]);
        }
        Ok(())
    }

    fn step(&mut self, tokens: &[u32], logits: &mut [f32]) {
        self.batch.clear();
        for (&token, read) in tokens.iter().zip(&mut self.read) {
            self.batch.push_inputs(&[token], *read, 0);
            *read += 1;
        }
        self.rows.clear();
        self.rows.extend(0..tokens.len());
        self.run(logits);
    }

    fn select(&mut self, parents: &[usize]) -> Result<(), Error> {
        select_places(&mut self.read, parents, |read| Ok(*read))?;
        select_places(&mut self.caches, parents, |cache| Ok(cache.fork(self.model)?))
    }

    fn pass(&mut self, ids: &[u32], each: &mut Each<'_>) -> Result<(), Error> {
        let vocab = self.vocab_size();
        let rows = (MOST_LOGITS / vocab).clamp(1, MOST_ROWS).min(ids.len());
        if rows == 0 {
            return Ok(());
        }
        self.reset(rows, Room { sequences: 1, tokens: ids.len() })?;
        let spec = Spec::new("logits of a pass", Account::Workspace, rows * vocab);
        let mut logits = Buffer::<f32>::new(&spec)?;
        for (piece, ids) in ids.chunks(rows).enumerate() {
            self.read(ids, ids.len(), &mut logits);
            for (row, logits) in logits.chunks_exact(vocab).take(ids.len()).enumerate() {
                each(piece * rows + row, logits)?;
            }
        }
        Ok(())
    }
}

impl Ahead for NetworkSource<'_> {
    fn read_ahead(&mut self, tokens: usize) {
        self.ahead = tokens.clamp(1, MOST_ROWS);
    }

    fn read_on(&mut self, tokens: &[u32], logits: &mut [f32]) {
        self.read(tokens, tokens.len(), logits);
    }

    fn rewind(&mut self, read: usize) {
        for (cache, known) in self.caches.iter_mut().zip(&mut self.read) {
            cache.rewind(read);
            *known = read.min(*known);
        }
    }
}
