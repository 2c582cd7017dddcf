//! From what a model writes to the calls of tools in it, as the text comes.
//!
//! Text is given on at once unless a call may begin with it. A call begins when its tool is known to
//! be one of those asked for, and its arguments are given on as they come; those of calls written in
//! other ways are given when the call is whole. What looks like a call and does not hold is given
//! as the text that it is, with a line that says why; one that has begun is taken back with it.

use crate::begun::{Head, Scan, Scanned};
use crate::call_text::{Broken, Call, mistral, object, one};
use serde_json::value::RawValue;

/// How models of a family write calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFormat {
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen and many more.
    Hermes,
    /// `{"name": ..., "parameters": {...}}` as the whole answer, perhaps behind `<|python_tag|>`:
    /// Llama 3.1 and above.
    Llama,
    /// `[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`: Mistral.
    Mistral,
    /// `[TOOL_CALLS]name[ARGS]{...}`: Mistral's models since the end of 2024.
    MistralArgs,
}

pub(crate) const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
pub(crate) const PYTHON: &str = "<|python_tag|>";
pub(crate) const CALLS: &str = "[TOOL_CALLS]";
pub(crate) const ARGS: &str = "[ARGS]";
pub(crate) const CALL_ID: &str = "[CALL_ID]";

impl CallFormat {
    /// The way that a template names. One that knows no tools leaves the choice to us.
    #[must_use]
    pub fn of_template(source: &str) -> Option<CallFormat> {
        let has = |text: &str| source.contains(text);
        match () {
            () if has(CALLS) && has(ARGS) => Some(CallFormat::MistralArgs),
            () if has(CALLS) => Some(CallFormat::Mistral),
            () if has(OPEN) => Some(CallFormat::Hermes),
            () if has(PYTHON) || has("\"parameters\":") => Some(CallFormat::Llama),
            () if has("tools") => None,
            () => Some(CallFormat::Hermes),
        }
    }

    /// Marks that may be control tokens, which have no text of their own.
    #[must_use]
    pub fn marks(self) -> &'static [&'static str] {
        match self {
            CallFormat::Hermes => &[OPEN, CLOSE],
            CallFormat::Llama => &[PYTHON],
            CallFormat::Mistral | CallFormat::MistralArgs => &[CALLS, ARGS, CALL_ID],
        }
    }

    /// What begins a call inside a text.
    #[must_use]
    pub fn opening(self) -> &'static str {
        match self {
            CallFormat::Hermes => OPEN,
            CallFormat::Llama => PYTHON,
            CallFormat::Mistral | CallFormat::MistralArgs => CALLS,
        }
    }
}

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// Plain text.
    Text(String),
    /// A call of this tool begins.
    Begin(String),
    /// More of its arguments.
    Arguments(String),
    /// It is whole: together its arguments are the JSON of an object.
    End,
    /// It does not hold; this is the text of all of it.
    Broken(String),
}

/// Where in an answer a reader is.
#[derive(Clone, Debug)]
enum Place {
    /// Between calls.
    Text,
    /// The held text begins with a call, the first of its list or a further one.
    Head { first: bool },
    /// The same, of a call that must be whole to be read.
    Whole { first: bool },
    /// In the arguments of a call.
    Arguments(UnderWay),
    /// Behind them, where the object around them is still open.
    Around(Scan),
    /// Behind a call.
    Behind,
}

/// A call that has begun.
#[derive(Clone, Debug)]
struct UnderWay {
    name: String,
    /// All its text.
    text: String,
    /// Where in it the arguments begin.
    from: usize,
    scan: Scan,
}

/// Reads one answer.
#[derive(Clone, Debug)]
pub struct CallReader {
    format: CallFormat,
    tools: Vec<String>,
    /// Text that may belong to a call.
    held: String,
    place: Place,
    /// Whether anything but white space has come.
    began: bool,
    /// Calls that have begun, and those that are whole.
    calls: usize,
    whole: usize,
    /// Calls that count.
    most: usize,
    /// What did not hold, a line each.
    pub warnings: Vec<String>,
}

