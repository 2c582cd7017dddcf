//! Several servers under a load, by discrete-event simulation: the scheduler is the one that the
//! server runs, only a step's time comes from a model of it instead of from a clock.
//!
//! Requests arrive at random times (or each of some clients sends its next when its last is
//! answered), go to a replica, wait, are read in steps beside others, and write their tokens. Beside
//! steps time passes as far as it was measured: between two of them, on a request's way, and from an
//! answer to the same client's next request.

use crate::Error;
pub use crate::step_cost::{Beside, MeasuredSteps, StepCost, StepShape};
use engine::serving::{Limits, PageKey, Scheduler, SequenceId, Step};
use kernels::{stream_key, uniform};
use serde::Serialize;
use std::collections::{HashMap, VecDeque};

/// How many tokens a prompt or an answer has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lengths {
    /// All alike.
    Fixed(u64),
    /// Any of these, all as likely.
    Between(u64, u64),
    /// As often as an exponential distribution of this mean says, at least 1.
    Around(u64),
}

/// When requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// So many a second on average, whether or not earlier ones are answered.
    Rate(f64),
    /// So many clients, each sending its next when its last is answered.
    Clients(usize),
}

/// Which replica a request goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Routing {
    /// One after the other.
    RoundRobin,
    /// The one with the fewest requests.
    LeastBusy,
    /// Any.
    Random,
}

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct FleetAsk {
    /// When requests come.
    pub arrivals: Arrivals,
    /// How many.
    pub requests: usize,
    /// Tokens of prompts.
    pub prompt: Lengths,
    /// Tokens of answers.
    pub answer: Lengths,
    /// Servers.
    pub replicas: usize,
    /// Which one a request goes to.
    pub routing: Routing,
    /// Sizes of each server's pool and steps.
    pub limits: Limits,
    /// Seconds between an answer's last token and the same client's next request before the server, on
    /// average (half to one and a half times as much): while others run, the next step has begun by
    /// then, and clients that were answered together do not come together.
    pub turnaround_s: f64,
    /// Where chance starts.
    pub seed: u64,
}

/// Percentiles in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The mean.
    pub mean_ms: f64,
    /// Half are below.
    pub p50_ms: f64,
    /// Nine of ten are below.
    pub p90_ms: f64,
    /// 99 of 100 are below.
    pub p99_ms: f64,
}

impl Spread {
    /// Of seconds, in any order.
    pub(crate) fn of(mut seconds: Vec<f64>) -> Spread {
        seconds.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let rank = (share * seconds.len() as f64).ceil() as usize;
            1e3 * seconds.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
        };
        let mean_ms = 1e3 * seconds.iter().sum::<f64>() / seconds.len().max(1) as f64;
        Spread { mean_ms, p50_ms: at(0.5), p90_ms: at(0.9), p99_ms: at(0.99) }
    }
}

/// What was seen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FleetReport {
    /// Servers.
    pub replicas: usize,
    /// Requests answered.
    pub requests: usize,
    /// From arrival to the first step.
    pub queue: Spread,
    /// From arrival to the first token.
    pub first_token: Spread,
    /// A token after the first.
    pub per_token: Spread,
    /// From arrival to the last token.
    pub whole: Spread,
    /// Tokens of answers a second, all servers together.
    pub tokens_per_second: f64,
    /// Share of the time in which a server runs a step or hands out its tokens, on average.
    pub busy_share: f64,
    /// Sequences sent back to wait.
    pub preemptions: u64,
    /// From the first arrival to the last token.
    pub seconds: f64,
}

/// The same fleet under other loads and with other numbers of servers.
#[derive(Clone, Debug, Serialize)]
pub struct FleetGrid {
    /// What a load is counted in.
    unit: &'static str,
    /// The loads, rising; and the one that was asked for.
    loads: Vec<f64>,
    load: f64,
    /// Numbers of servers, rising; and the one that was asked for.
    replicas: Vec<usize>,
    servers: usize,
    /// What is seen under each load by each number of servers.
    seen: Vec<Vec<FleetReport>>,
}

/// Requests of each cell of a grid, at most.
const GRID_REQUESTS: usize = 400;

