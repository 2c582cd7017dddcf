//! `autoreg plan fleet`.

use super::machine;
use crate::cmd::model::Opened;
use crate::cmd::{json, team};
use crate::error::CliError;
use crate::term;
use clap::{Args, ValueEnum};
use engine::serving::{Executor, Limits, NetworkExecutor, Piece, Rows};
use kernels::Team;
use models::Model;
use plan::fleet::{
    Arrivals, FleetAsk, FleetReport, Lengths, MeasuredSteps, Objective, Routing, Spread, StepCost,
    fewest_replicas, simulate,
};
use plan::{Architecture, NumberKind, Roofline, ServeAsk, running};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use train::SavedModel;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RoutingName {
    /// One after the other
    RoundRobin,
    /// The one with the fewest requests
    LeastBusy,
    /// Any
    Random,
}

/// Arguments of `plan fleet`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  autoreg plan fleet llama-3-8b --machine l4 --rate 4 --objective 1000,100 --price 0.8
  autoreg plan fleet models/smollm2-135m-q4_1.gguf --calibrate --clients 4 --prompt-tokens 128
  autoreg plan fleet qwen3-8b --machine h100-sxm --rate 20 --replicas 3 --routing least-busy

Requests arrive, wait, are read in steps beside others and write their tokens, as the server's own scheduler
says; only a step's time is modelled: by a roofline of --machine, or with --calibrate by steps of the model
that are timed here first. Lengths are a number, a range like 64-512, or ~200 for an exponential
distribution around 200.")]
pub struct FleetArgs {
    /// A published name, a config.json, a folder or a GGUF file
    model: String,
    /// The machine of each server: a name of `autoreg plan machines`, a file of `autoreg doctor`, or
    /// `measured`
    #[arg(long, value_name = "NAME|FILE|measured", conflicts_with = "calibrate")]
    machine: Option<String>,
    /// Time steps of the model on this machine, and simulate with those
    #[arg(long)]
    calibrate: bool,
    /// Requests a second, at random times [default: 1]
    #[arg(long, value_name = "PER_SECOND", conflicts_with = "clients")]
    rate: Option<f64>,
    /// Instead: so many clients, each sending its next request when its last is answered
    #[arg(long, value_name = "N")]
    clients: Option<usize>,
    /// Requests that are simulated
    #[arg(long, value_name = "N", default_value_t = 1000)]
    requests: usize,
    /// Tokens of a prompt: N, LOW-HIGH or ~MEAN
    #[arg(long, value_name = "LENGTHS", value_parser = lengths, default_value = "128")]
    prompt_tokens: Lengths,
    /// Tokens of an answer: N, LOW-HIGH or ~MEAN
    #[arg(long, value_name = "LENGTHS", value_parser = lengths, default_value = "64")]
    max_tokens: Lengths,
    /// Servers
    #[arg(long, value_name = "N", default_value_t = 1)]
    replicas: usize,
    /// Which server a request goes to
    #[arg(long, value_enum, default_value = "round-robin")]
    routing: RoutingName,
    /// First token and time a token, in ms, that nine of ten requests are to keep to: the fewest
    /// servers that do
    #[arg(long, value_name = "MS,MS", value_parser = objective)]
    objective: Option<Objective>,
    /// What a server costs an hour, in any currency: the cost of a million tokens
    #[arg(long, value_name = "X")]
    price: Option<f64>,
    /// Tokens that each server's K/V cache holds [default: 4096 a sequence]
    #[arg(long, value_name = "N")]
    kv_tokens: Option<usize>,
    /// Sequences that run side by side on a server
    #[arg(long, value_name = "N", default_value_t = 16)]
    max_sequences: u16,
    /// Tokens of a step, at most
    #[arg(long, value_name = "N", default_value_t = 256)]
    step_tokens: u16,
    /// How weights are stored, for the roofline [default: bf16; of a file, as it has them]
    #[arg(long, value_name = "KIND", value_parser = super::kind)]
    weights: Option<NumberKind>,
    /// Workers, with --calibrate
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Where chance starts
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Servers that an objective is tried with, at most.
const MOST_REPLICAS: usize = 256;
/// Tokens of the cache a sequence where nothing is said.
const TOKENS_A_SEQUENCE: usize = 4096;

fn lengths(text: &str) -> Result<Lengths, String> {
    let number = |text: &str| text.trim().parse::<u64>().ok().filter(|&n| n > 0);
    let found = match (text.strip_prefix('~'), text.split_once('-')) {
        (Some(mean), _) => number(mean).map(Lengths::Around),
        (None, Some((low, high))) => number(low)
            .zip(number(high))
            .filter(|(low, high)| low <= high)
            .map(|(low, high)| Lengths::Between(low, high)),
        (None, None) => number(text).map(Lengths::Fixed),
    };
    found.ok_or_else(|| "give a number, a range like 64-512, or ~200 for a mean".to_owned())
}

fn objective(text: &str) -> Result<Objective, String> {
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|&x| x > 0.0);
    let pair = text.split_once(',').and_then(|(a, b)| number(a).zip(number(b)));
    pair.map(|(first_token_ms, per_token_ms)| Objective { first_token_ms, per_token_ms })
        .ok_or_else(|| "give two times in ms, like 500,50".to_owned())
}

