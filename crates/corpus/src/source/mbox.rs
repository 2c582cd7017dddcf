//! mbox files, one message at a time.
//!
//! A separator is a line `From ADDRESS DATE` after an empty line or at the start of the file. Two
//! doubtful kinds are taken as separators when a header line follows: such a line without the empty
//! line before it, and `From ADDRESS` without a date. Every other line that begins with `From `
//! after an empty line is text. Doubtful lines of all kinds are counted. Memory is one message.

use memchr::memmem;
use std::io::{self, Read};

/// How lines of a message that begin with `From ` were made safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quoting {
    /// mboxrd (also reads what mboxo wrote): one `>` is taken from `>From `, `>>From ` and so on.
    Rd,
    /// mboxo: one `>` is taken from `>From ` alone; `>>From ` stays.
    O,
    /// mboxcl2: nothing was escaped; `Content-Length` says where a message ends.
    Cl2,
}

/// A message longer than this is skipped and named in the report.
pub const MAX_MESSAGE_BYTES: usize = 256 << 20;

const CHUNK: usize = 256 << 10;
/// A separator line is never longer.
const MAX_SEPARATOR: usize = 1000;

/// One step through an mbox file.
#[derive(Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// A message, its lines as they were before they went into the box.
    Message(&'a [u8]),
    /// A message that is longer than [`MAX_MESSAGE_BYTES`]; its size.
    TooLong(u64),
    /// The file does not begin with a separator; this many bytes were passed over.
    NoSeparator(u64),
}

/// Reads messages from a stream of bytes.
#[derive(Debug)]
pub struct MboxReader<R> {
    source: R,
    quoting: Quoting,
    limit: usize,
    buffer: Vec<u8>,
    /// Where the next separator line begins.
    start: usize,
    eof: bool,
    /// Why the source broke off; told after what came before it.
    broken: Option<io::Error>,
    begun: bool,
    scratch: Vec<u8>,
    doubtful: u64,
}

/// Where text ends, and how much of it is gone from the buffer because there was too much.
struct Found {
    end: usize,
    dropped: u64,
}

/// What a search for a line that begins with `From ` gives.
enum Hit {
    Line(usize),
    Far(usize),
    End,
}

/// What a line that begins with `From ` is.
enum Verdict {
    Separator,
    Text,
}

impl<R: Read> MboxReader<R> {
    /// Reads from `source`.
    pub fn new(source: R, quoting: Quoting) -> Self {
        Self::with_limit(source, quoting, MAX_MESSAGE_BYTES)
    }

    /// As [`new`](Self::new) with another longest message, in bytes.
    pub fn with_limit(source: R, quoting: Quoting, limit: usize) -> Self {
        Self {
            source,
            quoting,
            limit,
            buffer: Vec::with_capacity(2 * CHUNK),
            start: 0,
            eof: false,
            broken: None,
            begun: false,
            scratch: Vec::new(),
            doubtful: 0,
        }
    }

    /// Lines that might have been separators, or might not, so far.
    pub fn doubtful_lines(&self) -> u64 {
        self.doubtful
    }

    /// The next message, or `None` at the end.
    ///
    /// # Errors
    /// The source fails; messages given before stay good.
    pub fn next_item(&mut self) -> io::Result<Option<Item<'_>>> {
        if self.start > CHUNK {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        if !self.begun {
            self.begun = true;
            let skipped = self.find_first();
            if skipped > 0 {
                return Ok(Some(Item::NoSeparator(skipped)));
            }
        }
        if self.start >= self.buffer.len() && !self.fill() {
            return self.broken.take().map_or(Ok(None), Err);
        }
        let body = self.line_end(self.start, usize::MAX);
        let found = match self.end_by_length(body) {
            Some(end) => Found { end, dropped: 0 },
            None => self.find_separator(body, self.limit),
        };
        self.start = found.end;
        if found.dropped > 0 {
            return Ok(Some(Item::TooLong(found.dropped)));
        }
        let end = found.end - blank_at_end(&self.buffer[body..found.end]);
        let quoted = self.unquote(body, end);
        Ok(Some(Item::Message(if quoted { &self.scratch } else { &self.buffer[body..end] })))
    }

    /// Goes to the first separator; gives the bytes of other text before it.
    fn find_first(&mut self) -> u64 {
        while self.buffer.len() < 2 * MAX_SEPARATOR && self.fill() {}
        let mark = if self.buffer.starts_with(b"\xEF\xBB\xBF") { 3 } else { 0 };
        let blank = self.buffer[mark..].iter().take_while(|b| b"\r\n".contains(b)).count();
        let at = mark + blank;
        self.start = at;
        if at == self.buffer.len() {
            return 0;
        }
        if self.buffer[at..].starts_with(b"From ")
            && let Verdict::Separator = self.judge(at, true)
        {
            return 0;
        }
        let found = self.find_separator(at, CHUNK);
        self.start = found.end;
        found.dropped + (found.end - at) as u64
    }

