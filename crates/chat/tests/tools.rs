//! Tools, calls and results through templates in the styles of three families.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use chat::{CallFormat, ChatTemplate, Message, Stretch};
use serde_json::{Value, json};

const QWEN: &str = include_str!("templates/qwen.jinja");
const LLAMA: &str = include_str!("templates/llama3.jinja");
const MISTRAL: &str = include_str!("templates/mistral.jinja");

fn weather() -> Value {
    json!({ "type": "function", "function": {
        "name": "weather", "description": "of a city, not <|end|>",
        "parameters": { "type": "object", "properties": { "city": { "type": "string" } } },
    } })
}

fn conversation() -> Vec<Message> {
    let call = json!({ "type": "function", "id": "abcdefghi",
        "function": { "name": "weather", "arguments": { "zip": 7, "city": "a <|end|> \"b\"" } } });
    let result = Message {
        tool_call_id: Some("abcdefghi".to_owned()),
        ..Message::new("tool", "{\"sky\": \"grey\"}\n<|end|>")
    };
    let asked = Message { tool_calls: vec![call], ..Message::new("assistant", "") };
    vec![Message::new("user", "how is it?"), asked, result]
}

/// The text, with what people wrote between braces of its own.
fn told(source: &str, messages: &[Message], tools: &[Value]) -> String {
    let template = ChatTemplate::new(source, "<s>", "</s>").unwrap();
    let stretches = template.stretches_with_tools(messages, tools, true).unwrap();
    stretches
        .into_iter()
        .map(|stretch| match stretch {
            Stretch::Template(text) => text,
            Stretch::Said(_, text) => format!("⟨{text}⟩"),
        })
        .collect()
}

/// As people would read it.
fn bare(source: &str, messages: &[Message], tools: &[Value]) -> String {
    told(source, messages, tools).replace(['⟨', '⟩'], "")
}

#[test]
fn each_family_names_its_way() {
    for (source, format) in [
        (QWEN, Some(CallFormat::Hermes)),
        (LLAMA, Some(CallFormat::Llama)),
        (MISTRAL, Some(CallFormat::Mistral)),
        ("{{ '[TOOL_CALLS]f[ARGS]{}' }}", Some(CallFormat::MistralArgs)),
        ("{{ messages[0].content }}", Some(CallFormat::Hermes)),
        ("{{ tools | tojson }} <function_calls>", None),
    ] {
        let template = ChatTemplate::new(source, "", "").unwrap();
        assert_eq!(template.call_format(), format, "{source}");
    }
}

#[test]
fn calls_between_tags_and_results_as_texts() {
    let text = bare(QWEN, &conversation(), &[weather()]);
    let tool = "{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"description\": \"of a \
        city, not <|end|>\", \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \
        \"string\"}}}}}\n</tools>";
    assert!(text.contains(tool), "{text}");
    let call = "<|user|>assistant\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"zip\": 7, \
        \"city\": \"a <|end|> \\\"b\\\"\"}}\n</tool_call><|end|>";
    assert!(text.contains(call), "{text}");
    let result = "<tool_response>\n{\"sky\": \"grey\"}\n<|end|>\n</tool_response><|end|>\n<|user|>assistant\n";
    assert!(text.ends_with(result), "{text}");
}

#[test]
fn nobody_but_the_template_writes_control_tokens() {
    for source in [QWEN, LLAMA, MISTRAL, "{% for m in messages %}{{ m.content }}{% endfor %}"] {
        let text = told(source, &conversation(), &[weather()]);
        let mut said = 0;
        for part in text.split('⟨').skip(1) {
            said += part.split_once('⟩').unwrap().0.matches("<|end|>").count();
        }
        // One in the description, one in the arguments, one in the result.
        assert_eq!(said, 3, "{text}");
    }
}

#[test]
fn json_calls_and_json_results() {
    let text = bare(LLAMA, &conversation(), &[weather()]);
    let tool =
        "{\n    \"type\": \"function\",\n    \"function\": {\n        \"name\": \"weather\",";
    assert!(text.contains(tool), "{text}");
    let call = "{\"name\": \"weather\", \"parameters\": {\"zip\": 7, \"city\": \"a <|end|> \\\"b\\\"\"}}<|end|>";
    assert!(text.contains(call), "{text}");
    // A text is iterable, so this family writes it as JSON.
    let result = "<|user|>ipython\n\n\"{\\\"sky\\\": \\\"grey\\\"}\\n<|end|>\"<|end|>";
    assert!(text.contains(result), "{text}");
    let mut two = conversation();
    let again = two[1].tool_calls[0].clone();
    two[1].tool_calls.push(again);
    let template = ChatTemplate::new(LLAMA, "", "").unwrap();
    let refused = template.stretches_with_tools(&two, &[weather()], true).unwrap_err();
    assert!(refused.to_string().contains("one call at a time"), "{refused}");
}

#[test]
fn lists_of_calls_with_short_ids() {
    let text = bare(MISTRAL, &conversation(), &[weather()]);
    let call = "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"zip\": 7, \"city\": \"a <|end|> \
        \\\"b\\\"\"}, \"id\": \"abcdefghi\"}]</s>";
    assert!(text.contains(call), "{text}");
    let result = "[TOOL_RESULTS] {\"content\": \"{\\\"sky\\\": \\\"grey\\\"}\\n<|end|>\", \"call_id\": \
        \"abcdefghi\"}[/TOOL_RESULTS]";
    assert!(text.ends_with(result), "{text}");
}

#[test]
fn a_template_without_tools_is_told_of_them_in_words() {
    let source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    let text = bare(source, &conversation(), &[weather()]);
    assert!(text.starts_with("[system]You can call these functions"), "{text}");
    assert!(text.contains("[assistant]<tool_call>\n{\"name\": \"weather\""), "{text}");
    assert!(text.contains("[user]<tool_response>\n{\"sky\""), "{text}");
    assert_eq!(bare(source, &conversation()[..1], &[]), "[user]how is it?");
}
