//! Searching and teaching on real networks: against every text there is, and against drawing.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{VOCABULARY, networks, request, source, tokenizer};
use decoding::beam::Patience;
use decoding::{Method, Rule, Rules, Settings};
use engine::{BeamSearch, Error, Finish, Generator, Request, Route, Sequence, score};
use models::Model;

fn beam(width: usize, length_exponent: f64) -> BeamSearch {
    BeamSearch { width, length_exponent, patience: Patience::Exact }
}

fn ids(sequence: &Sequence) -> Vec<u32> {
    sequence.tokens.iter().map(|token| token.choice.id).collect()
}

/// Every text of at most three tokens that ends or is cut there, best first, with its value.
fn all_texts(model: &Model, exponent: f64) -> Vec<(Vec<u32>, f64)> {
    let (mut open, mut done) = (vec![Vec::new()], Vec::new());
    while let Some(text) = open.pop() {
        for id in 0..VOCABULARY as u32 {
            let longer = [&text[..], &[id]].concat();
            if id == 0 || longer.len() == 3 { done.push(longer) } else { open.push(longer) }
        }
    }
    let mut source = source(model);
    let mut value = |text: Vec<u32>| {
        let whole = [&request().prompt[..], &text].concat();
        let scores = score(&mut source, &whole, Route::OnePass).unwrap();
        let sum: f64 = scores[1..].iter().map(|one| one.logprob).sum();
        let value = sum / (text.len() as f64).powf(exponent);
        (text, value)
    };
    let mut all: Vec<_> = done.into_iter().map(&mut value).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all
}

#[test]
fn a_beam_as_wide_as_all_texts_finds_the_best_of_them() {
    for model in networks() {
        for exponent in [0.0, 1.0] {
            let tokenizer = tokenizer();
            let mut generator = Generator::new(source(&model), &tokenizer);
            let request = Request { sequences: 5, ..request() };
            let found = generator.beam(&request, &beam(300, exponent)).unwrap();
            let all = all_texts(&model, exponent);
            assert_eq!(found.len(), 5);
            for (place, (found, (text, value))) in found.iter().zip(&all).enumerate() {
                assert_eq!(&ids(found), text, "place {place}, exponent {exponent}");
                assert!((found.score(exponent) - value).abs() < 1e-9);
                assert_eq!(found.index, place as u64);
                let ends = text.last() == Some(&0);
                assert_eq!(found.finish, if ends { Finish::Eos } else { Finish::Length });
                let shown = text.len() - usize::from(ends);
                assert_eq!(found.text.len(), shown, "one letter a token, none for the end");
            }
        }
    }
}

#[test]
fn a_beam_of_one_is_greedy_and_a_wider_one_no_worse() {
    for model in networks() {
        let tokenizer = tokenizer();
        let mut generator = Generator::new(source(&model), &tokenizer);
        let request = Request { end: Vec::new(), max_tokens: 12, ..request() };
        let greedy = Settings { method: Method::Greedy, ..Settings::default() };
        let rules = Rules::from_settings(&greedy).unwrap();
        let best = generator.run(&Request { rules, ..request.clone() }, &mut |_| {}).unwrap();
        let one = generator.beam(&request, &beam(1, 1.0)).unwrap();
        let four = generator.beam(&request, &beam(4, 1.0)).unwrap();
        assert_eq!(ids(&one[0]), ids(&best[0]));
        let logprobs = |s: &Sequence| s.tokens.iter().map(|t| t.choice.logprob).collect::<Vec<_>>();
        assert_eq!(logprobs(&one[0]), logprobs(&best[0]), "the same bits by another way");
        assert!(four[0].logprob() >= one[0].logprob());
        // The caches followed their hypotheses: scoring the text in one pass gives the same bits.
        let whole = [&request.prompt[..], &ids(&four[0])].concat();
        let scores = score(generator.source(), &whole, Route::OnePass).unwrap();
        let scores: Vec<f64> = scores[1..].iter().map(|one| one.logprob).collect();
        assert_eq!(scores, logprobs(&four[0]));
    }
}

#[test]
fn a_beam_stops_at_the_context_and_keeps_to_the_edits() {
    let model = &networks()[0];
    let tokenizer = tokenizer();
    let mut generator = Generator::new(source(model), &tokenizer);
    let request = Request { end: Vec::new(), max_tokens: 500, ..request() };
    let long = generator.beam(&request, &beam(3, 0.5)).unwrap();
    assert_eq!((long[0].tokens.len(), long[0].finish), (39, Finish::Context));
    let usual = ids(&long[0]);
    let rules = Rules::new(vec![Rule::Ban { ids: vec![usual[0]] }]).unwrap();
    let banned = generator.beam(&Request { rules, ..request.clone() }, &beam(3, 0.5)).unwrap();
    assert!(!ids(&banned[0]).contains(&usual[0]));
    let none = generator.beam(&Request { max_tokens: 0, ..request }, &beam(3, 0.5)).unwrap();
    assert_eq!((none[0].tokens.len(), none[0].finish), (0, Finish::Length));
}

