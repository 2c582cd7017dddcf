//! The record of a generation: all that is needed to repeat it, and all that came of it.

use super::search::Search;
use crate::cmd::model::Opened;
use crate::error::CliError;
use decoding::Rules;
use engine::{Finish, Request, Sequence};
use serde::{Deserialize, Serialize};

/// What `generate --json` prints. Its keys are stable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The program's version.
    pub version: String,
    /// The instruction set; f32 products may differ in the last bits between them.
    pub isa: String,
    /// The model.
    pub model: ModelRecord,
    /// The text asked to continue.
    pub prompt: String,
    /// Its tokens as the model read them.
    pub prompt_ids: Vec<u32>,
    /// The chain of rules.
    pub rules: Rules,
    /// The seed.
    pub seed: u64,
    /// Cap on new tokens.
    pub max_tokens: usize,
    /// Tokens that end a sequence.
    pub eos_ids: Vec<u32>,
    /// Texts that end a sequence.
    pub stop: Vec<String>,
    /// How the sequences were looked for; none where they were drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<Search>,
    /// What came, best first after a search.
    pub sequences: Vec<SequenceRecord>,
}

/// Which model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelRecord {
    /// Its folder.
    pub path: String,
    /// Its kind.
    pub kind: String,
    /// SHA-256 of its weights.
    pub digest: String,
    /// SHA-256 of its tokenizer.
    pub tokenizer: String,
    /// How keys and values were kept, where it was not as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv: Option<String>,
}

/// One continuation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SequenceRecord {
    /// Its index: the stream of its draws.
    pub sequence: u64,
    /// Its text.
    pub text: String,
    /// eos, length, context or stop.
    pub finish: Finish,
    /// The stop string that came.
    pub stop: Option<String>,
    /// Sum of the model's log-probabilities.
    pub logprob: f64,
    /// Its tokens.
    pub tokens: Vec<TokenRecord>,
}

/// One token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRecord {
    /// The token.
    pub id: u32,
    /// Text that became certain with it.
    pub text: String,
    /// Its log-probability under the model.
    pub logprob: f64,
    /// Its log-probability in what was drawn from.
    pub sample_logprob: f64,
    /// Its place in the model's order, from 1.
    pub rank: u32,
    /// Entropy of the model's distribution, nats.
    pub entropy: f64,
    /// Tokens that the rules kept.
    pub kept: usize,
    /// The uniform number; null when greedy.
    pub u: Option<f64>,
}

impl Record {
    /// A record before anything came.
    pub fn new(
        opened: &Opened,
        request: &Request,
        search: Option<Search>,
        prompt: &str,
    ) -> Result<Self, CliError> {
        let again = serde_json::to_string(&request.rules)
            .and_then(|text| serde_json::from_str::<Rules>(&text));
        if again.ok().as_ref().map(Rules::chain) != Some(request.rules.chain()) {
            return Err(CliError::input(
                "--json: a rule has a number that JSON cannot hold (an infinite bias); use --ban",
            ));
        }
        Ok(Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            isa: kernels::Isa::current().name().to_owned(),
            model: ModelRecord {
                path: opened.dir.display().to_string(),
                kind: opened.saved.config().kind().to_owned(),
                digest: opened.digest()?,
                tokenizer: opened.tokenizer.sha256().to_owned(),
                kv: opened.kv(),
            },
            prompt: prompt.to_owned(),
            prompt_ids: request.prompt.clone(),
            rules: request.rules.clone(),
            seed: request.seed,
            max_tokens: request.max_tokens,
            eos_ids: request.end.clone(),
            stop: request.stops.clone(),
            search,
            sequences: Vec::new(),
        })
    }

    /// The record with what came.
    pub fn with(mut self, done: Vec<Sequence>, request: &Request) -> Self {
        self.sequences =
            done.into_iter().map(|one| SequenceRecord::new(one, &request.stops)).collect();
        self
    }

    /// The request that it answers.
    pub fn request(&self) -> Request {
        Request {
            prompt: self.prompt_ids.clone(),
            rules: self.rules.clone(),
            seed: self.seed,
            first_sequence: self.sequences.first().map_or(0, |one| one.sequence),
            sequences: self.sequences.len(),
            max_tokens: self.max_tokens,
            end: self.eos_ids.clone(),
            stops: self.stop.clone(),
        }
    }
}

impl SequenceRecord {
    /// A sequence as told.
    pub fn new(sequence: Sequence, stops: &[String]) -> Self {
        let logprob = sequence.logprob();
        let token = |token: engine::Token| TokenRecord {
            id: token.choice.id,
            text: token.text,
            logprob: token.choice.logprob,
            sample_logprob: token.choice.sample_logprob,
            rank: token.choice.rank,
            entropy: token.choice.entropy,
            kept: token.choice.kept,
            u: token.choice.draw,
        };
        Self {
            sequence: sequence.index,
            text: sequence.text,
            finish: sequence.finish,
            stop: sequence.stop.and_then(|at| stops.get(at).cloned()),
            logprob,
            tokens: sequence.tokens.into_iter().map(token).collect(),
        }
    }
}
