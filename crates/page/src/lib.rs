//! What all pages and texts of the program share: the frame of a page that needs nothing but itself,
//! lines of a width, areas over time. It knows no model and no record: it frames what others draw.

mod areas;
mod frame;
mod lines;
mod stack;

pub use areas::{Areas, COLOURS, Layer};
pub use frame::{Data, Frame};
pub use lines::{separated, wrapped};
pub use stack::{Stack, stacks};
