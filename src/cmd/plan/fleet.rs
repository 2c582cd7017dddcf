//! `autoreg plan fleet`.

use super::serve::Case;
use super::steps::calibrate;
use super::train::TrainArgs;
use super::{Common, against, write_page};
use crate::cmd::json;
use crate::error::CliError;
use crate::term;
use clap::{Args, Subcommand, ValueEnum};
use engine::serving::Limits;
use kernels::Team;
use plan::fleet::{
    Arrivals, Beside, FleetAsk, FleetGrid, FleetReport, Lengths, MeasuredSteps, Objective, Routing,
    Spread, StepCost, fewest_replicas, simulate,
};
use plan::{Architecture, NumberKind, Roofline, ServeAsk, running};
use serde_json::Value;
use std::fmt::Write;
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RoutingName {
    /// One after the other
    RoundRobin,
    /// The one with the fewest requests
    LeastBusy,
    /// Any
    Random,
}

/// What else is simulated.
#[derive(Debug, Subcommand)]
enum Other {
    /// Steps of data-parallel training over ranks: `plan train` with --machine and --network
    Train(Box<TrainArgs>),
}

/// Arguments of `plan fleet`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  autoreg plan fleet llama-3-8b --machine l4 --rate 4 --objective 1000,100 --price 0.8
  autoreg plan fleet models/smollm2-135m-q4_1.gguf --calibrate --clients 4 --prompt-tokens 128
  autoreg plan fleet qwen3-8b --machine h100-sxm --rate 20 --replicas 3 --routing least-busy --html f.html
  autoreg plan fleet train qwen3-8b --zero 3 --ranks 16 --machine h100-sxm --network 25GB --overlap
  autoreg bench serve http://127.0.0.1:8080 --clients 1,4,16 --json > seen.json; \
    autoreg plan fleet model.gguf --calibrate --against seen.json

Requests arrive, wait, are read in steps beside others and write their tokens, as the server's own scheduler
says; only a step's time is modelled: by a roofline of --machine, or with --calibrate by steps of the model
that are timed here first. Lengths are a number, a range like 64-512, or ~200 for an exponential
distribution around 200.")]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct FleetArgs {
    #[command(subcommand)]
    what: Option<Other>,
    /// A published name, a config.json, a folder or a GGUF file
    #[arg(required = true)]
    model: Option<String>,
    /// Time steps of the model on this machine, and simulate with those
    #[arg(long, conflicts_with = "machine")]
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
    #[arg(long, value_name = "X", value_parser = price)]
    price: Option<f64>,
    /// Tokens that each server's K/V cache holds [default: 4096 a sequence]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    kv_tokens: Option<u64>,
    /// Sequences that run side by side on a server
    #[arg(long, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u16).range(1..))]
    max_sequences: u16,
    /// Tokens of a step, at most
    #[arg(long, value_name = "N", default_value_t = 128,
          value_parser = clap::value_parser!(u16).range(1..))]
    step_tokens: u16,
    /// How weights are stored, for the roofline [default: bf16; of a file, as it has them]
    #[arg(long, value_name = "KIND", value_parser = super::kind)]
    weights: Option<NumberKind>,
    /// How keys and values are stored, for the roofline and the bytes [default: bf16; of a file, f32]
    #[arg(long, value_name = "KIND", value_parser = super::kind)]
    kv: Option<NumberKind>,
    /// Workers, with --calibrate
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Milliseconds between an answer and the same client's next request [default: as measured with
    /// --calibrate, else 2]
    #[arg(long, value_name = "MS", value_parser = turnaround)]
    turnaround: Option<f64>,
    /// What `autoreg bench serve --json` measured of a server: each of its loads is simulated and the
    /// medians set beside each other
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "clients", "requests", "objective"])]
    against: Option<PathBuf>,
    /// Where chance starts
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    common: Common,
}

impl FleetArgs {
    /// What is simulated.
    pub fn model(&self) -> &str {
        self.model.as_deref().unwrap_or_default()
    }
}

/// Servers that an objective is tried with, at most.
const MOST_REPLICAS: usize = 256;
/// Milliseconds between an answer and the same client's next request where nothing is said or measured.
const TURNAROUND_MS: f64 = 2.0;
/// Tokens of the cache a sequence where nothing is said.
const TOKENS_A_SEQUENCE: u64 = 4096;

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

fn price(text: &str) -> Result<f64, String> {
    let found = text.parse::<f64>().ok().filter(|x| (0.0..1e18).contains(x));
    found.ok_or_else(|| "give a number, at least 0".to_owned())
}

fn turnaround(text: &str) -> Result<f64, String> {
    let found = text.parse::<f64>().ok().filter(|ms| (0.0..=3.6e6).contains(ms));
    found.ok_or_else(|| "give milliseconds, at least 0".to_owned())
}

