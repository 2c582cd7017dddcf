//! A source that reads ahead: a second, smaller model guesses the next tokens, and the model reads
//! the last token and all guesses in one pass. Rows of logits are those of reading one by one, so
//! whoever chooses from them notices nothing but the time.
//!
//! Only one sequence is guessed; several are read as without.

use crate::source::Source;
use crate::{Each, Error, Request, Room};
use decoding::{Counter, History, Scratch, decide};
use ledger::{Account, Buffer, Plan, Spec};
use std::collections::VecDeque;

/// A source of one sequence that can read several tokens at once, and take tokens back.
pub trait Ahead: Source {
    /// Makes room for passes of so many tokens.
    fn read_ahead(&mut self, tokens: usize);

    /// Reads tokens into the only sequence and writes the logits after each (tokens×V).
    fn read_on(&mut self, tokens: &[u32], logits: &mut [f32]);

    /// Forgets what the only sequence has read after its first `read` tokens.
    fn rewind(&mut self, read: usize);
}

/// What became of the guesses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Guesses {
    /// Tokens guessed, but for those that the end of the text left unjudged.
    pub drafted: usize,
    /// Those that came.
    pub accepted: usize,
    /// Passes of the model after the prompt.
    pub passes: usize,
}

/// A model with another that guesses.
pub struct GuessedSource<'a, T, D> {
    model: T,
    draft: D,
    request: &'a Request,
    /// Tokens guessed at a time, at most.
    most: usize,
    /// Tokens to guess next time: more while guesses hold.
    ahead: usize,
    /// Tokens that the sequence may have read.
    capacity: usize,
    /// The prompt and the tokens read since.
    text: Vec<u32>,
    /// What the draft has read.
    seen: Vec<u32>,
    /// Guesses whose logits are known: a row each.
    ready: VecDeque<(u32, usize)>,
    /// (1 + most)×V.
    rows: Option<Buffer<f32>>,
    /// V of the draft, rows of a pass.
    guessed: Option<Buffer<f32>>,
    scratch: Scratch,
    guesses: Guesses,
}

impl<'a, T: Ahead, D: Ahead> GuessedSource<'a, T, D> {
    /// A source for one request. `draft` guesses up to `most` tokens by the request's own rules and
    /// chance: then a guess holds as often as the two models agree.
    pub fn new(mut model: T, mut draft: D, request: &'a Request, most: usize) -> Self {
        model.read_ahead(1 + most);
        draft.read_ahead(1 + most);
        Self {
            model,
            draft,
            request,
            most,
            ahead: most.min(4),
            capacity: 0,
            text: Vec::new(),
            seen: Vec::new(),
            ready: VecDeque::new(),
            rows: None,
            guessed: None,
            scratch: Scratch::new(),
            guesses: Guesses::default(),
        }
    }

    /// What became of the guesses so far.
    pub fn guesses(&self) -> Guesses {
        self.guesses
    }

    fn rows_spec(&self) -> Spec {
        let len = (1 + self.most).saturating_mul(self.model.vocab_size());
        Spec::new("logits of guesses", Account::Workspace, len)
    }

    fn guessed_spec(&self) -> Spec {
        let len = (1 + self.most).saturating_mul(self.draft.vocab_size());
        Spec::new("logits of the draft", Account::Workspace, len)
    }

    /// Up to `most` tokens that may follow the text.
    fn guess(&mut self, most: usize) -> Vec<u32> {
        let mut drafts = Vec::new();
        let (vocab, own) = (self.model.vocab_size(), self.draft.vocab_size());
        let Some(mut rows) = self.guessed.take() else { return drafts };
        let known = self.seen.iter().zip(&self.text).take_while(|(a, b)| a == b).count();
        let known = known.min(self.text.len() - 1);
        self.draft.rewind(known);
        self.seen.truncate(known);
        let mut row = vec![f32::NEG_INFINITY; vocab];
        let prompt = self.request.prompt.len();
        let room = self.draft.context_limit().unwrap_or(usize::MAX).min(self.capacity);
        while drafts.len() < most && self.text.len() + drafts.len() <= room {
            let next: Vec<u32> =
                self.text.iter().chain(&drafts).copied().skip(self.seen.len()).collect();
            let mut last = 0;
            for piece in next.chunks(1 + self.most) {
                last = piece.len();
                self.draft.read_on(piece, &mut rows[..last * own]);
            }
            self.seen.extend(&next);
            let logits = &rows[(last - 1) * own..last * own];
            row[..own.min(vocab)].copy_from_slice(&logits[..own.min(vocab)]);
            let ids = [&self.text[prompt..], &drafts].concat();
            let history = History::new(&self.request.prompt, &ids);
            let rng = Counter { seed: self.request.seed, stream: self.request.first_sequence };
            let (rules, step) = (&self.request.rules, ids.len() as u64);
            let Ok(choice) = decide(rules, &row, &history, rng, step, &mut self.scratch) else {
                break;
            };
            drafts.push(choice.id);
            if self.request.end.contains(&choice.id) {
                break;
            }
        }
        self.guessed = Some(rows);
        drafts
    }

