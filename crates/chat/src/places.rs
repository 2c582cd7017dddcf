//! Numbers in place of what people wrote while a template is rendered, and back again.

use crate::{Message, Stretch};
use serde_json::Value as Json;

/// Encloses a number while the template is rendered; no text of people keeps it.
const PLACE: char = '\u{F8FE}';
/// White space that no template writes: where it is gone, the template trims messages.
const EDGE: char = '\u{2003}';

/// Texts that wait to be put in: whose they are, and what they say.
#[derive(Debug, Default)]
pub(crate) struct Places {
    texts: Vec<(usize, String)>,
}

impl Places {
    /// A mark for a text of the message at `at`. Its quote tells whether a template wrote it as JSON.
    fn mark(&mut self, at: usize, text: &str) -> String {
        self.texts.push((at, text.replace(PLACE, "\u{FFFD}")));
        format!("{EDGE}{PLACE}{}\"{PLACE}{EDGE}", self.texts.len() - 1)
    }

    /// A message with marks in place of what it says. A message of calls alone says nothing, which
    /// templates ask about.
    pub(crate) fn message(&mut self, at: usize, message: &Message) -> Message {
        let content = match message.content.is_empty() && !message.tool_calls.is_empty() {
            true => String::new(),
            false => self.mark(at, &message.content),
        };
        let tool_calls = message.tool_calls.iter().map(|call| self.words(at, call)).collect();
        Message { content, tool_calls, ..message.clone() }
    }

    /// A value with marks in place of those of its texts that may hold a control token's name.
    /// Templates compare short words of tools (`object`, `string`), which stay as they are.
    pub(crate) fn words(&mut self, at: usize, value: &Json) -> Json {
        match value {
            Json::String(text) if text.contains(['<', '[', '|', PLACE]) => {
                self.mark(at, text).into()
            }
            Json::Array(list) => list.iter().map(|one| self.words(at, one)).collect(),
            Json::Object(map) => {
                let pairs = map.iter().map(|(key, value)| {
                    (key.replace(['<', '[', '|', PLACE], "\u{FFFD}"), self.words(at, value))
                });
                Json::Object(pairs.collect())
            }
            other => other.clone(),
        }
    }

    /// The rendered text with the texts in their places.
    pub(crate) fn put_in(&self, text: &str) -> Vec<Stretch> {
        let mut all: Vec<Stretch> = Vec::new();
        for (i, part) in text.split(PLACE).enumerate() {
            let found = self.find(part).filter(|_| i % 2 == 1);
            let Some((at, content)) = found else {
                // Behind a text stands its edge.
                let rest = part.strip_prefix(EDGE).filter(|_| i > 0).unwrap_or(part);
                all.push(Stretch::Template(rest.to_owned()));
                continue;
            };
            let whole = match all.last_mut() {
                Some(Stretch::Template(before)) if before.ends_with(EDGE) => {
                    before.truncate(before.len() - EDGE.len_utf8());
                    true
                }
                _ => false,
            };
            let content = if whole { content } else { content.trim().to_owned() };
            all.push(Stretch::Said(at, content));
        }
        all
    }

    /// The text of a mark, written as often as JSON as its quote was.
    fn find(&self, mark: &str) -> Option<(usize, String)> {
        let end = mark.find(['\\', '"'])?;
        let (at, text) = self.texts.get(mark[..end].parse::<usize>().ok()?)?;
        let (mut text, mut quote) = (text.clone(), "\"".to_owned());
        while quote.len() < mark.len() - end {
            (text, quote) = (escaped(&text), escaped(&quote));
        }
        (mark[end..] == quote).then_some((*at, text))
    }
}

/// The inside of a text's JSON.
fn escaped(text: &str) -> String {
    let whole = Json::from(text).to_string();
    whole[1..whole.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn texts_come_back_as_often_quoted_as_their_marks() {
        let mut places = Places::default();
        let mark = places.mark(3, "a \"b\"\n");
        for (rendered, expected) in [
            (mark.clone(), "a \"b\"\n".to_owned()),
            (json!(mark).to_string(), r#"a \"b\"\n"#.to_owned()),
            (json!(json!(mark).to_string()).to_string(), r#"a \\\"b\\\"\\n"#.to_owned()),
        ] {
            let said: Vec<Stretch> = places
                .put_in(&rendered)
                .into_iter()
                .filter(|stretch| matches!(stretch, Stretch::Said(..)))
                .collect();
            assert_eq!(said, [Stretch::Said(3, expected)], "{rendered}");
        }
    }

    #[test]
    fn only_words_that_may_name_a_token_wait() {
        let mut places = Places::default();
        let tool = json!({ "type": "object", "description": "as <|end|> has it", "<x": 1 });
        let marked = places.words(0, &tool);
        assert_eq!(marked["type"], "object");
        assert_eq!(places.texts, [(0, "as <|end|> has it".to_owned())]);
        assert!(!marked.to_string().contains('<'));
    }
}
