//! Steps of a model timed on this machine, from which a simulation of servers knows how long a step is:
//! its rows, its rows of logits with the choices made of them, what it reads of the past and what it sees.
//!
//! Steps are timed as a server runs them: each kind many times in a row, prompts by the executor piece
//! after piece, answers by a server with clients on this machine, after prompts like the load's
//! (`rehearsal`). A lone step among others of other kinds finds caches cold and takes longer. Requests
//! take what steps take on average, so it is the mean of a row of steps that counts, and the middle one
//! of several rows.

use super::FleetArgs;
use super::rehearsal::{Seen, rehearse};
use crate::cmd::model::Opened;
use crate::cmd::team;
use crate::error::CliError;
use engine::serving::{Executor, Limits, NetworkExecutor, Piece, Rows};
use kernels::KvKind;
use plan::fleet::{Beside, MeasuredSteps, StepCost, StepShape};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use train::SavedModel;

/// Rows of the pieces of a prompt that are timed.
const ROWS: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// Sequences that write their tokens side by side, where those are timed.
const SEQUENCES: [usize; 5] = [1, 2, 4, 8, 16];
/// Sequences of those that see a long past.
const FAR_SEQUENCES: usize = 4;
/// Tokens of the longest past, at most, and of a short one.
const FAR: usize = 1024;
const NEAR: usize = 16;
/// Steps in a row of a kind, where the context has room for so many pieces; the first of them is not
/// counted.
const IN_A_ROW: usize = 20;
/// Tokens that clients of a small server write side by side: steps right after a prompt take longest, and
/// few answers end there.
const SIDE_BY_SIDE: usize = 64;
/// Times that all kinds are timed in turn.
const ROUNDS: usize = 4;

/// Times steps of the model on this machine; answers are written after prompts of so many tokens, as far
/// as a step reads them at once.
pub fn calibrate(
    args: &FleetArgs,
    asked: &Limits,
    kv: KvKind,
    prompt: usize,
) -> Result<MeasuredSteps, CliError> {
    let opened = Opened::open_with(Path::new(args.model()), kv)?;
    let SavedModel::Network(model) = opened.saved else {
        return Err(CliError::input("--calibrate: a model of counts has no steps to time"));
    };
    let team = team(args.threads)?;
    let context = model.config().context_limit().unwrap_or(FAR).min(FAR);
    let most = asked.step_tokens.min(context).max(1);
    let widest = SEQUENCES[SEQUENCES.len() - 1];
    let near = NEAR.min(context.saturating_sub(IN_A_ROW)).max(1);
    let prompt = prompt.min(most).min(context / 2).max(near);
    let pages = |sequences: usize, tokens: usize| sequences * tokens.div_ceil(asked.page_tokens);
    let limits = Limits {
        pages: pages(widest, prompt + steps_of(widest, prompt, most.max(widest)) + 2)
            .max(pages(FAR_SEQUENCES, context)),
        step_tokens: most.max(widest),
        sequences: widest,
        window: model.config().window(),
        ..*asked
    };
    // A state that is as large after any number of tokens has no past to look at.
    let has_past = NetworkExecutor::shares(model.config());
    let vocabulary = model.config().vocab_size();
    let executor =
        NetworkExecutor::new(Arc::from(model), &limits, &team).map_err(CliError::failed)?;
    let mut timer = Timer::new(executor, &limits, vocabulary, context);
    let rows: Vec<usize> = ROWS.into_iter().filter(|&n| n <= most).collect();
    let pieces = timer.pieces(&rows)?;
    let (past_s, pair_s) = if has_past { timer.past(near, &pieces)? } else { (0.0, 0.0) };
    let mut steps = MeasuredSteps { past_s, pair_s, ..MeasuredSteps::default() };
    steps.by_rows = rest(&pieces, &steps);
    let mut seen = vec![Vec::new(); SEQUENCES.len()];
    rehearse(timer.executor, &limits, opened.tokenizer, |load| {
        for _ in 0..ROUNDS {
            for (rounds, n) in seen.iter_mut().zip(SEQUENCES) {
                rounds.push(load(n, prompt)?);
            }
        }
        Ok(())
    })?;
    let answers: Vec<Vec<Row>> =
        seen.iter().map(|rounds| rounds.iter().map(|r| r.steps.clone()).collect()).collect();
    steps.by_logits = rest(&answers, &steps);
    steps.beside = beside(&seen);
    Ok(steps)
}

/// Tokens that each of `n` requests writes, so that all write side by side for a row of steps when the
/// last one's prompt is read.
pub fn steps_of(n: usize, prompt: usize, step_tokens: usize) -> usize {
    SIDE_BY_SIDE + (n * prompt).div_ceil(step_tokens.saturating_sub(n).max(1))
}

