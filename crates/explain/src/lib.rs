//! Pictures of recorded choices: a table with bars for the terminal and a self-contained page.
//!
//! Everything here is a pure function of records; nothing opens a model or a file. A record is
//! made from a [`decoding::Explanation`] and the texts of its tokens.

mod page;
mod record;
mod terminal;
mod token;

pub use page::page;
pub use record::{Continuation, Effect, MAX_SHOWN, Record, Rest, StepRecord, Token};
pub use terminal::{Colour, Picture, terminal};
pub use token::visible;
