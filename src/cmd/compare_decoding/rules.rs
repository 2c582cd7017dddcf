//! The rules of `compare-decoding`: a standard list, and more from a TOML file.

use crate::cmd::config_file;
use crate::cmd::generate::Search;
use crate::cmd::model::Opened;
use crate::error::CliError;
use decoding::beam::Patience;
use decoding::{Method, Rules, Settings};
use engine::BeamSearch;
use serde::Deserialize;
use std::path::Path;

/// A rule that takes part.
pub struct Contender {
    /// Its name.
    pub name: String,
    /// Its chain, behind the ban of what never comes.
    pub rules: Rules,
    /// The search, if it is one.
    pub search: Option<Search>,
}

impl Contender {
    /// The chain or search in words.
    pub fn words(&self) -> String {
        let rules: Vec<String> = self.rules.chain().iter().map(ToString::to_string).collect();
        let search = match &self.search {
            None => "draw".to_owned(),
            Some(Search::Beam(beam)) => {
                format!("beam {}, length penalty {}", beam.width, beam.length_exponent)
            }
            Some(Search::BestOf { samples, length_exponent, .. }) => {
                format!("best of {samples} draws, length penalty {length_exponent}")
            }
        };
        [rules, vec![search]].concat().join(" → ")
    }
}

/// A file of rules.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    rule: Vec<Entry>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    #[serde(default)]
    settings: Settings,
    beam: Option<usize>,
    best_of: Option<usize>,
    length_penalty: Option<f64>,
}

impl Entry {
    fn new(name: &str, settings: Settings) -> Self {
        Self { name: name.to_owned(), settings, ..Self::default() }
    }

    fn contender(&self, opened: &Opened) -> Result<Contender, CliError> {
        let fail = |what: String| CliError::input(format!("rule `{}`: {what}", self.name));
        let length_exponent = self.length_penalty.unwrap_or(1.0);
        if !(length_exponent.is_finite() && length_exponent >= 0.0) {
            return Err(fail(format!("length_penalty {length_exponent}: expected 0 or above")));
        }
        let search = match (self.beam, self.best_of) {
            (None, None) if self.length_penalty.is_some() => {
                return Err(fail("length_penalty needs beam or best_of".to_owned()));
            }
            (None, None) => None,
            (Some(width @ 1..=1024), None) => {
                Some(Search::Beam(BeamSearch { width, length_exponent, patience: Patience::Exact }))
            }
            (None, Some(samples @ 1..=1024)) => {
                Some(Search::BestOf { samples, length_exponent, first_sequence: 0 })
            }
            (Some(_), Some(_)) => return Err(fail("beam and best_of exclude each other".into())),
            (Some(n), None) | (None, Some(n)) => {
                return Err(fail(format!("found {n}, expected 1 to 1024")));
            }
        };
        let asked = Rules::from_settings(&self.settings).map_err(|e| fail(e.to_string()))?;
        let rules = opened.rules(&asked, false)?;
        Ok(Contender { name: self.name.clone(), rules, search })
    }
}

fn standard() -> Vec<Entry> {
    let none = Settings::default;
    let temperature = |t| Settings { temperature: Some(t), ..none() };
    let combined =
        Settings { top_k: Some(40), top_p: Some(0.95), min_p: Some(0.02), ..temperature(0.8) };
    vec![
        Entry::new("greedy", Settings { method: Method::Greedy, ..none() }),
        Entry::new("T 0.7", temperature(0.7)),
        Entry::new("T 1.0", none()),
        Entry::new("top-k 40", Settings { top_k: Some(40), ..none() }),
        Entry::new("top-p 0.9", Settings { top_p: Some(0.9), ..none() }),
        Entry::new("min-p 0.05", Settings { min_p: Some(0.05), ..none() }),
        Entry::new("combined", combined),
        Entry { beam: Some(4), ..Entry::new("beam 4", none()) },
    ]
}

/// The standard list, or a file's.
pub fn contenders(file: Option<&Path>, opened: &Opened) -> Result<Vec<Contender>, CliError> {
    let entries = match file {
        None => standard(),
        Some(path) => {
            let at = |what: String| CliError::input(format!("{}: {what}", path.display()));
            let text = std::fs::read_to_string(path).map_err(|e| at(e.to_string()))?;
            let file: File =
                toml::from_str(&text).map_err(|e| at(config_file::place(&text, &e)))?;
            if file.rule.is_empty() {
                return Err(at("no [[rule]]; give at least one".to_owned()));
            }
            file.rule
        }
    };
    if let Some((_, twice)) = entries
        .iter()
        .enumerate()
        .find(|(place, one)| entries[..*place].iter().any(|other| other.name == one.name))
    {
        return Err(CliError::input(format!("two rules are called `{}`; rename one", twice.name)));
    }
    entries.iter().map(|entry| entry.contender(opened)).collect()
}
