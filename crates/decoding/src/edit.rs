//! Rules that edit logits, on a copy of the row: mask, allow, ban, bias and penalties.
//! Edits compute in f64 and round to the row's type once each. An impossible token stays so.

use crate::error::DecodeError;
use crate::history::{History, Mask};
use crate::rule::{Bias, Rule, Window};
use crate::score::Score;

/// How often each token was seen; all zero between uses.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    of: Vec<u32>,
    seen: Vec<u32>,
}

/// The row under edit and what is needed to name errors.
pub(crate) struct Edit<'a, S> {
    pub row: &'a mut [S],
    pub counts: &'a mut Counts,
    pub history: &'a History<'a>,
    pub step: u64,
}

impl<S: Score> Edit<'_, S> {
    /// Applies one editing rule; shaping rules do nothing here.
    pub fn apply(&mut self, rule: &Rule) -> Result<(), DecodeError> {
        match rule {
            Rule::Allow { ids } => self.allow(ids, rule.name()),
            Rule::Ban { ids } => {
                ids.iter().try_for_each(|&id| self.set(id, rule.name(), |_| f64::NEG_INFINITY))
            }
            Rule::Bias { entries } => entries
                .iter()
                .try_for_each(|&Bias { id, add }| self.set(id, rule.name(), |z| z + add)),
            Rule::Repetition { penalty, window } if *penalty != 1.0 => {
                self.seen(*window, |z, _| if z > 0.0 { z / penalty } else { z * penalty })
            }
            Rule::Presence { penalty, window } if *penalty != 0.0 => {
                self.seen(*window, |z, _| z - penalty)
            }
            Rule::Frequency { penalty, window } if *penalty != 0.0 => {
                self.seen(*window, |z, count| z - penalty * count)
            }
            _ => Ok(()),
        }
    }

    /// Makes everything outside the mask impossible.
    pub fn mask(&mut self, mask: Mask<'_>) -> Result<(), DecodeError> {
        let (found, vocabulary) = (mask.num_tokens(), self.row.len());
        if found < vocabulary {
            return Err(DecodeError::MaskTooShort { step: self.step, found, vocabulary });
        }
        for (id, score) in self.row.iter_mut().enumerate() {
            if !mask.allows(id) {
                *score = S::IMPOSSIBLE;
            }
        }
        Ok(())
    }

    fn unknown(&self, id: u32, place: &'static str) -> DecodeError {
        DecodeError::UnknownToken { step: self.step, place, id, vocabulary: self.row.len() }
    }

    fn set(
        &mut self,
        id: u32,
        place: &'static str,
        change: impl Fn(f64) -> f64,
    ) -> Result<(), DecodeError> {
        let unknown = self.unknown(id, place);
        let score = self.row.get_mut(id as usize).ok_or(unknown)?;
        edit(score, change);
        Ok(())
    }

    fn allow(&mut self, ids: &[u32], place: &'static str) -> Result<(), DecodeError> {
        for &id in ids {
            let known = (id as usize) < self.row.len();
            known.then_some(()).ok_or_else(|| self.unknown(id, place))?;
            self.counts.see(id, self.row.len());
        }
        for (score, count) in self.row.iter_mut().zip(&self.counts.of) {
            if *count == 0 {
                *score = S::IMPOSSIBLE;
            }
        }
        self.counts.clear();
        Ok(())
    }

    /// Changes each distinct token of the window once, given how often it occurs there.
    fn seen(
        &mut self,
        window: Window,
        change: impl Fn(f64, f64) -> f64,
    ) -> Result<(), DecodeError> {
        for &id in self.history.window(window).into_iter().flatten() {
            if id as usize >= self.row.len() {
                self.counts.clear();
                return Err(self.unknown(id, "history"));
            }
            self.counts.see(id, self.row.len());
        }
        for &id in &self.counts.seen {
            let count = f64::from(self.counts.of[id as usize]);
            edit(&mut self.row[id as usize], |z| change(z, count));
        }
        self.counts.clear();
        Ok(())
    }
}

/// An impossible token stays impossible; others change as logits.
fn edit<S: Score>(score: &mut S, change: impl Fn(f64) -> f64) {
    if *score > S::IMPOSSIBLE {
        *score = S::from_logit(change(score.to_logit()));
    }
}

impl Counts {
    pub fn num_bytes(&self) -> usize {
        (self.of.capacity() + self.seen.capacity()) * size_of::<u32>()
    }

    fn see(&mut self, id: u32, vocabulary: usize) {
        if self.of.len() < vocabulary {
            self.of.resize(vocabulary, 0);
            self.seen.reserve(vocabulary);
        }
        if self.of[id as usize] == 0 {
            self.seen.push(id);
        }
        self.of[id as usize] = self.of[id as usize].saturating_add(1);
    }

    fn clear(&mut self) {
        for id in self.seen.drain(..) {
            self.of[id as usize] = 0;
        }
    }
}
