//! Load on an OpenAI-compatible server, and what its clients saw.
//!
//! Requests arrive by a Poisson process whether or not earlier ones are answered (open loop), or
//! each of some clients sends its next when its last is answered (closed loop). Every figure is
//! measured at the client, from the first byte sent. Nothing here knows how a server works.

mod client;
mod plan;
mod report;
mod run;

pub use client::{Failure, Seen};
pub use plan::{Arrivals, Prompts, Work};
pub use report::{Percentiles, Report, report};
pub use run::{first_model, run};
