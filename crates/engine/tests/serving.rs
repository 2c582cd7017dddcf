//! Many requests at a time: the same answer in any company, and no page lost.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{VOCABULARY, networks, networks_by_kv, request, source, tokenizer, windowed};
use decoding::{Choice, Rule, Rules};
use engine::serving::{
    Asked, Chosen, Draft, Engine, Event, Executor, Limits, NetworkExecutor, PageId, Piece, Refusal,
    RequestId, Rows, SequenceId, Sink, Stamped, spawn,
};
use engine::{Error, Finish, Generator, Request};
use kernels::{Team, mix};
use models::Model;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Reads only what lies in the pages: a token's logits depend on every token before it, through
/// whatever stands at its place. A token of 6 as the last of a prompt makes it panic.
struct Fake {
    /// One token a place.
    memory: HashMap<usize, u32>,
    page_tokens: usize,
    /// Sequences that it has run.
    ran: Vec<SequenceId>,
}

const POISON: u32 = 6;

impl Fake {
    fn new(limits: Limits) -> Box<Self> {
        Box::new(Fake { memory: HashMap::new(), page_tokens: limits.page_tokens, ran: Vec::new() })
    }

    fn engine(limits: Limits) -> Engine {
        Engine::new(Fake::new(limits), limits, &tokenizer()).unwrap()
    }

    fn place(&self, pages: &[PageId], at: usize) -> usize {
        pages[at / self.page_tokens] as usize * self.page_tokens + at % self.page_tokens
    }
}

fn fake_logits(tokens: impl Iterator<Item = u32>, row: &mut [f32]) {
    let state = tokens.fold(7, |state: u64, token| mix(state ^ u64::from(token)));
    for (i, logit) in row.iter_mut().enumerate() {
        *logit = (mix(state ^ (i as u64) << 40) % 997) as f32 / 300.0;
    }
    row[POISON as usize] = f32::NEG_INFINITY;
}

impl Executor for Fake {
    fn vocab_size(&self) -> usize {
        VOCABULARY
    }

    fn context_limit(&self) -> Option<usize> {
        Some(512)
    }

