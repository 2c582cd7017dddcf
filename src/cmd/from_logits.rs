//! `autoreg generate --from-logits FILE.json`: the decoding rules on given logits or
//! probabilities, for lessons, for debugging other engines, for tests. No model is opened.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use decoding::{
    DecodeError, Draw, Explanation, History, Method, Preset, Row, Rule, RuleEffect, Rules,
    RulesError, Settings, explain,
};
use explain::{Colour, MAX_EXACT, MAX_SHOWN, Picture, Record, StepRecord};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The decoding settings as flags; shared by everything that generates.
#[derive(Debug, Clone, Default, Args)]
pub struct DecodingArgs {
    /// Order and edge meanings of the rules: autoreg, hf, vllm, llamacpp or sglang
    #[arg(long, value_name = "NAME", default_value = "autoreg")]
    pub preset: Preset,
    /// Take the best token instead of drawing
    #[arg(long, conflicts_with_all = ["top_k", "top_p", "min_p"])]
    pub greedy: bool,
    /// Softmax temperature; 0 means greedy
    #[arg(long, value_name = "T")]
    pub temperature: Option<f64>,
    /// Keep the K best tokens; 0 keeps all
    #[arg(long, value_name = "K")]
    pub top_k: Option<i64>,
    /// Keep the smallest set of best tokens whose mass reaches P
    #[arg(long, value_name = "P")]
    pub top_p: Option<f64>,
    /// Keep tokens at least P times as probable as the best
    #[arg(long, value_name = "P")]
    pub min_p: Option<f64>,
    /// Divide (positive) or multiply (negative) logits of tokens seen
    #[arg(long, value_name = "R")]
    pub repetition_penalty: Option<f64>,
    /// Subtract from the logits of tokens seen, once
    #[arg(long, value_name = "A")]
    pub presence_penalty: Option<f64>,
    /// Subtract from the logits of tokens seen, each time
    #[arg(long, value_name = "A")]
    pub frequency_penalty: Option<f64>,
    /// Penalties look at the last N tokens instead of the preset's window
    #[arg(long, value_name = "N")]
    pub penalty_window: Option<usize>,
    /// Add to a token's logit; may be given several times
    #[arg(long, value_name = "ID=NATS", value_parser = bias)]
    pub logit_bias: Vec<(u32, f64)>,
    /// Tokens that must not come
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub ban: Vec<u32>,
    /// The only tokens that may come
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub allow: Vec<u32>,
    /// The chain itself, as a JSON list of rules, instead of the settings above: [{"rule": "top_k",
    /// "k": 40}, {"rule": "temperature", "t": 0.7}]; docs/decoding.md has all of them
    #[arg(long, value_name = "FILE.json", conflicts_with_all = [
        "preset", "greedy", "temperature", "top_k", "top_p", "min_p", "repetition_penalty",
        "presence_penalty", "frequency_penalty", "penalty_window", "logit_bias", "ban", "allow",
    ])]
    pub rules: Option<PathBuf>,
}

fn bias(text: &str) -> Result<(u32, f64), String> {
    let parsed = text
        .split_once('=')
        .and_then(|(id, add)| Some((id.trim().parse().ok()?, add.trim().parse().ok()?)));
    parsed.ok_or_else(|| format!("found {text:?}, expected ID=NATS such as 17=-2.5"))
}

impl DecodingArgs {
    /// The flags as settings.
    pub fn settings(&self) -> Settings {
        Settings {
            preset: self.preset,
            method: if self.greedy { Method::Greedy } else { Method::Sample },
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            penalty_window: self.penalty_window,
            logit_bias: self.logit_bias.iter().copied().collect::<BTreeMap<_, _>>(),
            banned: self.ban.clone(),
            allowed: self.allow.clone(),
        }
    }

    /// The chain that the flags ask for.
    ///
    /// # Errors
    /// Settings that their preset refuses, or a rules file that cannot be read.
    pub fn rules(&self) -> Result<Rules, FromLogitsError> {
        match &self.rules {
            None => Ok(Rules::from_settings(&self.settings())?),
            Some(path) => {
                let hint = "give a file with a JSON list of rules, such as \
                            [{\"rule\": \"top_p\", \"p\": 0.9}]";
                Ok(Rules::new(parse::<Vec<Rule>>(path, &read(path, hint)?)?)?)
            }
        }
    }