    /// The separator, or the end of the file, that ends the text beginning at `body`.
    ///
    /// Text longer than `limit` is dropped from the buffer on the way, so memory stays bounded.
    fn find_separator(&mut self, body: usize, limit: usize) -> Found {
        // The line feed before the text counts: a message may be empty.
        let mut scan = body.saturating_sub(1);
        let mut dropped = 0;
        loop {
            let line = match self.next_hit(scan, limit) {
                Hit::End => return Found { end: self.buffer.len(), dropped },
                Hit::Far(at) => at,
                Hit::Line(line) => {
                    let blank = line == body || blank_before(&self.buffer[body..line]);
                    if let Verdict::Separator = self.judge(line, blank) {
                        return Found { end: line, dropped };
                    }
                    line
                }
            };
            scan = line;
            if line - body > limit {
                self.buffer.drain(body..line);
                dropped += (line - body) as u64;
                scan = body;
            }
        }
    }

    /// The next line that begins with `From `, reading on as needed, but not much beyond `limit`.
    fn next_hit(&mut self, from: usize, limit: usize) -> Hit {
        /// Enough for the line ends before a separator and its first letters.
        const TAIL: usize = 16;
        let mut scan = from;
        loop {
            if let Some(at) = memmem::find(&self.buffer[scan..], b"\nFrom ") {
                return Hit::Line(scan + at + 1);
            }
            let tail = self.buffer.len().saturating_sub(TAIL).max(scan);
            scan = tail;
            if tail - from > limit {
                return Hit::Far(tail);
            }
            if !self.fill() {
                return Hit::End;
            }
        }
    }

    /// Whether the line that begins with `From ` at `line` is a separator. Counts doubtful ones.
    fn judge(&mut self, line: usize, after_blank: bool) -> Verdict {
        let end = self.line_end(line, MAX_SEPARATOR);
        let next_end = self.line_end(end, MAX_SEPARATOR);
        let text = &self.buffer[line..end];
        let header_follows = is_header_line(&self.buffer[end..next_end]);
        let dated = is_dated_separator(text);
        if dated && after_blank {
            return Verdict::Separator;
        }
        let bare = after_blank && is_bare_separator(text);
        if after_blank || dated {
            self.doubtful += 1;
        }
        if header_follows && (dated || bare) {
            return Verdict::Separator;
        }
        Verdict::Text
    }

    /// The end of a line (after its line feed), or of what there is; looks no further than `most`.
    fn line_end(&mut self, from: usize, most: usize) -> usize {
        let mut scan = from;
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer[scan..]) {
                return scan + at + 1;
            }
            scan = self.buffer.len();
            if scan - from > most || !self.fill() {
                return self.buffer.len();
            }
        }
    }

    /// The end of a message by its `Content-Length`, where that is right.
    fn end_by_length(&mut self, body: usize) -> Option<usize> {
        if self.quoting != Quoting::Cl2 {
            return None;
        }
        let (headers_end, length) = self.content_length(body)?;
        let end = headers_end.checked_add(length).filter(|end| end - body <= self.limit)?;
        while self.buffer.len() < end + MAX_SEPARATOR && self.fill() {}
        if self.buffer.len() < end {
            return None;
        }
        let rest = &self.buffer[end..];
        let blank = rest.iter().take(4).take_while(|b| b"\r\n".contains(b)).count();
        let right = rest.len() == blank || rest[blank..].starts_with(b"From ");
        right.then_some(end + blank)
    }

    fn content_length(&mut self, body: usize) -> Option<(usize, usize)> {
        let mut at = body;
        let mut length = None;
        loop {
            let end = self.line_end(at, 1 << 20);
            let line = self.buffer[at..end].trim_ascii();
            if end == at || line.is_empty() {
                return length.map(|length| (end, length));
            }
            if let Some((name, value)) = line.split_at_checked(15)
                && name.eq_ignore_ascii_case(b"content-length:")
            {
                length = std::str::from_utf8(value).ok().and_then(|v| v.trim().parse().ok());
            }
            at = end;
        }
    }

    /// Takes the escape from escaped lines into the scratch space; says whether there were any.
    fn unquote(&mut self, from: usize, to: usize) -> bool {
        let message = &self.buffer[from..to];
        if self.quoting == Quoting::Cl2 || memmem::find(message, b">From ").is_none() {
            return false;
        }
        self.scratch.clear();
        for line in message.split_inclusive(|&b| b == b'\n') {
            let marks = line.iter().take_while(|&&b| b == b'>').count();
            let escaped = line[marks..].starts_with(b"From ")
                && (marks == 1 || marks > 1 && self.quoting == Quoting::Rd);
            self.scratch.extend_from_slice(&line[usize::from(escaped)..]);
        }
        true
    }

    /// Reads on; `false` at the end of the source.
    fn fill(&mut self) -> bool {
        if self.eof {
            return false;
        }
        let before = self.buffer.len();
        let mut chunk = (&mut self.source).take(CHUNK as u64);
        self.broken = chunk.read_to_end(&mut self.buffer).err();
        self.eof = self.buffer.len() == before || self.broken.is_some();
        self.buffer.len() > before
    }
}

