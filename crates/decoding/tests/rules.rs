//! Single rules and their edges: values worked out by hand, and the field cases O01 to O03.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use decoding::{
    Bias, Boundary, Counter, DecodeError, Draw, Explanation, History, Mask, Measure, Row, Rule,
    Rules, Scratch, Ties, Window, best, decide, explain,
};

fn temperature(t: f64) -> Rule {
    Rule::Temperature { t }
}

fn top_k(k: usize) -> Rule {
    Rule::TopK { k, ties: Ties::Exact }
}

fn top_p(p: f64) -> Rule {
    Rule::TopP { p, boundary: Boundary::Reach, of: Measure::Kept }
}

fn rules(chain: &[Rule]) -> Rules {
    Rules::new(chain.to_vec()).unwrap()
}

fn lesson(chain: &[Rule], row: Row<'_>, u: f64) -> Explanation {
    explain(&rules(chain), row, &History::default(), Draw::Fixed(u), 0).unwrap()
}

fn kept(chain: &[Rule], probabilities: &[f64]) -> Vec<u32> {
    let told = lesson(chain, Row::Probabilities(probabilities), 0.0);
    told.kept().map(|token| token.id).collect()
}

fn chosen(chain: &[Rule], logits: &[f32], history: &History<'_>) -> Result<u32, DecodeError> {
    let rng = Counter { seed: 1, stream: 0 };
    decide(&rules(chain), logits, history, rng, 5, &mut Scratch::new()).map(|choice| choice.id)
}

#[track_caller]
fn close(found: f64, expected: f64, within: f64) {
    assert!((found - expected).abs() <= within, "found {found}, expected {expected}");
}

#[test]
fn a_draw_inverts_the_cumulative_sum() {
    let row = [0.5, 0.3, 0.2];
    for (u, id) in [(0.0, 0), (0.4999, 0), (0.5, 1), (0.64, 1), (0.7999, 1), (0.81, 2)] {
        let told = lesson(&[], Row::Probabilities(&row), u);
        assert_eq!(told.choice.id, id, "u = {u}");
        assert_eq!(told.choice.draw, Some(u));
    }
    let last = lesson(&[], Row::Probabilities(&row), 1.0 - f64::EPSILON / 2.0);
    assert_eq!(last.choice.id, 2);
}

#[test]
fn candidates_are_drawn_best_first_and_ties_by_id() {
    let row = [0.1, 0.4, 0.1, 0.4];
    let told = lesson(&[], Row::Probabilities(&row), 0.0);
    let order: Vec<_> = told.candidates.iter().map(|token| token.id).collect();
    assert_eq!(order, [1, 3, 0, 2]);
    assert_eq!(told.candidates[1].interval, Some([0.4, 0.8]));
}

#[test]
fn both_log_probabilities_rank_and_entropy() {
    let row = [0.5, 0.3, 0.2];
    let choice = lesson(&[top_k(2)], Row::Probabilities(&row), 0.9).choice;
    assert_eq!((choice.id, choice.rank, choice.kept), (1, 2, 2));
    close(choice.logprob, 0.3_f64.ln(), 1e-15);
    close(choice.sample_logprob, (0.3_f64 / 0.8).ln(), 1e-15);
    let entropy = -row.iter().map(|p: &f64| p * p.ln()).sum::<f64>();
    close(choice.entropy, entropy, 1e-15);
}

#[test]
fn rank_and_logprob_are_the_models_own_also_under_edits() {
    let bias = Rule::Bias { entries: vec![Bias { id: 2, add: 100.0 }] };
    let logits = [3.0_f32, 2.0, 1.0, 1.0];
    let told = lesson(&[bias, temperature(0.5)], Row::Logits(&logits), 0.3);
    assert_eq!((told.choice.id, told.choice.rank), (2, 3));
    let mass: f64 = logits.iter().map(|&z| f64::from(z).exp()).sum();
    close(told.choice.logprob, 1.0 - mass.ln(), 1e-12);
    close(told.choice.sample_logprob, 0.0, 1e-12);
}

#[test]
fn rank_breaks_ties_by_id_with_and_without_edits() {
    let logits = [1.0_f32, 5.0, 1.0, 1.0];
    let idle = Rule::Bias { entries: vec![Bias { id: 1, add: -9.0 }] };
    for (u, id, rank) in [(0.1, 0, 2), (0.5, 2, 3), (0.9, 3, 4)] {
        let edited = lesson(std::slice::from_ref(&idle), Row::Logits(&logits), u).choice;
        assert_eq!((edited.id, edited.rank), (id, rank));
    }
    let plain = lesson(&[], Row::Logits(&[1.0; 4]), 0.6).choice;
    assert_eq!((plain.id, plain.rank), (2, 3));
}

