//! `autoreg score`: what a model makes of a given text, token by token; or of many, one a line.

use crate::cmd::model::{AnySource, Opened, engine_error, text_of, without_last_line_end};
use crate::cmd::{AdapterArgs, KvArgs, json};
use crate::error::CliError;
use crate::term;
use clap::Args;
use engine::{Route, Scored, score};
use serde_json::{Value, json};
use std::fmt::Write;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// Arguments of `score`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  autoreg score runs/t1 please
  autoreg score runs/t1 please --check --json
  autoreg score runs/t1 --jsonl texts.jsonl

In JSON, `text` is what a token adds to the text (together they are the text), and a probability of
zero is told by texts in place of numbers: `logprob` \"-inf\", `perplexity` and surprisal \"inf\".

A line of --jsonl is an object with `text`; its other fields come back with the scores:
  {\"id\": 7, \"text\": \"please send the report\"}")]
pub struct ScoreArgs {
    /// A run folder of `autoreg train`, a GGUF file or a Hugging Face folder
    pub model: PathBuf,
    /// The text; `-` reads standard input
    #[arg(required_unless_present_any = ["file", "jsonl"], conflicts_with_all = ["file", "jsonl"],
          allow_hyphen_values = true)]
    pub text: Option<String>,
    /// Read the text from a file
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Score many texts: JSON Lines with `text` in, one object a line out; `-` reads standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["file", "json"])]
    pub jsonl: Option<PathBuf>,
    /// Score the end of the text (`<eos>`) too
    #[arg(long)]
    pub end: bool,
    /// Also compute it token by token through the cache; it must be the same to the bit
    #[arg(long)]
    pub check: bool,
    /// Let names of control tokens in the text stand for them; otherwise they are plain text
    #[arg(long)]
    pub control_tokens: bool,
    /// How keys and values are kept
    #[command(flatten)]
    pub kv: KvArgs,
    /// What is merged into the weights
    #[command(flatten)]
    pub adapter: AdapterArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Workers (default: the processors this process may use)
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

/// Scores as told.
pub fn run(args: &ScoreArgs) -> Result<(), CliError> {
    let opened =
        Opened::open_adapted(&args.model, args.kv.kind(), args.adapter.adapter.as_deref())?;
    let mut source = opened.source(args.threads)?;
    if let Some(path) = &args.jsonl {
        return lines(args, &opened, &mut source, path);
    }
    let text = match &args.file {
        Some(path) => without_last_line_end(
            std::fs::read_to_string(path)
                .map_err(|e| CliError::input(format!("{}: {e}", path.display())))?,
        ),
        None => text_of(args.text.as_deref().unwrap_or_default())?,
    };
    let (ids, scored_from) = tokens(args, &opened, &text)?;
    let scores = scores(args, &mut source, &ids)?;
    if args.json {
        term::print(&json(&answer(args, &opened, &ids, &scores))?);
    } else {
        let summary = Summary::new(&scores);
        term::print(&picture(&opened, &scores, &summary, scored_from));
        if args.check {
            term::print("the cached path gives the same bits\n");
        }
    }
    Ok(())
}

/// The scores by one pass and, if asked for, by the cached way too.
fn scores(
    args: &ScoreArgs,
    source: &mut AnySource<'_>,
    ids: &[u32],
) -> Result<Vec<Scored>, CliError> {
    let scores = score(source, ids, Route::OnePass).map_err(engine_error)?;
    if args.check {
        let again = score(source, ids, Route::Cached).map_err(engine_error)?;
        compare(&scores, &again)?;
    }
    Ok(scores)
}

fn answer(args: &ScoreArgs, opened: &Opened, ids: &[u32], scores: &[Scored]) -> Value {
    let pieces = opened.pieces(ids);
    let token = |(one, text): (&Scored, &String)| {
        json!({"id": one.id, "text": text, "logprob": number(one.logprob),
               "rank": one.rank, "entropy": one.entropy})
    };
    let scored = scores.iter().zip(&pieces[ids.len() - scores.len()..]);
    let summary = Summary::new(scores);
    let mut value = json!({
        "tokens": scored.map(token).collect::<Vec<_>>(),
        "logprob": number(summary.logprob),
        "perplexity": number(summary.perplexity),
        "nats_per_token": number(-summary.logprob / scores.len() as f64),
    });
    if args.check {
        value["checked"] = true.into();
    }
    value
}