impl CallReader {
    /// A reader of an answer that may call one of the tools, `most` times.
    #[must_use]
    pub fn new(format: CallFormat, tools: Vec<String>, most: usize) -> CallReader {
        CallReader {
            format,
            tools,
            held: String::new(),
            place: Place::Text,
            began: false,
            calls: 0,
            whole: 0,
            most,
            warnings: Vec::new(),
        }
    }

    /// Calls that have begun.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Calls that are whole.
    #[must_use]
    pub fn whole_calls(&self) -> usize {
        self.whole
    }

    /// More of the answer.
    pub fn push(&mut self, text: &str) -> Vec<Read> {
        self.held.push_str(text);
        let mut out = Vec::new();
        while self.advance(&mut out) {}
        out
    }

    /// The answer is over.
    pub fn finish(&mut self) -> Vec<Read> {
        let (mut out, held) = (Vec::new(), std::mem::take(&mut self.held));
        match std::mem::replace(&mut self.place, Place::Text) {
            Place::Text => {
                if self.calls == 0 || !held.trim().is_empty() {
                    text(&mut out, &held);
                }
            }
            Place::Head { first } | Place::Whole { first } => self.last(&held, first, &mut out),
            Place::Arguments(call) => {
                let why =
                    object(&call.text[call.from..]).map_or_else(Broken::why, |_| String::new());
                self.broken(call, &why, &mut out);
            }
            Place::Around(_) | Place::Behind => {}
        }
        out
    }

    /// A call that is read when all of it is there.
    fn last(&mut self, held: &str, first: bool, out: &mut Vec<Read>) {
        match self.format {
            CallFormat::Hermes => {
                let body = held.strip_prefix(OPEN).unwrap_or(held);
                self.judge(one(body).map(|call| vec![call]), held, out);
            }
            CallFormat::Llama => self.llama(held, out),
            CallFormat::Mistral if !first => self.judge(mistral(&format!("[{held}")), held, out),
            CallFormat::Mistral | CallFormat::MistralArgs => self.judge(mistral(held), held, out),
        }
    }

    /// One more piece of what is held; false when more text is needed.
    fn advance(&mut self, out: &mut Vec<Read>) -> bool {
        match &mut self.place {
            Place::Text => self.between(out),
            Place::Head { first } => {
                let first = *first;
                self.head(first, out)
            }
            Place::Whole { .. } => self.format == CallFormat::Hermes && self.close(out),
            Place::Arguments(_) => self.arguments(out),
            Place::Around(scan) => {
                let end = match scan.feed(&self.held) {
                    Scanned::All => self.held.len(),
                    Scanned::End(at) | Scanned::Wrong(at) => {
                        self.place = Place::Behind;
                        at
                    }
                };
                self.held.drain(..end);
                matches!(self.place, Place::Behind)
            }
            Place::Behind => self.behind(),
        }
    }

    fn between(&mut self, out: &mut Vec<Read>) -> bool {
        let start = self.held.trim_start();
        if self.format == CallFormat::Llama && !self.began && start.starts_with('{') {
            (self.place, self.began) = (Place::Head { first: true }, true);
            return true;
        }
        let opening = self.format.opening();
        if let Some(at) = self.held.find(opening) {
            // White space before a call is the template's, not the answer's.
            let before = self.held[..at].trim_end().to_owned();
            text(out, &before);
            self.held.drain(..at);
            (self.place, self.began) = (Place::Head { first: true }, true);
            return true;
        }
        let safe = self.held.len() - beginning(&self.held, opening);
        let sure = self.held[..safe].trim_end().len();
        if sure > 0 {
            self.began = true;
            text(out, &self.held[..sure]);
            self.held.drain(..sure);
        }
        false
    }

    fn head(&mut self, first: bool, out: &mut Vec<Read>) -> bool {
        match Head::of(self.format, &self.held, first) {
            Head::More => false,
            Head::Arguments(name, from) if self.tools.contains(&name) && self.calls < self.most => {
                self.calls += 1;
                out.push(Read::Begin(name.clone()));
                let text = self.held.drain(..from).collect();
                self.place = Place::Arguments(UnderWay { name, text, from, scan: Scan::default() });
                true
            }
            Head::Other | Head::Arguments(..) => {
                self.place = Place::Whole { first };
                true
            }
        }
    }

