//! From what clients send to the tokens that a model begins with.

use crate::app::App;
use crate::books::{Size, with_numbers};
use crate::error::ApiError;
use crate::fields::name_of;
use crate::tools::{is_mistral, nine};
use chat::{Message, Stretch};
use engine::{Prompt, Truncate};
use serde_json::{Value, json};
use tokenizer::{Part, Tokenizer};

/// Prompts of one call, at most.
const MOST_PROMPTS: usize = 256;

/// One prompt: a text with its tokens, or tokens that were given.
#[derive(Debug, Clone)]
pub struct Given {
    /// The tokens, with what begins a text.
    pub ids: Vec<u32>,
    /// The text to echo.
    pub text: String,
}

/// The prompts in a field: a text, a list of texts, tokens, or a list of such lists.
///
/// # Errors
/// What is none of these.
pub fn prompts(
    app: &App,
    name: &'static str,
    value: Option<&Value>,
) -> Result<Vec<Given>, ApiError> {
    several(app, value).map_err(|error| match error.param.as_deref() {
        Some("prompt") => ApiError {
            message: match error.message.strip_prefix("prompt:") {
                Some(rest) => format!("{name}:{rest}"),
                None => error.message,
            },
            param: Some(name.to_owned()),
            ..error
        },
        _ => error,
    })
}

fn several(app: &App, value: Option<&Value>) -> Result<Vec<Given>, ApiError> {
    let wrong = |found: &Value| {
        ApiError::field(
            "prompt",
            format!(
                "prompt: found {}, expected a text, a list of texts, a list of token ids, or a list of \
             such lists",
                name_of(found)
            ),
        )
    };
    let all: Vec<Given> = match value {
        None => vec![text(app, "")?],
        Some(Value::String(one)) => vec![text(app, one)?],
        Some(Value::Array(list)) => match list.first() {
            None => {
                return Err(ApiError::field(
                    "prompt",
                    "prompt: the list is empty; give one prompt at least",
                ));
            }
            Some(Value::Number(_)) => vec![tokens(app, list)?],
            Some(_) if list.len() > MOST_PROMPTS => {
                return Err(ApiError::field(
                    "prompt",
                    format!(
                        "prompt: found {} prompts, expected {MOST_PROMPTS} at most",
                        list.len()
                    ),
                ));
            }
            Some(_) => {
                let one = |value: &Value| match value {
                    Value::String(one) => text(app, one),
                    Value::Array(list) => tokens(app, list),
                    other => Err(wrong(other)),
                };
                list.iter().map(one).collect::<Result<_, _>>()?
            }
        },
        Some(other) => return Err(wrong(other)),
    };
    Ok(all)
}

fn text(app: &App, text: &str) -> Result<Given, ApiError> {
    let limit = Some(app.engine.limit());
    let prompt = Prompt::encode(&app.model.tokenizer, text, limit, Truncate::Never)
        .map_err(|error| refused(app, error))?;
    Ok(Given { ids: prompt.ids, text: text.to_owned() })
}

fn tokens(app: &App, list: &[Value]) -> Result<Given, ApiError> {
    let vocabulary = app.engine.vocab_size();
    let id = |value: &Value| {
        let id = value.as_u64().filter(|&id| id < vocabulary as u64).map(|id| id as u32);
        id.ok_or_else(|| {
            ApiError::field(
                "prompt",
                format!("prompt: found {value} among token ids; expected 0 to {}", vocabulary - 1),
            )
        })
    };
    let ids = list.iter().map(id).collect::<Result<Vec<_>, _>>()?;
    if ids.is_empty() {
        return Err(engine::Error::NothingToBeginFrom.into());
    }
    let text = app.model.tokenizer.decode(&ids);
    Ok(Given { ids, text })
}

/// One turn of a conversation as a client wrote it, and where.
#[derive(Debug, Clone)]
pub struct Turn {
    /// As errors name it: `messages[2]`.
    pub at: String,
    /// `role`, `content` and what OpenAI's chat has beside them.
    pub value: Value,
}

/// The turns in a list of messages.
///
/// # Errors
/// What is no list.
pub fn turns(messages: Option<&Value>) -> Result<Vec<Turn>, ApiError> {
    let Some(Value::Array(list)) = messages else {
        return Err(ApiError::field("messages", "messages: missing; expected a list of messages"));
    };
    let turn =
        |(i, value): (usize, &Value)| Turn { at: format!("messages[{i}]"), value: value.clone() };
    Ok(list.iter().enumerate().map(turn).collect())
}

/// The tokens of a conversation with tools, up to where the answer begins.
///
/// # Errors
/// A model without a template, messages that are none, or that the template refuses.
pub fn conversation(
    app: &App,
    turns: &[Turn],
    tools: &[Value],
    answer: bool,
) -> Result<Vec<u32>, ApiError> {
    let Some(template) = &app.model.template else {
        return Err(ApiError::field(
            "messages",
            format!("{} has no chat template; ask /v1/completions", app.model.name),
        )
        .code("no_chat_template"));
    };
    if turns.is_empty() {
        return Err(ApiError::field(
            "messages",
            "messages: the list is empty; give one message at least",
        ));
    }
    let mut messages = turns.iter().map(message).collect::<Result<Vec<_>, _>>()?;
    if template.call_format().is_some_and(is_mistral) {
        messages.iter_mut().for_each(shorten);
    }
    let stretches = template
        .stretches_with_tools(&messages, tools, answer)
        .map_err(|error| ApiError::field("messages", error))?;
    let tokenizer = &app.model.tokenizer;
    let ids = encode(tokenizer, &stretches);
    let limit = Some(app.engine.limit());
    let prompt = Prompt::from_ids(tokenizer.specials().bos, ids, limit, Truncate::Never)
        .map_err(|error| refused(app, error))?;
    Ok(prompt.ids)
}

