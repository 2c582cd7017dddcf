//! Text to token ids and back.
//!
//! [`Tokenizer`] reads any `tokenizer.json` of the Hugging Face `tokenizers` library and is written
//! as one by [`train`]. [`Utf8Stream`] turns ids into text one by one. Nothing here knows models.

mod bpe;
mod chars;
mod decode;
mod error;
mod pieces;
mod specials;
mod stream;
mod texts;
mod to_vocabulary;
mod tokenizer;
pub mod train;
mod vocabulary;
mod words;

pub use error::Error;
pub use pieces::Pieces;
pub use specials::Specials;
pub use stream::Utf8Stream;
pub use to_vocabulary::OwnedVocabulary;
pub use tokenizer::{Part, Tokenizer};
pub use vocabulary::Vocabulary;
pub use words::{Words, lowercase_into};