    fn arguments(&mut self, out: &mut Vec<Read>) -> bool {
        let Place::Arguments(call) = &mut self.place else { return false };
        let scanned = call.scan.feed(&self.held);
        let end = match scanned {
            Scanned::All => self.held.len(),
            Scanned::End(at) | Scanned::Wrong(at) => at,
        };
        if end > 0 {
            let piece: String = self.held.drain(..end).collect();
            call.text.push_str(&piece);
            out.push(Read::Arguments(piece));
        }
        if scanned == Scanned::All {
            return false;
        }
        let around = match self.format {
            CallFormat::MistralArgs => Place::Behind,
            _ => Place::Around(Scan::inside()),
        };
        let Place::Arguments(call) = std::mem::replace(&mut self.place, around) else {
            return false;
        };
        let mut said = call.text[call.from..].to_owned();
        if let Scanned::Wrong(_) = scanned {
            // So that the reason names it.
            said.extend(self.held.chars().next());
        }
        match object(&said) {
            Ok(_) => {
                self.whole += 1;
                out.push(Read::End);
            }
            Err(why) => {
                self.place = Place::Text;
                self.broken(call, &why.why(), out);
            }
        }
        true
    }

    fn broken(&mut self, call: UnderWay, why: &str, out: &mut Vec<Read>) {
        self.warnings.push(format!("a call of {:?} does not hold: {why}", call.name));
        out.push(Read::Broken(call.text));
    }

    /// What stands between a call and the next, or the text that follows.
    fn behind(&mut self) -> bool {
        let white = [' ', '\n', '\t', '\r'];
        let rest = match self.format {
            CallFormat::Llama => self.held.trim_start_matches([';', ' ', '\n', '\t', '\r']),
            _ => self.held.trim_start_matches(white),
        };
        let at = self.held.len() - rest.len();
        let further = Place::Head { first: false };
        let (skip, place) = match self.format {
            CallFormat::Hermes if rest.starts_with(CLOSE) => (at + CLOSE.len(), Place::Text),
            CallFormat::Hermes if CLOSE.starts_with(rest) => return false,
            CallFormat::Llama | CallFormat::Mistral if rest.is_empty() => return false,
            CallFormat::Llama if rest.starts_with('{') => (at, further),
            CallFormat::Mistral if rest.starts_with(',') => (at + 1, further),
            CallFormat::Mistral if rest.starts_with(']') => (at + 1, Place::Text),
            _ => (0, Place::Text),
        };
        self.held.drain(..skip);
        self.place = place;
        true
    }

    /// Ends a call of tags that must be whole, if its end is there.
    fn close(&mut self, out: &mut Vec<Read>) -> bool {
        let mut from = OPEN.len();
        while let Some(at) = self.held[from..].find(CLOSE) {
            let (body, end) = (from + at, from + at + CLOSE.len());
            let found = one(&self.held[OPEN.len()..body]);
            // The end may stand inside a text of the arguments.
            if matches!(&found, Err(Broken::Unfinished(_))) {
                from = end;
                continue;
            }
            let whole: String = self.held.drain(..end).collect();
            self.place = Place::Text;
            self.judge(found.map(|call| vec![call]), &whole, out);
            return true;
        }
        false
    }

    /// JSON objects one after the other, with `;` between them.
    fn llama(&mut self, held: &str, out: &mut Vec<Read>) {
        let marked = held.starts_with(PYTHON);
        let body = held.strip_prefix(PYTHON).unwrap_or(held);
        let mut rest = body.trim();
        let mut found = Ok(Vec::new());
        while !rest.is_empty() {
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<&RawValue>();
            match values.next() {
                Some(Ok(value)) => {
                    let call = one(value.get());
                    let end = values.byte_offset();
                    rest = rest[end..].trim_start_matches([';', ' ', '\n', '\t', '\r']);
                    found = found.and_then(|mut all: Vec<Call>| {
                        all.push(call?);
                        Ok(all)
                    });
                }
                Some(Err(error)) => {
                    found = Err(Broken::of(&error));
                    break;
                }
                None => break,
            }
        }
        // JSON that is no call is an answer like any other.
        let meant = marked || (body.contains("\"name\"") && body.contains("\"parameters\""));
        if !meant && found.is_err() {
            text(out, held);
            return;
        }
        self.judge(found, held, out);
    }

