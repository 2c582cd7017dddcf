//! From requests to tokens: scheduler, executor and the rules of each request, a step at a time.

use super::draft::Draft;
use super::executor::{Executor, Piece, Rows};
use super::pool::PageKey;
use super::scheduler::{Limits, Scheduler, SequenceId, Step, Work};
use super::told::{Asked, Chosen, Constraint, Event, PromptToken, RequestId, StepReport};
use crate::progress::Progress;
use crate::score::scored;
use crate::{Error, Finish, Request};
use decoding::{Counter, Draw, Explanation, History, Mask, Row, Rules, Scratch};
use ledger::{Account, Buffer, Plan, Spec};
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tokenizer::Tokenizer;

pub(super) struct Live {
    pub(super) request: RequestId,
    index: usize,
    pub(super) progress: Progress,
    prompt: Vec<PromptToken>,
    started: bool,
    constraint: Option<Box<dyn Constraint>>,
    /// Sums over the tokens so far, where a mean is wanted.
    pool: Option<Pool>,
    /// Tokens to guess next time: more while guesses hold.
    pub(super) ahead: usize,
}

/// A mean to be.
struct Pool {
    /// C sums, added up in the order of the tokens.
    sums: Vec<f64>,
    tokens: usize,
}

/// Answers many requests at a time.
pub struct Engine {
    pub(super) executor: Box<dyn Executor>,
    pub(super) scheduler: Scheduler,
    tokenizer: Tokenizer,
    pub(super) limit: usize,
    pub(super) requests: HashMap<RequestId, (Asked, Vec<SequenceId>)>,
    pub(super) live: HashMap<SequenceId, Live>,
    next_sequence: SequenceId,
    /// Rows×V.
    logits: Buffer<f32>,
    pub(super) scratch: Scratch,
    events: VecDeque<(RequestId, Event)>,
    /// A model that guesses; without it guesses are looked up in the text.
    pub(super) draft: Option<Draft>,
    /// Sequences that grew in this step.
    pub(super) grown: Vec<SequenceId>,
}

fn logits_spec(vocab: usize, limits: &Limits) -> Spec {
    Spec::new("logits of a step", Account::Workspace, limits.rows().saturating_mul(vocab))
}

impl Engine {
    /// What an engine allocates beside its executor.
    #[must_use]
    pub fn plan(vocab: usize, limits: &Limits) -> Plan {
        let mut plan = Plan::default();
        plan.add(&logits_spec(vocab, limits));
        plan
    }

    /// An engine without requests.
    ///
    /// # Errors
    /// When memory is not to be had.
    pub fn new(
        executor: Box<dyn Executor>,
        limits: Limits,
        tokenizer: &Tokenizer,
    ) -> Result<Self, Error> {
        let limit = executor.context_limit().unwrap_or(usize::MAX).min(limits.capacity());
        Ok(Self {
            logits: Buffer::new(&logits_spec(executor.vocab_size(), &limits))?,
            executor,
            scheduler: Scheduler::new(limits),
            tokenizer: tokenizer.clone(),
            limit,
            requests: HashMap::new(),
            live: HashMap::new(),
            next_sequence: 0,
            scratch: Scratch::new(),
            events: VecDeque::new(),
            draft: None,
            grown: Vec::new(),
        })
    }

    /// The same with a model that guesses ahead. It changes no answer.
    #[must_use]
    pub fn with_draft(self, draft: Draft) -> Self {
        Self { draft: Some(draft), ..self }
    }

    /// Tokens that a sequence can have read: what the model sees, or the pool holds.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The bookkeeping.
    #[must_use]
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Forgets kept pages.
    pub fn clear_cache(&mut self) {
        self.scheduler.clear_kept();
    }

    /// Sends the youngest running sequence back to wait: what a full pool does, for tests.
    pub fn preempt_youngest(&mut self) {
        if let Some(id) = self.scheduler.preempt_youngest() {
            self.sent_back(id);
        }
    }

