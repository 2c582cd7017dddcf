//! Forms that text takes: plurals and pasts, lines, transfer encodings, dates.

use super::lexicon::MONTHS;
use std::fmt::Write;

pub(super) fn plural(noun: &str) -> String {
    if noun.ends_with(['s', 'x', 'h']) && !noun.ends_with("th") {
        format!("{noun}es")
    } else if let Some(stem) =
        noun.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'o']))
    {
        format!("{stem}ies")
    } else {
        format!("{noun}s")
    }
}

pub(super) fn past(verb: &str) -> String {
    const IRREGULAR: [(&str, &str); 15] = [
        ("win", "won"),
        ("bring", "brought"),
        ("teach", "taught"),
        ("shut", "shut"),
        ("print", "printed"),
        ("ship", "shipped"),
        ("plan", "planned"),
        ("crop", "cropped"),
        ("trim", "trimmed"),
        ("wrap", "wrapped"),
        ("debug", "debugged"),
        ("rewrite", "rewrote"),
        ("withdraw", "withdrew"),
        ("reset", "reset"),
        ("enrol", "enrolled"),
    ];
    if let Some((_, past)) = IRREGULAR.iter().find(|(base, _)| *base == verb) {
        return (*past).to_owned();
    }
    if verb.ends_with('e') {
        format!("{verb}d")
    } else if let Some(stem) =
        verb.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'o']))
    {
        format!("{stem}ied")
    } else {
        format!("{verb}ed")
    }
}

/// Lines of at most 76 characters.
pub(super) fn wrap(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut column = 0;
    for word in text.split_whitespace() {
        if column > 0 && column + 1 + word.len() > 76 {
            out.push('\n');
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += word.len();
    }
    out
}

pub(super) fn quoted_printable(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let mut column = 0;
        for byte in line.bytes() {
            if column >= 72 {
                out.push_str("=\n");
                column = 0;
            }
            if byte == b'=' || !(b' '..=b'~').contains(&byte) {
                let _ = write!(out, "={byte:02X}");
                column += 3;
            } else {
                out.push(char::from(byte));
                column += 1;
            }
        }
        if out.ends_with(' ') {
            out.pop();
            out.push_str("=20");
        }
        out.push('\n');
    }
    out
}

pub(super) fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for (i, chunk) in bytes.chunks(3).enumerate() {
        if i > 0 && i % 19 == 0 {
            out.push('\n');
        }
        let n = chunk.iter().fold(0u32, |n, &b| n << 8 | u32::from(b)) << (8 * (3 - chunk.len()));
        for k in 0..4 {
            let c = ALPHABET[(n >> (18 - 6 * k)) as usize & 63];
            out.push(if k > chunk.len() { '=' } else { char::from(c) });
        }
    }
    out.push('\n');
    out
}

/// Year, month (0–11), day, day of the week and seconds of the day.
fn civil(clock: u64) -> (u64, usize, u64, usize, u64) {
    let days = clock / 86_400;
    // Days from civil, by the proleptic Gregorian calendar counted from March.
    let z = days + 719_468;
    let era = z / 146_097;
    let doe = z % 146_097;
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 2 } else { mp - 10 };
    let year = yoe + era * 400 + u64::from(month <= 1);
    (year, month as usize, day, ((days + 4) % 7) as usize, clock % 86_400)
}

const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];

pub(super) fn date(clock: u64) -> String {
    let (year, month, day, weekday, s) = civil(clock);
    let (h, m, s) = (s / 3600, s / 60 % 60, s % 60);
    format!("{}, {day} {} {year} {h:02}:{m:02}:{s:02} +0000", DAYS[weekday], &MONTHS[month][..3])
}

pub(super) fn asctime(clock: u64) -> String {
    let (year, month, day, weekday, s) = civil(clock);
    let (h, m, s) = (s / 3600, s / 60 % 60, s % 60);
    format!("{} {} {day:2} {h:02}:{m:02}:{s:02} {year}", DAYS[weekday], &MONTHS[month][..3])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date(951_782_400), "Tue, 29 Feb 2000 00:00:00 +0000");
        assert_eq!(asctime(978_307_199), "Sun Dec 31 23:59:59 2000");
    }

    #[test]
    fn word_forms() {
        assert_eq!(
            ["approve", "reply", "check", "win"].map(past),
            ["approved", "replied", "checked", "won"]
        );
        assert_eq!(
            ["box", "policy", "key", "speech"].map(plural),
            ["boxes", "policies", "keys", "speeches"]
        );
        assert_eq!(base64(b"light wor"), "bGlnaHQgd29y\n");
        assert_eq!(base64(b"ab"), "YWI=\n");
    }
}
