//! Decoding rules against each other: the same weights, the same prompts, different outputs.
//!
//! ```text
//! Study (prompts, a text a prompt for each rule) ──► Findings ──► decoding::{terminal, json, html}
//! ```
//!
//! What it is not: it runs no model and knows no rule, only their names and what they wrote. Every
//! measure is defined in [`Measure`]; intervals come from resampling the prompts' groups.

mod json;
mod measures;
mod page;
mod terminal;

pub use json::json;
pub use measures::{Measure, Measured};
pub use page::html;
pub use terminal::terminal;

use crate::MachineAudit;
use crate::report::numbers::counted;

/// What every form of the report is called.
pub const TITLE: &str = "inference choices: same weights, different outputs";
/// Confidence of every interval.
pub const CONFIDENCE: f64 = 0.95;
/// Draws of the bootstrap.
const DRAWS: usize = 2000;

/// What a rule wrote after a prompt, or what the message goes on with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Text {
    /// Its tokens without the one that ends it.
    pub ids: Vec<u32>,
    /// Whether an end token came.
    pub ended: bool,
    /// Sum of the model's log-probabilities, nats, the end token's included.
    pub logprob: f64,
    /// Seconds from the prompt to the last token; none for a reference.
    pub seconds: Option<f64>,
}

/// A prompt and what truly follows it.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// The group that it is drawn with: a thread, a sender.
    pub group: u32,
    /// What follows it in the message, cut at the same cap as the rules' texts.
    pub reference: Text,
}

/// One rule and what it wrote.
#[derive(Clone, Debug)]
pub struct Arm {
    /// Its name.
    pub name: String,
    /// Its chain or search, in words.
    pub rule: String,
    /// A text a prompt, in their order.
    pub texts: Vec<Text>,
}

/// A prompt with all its continuations, as people read them.
#[derive(Clone, Debug)]
pub struct Example {
    /// The prompt.
    pub prompt: String,
    /// What truly follows.
    pub reference: String,
    /// What each rule wrote, in the order of the arms.
    pub texts: Vec<String>,
}

/// What was held fixed.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The model: its folder and kind.
    pub model: String,
    /// SHA-256 of its weights.
    pub digest: String,
    /// The data.
    pub data: String,
    /// Whether the data was invented by the program.
    pub synthetic: bool,
    /// Side of the data that the prompts come from.
    pub split: String,
    /// Tokens of a prompt, `<bos>` not counted.
    pub prompt_tokens: usize,
    /// New tokens at most.
    pub max_tokens: usize,
    /// Seed of the draws and of the choice of prompts.
    pub seed: u64,
    /// The program's version.
    pub version: String,
    /// Where the times were measured.
    pub machine: MachineAudit,
}

/// All that was measured.
#[derive(Clone, Debug)]
pub struct Study {
    /// What was held fixed.
    pub facts: Facts,
    /// The prompts.
    pub prompts: Vec<Prompt>,
    /// The rules.
    pub arms: Vec<Arm>,
    /// Some prompts to read.
    pub examples: Vec<Example>,
}

/// One row of the table: a rule, or the reference.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its chain in words.
    pub rule: &'a str,
    /// Which series it is; none for the reference.
    pub series: Option<usize>,
    /// The measures in the order of [`Measure::ALL`]; none where one means nothing.
    values: Vec<Option<Measured>>,
}

impl Row<'_> {
    /// A measure of this row.
    pub fn value(&self, measure: Measure) -> Option<Measured> {
        self.values.get(measure as usize).copied().flatten()
    }
}

/// What the texts come to.
#[derive(Clone, Debug)]
pub struct Findings<'a> {
    /// What was measured.
    pub study: &'a Study,
    /// The reference, then the rules.
    pub rows: Vec<Row<'a>>,
}

