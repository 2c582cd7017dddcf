//! Conversations as tokens to learn from: which of them the assistant wrote.

use chat::{ChatTemplate, Message, Stretch};
use serde_json::Value;
use tokenizer::{Part, Tokenizer};

/// The tokens of a whole conversation, each with whether the assistant wrote it: what it said, and
/// the token of `ends` behind that. Text between two control tokens is encoded in one piece, but an
/// answer apart from what stands before it, as it is when a model writes it.
pub fn answers(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    (messages, tools): (&[Message], &[Value]),
    ends: &[u32],
) -> Result<Vec<(u32, bool)>, chat::Error> {
    let mut writer =
        Writer { tokenizer, ends, run: String::new(), answering: false, out: Vec::new() };
    for stretch in template.stretches_with_tools(messages, tools, false)? {
        match stretch {
            Stretch::Said(at, text) => {
                let answers = messages.get(at).is_some_and(|message| message.role == "assistant");
                if answers || writer.answering {
                    writer.flush();
                }
                writer.answering = answers;
                writer.run.push_str(&text);
            }
            Stretch::Template(text) => writer.between(&text),
        }
    }
    writer.flush();
    Ok(writer.out)
}

struct Writer<'a> {
    tokenizer: &'a Tokenizer,
    ends: &'a [u32],
    run: String,
    answering: bool,
    out: Vec<(u32, bool)>,
}

impl Writer<'_> {
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
                    self.out.push((id, self.answering && self.ends.contains(&id)));
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
        let all = answers(&template, &words, (&messages, &[]), &[end]).unwrap();
        let marked: Vec<u32> = all.iter().filter(|t| t.1).map(|t| t.0).collect();
        assert_eq!(words.decode(&marked).replace("<|end|>", ""), " yesno");
        assert_eq!(marked.iter().filter(|&&id| id == end).count(), 2);
        // The user's own «<|end|>» is text: only the template's four are tokens.
        assert_eq!(all.iter().filter(|t| t.0 == end).count(), 4);
        let asked = template.render(&messages[..1], true).unwrap();
        // What stands before the first answer is what a model is given to answer it, but for the
        // user's words, which are no control token.
        let before = words.encode_with_controls(&asked.replace("a <|end|>", "a"));
        let first = all.iter().position(|t| t.1).unwrap();
        let said = words.encode("a <|end|>").len() - words.encode("a").len();
        assert_eq!(first, before.len() + said);
    }

    #[test]
    fn without_control_tokens_the_words_alone_are_marked() {
        let source = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}";
        let (words, template) = (tokenizer(), ChatTemplate::new(source, "", "").unwrap());
        let messages = talk(&[("user", "a"), ("assistant", " yes "), ("user", "b")]);
        let all = answers(&template, &words, (&messages, &[]), &[]).unwrap();
        let marked: Vec<u32> = all.iter().filter(|t| t.1).map(|t| t.0).collect();
        assert_eq!(words.decode(&marked), "yes");
        let whole: Vec<u32> = all.iter().map(|t| t.0).collect();
        assert_eq!(words.decode(&whole), "user: a\nassistant: yes\nuser: b\n");
    }
}