#[test]
fn greedy_takes_the_largest_and_the_lowest_id_among_equals() {
    let history = History::default();
    assert_eq!(chosen(&[temperature(0.0)], &[1.0, 7.0, 7.0, 2.0], &history), Ok(1));
    assert_eq!(chosen(&[temperature(0.0)], &[-0.0, 0.0], &history), Ok(0));
    let told = lesson(&[temperature(0.0)], Row::Logits(&[1.0, 7.0, 7.0, 2.0]), 0.99);
    assert_eq!((told.choice.draw, told.choice.kept), (None, 1));
    close(told.choice.sample_logprob, 0.0, 0.0);
}

#[test]
fn temperature_is_stable_at_any_size() {
    let logits = [1000.0_f32, 999.0, -1000.0];
    for t in [f64::MIN_POSITIVE, 1e-300, 1e-30, 1e-3] {
        let told = lesson(&[temperature(t)], Row::Logits(&logits), 0.999);
        assert_eq!(told.choice.id, 0, "T = {t}");
        close(told.candidates[0].probability, 1.0, 1e-12);
    }
    for t in [1e30, 1e300, f64::MAX] {
        let told = lesson(&[temperature(t)], Row::Logits(&logits), 0.5);
        close(told.candidates[2].probability, 1.0 / 3.0, 1e-12);
    }
    let wide: Vec<f32> = (0..5000).map(|i| i as f32 / 100.0).collect();
    for t in [f64::MIN_POSITIVE, 1e-40, 1e40, f64::MAX] {
        let told = lesson(&[temperature(t)], Row::Logits(&wide), 0.25);
        assert_eq!(told.choice.id, if t < 1.0 { 4999 } else { 3749 }, "T = {t}");
    }
}

#[test]
fn temperature_two_on_known_values() {
    let told = lesson(&[temperature(2.0)], Row::Logits(&[2.0, 0.0]), 0.0);
    close(told.candidates[0].probability, 1.0 / (1.0 + (-1.0_f64).exp()), 1e-15);
    let told = lesson(&[temperature(2.0)], Row::Probabilities(&[0.8, 0.2]), 0.0);
    close(told.candidates[0].probability, 2.0 / 3.0, 1e-15);
    let twice = lesson(&[temperature(4.0), temperature(0.5)], Row::Logits(&[2.0, 0.0]), 0.0);
    close(twice.temperature, 2.0, 0.0);
}

#[test]
fn top_k_is_exact_and_zero_or_v_mean_all() {
    let row = [0.2, 0.3, 0.3, 0.2];
    assert_eq!(kept(&[top_k(1)], &row), [1]);
    assert_eq!(kept(&[top_k(3)], &row), [1, 2, 0]);
    for k in [0, 4, 5, usize::MAX] {
        assert_eq!(kept(&[top_k(k)], &row).len(), 4, "k = {k}");
    }
    assert_eq!(kept(&[Rule::TopK { k: 3, ties: Ties::All }], &row).len(), 4);
    assert_eq!(kept(&[Rule::TopK { k: 1, ties: Ties::All }], &row), [1, 2]);
}

#[test]
fn top_p_keeps_the_smallest_set_that_reaches_p() {
    assert_eq!(kept(&[top_p(0.75)], &[0.80, 0.10, 0.06, 0.04]), [0]);
    let told = lesson(&[top_p(0.75)], Row::Probabilities(&[0.30, 0.28, 0.24, 0.18]), 0.0);
    assert_eq!(told.choice.kept, 3);
    close(told.kept().map(|token| token.model_probability).sum(), 0.82, 1e-12);
    assert_eq!(kept(&[top_p(1.0)], &[0.5, 0.5, 0.0]), [0, 1]);
}

#[test]
fn min_p_is_relative_to_the_best() {
    let row = [0.5, 0.25, 0.125, 0.125];
    assert_eq!(kept(&[Rule::MinP { p: 0.5 }], &row), [0, 1]);
    assert_eq!(kept(&[Rule::MinP { p: 0.25 }], &row), [0, 1, 2, 3]);
    assert_eq!(kept(&[Rule::MinP { p: 1.0 }], &[0.4, 0.2, 0.4]), [0, 2]);
    assert_eq!(kept(&[Rule::MinP { p: 0.0 }], &row).len(), 4);
}

