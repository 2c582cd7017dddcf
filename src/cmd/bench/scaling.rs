//! `autoreg bench scaling`: what grows with the context, counted and measured. Reading a prompt of n
//! tokens weighs n(n+1)/2 pairs of query and key a head and layer, so a doubling is four times as
//! many; a token behind n - 1 others weighs n, twice as many; keys and values take twice the bytes.

use crate::cmd::model::{Opened, engine_error};
use crate::cmd::recording::LedgerArgs;
use crate::cmd::{KvArgs, json, team};
use crate::error::CliError;
use crate::term::{self, mib, thousands};
use clap::Args;
use engine::{NetworkSource, Room, Source};
use ledger::Account;
use models::{ModelConfig, TransformerConfig};
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Instant;
use train::SavedModel;

/// Arguments of `bench scaling`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  autoreg bench scaling models/smollm2-135m-q4_1.gguf
  autoreg bench scaling models/smollm2-135m-q4_1.gguf --to 2048 --kv f16 --json
  autoreg bench scaling models/smollm2-135m-q4_1.gguf --count

Pairs: queries times the keys that each sees, over all layers and heads; a window counts what it lets
through. They are what attention must weigh, whatever the program; time also has the part that grows
with the tokens alone, so its growth lies between.")]
pub struct Scaling {
    /// A GGUF file, a Hugging Face folder or a run folder
    model: PathBuf,
    /// The shortest context
    #[arg(long, value_name = "N", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    from: u32,
    /// The longest; each is twice the one before
    #[arg(long, value_name = "N", default_value_t = 8192,
          value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    to: u32,
    /// Timed runs; the median is told
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=100))]
    repeat: u16,
    /// Tokens decoded at each context; the median is told
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    tokens: u16,
    /// Count only, run nothing
    #[arg(long)]
    count: bool,
    /// Workers (default: the processors this process may use)
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// How keys and values are kept
    #[command(flatten)]
    kv: KvArgs,
    #[command(flatten)]
    ledger: LedgerArgs,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

/// Tokens of a prompt that are read together.
const PIECE: usize = 512;

/// One context.
#[derive(Debug, Clone, Serialize)]
struct Row {
    /// Tokens.
    context: u64,
    /// Pairs of reading all of them.
    prefill_pairs: u64,
    /// Pairs of the last of them alone.
    decode_pairs: u64,
    /// Bytes of their keys and values.
    kv_bytes: u64,
    /// What was measured, where it was run.
    measured: Option<Measured>,
    /// Each figure divided by that of the context before.
    growth: Option<Growth>,
}

#[derive(Debug, Clone, Serialize)]
struct Measured {
    /// Seconds of reading all tokens.
    prefill_s: f64,
    /// Seconds of one more token.
    decode_s: f64,
    /// Bytes that the ledger had for keys and values of exactly these tokens.
    kv_bytes: u64,
}

#[derive(Debug, Clone, Serialize)]
struct Growth {
    prefill_pairs: f64,
    decode_pairs: f64,
    kv_bytes: f64,
    prefill_s: Option<f64>,
    decode_s: Option<f64>,
    measured_kv_bytes: Option<f64>,
}

/// Runs as told.
pub fn run(args: &Scaling) -> Result<(), CliError> {
    if args.from > args.to {
        let message = format!("--from {} --to {}: the range is empty", args.from, args.to);
        return Err(CliError::input(message));
    }
    let mut recording = args.ledger.start()?;
    let opened = Opened::open_with(&args.model, args.kv.kind())?;
    recording.iter_mut().for_each(|r| r.opened());
    let mut largest = opened.weights_plan()?;
    let (SavedModel::Network(model), ModelConfig::Transformer(config)) =
        (&opened.saved, opened.saved.config())
    else {
        let message = format!("{}: only transformers have attention", args.model.display());
        return Err(CliError::input(message));
    };
    let limit = model.config().context_limit().unwrap_or(usize::MAX) as u64;
    let all = std::iter::successors(Some(u64::from(args.from)), |n| Some(2 * n));
    let all: Vec<u64> = all.take_while(|&n| n <= u64::from(args.to)).collect();
    let team = team(args.threads)?;
    let mut rows: Vec<Row> = Vec::new();
    let mut longest = None;
    if !args.count {
        // The first pass of a process also waits for its pages.
        let mut source = NetworkSource::new(model, &team);
        measured(args, &mut source, u64::from(args.from).min(limit) as usize)?;
    }
    for context in all {
        let mut row = counted(&config, context);
        if !args.count && context <= limit {
            let mut source = NetworkSource::new(model, &team);
            recording
                .iter()
                .for_each(|r| r.recorder.begin_step(&format!("a context of {context}")));
            row.measured = Some(measured(args, &mut source, context as usize)?);
            if let Some(r) = &recording {
                r.recorder.end_step();
                r.recorder.mark(&format!("a context of {context}"));
            }
            longest = Some(context as usize);
        }
        row.growth = rows.last().map(|before| growth(before, &row));
        rows.push(row);
    }
    if let Some(tokens) = longest {
        let room = Room { sequences: 1, tokens };
        largest.extend(NetworkSource::new(model, &team).plan(tokens, room).map_err(engine_error)?);
    }
    if let Some(recording) = recording {
        let title = format!("bench scaling {}", args.model.display());
        recording.finish(&title, &largest, opened.parameters())?;
    }
    let unrun = rows.iter().find(|row| row.measured.is_none()).filter(|_| !args.count);
    if let Some(row) = unrun {
        term::note(&format!(
            "note: from {} on it is counted and not run: the model sees {limit} tokens",
            row.context
        ));
    }
    term::print(&if args.json { json(&rows)? } else { table(&rows) });
    Ok(())
}

