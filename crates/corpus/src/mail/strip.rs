//! What a person wrote in a message, without what others wrote in it.
//!
//! From the first of these marks everything goes: `-----Original Message-----`, `Forwarded by`
//! (also as Lotus Notes wraps it), `Begin forwarded message`, a quoted header block (`From:`, `To:`,
//! `Subject:`; with Notes also the name and date lines above it), `NAME wrote:` before a quotation
//! that lasts to the end, a confidentiality notice, and the `-- ` line of a signature. Lines that
//! begin with `>` go wherever they stand, with the attribution before them, and so do contact lines
//! (telephone, fax, address) at the very end, rules of dashes and attachment marks.

use serde::{Deserialize, Serialize};

/// What was taken away, counted over messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stripped {
    /// Messages with a forwarded block.
    pub forwarded: u64,
    /// Messages with a quoted original (`Original Message` or a quoted header block).
    pub original: u64,
    /// Messages with lines quoted by `>`.
    pub quoted_lines: u64,
    /// Messages with a signature.
    pub signature: u64,
    /// Messages with a confidentiality notice.
    pub notice: u64,
}

/// A mark from which everything goes.
#[derive(Clone, Copy, PartialEq)]
enum Mark {
    Forwarded,
    Original,
    Notice,
    Signature,
}

/// The text of the writer alone, lines trimmed at their ends, empty lines single.
pub fn strip(text: &str, counts: &mut Stripped) -> String {
    let lines: Vec<&str> = text.split('\n').map(|line| line.trim_end()).collect();
    let (end, mark) = cut(&lines);
    match mark {
        Some(Mark::Forwarded) => counts.forwarded += 1,
        Some(Mark::Original) => counts.original += 1,
        Some(Mark::Notice) => counts.notice += 1,
        Some(Mark::Signature) => counts.signature += 1,
        None => {}
    }
    let mut kept = unquoted(&lines[..end], counts);
    if drop_contacts(&mut kept) {
        counts.signature += u64::from(mark != Some(Mark::Signature));
    }
    join(&kept)
}

/// The first line that is not the writer's, and why.
fn cut(lines: &[&str]) -> (usize, Option<Mark>) {
    for (i, line) in lines.iter().enumerate() {
        let line = line.trim_start();
        let Some(&first) = line.as_bytes().first() else { continue };
        let mark = match first {
            b'-' | b'_' | b'*' | b'=' | b'B' | b'b' if forwarded_mark(line) => {
                Some((i, Mark::Forwarded))
            }
            b'-' | b'_' | b'*' | b'=' if original_mark(line) => Some((i, Mark::Original)),
            b'-' if i > 0 && line == "--" => Some((i, Mark::Signature)),
            b'F' | b'T' | b'f' | b't' | b'"' | b'S' if header_block(&lines[i..]) => {
                Some((block_start(lines, i), Mark::Original))
            }
            b'O' | b'o' | b'A'
                if attribution(&lines[i..]).is_some_and(|n| quoted_to_end(&lines[i + n..])) =>
            {
                Some((i, Mark::Original))
            }
            b'T' | b't' | b'C' | b'c' | b'P' | b'D' | b'I' | b'*' if notice(&lines[i..]) => {
                Some((i, Mark::Notice))
            }
            _ => None,
        };
        if let Some((at, mark)) = mark {
            return (at, Some(mark));
        }
    }
    (lines.len(), None)
}

