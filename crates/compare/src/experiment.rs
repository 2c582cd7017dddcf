//! What is varied and what is held, fixed before the first run.
//!
//! An experiment is a TOML file or [`Experiment::standard`]. The settings of a model and of
//! training are carried as tables and checked by whoever trains; every other key is checked here.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Error, Result};

/// The kinds of models that may join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ArmKind {
    /// Every entry of the vocabulary alike: loss is the logarithm of its size.
    Uniform,
    /// The frequencies of the training side, whatever came before.
    Unigram,
    /// Counts of pairs, smoothing chosen on the validation side.
    Bigram,
    /// Interpolated Kneser–Ney counts.
    Ngram,
    /// A simple recurrent network.
    Rnn,
    /// A causal transformer.
    Transformer,
}

impl ArmKind {
    /// Anchors are rows that any model must beat; no verdict is passed on them.
    pub fn is_anchor(self) -> bool {
        matches!(self, ArmKind::Uniform | ArmKind::Unigram)
    }

    /// Whether the seed changes nothing, so that one run says all.
    pub fn is_deterministic(self) -> bool {
        !matches!(self, ArmKind::Rnn | ArmKind::Transformer)
    }

    /// The word for it in an experiment file.
    pub fn word(self) -> &'static str {
        match self {
            ArmKind::Uniform => "uniform",
            ArmKind::Unigram => "unigram",
            ArmKind::Bigram => "bigram",
            ArmKind::Ngram => "ngram",
            ArmKind::Rnn => "rnn",
            ArmKind::Transformer => "transformer",
        }
    }
}

/// One row of the comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arm {
    /// Its name in every table; no two arms share one.
    pub name: String,
    /// The kind of model.
    pub kind: ArmKind,
    /// The model's numbers, as in a model's own configuration; missing ones are that kind's defaults.
    #[serde(default)]
    pub model: toml::Table,
    /// Training settings of this arm alone, over those of the experiment.
    #[serde(default)]
    pub train: toml::Table,
}

/// A comparison: fixed before its first run, and known by its digest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// A name for the heading.
    pub name: String,
    /// The smallest difference worth a verdict, nats a token, declared beforehand.
    #[serde(default = "defaults::margin_nats")]
    pub margin_nats: f64,
    /// Confidence of intervals; 0.95.
    #[serde(default = "defaults::confidence")]
    pub confidence: f64,
    /// Bootstrap draws; raised where many pairs need a finer tail.
    #[serde(default = "defaults::draws")]
    pub draws: usize,
    /// Seeds of initial weights and order of the data; the same for every arm.
    #[serde(default = "defaults::seeds")]
    pub seeds: Vec<u64>,
    /// Passes over the training side.
    #[serde(default = "defaults::epochs")]
    pub epochs: u32,
    /// Prompts whose next tokens are shown.
    #[serde(default = "defaults::prompts")]
    pub prompts: Vec<String>,
    /// How many next tokens are shown for a prompt.
    #[serde(default = "defaults::top_next")]
    pub top_next: usize,
    /// Training settings shared by all arms: the same budget for each.
    #[serde(default)]
    pub train: toml::Table,
    /// The rows.
    #[serde(rename = "arm")]
    pub arms: Vec<Arm>,
}

mod defaults {
    pub(super) fn margin_nats() -> f64 {
        0.02
    }
    pub(super) fn confidence() -> f64 {
        0.95
    }
    pub(super) fn draws() -> usize {
        10_000
    }
    pub(super) fn seeds() -> Vec<u64> {
        (1..=6).collect()
    }
    pub(super) fn epochs() -> u32 {
        8
    }
    pub(super) fn prompts() -> Vec<String> {
        vec!["please send the".to_owned()]
    }
    pub(super) fn top_next() -> usize {
        8
    }
}

