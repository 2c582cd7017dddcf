//! A model behind HTTP: the OpenAI interface over the engine's continuous batching.
//!
//! Async lives here and ends here: a request becomes a [`engine::serving::Asked`] for the engine's
//! thread, whose events come back through a channel. Bodies are checked by tables of fields
//! ([`fields`]) that also write the documentation ([`openapi`]). Nothing here knows tensors or files
//! of models.

mod answer;
mod app;
mod books;
mod call;
mod chat_completions;
mod completions;
mod embeddings;
mod error;
pub mod fields;
mod grammar;
mod heard;
mod listen;
mod messages;
mod metrics;
pub mod openapi;
mod other;
mod prompt;
mod receipt;
mod replay;
mod responses;
mod routes;
mod run;
mod sampling;
mod talk;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "tls_absent.rs"]
mod tls;
mod tool_grammar;
mod tools;

pub use app::{App, Guesser, Options, Served};
pub use error::ApiError;
pub use listen::listen;
pub use metrics::{Metrics, Phases};
pub use routes::router;
pub use run::{during, run};
pub use tls::{Tls, TlsError};