impl FleetGrid {
    /// Simulates them: a quarter to four times the load, by one to twice the servers.
    ///
    /// # Errors
    /// As [`simulate`].
    pub fn new(ask: &FleetAsk, cost: &dyn StepCost) -> Result<FleetGrid, Error> {
        let (unit, load) = match ask.arrivals {
            Arrivals::Rate(rate) => ("requests a second", rate),
            Arrivals::Clients(clients) => ("clients", clients as f64),
        };
        let mut loads: Vec<f64> = [0.25, 0.5, 1.0, 2.0, 4.0].map(|times| times * load).to_vec();
        if let Arrivals::Clients(_) = ask.arrivals {
            loads.iter_mut().for_each(|load| *load = load.ceil());
            loads.dedup();
        }
        let servers = ask.replicas;
        let doubled = std::iter::successors(Some(1), |n| Some(2 * n));
        let mut replicas: Vec<usize> = doubled.take_while(|&n| n <= 2 * servers).collect();
        replicas.push(servers);
        replicas.sort_unstable();
        replicas.dedup();
        let cell = |load: f64, replicas: usize| {
            let arrivals = match ask.arrivals {
                Arrivals::Rate(_) => Arrivals::Rate(load),
                Arrivals::Clients(_) => Arrivals::Clients(load as usize),
            };
            let requests = ask.requests.min(GRID_REQUESTS);
            simulate(&FleetAsk { arrivals, replicas, requests, ..*ask }, cost)
        };
        let row = |&load: &f64| replicas.iter().map(|&n| cell(load, n)).collect();
        let seen = loads.iter().map(row).collect::<Result<_, _>>()?;
        Ok(FleetGrid { unit, loads, load, replicas, servers, seen })
    }
}

/// A request on its way.
#[derive(Clone, Copy, Debug, Default)]
struct Request {
    arrived: f64,
    admitted: Option<f64>,
    first: Option<f64>,
    ended: Option<f64>,
    prompt: u64,
    answer: u64,
    written: u64,
}

/// A server.
struct Replica {
    scheduler: Scheduler,
    /// The step in progress and when it ends.
    running: Option<(Step, f64)>,
    /// When the next may begin.
    free_at: f64,
    /// Requests that are here.
    held: usize,
    busy: f64,
}

/// Simulates a fleet.
///
/// # Errors
/// Numbers that make no load; requests that no server could hold.
pub fn simulate(ask: &FleetAsk, cost: &dyn StepCost) -> Result<FleetReport, Error> {
    check(ask)?;
    let mut requests = requests(ask);
    let mut replicas: Vec<Replica> = (0..ask.replicas)
        .map(|_| Replica {
            scheduler: Scheduler::new(ask.limits),
            running: None,
            free_at: 0.0,
            held: 0,
            busy: 0.0,
        })
        .collect();
    let root = PageKey::root("");
    let mut place: HashMap<SequenceId, usize> = HashMap::new();
    let mut sent = 0;
    let open = matches!(ask.arrivals, Arrivals::Rate(_));
    let mut turns = Turns { ask, taken: 0, coming: VecDeque::new() };
    match ask.arrivals {
        Arrivals::Clients(clients) => (0..clients.min(ask.requests)).for_each(|_| turns.next(0.0)),
        Arrivals::Rate(_) => turns.coming.extend(requests.iter().map(|r| r.arrived)),
    }
    let mut now = 0.0;
    loop {
        // What happens next: an arrival, or the end of a step.
        let arrival = turns.coming.front().copied().filter(|_| sent < requests.len());
        // Whoever comes at the same time is there before the next step begins.
        if arrival.is_none_or(|at| at > now) {
            for replica in &mut replicas {
                start(replica, now, cost, &mut requests)?;
            }
        }
        let end = replicas.iter().enumerate().filter_map(|(i, r)| Some((i, r.next(now)?)));
        let end = end.min_by(|a, b| a.1.total_cmp(&b.1));
        match (arrival, end) {
            (Some(at), other) if other.is_none_or(|(_, end)| at <= end) => {
                now = at;
                turns.coming.pop_front();
                let to = route(ask, &replicas, sent);
                let request = &mut requests[sent];
                request.arrived = now;
                let id = sent as SequenceId;
                // No two texts share a page: each has a token of its own first.
                let mut tokens = vec![0; request.prompt as usize];
                tokens[0] = sent as u32 + 1;
                let added = replicas[to].scheduler.add(id, tokens, root, 0);
                added.map_err(|e| Error::Unanswerable(e.to_string()))?;
                place.insert(id, to);
                replicas[to].held += 1;
                sent += 1;
            }
            (_, Some((i, end))) => {
                now = end;
                let ended = finish(&mut replicas[i], now, cost, &mut requests);
                if !open {
                    (0..ended).for_each(|_| turns.next(now));
                }
            }
            _ => break,
        }
    }
    Ok(report(ask, &requests, &replicas, (now, cost.request())))
}

/// When clients send next, in order.
struct Turns<'a> {
    ask: &'a FleetAsk,
    taken: u64,
    coming: VecDeque<f64>,
}

