//! An invented comparison for tests and for looking at a report: made by formula, measured by
//! nobody.

use std::collections::BTreeMap;

use crate::{
    Audit, CalibrationBin, CurvePoint, DataAudit, Experiment, GroupScore, Grouping, LedgerTerm,
    MachineAudit, MemoryUse, MessageMean, NearDuplicates, ParameterCount, PositionScore,
    ProgramAudit, Record, Score, SeenSplit, SideAudit, TestScores, TrainingRun,
};

/// How much worse the invented bigram is than the invented recurrent network, nats a token.
pub const BIGRAM_OVER_RNN: f64 = 0.386;

const GROUPS: u32 = 160;

/// Three models, two anchors and six seeds.
pub fn experiment() -> Experiment {
    let mut experiment = Experiment::standard();
    experiment.prompts = vec!["please send the".to_owned(), "let me know if".to_owned()];
    experiment
}

/// The experiment with all its runs.
pub fn comparison() -> (Experiment, Audit, Vec<Record>) {
    let experiment = experiment();
    let records = experiment.runs().iter().map(|(arm, seed)| record(&arm.name, *seed)).collect();
    (experiment, audit(), records)
}

/// What stands behind it.
pub fn audit() -> Audit {
    let side = |name: &str, groups, messages, tokens, unknown_tokens| SideAudit {
        name: name.to_owned(),
        groups,
        messages,
        tokens,
        unknown_tokens,
    };
    Audit {
        data: DataAudit {
            description: "invented business mail".to_owned(),
            synthetic: true,
            group_by: "thread".to_owned(),
            split_seed: 1,
            sides: vec![
                side("train", 1280, 16_011, 482_113, 21_950),
                side("validation", 160, 1_998, 60_120, 2_811),
                side("test", 160, 2_004, 60_871, 2_930),
            ],
            exact_duplicates: 312,
            near_duplicates: NearDuplicates {
                method: "MinHash of 5-token shingles, Jaccard 0.8 or more".to_owned(),
                across_sides: 41,
                kept_out_of_test: 41,
            },
            unreadable: 3,
            vocabulary: 4000,
            max_len: 64,
            seen_run_tokens: 20,
            tokenizer_sha256: "5f1d9c".repeat(10) + "abcd",
            test_sha256: "a07e32".repeat(10) + "0123",
        },
        machine: MachineAudit {
            processor: "An Invented Processor @ 2.00GHz".to_owned(),
            instruction_set: "avx512".to_owned(),
            threads: 2,
            memory_bytes: 24 << 30,
            system: "Linux x86_64".to_owned(),
        },
        program: ProgramAudit {
            version: "0.1.0".to_owned(),
            commit: Some("0123abc".to_owned()),
            command: "autoreg compare --seeds 6 --epochs 8 --out runs/mail".to_owned(),
            finished: "2025-01-01 12:00 UTC".to_owned(),
        },
    }
}

/// A number in (-1, 1) fixed by three others.
fn wobble(a: u64, b: u64, c: u64) -> f64 {
    let mut z = a.wrapping_mul(0x9E37_79B9) ^ b.wrapping_mul(0xC2B2_AE3D) ^ c.wrapping_mul(0x27D4);
    z = (z ^ (z >> 15)).wrapping_mul(0x2545_F491_4F6C_DD1D);
    z ^= z >> 28;
    z = z.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (z >> 40) as f64 / (1u64 << 23) as f64 - 1.0
}

struct Made {
    loss: f64,
    accuracy: f64,
    parameters: ParameterCount,
    seconds: f64,
    bytes: u64,
    deterministic: bool,
}

