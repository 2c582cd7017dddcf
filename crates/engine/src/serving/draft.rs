//! Guesses by a second, smaller model. After Leviathan et al., "Fast Inference from Transformers via
//! Speculative Decoding", 2023, but with each token chosen as if there were no guess: a guess that is
//! what was chosen has saved a step, and no answer changes.
//!
//! The draft's keys and values lie in a pool of its own with as many pages as the model's, under the
//! same page tables: whoever has pages there has them here, and texts that begin alike share both.

use super::executor::{Executor, Piece, Rows};
use super::pool::PageKey;
use super::scheduler::{Limits, Scheduler, SequenceId};
use crate::Error;
use ledger::{Account, Buffer, Plan, Spec};
use std::collections::HashMap;

/// A sequence for which tokens are to be guessed.
#[derive(Debug)]
pub struct Wanted {
    /// The sequence.
    pub id: SequenceId,
    /// Tokens, at most.
    pub most: usize,
    /// Those guessed.
    pub drafts: Vec<u32>,
}

impl Wanted {
    /// Nothing guessed yet.
    pub fn new(id: SequenceId, most: usize) -> Self {
        Self { id, most, drafts: Vec::new() }
    }
}

/// Chooses from a row of logits (V) what follows a sequence and its guesses; says whether the text
/// ends with it.
pub type Choose<'a> = dyn FnMut(SequenceId, &[u32], &[f32]) -> Option<(u32, bool)> + 'a;

/// A model that guesses.
pub struct Draft {
    executor: Box<dyn Executor>,
    /// The tokens that it has read of each sequence.
    read: HashMap<SequenceId, Vec<u32>>,
    /// What each page holds of its keys and values, where that is a whole page of known tokens.
    written: Vec<Option<PageKey>>,
    /// Rows×V of the draft.
    logits: Buffer<f32>,
    /// Tokens that it reads in a step, at most.
    step_tokens: usize,
}

fn logits_spec(vocab: usize, limits: &Limits) -> Spec {
    let len = limits.sequences.saturating_mul(vocab);
    Spec::new("logits of the draft", Account::Workspace, len)
}

impl Draft {
    /// What a draft allocates beside its executor.
    #[must_use]
    pub fn plan(vocab: usize, limits: &Limits) -> Plan {
        let mut plan = Plan::default();
        plan.add(&logits_spec(vocab, limits));
        plan
    }

    /// A draft that has read nothing; its executor has the engine's limits, but no window: all its
    /// layers have the same pages.
    ///
    /// # Errors
    /// When memory is not to be had.
    pub fn new(executor: Box<dyn Executor>, limits: &Limits) -> Result<Self, Error> {
        Ok(Self {
            logits: Buffer::new(&logits_spec(executor.vocab_size(), limits))?,
            executor,
            read: HashMap::new(),
            written: vec![None; limits.pages],
            step_tokens: limits.step_tokens,
        })
    }

    /// The sequence has ended or gets other pages.
    pub fn forget(&mut self, id: SequenceId) {
        self.read.remove(&id);
        self.executor.forget(id);
    }

    /// Guesses. A sequence that the draft has not yet read so far gets none: it reads as much as a
    /// step may hold, and guesses later.
    ///
    /// # Errors
    /// When the model fails.
    pub fn guess(
        &mut self,
        scheduler: &mut Scheduler,
        wanted: &mut [Wanted],
        vocab: usize,
        choose: &mut Choose<'_>,
    ) -> Result<(), Error> {
        let mut room = self.step_tokens;
        let mut ready: Vec<usize> = Vec::new();
        let mut pieces: Vec<(SequenceId, usize, usize)> = Vec::new();
        for (i, one) in wanted.iter_mut().enumerate() {
            let known = scheduler.sequence(one.id).map_or(0, <[u32]>::len);
            let seen = self.executor.context_limit().unwrap_or(usize::MAX);
            // The last guess need not be read.
            let held = scheduler.reserve(one.id, known + one.most - 1).min(seen);
            if known == 0 || held < known {
                continue;
            }
            one.most = one.most.min(held + 1 - known);
            let from = self.begin(scheduler, one.id);
            let until = known.min(from + room);
            room -= until - from;
            if until > from {
                pieces.push((one.id, from, until));
            }
            if until == known {
                ready.push(i);
            }
        }
        self.run(scheduler, wanted, &pieces)?;
        loop {
            ready = self.choose(scheduler, wanted, &ready, vocab, choose);
            if ready.is_empty() {
                return Ok(());
            }
            let piece = |&i: &usize| {
                let tokens = scheduler.sequence(wanted[i].id)?;
                let end = tokens.len() + wanted[i].drafts.len();
                Some((wanted[i].id, end - 1, end))
            };
            let pieces: Vec<_> = ready.iter().filter_map(piece).collect();
            self.run(scheduler, wanted, &pieces)?;
        }
    }