    /// Checks what clap cannot: settings that would be ignored, and ids that are none.
    ///
    /// # Errors
    /// The flag, what is wrong, and what to try.
    pub fn check(&self, vocabulary: usize) -> Result<(), FromLogitsError> {
        let refuse = |what: String| Err(FromLogitsError::Flags { what });
        if let Some(t) = self.temperature.filter(|&t| self.greedy && t != 0.0) {
            return refuse(format!(
                "--greedy takes the best token and has no use for --temperature {t}; leave one out"
            ));
        }
        let bias: Vec<u32> = self.logit_bias.iter().map(|(id, _)| *id).collect();
        for (flag, ids) in [("--ban", &self.ban), ("--allow", &self.allow), ("--logit-bias", &bias)]
        {
            known(flag, ids, vocabulary)?;
        }
        let mut seen = BTreeSet::new();
        match bias.iter().find(|id| !seen.insert(**id)) {
            None => Ok(()),
            Some(id) => refuse(format!(
                "--logit-bias names token {id} twice; give one number, such as their sum"
            )),
        }
    }
}

/// Refuses ids that the vocabulary does not have.
///
/// # Errors
/// The first such id and the flag that names it.
pub fn known(flag: &str, ids: &[u32], vocabulary: usize) -> Result<(), FromLogitsError> {
    match ids.iter().find(|id| **id as usize >= vocabulary) {
        None => Ok(()),
        Some(id) => Err(FromLogitsError::Flags {
            what: format!(
                "{flag} names token {id}, but the vocabulary has {vocabulary} entries; give ids \
                 from 0 to {}",
                vocabulary.saturating_sub(1)
            ),
        }),
    }
}

/// Arguments of `generate --from-logits`.
#[derive(Debug, Clone)]
pub struct FromLogitsArgs {
    /// Where the row comes from
    pub title: String,
    /// The uniform number in [0, 1) instead of one from the seed
    pub draw: Option<f64>,
    /// Seed of the uniform number
    pub seed: u64,
    /// Step of the sequence, from 0; the uniform number depends on it
    pub step: u64,
    /// Tokens given, for the penalties
    pub prompt: Vec<u32>,
    /// Tokens generated behind them, for the penalties
    pub history: Vec<u32>,
    /// Show what the same settings keep under every preset
    pub compare_presets: bool,
    /// Print JSON
    pub json: bool,
    /// Also write a self-contained page with sliders
    pub report: Option<PathBuf>,
    /// The settings
    pub decoding: DecodingArgs,
}

/// Why given logits cannot be decoded. All but `Write` are the user's input.
#[derive(Debug, thiserror::Error)]
pub enum FromLogitsError {
    /// A file cannot be read.
    #[error("{path}: {source}; {hint}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
        /// What is wanted.
        hint: &'static str,
    },
    /// Flags that do not go together, or name what is not there.
    #[error("{what}")]
    Flags {
        /// Which, why, and what to try.
        what: String,
    },
    /// A file is not the JSON that is expected.
    #[error("{path}: {source}", path = path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// The JSON has another shape.
    #[error("{path}: found {found}, expected {expected}", path = path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// What there is.
        found: String,
        /// What there should be.
        expected: &'static str,
    },
    /// The settings.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// The choice.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The output cannot be written.
    #[error("cannot write {what}: {source}")]
    Write {
        /// The output.
        what: String,
        /// Why.
        source: std::io::Error,
    },
}

impl FromLogitsError {
    /// 2 for the user's input, 1 for a failed write.
    pub fn exit_code(&self) -> u8 {
        if matches!(self, Self::Write { .. }) { 1 } else { 2 }
    }
}

/// Runs the rules on a row and writes what they kept, drew and chose.
///
/// # Errors
/// [`FromLogitsError`]; nothing is written before the choice is made.
pub fn run(
    args: &FromLogitsArgs,
    given: &Given,
    out: &mut impl Write,
) -> Result<(), FromLogitsError> {
    let text =
        if args.compare_presets { compare_presets(args, given)? } else { one_choice(args, given)? };
    let what = "standard output".to_owned();
    out.write_all(text.as_bytes()).map_err(|source| FromLogitsError::Write { what, source })
}

