//! Which tokens of which sequences run next. Bookkeeping only: no tensor, no clock, no chance.
//!
//! There is no prefill phase and no decode phase, only sequences whose computed count must catch up
//! with their tokens. A step first takes those that lack a single token, then as much of longer ones
//! as its budget holds, then admits waiting ones, everywhere the oldest first. A sequence gets the
//! pages of all its tokens when it is admitted; when one that grows finds no page, the youngest is
//! sent back to wait and later reads its tokens again.

use super::pool::{PageId, PageKey, PagePool, PoolFault};
use models::{KvPages, near_from, near_reach};
use std::collections::{BTreeMap, HashMap};

/// Names a sequence. The lower, the older.
pub type SequenceId = u64;

/// Sizes of pool and steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Pages in the pool.
    pub pages: usize,
    /// Tokens that a page holds.
    pub page_tokens: usize,
    /// Tokens of a step, at most.
    pub step_tokens: usize,
    /// Sequences that run side by side, at most.
    pub sequences: usize,
    /// Whether pages are shared by content.
    pub shares: bool,
    /// Tokens guessed ahead of a sequence, at most; 0 guesses none.
    pub drafts: usize,
    /// Positions that layers with a window see, where a model has such. Their pages are others.
    pub window: Option<usize>,
}

impl Limits {
    /// Tokens that the pool holds.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.pages.saturating_mul(self.page_tokens)
    }

    /// Pages of all kinds. Those of layers with a window are as many as all sequences may need: their
    /// pool never runs dry. Where no window is named, such layers get as many as the others.
    #[must_use]
    pub fn kv_pages(&self) -> KvPages {
        let (pages, page_tokens) = (self.pages, self.page_tokens);
        let near = self.window.map_or(pages, |window| {
            let each = near_reach(window, 0, page_tokens) + 1;
            let step = self.step_tokens.div_ceil(page_tokens);
            self.sequences.saturating_mul(each).saturating_add(step).min(pages)
        });
        KvPages { pages, near, page_tokens }
    }

    /// Rows of logits of a step, at most.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.sequences.saturating_mul(1 + self.drafts).max(16)
    }
}

/// A sequence that the pool could not hold if it were alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{tokens} tokens take {needed} pages of {page_tokens} tokens; the whole cache has {pages} pages: \
     at most {largest} tokens fit"
)]
pub struct Misfit {
    /// Tokens of the sequence.
    pub tokens: usize,
    /// Pages that it needs.
    pub needed: usize,
    /// Tokens that a page holds.
    pub page_tokens: usize,
    /// Pages in the pool.
    pub pages: usize,
    /// Tokens that would fit.
    pub largest: usize,
}

/// Some tokens of one sequence that run in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    /// The sequence.
    pub id: SequenceId,
    /// Tokens that it has computed.
    pub from: usize,
    /// Tokens that run now.
    pub tokens: usize,
    /// Whether the logits after the last of them are wanted: it has then caught up.
    pub last: bool,
    /// Whether those after each of them are wanted.
    pub every: bool,
    /// Of the tokens, so many at the end are guessed; the logits from the one before them are wanted.
    pub drafts: usize,
}

impl Work {
    /// Rows of logits.
    #[must_use]
    pub fn rows(&self) -> usize {
        if self.every { self.tokens } else { usize::from(self.last) + self.drafts }
    }
}

/// What runs now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    /// By sequence; those that lack one token first.
    pub work: Vec<Work>,
    /// Sequences admitted with this step, and the tokens that they found in the cache.
    pub admitted: Vec<(SequenceId, usize)>,
    /// Sequences sent back to wait.
    pub preempted: Vec<SequenceId>,
    /// Pages whose content is known once the step has run.
    named: Vec<PageId>,
    /// The same of layers with a window.
    near_named: Vec<PageId>,
}

/// Where a sequence stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Waits to be admitted.
    Waiting,
    /// Has pages.
    Running,
}

#[derive(Debug, Clone)]
struct Entry {
    tokens: Vec<u32>,
    /// Tokens whose K/V are in pages.
    computed: usize,
    pages: Vec<PageId>,
    near: Near,
    /// Root of the keys, then the key of each full page, as far as known.
    chain: Vec<PageKey>,
    /// Tokens from the first whose following logits are all wanted.
    score: usize,
    /// Pages from the first whose content has been named.
    named: usize,
    /// Tokens guessed to follow.
    drafts: Vec<u32>,
}

/// A sequence's pages of layers with a window.
#[derive(Debug, Clone, Default)]
struct Near {
    /// By place, as the other pages; those behind the window are given back.
    pages: Vec<PageId>,
    /// The first that is still held.
    from: usize,
}