fn starts(line: &str, prefix: &str) -> bool {
    line.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

fn is_rule_char(c: char) -> bool {
    matches!(c, '-' | '_' | '*' | '=' | '~' | '#' | ' ')
}

/// The words after a rule of at least two characters.
fn after_rule(line: &str) -> Option<&str> {
    let rest = line.trim_start_matches(is_rule_char);
    (line.len() - rest.len() >= 2).then_some(rest)
}

fn forwarded_mark(line: &str) -> bool {
    if starts(line, "begin forwarded message") {
        return true;
    }
    const NAMES: [&str; 5] =
        ["forwarded by", "forwarded message", "forwarded with changes by", "forwarded to", "fwd:"];
    after_rule(line).is_some_and(|rest| NAMES.iter().any(|name| starts(rest, name)))
}

fn original_mark(line: &str) -> bool {
    const NAMES: [&str; 7] = [
        "original message",
        "original appointment",
        "original text",
        "reply separator",
        "reply message",
        "inline attachment follows",
        "message from",
    ];
    after_rule(line).is_some_and(|rest| NAMES.iter().any(|name| starts(rest, name)))
}

/// The field that a line of a quoted header begins with.
fn field(line: &str) -> Option<u8> {
    const NAMES: [(&str, u8); 9] = [
        ("from:", 1),
        ("to:", 2),
        ("cc:", 4),
        ("subject:", 8),
        ("sent:", 16),
        ("date:", 16),
        ("bcc:", 4),
        ("sent by:", 64),
        ("please respond to", 32),
    ];
    let line = line.trim_start_matches(|c: char| is_rule_char(c) || c == '\t' || c == '>');
    NAMES.iter().find(|(name, _)| starts(line, name)).map(|(_, bit)| *bit)
}

/// Whether a quoted header block begins here: `From:` or `To:` with other fields close below.
fn header_block(lines: &[&str]) -> bool {
    let Some(first) = field(lines[0]) else { return false };
    let mut seen = first;
    // The list of those it went to may be very long; other lines between fields are few.
    let mut other = 0;
    for line in &lines[1..] {
        match field(line) {
            Some(bit) => {
                seen |= bit;
                other = 0;
            }
            None if seen & 6 != 0 && line.contains(['@', ',', '/', '<']) => other = 0,
            None => other += 1,
        }
        let from = seen & 1 != 0 && (seen & !1).count_ones() >= 2;
        let notes = seen & 2 != 0 && seen & 8 != 0;
        if from || notes {
            return true;
        }
        if other > 3 {
            return false;
        }
    }
    false
}

/// Goes up from a header block over the name and date lines that Notes writes above it.
fn block_start(lines: &[&str], block: usize) -> usize {
    let mut start = block;
    let (mut seen_date, mut seen_name) = (false, false);
    for at in (block.saturating_sub(12)..block).rev() {
        let line = lines[at].trim();
        let known = match line {
            "" if seen_date && seen_name => break,
            "" => continue,
            line if field(line).is_some() => true,
            line if is_notes_address(line) => {
                seen_name = true;
                true
            }
            line if !seen_date && line.len() < 120 && has_date_time(line) => {
                seen_date = true;
                // `NAME on DATE` in one line is all of it.
                seen_name |= line.contains(" on ") || line.contains('@') || line.contains('"');
                true
            }
            line if line.len() < 25 && has_date_time(line) => true,
            line => at + 1 == block && line.len() < 60 && wraps_date(line),
        };
        if known {
            start = at;
            continue;
        }
        if seen_date && !seen_name && line.len() < 80 {
            start = at;
        }
        break;
    }
    while start > 0 && lines[start - 1].trim().is_empty() {
        start -= 1;
    }
    start
}

/// `First Last@ORGANISATION` or `First Last/UNIT/ORGANISATION@ORGANISATION` alone.
fn is_notes_address(line: &str) -> bool {
    line.len() < 80
        && !line.ends_with(['.', '?', '!', ':'])
        && line.split_once('@').is_some_and(|(name, domain)| {
            name.contains(' ') && !domain.is_empty() && !domain.trim().contains(['.', ' '])
        })
}

/// The second half of a date that was wrapped: `12:00 PM` alone.
fn wraps_date(line: &str) -> bool {
    has_time(line) && (line.ends_with("AM") || line.ends_with("PM"))
}

fn has_time(line: &str) -> bool {
    line.as_bytes().windows(4).any(|w| {
        w[0].is_ascii_digit() && w[1] == b':' && w[2].is_ascii_digit() && w[3].is_ascii_digit()
    })
}

/// `1/2/2000 3:04 PM` or `2 January 2000 15:04` somewhere in the line.
fn has_date_time(line: &str) -> bool {
    let slashes = line.as_bytes().windows(3).filter(|w| {
        w[0].is_ascii_digit() && matches!(w[1], b'/' | b'-' | b'.') && w[2].is_ascii_digit()
    });
    let year = || {
        line.split(|c: char| !c.is_ascii_digit())
            .any(|n| n.len() == 4 && (n.starts_with("19") || n.starts_with("20")))
    };
    has_time(line) && (slashes.count() >= 2 || year())
}

/// The lines of an attribution (`On DATE, NAME wrote:`) that begins here.
fn attribution(lines: &[&str]) -> Option<usize> {
    let first = lines[0].trim_start();
    if !(starts(first, "on ") || starts(first, "at ")) {
        return None;
    }
    let ends = |line: &&str| {
        line.ends_with("wrote:") || line.ends_with("writes:") || line.ends_with("said:")
    };
    lines.iter().take(3).position(ends).map(|at| at + 1)
}

/// Whether quotation, and nothing of the writer's, follows to the end.
fn quoted_to_end(lines: &[&str]) -> bool {
    let mut full = lines.iter().filter(|line| !line.trim().is_empty());
    full.next().is_some_and(|line| line.trim_start().starts_with('>'))
        && full.all(|line| line.trim_start().starts_with('>'))
}

/// Whether a notice about confidentiality begins here.
fn notice(lines: &[&str]) -> bool {
    const BEGIN: [&str; 12] = [
        "this e-mail",
        "this email",
        "this message",
        "this communication",
        "this electronic",
        "the information contained",
        "the information in this",
        "the information transmitted",
        "confidentiality notice",
        "privileged",
        "disclaimer",
        "important notice",
    ];
    let first = lines[0].trim_start_matches(is_rule_char);
    let first = if first.is_empty() { lines.get(1).unwrap_or(&"").trim_start() } else { first };
    if !BEGIN.iter().any(|begin| starts(first, begin)) {
        return false;
    }
    let text = lines
        .iter()
        .take(14)
        .flat_map(|line| [*line, " "])
        .collect::<String>()
        .to_ascii_lowercase();
    ["confidential", "intended recipient", "privileged", "intended solely", "intended only"]
        .iter()
        .filter(|word| text.contains(**word))
        .count()
        >= 2
}

/// Lines without quotations, attributions before them, rules and attachment marks.
fn unquoted<'a>(lines: &[&'a str], counts: &mut Stripped) -> Vec<&'a str> {
    let mut kept: Vec<&str> = Vec::with_capacity(lines.len());
    let mut any = false;
    for (i, line) in lines.iter().enumerate() {
        let begin = line.trim_start();
        if begin.starts_with('>') {
            any = true;
            continue;
        }
        let next = lines[i + 1..].iter().find(|line| !line.trim().is_empty());
        let introduces = begin.ends_with(':')
            && next.is_some_and(|next| next.trim_start().starts_with('>'))
            && (begin.contains("wrote")
                || begin.contains("writes")
                || begin.contains("said")
                || begin.contains('@'));
        if !introduces && !is_rule(begin) && !is_attachment(begin) {
            kept.push(line);
        }
    }
    counts.quoted_lines += u64::from(any);
    kept
}

