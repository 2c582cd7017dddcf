//! `autoreg plan serve`.

use super::{By, Common, kind, seconds, write_page};
use crate::cmd::draft::USUAL_DRAFTS;
use crate::cmd::json;
use crate::error::CliError;
use crate::term::{self, thousands};
use clap::Args;
use engine::serving::{Executor, Limits, NetworkExecutor, Piece, Rows};
use kernels::Team;
use models::{Model, ModelConfig, TransformerConfig};
use plan::running::{self, Runtime};
use plan::{
    Architecture, Error, NumberKind, Prediction, ServeAsk, ServeTimes, Sheet, both,
    largest_published, most, serve_times,
};
use serde_json::{Value, json};
use std::fmt::Write;
use std::sync::Arc;

/// Arguments of `plan serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  autoreg plan serve qwen3-8b --context 32768 --requests 16 --kv f16 --budget 48GiB
  autoreg plan serve llama-3-8b --weights q4_k --machine rtx-4090 --html plan.html
  autoreg plan serve models/smollm2-135m-q4_1.gguf --context 2048 --requests 8 --machine measured

K/V a token is 2 x layers x K/V heads x head size x bytes: heads that share keys and values count
once, and layers with a window keep no more than the window. A file of weights is counted by the lists
that `autoreg serve` allocates by, with --kv f32, f16 or q8; a name or a config.json by formulas. Times are a roofline's: the longer of reading and computing.")]
pub struct ServeArgs {
    /// A published name, a config.json, a folder or a GGUF file
    model: String,
    /// Tokens of each sequence [default: 4096, or the model's limit]
    #[arg(long, value_name = "N")]
    context: Option<u64>,
    /// Sequences side by side
    #[arg(long, value_name = "N", default_value_t = 1)]
    requests: u64,
    /// How weights are stored: f32, bf16, f16, fp8, q8_0, q6_k, q5_0, q4_1, q4_k or q4_0 [default:
    /// bf16; of a file, as it has them]
    #[arg(long, value_name = "KIND", value_parser = kind)]
    weights: Option<NumberKind>,
    /// How keys and values are stored [default: bf16; of a file, f32, as this program keeps them
    /// unless told otherwise]
    #[arg(long, value_name = "KIND", value_parser = kind)]
    kv: Option<NumberKind>,
    /// Tokens of a step, at most
    #[arg(long, value_name = "N", default_value_t = 128)]
    step_tokens: u64,
    /// Workers [default: the processors this process may use]
    #[arg(long, value_name = "N")]
    threads: Option<u64>,
    /// Tokens of a page of K/V, counted by the engine's lists
    #[arg(long, value_name = "N", default_value_t = 16)]
    page_tokens: u64,
    /// A smaller model that guesses ahead, counted by the engine's lists: its weights, buffers and pages
    #[arg(long, value_name = "MODEL")]
    draft: Option<String>,
    /// Tokens guessed ahead of each sequence [default: 5 with --draft, else 0]
    #[arg(long, value_name = "N")]
    draft_tokens: Option<u64>,
    /// What bytes are counted by [default: engine for files of weights, else formula]
    #[arg(long, value_enum)]
    by: Option<By>,
    #[command(flatten)]
    common: Common,
}

/// Tokens of context where nothing is said.
const CONTEXT: u64 = 4096;

/// A model, what is asked of it, and how it is counted.
pub struct Case {
    /// The model.
    pub architecture: Architecture,
    /// What is asked.
    pub ask: ServeAsk,
    /// Whether the engine's lists count.
    pub engine: bool,
    runtime: Runtime,
    draft: Option<Architecture>,
}

impl Case {
    /// A model that nothing guesses for.
    pub fn of(architecture: Architecture, ask: ServeAsk, engine: bool) -> Result<Case, CliError> {
        let bytes = match engine {
            true => program_bytes(Some(ask.threads))? + architecture.opened_bytes,
            false => 0,
        };
        Ok(Case { architecture, ask, engine, runtime: Runtime { bytes }, draft: None })
    }

    /// What it takes.
    pub fn predict(&self, ask: &ServeAsk) -> Result<Prediction, Error> {
        match self.engine {
            true => running::serve(&self.architecture, ask, self.runtime, self.draft.as_ref()),
            false => plan::serve(&self.architecture, ask),
        }
    }
}

