//! Training over ranks: what each holds of a model's state (ZeRO, Rajbhandari et al., arXiv
//! 1910.02054), what it sends, and when.
//!
//! Stage 0 shares nothing out and adds gradients up; stage 1 shares out master weights and moments,
//! stage 2 gradients too, stage 3 also the weights. The step is the one of [`Trainer`](crate::Trainer):
//! here is what comes and goes around its forward and backward pass and its optimizer.

mod map;
mod memory;
mod shared;

pub(crate) use map::{Piece, ShardMap};
pub(crate) use memory::Truth;
pub(crate) use shared::{Sums, Zero, memory_of};

use crate::config::{OptimizerKind, Recipe, TrainConfig};
use models::ModelConfig;
use ranks::{Lost, Ranks};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What ranks share out instead of holding all of it each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Nothing.
    #[default]
    Zero,
    /// Master weights and moments.
    One,
    /// Gradients too.
    Two,
    /// Weights too.
    Three,
}

impl Stage {
    /// All stages.
    pub const ALL: [Stage; 4] = [Stage::Zero, Stage::One, Stage::Two, Stage::Three];

    /// 0 to 3.
    pub fn number(self) -> u8 {
        self as u8
    }
}

/// This rank among those that train one model.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The others, and the way to them.
    pub ranks: Arc<Ranks>,
    /// What is shared out.
    pub stage: Stage,
}

/// Why ranks do not go on together.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Disagreement {
    /// One has an error, which it tells itself.
    #[error("rank {rank}: {message}")]
    Elsewhere {
        /// Which.
        rank: usize,
        /// What it says.
        message: String,
    },
    /// One has gone.
    #[error(transparent)]
    Lost(#[from] Lost),
}

impl Shared {
    /// What ranks say together of a result: each its own where all are good, else the first that is
    /// not, on its rank, and word of it on the others. All ranks call it at the same time.
    ///
    /// # Errors
    /// When another rank has an error, or has gone.
    pub fn agree<T, E: std::fmt::Display>(
        &self,
        result: Result<T, E>,
    ) -> Result<Result<T, E>, Disagreement> {
        let word = result.as_ref().err().map_or(String::new(), ToString::to_string);
        let said = self.ranks.gather_bytes(word.as_bytes())?;
        match said.iter().position(|word| !word.is_empty()) {
            None => Ok(result),
            Some(rank) if rank == self.ranks.rank() => Ok(result),
            Some(rank) => {
                let message = String::from_utf8_lossy(&said[rank]).into_owned();
                Err(Disagreement::Elsewhere { rank, message })
            }
        }
    }

    /// Its place.
    pub fn place(&self) -> Place {
        Place { rank: self.ranks.rank(), size: self.ranks.size(), stage: self.stage }
    }
}

/// Which rank of how many, and what they share out: all that memory depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// From 0.
    pub rank: usize,
    /// How many.
    pub size: usize,
    /// What is shared out.
    pub stage: Stage,
}

/// What cannot be trained over ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// The batch.
    #[error(
        "batch is {batch}, which {ranks} ranks do not divide: each takes as many sequences of a step; \
         the nearest that they divide is {nearest}"
    )]
    Batch {
        /// Sequences a step.
        batch: usize,
        /// Ranks.
        ranks: usize,
        /// A batch that would do.
        nearest: usize,
    },
    /// Something that only one process does.
    #[error("{what} is trained by one process alone, not by {ranks} ranks{hint}")]
    Alone {
        /// What was asked for.
        what: &'static str,
        /// Ranks.
        ranks: usize,
        /// What to try.
        hint: &'static str,
    },
    /// A rank that was started with something else.
    #[error(
        "rank {rank} was started with another {what} than rank 0: {found}, expected {expected}; give \
         all ranks the same"
    )]
    Differs {
        /// Which.
        rank: usize,
        /// Configuration or data.
        what: &'static str,
        /// Its hash.
        found: String,
        /// That of rank 0.
        expected: String,
    },
}

impl Place {
    /// One process that shares nothing.
    pub const ALONE: Place = Place { rank: 0, size: 1, stage: Stage::Zero };

    /// Whether this may be trained by so many ranks.
    ///
    /// # Errors
    /// What they do not divide, or do not do.
    pub fn check(&self, config: &TrainConfig) -> Result<(), ShareError> {
        let (batch, ranks) = (config.train.batch, self.size);
        if ranks == 1 {
            return Ok(());
        }
        if !batch.is_multiple_of(ranks) {
            let nearest = ((batch + ranks / 2) / ranks).max(1) * ranks;
            return Err(ShareError::Batch { batch, ranks, nearest });
        }
        let alone = |what, hint| Err(ShareError::Alone { what, ranks, hint });
        match &config.model {
            ModelConfig::Transformer(c) if c.lora.is_some() && self.stage > Stage::Zero => {
                let hint = "; what adapters need is small: give --zero 0";
                return alone("a share of an adapter's state (--lora)", hint);
            }
            _ => {}
        }
        if config.train.average > 0.0 {
            return alone("an average of weights", "");
        }
        if config.model.shares_layers() && self.stage > Stage::One {
            let hint = "; their gradients come from several layers: give --zero 0 or 1";
            return alone("layers with the same weights", hint);
        }
        if config.train.optimizer == OptimizerKind::Muon && self.stage > Stage::Zero {
            let hint = "; Muon turns whole matrices: give --zero 0, or --optimizer adamw";
            return alone("a share of Muon's state", hint);
        }
        Ok(())
    }

    /// Sequences that a rank computes at once.
    pub(crate) fn at_once(&self, recipe: &Recipe) -> usize {
        recipe.micro_batch.min(recipe.batch.div_ceil(self.size)).max(1)
    }

    /// What this rank computes where ranks take turns at `parts`: as many as each other rank, where
    /// there is none left one that counts for nothing.
    pub(crate) fn turns<'a, T>(&self, parts: &[&'a [T]]) -> Vec<(&'a [T], bool)> {
        let rounds = parts.chunks(self.size);
        rounds
            .map(|round| round.get(self.rank).map_or((round[0], false), |part| (part, true)))
            .collect()
    }

    /// This rank's part of a step's sequences: neighbours, so that all ranks' parts in their order
    /// are the batch.
    pub(crate) fn share<'a>(&self, indices: &'a [u32]) -> &'a [u32] {
        let at = |rank: usize| rank * indices.len() / self.size;
        &indices[at(self.rank)..at(self.rank + 1)]
    }

    /// This rank's part in pieces that are computed at once; as many pieces as the rank with most
    /// of them has, where a rank that has fewer computes the batch's first sequence for nothing.
    pub(crate) fn rounds<'a>(
        &self,
        indices: &'a [u32],
        micro_batch: usize,
    ) -> impl Iterator<Item = (&'a [u32], bool)> + use<'a> {
        let longest = indices.len().div_ceil(self.size);
        let own = self.share(indices);
        (0..longest.div_ceil(micro_batch)).map(move |round| {
            let at = |round: usize| (round * micro_batch).min(own.len());
            match &own[at(round)..at(round + 1)] {
                [] => (&indices[..1], false),
                part => (part, true),
            }
        })
    }
}