/// Simulates as told.
pub fn run(args: &FleetArgs) -> Result<(), CliError> {
    let ask = ask(args);
    let (cost, timed): (Box<dyn StepCost>, Option<MeasuredSteps>) =
        match (&args.machine, args.calibrate) {
            (_, true) => {
                let steps = calibrate(args, &ask.limits)?;
                (Box::new(steps.clone()), Some(steps))
            }
            (Some(name), false) => (Box::new(roofline(args, name)?), None),
            (None, false) => {
                return Err(CliError::input(
                    "no --machine and no --calibrate: a step's time must come from one of them",
                ));
            }
        };
    let needed = args
        .objective
        .map(|objective| fewest_replicas(&ask, objective, MOST_REPLICAS, &*cost))
        .transpose()
        .map_err(CliError::input)?;
    let seen = match &needed {
        Some(Some(seen)) => seen.clone(),
        _ => simulate(&ask, &*cost).map_err(CliError::input)?,
    };
    let price = args.price.map(|price| {
        let tokens_an_hour = 3600.0 * seen.tokens_per_second;
        1e6 * price * seen.replicas as f64 / tokens_an_hour.max(1e-9)
    });
    if args.json {
        let value = json!({
            "model": args.model, "seen": seen, "steps": timed,
            "replicas_needed": match &needed {
                Some(Some(seen)) => Value::from(seen.replicas),
                _ => Value::Null,
            },
            "cost_per_million_tokens": price,
        });
        term::print(&json(&value)?);
    } else {
        term::print(&text(args, &seen, needed.as_ref(), price));
    }
    Ok(())
}

fn ask(args: &FleetArgs) -> FleetAsk {
    let page_tokens = running::PAGE_TOKENS as usize;
    let sequences = usize::from(args.max_sequences.max(1));
    let tokens = args.kv_tokens.unwrap_or(TOKENS_A_SEQUENCE * sequences);
    FleetAsk {
        arrivals: match args.clients {
            Some(clients) => Arrivals::Clients(clients),
            None => Arrivals::Rate(args.rate.unwrap_or(1.0)),
        },
        requests: args.requests,
        prompt: args.prompt_tokens,
        answer: args.max_tokens,
        replicas: args.replicas,
        routing: match args.routing {
            RoutingName::RoundRobin => Routing::RoundRobin,
            RoutingName::LeastBusy => Routing::LeastBusy,
            RoutingName::Random => Routing::Random,
        },
        limits: Limits {
            pages: tokens.div_ceil(page_tokens).max(1),
            page_tokens,
            step_tokens: usize::from(args.step_tokens).max(sequences),
            sequences,
            shares: false,
            drafts: 0,
            window: None,
        },
        seed: args.seed,
    }
}

