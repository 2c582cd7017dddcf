//! Files in TOML: where one is wrong, and what its writer may have meant.

use crate::error::CliError;
use models::{NgramConfig, RnnConfig, TransformerConfig};
use serde::Deserialize;
use std::path::Path;
use toml::de::{DeTable, Error, ValueDeserializer};
use train::TrainConfig;

/// Reads a file of `train`.
pub fn read(path: &Path) -> Result<TrainConfig, CliError> {
    let fail = |what: String| CliError::input(format!("{}: {what}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
    parse(&text).map_err(fail)
}

fn parse(text: &str) -> Result<TrainConfig, String> {
    toml::from_str(text).map_err(|e| place(text, &in_model(text).unwrap_or(e)))
}

/// What is wrong within `[model]`. Which keys it takes depends on its kind, so that the file's reader
/// knows no more than where the table begins.
fn in_model(text: &str) -> Option<Error> {
    let mut file = DeTable::parse(text).ok()?.into_inner();
    let mut model = file.remove("model")?;
    let toml::de::DeValue::Table(table) = model.get_mut() else { return None };
    let kind = table.remove("kind")?;
    let model = ValueDeserializer::from(model);
    match kind.get_ref().as_str()? {
        "transformer" => TransformerConfig::deserialize(model).err(),
        "rnn" => RnnConfig::deserialize(model).err(),
        "ngram" => NgramConfig::deserialize(model).err(),
        _ => None,
    }
}

/// The line, the key that stands there and what is wrong with it.
pub fn place(text: &str, error: &Error) -> String {
    let message = explain_unknown(error.message());
    let at = error.span().map_or(0, |span| span.start.min(text.len()));
    let number = 1 + text[..at].matches('\n').count();
    let key = text.lines().nth(number - 1).and_then(|line| line.split_once('='));
    match key {
        Some((key, _)) if !message.contains(key.trim()) => {
            format!("line {number}: {}: {message}", key.trim())
        }
        _ => format!("line {number}: {message}"),
    }
}

/// «unknown field `x`, expected one of `a`, `b`» with the nearest named first.
pub fn explain_unknown(message: &str) -> String {
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut words = message.split('`').skip(1).step_by(2);
    if !message.starts_with("unknown ") {
        return message;
    }
    let found = words.next().unwrap_or_default();
    let nearest = words.min_by_key(|w| strsim::damerau_levenshtein(found, w));
    let what = if message.starts_with("unknown field") { "key" } else { "value" };
    match nearest {
        Some(near) => format!("no {what} `{found}`; the nearest is `{near}`"),
        None => message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_named_by_its_line_and_key() {
        let model = "[train]\nbatch = 8\n[model]\nkind = 'transformer'\nhidden_size = 8\n";
        for (more, right) in [
            ("num_layers = 2\n", "line 6: no key `num_layers`; the nearest is `num_hidden_layers`"),
            (
                "num_hidden_layers = 'two'\n",
                "line 6: num_hidden_layers: invalid type: string \"two\", expected usize",
            ),
            ("mlp = 'gelu_tan'\n", "line 6: mlp: no value `gelu_tan`; the nearest is `gelu_tanh`"),
            ("", "line 3: missing field `num_hidden_layers`"),
            ("num_hidden_layers 2\n", "line 6: key with no value, expected `=`"),
        ] {
            assert_eq!(parse(&format!("{model}{more}")).unwrap_err(), right);
        }
        let train = "[model]\nkind = 'rnn'\nembedding_size = 4\nhidden_size = 4\n[train]\n";
        let wrong = parse(&format!("{train}batch = -3\n")).unwrap_err();
        assert!(wrong.starts_with("line 6: batch: invalid value: integer `-3`"), "{wrong}");
        let kind = parse("[model]\nkind = 'lstm'\n").unwrap_err();
        assert_eq!(kind, "line 2: kind: no value `lstm`; the nearest is `rnn`");
    }
}
