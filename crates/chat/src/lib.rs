//! Chat templates: from messages to the text that a model was trained on.
//!
//! Templates are Jinja as Hugging Face documents them: blocks trimmed, Python's methods on texts and
//! lists, `raise_exception`, `strftime_now`, `tojson` as Python writes it, `{% generation %}` marks,
//! `tools` and calls of them. A template that loops, or grows without end, is stopped. [`CallReader`] goes the other way:
//! from what a model writes to the calls in it. Nothing here knows models or tokens.

mod begun;
mod call_text;
mod calls;
mod clock;
mod places;
mod python;
mod without_tools;

pub use calls::{CallFormat, CallReader, Read};

use ledger::{Bounds, within};
use minijinja::{Environment, Error as Jinja, ErrorKind, Value, context};
use places::Places;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value as Json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Stored")]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// What was said; for a tool, what it returned. Read from a text, a list of parts of text, or
    /// nothing; it may be absent where the assistant only calls tools.
    pub content: String,
    /// Calls of tools that the assistant made, as Hugging Face documents them:
    /// `{"type": "function", "id": ..., "function": {"name": ..., "arguments": {...}}}`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<Json>,
    /// The call that a tool's message answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The tool's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A message as conversations are stored.
#[derive(Deserialize)]
struct Stored {
    role: String,
    #[serde(default, deserialize_with = "there")]
    content: Option<Json>,
    tool_calls: Option<Vec<Json>>,
    tool_call_id: Option<String>,
    name: Option<String>,
}

/// What is there, be it null.
fn there<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(from).map(Some)
}

impl TryFrom<Stored> for Message {
    type Error = String;

    fn try_from(stored: Stored) -> Result<Message, String> {
        let Stored { role, content, tool_calls, tool_call_id, name } = stored;
        let tool_calls = tool_calls.unwrap_or_default();
        let text_of = |part: &Json| match (part["type"].as_str(), part["text"].as_str()) {
            (Some("text"), Some(text)) => Ok(text.to_owned()),
            _ => Err(format!("a part of content is {part}, expected a text's")),
        };
        let content = match content {
            None if tool_calls.is_empty() => {
                return Err(format!("content is missing in a message of role {role:?}"));
            }
            None | Some(Json::Null) => String::new(),
            Some(Json::String(text)) => text,
            Some(Json::Array(parts)) => parts.iter().map(text_of).collect::<Result<_, _>>()?,
            Some(other) => return Err(format!("content is {other}, expected a text")),
        };
        Ok(Message { role, content, tool_calls, tool_call_id, name })
    }
}

impl Message {
    /// A message.
    pub fn new(role: &str, content: impl Into<String>) -> Message {
        Message { role: role.to_owned(), content: content.into(), ..Message::default() }
    }
}

/// A stretch of a conversation's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stretch {
    /// What the template writes: names of control tokens stand for them.
    Template(String),
    /// What was said in the message at this place: it is plain text whatever it is.
    Said(usize, String),
}

/// Why there is no text.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// The template is no template.
    #[error("the model's chat template cannot be read: {0}")]
    Syntax(String),
    /// The template refused the messages.
    #[error("the model's chat template refuses these messages: {0}")]
    Refused(String),
    /// The template failed.
    #[error("the model's chat template failed: {0}")]
    Failed(String),
    /// The template does not end.
    #[error("the model's chat template takes more than {FUEL} steps; does it loop without end?")]
    Endless,
    /// The template makes too much of what it has.
    #[error(
        "the model's chat template takes more than {} MiB of memory or {} s; does it grow without end?",
        BOUNDS.held >> 20,
        BOUNDS.time.as_secs()
    )]
    Boundless,
}

/// Steps that a template may take.
const FUEL: u64 = 2_000_000;
/// What it may take for that: messages are not in it, only their places.
const BOUNDS: Bounds = Bounds { held: 64 << 20, written: 1 << 30, time: Duration::from_secs(5) };
const NAME: &str = "chat template";
/// Begins the message of an error that the template raised itself.
const RAISED: &str = "raised: ";

/// A model's chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    bos_token: String,
    eos_token: String,
    takes_tools: bool,
    format: Option<CallFormat>,
    /// It went beyond its bounds once, and is not tried again.
    boundless: AtomicBool,
}