fn made(arm: &str) -> Made {
    let count = |dense: u64, nonzero: u64, embedding: u64, optimizer: u64| ParameterCount {
        dense,
        non_embedding: dense - embedding,
        nonzero,
        bytes: nonzero * 4,
        optimizer_bytes: optimizer,
    };
    let made = |loss, accuracy, parameters, seconds, bytes, deterministic| Made {
        loss,
        accuracy,
        parameters,
        seconds,
        bytes,
        deterministic,
    };
    match arm {
        "uniform" => made(4000f64.ln(), 0.0003, count(0, 0, 0, 0), 0.0, 0, true),
        "unigram" => made(6.02, 0.061, count(4000, 3996, 0, 0), 0.02, 1 << 18, true),
        "bigram" => made(4.84, 0.189, count(16_000_000, 141_209, 0, 0), 0.61, 5 << 20, true),
        "rnn" => made(
            4.84 - BIGRAM_OVER_RNN,
            0.233,
            count(659_552, 659_552, 256_000, 5_276_416),
            41.0,
            19 << 20,
            false,
        ),
        _ => made(4.447, 0.229, count(620_192, 620_192, 260_096, 4_961_536), 58.0, 31 << 20, false),
    }
}

/// One invented run.
pub fn record(arm: &str, seed: u64) -> Record {
    let made = made(arm);
    let salt = if made.deterministic { 0 } else { seed };
    let shift = if made.deterministic { 0.0 } else { 0.012 * wobble(seed, arm.len() as u64, 77) };
    let loss = made.loss + shift;
    let tokens = 482_113 * 8;
    let seconds = made.seconds * (1.0 + 0.05 * wobble(seed, 5, arm.len() as u64));
    let peak = (9 << 20) + made.bytes + (wobble(seed, 8, 3).abs() * 2e5) as u64;
    Record {
        arm: arm.to_owned(),
        seed,
        config_digest: String::new(),
        parameters: made.parameters,
        training: TrainingRun {
            seconds,
            tokens: if made.deterministic { 482_113 } else { tokens },
            steps: if made.deterministic { 0 } else { 2008 },
            tokens_per_second: if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 },
            flops: tokens as f64 * 6.0 * made.parameters.non_embedding as f64,
            tuning_trials: if arm == "bigram" { 7 } else { 1 },
            best_validation_loss: Some(loss - 0.01),
            best_step: Some(2008),
        },
        memory: MemoryUse {
            peak_process_bytes: peak,
            baseline_process_bytes: 9 << 20,
            predicted_process_bytes: Some((9 << 20) + made.bytes),
            terms: vec![
                LedgerTerm {
                    name: "weights".to_owned(),
                    predicted_bytes: made.parameters.bytes,
                    measured_bytes: made.parameters.bytes,
                },
                LedgerTerm {
                    name: "optimizer".to_owned(),
                    predicted_bytes: made.parameters.optimizer_bytes,
                    measured_bytes: made.parameters.optimizer_bytes,
                },
            ],
        },
        test: Some(test(arm, salt, loss, made.accuracy)),
        curve: if made.deterministic { Vec::new() } else { curve(arm, seed, loss, tokens) },
        top_next: top_next(arm),
        notes: match arm {
            "bigram" => vec!["add-k smoothing 0.05, best of 7 tried on validation".to_owned()],
            _ => Vec::new(),
        },
        failed: None,
    }
}

fn test(arm: &str, salt: u64, loss: f64, accuracy: f64) -> TestScores {
    let uniform = arm == "uniform";
    let name = arm.len() as u64;
    let groups: Vec<_> = (0..GROUPS)
        .map(|group| {
            let tokens = 120 + (200.0 * wobble(u64::from(group), 1, 2).abs()) as u64;
            let own = 0.35 * wobble(u64::from(group), 3, 4)
                + 0.06 * wobble(u64::from(group), name, salt + 9);
            let nll = tokens as f64 * if uniform { loss } else { loss + own };
            let correct = (tokens as f64 * (accuracy - 0.03 * own)) as u64;
            GroupScore { group, score: Score { tokens, nll, correct } }
        })
        .collect();
    let part = |share: f64, shift: f64, score: Score| {
        let tokens = (score.tokens as f64 * share) as u64;
        let mean = score.loss().unwrap_or(0.0) + if uniform { 0.0 } else { shift };
        Score { tokens, nll: tokens as f64 * mean, correct: (score.correct as f64 * share) as u64 }
    };
    let known =
        groups.iter().map(|g| GroupScore { score: part(0.95, 0.04, g.score), ..*g }).collect();
    let total: Score = groups.iter().map(|group| group.score).sum();
    let mut senders: BTreeMap<u32, Score> = BTreeMap::new();
    for group in &groups {
        senders.entry(group.group % 37).or_default().add(group.score);
    }
    let senders = senders.into_iter().map(|(group, score)| GroupScore { group, score }).collect();
    TestScores {
        known,
        second_grouping: Some(Grouping { by: "sender".to_owned(), groups: senders }),
        seen_run: Some(SeenSplit {
            seen: part(0.04, -0.15, total),
            unseen: part(0.96, 0.006, total),
        }),
        messages: MessageMean {
            messages: 2004,
            loss: 2004.0 * (loss + if uniform { 0.0 } else { 0.11 }),
            accuracy: 2004.0 * accuracy,
        },
        positions: (1..64).map(|position| at_position(arm, position, loss, accuracy)).collect(),
        calibration: calibration(arm, accuracy),
        groups,
    }
}

