//! Files and folders to messages: what there is, in which format, one record at a time.

mod discover;
mod mbox;
mod open;
mod table;
mod text;

pub use discover::{Discovered, SourceFile, discover};
pub(crate) use mbox::is_header_line;
pub use mbox::{Item, MAX_MESSAGE_BYTES, MboxReader, Quoting};

use crate::Error;
use serde::{Deserialize, Serialize};
use std::io::Read;

/// The formats that are read. Each may be compressed with gzip or zstd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// mbox with `mboxrd` quoting (also reads `mboxo` but for `>>From`).
    Mbox,
    /// mbox with `mboxo` quoting.
    Mboxo,
    /// mbox with `Content-Length` and no quoting.
    Mboxcl2,
    /// A folder with `cur` and `new`.
    Maildir,
    /// One message a file.
    Eml,
    /// A table with a header line.
    Csv,
    /// One JSON object a line.
    Jsonl,
    /// Plain text: a paragraph is a message.
    Text,
}

impl Format {
    /// All names, for messages and help.
    pub const NAMES: &str = "mbox, mboxo, mboxcl2, maildir, eml, csv, jsonl, text";

    /// The name, as a user types it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mbox => "mbox",
            Self::Mboxo => "mboxo",
            Self::Mboxcl2 => "mboxcl2",
            Self::Maildir => "maildir",
            Self::Eml => "eml",
            Self::Csv => "csv",
            Self::Jsonl => "jsonl",
            Self::Text => "text",
        }
    }
}

/// What one message is before it is read.
#[derive(Debug)]
pub enum Body<'a> {
    /// A message with headers.
    Mail(&'a [u8]),
    /// Text as it is.
    Text(&'a str),
    /// Something that cannot be read, and why.
    Unreadable(String),
}

/// One message of a file.
#[derive(Debug)]
pub struct Record<'a> {
    /// The message.
    pub body: Body<'a>,
    /// Its number in the file, from 1 (the line for tables of text).
    pub number: u64,
    /// Columns or keys that came with it: mailbox, sender, subject and the field asked for.
    pub columns: Columns,
}

/// What a table says about a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Columns {
    /// The owner of the mailbox, where the table names files.
    pub mailbox: Option<String>,
    /// Who wrote it.
    pub sender: Option<String>,
    /// What it is about.
    pub subject: Option<String>,
    /// The column or key of `field:NAME`.
    pub field: Option<String>,
}

/// What to look for in tables.
#[derive(Debug, Clone, Default)]
pub struct TableOptions {
    /// The column or key with the message or text; `None` finds it.
    pub column: Option<String>,
    /// The column or key that groups are made of.
    pub field: Option<String>,
}

/// Takes the records of a file one by one.
pub type Sink<'s> = dyn FnMut(Record<'_>) -> Result<(), Error> + 's;

/// Numbers of one file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileCounts {
    /// Bytes read, after decompression.
    pub bytes: u64,
    /// mbox lines that might have been separators.
    pub doubtful_lines: u64,
}

/// Gives every record of `file` to `sink`.
///
/// # Errors
/// The file cannot be opened, a table lacks the column asked for, or the sink fails. A file that
/// breaks off is a record that cannot be read, not an error.
pub fn read_file(
    file: &SourceFile,
    options: &TableOptions,
    sink: &mut Sink<'_>,
) -> Result<FileCounts, Error> {
    let mut counted = open::Counted::new(open::open(&file.path)?);
    let mut doubtful_lines = 0;
    match file.format {
        Format::Mbox => doubtful_lines = read_mbox(&mut counted, Quoting::Rd, sink)?,
        Format::Mboxo => doubtful_lines = read_mbox(&mut counted, Quoting::O, sink)?,
        Format::Mboxcl2 => doubtful_lines = read_mbox(&mut counted, Quoting::Cl2, sink)?,
        Format::Maildir | Format::Eml => read_eml(&mut counted, sink)?,
        Format::Csv => table::read_csv(&mut counted, &file.path, options, sink)?,
        Format::Jsonl => table::read_jsonl(&mut counted, options, sink)?,
        Format::Text => text::read_text(&mut counted, sink)?,
    }
    Ok(FileCounts { bytes: counted.passed(), doubtful_lines })
}

fn broken(number: u64, why: String) -> Record<'static> {
    Record { body: Body::Unreadable(why), number, columns: Columns::default() }
}

pub(crate) fn read_mbox<R: Read>(
    source: R,
    quoting: Quoting,
    sink: &mut Sink<'_>,
) -> Result<u64, Error> {
    let mut reader = MboxReader::new(source, quoting);
    let mut number = 0;
    loop {
        number += 1;
        let body = match reader.next_item() {
            Ok(None) => return Ok(reader.doubtful_lines()),
            Ok(Some(Item::Message(raw))) => Body::Mail(raw),
            Ok(Some(Item::TooLong(bytes))) => Body::Unreadable(format!(
                "{bytes} bytes long; at most {MAX_MESSAGE_BYTES} are read"
            )),
            Ok(Some(Item::NoSeparator(bytes))) => Body::Unreadable(format!(
                "no `From ADDRESS DATE` line at the start; {bytes} bytes passed over"
            )),
            Err(error) => {
                sink(broken(number, format!("the file breaks off: {error}")))?;
                return Ok(reader.doubtful_lines());
            }
        };
        sink(Record { body, number, columns: Columns::default() })?;
    }
}

fn read_eml<R: Read>(source: R, sink: &mut Sink<'_>) -> Result<(), Error> {
    let mut raw = Vec::new();
    match source.take(MAX_MESSAGE_BYTES as u64 + 1).read_to_end(&mut raw) {
        Err(error) => sink(broken(1, format!("the file breaks off: {error}"))),
        Ok(_) if raw.len() > MAX_MESSAGE_BYTES => {
            sink(broken(1, format!("longer than the {MAX_MESSAGE_BYTES} bytes that are read")))
        }
        Ok(_) => sink(Record { body: Body::Mail(&raw), number: 1, columns: Columns::default() }),
    }
}