    /// The logits after a token of the only sequence.
    fn read(&mut self, token: u32, logits: &mut [f32]) {
        let vocab = logits.len();
        self.text.push(token);
        let Some(mut rows) = self.rows.take() else { return };
        let row = match self.ready.pop_front() {
            Some((guess, row)) if guess == token => {
                self.guesses.drafted += 1;
                self.guesses.accepted += 1;
                // All of a guess held: a longer one is worth a try.
                if self.ready.is_empty() {
                    self.ahead = (self.ahead + 2).min(self.most);
                }
                row
            }
            wrong => {
                if wrong.is_some() {
                    self.guesses.drafted += 1 + self.ready.len();
                    self.ahead = self.ahead.saturating_sub(1).max(1);
                }
                self.ready.clear();
                let read = self.text.len() - 1;
                let left = self
                    .request
                    .max_tokens
                    .saturating_sub(self.text.len() - self.request.prompt.len() + 1);
                let room = self.capacity.saturating_sub(self.text.len());
                let drafts = self.guess(self.ahead.min(left).min(room));
                self.model.rewind(read);
                let tokens = [&[token][..], &drafts].concat();
                self.model.read_on(&tokens, &mut rows[..tokens.len() * vocab]);
                self.guesses.passes += 1;
                self.ready.extend(drafts.into_iter().zip(1..));
                0
            }
        };
        logits.copy_from_slice(&rows[row * vocab..(row + 1) * vocab]);
        self.rows = Some(rows);
    }
}

impl<T: Ahead, D: Ahead> Source for GuessedSource<'_, T, D> {
    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn context_limit(&self) -> Option<usize> {
        self.model.context_limit()
    }

    fn plan(&self, prompt: usize, room: Room) -> Result<Plan, Error> {
        let mut plan = self.model.plan(prompt, room)?;
        plan.extend(self.draft.plan(prompt, Room { sequences: 1, ..room })?);
        plan.add(&self.rows_spec());
        plan.add(&self.guessed_spec());
        Ok(plan)
    }

    fn begin(&mut self, prompt: &[u32], room: Room, logits: &mut [f32]) -> Result<(), Error> {
        self.model.begin(prompt, room, logits)?;
        self.ready.clear();
        self.text = prompt.to_vec();
        self.capacity = self.context_limit().map_or(room.tokens, |limit| room.tokens.min(limit));
        (self.rows, self.guessed) = (None, None);
        let seen = self.draft.context_limit().unwrap_or(usize::MAX);
        if room.sequences != 1 || prompt.len() > seen {
            return Ok(());
        }
        let mut unused = vec![0.0; self.draft.vocab_size()];
        self.draft.begin(prompt, room, &mut unused)?;
        self.seen = prompt.to_vec();
        self.rows = Some(Buffer::new(&self.rows_spec())?);
        self.guessed = Some(Buffer::new(&self.guessed_spec())?);
        Ok(())
    }

    fn step(&mut self, tokens: &[u32], logits: &mut [f32]) {
        match (tokens, &self.rows) {
            ([token], Some(_)) => self.read(*token, logits),
            _ => self.model.step(tokens, logits),
        }
    }

    fn select(&mut self, parents: &[usize]) -> Result<(), Error> {
        self.model.select(parents)
    }

    fn pass(&mut self, ids: &[u32], each: &mut Each<'_>) -> Result<(), Error> {
        self.model.pass(ids, each)
    }
}