fn one_choice(args: &FromLogitsArgs, given: &Given) -> Result<String, FromLogitsError> {
    let rules = args.decoding.rules()?;
    let told = given.explain(args, &rules)?;
    let label = |id| given.label(id);
    let step = StepRecord::new(args.step, &told, MAX_SHOWN, label);
    if let Some(path) = &args.report {
        let history = History::new(&args.prompt, &args.history);
        let step = step.clone().exact(&told, &mut { MAX_EXACT });
        let steps = vec![step.beside(&rules, given.row(), &history, label)?];
        let record = Record {
            title: args.title.clone(),
            prompt: args.prompt.iter().chain(&args.history).map(|&id| label(id)).collect(),
            rules: rules.chain().to_vec(),
            texts: super::generate::texts(&steps, label),
            steps,
            continuations: Vec::new(),
            teacher: None,
        };
        std::fs::write(path, explain::page(&record)).map_err(|source| FromLogitsError::Write {
            what: path.display().to_string(),
            source,
        })?;
    }
    if args.json {
        return Ok(json(&Answer::new(&told, given)));
    }
    let notes: String = rules.notes().iter().map(|note| format!("note: {note}\n")).collect();
    let colour = if crate::term::colours() { Colour::On } else { Colour::Off };
    Ok(notes + &explain::terminal(&step, Picture { colour, rows: 20, ..Picture::default() }))
}

/// The answer under `--json`; its keys are stable.
#[derive(Debug, Serialize)]
struct Answer {
    kept: Vec<KeptToken>,
    draw: Option<f64>,
    choice: u32,
    logprob: f64,
    sample_logprob: f64,
    steps: Vec<AnswerStep>,
}

#[derive(Debug, Serialize)]
struct KeptToken {
    id: u32,
    token: Option<String>,
    probability: f64,
}

/// One rule: its name, its numbers, and what it did.
#[derive(Debug, Serialize)]
struct AnswerStep {
    rule: String,
    settings: Value,
    dropped: Vec<u32>,
    changed: Vec<decoding::Changed>,
    kept: usize,
}

impl Answer {
    fn new(told: &Explanation, given: &Given) -> Self {
        let kept = |token: &decoding::Explained| KeptToken {
            id: token.id,
            token: given.token(token.id).map(str::to_owned),
            probability: token.probability,
        };
        Self {
            kept: told.kept().map(kept).collect(),
            draw: told.choice.draw,
            choice: told.choice.id,
            logprob: told.choice.logprob,
            sample_logprob: told.choice.sample_logprob,
            steps: told.rules.iter().map(AnswerStep::new).collect(),
        }
    }
}

impl AnswerStep {
    fn new(effect: &RuleEffect) -> Self {
        // A rule is data; its tag is told as the name.
        let mut settings = serde_json::to_value(&effect.rule).unwrap_or(Value::Null);
        if let Value::Object(fields) = &mut settings {
            fields.remove("rule");
        }
        Self {
            rule: effect.name().to_owned(),
            settings,
            dropped: effect.dropped.clone(),
            changed: effect.changed.clone(),
            kept: effect.kept,
        }
    }
}

/// What one preset makes of the settings.
#[derive(Debug, Serialize)]
struct Compared {
    preset: Preset,
    /// Why it refuses them, if it does.
    refused: Option<String>,
    rules: Vec<Rule>,
    notes: Vec<String>,
    answer: Option<Answer>,
}

fn compare_presets(args: &FromLogitsArgs, given: &Given) -> Result<String, FromLogitsError> {
    let mut rows = Vec::new();
    let asked = |preset| Rules::from_settings(&Settings { preset, ..args.decoding.settings() });
    // What no preset can use is bad input rather than something to compare.
    if let Some(Err(error)) =
        Preset::ALL.iter().all(|&preset| asked(preset).is_err()).then(|| asked(Preset::Autoreg))
    {
        return Err(error.into());
    }
    for preset in Preset::ALL {
        rows.push(match asked(preset) {
            Err(error @ RulesError::Value { .. }) => return Err(error.into()),
            Err(error) => Compared::refused(preset, &error),
            Ok(rules) => Compared {
                preset,
                refused: None,
                rules: rules.chain().to_vec(),
                notes: rules.notes().iter().map(ToString::to_string).collect(),
                answer: Some(Answer::new(&given.explain(args, &rules)?, given)),
            },
        });
    }
    Ok(if args.json { json(&rows) } else { rows.iter().map(|row| row.text(given)).collect() })
}

impl Compared {
    fn refused(preset: Preset, error: &RulesError) -> Self {
        let refused = Some(error.to_string());
        Self { preset, refused, rules: Vec::new(), notes: Vec::new(), answer: None }
    }

