//! Time of one decoding step at a vocabulary of 151,936, one core, beside a full-sort baseline
//! and, where a Python with PyTorch and transformers is found, transformers' own processors on
//! the same rows. Prints the 5th percentile and the median; asserts nothing.
//!
//! `cargo bench -p autoreg-decoding`. The Python is the one
//! named by AUTOREG_PYTHON, else `.venv/bin/python` of the workspace; see `bench/decoding`.
#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use decoding::{Boundary, Counter, History, Measure, Rule, Rules, Scratch, Ties, Window, decide};

const VOCABULARY: usize = 151_936;
/// Two rows take turns: a step's logits are fresh in the caches, but are not those of the last.
const NUM_ROWS: u64 = 2;
const ROUNDS: u64 = 20;
const CALLS: usize = 50;

/// Rows shaped like a language model's: a bell-shaped bulk with a few dozen logits far above it.
fn rows() -> Vec<Vec<f32>> {
    let row = |seed| {
        let noise = Counter { seed, stream: 0 };
        let bell = |i: u64| (0..4).map(|j| noise.uniform(i * 4 + j)).sum::<f64>() - 2.0;
        let mut row: Vec<f32> = (0..VOCABULARY as u64).map(|i| (bell(i) * 4.5) as f32).collect();
        for i in 0..60 {
            let place = noise.uniform(1_000_000 + i) * VOCABULARY as f64;
            row[place as usize] = 16.0 - 0.15 * i as f32;
        }
        row
    };
    (0..NUM_ROWS).map(row).collect()
}

/// Microseconds of every call; `one` gets the index of the call.
fn times(repeats: usize, mut one: impl FnMut(usize)) -> Vec<f64> {
    let time = |i| {
        let start = Instant::now();
        one(i);
        start.elapsed().as_secs_f64() * 1e6
    };
    (0..repeats).map(time).collect()
}

/// The value that a share of the times lies below.
fn quantile(times: &mut [f64], share: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    times[((times.len() - 1) as f64 * share) as usize]
}

fn chain(name: &str) -> Vec<Rule> {
    let temperature = Rule::Temperature { t: 0.8 };
    let top_k = Rule::TopK { k: 40, ties: Ties::Exact };
    let top_p = Rule::TopP { p: 0.95, boundary: Boundary::Reach, of: Measure::Kept };
    let penalty = Rule::Repetition { penalty: 1.1, window: Window::All };
    match name {
        "greedy" => vec![Rule::Temperature { t: 0.0 }],
        "temperature" => vec![temperature],
        "temperature, top-p" => vec![temperature, top_p],
        "temperature, top-k, top-p" => vec![temperature, top_k, top_p],
        _ => vec![penalty, temperature, top_k, top_p],
    }
}

const CHAINS: [&str; 5] = [
    "greedy",
    "temperature",
    "temperature, top-p",
    "temperature, top-k, top-p",
    "repetition, temperature, top-k, top-p",
];

/// Times of every chain. The chains take turns, so that a busy machine is so for all of them.
fn ours(rows: &[Vec<f32>]) -> Vec<Vec<f64>> {
    let seen: Vec<u32> = (0..512).map(|i| i * 37).collect();
    let mut scratch = Scratch::new();
    let mut all = vec![Vec::new(); CHAINS.len()];
    for round in 0..ROUNDS {
        for (name, found) in CHAINS.iter().zip(&mut all) {
            let rules = Rules::new(chain(name)).unwrap_or_default();
            let round_times = times(CALLS, |i| {
                let (row, history) = (&rows[i % rows.len()], History::new(&seen, &[]));
                let rng = Counter { seed: round, stream: 0 };
                let choice = decide(&rules, black_box(row), &history, rng, i as u64, &mut scratch);
                assert!(black_box(choice).is_ok());
            });
            // The first calls of a turn find the caches as the other chain left them.
            found.extend_from_slice(&round_times[CALLS / 5..]);
        }
    }
    all
}

/// What one would write first: sort the vocabulary, cut, softmax, draw.
fn full_sort(rows: &[Vec<f32>]) -> Vec<f64> {
    let mut order: Vec<(f32, u32)> = Vec::with_capacity(VOCABULARY);
    times(60, |i| {
        let row = black_box(&rows[i % rows.len()]);
        order.clear();
        order.extend(row.iter().zip(0..).map(|(&z, id)| (z / 0.8, id)));
        order.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        order.truncate(40);
        let weights: Vec<f64> = order.iter().map(|c| f64::from(c.0 - order[0].0).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut mass = 0.0;
        let kept = weights.iter().take_while(|&&w| {
            let before = mass;
            mass += w;
            before < 0.95 * total
        });
        let kept_mass: f64 = kept.sum();
        let target = Counter::default().uniform(i as u64) * kept_mass;
        let mut cumulated = 0.0;
        let place = weights.iter().position(|w| {
            cumulated += w;
            cumulated > target
        });
        black_box(place);
    })
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Medians of transformers' processors by chain name, as JSON lines of the script.
fn transformers(rows: &[Vec<f32>]) -> Result<Vec<(String, f64)>, String> {
    let python = std::env::var_os("AUTOREG_PYTHON")
        .map_or_else(|| workspace().join(".venv/bin/python"), PathBuf::from);
    let file = std::env::temp_dir().join(format!("autoreg-rows-{}.f32", std::process::id()));
    let bytes: Vec<u8> = rows.iter().flatten().flat_map(|z| z.to_le_bytes()).collect();
    std::fs::write(&file, bytes).map_err(|error| error.to_string())?;
    let script = workspace().join("bench/decoding/transformers_processors.py");
    let run = Command::new(&python).arg(script).arg(&file).arg(VOCABULARY.to_string()).output();
    let _ = std::fs::remove_file(&file);
    let run = run.map_err(|error| format!("{}: {error}", python.display()))?;
    if !run.status.success() {
        return Err(String::from_utf8_lossy(&run.stderr).trim().to_owned());
    }
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    let parse = |line: &str| {
        let (name, us) = line.split_once('\t')?;
        Some((name.to_owned(), us.trim().parse().ok()?))
    };
    Ok(text.lines().filter_map(parse).collect())
}

fn main() {
    let rows = rows();
    let theirs = transformers(&rows);
    println!("vocabulary {VOCABULARY}, one row a step, one thread, microseconds");
    println!("{:<40}{:>8}{:>8}{:>14}{:>8}", "chain", "best", "median", "transformers", "times");
    for (name, mut found) in CHAINS.iter().zip(ours(&rows)) {
        let (best, median) = (quantile(&mut found, 0.05), quantile(&mut found, 0.5));
        let peers = theirs.as_deref().unwrap_or_default();
        let peer = peers.iter().find(|(other, _)| other == name).map(|(_, us)| *us);
        let [us, factor] = peer.map_or(["-".into(), "-".into()], |p| {
            [format!("{p:.1}"), format!("{:.1}", p / median)]
        });
        println!("{name:<40}{best:>8.1}{median:>8.1}{us:>14}{factor:>8}");
    }
    let mut sorted = full_sort(&rows);
    let (best, median) = (quantile(&mut sorted, 0.05), quantile(&mut sorted, 0.5));
    println!("{:<40}{best:>8.1}{median:>8.1}", "full sort (temperature, top-k, top-p)");
    if let Err(why) = theirs {
        println!("transformers not measured: {why}");
    }
}