fn at_position(arm: &str, position: u32, loss: f64, accuracy: f64) -> PositionScore {
    let tokens = (2004.0 * (-f64::from(position) / 32.0).exp()) as u64 + 20;
    let context = match arm {
        "uniform" => 0.0,
        "unigram" | "bigram" => 0.25 * (-f64::from(position)).exp(),
        _ => 0.9 * (-f64::from(position) / 4.0).exp() - 0.12,
    };
    let noise = if arm == "uniform" { 0.0 } else { 0.08 * wobble(u64::from(position), 6, 1) };
    let nll = tokens as f64 * (loss + context + noise);
    let correct = (tokens as f64 * accuracy) as u64;
    PositionScore { position, score: Score { tokens, nll, correct } }
}

fn calibration(arm: &str, accuracy: f64) -> Vec<CalibrationBin> {
    let over = if arm == "rnn" { 0.93 } else { 0.99 };
    (0..15)
        .map(|bin| {
            let middle = (f64::from(bin) + 0.5) / 15.0;
            let count = (9000.0 * (-middle / (0.6 * accuracy + 0.02)).exp()) as u64;
            let correct = (count as f64 * (middle * over).min(1.0)) as u64;
            CalibrationBin { count, confidence: middle * count as f64, correct }
        })
        .collect()
}

fn curve(arm: &str, seed: u64, loss: f64, tokens: u64) -> Vec<CurvePoint> {
    let slow = if arm == "rnn" { 0.16 } else { 0.2 };
    (0..=32u64)
        .map(|k| {
            let part = k as f64 / 32.0;
            let value = loss + (4000f64.ln() - loss) * (-part / slow).exp();
            let noise = 0.02 * wobble(seed, k, arm.len() as u64);
            CurvePoint {
                tokens: tokens * k / 32,
                train_loss: (k > 0).then_some(value - 0.25 * part + noise),
                validation_loss: Some(value + noise),
            }
        })
        .collect()
}

fn top_next(arm: &str) -> BTreeMap<String, Vec<(String, f64)>> {
    let list = |words: [&str; 8]| {
        let sharp = if matches!(arm, "rnn" | "transformer") { 0.72 } else { 0.8 };
        let chances = words.iter().enumerate();
        chances.map(|(at, word)| ((*word).to_owned(), 0.21 * f64::powi(sharp, at as i32))).collect()
    };
    let after_the = match arm {
        "unigram" | "uniform" => ["<unk>", "the", ".", ",", "to", "and", "of", "<eos>"],
        "bigram" => ["<unk>", "contract", "following", "end", "new", "same", "file", "meeting"],
        _ => ["attached", "file", "invoice", "draft", "report", "signed", "numbers", "list"],
    };
    let after_if = match arm {
        "unigram" | "uniform" => ["<unk>", "the", ".", ",", "to", "and", "of", "<eos>"],
        _ => ["you", "there", "this", "we", "i", "the", "anyone", "it"],
    };
    BTreeMap::from([
        ("please send the".to_owned(), list(after_the)),
        ("let me know if".to_owned(), list(after_if)),
    ])
}
