//! `autoreg bench serve`: a load on a server, this one or another with the OpenAI interface.

use crate::cmd::recording::LedgerArgs;
use crate::cmd::{bench_plot, diagnose, json};
use crate::error::CliError;
use crate::term;
use clap::Args;
use load::{Arrivals, Percentiles, Prompts, Report, Work, report};
use plan::diagnose::Evidence;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Arguments of `bench serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  autoreg bench serve http://127.0.0.1:8080 --clients 1,4,8
  autoreg bench serve http://127.0.0.1:8080 --rate 2,4 --requests 100 --objective 500,50
  autoreg bench serve http://127.0.0.1:8080 --rate 1,2,4,8 --plot load.svg
  autoreg bench serve http://127.0.0.1:8080 --clients 16 --prompt-tokens 512 --shared-tokens 480

What is measured, at the client: first token: from the first byte sent to the first piece of the
answer; a token: from the first piece to the last, divided by the tokens after the first; gap: between
neighbouring pieces; whole: to the end of the answer.")]
pub struct BenchServeArgs {
    /// The server, as http://HOST:PORT
    url: String,
    /// The model's name [default: the first that the server tells of]
    #[arg(long)]
    model: Option<String>,
    /// Closed loop: so many clients, each sending when its last answer is there; several, one after
    /// the other
    #[arg(long, value_name = "N", value_delimiter = ',',
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    clients: Vec<u16>,
    /// Open loop: so many requests a second on average, at random times
    #[arg(long, value_name = "PER_SECOND", value_delimiter = ',', value_parser = rate)]
    rate: Vec<f64>,
    /// Requests that are measured, each time
    #[arg(long, value_name = "N", default_value_t = 32,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    requests: u32,
    /// Requests before them that are not
    #[arg(long, value_name = "N", default_value_t = 1)]
    warm_up: usize,
    /// Tokens of a prompt; they are random
    #[arg(long, value_name = "N", default_value_t = 128)]
    prompt_tokens: usize,
    /// Of those, so many at the beginning are the same in all prompts
    #[arg(long, value_name = "N", default_value_t = 0)]
    shared_tokens: usize,
    /// Random tokens are below this: the model's vocabulary, or less
    #[arg(long, value_name = "N", default_value_t = 256)]
    vocabulary: u32,
    /// A file of prompts instead, one a line
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// New tokens a request
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_tokens: usize,
    /// An objective: first token and time a token, in ms; requests that meet it are counted
    #[arg(long, value_name = "MS,MS", value_parser = objective)]
    objective: Option<(f64, f64)>,
    /// A key, if the server asks for one
    #[arg(long, value_name = "KEY", env = "AUTOREG_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Seed of prompts and arrivals
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Draw latency against throughput, a point a load, as an SVG that needs nothing else
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Of the server, where it tells them (autoreg does): its own terms after the last load
    #[command(flatten)]
    ledger: LedgerArgs,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

fn rate(text: &str) -> Result<f64, String> {
    let found = text.parse::<f64>().ok().filter(|rate| *rate > 0.0 && *rate <= 1e6);
    found.ok_or_else(|| format!("found {text:?}, expected requests a second, above 0"))
}

fn objective(text: &str) -> Result<(f64, f64), String> {
    let number = |text: &str| text.parse::<f64>().ok().filter(|ms| *ms > 0.0);
    let parts = text.split_once(',').and_then(|(a, b)| number(a).zip(number(b)));
    parts.ok_or_else(|| format!("found {text:?}, expected two numbers in ms, such as 500,50"))
}

#[derive(Debug, Serialize)]
struct Row {
    /// Clients, or requests a second.
    arrivals: String,
    #[serde(flatten)]
    report: Report,
}

/// Runs every load in turn. Fails when none of a load's requests was answered.
pub fn run_serve(args: &BenchServeArgs) -> Result<(), CliError> {
    let prompts = prompts(args)?;
    let model = match &args.model {
        Some(name) => name.clone(),
        None => load::first_model(&args.url, args.api_key.as_deref())
            .map_err(|e| CliError::failed(format!("{}: {e}", args.url)))?,
    };
    let mut all: Vec<Arrivals> =
        args.clients.iter().map(|&count| Arrivals::Clients { count: count.into() }).collect();
    all.extend(args.rate.iter().map(|&rate| Arrivals::Poisson { rate }));
    if all.is_empty() {
        all.push(Arrivals::Clients { count: 1 });
    }
    let mut rows: Vec<Row> = Vec::new();
    for (number, arrivals) in (0_u64..).zip(all) {
        let work = Work {
            url: args.url.clone(),
            model: model.clone(),
            api_key: args.api_key.clone(),
            arrivals,
            requests: args.requests as usize,
            warm_up: args.warm_up,
            prompts: prompts.clone(),
            max_tokens: args.max_tokens,
            // Each load has prompts of its own, or the second would find the first's in the cache.
            seed: args.seed.wrapping_add(number << 32),
        };
        let seen = load::run(&work).map_err(CliError::failed)?;
        let report = report(&seen, args.objective);
        if report.answered == 0 {
            let why = report.failures.keys().next().cloned().unwrap_or_default();
            let message = format!("{}: no request was answered: {why}", args.url);
            return Err(CliError::failed(message));
        }
        rows.push(Row { arrivals: name(arrivals), report });
    }
    if let Some(path) = &args.plot {
        let title = format!("{model} at {}", args.url);
        let points: Vec<(String, &Report)> =
            rows.iter().map(|row| (row.arrivals.clone(), &row.report)).collect();
        std::fs::write(path, bench_plot::svg(&title, &points))
            .map_err(|e| CliError::failed(format!("{}: {e}", path.display())))?;
        term::note(&format!("drawn in {}", path.display()));
    }
    term::print(&if args.json { json(&rows)? } else { table(&rows) });
    match &args.ledger.ledger {
        Some(dir) => servers_ledger(args, dir),
        None => Ok(()),
    }
}

/// The server's own ledger, as bars and as a file.
fn servers_ledger(args: &BenchServeArgs, dir: &Path) -> Result<(), CliError> {
    let text = diagnose::page(&args.url, "/ledger", args.api_key.as_deref())?;
    let evidence = Evidence::of_text(&args.url, &text).map_err(CliError::input)?;
    let total = evidence.terms.total().map_err(CliError::input)?;
    let mut value: serde_json::Value = serde_json::from_str(&text)
        .map_err(|e| CliError::input(format!("{}: /ledger is no JSON: {e}", args.url)))?;
    plan::diagnose::complete(&mut value, None).map_err(CliError::input)?;
    let (path, text) = (dir.join("ledger.json"), json(&value)?);
    formats::replace_file(&path, |file| file.write_all(text.as_bytes()))
        .map_err(|e| CliError::input(format!("{}: {e}{}", path.display(), formats::hint(&e))))?;
    term::note(plan::bars(&evidence.terms, total).trim_end());
    Ok(())
}

fn prompts(args: &BenchServeArgs) -> Result<Prompts, CliError> {
    let Some(path) = &args.prompts else {
        return Ok(Prompts::Random {
            tokens: args.prompt_tokens,
            vocabulary: args.vocabulary,
            shared: args.shared_tokens.min(args.prompt_tokens),
        });
    };
    let text = std::fs::read_to_string(path)
        .map_err(|e| CliError::input(format!("{}: {e}; give a prompt a line", path.display())))?;
    let lines: Vec<String> =
        text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect();
    match lines.is_empty() {
        true => Err(CliError::input(format!("{}: holds no prompt", path.display()))),
        false => Ok(Prompts::Texts(lines)),
    }
}

fn name(arrivals: Arrivals) -> String {
    match arrivals {
        Arrivals::Clients { count } => format!("{count} clients"),
        Arrivals::Poisson { rate } => format!("{rate}/s"),
    }
}

fn table(rows: &[Row]) -> String {
    let mut out = format!(
        "{:<12} {:>8} {:>9} {:>9}   {:<24} {:<24} {:<24} {:<24}\n",
        "arrivals",
        "answered",
        "tokens/s",
        "cached",
        "first token ms",
        "a token ms",
        "gap ms",
        "whole ms"
    );
    out += &format!("{:<42} {}\n", "", "  p50     p90     p99    ".repeat(4).trim_end());
    let three = |p: &Percentiles| format!("{:>7.1} {:>7.1} {:>7.1} ", p.p50_ms, p.p90_ms, p.p99_ms);
    for Row { arrivals, report } in rows {
        out += &format!(
            "{arrivals:<12} {:>8} {:>9.1} {:>9}   {}{}{}{}",
            report.answered,
            report.tokens_per_second,
            report.cached_tokens,
            three(&report.time_to_first_token),
            three(&report.time_per_output_token),
            three(&report.inter_token),
            three(&report.end_to_end),
        );
        if let Some(goodput) = report.goodput {
            out += &format!("  {goodput:.2}/s met the objective");
        }
        out.push('\n');
        for (why, count) in &report.failures {
            out += &format!("  {count} failed: {why}\n");
        }
    }
    out
}
