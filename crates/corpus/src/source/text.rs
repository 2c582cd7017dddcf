//! Plain text: a paragraph (lines up to an empty line) is a message.

use super::{Body, Columns, Record, Sink, broken};
use crate::Error;
use std::io::{BufRead, BufReader, Read};

/// A longer paragraph goes on as a new message.
const MAX_PARAGRAPH: usize = 1 << 20;

pub(super) fn read_text<R: Read>(source: R, sink: &mut Sink<'_>) -> Result<(), Error> {
    let mut lines = BufReader::with_capacity(1 << 16, source);
    let mut paragraph = Vec::new();
    let mut number = 0;
    loop {
        let before = paragraph.len();
        let room = (MAX_PARAGRAPH - before.min(MAX_PARAGRAPH)).max(1);
        let read = match (&mut lines).take(room as u64).read_until(b'\n', &mut paragraph) {
            Ok(read) => read,
            Err(error) => return sink(broken(number + 1, format!("the file breaks off: {error}"))),
        };
        let blank = paragraph[before..].trim_ascii().is_empty();
        if read > 0 && !blank && paragraph.len() < MAX_PARAGRAPH {
            continue;
        }
        let rest = if read == 0 { Vec::new() } else { split_char(&mut paragraph) };
        let text = String::from_utf8_lossy(&paragraph);
        if !text.trim().is_empty() {
            number += 1;
            sink(Record { body: Body::Text(&text), number, columns: Columns::default() })?;
        }
        if read == 0 {
            return Ok(());
        }
        paragraph = rest;
    }
}

/// Takes an unfinished character from the end.
fn split_char(text: &mut Vec<u8>) -> Vec<u8> {
    match std::str::from_utf8(text) {
        Err(error) if error.error_len().is_none() => text.split_off(error.valid_up_to()),
        _ => Vec::new(),
    }
}
