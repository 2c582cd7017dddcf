//! Each preset against what its system does: the order of rules, then every edge value.
//! One test a row of the table, one line a cell.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use Preset::{Autoreg, Hf, Llamacpp, Sglang, Vllm};
use decoding::{
    Boundary, Draw, History, Measure, Method, Note, Preset, Row, Rule, Rules, RulesError, Settings,
    Ties, Window, explain,
};

/// Settings that turn every rule of a preset off.
fn neutral(preset: Preset) -> Settings {
    Settings {
        preset,
        temperature: Some(1.0),
        top_k: Some(if preset == Sglang { -1 } else { 0 }),
        top_p: Some(1.0),
        min_p: Some(0.0),
        ..Settings::default()
    }
}

fn chain(settings: &Settings) -> Vec<Rule> {
    Rules::from_settings(settings).unwrap().chain().to_vec()
}

fn names(settings: &Settings) -> Vec<&'static str> {
    chain(settings).iter().map(Rule::name).collect()
}

fn rejected(settings: &Settings) -> bool {
    matches!(Rules::from_settings(settings), Err(RulesError::Rejected { .. }))
}

fn kept(settings: &Settings, probabilities: &[f64]) -> Vec<u32> {
    let rules = Rules::from_settings(settings).unwrap();
    let row = Row::Probabilities(probabilities);
    let told = explain(&rules, row, &History::default(), Draw::Fixed(0.0), 0).unwrap();
    told.kept().map(|token| token.id).collect()
}

fn with(preset: Preset, change: impl FnOnce(&mut Settings)) -> Settings {
    let mut settings = neutral(preset);
    change(&mut settings);
    settings
}

#[test]
fn neutral_settings_give_the_empty_chain() {
    for preset in Preset::ALL {
        assert_eq!(chain(&neutral(preset)), [], "{preset}");
    }
}

