//! Fields of request bodies as data: the table that checks them is the table that documents them.
//!
//! Types are taken as they are: `"true"` is no boolean and `"256"` no number. `null` is as good as
//! absent. What the table does not know is told in the answer, or refused where `strict` is asked for.

use crate::error::ApiError;
use serde_json::{Map, Value, json};

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// true or false.
    Flag,
    /// A whole number, both ends included.
    Integer(i64, i64),
    /// A number, both ends included.
    Number(f64, f64),
    /// A text.
    Text,
    /// A text or a list of texts.
    Texts,
    /// A list of whole numbers from 0.
    Ids,
    /// An object.
    Object,
    /// A list.
    List,
    /// Checked where it is used.
    Any,
    /// Known, and refused with these words unless it is absent, false or empty.
    Refused(&'static str),
}

/// One field of a body.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// What it does, for the documentation.
    pub help: &'static str,
}

/// A row of a table.
#[must_use]
pub const fn field(name: &'static str, kind: Kind, help: &'static str) -> Field {
    Field { name, kind, help }
}

/// A checked body.
#[derive(Debug, Clone)]
pub struct Fields {
    map: Map<String, Value>,
    /// Fields without effect, one line each.
    pub warnings: Vec<String>,
}

impl Fields {
    /// Reads a body by the tables.
    ///
    /// # Errors
    /// A body that is no JSON object, or the first field of a wrong type or value.
    pub fn read(body: &[u8], tables: &[&[Field]]) -> Result<Self, ApiError> {
        let value: Value = serde_json::from_slice(body).map_err(|error| {
            ApiError::request(format!("the body is no JSON: {error}")).code("invalid_json")
        })?;
        let Value::Object(map) = value else {
            return Err(ApiError::request(format!(
                "the body is {}; expected a JSON object",
                name_of(&value)
            )));
        };
        let known = |name: &str| tables.iter().copied().flatten().find(|field| field.name == name);
        let mut warnings = Vec::new();
        for (name, value) in map.iter().filter(|(_, value)| !value.is_null()) {
            match known(name) {
                Some(field) => field.check(value)?,
                None => warnings.push(format!("{name}: unknown or without effect here")),
            }
        }
        let fields = Self { map, warnings };
        match fields.warnings.first() {
            Some(first) if fields.flag("strict") => {
                let (name, _) = first.split_once(':').unwrap_or((first, ""));
                let message = format!("{first}; without `strict` it would be listed in `warnings`");
                Err(ApiError::field(name, message).code("unknown_field"))
            }
            _ => Ok(fields),
        }
    }

    /// The value, if it is there and not null.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// Whether a flag is set.
    #[must_use]
    pub fn flag(&self, name: &str) -> bool {
        self.value(name).and_then(Value::as_bool).unwrap_or(false)
    }

    /// A whole number.
    #[must_use]
    pub fn integer(&self, name: &str) -> Option<i64> {
        self.value(name).and_then(Value::as_i64)
    }