fn blank_before(before: &[u8]) -> bool {
    before.ends_with(b"\n\n") || before.ends_with(b"\n\r\n") || before == b"\n" || before == b"\r\n"
}

/// Bytes of the empty line that stands before a separator.
fn blank_at_end(message: &[u8]) -> usize {
    if message.ends_with(b"\n\r\n") { 2 } else { usize::from(message.ends_with(b"\n\n")) }
}

/// `Name: value`, the name of printable characters without a space.
pub(crate) fn is_header_line(line: &[u8]) -> bool {
    match memchr::memchr(b':', line) {
        Some(colon) => (1..=76).contains(&colon) && line[..colon].iter().all(u8::is_ascii_graphic),
        None => false,
    }
}

/// `From ADDRESS DATE`, the date as `asctime` writes it or as mail headers do.
fn is_dated_separator(line: &[u8]) -> bool {
    const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
    const MONTHS: [&str; 12] =
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    if line.len() > MAX_SEPARATOR {
        return false;
    }
    let lower = String::from_utf8_lossy(line).to_ascii_lowercase();
    // `From`, then at least one word of address, then the date.
    let words: Vec<&str> =
        lower.split_ascii_whitespace().map(|w| w.trim_end_matches(',')).collect();
    let day_at = words.iter().skip(2).position(|w| DAYS.contains(w));
    let Some(date) = day_at.map(|at| &words[at + 3..]) else { return false };
    let number = |most: u32| move |w: &&str| w.parse::<u32>().is_ok_and(|n| n <= most);
    let year = |w: &&str| w.len() == 4 && w.parse::<u32>().is_ok_and(|n| n >= 1900);
    let time = |w: &&str| w.contains(':') && w.bytes().all(|b| b.is_ascii_digit() || b == b':');
    date.iter().take(2).any(|w| MONTHS.contains(w))
        && date.iter().take(2).any(|w| number(31)(w))
        && date.iter().any(time)
        && date.iter().any(year)
}