    /// The row for a terminal of 80 columns.
    fn text(&self, given: &Given) -> String {
        const MOST_NAMED: usize = 8;
        const WIDTH: usize = 80;
        let name = format!("{:<9} ", self.preset.name());
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let mut text = match &self.refused {
            Some(why) => explain::wrapped(&name, &words(&format!("refused: {why}")), " ", WIDTH),
            None if self.rules.is_empty() => format!("{name}no rules\n"),
            None => {
                let chain: Vec<_> = self.rules.iter().map(ToString::to_string).collect();
                explain::wrapped(&name, &chain, " →", WIDTH)
            }
        };
        let indent = " ".repeat(name.len());
        for note in &self.notes {
            text += &explain::wrapped(&indent, &words(&format!("note: {note}")), " ", WIDTH);
        }
        let Some(answer) = &self.answer else { return text };
        let label = |id| explain::visible(&given.label(id));
        let named = answer.kept.iter().take(MOST_NAMED);
        let mut named: Vec<_> =
            named.map(|token| format!("{} {:.4}", label(token.id), token.probability)).collect();
        if answer.kept.len() > MOST_NAMED {
            named.push("…".to_owned());
        }
        let keeps = format!("{indent}keeps {}: ", answer.kept.len());
        text += &explain::wrapped(&keeps, &named, ",", WIDTH);
        text + &explain::wrapped(&format!("{indent}chooses "), &[label(answer.choice)], "", WIDTH)
    }
}

/// A row of numbers, checked, and the texts of its tokens.
#[derive(Debug)]
pub struct Given {
    numbers: Numbers,
    tokens: Option<Vec<String>>,
    /// How the numbers are read, where that may not be what was meant.
    pub note: Option<String>,
}

#[derive(Debug)]
enum Numbers {
    Logits(Vec<f32>),
    Probabilities(Vec<f64>),
}

impl Numbers {
    /// What looks like something other than it is read as.
    fn doubt(&self, is_bare: bool) -> Option<String> {
        match self {
            Self::Logits(row) if is_bare => {
                let sum: f64 = row.iter().map(|&z| f64::from(z)).sum();
                let is_share = row.iter().all(|z| (0.0..=1.0).contains(z));
                (is_share && (sum - 1.0).abs() <= 1e-6).then(|| {
                    "note: the numbers look like probabilities and are read as logits; write \
                     {\"probs\": [...]} for probabilities, {\"logits\": [...]} to say logits"
                        .to_owned()
                })
            }
            Self::Logits(_) => None,
            Self::Probabilities(row) => {
                let sum: f64 = row.iter().sum();
                ((sum - 1.0).abs() > 1e-3).then(|| {
                    format!("note: the probabilities sum to {sum}; they are divided by it")
                })
            }
        }
    }
}

const EXPECTED: &str = "an array of numbers, or an object with `logits` or `probs` (one of the \
                        two) and, if wanted, `tokens`";

/// The object form.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    logits: Option<Vec<Value>>,
    probs: Option<Vec<Value>>,
    tokens: Option<Vec<String>>,
}

impl Given {
    /// A model's logits, with a text for each.
    pub fn of_model(logits: Vec<f32>, tokens: Vec<String>) -> Self {
        Self { numbers: Numbers::Logits(logits), tokens: Some(tokens), note: None }
    }

    /// Logits or probabilities from a file: a JSON array, or an object with `logits` or `probs`
    /// and, if wanted, `tokens` (their texts).
    ///
    /// # Errors
    /// A file that cannot be read or has another shape.
    pub fn open(path: &Path) -> Result<Self, FromLogitsError> {
        let value: Value = parse(
            path,
            &quote_bare_words(&read(path, "give a file with a JSON array of numbers")?),
        )?;
        let is_bare = value.is_array();
        let shape = |found: String| FromLogitsError::Shape {
            path: path.to_owned(),
            found,
            expected: EXPECTED,
        };
        let fields = match value {
            Value::Array(logits) => Fields { logits: Some(logits), probs: None, tokens: None },
            Value::Object(_) => serde_json::from_value(value)
                .map_err(|source| FromLogitsError::Json { path: path.to_owned(), source })?,
            other => return Err(shape(kind(&other).to_owned())),
        };
        let numbers = match (fields.logits, fields.probs) {
            (Some(logits), None) => {
                // Rounding to f32 is what a model's logits have been through.
                Numbers::Logits(numbers(path, &logits)?.into_iter().map(|z| z as f32).collect())
            }
            (None, Some(probs)) => {
                let probs = numbers(path, &probs)?;
                if !probs.is_empty() && probs.iter().all(|&p| p == 0.0) {
                    return Err(FromLogitsError::Shape {
                        path: path.to_owned(),
                        found: format!("{} probabilities that are all 0", probs.len()),
                        expected: "at least one above 0",
                    });
                }
                Numbers::Probabilities(probs)
            }
            (Some(_), Some(_)) => return Err(shape("both `logits` and `probs`".to_owned())),
            (None, None) => return Err(shape("neither `logits` nor `probs`".to_owned())),
        };
        let note = numbers.doubt(is_bare);
        let given = Self { numbers, tokens: fields.tokens, note };
        match &given.tokens {
            Some(tokens) if tokens.len() != given.len() => Err(FromLogitsError::Shape {
                path: path.to_owned(),
                found: format!("{} tokens for {} numbers", tokens.len(), given.len()),
                expected: "one text for each number",
            }),
            _ => Ok(given),
        }
    }