/// Scores a text a line as it comes, so that neither side waits for the end. A line that cannot be
/// scored is told on standard error with its number, the others are scored, and the exit code is 2.
fn lines(
    args: &ScoreArgs,
    opened: &Opened,
    source: &mut AnySource<'_>,
    path: &Path,
) -> Result<(), CliError> {
    let is_standard = path.as_os_str() == "-";
    let name = if is_standard { "standard input".into() } else { path.display().to_string() };
    let fail = |what: String| CliError::input(format!("{name}: {what}"));
    let input: Box<dyn BufRead> = if is_standard {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(BufReader::new(File::open(path).map_err(|e| fail(e.to_string()))?))
    };
    let mut bad = 0_u64;
    for (number, line) in (1..).zip(input.lines()) {
        let at = |what: String| fail(format!("line {number}: {what}"));
        let line = line.map_err(|e| at(e.to_string()))?;
        if line.trim().is_empty() {
            continue;
        }
        match scored_line(args, opened, source, &line) {
            Ok(value) => term::print(&format!("{value}\n")),
            Err(e) if e.code == 2 => {
                term::error(&at(e.message).message);
                bad += 1;
            }
            Err(e) => return Err(CliError { message: at(e.message).message, code: e.code }),
        }
    }
    if bad > 0 { Err(CliError::told(2)) } else { Ok(()) }
}

/// The line's own fields without `text`, and its scores.
fn scored_line(
    args: &ScoreArgs,
    opened: &Opened,
    source: &mut AnySource<'_>,
    line: &str,
) -> Result<Value, CliError> {
    let mut fields: serde_json::Map<String, Value> = serde_json::from_str(line)
        .map_err(|e| CliError::input(format!("{e}; expected an object with `text`")))?;
    let text = match fields.remove("text") {
        Some(Value::String(text)) => text,
        found => {
            let found = found.map_or("nothing".to_owned(), |value| value.to_string());
            return Err(CliError::input(format!("`text` is {found}; expected a text")));
        }
    };
    let (ids, _) = tokens(args, opened, &text)?;
    let answer = answer(args, opened, &ids, &scores(args, source, &ids)?);
    for (name, value) in answer.as_object().into_iter().flatten() {
        if fields.insert(name.clone(), value.clone()).is_some() {
            return Err(CliError::input(format!(
                "it has a field `{name}`, which is what the score is called; rename it"
            )));
        }
    }
    Ok(fields.into())
}

/// `<bos>`, the text, and its end if asked for; and whether the first token of the text is scored.
fn tokens(args: &ScoreArgs, opened: &Opened, text: &str) -> Result<(Vec<u32>, bool), CliError> {
    let specials = opened.tokenizer.specials();
    let mut ids: Vec<u32> = specials.bos.into_iter().collect();
    ids.extend(opened.encode(text, args.control_tokens));
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
            || a.entropy.to_bits() != b.entropy.to_bits()
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

/// JSON has no infinity: "-inf" and "inf".
fn number(x: f64) -> Value {
    if x.is_finite() { x.into() } else { x.to_string().into() }
}

/// Width of the longest bar.
const BAR: f64 = 28.0;

fn picture(opened: &Opened, scores: &[Scored], summary: &Summary, first_scored: bool) -> String {
    let mut out = format!("{:<20}{:>10}{:>9}  surprisal\n", "token", "logprob", "rank");
    let surprisals = scores.iter().map(|one| -one.logprob).filter(|s| s.is_finite());
    let most = surprisals.fold(1e-9, f64::max);
    for one in scores {
        let length = (-one.logprob / most * BAR).clamp(0.0, BAR).round() as usize;
        let text = explain::column(&opened.label(one.id), 20);
        let bar = "█".repeat(length);
        let _ = writeln!(out, "{text}{:>10.4}{:>9}  {bar}", one.logprob, one.rank);
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