fn roofline(args: &FleetArgs, name: &str) -> Result<Roofline, CliError> {
    let machine = machine(name)?;
    let architecture = Architecture::open(&args.model).map_err(CliError::input)?;
    let parameters = architecture.parameters().map_err(CliError::input)?;
    let kept = architecture.runs_here && args.weights.is_none();
    let weights =
        args.weights.unwrap_or(if kept { architecture.own_weights() } else { NumberKind::Bf16 });
    let ask = ServeAsk {
        context: 1,
        requests: 1,
        weights,
        kv: if kept { NumberKind::F32 } else { NumberKind::Bf16 },
        step_tokens: args.step_tokens.into(),
        threads: 1,
        budget: None,
    };
    let bytes = match kept {
        true => {
            Model::plan(&architecture.config).map(|plan| plan.total()).map_err(CliError::input)?
        }
        false => weights.bytes(parameters).map_err(CliError::input)?,
    };
    Roofline::new(&architecture, &ask, bytes, &machine).map_err(CliError::input)
}

/// Rows of steps that are timed: sequences that each extend by a token, then pieces of a prompt.
const DECODED: [usize; 5] = [1, 2, 4, 8, 16];
const READ: [usize; 4] = [32, 64, 128, 256];
/// Times that each is timed; the median counts.
const RUNS: usize = 5;

/// Times steps of the model on this machine.
fn calibrate(args: &FleetArgs, asked: &Limits) -> Result<MeasuredSteps, CliError> {
    let opened = Opened::open(Path::new(&args.model))?;
    let SavedModel::Network(model) = opened.saved else {
        return Err(CliError::input("--calibrate: a model of counts has no steps to time"));
    };
    let team = team(args.threads)?;
    let context = model.config().context_limit().unwrap_or(1024).min(1024);
    let most = asked.step_tokens.min(context).max(DECODED[0]);
    let page_tokens = asked.page_tokens;
    let limits = Limits {
        pages: (context + 32 * 16).div_ceil(page_tokens) + 16,
        step_tokens: most.max(DECODED[4]),
        sequences: DECODED[4],
        window: model.config().window(),
        ..*asked
    };
    let mut timer = Timer::new(Arc::from(model), &limits, &team)?;
    let (near, far) = (16.min(context - 1), context - 1);
    let past_s = (timer.decode(1, far)? - timer.decode(1, near)?) / (far - near).max(1) as f64;
    let past_s = past_s.max(0.0);
    let mut by_rows = Vec::new();
    for n in DECODED {
        let seconds = timer.decode(n, near)? - past_s * (n * near) as f64;
        by_rows.push((n as u64, seconds));
    }
    for n in READ.into_iter().filter(|&n| n <= most) {
        by_rows.push((n as u64, timer.read(n)?));
    }
    Ok(MeasuredSteps { by_rows, past_s })
}

/// An executor and what it is timed with.
struct Timer {
    executor: NetworkExecutor,
    tokens: Vec<u32>,
    logits: Vec<f32>,
    page_tokens: usize,
    near_pages: u32,
}

impl Timer {
    fn new(model: Arc<Model>, limits: &Limits, team: &Arc<Team>) -> Result<Timer, CliError> {
        let vocab = model.config().vocab_size();
        let executor = NetworkExecutor::new(model, limits, team).map_err(CliError::failed)?;
        let tokens = limits.capacity() as u64;
        let tokens = (0..tokens).map(|i| (kernels::uniform_bits(7, i) % vocab as u64) as u32);
        let (tokens, page_tokens) = (tokens.collect(), limits.page_tokens);
        let near_pages = limits.kv_pages().near as u32;
        let logits = vec![0.0; limits.rows() * vocab];
        Ok(Timer { executor, tokens, logits, page_tokens, near_pages })
    }