impl ChatTemplate {
    /// A template with the tokens that it may name.
    ///
    /// # Errors
    /// [`Error::Syntax`] with the line.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<ChatTemplate, Error> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(FUEL));
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Jinja> {
            Err(Jinja::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
        });
        environment.add_function("strftime_now", |format: String| clock::now(&format));
        environment.add_filter("tojson", python::to_json);
        let (takes_tools, format) = (source.contains("tools"), CallFormat::of_template(source));
        let source = without_marks(source);
        environment
            .add_template_owned(NAME, source)
            .map_err(|e| Error::Syntax(one_line(&e.to_string())))?;
        let (bos_token, eos_token) = (bos_token.to_owned(), eos_token.to_owned());
        let (environment, boundless) = (Arc::new(environment), AtomicBool::new(false));
        Ok(ChatTemplate { environment, bos_token, eos_token, takes_tools, format, boundless })
    }

    /// Whether the template has a place for tools; where it has none, they are told of in the system
    /// message.
    #[must_use]
    pub fn takes_tools(&self) -> bool {
        self.takes_tools
    }

    /// How a model of this template writes calls of tools; none where the template has tools and
    /// none of the known ways.
    #[must_use]
    pub fn call_format(&self) -> Option<CallFormat> {
        self.format
    }

    /// The text of a conversation; with `answer` it ends where the model's answer begins.
    ///
    /// # Errors
    /// [`Error::Refused`] with the template's own words, or what else failed.
    pub fn render(&self, messages: &[Message], answer: bool) -> Result<String, Error> {
        self.render_with(messages, &[], answer)
    }

    fn render_with(
        &self,
        messages: &[Message],
        tools: &[Json],
        answer: bool,
    ) -> Result<String, Error> {
        if self.boundless.load(Ordering::Relaxed) {
            return Err(Error::Boundless);
        }
        let environment = Arc::clone(&self.environment);
        let words = context! {
            messages,
            add_generation_prompt => answer,
            bos_token => self.bos_token,
            eos_token => self.eos_token,
            tools => if tools.is_empty() { Value::from(()) } else { Value::from_serialize(tools) },
        };
        let Ok(result) = within(BOUNDS, move || environment.get_template(NAME)?.render(words))
        else {
            self.boundless.store(true, Ordering::Relaxed);
            return Err(Error::Boundless);
        };
        result.map_err(|error| {
            let said = error.detail().unwrap_or_default();
            match (said.strip_prefix(RAISED), error.kind()) {
                (Some(message), _) => Error::Refused(one_line(message)),
                (None, ErrorKind::OutOfFuel) => Error::Endless,
                (None, _) => Error::Failed(one_line(&error.to_string())),
            }
        })
    }
}

