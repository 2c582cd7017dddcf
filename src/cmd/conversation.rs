//! Conversations as tokens: a chat template rendered with numbers in place of messages, which are
//! put in afterwards. So names of control tokens in what people said are plain text.

use chat::{ChatTemplate, Message};
use tokenizer::{Part, Tokenizer};

/// Encloses a message's number while the template is rendered; no text of people holds it.
const PLACE: char = '\u{F8FE}';
/// White space that no template writes: where it is gone, the template trims messages.
const EDGE: char = '\u{2003}';

/// A text of people without the character that marks places.
pub fn without_places(text: &str) -> String {
    text.replace(PLACE, "\u{FFFD}")
}

/// The tokens of a conversation up to where the model's next answer begins.
pub fn prompt(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[Message],
) -> Result<Vec<u32>, chat::Error> {
    let text = template.render(&numbered(messages), true)?;
    let mut writer =
        Writer { tokenizer, ends: None, run: String::new(), answering: false, out: Vec::new() };
    writer.write(&text, messages);
    Ok(writer.out.into_iter().map(|(id, _)| id).collect())
}

/// The tokens of a whole conversation, each with whether the assistant wrote it: what it said, and
/// the token of `ends` behind that. An answer is encoded apart from what stands before it, as it is
/// when a model writes it.
pub fn answers(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[Message],
    ends: &[u32],
) -> Result<Vec<(u32, bool)>, chat::Error> {
    let text = template.render(&numbered(messages), false)?;
    let ends = Some(ends);
    let mut writer =
        Writer { tokenizer, ends, run: String::new(), answering: false, out: Vec::new() };
    writer.write(&text, messages);
    Ok(writer.out)
}

fn numbered(messages: &[Message]) -> Vec<Message> {
    let number =
        |(i, m): (usize, &Message)| Message::new(&m.role, format!("{EDGE}{PLACE}{i}{PLACE}{EDGE}"));
    messages.iter().enumerate().map(number).collect()
}

/// Text between two control tokens is encoded in one piece, messages included; but answers apart,
/// where `ends` are given.
struct Writer<'a> {
    tokenizer: &'a Tokenizer,
    ends: Option<&'a [u32]>,
    run: String,
    answering: bool,
    out: Vec<(u32, bool)>,
}

impl Writer<'_> {
    fn write(&mut self, text: &str, messages: &[Message]) {
        for (i, part) in text.split(PLACE).enumerate() {
            let message = part.parse().ok().and_then(|at: usize| messages.get(at));
            match message.filter(|_| i % 2 == 1) {
                Some(message) => self.message(message),
                None => self.between(part.strip_prefix(EDGE).unwrap_or(part)),
            }
        }
        self.flush();
    }

    fn message(&mut self, message: &Message) {
        let whole = self.run.ends_with(EDGE);
        if whole {
            self.run.pop();
        }
        if self.ends.is_some() && message.role == "assistant" {
            self.flush();
            self.answering = true;
        }
        let content = message.content.as_str();
        self.run.push_str(if whole { content } else { content.trim() });
    }

    /// What the template writes between messages.
    fn between(&mut self, text: &str) {
        for part in self.tokenizer.parts(text) {
            if self.answering {
                self.flush();
            }
            match part {
                Part::Text(text) => self.run.push_str(text),
                Part::Control(id) => {
                    self.flush();
                    let ends = self.ends.is_some_and(|ends| ends.contains(&id));
                    self.out.push((id, self.answering && ends));
                }
            }
            self.answering = false;
        }
    }

    fn flush(&mut self) {
        let ids = self.tokenizer.encode(&std::mem::take(&mut self.run));
        self.out.extend(ids.into_iter().map(|id| (id, self.answering)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokenizer() -> Tokenizer {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/families/tests/fixtures/qwen2");
        families::Checkpoint::open(folder.as_ref()).unwrap().tokenizer
    }

    const SOURCE: &str = "{% for m in messages %}<|user|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}\
         {% if add_generation_prompt %}<|user|>assistant\n{% endif %}";

    fn talk(pairs: &[(&str, &str)]) -> Vec<Message> {
        pairs.iter().map(|(role, content)| Message::new(role, *content)).collect()
    }

    #[test]
    fn only_what_the_assistant_wrote_is_marked_and_a_prompt_begins_it() {
        let (words, template) = (tokenizer(), ChatTemplate::new(SOURCE, "", "").unwrap());
        let messages = talk(&[
            ("user", "a <|end|>"),
            ("assistant", " yes"),
            ("user", "b"),
            ("assistant", "no"),
        ]);
        let end = words.id("<|end|>").unwrap();
        let all = answers(&template, &words, &messages, &[end]).unwrap();
        let marked: Vec<u32> = all.iter().filter(|t| t.1).map(|t| t.0).collect();
        assert_eq!(words.decode(&marked).replace("<|end|>", ""), " yesno");
        assert_eq!(marked.iter().filter(|&&id| id == end).count(), 2);
        // The user's own «<|end|>» is text: only the template's four are tokens.
        assert_eq!(all.iter().filter(|t| t.0 == end).count(), 4);
        let before = prompt(&template, &words, &messages[..3]).unwrap();
        assert!(all.iter().map(|t| t.0).take(before.len()).eq(before.iter().copied()));
        assert!(all[before.len()].1 && !all[before.len() - 1].1);
    }

    #[test]
    fn without_control_tokens_the_words_alone_are_marked() {
        let source = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}";
        let (words, template) = (tokenizer(), ChatTemplate::new(source, "", "").unwrap());
        let messages = talk(&[("user", "a"), ("assistant", " yes "), ("user", "b")]);
        let all = answers(&template, &words, &messages, &[]).unwrap();
        let marked: Vec<u32> = all.iter().filter(|t| t.1).map(|t| t.0).collect();
        assert_eq!(words.decode(&marked), "yes");
        let whole: Vec<u32> = all.iter().map(|t| t.0).collect();
        assert_eq!(words.decode(&whole), "user: a\nassistant: yes\nuser: b\n");
    }
}