fn is_rule(line: &str) -> bool {
    line.len() >= 4 && line.chars().all(is_rule_char)
}

fn is_attachment(line: &str) -> bool {
    starts(line, "(see attached file:")
        || starts(line, "<<file:")
        || starts(line, "[image]")
        || line.starts_with("<<") && line.ends_with(">>")
        || line.strip_prefix("- ").is_some_and(is_file_name)
}

fn is_file_name(text: &str) -> bool {
    text.rsplit_once('.').is_some_and(|(name, extension)| {
        !name.is_empty()
            && (2..=4).contains(&extension.len())
            && extension.bytes().all(|b| b.is_ascii_alphanumeric())
            && text.split_whitespace().count() <= 6
    })
}

/// Takes contact lines from the end: from the first of them, where only short lines follow.
fn drop_contacts(lines: &mut Vec<&str>) -> bool {
    const MOST: usize = 10;
    let mut first = None;
    let mut seen = 0;
    for (i, line) in lines.iter().enumerate().rev() {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        seen += 1;
        if seen > MOST || line.len() > 64 {
            break;
        }
        if is_contact(line) {
            first = Some(i);
        }
    }
    let Some(first) = first.filter(|&first| lines[..first].iter().any(|l| !l.trim().is_empty()))
    else {
        return false;
    };
    lines.truncate(first);
    true
}

/// A telephone number or an address, with little else in the line.
fn is_contact(line: &str) -> bool {
    const LABELS: [&str; 12] = [
        "phone", "tel", "fax", "cell", "mobile", "pager", "voice", "office:", "work:", "e-mail:",
        "email:", "http",
    ];
    let digits = line.bytes().filter(u8::is_ascii_digit).count();
    let letters = line.bytes().filter(u8::is_ascii_alphabetic).count();
    let groups = line.split(|c: char| !c.is_ascii_digit()).filter(|g| g.len() >= 3).count();
    let number = digits >= 7 && groups >= 2 && !line.contains('$');
    let label = LABELS.iter().any(|label| starts(line, label));
    let address = line.contains('@') && !line.contains(' ');
    address
        || (number && (letters <= 24 || label))
        || (label && (digits >= 7 || line.contains('@') || starts(line, "http")))
}