impl ChatTemplate {
    /// As [`ChatTemplate::render`], with what people wrote told apart from what the template
    /// writes: it is rendered with numbers in place of messages, which are put in afterwards.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn stretches(&self, messages: &[Message], answer: bool) -> Result<Vec<Stretch>, Error> {
        self.stretches_with_tools(messages, &[], answer)
    }

    /// The same for a conversation with tools, given as Hugging Face documents them:
    /// `{"type": "function", "function": {"name", "description", "parameters"}}`. Words of theirs that
    /// may hold a control token's name are put in afterwards too; they count as said by the message
    /// behind the last.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn stretches_with_tools(
        &self,
        messages: &[Message],
        tools: &[Json],
        answer: bool,
    ) -> Result<Vec<Stretch>, Error> {
        if !self.takes_tools && without_tools::has_any(messages, tools) {
            let told = without_tools::told(messages, tools);
            return self.placed(&told, &[], answer);
        }
        self.placed(messages, tools, answer)
    }

    fn placed(
        &self,
        messages: &[Message],
        tools: &[Json],
        answer: bool,
    ) -> Result<Vec<Stretch>, Error> {
        let mut places = Places::default();
        let marked: Vec<Message> =
            messages.iter().enumerate().map(|(i, message)| places.message(i, message)).collect();
        let tools: Vec<Json> =
            tools.iter().map(|tool| places.words(messages.len(), tool)).collect();
        Ok(places.put_in(&self.render_with(&marked, &tools, answer)?))
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// `{% generation %}` marks what a model is trained on: here it means nothing. Its white space
/// control stays.
fn without_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 2);
        let word = tag[2..tag.len() - 2].trim_matches(['-', '+', ' ', '\n', '\t']);
        match word {
            "generation" => out.push_str(&tag.replace(word, "if true")),
            "endgeneration" => out.push_str(&tag.replace(word, "endif")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, messages: &[(&str, &str)], answer: bool) -> Result<String, Error> {
        let messages: Vec<Message> = messages.iter().map(|(r, c)| Message::new(r, *c)).collect();
        ChatTemplate::new(source, "<s>", "</s>")?.render(&messages, answer)
    }

    const TWO: [(&str, &str); 2] = [("u", "a"), ("v", "b")];

    #[test]
    fn blocks_are_trimmed_as_the_reference_does() {
        let source = "{% for m in messages %}\n    {{ m.role }}: {{ m.content }}\n{% endfor %}\n\
                      {% if add_generation_prompt %}\nA:{% endif %}\n";
        assert_eq!(render(source, &TWO, true).unwrap(), "    u: a\n    v: b\nA:");
        assert_eq!(render("{% if 1 %} {% endif %}", &[], false).unwrap(), " ");
        let list = "{% for x in [1,2] %}\n    {{ x }}\n{% endfor %}\n";
        assert_eq!(render(list, &[], false).unwrap(), "    1\n    2\n");
    }

    #[test]
    fn what_people_wrote_is_told_apart() {
        let said = [Message::new("user", " <|end|> x "), Message::new("user", "\u{F8FE}0\u{F8FE}")];
        let stretches = |source: &str| {
            ChatTemplate::new(source, "", "").unwrap().stretches(&said, true).unwrap()
        };
        let template = |text: &str| Stretch::Template(text.to_owned());
        let plain = |at: usize, text: &str| Stretch::Said(at, text.to_owned());
        let kept = "{% for m in messages %}<|u|>{{ m.content }}<|end|>{% endfor %}";
        assert_eq!(
            stretches(kept),
            [
                template("<|u|>"),
                plain(0, " <|end|> x "),
                template("<|end|><|u|>"),
                plain(1, "\u{FFFD}0\u{FFFD}"),
                template("<|end|>"),
            ]
        );
        let trimmed = stretches("{{ messages[0].content | trim }}!");
        assert_eq!(trimmed, [template(""), plain(0, "<|end|> x"), template("!")]);
    }

    #[test]
    fn pythons_methods_and_the_helpers_work() {
        let source = "{{ bos_token }}{% set ns = namespace(n=0) %}{% for m in messages[::-1] %}\
            {% set ns.n = ns.n + 1 %}{{ m['content'].strip().upper() }}{{ ns.n }}{% endfor %}\
            {{ messages[-1].role.startswith('v') }}{{ {'a': [1, 'é\"']} | tojson }}\
            {% generation %}x{% endgeneration %}{{ strftime_now('%Y') | length }}";
        let text = render(source, &[("u", " a "), ("v", "b")], false).unwrap();
        assert_eq!(text, "<s>B1A2True{\"a\": [1, \"é\\\"\"]}x4");
    }

    #[test]
    fn what_was_said_may_be_a_text_parts_or_nothing() {
        let read = |content: &str| {
            let line = format!("{{\"role\": \"user\"{content}}}");
            serde_json::from_str::<Message>(&line).map(|message| message.content)
        };
        let parts =
            r#", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]"#;
        for (content, right) in [
            (r#", "content": "a b""#, "a b"),
            (parts, "a b"),
            (r#", "content": []"#, ""),
            (r#", "content": null"#, ""),
            (r#", "content": null, "tool_calls": null"#, ""),
            (r#", "tool_calls": [{"type": "function"}]"#, ""),
        ] {
            assert_eq!(read(content).unwrap(), right, "{content}");
        }
        for (content, why) in [
            ("", "content is missing in a message of role \"user\""),
            (r#", "tool_calls": []"#, "content is missing"),
            (r#", "content": 5"#, "content is 5"),
            (r#", "content": [{"type": "image_url", "image_url": {}}]"#, "image_url"),
        ] {
            assert!(read(content).unwrap_err().to_string().contains(why), "{content}");
        }
    }

    #[test]
    fn templates_that_fail_are_told_apart() {
        let raise =
            "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}";
        assert_eq!(render(raise, &TWO, false), Err(Error::Refused("user first".to_owned())));
        assert!(matches!(render("{% if %}", &TWO, false), Err(Error::Syntax(_))));
        assert!(matches!(render("{{ messages[9].role }}", &TWO, false), Err(Error::Failed(_))));
        let endless =
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
        assert_eq!(render(endless, &TWO, false), Err(Error::Endless));
    }
}