    /// A count: a whole number from 0.
    #[must_use]
    pub fn count(&self, name: &str) -> Option<usize> {
        self.value(name).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok())
    }

    /// A number.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<f64> {
        self.value(name).and_then(Value::as_f64)
    }

    /// A text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.value(name).and_then(Value::as_str)
    }

    /// One text or several.
    #[must_use]
    pub fn texts(&self, name: &str) -> Vec<String> {
        match self.value(name) {
            Some(Value::String(text)) => vec![text.clone()],
            Some(Value::Array(list)) => {
                list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Token ids.
    #[must_use]
    pub fn ids(&self, name: &str) -> Vec<u32> {
        let list = self.value(name).and_then(Value::as_array);
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        list.map_or_else(Vec::new, |list| list.iter().filter_map(id).collect())
    }

    /// Says the same under another name.
    pub fn set(&mut self, name: &str, value: Value) {
        self.map.insert(name.to_owned(), value);
    }

    /// The body as it came.
    #[must_use]
    pub fn all(&self) -> &Map<String, Value> {
        &self.map
    }
}

/// What a value is, in words.
#[must_use]
pub fn name_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

impl Field {
    fn check(&self, value: &Value) -> Result<(), ApiError> {
        let is_text = |value: &Value| value.is_string();
        let is_id = |value: &Value| value.as_u64().is_some_and(|id| id <= u64::from(u32::MAX));
        let fits = match self.kind {
            Kind::Flag => value.is_boolean(),
            Kind::Integer(least, most) => {
                value.as_i64().is_some_and(|n| (least..=most).contains(&n))
            }
            Kind::Number(least, most) => {
                value.as_f64().is_some_and(|n| (least..=most).contains(&n))
            }
            Kind::Text => is_text(value),
            Kind::Texts => {
                is_text(value) || value.as_array().is_some_and(|list| list.iter().all(is_text))
            }
            Kind::Ids => value.as_array().is_some_and(|list| list.iter().all(is_id)),
            Kind::Object => value.is_object(),
            Kind::List => value.is_array(),
            Kind::Any => true,
            Kind::Refused(why) => {
                let empty = match value {
                    Value::Bool(set) => !set,
                    Value::String(text) => text.is_empty() || text == "none" || text == "auto",
                    Value::Array(list) => list.is_empty(),
                    _ => false,
                };
                return match empty {
                    true => Ok(()),
                    false => Err(ApiError::field(self.name, format!("{}: {why}", self.name))
                        .code("unsupported")),
                };
            }
        };
        if fits {
            return Ok(());
        }
        let found = match value {
            Value::Number(number) => number.to_string(),
            other => name_of(other).to_owned(),
        };
        let message = format!("{}: found {found}, expected {}", self.name, self.kind.expected());
        Err(ApiError::field(self.name, message))
    }

    /// Its JSON schema.
    #[must_use]
    pub fn schema(&self) -> Value {
        let mut schema = match self.kind {
            Kind::Flag => json!({ "type": "boolean" }),
            Kind::Integer(least, most) => {
                let mut schema = json!({ "type": "integer", "minimum": least });
                if most < i64::MAX {
                    schema["maximum"] = most.into();
                }
                schema
            }
            Kind::Number(least, most) => {
                let mut schema = json!({ "type": "number" });
                for (name, end) in [("minimum", least), ("maximum", most)] {
                    if end.abs() < f64::MAX {
                        schema[name] = end.into();
                    }
                }
                schema
            }
            Kind::Text => json!({ "type": "string" }),
            Kind::Texts => json!({ "oneOf": [
                { "type": "string" }, { "type": "array", "items": { "type": "string" } }
            ] }),
            Kind::Ids => json!({ "type": "array", "items": { "type": "integer", "minimum": 0 } }),
            Kind::Object => json!({ "type": "object" }),
            Kind::List => json!({ "type": "array", "items": {} }),
            Kind::Any | Kind::Refused(_) => json!({}),
        };
        let help = match self.kind {
            Kind::Refused(why) => format!("Refused: {why}"),
            _ => self.help.to_owned(),
        };
        schema["description"] = help.into();
        schema
    }
}

impl Kind {
    fn expected(self) -> String {
        match self {
            Self::Flag => "true or false".to_owned(),
            Self::Integer(least, i64::MAX) => format!("a whole number, {least} or above"),
            Self::Integer(least, most) => format!("a whole number from {least} to {most}"),
            Self::Number(least, most) if most == f64::MAX && least == -f64::MAX => {
                "a number".to_owned()
            }
            Self::Number(least, f64::MAX) => format!("a number, {least} or above"),
            Self::Number(least, most) => format!("a number from {least} to {most}"),
            Self::Text => "a text".to_owned(),
            Self::Texts => "a text or a list of texts".to_owned(),
            Self::Ids => "a list of token ids".to_owned(),
            Self::Object => "an object".to_owned(),
            Self::List => "a list".to_owned(),
            Self::Any | Self::Refused(_) => "something else".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[Field] = &[
        field("strict", Kind::Flag, ""),
        field("max_tokens", Kind::Integer(0, i64::MAX), ""),
        field("temperature", Kind::Number(0.0, f64::MAX), ""),
        field("stop", Kind::Texts, ""),
        field("suffix", Kind::Refused("there is no infilling"), ""),
    ];

    fn read(body: &str) -> Result<Fields, ApiError> {
        Fields::read(body.as_bytes(), &[TABLE])
    }

    #[test]
    fn types_are_taken_as_they_are() {
        for (body, param) in [
            (r#"{"strict": "true"}"#, "strict"),
            (r#"{"max_tokens": "256"}"#, "max_tokens"),
            (r#"{"max_tokens": -5}"#, "max_tokens"),
            (r#"{"max_tokens": 1.5}"#, "max_tokens"),
            (r#"{"temperature": "hot"}"#, "temperature"),
            (r#"{"temperature": -1}"#, "temperature"),
            (r#"{"stop": ["a", 1]}"#, "stop"),
            (r#"{"suffix": "x"}"#, "suffix"),
            (r#"{"strict": true, "colour": 1}"#, "colour"),
        ] {
            let error = read(body).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{body}: {error}");
        }
        for body in ["{", "[]", "1", r#"{"temperature": 1e400}"#] {
            assert_eq!(read(body).unwrap_err().status, 400, "{body}");
        }
        let fields =
            read(r#"{"max_tokens": null, "suffix": "", "colour": 1, "stop": "x"}"#).unwrap();
        assert_eq!((fields.count("max_tokens"), fields.texts("stop").len()), (None, 1));
        assert_eq!(fields.warnings.len(), 1);
    }
}
