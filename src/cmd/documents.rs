//! Training data that is no folder of `data prepare`: plain texts, and conversations of which the
//! assistant's tokens count. Both are encoded by the model's own tokenizer.

use crate::cmd::conversation::answers;
use crate::error::CliError;
use chat::{ChatTemplate, Message};
use kernels::{mix, uniform};
use serde::Deserialize;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use tokenizer::Tokenizer;
use train::{DocumentList, Documents};

/// What documents are encoded with.
pub struct Encoding<'a> {
    /// The model's tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// Tokens that end a text or an answer.
    pub ends: &'a [u32],
    /// The chat template, where the model has one.
    pub template: Option<&'a ChatTemplate>,
    /// Tokens that a sequence holds at most.
    pub max_len: usize,
}

/// What was read.
pub struct Read {
    /// The training side.
    pub train: Documents,
    /// The validation side.
    pub valid: Documents,
    /// Names the data: it changes with every token.
    pub hash: String,
    /// What people should know, a line each.
    pub notes: Vec<String>,
}

/// Which files, and how they are shared out.
pub struct Files<'a> {
    /// Texts: one document a file, or a line's `text` of JSON Lines.
    pub texts: &'a [PathBuf],
    /// Conversations: JSON Lines with `messages`.
    pub chats: &'a [PathBuf],
    /// The validation side; a share of the documents where there are none.
    pub valid: &'a [PathBuf],
    /// That share.
    pub valid_share: f64,
}

#[derive(Deserialize)]
struct TextLine {
    text: String,
}

#[derive(Deserialize)]
struct ChatLine {
    messages: Vec<Message>,
    /// As Hugging Face documents them; the template tells the model of them.
    #[serde(default)]
    tools: Option<Vec<Value>>,
}

/// What is taken for the validation side where the share of it was none of the documents.
#[derive(Clone, Copy)]
enum Held {
    /// The document at this place.
    Document(u64),
    /// The end of the text at this place, there being no other.
    End(u64),
}

#[derive(Default)]
struct Sides {
    train: DocumentList,
    valid: DocumentList,
    seen: u64,
    /// Documents with a target, and the place of the last of them.
    full: u64,
    last: u64,
    held: Option<Held>,
    hash: u64,
    shortened: usize,
    left_out: usize,
}

/// Reads all files.
pub fn read(files: &Files<'_>, encoding: &Encoding<'_>) -> Result<Read, CliError> {
    if !(0.0..1.0).contains(&files.valid_share) {
        let share = files.valid_share;
        return Err(CliError::input(format!("--valid-share {share}: it must lie in 0..1")));
    }
    if encoding.max_len < 2 {
        return Err(CliError::input("--max-len: a sequence holds at least 2 tokens"));
    }
    let mut sides = sides_of(files, encoding, None)?;
    let mut held = None;
    if sides.valid.is_empty() && files.valid.is_empty() && files.valid_share > 0.0 {
        held = match sides.full {
            0 => None,
            1 => Some(Held::End(sides.last)),
            _ => Some(Held::Document(sides.last)),
        };
        sides = sides_of(files, encoding, held)?;
    }
    let without = files.valid.is_empty() && files.valid_share == 0.0;
    for (side, name) in [(&sides.train, "training"), (&sides.valid, "validation")] {
        if side.is_empty() && !(without && name == "validation") {
            return Err(CliError::input(format!(
                "the {name} side has no document with a target; give more documents, another \
                 --valid-share, or a file with --valid"
            )));
        }
    }
    let to_train = format!("{} documents of {} tokens", sides.train.len(), sides.train.tokens());
    let mut notes = vec![match without {
        true => format!(
            "{to_train} to train on and none to validate: nothing is evaluated, nothing stops the run \
             early, and the last weights are kept"
        ),
        false => {
            let (documents, tokens) = (sides.valid.len(), sides.valid.tokens());
            format!("{to_train} to train on, {documents} of {tokens} to validate")
        }
    }];
    match held {
        Some(Held::Document(_)) => {
            notes
                .push("the last document validates: --valid-share is of fewer than one".to_owned());
        }
        Some(Held::End(_)) => notes.push("the end of the only text validates".to_owned()),
        None => {}
    }
    if sides.shortened > 0 {
        let (n, most) = (sides.shortened, encoding.max_len);
        notes.push(format!("{n} conversations were cut at {most} tokens (--max-len)"));
    }
    if sides.left_out > 0 {
        notes.push(format!("{} documents had no target and were left out", sides.left_out));
    }
    let room = encoding.max_len - 1;
    Ok(Read {
        train: sides.train.pack(room),
        valid: sides.valid.pack(room),
        hash: format!("{:016x}", sides.hash),
        notes,
    })
}