    /// Whether anything is left to do.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.live.is_empty() && self.events.is_empty()
    }

    /// Refuses what can never be answered.
    ///
    /// # Errors
    /// With the numbers.
    pub fn check(
        request: &Request,
        vocabulary: usize,
        context: Option<usize>,
        limits: &Limits,
    ) -> Result<(), Error> {
        let found = request.prompt.len();
        match context {
            Some(limit) if found > limit => return Err(Error::PromptTooLong { found, limit }),
            _ if found == 0 => return Err(Error::NothingToBeginFrom),
            _ if request.sequences == 0 => return Err(Error::NoSequences),
            _ => {}
        }
        if let Some(&id) = request.prompt.iter().find(|&&id| id as usize >= vocabulary) {
            return Err(Error::UnknownToken { id, vocabulary });
        }
        Ok(Scheduler::fits(limits, found)?)
    }

    /// Takes a request; ids rise with time.
    ///
    /// # Errors
    /// What can never be answered.
    pub fn submit(&mut self, id: RequestId, mut asked: Asked) -> Result<(), Error> {
        let request = &asked.request;
        let context = self.executor.context_limit();
        Self::check(request, self.executor.vocab_size(), context, self.scheduler.limits())?;
        let mut all = Vec::with_capacity(request.sequences);
        for i in 0..request.sequences {
            let at = request.first_sequence.wrapping_add(i as u64);
            all.push(Progress::new(at, &self.tokenizer, &request.stops)?);
        }
        let score = asked.score_prompt.map_or(0, |_| request.prompt.len());
        // Every token of a mean must run: its pages are its own.
        let root = match asked.pool {
            true => PageKey::root(&asked.salt).then(&[u32::MAX, id as u32, (id >> 32) as u32]),
            false => PageKey::root(&asked.salt),
        };
        let width = self.executor.width();
        if asked.pool && width == 0 {
            return Err(Error::NothingToPool);
        }
        let mut constraints = std::mem::take(&mut asked.constraints).into_iter();
        let mut sequences = Vec::new();
        for (index, mut progress) in all.into_iter().enumerate() {
            // Only the first sequence scores the prompt, which is the same for all.
            let score = if index == 0 { score } else { 0 };
            if score == 0 {
                progress.end_at_limits(request, None);
            }
            if let Some(finish) = progress.finish() {
                self.events.push_back((id, Event::Ended { index, finish }));
                continue;
            }
            let sequence = self.next_sequence;
            self.next_sequence += 1;
            self.scheduler.add(sequence, request.prompt.clone(), root, score)?;
            let constraint = constraints.next();
            let prompt = Vec::new();
            let pool = asked.pool.then(|| Pool { sums: vec![0.0; width], tokens: 0 });
            let started = false;
            let ahead = self.scheduler.limits().drafts.min(4);
            let live =
                Live { request: id, index, progress, prompt, started, constraint, pool, ahead };
            self.live.insert(sequence, live);
            sequences.push(sequence);
        }
        if !sequences.is_empty() {
            self.requests.insert(id, (asked, sequences));
        }
        Ok(())
    }

    /// Drops a request; its pages are free at once.
    pub fn cancel(&mut self, id: RequestId) {
        if let Some((_, sequences)) = self.requests.remove(&id) {
            for sequence in sequences {
                self.live.remove(&sequence);
                self.scheduler.remove(sequence);
                self.forget(sequence);
            }
        }
    }

    fn forget(&mut self, id: SequenceId) {
        self.executor.forget(id);
        self.draft.iter_mut().for_each(|draft| draft.forget(id));
    }

    /// Runs one step and tells what came of it.
    pub fn step(&mut self) -> (StepReport, Vec<(RequestId, Event)>) {
        let step = self.scheduler.next_step();
        step.preempted.iter().for_each(|&id| self.sent_back(id));
        for &(id, cached) in &step.admitted {
            self.admitted(id, cached);
        }
        let report = self.report(&step);
        if !step.work.is_empty() {
            match self.execute(&step.work) {
                Ok(()) => {
                    self.scheduler.done(&step);
                    self.pool(&step);
                    self.choose(&step);
                }
                Err(error) => self.isolate(&step, error),
            }
        }
        (report, self.events.drain(..).collect())
    }

    fn sent_back(&mut self, id: SequenceId) {
        self.forget(id);
        if let Some(live) = self.live.get(&id) {
            self.events.push_back((live.request, Event::Preempted));
        }
    }

    fn admitted(&mut self, id: SequenceId, cached: usize) {
        if let Some(live) = self.live.get_mut(&id)
            && !std::mem::replace(&mut live.started, true)
            && live.index == 0
        {
            self.events.push_back((live.request, Event::Started { cached }));
        }
    }

    fn report(&self, step: &Step) -> StepReport {
        let (waiting, running) = self.scheduler.counts();
        let pool = self.scheduler.pool();
        let mut report = StepReport {
            waiting,
            running,
            waiting_tokens: self.scheduler.waiting_tokens(),
            pages: pool.num_pages(),
            pages_held: pool.num_pages() - pool.num_free(),
            pages_kept: pool.num_kept(),
            evictions: pool.num_evictions(),
            totals: self.scheduler.totals(),
            ..StepReport::default()
        };
        for work in &step.work {
            let Some(live) = self.live.get(&work.id) else { continue };
            report.work.push((live.request, work.tokens));
            // A sequence that has chosen before and lacks one token decodes.
            if work.tokens == 1 + work.drafts && work.last && !live.progress.ids().is_empty() {
                report.decode_rows += work.tokens;
            } else {
                report.prefill_rows += work.tokens;
            }
        }
        report
    }

    /// Runs the model; a panic in it is an error.
    fn execute(&mut self, work: &[Work]) -> Result<(), Error> {
        let scheduler = &self.scheduler;
        // Guesses stand behind the tokens that are known.
        let guessed: Vec<Option<Vec<u32>>> = work
            .iter()
            .map(|work| {
                let tokens = scheduler.sequence(work.id).filter(|_| work.drafts > 0)?;
                Some([tokens, &scheduler.drafts(work.id)[..work.drafts]].concat())
            })
            .collect();
        let pairs = work.iter().zip(&guessed);
        let pieces: Vec<Piece<'_>> = pairs
            .filter_map(|(work, guessed)| piece(scheduler, work, guessed.as_deref()))
            .collect();
        let wanted = work.iter().map(Work::rows).sum::<usize>() * self.executor.vocab_size();
        let (executor, logits) = (&mut self.executor, &mut self.logits[..wanted]);
        guarded(|| executor.run(&pieces, logits))
    }

    /// A step failed: whoever fails alone ends with the error, the others read their tokens again.
    fn isolate(&mut self, step: &Step, error: Error) {
        let mut error = Some(error);
        let mut faulty = Vec::new();
        if step.work.len() > 1 {
            for work in &step.work {
                if let Err(own) = self.execute(std::slice::from_ref(work)) {
                    faulty.push((work.id, own));
                }
            }
        } else {
            faulty.extend(step.work.first().map(|w| w.id).zip(error.take()));
        }
        self.scheduler.undo(step);
        step.work.iter().for_each(|work| self.forget(work.id));
        if faulty.is_empty() {
            // None is at fault alone: the step as a whole cannot be run.
            let what = error.map_or_else(String::new, |error| error.to_string());
            faulty.extend(step.work.iter().map(|w| (w.id, Error::Panicked { what: what.clone() })));
        }
        for (id, error) in faulty {
            self.fail(id, error);
        }
    }

    fn fail(&mut self, sequence: SequenceId, error: Error) {
        if let Some(live) = self.live.get(&sequence) {
            let request = live.request;
            self.events.push_back((request, Event::Failed(error)));
            self.cancel(request);
        }
    }

    /// Adds the rows of texts whose mean is wanted; those that are whole end with it.
    fn pool(&mut self, step: &Step) {
        let (width, mut row) = (self.executor.width(), 0);
        let mut whole = Vec::new();
        for work in &step.work {
            let rows = row..row + work.tokens;
            row = rows.end;
            let Some(live) = self.live.get_mut(&work.id) else { continue };
            let Some(pool) = &mut live.pool else { continue };
            let hidden = &self.executor.hidden()[rows.start * width..rows.end * width];
            // After a preemption tokens come again that are counted already.
            for row in hidden.chunks_exact(width).skip(pool.tokens.saturating_sub(work.from)) {
                pool.tokens += 1;
                pool.sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
            }
            if work.last {
                let count = pool.tokens.max(1) as f64;
                let mean = pool.sums.iter().map(|sum| (sum / count) as f32).collect();
                let (index, finish) = (live.index, Finish::Length);
                self.events.push_back((live.request, Event::Pooled(mean)));
                self.events.push_back((live.request, Event::Ended { index, finish }));
                whole.push((work.id, live.request));
            }
        }
        whole.into_iter().for_each(|(id, request)| self.end(id, request));
    }

    fn choose(&mut self, step: &Step) {
        let vocab = self.executor.vocab_size();
        let mut row = 0;
        for work in &step.work {
            let rows = row..row + work.rows();
            row = rows.end;
            let logits = rows.start * vocab..rows.end * vocab;
            if rows.is_empty() {
                continue;
            }
            if let Err(error) = self.advance(work, logits) {
                self.fail(work.id, error);
            }
        }
        self.guess();
    }

    /// What the logits of a sequence come to.
    fn advance(&mut self, work: &Work, logits: std::ops::Range<usize>) -> Result<(), Error> {
        let vocab = self.executor.vocab_size();
        let Some(live) = self.live.get_mut(&work.id) else { return Ok(()) };
        let request = live.request;
        let Some((asked, _)) = self.requests.get(&request) else { return Ok(()) };
        let (logits, scratch, limit) = (&self.logits[logits], &mut self.scratch, self.limit);
        let (mut events, mut chosen) = (Vec::new(), Vec::new());
        let drafts = &self.scheduler.drafts(work.id)[..work.drafts];
        guarded(|| {
            if work.every {
                live.score_prompt(asked, work.from, logits, vocab, scratch)?;
                if live.prompt.len() == asked.request.prompt.len() {
                    events.push(Event::Prompt(std::mem::take(&mut live.prompt)));
                }
            }
            if !work.last {
                return Ok(());
            }
            live.progress.end_at_limits(&asked.request, None);
            if let Some(finish) = live.progress.finish() {
                events.push(Event::Ended { index: live.index, finish });
            }
            // Each token is chosen as if there were no guess; a guess that holds has its logits.
            let rows = &logits[logits.len() - (1 + work.drafts) * vocab..];
            for row in rows.chunks_exact(vocab) {
                if live.progress.finish().is_some() {
                    break;
                }
                let told = live.advance(asked, limit, row, scratch)?;
                let token = told.choice.id;
                events.push(Event::Token(Box::new(told)));
                chosen.push(token);
                if drafts.get(chosen.len() - 1) != Some(&token) {
                    break;
                }
            }
            Ok(())
        })?;
        let held = chosen.iter().zip(drafts).filter(|(token, draft)| token == draft).count();
        let done = live.progress.finish().is_some();
        if events.iter().any(|event| matches!(event, Event::Prompt(_))) {
            self.scheduler.scored(work.id);
        }
        let events_told = events.len();
        self.events.extend(events.into_iter().map(|event| (request, event)));
        chosen.iter().for_each(|&token| self.scheduler.push(work.id, token));
        let accepted = held.min(chosen.len().saturating_sub(1));
        (0..accepted).for_each(|place| self.scheduler.accept(work.id, place));
        if work.drafts > 0 {
            // More while guesses hold, fewer when they do not.
            live.ahead = match held == work.drafts {
                true => live.ahead + 2,
                false => live.ahead.saturating_sub(1).max(1),
            };
            let told = Event::Guessed { drafted: work.drafts, accepted };
            // Before the tokens: the last of them may end the request.
            let at = self.events.len() - events_told;
            self.events.insert(at, (request, told));
        }
        if done && work.last {
            self.end(work.id, request);
        } else if !chosen.is_empty() {
            self.grown.push(work.id);
        }
        Ok(())
    }

    fn end(&mut self, id: SequenceId, request: RequestId) {
        self.live.remove(&id);
        self.scheduler.remove(id);
        self.forget(id);
        if let Some((_, sequences)) = self.requests.get_mut(&request) {
            sequences.retain(|&other| other != id);
            if sequences.is_empty() {
                self.requests.remove(&request);
            }
        }
    }
}

