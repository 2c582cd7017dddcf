//! What an answer says: text, and calls of tools as they come.

use chat::{CallReader, Read};
use engine::serving::Chosen;
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// Text.
    Text(String),
    /// A call begins; its arguments follow.
    Begin(Called),
    /// More of the arguments of the call under way.
    Arguments(String),
    /// The call is whole.
    End,
    /// The call does not hold; this is the text of all of it.
    Broken(String),
}

/// A call of a tool, with its name for the answer to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Called {
    /// Letters and digits, not two alike.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The JSON of an object, as far as it came.
    pub arguments: String,
    /// All the text of a call that does not hold.
    pub broken: Option<String>,
}

/// A part of what was said.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// Text.
    Text(String),
    /// A call of a tool.
    Call(Called),
}

/// Adds a piece to what was said.
pub fn add(all: &mut Vec<Said>, part: &Part) {
    match (part, all.last_mut()) {
        (Part::Text(text), _) => add_text(all, text),
        (Part::Begin(called), _) => all.push(Said::Call(called.clone())),
        (Part::Arguments(more), Some(Said::Call(called))) => called.arguments.push_str(more),
        (Part::Broken(text), Some(Said::Call(called))) => called.broken = Some(text.clone()),
        _ => {}
    }
}

fn add_text(all: &mut Vec<Said>, text: &str) {
    match all.last_mut() {
        Some(Said::Text(last)) => last.push_str(text),
        _ => all.push(Said::Text(text.to_owned())),
    }
}

/// What was said, where all of it is known: a call that does not hold is text.
#[must_use]
pub fn whole(said: &[Said]) -> Vec<Said> {
    let mut all = Vec::new();
    for one in said {
        match one {
            Said::Text(text) | Said::Call(Called { broken: Some(text), .. }) => {
                add_text(&mut all, text);
            }
            Said::Call(called) => all.push(Said::Call(called.clone())),
        }
    }
    all
}

/// Hears one sequence.
#[derive(Debug, Clone, Default)]
pub struct Listener {
    reader: Option<CallReader>,
    /// Control tokens, which have no text, and the marks of a call that they are.
    marks: Vec<(u32, &'static str)>,
    short_ids: bool,
}

impl Listener {
    /// One that hears calls too.
    #[must_use]
    pub fn new(reader: CallReader, marks: Vec<(u32, &'static str)>, short_ids: bool) -> Self {
        Self { reader: Some(reader), marks, short_ids }
    }

    /// What a token says. `name` is the answer's own, which the ids of its calls follow from.
    pub fn hear(&mut self, chosen: &Chosen, name: &str) -> Vec<Part> {
        let Some(reader) = &mut self.reader else {
            return match chosen.text.is_empty() {
                true => Vec::new(),
                false => vec![Part::Text(chosen.text.clone())],
            };
        };
        let before = reader.calls();
        let mut read = reader.push(&chosen.text);
        if let Some((_, mark)) = self.marks.iter().find(|(id, _)| *id == chosen.choice.id) {
            read.extend(reader.push(mark));
        }
        if chosen.finish.is_some() {
            read.extend(reader.finish());
        }
        self.parts(read, before, name)
    }

    /// The answer ended without a token.
    pub fn end(&mut self, name: &str) -> Vec<Part> {
        let Some(reader) = &mut self.reader else { return Vec::new() };
        let before = reader.calls();
        let read = reader.finish();
        self.parts(read, before, name)
    }

    fn parts(&self, read: Vec<Read>, mut before: usize, name: &str) -> Vec<Part> {
        let part = |one: Read| match one {
            Read::Text(text) => Part::Text(text),
            Read::Begin(tool) => {
                before += 1;
                let id = hex(format!("{name} {before}").as_bytes());
                let id = if self.short_ids { &id[..9] } else { &id[..24] };
                let (id, arguments, broken) = (id.to_owned(), String::new(), None);
                Part::Begin(Called { id, name: tool, arguments, broken })
            }
            Read::Arguments(more) => Part::Arguments(more),
            Read::End => Part::End,
            Read::Broken(text) => Part::Broken(text),
        };
        read.into_iter().map(part).collect()
    }

    /// Whether the answer has called a tool.
    #[must_use]
    pub fn has_called(&self) -> bool {
        self.reader.as_ref().is_some_and(|reader| reader.whole_calls() > 0)
    }

    /// What did not hold, since the last time.
    pub fn take_warnings(&mut self) -> Vec<String> {
        self.reader.as_mut().map(|reader| std::mem::take(&mut reader.warnings)).unwrap_or_default()
    }
}

/// The SHA-256 of some bytes, in hex.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let mut out = String::new();
    for byte in Sha256::digest(bytes) {
        // A text takes all that is written to it.
        let _ = write!(out, "{byte:02x}");
    }
    out
}
