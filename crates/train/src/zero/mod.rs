//! Training over ranks: what each holds of a model's state (ZeRO, Rajbhandari et al., arXiv
//! 1910.02054), what it sends, and when.
//!
//! Stage 0 shares nothing out and adds gradients up; stage 1 shares out master weights and moments,
//! stage 2 gradients too, stage 3 also the weights. The step is the one of [`Trainer`](crate::Trainer):
//! here is what comes and goes around its forward and backward pass and its optimizer.

mod map;
mod memory;
mod shared;

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

    /// Whether a rank holds its blocks of the gradient alone: with pieces from stage 1 on, because
    /// each piece leaves as it is computed.
    pub(crate) fn shares_gradients(self, pieces: bool) -> bool {
        self >= Stage::Two || (pieces && self == Stage::One)
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
    /// Pieces that are not computed at once.
    #[error(
        "pieces is {pieces}: a piece of {of} sequences is computed at once, but micro_batch is \
         {micro_batch}; give more pieces, or a micro_batch of {of}"
    )]
    PieceTooLarge {
        /// Pieces a step.
        pieces: usize,
        /// Sequences of one.
        of: usize,
        /// Sequences that may be computed at once.
        micro_batch: usize,
    },
    /// Something that pieces cannot do.
    #[error("{what} is not trained in pieces; leave pieces away")]
    NotInPieces {
        /// What was asked for.
        what: &'static str,
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
        self.check_pieces(config)?;
        let (batch, ranks) = (config.train.batch, self.size);
        if ranks == 1 {
            return Ok(());
        }
        if !batch.is_multiple_of(ranks) {
            let nearest = nearest_multiple(batch, ranks);
            return Err(ShareError::Batch { batch, ranks, nearest });
        }
        let alone = |what, hint| Err(ShareError::Alone { what, ranks, hint });
        if config.train.average > 0.0 {
            return alone("an average of weights", "");
        }
        if config.model.shares_layers() && self.stage > Stage::One {
            let hint = "; their gradients come from several layers: give --zero 0 or 1";
            return alone("layers with the same weights", hint);
        }
        Ok(())
    }

    /// The same of the recipe's pieces, where it has any.
    fn check_pieces(&self, config: &TrainConfig) -> Result<(), ShareError> {
        let Recipe { batch, pieces, micro_batch, average, .. } = config.train;
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
        let of = batch / pieces;
        if micro_batch < of {
            return Err(ShareError::PieceTooLarge { pieces, of, micro_batch });
        }
        let what = match average > 0.0 {
            true => "an average of weights",
            false if config.model.shares_layers() => "a network with layers of the same weights",
            false => return Ok(()),
        };
        Err(ShareError::NotInPieces { what })
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

    /// Sequences that a rank computes at once.
    pub(crate) fn at_once(&self, recipe: &Recipe) -> usize {
        let piece = recipe.batch.checked_div(recipe.pieces);
        let own = || recipe.micro_batch.min(recipe.batch.div_ceil(self.size));
        piece.unwrap_or_else(own).max(1)
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
    /// pieces a part is a piece, and ranks take turns at them.
    pub(crate) fn rounds<'a>(&self, indices: &'a [u32], recipe: &Recipe) -> Vec<(&'a [u32], bool)> {
        let counted = |part: &'a [u32]| match part {
            [] => (&indices[..1], false),
            part => (part, true),
        };
        if recipe.pieces > 0 {
            let at = |piece: usize| piece * indices.len() / recipe.pieces;
            let own = (self.rank..recipe.pieces).step_by(self.size);
            return own.map(|piece| counted(&indices[at(piece)..at(piece + 1)])).collect();
        }
        let share = |rank: usize| rank * indices.len() / self.size;
        let own = &indices[share(self.rank)..share(self.rank + 1)];
        let longest = indices.len().div_ceil(self.size);
        let micro_batch = recipe.micro_batch.max(1);
        let at = |round: usize| (round * micro_batch).min(own.len());
        let rounds = 0..longest.div_ceil(micro_batch);
        rounds.map(|round| counted(&own[at(round)..at(round + 1)])).collect()
    }
}

/// The multiple of `of` that is nearest to `number`, but for none.
fn nearest_multiple(number: usize, of: usize) -> usize {
    ((number + of / 2) / of).max(1) * of
}
