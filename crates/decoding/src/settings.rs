//! The numbers a person gives (temperature, top-k, …) and how a preset turns them into a chain.
//! The gate: whatever a system rejects is refused here, before any logits are seen.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::RulesError;
use crate::preset::{AtZero, Dialect, Edge, Preset, Slot};
use crate::rule::{Bias, Note, Rule, Rules, Window};

/// Whether the choice is drawn or the best token is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// Draw from what the rules keep.
    #[default]
    Sample,
    /// Take the best token after the edits; temperature and filters are left out.
    Greedy,
}

/// The settings of a request. What is left out takes the preset's default; a penalty of its
/// neutral value, or a filter that keeps all, does not enter the chain.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Whose order, edge meanings and defaults.
    pub preset: Preset,
    /// Draw or take the best.
    pub method: Method,
    /// Finite, at least 0.
    pub temperature: Option<f64>,
    /// How many best tokens stay; 0 (in some systems −1) turns it off.
    pub top_k: Option<i64>,
    /// Mass of the nucleus, at most 1.
    pub top_p: Option<f64>,
    /// Least probability as a share of the best token's, 0 to 1.
    pub min_p: Option<f64>,
    /// Divides or multiplies logits of tokens seen; 1 changes nothing.
    pub repetition_penalty: Option<f64>,
    /// Nats off the logits of tokens seen.
    pub presence_penalty: Option<f64>,
    /// Nats off the logits of tokens seen, an occurrence.
    pub frequency_penalty: Option<f64>,
    /// Penalties look at so many last tokens instead of the preset's window.
    pub penalty_window: Option<usize>,
    /// Token to nats added.
    pub logit_bias: BTreeMap<u32, f64>,
    /// Tokens that must not come.
    pub banned: Vec<u32>,
    /// The only tokens that may come; empty means no such limit.
    pub allowed: Vec<u32>,
}

impl Settings {
    pub(crate) fn resolve(&self) -> Result<Rules, RulesError> {
        let dialect = self.preset.dialect();
        let mut build = Build { settings: self, dialect, chain: Vec::new(), notes: Vec::new() };
        let temper = build.temper()?;
        self.reject_counts_where_absent(dialect)?;
        for slot in dialect.order {
            build.slot(*slot, temper)?;
        }
        if temper == Temper::GreedyAlone {
            build.chain.push(Rule::Temperature { t: 0.0 });
        }
        Rules::with_notes(build.chain, build.notes)
    }

    fn reject_counts_where_absent(&self, dialect: &Dialect) -> Result<(), RulesError> {
        let counts = [
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ];
        for (setting, value) in counts {
            if dialect.count_window.is_none() && value.is_some_and(|v| v != 0.0) {
                return Err(RulesError::Unsupported { preset: self.preset, setting });
            }
        }
        Ok(())
    }
}

/// What temperature and method come to.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Temper {
    At(f64),
    GreedyAlone,
    TopOne,
}

struct Build<'a> {
    settings: &'a Settings,
    dialect: &'static Dialect,
    chain: Vec<Rule>,
    notes: Vec<Note>,
}

