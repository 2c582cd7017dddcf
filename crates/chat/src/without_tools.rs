//! Tools for a template that has no place for them: told of in the system message, calls and results
//! written as text in the way that most models have seen.

use crate::Message;
use serde_json::Value as Json;

/// Whether a conversation has anything to do with tools.
pub(crate) fn has_any(messages: &[Message], tools: &[Json]) -> bool {
    let of_tools = |m: &Message| m.role == "tool" || !m.tool_calls.is_empty();
    !tools.is_empty() || messages.iter().any(of_tools)
}

/// The conversation in the roles that every template knows.
pub(crate) fn told(messages: &[Message], tools: &[Json]) -> Vec<Message> {
    let mut all: Vec<Message> = Vec::new();
    let mut results = false;
    for message in messages {
        let is_result = message.role == "tool";
        let content = match is_result {
            true => format!("<tool_response>\n{}\n</tool_response>", message.content),
            false => with_calls(message),
        };
        match all.last_mut().filter(|_| results && is_result) {
            Some(last) => last.content += &format!("\n{content}"),
            None if is_result => all.push(Message::new("user", content)),
            None => all.push(Message::new(&message.role, content)),
        }
        results = is_result;
    }
    if !tools.is_empty() {
        let told = instructions(tools);
        match all.first_mut().filter(|first| first.role == "system") {
            Some(system) => system.content += &format!("\n\n{told}"),
            None => all.insert(0, Message::new("system", told)),
        }
    }
    all
}

fn with_calls(message: &Message) -> String {
    let mut content = message.content.clone();
    for call in &message.tool_calls {
        let function = &call["function"];
        let (name, arguments) = (&function["name"], &function["arguments"]);
        if !content.is_empty() {
            content.push('\n');
        }
        content +=
            &format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>");
    }
    content
}

fn instructions(tools: &[Json]) -> String {
    let lines: Vec<String> = tools.iter().map(ToString::to_string).collect();
    format!(
        "You can call these functions, one JSON description a line:\n{}\nTo call one, write nothing \
         but its name and arguments as JSON between tags:\n<tool_call>\n{{\"name\": ..., \
         \"arguments\": {{...}}}}\n</tool_call>",
        lines.join("\n")
    )
}
