//! The loop: read the prompt once, then choose → append → one decode step for all that go on.

use crate::progress::Progress;
use crate::{Error, Finish, Room, Sequence, Source};
use decoding::{Choice, Rules, Scratch};
use ledger::{Account, Buffer, Plan, Spec};
use std::ops::ControlFlow;
use tokenizer::Tokenizer;

/// What is asked for. It never changes.
#[derive(Debug, Clone)]
pub struct Request {
    /// The tokens to begin with, at least one.
    pub prompt: Vec<u32>,
    /// From logits to a token.
    pub rules: Rules,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Index of the first sequence: sequence i draws from stream `first_sequence` + i.
    pub first_sequence: u64,
    /// Sequences that share the prompt.
    pub sequences: usize,
    /// New tokens a sequence, at most.
    pub max_tokens: usize,
    /// Tokens that end a sequence. Only generated ones do; the prompt may hold them.
    pub end: Vec<u32>,
    /// Texts that end a sequence and are not shown.
    pub stops: Vec<String>,
}

/// One token was chosen.
#[derive(Debug)]
pub struct Event<'a> {
    /// The sequence's index.
    pub sequence: u64,
    /// The step, from 0.
    pub step: u64,
    /// The row that it was chosen from (V).
    pub logits: &'a [f32],
    /// The tokens generated before it.
    pub before: &'a [u32],
    /// The choice.
    pub choice: Choice,
    /// Text that may be shown now. All of a sequence's pieces together are its text.
    pub text: &'a str,
    /// Why the sequence ended, if it did.
    pub finish: Option<Finish>,
}

/// Generates from a source.
pub struct Generator<'a, S> {
    pub(crate) source: S,
    pub(crate) tokenizer: &'a Tokenizer,
}

impl<'a, S: Source> Generator<'a, S> {
    /// A generator; `tokenizer` is the one that the model was trained with.
    pub fn new(source: S, tokenizer: &'a Tokenizer) -> Self {
        Self { source, tokenizer }
    }

    /// What answering a request will allocate, beside the model.
    ///
    /// # Errors
    /// When the configuration makes no model.
    pub fn plan(&self, request: &Request) -> Result<Plan, Error> {
        let mut plan = self.source.plan(request.prompt.len(), room(request))?;
        plan.add(&self.logits(request));
        Ok(plan)
    }

    /// The model that it generates from.
    pub fn source(&mut self) -> &mut S {
        &mut self.source
    }

    /// Answers a request, and tells `observe` of every token as it comes.
    ///
    /// # Errors
    /// [`Error`]; the one for logits that are no numbers names sequence and step.
    pub fn run(
        &mut self,
        request: &Request,
        observe: &mut dyn FnMut(&Event<'_>),
    ) -> Result<Vec<Sequence>, Error> {
        self.run_while(request, &mut |event| {
            observe(event);
            ControlFlow::Continue(())
        })
    }

    /// As [`Generator::run`], until `observe` breaks off: sequences under way then end as
    /// [`Finish::Cancelled`] with what they have.
    ///
    /// # Errors
    /// As [`Generator::run`].
    pub fn run_while(
        &mut self,
        request: &Request,
        observe: &mut dyn FnMut(&Event<'_>) -> ControlFlow<()>,
    ) -> Result<Vec<Sequence>, Error> {
        let limit = self.source.context_limit();
        self.check(request, limit)?;
        let index = |i: usize| request.first_sequence.wrapping_add(i as u64);
        let make = |i| Progress::new(index(i), self.tokenizer, &request.stops);
        let mut all = (0..request.sequences).map(make).collect::<Result<Vec<_>, _>>()?;
        all.iter_mut().for_each(|sequence| sequence.end_at_limits(request, None));
        let mut live: Vec<&mut Progress> = all.iter_mut().filter(|s| s.is_live()).collect();
        if !live.is_empty() {
            let mut logits = self.begin(request)?;
            let mut scratch = Scratch::new();
            while !live.is_empty() {
                let go_on = self.choose(request, &mut live, &logits, &mut scratch, observe)?;
                if go_on.is_break() {
                    live.iter_mut().for_each(|sequence| sequence.cancel());
                }
                self.step(&mut live, &mut logits)?;
            }
        }
        Ok(all.into_iter().map(Progress::done).collect())
    }

    pub(crate) fn check(&self, request: &Request, limit: Option<usize>) -> Result<(), Error> {
        let (found, vocabulary) = (request.prompt.len(), self.source.vocab_size());
        match limit {
            Some(limit) if found > limit => return Err(Error::PromptTooLong { found, limit }),
            _ if found == 0 => return Err(Error::NothingToBeginFrom),
            _ if request.sequences == 0 => return Err(Error::NoSequences),
            _ => {}
        }
        match request.prompt.iter().find(|&&id| id as usize >= vocabulary) {
            Some(&id) => Err(Error::UnknownToken { id, vocabulary }),
            None => Ok(()),
        }
    }

    /// Reads the prompt: the same row of logits for every sequence (S×V).
    pub(crate) fn begin(&mut self, request: &Request) -> Result<Buffer<f32>, Error> {
        let mut logits = Buffer::<f32>::new(&self.logits(request))?;
        let (first, others) = logits.split_at_mut(self.source.vocab_size());
        self.source.begin(&request.prompt, room(request), first)?;
        others.chunks_exact_mut(first.len()).for_each(|row| row.copy_from_slice(first));
        Ok(logits)
    }

    /// S×V.
    fn logits(&self, request: &Request) -> Spec {
        let len = request.sequences.saturating_mul(self.source.vocab_size());
        Spec::new("logits of the sequences", Account::Workspace, len)
    }

    fn choose(
        &self,
        request: &Request,
        live: &mut [&mut Progress],
        logits: &[f32],
        scratch: &mut Scratch,
        observe: &mut dyn FnMut(&Event<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Error> {
        let rows = logits.chunks_exact(self.source.vocab_size());
        for (sequence, logits) in live.iter_mut().zip(rows) {
            let limit = self.source.context_limit();
            let (choice, text) = sequence.advance(request, limit, logits, scratch)?;
            let step = sequence.ids().len() - 1;
            let go_on = observe(&Event {
                sequence: sequence.index(),
                step: step as u64,
                logits,
                before: &sequence.ids()[..step],
                choice,
                text: &text,
                finish: sequence.finish(),
            });
            if go_on.is_break() {
                return Ok(go_on);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Drops the sequences that ended and extends the others by their last token.
    fn step(&mut self, live: &mut Vec<&mut Progress>, logits: &mut [f32]) -> Result<(), Error> {
        if live.iter().any(|sequence| !sequence.is_live()) {
            let places = live.iter().enumerate().filter(|(_, sequence)| sequence.is_live());
            self.source.select(&places.map(|(place, _)| place).collect::<Vec<_>>())?;
            live.retain(|sequence| sequence.is_live());
        }
        let last: Vec<u32> = live.iter().filter_map(|s| s.ids().last().copied()).collect();
        if !last.is_empty() {
            let wanted = last.len() * self.source.vocab_size();
            self.source.step(&last, &mut logits[..wanted]);
        }
        Ok(())
    }
}

/// What is to be remembered for a request.
fn room(request: &Request) -> Room {
    let tokens = request.prompt.len().saturating_add(request.max_tokens);
    Room { sequences: request.sequences, tokens }
}
