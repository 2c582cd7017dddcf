//! `autoreg verify`: shows on this machine that an answer does not depend on its company; of a run
//! folder with checkpoints first what `verify_run` shows of training.
//!
//! The same requests run alone, together, in shuffled arrivals, on one thread and on all, in small
//! and large pieces, with the prefix cache cold and warm, and with forced preemptions. Tokens and
//! log-probabilities must be the same bits every time.

use crate::cmd::model::{Opened, engine_error};
use crate::cmd::serve::Shared;
use crate::cmd::{KvArgs, json, team, verify_run};
use crate::error::CliError;
use crate::term;
use clap::Args;
use decoding::{Rule, Rules};
use engine::Request;
use engine::serving::{Asked, Engine, Event, Limits, NetworkExecutor};
use kernels::{Team, mix};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Arguments of `verify`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  autoreg verify runs/t1
  autoreg verify runs/z                 also: resumption, ZeRO stages, checkpoints
  autoreg verify models/smollm2-135m-q4_1.gguf --requests 4 --max-tokens 8

Of a run folder with checkpoints: every checkpoint is read whole, short runs from its weights are
resumed to the bit and done by two and four ranks at each ZeRO stage; nothing in the folder changes.

Exit codes: 0 all digests are the same, 1 some differ or a checkpoint does not hold.")]
pub struct VerifyArgs {
    /// A run folder of `autoreg train`, a GGUF file or a Hugging Face folder
    pub model: PathBuf,
    /// Requests; their prompts are random tokens, many with the same beginning
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u16).range(2..=256))]
    pub requests: u16,
    /// Tokens of the longest prompt
    #[arg(long, value_name = "N", default_value_t = 48,
          value_parser = clap::value_parser!(u16).range(2..=4096))]
    pub prompt_tokens: u16,
    /// New tokens a request
    #[arg(long, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub max_tokens: u16,
    /// Seed of prompts, settings and arrivals
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// How keys and values are kept
    #[command(flatten)]
    pub kv: KvArgs,
    /// Workers of the runs on all threads (default: the processors this process may use)
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// How the requests are run.
#[derive(Debug, Clone, Copy, Serialize)]
struct Way {
    name: &'static str,
    threads: usize,
    /// Sequences side by side.
    company: usize,
    step_tokens: usize,
    page_tokens: usize,
    shuffled: bool,
    /// Whether texts that begin alike share pages.
    shares: bool,
    /// Tokens guessed ahead.
    drafts: usize,
    /// Every third step sends a sequence back to wait.
    preempted: bool,
    /// The requests run once before, so that their beginnings are in the cache.
    warm: bool,
}

/// What a way of running came to.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    way: Way,
    digest: String,
    same: bool,
    cached_tokens: u64,
    preemptions: u64,
    seconds: f64,
}

#[derive(Debug, Serialize)]
struct Verdict {
    version: &'static str,
    isa: &'static str,
    model_digest: String,
    requests: usize,
    tokens: usize,
    rows: Vec<Row>,
    same: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    training: Vec<verify_run::Row>,
}

/// (token, log-probability, log-probability in what was drawn from) of each token, as bits.
type Answers = BTreeMap<usize, Vec<(u32, u64, u64)>>;

/// Runs every way and compares.
pub fn run(args: &VerifyArgs) -> Result<(), CliError> {
    let is_run = train::resumable(&args.model);
    let training = match is_run {
        true => verify_run::verify(&args.model, args.threads, !args.json)?,
        false => Vec::new(),
    };
    let holds = training.iter().all(|row| row.good);
    if is_run && !args.model.join(train::CONFIG_FILE).is_file() {
        // Adapters alone: there is no model to ask.
        return if holds { Ok(()) } else { Err(broken()) };
    }
    let opened = Opened::open_with(&args.model, args.kv.kind())?;
    let model_digest = opened.digest()?;
    let config = opened.saved.config();
    let (vocab, context) = (config.vocab_size(), config.context_limit().unwrap_or(usize::MAX));
    let all = team(args.threads)?;
    let requests = requests(args, vocab, context)?;
    let Opened { saved, tokenizer, .. } = opened;
    let shared = Shared::new(saved);
    let shares = NetworkExecutor::shares(&config);
    let (mut rows, mut first): (Vec<Row>, Option<Answers>) = (Vec::new(), None);
    for way in ways(all.threads()) {
        let team = if way.threads == 1 { Arc::new(Team::new(1)) } else { Arc::clone(&all) };
        let longest = usize::from(args.prompt_tokens) + usize::from(args.max_tokens);
        let pages = (longest.div_ceil(way.page_tokens) + 1) * (way.company + 1);
        let limits = Limits {
            pages,
            page_tokens: way.page_tokens,
            step_tokens: way.step_tokens.max(way.company),
            sequences: way.company,
            shares: way.shares && shares,
            drafts: if shares { way.drafts } else { 0 },
            window: config.window(),
        };
        let ready = shared.ready(&limits, &team)?;
        let started = Instant::now();
        let mut engine = Engine::new(ready.executor, limits, &tokenizer).map_err(engine_error)?;
        if way.warm {
            answer(&mut engine, &requests, &way, args.seed)?;
        }
        let answers = answer(&mut engine, &requests, &way, args.seed)?;
        let same = *first.get_or_insert_with(|| answers.clone()) == answers;
        let totals = engine.scheduler().totals();
        rows.push(Row {
            digest: digest(&answers),
            same,
            cached_tokens: totals.hit,
            preemptions: totals.preemptions,
            seconds: started.elapsed().as_secs_f64(),
            way,
        });
        if !args.json {
            term::print(&line(rows.last()));
        }
    }
    let same = rows.iter().all(|row| row.same);
    let tokens = first.map_or(0, |all| all.values().map(Vec::len).sum());
    if args.json {
        let (version, isa) = (env!("CARGO_PKG_VERSION"), kernels::Isa::current().name());
        let requests = requests.len();
        let verdict =
            Verdict { version, isa, model_digest, requests, tokens, rows, same, training };
        term::print(&json(&verdict)?);
    } else if same {
        term::print(&format!(
            "the same bits every time: {} requests, {tokens} tokens\n",
            requests.len()
        ));
    }
    match same {
        true if holds => Ok(()),
        true => Err(broken()),
        false => Err(CliError::failed("answers differ with their company: see the digests above")),
    }
}

