//! Stop strings over streamed text: across token boundaries, with no more held back than needed.
//!
//! The match that is complete first wins; among those that end at the same place, the one that
//! starts first. So the result does not depend on how the text is cut into pieces. Only a suffix
//! that is a proper prefix of a stop string is ever held. Pieces are whole characters (`&str`);
//! joining the bytes of tokens into characters is the tokenizer's stream's work.

use serde::{Deserialize, Serialize};

/// Whether the stop string itself belongs to the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StopText {
    /// The text ends before it.
    #[default]
    Exclude,
    /// The text ends with it.
    Include,
}

/// What a piece of text releases.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Released {
    /// Text that may be shown now.
    pub text: String,
    /// Index of the stop string that matched; the text is then complete.
    pub stopped: Option<usize>,
}

/// An empty stop string would stop everything at once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("stop string {index} is empty; expected at least one character, or leave it out")]
pub struct EmptyStop {
    /// Its index in the list.
    pub index: usize,
}

/// Watches one stream of text for stop strings.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    stop_text: StopText,
    held: String,
    is_done: bool,
}

impl StopMatcher {
    /// A matcher for these stop strings; with none, text passes straight through.
    ///
    /// # Errors
    /// [`EmptyStop`] if one of them is empty.
    pub fn new(stops: Vec<String>, stop_text: StopText) -> Result<Self, EmptyStop> {
        if let Some(index) = stops.iter().position(String::is_empty) {
            return Err(EmptyStop { index });
        }
        Ok(Self { stops, stop_text, held: String::new(), is_done: false })
    }

    /// Takes the next piece and says what may be shown. After a match everything is swallowed.
    pub fn push(&mut self, piece: &str) -> Released {
        if self.is_done {
            return Released::default();
        }
        self.held.push_str(piece);
        if let Some(Match { index, start, end }) = self.first_match() {
            self.is_done = true;
            let cut = if self.stop_text == StopText::Include { end } else { start };
            self.held.truncate(cut);
            return Released { text: std::mem::take(&mut self.held), stopped: Some(index) };
        }
        let suffix = self.held.split_off(self.held.len() - self.num_held_bytes());
        Released { text: std::mem::replace(&mut self.held, suffix), stopped: None }
    }

    /// The generation ended for another reason: releases what is still held.
    #[must_use]
    pub fn finish(mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Text held back because a stop string may have begun.
    #[must_use]
    pub fn held(&self) -> &str {
        &self.held
    }

    fn first_match(&self) -> Option<Match> {
        let matches = self.stops.iter().enumerate().filter_map(|(index, stop)| {
            let start = self.held.find(stop.as_str())?;
            Some(Match { index, start, end: start + stop.len() })
        });
        matches.min_by_key(|m| (m.end, m.start))
    }

    /// Length of the longest suffix that a stop string begins with.
    fn num_held_bytes(&self) -> usize {
        let held = self.held.as_bytes();
        let longest = |stop: &String| {
            let most = held.len().min(stop.len() - 1);
            (1..=most).rev().find(|&n| held.ends_with(&stop.as_bytes()[..n])).unwrap_or(0)
        };
        self.stops.iter().map(longest).max().unwrap_or(0)
    }
}

struct Match {
    index: usize,
    start: usize,
    end: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Shows pieces as a client gets them, and the whole text.
    fn stream(pieces: &[&str], stops: &[&str], text: StopText) -> (Vec<String>, Option<usize>) {
        let stops = stops.iter().map(ToString::to_string).collect();
        let mut matcher = StopMatcher::new(stops, text).unwrap();
        let mut shown = Vec::new();
        for piece in pieces {
            let released = matcher.push(piece);
            shown.push(released.text);
            if released.stopped.is_some() {
                return (shown, released.stopped);
            }
        }
        shown.push(matcher.finish());
        (shown, None)
    }

    fn text(pieces: &[&str], stops: &[&str]) -> (String, Option<usize>) {
        let (shown, stopped) = stream(pieces, stops, StopText::Exclude);
        (shown.concat(), stopped)
    }

    #[test]
    fn o04_a_stop_string_across_tokens() {
        assert_eq!(text(&["DEF", "G", "HI", "J"], &["DEFGHIJ"]), (String::new(), Some(0)));
        assert_eq!(text(&["DEF", "G", "X"], &["DEFGHIJ"]), ("DEFGX".to_owned(), None));
        let fox = text(&["The quick brown", " fox"], &["own fox"]);
        assert_eq!(fox, ("The quick br".to_owned(), Some(0)));
        assert_eq!(text(&["a", "b"], &["abX", "b"]), ("a".to_owned(), Some(1)));
    }

    #[test]
    fn only_a_possible_beginning_is_held() {
        let (shown, _) =
            stream(&["The quick brown", " fox", "."], &["own foxes"], StopText::Exclude);
        assert_eq!(shown, ["The quick br", "", "own fox.", ""]);
        let (shown, _) = stream(&["aab", "a"], &["abab"], StopText::Exclude);
        assert_eq!(shown, ["a", "", "aba"]);
    }

    #[test]
    fn included_and_beyond_ascii() {
        let (shown, stopped) = stream(&["né", "é!x"], &["éé!"], StopText::Include);
        assert_eq!((shown.concat().as_str(), stopped), ("néé!", Some(0)));
        // One byte in common with é (C3 A9) is not a beginning of à (C3 A0).
        let (shown, _) = stream(&["é", "x"], &["à"], StopText::Exclude);
        assert_eq!(shown[0], "é");
    }

    #[test]
    fn the_end_swallows_and_empty_stops_are_refused() {
        let mut matcher = StopMatcher::new(vec!["b".to_owned()], StopText::Exclude).unwrap();
        assert_eq!(matcher.push("abc").text, "a");
        assert_eq!(matcher.push("more"), Released::default());
        let stops = vec!["x".to_owned(), String::new()];
        assert_eq!(StopMatcher::new(stops, StopText::Exclude).unwrap_err(), EmptyStop { index: 1 });
    }

    proptest! {
        /// However the text is cut, the client gets the same as in one piece, and what is held
        /// is always a proper prefix of a stop string.
        #[test]
        fn cuts_do_not_matter(
            whole in "[abcé]{0,30}",
            stops in prop::collection::vec("[abcé]{1,4}", 0..4),
            cuts in prop::collection::vec(any::<bool>(), 30),
        ) {
            let one: Vec<&str> = stops.iter().map(String::as_str).collect();
            let expected = text(&[&whole], &one);
            let mut matcher = StopMatcher::new(stops.clone(), StopText::Exclude).unwrap();
            let (mut shown, mut piece, mut stopped) = (String::new(), String::new(), None);
            for (c, cut) in whole.chars().zip(cuts.iter().chain(std::iter::repeat(&false))) {
                piece.push(c);
                if *cut && stopped.is_none() {
                    let released = matcher.push(&std::mem::take(&mut piece));
                    shown.push_str(&released.text);
                    stopped = released.stopped;
                    let held = matcher.held();
                    prop_assert!(
                        held.is_empty() || stops.iter().any(|s| s != held && s.starts_with(held))
                    );
                }
            }
            let released = matcher.push(&piece);
            shown.push_str(&released.text);
            stopped = stopped.or(released.stopped);
            if stopped.is_none() {
                shown.push_str(&matcher.finish());
            }
            prop_assert_eq!((shown, stopped), expected);
        }
    }
}
