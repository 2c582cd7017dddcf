//! From text to weights: the training step, its schedule, its checkpoints, the scores.
//!
//! Nothing here knows requests or HTTP.

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

pub use checkpoint::Error as CheckpointError;
pub use config::{OptimizerKind, Recipe, RecipeError, Schedule, TrainConfig};
pub use data::{BatchShape, Facts, Sequences, epoch_order, order_bytes};
pub use documents::{DocumentList, Documents};
pub use evaluate::{BINS, Bin, Evaluator, Scores, Tally, evaluate};
pub use muon::Muon;
pub use optimizer::{AdamW, Applied, learning_rate};
pub use precision::{LossScale, Precision};
pub use run::{
    CurvePoint, Error, Event, Outcome, RunOptions, Start, State, check, resumable, run, run_from,
    total_steps,
};
pub use saved::{
    ADAPTER_FILE, CONFIG_FILE, Error as SavedError, SavedModel, TOKENIZER_FILE, WEIGHTS_FILE,
    digest_of, write_count_model, write_counts, write_description, write_weights,
};
pub use trainer::{StepReport, Trainer};
pub use zero::{Place, ShareError, Shared, Stage};