impl Experiment {
    /// Three models and two anchors, eight epochs, six seeds.
    pub fn standard() -> Experiment {
        let kinds = [
            ArmKind::Uniform,
            ArmKind::Unigram,
            ArmKind::Bigram,
            ArmKind::Rnn,
            ArmKind::Transformer,
        ];
        let arm = |kind: ArmKind| Arm {
            name: kind.word().to_owned(),
            kind,
            model: toml::Table::new(),
            train: toml::Table::new(),
        };
        Experiment {
            name: "email completion".to_owned(),
            margin_nats: defaults::margin_nats(),
            confidence: defaults::confidence(),
            draws: defaults::draws(),
            seeds: defaults::seeds(),
            epochs: defaults::epochs(),
            prompts: defaults::prompts(),
            top_next: defaults::top_next(),
            train: toml::Table::new(),
            arms: kinds.into_iter().map(arm).collect(),
        }
    }

    /// The row `tuned`: a transformer within the parameters of the small one, with what the validation
    /// side chose of architecture and recipe (docs/tuning.md).
    pub fn tuned() -> Arm {
        let text = |word: &str| toml::Value::String(word.to_owned());
        let model = [
            ("hidden_size", 96.into()),
            ("num_hidden_layers", 4.into()),
            ("distinct_layers", 2.into()),
            ("num_attention_heads", 4.into()),
            ("intermediate_size", 400.into()),
            ("norm", text("rms")),
            ("positions", text("rotary")),
            ("mlp", text("relu2")),
            ("bias", false.into()),
            ("head_bias", true.into()),
            ("tie_word_embeddings", true.into()),
            ("qk_norm", true.into()),
        ];
        let train = [
            ("optimizer", text("muon")),
            ("learning_rate", 0.02.into()),
            ("muon_learning_rate", 0.04.into()),
            ("muon_weight_decay", 0.02.into()),
            ("embedding_decay", 0.02.into()),
            ("final_share", 0.0.into()),
            ("dropout", 0.1.into()),
            ("average", 0.998.into()),
        ];
        let table = |entries: &[(&str, toml::Value)]| -> toml::Table {
            entries.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
        };
        let (model, train) = (table(&model), table(&train));
        Arm { name: "tuned".to_owned(), kind: ArmKind::Transformer, model, train }
    }

    /// Reads an experiment; `origin` is the file's name for messages.
    ///
    /// # Errors
    /// Not TOML, an unknown key or kind (the nearest is named), a value out of range.
    pub fn from_toml(text: &str, origin: &str) -> Result<Experiment> {
        let read: std::result::Result<Experiment, _> = toml::from_str(text);
        let experiment = read.map_err(|error| explain(text, origin, &error))?;
        experiment.check(origin)?;
        Ok(experiment)
    }

