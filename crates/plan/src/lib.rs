//! Predictions before anything runs: bytes by term, seconds by a roofline, what fits and what to
//! change; and diagnoses of what ran.
//!
//! Where this program runs a model itself, the list that allocates is the list that predicts
//! ([`running`]). Formulas stand only where no such list exists: published models in other number
//! formats, several ranks, adapters. Nothing here trains, serves, downloads or prints.

mod activations;
mod architecture;
mod bars;
mod config_json;
pub mod diagnose;
mod error;
mod experts;
pub mod fleet;
mod kind;
mod machine;
mod published;
mod ranks;
mod recorded;
pub mod running;
mod search;
mod serve;
mod sheet;
mod state;
mod step_cost;
mod term;
pub mod tools;
mod train;
mod units;
pub mod what_if;

pub use activations::{Activations, Attention, layer_bytes_per_token};
pub use architecture::{Architecture, Units};
pub use bars::{bars, text, wrapped};
pub use error::Error;
pub use experts::Experts;
pub use kind::NumberKind;
pub use machine::{Machine, Roofline, ServeTimes, TrainTimes, machines, serve_times, train_times};
pub use published::{Published, names};
pub use ranks::{MOST_RANKS, Network, RanksReport, simulate_ranks};
pub use recorded::ledger_page;
pub use search::{Candidate, Predict, Searched, fewest_ranks, largest_published, most, search};
pub use serve::{ServeAsk, kv_bytes, serve};
pub use sheet::{Sheet, page};
pub use state::{Layout, Optimizer, Precision, StateBytes};
pub use term::{Balance, Lever, Prediction, Rank, Term, Terms};
pub use tools::{Tool, ToolAnswer, ToolAsk, answer, answer_of_number};
pub use train::{Logits, TrainAsk, communication_bytes, lora_parameters, states_alone, train};
pub use units::{binary, both, parse_bytes};