impl Near {
    fn held(&self) -> &[PageId] {
        &self.pages[self.from.min(self.pages.len())..]
    }
}

impl Entry {
    /// Key of page i, which must be full.
    fn key(&mut self, i: usize, page_tokens: usize) -> PageKey {
        while self.chain.len() < i + 2 {
            let from = (self.chain.len() - 1) * page_tokens;
            let next =
                self.chain[self.chain.len() - 1].then(&self.tokens[from..from + page_tokens]);
            self.chain.push(next);
        }
        self.chain[i + 1]
    }
}

/// Totals since the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Sequences sent back to wait.
    pub preemptions: u64,
    /// Tokens looked for in the cache.
    pub queried: u64,
    /// Tokens found there.
    pub hit: u64,
    /// Times that tokens were guessed.
    pub drafts: u64,
    /// Tokens guessed that ran.
    pub drafted: u64,
    /// Of those, the ones that came.
    pub accepted: u64,
    /// Those by their place in a guess, from 0.
    pub accepted_at: [u64; MOST_DRAFTS],
}

/// Tokens guessed ahead of a sequence, at most.
pub const MOST_DRAFTS: usize = 32;

/// Sequences, waiting and running, and their pages.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    pool: PagePool,
    /// Of layers with a window.
    near: Option<PagePool>,
    waiting: BTreeMap<SequenceId, Entry>,
    running: BTreeMap<SequenceId, Entry>,
    totals: Totals,
}

/// What a step may still take.
struct Budget {
    tokens: usize,
    rows: usize,
}

