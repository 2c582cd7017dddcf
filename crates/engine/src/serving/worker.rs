//! The engine on a thread of its own: requests go in by a channel, events come out by a function.

use super::engine::Engine;
use super::scheduler::Limits;
use super::told::{Asked, Event, RequestId, StepReport, Waited};
use crate::Error;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// An event and when it was known.
#[derive(Debug)]
pub struct Stamped {
    /// Start of the step for [`Event::Started`], end of it for the rest.
    pub at: Instant,
    /// What happened.
    pub event: Event,
}

/// Hears what becomes of a request.
pub type Sink = Box<dyn FnMut(Stamped) + Send>;
type Look = Box<dyn FnOnce(&mut Engine) + Send>;
/// Told of every step: what it was, when it began, how long it took.
type Observer = Box<dyn FnMut(&StepReport, Instant, Duration) + Send>;

enum Command {
    Submit { id: RequestId, asked: Box<Asked>, cost: usize, sink: Sink },
    Cancel(RequestId),
    Look(Look),
}

/// What waits before the engine, bounded.
#[derive(Debug)]
pub struct Queue {
    /// Sequences that may wait.
    most: usize,
    waiting: AtomicUsize,
    /// Tokens that the waiting ones ask for, read and written.
    tokens: AtomicUsize,
    /// Tokens a second that steps have gone through lately, as bits.
    rate: AtomicU64,
}

impl Queue {
    /// Sequences that wait now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Seconds until what waits now has run, at the speed of late; none before any step.
    #[must_use]
    pub fn predicted_wait(&self) -> Option<f64> {
        let rate = f64::from_bits(self.rate.load(Ordering::Relaxed));
        (rate > 0.0).then(|| self.tokens.load(Ordering::Relaxed) as f64 / rate)
    }

    fn enter(&self, sequences: usize, tokens: usize) -> bool {
        let room = |waiting: usize| {
            let then = waiting + sequences;
            (waiting == 0 || then <= self.most).then_some(then)
        };
        let order = Ordering::Relaxed;
        let entered = self.waiting.fetch_update(order, order, room).is_ok();
        if entered {
            self.tokens.fetch_add(tokens, order);
        }
        entered
    }

    fn leave(&self, sequences: usize, tokens: usize) {
        self.waiting.fetch_sub(sequences, Ordering::Relaxed);
        self.tokens.fetch_sub(tokens, Ordering::Relaxed);
    }

    fn ran(&self, tokens: usize, took: Duration) {
        let now = tokens as f64 / took.as_secs_f64().max(1e-6);
        let old = f64::from_bits(self.rate.load(Ordering::Relaxed));
        let rate = if old == 0.0 { now } else { 0.9 * old + 0.1 * now };
        self.rate.store(rate.to_bits(), Ordering::Relaxed);
    }
}

/// Why requests were not taken.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It can never be answered.
    #[error(transparent)]
    Never(#[from] Error),
    /// Too many wait.
    #[error(
        "{waiting} sequences wait already and this request would add {asked}; {most} may wait: try \
         again in {} s", .retry_after.as_secs()
    )]
    Busy {
        /// Sequences that wait.
        waiting: usize,
        /// Sequences of the request.
        asked: usize,
        /// Sequences that may wait.
        most: usize,
        /// The predicted wait, a second at least.
        retry_after: Duration,
    },
    /// More at a time than may ever wait.
    #[error(
        "{asked} sequences asked for in {requests} prompts; {most} may wait at a time: send fewer \
         prompts, or ask for fewer answers"
    )]
    TooMany {
        /// Sequences of all.
        asked: usize,
        /// Prompts.
        requests: usize,
        /// Sequences that may wait.
        most: usize,
    },
    /// The engine has ended.
    #[error("the engine has ended")]
    Gone,
}

/// What an engine's clients hold.
#[derive(Clone)]
pub struct Handle {
    commands: Sender<Command>,
    queue: Arc<Queue>,
    next: Arc<AtomicU64>,
    limits: Limits,
    vocab: usize,
    context: Option<usize>,
    limit: usize,
}

/// A request under way; dropping it cancels what is left of it.
pub struct Ticket {
    id: RequestId,
    commands: Sender<Command>,
}

impl Ticket {
    /// The request's name.
    #[must_use]
    pub fn id(&self) -> RequestId {
        self.id
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        drop(self.commands.send(Command::Cancel(self.id)));
    }
}