#[test]
fn each_filter_sees_what_the_one_before_left() {
    // 0.4, 0.3 renormalise to 0.571, 0.429; on the whole mass two would be needed.
    let row = [0.4, 0.3, 0.2, 0.1];
    assert_eq!(kept(&[top_k(2), top_p(0.5)], &row), [0]);
    let joint = Rule::TopP { p: 0.5, boundary: Boundary::Reach, of: Measure::Whole };
    assert_eq!(kept(&[top_k(2), joint], &row), [0, 1]);
}

// ---- O01

#[test]
fn o01_the_token_that_crosses_p_is_kept() {
    let told = lesson(&[top_p(0.9)], Row::Probabilities(&[0.50, 0.41, 0.09]), 0.0);
    let shares: Vec<_> = told.kept().map(|token| token.probability).collect();
    assert_eq!(shares.len(), 2);
    close(shares[0], 0.549_451, 5e-7);
    close(shares[1], 0.450_549, 5e-7);
    assert_eq!(kept(&[top_p(0.6)], &[0.5, 0.3, 0.15, 0.05]).len(), 2);
    assert_eq!(kept(&[top_p(0.85)], &[0.5, 0.3, 0.15, 0.05]).len(), 3);
}

#[test]
fn o01_an_exact_tie_keeps_no_token_too_many() {
    assert_eq!(kept(&[top_p(0.75)], &[0.5, 0.25, 0.125, 0.125]), [0, 1]);
}

#[test]
fn o01_a_tiny_p_keeps_the_best() {
    let noise = Counter { seed: 11, stream: 3 };
    let mut logits: Vec<f32> = (0..4096).map(|i| noise.uniform(i) as f32 * 8.0).collect();
    logits[3801] = 9.0;
    let chain = rules(&[top_p(1e-8)]);
    let mut scratch = Scratch::new();
    for step in 0..1000 {
        let history = History::default();
        let choice = decide(&chain, &logits, &history, noise, step, &mut scratch).unwrap();
        assert_eq!((choice.id, choice.kept), (3801, 1));
    }
}

#[test]
fn o01_the_order_of_temperature_and_top_p_is_obeyed() {
    let row = Row::Logits(&[3.0, 2.0, 1.0]);
    let first = lesson(&[temperature(0.5), top_p(0.8)], row, 0.0);
    assert_eq!(first.choice.kept, 1);
    for (token, p) in first.candidates.iter().zip([0.866_813, 0.117_310, 0.015_876]) {
        close(token.tempered_probability, p, 1e-6);
    }
    let last = lesson(&[top_p(0.8), temperature(0.5)], row, 0.0);
    assert_eq!(last.choice.kept, 2);
    for (token, p) in last.candidates.iter().zip([0.665_241, 0.244_728, 0.090_031]) {
        close(token.model_probability, p, 1e-6);
    }
}

// ---- O02

fn changed(rule: Rule, logits: &[f32], prompt: &[u32], generated: &[u32]) -> Vec<(u32, f64)> {
    let history = History::new(prompt, generated);
    let chain = rules(&[rule]);
    let told = explain(&chain, Row::Logits(logits), &history, Draw::Fixed(0.0), 0).unwrap();
    told.rules[0].changed.iter().map(|change| (change.id, change.to)).collect()
}

#[test]
fn o02_repetition_divides_positive_and_multiplies_negative_logits_once() {
    let logits = [2.0, -1.0, 0.5];
    let rule = |penalty| Rule::Repetition { penalty, window: Window::All };
    assert_eq!(changed(rule(2.0), &logits, &[0, 0, 1], &[0]), [(0, 1.0), (1, -2.0)]);
    assert_eq!(changed(rule(1.0), &logits, &[0, 0, 1], &[0]), []);
    for penalty in [0.0, -1.0, f64::NAN] {
        assert!(Rules::new(vec![rule(penalty)]).is_err(), "{penalty}");
    }
}

#[test]
fn presence_counts_once_and_frequency_every_time_within_the_window() {
    let logits = [2.0, -1.0, 0.5];
    let presence = |window| Rule::Presence { penalty: 0.5, window };
    let frequency = |window| Rule::Frequency { penalty: 0.5, window };
    let (prompt, generated) = ([0, 0], [1, 0]);
    let all = |rule| changed(rule, &logits, &prompt, &generated);
    assert_eq!(all(presence(Window::All)), [(0, 1.5), (1, -1.5)]);
    assert_eq!(all(frequency(Window::All)), [(0, 0.5), (1, -1.5)]);
    assert_eq!(all(frequency(Window::Generated)), [(0, 1.5), (1, -1.5)]);
    assert_eq!(all(frequency(Window::Last(1))), [(0, 1.5)]);
    assert_eq!(all(frequency(Window::Last(3))), [(0, 1.0), (1, -1.5)]);
}

