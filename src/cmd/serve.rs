//! `autoreg serve`: a model behind HTTP, for many clients at a time.

use crate::cmd::draft::{self, USUAL_DRAFTS};
use crate::cmd::model::{Opened, Template, engine_error};
use crate::cmd::recording::{Known, LedgerArgs, WatchedExecutor};
use crate::cmd::{AdapterArgs, KvArgs, team};
use crate::error::CliError;
use crate::term::{self, mib};
use chat::ChatTemplate;
use clap::Args;
use engine::serving::{CountExecutor, Draft, Engine, Executor, Limits, NetworkExecutor, spawn};
use ledger::Plan;
use models::{Model, ModelConfig};
use plan::running;
use plan::what_if::{self, Ran};
use serde_json::Value;
use server::{App, Guesser, Metrics, Options, Served, Tls};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use train::SavedModel;

/// Arguments of `serve`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  autoreg serve models/smollm2-135m-q4_1.gguf
  autoreg serve runs/t1 --port 9000 --kv-tokens 16384 --max-sequences 8
  AUTOREG_API_KEY=secret autoreg serve MODEL --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
  autoreg serve MODEL --draft SMALLER_MODEL

Then, with any client of the OpenAI interface: base URL http://127.0.0.1:8080/v1.

Exit codes: 0 after SIGTERM or SIGINT with every request under way answered, 1 with some broken off.")]
pub struct ServeArgs {
    /// A run folder of `autoreg train`, a GGUF file or a Hugging Face folder
    pub model: PathBuf,
    /// Address to listen on; other machines reach it only if told so, as with 0.0.0.0
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Port; 0 takes a free one and says which
    #[arg(long, default_value_t = 8080)]
    pub port: u16,
    /// The model's name for clients [default: the file's or folder's]
    #[arg(long)]
    pub name: Option<String>,
    /// A key that clients must give; may be given several times
    #[arg(
        long = "api-key",
        value_name = "KEY",
        env = "AUTOREG_API_KEY",
        value_delimiter = ',',
        hide_env_values = true
    )]
    pub api_keys: Vec<String>,
    /// A file of keys, one a line
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// A PEM file of certificates, the server's own first: connections are then encrypted
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The PEM file of its private key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// What is merged into the weights
    #[command(flatten)]
    pub adapter: AdapterArgs,
    /// The sizes of cache and steps
    #[command(flatten)]
    pub batching: BatchingArgs,
    /// Sequences that may wait; more are told to come again (429)
    #[arg(long, value_name = "N", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_waiting: u32,
    /// KiB of a request's body, at most
    #[arg(long, value_name = "KIB", default_value_t = 4096,
          value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub max_body: u32,
    /// Connections at a time
    #[arg(long, value_name = "N", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_connections: u32,
    /// Seconds that an answer may take
    #[arg(long, value_name = "S", default_value_t = 600,
          value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub request_timeout: u32,
    /// Seconds that requests under way have after the signal to end
    #[arg(long, value_name = "S", default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub drain_timeout: u32,
    /// The origin whose pages may call from a browser, or `*`
    #[arg(long, value_name = "ORIGIN")]
    pub cors_origin: Option<String>,
    /// Bytes by term
    #[command(flatten)]
    pub ledger: LedgerArgs,
    /// Log each request on standard error: method, path, status, time; never its text
    #[arg(long)]
    pub log: bool,
}

