//! `autoreg bench`: speed and memory on random tokens, in the form that peers are measured in.

mod model;
mod scaling;
mod tiles;

use crate::cmd::recording::{self, LedgerArgs};
use crate::cmd::{json, planned_team, team};
use crate::error::CliError;
use crate::term::{self, mib, thousands};
use clap::{Args, Subcommand, ValueEnum};
use kernels::{
    AttentionShape, Kv, Segment, attention_backward, attention_forward, attention_workspace,
};
use ledger::{Account, Buffer, Report, Spec};
use models::{MlpConfig, ModelConfig, NormConfig, PositionConfig, RnnConfig, TransformerConfig};
use serde_json::json;
use std::time::Instant;
use train::{BatchShape, Precision, Recipe, TrainConfig, Trainer};

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  autoreg bench train-memory
  autoreg bench train-speed --model rnn --threads 2
  autoreg bench attention --length 4096 --backward
  autoreg bench attention-memory
  autoreg bench scaling models/smollm2-135m-q4_1.gguf --to 2048
  autoreg bench serve http://127.0.0.1:8080 --clients 1,8")]
pub struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Training tokens/s: Adam, the email models (batch 64, length 64) or the 30M preset
    TrainSpeed(TrainSpeed),
    /// Peak process memory after five training steps, a fresh process a model
    TrainMemory(TrainMemory),
    /// Causal attention alone, forward or forward and backward
    Attention(Attention),
    /// Attention with stored scores beside attention in tiles: bytes moved, workspace, equal outputs
    AttentionMemory(tiles::Tiles),
    /// Tokens/s of reading a prompt
    Prefill(model::Prefill),
    /// Tokens/s of extending it, and the share of the memory's bandwidth that this reaches
    Decode(model::Decode),
    /// What grows with the context: pairs of attention and bytes of K/V, counted and measured
    Scaling(scaling::Scaling),
    /// Load on a server with the OpenAI interface: time to first token, between tokens, to the end
    Serve(crate::cmd::bench_serve::BenchServeArgs),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    Rnn,
    Transformer,
    /// Nothing: what a process of this program takes before any model
    Empty,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Preset {
    /// The models of the email experiment: batch 64, length 64
    #[default]
    Email,
    /// A transformer of 29,794,816 parameters: width 512, 8 layers, 8 heads, SwiGLU 1408, RMSNorm,
    /// rotary positions; batch 8, length 256
    Mid,
}

/// What is trained on, and in which numbers.
#[derive(Clone, Copy, Debug, Args)]
struct Numbers {
    #[arg(long, value_enum, default_value = "email")]
    preset: Preset,
    /// In which numbers products are taken: f32, bf16 or f16
    #[arg(long, value_name = "WORD", value_parser = crate::cmd::train::precision, default_value = "f32")]
    precision: Precision,
}

impl Numbers {
    /// Sequences of a step, and tokens that each predicts.
    fn size(self) -> (usize, usize) {
        match self.preset {
            Preset::Email => (64, 64),
            Preset::Mid => (8, 256),
        }
    }