    /// The experiment as TOML; reading it gives the same experiment.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_else(|error| format!("# cannot be written: {error}\n"))
    }

    /// SHA-256 of all that is fixed, the first sixteen hexadecimal digits.
    pub fn digest(&self) -> String {
        hexadecimal(&[&self.to_toml()])
    }

    /// Digest of all that fixes one run of an arm: its settings, the shared ones, the epochs, the
    /// seed and the data (`data` is a hash of it).
    pub fn run_digest(&self, arm: &Arm, seed: u64, data: &str) -> String {
        let tables = [&arm.model, &self.train, &arm.train].map(ToString::to_string);
        let [model, shared, own] = tables.each_ref().map(String::as_str);
        let numbers = format!("{} {seed}", self.epochs);
        hexadecimal(&[arm.kind.word(), model, shared, own, &numbers, data])
    }

    /// All runs: within each seed arm by arm; an arm that no seed changes runs with the first only.
    pub fn runs(&self) -> Vec<(&Arm, u64)> {
        let seeds = self.seeds.iter().enumerate();
        let runs = seeds.flat_map(|(at, &seed)| {
            let arms = self.arms.iter().filter(move |arm| at == 0 || !arm.kind.is_deterministic());
            arms.map(move |arm| (arm, seed))
        });
        runs.collect()
    }

    fn check(&self, origin: &str) -> Result<()> {
        let wrong = |what: &str, expected: &str, found: String| {
            let (origin, what) = (origin.to_owned(), what.to_owned());
            Err(Error::Invalid { origin, what, expected: expected.to_owned(), found })
        };
        if !(self.margin_nats.is_finite() && self.margin_nats >= 0.0) {
            return wrong("margin_nats", "0 or more", self.margin_nats.to_string());
        }
        if !(self.confidence > 0.5 && self.confidence < 1.0) {
            return wrong("confidence", "between 0.5 and 1, as 0.95", self.confidence.to_string());
        }
        if !(100..=1_000_000).contains(&self.draws) {
            return wrong("draws", "100 to 1000000", self.draws.to_string());
        }
        if self.epochs == 0 {
            return wrong("epochs", "1 or more", "0".to_owned());
        }
        if let Some(twice) = repeated(&self.seeds) {
            return wrong("seeds", "different seeds", format!("{twice} twice"));
        }
        if self.seeds.is_empty() {
            return wrong("seeds", "at least one", "empty".to_owned());
        }
        let names: Vec<_> = self.arms.iter().map(|arm| arm.name.as_str()).collect();
        if let Some(twice) = repeated(&names) {
            return wrong("arm.name", "different names", format!("`{twice}` twice"));
        }
        if names.iter().any(|name| name.trim().is_empty()) {
            return wrong("arm.name", "a name", "empty".to_owned());
        }
        if names.is_empty() {
            return wrong("arm", "at least one [[arm]]", "missing".to_owned());
        }
        Ok(())
    }
}

fn repeated<T: PartialEq>(items: &[T]) -> Option<&T> {
    items.iter().enumerate().find(|(at, item)| items[..*at].contains(item)).map(|(_, item)| item)
}

