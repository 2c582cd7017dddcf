//! From text to weights: the training step, its schedule, its checkpoints, the scores.
//!
//! Nothing here knows requests or HTTP.

mod average;
mod checkpoint;
mod config;
mod data;
mod documents;
mod evaluate;
mod muon;
mod optimizer;
mod precision;
mod run;
mod saved;
mod trainer;
mod zero;

pub use average::Average;
pub use checkpoint::{Error as CheckpointError, check_checkpoint, checkpoints, weights_digest};
pub use config::{OptimizerKind, Recipe, RecipeError, Schedule, TrainConfig};
pub use data::{BatchShape, Facts, Sequences, epoch_order, order_bytes};
pub use documents::{DocumentList, Documents};
pub use evaluate::{BINS, Bin, Evaluator, Scores, Tally, evaluate};
pub use muon::Muon;
pub use optimizer::{AdamW, Applied, learning_rate};
pub use precision::{LossScale, Precision};
pub use run::{
    CurvePoint, DataMark, Error, Event, Outcome, RankOutcome, RunOptions, Start, State, check,
    collectives, resumable, run, run_from, run_ranks, total_steps,
};
pub use saved::{
    ADAPTER_FILE, CONFIG_FILE, Error as SavedError, RECIPE_FILE, SavedModel, TOKENIZER_FILE,
    WEIGHTS_FILE, check_weights, digest_of, read_recipe, write_count_model, write_counts,
    write_description, write_weights,
};
pub use trainer::{StepReport, Trainer};
pub use zero::{Disagreement, Place, SentBytes, ShareError, Shared, Stage};