    /// Which pages hold what layers with a window see does not matter for the time.
    fn near(&self, pages: &[u32]) -> Vec<u32> {
        pages.iter().map(|page| page % self.near_pages.max(1)).collect()
    }

    /// Seconds of a step in which `n` sequences with `past` tokens extend by one.
    fn decode(&mut self, n: usize, past: usize) -> Result<f64, CliError> {
        let each = (past + 1).div_ceil(self.page_tokens) as u32;
        let table = |i: u32| -> Vec<u32> { (i * each..(i + 1) * each).collect() };
        let tables: Vec<_> = (0..n as u32).map(table).map(|t| (self.near(&t), t)).collect();
        let known = self.tokens[..past + 1].to_vec();
        let pieces: Vec<Piece<'_>> = tables
            .iter()
            .enumerate()
            .map(|(i, (near, pages))| Piece {
                id: i as u64,
                known: &known,
                from: past,
                pages,
                near,
                rows: Rows::From(past),
            })
            .collect();
        self.time(&pieces)
    }

    /// Seconds of a step that reads `n` tokens of a prompt.
    fn read(&mut self, n: usize) -> Result<f64, CliError> {
        let pages: Vec<u32> = (0..n.div_ceil(self.page_tokens) as u32).collect();
        let known = self.tokens[..n].to_vec();
        let (near, rows) = (self.near(&pages), Rows::From(n - 1));
        let piece = Piece { id: 0, known: &known, from: 0, pages: &pages, near: &near, rows };
        self.time(&[piece])
    }

    fn time(&mut self, pieces: &[Piece<'_>]) -> Result<f64, CliError> {
        let mut seconds = Vec::with_capacity(RUNS);
        for run in 0..=RUNS {
            let start = Instant::now();
            self.executor.run(pieces, &mut self.logits).map_err(CliError::failed)?;
            if run > 0 {
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
        seconds.sort_by(f64::total_cmp);
        Ok(seconds[RUNS / 2])
    }
}

fn text(
    args: &FleetArgs,
    seen: &FleetReport,
    needed: Option<&Option<FleetReport>>,
    price: Option<f64>,
) -> String {
    let mut out = String::new();
    match needed {
        Some(Some(seen)) => {
            let _ = writeln!(out, "{} to keep to the objective\n", servers(seen.replicas));
        }
        Some(None) => {
            let _ = writeln!(out, "{} are not enough for it\n", servers(MOST_REPLICAS));
        }
        None => {}
    }
    let _ = writeln!(
        out,
        "{}: {} requests on {}, {:.1} s\n",
        args.model,
        seen.requests,
        servers(seen.replicas),
        seen.seconds
    );
    let _ = writeln!(out, "{:<14}{:>12}{:>12}{:>12}{:>12}", "ms", "mean", "p50", "p90", "p99");
    let mut row = |name: &str, s: &Spread| {
        let _ = writeln!(
            out,
            "{name:<14}{:>12.1}{:>12.1}{:>12.1}{:>12.1}",
            s.mean_ms, s.p50_ms, s.p90_ms, s.p99_ms
        );
    };
    row("queue", &seen.queue);
    row("first token", &seen.first_token);
    row("a token", &seen.per_token);
    row("whole", &seen.whole);
    let _ = writeln!(
        out,
        "\n{:.1} tokens/s; servers busy {:.0} % of the time; {} sequences sent back to wait",
        seen.tokens_per_second,
        100.0 * seen.busy_share,
        seen.preemptions
    );
    if let Some(price) = price {
        let _ = writeln!(out, "a million tokens cost {price:.3}");
    }
    out
}

fn servers(n: usize) -> String {
    if n == 1 { "one server".to_owned() } else { format!("{n} servers") }
}
