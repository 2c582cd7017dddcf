//! A whole call of a tool, read from its text.

use crate::calls::{ARGS, CALL_ID, CALLS};
use serde::Deserialize;
use serde_json::value::RawValue;

/// A call of a tool.
pub(crate) struct Call {
    /// The tool.
    pub(crate) name: String,
    /// The JSON of an object, as the model wrote it.
    pub(crate) arguments: String,
}

/// Why a text is no call.
pub(crate) enum Broken {
    /// It ends too early.
    Unfinished(String),
    /// It is something else.
    Wrong(String),
}

impl Broken {
    pub(crate) fn of(error: &serde_json::Error) -> Broken {
        let what = error.to_string();
        if error.is_eof() { Broken::Unfinished(what) } else { Broken::Wrong(what) }
    }
}

#[derive(Deserialize)]
struct Written<'a> {
    name: String,
    #[serde(borrow, alias = "parameters")]
    arguments: Option<&'a RawValue>,
}

impl Written<'_> {
    fn call(self) -> Result<Call, Broken> {
        let raw = self.arguments.map_or("{}", RawValue::get);
        // Some models write the JSON of the arguments as a text.
        let arguments = match serde_json::from_str::<String>(raw) {
            Ok(text) => text,
            Err(_) => raw.to_owned(),
        };
        Ok(Call { name: self.name, arguments: object(&arguments)? })
    }
}

/// A text that is the JSON of an object.
pub(crate) fn object(text: &str) -> Result<String, Broken> {
    let text = if text.trim().is_empty() { "{}" } else { text.trim() };
    let map = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text);
    map.map(|_| text.to_owned()).map_err(|error| Broken::of(&error))
}

/// One call, as JSON or as Qwen's coders write it.
pub(crate) fn one(body: &str) -> Result<Call, Broken> {
    if body.trim_start().starts_with("<function=") {
        return tagged(body.trim());
    }
    let written: Written<'_> = serde_json::from_str(body).map_err(|e| Broken::of(&e))?;
    written.call()
}

/// `<function=name><parameter=key>value</parameter>...</function>`: values are JSON where they can
/// be read so, texts where not.
fn tagged(body: &str) -> Result<Call, Broken> {
    let wrong = || Broken::Wrong("expected <function=NAME> ... </function>".to_owned());
    let (name, mut rest) =
        body.strip_prefix("<function=").and_then(|rest| rest.split_once('>')).ok_or_else(wrong)?;
    let mut arguments = serde_json::Map::new();
    while let Some((_, after)) = rest.split_once("<parameter=") {
        let (key, value) = after.split_once('>').ok_or_else(wrong)?;
        let (value, after) = value.split_once("</parameter>").ok_or_else(wrong)?;
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        let read = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        arguments.insert(key.trim().to_owned(), read);
        rest = after;
    }
    let arguments = serde_json::Value::Object(arguments).to_string();
    Ok(Call { name: name.trim().to_owned(), arguments })
}

/// All that follows the mark.
pub(crate) fn mistral(held: &str) -> Result<Vec<Call>, Broken> {
    let body = held.trim().strip_prefix(CALLS).unwrap_or(held).trim();
    if body.starts_with('[') && !body.contains(ARGS) {
        let all: Vec<Written<'_>> = serde_json::from_str(body).map_err(|e| Broken::of(&e))?;
        return all.into_iter().map(Written::call).collect();
    }
    if body.starts_with('{') {
        return Ok(vec![one(body)?]);
    }
    let named = |part: &str| {
        let (name, arguments) = part
            .split_once(ARGS)
            .or_else(|| part.find('{').map(|at| part.split_at(at)))
            .ok_or_else(|| Broken::Wrong(format!("expected NAME{ARGS}{{...}}")))?;
        let name = name.split(CALL_ID).next().unwrap_or(name).trim().to_owned();
        Ok(Call { name, arguments: object(arguments)? })
    };
    body.split(CALLS).filter(|part| !part.trim().is_empty()).map(named).collect()
}

impl Broken {
    pub(crate) fn why(self) -> String {
        match self {
            Broken::Unfinished(why) | Broken::Wrong(why) => why,
        }
    }
}
