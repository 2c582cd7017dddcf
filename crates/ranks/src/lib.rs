//! Ranks: processes, or threads of one, that train one model together, and what they say to each
//! other, counted and timed.
//!
//! A [`Transport`] moves words between ranks; there is one of threads and, with the feature `mpi`, one
//! of MPI. [`Ranks`] puts it on a thread of its own, the courier, which takes orders one after another,
//! so that communication and computation overlap; buffers go to it and come back by ownership. Sums
//! are taken by the courier itself in the order of ranks, so their bits depend on neither transport
//! nor size. Nothing here knows parameters or models.

mod courier;
mod handle;
#[cfg(feature = "mpi")]
mod over_mpi;
mod threads;
mod traffic;
mod transport;

pub use handle::{Pending, Ranks};
pub use traffic::{Collective, Traffic};
pub use transport::{Lost, StartError, Transport, launched_size};