impl<'a> Findings<'a> {
    /// Works out every measure of every rule with its interval.
    pub fn new(study: &'a Study) -> Findings<'a> {
        let references: Vec<&Text> = study.prompts.iter().map(|prompt| &prompt.reference).collect();
        let groups: Vec<u32> = study.prompts.iter().map(|prompt| prompt.group).collect();
        let row = |name, rule, series, texts: &[&Text]| Row {
            name,
            rule,
            series,
            values: Measure::ALL
                .iter()
                .map(|measure| {
                    let fits = series.is_some() || measure.fits_the_reference();
                    fits.then(|| measure.estimate(texts, &references, &groups)).flatten()
                })
                .collect(),
        };
        let mut rows = vec![row("reference", "what the messages go on with", None, &references)];
        for (series, arm) in study.arms.iter().enumerate() {
            let texts: Vec<&Text> = arm.texts.iter().collect();
            rows.push(row(&arm.name, &arm.rule, Some(series), &texts));
        }
        Findings { study, rows }
    }

    /// What was held fixed, in a sentence.
    fn lead(&self) -> String {
        let facts = &self.study.facts;
        format!(
            "{} on {}, {} side: {} of {} from {}, {} at most, seed {}",
            facts.model,
            facts.data,
            facts.split,
            counted(self.study.prompts.len(), "prompt"),
            counted(facts.prompt_tokens, "token"),
            counted(self.num_groups(), "group"),
            counted(facts.max_tokens, "new token"),
            facts.seed
        )
    }

    /// Why there are no intervals, if there are none.
    fn note(&self) -> Option<&'static str> {
        (self.num_groups() < 2).then_some(
            "no intervals: all prompts come from one group, which says nothing of how another would \
             differ; give more --prompts, or data with more groups on this side",
        )
    }

    fn num_groups(&self) -> usize {
        let groups = self.study.prompts.iter().map(|prompt| prompt.group);
        groups.collect::<std::collections::BTreeSet<_>>().len()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Ten prompts in five groups; `flat` says the same token for ever, `rich` the reference.
    pub(crate) fn study() -> Study {
        let text = |ids: Vec<u32>, each: f64| Text {
            logprob: -each * (ids.len() + 1) as f64,
            ids,
            ended: true,
            seconds: Some(0.002),
        };
        let reference = |i: u32| text((0..8).map(|t| 10 * i + t).collect(), 2.0);
        let arm = |name: &str, make: &dyn Fn(u32) -> Text| Arm {
            name: name.to_owned(),
            rule: format!("rule of <{name}>"),
            texts: (0..10).map(make).collect(),
        };
        Study {
            facts: Facts {
                model: "runs/t1 (rnn)".to_owned(),
                digest: "0".repeat(64),
                data: "invented <mail>".to_owned(),
                synthetic: true,
                split: "test".to_owned(),
                prompt_tokens: 3,
                max_tokens: 20,
                seed: 4,
                version: "0.0.0".to_owned(),
                machine: MachineAudit::default(),
            },
            prompts: (0..10)
                .map(|i| Prompt { group: i / 2, reference: Text { seconds: None, ..reference(i) } })
                .collect(),
            arms: vec![
                arm("flat", &|_| text(vec![7; 12], 0.5)),
                arm("rich", &|i| reference(i)),
                arm("mixed", &|i| {
                    text(vec![i % 3, 1, 2, i % 3, 1, 2, 5, 6 + i % 2], 1.0 + 0.1 * f64::from(i))
                }),
            ],
            examples: vec![Example {
                prompt: "please <send>".to_owned(),
                reference: "the report".to_owned(),
                texts: vec!["me me me".to_owned(), "the report".to_owned(), String::new()],
            }],
        }
    }

    /// The same with all prompts in one group.
    pub fn one_group() -> Study {
        let mut study = study();
        study.prompts.iter_mut().for_each(|prompt| prompt.group = 3);
        study
    }

    #[test]
    fn rows_are_the_reference_and_the_rules() {
        let study = study();
        let found = Findings::new(&study);
        let names: Vec<_> = found.rows.iter().map(|row| row.name).collect();
        assert_eq!(names, ["reference", "flat", "rich", "mixed"]);
        let mean = |row: usize, measure| found.rows[row].value(measure).map(|value| value.mean);
        assert_eq!(mean(1, Measure::Distinct1), Some(1.0 / 12.0));
        assert_eq!(mean(2, Measure::Distinct3), Some(1.0));
        assert_eq!(mean(2, Measure::Overlap), Some(1.0));
        assert_eq!(mean(0, Measure::Overlap), None);
        assert_eq!(mean(0, Measure::Milliseconds), None);
        assert_eq!(mean(0, Measure::Length), Some(8.0));
        assert!((mean(1, Measure::Repetition).unwrap() - 8.0 / 9.0).abs() < 1e-12);
        assert_eq!(found.rows[0].values.len(), Measure::ALL.len());
        assert_eq!(mean(1, Measure::LogProbability), Some(-0.5));
        let mixed = found.rows[3].value(Measure::LogProbability).unwrap();
        let interval = mixed.interval.unwrap();
        assert!(interval.low < mixed.mean && mixed.mean < interval.high, "{mixed:?}");
        assert!(found.lead().contains("10 prompts of 3 tokens from 5 groups"), "{}", found.lead());
    }
}
