//! Networks: one definition and one forward pass for training and inference.
//!
//! A [`Model`] is a configuration with weights and keeps no state of any sequence. A [`Runner`]
//! holds what a workload needs beside them, allocated from the very list that predicts it. What is
//! remembered between steps is a [`Cache`], lent by the caller. Nothing here knows requests,
//! optimizers or HTTP.

mod batch;
mod cache;
mod config;
mod frozen;
mod hidden;
mod lora;
mod mixed_head;
mod model;
pub mod ngram;
mod recompute;
mod rnn;
mod rope;
mod runner;
mod slots;
mod transformer;
mod units;

pub use batch::{Batch, IGNORED};
pub use cache::{Cache, KvCache, KvPages, KvPool, PagedPast, Past, near_from, near_reach};
pub use config::{
    ConfigError, MlpConfig, ModelConfig, NgramConfig, NormConfig, PositionConfig, RnnConfig,
    Smoothing, TransformerConfig,
};
pub use hidden::{HiddenMatrix, hidden_matrices};
pub use lora::{LoraConfig, LoraTarget, is_adapter};
pub use model::{Error, Model};
pub use recompute::Recompute;
pub use rope::{RopeScaling, SlidingWindow};
pub use runner::{Dropout, Runner, Training, Workload};
pub use units::{Keeper, Residence, Units};
