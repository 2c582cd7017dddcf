//! Random rows and chains against a slow, plainly written reference in f64; statistics of the
//! draw; replay. The reference sorts the whole vocabulary and keeps lists, and shares no code.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use decoding::{
    Boundary, Choice, Counter, Draw, History, Measure, Row, Rule, Rules, Scratch, Ties, Window,
    decide, explain,
};
use proptest::prelude::*;

/// What the reference keeps: (id, weight) best first, and the choice.
struct Plain {
    kept: Vec<(u32, f64)>,
    id: u32,
}

fn plain(chain: &[Rule], logits: &[f32], seen: &[u32], u: f64) -> Plain {
    let mut z: Vec<f64> = logits.iter().map(|&z| f64::from(z)).collect();
    for rule in chain {
        plain_edit(rule, &mut z, seen);
    }
    let mut order: Vec<u32> = (0..).take(z.len()).filter(|&i| z[i as usize].is_finite()).collect();
    order.sort_by(|&a, &b| z[b as usize].total_cmp(&z[a as usize]).then(a.cmp(&b)));
    let whole = order.clone();
    let mut t = 1.0;
    let weight = |id: u32, t: f64| ((z[id as usize] - z[whole[0] as usize]) / t).exp();
    for rule in chain {
        match *rule {
            Rule::Temperature { t: 0.0 } => order.truncate(1),
            Rule::Temperature { t: factor } => t *= factor,
            Rule::TopK { k, ties } if k > 0 => {
                let all = order.clone();
                order.truncate(k);
                let last = z[order[order.len() - 1] as usize];
                let more = all[order.len()..].iter().take_while(|&&i| z[i as usize] == last);
                order.extend(more.filter(|_| ties == Ties::All));
            }
            Rule::TopP { p, boundary, of } if p < 1.0 => {
                let base = if of == Measure::Whole { &whole } else { &order };
                let total: f64 = base.iter().map(|&i| weight(i, t)).sum();
                let mut before = 0.0;
                let keep = order.iter().take_while(|&&i| {
                    let share = before / total;
                    let first = before == 0.0;
                    before += weight(i, t);
                    first || if boundary == Boundary::Beyond { share <= p } else { share < p }
                });
                order = keep.copied().collect();
            }
            Rule::MinP { p } => order.retain(|&i| weight(i, t) >= p),
            _ => {}
        }
    }
    let kept: Vec<_> = order.iter().map(|&i| (i, weight(i, t))).collect();
    let total: f64 = kept.iter().map(|k| k.1).sum();
    let mut cumulated = 0.0;
    let drawn = kept.iter().find(|k| {
        cumulated += k.1;
        cumulated / total > u
    });
    let id = drawn.or(kept.iter().rev().find(|k| k.1 > 0.0)).unwrap().0;
    Plain { kept, id }
}

fn plain_edit(rule: &Rule, z: &mut [f64], seen: &[u32]) {
    let counted = |id: u32| seen.iter().filter(|&&other| other == id).count() as f64;
    for id in (0..).take(z.len()) {
        let x = &mut z[id as usize];
        let count = counted(id);
        match rule {
            Rule::Ban { ids } if ids.contains(&id) => *x = f64::NEG_INFINITY,
            Rule::Bias { entries } => {
                entries.iter().filter(|b| b.id == id).for_each(|b| *x += b.add);
            }
            Rule::Repetition { penalty, .. } if count > 0.0 => {
                *x = if *x > 0.0 { *x / penalty } else { *x * penalty };
            }
            Rule::Presence { penalty, .. } if count > 0.0 => *x -= penalty,
            Rule::Frequency { penalty, .. } => *x -= penalty * count,
            _ => {}
        }
        *x = f64::from(*x as f32);
    }
}

