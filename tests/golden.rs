//! Two real models against reference outputs of another implementation in f32.
//!
//! Reference outputs are in `tests/fixtures/golden`, with the script that made them. Models come from
//! `scripts/fetch-test-models` (`AUTOREG_MODELS`, default `models/`); without them the tests say so
//! and pass.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stderr, reason = "a test that was skipped says so")]

use engine::{NetworkSource, Room, Source};
use families::Checkpoint;
use kernels::Team;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A log-probability may differ by this much.
const TOLERANCE: f64 = 1e-3;

fn models() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::env::var_os("AUTOREG_MODELS").map_or_else(|| root.join("models"), PathBuf::from)
}

/// The reference's lines and the model, where both are there.
fn open(name: &str) -> Option<(Vec<Value>, Checkpoint)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/golden");
    let golden = folder.join(format!("{name}.jsonl"));
    let model = models().join(format!("{name}.gguf"));
    if !model.exists() {
        eprintln!("skipped: no {}", model.display());
        return None;
    }
    let text = std::fs::read_to_string(golden).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    Some((lines, Checkpoint::open(&model).unwrap()))
}

fn ids(row: &Value, key: &str) -> Vec<u32> {
    row[key].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

fn numbers(row: &Value, key: &str) -> Vec<f64> {
    row[key].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|&z| f64::from(z - max).exp()).sum();
    logits.iter().map(|&z| f64::from(z - max) - sum.ln()).collect()
}

fn tokens_of(checkpoint: &Checkpoint, text: &str) -> Vec<u32> {
    let mut ids: Vec<u32> = checkpoint.tokenizer.specials().bos.into_iter().collect();
    ids.extend(checkpoint.tokenizer.encode_with_controls(text));
    ids
}

fn check(name: &str) {
    let Some((rows, checkpoint)) = open(name) else { return };
    for row in &rows {
        let prompt = row["prompt"].as_str().unwrap();
        assert_eq!(tokens_of(&checkpoint, prompt), ids(row, "ids"), "{name}: ids of {prompt:?}");
        // The reference writes control tokens out; here they have no text.
        let mut right = row["greedy_text"].as_str().unwrap().to_owned();
        for (control, _) in checkpoint.tokenizer.controls() {
            right = right.replace(control, "");
        }
        let text = checkpoint.tokenizer.decode(&ids(row, "greedy_ids"));
        assert_eq!(text, right, "{name}: text after {prompt:?}");
    }
    let team = Arc::new(Team::new(Team::available()));
    let model = checkpoint.load(team.threads()).unwrap();
    let mut source = NetworkSource::new(&model, &team);
    let mut largest: f64 = 0.0;
    for (i, row) in rows.iter().enumerate() {
        largest = largest.max(check_row(name, row, &mut source, i < 4));
    }
    eprintln!("{name}: {} prompts, largest difference {largest:.2e} nats", rows.len());
}

/// The largest difference of a log-probability in one prompt and its greedy continuation.
fn check_row(name: &str, row: &Value, source: &mut NetworkSource<'_>, again: bool) -> f64 {
    let (prompt, greedy) = (ids(row, "ids"), ids(row, "greedy_ids"));
    let all = [&prompt[..], &greedy[..]].concat();
    let mut expected = numbers(row, "prompt_logprobs");
    expected.extend(numbers(row, "greedy_logprobs"));
    let (top, top_expected) = (ids(row, "top_ids"), numbers(row, "top_logprobs"));
    let mut largest: f64 = 0.0;
    let mut near = |found: f64, right: f64, what: &str| {
        assert!((found - right).abs() < TOLERANCE, "{name} {what}: {found} is not {right}");
        largest = largest.max((found - right).abs());
    };
    let mut last = Vec::new();
    source
        .pass(&all[..all.len() - 1], &mut |place, logits| {
            let logprobs = log_softmax(logits);
            let (next, what) = (all[place + 1], format!("{:?}, token {place}", row["prompt"]));
            near(logprobs[next as usize], expected[place], &what);
            if place + 1 >= prompt.len() {
                let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
                assert_eq!(best, Some(next as usize), "{name} {what}: greedy");
            }
            if place + 1 == prompt.len() {
                top.iter().zip(&top_expected).for_each(|(&id, &right)| {
                    near(logprobs[id as usize], right, &what);
                });
                last = logits.to_vec();
            }
            Ok(())
        })
        .unwrap();
    if !again {
        return largest;
    }
    // The prompt read for a generation gives the same bits.
    let mut logits = vec![0.0; source.vocab_size()];
    source.begin(&prompt, Room { sequences: 1, tokens: all.len() }, &mut logits).unwrap();
    assert!(logits.iter().zip(&last).all(|(a, b)| a.to_bits() == b.to_bits()), "{name}: prefill");
    largest
}

