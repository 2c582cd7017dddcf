//! Training over ranks: what each holds of a model's state (ZeRO, Rajbhandari et al., arXiv
//! 1910.02054), what it sends, and when.
//!
//! Stage 0 shares nothing out and adds gradients up; stage 1 shares out master weights and moments,
//! stage 2 gradients too, stage 3 also the weights. The step is the one of [`Trainer`](crate::Trainer):
//! here is what comes and goes around its forward and backward pass and its optimizer.

mod formula;
mod map;
mod memory;
mod shared;

pub use formula::SentBytes;
pub(crate) use map::{Piece, ShardMap, Split};
pub(crate) use memory::Truth;
pub(crate) use shared::{Losses, Zero, memory_of};

use crate::config::{OptimizerKind, Recipe, TrainConfig};
use ledger::Account;
use ranks::{Lost, Ranks, StartError};
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

/// How the gradients of a step are added up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    stage: Stage,
    /// Whether ranks add up pieces, each of which leaves as it is computed.
    pub(crate) pieces: bool,
    /// Whether layers have the same weights: a gradient is whole at the first of them alone.
    cycle: bool,
    /// Whether a piece is computed at once.
    at_once: bool,
}

impl Flow {
    /// That of a training at a place.
    pub(crate) fn new(config: &TrainConfig, place: Place) -> Flow {
        let recipe = &config.train;
        let piece = recipe.batch.checked_div(recipe.pieces);
        Flow {
            stage: place.stage,
            pieces: recipe.pieces > 0,
            cycle: config.model.shares_layers(),
            at_once: piece.is_none_or(|piece| recipe.micro_batch >= piece),
        }
    }

    /// Whether a rank has the sums of its blocks alone: with pieces from stage 1 on. Without, gradients
    /// of layers in a cycle are added up in place and stay whole.
    pub(crate) fn shares_gradients(self) -> bool {
        match self.pieces {
            true => self.stage >= Stage::One,
            false => self.stage >= Stage::Two && !self.cycle,
        }
    }

    /// Whether gradients leave before the step's last batch, and leave their place empty.
    pub(crate) fn leaves_early(self) -> bool {
        self.pieces || self.shares_gradients()
    }