impl Build<'_> {
    fn reject<T>(
        &self,
        setting: &'static str,
        found: f64,
        (expected, hint): (&'static str, &'static str),
    ) -> Result<T, RulesError> {
        Err(RulesError::Rejected { preset: self.settings.preset, setting, found, expected, hint })
    }

    fn temper(&mut self) -> Result<Temper, RulesError> {
        let dialect = self.dialect;
        let t = self.settings.temperature.unwrap_or(dialect.defaults.temperature);
        Rules::new(vec![Rule::Temperature { t }])?;
        if self.settings.method == Method::Greedy {
            return Ok(Temper::GreedyAlone);
        }
        if t > dialect.temperature_ceiling {
            return self.reject("temperature", t, ("at most 2", "lower it"));
        }
        match dialect.temperature_zero {
            AtZero::TopOne { below } if t < below => return Ok(Temper::TopOne),
            AtZero::GreedyAlone if t == 0.0 => return Ok(Temper::GreedyAlone),
            AtZero::Rejected if t == 0.0 => {
                return self.reject("temperature", t, ("above 0 while sampling", "ask for greedy"));
            }
            _ => {}
        }
        if t > 0.0 && t < dialect.temperature_floor {
            let to = dialect.temperature_floor;
            self.notes.push(Note::TemperatureRaised { from: t, to });
            return Ok(Temper::At(to));
        }
        Ok(Temper::At(t))
    }

    fn slot(&mut self, slot: Slot, temper: Temper) -> Result<(), RulesError> {
        let settings = self.settings;
        let rule = match slot {
            Slot::Allow => {
                let ids = settings.allowed.clone();
                (!ids.is_empty()).then_some(Rule::Allow { ids })
            }
            Slot::Ban => {
                let ids = settings.banned.clone();
                (!ids.is_empty()).then_some(Rule::Ban { ids })
            }
            Slot::Bias => self.bias(),
            Slot::Repetition => self.repetition()?,
            Slot::Frequency => self
                .count("frequency_penalty", settings.frequency_penalty)?
                .map(|(penalty, window)| Rule::Frequency { penalty, window }),
            Slot::Presence => self
                .count("presence_penalty", settings.presence_penalty)?
                .map(|(penalty, window)| Rule::Presence { penalty, window }),
            Slot::Temperature => match temper {
                Temper::At(t) if t != 1.0 => Some(Rule::Temperature { t }),
                _ => None,
            },
            Slot::TopK => self.top_k(temper)?,
            Slot::TopP => self.top_p()?.filter(|_| temper != Temper::GreedyAlone),
            Slot::MinP => self.min_p()?.filter(|_| temper != Temper::GreedyAlone),
        };
        self.chain.extend(rule);
        Ok(())
    }

    fn bias(&mut self) -> Option<Rule> {
        let limit = self.dialect.bias_limit;
        let mut entries = Vec::with_capacity(self.settings.logit_bias.len());
        for (&id, &from) in &self.settings.logit_bias {
            // A NaN passes through and is refused with the chain.
            let add = if from > limit {
                limit
            } else if from < -limit {
                -limit
            } else {
                from
            };
            if add != from && !from.is_nan() {
                self.notes.push(Note::BiasClamped { id, from, to: add });
            }
            entries.push(Bias { id, add });
        }
        (!entries.is_empty()).then_some(Rule::Bias { entries })
    }

    fn window(&self, usual: Window) -> Window {
        self.settings.penalty_window.map_or(usual, Window::Last)
    }

    fn repetition(&self) -> Result<Option<Rule>, RulesError> {
        let Some(penalty) = self.settings.repetition_penalty else { return Ok(None) };
        if penalty > self.dialect.repetition_ceiling {
            return self.reject("repetition_penalty", penalty, ("at most 2", "lower it"));
        }
        let window = self.window(self.dialect.repetition_window);
        Ok((penalty != 1.0).then_some(Rule::Repetition { penalty, window }))
    }

    fn count(
        &self,
        setting: &'static str,
        value: Option<f64>,
    ) -> Result<Option<(f64, Window)>, RulesError> {
        let (Some(penalty), Some(usual)) = (value, self.dialect.count_window) else {
            return Ok(None);
        };
        if penalty.abs() > self.dialect.count_limit {
            return self.reject(setting, penalty, ("from -2 to 2", "bring it nearer to 0"));
        }
        Ok((penalty != 0.0).then_some((penalty, self.window(usual))))
    }

    fn top_k(&self, temper: Temper) -> Result<Option<Rule>, RulesError> {
        let k = self.settings.top_k.unwrap_or(self.dialect.defaults.top_k);
        let ties = self.dialect.top_k_ties;
        let edge = match k {
            0 => self.dialect.top_k_zero,
            -1 => self.dialect.top_k_minus_one,
            ..-1 => Edge::Rejected,
            _ => Edge::KeepsOne,
        };
        if edge == Edge::Rejected {
            let off = match self.dialect.top_k_zero {
                Edge::Rejected => ("1 or above, or -1 for all", "use -1 to turn it off"),
                _ => ("0 or above", "use 0 to turn it off"),
            };
            return self.reject("top_k", k as f64, off);
        }
        Ok(match (temper, edge) {
            (Temper::GreedyAlone, _) => None,
            (Temper::TopOne, _) => Some(Rule::TopK { k: 1, ties }),
            (_, Edge::Off) => None,
            // Beyond the address space is beyond any vocabulary.
            _ => Some(Rule::TopK { k: usize::try_from(k).unwrap_or(usize::MAX), ties }),
        })
    }

    fn top_p(&self) -> Result<Option<Rule>, RulesError> {
        let p = self.settings.top_p.unwrap_or(self.dialect.defaults.top_p);
        if p == 0.0 {
            return match self.dialect.top_p_zero {
                Edge::KeepsOne => Ok(Some(Rule::TopK { k: 1, ties: Default::default() })),
                Edge::Off => Ok(None),
                Edge::Rejected => self.reject("top_p", p, ("above 0 and at most 1", "1 keeps all")),
            };
        }
        let (boundary, of) = (self.dialect.top_p_boundary, self.dialect.top_p_of);
        let rule = Rule::TopP { p, boundary, of };
        rule.check()?;
        Ok((p != 1.0).then_some(rule))
    }

    fn min_p(&self) -> Result<Option<Rule>, RulesError> {
        let p = self.settings.min_p.unwrap_or(self.dialect.defaults.min_p);
        let rule = Rule::MinP { p };
        rule.check()?;
        Ok((p != 0.0).then_some(rule))
    }
}
