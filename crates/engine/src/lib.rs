//! From a prompt to tokens: read the prompt once, then choose → append → one decode step, for all
//! sequences of a request in one batch; or a search for the likeliest text. And the score of a text
//! that is given, alone or beside what the model would have written.
//!
//! A [`Source`] gives rows of logits: [`NetworkSource`] runs a network with a cache a sequence,
//! [`CountSource`] looks up counts. [`Generator`] knows neither; it chooses by
//! [`decoding::Rules`], and stops at an end token, a stop string, a cap or the end of the context.
//! The draw of token t of sequence s depends on (seed, s, t) alone, so a sequence is the same in
//! any batch. Not here: files, HTTP, training, pictures.

mod beam;
mod counts;
mod error;
mod generator;
mod guessed;
mod network;
mod progress;
mod prompt;
mod score;
pub mod serving;
mod source;
mod teacher;

pub use beam::BeamSearch;
pub use counts::CountSource;
pub use error::Error;
pub use generator::{Event, Generator, Request};
pub use guessed::{Ahead, GuessedSource, Guesses};
pub use network::{MOST_ROWS, NetworkSource};
pub use progress::{Finish, Sequence, Token};
pub use prompt::{Prompt, Truncate};
pub use score::{Route, Scored, score};
pub use source::{Each, Room, Source};
pub use teacher::{Forced, Teacher};
