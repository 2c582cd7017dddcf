//! Guesses what comes next from what was there before: where the last tokens stand earlier in the
//! text, what followed them there. After Saxena, "Prompt Lookup Decoding", 2023.
//!
//! A guess never changes an answer: each token is chosen as if there were none, and a guess that is
//! what was chosen has only saved a step.

/// The longest and the shortest ending that is looked for.
const ENDINGS: [usize; 3] = [4, 3, 2];
/// Tokens that are looked through, from the end.
const REACH: usize = 4096;

/// `most` tokens that followed the latest earlier place of the longest known ending.
#[must_use]
pub fn lookup(text: &[u32], most: usize) -> Vec<u32> {
    let text = &text[text.len().saturating_sub(REACH)..];
    for length in ENDINGS {
        let Some(start) = text.len().checked_sub(length) else { continue };
        let ending = &text[start..];
        let place = (0..start).rev().find(|&at| text[at..].starts_with(ending));
        if let Some(at) = place {
            // Beyond the end of the text the guess goes on with itself, as what repeats does.
            let mut known = text.to_vec();
            for next in at + length..at + length + most {
                known.push(known[next]);
            }
            return known.split_off(text.len());
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_followed_is_guessed() {
        assert_eq!(lookup(&[1, 2, 3, 9, 8, 1, 2, 3], 2), [9, 8]);
        assert_eq!(lookup(&[5, 6, 1, 5, 6, 2, 5, 6], 1), [2], "the latest place");
        assert_eq!(lookup(&[1, 2, 3, 7, 0, 2, 3, 4, 1, 2, 3], 1), [7], "the longest ending");
        assert_eq!(lookup(&[4, 4, 4, 4], 3), [4, 4, 4]);
        assert_eq!(lookup(&[7, 1, 2, 1, 2], 5), [1, 2, 1, 2, 1], "what repeats goes on");
        assert_eq!(lookup(&[1, 2, 3, 4], 3), [0_u32; 0]);
        assert_eq!(lookup(&[], 3), [0_u32; 0]);
        assert_eq!(lookup(&[1, 2, 1, 2], 0), [0_u32; 0]);
    }
}