    fn words(self) -> [&'static str; 4] {
        let preset = if self.preset == Preset::Mid { "mid" } else { "email" };
        ["--preset", preset, "--precision", self.precision.name()]
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  autoreg bench train-speed
  autoreg bench train-speed --model rnn --steps 200 --threads 2 --json
  autoreg bench train-speed --preset mid --precision bf16 --steps 8")]
struct TrainSpeed {
    #[arg(long, value_enum, default_value = "transformer")]
    model: Name,
    #[command(flatten)]
    numbers: Numbers,
    /// Steps before them
    #[arg(long, default_value_t = 5)]
    warmup: u64,
    /// Timed steps
    #[arg(long, default_value_t = 50)]
    steps: u64,
    #[arg(long)]
    threads: Option<usize>,
    #[command(flatten)]
    ledger: LedgerArgs,
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  autoreg bench train-memory
  autoreg bench train-memory --ledger=memory
  autoreg bench train-memory --threads 2 --json
  autoreg bench train-memory --preset mid --precision bf16 --ledger")]
struct TrainMemory {
    /// One model in this very process, for the fresh process that measures it
    #[arg(long, value_enum)]
    model: Option<Name>,
    #[command(flatten)]
    numbers: Numbers,
    #[arg(long)]
    threads: Option<usize>,
    /// Of each model's process, in a folder of its name
    #[command(flatten)]
    ledger: LedgerArgs,
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  autoreg bench attention
  autoreg bench attention --length 4096 --heads 9 --head-dim 64 --backward --json")]
struct Attention {
    /// Tokens of the one sequence
    #[arg(long, default_value_t = 1024)]
    length: usize,
    #[arg(long, default_value_t = 9)]
    heads: usize,
    #[arg(long, default_value_t = 64)]
    head_dim: usize,
    #[arg(long)]
    backward: bool,
    /// Timed runs, after two that are not
    #[arg(long, default_value_t = 7)]
    runs: usize,
    #[arg(long)]
    threads: Option<usize>,
    #[command(flatten)]
    ledger: LedgerArgs,
    #[arg(long)]
    json: bool,
}

const VOCAB: usize = 4000;
/// The step that a recording looks at closely.
const FIRST_STEP: &str = "step 1, what is allocated for it included";

/// Measures as told.
pub fn run(args: BenchArgs) -> Result<(), CliError> {
    match args.what {
        What::TrainSpeed(args) => train_speed(&args),
        What::TrainMemory(args) => train_memory(&args),
        What::Attention(args) => attention(&args),
        What::AttentionMemory(args) => tiles::run(&args),
        What::Prefill(args) => model::prefill(&args),
        What::Decode(args) => model::decode(&args),
        What::Scaling(args) => scaling::run(&args),
        What::Serve(args) => crate::cmd::bench_serve::run_serve(&args),
    }
}

fn config(name: Name, numbers: Numbers) -> Result<TrainConfig, CliError> {
    let (batch, length) = numbers.size();
    let model = match (name, numbers.preset) {
        (Name::Rnn, Preset::Mid) => {
            return Err(CliError::input("--preset mid is a transformer; leave --model rnn away"));
        }
        (Name::Rnn, _) => ModelConfig::Rnn(RnnConfig::email(VOCAB)),
        (_, Preset::Email) => ModelConfig::Transformer(TransformerConfig::email(VOCAB, length)),
        (_, Preset::Mid) => ModelConfig::Transformer(TransformerConfig {
            hidden_size: 512,
            num_hidden_layers: 8,
            num_attention_heads: 8,
            intermediate_size: 1408,
            norm: NormConfig::Rms,
            positions: PositionConfig::Rotary,
            mlp: MlpConfig::Swiglu,
            bias: false,
            ..TransformerConfig::email(VOCAB, length)
        }),
    };
    let train = Recipe {
        batch,
        micro_batch: batch,
        weight_decay: 0.0,
        clip: 0.0,
        precision: numbers.precision,
        ..Recipe::default()
    };
    let config = TrainConfig { model, train };
    config.check_recipe().map_err(CliError::input)?;
    Ok(config)
}

fn shape(config: &TrainConfig, numbers: Numbers) -> BatchShape {
    BatchShape::full(&config.train, numbers.size().1 + 1)
}

/// One batch of random tokens, of which each sequence predicts all but its first.
fn random_tokens(numbers: Numbers) -> Vec<Vec<u32>> {
    let (batch, length) = numbers.size();
    (0..batch as u64)
        .map(|s| {
            (0..=length as u64)
                .map(|t| (kernels::uniform_bits(1, s * 1000 + t) % VOCAB as u64) as u32)
                .collect()
        })
        .collect()
}

fn train_speed(args: &TrainSpeed) -> Result<(), CliError> {
    let team = team(args.threads)?;
    let config = config(args.model, args.numbers)?;
    let (batch, length) = args.numbers.size();
    let data = random_tokens(args.numbers);
    let indices: Vec<u32> = (0..batch as u32).collect();
    let shape = shape(&config, args.numbers);
    let recording = args.ledger.start()?;
    recording.iter().for_each(|r| r.recorder.begin_step(FIRST_STEP));
    let mut trainer = Trainer::new(&config, shape, &team).map_err(CliError::failed)?;
    let mut loss = 0.0;
    for _ in 0..args.warmup {
        trainer.step(&data, &indices, 0, 1e-3);
        recording.iter().for_each(|r| r.recorder.end_step());
    }
    let started = Instant::now();
    for _ in 0..args.steps {
        let report = trainer.step(&data, &indices, 0, 1e-3);
        loss = report.loss_sum / report.targets as f64;
    }
    let seconds = started.elapsed().as_secs_f64();
    let speed = (args.steps * (batch * length) as u64) as f64 / seconds;
    if let Some(recording) = recording {
        let plan = Trainer::plan(&config, shape, team.threads()).map_err(CliError::failed)?;
        let parameters = Some(trainer.model.layout().count() as u64);
        recording.finish(
            &format!("bench train-speed {}", config.model.kind()),
            &plan,
            parameters,
        )?;
    }
    let name = config.model.kind();
    if args.json {
        let value = json!({
            "model": name, "threads": team.threads(), "steps": args.steps, "loss": loss,
            "parameters": trainer.model.layout().count(),
            "precision": args.numbers.precision.name(),
            "tokens_per_second": speed, "ms_per_step": 1e3 * seconds / args.steps as f64,
            "isa": kernels::Isa::current().name(), "peak_process_bytes": ledger::peak_bytes(),
        });
        term::print(&json(&value)?);
    } else {
        term::print(&format!(
            "{name}, {}, {} threads, {}: {} tokens/s, {:.1} ms a step, loss {loss:.4}\n",
            args.numbers.precision.name(),
            team.threads(),
            kernels::Isa::current().name(),
            thousands(speed as u64),
            1e3 * seconds / args.steps as f64,
        ));
    }
    Ok(())
}

fn train_memory(args: &TrainMemory) -> Result<(), CliError> {
    if let Some(name) = args.model {
        return train_memory_here(name, args);
    }
    team(args.threads)?;
    let mut rows = Vec::new();
    let models = match args.numbers {
        Numbers { preset: Preset::Email, precision: Precision::F32 } => &["rnn", "transformer"][..],
        _ => &["transformer"],
    };
    for name in [&["empty"], models].concat() {
        rows.push(memory_row(name, args.numbers, args.threads, &args.ledger)?);
    }
    let (batch, length) = args.numbers.size();
    let empty = rows.remove(0);
    if args.json {
        term::print(&json(&json!({
            "rows": rows,
            "empty_harness_bytes": empty["peak_process_bytes"],
            "batch": batch, "length": length, "vocabulary": VOCAB, "steps": 5,
            "optimizer": "FP32 Adam", "precision": args.numbers.precision.name(),
        }))?);
        return Ok(());
    }
    let number = |row: &serde_json::Value, key: &str| row[key].as_u64().unwrap_or(0);
    term::print(&format!(
        "{:<13}{:>12}{:>15}{:>14}{:>14}{:>8}\n",
        "model", "parameters", "parameters", "peak process", "predicted", "ratio"
    ));
    for row in &rows {
        let (peak, predicted) =
            (number(row, "peak_process_bytes"), number(row, "predicted_process_bytes"));
        term::print(&format!(
            "{:<13}{:>12}{:>15}{:>14}{:>14}{:>8.3}\n",
            row["model"].as_str().unwrap_or_default(),
            thousands(number(row, "parameters")),
            mib(number(row, "parameter_bytes")),
            mib(peak),
            mib(predicted),
            peak as f64 / predicted.max(1) as f64,
        ));
        for term in row["ledger"]["terms"]
            .as_array()
            .filter(|_| args.ledger.ledger.is_some())
            .into_iter()
            .flatten()
        {
            term::print(&format!(
                "  {:<14}{:>14}{:>14}\n",
                term["name"].as_str().unwrap_or_default(),
                mib(number(term, "predicted_bytes")),
                mib(number(term, "bytes"))
            ));
        }
    }
    term::print(&format!(
        "the empty harness takes {}\n",
        mib(number(&empty, "peak_process_bytes"))
    ));
    Ok(())
}

/// A row of `bench train-memory`, from a process of its own.
fn memory_row(
    name: &str,
    numbers: Numbers,
    threads: Option<usize>,
    ledger: &LedgerArgs,
) -> Result<serde_json::Value, CliError> {
    let program = std::env::current_exe().map_err(CliError::failed)?;
    let mut command = std::process::Command::new(program);
    command.args(["bench", "train-memory", "--json", "--model", name]).args(numbers.words());
    if let Some(dir) = ledger.ledger.as_deref().filter(|_| name != "empty") {
        let dir = dir.join(name);
        std::fs::create_dir_all(&dir)
            .map_err(|e| CliError::input(format!("--ledger={}: {e}", dir.display())))?;
        command.arg(format!("--ledger={}", dir.display()));
    }
    if let Some(threads) = threads {
        command.args(["--threads", &threads.to_string()]);
    }
    let output = command.output().map_err(CliError::failed)?;
    if !output.status.success() {
        return Err(CliError::failed(String::from_utf8_lossy(&output.stderr).trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(CliError::failed)
}

/// What the program holds beside a training, measured in a process that prepares one and no more.
pub fn training_runtime_bytes(threads: Option<usize>) -> Result<u64, CliError> {
    let numbers = Numbers { preset: Preset::Email, precision: Precision::F32 };
    let row = memory_row("empty", numbers, threads, &LedgerArgs::default())?;
    let bytes = row["predicted_process_bytes"].as_u64();
    bytes.ok_or_else(|| CliError::failed("the empty process did not say what it holds"))
}

fn train_memory_here(name: Name, args: &TrainMemory) -> Result<(), CliError> {
    let team = match name {
        // A plan asks, which may be for another machine.
        Name::Empty => planned_team(args.threads)?,
        _ => team(args.threads)?,
    };
    let config = config(name, args.numbers)?;
    let (batch, _) = args.numbers.size();
    Trainer::warm_up(&config, &team);
    let runtime = ledger::resident_bytes();
    let recording = args.ledger.start()?;
    let mut plan = ledger::Plan::default();
    let mut parameters = 0;
    let mut kept = None;
    if name != Name::Empty {
        let shape = shape(&config, args.numbers);
        plan = Trainer::plan(&config, shape, team.threads()).map_err(CliError::failed)?;
        let data = random_tokens(args.numbers);
        let indices: Vec<u32> = (0..batch as u32).collect();
        recording.iter().for_each(|r| r.recorder.begin_step(FIRST_STEP));
        let mut trainer = Trainer::new(&config, shape, &team).map_err(CliError::failed)?;
        for _ in 0..5 {
            trainer.step(&data, &indices, 0, 1e-3);
            recording.iter().for_each(|r| r.recorder.end_step());
        }
        parameters = trainer.model.layout().count();
        kept = Some(trainer);
    }
    let report = match recording {
        Some(recording) => {
            let title = format!("bench train-memory {}", config.model.kind());
            recording.finish(&title, &plan, Some(parameters as u64))?
        }
        None => Report::new(&plan, &ledger::snapshot(), runtime, ledger::peak_bytes()),
    };
    drop(kept);
    let kind = if name == Name::Empty { "empty" } else { config.model.kind() };
    if args.json {
        let known = recording::Known { parameters: Some(parameters as u64), ..Default::default() };
        let value = json!({
            "model": kind,
            "parameters": parameters,
            "parameter_bytes": 4 * parameters,
            "peak_process_bytes": report.peak_process_bytes,
            "predicted_process_bytes": report.predicted_process_bytes,
            "ledger": recording::keyed(&report, known)?,
        });
        term::print(&json(&value)?);
    } else {
        term::print(&format!("{kind}\n{}", recording::table(&report)));
    }
    Ok(())
}

fn attention(args: &Attention) -> Result<(), CliError> {
    let team = team(args.threads)?;
    let (h, d, n) = (args.heads, args.head_dim, args.length);
    if h == 0 || d == 0 || n == 0 || args.runs == 0 {
        return Err(CliError::input("--heads, --head-dim, --length and --runs must be at least 1"));
    }
    let shape = AttentionShape {
        heads: h,
        kv_heads: h,
        head_dim: d,
        scale: 1.0 / (d as f32).sqrt(),
        window: None,
    };
    let recording = args.ledger.start()?;
    let mut plan = ledger::Plan::default();
    let mut buffer = |name: &str, account, len| -> Result<Buffer<f32>, CliError> {
        let spec = Spec::new(name, account, len);
        plan.add(&spec);
        Buffer::new(&spec).map_err(CliError::failed)
    };
    let stride = 3 * h * d;
    let mut qkv = buffer("q k v", Account::Data, n * stride)?;
    qkv.iter_mut().enumerate().for_each(|(i, x)| *x = kernels::normal(1, i as u64));
    let d_out = {
        let mut d_out = buffer("d out", Account::Data, if args.backward { n * h * d } else { 0 })?;
        d_out.fill(1.0);
        d_out
    };
    let base = ledger::resident_bytes();
    let mut out = buffer("out", Account::Activations, n * h * d)?;
    let mut lse = buffer("log-sums", Account::Activations, if args.backward { h * n } else { 0 })?;
    let mut d_qkv =
        buffer("d q k v", Account::Gradients, if args.backward { n * stride } else { 0 })?;
    let longest = if args.backward { n } else { 0 };
    let mut work =
        buffer("tiles", Account::Workspace, attention_workspace(&shape, team.threads(), longest))?;
    let kv = Kv::whole(&qkv[h * d..], &qkv[2 * h * d..], stride);
    let segment = [Segment { row: 0, queries: n, past: 0, kv }];
    recording.iter().for_each(|r| r.recorder.begin_step(&format!("attention over {n} tokens")));
    let mut times: Vec<f64> = (0..args.runs + 2)
        .map(|_| {
            let started = Instant::now();
            attention_forward(&team, &shape, &segment, &qkv, stride, &mut out, &mut lse, &mut work);
            if args.backward {
                let (qkv, d_qkv) = (&qkv, &mut d_qkv);
                attention_backward(
                    &team,
                    &shape,
                    &[(0, n)],
                    qkv,
                    &out,
                    &lse,
                    &d_out,
                    d_qkv,
                    &mut work,
                );
            }
            recording.iter().for_each(|r| r.recorder.end_step());
            started.elapsed().as_secs_f64() * 1e3
        })
        .skip(2)
        .collect();
    times.sort_by(f64::total_cmp);
    let ms = times[times.len() / 2];
    let over = ledger::peak_bytes().saturating_sub(base);
    if let Some(recording) = recording {
        recording.finish(&format!("bench attention, {n} tokens"), &plan, None)?;
    }
    // Half of all pairs; two products forward, five more backward.
    let products = if args.backward { 7.0 } else { 2.0 };
    let flops = products * 2.0 * h as f64 * d as f64 * (n as f64 * n as f64 / 2.0);
    if args.json {
        let value = json!({
            "length": n, "heads": h, "head_dim": d, "threads": team.threads(),
            "backward": args.backward, "ms": ms, "ms_min": times[0], "ms_max": times[times.len() - 1],
            "gflops": flops / ms / 1e6, "peak_bytes_over_base": over,
        });
        term::print(&json(&value)?);
    } else {
        term::print(&format!(
            "attention {}, L = {n}, {h} heads of {d}, {} threads: {ms:.2} ms ({:.2}-{:.2}), {:.0} GFLOP/s, {} over the inputs\n",
            if args.backward { "forward and backward" } else { "forward" },
            team.threads(),
            times[0],
            times[times.len() - 1],
            flops / ms / 1e6,
            mib(over),
        ));
    }
    Ok(())
}