impl Turns<'_> {
    /// A client sends its next, a turn after now.
    fn next(&mut self, now: f64) {
        let chance = uniform(stream_key(self.ask.seed, 0x0074_7572_6e73, 0), self.taken);
        let at = now + self.ask.turnaround_s * (0.5 + chance);
        self.taken += 1;
        let place = self.coming.partition_point(|&other| other <= at);
        self.coming.insert(place, at);
    }
}

fn check(ask: &FleetAsk) -> Result<(), Error> {
    let within = |what, n: usize, most: usize| match n {
        1.. if n <= most => Ok(()),
        _ => Err(Error::number(what, n, format!("it must be 1 to {most}"))),
    };
    within("--requests", ask.requests, 1_000_000)?;
    within("--replicas", ask.replicas, 4096)?;
    match ask.arrivals {
        Arrivals::Rate(rate) if !(1e-6..=1e9).contains(&rate) => {
            return Err(Error::number(
                "--rate",
                format!("{rate:?}"),
                "it must be 0.000001 to 1000000000",
            ));
        }
        Arrivals::Clients(clients) => within("--clients", clients, 1_000_000)?,
        Arrivals::Rate(_) => {}
    }
    for (what, lengths) in [("--prompt-tokens", ask.prompt), ("--max-tokens", ask.answer)] {
        let (low, high) = match lengths {
            Lengths::Fixed(n) | Lengths::Around(n) => (n, n),
            Lengths::Between(low, high) => (low, high),
        };
        if low == 0 || high < low || high > 1 << 22 {
            return Err(Error::number(what, format!("{low}-{high}"), "1 to 4194304, rising"));
        }
    }
    let longest = |lengths| match lengths {
        Lengths::Fixed(n) | Lengths::Between(_, n) => n,
        // Of those around a mean, whatever is too long is cut.
        Lengths::Around(_) => 1,
    };
    let (longest, most) = (longest(ask.prompt) + longest(ask.answer), ask.limits.capacity() as u64);
    if longest > most {
        let expected = format!("a server's cache holds {most}: no such request is answered");
        return Err(Error::number("--prompt-tokens and --max-tokens together", longest, expected));
    }
    Ok(())
}

/// Requests with their lengths and, for a rate, their times.
fn requests(ask: &FleetAsk) -> Vec<Request> {
    let most = ask.limits.capacity() as u64;
    let draw = |stream: u64, i: u64| uniform(stream_key(ask.seed, 0x0066_6c65_6574, stream), i);
    let length = |lengths: Lengths, stream: u64, i: u64| match lengths {
        Lengths::Fixed(n) => n,
        Lengths::Between(low, high) => low + (draw(stream, i) * (high - low + 1) as f64) as u64,
        Lengths::Around(mean) => {
            (-(1.0 - draw(stream, i)).ln() * mean as f64).round().max(1.0) as u64
        }
    };
    let mut now = 0.0;
    (0..ask.requests as u64)
        .map(|i| {
            if let Arrivals::Rate(rate) = ask.arrivals {
                now -= (1.0 - draw(0, i)).ln() / rate;
            }
            let answer = length(ask.answer, 2, i).min(most.saturating_sub(1)).max(1);
            let prompt = length(ask.prompt, 1, i).min(most.saturating_sub(answer)).max(1);
            Request { arrived: now, prompt, answer, ..Request::default() }
        })
        .collect()
}

fn route(ask: &FleetAsk, replicas: &[Replica], i: usize) -> usize {
    match ask.routing {
        Routing::RoundRobin => i % replicas.len(),
        Routing::Random => {
            let key = stream_key(ask.seed, 0x0072_6f75_7465, 0);
            (uniform(key, i as u64) * replicas.len() as f64) as usize
        }
        Routing::LeastBusy => {
            let least = replicas.iter().enumerate().min_by_key(|(_, r)| r.held);
            least.map_or(0, |(i, _)| i)
        }
    }
}

impl Replica {
    /// When something happens next that began here: a step ends, or another may begin.
    fn next(&self, now: f64) -> Option<f64> {
        let free = (self.held > 0 && self.free_at > now).then_some(self.free_at);
        self.running.as_ref().map(|(_, end)| *end).or(free)
    }
}