    fn judge(&mut self, found: Result<Vec<Call>, Broken>, whole: &str, out: &mut Vec<Read>) {
        let known = |call: &Call| self.tools.contains(&call.name);
        let why = match found {
            Ok(all) if all.is_empty() => "it is empty".to_owned(),
            Ok(all) => match all.iter().find(|call| !known(call)) {
                Some(call) => format!("no tool is called {:?}", call.name),
                None => {
                    for call in all {
                        self.take(call, out);
                    }
                    return;
                }
            },
            Err(broken) => broken.why(),
        };
        self.warnings.push(format!("a call of a tool is given as text: {why}"));
        text(out, whole);
    }

    fn take(&mut self, call: Call, out: &mut Vec<Read>) {
        if self.calls < self.most {
            (self.calls, self.whole) = (self.calls + 1, self.whole + 1);
            out.extend([Read::Begin(call.name), Read::Arguments(call.arguments), Read::End]);
            return;
        }
        self.warnings.push(format!("a call of {:?} beyond the {} asked for", call.name, self.most));
    }
}

fn text(out: &mut Vec<Read>, text: &str) {
    match out.last_mut() {
        _ if text.is_empty() => {}
        Some(Read::Text(last)) => last.push_str(text),
        _ => out.push(Read::Text(text.to_owned())),
    }
}