impl Scheduler {
    /// No sequences yet.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            pool: PagePool::new(limits.pages, limits.page_tokens),
            near: limits.window.map(|_| PagePool::new(limits.kv_pages().near, limits.page_tokens)),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            totals: Totals::default(),
        }
    }

    /// Sizes of pool and steps.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &PagePool {
        &self.pool
    }

    /// Totals since the beginning.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Sequences that wait, and those that run.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.waiting.len(), self.running.len())
    }

    /// Tokens that must still be computed for those that wait.
    #[must_use]
    pub fn waiting_tokens(&self) -> usize {
        self.waiting.values().map(|entry| entry.tokens.len()).sum()
    }

    /// Where a sequence stands.
    #[must_use]
    pub fn state(&self, id: SequenceId) -> Option<State> {
        let waits = self.waiting.contains_key(&id).then_some(State::Waiting);
        waits.or_else(|| self.running.contains_key(&id).then_some(State::Running))
    }

    /// Tokens of a running sequence.
    #[must_use]
    pub fn sequence(&self, id: SequenceId) -> Option<&[u32]> {
        self.running.get(&id).map(|entry| &entry.tokens[..])
    }

    /// Pages of a running sequence, and those of layers with a window.
    #[must_use]
    pub fn pages(&self, id: SequenceId) -> Option<(&[PageId], &[PageId])> {
        self.running.get(&id).map(|entry| (&entry.pages[..], &entry.near.pages[..]))
    }

    /// The pool of layers with a window, where a model has such.
    #[must_use]
    pub fn near_pool(&self) -> Option<&PagePool> {
        self.near.as_ref()
    }

    /// Whether so many tokens fit into the pool when nothing else is there.
    ///
    /// # Errors
    /// [`Misfit`], with the numbers.
    pub fn fits(limits: &Limits, tokens: usize) -> Result<(), Misfit> {
        let page_tokens = limits.page_tokens;
        let (needed, pages) = (tokens.div_ceil(page_tokens), limits.pages);
        if needed <= pages {
            return Ok(());
        }
        Err(Misfit { tokens, needed, page_tokens, pages, largest: limits.capacity() })
    }

    /// Adds a sequence; ids rise with time. The logits that follow each of its first `score` tokens
    /// are wanted; these are always computed. Pages are shared with sequences of the same root.
    ///
    /// # Errors
    /// [`Misfit`] for what could never run.
    pub fn add(
        &mut self,
        id: SequenceId,
        tokens: Vec<u32>,
        root: PageKey,
        score: usize,
    ) -> Result<(), Misfit> {
        Self::fits(&self.limits, tokens.len())?;
        let entry = Entry {
            tokens,
            computed: 0,
            pages: Vec::new(),
            near: Near::default(),
            chain: vec![root],
            score,
            named: 0,
            drafts: Vec::new(),
        };
        self.waiting.insert(id, entry);
        Ok(())
    }

    /// Appends a chosen token to a running sequence that has caught up.
    pub fn push(&mut self, id: SequenceId, token: u32) {
        if let Some(entry) = self.running.get_mut(&id) {
            entry.tokens.push(token);
        }
    }

    /// Guesses what follows a running sequence; it runs with the next token if there is room.
    pub fn guess(&mut self, id: SequenceId, drafts: Vec<u32>) {
        if let Some(entry) = self.running.get_mut(&id) {
            entry.drafts = drafts;
            entry.drafts.truncate(self.limits.drafts.min(MOST_DRAFTS));
        }
    }

    /// The guessed token at a place is the one that was chosen and pushed: what ran with it counts.
    pub fn accept(&mut self, id: SequenceId, place: usize) {
        if let Some(entry) = self.running.get_mut(&id) {
            entry.computed += 1;
            self.totals.accepted += 1;
            self.totals.accepted_at.iter_mut().skip(place).take(1).for_each(|count| *count += 1);
        }
    }

    /// Gets a running sequence blank pages for `tokens` tokens, at nobody's cost; says how many its
    /// pages hold.
    pub fn reserve(&mut self, id: SequenceId, tokens: usize) -> usize {
        let needed = self.pool.pages_for(tokens);
        let Some(entry) = self.running.get_mut(&id) else { return 0 };
        while entry.pages.len() < needed && self.pool.num_free() > self.pool.num_kept() {
            let Some(page) = self.pool.take() else { break };
            entry.pages.push(page);
        }
        entry.pages.len() * self.limits.page_tokens
    }

    /// The tokens guessed to follow a running sequence.
    #[must_use]
    pub fn drafts(&self, id: SequenceId) -> &[u32] {
        self.running.get(&id).map_or(&[], |entry| &entry.drafts)
    }

    /// Removes a sequence wherever it stands; its pages are free at once.
    pub fn remove(&mut self, id: SequenceId) {
        self.waiting.remove(&id);
        if let Some(mut entry) = self.running.remove(&id) {
            self.release(&mut entry);
        }
    }

    fn release(&mut self, entry: &mut Entry) {
        // The end of a text goes first: its beginning serves more others.
        std::mem::take(&mut entry.pages).iter().rev().for_each(|&page| self.pool.release(page));
        let near = std::mem::take(&mut entry.near);
        if let Some(pool) = &mut self.near {
            near.held().iter().rev().for_each(|&page| pool.release(page));
        }
    }

    /// Gives back what lies behind the window.
    fn release_behind(&mut self, id: SequenceId) {
        let (Some(pool), Some(window)) = (&mut self.near, self.limits.window) else { return };
        let Some(entry) = self.running.get_mut(&id) else { return };
        let seen = near_from(window, entry.computed) / self.limits.page_tokens;
        let near = &mut entry.near;
        while near.from < seen.min(near.pages.len()) {
            pool.release(near.pages[near.from]);
            near.from += 1;
        }
    }

    /// Chooses the next step. [`Scheduler::done`] or [`Scheduler::undo`] must follow.
    pub fn next_step(&mut self) -> Step {
        let mut step = Step::default();
        let mut budget = Budget { tokens: self.limits.step_tokens, rows: self.limits.rows() };
        let behind = |one: bool| -> Vec<SequenceId> {
            let lacks_one = |entry: &Entry| entry.tokens.len() - entry.computed <= 1;
            let of_kind = self.running.iter().filter(|(_, entry)| lacks_one(entry) == one);
            of_kind.map(|(&id, _)| id).collect()
        };
        let order = [behind(true), behind(false)].concat();
        order.into_iter().for_each(|id| self.run(id, &mut budget, &mut step));
        if step.preempted.is_empty() {
            while self.admit(&mut budget, &mut step) {}
        }
        step
    }

    /// Adds what a running sequence lacks to the step, as far as the budget goes.
    fn run(&mut self, id: SequenceId, budget: &mut Budget, step: &mut Step) {
        let Some(entry) = self.running.get(&id) else { return };
        let (from, known) = (entry.computed, entry.tokens.len());
        let every = from < entry.score;
        let end = if every { entry.score } else { known };
        let mut tokens = (end - from).min(budget.tokens);
        if every {
            tokens = tokens.min(budget.rows);
        }
        let last = from + tokens == known;
        let mut work = Work { id, from, tokens, last, every, drafts: 0 };
        if tokens == 0 || work.rows() > budget.rows || !self.grow(id, from + tokens, step) {
            return;
        }
        self.name_pages(id, from + tokens, step);
        work.drafts = self.room_to_guess(&work, budget);
        work.tokens += work.drafts;
        budget.tokens -= work.tokens;
        budget.rows -= work.rows();
        step.work.push(work);
    }

    /// How many of a sequence's guesses run: as many as budget and free pages hold, at nobody's
    /// cost.
    fn room_to_guess(&mut self, work: &Work, budget: &Budget) -> usize {
        let Some(entry) = self.running.get_mut(&work.id) else { return 0 };
        let verified = work.from + work.tokens;
        let mut drafts = entry.drafts.len();
        drafts = drafts.min(budget.tokens - work.tokens);
        drafts = drafts.min(budget.rows.saturating_sub(work.rows()));
        if !work.last || work.every {
            drafts = 0;
        }
        // Kept pages are worth more than guesses.
        let blank = self.pool.num_free() - self.pool.num_kept();
        let pages = entry.pages.len() + blank;
        drafts = drafts.min((pages * self.limits.page_tokens).saturating_sub(verified));
        let needed = self.pool.pages_for(verified + drafts);
        while entry.pages.len() < needed {
            let Some(page) = self.pool.take() else { break };
            entry.pages.push(page);
        }
        if let Some(pool) = &mut self.near {
            while entry.near.pages.len() < needed {
                let Some(page) = pool.take() else { break };
                entry.near.pages.push(page);
            }
            let room = entry.near.pages.len() * self.limits.page_tokens;
            drafts = drafts.min(room.saturating_sub(verified));
        }
        entry.drafts.truncate(drafts);
        self.totals.drafts += u64::from(drafts > 0);
        self.totals.drafted += drafts as u64;
        drafts
    }

    /// Gets the pages for `tokens` tokens, at the cost of the youngest that is not in the step.
    fn grow(&mut self, id: SequenceId, tokens: usize, step: &mut Step) -> bool {
        let needed = self.pool.pages_for(tokens);
        while let Some(entry) = self.running.get_mut(&id) {
            let lacks_near = self.near.is_some() && entry.near.pages.len() < needed;
            let (pool, pages) = match &mut self.near {
                _ if entry.pages.len() < needed => (&mut self.pool, &mut entry.pages),
                Some(near) if lacks_near => (near, &mut entry.near.pages),
                _ => return true,
            };
            if let Some(page) = pool.take() {
                pages.push(page);
                continue;
            }
            let runs = |other: &SequenceId| step.work.iter().any(|work| work.id == *other);
            let youngest = self.running.keys().rev().copied().find(|other| !runs(other));
            self.preempt(youngest.unwrap_or(id), step);
        }
        false
    }

    fn preempt(&mut self, id: SequenceId, step: &mut Step) {
        if let Some(mut entry) = self.running.remove(&id) {
            self.release(&mut entry);
            (entry.computed, entry.named) = (0, 0);
            entry.drafts.clear();
            self.waiting.insert(id, entry);
            self.totals.preemptions += 1;
            step.preempted.push(id);
        }
    }

    /// Says what the pages contain that are full when `computed` tokens are. Others of this very
    /// step may share them: a step writes all K/V of a layer before any are read.
    fn name_pages(&mut self, id: SequenceId, computed: usize, step: &mut Step) {
        let page_tokens = self.limits.page_tokens;
        let Some(entry) = self.running.get_mut(&id).filter(|_| self.limits.shares) else { return };
        for i in std::mem::replace(&mut entry.named, computed / page_tokens)..computed / page_tokens
        {
            let key = entry.key(i, page_tokens);
            if self.pool.find(&key).is_none() {
                self.pool.name(entry.pages[i], key);
                step.named.push(entry.pages[i]);
            }
            if let Some(pool) = self.near.as_mut().filter(|pool| pool.find(&key).is_none()) {
                pool.name(entry.near.pages[i], key);
                step.near_named.push(entry.near.pages[i]);
            }
        }
    }

    /// Admits the oldest that waits, if its pages are to be had and the budget allows a token.
    fn admit(&mut self, budget: &mut Budget, step: &mut Step) -> bool {
        if budget.tokens == 0 || budget.rows == 0 || self.running.len() >= self.limits.sequences {
            return false;
        }
        let Some((&id, _)) = self.waiting.first_key_value() else { return false };
        let shared = self.shared_pages(id);
        let Some(entry) = self.waiting.get(&id) else { return false };
        let known = entry.tokens.len();
        let needed = self.pool.pages_for(known) - shared.len();
        let woken = shared.iter().filter(|&&page| self.pool.is_free(page)).count();
        // A page for each that runs, so that whoever comes does not at once send another away.
        if needed + woken + self.running.len() > self.pool.num_free() {
            return false;
        }
        let Some(mut entry) = self.waiting.remove(&id) else { return false };
        shared.iter().for_each(|&page| self.pool.hold(page));
        entry.near = self.shared_near(&mut entry, shared.len());
        (entry.computed, entry.named) = (shared.len() * self.limits.page_tokens, shared.len());
        entry.pages = shared;
        entry.pages.extend((0..needed).map_while(|_| self.pool.take()));
        if self.limits.shares {
            self.totals.queried += known as u64;
            self.totals.hit += entry.computed as u64;
        }
        step.admitted.push((id, entry.computed));
        self.running.insert(id, entry);
        self.run(id, budget, step);
        true
    }

    /// The known pages that a waiting sequence begins with. At least its last token is left to be
    /// computed: without it there are no logits.
    fn shared_pages(&mut self, id: SequenceId) -> Vec<PageId> {
        let page_tokens = self.limits.page_tokens;
        let Some(entry) = self.waiting.get_mut(&id) else { return Vec::new() };
        if !self.limits.shares || entry.score > 0 {
            return Vec::new();
        }
        let most = entry.tokens.len().saturating_sub(1) / page_tokens;
        let find = |i| self.pool.find(&entry.key(i, page_tokens));
        let mut found: Vec<PageId> = (0..most).map_while(find).collect();
        if let (Some(pool), Some(window)) = (&self.near, self.limits.window) {
            // Layers with a window must have what the next token sees.
            let has = |i| pool.find(&entry.key(i, page_tokens)).is_some();
            let near: Vec<bool> = (0..found.len()).map(has).collect();
            let seen = |n: usize| near_from(window, n * page_tokens) / page_tokens;
            let enough = |n: &usize| near[seen(*n).min(*n)..*n].iter().all(|&has| has);
            found.truncate((0..=found.len()).rev().find(enough).unwrap_or(0));
        }
        found
    }

    /// Takes hold of the pages of layers with a window that the token after `shared` pages sees.
    fn shared_near(&mut self, entry: &mut Entry, shared: usize) -> Near {
        let (Some(pool), Some(window)) = (&mut self.near, self.limits.window) else {
            return Near::default();
        };
        let page_tokens = self.limits.page_tokens;
        let from = (near_from(window, shared * page_tokens) / page_tokens).min(shared);
        let mut pages = vec![0; from];
        for i in from..shared {
            let Some(page) = pool.find(&entry.key(i, page_tokens)) else { break };
            pool.hold(page);
            pages.push(page);
        }
        Near { pages, from }
    }

    /// The step has run; guesses count when they are accepted.
    pub fn done(&mut self, step: &Step) {
        for work in &step.work {
            if let Some(entry) = self.running.get_mut(&work.id) {
                entry.computed = work.from + work.tokens - work.drafts;
            }
            self.release_behind(work.id);
        }
    }

    /// The step has failed: what it wrote is forgotten, and its sequences go back to wait.
    pub fn undo(&mut self, step: &Step) {
        step.named.iter().for_each(|&page| self.pool.forget(page));
        if let Some(pool) = &mut self.near {
            step.near_named.iter().for_each(|&page| pool.forget(page));
        }
        let mut sent_back = Step::default();
        step.work.iter().for_each(|work| self.preempt(work.id, &mut sent_back));
    }

    /// Sends the youngest running sequence back to wait, as an empty pool would.
    pub fn preempt_youngest(&mut self) -> Option<SequenceId> {
        let (&id, _) = self.running.last_key_value()?;
        self.preempt(id, &mut Step::default());
        Some(id)
    }

    /// The text of a scored sequence is scored: from now on it is as any other.
    pub fn scored(&mut self, id: SequenceId) {
        if let Some(entry) = self.running.get_mut(&id) {
            entry.score = 0;
        }
    }

    /// Holds the pool's books against the tables.
    ///
    /// # Errors
    /// The first [`PoolFault`].
    pub fn check(&self) -> Result<(), PoolFault> {
        self.pool.check(self.running.values().map(|entry| &entry.pages[..]))?;
        let tables = || self.running.values().map(|entry| entry.near.held());
        self.near.as_ref().map_or(Ok(()), |pool| pool.check(tables()))
    }

    /// Forgets kept pages, so that the next requests find nothing.
    pub fn clear_kept(&mut self) {
        self.pool.clear_kept();
        self.near.iter_mut().for_each(PagePool::clear_kept);
    }

    /// Tokens that those running have computed, by sequence.
    #[must_use]
    pub fn computed(&self) -> HashMap<SequenceId, usize> {
        self.running.iter().map(|(&id, entry)| (id, entry.computed)).collect()
    }
}
