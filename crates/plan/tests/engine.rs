//! The simulator against the engine that it simulates, both by the same clock: a step's time is a
//! function of what runs in it, so all times must be the same.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use decoding::Rules;
use engine::serving::{Asked, Engine, Event, Executor, Limits, Piece, Rows, SequenceId};
use engine::{Error, Request};
use plan::fleet::{Arrivals, FleetAsk, Lengths, Routing, StepCost, StepShape, simulate};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tokenizer::Tokenizer;

const VOCABULARY: usize = 8;

/// Seconds of a request's way.
const REQUEST: f64 = 0.03;

/// Seconds of a step, and beside it: something for itself, for each row, for what is read and seen, for each choice.
struct Cost;

impl StepCost for Cost {
    fn seconds(&self, shape: &StepShape) -> f64 {
        let seen = 1e-5 * shape.past as f64 + 1e-6 * shape.pairs as f64;
        0.02 + 1e-3 * shape.rows as f64 + seen + 2e-3 * shape.logits as f64
    }
    fn beside(&self, tokens: u64) -> f64 {
        4e-3 + 5e-4 * tokens as f64
    }
    fn request(&self) -> f64 {
        REQUEST
    }
}

/// A model that takes as long as [`Cost`] says and always writes token 1.
struct Timed {
    clock: Arc<Mutex<f64>>,
}

impl Executor for Timed {
    fn vocab_size(&self) -> usize {
        VOCABULARY
    }
    fn context_limit(&self) -> Option<usize> {
        None
    }
    fn run(&mut self, pieces: &[Piece<'_>], logits: &mut [f32]) -> Result<(), Error> {
        let mut shape = StepShape::default();
        for piece in pieces {
            let tokens = piece.known.len() - piece.from;
            let wanted = match piece.rows {
                Rows::None => 0,
                Rows::From(place) => piece.known.len() - place,
                Rows::Every => tokens,
            };
            shape.add(piece.from as u64, tokens as u64, wanted as u64);
        }
        *self.clock.lock().unwrap() += Cost.seconds(&shape);
        for row in logits.chunks_exact_mut(VOCABULARY) {
            row.fill(0.0);
            row[1] = 9.0;
        }
        Ok(())
    }
    fn width(&self) -> usize {
        0
    }
    fn hidden(&mut self) -> &[f32] {
        &[]
    }
    fn forget(&mut self, _id: SequenceId) {}
}

fn tokenizer() -> Tokenizer {
    let file = r#"{"version": "1.0", "added_tokens": [],
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "merges": [],
            "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4, "f": 5, "g": 6, "h": 7}}}"#;
    Tokenizer::from_bytes(file.as_bytes()).unwrap()
}

/// What the engine itself does under clients that each send their next when their last is answered:
/// (seconds to the first token, seconds in all) of each request, and how many were sent back.
fn engine(
    limits: Limits,
    (clients, requests): (usize, usize),
    (prompt, answer): (usize, usize),
) -> (Vec<(f64, f64)>, u64) {
    let clock = Arc::new(Mutex::new(0.0));
    let now = || *clock.lock().unwrap();
    let timed = Timed { clock: Arc::clone(&clock) };
    let mut engine = Engine::new(Box::new(timed), limits, &tokenizer()).unwrap();
    let (mut sent, mut ended) = (0, 0);
    let mut times: HashMap<u64, (f64, f64, f64)> = HashMap::new();
    let (mut preempted, mut beside) = (0, 0.0);
    while ended < requests {
        while sent < requests && sent - ended < clients {
            // Like the simulator's: no two begin alike.
            let mut tokens = vec![0; prompt];
            tokens[0] = (sent % VOCABULARY) as u32;
            let request = Request {
                prompt: tokens,
                rules: Rules::default(),
                seed: 0,
                first_sequence: 0,
                sequences: 1,
                max_tokens: answer,
                end: Vec::new(),
                stops: Vec::new(),
            };
            engine.submit(sent as u64, Asked::plain(request)).unwrap();
            times.insert(sent as u64, (now(), 0.0, 0.0));
            sent += 1;
        }
        // Whoever came while tokens were handed out is there when the next step begins.
        *clock.lock().unwrap() += beside;
        let (report, events) = engine.step();
        let mut tokens = 0;
        preempted = report.totals.preemptions;
        for (id, event) in events {
            let Event::Token(chosen) = event else { continue };
            tokens += 1;
            let time = times.get_mut(&id).unwrap();
            if time.1 == 0.0 {
                time.1 = now();
            }
            if chosen.finish.is_some() {
                time.2 = now();
                ended += 1;
            }
        }
        beside = Cost.beside(tokens);
    }
    let each = (0..requests as u64).map(|id| times[&id]);
    let way = |(came, first, end)| (first - came + REQUEST, end - came + REQUEST);
    (each.map(way).collect(), preempted)
}

#[track_caller]
fn check(limits: Limits, load: (usize, usize), tokens: (usize, usize)) -> u64 {
    let (times, preempted) = engine(limits, load, tokens);
    let ask = FleetAsk {
        arrivals: Arrivals::Clients(load.0),
        requests: load.1,
        prompt: Lengths::Fixed(tokens.0 as u64),
        answer: Lengths::Fixed(tokens.1 as u64),
        replicas: 1,
        routing: Routing::RoundRobin,
        limits,
        turnaround_s: 0.0,
        seed: 0,
    };
    let seen = simulate(&ask, &Cost).unwrap();
    let sorted = |of: fn(&(f64, f64)) -> f64| {
        let mut all: Vec<f64> = times.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let (first, whole) = (sorted(|t| t.0), sorted(|t| t.1));
    let at = |all: &[f64], share: f64| all[(share * all.len() as f64).ceil() as usize - 1];
    for (simulated, real) in [
        (seen.first_token.p50_ms, at(&first, 0.5)),
        (seen.first_token.p99_ms, at(&first, 0.99)),
        (seen.whole.p50_ms, at(&whole, 0.5)),
        (seen.whole.p90_ms, at(&whole, 0.9)),
        (seen.whole.mean_ms, whole.iter().sum::<f64>() / whole.len() as f64),
    ] {
        assert!((simulated - 1e3 * real).abs() < 1e-6 * simulated, "{simulated} {}", 1e3 * real);
    }
    assert_eq!(seen.preemptions, preempted);
    preempted
}

fn limits(pages: usize, step_tokens: usize, sequences: usize) -> Limits {
    Limits { pages, page_tokens: 4, step_tokens, sequences, shares: false, drafts: 0, window: None }
}

#[test]
fn the_simulator_is_the_engine_by_another_clock() {
    let roomy = limits(1000, 32, 4);
    for load in [(1, 6), (3, 30), (9, 60)] {
        assert_eq!(check(roomy, load, (37, 9)), 0);
    }
    check(limits(1000, 16, 16), (16, 64), (5, 20));
    check(limits(1000, 64, 2), (7, 40), (100, 3));
}

#[test]
fn it_sends_back_to_wait_whom_the_engine_sends_back() {
    let tight = limits(30, 16, 6);
    assert!(check(tight, (6, 40), (9, 25)) > 0);
}
