//! Structured output: a JSON schema, a regular expression, a choice or a grammar that an answer must
//! follow. The masks are llguidance's; what it cannot read is refused, never dropped.

use crate::error::ApiError;
use crate::fields::{Fields, name_of};
use engine::serving::Constraint;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock};
use tokenizer::Tokenizer;

/// Bytes that a grammar may have.
const MOST_BYTES: usize = 256 * 1024;

/// What an answer must follow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "value", rename_all = "snake_case")]
pub enum Grammar {
    /// A JSON schema.
    Json(Value),
    /// A regular expression for the whole of it.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A grammar in Lark's notation.
    Lark(String),
}

impl Grammar {
    /// What the fields ask for, if anything.
    ///
    /// # Errors
    /// The field at fault.
    pub fn read(fields: &Fields) -> Result<Option<Self>, ApiError> {
        let formatted = match fields.value("response_format") {
            Some(format) => Self::of_format(format)?,
            None => None,
        };
        match fields.value("structured_outputs") {
            None => Ok(formatted),
            Some(_) if formatted.is_some() => Err(ApiError::field(
                "structured_outputs",
                "structured_outputs: not beside a `response_format` of JSON; give one of them",
            )),
            Some(asked) => Self::of_outputs(asked).map(Some),
        }
    }

    fn of_format(format: &Value) -> Result<Option<Self>, ApiError> {
        let wrong = |at: &str, what: &str| {
            Err(ApiError::field(
                format!("response_format{at}"),
                format!("response_format{at}: {what}"),
            ))
        };
        match format.get("type").and_then(Value::as_str) {
            Some("text") => Ok(None),
            Some("json_object") => Ok(Some(Self::Json(json!({ "type": "object" })))),
            // The newer dialect has the schema beside the type.
            Some("json_schema") => {
                match format.get("json_schema").unwrap_or(format).get("schema") {
                    Some(schema) if schema.is_object() => Ok(Some(Self::Json(schema.clone()))),
                    _ => wrong(
                        ".json_schema",
                        "expected an object with a `schema`, which is an object",
                    ),
                }
            }
            _ => wrong("", "expected a `type` of text, json_object or json_schema"),
        }
    }

    fn of_outputs(asked: &Value) -> Result<Self, ApiError> {
        let wrong = |what: String| {
            Err(ApiError::field("structured_outputs", format!("structured_outputs: {what}")))
        };
        let kinds = asked.as_object().into_iter().flatten();
        let given: Vec<(&String, &Value)> = kinds.filter(|(_, value)| !value.is_null()).collect();
        let [(kind, value)] = given[..] else {
            return wrong(format!(
                "found {} kinds, expected one of json, regex, choice, grammar",
                given.len()
            ));
        };
        let texts = || -> Option<Vec<String>> {
            value.as_array()?.iter().map(|one| one.as_str().map(str::to_owned)).collect()
        };
        match (kind.as_str(), value) {
            ("json", Value::Object(_)) => Ok(Self::Json(value.clone())),
            ("regex", Value::String(text)) => Ok(Self::Regex(text.clone())),
            ("grammar", Value::String(text)) => Ok(Self::Lark(text.clone())),
            ("choice", Value::Array(_)) => match texts().filter(|all| !all.is_empty()) {
                Some(all) => Ok(Self::Choice(all)),
                None => wrong("choice: expected a list of texts, one at least".to_owned()),
            },
            ("json" | "regex" | "choice" | "grammar", value) => {
                wrong(format!("{kind}: {} is not what it takes", name_of(value)))
            }
            _ => wrong(format!("found {kind:?}, expected json, regex, choice or grammar")),
        }
    }

