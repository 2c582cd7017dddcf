//! A simulation held against what `autoreg bench serve` measured: each load again, medians side by side.

use crate::cmd::json;
use crate::error::CliError;
use crate::term;
use plan::fleet::{Arrivals, FleetAsk, Lengths, StepCost, simulate};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What is read of a load that was measured.
#[derive(Deserialize)]
struct Load {
    arrivals: String,
    answered: usize,
    prompt_tokens: u64,
    completion_tokens: u64,
    time_to_first_token: Half,
    time_per_output_token: Half,
}

#[derive(Deserialize)]
struct Half {
    p50_ms: f64,
}

/// A median that was predicted and measured.
#[derive(Serialize)]
struct Pair {
    predicted_ms: f64,
    measured_ms: f64,
    /// Predicted by measured.
    ratio: f64,
}

#[derive(Serialize)]
struct Row {
    arrivals: String,
    first_token: Pair,
    per_token: Pair,
}

/// Simulates every load of a file and shows the medians beside those that were measured.
pub fn run(
    model: &str,
    path: &Path,
    ask: &FleetAsk,
    cost: &dyn StepCost,
    as_json: bool,
) -> Result<(), CliError> {
    let rows: Vec<Row> =
        loads(path)?.iter().map(|load| row(load, ask, cost)).collect::<Result<_, _>>()?;
    if as_json {
        term::print(&json(&rows)?);
        return Ok(());
    }
    let mut text = format!(
        "{model}: medians in ms, predicted and measured\n\n{:<14}{:>11}{:>11}{:>8}   {:>11}{:>11}{:>8}\n",
        "", "first token", "measured", "ratio", "a token", "measured", "ratio"
    );
    let three = |p: &Pair, first: usize| {
        format!("{:>first$.1}{:>11.1}{:>8.2}", p.predicted_ms, p.measured_ms, p.ratio)
    };
    for Row { arrivals, first_token, per_token } in &rows {
        text += &format!("{arrivals:<14}{}   {}\n", three(first_token, 11), three(per_token, 11));
    }
    term::print(&text);
    Ok(())
}

/// Tokens of a prompt on average, over all loads of a file.
pub fn prompt_tokens(path: &Path) -> Result<u64, CliError> {
    let loads = loads(path)?;
    let answered: u64 = loads.iter().map(|load| load.answered as u64).sum();
    Ok(loads.iter().map(|load| load.prompt_tokens).sum::<u64>().div_ceil(answered.max(1)))
}

fn loads(path: &Path) -> Result<Vec<Load>, CliError> {
    let wrong = |why: String| {
        let path = path.display();
        CliError::input(format!("--against {path}: {why}; give what `bench serve --json` printed"))
    };
    let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
    let loads: Vec<Load> = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
    if loads.is_empty() || loads.iter().any(|load| load.answered == 0) {
        return Err(wrong("no load, or one that was not answered".to_owned()));
    }
    Ok(loads)
}

fn row(load: &Load, ask: &FleetAsk, cost: &dyn StepCost) -> Result<Row, CliError> {
    let words = (load.arrivals.strip_suffix(" clients"), load.arrivals.strip_suffix("/s"));
    let arrivals = match words {
        (Some(clients), _) => clients.parse().ok().map(Arrivals::Clients),
        (_, Some(rate)) => rate.parse().ok().map(Arrivals::Rate),
        _ => None,
    };
    let arrivals = arrivals.ok_or_else(|| {
        let found = &load.arrivals;
        CliError::input(format!(
            "--against: arrivals are {found:?}, expected \"4 clients\" or \"2/s\""
        ))
    })?;
    let mean = |tokens: u64| Lengths::Fixed(tokens.div_ceil(load.answered as u64).max(1));
    let again = FleetAsk {
        arrivals,
        requests: load.answered,
        prompt: mean(load.prompt_tokens),
        answer: mean(load.completion_tokens),
        ..*ask
    };
    let seen = simulate(&again, cost).map_err(CliError::input)?;
    let pair = |predicted_ms: f64, measured_ms: f64| Pair {
        predicted_ms,
        measured_ms,
        ratio: predicted_ms / measured_ms.max(1e-9),
    };
    Ok(Row {
        arrivals: load.arrivals.clone(),
        first_token: pair(seen.first_token.p50_ms, load.time_to_first_token.p50_ms),
        per_token: pair(seen.per_token.p50_ms, load.time_per_output_token.p50_ms),
    })
}