/// What passes beside steps, by the requests that ran side by side.
fn beside(seen: &[Vec<Seen>]) -> Beside {
    let middle = |rounds: &[Seen], of: fn(&Seen) -> Option<f64>| {
        median(rounds.iter().filter_map(of).collect())
    };
    let steps = SEQUENCES.into_iter().zip(seen);
    // A request alone waits for nobody.
    let alone = seen.first().map_or(&[][..], |rounds| &rounds[..]);
    Beside {
        steps: steps.map(|(n, rounds)| (n as u64, middle(rounds, |s| s.between_s))).collect(),
        request_s: middle(alone, |s| s.request_s).max(0.0),
        turnaround_s: middle(alone, |s| s.turnaround_s).max(0.0),
    }
}

/// A step that was timed, and steps of one kind in a row.
pub type Timed = (StepShape, f64);
type Row = Vec<Timed>;

/// By the rows of steps: what is left of their times when all is taken away that is known.
fn rest(kinds: &[Vec<Row>], known: &MeasuredSteps) -> Vec<(u64, f64)> {
    let left = |kind: &Vec<Row>| {
        let rows = kind.iter().flatten().next()?.0.rows;
        let mean = |row: &Row| {
            let all = row.iter().map(|(shape, seconds)| seconds - known.seconds(shape));
            (!row.is_empty()).then(|| all.sum::<f64>() / row.len() as f64)
        };
        Some((rows, median(kind.iter().filter_map(mean).collect()).max(0.0)))
    };
    kinds.iter().filter_map(left).collect()
}

/// Seconds that a token of the past adds: the slope of the line through steps of one kind (Theil and
/// Sen: the middle of the slopes of all pairs).
fn slope(timed: &[Timed]) -> f64 {
    let mut slopes = Vec::new();
    for (i, (a, took)) in timed.iter().enumerate() {
        for (b, longer) in &timed[i + 1..] {
            let apart = b.past as f64 - a.past as f64;
            if apart.abs() >= 64.0 {
                slopes.push((longer - took) / apart);
            }
        }
    }
    median(slopes)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// An executor and what it is timed with.
struct Timer {
    executor: NetworkExecutor,
    tokens: Vec<u32>,
    limits: Limits,
    /// Tokens of the longest past, with those that run.
    context: usize,
    near_pages: u32,
}

impl Timer {
    fn new(executor: NetworkExecutor, limits: &Limits, vocabulary: usize, context: usize) -> Timer {
        let tokens = (0..limits.capacity().max(context) as u64)
            .map(|i| (kernels::uniform_bits(7, i) % vocabulary as u64) as u32)
            .collect();
        let near_pages = limits.kv_pages().near as u32;
        Timer { executor, tokens, limits: *limits, context, near_pages }
    }

    /// Pieces of a prompt, one after the other, by their rows.
    fn pieces(&mut self, rows: &[usize]) -> Result<Vec<Vec<Row>>, CliError> {
        let mut timed = vec![Vec::new(); rows.len()];
        for _ in 0..ROUNDS {
            for (kind, &n) in timed.iter_mut().zip(rows) {
                let count = (self.context / n).clamp(1, IN_A_ROW + 1);
                let mut row = Row::new();
                for i in 0..count {
                    let took = self.run(1, i * n, n)?;
                    if i > 0 || count < 3 {
                        row.push((StepShape::of((i * n) as u64, n as u64, 0), took));
                    }
                }
                kind.push(row);
            }
        }
        Ok(timed)
    }

    /// Seconds that a token of the past adds to a step, and those that a pair of tokens adds: from steps
    /// of several sequences that each extend by a token after a short past and a long one, and from the
    /// longest pieces of prompts.
    fn past(&mut self, near: usize, pieces: &[Vec<Row>]) -> Result<(f64, f64), CliError> {
        let mut extended = Vec::new();
        let far = self.context.saturating_sub(IN_A_ROW);
        for _ in 0..ROUNDS {
            for from in [near, far] {
                for i in 0..IN_A_ROW.min(self.context.saturating_sub(from)) {
                    let took = self.run(FAR_SEQUENCES, from + i, 1)?;
                    if i > 0 {
                        let mut shape = StepShape::default();
                        (0..FAR_SEQUENCES).for_each(|_| shape.add((from + i) as u64, 1, 0));
                        extended.push((shape, took));
                    }
                }
            }
        }
        let longest: Row = pieces.last().into_iter().flatten().flatten().copied().collect();
        let rows = longest.first().map_or(1, |(shape, _)| shape.rows) as f64;
        // A token of the past is read once and seen by every row.
        let (one, all) = (slope(&extended).max(0.0), slope(&longest).max(0.0));
        let pair_s = ((all - one) / (rows - 1.0).max(1.0)).clamp(0.0, one);
        Ok((one - pair_s, pair_s))
    }

    /// Seconds of a step in which each of `n` sequences extends by `tokens` after `from` others; no logits.
    fn run(&mut self, n: usize, from: usize, tokens: usize) -> Result<f64, CliError> {
        let known = from + tokens;
        let each = self.context.div_ceil(self.limits.page_tokens) as u32;
        let tables: Vec<Vec<u32>> =
            (0..n as u32).map(|i| (i * each..(i + 1) * each).collect()).collect();
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
