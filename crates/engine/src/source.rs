//! Where rows of logits come from: the contract between the loop and a model.

use crate::Error;
use ledger::Plan;

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

    /// What [`begin`](Self::begin) will allocate for a prompt of so many tokens.
    ///
    /// # Errors
    /// When the configuration makes no model.
    fn plan(&self, prompt: usize, room: Room) -> Result<Plan, Error>;

    /// Forgets everything, reads the prompt (at least one token) once, shares what it remembers of
    /// it among `room.sequences` sequences and writes the logits that follow it (V).
    ///
    /// # Errors
    /// When memory is not to be had.
    fn begin(&mut self, prompt: &[u32], room: Room, logits: &mut [f32]) -> Result<(), Error>;

    /// Extends every sequence by one token, in order, and writes their logits (S×V).
    fn step(&mut self, tokens: &[u32], logits: &mut [f32]);

    /// Rearranges what is remembered: sequence i goes on from the past of sequence `parents[i]`.
    /// Those that none goes on from are forgotten; a past that several go on from is copied.
    ///
    /// # Errors
    /// When memory is not to be had.
    fn select(&mut self, parents: &[usize]) -> Result<(), Error>;

    /// Reads a known text from its beginning in as few passes as memory allows and hands over the
    /// logits that follow each of its tokens (place, V), in order.
    ///
    /// # Errors
    /// When memory is not to be had, or what `each` returns.
    fn pass(&mut self, ids: &[u32], each: &mut Each<'_>) -> Result<(), Error>;
}

/// Place i becomes what stood at `parents[i]`. The last use of a place takes it, others copy it, so
/// that there are never more than before and after.
pub(crate) fn select_places<T>(
    all: &mut Vec<T>,
    parents: &[usize],
    copy: impl Fn(&T) -> Result<T, Error>,
) -> Result<(), Error> {
    let mut uses = vec![0_usize; all.len()];
    parents.iter().for_each(|&parent| uses[parent] += 1);
    let mut old: Vec<Option<T>> =
        all.drain(..).zip(&uses).map(|(one, &uses)| (uses > 0).then_some(one)).collect();
    for &parent in parents {
        uses[parent] -= 1;
        match &old[parent] {
            Some(one) if uses[parent] > 0 => all.push(copy(one)?),
            _ => all.extend(old[parent].take()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_move_and_are_copied_only_where_needed() {
        let copies = std::cell::Cell::new(0);
        let copy = |one: &char| {
            copies.set(copies.get() + 1);
            Ok(*one)
        };
        let check = |parents: &[usize], expected: &str, expected_copies: usize| {
            copies.set(0);
            let mut all: Vec<char> = "abcd".chars().collect();
            select_places(&mut all, parents, copy).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(all.iter().collect::<String>(), expected);
            assert_eq!(copies.get(), expected_copies, "{parents:?}");
        };
        check(&[0, 2, 3], "acd", 0);
        check(&[3, 0], "da", 0);
        check(&[1, 1, 0, 1], "bbab", 2);
        check(&[], "", 0);
    }
}
