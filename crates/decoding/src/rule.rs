//! The chain of rules as plain data: an ordered list that a request may give and an answer echoes.
//!
//! Two kinds of rule: those that edit logits (bias, bans, penalties) and those that shape the
//! distribution (temperature and filters). Edits come first, in any order among themselves;
//! shaping rules follow, in any order among themselves. After the edits one total order holds
//! (score descending, id ascending), temperature never changes it, and every filter keeps a
//! prefix of it: this is what makes k exact and ties the same everywhere.

use serde::{Deserialize, Serialize};

use crate::error::RulesError;
use crate::preset::Preset;
use crate::settings::Settings;

/// Which tokens a penalty looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Window {
    /// Prompt and generated tokens.
    #[default]
    All,
    /// Generated tokens only.
    Generated,
    /// The last so many of prompt and generated tokens together.
    Last(usize),
}

/// What top-k does with tokens that score the same as the k-th.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ties {
    /// Exactly k tokens are kept; among equals the lower id comes first.
    #[default]
    Exact,
    /// Every token that ties with the k-th is kept too.
    All,
}

/// Where exactly the nucleus ends. P is the total mass that p is measured on, and `before` the
/// mass of the candidates that come before one; the first candidate is always kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Boundary {
    /// Kept while `before < p·P`: ends with the first candidate whose mass reaches p.
    #[default]
    Reach,
    /// Dropped where the mass from the candidate to the end is at most (1 − p)·P.
    Tail,
    /// Kept while `before ≤ p·P`: a mass of exactly p takes in one more.
    Beyond,
}

/// The mass on which top-p is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// What the filters before have left, renormalised.
    #[default]
    Kept,
    /// The whole distribution, as it was before the first filter.
    Whole,
}

/// One entry of a logit bias.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bias {
    /// The token.
    pub id: u32,
    /// Added to its logit, in nats.
    pub add: f64,
}

/// One step from logits to the kept, renormalised set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Rule {
    /// Only these tokens stay possible.
    Allow {
        /// The tokens.
        ids: Vec<u32>,
    },
    /// These tokens become impossible.
    Ban {
        /// The tokens.
        ids: Vec<u32>,
    },
    /// Adds to chosen logits.
    Bias {
        /// What is added to which.
        entries: Vec<Bias>,
    },
    /// Divides positive and multiplies negative logits of tokens seen, once a distinct token.
    Repetition {
        /// Above 1 discourages, below 1 encourages, 1 changes nothing.
        penalty: f64,
        /// Where it looks.
        #[serde(default)]
        window: Window,
    },
    /// Subtracts from the logits of tokens seen, once a distinct token.
    Presence {
        /// Nats.
        penalty: f64,
        /// Where it looks.
        #[serde(default)]
        window: Window,
    },
    /// Subtracts from the logits of tokens seen, once an occurrence.
    Frequency {
        /// Nats an occurrence.
        penalty: f64,
        /// Where it looks.
        #[serde(default)]
        window: Window,
    },
    /// softmax(z/t). Zero keeps the single best token (greedy) and needs no draw.
    Temperature {
        /// Finite, at least 0.
        t: f64,
    },
    /// Keeps the k best; 0 keeps all.
    TopK {
        /// How many.
        k: usize,
        /// What happens at the k-th score.
        #[serde(default)]
        ties: Ties,
    },
    /// Keeps the smallest set of best tokens whose mass reaches p.
    TopP {
        /// Above 0, at most 1; 1 keeps all.
        p: f64,
        /// Where exactly it ends.
        #[serde(default)]
        boundary: Boundary,
        /// On which mass it is measured.
        #[serde(default)]
        of: Measure,
    },
    /// Keeps tokens at least p times as probable as the best one.
    MinP {
        /// From 0 (keeps all) to 1 (keeps those that tie with the best).
        p: f64,
    },
}

