//! A call of a tool that has begun: where its arguments begin, and where they end.

use crate::calls::{ARGS, CALLS, CallFormat, OPEN, PYTHON};

/// What the beginning of a call is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// More text is needed.
    More,
    /// One that must be whole to be read.
    Other,
    /// The tool, and the byte where the object of its arguments begins.
    Arguments(String, usize),
}

impl Head {
    /// Reads the beginning of a text; `first` where no call stands before it in the same list.
    pub(crate) fn of(format: CallFormat, text: &str, first: bool) -> Head {
        let mut at = Cursor { text, at: 0 };
        let found = match (format, first) {
            (CallFormat::MistralArgs, _) => at.named(),
            (CallFormat::Hermes, _) => at.mark(OPEN).and_then(|()| at.object()),
            (CallFormat::Llama, true) if text.starts_with('<') => {
                at.mark(PYTHON).and_then(|()| at.object())
            }
            (CallFormat::Mistral, true) => at.mark(CALLS).and_then(|()| at.list()),
            _ => at.object(),
        };
        found.map_or_else(|head| head, |name| Head::Arguments(name, at.at))
    }
}

/// A place in a text; steps fail with what the text is then.
struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn mark(&mut self, mark: &str) -> Result<(), Head> {
        match self.rest() {
            rest if rest.starts_with(mark) => {
                self.at += mark.len();
                Ok(())
            }
            rest if mark.starts_with(rest) => Err(Head::More),
            _ => Err(Head::Other),
        }
    }

    /// A mark of JSON, with white space before it.
    fn sign(&mut self, sign: &str) -> Result<(), Head> {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
        self.mark(sign)
    }

    fn string(&mut self) -> Result<String, Head> {
        self.sign("\"")?;
        let mut escaped = false;
        let end = self.rest().bytes().position(|b| {
            let end = b == b'"' && !escaped;
            escaped = b == b'\\' && !escaped;
            end
        });
        let end = self.at + end.ok_or(Head::More)? + 1;
        let quoted = &self.text[std::mem::replace(&mut self.at, end) - 1..end];
        serde_json::from_str(quoted).map_err(|_| Head::Other)
    }

    fn key(&mut self, names: &[&str]) -> Result<(), Head> {
        let key = self.string()?;
        self.sign(":")?;
        if names.contains(&key.as_str()) { Ok(()) } else { Err(Head::Other) }
    }

    /// `{"name": NAME, "arguments": `, up to the object that follows.
    fn object(&mut self) -> Result<String, Head> {
        self.sign("{")?;
        self.key(&["name"])?;
        let name = self.string()?;
        self.sign(",")?;
        self.key(&["arguments", "parameters"])?;
        self.sign("{")?;
        self.at -= 1;
        Ok(name)
    }

    /// The first of a list, or one alone.
    fn list(&mut self) -> Result<String, Head> {
        match self.sign("[") {
            Err(Head::Other) | Ok(()) => self.object(),
            Err(more) => Err(more),
        }
    }

    /// `[TOOL_CALLS]NAME[CALL_ID]...[ARGS]`, up to the object that follows.
    fn named(&mut self) -> Result<String, Head> {
        self.mark(CALLS)?;
        let rest = self.rest();
        let end = rest.find('{').ok_or(Head::More)?;
        let before = &rest[..end];
        let name = before.split('[').next().unwrap_or_default().trim();
        let behind = before.trim_start()[name.len()..].trim();
        let marked = behind.is_empty() || behind.ends_with(ARGS);
        if name.is_empty() || !marked {
            return Err(Head::Other);
        }
        self.at += end;
        Ok(name.to_owned())
    }
}

/// Where an object of JSON ends, seen as its text comes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scan {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

/// How far a scan has come.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Scanned {
    /// The text belongs to the object.
    All,
    /// The object ends at this byte.
    End(usize),
    /// What stands at this byte is no JSON.
    Wrong(usize),
}

impl Scan {
    /// A scan from within an object.
    pub(crate) fn inside() -> Scan {
        Scan { depth: 1, ..Scan::default() }
    }

    /// More of the text.
    pub(crate) fn feed(&mut self, text: &str) -> Scanned {
        for (at, byte) in text.bytes().enumerate() {
            match byte {
                _ if self.in_string => {
                    self.in_string = byte != b'"' || self.escaped;
                    self.escaped = byte == b'\\' && !self.escaped;
                }
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Scanned::End(at + 1);
                    }
                }
                b',' | b':' | b'+' | b'-' | b'.' | b' ' | b'\n' | b'\r' | b'\t' => {}
                _ if byte.is_ascii_alphanumeric() => {}
                _ => return Scanned::Wrong(at),
            }
        }
        Scanned::All
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_in_any_cut() {
        for (format, first, text, name) in [
            (
                CallFormat::Hermes,
                true,
                "<tool_call>\n{\"name\": \"a\\\"b\", \"arguments\": ",
                "a\"b",
            ),
            (CallFormat::Llama, true, " {\"name\":\"f\",\"parameters\":", "f"),
            (CallFormat::Llama, true, "<|python_tag|>{\"name\":\"f\",\"parameters\":", "f"),
            (CallFormat::Llama, false, "{\"name\":\"f\",\"parameters\":", "f"),
            (CallFormat::Mistral, true, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\":", "f"),
            (CallFormat::Mistral, true, "[TOOL_CALLS]{\"name\": \"f\", \"arguments\":", "f"),
            (CallFormat::Mistral, false, " {\"name\": \"f\", \"arguments\":", "f"),
            (CallFormat::MistralArgs, true, "[TOOL_CALLS]f[CALL_ID]abc[ARGS]", "f"),
            (CallFormat::MistralArgs, true, "[TOOL_CALLS] f.g ", "f.g"),
        ] {
            for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
                assert_eq!(Head::of(format, &text[..end], first), Head::More, "{:?}", &text[..end]);
            }
            let whole = format!("{text}{{\"x\"");
            assert_eq!(
                Head::of(format, &whole, first),
                Head::Arguments(name.to_owned(), text.len())
            );
        }
        for (format, text) in [
            (CallFormat::Hermes, "<tool_call><function=f>"),
            (CallFormat::Hermes, "<tool_call>{\"name\": \"f\"}"),
            (CallFormat::Hermes, "<tool_call>{\"arguments\": {"),
            (CallFormat::Llama, "{\"name\": \"f\", \"parameters\": \"{"),
            (CallFormat::Mistral, "[TOOL_CALLS][]"),
            (CallFormat::MistralArgs, "[TOOL_CALLS][{"),
            (CallFormat::MistralArgs, "[TOOL_CALLS]f[CALL_ID]{"),
        ] {
            assert_eq!(Head::of(format, text, true), Head::Other, "{text}");
        }
    }

    #[test]
    fn objects_end_where_they_end() {
        let whole = r#"{"a": [1, {"b": "}\\\"]"}], "é": -1.5e+3, "c": null}"#;
        for cut in (0..whole.len()).filter(|&at| whole.is_char_boundary(at)) {
            let (mut scan, (a, b)) = (Scan::default(), whole.split_at(cut));
            assert_eq!(scan.feed(a), Scanned::All);
            assert_eq!(scan.feed(&format!("{b} }}")), Scanned::End(b.len()));
        }
        assert_eq!(Scan::default().feed("{\"a\": <"), Scanned::Wrong(6));
        assert_eq!(Scan::inside().feed(" , \"a\": {}}x"), Scanned::End(11));
    }
}
