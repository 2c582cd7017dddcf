//! The same step told in full: every candidate with its probabilities, what each rule changed and
//! dropped, how the unit interval is divided, where the uniform number fell.

use serde::{Deserialize, Serialize};

use crate::chain::Shape;
use crate::decide::{Buffers, Choice, Draw, Model, Step, Trace};
use crate::error::DecodeError;
use crate::history::History;
use crate::order::Candidate;
use crate::rule::{Rule, Rules};
use crate::score::{Score, exact_moments};

/// A row to explain.
#[derive(Debug, Clone, Copy)]
pub enum Row<'a> {
    /// Logits, as a model gives them.
    Logits(&'a [f32]),
    /// Probabilities or weights, at least 0; they need not sum to 1.
    Probabilities(&'a [f64]),
}

/// A step, told in full.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// What `decide` returns for the same arguments.
    pub choice: Choice,
    /// The step's uniform number, also where temperature 0 had no use for it.
    pub uniform: f64,
    /// Entries of the row.
    pub vocabulary: usize,
    /// The product of the chain's temperatures (those above 0).
    pub temperature: f64,
    /// What each rule did, in order.
    pub rules: Vec<RuleEffect>,
    /// Every possible token, best first after the edits; then those that the edits forbade, by
    /// id. Tokens whose logit was −inf from the start are not listed.
    pub candidates: Vec<Explained>,
}

/// What one rule did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RuleEffect {
    /// The rule; none for the mask that came with the step.
    pub rule: Option<Rule>,
    /// The tokens it removed: best first for a filter, by id for bans and masks.
    pub dropped: Vec<u32>,
    /// The logits it changed, by id.
    pub changed: Vec<Changed>,
    /// How many tokens are left behind it.
    pub kept: usize,
}

impl RuleEffect {
    /// The rule's name; `mask` for the mask.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.rule.as_ref().map_or("mask", Rule::name)
    }
}

/// A logit before and after a rule.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Changed {
    /// The token.
    pub id: u32,
    /// Before.
    pub from: f64,
    /// After.
    pub to: f64,
}

/// One token of an explanation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// The token.
    pub id: u32,
    /// Its logit as given, in nats (the logarithm of a given probability).
    pub logit: f64,
    /// Its logit after the edits; −inf (null in JSON) where it was forbidden.
    #[serde(deserialize_with = "null_is_impossible")]
    pub edited_logit: f64,
    /// Its probability under the model, before any rule.
    pub model_probability: f64,
    /// After edits and temperature, before any filter; 0 where it was forbidden.
    pub tempered_probability: f64,
    /// After every rule, renormalised; 0 where it was dropped.
    pub probability: f64,
    /// Its part of the unit interval, if it was kept.
    pub interval: Option<[f64; 2]>,
    /// Index in [`Explanation::rules`] of the rule that dropped it, if one did.
    pub dropped_by: Option<usize>,
}

fn null_is_impossible<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::NEG_INFINITY))
}

impl Explanation {
    /// The tokens that every rule kept, best first.
    pub fn kept(&self) -> impl Iterator<Item = &Explained> {
        self.candidates.iter().filter(|token| token.dropped_by.is_none())
    }
}

/// Chooses as [`crate::decide`] does, by the same code, and tells everything about it.
///
/// # Errors
/// [`DecodeError`], which names the step.
pub fn explain(
    rules: &Rules,
    row: Row<'_>,
    history: &History<'_>,
    draw: Draw,
    step: u64,
) -> Result<Explanation, DecodeError> {
    let at = Step { rules, history, draw, step };
    match row {
        Row::Logits(row) => told(&at, row),
        Row::Probabilities(row) => {
            // A scan for the best does not see a negative entry.
            if !row.is_empty() && row.iter().any(|p| !p.is_sound()) {
                return Err(at.unsound(row, f64::WHAT));
            }
            told(&at, row)
        }
    }
}

fn told<S: Score>(at: &Step<'_>, row: &[S]) -> Result<Explanation, DecodeError> {
    let mut teller = Teller { raw: row, before: row.to_vec(), ..Teller::default() };
    let choice = at.run(row, &mut Buffers::default(), &mut teller)?;
    let uniform = at.draw.uniform(at.step)?;
    let Teller { effects: rules, candidates, temperature, .. } = teller;
    Ok(Explanation { choice, uniform, vocabulary: row.len(), temperature, rules, candidates })
}

