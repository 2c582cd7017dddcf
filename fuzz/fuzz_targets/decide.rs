//! Arbitrary logits, settings and history: a choice within the vocabulary or a typed error that
//! names the step, the same from `decide` and from `explain`; never a panic.
//! `cargo +nightly fuzz run decide` in this folder's parent.
#![no_main]

use decoding::{
    Counter, Draw, History, Mask, Method, Preset, Row, Rules, Scratch, Settings, decide, explain,
};
use libfuzzer_sys::fuzz_target;

/// Takes numbers off the front of the input; zeros when it is used up.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let n = N.min(self.0.len());
        out[..n].copy_from_slice(&self.0[..n]);
        self.0 = &self.0[n..];
        out
    }

    fn byte(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    /// Nothing, a small round number, or any bits at all.
    fn number(&mut self) -> Option<f64> {
        match self.byte() {
            0..100 => None,
            kind @ 100..200 => Some(f64::from(kind - 100) / 50.0),
            _ => Some(f64::from_le_bytes(self.take())),
        }
    }

    fn ids(&mut self) -> Vec<u32> {
        (0..self.byte() % 6).map(|_| u32::from(self.byte() % 40)).collect()
    }
}

fuzz_target!(|data: &[u8]| {
    let mut bytes = Bytes(data);
    let settings = Settings {
        preset: Preset::ALL[usize::from(bytes.byte()) % Preset::ALL.len()],
        method: if bytes.byte() % 4 == 0 { Method::Greedy } else { Method::Sample },
        temperature: bytes.number(),
        top_k: bytes.number().map(|k| k as i64),
        top_p: bytes.number(),
        min_p: bytes.number(),
        repetition_penalty: bytes.number(),
        presence_penalty: bytes.number(),
        frequency_penalty: bytes.number(),
        penalty_window: bytes.number().map(|n| n as usize),
        logit_bias: bytes.ids().into_iter().zip([0.5, -3.0, 1e30, f64::NEG_INFINITY]).collect(),
        banned: bytes.ids(),
        allowed: bytes.ids(),
    };
    let Ok(rules) = Rules::from_settings(&settings) else { return };
    let (prompt, generated) = (bytes.ids(), bytes.ids());
    let words = [u32::from_le_bytes(bytes.take()), u32::MAX];
    let mut history = History::new(&prompt, &generated);
    if bytes.byte() % 3 == 0 {
        history = history.with_mask(Mask::new(&words));
    }
    let rng = Counter { seed: u64::from_le_bytes(bytes.take()), stream: 1 };
    // A few bytes make a wide row, so that the passes over chunks are reached.
    let repeats = if bytes.byte() % 8 == 0 { 400 } else { 1 };
    let pattern: Vec<f32> =
        bytes.0.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let logits = pattern.repeat(repeats);
    let decided = decide(&rules, &logits, &history, rng, 9, &mut Scratch::new());
    let told = explain(&rules, Row::Logits(&logits), &history, Draw::Counter(rng), 9);
    match decided {
        Ok(choice) => {
            assert!(logits[choice.id as usize].is_finite());
            assert!(choice.kept >= 1 && choice.kept <= logits.len());
            assert!(choice.logprob <= 1e-5 && choice.sample_logprob <= 1e-5, "{choice:?}");
            assert_eq!(told.map(|told| told.choice), Ok(choice));
        }
        Err(error) => assert_eq!(error.step(), 9),
    }
});
