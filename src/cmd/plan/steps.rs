//! Steps of a model timed on this machine, from which a simulation of servers knows how long a step is:
//! its rows, its rows of logits with the choices made of them, and what it reads of the past.

use super::FleetArgs;
use crate::cmd::model::Opened;
use crate::cmd::team;
use crate::error::CliError;
use decoding::{Method, Rules, Settings};
use engine::Request;
use engine::serving::{Asked, Engine, Executor, Limits, NetworkExecutor, Piece, Rows};
use kernels::KvKind;
use plan::fleet::MeasuredSteps;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tokenizer::Tokenizer;
use train::SavedModel;

/// Rows of the steps that are timed.
const ROWS: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// Sequences that each extend by a token, of the steps that are timed.
const SEQUENCES: [usize; 5] = [1, 2, 4, 8, 16];
/// Sequences of the steps that see a long past.
const FAR_SEQUENCES: usize = 4;
/// Tokens of that past, at most, and of a short one.
const FAR: usize = 1023;
const NEAR: usize = 16;
/// Times that each is timed, all in turn; the median counts.
const RUNS: usize = 7;
/// Steps of each decode.
const DECODES: usize = 5;

/// Times steps of the model on this machine.
pub fn calibrate(args: &FleetArgs, asked: &Limits, kv: KvKind) -> Result<MeasuredSteps, CliError> {
    let opened = Opened::open_with(Path::new(args.model()), kv)?;
    let SavedModel::Network(model) = opened.saved else {
        return Err(CliError::input("--calibrate: a model of counts has no steps to time"));
    };
    let team = team(args.threads)?;
    let context = model.config().context_limit().unwrap_or(FAR + 1).min(FAR + 1);
    let most = asked.step_tokens.min(context).max(1);
    let (near, far) = (NEAR.min(context - 1), context - 1);
    let pages =
        |sequences: usize, tokens: usize| sequences * (tokens + 1).div_ceil(asked.page_tokens);
    let widest = SEQUENCES[SEQUENCES.len() - 1];
    let limits = Limits {
        pages: pages(widest, near + DECODES + 2).max(pages(FAR_SEQUENCES, far)) + pages(1, most),
        step_tokens: most.max(widest * near),
        sequences: widest,
        window: model.config().window(),
        ..*asked
    };
    let vocabulary = model.config().vocab_size();
    // A state that is as large after any number of tokens has no past to look at.
    let has_past = NetworkExecutor::shares(model.config());
    let executor =
        NetworkExecutor::new(Arc::from(model), &limits, &team).map_err(CliError::failed)?;
    let mut timer = Timer::new(executor, &limits, vocabulary);
    let rows: Vec<usize> = ROWS.into_iter().filter(|&n| n <= most).collect();
    let mut seconds = vec![Vec::new(); rows.len() + if has_past { 2 } else { 0 }];
    for run in 0..=RUNS {
        for (at, list) in seconds.iter_mut().enumerate() {
            let took = match rows.get(at) {
                Some(&n) => timer.read(n)?,
                None if at == rows.len() => timer.extend(FAR_SEQUENCES, near)?,
                None => timer.extend(FAR_SEQUENCES, far)?,
            };
            if run > 0 {
                list.push(took);
            }
        }
    }
    let medians: Vec<f64> = seconds.into_iter().map(median).collect();
    let past_s = match medians[rows.len()..] {
        [short, long] => (long - short).max(0.0) / (FAR_SEQUENCES * (far - near).max(1)) as f64,
        _ => 0.0,
    };
    let by_rows: Vec<(u64, f64)> = (rows.iter().map(|&n| n as u64)).zip(medians).collect();
    let without = MeasuredSteps { by_rows, by_logits: Vec::new(), past_s };
    let by_logits = choices(timer, &opened.tokenizer, near, &without)?;
    Ok(MeasuredSteps { by_logits, ..without })
}

