//! Texts that a model in training writes, by the rules of `generate`.

use crate::cmd::model::engine_error;
use crate::error::CliError;
use clap::Args;
use decoding::{Method, Rule, Rules, Settings};
use engine::{Generator, NetworkSource, Request, Room};
use kernels::Team;
use ledger::Plan;
use models::{Model, ModelConfig};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use tokenizer::Tokenizer;

/// What is sampled while training goes on.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Samples")]
pub struct SampleArgs {
    /// Let the model write a text after every N steps and at the end
    #[arg(long, value_name = "N")]
    pub sample_every: Option<NonZeroU64>,
    /// How it begins
    #[arg(long, value_name = "TEXT", default_value = "", requires = "sample_every")]
    pub sample_prompt: String,
    /// New tokens, at most [default: 40, or what the context leaves]
    #[arg(long, value_name = "N", requires = "sample_every")]
    pub sample_tokens: Option<usize>,
    /// Softmax temperature; 0 takes the best token
    #[arg(long, value_name = "T", default_value_t = 0.8, requires = "sample_every")]
    pub sample_temperature: f64,
    /// The rules as a JSON list instead of a temperature, as `generate --rules` takes them
    #[arg(long, value_name = "FILE.json", requires = "sample_every")]
    pub sample_rules: Option<PathBuf>,
}

/// Writes texts with a model as it is.
pub struct Sampler<'a> {
    request: Request,
    tokenizer: &'a Tokenizer,
    team: Arc<Team>,
}

impl<'a> Sampler<'a> {
    /// As asked; none where nothing was.
    pub fn new(
        args: &SampleArgs,
        config: &ModelConfig,
        (tokenizer, ends): (&'a Tokenizer, &[u32]),
        seed: u64,
        team: &Arc<Team>,
    ) -> Result<Option<Sampler<'a>>, CliError> {
        if args.sample_every.is_none() {
            return Ok(None);
        }
        let specials = tokenizer.specials();
        let text = tokenizer.encode(&args.sample_prompt);
        let begins = specials.bos.filter(|bos| text.first() != Some(bos));
        let prompt: Vec<u32> = begins.into_iter().chain(text).collect();
        if prompt.is_empty() {
            return Err(CliError::input(
                "--sample-prompt: this vocabulary has no token that begins a text; give a text",
            ));
        }
        let limit = config.context_limit().unwrap_or(usize::MAX);
        let room = limit.saturating_sub(prompt.len());
        let max_tokens = args.sample_tokens.unwrap_or(room.min(40));
        if max_tokens > room || room == 0 {
            return Err(CliError::input(format!(
                "--sample-tokens {max_tokens}: with a prompt of {} tokens that is more than the \
                 model's context of {limit}",
                prompt.len()
            )));
        }
        let never = [specials.pad, specials.bos].into_iter().flatten();
        let ids: Vec<u32> = never.filter(|id| !ends.contains(id)).collect();
        let request = Request {
            prompt,
            rules: rules(args, ids)?,
            seed,
            first_sequence: 0,
            sequences: 1,
            max_tokens,
            end: ends.to_vec(),
            stops: Vec::new(),
        };
        Ok(Some(Sampler { request, tokenizer, team: Arc::clone(team) }))
    }

    /// What a text allocates.
    pub fn plan(&self, config: &ModelConfig) -> Result<Plan, CliError> {
        let (prompt, tokens) = (self.request.prompt.len(), self.request.max_tokens);
        let room = Room { sequences: 1, tokens: prompt + tokens };
        NetworkSource::plan(config, prompt, room, self.team.threads()).map_err(engine_error)
    }

    /// A text.
    pub fn write(&self, model: &Model) -> Result<String, CliError> {
        let source = NetworkSource::new(model, &self.team);
        let mut generator = Generator::new(source, self.tokenizer);
        let texts = generator.run(&self.request, &mut |_| {}).map_err(engine_error)?;
        Ok(texts.into_iter().map(|sequence| sequence.text).collect())
    }
}

fn rules(args: &SampleArgs, never: Vec<u32>) -> Result<Rules, CliError> {
    let asked = match &args.sample_rules {
        Some(path) => {
            let wrong = |what: String| CliError::input(format!("{}: {what}", path.display()));
            let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
            let list: Vec<Rule> = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
            Rules::new(list).map_err(|e| wrong(e.to_string()))?
        }
        None => {
            let temperature = Some(args.sample_temperature);
            let settings = Settings { method: Method::Sample, temperature, ..Settings::default() };
            Rules::from_settings(&settings).map_err(CliError::input)?
        }
    };
    let mut chain = asked.chain().to_vec();
    if !never.is_empty() {
        chain.insert(0, Rule::Ban { ids: never });
    }
    Rules::new(chain).map_err(CliError::input)
}