fn counted(config: &TransformerConfig, context: u64) -> Row {
    let heads = config.num_attention_heads as u64;
    let (mut prefill_pairs, mut decode_pairs) = (0, 0);
    for layer in 0..config.num_hidden_layers {
        let window = config.sliding_window.as_ref().filter(|w| w.layers.contains(&layer));
        let seen = window.map_or(context, |w| context.min(w.tokens as u64));
        decode_pairs += heads * seen;
        // The first `seen` queries see one key more each, the others as many as the window has.
        prefill_pairs += heads * (seen * (seen + 1) / 2 + (context - seen) * seen);
    }
    // What a sequence of so many tokens is given: layers with a window keep what it reaches, and the
    // piece that is being read.
    let (all, tokens) = (ModelConfig::Transformer(config.clone()), context as usize);
    let kv_bytes = models::Cache::plan(&all, tokens, tokens.min(PIECE)).total();
    Row { context, prefill_pairs, decode_pairs, kv_bytes, measured: None, growth: None }
}

fn measured(
    args: &Scaling,
    source: &mut NetworkSource<'_>,
    context: usize,
) -> Result<Measured, CliError> {
    let vocab = source.vocab_size();
    let ids: Vec<u32> =
        (0..context as u64).map(|i| (kernels::uniform_bits(1, i) % vocab as u64) as u32).collect();
    let mut logits = vec![0.0; vocab];
    // The room is that of the context alone, so that the ledger's figure is that of its tokens; the
    // last token is read again and again.
    let room = Room { sequences: 1, tokens: context };
    let plan = source.plan(context, room).map_err(engine_error)?;
    crate::cmd::fit(&plan, "this context", "give a smaller --to")?;
    let (mut prefill, mut decode, mut kv_bytes) = (Vec::new(), Vec::new(), 0);
    for _ in 0..args.repeat {
        let start = Instant::now();
        source.begin(&ids, room, &mut logits).map_err(engine_error)?;
        prefill.push(start.elapsed().as_secs_f64());
        kv_bytes = ledger::snapshot().current[Account::KvCache as usize];
        for _ in 0..args.tokens {
            engine::Ahead::rewind(source, context - 1);
            let start = Instant::now();
            source.step(&ids[context - 1..], &mut logits);
            decode.push(start.elapsed().as_secs_f64());
        }
    }
    Ok(Measured { prefill_s: median(prefill), decode_s: median(decode), kv_bytes })
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}

fn growth(before: &Row, row: &Row) -> Growth {
    let by = |a: u64, b: u64| b as f64 / a as f64;
    let both = before.measured.as_ref().zip(row.measured.as_ref());
    Growth {
        prefill_pairs: by(before.prefill_pairs, row.prefill_pairs),
        decode_pairs: by(before.decode_pairs, row.decode_pairs),
        kv_bytes: by(before.kv_bytes, row.kv_bytes),
        prefill_s: both.map(|(a, b)| b.prefill_s / a.prefill_s),
        decode_s: both.map(|(a, b)| b.decode_s / a.decode_s),
        measured_kv_bytes: both.map(|(a, b)| by(a.kv_bytes, b.kv_bytes)),
    }
}

fn table(rows: &[Row]) -> String {
    let mut out = format!(
        "{:>8}  {:>22}  {:>18}  {:>18}  {:>18}  {:>18}  {:>18}\n",
        "context", "prefill pairs", "decode pairs", "K/V", "K/V measured", "prefill", "a token"
    );
    for row in rows {
        let growth = row.growth.as_ref();
        let times = |x: Option<f64>| x.map_or_else(String::new, |x| format!(" ×{x:.2}"));
        let of = |get: &dyn Fn(&Growth) -> Option<f64>| times(growth.and_then(get));
        let (mut bytes, mut prefill, mut token) = Default::default();
        if let Some(m) = &row.measured {
            bytes = bytes_text(m.kv_bytes) + &of(&|g| g.measured_kv_bytes);
            prefill = seconds(m.prefill_s) + &of(&|g| g.prefill_s);
            token = seconds(m.decode_s) + &of(&|g| g.decode_s);
        }
        // A text takes all that is written to it.
        let _ = writeln!(
            out,
            "{:>8}  {:>22}  {:>18}  {:>18}  {bytes:>18}  {prefill:>18}  {token:>18}",
            thousands(row.context),
            thousands(row.prefill_pairs) + &of(&|g| Some(g.prefill_pairs)),
            thousands(row.decode_pairs) + &of(&|g| Some(g.decode_pairs)),
            bytes_text(row.kv_bytes) + &of(&|g| Some(g.kv_bytes)),
        );
    }
    out
}

fn seconds(s: f64) -> String {
    match s {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.01 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.3} ms", s * 1e3),
    }
}

fn bytes_text(bytes: u64) -> String {
    if bytes < 1 << 20 { format!("{:.1} KiB", bytes as f64 / 1024.0) } else { mib(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_those_of_the_mask() {
        let mut config = TransformerConfig::email(64, 64);
        let window = models::SlidingWindow { layers: vec![1], tokens: 5, rope_theta: None };
        config.sliding_window = Some(window);
        for context in [1_u64, 4, 5, 6, 40] {
            let row = counted(&config, context);
            let (mut all, mut last) = (0, 0);
            for layer in 0..config.num_hidden_layers {
                for query in 0..context {
                    let seen = (0..=query).filter(|key| layer != 1 || query - key < 5).count();
                    all += (config.num_attention_heads * seen) as u64;
                    if query + 1 == context {
                        last += (config.num_attention_heads * seen) as u64;
                    }
                }
            }
            assert_eq!((row.prefill_pairs, row.decode_pairs), (all, last), "{context}");
        }
    }
}
