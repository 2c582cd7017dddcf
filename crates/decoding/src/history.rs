//! What a rule may look at besides the logits: the tokens so far and the mask of a grammar.

use crate::rule::Window;

/// The tokens of one sequence, and which tokens may come next. Lent for one step.
#[derive(Debug, Clone, Copy, Default)]
pub struct History<'a> {
    prompt: &'a [u32],
    generated: &'a [u32],
    mask: Option<Mask<'a>>,
}

impl<'a> History<'a> {
    /// A sequence without a mask.
    #[must_use]
    pub fn new(prompt: &'a [u32], generated: &'a [u32]) -> Self {
        Self { prompt, generated, mask: None }
    }

    /// The same with a mask: the hook for structured output. It acts before every rule.
    #[must_use]
    pub fn with_mask(self, mask: Mask<'a>) -> Self {
        Self { mask: Some(mask), ..self }
    }

    /// The mask, if any.
    #[must_use]
    pub fn mask(&self) -> Option<Mask<'a>> {
        self.mask
    }

    /// The tokens that a window covers, oldest first, in two pieces.
    pub(crate) fn window(&self, window: Window) -> [&'a [u32]; 2] {
        match window {
            Window::All => [self.prompt, self.generated],
            Window::Generated => [&[], self.generated],
            Window::Last(n) => {
                let from_generated = n.min(self.generated.len());
                let from_prompt = (n - from_generated).min(self.prompt.len());
                [last(self.prompt, from_prompt), last(self.generated, from_generated)]
            }
        }
    }
}

fn last(tokens: &[u32], n: usize) -> &[u32] {
    &tokens[tokens.len() - n..]
}

/// A set of allowed tokens, one bit a token: bit `id % 32` of word `id / 32`.
#[derive(Debug, Clone, Copy)]
pub struct Mask<'a> {
    words: &'a [u32],
}

impl<'a> Mask<'a> {
    /// Wraps words as grammar engines give them.
    #[must_use]
    pub fn new(words: &'a [u32]) -> Self {
        Self { words }
    }

    /// How many tokens it covers.
    #[must_use]
    pub fn num_tokens(&self) -> usize {
        self.words.len().saturating_mul(32)
    }

    /// Whether a token may come; one beyond the mask may not.
    #[must_use]
    pub fn allows(&self, id: usize) -> bool {
        self.words.get(id / 32).is_some_and(|word| (word >> (id % 32)) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows() {
        let history = History::new(&[1, 2, 3], &[4, 5]);
        assert_eq!(history.window(Window::All), [&[1, 2, 3][..], &[4, 5]]);
        assert_eq!(history.window(Window::Generated), [&[][..], &[4, 5]]);
        assert_eq!(history.window(Window::Last(1)), [&[][..], &[5]]);
        assert_eq!(history.window(Window::Last(3)), [&[3][..], &[4, 5]]);
        assert_eq!(history.window(Window::Last(99)), [&[1, 2, 3][..], &[4, 5]]);
        assert_eq!(history.window(Window::Last(0)), [&[0_u32; 0][..], &[]]);
    }

    #[test]
    fn masks() {
        let mask = Mask::new(&[0b101, 1]);
        let allowed: Vec<_> = (0..70).filter(|&id| mask.allows(id)).collect();
        assert_eq!(allowed, [0, 2, 32]);
        assert_eq!(mask.num_tokens(), 64);
    }
}
