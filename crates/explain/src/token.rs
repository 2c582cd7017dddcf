//! Token texts made visible: blanks, line ends and control characters get signs of their own.

use unicode_width::UnicodeWidthChar;

/// The text with every invisible character replaced by a visible sign.
#[must_use]
pub fn visible(text: &str) -> String {
    text.chars().map(sign).collect()
}

fn sign(c: char) -> char {
    match c {
        ' ' => '␣',
        '\n' => '↵',
        '\t' => '→',
        // The control pictures stand in the order of the control characters.
        '\0'..='\u{1f}' => char::from_u32(0x2400 + c as u32).unwrap_or('\u{fffd}'),
        '\u{7f}' => '␡',
        c if c.is_control() || c.width().unwrap_or(0) == 0 => '\u{fffd}',
        c => c,
    }
}

/// What a picture shows of a token: its text; a byte that is no whole character as `<0xF0>`; the
/// name of a token without text (a control token), or its id where it has none.
#[must_use]
pub fn shown(id: u32, bytes: &[u8], name: Option<String>) -> String {
    if bytes.is_empty() {
        return name.unwrap_or_else(|| format!("#{id}"));
    }
    let mut out = String::new();
    for chunk in bytes.utf8_chunks() {
        out += chunk.valid();
        out.extend(chunk.invalid().iter().map(|byte| format!("<0x{byte:02X}>")));
    }
    out
}

/// Columns that a text takes.
#[must_use]
pub fn columns(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// The visible text in exactly so many columns: cut with an ellipsis, filled with blanks.
#[must_use]
pub fn column(text: &str, width: usize) -> String {
    let mut out = cut(&visible(text), width);
    out.extend(std::iter::repeat_n(' ', width.saturating_sub(columns(&out))));
    out
}

/// A text without control characters in at most so many columns, cut with an ellipsis.
fn cut(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    let (mut out, mut used) = (String::new(), 0);
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used >= width {
            break;
        }
        out.push(c);
    }
    out + if width > 0 { "…" } else { "" }
}

/// Pieces one after the other in lines of at most `width` columns. The first line goes on behind
/// `head`, the others begin with as many blanks; a piece too long for a line is cut. Every piece
/// but the last is followed by `between`. Ends with a line end.
#[must_use]
pub fn wrapped(head: &str, pieces: &[String], between: &str, width: usize) -> String {
    let indent = columns(head);
    let room = width.saturating_sub(indent + columns(between.trim_end()));
    let (mut out, mut used) = (head.to_owned(), indent);
    for (place, piece) in pieces.iter().enumerate() {
        let is_last = place + 1 == pieces.len();
        let piece = if columns(piece) > room { cut(piece, room) } else { piece.clone() };
        let piece = if is_last { piece } else { piece + between.trim_end() };
        let gap = usize::from(place > 0);
        if place > 0 && used + gap + columns(&piece) > width {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            used = indent;
        } else if place > 0 {
            out.push(' ');
            used += gap;
        }
        used += columns(&piece);
        out += &piece;
    }
    out.truncate(out.trim_end().len());
    out + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_and_controls_are_seen() {
        assert_eq!(visible(" a\n\tb\u{1}\u{7f}\u{200d}"), "␣a↵→b␁␡\u{fffd}");
    }

    #[test]
    fn a_token_is_shown_as_its_text_its_bytes_or_its_name() {
        assert_eq!(shown(7, " caf\u{e9}".as_bytes(), Some("Ġcaf".into())), " caf\u{e9}");
        assert_eq!(shown(7, b" \xF0\x9F", Some("ĠðŁ".into())), " <0xF0><0x9F>");
        assert_eq!(shown(7, b"", Some("<eos>".into())), "<eos>");
        assert_eq!(shown(7, b"", None), "#7");
    }

    #[test]
    fn lines_are_wrapped_within_their_width() {
        let pieces: Vec<String> =
            ["aaaa", "bbbb", "cccccccccccccccc", "d"].map(String::from).into();
        assert_eq!(wrapped("x: ", &pieces, ",", 14), "x: aaaa, bbbb,\n   ccccccccc…,\n   d\n");
        assert_eq!(wrapped("x: ", &[], ",", 14), "x:\n");
        assert_eq!(wrapped("x: ", &pieces[..2], " →", 20), "x: aaaa → bbbb\n");
    }

    #[test]
    fn columns_are_exact_for_wide_characters_too() {
        for text in ["", "abc", "abcdefghij", "日本語の文", "é", "👩‍👩‍👧"] {
            let cut = column(text, 6);
            let width: usize = cut.chars().map(|c| c.width().unwrap_or(0)).sum();
            assert_eq!(width, 6, "{text:?} became {cut:?}");
        }
        assert_eq!(column("abcdefghij", 6), "abcde…");
    }
}
