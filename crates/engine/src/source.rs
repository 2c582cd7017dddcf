//! Where rows of logits come from: the contract between the loop and a model.

use crate::Error;

/// What is to be remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Sequences that run side by side.
    pub sequences: usize,
    /// Tokens that each is to read at most.
    pub tokens: usize,
}

/// Takes the logits (V) that follow the token at a place of a text.
pub type Each<'a> = dyn FnMut(usize, &[f32]) -> Result<(), Error> + 'a;

/// A model with the past of the sequences of one request. V is the vocabulary.
///
/// A row of logits depends on the tokens before it alone: not on the sequences beside it, and not
/// on whether they came one by one or together.
pub trait Source {
    /// V.
    fn vocab_size(&self) -> usize;

    /// Tokens that the model can see at most, if there is a limit.
    fn context_limit(&self) -> Option<usize>;

    /// Forgets everything, reads the prompt (at least one token) once, shares what it remembers of
    /// it among `room.sequences` sequences and writes the logits that follow it (V).
    ///
    /// # Errors
    /// When memory is not to be had.
    fn begin(&mut self, prompt: &[u32], room: Room, logits: &mut [f32]) -> Result<(), Error>;

    /// Extends every sequence by one token, in order, and writes their logits (S×V).
    fn step(&mut self, tokens: &[u32], logits: &mut [f32]);

    /// Forgets the sequences at the places where `keep` is false; the others close up.
    fn keep(&mut self, keep: &[bool]);

    /// Reads a known text from its beginning in as few passes as memory allows and hands over the
    /// logits that follow each of its tokens (place, V), in order.
    ///
    /// # Errors
    /// When memory is not to be had, or what `each` returns.
    fn pass(&mut self, ids: &[u32], each: &mut Each<'_>) -> Result<(), Error>;
}

/// Removes the places where `keep` is false.
pub(crate) fn keep_places<T>(all: &mut Vec<T>, keep: &[bool]) {
    let mut flags = keep.iter();
    all.retain(|_| flags.next().copied().unwrap_or(false));
}
