//! A step allocates nothing once the scratch has seen a row of its width.

use decoding::{
    Bias, Boundary, Counter, History, Measure, Rule, Rules, Scratch, Ties, Window, decide,
};

const VOCABULARY: u64 = 30_000;

#[test]
fn later_steps_allocate_nothing() {
    let rows: Vec<Vec<f32>> = (0..6)
        .map(|seed| {
            let noise = Counter { seed, stream: 0 };
            // The second row is flat, so that the draw goes deep into the order.
            let spread = if seed == 1 { 0.01 } else { 12.0 };
            (0..VOCABULARY).map(|i| (noise.uniform(i) * spread) as f32).collect()
        })
        .collect();
    let window = Window::All;
    let edits = vec![
        Rule::Ban { ids: vec![3] },
        Rule::Bias { entries: vec![Bias { id: 5, add: 1.0 }] },
        Rule::Repetition { penalty: 1.1, window },
        Rule::Frequency { penalty: 0.1, window },
    ];
    let shapers = vec![
        Rule::Temperature { t: 0.8 },
        Rule::TopK { k: 40, ties: Ties::All },
        Rule::TopP { p: 0.95, boundary: Boundary::Reach, of: Measure::Kept },
        Rule::MinP { p: 0.01 },
    ];
    for chain in [vec![], shapers.clone(), [edits, shapers].concat()] {
        let rules = Rules::new(chain).unwrap();
        let history = History::new(&[1, 2, 3, 1, 29_999], &[7, 7]);
        let mut scratch = Scratch::new();
        let mut step = 0;
        let mut decide_next = |row: &[f32]| {
            step += 1;
            decide(&rules, row, &history, Counter { seed: 4, stream: 0 }, step, &mut scratch)
        };
        let first = allocation_counter::measure(|| {
            decide_next(&rows[0]).unwrap();
        });
        assert!(first.count_total > 0, "the counter counts nothing");
        let later = allocation_counter::measure(|| {
            for row in rows.iter().cycle().take(50) {
                decide_next(row).unwrap();
            }
        });
        assert_eq!(later.count_total, 0, "{rules:?}");
    }
}
