//! Pictures of recorded choices: a table with bars for the terminal and a self-contained page.
//!
//! Everything here is a pure function of records; nothing opens a model or a file. A record is
//! made from a [`decoding::Explanation`] and the texts of its tokens; one of teacher forcing from the
//! figures of both sides.

mod page;
mod record;
mod teacher;
mod terminal;
mod token;

pub use page::page;
pub use record::{
    BESIDE, Beside, Continuation, Effect, MAX_EXACT, MAX_SHOWN, Record, Rest, StepRecord, Token,
    at_temperature,
};
pub use teacher::{Predicted, TeacherRecord, TeacherStep, teacher_terminal};
pub use terminal::{Colour, Picture, terminal};
pub use token::{column, columns, shown, visible, wrapped};
