//! Fields about sampling, alike for every way to ask, and what they come to.

use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Field, Fields, Kind, field};
use crate::grammar::Grammar;
use crate::tools::Tools;
use decoding::{Method, Preset, Rule, Rules, Settings};
use engine::Request;
use engine::serving::Asked;
use serde_json::Value;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

const ANY: Kind = Kind::Number(-f64::MAX, f64::MAX);

/// Fields that every way to ask for tokens has.
pub const SAMPLING: &[Field] = &[
    field("model", Kind::Text, "The name that /v1/models gives; absent means that one"),
    field("stream", Kind::Flag, "Send pieces as they come, as server-sent events"),
    field(
        "stream_options",
        Kind::Object,
        "With `stream`: {\"include_usage\": true} adds a last piece with counts",
    ),
    field("n", Kind::Integer(1, 128), "Answers"),
    field("temperature", Kind::Number(0.0, f64::MAX), "Divides logits; 0 takes the best token"),
    field("top_p", Kind::Number(0.0, 1.0), "Mass of the nucleus"),
    field("top_k", Kind::Integer(-1, i64::MAX), "Best tokens kept; 0 or -1 keeps all"),
    field("min_p", Kind::Number(0.0, 1.0), "Least probability as a share of the best token's"),
    field(
        "repetition_penalty",
        ANY,
        "Divides or multiplies logits of tokens seen; 1 changes nothing",
    ),
    field("presence_penalty", ANY, "Nats off the logits of tokens written before"),
    field("frequency_penalty", ANY, "Nats off the logits of tokens written before, an occurrence"),
    field("logit_bias", Kind::Object, "Token id to nats added, from -100 (never) to 100"),
    field("allowed_token_ids", Kind::Ids, "The only tokens that may come"),
    field(
        "seed",
        Kind::Integer(i64::MIN, i64::MAX),
        "The same seed, the same answer; drawn and told where absent",
    ),
    field("stop", Kind::Texts, "Texts that end an answer and are not part of it"),
    field("stop_token_ids", Kind::Ids, "More tokens that end an answer"),
    field("ignore_eos", Kind::Flag, "Go on after the token that ends a text"),
    field(
        "preset",
        Kind::Text,
        "Order and edge meanings of another system: autoreg, hf, vllm, llamacpp, sglang",
    ),
    field(
        "response_format",
        Kind::Object,
        "Text, a JSON object, or JSON by a schema: {\"type\": \"json_schema\", \"json_schema\": {\"schema\": ...}}",
    ),
    field(
        "structured_outputs",
        Kind::Object,
        "What the answer must follow: {\"json\": schema}, {\"regex\": ...}, {\"choice\": [...]}, or {\"grammar\": Lark}",
    ),
    field("cache_salt", Kind::Text, "Texts with different salts share no cached page"),
    field("receipt", Kind::Flag, "Add what is needed to repeat and to understand this answer"),
    field("strict", Kind::Flag, "Refuse fields that would have no effect"),
];

/// What sampling fields come to.
#[derive(Debug, Clone)]
pub struct Sampling {
    /// The chain.
    pub rules: Rules,
    /// The seed, given or drawn.
    pub seed: u64,
    /// Answers a prompt.
    pub n: usize,
    /// Texts that end an answer.
    pub stops: Vec<String>,
    /// Tokens that end an answer.
    pub end: Vec<u32>,
    /// What isolates the cache.
    pub salt: String,
    /// What answers must follow.
    pub grammar: Option<Grammar>,
    /// The field that it comes from.
    pub grammar_field: &'static str,
}

impl Sampling {
    /// Reads the fields.
    ///
    /// # Errors
    /// The field at fault.
    pub fn read(app: &App, fields: &mut Fields) -> Result<Self, ApiError> {
        app.is_model(fields.text("model"))?;
        let rules = rules(app, fields)?;
        let stops = fields.texts("stop");
        if stops.iter().any(String::is_empty) {
            return Err(ApiError::field(
                "stop",
                "stop: found an empty text, which would end everything at once; leave it out",
            ));
        }
        if stops.len() > 64 {
            return Err(ApiError::field(
                "stop",
                format!("stop: found {} texts, expected 64 at most", stops.len()),
            ));
        }
        let grammar = Grammar::read(fields)?;
        if grammar.is_some() && fields.flag("ignore_eos") {
            let message = "ignore_eos: not with a grammar, whose end ends the answer";
            return Err(ApiError::field("ignore_eos", message));
        }
        let mut end = if fields.flag("ignore_eos") { Vec::new() } else { app.model.ends.clone() };
        end.extend(tokens(app, fields, "stop_token_ids")?);
        Ok(Self {
            rules,
            seed: fields.integer("seed").map_or_else(drawn_seed, i64::cast_unsigned),
            n: fields.count("n").unwrap_or(1),
            stops,
            end,
            salt: fields.text("cache_salt").unwrap_or_default().to_owned(),
            grammar,
            grammar_field: match fields.value("structured_outputs") {
                Some(_) => "structured_outputs",
                None => "response_format",
            },
        })
    }