// ---- O03

#[test]
fn o03_one_bad_logit_is_an_error_that_names_step_and_token() {
    let row = [1.0_f32, 3.0, 2.0, 0.0];
    for bad in [f32::NAN, f32::INFINITY, -f32::NAN] {
        for place in 0..row.len() {
            for width in [row.len(), 5000] {
                let mut logits = row.to_vec();
                logits.resize(width, -1.0);
                let place = if place == 3 { width - 1 } else { place };
                logits[place] = bad;
                for t in [0.0, 1.0] {
                    let error = chosen(&[temperature(t)], &logits, &History::default());
                    let Err(DecodeError::NotFinite { step: 5, id, vocabulary, found, .. }) = error
                    else {
                        panic!("{bad} at {place}: {error:?}");
                    };
                    assert_eq!((id as usize, vocabulary), (place, width));
                    assert_eq!(found.is_nan(), bad.is_nan());
                }
            }
        }
    }
}

#[test]
fn o03_all_impossible_is_an_error_and_all_equal_is_uniform() {
    for t in [0.0, 1.0] {
        let error = chosen(&[temperature(t)], &[f32::NEG_INFINITY; 3], &History::default());
        assert_eq!(error, Err(DecodeError::AllImpossible { step: 5, vocabulary: 3 }));
    }
    for level in [1000.0_f32, -1000.0] {
        for id in 0..5 {
            let u = (f64::from(id) + 0.5) / 5.0;
            let told = lesson(&[], Row::Logits(&[level; 5]), u);
            assert_eq!(told.choice.id, id);
            close(told.choice.logprob, 0.2_f64.ln(), 1e-12);
        }
    }
}

#[test]
fn an_empty_row_is_an_error() {
    let error = chosen(&[], &[], &History::default());
    assert_eq!(error, Err(DecodeError::Empty { step: 5 }));
}

#[test]
fn bad_probabilities_are_errors() {
    for bad in [-0.1, f64::NAN, f64::INFINITY] {
        let history = History::default();
        let row = Row::Probabilities(&[0.5, bad]);
        let error = explain(&Rules::default(), row, &history, Draw::Fixed(0.0), 2).unwrap_err();
        assert!(matches!(error, DecodeError::NotFinite { step: 2, id: 1, .. }), "{error}");
    }
}

// ---- bans, bias, mask

#[test]
fn bans_allows_bias_and_mask() {
    let logits = [3.0_f32, 2.0, 1.0];
    let greedy = temperature(0.0);
    let none = History::default();
    let ban = |ids: &[u32]| Rule::Ban { ids: ids.to_vec() };
    let allow = |ids: &[u32]| Rule::Allow { ids: ids.to_vec() };
    let bias = |id, add| Rule::Bias { entries: vec![Bias { id, add }] };
    assert_eq!(chosen(&[ban(&[0]), greedy.clone()], &logits, &none), Ok(1));
    assert_eq!(chosen(&[allow(&[2]), greedy.clone()], &logits, &none), Ok(2));
    assert_eq!(chosen(&[bias(2, 5.0), greedy.clone()], &logits, &none), Ok(2));
    assert_eq!(chosen(&[bias(0, f64::NEG_INFINITY), greedy.clone()], &logits, &none), Ok(1));
    // A bias does not bring a banned token back.
    assert_eq!(chosen(&[ban(&[0]), bias(0, 50.0), greedy.clone()], &logits, &none), Ok(1));
    let masked = none.with_mask(Mask::new(&[0b100]));
    assert_eq!(chosen(std::slice::from_ref(&greedy), &logits, &masked), Ok(2));
    assert_eq!(
        chosen(&[ban(&[2])], &logits, &masked),
        Err(DecodeError::AllForbidden { step: 5, vocabulary: 3 })
    );
    let short = none.with_mask(Mask::new(&[]));
    assert!(matches!(chosen(&[], &logits, &short), Err(DecodeError::MaskTooShort { .. })));
}