    fn run(&mut self, pieces: &[Piece<'_>], logits: &mut [f32]) -> Result<(), Error> {
        let mut rows = logits.chunks_exact_mut(VOCABULARY);
        for piece in pieces {
            for at in piece.from..piece.known.len() {
                self.memory.insert(self.place(piece.pages, at), piece.known[at]);
            }
        }
        for piece in pieces {
            self.ran.push(piece.id);
            assert!(piece.known.last() != Some(&POISON), "poisoned");
            let first = match piece.rows {
                Rows::None => continue,
                Rows::From(place) => place + 1,
                Rows::Every => piece.from + 1,
            };
            for end in first..=piece.known.len() {
                let read = |at| self.memory[&self.place(piece.pages, at)];
                fake_logits((0..end).map(read), rows.next().unwrap());
            }
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

/// What the fake answers, by the rule alone.
fn fake_answer(prompt: &[u32], tokens: usize) -> Vec<u32> {
    let mut all = prompt.to_vec();
    for _ in 0..tokens {
        let mut row = [0.0; VOCABULARY];
        fake_logits(all.iter().copied(), &mut row);
        let best = (0..VOCABULARY).fold(0, |best, i| if row[i] > row[best] { i } else { best });
        all.push(best as u32);
    }
    all.split_off(prompt.len())
}

fn greedy(prompt: &[u32], max_tokens: usize) -> Request {
    let rules = Rules::new(vec![Rule::Temperature { t: 0.0 }]).unwrap();
    Request { prompt: prompt.to_vec(), rules, max_tokens, end: Vec::new(), ..request() }
}

fn limits(pages: usize, page_tokens: usize) -> Limits {
    Limits {
        pages,
        page_tokens,
        step_tokens: 32,
        sequences: 4,
        shares: true,
        drafts: 0,
        window: None,
    }
}

/// What came of requests: choices by sequence, how they ended, cached tokens.
#[derive(Default)]
struct Heard {
    choices: BTreeMap<(RequestId, usize), Vec<Choice>>,
    finish: BTreeMap<(RequestId, usize), Finish>,
    text: BTreeMap<(RequestId, usize), String>,
    cached: BTreeMap<RequestId, usize>,
    failed: BTreeMap<RequestId, Error>,
    preempted: usize,
    pooled: BTreeMap<RequestId, Vec<f32>>,
}

impl Heard {
    fn take(&mut self, events: Vec<(RequestId, Event)>) {
        for (id, event) in events {
            match event {
                Event::Started { cached } => drop(self.cached.insert(id, cached)),
                Event::Preempted => self.preempted += 1,
                Event::Prompt(_) | Event::Waited(_) | Event::Guessed { .. } => {}
                Event::Pooled(mean) => drop(self.pooled.insert(id, mean)),
                Event::Token(told) => {
                    let Chosen { index, choice, text, finish, .. } = *told;
                    self.choices.entry((id, index)).or_default().push(choice);
                    self.text.entry((id, index)).or_default().push_str(&text);
                    if let Some(finish) = finish {
                        assert_eq!(self.finish.insert((id, index), finish), None);
                    }
                }
                Event::Ended { index, finish } => drop(self.finish.insert((id, index), finish)),
                Event::Failed(error) => drop(self.failed.insert(id, error)),
            }
        }
    }

    fn ids(&self, id: RequestId) -> Vec<u32> {
        self.choices[&(id, 0)].iter().map(|choice| choice.id).collect()
    }
}

fn finish(engine: &mut Engine, heard: &mut Heard) {
    for _ in 0..10_000 {
        if engine.is_idle() {
            return;
        }
        heard.take(engine.step().1);
        engine.scheduler().check().unwrap();
    }
    panic!("the engine does not come to an end");
}

#[test]
fn o09_page_boundaries_and_full_prefix_hits() {
    let mut engine = Fake::engine(limits(64, 16));
    let mut id = 0;
    let prompt = |n: usize| (0..n).map(|i| (i * i % 6) as u32).collect::<Vec<_>>();
    for n in [15, 16, 17, 31, 32, 33] {
        engine.clear_cache();
        for time in 0..3 {
            let mut heard = Heard::default();
            id += 1;
            engine.submit(id, Asked::plain(greedy(&prompt(n), 5))).unwrap();
            finish(&mut engine, &mut heard);
            assert_eq!(heard.ids(id), fake_answer(&prompt(n), 5), "{n} tokens, time {time}");
            let known = if time == 0 { 0 } else { (n - 1) / 16 * 16 };
            assert_eq!(heard.cached[&id], known, "{n} tokens, time {time}");
        }
        let pool = engine.scheduler().pool();
        assert_eq!(pool.num_free(), 64, "nothing is held when nothing runs");
    }
    // Other texts fill the pool; the first comes out the same.
    let mut heard = Heard::default();
    for i in 0..40 {
        id += 1;
        let other: Vec<u32> = (0..60).map(|j| (mix(i * 64 + j) % 6) as u32).collect();
        engine.submit(id, Asked::plain(greedy(&other, 3))).unwrap();
        finish(&mut engine, &mut heard);
    }
    assert!(engine.scheduler().pool().num_evictions() > 0);
    engine.submit(id + 1, Asked::plain(greedy(&prompt(32), 5))).unwrap();
    finish(&mut engine, &mut heard);
    assert_eq!(heard.ids(id + 1), fake_answer(&prompt(32), 5));
}

#[test]
fn o10_what_can_never_fit_is_refused_and_blocks_nobody() {
    let mut engine = Fake::engine(limits(8, 16));
    let long = vec![1; 200];
    let error = engine.submit(1, Asked::plain(greedy(&long, 4))).unwrap_err().to_string();
    assert!(error.contains("200") && error.contains("128"), "{error}");
    let mut heard = Heard::default();
    engine.submit(2, Asked::plain(greedy(&[1; 10], 4))).unwrap();
    engine.submit(3, Asked::plain(greedy(&[2; 120], 64))).unwrap();
    finish(&mut engine, &mut heard);
    assert_eq!(heard.ids(2), fake_answer(&[1; 10], 4));
    assert_eq!(heard.finish[&(3, 0)], Finish::Context);
    // 128 tokens are read; the last one written needs no place.
    assert_eq!(heard.ids(3), fake_answer(&[2; 120], 9));
}

#[test]
fn o11_cancelled_requests_leave_no_page() {
    let mut engine = Fake::engine(limits(16, 4));
    let mut heard = Heard::default();
    for id in 1..=12 {
        engine.submit(id, Asked::plain(greedy(&[(id % 6) as u32; 9], 40))).unwrap();
    }
    for _ in 0..5 {
        heard.take(engine.step().1);
    }
    assert!(engine.scheduler().counts().0 > 0 && engine.scheduler().counts().1 > 0);
    (1..=12).for_each(|id| engine.cancel(id));
    engine.scheduler().check().unwrap();
    assert_eq!((engine.scheduler().counts(), engine.scheduler().pool().num_free()), ((0, 0), 16));
    engine.submit(20, Asked::plain(greedy(&[3; 9], 6))).unwrap();
    finish(&mut engine, &mut heard);
    assert_eq!(heard.ids(20), fake_answer(&[3; 9], 6));
}

#[test]
fn a_full_pool_sends_the_youngest_back_and_loses_no_token() {
    let mut engine = Fake::engine(limits(9, 4));
    let mut heard = Heard::default();
    for id in 1..=4 {
        engine.submit(id, Asked::plain(greedy(&[id as u32; 5], 20))).unwrap();
    }
    finish(&mut engine, &mut heard);
    assert!(heard.preempted > 0 && engine.scheduler().totals().preemptions > 0);
    for id in 1..=4 {
        assert_eq!(heard.ids(id), fake_answer(&[id as u32; 5], 20), "request {id}");
    }
}

/// A model that repeats its text is guessed, in fewer steps and with the same tokens.
#[test]
fn guesses_save_steps_and_change_nothing() {
    let prompt: Vec<u32> = (0..40).map(|i| i % 5).collect();
    let mut told = Vec::new();
    for drafts in [0, 1, 4] {
        let mut engine = Fake::engine(Limits { drafts, ..limits(64, 4) });
        let mut heard = Heard::default();
        // The only tokens allowed make the text repeat itself.
        let rules = vec![Rule::Allow { ids: vec![2] }, Rule::Temperature { t: 0.0 }];
        let one = Request { rules: Rules::new(rules).unwrap(), ..greedy(&prompt, 30) };
        engine.submit(1, Asked::plain(one)).unwrap();
        let mut steps = 0;
        while !engine.is_idle() {
            heard.take(engine.step().1);
            engine.scheduler().check().unwrap();
            steps += 1;
        }
        assert_eq!(heard.finish[&(1, 0)], Finish::Length);
        let totals = engine.scheduler().totals();
        told.push((bits(&heard.choices[&(1, 0)]), steps, totals.accepted, totals.drafted));
        // What was guessed wrong is in no page that others would find.
        engine.submit(2, Asked::plain(greedy(&prompt, 6))).unwrap();
        finish(&mut engine, &mut heard);
        assert_eq!(heard.ids(2), fake_answer(&prompt, 6));
    }
    assert!(told.iter().all(|one| one.0 == told[0].0));
    assert_eq!(told[0].2, 0);
    assert!(
        told[1].1 < told[0].1 && told[2].1 < told[1].1,
        "{:?}",
        told.iter().map(|t| t.1).collect::<Vec<_>>()
    );
    assert!(told[2].2 > 15 && told[2].2 <= told[2].3);
}

/// A model that guesses for itself is always right, whatever pages its keys and values lie in: after
/// prefix hits, preemptions, cancelled neighbours and pieces of any size.
#[test]
fn a_draft_reads_what_the_model_reads() {
    for (pages, page_tokens, step_tokens, drafts) in
        [(200, 4, 7, 3), (40, 4, 32, 5), (30, 8, 64, 9)]
    {
        let limits = Limits { drafts, step_tokens, ..limits(pages, page_tokens) };
        let draft = Draft::new(Fake::new(limits), &limits).unwrap();
        let mut engine = Fake::engine(limits).with_draft(draft);
        let (mut heard, mut id, mut steps) = (Heard::default(), 0, 0_u64);
        let (mut all, mut told) = (BTreeMap::new(), (0, 0));
        while id < 40 || !engine.is_idle() {
            steps += 1;
            let random = |what: u64| mix(steps ^ mix(what + 77));
            if id < 40 && random(0) % 3 == 0 {
                id += 1;
                let length = 1 + random(1) % 30;
                // Many begin alike.
                let shared = random(2) % 3 * 8;
                let token = |i: u64| if i < shared { i % 5 } else { mix(id * 64 + i) % 5 } as u32;
                let prompt: Vec<u32> = (0..length).map(token).collect();
                let asked = greedy(&prompt, 1 + (random(3) % 20) as usize);
                engine.submit(id, Asked::plain(asked.clone())).unwrap();
                all.insert(id, asked);
            }
            if random(4) % 9 == 0 {
                engine.preempt_youngest();
            }
            if random(5) % 11 == 0 && all.len() > 4 {
                let gone = 1 + random(6) % id;
                engine.cancel(gone);
                all.remove(&gone);
            }
            for (id, event) in engine.step().1 {
                if let Event::Guessed { drafted, accepted } = event {
                    assert_eq!(drafted, accepted, "request {id}");
                    told = (told.0 + drafted, told.1 + 1);
                }
                heard.take(vec![(id, event)]);
            }
            engine.scheduler().check().unwrap();
            assert!(steps < 20_000);
        }
        for (id, asked) in all {
            assert_eq!(heard.ids(id), fake_answer(&asked.prompt, asked.max_tokens), "request {id}");
        }
        let totals = engine.scheduler().totals();
        assert!(heard.preempted > 0 && totals.hit > 0 && told.0 > 50, "{totals:?}");
        assert_eq!(totals.accepted, totals.accepted_at.iter().sum::<u64>());
        assert_eq!((totals.drafted, totals.drafts), (told.0 as u64, told.1));
    }
}

/// A draft that fails is no draft.
#[test]
fn a_draft_that_breaks_harms_nobody() {
    struct Broken;
    impl Executor for Broken {
        fn vocab_size(&self) -> usize {
            3
        }
        fn context_limit(&self) -> Option<usize> {
            Some(9)
        }
        fn run(&mut self, _: &[Piece<'_>], _: &mut [f32]) -> Result<(), Error> {
            panic!("broken")
        }
        fn width(&self) -> usize {
            0
        }
        fn hidden(&mut self) -> &[f32] {
            &[]
        }
        fn forget(&mut self, _: SequenceId) {}
    }
    let limits = Limits { drafts: 3, ..limits(64, 4) };
    let draft = Draft::new(Box::new(Broken), &limits).unwrap();
    let mut engine = Fake::engine(limits).with_draft(draft);
    let mut heard = Heard::default();
    engine.submit(1, Asked::plain(greedy(&[1, 2, 3], 12))).unwrap();
    finish(&mut engine, &mut heard);
    assert_eq!(heard.ids(1), fake_answer(&[1, 2, 3], 12));
}

#[test]
fn the_oldest_comes_first() {
    let mut engine = Fake::engine(Limits { sequences: 2, ..limits(64, 4) });
    let mut heard = Heard::default();
    (1..=5).for_each(|id| engine.submit(id, Asked::plain(greedy(&[1; 3], 4))).unwrap());
    let mut order = Vec::new();
    while !engine.is_idle() {
        heard.take(engine.step().1);
        for &(id, _) in heard.finish.keys() {
            if !order.contains(&id) {
                order.push(id);
            }
        }
    }
    assert_eq!(order, [1, 2, 3, 4, 5]);
}

#[test]
fn a_prompt_is_read_beside_those_that_write() {
    let mut engine = Fake::engine(Limits { step_tokens: 8, ..limits(64, 4) });
    engine.submit(1, Asked::plain(greedy(&[1; 2], 30))).unwrap();
    engine.step();
    engine.submit(2, Asked::plain(greedy(&[2; 40], 2))).unwrap();
    for _ in 0..5 {
        let (report, events) = engine.step();
        assert_eq!((report.decode_rows, report.prefill_rows), (1, 7));
        assert!(events.iter().any(|(id, e)| *id == 1 && matches!(e, Event::Token(_))));
    }
}

#[test]
fn choices_of_one_request_share_its_prompt() {
    let mut engine = Fake::engine(limits(64, 4));
    let many = Request { sequences: 3, ..greedy(&[1, 2, 3, 4, 5, 4, 3, 2, 1], 4) };
    engine.submit(1, Asked::plain(many)).unwrap();
    let (report, _) = engine.step();
    // Two full pages are read once; each sequence reads what lies behind them.
    assert_eq!(report.prefill_rows, 9 + 1 + 1);
    assert_eq!(report.totals.hit, 16);
    let mut heard = Heard::default();
    finish(&mut engine, &mut heard);
    let other = Asked { salt: "other".to_owned(), ..Asked::plain(greedy(&[1; 9], 1)) };
    engine.submit(2, Asked::plain(greedy(&[1; 9], 1))).unwrap();
    engine.submit(3, other).unwrap();
    finish(&mut engine, &mut heard);
    assert_eq!(heard.cached[&3], 0, "another salt shares nothing");
}

#[test]
fn a_panic_ends_one_request_and_no_other() {
    let mut engine = Fake::engine(limits(64, 4));
    let mut heard = Heard::default();
    for id in 1..=3 {
        let last = if id == 2 { POISON } else { 1 };
        engine.submit(id, Asked::plain(greedy(&[1, 2, 3, 4, 5, last], 6))).unwrap();
    }
    finish(&mut engine, &mut heard);
    assert!(heard.failed[&2].to_string().contains("poisoned"));
    assert_eq!(heard.failed.len(), 1);
    for id in [1, 3] {
        assert_eq!(heard.ids(id), fake_answer(&[1, 2, 3, 4, 5, 1], 6));
    }
    assert_eq!(engine.scheduler().pool().num_free(), 64);
}

#[test]
fn a_prompt_is_scored_once_in_any_pieces() {
    let prompt: Vec<u32> = (0..21).map(|i| (i * 5 % 6) as u32).collect();
    let mut told = Vec::new();
    for step_tokens in [4, 64] {
        let mut engine = Fake::engine(Limits { step_tokens, ..limits(64, 4) });
        for max_tokens in [0, 2] {
            let asked =
                Asked { score_prompt: Some(2), ..Asked::plain(greedy(&prompt, max_tokens)) };
            let id = max_tokens as u64 + 1;
            engine.submit(id, asked).unwrap();
            let (mut scores, mut heard) = (None, Heard::default());
            while !engine.is_idle() {
                for (id, event) in engine.step().1 {
                    match event {
                        Event::Prompt(tokens) => assert!(scores.replace(tokens).is_none()),
                        other => heard.take(vec![(id, other)]),
                    }
                }
            }
            let scores = scores.unwrap();
            assert_eq!((scores.len(), scores[0].scored, scores[1].top.len()), (21, None, 2));
            assert!(scores[1..].iter().zip(&prompt[1..]).all(|(s, t)| s.scored.unwrap().id == *t));
            assert_eq!(heard.finish[&(id, 0)], Finish::Length);
            assert_eq!(heard.choices.get(&(id, 0)).map_or(0, Vec::len), max_tokens);
            told.push(scores);
        }
    }
    assert!(told.iter().all(|scores| *scores == told[0]));
}

/// A request's answer by itself, by the other loop: cache of its own, no pages.
fn alone(model: &Model, request: &Request) -> Vec<(Vec<Choice>, String, Finish)> {
    let tokenizer = tokenizer();
    let done = Generator::new(source(model), &tokenizer).run(request, &mut |_| {}).unwrap();
    let told = |one: engine::Sequence| {
        (one.tokens.iter().map(|t| t.choice).collect(), one.text, one.finish)
    };
    done.into_iter().map(told).collect()
}

/// Requests of every kind, many of which begin alike.
fn requests(seed: u64, count: u64) -> Vec<Request> {
    let make = |i: u64| {
        let random = |what: u64| mix(seed ^ mix(i * 31 + what));
        let length = 1 + random(0) as usize % 30;
        let base = random(1) % 3;
        let prompt = (0..length as u64)
            .map(|j| if j < 12 { mix(base * 64 + j) } else { random(100 + j) } as u32 % 7)
            .collect();
        let chain = match random(2) % 4 {
            0 => vec![Rule::Temperature { t: 0.0 }],
            1 => vec![Rule::Temperature { t: 0.8 }],
            2 => vec![Rule::TopK { k: 4, ties: Default::default() }],
            _ => vec![],
        };
        Request {
            prompt,
            rules: Rules::new(chain).unwrap(),
            seed: random(3) % 5,
            first_sequence: 0,
            sequences: 1 + random(4) as usize % 3,
            max_tokens: 1 + random(5) as usize % 16,
            end: if random(6) % 2 == 0 { vec![0] } else { vec![] },
            stops: if random(7) % 3 == 0 { vec!["bc".to_owned()] } else { vec![] },
        }
    };
    (0..count).map(make).collect()
}

fn bits(choices: &[Choice]) -> Vec<(u32, u64, u64)> {
    choices.iter().map(|c| (c.id, c.logprob.to_bits(), c.sample_logprob.to_bits())).collect()
}

/// The contract: the same bits alone, in any company, with any chunks, pages, threads, arrivals,
/// cancelled neighbours, prefix hits and forced preemptions.
#[test]
fn the_same_answer_in_any_company() {
    let stranger = networks().into_iter().find(|m| NetworkExecutor::shares(m.config())).unwrap();
    let stranger = Arc::new(stranger);
    for model in networks_by_kv() {
        let model = Arc::new(model);
        let shares = NetworkExecutor::shares(model.config());
        let requests = requests(3, 14);
        let expected: Vec<_> = requests.iter().map(|r| alone(&model, r)).collect();
        let (mut hits, mut preemptions, mut accepted, mut drafted) = (0, 0, 0, 0);
        for (round, (threads, page_tokens, pages, step_tokens, sequences, drafts)) in [
            (1, 4, 200, 5, 3, 0),
            (2, 16, 12, 64, 8, 3),
            (3, 3, 26, 9, 6, 2),
            (2, 64, 40, 30, 12, 5),
        ]
        .into_iter()
        .enumerate()
        {
            // A state cannot take a token back.
            let drafts = if shares { drafts } else { 0 };
            let window = model.config().window();
            let limits =
                Limits { pages, page_tokens, step_tokens, sequences, shares, drafts, window };
            let team = Arc::new(Team::new(threads));
            let executor = NetworkExecutor::new(Arc::clone(&model), &limits, &team).unwrap();
            let mut engine = Engine::new(Box::new(executor), limits, &tokenizer()).unwrap();
            // In some rounds a model guesses: itself, or one that seldom agrees.
            if drafts > 0 && round != 1 {
                let guesser = if round == 2 { &model } else { &stranger };
                let executor = NetworkExecutor::new(Arc::clone(guesser), &limits, &team).unwrap();
                engine = engine.with_draft(Draft::new(Box::new(executor), &limits).unwrap());
            }
            let random = |what: u64| mix(round as u64 ^ mix(what));
            let mut order: Vec<u64> = (0..requests.len() as u64).collect();
            order.sort_by_key(|&i| random(i));
            let (mut heard, mut number) = (Heard::default(), BTreeMap::new());
            let (mut time, mut next_id) = (0_u64, 1);
            while !order.is_empty() || !engine.is_idle() {
                time += 1;
                if random(1000 + time) % 3 == 0
                    && let Some(i) = order.pop()
                {
                    number.insert(next_id, i as usize);
                    engine.submit(next_id, Asked::plain(requests[i as usize].clone())).unwrap();
                    // A neighbour that leaves before its answer is there.
                    engine.submit(next_id + 1, Asked::plain(greedy(&[1; 20], 15))).unwrap();
                    next_id += 2;
                }
                if random(5000 + time) % 4 == 0 && next_id > 2 {
                    engine.cancel(1 + 2 * (random(time) % (next_id / 2)) + 1);
                }
                if random(9000 + time) % 5 == 0 {
                    engine.preempt_youngest();
                }
                heard.take(engine.step().1);
                engine.scheduler().check().unwrap();
                assert!(time < 20_000, "it does not come to an end");
            }
            for (&id, &i) in &number {
                for (index, (choices, text, finish)) in expected[i].iter().enumerate() {
                    let what = format!("round {round}, request {i}, sequence {index}");
                    let none = String::new();
                    assert_eq!(bits(&heard.choices[&(id, index)]), bits(choices), "{what}");
                    assert_eq!(heard.text.get(&(id, index)).unwrap_or(&none), text, "{what}");
                    assert_eq!(heard.finish[&(id, index)], *finish, "{what}");
                }
            }
            assert_eq!(engine.scheduler().pool().num_free(), pages);
            let totals = engine.scheduler().totals();
            (hits, drafted) = (hits + totals.hit, drafted + totals.drafted);
            accepted += totals.accepted;
            preemptions += heard.preempted;
        }
        assert!(preemptions > 0 && (hits > 0) == shares, "{hits} hits, {preemptions} preemptions");
        assert!((accepted > 0) == shares && accepted <= drafted, "{accepted} of {drafted} guesses");
    }
}

/// A text's mean is the same bits alone, in pieces, in company and after a preemption.
#[test]
fn means_are_the_same_in_any_company() {
    for model in networks() {
        let model = Arc::new(model);
        let shares = NetworkExecutor::shares(model.config());
        let mut all: Vec<BTreeMap<RequestId, Vec<f32>>> = Vec::new();
        for (step_tokens, sequences) in [(64, 1), (7, 5), (64, 8)] {
            let window = model.config().window();
            let limits = Limits {
                pages: 60,
                page_tokens: 4,
                step_tokens,
                sequences,
                shares,
                drafts: 0,
                window,
            };
            let team = Arc::new(Team::new(2));
            let executor = NetworkExecutor::new(Arc::clone(&model), &limits, &team).unwrap();
            let mut engine = Engine::new(Box::new(executor), limits, &tokenizer()).unwrap();
            let mut heard = Heard::default();
            for id in 1..=6 {
                let prompt: Vec<u32> = (0..5 * id).map(|j| (mix(j) % 7) as u32).collect();
                let asked = Asked { pool: true, ..Asked::plain(greedy(&prompt, 1)) };
                engine.submit(id, asked).unwrap();
                engine.submit(100 + id, Asked::plain(greedy(&prompt, 4))).unwrap();
            }
            for step in 0..1000 {
                if sequences > 1 && step < 300 && step % 9 == 8 {
                    engine.preempt_youngest();
                }
                heard.take(engine.step().1);
                engine.scheduler().check().unwrap();
            }
            assert!(engine.is_idle());
            assert_eq!((heard.pooled.len(), heard.choices.len()), (6, 6));
            assert!(heard.pooled[&1].iter().any(|x| *x != 0.0));
            all.push(heard.pooled);
        }
        assert!(all.iter().all(|means| *means == all[0]));
        assert_ne!(all[0][&1], all[0][&2]);
    }
}

#[test]
fn the_thread_answers_cancels_and_refuses() {
    let engine = Fake::engine(limits(64, 4));
    let (handle, thread) = spawn(engine, VOCABULARY, Some(512), 3, Box::new(|_, _, _| {})).unwrap();
    let (sender, inbox) = channel::<Stamped>();
    let submit = |all: Vec<Request>| {
        let with_sink = |request| {
            let sender = sender.clone();
            let sink: Sink = Box::new(move |told| drop(sender.send(told)));
            (Asked::plain(request), sink)
        };
        handle.submit(all.into_iter().map(with_sink).collect())
    };
    let ticket = submit(vec![greedy(&[1, 2], 3)]).unwrap();
    let mut ids = Vec::new();
    loop {
        let told = inbox.recv_timeout(Duration::from_secs(10)).unwrap();
        if let Event::Token(chosen) = told.event {
            ids.push(chosen.choice.id);
            if chosen.finish.is_some() {
                break;
            }
        }
    }
    assert_eq!(ids, fake_answer(&[1, 2], 3));
    drop(ticket);
    // The engine's thread is held; what waits is bounded.
    let (hold, held) = channel::<()>();
    handle.look(move |_| assert!(held.recv().is_err(), "held until the sender is gone"));
    let one = || submit(vec![greedy(&[1], 2)]);
    let waiting: Vec<_> = (0..3).map(|_| one().unwrap()).collect();
    let refused = one();
    assert!(matches!(&refused, Err((0, Refusal::Busy { waiting: 3, most: 3, .. }))));
    let never = submit(vec![greedy(&[1], 2), greedy(&[1; 600], 2)]);
    assert!(matches!(never, Err((1, Refusal::Never(Error::PromptTooLong { found: 600, .. })))));
    // All or none: those that would fit leave nothing behind either.
    let many = submit(vec![greedy(&[1], 2); 4]);
    assert!(matches!(many, Err((0, Refusal::TooMany { asked: 4, requests: 4, most: 3 }))));
    drop(waiting);
    assert!(matches!(submit(vec![greedy(&[1], 2); 2]), Err((0, Refusal::Busy { .. }))));
    assert_eq!(handle.queue().waiting(), 3);
    drop(hold);
    let (sender, done) = channel();
    handle.look(move |engine| {
        let scheduler = engine.scheduler();
        sender.send((scheduler.counts(), scheduler.pool().num_free())).unwrap();
    });
    assert_eq!(done.recv_timeout(Duration::from_secs(10)).unwrap(), ((0, 0), 64));
    drop(refused);
    drop(handle);
    thread.join().unwrap();
}

/// Texts many times as long as a window and a tile: what lies behind is given back, and answers are
/// those of a model that sees the whole text at once.
#[test]
fn layers_with_a_window_keep_only_what_it_reaches() {
    let model = Arc::new(windowed());
    let long = |i: u64, n: u64| -> Vec<u32> {
        (0..n).map(|j| mix(if j < 200 { j } else { j * 7 + i }) as u32 % 7).collect()
    };
    let asked = |i: u64| greedy(&long(i, 230 + 9 * i), 40);
    let expected: Vec<_> = (0..4).map(|i| alone(&model, &asked(i))).collect();
    let team = Arc::new(Team::new(2));
    for (page_tokens, step_tokens) in [(16, 64), (4, 9), (64, 300)] {
        let limits = Limits {
            pages: 400 * 5 / page_tokens,
            page_tokens,
            step_tokens,
            sequences: 3,
            shares: true,
            drafts: 2,
            window: model.config().window(),
        };
        let near_pages = limits.kv_pages().near;
        assert!(near_pages < limits.pages, "{near_pages}");
        let executor = NetworkExecutor::new(Arc::clone(&model), &limits, &team).unwrap();
        let mut engine = Engine::new(Box::new(executor), limits, &tokenizer()).unwrap();
        let (mut heard, mut most) = (Heard::default(), 0);
        for id in 0..4 {
            engine.submit(id + 1, Asked::plain(asked(id))).unwrap();
        }
        for step in 0..4000 {
            if step % 50 == 49 && step < 400 {
                engine.preempt_youngest();
            }
            heard.take(engine.step().1);
            engine.scheduler().check().unwrap();
            let pool = engine.scheduler().near_pool().unwrap();
            most = most.max(pool.num_pages() - pool.num_free());
        }
        assert!(engine.is_idle());
        for (i, told) in expected.iter().enumerate() {
            assert_eq!(bits(&heard.choices[&(i as u64 + 1, 0)]), bits(&told[0].0), "{page_tokens}");
        }
        let totals = engine.scheduler().totals();
        assert!(totals.hit >= 128, "{} tokens found: the beginning is shared", totals.hit);
        assert!(most > 0 && most <= near_pages, "{most} of {near_pages}");
    }
}
