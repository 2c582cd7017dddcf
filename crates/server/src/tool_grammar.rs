//! The grammars of calls: of an answer that must call a tool, and of one that says what it likes until
//! it calls one.

use chat::CallFormat;
use serde_json::{Value, json};

/// The id of a mark, where it is a control token: it has no text.
pub type Controls<'a> = &'a dyn Fn(&str) -> Option<u32>;

/// A tool that may be called.
pub struct Callable<'a> {
    /// Its name.
    pub name: &'a str,
    /// The JSON schema that its arguments follow; without one they are any object.
    pub schema: Option<&'a Value>,
}

/// An answer that is calls alone, `most` of them, in Lark's notation.
#[must_use]
pub fn when_forced(
    controls: Controls<'_>,
    format: CallFormat,
    tools: &[Callable<'_>],
    most: usize,
) -> String {
    let start = match format {
        CallFormat::Hermes => {
            let open = mark(controls, "<tool_call>");
            format!("start: {open} call{}\n", again(&format!("\"\\n\" {open} call"), most))
        }
        // This family calls one at a time.
        CallFormat::Llama => "start: one\n".to_owned(),
        CallFormat::Mistral => format!("start: {} call\n", mark(controls, "[TOOL_CALLS]")),
        CallFormat::MistralArgs => {
            let open = mark(controls, "[TOOL_CALLS]");
            format!("start: {open} one{}\n", again(&format!("{open} one"), most))
        }
    };
    start + &calls(controls, format, tools, most)
}

/// Free text in which what opens a call begins one, `most` times. Text is all that does not hold the
/// opening; a further one cannot come.
#[must_use]
pub fn when_called(
    controls: Controls<'_>,
    format: CallFormat,
    tools: &[Callable<'_>],
    most: usize,
) -> String {
    let opening = format.opening();
    let (call, times) = match format {
        CallFormat::Hermes => ("call", most),
        // One list holds them all.
        CallFormat::Mistral => ("call", 1),
        CallFormat::Llama => ("one", 1),
        CallFormat::MistralArgs => ("one", most),
    };
    let without = format!("/(.|\\n)*/ & ~/(.|\\n)*{}(.|\\n)*/", escaped(opening));
    let before = if format == CallFormat::Llama { "PLAIN" } else { "TEXT" };
    let until = match controls(opening) {
        Some(id) => format!("opening: {before} <[{id}]>\n"),
        None => format!("opening[suffix={}]: {before}\n", json!(opening)),
    };
    let start = match format {
        // What begins like JSON is a call.
        CallFormat::Llama => {
            "start: one | PLAIN | opening one\nPLAIN: TEXT & /(\\s*[^{\\s](.|\\n)*)?/\n".to_owned()
        }
        _ => format!("start: (opening {call}){{0,{times}}} TEXT\n"),
    };
    format!("{start}{until}TEXT: {without}\n{}", calls(controls, format, tools, most))
}

/// The rules `call` (what stands behind an opening) and `one` (one tool with its arguments).
fn calls(
    controls: Controls<'_>,
    format: CallFormat,
    tools: &[Callable<'_>],
    most: usize,
) -> String {
    let mut out = match format {
        CallFormat::Hermes => {
            format!("call: \"\\n\" one \"\\n\" {}\n", mark(controls, "</tool_call>"))
        }
        CallFormat::Mistral => format!("call: \"[\" one{} \"]\"\n", again("\", \" one", most)),
        CallFormat::Llama | CallFormat::MistralArgs => String::new(),
    };
    let names: Vec<String> = (0..tools.len()).map(|i| format!("f{i}")).collect();
    out += &format!("one: {}\n", names.join(" | "));
    let key = if format == CallFormat::Llama { "parameters" } else { "arguments" };
    for (i, tool) in tools.iter().enumerate() {
        let rule = match format {
            CallFormat::MistralArgs => {
                format!("{} {} a{i}", json!(tool.name), mark(controls, "[ARGS]"))
            }
            _ => {
                let head = format!("{{\"name\": {}, \"{key}\": ", json!(tool.name));
                format!("{} a{i} \"}}\"", json!(head))
            }
        };
        out += &format!("f{i}: {rule}\na{i}: %json {}\n", arguments(tool.schema));
    }
    out
}

fn again(what: &str, most: usize) -> String {
    if most > 1 { format!(" ({what}){{0,{}}}", most - 1) } else { String::new() }
}

fn mark(controls: Controls<'_>, text: &str) -> String {
    match controls(text) {
        Some(id) => format!("<[{id}]>"),
        None => json!(text).to_string(),
    }
}

/// A text as a regular expression for it.
fn escaped(text: &str) -> String {
    let sign = |c: char| match c {
        // In brackets every sign but these is itself.
        '[' | ']' | '^' | '\\' => format!("\\{c}"),
        c => format!("[{c}]"),
    };
    text.chars().map(sign).collect()
}

/// The schema that a call's arguments follow: an object with nothing that nobody named, written as
/// Python writes JSON, which is what models have seen.
fn arguments(schema: Option<&Value>) -> Value {
    let Some(schema) = schema else { return json!({ "type": "object" }) };
    let mut schema = schema.clone();
    if let Some(map) = schema.as_object_mut() {
        map.entry("type").or_insert("object".into());
        map.entry("properties").or_insert(json!({}));
        let open = ["$ref", "anyOf", "oneOf", "allOf", "patternProperties"];
        if !open.iter().any(|key| map.contains_key(*key)) {
            map.entry("additionalProperties").or_insert(false.into());
        }
        let spaced = json!({
            "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ",
        });
        map.insert("x-guidance".to_owned(), spaced);
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use llguidance::api::TopLevelGrammar;
    use llguidance::toktrie::ApproximateTokEnv;
    use llguidance::{Matcher, ParserFactory};

    /// Whether a text is an answer, begins one, or neither; a byte is a token.
    fn judged(grammar: &str, text: &str) -> &'static str {
        let factory = ParserFactory::new_simple(&ApproximateTokEnv::single_byte_env()).unwrap();
        let parser = factory.create_parser(TopLevelGrammar::from_lark(grammar.to_owned()));
        let mut matcher = Matcher::new(Ok(parser.unwrap()));
        for byte in text.bytes() {
            if !matcher.compute_mask_or_eos().unwrap().is_allowed(u32::from(byte)) {
                return "neither";
            }
            matcher.consume_token(u32::from(byte)).unwrap();
        }
        if matcher.is_accepting().unwrap() { "an answer" } else { "a beginning" }
    }

    const ALL: [CallFormat; 4] =
        [CallFormat::Hermes, CallFormat::Llama, CallFormat::Mistral, CallFormat::MistralArgs];

    /// A call of `add` (held to its schema) or of `get` (any object).
    fn call(format: CallFormat, name: &str, arguments: &str) -> String {
        match format {
            CallFormat::Hermes => format!(
                "<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>"
            ),
            CallFormat::Llama => format!("{{\"name\": \"{name}\", \"parameters\": {arguments}}}"),
            CallFormat::Mistral => {
                format!("[TOOL_CALLS][{{\"name\": \"{name}\", \"arguments\": {arguments}}}]")
            }
            CallFormat::MistralArgs => format!("[TOOL_CALLS]{name}[ARGS]{arguments}"),
        }
    }

    #[test]
    fn text_is_free_and_calls_follow_their_schemas() {
        let schema = json!({ "properties": { "a": { "type": "integer" } }, "required": ["a"] });
        let tools = [
            Callable { name: "add", schema: Some(&schema) },
            Callable { name: "get", schema: None },
        ];
        for format in ALL {
            let grammar = when_called(&|_| None, format, &tools, 2);
            let check = |text: &str, expected: &str| {
                assert_eq!(judged(&grammar, text), expected, "{format:?}: {text}\n{grammar}");
            };
            for text in ["", "plain\n\ntext: é, <tool_ca", "a {\"name\": \"add\"", "[TOOL_CALL"] {
                check(text, "an answer");
            }
            let good = call(format, "add", "{\"a\": 7}");
            check(&good, "an answer");
            check(&call(format, "get", "{\"x\": [null, 1.5]}"), "an answer");
            for (name, arguments) in
                [("add", "{}"), ("add", "{\"a\": \"7\"}"), ("rm", "{\"a\": 7}")]
            {
                check(&call(format, name, arguments), "neither");
            }
            let behind = match format {
                CallFormat::Llama => format!("Well. <|python_tag|>{good}"),
                _ => format!("Well.\n{good}"),
            };
            check(&behind, "an answer");
            check(&behind[..behind.len() - 1], "a beginning");
            if format == CallFormat::Hermes {
                check(&format!("{good}\n{good} and so on"), "an answer");
                check(&format!("{good}{good}<tool_call>"), "neither");
                check(&format!("{good}{good}<tool_call"), "an answer");
            }
        }
    }

    #[test]
    fn a_forced_answer_is_calls_alone() {
        let schema = json!({ "properties": {} });
        let tools = [Callable { name: "add", schema: Some(&schema) }];
        for format in ALL {
            let grammar = when_forced(&|_| None, format, &tools, 1);
            assert_eq!(judged(&grammar, &call(format, "add", "{}")), "an answer", "{grammar}");
            assert_eq!(judged(&grammar, "Well."), "neither");
            assert_eq!(judged(&grammar, ""), "a beginning");
        }
    }
}