    /// Tokens of a sequence whose keys and values are there; the last is always read again, for its
    /// logits.
    fn begin(&mut self, scheduler: &Scheduler, id: SequenceId) -> usize {
        let Some(tokens) = scheduler.sequence(id) else { return 0 };
        let Some((pages, _)) = scheduler.pages(id) else { return 0 };
        let pool = scheduler.pool();
        let known = match self.read.get(&id) {
            Some(read) => read.iter().zip(tokens).take_while(|(a, b)| a == b).count(),
            None => {
                let same = |&&page: &&u32| {
                    let key = pool.key(page);
                    key.is_some() && self.written[page as usize] == key
                };
                pages.iter().take_while(same).count() * pool.page_tokens()
            }
        };
        let known = known.min(tokens.len() - 1);
        self.read.insert(id, tokens[..known].to_vec());
        known
    }

    /// Reads tokens (sequence, from, until), known or guessed. Of those read to their end the logits
    /// lie in order.
    fn run(
        &mut self,
        scheduler: &Scheduler,
        wanted: &[Wanted],
        pieces: &[(SequenceId, usize, usize)],
    ) -> Result<(), Error> {
        let texts: Vec<Vec<u32>> = pieces
            .iter()
            .map(|&(id, _, until)| {
                let tokens = scheduler.sequence(id).unwrap_or_default();
                let drafts = wanted.iter().find(|one| one.id == id);
                let all = [tokens, drafts.map_or(&[][..], |one| &one.drafts)].concat();
                all[..until].to_vec()
            })
            .collect();
        let mut all: Vec<Piece<'_>> = Vec::new();
        for (&(id, from, until), known) in pieces.iter().zip(&texts) {
            let Some(tokens) = scheduler.sequence(id) else { continue };
            let Some((pages, _)) = scheduler.pages(id) else { continue };
            let rows = if until >= tokens.len() { Rows::From(until - 1) } else { Rows::None };
            all.push(Piece { id, known, from, pages, near: pages, rows });
        }
        if all.is_empty() {
            return Ok(());
        }
        let rows = all.iter().filter(|piece| piece.rows != Rows::None).count();
        let wanted = rows * self.executor.vocab_size();
        self.executor.run(&all, &mut self.logits[..wanted])?;
        let page_tokens = scheduler.pool().page_tokens();
        for (&(id, from, until), known) in pieces.iter().zip(&texts) {
            let Some(tokens) = scheduler.sequence(id) else { continue };
            let Some((pages, _)) = scheduler.pages(id) else { continue };
            for (i, &page) in pages.iter().enumerate().take(until.div_ceil(page_tokens)) {
                if i >= from / page_tokens {
                    let whole = (i + 1) * page_tokens <= until.min(tokens.len());
                    let key = scheduler.pool().key(page).filter(|_| whole);
                    self.written[page as usize] = key;
                }
            }
            let read = self.read.entry(id).or_default();
            read.truncate(from);
            read.extend(&known[from..]);
        }
        Ok(())
    }

    /// Takes a guess from each row; says which sequences go on.
    fn choose(
        &mut self,
        scheduler: &Scheduler,
        wanted: &mut [Wanted],
        ready: &[usize],
        vocab: usize,
        choose: &mut Choose<'_>,
    ) -> Vec<usize> {
        let own = self.executor.vocab_size();
        let mut row = vec![f32::NEG_INFINITY; vocab];
        let mut go_on = Vec::new();
        for (&i, logits) in ready.iter().zip(self.logits.chunks_exact(own)) {
            let one = &mut wanted[i];
            // Models of a family may have more rows than tokens, and not equally many.
            let shared = own.min(vocab);
            row[..shared].copy_from_slice(&logits[..shared]);
            let Some((token, ends)) = choose(one.id, &one.drafts, &row) else { continue };
            one.drafts.push(token);
            let has_pages = scheduler.sequence(one.id).is_some();
            if has_pages && !ends && one.drafts.len() < one.most {
                go_on.push(i);
            }
        }
        go_on
    }
}