    /// The same with what the tools ask of the answer.
    ///
    /// # Errors
    /// A grammar beside it.
    pub fn with_tools(self, app: &App, tools: &Tools) -> Result<Self, ApiError> {
        match (tools.grammar(app)?, &self.grammar) {
            (None, _) => Ok(self),
            (Some(_), Some(_)) if !tools.are_forced() => Ok(self),
            (Some(_), Some(_)) => Err(ApiError::field(
                "tool_choice",
                "tool_choice: an answer that must call a tool follows the tool's schema; leave \
                 `response_format` and `structured_outputs` out",
            )),
            (Some(grammar), None) => {
                Ok(Self { grammar: Some(grammar), grammar_field: "tools", ..self })
            }
        }
    }

    /// What is asked for a prompt.
    ///
    /// # Errors
    /// A grammar that cannot be used.
    pub fn asked(
        &self,
        app: &App,
        prompt: Vec<u32>,
        sequences: usize,
        max_tokens: usize,
    ) -> Result<Asked, ApiError> {
        let grammar = self.grammar.as_ref();
        let constraints = app
            .constraints(grammar, sequences)
            .map_err(|error| ApiError { param: Some(self.grammar_field.to_owned()), ..error })?;
        let request = self.request(prompt, sequences, max_tokens);
        Ok(Asked { salt: self.salt.clone(), constraints, ..Asked::plain(request) })
    }

    /// A request for a prompt.
    fn request(&self, prompt: Vec<u32>, sequences: usize, max_tokens: usize) -> Request {
        Request {
            prompt,
            rules: self.rules.clone(),
            seed: self.seed,
            first_sequence: 0,
            sequences,
            max_tokens,
            end: self.end.clone(),
            stops: self.stops.clone(),
        }
    }
}

/// Seeds that nobody gave differ; 53 bits, so that every JSON reader keeps them.
fn drawn_seed() -> u64 {
    RandomState::new().hash_one(std::time::SystemTime::now()) >> 11
}

fn tokens(app: &App, fields: &Fields, name: &'static str) -> Result<Vec<u32>, ApiError> {
    let ids = fields.ids(name);
    match ids.iter().find(|&&id| id as usize >= app.engine.vocab_size()) {
        Some(id) => Err(unknown_token(app, name, id)),
        None => Ok(ids),
    }
}

fn unknown_token(app: &App, name: &'static str, id: impl std::fmt::Display) -> ApiError {
    let vocabulary = app.engine.vocab_size();
    ApiError::field(
        name,
        format!("{name}: token {id}: the vocabulary has the ids 0 to {}", vocabulary - 1),
    )
}

fn rules(app: &App, fields: &mut Fields) -> Result<Rules, ApiError> {
    let preset = match fields.text("preset") {
        Some(name) => name.parse::<Preset>().map_err(|error| ApiError::field("preset", error))?,
        None => Preset::default(),
    };
    // -1 means all of them to clients of several systems.
    let top_k =
        fields.integer("top_k").map(|k| if preset == Preset::Autoreg { k.max(0) } else { k });
    let settings = Settings {
        preset,
        method: Method::Sample,
        temperature: fields.number("temperature"),
        top_k,
        top_p: fields.number("top_p"),
        min_p: fields.number("min_p"),
        repetition_penalty: fields.number("repetition_penalty"),
        presence_penalty: fields.number("presence_penalty"),
        frequency_penalty: fields.number("frequency_penalty"),
        penalty_window: None,
        logit_bias: bias(app, fields)?,
        banned: Vec::new(),
        allowed: tokens(app, fields, "allowed_token_ids")?,
    };
    let asked = Rules::from_settings(&settings)?;
    let notes: Vec<String> = asked.notes().iter().map(ToString::to_string).collect();
    fields.warnings.extend(notes);
    let mut chain = asked.chain().to_vec();
    let never = &app.model.never;
    if !never.is_empty() {
        chain.insert(0, Rule::Ban { ids: never.clone() });
    }
    Ok(Rules::new(chain)?)
}

fn bias(app: &App, fields: &Fields) -> Result<BTreeMap<u32, f64>, ApiError> {
    let mut all = BTreeMap::new();
    let Some(Value::Object(map)) = fields.value("logit_bias") else { return Ok(all) };
    for (key, value) in map {
        let id = key.parse::<u32>().ok().filter(|&id| (id as usize) < app.engine.vocab_size());
        let id = id.ok_or_else(|| unknown_token(app, "logit_bias", format_args!("{key:?}")))?;
        let add = value.as_f64().filter(|add| (-100.0..=100.0).contains(add)).ok_or_else(|| {
            ApiError::field(
                "logit_bias",
                format!(
                    "logit_bias: token {id}: found {value}, expected a number from -100 to 100"
                ),
            )
        })?;
        // As the OpenAI interface has it: -100 is a ban.
        all.insert(id, if add == -100.0 { f64::NEG_INFINITY } else { add });
    }
    Ok(all)
}
