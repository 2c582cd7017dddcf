//! What tests of training share: a short recipe, invented sequences, a run's options.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod adapted;

use kernels::{Team, uniform_bits};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use train::{Recipe, RunOptions, Stage};

/// Who trains: so many ranks at a stage, or one process.
#[derive(Clone, Copy, Debug)]
pub enum Who {
    Alone,
    Ranks(usize, Stage),
}

/// Batches of eight, three epochs, dropout.
pub fn recipe() -> Recipe {
    Recipe {
        batch: 8,
        micro_batch: 8,
        epochs: 3,
        warmup_steps: 3,
        dropout: 0.1,
        ..Recipe::default()
    }
}

/// Invented sequences of `lengths` tokens below `vocab`.
pub fn sequences(vocab: u64, lengths: Range<u64>, count: u64, seed: u64) -> Vec<Vec<u32>> {
    let token = |s: u64, t: u64| (uniform_bits(seed ^ 1, s * 100 + t) % vocab) as u32;
    let length = |s| lengths.start + uniform_bits(seed, s) % (lengths.end - lengths.start);
    (0..count).map(|s| (0..length(s)).map(|t| token(s, t)).collect()).collect()
}

/// A run over a training and a validation side.
pub fn options<'a>(
    config: &'a train::TrainConfig,
    (train, valid): (&'a Vec<Vec<u32>>, &'a Vec<Vec<u32>>),
    dir: &'a Path,
    resume: bool,
    team: &'a Arc<Team>,
    stop: &'a AtomicUsize,
) -> RunOptions<'a> {
    RunOptions {
        config,
        train,
        valid,
        tokenizer: b"{}",
        data_hash: "d",
        data_name: "data",
        dir,
        resume,
        team,
        stop,
    }
}
