//! From text to weights: the training step, its schedule, its checkpoints, the scores.
//!
//! Nothing here knows requests or HTTP.

mod config;
mod optimizer;

pub use config::{Recipe, RecipeError, Schedule, TrainConfig};
pub use optimizer::{AdamW, Applied, learning_rate};
