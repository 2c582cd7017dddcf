//! A count model as a source: its logits are the logarithms of its probabilities.

use crate::guessed::Ahead;
use crate::source::select_places;
use crate::{Each, Error, Room, Source};
use ledger::Plan;
use models::ngram::Ngram;

/// A count model with the last tokens of every sequence.
#[derive(Debug)]
pub struct CountSource<'a> {
    model: &'a Ngram,
    /// One a sequence: the tokens that the next prediction looks at.
    contexts: Vec<Vec<u32>>,
    /// All that the only sequence has read, where it is read ahead.
    read: Vec<u32>,
    /// V probabilities.
    chances: Vec<f64>,
}

impl<'a> CountSource<'a> {
    /// A source that remembers nothing yet.
    #[must_use]
    pub fn new(model: &'a Ngram) -> Self {
        Self {
            model,
            contexts: Vec::new(),
            read: Vec::new(),
            chances: vec![0.0; model.vocab_size()],
        }
    }

    fn logits(&mut self, before: &[u32], logits: &mut [f32]) {
        self.model.distribution(before, &mut self.chances);
        for (logit, chance) in logits.iter_mut().zip(&self.chances) {
            *logit = chance.ln() as f32;
        }
    }
}

impl Source for CountSource<'_> {
    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn context_limit(&self) -> Option<usize> {
        None
    }

    /// Contexts of a few tokens are not worth a line.
    fn plan(&self, _prompt: usize, _room: Room) -> Result<Plan, Error> {
        Ok(Plan::default())
    }

    fn begin(&mut self, prompt: &[u32], room: Room, logits: &mut [f32]) -> Result<(), Error> {
        self.read = prompt.to_vec();
        self.contexts = vec![self.model.context(prompt).to_vec(); room.sequences];
        self.logits(prompt, logits);
        Ok(())
    }

    fn step(&mut self, tokens: &[u32], logits: &mut [f32]) {
        let mut contexts = std::mem::take(&mut self.contexts);
        let rows = logits.chunks_exact_mut(self.vocab_size());
        for ((context, &token), row) in contexts.iter_mut().zip(tokens).zip(rows) {
            context.push(token);
            let past = context.len() - self.model.context(context).len();
            context.drain(..past);
            self.logits(context, row);
        }
        self.contexts = contexts;
    }

    fn select(&mut self, parents: &[usize]) -> Result<(), Error> {
        select_places(&mut self.contexts, parents, |context| Ok(context.clone()))
    }

    fn pass(&mut self, ids: &[u32], each: &mut Each<'_>) -> Result<(), Error> {
        let mut logits = vec![0.0; self.vocab_size()];
        for place in 0..ids.len() {
            self.logits(&ids[..=place], &mut logits);
            each(place, &logits)?;
        }
        Ok(())
    }
}

impl Ahead for CountSource<'_> {
    fn read_ahead(&mut self, _tokens: usize) {}

    fn read_on(&mut self, tokens: &[u32], logits: &mut [f32]) {
        let rows = logits.chunks_exact_mut(self.model.vocab_size());
        for (&token, row) in tokens.iter().zip(rows) {
            self.read.push(token);
            let read = std::mem::take(&mut self.read);
            self.logits(&read, row);
            self.read = read;
        }
    }

    fn rewind(&mut self, read: usize) {
        self.read.truncate(read);
    }
}
