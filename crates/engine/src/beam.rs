//! Searching instead of drawing: beam search, and the best of several samples.
//!
//! The bookkeeping of a beam is [`decoding::beam`]'s; here the model runs, its caches follow the
//! hypotheses, and the choices of the best ones are put together again at the end.

use crate::progress::Progress;
use crate::{Error, Event, Generator, Request, Sequence, Source};
use decoding::beam::{Beam, BeamOptions, Continuation, Hypothesis, Patience};
use decoding::{Choice, History, Scratch, best};
use serde::{Deserialize, Serialize};

/// How the likeliest text is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BeamSearch {
    /// Hypotheses that run side by side; 1 is greedy.
    pub width: usize,
    /// α: summed log-probabilities are divided by (tokens)^α.
    pub length_exponent: f64,
    /// When to stop.
    #[serde(default)]
    pub patience: Patience,
}

/// What one step of a beam saw and made.
struct Level {
    /// For each hypothesis that was alive, its continuations.
    rows: Vec<Vec<Choice>>,
    /// For each that lived on: the place of the one it continues, and its new token.
    born: Vec<(usize, u32)>,
}

impl<S: Source> Generator<'_, S> {
    /// The likeliest continuations that a beam finds, best first: `request.sequences` at most.
    /// Their indexes are their places. Rules may edit logits (bans, bias, penalties); what a
    /// hypothesis is worth is its log-probability in what the edits leave.
    ///
    /// # Errors
    /// [`Error`]; rules that shape a draw and stop strings are refused.
    pub fn beam(&mut self, request: &Request, search: &BeamSearch) -> Result<Vec<Sequence>, Error> {
        let limit = self.source.context_limit();
        self.check(request, limit)?;
        fits_a_beam(request, search)?;
        let room = limit.map_or(usize::MAX, |limit| limit + 1 - request.prompt.len());
        if request.max_tokens == 0 {
            return Ok(vec![self.told(request, 0, &[])?]);
        }
        let mut beam = Beam::new(BeamOptions {
            width: search.width,
            length_exponent: search.length_exponent,
            max_tokens: request.max_tokens.min(room),
            patience: search.patience,
        })?;
        let wide = Request { sequences: search.width, ..request.clone() };
        let mut logits = self.begin(&wide)?;
        let (mut levels, mut scratch) = (Vec::new(), Scratch::new());
        loop {
            let rows = self.continuations(request, &beam, &logits, &mut scratch)?;
            let offered: Vec<_> =
                rows.iter().map(|row| row.iter().map(offered).collect()).collect();
            let parents = beam.advance(&offered, |id| request.end.contains(&id))?;
            let last: Vec<u32> =
                beam.live().iter().filter_map(|one| one.tokens.last().copied()).collect();
            let born = parents.iter().copied().zip(last.iter().copied()).collect();
            levels.push(Level { rows, born });
            if beam.is_done() {
                break;
            }
            self.source.select(&parents)?;
            let wanted = last.len() * self.source.vocab_size();
            self.source.step(&last, &mut logits[..wanted]);
        }
        let found = beam.into_best().into_iter().take(request.sequences).enumerate();
        found.map(|(place, one)| self.told(request, place, &choices(&levels, &one))).collect()
    }

    /// The best `request.sequences` of so many samples by [`Sequence::score`], best first; of
    /// equals the earlier. Each keeps the index that it was drawn by.
    ///
    /// # Errors
    /// As [`Generator::run`].
    pub fn best_of(
        &mut self,
        request: &Request,
        samples: usize,
        length_exponent: f64,
        observe: &mut dyn FnMut(&Event<'_>),
    ) -> Result<Vec<Sequence>, Error> {
        let asked = request.sequences;
        if asked > samples {
            return Err(Error::TooManySequences { asked, searched: samples });
        }
        let mut all = self.run(&Request { sequences: samples, ..request.clone() }, observe)?;
        all.sort_by(|a, b| b.score(length_exponent).total_cmp(&a.score(length_exponent)));
        all.truncate(asked);
        Ok(all)
    }

    fn continuations(
        &self,
        request: &Request,
        beam: &Beam,
        logits: &[f32],
        scratch: &mut Scratch,
    ) -> Result<Vec<Vec<Choice>>, Error> {
        let count = beam.num_continuations(request.end.len());
        let rows = beam.live().iter().zip(logits.chunks_exact(self.source.vocab_size()));
        let each = |(place, (one, row)): (usize, (&Hypothesis, &[f32]))| {
            let history = History::new(&request.prompt, &one.tokens);
            best(&request.rules, row, &history, one.tokens.len() as u64, count, scratch)
                .map_err(|source| Error::Decode { sequence: place as u64, source })
        };
        rows.enumerate().map(each).collect()
    }

    /// A sequence from its choices.
    fn told(&self, request: &Request, place: usize, all: &[Choice]) -> Result<Sequence, Error> {
        let mut progress = Progress::new(place as u64, self.tokenizer, &[])?;
        for &choice in all {
            progress.append(request, self.source.context_limit(), choice);
        }
        Ok(progress.done())
    }
}

fn offered(choice: &Choice) -> Continuation {
    Continuation { id: choice.id, logprob: choice.sample_logprob }
}

fn fits_a_beam(request: &Request, search: &BeamSearch) -> Result<(), Error> {
    if let Some(rule) = request.rules.chain().iter().find(|rule| !rule.edits_logits()) {
        return Err(Error::NotForBeams { what: format!("the rule {rule}") });
    }
    if !request.stops.is_empty() {
        return Err(Error::NotForBeams { what: "stop strings".to_owned() });
    }
    let (asked, searched) = (request.sequences, search.width);
    if searched > 0 && asked > searched {
        return Err(Error::TooManySequences { asked, searched });
    }
    Ok(())
}

/// The choices along a hypothesis.
fn choices(levels: &[Level], one: &Hypothesis) -> Vec<Choice> {
    let mut place = 0;
    let mut along = |(level, &id): (&Level, &u32)| {
        let row = level.rows.get(place)?;
        let choice = *row.iter().find(|choice| choice.id == id)?;
        // The last token of a finished hypothesis leads nowhere.
        place = level.born.iter().position(|born| *born == (place, id)).unwrap_or(usize::MAX);
        Some(choice)
    };
    levels.iter().zip(&one.tokens).map_while(&mut along).collect()
}