/// A prompt that is too long, with the numbers.
fn refused(app: &App, error: engine::Error) -> ApiError {
    let prompt = match error {
        engine::Error::PromptTooLong { found, .. } => found,
        _ => 0,
    };
    with_numbers(app, Size { prompt, sequences: 1, new: 0 }, error.into())
}

/// Makes ids of calls what the template takes.
fn shorten(message: &mut Message) {
    if let Some(id) = &mut message.tool_call_id {
        *id = nine(id);
    }
    for call in &mut message.tool_calls {
        let id = call["id"].as_str().unwrap_or_default();
        call["id"] = nine(id).into();
    }
}

/// Text between two control tokens is encoded in one piece, messages included.
fn encode(tokenizer: &Tokenizer, stretches: &[Stretch]) -> Vec<u32> {
    let (mut ids, mut run) = (Vec::new(), String::new());
    for stretch in stretches {
        match stretch {
            Stretch::Said(_, text) => run.push_str(text),
            Stretch::Template(text) => {
                for part in tokenizer.parts(text) {
                    match part {
                        Part::Text(text) => run.push_str(text),
                        Part::Control(id) => {
                            ids.extend(tokenizer.encode(&std::mem::take(&mut run)));
                            ids.push(id);
                        }
                    }
                }
            }
        }
    }
    ids.extend(tokenizer.encode(&run));
    ids
}

fn message(turn: &Turn) -> Result<Message, ApiError> {
    let at = |what: &str| format!("{}{what}", turn.at);
    let wrong =
        |what: &str, said: String| Err(ApiError::field(at(what), format!("{}: {said}", at(what))));
    let Value::Object(map) = &turn.value else {
        return wrong("", format!("found {}, expected an object", name_of(&turn.value)));
    };
    let role = match map.get("role").and_then(Value::as_str) {
        // The newer name for what instructs the model.
        Some("developer") => "system",
        Some(role @ ("system" | "user" | "assistant" | "tool")) => role,
        found => {
            let found = found.map_or("none".to_owned(), |role| format!("{role:?}"));
            let expected = "expected system, developer, user, assistant or tool";
            return wrong(".role", format!("found {found}, {expected}"));
        }
    };
    let content = match map.get("content") {
        Some(Value::String(text)) => text.clone(),
        None | Some(Value::Null) if role == "assistant" => String::new(),
        Some(Value::Array(parts)) => parts
            .iter()
            .enumerate()
            .map(|(j, part)| part_text(&at(&format!(".content[{j}]")), part))
            .collect::<Result<String, _>>()?,
        found => {
            let found = found.map_or("none", name_of);
            return wrong(".content", format!("found {found}, expected a text or a list of parts"));
        }
    };
    let text = |name: &str| map.get(name).and_then(Value::as_str).map(str::to_owned);
    let tool_calls = match map.get("tool_calls") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(calls)) if role == "assistant" || calls.is_empty() => calls
            .iter()
            .enumerate()
            .map(|(j, call)| tool_call(&at(&format!(".tool_calls[{j}]")), call))
            .collect::<Result<Vec<_>, _>>()?,
        Some(Value::Array(_)) => {
            return wrong(".tool_calls", "only an assistant calls tools".to_owned());
        }
        Some(found) => {
            return wrong(".tool_calls", format!("found {}, expected a list", name_of(found)));
        }
    };
    let tool_call_id = text("tool_call_id").filter(|_| role == "tool");
    let name = text("name").filter(|_| role == "tool");
    Ok(Message { role: role.to_owned(), content, tool_calls, tool_call_id, name })
}

/// A call as templates expect it: its arguments an object, not a text.
fn tool_call(at: &str, call: &Value) -> Result<Value, ApiError> {
    let wrong = |what: &str, said: String| {
        Err(ApiError::field(format!("{at}{what}"), format!("{at}{what}: {said}")))
    };
    let function = call.get("function").unwrap_or(&Value::Null);
    let Some(name) = function.get("name").and_then(Value::as_str) else {
        return wrong(".function.name", "expected the name of the tool called".to_owned());
    };
    let arguments = match function.get("arguments") {
        None | Some(Value::Null) => Ok(json!({})),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(json!({})),
        Some(Value::String(text)) => serde_json::from_str(text).map_err(|e| e.to_string()),
        Some(other) => Ok(other.clone()),
    };
    match arguments {
        Ok(arguments @ Value::Object(_)) => Ok(json!({
            "type": "function", "id": call.get("id").and_then(Value::as_str).unwrap_or_default(),
            "function": { "name": name, "arguments": arguments },
        })),
        Ok(other) => wrong(
            ".function.arguments",
            format!("found {}, expected the JSON of an object", name_of(&other)),
        ),
        Err(why) => wrong(".function.arguments", format!("expected the JSON of an object: {why}")),
    }
}

fn part_text(at: &str, part: &Value) -> Result<String, ApiError> {
    let kind = part.get("type").and_then(Value::as_str);
    match (kind, part.get("text").and_then(Value::as_str)) {
        (Some("text" | "input_text" | "output_text"), Some(text)) => Ok(text.to_owned()),
        (Some("text" | "input_text" | "output_text"), None) => {
            Err(ApiError::field(at, format!("{at}: a part of type text has no text")))
        }
        (kind, _) => Err(ApiError::field(
            at,
            format!(
                "{at}: found a part of type {:?}; this model reads text only",
                kind.unwrap_or("none")
            ),
        )),
    }
}
