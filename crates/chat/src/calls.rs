//! From what a model writes to the calls of tools in it, as the text comes.
//!
//! Text is given on at once unless a call may begin with it; a call is given when it is whole and
//! holds: one of the tools by name, with arguments that are a JSON object. What looks like a call
//! and does not hold is given as the text that it is, with a line that says why.

use serde::Deserialize;
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

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const PYTHON: &str = "<|python_tag|>";
const CALLS: &str = "[TOOL_CALLS]";
const ARGS: &str = "[ARGS]";
const CALL_ID: &str = "[CALL_ID]";

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
    fn opening(self) -> &'static str {
        match self {
            CallFormat::Hermes => OPEN,
            CallFormat::Llama => PYTHON,
            CallFormat::Mistral | CallFormat::MistralArgs => CALLS,
        }
    }
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The tool.
    pub name: String,
    /// The JSON of an object, as the model wrote it.
    pub arguments: String,
}

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// Plain text.
    Text(String),
    /// A call.
    Call(Call),
}

/// Reads one answer.
#[derive(Clone, Debug)]
pub struct CallReader {
    format: CallFormat,
    tools: Vec<String>,
    /// Text that may belong to a call.
    held: String,
    /// Whether `held` begins with a call.
    inside: bool,
    /// Whether anything but white space has come.
    began: bool,
    calls: usize,
    /// Calls that count.
    most: usize,
    /// What did not hold, a line each.
    pub warnings: Vec<String>,
}

impl CallReader {
    /// A reader of an answer that may call one of the tools, `most` times.
    #[must_use]
    pub fn new(format: CallFormat, tools: Vec<String>, most: usize) -> CallReader {
        let (held, warnings) = (String::new(), Vec::new());
        CallReader { format, tools, held, inside: false, began: false, calls: 0, most, warnings }
    }

    /// Calls so far.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.calls
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
        let mut out = Vec::new();
        while self.inside && !self.held.is_empty() {
            let held = std::mem::take(&mut self.held);
            self.inside = false;
            match self.format {
                CallFormat::Hermes => {
                    let body = held.strip_prefix(OPEN).unwrap_or(&held);
                    self.judge(one(body).map(|call| vec![call]), &held, &mut out);
                }
                CallFormat::Llama => self.llama(&held, &mut out),
                CallFormat::Mistral | CallFormat::MistralArgs => {
                    self.judge(mistral(&held), &held, &mut out);
                }
            }
        }
        let rest = std::mem::take(&mut self.held);
        if self.calls == 0 || !rest.trim().is_empty() {
            text(&mut out, &rest);
        }
        out
    }

    /// One more piece of what is held; false when more text is needed.
    fn advance(&mut self, out: &mut Vec<Read>) -> bool {
        if self.inside {
            return self.format == CallFormat::Hermes && self.close(out);
        }
        let start = self.held.trim_start();
        if self.format == CallFormat::Llama && !self.began && start.starts_with('{') {
            self.inside = true;
            return false;
        }
        let opening = self.format.opening();
        if let Some(at) = self.held.find(opening) {
            // White space before a call is the template's, not the answer's.
            let before = self.held[..at].trim_end().to_owned();
            text(out, &before);
            self.held.drain(..at);
            (self.inside, self.began) = (true, true);
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

    /// Ends a call of tags, if its end is there.
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
            self.inside = false;
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
            Err(Broken::Unfinished(why) | Broken::Wrong(why)) => why,
        };
        self.warnings.push(format!("a call of a tool is given as text: {why}"));
        text(out, whole);
    }

    fn take(&mut self, call: Call, out: &mut Vec<Read>) {
        if self.calls < self.most {
            self.calls += 1;
            out.push(Read::Call(call));
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

/// Why a text is no call.
enum Broken {
    /// It ends too early.
    Unfinished(String),
    /// It is something else.
    Wrong(String),
}

impl Broken {
    fn of(error: &serde_json::Error) -> Broken {
        let what = error.to_string();
        if error.is_eof() { Broken::Unfinished(what) } else { Broken::Wrong(what) }
    }
}

#[derive(Deserialize)]
struct Written<'a> {
    name: String,
    #[serde(borrow, alias = "parameters")]
    arguments: Option<&'a RawValue>,
}

impl Written<'_> {
    fn call(self) -> Result<Call, Broken> {
        let raw = self.arguments.map_or("{}", RawValue::get);
        // Some models write the JSON of the arguments as a text.
        let arguments = match serde_json::from_str::<String>(raw) {
            Ok(text) => text,
            Err(_) => raw.to_owned(),
        };
        Ok(Call { name: self.name, arguments: object(&arguments)? })
    }
}

/// A text that is the JSON of an object.
fn object(text: &str) -> Result<String, Broken> {
    let text = if text.trim().is_empty() { "{}" } else { text.trim() };
    let map = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text);
    map.map(|_| text.to_owned()).map_err(|error| Broken::of(&error))
}

