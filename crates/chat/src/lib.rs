//! Chat templates: from messages to the text that a model was trained on.
//!
//! Templates are Jinja as Hugging Face documents them: blocks trimmed, Python's methods on texts and
//! lists, `raise_exception`, `strftime_now`, `tojson` as Python writes it, `{% generation %}` marks.
//! A template that loops is stopped. Nothing here knows models or tokens.

mod clock;
mod python;

use minijinja::{Environment, Error as Jinja, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// What was said.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: &str, content: impl Into<String>) -> Message {
        Message { role: role.to_owned(), content: content.into() }
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

/// Encloses a message's number while the template is rendered; no text of people keeps it.
const PLACE: char = '\u{F8FE}';
/// White space that no template writes: where it is gone, the template trims messages.
const EDGE: char = '\u{2003}';

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
}

/// Steps that a template may take.
const FUEL: u64 = 2_000_000;
const NAME: &str = "chat template";
/// Begins the message of an error that the template raised itself.
const RAISED: &str = "raised: ";

/// A model's chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
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
        let source = without_marks(source);
        environment
            .add_template_owned(NAME, source)
            .map_err(|e| Error::Syntax(one_line(&e.to_string())))?;
        let (bos_token, eos_token) = (bos_token.to_owned(), eos_token.to_owned());
        Ok(ChatTemplate { environment, bos_token, eos_token })
    }

    /// The text of a conversation; with `answer` it ends where the model's answer begins.
    ///
    /// # Errors
    /// [`Error::Refused`] with the template's own words, or what else failed.
    pub fn render(&self, messages: &[Message], answer: bool) -> Result<String, Error> {
        let template =
            self.environment.get_template(NAME).map_err(|e| Error::Syntax(e.to_string()))?;
        let result = template.render(context! {
            messages,
            add_generation_prompt => answer,
            bos_token => self.bos_token,
            eos_token => self.eos_token,
            tools => Value::from(()),
        });
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
        let number = |(i, m): (usize, &Message)| {
            Message::new(&m.role, format!("{EDGE}{PLACE}{i}{PLACE}{EDGE}"))
        };
        let marked: Vec<Message> = messages.iter().enumerate().map(number).collect();
        let text = self.render(&marked, answer)?;
        let mut all: Vec<Stretch> = Vec::new();
        for (i, part) in text.split(PLACE).enumerate() {
            let message = part.parse().ok().and_then(|at: usize| Some((at, messages.get(at)?)));
            if let Some((at, message)) = message.filter(|_| i % 2 == 1) {
                let content = message.content.replace(PLACE, "\u{FFFD}");
                let whole = match all.last_mut() {
                    Some(Stretch::Template(before)) if before.ends_with(EDGE) => {
                        before.truncate(before.len() - EDGE.len_utf8());
                        true
                    }
                    _ => false,
                };
                let content = if whole { content } else { content.trim().to_owned() };
                all.push(Stretch::Said(at, content));
            } else {
                all.push(Stretch::Template(part.strip_prefix(EDGE).unwrap_or(part).to_owned()));
            }
        }
        Ok(all)
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
