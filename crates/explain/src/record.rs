//! What is kept of a step for pictures: the best candidates in full, the others as a histogram of
//! their logits, so that a page can work out masses at any temperature without the whole row.

use crate::teacher::TeacherRecord;
use decoding::{Choice, DecodeError, Draw, Explanation, History, Row, Rule, RuleEffect, Rules};
use serde::{Deserialize, Serialize};

/// Candidates kept in full unless more are asked for.
pub const MAX_SHOWN: usize = 256;

/// Width of a bin of the histogram, in nats. Taking a bin by its mean logit misses less than
/// w²/8T² of its mass: 0.05 % at T = 1.
const BIN: f64 = 1.0 / 16.0;

/// Logits that a page records one by one, all steps together, beside the best candidates. In JSON
/// they take 10 bytes each.
pub const MAX_EXACT: usize = 600_000;

/// The temperatures that stand side by side.
pub const BESIDE: [f64; 3] = [0.5, 1.0, 2.0];

/// Everything that a report shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// What was run: a model's name, or the file the logits came from.
    pub title: String,
    /// Texts of the prefix, one a token.
    pub prompt: Vec<String>,
    /// The chain in force.
    pub rules: Vec<Rule>,
    /// The choices in order.
    pub steps: Vec<StepRecord>,
    /// Text of every token of the vocabulary, where steps hold their whole row; else empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub texts: Vec<String>,
    /// Other continuations of the same prefix, to stand side by side. May be empty.
    #[serde(default)]
    pub continuations: Vec<Continuation>,
    /// The true continuation beside these steps, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teacher: Option<TeacherRecord>,
}

/// What one setting made of the prefix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Continuation {
    /// Such as "T = 0.5" or "greedy".
    pub label: String,
    /// Texts of the tokens.
    pub tokens: Vec<String>,
    /// Sum of the model's log-probabilities, in nats.
    pub logprob: f64,
}

/// One choice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// The step, from 0.
    pub step: u64,
    /// The choice and its figures.
    pub choice: Choice,
    /// Text of the chosen token.
    pub text: String,
    /// Entries of the row.
    pub vocabulary: usize,
    /// The step's uniform number, also where nothing was drawn.
    pub u: f64,
    /// What each rule did.
    pub effects: Vec<Effect>,
    /// The best candidates, best first; the chosen one is always among them.
    pub tokens: Vec<Token>,
    /// The possible tokens that are not in `tokens`.
    pub rest: Vec<Rest>,
    /// Every logit after the edits, by id (none where impossible), if they are recorded one by one;
    /// they then stand in for `rest`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub row: Vec<Option<f32>>,
    /// The choices at the temperatures of [`BESIDE`], all else the same, by the code that chose.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<Beside>,
}

/// What another temperature chooses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Beside {
    /// The temperature.
    pub t: f64,
    /// The token.
    pub id: u32,
    /// Its text.
    pub text: String,
}

/// The chain with this temperature where its own stood, or before its filters.
///
/// # Errors
/// A temperature that is none.
pub fn at_temperature(rules: &Rules, t: f64) -> Result<Rules, decoding::RulesError> {
    let mut chain = rules.chain().to_vec();
    let is_temperature = |rule: &Rule| matches!(rule, Rule::Temperature { .. });
    let place = chain.iter().position(is_temperature).unwrap_or_else(|| {
        chain.iter().position(|rule| !rule.edits_logits()).unwrap_or(chain.len())
    });
    chain.retain(|rule| !is_temperature(rule));
    chain.insert(place.min(chain.len()), Rule::Temperature { t });
    Rules::new(chain)
}

/// What a rule did, in figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// Its name and numbers.
    pub rule: String,
    /// Its name.
    pub name: String,
    /// How many tokens it removed.
    pub dropped: usize,
    /// How many logits it changed.
    pub changed: usize,
    /// How many tokens were left behind it.
    pub kept: usize,
}

/// One candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Token {
    /// Its text, as it would be shown.
    pub text: String,
    /// Its figures.
    #[serde(flatten)]
    pub figures: decoding::Explained,
}

/// Tokens with nearly the same logit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rest {
    /// How many.
    pub count: usize,
    /// Their mean logit after the edits, in nats.
    pub logit: f64,
}

impl StepRecord {
    /// Keeps the best `max_shown` candidates of an explanation, and the chosen one.
    ///
    /// `text` gives a token's text.
    #[must_use]
    pub fn new(
        step: u64,
        told: &Explanation,
        max_shown: usize,
        text: impl Fn(u32) -> String,
    ) -> Self {
        let is_shown = |(place, id): (usize, u32)| place < max_shown || id == told.choice.id;
        // Bins do not reach across the chosen token, so that all before it come before it.
        let (mut tokens, mut others, mut rest) = (Vec::new(), Vec::new(), Vec::new());
        for (place, figures) in told.candidates.iter().enumerate() {
            if is_shown((place, figures.id)) {
                rest.append(&mut histogram(&others));
                others.clear();
                tokens.push(Token { text: text(figures.id), figures: *figures });
            } else if figures.edited_logit.is_finite() {
                others.push(figures.edited_logit);
            }
        }
        rest.append(&mut histogram(&others));
        Self {
            step,
            choice: told.choice,
            text: text(told.choice.id),
            vocabulary: told.vocabulary,
            u: told.uniform,
            effects: told.rules.iter().map(Effect::new).collect(),
            tokens,
            rest,
            row: Vec::new(),
            beside: Vec::new(),
        }
    }