/// Sizes of cache and steps.
#[derive(Debug, Clone, Args)]
pub struct BatchingArgs {
    /// Tokens that the K/V cache holds for all sequences [default: what --max-sequences full
    /// contexts take, or half of the memory left]
    #[arg(long, value_name = "N")]
    pub kv_tokens: Option<usize>,
    /// Tokens of a page of the cache
    #[arg(long, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub page_tokens: u16,
    /// Sequences that run side by side, at most
    #[arg(long, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub max_sequences: u16,
    /// Tokens of a step, at most: fewer make prompts slower and others' tokens smoother
    #[arg(long, value_name = "N", default_value_t = 128,
          value_parser = clap::value_parser!(u16).range(1..=8192))]
    pub step_tokens: u16,
    /// How keys and values are kept
    #[command(flatten)]
    pub kv: KvArgs,
    /// Share no pages between texts that begin alike
    #[arg(long)]
    pub no_prefix_cache: bool,
    /// A smaller model with the same vocabulary that guesses ahead of each sequence; it changes no
    /// answer, and saves steps where the two agree
    #[arg(long, value_name = "MODEL")]
    pub draft: Option<PathBuf>,
    /// Tokens guessed ahead of each sequence, at most: by --draft, or from what stands earlier in its
    /// text; they change no answer [default: 5 with --draft, else 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=32))]
    pub draft_tokens: Option<u8>,
    /// Workers (default: the processors this process may use)
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

/// Tokens of a context where the model has no limit.
const USUAL_CONTEXT: usize = 4096;

impl BatchingArgs {
    /// Sizes for a model, and for one that guesses for it, and why the cache has its size.
    pub fn limits(
        &self,
        config: &ModelConfig,
        draft: Option<&ModelConfig>,
    ) -> Result<(Limits, &'static str), CliError> {
        let (page_tokens, sequences) =
            (usize::from(self.page_tokens), usize::from(self.max_sequences));
        let context = config.context_limit().unwrap_or(USUAL_CONTEXT);
        let full = context.div_ceil(page_tokens) * sequences;
        let a_token = NetworkExecutor::bytes_per_token(config);
        let free = ledger::available_bytes().unwrap_or(u64::MAX);
        let step_tokens = usize::from(self.step_tokens).max(sequences);
        let shares = NetworkExecutor::shares(config) && !self.no_prefix_cache;
        // A state cannot take a token back.
        let pages_hold = NetworkExecutor::shares(config);
        let usual = if draft.is_some() { USUAL_DRAFTS } else { 0 };
        let drafts = usize::from(self.draft_tokens.unwrap_or(usual));
        let drafts = if pages_hold { drafts } else { 0 };
        let window = config.window();
        let whole =
            Limits { pages: full, page_tokens, step_tokens, sequences, shares, drafts, window };
        // The draft's pool has as many pages, for all of its layers.
        let a_page = Limits { pages: 1, window: None, ..whole };
        let drafts_page = draft.map_or(0, |draft| NetworkExecutor::pool_bytes(draft, &a_page));
        let bytes = a_token * page_tokens as u64 + drafts_page;
        // What layers with a window keep does not grow with the pages.
        let all = full as u64 * a_token * page_tokens as u64;
        let near = NetworkExecutor::pool_bytes(config, &whole).saturating_sub(all);
        let (pages, why) = match self.kv_tokens {
            Some(0) => return Err(CliError::input("--kv-tokens 0: at least one is needed")),
            Some(tokens) => (tokens.div_ceil(page_tokens), "--kv-tokens"),
            None => {
                match (free / 2).saturating_sub(near).checked_div(bytes).map(|pages| pages.max(1)) {
                    Some(pages) if pages < full as u64 => {
                        (pages as usize, "half of the memory left")
                    }
                    _ => (full, "as many full contexts as sequences"),
                }
            }
        };
        Ok((Limits { pages, ..whole }, why))
    }
}

/// A model made ready to run steps.
pub struct Ready {
    /// Runs steps.
    pub executor: Box<dyn Executor>,
    /// V.
    pub vocab: usize,
    /// Tokens that the model sees at most.
    pub context: Option<usize>,
}

/// A saved model to be run by steps.
pub enum Shared {
    /// A network.
    Network(Arc<Model>),
    /// Counts.
    Counts(Arc<models::ngram::Ngram>),
}

impl Shared {
    /// Takes a model over.
    pub fn new(saved: SavedModel) -> Shared {
        match saved {
            SavedModel::Network(model) => Shared::Network(Arc::from(model)),
            SavedModel::Counts(model) => Shared::Counts(Arc::new(model)),
        }
    }

