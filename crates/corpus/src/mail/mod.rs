//! One message from its bytes to the text a person wrote in it.
//!
//! Structure, headers and encodings are the work of the `mail-parser` library; this file chooses the
//! parts that are the text. `decode.rs` mends what senders got wrong, `html.rs` reduces HTML,
//! `strip.rs` takes away what others wrote.

mod decode;
mod depth;
mod html;
mod strip;

pub use depth::MAX_DEPTH;
pub use strip::{Stripped, strip};

use decode::text_of;
use mail_parser::{HeaderValue, Message, MessageParser, MessagePart, MimeHeaders, PartType};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// What was mended, counted over messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mended {
    /// Bytes beyond ASCII without a charset: read as UTF-8 where they are, else as Windows-1252.
    pub missing_charset: u64,
    /// A charset nobody knows: read the same way.
    pub unknown_charset: u64,
    /// Base64 with blanks, wrong padding or spare bits: decoded all the same.
    pub loose_base64: u64,
    /// Declared base64 or quoted-printable, but plain text: kept as it stands.
    pub mislabelled_encoding: u64,
}

/// A message, read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mail {
    /// The subject, decoded.
    pub subject: String,
    /// The address in `From`, lower-cased.
    pub sender: String,
    /// The message's own id, without angle brackets.
    pub message_id: Option<String>,
    /// Ids of `References` and `In-Reply-To`.
    pub references: Vec<String>,
    /// The header asked for with [`MailReader::with_header`].
    pub header: Option<String>,
    /// The text of the message, everything in it.
    pub text: String,
    /// Whether the text came from HTML.
    pub from_html: bool,
}

/// Reads messages.
#[derive(Debug, Clone)]
pub struct MailReader {
    parser: MessageParser,
    header: Option<String>,
    keep_quotes: bool,
}

impl MailReader {
    /// A reader; `keep_quotes` also keeps quoted blocks of HTML.
    pub fn new(keep_quotes: Quotes) -> Self {
        let parser = MessageParser::new()
            .with_mime_headers()
            .with_message_ids()
            .header_text("Subject")
            .header_address("From")
            .default_header_ignore();
        Self { parser, header: None, keep_quotes: keep_quotes == Quotes::Keep }
    }

    /// Also reads the header of this name.
    pub fn with_header(mut self, name: &str) -> Self {
        self.header = Some(name.to_owned());
        self.parser = self.parser.header_raw(name.to_owned());
        self
    }

    /// Reads one message and counts what had to be mended.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn read(&self, raw: &[u8], mended: &mut Mended) -> Result<Mail, String> {
        if let Some(why) = depth::refusal(raw) {
            return Err(why);
        }
        if let Some(mail) = self.read_simple(raw, mended) {
            return Ok(mail);
        }
        let message = self.parser.parse(raw).ok_or("no header can be read")?;
        let headers = !message.headers().is_empty();
        if !headers && !crate::source::is_header_line(raw) {
            return Err("no header can be read".into());
        }
        let mut mail = Mail {
            header: self.header.as_deref().and_then(|h| header(&message, h)),
            ..headers_of(&message)
        };
        let mut plain =
            join(&message, &message.text_body, |part| self.plain(part, &message, mended));
        if plain.trim().is_empty() {
            plain = join(&message, &message.html_body, |part| self.html(part, &message, mended));
        }
        if plain.trim().is_empty() {
            // A message cut short: parts whose end is missing are not in the library's body lists.
            let cut: Vec<u32> =
                (0..message.parts.len() as u32).filter(|&id| is_cut_text(&message, id)).collect();
            plain = join(&message, &cut, |part| self.plain(part, &message, mended));
        }
        mail.from_html = message.text_body.iter().all(|&id| is_html(&message, id))
            && !message.text_body.is_empty();
        mail.text = plain;
        Ok(mail)
    }

    /// Reads a message that is plain text as it stands, which most are, without looking for parts.
    fn read_simple(&self, raw: &[u8], mended: &mut Mended) -> Option<Mail> {
        let message = self.parser.parse_headers(raw)?;
        let (charset, body) = decode::simple_body(message.root_part(), raw)?;
        let header = self.header.as_deref().and_then(|name| header(&message, name));
        let text = decode::charset_decode(charset.as_deref(), body, mended);
        Some(Mail { header, text, ..headers_of(&message) })
    }

    fn plain(
        &self,
        part: &MessagePart<'_>,
        message: &Message<'_>,
        mended: &mut Mended,
    ) -> Option<String> {
        match &part.body {
            PartType::Text(text) => {
                Some(text_of(part, text, &message.raw_message, mended).into_owned())
            }
            PartType::Html(_) => self.html(part, message, mended),
            _ => None,
        }
    }

    fn html(
        &self,
        part: &MessagePart<'_>,
        message: &Message<'_>,
        mended: &mut Mended,
    ) -> Option<String> {
        let PartType::Html(text) = &part.body else { return None };
        let text: Cow<'_, str> = text_of(part, text, &message.raw_message, mended);
        Some(html::to_text(&text, self.keep_quotes))
    }
}

/// Whether what others wrote stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quotes {
    /// Quoted replies, forwarded blocks and signatures go.
    #[default]
    Strip,
    /// Everything stays.
    Keep,
}

fn is_html(message: &Message<'_>, id: u32) -> bool {
    message.parts.get(id as usize).is_some_and(|part| matches!(part.body, PartType::Html(_)))
}

fn is_cut_text(message: &Message<'_>, id: u32) -> bool {
    message.parts.get(id as usize).is_some_and(|part| {
        let disposition = part.content_disposition();
        part.is_encoding_problem
            && part.is_text()
            && !disposition.is_some_and(|d| d.is_attachment())
    })
}

/// The texts of some parts, one after the other.
fn join(
    message: &Message<'_>,
    ids: &[u32],
    mut text: impl FnMut(&MessagePart<'_>) -> Option<String>,
) -> String {
    let parts = ids.iter().filter_map(|&id| message.parts.get(id as usize));
    let mut texts = parts.filter_map(&mut text);
    let Some(mut all) = texts.next() else { return String::new() };
    for more in texts {
        if !all.ends_with('\n') {
            all.push('\n');
        }
        all.push_str(&more);
    }
    all
}

fn headers_of(message: &Message<'_>) -> Mail {
    let from = message.from().and_then(|from| from.first()).and_then(|addr| addr.address());
    let mut references = Vec::new();
    for value in [message.references(), message.in_reply_to()] {
        match value {
            HeaderValue::Text(id) => references.push(id.to_string()),
            HeaderValue::TextList(ids) => references.extend(ids.iter().map(ToString::to_string)),
            _ => {}
        }
    }
    Mail {
        subject: message.subject().unwrap_or_default().trim().to_owned(),
        sender: from.unwrap_or_default().trim().to_lowercase(),
        message_id: message.message_id().map(str::to_owned),
        references,
        ..Mail::default()
    }
}

fn header(message: &Message<'_>, name: &str) -> Option<String> {
    let value = message.header_raw(name.to_owned())?;
    Some(value.split_whitespace().collect::<Vec<_>>().join(" "))
}