/// The trace that remembers.
struct Teller<'a, S> {
    raw: &'a [S],
    before: Vec<S>,
    effects: Vec<RuleEffect>,
    candidates: Vec<Explained>,
    temperature: f64,
}

impl<S> Default for Teller<'_, S> {
    fn default() -> Self {
        let (before, effects, candidates) = (vec![], vec![], vec![]);
        Self { raw: &[], before, effects, candidates, temperature: 1.0 }
    }
}

impl<S: Score> Trace<S> for Teller<'_, S> {
    fn edited(&mut self, rule: Option<&Rule>, row: &[S]) {
        let (mut dropped, mut changed) = (Vec::new(), Vec::new());
        for (id, (before, after)) in (0..).zip(self.before.iter().zip(row)) {
            if before == after {
                continue;
            }
            if *after == S::IMPOSSIBLE {
                dropped.push(id);
            } else {
                changed.push(Changed { id, from: before.to_logit(), to: after.to_logit() });
            }
        }
        self.before = row.to_vec();
        let kept = row.iter().filter(|&&score| score > S::IMPOSSIBLE).count();
        self.effects.push(RuleEffect { rule: rule.cloned(), dropped, changed, kept });
    }

    fn shaped(&mut self, rule: &Rule, shape: &mut Shape<'_, S>) {
        let filtered = self.effects.iter().rev().find(|e| e.rule.as_ref().is_some_and(shapes));
        let before = filtered.map_or_else(|| shape.order.num_possible(), |effect| effect.kept);
        let kept = shape.num_kept();
        let dropped = (kept..before).map_while(|i| shape.order.get(i)).map(|c| c.id).collect();
        let rule = Some(rule.clone());
        self.effects.push(RuleEffect { rule, dropped, changed: Vec::new(), kept });
    }

    fn chosen(&mut self, shape: &mut Shape<'_, S>, model: &Model<S>) {
        self.temperature = shape.temperature;
        let num_kept = shape.num_kept();
        let kept_mass = shape.mass();
        let whole_mass = exact_moments(shape.row, shape.top, shape.temperature).mass;
        let droppers = self.droppers();
        let mut cumulated = 0.0;
        let mut place = 0;
        while let Some(candidate) = shape.order.get(place) {
            let weight = shape.weight(candidate);
            let mut token = self.token(candidate, model);
            token.tempered_probability = weight / whole_mass;
            token.dropped_by = droppers[candidate.id as usize];
            if place < num_kept {
                let start = cumulated / kept_mass;
                cumulated += weight;
                let is_last = place + 1 == num_kept;
                let end = if is_last { 1.0 } else { (cumulated / kept_mass).min(1.0) };
                token.probability = weight / kept_mass;
                token.interval = Some([start.min(end), end]);
            }
            self.candidates.push(token);
            place += 1;
        }
        for (id, score) in (0..).zip(shape.row) {
            if *score == S::IMPOSSIBLE && self.raw[id as usize] > S::IMPOSSIBLE {
                let candidate = Candidate { score: *score, id };
                let dropped_by = droppers[id as usize];
                self.candidates.push(Explained { dropped_by, ..self.token(candidate, model) });
            }
        }
    }
}

impl<S: Score> Teller<'_, S> {
    fn token(&self, candidate: Candidate<S>, model: &Model<S>) -> Explained {
        let raw = self.raw[candidate.id as usize];
        Explained {
            id: candidate.id,
            logit: raw.to_logit(),
            edited_logit: candidate.score.to_logit(),
            model_probability: raw.weight(model.top, 1.0) / model.mass,
            tempered_probability: 0.0,
            probability: 0.0,
            interval: None,
            dropped_by: None,
        }
    }

    /// For every token the rule that dropped it.
    fn droppers(&self) -> Vec<Option<usize>> {
        let mut droppers = vec![None; self.raw.len()];
        for (index, effect) in self.effects.iter().enumerate() {
            for &id in &effect.dropped {
                droppers[id as usize] = Some(index);
            }
        }
        droppers
    }
}

fn shapes(rule: &Rule) -> bool {
    !rule.edits_logits()
}