impl Live {
    /// Scores the prompt's tokens that follow those that ran.
    fn score_prompt(
        &mut self,
        asked: &Asked,
        from: usize,
        logits: &[f32],
        vocab: usize,
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        let prompt = &asked.request.prompt;
        if from == 0 {
            self.prompt = vec![PromptToken { scored: None, top: Vec::new() }];
        }
        for (place, row) in (from..).zip(logits.chunks_exact(vocab)) {
            let Some(&token) = prompt.get(place + 1) else { break };
            let top = asked.score_prompt.unwrap_or(0);
            self.prompt.push(PromptToken {
                scored: Some(scored(token, place as u64, row, scratch)?),
                top: best(row, place as u64, top, scratch)?,
            });
        }
        Ok(())
    }

    fn advance(
        &mut self,
        asked: &Asked,
        limit: usize,
        row: &[f32],
        scratch: &mut Scratch,
    ) -> Result<Chosen, Error> {
        let (request, step) = (&asked.request, self.progress.ids().len() as u64);
        let words = match &mut self.constraint {
            Some(constraint) => Some(constraint.mask().map_err(Error::Constraint)?),
            None => None,
        };
        let mask = words.map(Mask::new);
        let explanation = match asked.explain {
            true => Some(Box::new(self.progress.explain(request, row, mask)?)),
            false => None,
        };
        let (choice, text) =
            self.progress.advance_among(request, Some(limit), row, mask, scratch)?;
        if let Some(constraint) = &mut self.constraint
            && self.progress.finish() != Some(Finish::Eos)
        {
            constraint.accept(choice.id).map_err(Error::Constraint)?;
        }
        Ok(Chosen {
            index: self.index,
            choice,
            text,
            top: best(row, step, asked.top, scratch)?,
            explanation,
            finish: self.progress.finish(),
            stop: self.progress.stop(),
        })
    }
}