fn shaper() -> impl Strategy<Value = Rule> {
    let ties = prop_oneof![Just(Ties::Exact), Just(Ties::All)];
    let boundary = prop_oneof![Just(Boundary::Reach), Just(Boundary::Beyond)];
    let of = prop_oneof![Just(Measure::Kept), Just(Measure::Whole)];
    prop_oneof![
        (0.1..4.0).prop_map(|t| Rule::Temperature { t }),
        (0_usize..60, ties).prop_map(|(k, ties)| Rule::TopK { k, ties }),
        (0.01..1.0, boundary, of).prop_map(|(p, boundary, of)| Rule::TopP { p, boundary, of }),
        (0.0..1.0).prop_map(|p| Rule::MinP { p }),
    ]
}

fn editor() -> impl Strategy<Value = Rule> {
    let window = Window::All;
    prop_oneof![
        prop::collection::vec(0_u32..5, 1..3).prop_map(|ids| Rule::Ban { ids }),
        (0_u32..5, -3.0..3.0)
            .prop_map(|(id, add)| Rule::Bias { entries: vec![decoding::Bias { id, add }] }),
        (0.5..2.0).prop_map(move |penalty| Rule::Repetition { penalty, window }),
        (-2.0..2.0).prop_map(move |penalty| Rule::Presence { penalty, window }),
        (-2.0..2.0).prop_map(move |penalty| Rule::Frequency { penalty, window }),
    ]
}

fn chains() -> impl Strategy<Value = Vec<Rule>> {
    (prop::collection::vec(editor(), 0..3), prop::collection::vec(shaper(), 0..5))
        .prop_map(|(edits, shapers)| [edits, shapers].concat())
}

/// Small rows with many ties, rows wider than a lane chunk, rows beyond the exact sums.
fn rows() -> impl Strategy<Value = Vec<f32>> {
    let tied = prop::collection::vec((-8_i8..8).prop_map(|z| f32::from(z) / 2.0), 6..80);
    let spread = |width| prop::collection::vec(-12.0_f32..12.0, width);
    let holes = spread(6..200).prop_map(|mut row| {
        row.iter_mut().skip(5).step_by(3).for_each(|z| *z = f32::NEG_INFINITY);
        row
    });
    prop_oneof![4 => tied, 3 => spread(6..300), 2 => holes, 1 => spread(2000..6000)]
}