fn broken() -> CliError {
    CliError::failed("this run does not hold: see what is WRONG above")
}

fn ways(threads: usize) -> [Way; 9] {
    let alone = Way {
        name: "alone",
        threads,
        company: 1,
        step_tokens: 512,
        page_tokens: 16,
        shares: false,
        drafts: 0,
        shuffled: false,
        preempted: false,
        warm: false,
    };
    let together = Way { name: "in company", company: 8, shares: true, ..alone };
    [
        alone,
        Way { name: "alone, one thread", threads: 1, ..alone },
        together,
        Way { name: "shuffled arrivals", shuffled: true, ..together },
        Way { name: "small pieces", step_tokens: 16, page_tokens: 4, ..together },
        Way { name: "prefix cache warm", warm: true, page_tokens: 4, ..together },
        Way { name: "guessed ahead", drafts: 4, ..together },
        Way { name: "forced preemptions", preempted: true, ..together },
        Way {
            name: "all of it, one thread",
            threads: 1,
            shuffled: true,
            preempted: true,
            warm: true,
            drafts: 3,
            step_tokens: 24,
            page_tokens: 8,
            ..together
        },
    ]
}

/// Prompts of random tokens, every other one with a common beginning; greedy and drawn.
fn requests(args: &VerifyArgs, vocab: usize, context: usize) -> Result<Vec<Request>, CliError> {
    let longest = usize::from(args.prompt_tokens).min(context);
    let make = |i: u64| {
        let random = |what: u64| mix(args.seed ^ mix(i << 20 | what));
        let length = 1 + random(0) as usize % longest;
        let common = |j: u64| mix(args.seed ^ mix(j));
        let token = |j: u64| {
            let number = if i.is_multiple_of(2) && j < 32 { common(j) } else { random(1 + j) };
            (number % vocab as u64) as u32
        };
        let rules = match i % 3 {
            0 => vec![Rule::Temperature { t: 0.0 }],
            1 => vec![Rule::Temperature { t: 0.8 }],
            _ => Vec::new(),
        };
        Ok(Request {
            prompt: (0..length as u64).map(token).collect(),
            rules: Rules::new(rules).map_err(CliError::failed)?,
            seed: args.seed.wrapping_add(i),
            first_sequence: 0,
            sequences: 1,
            max_tokens: args.max_tokens.into(),
            end: Vec::new(),
            stops: Vec::new(),
        })
    };
    (0..u64::from(args.requests)).map(make).collect()
}

fn answer(
    engine: &mut Engine,
    requests: &[Request],
    way: &Way,
    seed: u64,
) -> Result<Answers, CliError> {
    let mut order: Vec<usize> = (0..requests.len()).rev().collect();
    if way.shuffled {
        order.sort_by_key(|&i| mix(seed ^ mix(i as u64 + 77)));
    }
    let (mut answers, mut step) = (Answers::new(), 0_u64);
    while !order.is_empty() || !engine.is_idle() {
        step += 1;
        let arrives = !way.shuffled || mix(seed ^ step).is_multiple_of(3) || engine.is_idle();
        if arrives && let Some(i) = order.pop() {
            let asked = Asked::plain(requests[i].clone());
            engine.submit(i as u64, asked).map_err(engine_error)?;
        }
        if way.preempted && step.is_multiple_of(3) {
            engine.preempt_youngest();
        }
        for (id, event) in engine.step().1 {
            match event {
                Event::Token(told) => {
                    let choice = told.choice;
                    let bits =
                        (choice.id, choice.logprob.to_bits(), choice.sample_logprob.to_bits());
                    answers.entry(id as usize).or_default().push(bits);
                }
                Event::Failed(error) => return Err(engine_error(error)),
                _ => {}
            }
        }
        engine.scheduler().check().map_err(CliError::failed)?;
    }
    Ok(answers)
}

/// Over all answers in their order, by the mixing that the counters use.
fn digest(answers: &Answers) -> String {
    let mut state = [1_u64, 2];
    for (id, logprob, sample) in answers.values().flatten() {
        for word in [u64::from(*id), *logprob, *sample] {
            state = [mix(state[0] ^ word), mix(state[1].wrapping_add(word).rotate_left(17))];
        }
    }
    format!("{:016x}{:016x}", state[0], state[1])
}

fn line(row: Option<&Row>) -> String {
    let Some(row) = row else { return String::new() };
    format!(
        "{} {:<22} {:>2} threads  {:>6} cached tokens  {:>4} preemptions  {:>7.2} s{}\n",
        row.digest,
        row.way.name,
        row.way.threads,
        row.cached_tokens,
        row.preemptions,
        row.seconds,
        if row.same { "" } else { "  DIFFERS" },
    )
}