impl Progress {
    /// The next choice in full, as [`Progress::advance_among`] will make it.
    fn explain(
        &self,
        request: &Request,
        row: &[f32],
        mask: Option<Mask<'_>>,
    ) -> Result<Explanation, Error> {
        let history = History::new(&request.prompt, self.ids());
        let history = mask.map_or(history, |mask| history.with_mask(mask));
        let draw = Draw::Counter(Counter { seed: request.seed, stream: self.index() });
        let step = self.ids().len() as u64;
        decoding::explain(&request.rules, Row::Logits(row), &history, draw, step)
            .map_err(|source| Error::Decode { sequence: self.index(), source })
    }
}

/// What of a sequence runs; `guessed` is its text with the guesses, where there are any.
fn piece<'a>(
    scheduler: &'a Scheduler,
    work: &Work,
    guessed: Option<&'a [u32]>,
) -> Option<Piece<'a>> {
    let tokens = scheduler.sequence(work.id)?;
    let (pages, near) = scheduler.pages(work.id)?;
    let end = work.from + work.tokens;
    let rows = match (work.every, work.last) {
        (true, _) => Rows::Every,
        (false, true) => Rows::From(end - work.drafts - 1),
        (false, false) => Rows::None,
    };
    let known = &guessed.unwrap_or(tokens)[..end];
    Some(Piece { id: work.id, known, from: work.from, pages, near, rows })
}

/// The best tokens of the model's own distribution.
fn best(
    row: &[f32],
    step: u64,
    count: usize,
    scratch: &mut Scratch,
) -> Result<Vec<(u32, f64)>, Error> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let all = decoding::best(&Rules::default(), row, &History::default(), step, count, scratch)
        .map_err(|source| Error::Decode { sequence: 0, source })?;
    Ok(all.into_iter().map(|choice| (choice.id, choice.logprob)).collect())
}

/// Runs something; a panic in it is an error.
pub(super) fn guarded<T>(run: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let what = said.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(Error::Panicked { what: what.unwrap_or_else(|| "unknown".to_owned()) })
    })
}