/// Begins the next step of a server that runs none.
fn start(
    replica: &mut Replica,
    now: f64,
    cost: &dyn StepCost,
    requests: &mut [Request],
) -> Result<(), Error> {
    if replica.running.is_some() || replica.held == 0 || replica.free_at > now {
        return Ok(());
    }
    let mut step = replica.scheduler.next_step();
    if step.work.is_empty() && !step.preempted.is_empty() {
        // Those sent back are admitted by the next one.
        step = replica.scheduler.next_step();
    }
    if step.work.is_empty() {
        return Err(Error::Unanswerable(
            "a request fits into no server's K/V pool beside its own answer; raise --kv-tokens"
                .to_owned(),
        ));
    }
    for &(id, _) in &step.admitted {
        requests[id as usize].admitted.get_or_insert(now);
    }
    let mut shape = StepShape::default();
    for work in &step.work {
        shape.add(work.from as u64, work.tokens as u64, work.rows() as u64);
    }
    let seconds = cost.seconds(&shape);
    replica.busy += seconds;
    replica.running = Some((step, now + seconds));
    Ok(())
}

/// Ends a step: tokens are written, requests end; answers with how many did.
fn finish(replica: &mut Replica, now: f64, cost: &dyn StepCost, requests: &mut [Request]) -> usize {
    let Some((step, _)) = replica.running.take() else { return 0 };
    replica.scheduler.done(&step);
    let (mut ended, mut tokens) = (0, 0);
    for work in step.work.iter().filter(|work| work.last) {
        tokens += 1;
        let request = &mut requests[work.id as usize];
        request.written += 1;
        request.first.get_or_insert(now);
        if request.written == request.answer {
            request.ended = Some(now);
            replica.scheduler.remove(work.id);
            replica.held -= 1;
            ended += 1;
        } else {
            replica.scheduler.push(work.id, 0);
        }
    }
    let beside = cost.beside(tokens);
    replica.free_at = now + beside;
    if replica.held > 0 {
        replica.busy += beside;
    }
    ended
}

fn report(
    ask: &FleetAsk,
    all: &[Request],
    replicas: &[Replica],
    (now, request_s): (f64, f64),
) -> FleetReport {
    let spread =
        |of: &dyn Fn(&Request) -> Option<f64>| Spread::of(all.iter().filter_map(of).collect());
    let began = all.first().map_or(0.0, |r| r.arrived);
    let seconds = (now - began).max(1e-12);
    let written: u64 = all.iter().map(|r| r.written).sum();
    let busy: f64 = replicas.iter().map(|r| r.busy).sum();
    FleetReport {
        replicas: ask.replicas,
        requests: all.iter().filter(|r| r.ended.is_some()).count(),
        queue: spread(&|r| Some(r.admitted? - r.arrived)),
        first_token: spread(&|r| Some(r.first? - r.arrived + request_s)),
        per_token: spread(&|r| {
            (r.answer > 1).then_some((r.ended? - r.first?) / (r.answer - 1) as f64)
        }),
        whole: spread(&|r| Some(r.ended? - r.arrived + request_s)),
        tokens_per_second: written as f64 / seconds,
        busy_share: busy / (seconds * replicas.len() as f64),
        preemptions: replicas.iter().map(|r| r.scheduler.totals().preemptions).sum(),
        seconds,
    }
}

/// What every request is to keep to, at the 90th percentile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    /// To the first token, milliseconds.
    pub first_token_ms: f64,
    /// A token after it, milliseconds.
    pub per_token_ms: f64,
}