impl Rule {
    /// The name it has in a chain.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Allow { .. } => "allow",
            Self::Ban { .. } => "ban",
            Self::Bias { .. } => "bias",
            Self::Repetition { .. } => "repetition",
            Self::Presence { .. } => "presence",
            Self::Frequency { .. } => "frequency",
            Self::Temperature { .. } => "temperature",
            Self::TopK { .. } => "top_k",
            Self::TopP { .. } => "top_p",
            Self::MinP { .. } => "min_p",
        }
    }

    /// Whether it edits logits, as opposed to shaping the distribution that they give.
    #[must_use]
    pub fn edits_logits(&self) -> bool {
        !matches!(
            self,
            Self::Temperature { .. } | Self::TopK { .. } | Self::TopP { .. } | Self::MinP { .. }
        )
    }

    /// Checks the numbers of this rule alone.
    pub(crate) fn check(&self) -> Result<(), RulesError> {
        let rule = self.name();
        let refuse = |found, expected, hint| Err(RulesError::Value { rule, found, expected, hint });
        match *self {
            Self::Temperature { t } if !(t.is_finite() && t >= 0.0) => {
                refuse(t, "a finite number, 0 or above", "0 means greedy")
            }
            Self::TopP { p, .. } if !(p > 0.0 && p <= 1.0) => {
                refuse(p, "above 0 and at most 1", "1 keeps all")
            }
            Self::MinP { p } if !(0.0..=1.0).contains(&p) => {
                refuse(p, "from 0 to 1", "0 keeps all")
            }
            Self::Repetition { penalty, .. } if !(penalty.is_finite() && penalty > 0.0) => {
                refuse(penalty, "a finite number above 0", "1 changes nothing")
            }
            Self::Presence { penalty, .. } | Self::Frequency { penalty, .. }
                if !penalty.is_finite() =>
            {
                refuse(penalty, "a finite number", "0 changes nothing")
            }
            Self::Bias { ref entries } => {
                match entries.iter().find(|b| b.add.is_nan() || b.add == f64::INFINITY) {
                    Some(bad) => {
                        refuse(bad.add, "a number below +inf", "to force tokens, use allow")
                    }
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}

/// Something a preset changed in the settings, told rather than done in silence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "note", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Note {
    /// The system raises very small temperatures.
    #[error("temperature {from} raised to {to}, as this preset's system does")]
    TemperatureRaised {
        /// What was asked for.
        from: f64,
        /// What is used.
        to: f64,
    },
    /// The system clamps logit biases.
    #[error("bias {from} of token {id} clamped to {to}, as this preset's system does")]
    BiasClamped {
        /// The token.
        id: u32,
        /// What was asked for.
        from: f64,
        /// What is used.
        to: f64,
    },
}

/// A checked, ordered chain of rules. The empty chain draws from softmax(z).
///
/// Serialised as the bare list of its rules; the notes of a preset are told apart from it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<Rule>", into = "Vec<Rule>")]
pub struct Rules {
    chain: Vec<Rule>,
    notes: Vec<Note>,
}

impl Rules {
    /// Checks a chain: every number within its rule, edits before shaping rules.
    ///
    /// # Errors
    /// [`RulesError::Value`] or [`RulesError::Order`], for the first rule at fault.
    pub fn new(chain: Vec<Rule>) -> Result<Self, RulesError> {
        Self::with_notes(chain, Vec::new())
    }

    pub(crate) fn with_notes(chain: Vec<Rule>, notes: Vec<Note>) -> Result<Self, RulesError> {
        let mut shaper = None;
        for (position, rule) in chain.iter().enumerate() {
            rule.check()?;
            match (rule.edits_logits(), shaper) {
                (true, Some(shaper)) => {
                    return Err(RulesError::Order { edit: rule.name(), position, shaper });
                }
                (false, None) => shaper = Some(rule.name()),
                _ => {}
            }
        }
        Ok(Self { chain, notes })
    }

    /// The chain that a system runs when a client that samples sends no settings at all.
    #[must_use]
    pub fn preset(preset: Preset) -> Self {
        let settings = Settings { preset, ..Settings::default() };
        // Defaults are accepted by their own system; a test goes through all of them.
        Self::from_settings(&settings).unwrap_or_default()
    }

    /// The chain that a system makes of these settings, in its order and with its edge meanings.
    ///
    /// # Errors
    /// [`RulesError`] for what that system rejects or does not have, and for numbers that mean
    /// nothing anywhere (NaN, a negative temperature).
    pub fn from_settings(settings: &Settings) -> Result<Self, RulesError> {
        settings.resolve()
    }

    /// The rules in order.
    #[must_use]
    pub fn chain(&self) -> &[Rule] {
        &self.chain
    }

    /// What a preset changed.
    #[must_use]
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Whether one of the rules is temperature 0, so that no draw is needed.
    #[must_use]
    pub fn is_greedy(&self) -> bool {
        self.chain.iter().any(|rule| matches!(rule, Rule::Temperature { t } if *t == 0.0))
    }

    /// How many of the rules edit logits; they stand first.
    pub(crate) fn num_edits(&self) -> usize {
        self.chain.iter().take_while(|rule| rule.edits_logits()).count()
    }
}

impl TryFrom<Vec<Rule>> for Rules {
    type Error = RulesError;

    fn try_from(chain: Vec<Rule>) -> Result<Self, RulesError> {
        Self::new(chain)
    }
}

impl From<Rules> for Vec<Rule> {
    fn from(rules: Rules) -> Self {
        rules.chain
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.name();
        match self {
            Self::Allow { ids } | Self::Ban { ids } => write!(f, "{name} {} tokens", ids.len()),
            Self::Bias { entries } => write!(f, "{name} {} tokens", entries.len()),
            Self::Repetition { penalty, window }
            | Self::Presence { penalty, window }
            | Self::Frequency { penalty, window } => write!(f, "{name} {penalty} ({window})"),
            Self::Temperature { t } if *t == 0.0 => write!(f, "{name} 0 (greedy)"),
            Self::Temperature { t } => write!(f, "{name} {t}"),
            Self::TopK { k, ties: Ties::Exact } => write!(f, "{name} {k}"),
            Self::TopK { k, ties: Ties::All } => write!(f, "{name} {k} (ties kept)"),
            Self::TopP { p, of: Measure::Kept, .. } => write!(f, "{name} {p}"),
            Self::TopP { p, of: Measure::Whole, .. } => write!(f, "{name} {p} (of the whole)"),
            Self::MinP { p } => write!(f, "{name} {p}"),
        }
    }
}

impl std::fmt::Display for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All => write!(f, "prompt and generated"),
            Self::Generated => write!(f, "generated"),
            Self::Last(n) => write!(f, "last {n}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(rule: Rule) -> bool {
        matches!(Rules::new(vec![rule]), Err(RulesError::Value { .. }))
    }

    #[test]
    fn bad_numbers_are_refused() {
        for t in [-1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1e-300] {
            assert!(refused(Rule::Temperature { t }), "{t}");
        }
        for p in [0.0, -0.1, 1.0000001, f64::NAN] {
            let of = Measure::Kept;
            assert!(refused(Rule::TopP { p, boundary: Boundary::Reach, of }), "{p}");
        }
        for p in [-0.1, 1.1, f64::NAN] {
            assert!(refused(Rule::MinP { p }), "{p}");
        }
        for penalty in [0.0, -2.0, f64::NAN, f64::INFINITY] {
            assert!(refused(Rule::Repetition { penalty, window: Window::All }), "{penalty}");
        }
        assert!(refused(Rule::Presence { penalty: f64::NAN, window: Window::All }));
        assert!(refused(Rule::Frequency { penalty: f64::INFINITY, window: Window::All }));
        assert!(refused(Rule::Bias { entries: vec![Bias { id: 0, add: f64::INFINITY }] }));
        assert!(!refused(Rule::Bias { entries: vec![Bias { id: 0, add: f64::NEG_INFINITY }] }));
    }

    #[test]
    fn an_edit_behind_a_filter_is_refused_with_both_names() {
        let top_k = Rule::TopK { k: 3, ties: Ties::Exact };
        let error = Rules::new(vec![top_k, Rule::Ban { ids: vec![1] }]).unwrap_err();
        assert_eq!(error, RulesError::Order { edit: "ban", position: 1, shaper: "top_k" });
    }

    #[test]
    fn chains_survive_json_and_bad_ones_do_not_enter() {
        let text = r#"[{"rule":"repetition","penalty":1.2,"window":{"last":64}},
            {"rule":"temperature","t":0.7},{"rule":"top_p","p":0.9}]"#;
        let rules: Rules = serde_json::from_str(text).unwrap();
        let again: Rules = serde_json::from_str(&serde_json::to_string(&rules).unwrap()).unwrap();
        assert_eq!(rules, again);
        assert!(serde_json::from_str::<Rules>(r#"[{"rule":"top_p","p":0}]"#).is_err());
        assert!(serde_json::from_str::<Rules>(r#"[{"rule":"top_q","p":1}]"#).is_err());
    }
}