impl Handle {
    /// What waits.
    #[must_use]
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Sizes of pool and steps.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// V.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.vocab
    }

    /// Tokens that a sequence can have read.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Hands requests over, all or none; each one's sink hears of it on the engine's thread and must
    /// not wait.
    ///
    /// # Errors
    /// [`Refusal`], and the place of the request at fault; nothing is then left behind.
    pub fn submit(&self, all: Vec<(Asked, Sink)>) -> Result<Vec<Ticket>, (usize, Refusal)> {
        let mut costs = Vec::with_capacity(all.len());
        for (i, (Asked { request, .. }, _)) in all.iter().enumerate() {
            Engine::check(request, self.vocab, self.context, &self.limits)
                .map_err(|error| (i, error.into()))?;
            let room = self.limit.saturating_sub(request.prompt.len());
            let cost = request.prompt.len() + request.sequences * request.max_tokens.min(room);
            costs.push((request.sequences, cost));
        }
        self.enter(&costs).map_err(|refusal| (0, refusal))?;
        let mut tickets = Vec::with_capacity(all.len());
        for (i, (asked, sink)) in all.into_iter().enumerate() {
            let id = self.next.fetch_add(1, Ordering::Relaxed);
            let command = Command::Submit { id, asked: Box::new(asked), cost: costs[i].1, sink };
            if self.commands.send(command).is_err() {
                let left = &costs[i..];
                left.iter().for_each(|&(sequences, cost)| self.queue.leave(sequences, cost));
                return Err((i, Refusal::Gone));
            }
            tickets.push(Ticket { id, commands: self.commands.clone() });
        }
        Ok(tickets)
    }

    /// Takes places in the queue: (sequences, tokens) of each request.
    fn enter(&self, costs: &[(usize, usize)]) -> Result<(), Refusal> {
        let (asked, tokens) = costs.iter().fold((0, 0), |(a, b), one| (a + one.0, b + one.1));
        let (requests, most) = (costs.len(), self.queue.most);
        if requests > 1 && asked > most {
            return Err(Refusal::TooMany { asked, requests, most });
        }
        if self.queue.enter(asked, tokens) {
            return Ok(());
        }
        let wait = self.queue.predicted_wait().unwrap_or(1.0).clamp(1.0, 3600.0);
        let retry_after = Duration::from_secs(wait.ceil() as u64);
        Err(Refusal::Busy { waiting: self.queue.waiting(), asked, most, retry_after })
    }

    /// Runs something on the engine's thread, between two steps.
    pub fn look(&self, look: impl FnOnce(&mut Engine) + Send + 'static) {
        drop(self.commands.send(Command::Look(Box::new(look))));
    }
}

/// Starts the thread. It ends when every [`Handle`] and [`Ticket`] is gone and nothing is under way.
///
/// # Errors
/// When the system gives no thread.
pub fn spawn(
    engine: Engine,
    vocab: usize,
    context: Option<usize>,
    most_waiting: usize,
    observer: Observer,
) -> io::Result<(Handle, JoinHandle<()>)> {
    let (commands, inbox) = channel();
    let queue = Arc::new(Queue {
        most: most_waiting,
        waiting: AtomicUsize::new(0),
        tokens: AtomicUsize::new(0),
        rate: AtomicU64::new(0),
    });
    let handle = Handle {
        commands,
        queue: Arc::clone(&queue),
        next: Arc::new(AtomicU64::new(1)),
        limits: *engine.scheduler().limits(),
        vocab,
        context,
        limit: engine.limit(),
    };
    let worker = Worker { engine, inbox, queue, clients: HashMap::new(), observer };
    let thread =
        std::thread::Builder::new().name("autoreg-engine".to_owned()).spawn(|| worker.run())?;
    Ok((handle, thread))
}

struct Client {
    sink: Sink,
    /// Sequences and tokens that still count as waiting.
    waits: Option<(usize, usize)>,
    /// What has run since it came, until its first token.
    waited: Option<Waited>,
}

struct Worker {
    engine: Engine,
    inbox: Receiver<Command>,
    queue: Arc<Queue>,
    clients: HashMap<RequestId, Client>,
    observer: Observer,
}

impl Worker {
    fn run(mut self) {
        loop {
            if self.engine.is_idle() {
                let Ok(command) = self.inbox.recv() else { return };
                self.take(command);
            }
            while let Ok(command) = self.inbox.try_recv() {
                self.take(command);
            }
            if !self.engine.is_idle() {
                self.step();
            } else {
                // The gauges go back to rest.
                let (report, _) = self.engine.step();
                (self.observer)(&report, Instant::now(), Duration::ZERO);
            }
        }
    }

    fn step(&mut self) {
        let started = Instant::now();
        let (report, events) = self.engine.step();
        let ended = Instant::now();
        debug_assert!(self.engine.scheduler().check().is_ok(), "every page is owned as counted");
        let took = ended - started;
        let rows = report.decode_rows + report.prefill_rows;
        if rows > 0 {
            self.queue.ran(rows, took);
        }
        for (&id, client) in &mut self.clients {
            if let Some(waited) = &mut client.waited {
                waited.add(id, &report.work);
            }
        }
        for (id, event) in events {
            let at = if matches!(event, Event::Started { .. }) { started } else { ended };
            self.tell(id, Stamped { at, event });
        }
        (self.observer)(&report, started, took);
    }

    fn tell(&mut self, id: RequestId, told: Stamped) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if !matches!(told.event, Event::Preempted)
            && let Some((sequences, tokens)) = client.waits.take()
        {
            self.queue.leave(sequences, tokens);
        }
        if matches!(told.event, Event::Token(_) | Event::Pooled(_))
            && let Some(waited) = client.waited.take()
        {
            (client.sink)(Stamped { at: told.at, event: Event::Waited(waited) });
        }
        let failed = matches!(told.event, Event::Failed(_));
        (client.sink)(told);
        if failed {
            self.clients.remove(&id);
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Submit { id, asked, cost, sink } => {
                let waits = Some((asked.request.sequences, cost));
                let waited = Some(Waited::default());
                self.clients.insert(id, Client { sink, waits, waited });
                if let Err(error) = self.engine.submit(id, *asked) {
                    self.tell(id, Stamped { at: Instant::now(), event: Event::Failed(error) });
                }
            }
            Command::Cancel(id) => {
                self.engine.cancel(id);
                if let Some((sequences, tokens)) = self.clients.remove(&id).and_then(|c| c.waits) {
                    self.queue.leave(sequences, tokens);
                }
            }
            Command::Look(look) => look(&mut self.engine),
        }
    }
}
