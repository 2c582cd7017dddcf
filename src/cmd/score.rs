//! `autoreg score`: what a model makes of a given text, token by token.

use crate::cmd::json;
use crate::cmd::model::{Opened, engine_error, text_of, without_last_line_end};
use crate::error::CliError;
use crate::term;
use clap::Args;
use engine::{Route, Scored, score};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;

/// Arguments of `score`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  autoreg score runs/t1 please
  autoreg score runs/t1 please --check --json")]
pub struct ScoreArgs {
    /// A run folder of `autoreg train`, a GGUF file or a Hugging Face folder
    pub model: PathBuf,
    /// The text; `-` reads standard input
    #[arg(required_unless_present = "file", conflicts_with = "file", allow_hyphen_values = true)]
    pub text: Option<String>,
    /// Read the text from a file
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Score the end of the text (`<eos>`) too
    #[arg(long)]
    pub end: bool,
    /// Also compute it token by token through the cache; it must be the same to the bit
    #[arg(long)]
    pub check: bool,
    /// Let names of control tokens in the text stand for them; otherwise they are plain text
    #[arg(long)]
    pub control_tokens: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Workers (default: the processors this process may use)
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

/// Scores as told.
pub fn run(args: &ScoreArgs) -> Result<(), CliError> {
    let opened = Opened::open(&args.model)?;
    let (ids, scored_from) = tokens(args, &opened)?;
    let mut source = opened.source(args.threads)?;
    let scores = score(&mut source, &ids, Route::OnePass).map_err(engine_error)?;
    if args.check {
        let again = score(&mut source, &ids, Route::Cached).map_err(engine_error)?;
        compare(&scores, &again)?;
    }
    let summary = Summary::new(&scores);
    if args.json {
        let token = |one: &Scored| {
            json!({"id": one.id, "text": opened.label(one.id), "logprob": finite(one.logprob),
                   "rank": one.rank, "entropy": one.entropy})
        };
        let mut value = json!({
            "tokens": scores.iter().map(token).collect::<Vec<_>>(),
            "logprob": finite(summary.logprob),
            "perplexity": finite(summary.perplexity),
            "nats_per_token": finite(-summary.logprob / scores.len() as f64),
        });
        if args.check {
            value["checked"] = true.into();
        }
        term::print(&json(&value)?);
    } else {
        term::print(&picture(&opened, &scores, &summary, scored_from));
        if args.check {
            term::print("the cached path gives the same bits\n");
        }
    }
    Ok(())
}

/// `<bos>`, the text, and its end if asked for; and whether the first token of the text is scored.
fn tokens(args: &ScoreArgs, opened: &Opened) -> Result<(Vec<u32>, bool), CliError> {
    let text = match &args.file {
        Some(path) => without_last_line_end(
            std::fs::read_to_string(path)
                .map_err(|e| CliError::input(format!("{}: {e}", path.display())))?,
        ),
        None => text_of(args.text.as_deref().unwrap_or_default())?,
    };
    let specials = opened.tokenizer.specials();
    let mut ids: Vec<u32> = specials.bos.into_iter().collect();
    ids.extend(opened.encode(&text, args.control_tokens));
    if args.end {
        ids.push(specials.eos.ok_or_else(|| {
            CliError::input("--end: the model's tokenizer has no <eos>; leave it out")
        })?);
    }
    if ids.len() < 2 {
        return Err(CliError::input(
            "the text has no token to score; give a text, or --end for the end alone",
        ));
    }
    Ok((ids, specials.bos.is_some()))
}

fn compare(one: &[Scored], other: &[Scored]) -> Result<(), CliError> {
    let differs = |(a, b): (&Scored, &Scored)| {
        a.logprob.to_bits() != b.logprob.to_bits()
            || a.rank != b.rank
            || a.entropy.map(f64::to_bits) != b.entropy.map(f64::to_bits)
    };
    match one.iter().zip(other).position(differs) {
        Some(at) => Err(CliError::failed(format!(
            "--check: token {at} has log-probability {} in one pass and {} through the cache; this \
             is a fault of the program",
            one[at].logprob, other[at].logprob
        ))),
        None => Ok(()),
    }
}

struct Summary {
    /// Nats.
    logprob: f64,
    perplexity: f64,
}

impl Summary {
    fn new(scores: &[Scored]) -> Self {
        let logprob: f64 = scores.iter().map(|one| one.logprob).sum();
        Self { logprob, perplexity: (-logprob / scores.len() as f64).exp() }
    }
}

/// JSON has no infinity: null.
fn finite(x: f64) -> Value {
    if x.is_finite() { x.into() } else { Value::Null }
}

/// Width of the longest bar.
const BAR: f64 = 28.0;

fn picture(opened: &Opened, scores: &[Scored], summary: &Summary, first_scored: bool) -> String {
    let mut out = format!("{:<20}{:>10}{:>9}  surprisal\n", "token", "logprob", "rank");
    let surprisals = scores.iter().map(|one| -one.logprob).filter(|s| s.is_finite());
    let most = surprisals.fold(1e-9, f64::max);
    for one in scores {
        let length = (-one.logprob / most * BAR).clamp(0.0, BAR).round() as usize;
        let text = explain::visible(&opened.label(one.id));
        let text: String = text.chars().take(19).collect();
        let bar = "█".repeat(length);
        let _ = writeln!(out, "{text:<20}{:>10.4}{:>9}  {bar}", one.logprob, one.rank);
    }
    let given = if first_scored { "" } else { " (the first token has nothing before it)" };
    let _ = writeln!(
        out,
        "{} tokens{given}: {:.4} nats, {:.4} nats/token, perplexity {:.2}",
        scores.len(),
        summary.logprob,
        -summary.logprob / scores.len() as f64,
        summary.perplexity
    );
    out
}