#[test]
fn smollm2_agrees_with_the_reference() {
    check("smollm2-135m-q4_1");
}

#[test]
fn gemma3_agrees_with_the_reference() {
    check("gemma3-270m-q4_k_m");
}

/// With matrices as the file has them and activations rounded to 8 bits a block: differences of
/// prompt log-probabilities (mean and, where the reference is above -8, largest), greedy tokens up
/// to the first that the reference was not sure of.
fn check_quantised(name: &str) {
    let Some((rows, mut checkpoint)) = open(name) else { return };
    checkpoint.keep_as_stored().unwrap();
    let team = Arc::new(Team::new(Team::available()));
    let model = checkpoint.load(team.threads()).unwrap();
    let mut source = NetworkSource::new(&model, &team);
    let (mut sum, mut count, mut largest, mut wrong) = (0.0, 0, 0.0f64, Vec::new());
    for row in &rows {
        let (prompt, greedy) = (ids(row, "ids"), ids(row, "greedy_ids"));
        let gaps = numbers(row, "greedy_gaps");
        let sure = gaps.iter().position(|&gap| gap < 0.15).unwrap_or(greedy.len());
        let expected = numbers(row, "prompt_logprobs");
        let all = [&prompt[..], &greedy[..]].concat();
        source
            .pass(&all[..all.len() - 1], &mut |place, logits| {
                let found = log_softmax(logits)[all[place + 1] as usize];
                if let Some(&right) = expected.get(place) {
                    (sum, count) = (sum + (found - right).abs(), count + 1);
                    if right > -8.0 {
                        largest = largest.max((found - right).abs());
                    }
                } else if place + 1 < prompt.len() + sure {
                    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
                    if best != Some(all[place + 1] as usize) {
                        wrong.push(format!("{:?}, token {place}", row["prompt"]));
                    }
                }
                Ok(())
            })
            .unwrap();
    }
    let mean = sum / f64::from(count);
    eprintln!("{name}, quantised: mean difference {mean:.4} nats, largest {largest:.3}");
    assert!(wrong.is_empty(), "{name}: greedy: {wrong:?}");
    assert!(mean <= 0.05 && largest <= 0.5, "{name}: {mean} {largest}");
}

#[test]
fn quantised_smollm2_is_near_the_reference() {
    check_quantised("smollm2-135m-q4_1");
}

#[test]
fn quantised_gemma3_is_near_the_reference() {
    check_quantised("gemma3-270m-q4_k_m");
}

#[test]
fn names_of_control_tokens_in_plain_text_are_text() {
    let Some((_, checkpoint)) = open("smollm2-135m-q4_1") else { return };
    let end = checkpoint.tokenizer.id("<|im_end|>").unwrap();
    let text = "say <|im_end|> twice";
    assert!(!checkpoint.tokenizer.encode(text).contains(&end));
    assert!(checkpoint.tokenizer.encode_with_controls(text).contains(&end));
    assert_eq!(checkpoint.tokenizer.decode(&checkpoint.tokenizer.encode(text)), text);
    assert!(checkpoint.ends.contains(&end));
}