impl Case {
    /// What the page of its plan works with.
    pub fn sheet(&self, plan: &Prediction) -> Result<Sheet, CliError> {
        match self.architecture.config {
            ModelConfig::Transformer(_) => {
                Sheet::serve(&self.architecture, &self.ask, plan, self.engine)
                    .map_err(CliError::input)
            }
            _ => Ok(Sheet::still(plan)),
        }
    }
}

/// Plans as told.
pub fn run(args: &ServeArgs) -> Result<(), CliError> {
    let machine = args.common.machine()?;
    let budget = args.common.budget_on(machine.as_ref());
    let mut case = case(args)?;
    case.ask.budget = budget;
    let plan = case.predict(&case.ask).map_err(CliError::input)?;
    let backwards = budget.map(|budget| Backwards::of(&case, budget)).transpose()?;
    let weights = plan.balance.terms.of("weights");
    let times = machine
        .map(|machine| serve_times(&case.architecture, &case.ask, weights, &machine))
        .transpose()
        .map_err(CliError::input)?;
    let mut more = String::new();
    backwards.iter().for_each(|b| more += &b.text(&case.ask));
    times.iter().for_each(|t| more += &times_text(t, &case.ask));
    if let Some(path) = &args.common.html {
        write_page(path, &plan::page(&plan, &case.sheet(&plan)?, &more))?;
    }
    if args.common.json {
        term::print(&json(&as_json(&plan, &case, backwards.as_ref(), times.as_ref())?)?);
    } else {
        term::print(&(plan::text(&plan) + &more));
    }
    Ok(())
}

/// Opens the model and settles what was left open.
fn case(args: &ServeArgs) -> Result<Case, CliError> {
    let program = program_bytes(args.threads)?;
    let architecture = Architecture::open(&args.model).map_err(CliError::input)?;
    let engine = match args.by {
        Some(by) => by == By::Engine,
        None => {
            let keeps = args.kv.is_none_or(|kind| running::kv_kind(kind).is_some());
            architecture.runs_here && args.weights.is_none() && keeps
        }
    };
    if engine && args.weights.is_some() {
        return Err(CliError::input(
            "--by engine: it counts weights as the file has them; leave --weights away, or count with \
             --by formula",
        ));
    }
    let (usual, usual_kv) = match engine {
        true => (architecture.own_weights(), NumberKind::F32),
        false => (NumberKind::Bf16, NumberKind::Bf16),
    };
    let limit = architecture.config.context_limit().map_or(CONTEXT, |limit| limit as u64);
    let threads = args.threads.unwrap_or_else(|| Team::available() as u64);
    let draft = args.draft.as_deref().map(Architecture::open).transpose();
    let draft = draft.map_err(CliError::input)?;
    if draft.as_ref().is_some_and(|draft| !engine || !draft.runs_here) {
        return Err(CliError::input(
            "--draft: counted by the engine's lists only; give files of weights for both models",
        ));
    }
    let usual_drafts = if draft.is_some() { u64::from(USUAL_DRAFTS) } else { 0 };
    let opened = architecture.opened_bytes + draft.as_ref().map_or(0, |draft| draft.opened_bytes);
    let runtime = Runtime { bytes: program + opened };
    Ok(Case {
        draft,
        ask: ServeAsk {
            context: args.context.unwrap_or(CONTEXT.min(limit)),
            requests: args.requests,
            weights: args.weights.unwrap_or(usual),
            kv: args.kv.unwrap_or(usual_kv),
            step_tokens: args.step_tokens,
            threads,
            page_tokens: args.page_tokens,
            drafts: args.draft_tokens.unwrap_or(usual_drafts),
            budget: None,
        },
        architecture,
        engine,
        runtime,
    })
}

/// What this very program holds without a model: measured after a miniature of one has run a step, so
/// that code and workers' stacks are in memory.
fn program_bytes(threads: Option<u64>) -> Result<u64, CliError> {
    let team = crate::cmd::planned_team(threads.and_then(|n| usize::try_from(n).ok()))?;
    let config = ModelConfig::Transformer(TransformerConfig::email(64, 8));
    let limits = Limits {
        pages: 4,
        page_tokens: 4,
        step_tokens: 8,
        sequences: 2,
        shares: true,
        drafts: 0,
        window: None,
    };
    let model = Arc::new(Model::new(&config).map_err(CliError::failed)?);
    let mut executor = NetworkExecutor::new(model, &limits, &team).map_err(CliError::failed)?;
    let piece =
        Piece { id: 0, known: &[1, 2, 3], from: 0, pages: &[0], near: &[0], rows: Rows::Every };
    let mut logits = vec![0.0; 3 * 64];
    executor.run(&[piece], &mut logits).map_err(CliError::failed)?;
    Ok(ledger::resident_bytes())
}

