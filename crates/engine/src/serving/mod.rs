//! Many requests, one set of weights: continuous batching over pages of K/V.
//!
//! [`PagePool`] hands out, shares and takes back pages; [`Scheduler`] says which tokens of which
//! sequences run in the next [`Step`]; both are bookkeeping and know no tensor, clock or chance. An
//! [`Executor`] runs a step on a model. [`Engine`] joins them with the rules of each request, and
//! [`spawn`] puts it on a thread of its own behind channels. Not here: HTTP, text of prompts, async.

mod ahead;
mod draft;
mod engine;
mod executor;
mod lookup;
mod pool;
mod scheduler;
mod told;
mod worker;

pub use draft::Draft;
pub use engine::Engine;
pub use executor::{CountExecutor, Executor, NetworkExecutor, Piece, Rows};
pub use pool::{PageId, PageKey, PagePool, PoolFault};
pub use scheduler::{
    Limits, MOST_DRAFTS, Misfit, Scheduler, SequenceId, State, Step, Totals, Work,
};
pub use told::{Asked, Chosen, Constraint, Event, PromptToken, RequestId, StepReport, Waited};
pub use worker::{Handle, Queue, Refusal, Sink, Stamped, Ticket, spawn};
