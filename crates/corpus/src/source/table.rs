//! CSV and JSON Lines: a column or key with raw messages or with text.
//!
//! The column is the one asked for, or the first of `message`, `text`, `body`, `content`, `email`,
//! `raw`. Whether it holds raw messages or text is told by the value itself: a raw message begins
//! with header lines. The Enron export (`file,message`) names the owner in the first part of `file`.

use super::{Body, Columns, MAX_MESSAGE_BYTES, Record, Sink, TableOptions, broken, is_header_line};
use crate::Error;
use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
};

const TEXT_NAMES: [&str; 6] = ["message", "text", "body", "content", "email", "raw"];
const SENDER_NAMES: [&str; 4] = ["sender", "from", "author", "user"];
const SUBJECT_NAMES: [&str; 2] = ["subject", "title"];

pub(super) fn read_csv<R: Read>(
    source: R,
    path: &Path,
    options: &TableOptions,
    sink: &mut Sink<'_>,
) -> Result<(), Error> {
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(source);
    let header = match reader.headers() {
        Ok(header) => header.clone(),
        Err(error) => return sink(broken(1, format!("no header line: {error}"))),
    };
    let find = |names: &[&str]| {
        names
            .iter()
            .find_map(|name| header.iter().position(|h| h.trim().eq_ignore_ascii_case(name)))
    };
    let need = |name: &str| {
        find(&[name]).ok_or_else(|| Error::Column {
            path: path.to_owned(),
            column: name.to_owned(),
            known: header.iter().collect::<Vec<_>>().join(", "),
        })
    };
    let text = match &options.column {
        Some(name) => need(name)?,
        None => find(&TEXT_NAMES).map_or_else(|| need(TEXT_NAMES[0]), Ok)?,
    };
    let file = find(&["file"]);
    let (sender, subject) = (find(&SENDER_NAMES), find(&SUBJECT_NAMES));
    let field = options.field.as_ref().and_then(|name| find(&[name.as_str()]));
    let mut row = csv::ByteRecord::new();
    let mut number = 0;
    loop {
        number += 1;
        match reader.read_byte_record(&mut row) {
            Ok(false) => return Ok(()),
            Ok(true) => {}
            Err(error) => {
                sink(broken(number, format!("not a row: {error}")))?;
                if error.is_io_error() {
                    return Ok(());
                }
                continue;
            }
        }
        let cell = |at: Option<usize>| {
            let bytes = row.get(at?)?;
            Some(String::from_utf8_lossy(bytes).trim().to_owned()).filter(|cell| !cell.is_empty())
        };
        let columns = Columns {
            mailbox: cell(file).map(|file| first_part(&file)),
            sender: cell(sender).map(|sender| sender.to_lowercase()),
            subject: cell(subject),
            field: cell(field),
        };
        match row.get(text) {
            None => sink(broken(number, format!("row has {} cells", row.len())))?,
            Some(value) => give(value, number, columns, sink)?,
        }
    }
}

fn first_part(file: &str) -> String {
    file.split('/').find(|part| !part.is_empty() && *part != "maildir").unwrap_or(file).to_owned()
}

fn give(value: &[u8], number: u64, columns: Columns, sink: &mut Sink<'_>) -> Result<(), Error> {
    if looks_like_mail(value) {
        return sink(Record { body: Body::Mail(value), number, columns });
    }
    let text = String::from_utf8_lossy(value);
    sink(Record { body: Body::Text(&text), number, columns })
}

/// Header lines at the start: two of them, or one and an empty line; one has a usual name.
pub(super) fn looks_like_mail(value: &[u8]) -> bool {
    const USUAL: [&[u8]; 10] = [
        b"from",
        b"to",
        b"subject",
        b"date",
        b"message-id",
        b"received",
        b"return-path",
        b"mime-version",
        b"content-type",
        b"delivered-to",
    ];
    let usual = |line: &[u8]| {
        let name = &line[..memchr::memchr(b':', line).unwrap_or(0)];
        USUAL.iter().any(|u| name.eq_ignore_ascii_case(u))
    };
    let head = &value[..value.len().min(16 << 10)];
    let mut lines = head.split(|&b| b == b'\n').map(<[u8]>::trim_ascii_end);
    let Some(first) = lines.next().filter(|line| is_header_line(line)) else { return false };
    let mut any = usual(first);
    let mut headers = 1;
    for line in lines {
        if line.is_empty() {
            return any;
        }
        let folded = line[0].is_ascii_whitespace();
        if !folded && !is_header_line(line) {
            return false;
        }
        any |= !folded && usual(line);
        headers += usize::from(!folded);
        if any && headers >= 3 {
            return true;
        }
    }
    any && headers >= 2
}

pub(super) fn read_jsonl<R: Read>(
    source: R,
    options: &TableOptions,
    sink: &mut Sink<'_>,
) -> Result<(), Error> {
    let mut lines = BufReader::with_capacity(1 << 16, source);
    let mut line = Vec::new();
    let mut number = 0;
    loop {
        line.clear();
        number += 1;
        match (&mut lines).take(MAX_MESSAGE_BYTES as u64).read_until(b'\n', &mut line) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) => return sink(broken(number, format!("the file breaks off: {error}"))),
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        match serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&line) {
            Err(error) => sink(broken(number, format!("not a JSON object: {error}")))?,
            Ok(object) => give_object(&object, number, options, sink)?,
        }
    }
}

fn give_object(
    object: &serde_json::Map<String, serde_json::Value>,
    number: u64,
    options: &TableOptions,
    sink: &mut Sink<'_>,
) -> Result<(), Error> {
    let get = |name: &str| {
        object.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).and_then(|(_, value)| {
            match value {
                serde_json::Value::String(text) => Some(text.clone()),
                serde_json::Value::Number(number) => Some(number.to_string()),
                serde_json::Value::Bool(truth) => Some(truth.to_string()),
                _ => None,
            }
        })
    };
    let first = |names: &[&str]| names.iter().find_map(|name| get(name));
    let text = match &options.column {
        Some(name) => get(name),
        None => first(&TEXT_NAMES),
    };
    let columns = Columns {
        mailbox: get("file").map(|file| first_part(&file)),
        sender: first(&SENDER_NAMES).map(|sender| sender.to_lowercase()),
        subject: first(&SUBJECT_NAMES),
        field: options.field.as_deref().and_then(get),
    };
    match text {
        Some(text) => give(text.as_bytes(), number, columns, sink),
        None => {
            let keys: Vec<&str> = object.keys().take(8).map(String::as_str).collect();
            let wanted = options.column.as_deref().unwrap_or("message or text");
            sink(broken(number, format!("no key `{wanted}`; there are: {}", keys.join(", "))))
        }
    }
}