    /// Records every logit by itself, if there are at most `room` of them, which is lowered by so
    /// many, and if each is the f32 that a model gave. A step that shows every token needs none.
    #[must_use]
    pub fn exact(mut self, told: &Explanation, room: &mut usize) -> Self {
        let is_wide = |z: f64| z.is_finite() && f64::from(z as f32) != z;
        let is_whole = self.rest.is_empty();
        let fits = told.vocabulary <= *room;
        if is_whole || !fits || told.candidates.iter().any(|one| is_wide(one.edited_logit)) {
            return self;
        }
        *room -= told.vocabulary;
        self.row = vec![None; told.vocabulary];
        for one in told.candidates.iter().filter(|one| one.edited_logit.is_finite()) {
            self.row[one.id as usize] = Some(one.edited_logit as f32);
        }
        self.rest.clear();
        self
    }

    /// Adds what the temperatures of [`BESIDE`] choose from the same row with the same draw.
    ///
    /// # Errors
    /// As [`decoding::explain`].
    pub fn beside(
        mut self,
        rules: &Rules,
        row: Row<'_>,
        history: &History<'_>,
        text: impl Fn(u32) -> String,
    ) -> Result<Self, DecodeError> {
        for t in BESIDE {
            let Ok(rules) = at_temperature(rules, t) else { continue };
            let draw = Draw::Fixed(self.u);
            let id = decoding::explain(&rules, row, history, draw, self.step)?.choice.id;
            self.beside.push(Beside { t, id, text: text(id) });
        }
        Ok(self)
    }
}

impl Effect {
    fn new(effect: &RuleEffect) -> Self {
        Self {
            rule: effect.rule.as_ref().map_or("mask".to_owned(), ToString::to_string),
            name: effect.name().to_owned(),
            dropped: effect.dropped.len(),
            changed: effect.changed.len(),
            kept: effect.kept,
        }
    }
}

/// Bins logits that stand in descending order.
fn histogram(descending: &[f64]) -> Vec<Rest> {
    let same_bin = |a: &f64, b: &f64| (a / BIN).floor() == (b / BIN).floor();
    descending
        .chunk_by(same_bin)
        .map(|bin| Rest { count: bin.len(), logit: bin.iter().sum::<f64>() / bin.len() as f64 })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use decoding::{Counter, Draw, History, Row, Rules, explain};

    #[test]
    fn the_rest_keeps_count_and_mass() {
        let noise = Counter { seed: 8, stream: 0 };
        let logits: Vec<f32> = (0..5000).map(|i| noise.uniform(i) as f32 * 12.0).collect();
        let row = Row::Logits(&logits);
        let told = explain(&Rules::default(), row, &History::default(), Draw::Fixed(0.9999), 0);
        let told = told.unwrap();
        let record = StepRecord::new(0, &told, 100, |id| id.to_string());
        assert!(record.tokens.len() == 101 && record.tokens[100].figures.id == told.choice.id);
        let count: usize = record.rest.iter().map(|bin| bin.count).sum();
        assert_eq!(count + record.tokens.len(), 5000);
        for t in [0.5, 1.0, 2.0] {
            let exact: f64 = logits.iter().map(|&z| (f64::from(z) / t).exp()).sum();
            let shown: f64 =
                record.tokens.iter().map(|token| (token.figures.logit / t).exp()).sum();
            let rest: f64 =
                record.rest.iter().map(|bin| bin.count as f64 * (bin.logit / t).exp()).sum();
            let relative = (shown + rest - exact).abs() / exact;
            assert!(relative < BIN * BIN / 8.0 / (t * t), "T = {t}: {relative:e}");
        }
    }

    #[test]
    fn a_record_survives_json_with_forbidden_tokens_in_it() {
        let rules = Rules::new(vec![decoding::Rule::Ban { ids: vec![0] }]).unwrap();
        let row = Row::Logits(&[2.0, 1.0, 0.0]);
        let told = explain(&rules, row, &History::default(), Draw::Fixed(0.1), 3).unwrap();
        let step = StepRecord::new(3, &told, 10, |id| format!("t{id}"));
        let text = serde_json::to_string(&step).unwrap();
        assert_eq!(serde_json::from_str::<StepRecord>(&text).unwrap(), step);
        assert_eq!(step.effects[0].dropped, 1);
    }
}
