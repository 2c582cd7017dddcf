//! The score of a given text: the log-probability of each of its tokens after those before it.
//!
//! The figures are those that generation tells of a choice, by the same code: a token is scored by
//! choosing among it alone.

use crate::{Each, Error, Room, Source};
use decoding::{Counter, DecodeError, History, Rule, Rules, Scratch, decide};
use ledger::{Account, Buffer, Spec};

/// By which way the logits come. Both give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// All tokens together, as in training.
    OnePass,
    /// One by one through the cache, as in generation.
    Cached,
}

/// One token of a text under a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scored {
    /// The token.
    pub id: u32,
    /// Its log-probability in nats; −inf for what the model holds impossible.
    pub logprob: f64,
    /// Its place in the model's order, from 1; ties go by id.
    pub rank: u32,
    /// Entropy of the model's distribution, in nats.
    pub entropy: f64,
}

/// Scores every token but the first, which has nothing before it.
///
/// # Errors
/// A text longer than the model can see, tokens it does not know, logits that are no numbers.
pub fn score<S: Source>(source: &mut S, ids: &[u32], route: Route) -> Result<Vec<Scored>, Error> {
    let vocabulary = source.vocab_size();
    if let Some(&id) = ids.iter().find(|&&id| id as usize >= vocabulary) {
        return Err(Error::UnknownToken { id, vocabulary });
    }
    let Some(inputs) = ids.len().checked_sub(1) else { return Ok(Vec::new()) };
    if let Some(limit) = source.context_limit().filter(|&limit| inputs > limit) {
        return Err(Error::TextTooLong { found: ids.len(), limit: limit + 1 });
    }
    let (mut scores, mut scratch) = (Vec::with_capacity(inputs), Scratch::new());
    let mut each = |place: usize, logits: &[f32]| {
        scores.push(scored(ids[place + 1], place as u64, logits, &mut scratch)?);
        Ok(())
    };
    match route {
        Route::OnePass => source.pass(&ids[..inputs], &mut each)?,
        Route::Cached => one_by_one(source, &ids[..inputs], &mut each)?,
    }
    Ok(scores)
}

fn one_by_one<S: Source>(source: &mut S, inputs: &[u32], each: &mut Each<'_>) -> Result<(), Error> {
    let spec = Spec::new("logits", Account::Workspace, source.vocab_size());
    let mut logits = Buffer::<f32>::new(&spec)?;
    for (place, token) in inputs.chunks(1).enumerate() {
        if place == 0 {
            source.begin(token, Room { sequences: 1, tokens: inputs.len() }, &mut logits)?;
        } else {
            source.step(token, &mut logits);
        }
        each(place, &logits)?;
    }
    Ok(())
}

pub(crate) fn scored(
    id: u32,
    step: u64,
    logits: &[f32],
    scratch: &mut Scratch,
) -> Result<Scored, Error> {
    let only = Rules::new(vec![Rule::Allow { ids: vec![id] }]).unwrap_or_default();
    let none = History::default();
    match decide(&only, logits, &none, Counter::default(), step, scratch) {
        Ok(choice) => {
            Ok(Scored { id, logprob: choice.logprob, rank: choice.rank, entropy: choice.entropy })
        }
        Err(DecodeError::AllForbidden { .. }) => {
            let entropy =
                decide(&Rules::default(), logits, &none, Counter::default(), step, scratch)
                    .map_err(|source| Error::Decode { sequence: 0, source })?
                    .entropy;
            let own = logits[id as usize];
            let before = |(other, &logit): (usize, &f32)| {
                logit > own || (logit == own && other < id as usize)
            };
            let rank = 1 + logits.iter().enumerate().filter(|&pair| before(pair)).count() as u32;
            Ok(Scored { id, logprob: f64::NEG_INFINITY, rank, entropy })
        }
        Err(source) => Err(Error::Decode { sequence: 0, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_impossible_token_has_a_rank_and_an_entropy() {
        let row = [0.0, f32::NEG_INFINITY, 0.0];
        let found = scored(1, 0, &row, &mut Scratch::new()).unwrap();
        assert_eq!((found.logprob, found.rank), (f64::NEG_INFINITY, 3));
        assert!((found.entropy - 2.0_f64.ln()).abs() < 1e-12, "{found:?}");
        let possible = scored(2, 0, &row, &mut Scratch::new()).unwrap();
        assert_eq!(possible.entropy.to_bits(), found.entropy.to_bits());
    }
}
