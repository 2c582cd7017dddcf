//! Text of a part as it was meant: mends charsets and transfer encodings that senders got wrong.
//!
//! The mail library's own text is taken where nothing is doubtful.

use super::Mended;
use mail_parser::{
    Encoding, HeaderName, HeaderValue, MessagePart, MimeHeaders,
    decoders::{
        base64::base64_decode, charsets::map::charset_decoder,
        quoted_printable::quoted_printable_decode,
    },
};
use std::borrow::Cow;

/// The text of a part; `found` is what the library made of it, `raw` the message it stands in.
pub(super) fn text_of<'a>(
    part: &MessagePart<'_>,
    found: &'a str,
    raw: &[u8],
    mended: &mut Mended,
) -> Cow<'a, str> {
    let declared = declared_encoding(part);
    let charset = charset(part);
    let known = charset.as_deref().map(|name| decoder(name).is_some());
    let doubtful = part.is_encoding_problem
        || (known == Some(false) && !found.is_ascii())
        || (known.is_none() && !found.is_ascii())
        || found.contains('\u{FFFD}')
        || declared == Encoding::Base64;
    if !doubtful {
        return Cow::Borrowed(found);
    }
    let (from, to) = (part.raw_body_offset() as usize, part.raw_end_offset() as usize);
    let Some(body) = raw.get(from..to) else { return Cow::Borrowed(found) };
    let bytes = transfer_decode(declared, body, mended);
    let text = charset_decode(charset.as_deref(), &bytes, mended);
    if declared == Encoding::Base64 && has_controls(&text) {
        mended.mislabelled_encoding += 1;
        return Cow::Owned(charset_decode(charset.as_deref(), body, mended));
    }
    mended.loose_base64 += u64::from(declared == Encoding::Base64 && text != found);
    Cow::Owned(text)
}

/// The charset and bytes of a message that is one part of plain text without a transfer encoding, in
/// a charset that extends ASCII.
pub(super) fn simple_body<'a>(
    root: &MessagePart<'_>,
    raw: &'a [u8],
) -> Option<(Option<String>, &'a [u8])> {
    let plain = root.content_type().is_none_or(|kind| {
        kind.ctype().eq_ignore_ascii_case("text")
            && kind.subtype().is_some_and(|sub| sub.eq_ignore_ascii_case("plain"))
    });
    let attached = root.content_disposition().is_some_and(|d| d.is_attachment());
    let charset = charset(root);
    let extends = charset.as_deref().is_none_or(extends_ascii);
    if !plain || attached || !extends || declared_encoding(root) != Encoding::None {
        return None;
    }
    let lf = memchr::memmem::find(raw, b"\n\n").map(|at| at + 2);
    let crlf = memchr::memmem::find(&raw[..lf.unwrap_or(raw.len())], b"\n\r\n").map(|at| at + 3);
    let body = crlf.or(lf).unwrap_or(raw.len());
    Some((charset, &raw[body..]))
}

/// Charsets whose text is ASCII wherever its bytes are.
fn extends_ascii(charset: &str) -> bool {
    const NAMES: [&str; 6] = ["us-ascii", "ascii", "ansi_x3", "utf-8", "utf8", "iso-8859"];
    let starts =
        |name: &&str| charset.get(..name.len()).is_some_and(|c| c.eq_ignore_ascii_case(name));
    NAMES.iter().any(starts)
}

fn declared_encoding(part: &MessagePart<'_>) -> Encoding {
    let header = part.headers.iter().rfind(|h| h.name == HeaderName::ContentTransferEncoding);
    match header.map(|h| &h.value) {
        Some(HeaderValue::Text(name)) if name.trim().eq_ignore_ascii_case("base64") => {
            Encoding::Base64
        }
        Some(HeaderValue::Text(name)) if name.trim().eq_ignore_ascii_case("quoted-printable") => {
            Encoding::QuotedPrintable
        }
        _ => Encoding::None,
    }
}

fn charset(part: &MessagePart<'_>) -> Option<String> {
    let header = part.headers.iter().rfind(|h| h.name == HeaderName::ContentType)?;
    let HeaderValue::ContentType(kind) = &header.value else { return None };
    Some(kind.attribute("charset")?.trim_matches(['"', '\'', ' ']).to_owned())
}

fn has_controls(text: &str) -> bool {
    text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t' | '\u{c}'))
        || text.contains('\u{FFFD}')
}

fn transfer_decode<'a>(declared: Encoding, body: &'a [u8], mended: &mut Mended) -> Cow<'a, [u8]> {
    match declared {
        Encoding::None => Cow::Borrowed(body),
        Encoding::QuotedPrintable => match quoted_printable_decode(body) {
            Some(bytes) => Cow::Owned(bytes),
            None => {
                mended.mislabelled_encoding += 1;
                Cow::Borrowed(body)
            }
        },
        Encoding::Base64 => match loose_base64(body) {
            Some(bytes) => Cow::Owned(bytes),
            None => {
                mended.mislabelled_encoding += 1;
                Cow::Borrowed(body)
            }
        },
    }
}

/// The decoder of a charset; the library has none for UTF-8.
fn decoder(charset: &str) -> Option<fn(&[u8]) -> String> {
    if ["utf-8", "utf8"].iter().any(|name| charset.eq_ignore_ascii_case(name)) {
        return Some(|bytes| String::from_utf8_lossy(bytes).into_owned());
    }
    charset_decoder(charset.as_bytes())
}

/// Base64 without its blanks, with the padding it should have and its spare bits cleared.
fn loose_base64(body: &[u8]) -> Option<Vec<u8>> {
    let mut clean: Vec<u8> = Vec::with_capacity(body.len() + 3);
    for &byte in body.iter().filter(|b| !b.is_ascii_whitespace() && **b != b'=') {
        if !(byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/') {
            return None;
        }
        clean.push(byte);
    }
    match clean.len() % 4 {
        // Six bits alone make no byte.
        1 => drop(clean.pop()),
        2 => clear_low_bits(&mut clean, 4),
        3 => clear_low_bits(&mut clean, 2),
        _ => {}
    }
    while !clean.len().is_multiple_of(4) {
        clean.push(b'=');
    }
    if clean.is_empty() { Some(clean) } else { base64_decode(&clean) }
}

fn clear_low_bits(clean: &mut [u8], bits: u32) {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    if let Some(last) = clean.last_mut()
        && let Some(value) = ALPHABET.iter().position(|c| c == last)
    {
        *last = ALPHABET[value >> bits << bits];
    }
}

/// By the charset named; without a known one UTF-8 where it is that, else Windows-1252.
pub(super) fn charset_decode(charset: Option<&str>, bytes: &[u8], mended: &mut Mended) -> String {
    if bytes.is_ascii()
        && charset.is_none_or(extends_ascii)
        && let Ok(text) = std::str::from_utf8(bytes)
    {
        return text.to_owned();
    }
    if let Some(decode) = charset.and_then(decoder) {
        let text = decode(bytes);
        if !text.contains('\u{FFFD}') {
            return text;
        }
    }
    if !bytes.is_ascii() {
        match charset {
            None => mended.missing_charset += 1,
            Some(_) => mended.unknown_charset += 1,
        }
    } else if charset.is_some_and(|name| decoder(name).is_none()) {
        mended.unknown_charset += 1;
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        return text.to_owned();
    }
    match decoder("windows-1252") {
        Some(decode) => decode(bytes),
        None => bytes.iter().map(|&b| char::from(b)).collect(),
    }
}