    /// Whether units take turns at the place that gradients leave from: one pass over a unit makes all
    /// of what leaves.
    pub(crate) fn takes_turns(self) -> bool {
        self.leaves_early() && !self.cycle && self.at_once
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

    /// One process that takes a step by pieces as ranks do.
    pub(crate) fn alone() -> Result<Shared, ledger::Error> {
        let failed = |error: StartError| ledger::Error {
            name: "the courier of one rank".to_owned(),
            account: Account::Communication,
            bytes: Ranks::plan(1).total(),
            source: match error {
                StartError::Thread(source) => source,
                other => std::io::Error::other(other),
            },
        };
        let ranks = Ranks::threads(1).map_err(failed)?.swap_remove(0);
        Ok(Shared { ranks: Arc::new(ranks), stage: Stage::Zero })
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
    /// Pieces and the batch.
    #[error(
        "pieces is {pieces}, which does not divide a batch of {batch}: all pieces of a step have as many \
         sequences; the nearest batch that it divides is {nearest}"
    )]
    Pieces {
        /// Pieces a step.
        pieces: usize,
        /// Sequences a step.
        batch: usize,
        /// A batch that would do.
        nearest: usize,
    },
    /// Pieces and ranks.
    #[error(
        "pieces is {pieces}, which {ranks} ranks do not divide: each computes as many of them; give a \
         multiple of {ranks}"
    )]
    PiecesOfRanks {
        /// Pieces a step.
        pieces: usize,
        /// Ranks.
        ranks: usize,
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
        self.check_pieces(config)?;
        let (batch, ranks) = (config.train.batch, self.size);
        if ranks == 1 {
            return Ok(());
        }
        if !batch.is_multiple_of(ranks) {
            let nearest = nearest_multiple(batch, ranks);
            return Err(ShareError::Batch { batch, ranks, nearest });
        }
        Ok(())
    }

    /// The same of the recipe's pieces, where it has any.
    fn check_pieces(&self, config: &TrainConfig) -> Result<(), ShareError> {
        let Recipe { batch, pieces, .. } = config.train;
        if pieces == 0 {
            return Ok(());
        }
        if !batch.is_multiple_of(pieces) {
            let nearest = nearest_multiple(batch, pieces);
            return Err(ShareError::Pieces { pieces, batch, nearest });
        }
        if !pieces.is_multiple_of(self.size) {
            return Err(ShareError::PiecesOfRanks { pieces, ranks: self.size });
        }
        Ok(())
    }

    /// Whether there are no others.
    pub(crate) fn is_alone(&self) -> bool {
        self.size == 1 && self.stage == Stage::Zero
    }

    /// Whose parts of units it has.
    pub(crate) fn split(&self, recipe: &Recipe) -> Split {
        let cuts = if recipe.pieces > 0 { recipe.pieces } else { self.size };
        let muon = recipe.optimizer == OptimizerKind::Muon;
        Split { rank: self.rank, size: self.size, cuts, muon }
    }

    /// Sequences that a rank computes at once: of a piece, or of its share of a batch.
    pub(crate) fn at_once(&self, recipe: &Recipe) -> usize {
        let piece = recipe.batch.checked_div(recipe.pieces);
        let most = piece.unwrap_or_else(|| recipe.batch.div_ceil(self.size));
        recipe.micro_batch.min(most).max(1)
    }

    /// What this rank computes where ranks take turns at `parts`: as many as each other rank, where
    /// there is none left one that counts for nothing.
    pub(crate) fn turns<'a, T>(&self, parts: &[&'a [T]]) -> Vec<(&'a [T], bool)> {
        let rounds = parts.chunks(self.size);
        rounds
            .map(|round| round.get(self.rank).map_or((round[0], false), |part| (part, true)))
            .collect()
    }

    /// What this rank computes of a step's sequences, a part at once. As many parts as the rank with
    /// most of them has; where one has fewer, it computes the batch's first sequence for nothing.
    ///
    /// Without pieces a rank has neighbours, so that all ranks' parts in their order are the batch. With
    /// pieces ranks take turns at them; all pieces of a step have as many parts.
    pub(crate) fn rounds<'a>(&self, indices: &'a [u32], recipe: &Recipe) -> Vec<Part<'a>> {
        let (shares, own) = match recipe.pieces {
            0 => (self.size, self.rank..self.rank + 1),
            pieces => (pieces, self.rank..pieces),
        };
        let (at_once, longest) = (self.at_once(recipe), indices.len().div_ceil(shares));
        let at = |share: usize| share * indices.len() / shares;
        let turns = own.step_by(self.size);
        let parts = turns.flat_map(|share| {
            let own = &indices[at(share)..at(share + 1)];
            let from = move |round: usize| (round * at_once).min(own.len());
            let rounds = longest.div_ceil(at_once);
            (0..rounds).map(move |round| match &own[from(round)..from(round + 1)] {
                [] => Part { sequences: &indices[..1], counts: false, ends: round + 1 == rounds },
                own => Part { sequences: own, counts: true, ends: round + 1 == rounds },
            })
        });
        parts.collect()
    }
}

/// Sequences that are computed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part<'a> {
    /// Which.
    pub(crate) sequences: &'a [u32],
    /// Whether they are of the batch.
    pub(crate) counts: bool,
    /// Whether it is the last of its piece, or of the step.
    pub(crate) ends: bool,
}

/// The multiple of `of` that is nearest to `number`, but for none.
fn nearest_multiple(number: usize, of: usize) -> usize {
    ((number + of / 2) / of).max(1) * of
}