/// `From ADDRESS` and nothing more.
fn is_bare_separator(line: &[u8]) -> bool {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty()).skip(1);
    match (words.next(), words.next()) {
        (Some(address), None) => address == b"-" || address.contains(&b'@'),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages(bytes: &[u8], quoting: Quoting) -> (Vec<String>, u64) {
        let mut reader = MboxReader::new(bytes, quoting);
        let mut all = Vec::new();
        while let Some(item) = reader.next_item().unwrap() {
            all.push(match item {
                Item::Message(m) => String::from_utf8_lossy(m).into_owned(),
                other => format!("{other:?}"),
            });
        }
        (all, reader.doubtful_lines())
    }

    const BOX: &str = "From a@x.example Mon Jan  1 10:00:00 2001\nSubject: 1\n\ntext\nFrom here on\n\n\
        From b@x.example Tue Jan  2 10:00:00 2001\nSubject: 2\n\none\n\nFrom now on we meet\n\n\
        From - Wed Jan  3 10:00:00 2001\nSubject: 3\n\n>From me\n>>From you\n\n";

    fn check_box(text: &str, end: &str) {
        let (found, doubtful) = messages(text.as_bytes(), Quoting::Rd);
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(found[0], ["Subject: 1", "", "text", "From here on", ""].join(end));
        assert_eq!(found[1], ["Subject: 2", "", "one", "", "From now on we meet", ""].join(end));
        assert_eq!(found[2], ["Subject: 3", "", "From me", ">From you", ""].join(end));
        assert_eq!(doubtful, 1);
    }

    #[test]
    fn o30_three_messages_and_their_text() {
        check_box(BOX, "\n");
        check_box(&BOX.replace('\n', "\r\n"), "\r\n");
        let (mboxo, _) = messages(BOX.as_bytes(), Quoting::O);
        assert_eq!(mboxo[2], "Subject: 3\n\nFrom me\n>>From you\n");
    }

    #[test]
    fn o30_separators_without_an_empty_line_before_them() {
        let dense = "From a@x.example Mon Jan  1 10:00:00 2001\nSubject: 1\n\none\n\
            From b@x.example Tue Jan  2 10:00:00 2001\nSubject: 2\n\ntwo\n\
            From c@x.example Wed Jan  3 10:00:00 2001\nSubject: 3\n\nthree\n";
        let (found, doubtful) = messages(dense.as_bytes(), Quoting::Rd);
        assert_eq!(found, ["Subject: 1\n\none\n", "Subject: 2\n\ntwo\n", "Subject: 3\n\nthree\n"]);
        assert_eq!(doubtful, 2);
    }

    #[test]
    fn o30_bare_separators() {
        let (found, doubtful) = messages(
            b"From a@x.example\nSubject: 1\n\none\n\nFrom b@x.example\nTo: c\n\n",
            Quoting::Rd,
        );
        assert_eq!((found.len(), doubtful), (2, 2));
    }

    #[test]
    fn o30_nothing_and_no_separator() {
        assert_eq!(messages(b"", Quoting::Rd).0, Vec::<String>::new());
        assert_eq!(messages(b"Dear all,\nhello\n", Quoting::Rd).0, ["NoSeparator(16)"]);
        assert_eq!(
            messages(b"junk\n\nFrom a@b Mon Jan 1 1:00:00 2001\nA: b\n", Quoting::Rd).0,
            ["NoSeparator(6)", "A: b\n"]
        );
    }

    #[test]
    fn content_length_ends_a_message_where_it_is_right() {
        let text = "From a@b Mon Jan 1 1:00:00 2001\nContent-Length: 44\n\n\nFrom c@d Mon Jan 1 1:00:00 2001\n>From x\nend\n\n\
            From e@f Mon Jan 1 1:00:00 2001\nContent-Length: 9999\n\nshort\n";
        let (found, _) = messages(text.as_bytes(), Quoting::Cl2);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].ends_with("\n>From x\nend\n"), "{found:?}");
        assert_eq!(messages(text.as_bytes(), Quoting::Rd).0.len(), 3);
    }

    #[test]
    fn long_messages_are_named_and_do_not_stay_in_memory() {
        let mut text = b"From a@b Mon Jan 1 1:00:00 2001\nA: b\n\n".to_vec();
        for _ in 0..200_000 {
            text.extend_from_slice(b"a line of a very long message\nFrom time to time\n");
        }
        text.extend_from_slice(b"\nFrom a@b Mon Jan 1 1:00:00 2001\nA: c\n\nok\n");
        let mut reader = MboxReader::with_limit(text.as_slice(), Quoting::Rd, 1 << 20);
        assert!(matches!(reader.next_item().unwrap(), Some(Item::TooLong(n)) if n > 8_000_000));
        assert_eq!(reader.next_item().unwrap(), Some(Item::Message(b"A: c\n\nok\n")));
        assert_eq!(reader.next_item().unwrap(), None);
        assert!(reader.buffer.capacity() < 6 << 20, "{}", reader.buffer.capacity());
    }

    /// Gives a few bytes at a time.
    struct Slow<'a>(&'a [u8], usize);

    impl Read for Slow<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let n = self.1.min(out.len()).min(self.0.len());
            out[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    proptest! {
        #[test]
        fn never_panics_and_does_not_depend_on_the_chunks(
            lines in prop::collection::vec(prop::sample::select(vec![
                "From a@b Mon Jan 1 1:00:00 2001", "From x", "From a@b", ">From", ">From q", ">>From q",
                "", "Subject: a", "Content-Length: 12", "text", "\r", "\u{e9}"]), 0..30),
            step in 1usize..50, limit in 1usize..60,
        ) {
            let text = lines.join("\n");
            for quoting in [Quoting::Rd, Quoting::O, Quoting::Cl2] {
                let whole = messages(text.as_bytes(), quoting);
                let mut slow = MboxReader::new(Slow(text.as_bytes(), step), quoting);
                let mut count = 0;
                while slow.next_item().unwrap().is_some() { count += 1; }
                prop_assert_eq!(count, whole.0.len());
                let mut small = MboxReader::with_limit(Slow(text.as_bytes(), step), quoting, limit);
                while small.next_item().unwrap().is_some() {}
            }
        }
    }
}
