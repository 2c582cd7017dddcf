//! Files of a model hub, fetched into the cache that other programs use too.
//!
//! The maintained client library does the requests, the cache's layout and the resumption. What it
//! does not is here: which files make a model, names that are checked before they become paths,
//! content that is held against its size and hash, what is in the cache already, and the cache alone
//! where there is no network. Nothing here knows models.

mod cache;
mod choose;
mod error;
mod pull;
mod wanted;

pub use cache::Place;
pub use error::Error;
pub use pull::{Hub, Progress, Pulled};
pub use wanted::Wanted;
