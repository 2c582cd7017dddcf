//! Prefill and decode of a model as tokens/s, beside what the memory gives.

use crate::cmd::model::Opened;
use crate::cmd::recording::{LedgerArgs, Recording};
use crate::cmd::{KvArgs, json, team};
use crate::error::CliError;
use crate::term::{self, mib, thousands};
use clap::Args;
use engine::{Error, NetworkSource, Room, Source};
use kernels::Team;
use ledger::{Account, Buffer, Spec};
use models::Model;
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;
use train::SavedModel;

/// Arguments of `bench prefill`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  autoreg bench prefill model.gguf
  autoreg bench prefill model.gguf --tokens 2048 --threads 2 --json")]
pub struct Prefill {
    /// A GGUF file, a Hugging Face folder or a run folder
    model: PathBuf,
    /// Tokens of the prompt
    #[arg(long, default_value_t = 512)]
    tokens: usize,
    #[command(flatten)]
    common: Common,
}

/// Arguments of `bench decode`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  autoreg bench decode model.gguf
  autoreg bench decode model.gguf --context 512 --batch 8 --json")]
pub struct Decode {
    /// A GGUF file, a Hugging Face folder or a run folder
    model: PathBuf,
    /// Tokens that are decoded
    #[arg(long, default_value_t = 128)]
    tokens: usize,
    /// Tokens that are read before
    #[arg(long, default_value_t = 1)]
    context: usize,
    /// Sequences side by side
    #[arg(long, default_value_t = 1)]
    batch: usize,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Common {
    /// Timed runs, after one that is not
    #[arg(long, default_value_t = 5)]
    repeat: usize,
    #[arg(long)]
    threads: Option<usize>,
    #[command(flatten)]
    kv: KvArgs,
    #[command(flatten)]
    ledger: LedgerArgs,
    #[arg(long)]
    json: bool,
}

/// What was measured.
struct Measured {
    what: &'static str,
    /// Tokens/s of each run, all sequences together.
    speeds: Vec<f64>,
    /// Bytes of weights and K/V that are read, and the tokens that they are read for.
    step: (f64, usize),
    load_seconds: f64,
    threads: usize,
}

/// Prefill as told.
pub fn prefill(args: &Prefill) -> Result<(), CliError> {
    let mut recording = args.common.ledger.start()?;
    let (opened, load_seconds) = open(&args.model, args.common.kv)?;
    let model = network(&opened)?;
    let team = team(args.common.threads)?;
    let mut source = NetworkSource::new(model, &team);
    let room = checked(&source, args.tokens, 0, 1)?;
    begin(recording.as_mut(), &format!("reading {} tokens", args.tokens));
    let ids = ids(&source, args.tokens);
    let mut logits = vec![0.0; source.vocab_size()];
    let mut speeds = Vec::new();
    for run in 0..=args.common.repeat {
        let start = Instant::now();
        source.begin(&ids, room, &mut logits).map_err(failed)?;
        recording.iter().for_each(|r| r.recorder.end_step());
        if run > 0 {
            speeds.push(args.tokens as f64 / start.elapsed().as_secs_f64());
        }
    }
    let threads = team.threads();
    end(recording, "bench prefill", (&opened, &source), (args.tokens, room))?;
    // A piece of the prompt reads all weights once, and what was read of it before.
    let pieces = (0..args.tokens).step_by(engine::MOST_ROWS);
    let mut bytes = 0.0;
    for piece in pieces {
        bytes += weight_bytes(model) + kv_bytes(model, piece)?;
    }
    let step = (bytes, args.tokens);
    show(&args.common, Measured { what: "prefill", speeds, step, load_seconds, threads }, &team)
}

/// Decode as told.
pub fn decode(args: &Decode) -> Result<(), CliError> {
    let mut recording = args.common.ledger.start()?;
    let (opened, load_seconds) = open(&args.model, args.common.kv)?;
    let model = network(&opened)?;
    if args.tokens == 0 {
        return Err(CliError::input("--tokens 0: at least one token is decoded"));
    }
    let team = team(args.common.threads)?;
    let mut source = NetworkSource::new(model, &team);
    let room = checked(&source, args.context, args.tokens, args.batch)?;
    begin(recording.as_mut(), "the prompt and the first token");
    let ids = ids(&source, args.context);
    let vocab = source.vocab_size();
    let mut logits = vec![0.0; vocab * args.batch];
    let mut speeds = Vec::new();
    for run in 0..=args.common.repeat {
        source.begin(&ids, room, &mut logits[..vocab]).map_err(failed)?;
        let mut tokens: Vec<u32> = (0..args.batch).map(|i| ids[i % ids.len()]).collect();
        let start = Instant::now();
        for _ in 0..args.tokens {
            source.step(&tokens, &mut logits);
            recording.iter().for_each(|r| r.recorder.end_step());
            for (token, row) in tokens.iter_mut().zip(logits.chunks_exact(vocab)) {
                *token = best(row);
            }
        }
        if run > 0 {
            let made = (args.tokens * args.batch) as f64;
            speeds.push(made / start.elapsed().as_secs_f64());
        }
    }
    end(recording, "bench decode", (&opened, &source), (args.context, room))?;
    // On average, a sequence is halfway through what it decodes.
    let past = args.context + args.tokens / 2;
    let bytes = weight_bytes(model) + kv_bytes(model, past)? * args.batch as f64;
    let (step, threads) = ((bytes, args.batch), team.threads());
    show(&args.common, Measured { what: "decode", speeds, step, load_seconds, threads }, &team)
}

fn begin(recording: Option<&mut Recording>, step: &str) {
    if let Some(r) = recording {
        r.opened();
        r.recorder.begin_step(step);
    }
}

/// Ends a recording with what was predicted of a prompt in a room.
fn end(
    recording: Option<Recording>,
    what: &str,
    (opened, source): (&Opened, &NetworkSource<'_>),
    (prompt, room): (usize, Room),
) -> Result<(), CliError> {
    let Some(recording) = recording else { return Ok(()) };
    let mut plan = opened.weights_plan()?;
    plan.extend(source.plan(prompt, room).map_err(failed)?);
    let title = format!("{what} {}", opened.dir.display());
    recording.finish(&title, &plan, opened.parameters()).map(drop)
}

fn open(path: &std::path::Path, kv: KvArgs) -> Result<(Opened, f64), CliError> {
    let start = Instant::now();
    let opened = Opened::open_with(path, kv.kind())?;
    Ok((opened, start.elapsed().as_secs_f64()))
}

fn network(opened: &Opened) -> Result<&Model, CliError> {
    match &opened.saved {
        SavedModel::Network(model) => Ok(model),
        SavedModel::Counts(_) => {
            Err(CliError::input("a model of counts has no prefill and decode"))
        }
    }
}

fn failed(error: Error) -> CliError {
    CliError::failed(error)
}

/// Room for what is asked for, where the model's context has it.
fn checked(
    source: &NetworkSource<'_>,
    prompt: usize,
    more: usize,
    sequences: usize,
) -> Result<Room, CliError> {
    let tokens = prompt.saturating_add(more);
    if prompt == 0 || sequences == 0 {
        return Err(CliError::input("at least one token and one sequence are needed"));
    }
    match source.context_limit() {
        Some(limit) if tokens > limit => Err(CliError::input(format!(
            "{tokens} tokens are asked for, the model's context holds {limit}"
        ))),
        _ => Ok(Room { sequences, tokens }),
    }
}

fn ids(source: &NetworkSource<'_>, count: usize) -> Vec<u32> {
    let vocab = source.vocab_size() as u64;
    (0..count as u64).map(|i| (kernels::uniform_bits(1, i) % vocab) as u32).collect()
}

fn best(row: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (id, &z) in row.iter().enumerate() {
        if z > best.1 {
            best = (id, z);
        }
    }
    best.0 as u32
}

/// Bytes of weights that a step reads: all but a token table of which it reads single rows.
fn weight_bytes(model: &Model) -> f64 {
    let layout = model.layout();
    let bytes = |spec: &tensor::ParameterSpec| {
        4 * spec.range.len() + spec.parts.iter().map(|part| part.bytes.len()).sum::<usize>()
    };
    let tied = !layout.specs().iter().any(|spec| spec.name == "head.weight");
    let read = layout.specs().iter().filter(|spec| {
        let rows_only = spec.name.starts_with("tok_emb") || spec.name.starts_with("pos_emb");
        !rows_only || tied && spec.name.starts_with("tok_emb")
    });
    read.map(bytes).sum::<usize>() as f64
}

/// Bytes of K/V that a sequence with `past` tokens reads.
fn kv_bytes(model: &Model, past: usize) -> Result<f64, CliError> {
    let models::ModelConfig::Transformer(config) = model.config() else { return Ok(0.0) };
    let near = model.config().window().map_or(0, |window| window.min(past));
    let size = models::KvPages { pages: past, near, page_tokens: 1 };
    Ok(models::KvPool::plan(config, size).total() as f64)
}

/// GB/s of plain reads by all workers, the best of five.
fn bandwidth(team: &Team) -> Result<f64, CliError> {
    let spec = Spec::new("bandwidth", Account::Workspace, 64 << 20);
    let mut buffer = Buffer::<f32>::new(&spec).map_err(CliError::failed)?;
    buffer.fill(1.0);
    let seconds = (0..5).map(|_| {
        let start = Instant::now();
        kernels::read_all(team, &buffer);
        start.elapsed().as_secs_f64()
    });
    let least = seconds.fold(f64::INFINITY, f64::min);
    Ok(4.0 * buffer.len() as f64 / least / 1e9)
}

fn show(common: &Common, mut measured: Measured, team: &Team) -> Result<(), CliError> {
    let peak = ledger::peak_bytes();
    measured.speeds.sort_by(f64::total_cmp);
    let speeds = &measured.speeds;
    let (Some(&min), Some(&max)) = (speeds.first(), speeds.last()) else {
        return Err(CliError::input("--repeat 0: at least one run is needed"));
    };
    let half = speeds.len() / 2;
    let median =
        if speeds.len() % 2 == 1 { speeds[half] } else { (speeds[half - 1] + speeds[half]) / 2.0 };
    let bytes = measured.step.0 / measured.step.1 as f64;
    let (reads, all) = (bytes * median / 1e9, bandwidth(team)?);
    if common.json {
        let value = json!({
            "tokens_per_second": {"median": median, "min": min, "max": max},
            "peak_process_bytes": peak,
            "load_seconds": measured.load_seconds,
            "threads": measured.threads,
            "isa": kernels::Isa::current().name(),
            "bytes_read_per_token": bytes,
            "bandwidth_share": reads / all,
            "bandwidth_gb_per_second": all,
        });
        term::print(&json(&value)?);
        return Ok(());
    }
    let whole = |x: f64| thousands(x.round() as u64);
    let mut text = format!(
        "{}: {} tokens/s (median of {}; {} to {}), {} threads, {}\n",
        measured.what,
        whole(median),
        speeds.len(),
        whole(min),
        whole(max),
        measured.threads,
        kernels::Isa::current().name(),
    );
    text += &format!(
        "reads {} a token: {reads:.1} GB/s, {:.0} % of the {all:.1} that plain reads reach\n",
        mib(bytes as u64),
        100.0 * reads / all,
    );
    text += &format!("loaded in {:.2} s; peak process {}\n", measured.load_seconds, mib(peak));
    term::print(&text);
    Ok(())
}