fn join(lines: &[&str]) -> String {
    let mut out = String::with_capacity(lines.iter().map(|line| line.len() + 1).sum());
    let mut blank = true;
    for line in lines {
        if line.trim().is_empty() {
            if !blank {
                out.push('\n');
            }
            blank = true;
        } else {
            out.push_str(line);
            out.push('\n');
            blank = false;
        }
    }
    out.truncate(out.trim_end().len());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) -> Stripped {
        let mut counts = Stripped::default();
        assert_eq!(strip(text, &mut counts), expected, "{text}");
        counts
    }

    #[test]
    fn forwarded_blocks_go() {
        let counts = check(
            "See below.\n\nAda\n---------------------- Forwarded by Ada Low/LON/ACME on 01/02/2000 \n10:00 AM \
             ---------------------------\n\n\nBen High\n01/01/2000 09:00 AM\nTo:\tAda Low/LON/ACME@ACME\ncc:\t \n\
             Subject:\tFiles\n\nHere they are.",
            "See below.\n\nAda",
        );
        assert_eq!(counts.forwarded, 1);
        check("Begin forwarded message:\n> a", "");
        check("FYI\n\n----- Original Message -----\nFrom: b\nTo: c\n", "FYI");
    }

    #[test]
    fn notes_reply_headers_go_with_the_lines_above() {
        let counts = check(
            "Fine with me.\n\n\n\n\nBen High@ACME\n01/02/2000 03:04 PM\nTo: Ada Low/LON/ACME@ACME, Cy \
             Mid/LON/ACME@ACME\ncc: Dee Far/NYC/ACME@ACME \n\nSubject: Re: Files  \n\nold text",
            "Fine with me.",
        );
        assert_eq!(counts.original, 1);
        check(
            "Yes.\n\n\"Ben High\" <ben@acme.example> on 01/02/2000 03:04:05 PM\nTo: <ada@acme.example>\ncc:  \n\
               Subject: RE: Files\n\nold",
            "Yes.",
        );
        check(
            "Ok\n\nFrom: Ben High on 01/02/2000 03:04 PM\nTo:\tAda Low/LON/ACME@ACME\ncc:\t \nSubject: x\n\nold",
            "Ok",
        );
    }

    #[test]
    fn quotations_and_their_attribution_go_but_answers_stay() {
        check(
            "On Mon, 1 Jan 2001, Ben wrote:\n> one\nMy answer.\n> two\nAnd more.",
            "On Mon, 1 Jan 2001, Ben wrote:\nMy answer.\nAnd more."
                .strip_prefix("On Mon, 1 Jan 2001, Ben wrote:\n")
                .unwrap(),
        );
        check("Good.\nOn Mon, 1 Jan 2001,\nBen wrote:\n> one\n>\n> two\n", "Good.");
    }

    #[test]
    fn signatures_go() {
        assert_eq!(check("Hello\n\nAda\n-- \nAda Low\nACME\n", "Hello\n\nAda").signature, 1);
        assert_eq!(
            check(
                "Hello\n\nAda Low\n(212) 555-0100 (phone)\n(212) 555-0101 (fax)\n",
                "Hello\n\nAda Low"
            )
            .signature,
            1
        );
        // A number in running text is not a signature, nor is a whole message that is one.
        check(
            "Please call me at 212-555-0100 when you have had the time to read all of it.",
            "Please call me at 212-555-0100 when you have had the time to read all of it.",
        );
        check("212-555-0100", "212-555-0100");
    }

    #[test]
    fn notices_go() {
        assert_eq!(check("Hi\n\n*****\nThis e-mail may contain confidential matter for the\nintended recipient alone.", "Hi").notice, 1);
        check("This e-mail is about lunch.", "This e-mail is about lunch.");
    }

    #[test]
    fn ordinary_text_stays_whole() {
        let text = "To: be clear, we need it.\nFrom: what I hear\nthe deal is done.\n\n- first\n- second\n\nTotal: 12/31 at 10:30\nThanks";
        check(text, text);
    }
}
