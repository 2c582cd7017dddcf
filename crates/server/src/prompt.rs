//! From what clients send to the tokens that a model begins with.

use crate::app::App;
use crate::error::ApiError;
use crate::fields::name_of;
use chat::{Message, Stretch};
use engine::{Prompt, Truncate};
use serde_json::Value;
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
    let prompt = Prompt::encode(&app.model.tokenizer, text, limit, Truncate::Never)?;
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

/// The tokens of a conversation, up to where the answer begins.
///
/// # Errors
/// A model without a template, messages that are none, or that the template refuses.
pub fn conversation(
    app: &App,
    messages: Option<&Value>,
    answer: bool,
) -> Result<Vec<u32>, ApiError> {
    let Some(template) = &app.model.template else {
        return Err(ApiError::field(
            "messages",
            format!("{} has no chat template; ask /v1/completions", app.model.name),
        )
        .code("no_chat_template"));
    };
    let Some(Value::Array(list)) = messages else {
        return Err(ApiError::field("messages", "messages: missing; expected a list of messages"));
    };
    if list.is_empty() {
        return Err(ApiError::field(
            "messages",
            "messages: the list is empty; give one message at least",
        ));
    }
    let messages =
        list.iter().enumerate().map(|(i, one)| message(i, one)).collect::<Result<Vec<_>, _>>()?;
    let stretches = template
        .stretches(&messages, answer)
        .map_err(|error| ApiError::field("messages", error))?;
    let tokenizer = &app.model.tokenizer;
    let ids = encode(tokenizer, &stretches);
    let limit = Some(app.engine.limit());
    let prompt = Prompt::from_ids(tokenizer.specials().bos, ids, limit, Truncate::Never)?;
    Ok(prompt.ids)
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

fn message(i: usize, value: &Value) -> Result<Message, ApiError> {
    let at = |what: &str| format!("messages[{i}]{what}");
    let Value::Object(map) = value else {
        let found = name_of(value);
        return Err(ApiError::field(
            at(""),
            format!("messages[{i}]: found {found}, expected an object"),
        ));
    };
    let role = match map.get("role").and_then(Value::as_str) {
        // The newer name for what instructs the model.
        Some("developer") => "system",
        Some(role @ ("system" | "user" | "assistant" | "tool")) => role,
        found => {
            let found = found.map_or("none".to_owned(), |role| format!("{role:?}"));
            return Err(ApiError::field(
                at(".role"),
                format!(
                    "messages[{i}].role: found {found}, expected system, developer, user, assistant or tool"
                ),
            ));
        }
    };
    if map.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty()) {
        return Err(ApiError::field(
            at(".tool_calls"),
            format!("messages[{i}].tool_calls: calls of tools are not supported"),
        )
        .code("unsupported"));
    }
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
            return Err(ApiError::field(
                at(".content"),
                format!("messages[{i}].content: found {found}, expected a text or a list of parts"),
            ));
        }
    };
    Ok(Message::new(role, content))
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