    /// Makes it ready.
    pub fn ready(&self, limits: &Limits, team: &Arc<kernels::Team>) -> Result<Ready, CliError> {
        let executor: Box<dyn Executor> = match self {
            Shared::Network(model) => Box::new(
                NetworkExecutor::new(Arc::clone(model), limits, team).map_err(engine_error)?,
            ),
            Shared::Counts(model) => {
                Box::new(CountExecutor::new(Arc::clone(model)).map_err(engine_error)?)
            }
        };
        let (vocab, context) = (executor.vocab_size(), executor.context_limit());
        Ok(Ready { executor, vocab, context })
    }
}

/// Serves until a signal.
pub fn run(args: &ServeArgs) -> Result<(), CliError> {
    let api_keys = keys(args)?;
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(cert), Some(key)) => Some(Tls::open(cert, key).map_err(CliError::input)?),
        _ => None,
    };
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut recording = args.ledger.start()?;
    let runtime_bytes = ledger::resident_bytes();
    let (kv, adapter) = (args.batching.kv.kind(), args.adapter.adapter.as_deref());
    let opened = Opened::open_adapted(&args.model, kv, adapter)?;
    recording.iter_mut().for_each(|r| r.opened());
    let guesser =
        args.batching.draft.as_deref().map(|path| draft::open(path, kv, &opened)).transpose()?;
    let digest = opened.digest()?;
    let (never, parameters) = (opened.never(false), opened.parameters());
    let Opened { saved, tokenizer, ends, template, dir, .. } = opened;
    let kind = saved.config().kind().to_owned();
    let guessing = guesser.as_ref().map(|guesser| guesser.saved.config());
    let (limits, why) = args.batching.limits(&saved.config(), guessing.as_ref())?;
    let team = team(args.batching.threads)?;
    let mut plan = running::serving_lists(&saved.config(), &limits, team.threads())
        .map_err(CliError::failed)?;
    let name = args.name.clone().unwrap_or_else(|| name_of(&dir));
    let what_if = match guesser {
        // A page has no slider for a second model.
        Some(_) => Value::Null,
        None => {
            let threads = team.threads();
            let ran = Ran { name: &name, plan: &plan, runtime_bytes, threads };
            what_if::of_serving(ran, &saved.config(), &limits).unwrap_or_default()
        }
    };
    let without_window = Limits { window: None, ..limits };
    let guesser = match guesser {
        None => None,
        Some(opened) => {
            let own = running::draft_lists(&opened.saved.config(), &limits, team.threads())
                .map_err(CliError::failed)?;
            let told = Guesser {
                name: name_of(&opened.dir),
                digest: opened.digest()?,
                tokens: limits.drafts,
                plan: own.clone(),
            };
            plan.extend(own);
            Some((opened.saved, told))
        }
    };
    fit(&plan)?;
    let ready = Shared::new(saved).ready(&limits, &team)?;
    let metrics = Arc::new(Metrics::new(&name, &limits));
    let (vocab, context) = (ready.vocab, ready.context);
    let executor = WatchedExecutor::boxed(ready.executor, recording.as_ref());
    let mut engine = Engine::new(executor, limits, &tokenizer).map_err(engine_error)?;
    let mut guesses = None;
    if let Some((saved, told)) = guesser {
        let ready = Shared::new(saved).ready(&without_window, &team)?;
        let draft = Draft::new(ready.executor, &limits).map_err(engine_error)?;
        (engine, guesses) = (engine.with_draft(draft), Some(told));
    }
    let figures = Arc::clone(&metrics);
    let observer = Box::new(move |report: &_, _, took| figures.step(report, took));
    let most = args.max_waiting as usize;
    let (handle, thread) = spawn(engine, vocab, context, most, observer)
        .map_err(|e| CliError::failed(format!("the engine's thread cannot start: {e}")))?;
    let template = template.map(of_template).transpose()?;
    let model = Served {
        name,
        digest,
        kind,
        tokenizer,
        ends,
        never,
        template,
        context,
        kv: kv.name(),
        draft: guesses,
        levers: levers(&plan)?,
        what_if,
        plan,
        runtime_bytes,
        parameters,
    };
    term::note(&told(&model, &limits, why, team.threads()));
    let app = Arc::new(App::new(model, handle, options(args, api_keys, tls), metrics));
    let address = SocketAddr::new(args.host, args.port);
    recording.iter().for_each(|r| r.recorder.mark("ready"));
    let finished = server::run(&app, address, |bound| {
        term::print(&format!("listening on {scheme}://{bound}\n"));
    })
    .map_err(|e| CliError::input(format!("{address}: {e}; choose another --host or --port")))?;
    let broken_off = app.under_way();
    if let Some(recording) = recording {
        let title = format!("serve {}", app.model.name);
        let what_if = Some(app.model.what_if.clone()).filter(|v| !v.is_null());
        let parameters = app.model.parameters;
        let known = Known { parameters, what_if, ..Known::default() };
        recording.finish_knowing(&title, &app.model.plan, known)?;
    }
    drop(app);
    match finished {
        true => {
            drop(thread.join());
            term::note("every request was answered");
            Ok(())
        }
        false => Err(CliError::failed(format!("{broken_off} requests were broken off"))),
    }
}