    fn compiled(&self) -> TopLevelGrammar {
        match self {
            Self::Json(schema) => {
                let mut schema = schema.clone();
                // Free white space invites a weak model to wander in it.
                if let Some(map) = schema.as_object_mut() {
                    map.entry("x-guidance").or_insert(json!({ "whitespace_flexible": false }));
                }
                TopLevelGrammar::from_json_schema(schema)
            }
            Self::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Self::Lark(lark) => TopLevelGrammar::from_lark(lark.clone()),
            Self::Choice(all) => {
                let quoted: Vec<String> = all.iter().map(|one| json!(one).to_string()).collect();
                // One terminal: as rules, each would be followed apart.
                let grammar = format!("start: CHOICE\nCHOICE: {}", quoted.join(" | "));
                TopLevelGrammar::from_lark(grammar)
            }
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Json(schema) => schema.to_string().len(),
            Self::Regex(text) | Self::Lark(text) => text.len(),
            Self::Choice(all) => all.iter().map(String::len).sum(),
        }
    }
}

/// Makes grammars for one model's tokens.
#[derive(Default)]
pub struct Grammars {
    factory: OnceLock<Result<ParserFactory, String>>,
}

impl Grammars {
    /// A grammar at work for each of `count` sequences.
    ///
    /// # Errors
    /// What llguidance cannot read or finds too large.
    pub fn constraints(
        &self,
        grammar: &Grammar,
        count: usize,
        tokenizer: &Tokenizer,
        (vocabulary, ends): (usize, &[u32]),
    ) -> Result<Vec<Box<dyn Constraint>>, ApiError> {
        let wrong = |what: String| {
            let what = format!("the grammar cannot be used: {}", first_line(what));
            ApiError::field("structured_outputs", what).code("invalid_grammar")
        };
        let bytes = grammar.bytes();
        if bytes > MOST_BYTES {
            return Err(wrong(format!("it has {bytes} bytes, expected {MOST_BYTES} at most")));
        }
        let Some(&end) = ends.first() else {
            return Err(wrong("this model has no token that ends an answer".to_owned()));
        };
        let factory = self.factory.get_or_init(|| factory(tokenizer, vocabulary, end));
        let factory = factory.as_ref().map_err(|what| wrong(what.clone()))?;
        let parser = factory.create_parser(grammar.compiled()).map_err(|e| wrong(e.to_string()))?;
        let mut matcher = Matcher::new(Ok(parser));
        // One that allows nothing to begin with, or is too wide, shows here.
        matcher.compute_mask_or_eos().map_err(|e| wrong(e.to_string()))?;
        let one = |_| -> Box<dyn Constraint> {
            let (matcher, mask) = (matcher.deep_clone(), SimpleVob::new());
            Box::new(AtWork { matcher, mask, ends: ends.to_vec() })
        };
        Ok((0..count).map(one).collect())
    }
}

fn factory(tokenizer: &Tokenizer, vocabulary: usize, end: u32) -> Result<ParserFactory, String> {
    let words: Vec<Vec<u8>> = (0..vocabulary as u32).map(|id| tokenizer.token_bytes(id)).collect();
    let trie = TokTrie::from(&TokRxInfo::new(vocabulary as u32, end), &words);
    let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let mut factory = ParserFactory::new_simple(&environment).map_err(|e| e.to_string())?;
    factory.quiet();
    factory.limits_mut().verbose_errors = false;
    Ok(factory)
}

struct AtWork {
    matcher: Matcher,
    mask: SimpleVob,
    /// The tokens that end an answer; the grammar knows the first.
    ends: Vec<u32>,
}

impl Constraint for AtWork {
    fn mask(&mut self) -> Result<&[u32], String> {
        self.mask = self.matcher.compute_mask_or_eos().map_err(first_line)?;
        if self.ends.first().is_some_and(|&end| self.mask.is_allowed(end)) {
            self.ends.iter().for_each(|&end| self.mask.allow_token(end));
        }
        Ok(self.mask.as_slice())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.matcher.consume_token(token).map_err(first_line)
    }
}

/// What stopped a grammar; further lines are the library's own.
fn first_line(error: impl std::fmt::Display) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