    /// How many tokens there are.
    pub fn len(&self) -> usize {
        match &self.numbers {
            Numbers::Logits(row) => row.len(),
            Numbers::Probabilities(row) => row.len(),
        }
    }

    fn token(&self, id: u32) -> Option<&str> {
        self.tokens.as_ref()?.get(id as usize).map(String::as_str)
    }

    /// The text where there is one, the id otherwise.
    fn label(&self, id: u32) -> String {
        self.token(id).map_or_else(|| format!("#{id}"), str::to_owned)
    }

    fn explain(
        &self,
        args: &FromLogitsArgs,
        rules: &Rules,
    ) -> Result<Explanation, FromLogitsError> {
        let rng = decoding::Counter { seed: args.seed, stream: 0 };
        let draw = args.draw.map_or(Draw::Counter(rng), Draw::Fixed);
        let history = History::new(&args.prompt, &args.history);
        Ok(explain(rules, self.row(), &history, draw, args.step)?)
    }

    fn row(&self) -> Row<'_> {
        match &self.numbers {
            Numbers::Logits(row) => Row::Logits(row),
            Numbers::Probabilities(row) => Row::Probabilities(row),
        }
    }
}

fn read(path: &Path, hint: &'static str) -> Result<String, FromLogitsError> {
    std::fs::read_to_string(path).map_err(|source| FromLogitsError::Read {
        path: path.to_owned(),
        source,
        hint,
    })
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path, text: &str) -> Result<T, FromLogitsError> {
    serde_json::from_str(text)
        .map_err(|source| FromLogitsError::Json { path: path.to_owned(), source })
}

fn json<T: Serialize>(value: &T) -> String {
    // Plain data with text keys always serialises.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

fn numbers(path: &Path, values: &[Value]) -> Result<Vec<f64>, FromLogitsError> {
    let number = |(index, value): (usize, &Value)| {
        let found = match value {
            Value::Number(number) => number.as_f64(),
            Value::String(word) => word.parse().ok(),
            _ => None,
        };
        found.ok_or_else(|| FromLogitsError::Shape {
            path: path.to_owned(),
            found: format!("{} at index {index}", kind(value)),
            expected: "a number, NaN, Infinity or -Infinity",
        })
    };
    values.iter().enumerate().map(number).collect()
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a single number",
        Value::String(_) => "a text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Other engines write NaN and Infinity as bare words, which JSON does not have: quotes them.
fn quote_bare_words(text: &str) -> String {
    let (mut out, mut is_inside, mut is_escaped) =
        (String::with_capacity(text.len()), false, false);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let words = ["-Infinity", "Infinity", "NaN"];
        if let Some(word) = words.iter().find(|w| !is_inside && rest.starts_with(**w)) {
            out.extend(["\"", word, "\""]);
            rest = &rest[word.len()..];
            continue;
        }
        is_inside ^= c == '"' && !is_escaped;
        is_escaped = is_inside && c == '\\' && !is_escaped;
        out.push(c);
        rest = &rest[c.len_utf8()..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_words_are_quoted_outside_texts_only() {
        let text = r#"{"logits":[NaN,-Infinity,1], "tokens":["NaN","a\"Infinity\\","-Infinity"]}"#;
        let expected =
            r#"{"logits":["NaN","-Infinity",1], "tokens":["NaN","a\"Infinity\\","-Infinity"]}"#;
        assert_eq!(quote_bare_words(text), expected);
    }
}