/// All files, once.
fn sides_of(
    files: &Files<'_>,
    encoding: &Encoding<'_>,
    held: Option<Held>,
) -> Result<Sides, CliError> {
    let mut sides = Sides { held, ..Sides::default() };
    let share = if files.valid.is_empty() { files.valid_share } else { 0.0 };
    for (paths, is_chat) in [(files.texts, false), (files.chats, true)] {
        for path in paths {
            one_file(path, is_chat, encoding, share, &mut sides)?;
        }
    }
    let is_chat = files.texts.is_empty();
    for path in files.valid {
        one_file(path, is_chat, encoding, 1.0, &mut sides)?;
    }
    Ok(sides)
}

fn one_file(
    path: &Path,
    is_chat: bool,
    encoding: &Encoding<'_>,
    valid_share: f64,
    sides: &mut Sides,
) -> Result<(), CliError> {
    let fail = |e: std::io::Error| CliError::input(format!("{}: {e}", path.display()));
    let lines = path.extension().is_some_and(|e| e == "jsonl" || e == "ndjson");
    if !is_chat && !lines {
        let text = std::fs::read_to_string(path).map_err(fail)?;
        text_document(&text, encoding, valid_share, sides);
        return Ok(());
    }
    for (i, line) in BufReader::new(std::fs::File::open(path).map_err(fail)?).lines().enumerate() {
        let line = line.map_err(fail)?;
        let wrong = |e: &dyn std::fmt::Display| {
            CliError::input(format!("{}: line {}: {e}", path.display(), i + 1))
        };
        if line.trim().is_empty() {
            continue;
        }
        if is_chat {
            let chat: ChatLine = serde_json::from_str(&line)
                .map_err(|e| wrong(&format!("expected an object with messages: {e}")))?;
            chat_document(chat, encoding, valid_share, sides).map_err(|e| wrong(&e))?;
        } else {
            let text: TextLine = serde_json::from_str(&line)
                .map_err(|e| wrong(&format!("expected an object with a text: {e}")))?;
            text_document(&text.text, encoding, valid_share, sides);
        }
    }
    Ok(())
}

/// A text between its beginning and its end token, in pieces that overlap by one token, so that
/// each of its tokens is a target once.
fn text_document(text: &str, encoding: &Encoding<'_>, valid_share: f64, sides: &mut Sides) {
    let mut ids = encoding.tokenizer.put_before();
    ids.extend(encoding.tokenizer.encode(text));
    ids.extend(encoding.ends.first());
    let valid = sides.next_is_valid(valid_share);
    match sides.held {
        Some(Held::End(place)) if place == sides.seen && ids.len() > 2 => {
            let end = ((ids.len() as f64 * valid_share) as usize).clamp(1, ids.len() - 2);
            let from = ids.len() - 1 - end;
            pieces(&ids[..=from], encoding.max_len, false, sides);
            pieces(&ids[from..], encoding.max_len, true, sides);
        }
        _ => pieces(&ids, encoding.max_len, valid, sides),
    }
}

/// Pieces that overlap by one token.
fn pieces(ids: &[u32], most: usize, valid: bool, sides: &mut Sides) {
    let mut start = 0;
    while start + 1 < ids.len() {
        let end = ids.len().min(start + most);
        sides.add(valid, ids[start..end].iter().map(|&id| (id, true)));
        start = end - 1;
    }
}

fn chat_document(
    chat: ChatLine,
    encoding: &Encoding<'_>,
    valid_share: f64,
    sides: &mut Sides,
) -> Result<(), String> {
    let Some(template) = encoding.template else {
        return Err("the model has no chat template; take an instruct model, or --text".to_owned());
    };
    let tools = chat.tools.unwrap_or_default();
    let said = (&chat.messages[..], &tools[..]);
    let mut tokens =
        answers(template, encoding.tokenizer, said, encoding.ends).map_err(|e| e.to_string())?;
    sides.shortened += usize::from(tokens.len() > encoding.max_len);
    tokens.truncate(encoding.max_len);
    let valid = sides.next_is_valid(valid_share);
    sides.add(valid, tokens);
    Ok(())
}

impl Sides {
    /// Whether the next document goes to the validation side: a function of its place alone.
    fn next_is_valid(&mut self, share: f64) -> bool {
        self.seen += 1;
        let held = matches!(self.held, Some(Held::Document(place)) if place == self.seen);
        held || uniform(0x7661_6c69_6420, self.seen) < share
    }

    fn add(&mut self, valid: bool, tokens: impl IntoIterator<Item = (u32, bool)>) {
        let mut hash = mix(self.hash ^ u64::from(valid));
        let tokens = tokens.into_iter().inspect(|&(id, counted)| {
            hash = mix(hash ^ u64::from(id) << 1 ^ u64::from(counted));
        });
        let side = if valid { &mut self.valid } else { &mut self.train };
        let full = side.push(tokens);
        self.left_out += usize::from(!full);
        if full && self.last != self.seen {
            (self.full, self.last) = (self.full + 1, self.seen);
        }
        self.hash = hash;
    }
}
