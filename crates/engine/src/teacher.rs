//! Teacher forcing against free running: what the model predicts when it is always given the true
//! text, beside what it writes when it is given its own.
//!
//! Both sides choose by the same rules and, at each step, with the same uniform number, so that
//! they are the same to the bit for as long as the model writes the true text.

use crate::score::scored;
use crate::{Error, Event, Generator, Request, Scored, Sequence, Source};
use decoding::{Choice, Counter, History, Scratch, decide};

/// One place of the true text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Forced {
    /// The true token after the true prefix.
    pub truth: Scored,
    /// What would have been chosen there.
    pub choice: Choice,
}

/// The two sides.
#[derive(Debug, Clone, PartialEq)]
pub struct Teacher {
    /// On the true prefix, a place each true token.
    pub forced: Vec<Forced>,
    /// On its own prefix: as many tokens as the true text has, or fewer if it ends earlier.
    pub free: Sequence,
    /// The first step at which the free text is not the true one.
    pub first_divergence: Option<usize>,
}

impl Teacher {
    /// Steps at which the choice on the true prefix is the true token.
    #[must_use]
    pub fn num_forced_right(&self) -> usize {
        self.forced.iter().filter(|one| one.choice.id == one.truth.id).count()
    }

    /// Steps at which the free text has the true token.
    #[must_use]
    pub fn num_free_right(&self) -> usize {
        let pairs = self.forced.iter().zip(&self.free.tokens);
        pairs.filter(|(one, token)| one.truth.id == token.choice.id).count()
    }

    /// Log-probability of the true text, nats.
    #[must_use]
    pub fn truth_logprob(&self) -> f64 {
        self.forced.iter().map(|one| one.truth.logprob).sum()
    }
}

impl<S: Source> Generator<'_, S> {
    /// Sets a true continuation of the prompt against the model's own; one sequence, whatever the
    /// request says. `observe` is told of the free side.
    ///
    /// # Errors
    /// As [`Generator::run`]; a true text that does not fit into the context.
    pub fn teach(
        &mut self,
        request: &Request,
        truth: &[u32],
        observe: &mut dyn FnMut(&Event<'_>),
    ) -> Result<Teacher, Error> {
        self.check(request, self.source.context_limit())?;
        let forced = self.forced(request, truth)?;
        let alone = Request { sequences: 1, max_tokens: truth.len(), ..request.clone() };
        let free = self.run(&alone, observe)?.into_iter().next().ok_or(Error::NoSequences)?;
        let own = |step: usize| free.tokens.get(step).map(|token| token.choice.id);
        let first_divergence = (0..truth.len()).find(|&step| own(step) != Some(truth[step]));
        Ok(Teacher { forced, free, first_divergence })
    }

    fn forced(&mut self, request: &Request, truth: &[u32]) -> Result<Vec<Forced>, Error> {
        let vocabulary = self.source.vocab_size();
        if let Some(&id) = truth.iter().find(|&&id| id as usize >= vocabulary) {
            return Err(Error::UnknownToken { id, vocabulary });
        }
        let Some(all_but_last) = truth.len().checked_sub(1) else { return Ok(Vec::new()) };
        let ids = [&request.prompt, &truth[..all_but_last]].concat();
        if let Some(limit) = self.source.context_limit().filter(|&limit| ids.len() > limit) {
            return Err(Error::TextTooLong { found: ids.len() + 1, limit: limit + 1 });
        }
        let first = request.prompt.len() - 1;
        let rng = Counter { seed: request.seed, stream: request.first_sequence };
        let (mut all, mut scratch) = (Vec::with_capacity(truth.len()), Scratch::new());
        self.source.pass(&ids, &mut |place, logits| {
            let Some(step) = place.checked_sub(first) else { return Ok(()) };
            let history = History::new(&request.prompt, &truth[..step]);
            let at = step as u64;
            let choice = decide(&request.rules, logits, &history, rng, at, &mut scratch)
                .map_err(|source| Error::Decode { sequence: request.first_sequence, source })?;
            let truth = scored(truth[step], at, logits, &mut scratch)?;
            all.push(Forced { truth, choice });
            Ok(())
        })?;
        Ok(all)
    }
}
