//! A small server in this process with clients on this machine: steps as they take their time while tokens
//! go out and requests come in, and what passes beside them.

use super::steps::{Timed, steps_of};
use crate::error::CliError;
use engine::serving::{Engine, Executor, Limits, NetworkExecutor, StepReport, spawn};
use load::{Arrivals, Prompts, Work};
use plan::fleet::StepShape;
use server::{App, Metrics, Options, Served};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokenizer::Tokenizer;

/// What was seen of a load.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Steps in which every client got a token, all but the first.
    pub steps: Vec<Timed>,
    /// Seconds from such a step to the next, on average.
    pub between_s: Option<f64>,
    /// Of one client: seconds of a request's first token that were no step's.
    pub request_s: Option<f64>,
    /// Of one client: seconds from its last token to its next request before the engine.
    pub turnaround_s: Option<f64>,
}

/// A step as the engine's thread saw it.
struct Ran {
    report: StepReport,
    began: Instant,
    took: Duration,
}

type Steps = Arc<Mutex<Vec<Ran>>>;

/// Runs loads of so many clients with prompts of so many tokens.
type Load<'a> = dyn FnMut(usize, usize) -> Result<Seen, CliError> + 'a;

/// Serves a model to clients of this process while `all` asks for loads.
pub fn rehearse(
    executor: NetworkExecutor,
    limits: &Limits,
    tokenizer: Tokenizer,
    all: impl FnOnce(&mut Load<'_>) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let (vocabulary, context) = (executor.vocab_size(), executor.context_limit());
    let engine = Engine::new(Box::new(executor), *limits, &tokenizer).map_err(CliError::failed)?;
    let steps = Steps::default();
    let seen = Arc::clone(&steps);
    let observer = move |report: &StepReport, began, took| {
        let ran = Ran { report: report.clone(), began, took };
        seen.lock().unwrap_or_else(PoisonError::into_inner).push(ran);
    };
    let (handle, thread) = spawn(engine, vocabulary, context, limits.sequences, Box::new(observer))
        .map_err(CliError::failed)?;
    let metrics = Arc::new(Metrics::new(NAME, limits));
    let app = App::new(served(tokenizer, context), handle, Options::default(), metrics);
    let app = Arc::new(app);
    let mut seed = 0;
    let done = server::during(&app, |address| {
        all(&mut |clients, prompt| {
            seed += 1;
            let left = context.map_or(usize::MAX, |limit| limit.saturating_sub(prompt));
            let work = Work {
                url: format!("http://{address}"),
                model: NAME.to_owned(),
                api_key: None,
                arrivals: Arrivals::Clients { count: clients },
                requests: if clients == 1 { 3 } else { clients },
                warm_up: 0,
                prompts: Prompts::Random {
                    tokens: prompt,
                    vocabulary: vocabulary.try_into().unwrap_or(u32::MAX),
                    shared: 0,
                },
                max_tokens: steps_of(clients, prompt, limits.step_tokens).min(left).max(1),
                seed,
            };
            run(&work, &steps)
        })
    });
    done.map_err(|e| CliError::failed(format!("--calibrate: no server on this machine: {e}")))??;
    drop(app);
    drop(thread.join());
    Ok(())
}

/// The model's name for its clients.
const NAME: &str = "rehearsal";

fn served(tokenizer: Tokenizer, context: Option<usize>) -> Served {
    Served {
        name: NAME.to_owned(),
        digest: String::new(),
        kind: String::new(),
        tokenizer,
        ends: Vec::new(),
        never: Vec::new(),
        template: None,
        context,
        kv: "",
        draft: None,
        plan: ledger::Plan::default(),
        runtime_bytes: 0,
        parameters: None,
        levers: serde_json::Value::Null,
        what_if: serde_json::Value::Null,
    }
}

/// Runs a load and looks at the steps that it made.
fn run(work: &Work, steps: &Steps) -> Result<Seen, CliError> {
    let Arrivals::Clients { count: clients } = work.arrivals else { return Ok(Seen::default()) };
    let Prompts::Random { tokens: prompt, .. } = work.prompts else { return Ok(Seen::default()) };
    let all = load::run(work).map_err(CliError::failed)?;
    let mut first = Vec::new();
    for one in all {
        let one = one.map_err(|e| CliError::failed(format!("--calibrate: {e}")))?;
        first.extend(one.first());
    }
    let steps = std::mem::take(&mut *steps.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(look(&steps, clients, prompt, &first))
}

/// What steps say of a load of `clients`, whose first tokens came after these seconds.
fn look(steps: &[Ran], clients: usize, prompt: usize, first: &[f64]) -> Seen {
    let (mut read, mut seen) = (HashMap::new(), Seen::default());
    let (mut between, mut turns, mut reading) = (Vec::new(), Vec::new(), Vec::new());
    let mut before: Option<(Instant, bool)> = None;
    for ran in steps.iter().filter(|ran| !ran.report.work.is_empty()) {
        let mut shape = StepShape::default();
        for &(id, rows) in &ran.report.work {
            let from: &mut usize = read.entry(id).or_default();
            shape.add(*from as u64, rows as u64, u64::from(*from + rows >= prompt));
            *from += rows;
        }
        let together = ran.report.prefill_rows == 0 && ran.report.decode_rows == clients;
        if let Some((end, also)) = before {
            let gap = ran.began.saturating_duration_since(end).as_secs_f64();
            match (together, also) {
                (true, true) => {
                    seen.steps.push((shape, ran.took.as_secs_f64()));
                    between.push(gap);
                }
                (false, true) if clients == 1 => turns.push(gap),
                _ => {}
            }
        }
        if !together {
            reading.push(ran.took.as_secs_f64());
        }
        before = Some((ran.began + ran.took, together));
    }
    seen.between_s = mean(&between);
    if clients == 1 {
        seen.turnaround_s = mean(&turns);
        seen.request_s = mean(first).zip(mean(&reading)).map(|(all, steps)| all - steps);
    }
    seen
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_tell_what_passed_beside_them() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let ran = |at, took, work: &[(u64, usize)], prefill_rows| Ran {
            report: StepReport {
                work: work.to_vec(),
                prefill_rows,
                decode_rows: work.iter().map(|w| w.1).sum::<usize>() - prefill_rows,
                ..StepReport::default()
            },
            began: start + ms(at),
            took: ms(took),
        };
        // A prompt of three tokens and three more, twice; between them the client takes its time.
        let one = [
            ran(0, 10, &[(1, 3)], 3),
            ran(11, 5, &[(1, 1)], 0),
            ran(18, 6, &[(1, 1)], 0),
            ran(24, 0, &[], 0),
            ran(30, 12, &[(2, 3)], 3),
            ran(43, 5, &[(2, 1)], 0),
            ran(52, 7, &[(2, 1)], 0),
        ];
        let seen = look(&one, 1, 3, &[0.013, 0.015]);
        assert_eq!(seen.steps, [(StepShape::of(4, 1, 1), 0.006), (StepShape::of(4, 1, 1), 0.007)]);
        let near = |found: Option<f64>, expected: f64| {
            assert!((found.unwrap() - expected).abs() < 1e-9, "{found:?}, expected {expected}");
        };
        near(seen.between_s, 0.003);
        near(seen.turnaround_s, 0.006);
        near(seen.request_s, 0.003);
        let two = [
            ran(0, 10, &[(1, 3)], 3),
            ran(10, 10, &[(1, 1), (2, 3)], 3),
            ran(20, 4, &[(1, 1), (2, 1)], 0),
            ran(25, 5, &[(1, 1), (2, 1)], 0),
            ran(30, 4, &[(2, 1)], 0),
        ];
        let seen = look(&two, 2, 3, &[0.01, 0.02]);
        let mut shape = StepShape::of(5, 1, 1);
        shape.add(4, 1, 1);
        assert_eq!(seen.steps, [(shape, 0.005)]);
        near(seen.between_s, 0.001);
        assert_eq!((seen.request_s, seen.turnaround_s), (None, None));
    }
}