#[test]
fn order_of_rules() {
    let all = |preset| {
        with(preset, |s| {
            (s.temperature, s.top_k, s.top_p, s.min_p) = (Some(0.5), Some(9), Some(0.9), Some(0.1));
            s.repetition_penalty = Some(1.5);
            s.logit_bias = BTreeMap::from([(1, 1.0)]);
            (s.banned, s.allowed) = (vec![2], vec![1, 2, 3]);
            if preset != Hf {
                (s.presence_penalty, s.frequency_penalty) = (Some(0.5), Some(0.25));
            }
        })
    };
    let edits = ["allow", "ban", "bias", "repetition", "frequency", "presence"];
    let behind = |tail: &[&'static str]| [&edits[..], tail].concat();
    assert_eq!(names(&all(Autoreg)), behind(&["temperature", "top_k", "top_p", "min_p"]));
    assert_eq!(names(&all(Vllm)), behind(&["temperature", "min_p", "top_k", "top_p"]));
    assert_eq!(names(&all(Llamacpp)), behind(&["top_k", "top_p", "min_p", "temperature"]));
    let hf = ["bias", "repetition", "ban", "allow", "temperature", "top_k", "top_p", "min_p"];
    assert_eq!(names(&all(Hf)), hf);
    let edits = ["bias", "frequency", "presence", "repetition", "ban", "allow"];
    assert_eq!(
        names(&all(Sglang)),
        [&edits[..], &["temperature", "top_k", "top_p", "min_p"]].concat()
    );
}

#[test]
fn temperature_before_or_after_top_p_changes_the_nucleus() {
    // T = 2 flattens: before top-p the nucleus grows, after it (llama.cpp) it stays.
    let row = [0.80, 0.16, 0.03, 0.01];
    let count = |preset| {
        kept(&with(preset, |s| (s.temperature, s.top_p) = (Some(2.0), Some(0.9))), &row).len()
    };
    assert_eq!(count(Llamacpp), 2);
    for preset in [Autoreg, Hf, Vllm, Sglang] {
        assert_eq!(count(preset), 3, "{preset}");
    }
}

#[test]
fn nucleus_after_top_k_is_measured_on_the_kept_or_on_the_whole_mass() {
    let row = [0.4, 0.3, 0.2, 0.1];
    let count = |preset| kept(&with(preset, |s| (s.top_k, s.top_p) = (Some(2), Some(0.5))), &row);
    for preset in [Autoreg, Hf, Vllm, Llamacpp] {
        assert_eq!(count(preset), [0], "{preset}");
    }
    assert_eq!(count(Sglang), [0, 1]);
}

#[test]
fn defaults_when_the_client_sends_nothing() {
    let summary = |preset| {
        Rules::preset(preset).chain().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(summary(Llamacpp), "top_k 40, top_p 0.95, min_p 0.05, temperature 0.8");
    assert_eq!(summary(Hf), "top_k 50 (ties kept)");
    for preset in [Autoreg, Vllm, Sglang] {
        assert_eq!(summary(preset), "", "{preset}");
        assert!(Rules::from_settings(&Settings { preset, ..Settings::default() }).is_ok());
    }
}

#[test]
fn row_temperature_zero() {
    let zero = |preset| {
        with(preset, |s| {
            (s.temperature, s.top_k, s.top_p, s.min_p) = (Some(0.0), Some(9), Some(0.9), Some(0.1));
        })
    };
    // llama.cpp: argmax of what the filters left, at temperature's place, the last.
    assert_eq!(names(&zero(Llamacpp)), ["top_k", "top_p", "min_p", "temperature"]);
    // vLLM: greedy, and k, p, min_p are reset.
    assert_eq!(chain(&zero(Vllm)), [Rule::Temperature { t: 0.0 }]);
    // SGLang: temperature 1 with k = 1.
    assert_eq!(chain(&zero(Sglang))[0], Rule::TopK { k: 1, ties: Ties::Exact });
    assert_eq!(names(&zero(Sglang)), ["top_k", "top_p", "min_p"]);
    // transformers: an error while sampling.
    assert!(rejected(&zero(Hf)));
    // All others choose the best token.
    for preset in [Autoreg, Llamacpp, Vllm, Sglang] {
        assert_eq!(kept(&zero(preset), &[0.2, 0.5, 0.3]), [1], "{preset}");
    }
}

#[test]
fn row_temperature_just_above_zero() {
    let tiny = |preset| with(preset, |s| s.temperature = Some(0.005));
    let used = [Rule::Temperature { t: 0.005 }];
    for preset in [Llamacpp, Sglang, Hf, Autoreg] {
        assert_eq!(chain(&tiny(preset)), used, "{preset}");
    }
    let raised = Rules::from_settings(&tiny(Vllm)).unwrap();
    assert_eq!(raised.chain(), [Rule::Temperature { t: 0.01 }]);
    assert_eq!(raised.notes(), [Note::TemperatureRaised { from: 0.005, to: 0.01 }]);
    // SGLang uses it from 1e-6 on; below that it is its zero.
    let sglang = |t| chain(&with(Sglang, |s| s.temperature = Some(t)));
    assert_eq!(sglang(1e-6), [Rule::Temperature { t: 1e-6 }]);
    assert_eq!(sglang(9e-7), [Rule::TopK { k: 1, ties: Ties::Exact }]);
}

#[test]
fn row_temperature_above_two() {
    let hot = |preset| with(preset, |s| s.temperature = Some(2.5));
    for preset in [Llamacpp, Sglang, Hf, Autoreg] {
        assert_eq!(chain(&hot(preset)), [Rule::Temperature { t: 2.5 }], "{preset}");
    }
    assert!(rejected(&hot(Vllm)));
    assert_eq!(names(&with(Vllm, |s| s.temperature = Some(2.0))), ["temperature"]);
}

#[test]
fn row_temperature_nan_or_infinite_is_an_error_everywhere() {
    for preset in Preset::ALL {
        for t in [f64::NAN, f64::INFINITY, -0.5] {
            let settings = with(preset, |s| s.temperature = Some(t));
            assert!(Rules::from_settings(&settings).is_err(), "{preset} {t}");
        }
    }
}

#[test]
fn row_top_p_zero() {
    let zero = |preset| with(preset, |s| s.top_p = Some(0.0));
    for preset in [Llamacpp, Hf] {
        assert_eq!(kept(&zero(preset), &[0.25, 0.5, 0.25]), [1], "{preset}");
    }
    for preset in [Vllm, Sglang, Autoreg] {
        assert!(rejected(&zero(preset)), "{preset}");
    }
}

#[test]
fn row_top_p_one_is_off() {
    for preset in Preset::ALL {
        assert_eq!(chain(&with(preset, |s| s.top_p = Some(1.0))), [], "{preset}");
        let above = with(preset, |s| s.top_p = Some(1.5));
        assert!(Rules::from_settings(&above).is_err(), "{preset}");
    }
}

#[test]
fn row_top_k_zero() {
    for preset in [Llamacpp, Vllm, Hf, Autoreg] {
        assert_eq!(chain(&with(preset, |s| s.top_k = Some(0))), [], "{preset}");
    }
    assert!(rejected(&with(Sglang, |s| s.top_k = Some(0))));
}

#[test]
fn row_top_k_minus_one() {
    for preset in [Llamacpp, Vllm, Sglang] {
        assert_eq!(chain(&with(preset, |s| s.top_k = Some(-1))), [], "{preset}");
    }
    for preset in [Hf, Autoreg] {
        assert!(rejected(&with(preset, |s| s.top_k = Some(-1))), "{preset}");
    }
}

#[test]
fn row_min_p_one_keeps_the_maxima() {
    for preset in Preset::ALL {
        let settings = with(preset, |s| s.min_p = Some(1.0));
        assert_eq!(kept(&settings, &[0.375, 0.25, 0.375]), [0, 2], "{preset}");
    }
}

#[test]
fn row_nucleus_boundary() {
    // Exact in binary: two tokens have a mass of just p.
    let count =
        |preset| kept(&with(preset, |s| s.top_p = Some(0.75)), &[0.5, 0.25, 0.125, 0.125]).len();
    for preset in [Llamacpp, Vllm, Hf, Autoreg] {
        assert_eq!(count(preset), 2, "{preset}");
    }
    // SGLang removes only where the mass before exceeds p, so equality keeps one more.
    assert_eq!(count(Sglang), 3);
    let boundary = |preset| match chain(&with(preset, |s| s.top_p = Some(0.5))).as_slice() {
        [Rule::TopP { boundary, of, .. }] => (*boundary, *of),
        other => panic!("{other:?}"),
    };
    assert_eq!(boundary(Llamacpp), (Boundary::Reach, Measure::Kept));
    assert_eq!(boundary(Vllm), (Boundary::Tail, Measure::Kept));
    assert_eq!(boundary(Hf), (Boundary::Tail, Measure::Kept));
    assert_eq!(boundary(Sglang), (Boundary::Beyond, Measure::Whole));
}

#[test]
fn row_ties_at_the_kth_score() {
    let count = |preset| kept(&with(preset, |s| s.top_k = Some(2)), &[0.4, 0.2, 0.2, 0.2]).len();
    for preset in [Llamacpp, Sglang, Autoreg] {
        assert_eq!(count(preset), 2, "{preset}");
    }
    for preset in [Vllm, Hf] {
        assert_eq!(count(preset), 4, "{preset}");
    }
}

#[test]
fn row_ties_at_the_min_p_threshold_are_kept() {
    for preset in Preset::ALL {
        let settings = with(preset, |s| s.min_p = Some(0.5));
        assert_eq!(kept(&settings, &[0.5, 0.25, 0.25]), [0, 1, 2], "{preset}");
    }
}

#[test]
fn row_greedy_tie_goes_to_the_lowest_id() {
    for preset in Preset::ALL {
        let settings = with(preset, |s| s.method = Method::Greedy);
        assert_eq!(chain(&settings), [Rule::Temperature { t: 0.0 }], "{preset}");
        assert_eq!(kept(&settings, &[0.2, 0.4, 0.4]), [1], "{preset}");
    }
}

#[test]
fn penalty_scopes() {
    let windows = |preset| {
        let settings = with(preset, |s| {
            s.repetition_penalty = Some(1.5);
            s.presence_penalty = (preset != Hf).then_some(0.5);
        });
        let window = |rule: &Rule| match rule {
            Rule::Repetition { window, .. } | Rule::Presence { window, .. } => Some(*window),
            _ => None,
        };
        let mut found: Vec<_> =
            chain(&settings).iter().filter_map(|rule| Some((rule.name(), window(rule)?))).collect();
        found.sort_by_key(|(name, _)| *name);
        found.into_iter().map(|(_, window)| window).collect::<Vec<_>>()
    };
    assert_eq!(windows(Vllm), [Window::Generated, Window::All]);
    assert_eq!(windows(Autoreg), [Window::Generated, Window::All]);
    assert_eq!(windows(Llamacpp), [Window::Last(64), Window::Last(64)]);
    assert_eq!(windows(Sglang), [Window::Generated, Window::Generated]);
    assert_eq!(windows(Hf), [Window::All]);
}

#[test]
fn what_a_system_lacks_or_limits() {
    for setting in ["presence_penalty", "frequency_penalty"] {
        let settings = with(Hf, |s| match setting {
            "presence_penalty" => s.presence_penalty = Some(0.5),
            _ => s.frequency_penalty = Some(0.5),
        });
        let error = RulesError::Unsupported { preset: Hf, setting };
        assert_eq!(Rules::from_settings(&settings), Err(error));
    }
    for preset in [Vllm, Sglang] {
        assert!(rejected(&with(preset, |s| s.presence_penalty = Some(2.5))), "{preset}");
        assert!(!rejected(&with(preset, |s| s.frequency_penalty = Some(-2.0))), "{preset}");
    }
    assert!(rejected(&with(Sglang, |s| s.repetition_penalty = Some(2.5))));
    let clamped = with(Vllm, |s| s.logit_bias = BTreeMap::from([(3, 250.0)]));
    let rules = Rules::from_settings(&clamped).unwrap();
    assert_eq!(rules.notes(), [Note::BiasClamped { id: 3, from: 250.0, to: 100.0 }]);
}

#[test]
fn bad_filters_are_refused_under_greedy_too() {
    for preset in Preset::ALL {
        let settings = with(preset, |s| (s.method, s.top_p) = (Method::Greedy, Some(1.5)));
        assert!(Rules::from_settings(&settings).is_err(), "{preset}");
        let settings = with(preset, |s| (s.method, s.min_p) = (Method::Greedy, Some(f64::NAN)));
        assert!(Rules::from_settings(&settings).is_err(), "{preset}");
    }
}

#[test]
fn settings_survive_json_and_unknown_fields_do_not_enter() {
    let text = r#"{"preset":"llamacpp","temperature":0.7,"logit_bias":{"5":-1.5}}"#;
    let settings: Settings = serde_json::from_str(text).unwrap();
    assert_eq!((settings.preset, settings.logit_bias[&5]), (Llamacpp, -1.5));
    assert!(serde_json::from_str::<Settings>(r#"{"temprature":1}"#).is_err());
    assert_eq!("sglang".parse(), Ok(Sglang));
    assert!("mistral".parse::<Preset>().unwrap_err().to_string().contains("llamacpp"));
}