/// What rows of logits, and the choices made of them, add to a step.
fn choices(
    timer: Timer,
    tokenizer: &Tokenizer,
    prompt: usize,
    without: &MeasuredSteps,
) -> Result<Vec<(u64, f64)>, CliError> {
    use plan::fleet::StepCost;
    let Timer { executor, tokens, limits, .. } = timer;
    let mut engine =
        Engine::new(Box::new(executor), limits, tokenizer).map_err(CliError::failed)?;
    let mut seconds = vec![Vec::new(); SEQUENCES.len()];
    for run in 0..=RUNS {
        for (list, n) in seconds.iter_mut().zip(SEQUENCES) {
            let took = decode(&mut engine, &tokens[..prompt.max(1)], n)?;
            if run > 0 {
                list.extend(took);
            }
        }
    }
    let added = SEQUENCES.into_iter().zip(seconds).map(|(n, list)| {
        let past = n * (prompt + DECODES / 2);
        let model = without.seconds(n as u64, past as u64, 0);
        (n as u64, (median(list) - model).max(0.0))
    });
    Ok(added.collect())
}

/// Seconds of each step in which `n` requests are extended by a token, greedily.
fn decode(engine: &mut Engine, prompt: &[u32], n: usize) -> Result<Vec<f64>, CliError> {
    let settings = Settings { method: Method::Greedy, ..Settings::default() };
    for id in 0..n {
        let request = Request {
            prompt: prompt.to_vec(),
            rules: Rules::from_settings(&settings).map_err(CliError::failed)?,
            seed: 0,
            first_sequence: 0,
            sequences: 1,
            max_tokens: DECODES + 1,
            end: Vec::new(),
            stops: Vec::new(),
        };
        engine.submit(id as u64, Asked::plain(request)).map_err(CliError::failed)?;
    }
    let mut seconds = Vec::new();
    while !engine.is_idle() {
        let start = Instant::now();
        let (report, _) = engine.step();
        if report.prefill_rows == 0 && report.decode_rows == n {
            seconds.push(start.elapsed().as_secs_f64());
        }
    }
    engine.clear_cache();
    Ok(seconds)
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or(0.0)
}

/// An executor and what it is timed with.
struct Timer {
    executor: NetworkExecutor,
    tokens: Vec<u32>,
    limits: Limits,
    near_pages: u32,
}

impl Timer {
    fn new(executor: NetworkExecutor, limits: &Limits, vocabulary: usize) -> Timer {
        let tokens = (0..limits.capacity() as u64)
            .map(|i| (kernels::uniform_bits(7, i) % vocabulary as u64) as u32);
        let near_pages = limits.kv_pages().near as u32;
        Timer { executor, tokens: tokens.collect(), limits: *limits, near_pages }
    }

    /// Seconds of a step in which `n` sequences with `past` tokens extend by one.
    fn extend(&mut self, n: usize, past: usize) -> Result<f64, CliError> {
        let each = (past + 1).div_ceil(self.limits.page_tokens) as u32;
        let tables = (0..n as u32).map(|i| (i * each..(i + 1) * each).collect());
        self.run(tables.collect(), past + 1, past)
    }

    /// Seconds of a step that reads `n` tokens of a prompt.
    fn read(&mut self, n: usize) -> Result<f64, CliError> {
        let pages = (0..n.div_ceil(self.limits.page_tokens) as u32).collect();
        self.run(vec![pages], n, 0)
    }

    /// Seconds of a step on sequences with these pages, `known` tokens and `from` of them computed;
    /// no logits.
    fn run(&mut self, tables: Vec<Vec<u32>>, known: usize, from: usize) -> Result<f64, CliError> {
        // Which pages hold what layers with a window see does not matter for the time.
        let near = |page: &u32| page % self.near_pages.max(1);
        let near: Vec<Vec<u32>> =
            tables.iter().map(|table| table.iter().map(near).collect()).collect();
        let pieces: Vec<Piece<'_>> = (0..)
            .zip(tables.iter().zip(&near))
            .map(|(id, (pages, near))| Piece {
                id,
                known: &self.tokens[..known],
                from,
                pages,
                near,
                rows: Rows::None,
            })
            .collect();
        let start = Instant::now();
        self.executor.run(&pieces, &mut []).map_err(CliError::failed)?;
        Ok(start.elapsed().as_secs_f64())
    }
}
