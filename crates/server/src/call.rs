//! A call under way: its requests at the engine, what they cost so far, when its parts began.

use crate::app::{App, UnderWay};
use crate::books::{Size, with_numbers};
use crate::error::ApiError;
use crate::metrics::Phases;
use axum::http::StatusCode;
use engine::Finish;
use engine::serving::{Asked, Chosen, Event, PromptToken, Refusal, Sink, Stamped, Ticket, Waited};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// What came of a call.
#[derive(Debug)]
pub enum Update {
    /// A prompt is scored.
    Prompt(usize, Vec<PromptToken>),
    /// The mean of a prompt's vectors.
    Pooled(usize, Vec<f32>),
    /// A token came for a choice.
    Token(usize, Box<Chosen>),
    /// A choice ended without a token.
    Ended(usize, Finish),
}

/// One prompt with its sequences.
#[derive(Debug, Clone)]
struct Job {
    prompt: usize,
    sequences: usize,
    cached: usize,
    preempted: usize,
    /// Tokens guessed ahead, and those that came.
    guessed: (usize, usize),
    generated: usize,
    open: usize,
    started: Option<Instant>,
    first: Option<Instant>,
    ended: Option<Instant>,
    /// When each sequence's last token came.
    last: Vec<Option<Instant>>,
    /// Whose work its first token waited for.
    waited: Waited,
}

/// A call under way; dropping it ends it.
pub struct Call {
    app: Arc<App>,
    tickets: Vec<Ticket>,
    inbox: UnboundedReceiver<(usize, Stamped)>,
    jobs: Vec<Job>,
    /// Tokens of each choice.
    ids: Vec<Vec<u32>>,
    arrived: Instant,
    failed: bool,
    _under_way: UnderWay,
}

/// The word of the OpenAI interface for an end.
#[must_use]
pub fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Eos | Finish::Stop => "stop",
        Finish::Length | Finish::Context => "length",
        Finish::Cancelled => "abort",
    }
}

impl Call {
    /// Hands all prompts of a call to the engine, or none.
    ///
    /// # Errors
    /// What cannot be answered, now or ever.
    pub fn start(
        app: &Arc<App>,
        under_way: UnderWay,
        arrived: Instant,
        all: Vec<Asked>,
    ) -> Result<Self, ApiError> {
        let (sender, inbox) = unbounded_channel();
        let (mut jobs, mut sizes, mut requests) = (Vec::new(), Vec::new(), Vec::new());
        for (number, asked) in all.into_iter().enumerate() {
            let (prompt, sequences) = (asked.request.prompt.len(), asked.request.sequences);
            jobs.push(Job::new(prompt, sequences));
            sizes.push(Size { prompt, sequences, new: asked.request.max_tokens });
            let sender = sender.clone();
            // A call that is gone has dropped its tickets, so nothing is left to be told.
            let sink: Sink = Box::new(move |told| drop(sender.send((number, told))));
            requests.push((asked, sink));
        }
        let refused =
            |(at, refusal): (usize, Refusal)| with_numbers(app, sizes[at], refusal.into());
        let tickets = app.engine.submit(requests).map_err(refused)?;
        let (app, failed) = (Arc::clone(app), false);
        let ids = vec![Vec::new(); jobs.iter().map(|job: &Job| job.sequences).sum()];
        Ok(Self { app, tickets, inbox, jobs, ids, arrived, failed, _under_way: under_way })
    }