/// Whether some boundary lies so near a mass that two ways of summing may differ.
fn is_close_call(kept: &[(u32, f64)], u: f64) -> bool {
    let total: f64 = kept.iter().map(|k| k.1).sum();
    let mut cumulated = 0.0;
    kept.iter().any(|k| {
        cumulated += k.1;
        (cumulated / total - u).abs() < 1e-12
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn agrees_with_the_plain_reference(
        chain in chains(),
        logits in rows(),
        seen in prop::collection::vec(0_u32..6, 0..8),
        u in 0.0..1.0_f64,
    ) {
        let rules = Rules::new(chain.clone()).unwrap();
        let history = History::new(&seen, &[]);
        let told = explain(&rules, Row::Logits(&logits), &history, Draw::Fixed(u), 0).unwrap();
        let plain = plain(&chain, &logits, &seen, u);
        let found: Vec<_> = told.kept().map(|token| token.id).collect();
        let expected: Vec<_> = plain.kept.iter().map(|k| k.0).collect();
        prop_assert_eq!(found, expected);
        if !is_close_call(&plain.kept, u) {
            prop_assert_eq!(told.choice.id, plain.id);
        }
        let total: f64 = plain.kept.iter().map(|k| k.1).sum();
        for (token, (_, weight)) in told.kept().zip(&plain.kept) {
            prop_assert!((token.probability - weight / total).abs() < 1e-5);
        }
    }

    #[test]
    fn deciding_and_explaining_are_one(
        chain in chains(),
        logits in rows(),
        seed in any::<u64>(),
        step in 0_u64..1000,
    ) {
        let rules = Rules::new(chain).unwrap();
        let (rng, history) = (Counter { seed, stream: 1 }, History::new(&[0, 1, 1], &[2]));
        let decided = decide(&rules, &logits, &history, rng, step, &mut Scratch::new()).unwrap();
        let told = explain(&rules, Row::Logits(&logits), &history, Draw::Counter(rng), step);
        prop_assert_eq!(decided, told.unwrap().choice);
    }

    #[test]
    fn the_nucleus_is_minimal_and_reaches_p(logits in rows(), p in 0.001..1.0_f64) {
        let (boundary, of) = (Boundary::Reach, Measure::Kept);
        let rules = Rules::new(vec![Rule::TopP { p, boundary, of }]).unwrap();
        let row = Row::Logits(&logits);
        let told = explain(&rules, row, &History::default(), Draw::Fixed(0.0), 0).unwrap();
        let exact: f64 = logits.iter().map(|&z| f64::from(z).exp()).sum();
        let masses: Vec<f64> = told.kept().map(|token| token.logit.exp() / exact).collect();
        let mass: f64 = masses.iter().sum();
        prop_assert!(mass >= p - 1e-12, "mass {mass} of p {p}");
        let without_last = mass - masses[masses.len() - 1];
        prop_assert!(masses.len() == 1 || without_last < p + 1e-12, "{without_last} of {p}");
    }

    #[test]
    fn the_order_of_the_vocabulary_does_not_matter(
        pairs in prop::collection::btree_map(-400_i32..400, any::<u32>(), 6..60),
        chain in prop::collection::vec(shaper(), 0..4),
        u in 0.0..1.0_f64,
    ) {
        // Distinct logits, so that no tie is decided by id.
        let mut entries: Vec<_> = pairs.into_iter().map(|(z, key)| (z as f32 / 20.0, key)).collect();
        let rules = Rules::new(chain).unwrap();
        let choose = |entries: &[(f32, u32)]| {
            let logits: Vec<_> = entries.iter().map(|e| e.0).collect();
            let row = Row::Logits(&logits);
            let told = explain(&rules, row, &History::default(), Draw::Fixed(u), 0).unwrap();
            let kept: Vec<_> = told.kept().map(|token| token.logit).collect();
            (logits[told.choice.id as usize], kept)
        };
        let ascending = choose(&entries);
        entries.sort_by_key(|e| e.1);
        prop_assert_eq!(choose(&entries), ascending);
    }

    #[test]
    fn no_logits_and_no_settings_panic_or_leave_the_vocabulary(
        bits in prop::collection::vec(any::<u32>(), 0..200),
        settings in any_settings(),
        step in any::<u64>(),
    ) {
        let logits: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        if let Ok(rules) = Rules::from_settings(&settings) {
            let history = History::new(&[0, 3], &[1]);
            let rng = Counter { seed: step, stream: 0 };
            match decide(&rules, &logits, &history, rng, step, &mut Scratch::new()) {
                Ok(choice) => {
                    prop_assert!((choice.id as usize) < logits.len());
                    prop_assert!(logits[choice.id as usize].is_finite());
                    prop_assert!(choice.logprob <= 1e-9 && choice.kept >= 1);
                }
                Err(error) => prop_assert_eq!(error.step(), step),
            }
        }
    }
}

fn any_settings() -> impl Strategy<Value = decoding::Settings> {
    let preset = prop::sample::select(decoding::Preset::ALL.to_vec());
    let number = prop::option::of(prop_oneof![0.0..2.0_f64, any::<f64>()]);
    (preset, [number.clone(), number.clone(), number.clone(), number.clone(), number], -3_i64..20)
        .prop_map(|(preset, [temperature, top_p, min_p, repetition, presence], top_k)| {
            decoding::Settings {
                preset,
                temperature,
                top_p,
                min_p,
                top_k: Some(top_k),
                repetition_penalty: repetition,
                presence_penalty: presence,
                ..decoding::Settings::default()
            }
        })
}

/// Chi-square of 100,000 draws at a fixed seed against the probabilities, 9 degrees of freedom:
/// 27.88 is exceeded once in a thousand seeds.
#[test]
fn draws_have_the_right_frequencies() {
    const DRAWS: u64 = 100_000;
    let logits: Vec<f32> = (0..10_u8).map(|i| f32::from(i) * 0.4).collect();
    let mass: f64 = logits.iter().map(|&z| f64::from(z).exp()).sum();
    let mut scratch = Scratch::new();
    for seed in [1, 2, 3] {
        let mut counts = [0_u32; 10];
        for step in 0..DRAWS {
            let rng = Counter { seed, stream: 0 };
            let (rules, history) = (Rules::default(), History::default());
            let choice = decide(&rules, &logits, &history, rng, step, &mut scratch).unwrap();
            counts[choice.id as usize] += 1;
        }
        let chi_square: f64 = logits
            .iter()
            .zip(counts)
            .map(|(&z, count)| {
                let expected = DRAWS as f64 * f64::from(z).exp() / mass;
                (f64::from(count) - expected).powi(2) / expected
            })
            .sum();
        assert!(chi_square < 27.88, "seed {seed}: chi-square {chi_square}, counts {counts:?}");
        assert!(chi_square > 1.0, "seed {seed}: suspiciously even, chi-square {chi_square}");
    }
}

fn run(steps: impl Iterator<Item = u64>, scratch: &mut Scratch) -> Vec<Choice> {
    let rules = Rules::new(vec![
        Rule::Temperature { t: 1.3 },
        Rule::TopK { k: 50, ties: Ties::Exact },
        Rule::TopP { p: 0.95, boundary: Boundary::Reach, of: Measure::Kept },
    ]);
    let noise = Counter { seed: 99, stream: 7 };
    steps
        .map(|step| {
            let logits: Vec<f32> =
                (0..3000).map(|i| noise.uniform(step * 3000 + i) as f32 * 9.0).collect();
            let rng = Counter { seed: 5, stream: 2 };
            decide(rules.as_ref().unwrap(), &logits, &History::default(), rng, step, scratch)
                .unwrap()
        })
        .collect()
}

#[test]
fn a_sequence_replays_from_any_step_and_with_any_scratch() {
    let mut scratch = Scratch::new();
    let whole = run(0..40, &mut scratch);
    assert_eq!(run(17..40, &mut Scratch::new()), whole[17..]);
    let mut backwards = run((0..40).rev(), &mut scratch);
    backwards.reverse();
    assert_eq!(backwards, whole);
}

/// A wide row's total mass comes from a fast, approximate pass. Where a boundary lies nearer than
/// that pass can tell, the exact sum must decide: one part in 10^9 to either side.
#[test]
fn boundaries_nearer_than_the_fast_sum_are_decided_exactly() {
    let mut scratch = Scratch::new();
    let mut check = |chain: Vec<Rule>, logits: &[f32], u: f64| {
        let rules = Rules::new(chain).unwrap();
        let row = Row::Logits(logits);
        let told = explain(&rules, row, &History::default(), Draw::Fixed(u), 0).unwrap();
        let rng = Counter { seed: 1, stream: 0 };
        let decided = decide(&rules, logits, &History::default(), rng, 0, &mut scratch).unwrap();
        assert_eq!(decided.kept, told.choice.kept);
        told
    };
    for seed in 0..20 {
        let noise = Counter { seed, stream: 5 };
        let logits: Vec<f32> = (0..6000).map(|i| noise.uniform(i) as f32 * 9.0).collect();
        let mut weights: Vec<f64> = logits.iter().map(|&z| f64::from(z).exp()).collect();
        weights.sort_by(|a, b| b.total_cmp(a));
        let total: f64 = weights.iter().sum();
        for count in [3, 20, 60] {
            let share = weights[..count].iter().sum::<f64>() / total;
            for (factor, expected) in [(1.0 - 1e-9, count), (1.0 + 1e-9, count + 1)] {
                let (boundary, of) = (Boundary::Reach, Measure::Kept);
                let nucleus = vec![Rule::TopP { p: share * factor, boundary, of }];
                let told = check(nucleus, &logits, 0.0);
                assert_eq!(told.choice.kept, expected, "seed {seed}, {count} tokens");
                let told = check(vec![], &logits, share * factor);
                assert_eq!(told.choice.rank as usize, expected, "seed {seed}, {count} tokens");
            }
        }
    }
}