/// One call, as JSON or as Qwen's coders write it.
fn one(body: &str) -> Result<Call, Broken> {
    if body.trim_start().starts_with("<function=") {
        return tagged(body.trim());
    }
    let written: Written<'_> = serde_json::from_str(body).map_err(|e| Broken::of(&e))?;
    written.call()
}

/// `<function=name><parameter=key>value</parameter>...</function>`: values are JSON where they can
/// be read so, texts where not.
fn tagged(body: &str) -> Result<Call, Broken> {
    let wrong = || Broken::Wrong("expected <function=NAME> ... </function>".to_owned());
    let (name, mut rest) =
        body.strip_prefix("<function=").and_then(|rest| rest.split_once('>')).ok_or_else(wrong)?;
    let mut arguments = serde_json::Map::new();
    while let Some((_, after)) = rest.split_once("<parameter=") {
        let (key, value) = after.split_once('>').ok_or_else(wrong)?;
        let (value, after) = value.split_once("</parameter>").ok_or_else(wrong)?;
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        let read = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        arguments.insert(key.trim().to_owned(), read);
        rest = after;
    }
    let arguments = serde_json::Value::Object(arguments).to_string();
    Ok(Call { name: name.trim().to_owned(), arguments })
}

/// All that follows the mark.
fn mistral(held: &str) -> Result<Vec<Call>, Broken> {
    let body = held.trim().strip_prefix(CALLS).unwrap_or(held).trim();
    if body.starts_with('[') && !body.contains(ARGS) {
        let all: Vec<Written<'_>> = serde_json::from_str(body).map_err(|e| Broken::of(&e))?;
        return all.into_iter().map(Written::call).collect();
    }
    if body.starts_with('{') {
        return Ok(vec![one(body)?]);
    }
    let named = |part: &str| {
        let (name, arguments) = part
            .split_once(ARGS)
            .or_else(|| part.find('{').map(|at| part.split_at(at)))
            .ok_or_else(|| Broken::Wrong(format!("expected NAME{ARGS}{{...}}")))?;
        let name = name.split(CALL_ID).next().unwrap_or(name).trim().to_owned();
        Ok(Call { name, arguments: object(arguments)? })
    };
    body.split(CALLS).filter(|part| !part.trim().is_empty()).map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(format: CallFormat, text: &str) -> (Vec<Read>, Vec<String>) {
        let mut whole = None;
        // In one piece, and character by character: the same.
        for step in [text.len().max(1), 1] {
            let mut reader = CallReader::new(format, vec!["add".into(), "get".into()], 9);
            let chars: Vec<char> = text.chars().collect();
            let mut all: Vec<Read> = Vec::new();
            let pieces = chars.chunks(step).map(|c| c.iter().collect::<String>());
            let mut out: Vec<Read> = pieces.flat_map(|piece| reader.push(&piece)).collect();
            out.extend(reader.finish());
            for one in out {
                match one {
                    Read::Text(more) => super::text(&mut all, &more),
                    call => all.push(call),
                }
            }
            let found = (all, reader.warnings);
            assert_eq!(whole.get_or_insert_with(|| found.clone()), &found, "{text}");
        }
        whole.unwrap_or_default()
    }

    fn call(name: &str, arguments: &str) -> Read {
        Read::Call(Call { name: name.into(), arguments: arguments.into() })
    }

    fn said(text: &str) -> Read {
        Read::Text(text.into())
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
            let told: String = all
                .iter()
                .map(|one| match one {
                    Read::Text(text) => text.as_str(),
                    Read::Call(call) => panic!("{call:?}"),
                })
                .collect();
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
        assert_eq!((all.len(), reader.calls(), reader.warnings.len()), (1, 1, 2));
    }

    proptest! {
        #[test]
        fn any_text_in_any_pieces_is_read_without_loss(
            parts in prop::collection::vec(prop::sample::select(vec![
                "<tool_call>", "</tool_call>", "{\"name\": \"get\"}", "<tool", "_call>", " ", "\n", "é",
                "[TOOL_CALLS]", "[", "{", "}", "<|python_tag|>", "[ARGS]", "\"", "x"]), 0..14),
        ) {
            let text = parts.concat();
            for format in [CallFormat::Hermes, CallFormat::Llama, CallFormat::Mistral, CallFormat::MistralArgs] {
                let (all, _) = read(format, &text);
                let told: String = all.iter().filter_map(|one| match one {
                    Read::Text(text) => Some(text.as_str()),
                    Read::Call(_) => None,
                }).collect();
                let bare = |text: &str| text.split_whitespace().collect::<String>();
                if all.iter().all(|one| matches!(one, Read::Text(_))) {
                    prop_assert_eq!(bare(&told), bare(&text));
                }
            }
        }
    }
}