/// Simulates as told.
pub fn run(args: &FleetArgs) -> Result<(), CliError> {
    if let Some(Other::Train(args)) = &args.what {
        if !args.has_network() {
            return Err(CliError::input(
                "plan fleet train: give --machine and --network: steps are simulated on them",
            ));
        }
        return super::train::run(args);
    }
    let machine = args.common.machine()?;
    let mut case = server(args)?;
    case.ask.budget = args.common.budget_on(machine.as_ref());
    let plan = case.predict(&case.ask).map_err(CliError::input)?;
    let mut ask = ask(args, &case)?;
    let (cost, timed): (Box<dyn StepCost>, Option<MeasuredSteps>) = match (machine, args.calibrate)
    {
        (_, true) => {
            let kv = running::kv_kind(case.ask.kv).unwrap_or_default();
            let prompt = match &args.against {
                Some(path) => against::prompt_tokens(path)?,
                None => mean(ask.prompt),
            };
            let steps = calibrate(args, &ask.limits, kv, prompt as usize)?;
            if args.turnaround.is_none() {
                ask.turnaround_s = steps.beside.turnaround_s;
            }
            (Box::new(steps.clone()), Some(steps))
        }
        (Some(machine), false) => {
            let weights = plan.balance.terms.of("weights");
            let roofline = Roofline::new(&case.architecture, &case.ask, weights, &machine);
            (Box::new(roofline.map_err(CliError::input)?), None)
        }
        (None, false) => {
            return Err(CliError::input(
                "no --machine and no --calibrate: a step's time must come from one of them",
            ));
        }
    };
    if let Some(path) = &args.against {
        return against::run(args.model(), path, &ask, &*cost, args.common.json);
    }
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
    let mut told = text(args, &seen, needed.as_ref(), price);
    timed.iter().for_each(|steps| told += &beside(&steps.beside));
    if let Some(path) = &args.common.html {
        let own = FleetAsk { replicas: seen.replicas, ..ask };
        let grid = FleetGrid::new(&own, &*cost).map_err(CliError::input)?;
        let sheet = case.sheet(&plan)?.with_fleet(&grid);
        write_page(path, &plan::page(&plan, &sheet, &format!("\n{told}")))?;
    }
    if args.common.json {
        let mut value = serde_json::to_value(&plan).map_err(CliError::failed)?;
        value["seen"] = serde_json::to_value(&seen).map_err(CliError::failed)?;
        value["steps"] = serde_json::to_value(timed).map_err(CliError::failed)?;
        value["fleet_bytes"] = plan.balance.total_bytes.saturating_mul(seen.replicas as u64).into();
        value["replicas_needed"] = match &needed {
            Some(Some(seen)) => seen.replicas.into(),
            _ => Value::Null,
        };
        value["cost_per_million_tokens"] = price.into();
        term::print(&json(&value)?);
    } else {
        term::print(&format!("{told}\none server: {}", plan::text(&plan)));
    }
    Ok(())
}

/// One server: what it holds, and how it is counted.
fn server(args: &FleetArgs) -> Result<Case, CliError> {
    let architecture = Architecture::open(args.model()).map_err(CliError::input)?;
    let keeps = args.kv.is_none_or(|kind| running::kv_kind(kind).is_some());
    let engine = architecture.runs_here && args.weights.is_none() && keeps;
    let sequences = u64::from(args.max_sequences);
    let tokens = args.kv_tokens.unwrap_or(TOKENS_A_SEQUENCE * sequences);
    let own = if engine { architecture.own_weights() } else { NumberKind::Bf16 };
    let ask = ServeAsk {
        context: tokens.div_ceil(sequences),
        requests: sequences,
        weights: args.weights.unwrap_or(own),
        kv: args.kv.unwrap_or(if engine { NumberKind::F32 } else { NumberKind::Bf16 }),
        step_tokens: args.step_tokens.into(),
        threads: args.threads.map_or_else(|| Team::available() as u64, |n| n as u64),
        ..ServeAsk::default()
    };
    Case::of(architecture, ask, engine)
}

fn ask(args: &FleetArgs, case: &Case) -> Result<FleetAsk, CliError> {
    let limits = running::limits(&case.architecture, &case.ask).map_err(CliError::input)?;
    let tokens = args.kv_tokens.and_then(|tokens| usize::try_from(tokens).ok());
    let pages = tokens.map_or(limits.pages, |tokens| tokens.div_ceil(limits.page_tokens));
    Ok(FleetAsk {
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
        // No two texts share a page, and a window saves none. Bytes are counted of whole pages a sequence.
        limits: Limits { pages, shares: false, window: None, ..limits },
        turnaround_s: args.turnaround.unwrap_or(TURNAROUND_MS) / 1e3,
        seed: args.seed,
    })
}

/// Tokens on average.
fn mean(lengths: Lengths) -> u64 {
    match lengths {
        Lengths::Fixed(n) | Lengths::Around(n) => n,
        Lengths::Between(low, high) => low.midpoint(high),
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
        args.model(),
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

/// What passes beside steps, in a line.
fn beside(beside: &Beside) -> String {
    let ms = |s: f64| format!("{:.2} ms", 1e3 * s);
    let step = |&(n, s): &(u64, f64)| {
        let tokens = if n == 1 { "one token".to_owned() } else { format!("{n} tokens") };
        format!("{} after {tokens}", ms(s))
    };
    let ends = [beside.steps.first(), beside.steps.last()];
    let steps: Vec<String> = ends.into_iter().flatten().map(step).collect();
    let told = format!(
        "beside a step: to the next {}; on a request's way {}; from an answer to the same client's \
         next request {}; measured with clients on this machine",
        steps.join(", "),
        ms(beside.request_s),
        ms(beside.turnaround_s)
    );
    plan::wrapped("", &told)
}

fn servers(n: usize) -> String {
    if n == 1 { "one server".to_owned() } else { format!("{n} servers") }
}