#[test]
fn what_a_beam_cannot_use_is_refused() {
    let model = &networks()[1];
    let tokenizer = tokenizer();
    let mut generator = Generator::new(source(model), &tokenizer);
    let mut refused = |request: &Request, search| generator.beam(request, &search).unwrap_err();
    let rules = Rules::new(vec![Rule::Temperature { t: 0.5 }]).unwrap();
    let error = refused(&Request { rules, ..request() }, beam(2, 1.0));
    assert!(error.to_string().contains("temperature 0.5"), "{error}");
    let stops = vec!["x".to_owned()];
    let error = refused(&Request { stops, ..request() }, beam(2, 1.0));
    assert!(matches!(error, Error::NotForBeams { .. }), "{error}");
    let error = refused(&Request { sequences: 3, ..request() }, beam(2, 1.0));
    assert!(matches!(error, Error::TooManySequences { asked: 3, searched: 2 }), "{error}");
    assert!(matches!(refused(&request(), beam(0, 1.0)), Error::Beam(_)));
    assert!(matches!(refused(&request(), beam(2, -1.0)), Error::Beam(_)));
}

#[test]
fn the_best_of_n_are_those_of_n_samples() {
    for model in networks() {
        let tokenizer = tokenizer();
        let mut generator = Generator::new(source(&model), &tokenizer);
        let request = Request { max_tokens: 8, ..request() };
        let eight = Request { sequences: 8, ..request.clone() };
        let all = generator.run(&eight, &mut |_| {}).unwrap();
        for exponent in [0.0, 1.0] {
            let two = Request { sequences: 2, ..request.clone() };
            let best = generator.best_of(&two, 8, exponent, &mut |_| {}).unwrap();
            let mut values: Vec<f64> = all.iter().map(|one| one.score(exponent)).collect();
            values.sort_by(|a, b| b.total_cmp(a));
            for (one, value) in best.iter().zip(&values) {
                assert_eq!(one.score(exponent), *value);
                assert_eq!(one, &all[one.index as usize]);
            }
            assert_eq!(best.len(), 2);
        }
        let error = generator.best_of(&eight, 3, 1.0, &mut |_| {}).unwrap_err();
        assert!(matches!(error, Error::TooManySequences { asked: 8, searched: 3 }));
    }
}

/// Up to the first divergence both sides are the same bits; the true text is scored as `score`
/// scores it; the free text is what `run` writes.
#[test]
fn teaching_agrees_with_running_and_with_scoring() {
    for model in networks() {
        let tokenizer = tokenizer();
        let mut generator = Generator::new(source(&model), &tokenizer);
        let request = Request { end: Vec::new(), max_tokens: 9, ..request() };
        let free = generator.run(&request, &mut |_| {}).unwrap().remove(0);
        let mut truth = ids(&free);
        let same = generator.teach(&request, &truth, &mut |_| {}).unwrap();
        assert_eq!(same.first_divergence, None);
        assert_eq!((same.num_forced_right(), same.num_free_right()), (9, 9));
        truth[4] = (truth[4] + 1) % VOCABULARY as u32;
        let mut seen = 0;
        let told = generator.teach(&request, &truth, &mut |_| seen += 1).unwrap();
        assert_eq!((told.first_divergence, seen), (Some(4), 9));
        assert_eq!(told.free, free);
        for step in 0..=4 {
            assert_eq!(told.forced[step].choice, free.tokens[step].choice, "step {step}");
        }
        let after = told.forced[5].choice.logprob != free.tokens[5].choice.logprob;
        assert!(after, "another prefix, another prediction");
        let whole = [&request.prompt[..], &truth].concat();
        let scores = score(generator.source(), &whole, Route::Cached).unwrap();
        let scores: Vec<_> = scores[1..].to_vec();
        let truths: Vec<_> = told.forced.iter().map(|one| one.truth).collect();
        assert_eq!(truths, scores);
        let sum: f64 = scores.iter().map(|one| one.logprob).sum();
        assert_eq!(told.truth_logprob(), sum);
    }
    let transformer = &networks()[0];
    let tokenizer = tokenizer();
    let mut generator = Generator::new(source(transformer), &tokenizer);
    let error = generator.teach(&request(), &[1; 40], &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::TextTooLong { found: 42, limit: 41 }), "{error}");
    assert!(generator.teach(&request(), &[1; 39], &mut |_| {}).is_ok());
    let none = generator.teach(&request(), &[], &mut |_| {}).unwrap();
    assert_eq!((none.forced.len(), none.first_divergence), (0, None));
}