/// The fewest servers, up to `most`, that keep to an objective, with what was seen of them.
///
/// # Errors
/// As [`simulate`].
pub fn fewest_replicas(
    ask: &FleetAsk,
    objective: Objective,
    most: usize,
    cost: &dyn StepCost,
) -> Result<Option<FleetReport>, Error> {
    for replicas in 1..=most {
        let seen = simulate(&FleetAsk { replicas, ..*ask }, cost)?;
        let first = seen.first_token.p90_ms <= objective.first_token_ms;
        if first && seen.per_token.p90_ms <= objective.per_token_ms {
            return Ok(Some(seen));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Constant(f64);

    impl StepCost for Constant {
        fn seconds(&self, _shape: &StepShape) -> f64 {
            self.0
        }
    }

    fn ask() -> FleetAsk {
        FleetAsk {
            arrivals: Arrivals::Rate(0.7),
            requests: 40_000,
            prompt: Lengths::Fixed(4),
            answer: Lengths::Fixed(1),
            replicas: 1,
            routing: Routing::RoundRobin,
            limits: Limits {
                pages: 1000,
                page_tokens: 4,
                step_tokens: 4,
                sequences: 1,
                shares: false,
                drafts: 0,
                window: None,
            },
            turnaround_s: 0.0,
            seed: 1,
        }
    }

    #[test]
    fn one_at_a_time_waits_as_queueing_theory_says() {
        // M/D/1: the mean wait is ρ / (2 μ (1 - ρ)) (Pollaczek and Khinchine).
        let seen = simulate(&ask(), &Constant(1.0)).unwrap();
        let expected = 0.7 / (2.0 * (1.0 - 0.7));
        let waited = seen.queue.mean_ms / 1e3;
        assert!((waited / expected - 1.0).abs() < 0.05, "{waited}, expected {expected}");
        assert!((seen.busy_share - 0.7).abs() < 0.01, "{}", seen.busy_share);
        assert_eq!(seen.requests, 40_000);
    }

    #[test]
    fn two_servers_wait_as_their_routing_lets_them() {
        let load = FleetAsk { arrivals: Arrivals::Rate(1.4), replicas: 2, ..ask() };
        let of = |routing| {
            simulate(&FleetAsk { routing, ..load }, &Constant(1.0)).unwrap().queue.mean_ms
        };
        let (random, turns, least) =
            (of(Routing::Random), of(Routing::RoundRobin), of(Routing::LeastBusy));
        // Random splitting keeps arrivals Poisson: each server is the one of the test above.
        assert!((random / 1166.7 - 1.0).abs() < 0.05, "{random}");
        // Where all take equally long, turns are one queue for both servers (M/D/2): none is better.
        assert!(turns < least && least < 0.6 * random, "{turns} {least} {random}");
    }

    #[test]
    fn a_batch_of_clients_takes_as_long_as_one() {
        let limits = Limits { step_tokens: 64, sequences: 16, ..ask().limits };
        let with = |clients, requests| FleetAsk {
            arrivals: Arrivals::Clients(clients),
            requests,
            answer: Lengths::Fixed(10),
            limits,
            ..ask()
        };
        // A step takes a second whatever it holds: ten steps an answer.
        let one = simulate(&with(1, 4), &Constant(1.0)).unwrap();
        let many = simulate(&with(8, 32), &Constant(1.0)).unwrap();
        assert_eq!((one.whole.p50_ms, many.whole.p50_ms), (10_000.0, 10_000.0));
        assert_eq!((one.per_token.p99_ms, one.seconds, many.seconds), (1000.0, 40.0, 40.0));
        assert_eq!(many.tokens_per_second, 8.0 * one.tokens_per_second);
    }

    #[test]
    fn a_small_pool_sends_sequences_back_and_all_are_answered() {
        let limits = Limits { pages: 12, step_tokens: 64, sequences: 8, ..ask().limits };
        let load = FleetAsk {
            arrivals: Arrivals::Clients(8),
            requests: 40,
            prompt: Lengths::Between(2, 9),
            answer: Lengths::Around(12),
            limits,
            ..ask()
        };
        let seen = simulate(&load, &Constant(0.1)).unwrap();
        assert_eq!(seen.requests, 40);
        assert!(seen.preemptions > 0);
    }

    #[test]
    fn an_objective_takes_as_many_servers_as_it_needs() {
        let load = FleetAsk { arrivals: Arrivals::Rate(3.5), requests: 4000, ..ask() };
        let objective = Objective { first_token_ms: 3000.0, per_token_ms: 1e9 };
        let load = FleetAsk { routing: Routing::LeastBusy, ..load };
        let found = fewest_replicas(&load, objective, 16, &Constant(1.0)).unwrap().unwrap();
        assert!((4..=6).contains(&found.replicas), "{}", found.replicas);
        let fewer = FleetAsk { replicas: found.replicas - 1, ..load };
        assert!(simulate(&fewer, &Constant(1.0)).unwrap().first_token.p90_ms > 3000.0);
        let never = Objective { first_token_ms: 1.0, per_token_ms: 1.0 };
        assert_eq!(fewest_replicas(&load, never, 3, &Constant(1.0)).unwrap(), None);
    }

    #[test]
    fn a_client_that_turns_round_misses_the_step_that_others_began() {
        let limits = Limits { step_tokens: 64, sequences: 16, ..ask().limits };
        let with = |turnaround_s| FleetAsk {
            arrivals: Arrivals::Clients(2),
            requests: 40,
            prompt: Lengths::Between(2, 9),
            answer: Lengths::Between(5, 20),
            limits,
            turnaround_s,
            ..ask()
        };
        let first = |turnaround_s| {
            simulate(&with(turnaround_s), &Constant(1.0)).unwrap().first_token.p50_ms
        };
        // At once: the next step reads it. Later: the one after, that which runs has to end first.
        assert_eq!(first(0.0), 1000.0);
        assert!((1850.0..1950.0).contains(&first(0.1)), "{}", first(0.1));
    }
}