fn hexadecimal(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// One line for a reader's error; an unknown word gets its nearest known one. The list of known
/// words is the reader's own, taken from its message, so that it cannot fall out of step.
fn explain(text: &str, origin: &str, error: &toml::de::Error) -> Error {
    let start = error.span().map_or(0, |span| span.start);
    let line = text.bytes().take(start).filter(|&byte| byte == b'\n').count() + 1;
    let message = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
    let origin = origin.to_owned();
    let what = match message.split_whitespace().nth(1) {
        Some("field") => "key",
        Some("variant") => "value",
        _ => return Error::Syntax { origin, line, message },
    };
    let mut words = message.split('`').skip(1).step_by(2);
    match (message.starts_with("unknown "), words.next()) {
        (true, Some(found)) => {
            let known: Vec<_> = words.collect();
            Error::Unknown {
                origin,
                line,
                what,
                found: found.to_owned(),
                hint: hint(found, &known),
            }
        }
        _ => Error::Syntax { origin, line, message },
    }
}

fn hint(found: &str, known: &[&str]) -> String {
    let near = known.iter().map(|word| (strsim::damerau_levenshtein(found, word), word));
    match near.min() {
        Some((distance, word)) if distance <= found.len().div_ceil(2) => {
            format!("the nearest known is `{word}`")
        }
        _ => format!("known: {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn error(text: &str) -> String {
        Experiment::from_toml(text, "x.toml").unwrap_err().to_string()
    }

    #[test]
    fn standard_survives_toml_and_keeps_its_digest() {
        let standard = Experiment::standard();
        let read = Experiment::from_toml(&standard.to_toml(), "x.toml").unwrap();
        assert_eq!(read, standard);
        assert_eq!(read.digest(), standard.digest());
        assert_ne!(Experiment { epochs: 9, ..read }.digest(), standard.digest());
    }

    #[test]
    fn any_model_configuration_may_join() {
        let text = "name = 'wide'\nseeds = [1, 2]\n[train]\nlearning_rate = 3e-3\n\
                    [[arm]]\nname = 'bigram'\nkind = 'bigram'\n\
                    [[arm]]\nname = 'wide'\nkind = 'transformer'\nmodel = { hidden = 128 }\n";
        let experiment = Experiment::from_toml(text, "x.toml").unwrap();
        assert_eq!(experiment.arms[1].model["hidden"].as_integer(), Some(128));
        let runs: Vec<_> =
            experiment.runs().iter().map(|(arm, seed)| (arm.name.clone(), *seed)).collect();
        let expected = [("bigram", 1), ("wide", 1), ("wide", 2)];
        assert_eq!(runs, expected.map(|(name, seed)| (name.to_owned(), seed)));
    }

    #[test]
    fn an_unknown_key_names_the_nearest_and_its_line() {
        let text = "name = 'x'\nmargin_nat = 0.1\n[[arm]]\nname = 'a'\nkind = 'rnn'\n";
        let message = error(text);
        assert!(message.contains("line 2"), "{message}");
        assert!(message.contains("`margin_nat`; the nearest known is `margin_nats`"), "{message}");
        let message = error("name = 'x'\n[[arm]]\nname = 'a'\nkind = 'rnnn'\n");
        assert!(message.contains("line 4"), "{message}");
        assert!(message.contains("value `rnnn`; the nearest known is `rnn`"), "{message}");
        let message = error("name = 'x'\n[[arm]]\nname = 'a'\nkind = 'rnn'\nzzzzzzzz = 1\n");
        assert!(message.contains("known: name, kind, model, train"), "{message}");
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let arm = "[[arm]]\nname = 'a'\nkind = 'rnn'\n";
        let cases = [
            (format!("name='x'\nseeds=[]\n{arm}"), "seeds is empty"),
            (format!("name='x'\nseeds=[1,2,1]\n{arm}"), "seeds is 1 twice"),
            (format!("name='x'\nepochs=0\n{arm}"), "epochs is 0"),
            (format!("name='x'\nmargin_nats=-0.1\n{arm}"), "margin_nats is -0.1"),
            (format!("name='x'\nconfidence=1.0\n{arm}"), "confidence is 1"),
            (format!("name='x'\n{arm}{arm}"), "`a` twice"),
            ("name='x'\narm=[]\n".to_owned(), "arm is missing"),
            ("name='x'\n".to_owned(), "missing field `arm`"),
            ("name=\n".to_owned(), "line 1"),
        ];
        for (text, expected) in cases {
            let message = error(&text);
            assert!(message.contains(expected), "{message} lacks {expected}");
            assert!(!message.contains('\n'), "{message:?}");
        }
    }

    #[test]
    fn a_run_is_known_by_all_that_fixes_it() {
        let experiment = Experiment::standard();
        let arm = &experiment.arms[3];
        let digest = experiment.run_digest(arm, 1, "data");
        assert_eq!(digest, experiment.run_digest(arm, 1, "data"));
        assert_ne!(digest, experiment.run_digest(arm, 2, "data"));
        assert_ne!(digest, experiment.run_digest(arm, 1, "other"));
        let longer = Experiment { epochs: 9, ..experiment.clone() };
        assert_ne!(digest, longer.run_digest(arm, 1, "data"));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic_and_every_error_is_one_line(
            key in "[a-z`\"' \\n\\\\]{0,12}",
            value in "[-0-9a-z'\"\\[\\]{}.=\\n]{0,16}",
        ) {
            for text in [
                format!("{key} = {value}\n"),
                format!("name = 'x'\n\"{key}\" = 1\n[[arm]]\nname = 'a'\nkind = 'rnn'\n"),
                format!("name = 'x'\n[[arm]]\nname = 'a'\nkind = '{key}'\n"),
                format!("name = 'x'\nepochs = {value}\n[[arm]]\nname = 'a'\nkind = 'rnn'\n"),
            ] {
                if let Err(error) = Experiment::from_toml(&text, "x.toml") {
                    let message = error.to_string();
                    prop_assert!(!message.contains('\n') && message.starts_with("x.toml"), "{}", message);
                    prop_assert!(error.is_input());
                }
            }
        }
    }
}