/// Bytes at the end of a text that may be the beginning of a mark.
fn beginning(text: &str, mark: &str) -> usize {
    (1..mark.len().min(text.len() + 1)).rev().find(|&n| text.ends_with(&mark[..n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A part of an answer that is whole.
    #[derive(Clone, Debug, PartialEq)]
    enum Part {
        Text(String),
        Call(String, String),
    }

    fn put(all: &mut Vec<Part>, text: &str) {
        match all.last_mut() {
            _ if text.is_empty() => {}
            Some(Part::Text(last)) => last.push_str(text),
            _ => all.push(Part::Text(text.to_owned())),
        }
    }

    /// What the pieces come to: a call that does not hold is text.
    fn whole(pieces: Vec<Read>) -> Vec<Part> {
        let mut all = Vec::new();
        for piece in pieces {
            match (piece, all.last_mut()) {
                (Read::Text(text), _) => put(&mut all, &text),
                (Read::Begin(name), _) => all.push(Part::Call(name, String::new())),
                (Read::Arguments(more), Some(Part::Call(_, arguments))) => {
                    arguments.push_str(&more)
                }
                (Read::End, Some(Part::Call(..))) => {}
                (Read::Broken(text), Some(Part::Call(..))) => {
                    all.pop();
                    put(&mut all, &text);
                }
                (piece, last) => panic!("{piece:?} behind {last:?}"),
            }
        }
        all
    }

    fn read(format: CallFormat, text: &str) -> (Vec<Part>, Vec<String>) {
        let mut found = None;
        // In one piece, and character by character: the same.
        for step in [text.len().max(1), 1] {
            let mut reader = CallReader::new(format, vec!["add".into(), "get".into()], 9);
            let chars: Vec<char> = text.chars().collect();
            let pieces = chars.chunks(step).map(|c| c.iter().collect::<String>());
            let mut out: Vec<Read> = pieces.flat_map(|piece| reader.push(&piece)).collect();
            out.extend(reader.finish());
            let now = (whole(out), reader.warnings);
            assert_eq!(found.get_or_insert_with(|| now.clone()), &now, "{text}");
        }
        found.unwrap_or_default()
    }

    fn call(name: &str, arguments: &str) -> Part {
        Part::Call(name.into(), arguments.into())
    }

    fn said(text: &str) -> Part {
        Part::Text(text.into())
    }

    #[test]
    fn arguments_come_as_they_are_written() {
        let json = r#"{"a": "x y", "b": [1, 2]}"#;
        let opening = |format: CallFormat| match format {
            CallFormat::Hermes => "<tool_call>\n{\"name\": \"add\", \"arguments\": ",
            CallFormat::Llama => "{\"name\": \"add\", \"parameters\": ",
            CallFormat::Mistral => "[TOOL_CALLS][{\"name\": \"add\", \"arguments\": ",
            CallFormat::MistralArgs => "[TOOL_CALLS]add[ARGS]",
        };
        for format in
            [CallFormat::Hermes, CallFormat::Llama, CallFormat::Mistral, CallFormat::MistralArgs]
        {
            let mut reader = CallReader::new(format, vec!["add".into()], 1);
            assert_eq!(reader.push(opening(format)), []);
            // The name is told with the first sign of the arguments, each sign with the one that it is.
            let signs: Vec<String> = json.chars().map(String::from).collect();
            for (i, sign) in signs.iter().enumerate() {
                let mut expected = vec![Read::Arguments(sign.clone())];
                if i == 0 {
                    expected.insert(0, Read::Begin("add".into()));
                }
                if i + 1 == signs.len() {
                    expected.push(Read::End);
                }
                assert_eq!(reader.push(sign), expected, "{format:?}");
            }
            assert_eq!((reader.finish(), reader.whole_calls()), (vec![], 1));
        }
    }

    #[test]
    fn a_call_that_breaks_off_is_taken_back() {
        let begun = "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": [1}";
        for (text, why) in [
            (begun.to_owned() + "} and more", "expected `,` or `]`"),
            (begun.replace('}', ", 2"), "EOF"),
            (begun.replace("1}", "<"), "expected value"),
        ] {
            let (all, warnings) = read(CallFormat::Hermes, &text);
            assert_eq!(all, [said(&text)]);
            assert!(warnings.len() == 1 && warnings[0].contains(why), "{warnings:?}");
        }
        let mut reader = CallReader::new(CallFormat::Hermes, vec!["add".into()], 2);
        let _ = reader.push(begun);
        assert_eq!((reader.finish(), reader.calls()), (vec![Read::Broken(begun.into())], 1));
        assert_eq!(reader.whole_calls(), 0);
    }

    #[test]
    fn calls_between_tags() {
        let add = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1.0}}\n</tool_call>";
        let (all, warnings) = read(CallFormat::Hermes, &format!("Let me see.\n\n{add}\n{add}\n"));
        let one = call("add", "{\"a\": 1.0}");
        assert_eq!(all, [said("Let me see."), one.clone(), one]);
        assert!(warnings.is_empty());
        // The end may be missing, or stand inside a text.
        let open = "<tool_call>{\"name\": \"get\"}";
        assert_eq!(read(CallFormat::Hermes, open).0, [call("get", "{}")]);
        let inside =
            "<tool_call>{\"name\":\"get\",\"arguments\":{\"a\":\"</tool_call>\"}}</tool_call>";
        assert_eq!(read(CallFormat::Hermes, inside).0, [call("get", "{\"a\":\"</tool_call>\"}")]);
        let quoted = r#"<tool_call>{"name":"get","arguments":"{\"a\": 2}"}</tool_call>"#;
        assert_eq!(read(CallFormat::Hermes, quoted).0, [call("get", "{\"a\": 2}")]);
        let coder = "<tool_call>\n<function=get>\n<parameter=a>\n7\n</parameter>\n<parameter=b>\nx y\n\
            </parameter>\n</function>\n</tool_call>";
        assert_eq!(read(CallFormat::Hermes, coder).0, [call("get", r#"{"a":7,"b":"x y"}"#)]);
    }

    #[test]
    fn what_does_not_hold_is_text() {
        for (text, why) in [
            (
                "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": </tool_call>",
                "expected value",
            ),
            ("so: <tool_call>{\"name\": \"rm\", \"arguments\": {}}</tool_call>!", "\"rm\""),
            ("<tool_call>{\"name\": \"add\", \"arguments\": [1]}</tool_call>", "a map"),
            ("<tool_call>{\"name\": \"add\", \"argum", "EOF"),
        ] {
            let (all, warnings) = read(CallFormat::Hermes, text);
            let [Part::Text(told)] = &all[..] else { panic!("{all:?}") };
            assert_eq!(told.replace(' ', ""), text.replace(' ', ""));
            assert!(warnings.len() == 1 && warnings[0].contains(why), "{warnings:?}");
        }
        let (all, warnings) = read(CallFormat::Hermes, "a < b, <tool> and \n spaces \n");
        assert_eq!(all, [said("a < b, <tool> and \n spaces \n")]);
        assert!(warnings.is_empty());
    }

    #[test]
    fn json_as_the_whole_answer() {
        let get = r#"{"name": "get", "parameters": {"a": "x"}}"#;
        assert_eq!(read(CallFormat::Llama, get).0, [call("get", r#"{"a": "x"}"#)]);
        let two = format!("<|python_tag|>{get}; {get}");
        assert_eq!(read(CallFormat::Llama, &two).0.len(), 2);
        let plain = r#"{"colour": "red"}"#;
        assert_eq!(read(CallFormat::Llama, plain), (vec![said(plain)], vec![]));
        let late = format!("Here: {get}");
        assert_eq!(read(CallFormat::Llama, &late).0, [said(&late)]);
        let unknown = r#"{"name": "rm", "parameters": {}}"#;
        let (all, warnings) = read(CallFormat::Llama, unknown);
        assert_eq!((all, warnings.len()), (vec![said(unknown)], 1));
        let code = "<|python_tag|>print(1)";
        assert_eq!(read(CallFormat::Llama, code).1.len(), 1);
    }

    #[test]
    fn lists_behind_a_mark() {
        let list = r#"Yes.[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}, {"name": "get", "arguments": {}}]"#;
        let both = [said("Yes."), call("add", r#"{"a": 1}"#), call("get", "{}")];
        assert_eq!(read(CallFormat::Mistral, list).0, both);
        let named = r#"[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{"a": 1}[TOOL_CALLS]get[ARGS]{}"#;
        assert_eq!(read(CallFormat::MistralArgs, named).0, both[1..]);
        let broken = "[TOOL_CALLS][{\"name\"";
        assert_eq!(read(CallFormat::Mistral, broken).0, [said(broken)]);
    }

    #[test]
    fn only_as_many_as_asked_for() {
        let mut reader = CallReader::new(CallFormat::Hermes, vec!["get".into()], 1);
        let get = "<tool_call>{\"name\": \"get\"}</tool_call>";
        let all = [reader.push(&get.repeat(3)), reader.finish()].concat();
        assert_eq!((whole(all), reader.warnings.len()), (vec![call("get", "{}")], 2));
        let mut reader = CallReader::new(CallFormat::Hermes, vec!["get".into()], 1);
        let get = "<tool_call>{\"name\": \"get\", \"arguments\": {\"a\": 1}}</tool_call>";
        let all = [reader.push(&get.repeat(2)), reader.finish()].concat();
        assert_eq!((whole(all), reader.warnings.len()), (vec![call("get", "{\"a\": 1}")], 1));
    }

    proptest! {
        #[test]
        fn any_text_in_any_pieces_is_read_without_loss(
            parts in prop::collection::vec(prop::sample::select(vec![
                "<tool_call>", "</tool_call>", "{\"name\": \"get\"}", "{\"name\": \"get\", \"arguments\": {",
                "<tool", "_call>", ", {\"name\": \"get\", \"parameters\": ", "{\"x\": 1}", ";", "]", "get", " ", "\n", "é",
                "[TOOL_CALLS]", "[", "{", "}", "<|python_tag|>", "[ARGS]", "\"", "x"]), 0..14),
        ) {
            let text = parts.concat();
            for format in [CallFormat::Hermes, CallFormat::Llama, CallFormat::Mistral, CallFormat::MistralArgs] {
                let (all, _) = read(format, &text);
                let bare = |text: &str| text.split_whitespace().collect::<String>();
                if let [Part::Text(told)] = &all[..] {
                    prop_assert_eq!(bare(told), bare(&text));
                }
            }
        }
    }
}