/// The questions asked backwards.
struct Backwards {
    context: Option<u64>,
    requests: Option<u64>,
    /// Name, parameters, bytes.
    model: Option<(&'static str, u64, u64)>,
    budget: u64,
}

impl Backwards {
    fn of(case: &Case, budget: u64) -> Result<Backwards, CliError> {
        let total = |ask: ServeAsk| case.predict(&ask).map(|plan| plan.balance.total_bytes);
        let limit = case.architecture.config.context_limit().map_or(1 << 22, |n| n as u64);
        let context = |n| total(ServeAsk { context: n, ..case.ask });
        let requests = |n| total(ServeAsk { requests: n, ..case.ask });
        // A published model in the same numbers, at no more context than it has.
        let other = |model: &Architecture| {
            let limit = model.config.context_limit().map_or(CONTEXT, |n| n as u64);
            let ask = ServeAsk { context: case.ask.context.min(limit), ..case.ask };
            plan::serve(model, &ask).map(|plan| plan.balance.total_bytes)
        };
        Ok(Backwards {
            context: most(limit, budget, context).map_err(CliError::input)?,
            requests: most(1 << 20, budget, requests).map_err(CliError::input)?,
            model: largest_published(budget, other).map_err(CliError::input)?,
            budget,
        })
    }

    fn text(&self, ask: &ServeAsk) -> String {
        let mut out = format!("\nwithin {}:\n", both(self.budget));
        let told = |n: Option<u64>, what: &str| match n {
            Some(n) => format!("{} {what}", thousands(n)),
            None => "not one fits".to_owned(),
        };
        let context = told(self.context, &format!("tokens, {} requests at once", ask.requests));
        let _ = writeln!(out, "  longest context        {context}");
        let of = format!("of {} tokens", thousands(ask.context));
        let _ = writeln!(out, "  most requests          {}", told(self.requests, &of));
        if let Some((name, parameters, bytes)) = self.model {
            let parameters = thousands(parameters);
            let _ = writeln!(out, "  largest named model    {name}, {parameters} parameters");
            let _ = writeln!(out, "{:25}in {}: {}", "", ask.weights.name(), both(bytes));
        }
        out
    }
}

fn times_text(times: &ServeTimes, ask: &ServeAsk) -> String {
    let mut out = format!("\non {}:\n", times.machine);
    out += &plan::wrapped("  ", &times.source);
    let mut row = |what: &str, text: String| {
        let _ = writeln!(out, "  {what:<22} {text}");
    };
    row("first token", format!("{} ({})", seconds(times.first_token_s), times.first_token_bound));
    row("", format!("for a prompt of {} tokens, alone", thousands(ask.context)));
    row("a token", format!("{} ({})", seconds(times.token_s), times.token_bound));
    let all = times.tokens_per_second;
    row("", format!("for each of {} requests: {all:.1} tokens/s together", ask.requests));
    row("batching pays up to", format!("{:.0} requests; then", times.knee_requests.ceil()));
    row("", times.knee_bound.clone());
    let _ = writeln!(out, "  {:>10}{:>14}{:>16}", "requests", "a token", "tokens/s");
    for (requests, token, all) in &times.batching {
        let _ = writeln!(out, "  {requests:>10}{:>14}{all:>16.1}", seconds(*token));
    }
    out
}

fn as_json(
    plan: &Prediction,
    case: &Case,
    backwards: Option<&Backwards>,
    times: Option<&ServeTimes>,
) -> Result<Value, CliError> {
    let mut value = serde_json::to_value(plan).map_err(CliError::failed)?;
    value["context"] = case.ask.context.into();
    value["requests"] = case.ask.requests.into();
    value["kv"] = case.ask.kv.name().into();
    if !case.engine {
        value["weights"] = case.ask.weights.name().into();
    }
    if let Some(b) = backwards {
        value["largest_context"] = b.context.into();
        value["largest_requests"] = b.requests.into();
        value["largest_model"] = match b.model {
            Some((name, parameters, bytes)) => {
                json!({"name": name, "parameters": parameters, "total_bytes": bytes})
            }
            None => Value::Null,
        };
    }
    if let Some(times) = times {
        value["times"] = serde_json::to_value(times).map_err(CliError::failed)?;
    }
    Ok(value)
}