    /// What came next; none when all has ended.
    ///
    /// # Errors
    /// What ended the call.
    pub async fn next(&mut self) -> Result<Option<Update>, ApiError> {
        let end = tokio::time::Instant::from_std(self.arrived + self.app.options.request_time);
        while self.jobs.iter().any(|job| job.open > 0) {
            let Ok(told) = tokio::time::timeout_at(end, self.inbox.recv()).await else {
                let seconds = self.app.options.request_time.as_secs();
                let message = format!("the answer took longer than {seconds} s and was ended");
                return self.fail(
                    ApiError::new(StatusCode::GATEWAY_TIMEOUT, message).code("deadline_exceeded"),
                );
            };
            let Some((number, told)) = told else {
                let message = "the engine has ended";
                return self.fail(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message));
            };
            if let Some(update) = self.take(number, told)? {
                return Ok(Some(update));
            }
        }
        Ok(None)
    }

    fn fail<T>(&mut self, error: ApiError) -> Result<T, ApiError> {
        self.failed = true;
        self.tickets.clear();
        self.app.metrics.error(error.status.as_u16());
        Err(error)
    }

    fn take(&mut self, number: usize, told: Stamped) -> Result<Option<Update>, ApiError> {
        let Stamped { at, event } = told;
        let (arrived, first_choice) = (self.arrived, self.first_choice(number));
        let (job, metrics) = (&mut self.jobs[number], Arc::clone(&self.app.metrics));
        match event {
            Event::Started { cached } => {
                (job.started, job.cached) = (Some(at), cached);
                Ok(None)
            }
            Event::Waited(waited) => {
                job.waited = waited;
                Ok(None)
            }
            Event::Preempted => {
                job.preempted += 1;
                Ok(None)
            }
            Event::Guessed { drafted, accepted } => {
                job.guessed = (job.guessed.0 + drafted, job.guessed.1 + accepted);
                Ok(None)
            }
            Event::Prompt(tokens) => Ok(Some(Update::Prompt(number, tokens))),
            Event::Pooled(mean) => Ok(Some(Update::Pooled(number, mean))),
            Event::Token(chosen) => {
                job.generated += 1;
                if job.first.is_none() {
                    job.first = Some(at);
                    metrics.first_token((at - arrived).as_secs_f64());
                }
                let before = job.last[chosen.index].replace(at);
                metrics.token(before.map(|before| (at - before).as_secs_f64()));
                let choice = first_choice + chosen.index;
                self.ids[choice].push(chosen.choice.id);
                if let Some(finish) = chosen.finish {
                    self.ended(number, at, finish);
                }
                Ok(Some(Update::Token(choice, chosen)))
            }
            Event::Ended { index, finish } => {
                self.ended(number, at, finish);
                Ok(Some(Update::Ended(first_choice + index, finish)))
            }
            Event::Failed(error) => self.fail(error.into()),
        }
    }

    fn ended(&mut self, number: usize, at: Instant, finish: Finish) {
        let arrived = self.arrived;
        let job = &mut self.jobs[number];
        job.open = job.open.saturating_sub(1);
        self.app.metrics.ended(reason(finish));
        if job.open == 0 {
            job.ended = Some(at);
            let phases = job.phases(arrived);
            self.app.metrics.request(job.prompt, job.generated, job.sequences, &phases);
        }
    }

    /// The number of a job's first choice among all.
    fn first_choice(&self, number: usize) -> usize {
        self.jobs[..number].iter().map(|job| job.sequences).sum()
    }

    /// Choices in all.
    #[must_use]
    pub fn choices(&self) -> usize {
        self.first_choice(self.jobs.len())
    }

    /// The tokens of each choice so far, the one that ended it included.
    #[must_use]
    pub fn ids(&self) -> &[Vec<u32>] {
        &self.ids
    }

    /// Tokens read and written.
    #[must_use]
    pub fn usage(&self) -> Value {
        let sum = |count: fn(&Job) -> usize| self.jobs.iter().map(count).sum::<usize>();
        let (prompt, written) = (sum(|job| job.prompt), sum(|job| job.generated));
        let mut usage = json!({
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
            "prompt_tokens_details": { "cached_tokens": sum(|job| job.cached) },
        });
        if self.app.engine.limits().drafts > 0 {
            let (drafted, accepted) = (sum(|job| job.guessed.0), sum(|job| job.guessed.1));
            usage["completion_tokens_details"] = json!({
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": drafted - accepted,
            });
        }
        usage
    }

    /// Where the time went, with the events that begin and end each part; one a prompt.
    #[must_use]
    pub fn timings(&self) -> Value {
        let told = |(job, ticket): (&Job, &Ticket)| {
            let phases = job.phases(self.arrived);
            let part = |from: &str, to: &str, seconds: f64| json!({ "from": from, "to": to, "ms": seconds * 1e3 });
            json!({
                "queue": part("request read", "first step begins", phases.queue),
                "prefill": part("first step begins", "first token", phases.prefill),
                "decode": part("first token", "last token", phases.decode),
                "total": part("request read", "last token", phases.total),
                "cached_tokens": job.cached,
                "preemptions": job.preempted,
                "guesses": { "drafted": job.guessed.0, "accepted": job.guessed.1 },
                "request": ticket.id(),
                "before_first_token": waited(&job.waited),
            })
        };
        Value::Array(self.jobs.iter().zip(&self.tickets).map(told).collect())
    }
}

/// Those who had the most rows, and the sum of all.
const MOST_TOLD: usize = 8;

fn waited(waited: &Waited) -> Value {
    let mut others: Vec<(&u64, &usize)> = waited.others.iter().collect();
    others.sort_by_key(|(id, rows)| (std::cmp::Reverse(**rows), **id));
    let told = |(id, rows): &(&u64, &usize)| json!({ "request": id, "rows": rows });
    json!({
        "steps": waited.steps, "own_rows": waited.own_rows,
        "other_rows": waited.others.values().sum::<usize>(),
        "others": others.iter().take(MOST_TOLD).map(told).collect::<Vec<_>>(),
    })
}

impl Job {
    fn new(prompt: usize, sequences: usize) -> Self {
        Self {
            prompt,
            sequences,
            cached: 0,
            preempted: 0,
            guessed: (0, 0),
            generated: 0,
            open: sequences,
            started: None,
            first: None,
            ended: None,
            last: vec![None; sequences],
            waited: Waited::default(),
        }
    }

    fn phases(&self, arrived: Instant) -> Phases {
        let seconds = |from: Instant, to: Option<Instant>| {
            to.map_or(0.0, |to| to.saturating_duration_since(from).as_secs_f64())
        };
        let started = self.started.unwrap_or(arrived);
        let first = self.first.or(self.ended);
        Phases {
            queue: seconds(arrived, self.started),
            prefill: seconds(started, first),
            decode: seconds(first.unwrap_or(started), self.ended),
            first_token: seconds(arrived, first),
            total: seconds(arrived, self.ended),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.failed && self.jobs.iter().any(|job| job.open > 0) {
            self.app.metrics.aborted();
        }
    }
}
