//! `autoreg plan train`.

use super::{By, Common, seconds, write_page};
use crate::cmd::json;
use crate::error::CliError;
use crate::term::{self, thousands};
use clap::{Args, ValueEnum};
use kernels::Team;
use models::{ModelConfig, Recompute};
use plan::running::{self, Runtime};
use plan::tools::Offload;
use plan::{
    Architecture, Attention, Candidate, Layout, Logits, Machine, Network, Optimizer, Precision,
    Predict, Prediction, RanksReport, Searched, Sheet, StateBytes, Tool, ToolAsk, TrainAsk,
    TrainTimes, both, fewest_ranks, largest_published, most, search, simulate_ranks, train_times,
};
use serde_json::{Value, json};
use std::fmt::Write;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OptimizerName {
    /// Two moments
    Adamw,
    /// One buffer for the layers' parameters, two moments for the rest
    Muon,
    /// One buffer
    Momentum,
    /// None
    Sgd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PrecisionName {
    /// 16-bit weights, FP32 master weights and gradients: 18 bytes a parameter with AdamW
    Bf16,
    /// FP32 throughout: 16 bytes
    F32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AttentionName {
    /// A running softmax over tiles, as this program has it: no scores are stored
    Tiled,
    /// All scores are stored
    Stored,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogitsName {
    /// 64 rows at a time, as this program makes them
    Chunked,
    /// All rows at once
    Whole,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OffloadName {
    /// Optimizer states
    Optimizer,
    /// Optimizer states and weights
    All,
}

/// Arguments of `plan train`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  autoreg plan train qwen3-8b --batch 8 --length 2048 --recompute block --zero 2 --ranks 8
  autoreg plan train qwen3-0.6b --budget 24GiB                 searches what fits, and says why not
  autoreg plan train email-transformer --batch 64 --length 64  by the lists that train allocates by
  autoreg plan train 7e9 --zero 2 --ranks 8                    states alone: what a number says
  autoreg plan train qwen3-8b --as accelerate                  another tool's figure, and why it differs
  autoreg plan train 7.5e9 --as zero-paper --zero 2 --ranks 64
  autoreg plan train 6805e6 --as deepspeed --zero 3 --ranks 4 --largest-layer 131e6 --offload
  autoreg plan train qwen3-8b --zero 3 --ranks 16 --machine h100-sxm --network 25GB --overlap

A parameter in training takes 18 bytes: 2 as it is computed with, 4 as FP32 master, 4 of gradient, 8 of
moments. Stage 1 shares master weights and moments out among ranks, stage 2 gradients too, stage 3 all.
What a layer keeps for its backward pass comes on top and grows with --batch and --length; recomputation
keeps less and computes it again.")]
pub struct TrainArgs {
    /// A published name, a config.json, a folder or a GGUF file; or a number of parameters: states alone
    model: String,
    #[arg(long, value_enum, default_value = "adamw")]
    optimizer: OptimizerName,
    /// [default: bf16; f32 for the models of this program's own experiment]
    #[arg(long, value_enum)]
    precision: Option<PrecisionName>,
    /// Sequences that a rank computes at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    batch: u64,
    /// Tokens of each [default: 2048, or the model's limit]
    #[arg(long, value_name = "N")]
    length: Option<u64>,
    /// Batches that an optimizer step adds up
    #[arg(long, value_name = "N", default_value_t = 1)]
    accumulate: u64,
    /// Each of them is a piece (train --pieces, of --accumulate times --ranks)
    #[arg(long)]
    pieces: bool,
    /// What the backward pass computes again: none, attention or block
    #[arg(long, value_name = "WORD", value_parser = recompute, default_value = "none")]
    recompute: Recompute,
    #[arg(long, value_enum, default_value = "tiled")]
    attention: AttentionName,
    #[arg(long, value_enum, default_value = "chunked")]
    logits: LogitsName,
    /// Count dropout's masks
    #[arg(long)]
    dropout: bool,
    /// ZeRO stage: what ranks share out
    #[arg(long, value_name = "STAGE", default_value_t = 0)]
    zero: u8,
    /// Data-parallel processes
    #[arg(long, value_name = "N", default_value_t = 1)]
    ranks: u64,
    /// Train adapters of this rank on all matrices of the layers, and nothing else
    #[arg(long, value_name = "RANK")]
    lora: Option<u64>,
    /// Workers of a rank [default: the processors this process may use]
    #[arg(long, value_name = "N")]
    threads: Option<u64>,
    /// Bytes a second that a rank sends, like 1.25GB: with --machine, steps are simulated over 1, 2, 4
    /// ranks up to --ranks
    #[arg(long, value_name = "SIZE", value_parser = plan::parse_bytes, requires = "machine")]
    network: Option<u64>,
    /// Microseconds until a message arrives
    #[arg(long, value_name = "US", default_value_t = 20.0, value_parser = at_least_0)]
    latency: f64,
    /// How far a rank's pace strays, as a share of its time: all wait for the slowest
    #[arg(long, value_name = "SHARE", default_value_t = 0.02, value_parser = at_least_0)]
    jitter: f64,
    /// Communication runs beside arithmetic
    #[arg(long)]
    overlap: bool,
    /// Another tool's figure by its own formulas: deepspeed, zero-paper, megatron, accelerate or
    /// eleuther
    #[arg(long = "as", value_name = "TOOL", value_parser = tool)]
    tool: Option<Tool>,
    /// Bytes a parameter before sharing out, with --as megatron: 16, 18 or 20
    #[arg(long, value_name = "N", requires = "tool")]
    megatron_bytes: Option<u64>,
    /// What is kept in host memory, with --as deepspeed
    #[arg(long, value_enum, value_name = "WHAT", requires = "tool", num_args = 0..=1, require_equals = true,
          default_missing_value = "optimizer")]
    offload: Option<OffloadName>,
    /// Parameters of the largest layer, for --as deepspeed --zero 3 [default: the model's own]
    #[arg(long, value_name = "N", requires = "tool", value_parser = parameters)]
    largest_layer: Option<f64>,
    /// What bytes are counted by [default: engine where this program trains it from files of weights or
    /// its own names, else formula]
    #[arg(long, value_enum)]
    by: Option<By>,
    #[command(flatten)]
    common: Common,
}

impl TrainArgs {
    /// What else a tool is asked.
    fn tool_ask(&self) -> ToolAsk {
        ToolAsk {
            megatron_bytes: self.megatron_bytes,
            offload: match self.offload {
                None => Offload::None,
                Some(OffloadName::Optimizer) => Offload::Optimizer,
                Some(OffloadName::All) => Offload::All,
            },
            largest_layer: self.largest_layer,
        }
    }

    /// Whether steps over ranks can be simulated.
    pub fn has_network(&self) -> bool {
        self.network.is_some()
    }
}

fn recompute(word: &str) -> Result<Recompute, String> {
    let found = Recompute::ALL.into_iter().find(|r| r.name() == word);
    found.ok_or_else(|| "choose none, attention or block".to_owned())
}

fn tool(word: &str) -> Result<Tool, String> {
    let found = Tool::ALL.into_iter().find(|tool| tool.name() == word);
    found.ok_or_else(|| "choose deepspeed, zero-paper, megatron, accelerate or eleuther".to_owned())
}

fn at_least_0(text: &str) -> Result<f64, String> {
    let found = text.parse::<f64>().ok().filter(|x| (0.0..=1e9).contains(x));
    found.ok_or_else(|| "give a number, at least 0".to_owned())
}

/// Steps over 1, 2, 4 ranks up to as many as asked for, each with its own batch.
fn over_ranks(
    args: &TrainArgs,
    architecture: &Architecture,
    ask: &TrainAsk,
    machine: &Machine,
    bytes_per_second: f64,
) -> Result<Vec<RanksReport>, CliError> {
    let network = Network {
        bytes_per_second,
        latency_s: args.latency / 1e6,
        jitter: args.jitter,
        overlap: args.overlap,
        seed: 0,
    };
    let most = ask.layout.ranks;
    let doubled = std::iter::successors(Some(1u64), |n| n.checked_mul(2)).take_while(|&n| n < most);
    let run = |ranks| {
        let layout = Layout { ranks, ..ask.layout };
        simulate_ranks(architecture, &TrainAsk { layout, ..*ask }, machine, &network)
    };
    doubled.chain([most]).map(run).collect::<Result<_, _>>().map_err(CliError::input)
}

fn ranks_text(ranks: &[RanksReport]) -> String {
    if ranks.is_empty() {
        return String::new();
    }
    let mut out = format!(
        "\nsteps over ranks, simulated:\n  {:>6}{:>12}{:>12}{:>12}{:>12}{:>12}{:>8}\n",
        "ranks", "step", "p90", "network", "waiting", "tokens/s", "of all"
    );
    for r in ranks {
        let _ = writeln!(
            out,
            "  {:>6}{:>12}{:>12}{:>12}{:>12}{:>12.0}{:>6.0} %",
            r.ranks,
            seconds(r.step.p50_ms / 1e3),
            seconds(r.step.p90_ms / 1e3),
            seconds(r.network_ms / 1e3),
            seconds(r.waiting_ms / 1e3),
            r.tokens_per_second,
            100.0 * r.efficiency
        );
    }
    out
}

/// Tokens of a sequence where nothing is said.
const LENGTH: u64 = 2048;

/// Plans as told.
pub fn run(args: &TrainArgs) -> Result<(), CliError> {
    if let Some(parameters) = bare_number(&args.model) {
        return by_number(args, parameters);
    }
    let machine = args.common.machine()?;
    let architecture = Architecture::open(&args.model).map_err(CliError::input)?;
    let mut ask = ask(args, &architecture);
    ask.budget = args.common.budget_on(machine.as_ref());
    if let Some(tool) = args.tool {
        return as_tool(args, tool, &architecture, &ask);
    }
    // What this program runs is counted by its lists; why it does not run something is told.
    let runs = match args.by {
        Some(By::Formula) => Err(None),
        None if !architecture.runs_here => Err(None),
        _ => running::trains(&architecture, &ask).map_err(Some),
    };
    let engine = runs.is_ok();
    let runtime = if engine { program(args)? } else { Runtime::default() };
    let predict = |ask: &TrainAsk| match engine && running::trains(&architecture, ask).is_ok() {
        true => running::train(&architecture, ask, runtime),
        false => plan::train(&architecture, ask),
    };
    if let (Some(By::Engine), Err(Some(why))) = (args.by, &runs) {
        return Err(CliError::input(format!("--by engine: {why}")));
    }
    let mut plan = predict(&ask).map_err(CliError::input)?;
    if engine {
        let ranks = running::ranks(&architecture, &ask, runtime).map_err(CliError::input)?;
        plan.balance.ranks = ranks;
    }
    if let Err(Some(why)) = runs {
        plan.notes.push(format!("counted by formulas: {why}"));
    }
    let is_transformer = matches!(architecture.config, ModelConfig::Transformer(_));
    let found = match ask.budget {
        Some(budget) if is_transformer => Some(Found::of(&architecture, &ask, budget, &predict)?),
        _ => None,
    };
    let sent = plan.balance.communication_bytes_per_step.unwrap_or(0);
    let network = args.network.map(|bytes| bytes as f64);
    let ranks = match (&machine, network) {
        (Some(machine), Some(bytes)) if is_transformer => {
            over_ranks(args, &architecture, &ask, machine, bytes)?
        }
        _ => Vec::new(),
    };
    let times = machine
        .map(|machine| train_times(&architecture, &ask, sent, &machine, network))
        .transpose()
        .map_err(CliError::input)?;
    let mut more = String::new();
    found.iter().for_each(|f| more += &f.text(&ask));
    times.iter().for_each(|t| more += &times_text(t));
    more += &ranks_text(&ranks);
    if let Some(path) = &args.common.html {
        let sheet = Sheet::train(&architecture, &ask, &plan, engine).map_err(CliError::input)?;
        write_page(path, &plan::page(&plan, &sheet, &more))?;
    }
    if args.common.json {
        term::print(&json(&as_json(&plan, found.as_ref(), times.as_ref(), &ranks)?)?);
    } else {
        term::print(&(plan::text(&plan) + &more));
    }
    Ok(())
}

fn ask(args: &TrainArgs, architecture: &Architecture) -> TrainAsk {
    let own = architecture.name.starts_with("email-")
        || matches!(architecture.config, ModelConfig::Rnn(_));
    ask_of(args, own, architecture.config.context_limit())
}

/// The same of a model of this program's own experiment, or of another, with its longest context.
fn ask_of(args: &TrainArgs, own: bool, longest: Option<usize>) -> TrainAsk {
    let precision = match args.precision {
        Some(PrecisionName::Bf16) => Precision::Bf16,
        Some(PrecisionName::F32) => Precision::F32,
        None if own => Precision::F32,
        None => Precision::Bf16,
    };
    let limit = longest.map_or(LENGTH, |limit| limit as u64);
    TrainAsk {
        optimizer: match args.optimizer {
            OptimizerName::Adamw => Optimizer::Adamw,
            OptimizerName::Muon => Optimizer::Muon,
            OptimizerName::Momentum => Optimizer::Momentum,
            OptimizerName::Sgd => Optimizer::Sgd,
        },
        precision,
        batch: args.batch,
        length: args.length.unwrap_or(LENGTH.min(limit)),
        accumulate: args.accumulate,
        pieces: args.pieces,
        recompute: args.recompute,
        attention: match args.attention {
            AttentionName::Tiled => Attention::Tiled,
            AttentionName::Stored => Attention::Stored,
        },
        logits: match args.logits {
            LogitsName::Chunked => Logits::Chunked,
            LogitsName::Whole => Logits::Whole,
        },
        dropout: args.dropout,
        layout: Layout { stage: args.zero, ranks: args.ranks },
        lora: args.lora,
        threads: args.threads.unwrap_or_else(|| Team::available() as u64),
        budget: None,
    }
}

/// What a process of this program holds beside a training.
fn program(args: &TrainArgs) -> Result<Runtime, CliError> {
    let threads = args.threads.and_then(|n| usize::try_from(n).ok());
    Ok(Runtime { bytes: crate::cmd::bench::training_runtime_bytes(threads)? })
}

/// What fits a budget.
struct Found {
    searched: Searched,
    ranks: Option<(u64, u8)>,
    length: Option<u64>,
    batch: Option<u64>,
    /// Name, parameters, bytes.
    model: Option<(&'static str, u64, u64)>,
    /// Parameters whose states alone fit.
    parameters: Option<u64>,
    budget: u64,
}

impl Found {
    fn of(
        architecture: &Architecture,
        ask: &TrainAsk,
        budget: u64,
        predict: &Predict<'_>,
    ) -> Result<Found, CliError> {
        let total = |ask: TrainAsk| predict(&ask).map(|plan| plan.balance.total_bytes);
        let limit = architecture.config.context_limit().map_or(1 << 22, |n| n as u64);
        let other =
            |model: &Architecture| plan::train(model, ask).map(|plan| plan.balance.total_bytes);
        let all = || -> Result<Found, plan::Error> {
            Ok(Found {
                searched: search(architecture, ask, budget, predict)?,
                ranks: fewest_ranks(ask, budget, predict)?,
                length: most(limit, budget, |length| total(TrainAsk { length, ..*ask }))?,
                batch: most(1 << 20, budget, |batch| total(TrainAsk { batch, ..*ask }))?,
                model: largest_published(budget, other)?,
                parameters: most(1 << 50, budget, |parameters| {
                    let state = StateBytes::new(ask.precision, ask.optimizer);
                    let mut terms = plan::Terms::default();
                    ask.layout.states(parameters, 0, state, &mut terms)?;
                    terms.total()
                })?,
                budget,
            })
        };
        all().map_err(CliError::input)
    }

    fn text(&self, ask: &TrainAsk) -> String {
        let told = |n: Option<u64>, what: &str| match n {
            Some(n) => format!("{} {what}", thousands(n)),
            None => "not one fits".to_owned(),
        };
        let mut out = format!("\nwithin {} a rank:\n", both(self.budget));
        let longest = told(self.length, &format!("tokens, {} sequences at once", ask.batch));
        let _ = writeln!(out, "  longest sequences      {longest}");
        let batch = told(self.batch, &format!("of {} tokens", ask.length));
        let _ = writeln!(out, "  most sequences         {batch}");
        let ranks = self.ranks.map_or("more than 4,096".to_owned(), |(ranks, stage)| {
            format!("{} at stage {stage}", thousands(ranks))
        });
        let _ = writeln!(out, "  fewest ranks           {ranks}");
        if let Some((name, parameters, _)) = self.model {
            let parameters = thousands(parameters);
            let _ = writeln!(out, "  largest named model    {name}, {parameters} parameters");
        }
        let states = told(self.parameters, "parameters, states alone");
        let _ = writeln!(out, "  largest model          {states}");
        let fit = &self.searched.fit;
        let _ = writeln!(out, "\n{} ways fit, the cheapest first:", fit.len());
        let row = |c: &Candidate| {
            let again = 100.0 * c.extra_compute_share;
            let sent = match c.communication_bytes_per_token {
                0.0 => String::new(),
                bytes => format!(", {} sent a token", both(bytes as u64)),
            };
            let told = format!(
                "{}; {again:.0} % more arithmetic{sent}; {}",
                both(c.total_bytes),
                c.reason
            );
            format!("  {}\n{}", c.flags, plan::wrapped("      ", &told))
        };
        fit.iter().take(SHOWN).for_each(|c| out += &row(c));
        let fail = &self.searched.fail;
        let _ = writeln!(out, "{} ways do not:", fail.len());
        for c in fail.iter().take(SHOWN) {
            let _ = writeln!(out, "  {}", c.flags);
            out += &plan::wrapped("      ", &c.reason);
        }
        if fit.len() > SHOWN || fail.len() > SHOWN {
            out += "--json lists them all\n";
        }
        out
    }
}

/// Ways that the terminal shows of each kind.
const SHOWN: usize = 8;

fn times_text(times: &TrainTimes) -> String {
    let mut out = format!("\non {}, a step:\n", times.machine);
    out += &plan::wrapped("  ", &times.source);
    let _ = writeln!(out, "  arithmetic             {}", seconds(times.compute_s));
    let _ = writeln!(out, "  of it computed again   {}", seconds(times.recompute_s));
    if let Some(s) = times.communication_s {
        let _ = writeln!(out, "  communication          {}, not overlapped", seconds(s));
    }
    let _ = writeln!(
        out,
        "  in all                 {}: {:.1} tokens/s",
        seconds(times.step_s),
        times.tokens_per_second
    );
    out
}

fn as_json(
    plan: &Prediction,
    found: Option<&Found>,
    times: Option<&TrainTimes>,
    ranks: &[RanksReport],
) -> Result<Value, CliError> {
    let mut value = serde_json::to_value(plan).map_err(CliError::failed)?;
    if let Some(f) = found {
        value["longest_sequence"] = f.length.into();
        value["largest_batch"] = f.batch.into();
        value["largest_parameters_states_alone"] = f.parameters.into();
        value["fewest_ranks"] = match f.ranks {
            Some((ranks, stage)) => json!({"ranks": ranks, "zero": stage}),
            None => Value::Null,
        };
        value["largest_model"] = match f.model {
            Some((name, parameters, bytes)) => {
                json!({"name": name, "parameters": parameters, "total_bytes": bytes})
            }
            None => Value::Null,
        };
        value["fit"] = serde_json::to_value(&f.searched.fit).map_err(CliError::failed)?;
        value["fail"] = serde_json::to_value(&f.searched.fail).map_err(CliError::failed)?;
    }
    if !ranks.is_empty() {
        value["steps_over_ranks"] = serde_json::to_value(ranks).map_err(CliError::failed)?;
    }
    if let Some(times) = times {
        value["times"] = serde_json::to_value(times).map_err(CliError::failed)?;
    }
    Ok(value)
}

/// Another tool's figure beside ours.
fn as_tool(
    args: &TrainArgs,
    tool: Tool,
    architecture: &Architecture,
    ask: &TrainAsk,
) -> Result<(), CliError> {
    let answer = plan::answer(tool, architecture, ask, args.tool_ask()).map_err(CliError::input)?;
    if args.common.json {
        term::print(&json(&answer)?);
        return Ok(());
    }
    term::print(&answer.text(&architecture.name));
    Ok(())
}

/// A number of parameters: 7500000000, 7.5e9 or 7.5B.
fn bare_number(text: &str) -> Option<f64> {
    let (number, factor) = match text.strip_suffix(['B', 'b']) {
        Some(number) => (number, 1e9),
        None => (text, 1.0),
    };
    let value = number.parse::<f64>().ok()? * factor;
    (1.0..1e18).contains(&value).then_some(value)
}

fn parameters(text: &str) -> Result<f64, String> {
    bare_number(text).ok_or_else(|| "give a number of parameters, like 131e6 or 0.131B".to_owned())
}

/// A table of bytes a parameter needs no model.
fn by_number(args: &TrainArgs, parameters: f64) -> Result<(), CliError> {
    let ask = ask_of(args, false, None);
    let ask = TrainAsk { budget: args.common.budget, ..ask };
    let Some(tool) = args.tool else {
        let plan = plan::states_alone(&args.model, parameters, &ask).map_err(CliError::input)?;
        term::print(&if args.common.json { json(&plan)? } else { plan::text(&plan) });
        return Ok(());
    };
    let answer = plan::answer_of_number(tool, parameters, &ask, args.tool_ask());
    let answer = answer.map_err(CliError::input)?;
    term::print(&if args.common.json { json(&answer)? } else { answer.text(&args.model) });
    Ok(())
}