/// What could be changed to take less, as a diagnosis of the plan says.
fn levers(plan: &Plan) -> Result<serde_json::Value, CliError> {
    let mut value = serde_json::json!({ "terms": plan::Terms::of_plan(plan) });
    plan::diagnose::complete(&mut value, None).map_err(CliError::failed)?;
    Ok(value["levers"].take())
}

fn options(args: &ServeArgs, api_keys: Vec<String>, tls: Option<Tls>) -> Options {
    Options {
        api_keys,
        body_bytes: args.max_body as usize * 1024,
        request_time: Duration::from_secs(args.request_timeout.into()),
        drain_time: Duration::from_secs(args.drain_timeout.into()),
        connections: args.max_connections as usize,
        cors_origin: args.cors_origin.clone(),
        log: args.log,
        tls,
    }
}

fn keys(args: &ServeArgs) -> Result<Vec<String>, CliError> {
    let mut keys = args.api_keys.clone();
    if let Some(path) = &args.api_key_file {
        let text = std::fs::read_to_string(path).map_err(|e| {
            CliError::input(format!("{}: {e}; give a file with a key a line", path.display()))
        })?;
        keys.extend(text.lines().map(str::to_owned));
        if keys.iter().all(|key| key.trim().is_empty()) {
            return Err(CliError::input(format!("{}: holds no key", path.display())));
        }
    }
    keys.iter_mut().for_each(|key| *key = key.trim().to_owned());
    keys.retain(|key| !key.is_empty());
    Ok(keys)
}

fn of_template(template: Template) -> Result<ChatTemplate, CliError> {
    ChatTemplate::new(&template.source, &template.bos_token, &template.eos_token)
        .map_err(CliError::input)
}

/// The weights are there already; the rest of the plan must fit beside them.
fn fit(plan: &Plan) -> Result<(), CliError> {
    let mut rest = plan.clone();
    rest.lines.retain(|line| line.account != ledger::Account::Weights);
    crate::cmd::fit(&rest, "serving", "give fewer --kv-tokens, --max-sequences or --step-tokens")
}

fn name_of(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = match path.is_dir() {
        true => path.file_name(),
        false => path.file_stem(),
    };
    name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

fn told(model: &Served, limits: &Limits, why: &str, threads: usize) -> String {
    let bytes = model.plan.of(ledger::Account::KvCache);
    format!(
        "{}: {} threads, {} at most; K/V {} pages of {} tokens = {} tokens, {} ({why}); {} sequences \
         side by side, {} tokens a step",
        model.name,
        threads,
        mib(model.plan.total() + model.runtime_bytes),
        limits.pages,
        limits.page_tokens,
        limits.capacity(),
        mib(bytes),
        limits.sequences,
        limits.step_tokens,
    )
}