#[test]
fn unknown_tokens_are_errors_and_leave_the_scratch_clean() {
    let logits = [3.0_f32, 2.0, 1.0];
    let chain = rules(&[Rule::Repetition { penalty: 2.0, window: Window::All }]);
    let mut scratch = Scratch::new();
    let rng = Counter::default();
    let error = decide(&chain, &logits, &History::new(&[0, 3], &[]), rng, 1, &mut scratch);
    let place = "history";
    assert_eq!(error, Err(DecodeError::UnknownToken { step: 1, place, id: 3, vocabulary: 3 }));
    let after = decide(&chain, &logits, &History::default(), rng, 1, &mut scratch);
    let fresh = decide(&chain, &logits, &History::default(), rng, 1, &mut Scratch::new());
    assert_eq!(after, fresh);
    let ban = Rule::Ban { ids: vec![9] };
    assert!(matches!(
        chosen(&[ban], &logits, &History::default()),
        Err(DecodeError::UnknownToken { place: "ban", id: 9, .. })
    ));
}

#[test]
fn an_edit_that_overflows_is_an_error() {
    let tiny = Rule::Repetition { penalty: 1e-300, window: Window::All };
    let error = chosen(&[tiny], &[3.0, 1.0], &History::new(&[0], &[]));
    assert!(matches!(error, Err(DecodeError::NotFinite { what: "edited logit", .. })), "{error:?}");
}

#[test]
fn a_fixed_draw_outside_the_unit_interval_is_an_error() {
    for u in [1.0, -0.1, f64::NAN] {
        let row = Row::Logits(&[1.0]);
        let error = explain(&Rules::default(), row, &History::default(), Draw::Fixed(u), 4);
        assert!(matches!(error, Err(DecodeError::Draw { step: 4, .. })));
    }
}

// ---- what an explanation tells

#[test]
fn an_explanation_names_the_rule_that_dropped_each_token() {
    let row = [0.4, 0.3, 0.15, 0.1, 0.05];
    let chain = [Rule::Ban { ids: vec![1] }, temperature(0.5), top_k(3), top_p(0.9)];
    let told = lesson(&chain, Row::Probabilities(&row), 0.5);
    let dropped: Vec<_> = told.rules.iter().map(|effect| effect.dropped.clone()).collect();
    // Squares of 0.4, 0.15, 0.1: 0.16, 0.0225, 0.01: the first has 83 %, two have 95 %.
    assert_eq!(dropped, [vec![1], vec![], vec![4], vec![3]]);
    let by: Vec<_> = told.candidates.iter().map(|token| (token.id, token.dropped_by)).collect();
    assert_eq!(by, [(0, None), (2, None), (3, Some(3)), (4, Some(2)), (1, Some(0))]);
    assert_eq!(told.rules.iter().map(|effect| effect.kept).collect::<Vec<_>>(), [4, 4, 3, 2]);
    close(told.candidates[4].model_probability, 0.3, 1e-15);
    close(told.candidates[0].tempered_probability, 0.16 / 0.195, 1e-12);
    assert_eq!(told.candidates[1].interval.map(|i| i[1]), Some(1.0));
}

/// The best tokens are those of the explanation, place by place, as if each had been chosen.
#[test]
fn the_best_are_the_kept_in_order() {
    let noise = Counter { seed: 21, stream: 0 };
    let logits: Vec<f32> = (0..500).map(|i| noise.uniform(i) as f32 * 7.0).collect();
    let history = History::new(&[1, 2, 3], &[]);
    let chains = [
        vec![],
        vec![Rule::Ban { ids: vec![3, 9] }],
        vec![Rule::Repetition { penalty: 1.2, window: Window::All }, temperature(0.7), top_k(6)],
    ];
    for chain in chains {
        let rules = rules(&chain);
        let told = explain(&rules, Row::Logits(&logits), &history, Draw::Fixed(0.0), 4).unwrap();
        let found = best(&rules, &logits, &history, 4, 10, &mut Scratch::new()).unwrap();
        assert_eq!(found.len(), 10.min(told.choice.kept));
        for (choice, token) in found.iter().zip(told.kept()) {
            assert_eq!(choice.id, token.id);
            close(choice.sample_logprob.exp(), token.probability, 1e-12);
            close(choice.logprob.exp(), token.model_probability, 1e-12);
            assert_eq!((choice.kept, choice.draw), (told.choice.kept, None));
        }
        assert_eq!(found[0].rank, told.choice.rank);
    }
    let error = best(&rules(&[]), &[f32::NAN], &history, 4, 2, &mut Scratch::new()).unwrap_err();
    assert_eq!(error.step(), 4);
}
