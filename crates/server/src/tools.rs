//! Tools that an answer may call: what clients say of them, and what they ask of an answer.

use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Fields, name_of};
use crate::grammar::Grammar;
use crate::heard::{Listener, hex};
use crate::tool_grammar::{Callable, when_called, when_forced};
use chat::{CallFormat, CallReader};
use serde_json::{Value, json};

/// Tools of one request, at most.
const MOST_TOOLS: usize = 128;
/// Calls of one answer, at most.
pub const MOST_CALLS: usize = 16;

/// Whether an answer calls a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// It does not; the model is not told of any.
    None,
    /// The model decides.
    Auto,
    /// It calls one or more.
    Required,
    /// It calls this one.
    Named(String),
}

/// How a dialect writes its tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// `{"type": "function", "function": {"name", "description", "parameters"}}`.
    Chat,
    /// `{"type": "function", "name", "description", "parameters"}`.
    Responses,
    /// `{"name", "description", "input_schema"}`.
    Messages,
}

/// One tool.
#[derive(Debug, Clone)]
struct Tool {
    name: String,
    /// As Hugging Face documents it.
    told: Value,
    /// The JSON schema of its arguments.
    schema: Value,
    /// Whether its schema is to hold in every call.
    strict: bool,
}

/// The tools of a request.
#[derive(Debug, Clone)]
pub struct Tools {
    all: Vec<Tool>,
    choice: Choice,
    parallel: bool,
    format: Option<CallFormat>,
}

impl Tools {
    /// Reads the fields `tools`, `tool_choice` and `parallel_tool_calls`.
    ///
    /// # Errors
    /// The field at fault.
    pub fn read(app: &App, fields: &mut Fields, written: Written) -> Result<Self, ApiError> {
        let list = fields.value("tools").and_then(Value::as_array).cloned().unwrap_or_default();
        if list.len() > MOST_TOOLS {
            let message = format!("tools: found {}, expected {MOST_TOOLS} at most", list.len());
            return Err(ApiError::field("tools", message));
        }
        let all = list
            .iter()
            .enumerate()
            .map(|(i, tool)| Tool::read(i, tool, written))
            .collect::<Result<Vec<_>, _>>()?;
        let twice = (1..all.len()).find(|&i| all[..i].iter().any(|tool| tool.name == all[i].name));
        if let Some(i) = twice {
            let message = format!("tools[{i}]: there is another tool called {:?}", all[i].name);
            return Err(ApiError::field(format!("tools[{i}]"), message));
        }
        let asked = fields.value("tool_choice").cloned();
        let (choice, one) = choice(asked.as_ref(), all.is_empty(), written)?;
        if let Choice::Named(name) = &choice
            && !all.iter().any(|tool| tool.name == *name)
        {
            let message = format!("tool_choice: no tool is called {name:?}");
            return Err(ApiError::field("tool_choice", message));
        }
        let parallel = fields.value("parallel_tool_calls") != Some(&Value::Bool(false)) && !one;
        let template = app.model.template.as_ref();
        let format = template.and_then(chat::ChatTemplate::call_format);
        let tools = Self { all, choice, parallel, format };
        if tools.are_offered() {
            let formatted = Grammar::read(fields)?.is_some();
            fields.warnings.extend(tools.notes(template, formatted));
        }
        Ok(tools)
    }

    fn are_offered(&self) -> bool {
        !self.all.is_empty() && self.choice != Choice::None
    }

    fn notes(&self, template: Option<&chat::ChatTemplate>, formatted: bool) -> Vec<String> {
        let mut notes = Vec::new();
        if template.is_some_and(|template| !template.takes_tools()) {
            let note = "tools: this model's template has no place for them; they are told of in the \
                 system message";
            notes.push(note.to_owned());
        }
        if formatted && self.choice == Choice::Auto && self.all.iter().any(|tool| tool.strict) {
            let note = "tools: an answer that follows `response_format` or `structured_outputs` does \
                 not follow a `strict` schema";
            notes.push(note.to_owned());
        }
        if template.is_some() && self.format.is_none() {
            let note = "tools: how this model writes calls is not known; they come as text";
            notes.push(note.to_owned());
        }
        notes
    }

    /// The tools that the model is told of, as Hugging Face documents them.
    #[must_use]
    pub fn told(&self) -> Vec<Value> {
        let offered = self.all.iter().filter(|_| self.are_offered());
        offered.map(|tool| tool.told.clone()).collect()
    }

    /// Whether an answer must call a tool.
    #[must_use]
    pub fn are_forced(&self) -> bool {
        matches!(self.choice, Choice::Required | Choice::Named(_))
    }

    /// The grammar of an answer that must call a tool, or whose calls must follow their schemas.
    ///
    /// # Errors
    /// A model whose way to write calls is not known.
    pub fn grammar(&self, app: &App) -> Result<Option<Grammar>, ApiError> {
        let callable: Vec<&Tool> = match &self.choice {
            Choice::None => return Ok(None),
            Choice::Auto if !self.all.iter().any(|tool| tool.strict) => return Ok(None),
            Choice::Auto | Choice::Required => self.all.iter().collect(),
            Choice::Named(name) => self.all.iter().filter(|tool| tool.name == *name).collect(),
        };
        let Some(format) = self.format else {
            let (field, instead) = match self.are_forced() {
                true => ("tool_choice", "use `auto`"),
                false => ("tools", "no `strict` schema can be held to; leave `strict` out"),
            };
            let message = format!("{field}: how this model writes calls is not known; {instead}");
            return Err(ApiError::field(field, message).code("unsupported"));
        };
        let most = if self.parallel { MOST_CALLS } else { 1 };
        let forced = self.are_forced();
        let callable: Vec<Callable<'_>> = callable
            .into_iter()
            .map(|tool| Callable {
                name: &tool.name,
                // A call that must come follows its schema even where nobody asked for it.
                schema: (forced || tool.strict).then_some(&tool.schema),
            })
            .collect();
        let controls = |mark: &str| control(app, mark);
        Ok(Some(Grammar::Lark(match forced {
            true => when_forced(&controls, format, &callable, most),
            false => when_called(&controls, format, &callable, most),
        })))
    }

    /// Hears one answer.
    #[must_use]
    pub fn listener(&self, app: &App) -> Listener {
        let format = self.format.filter(|_| self.are_offered());
        let Some(format) = format else { return Listener::default() };
        let own = format.marks().iter();
        let marks = own.filter_map(|mark| Some((control(app, mark)?, *mark)));
        let names = self.all.iter().map(|tool| tool.name.clone()).collect();
        let most = if self.parallel { MOST_CALLS } else { 1 };
        Listener::new(CallReader::new(format, names, most), marks.collect(), is_mistral(format))
    }

    /// What a dialect repeats of the choice.
    #[must_use]
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Whether several calls may come.
    #[must_use]
    pub fn parallel(&self) -> bool {
        self.parallel
    }
}

/// The id of a mark of a call, where it is a control token: those have no text.
fn control(app: &App, mark: &str) -> Option<u32> {
    let tokenizer = &app.model.tokenizer;
    tokenizer.id(mark).filter(|&id| tokenizer.token_bytes(id).is_empty())
}

/// Whether the templates of a format take call ids of nine letters and digits only.
#[must_use]
pub fn is_mistral(format: CallFormat) -> bool {
    matches!(format, CallFormat::Mistral | CallFormat::MistralArgs)
}

/// Nine letters and digits that stand for an id.
#[must_use]
pub fn nine(id: &str) -> String {
    if id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    hex(id.as_bytes())[..9].to_owned()
}

fn choice(
    asked: Option<&Value>,
    empty: bool,
    written: Written,
) -> Result<(Choice, bool), ApiError> {
    let wrong = |what: &str| Err(ApiError::field("tool_choice", format!("tool_choice: {what}")));
    let kind = |value: &Value| value.get("type").and_then(Value::as_str).map(str::to_owned);
    let mut one = false;
    let choice = match (asked, written) {
        (None, _) if empty => Choice::None,
        (None, _) => Choice::Auto,
        (Some(Value::String(word)), Written::Chat | Written::Responses) => match word.as_str() {
            "none" => Choice::None,
            "auto" => Choice::Auto,
            "required" => Choice::Required,
            other => {
                return wrong(&format!("found {other:?}, expected none, auto, required or a tool"));
            }
        },
        (Some(value @ Value::Object(_)), Written::Chat | Written::Responses) => {
            let inside = if written == Written::Chat { value.get("function") } else { Some(value) };
            let name = inside.and_then(|inside| inside.get("name")).and_then(Value::as_str);
            match (kind(value).as_deref(), name) {
                (Some("function"), Some(name)) => Choice::Named(name.to_owned()),
                _ => return wrong("expected a `type` of function and the function's `name`"),
            }
        }
        (Some(value @ Value::Object(_)), Written::Messages) => {
            one = value.get("disable_parallel_tool_use") == Some(&Value::Bool(true));
            let name = value.get("name").and_then(Value::as_str);
            match (kind(value).as_deref(), name) {
                (Some("none"), _) => Choice::None,
                (Some("auto"), _) => Choice::Auto,
                (Some("any"), _) => Choice::Required,
                (Some("tool"), Some(name)) => Choice::Named(name.to_owned()),
                _ => return wrong("expected a `type` of auto, any, none, or tool with its `name`"),
            }
        }
        (Some(other), _) => return wrong(&format!("found {}", name_of(other))),
    };
    match choice {
        Choice::Required | Choice::Named(_) if empty => {
            wrong("there are no `tools` to choose from")
        }
        choice => Ok((choice, one)),
    }
}

impl Tool {
    fn read(i: usize, tool: &Value, written: Written) -> Result<Self, ApiError> {
        let at = format!("tools[{i}]");
        let wrong = |what: String| Err(ApiError::field(&at, format!("{at}{what}")));
        let kind = tool.get("type").and_then(Value::as_str);
        match (written, kind) {
            (Written::Messages, None | Some("custom")) | (_, Some("function")) => {}
            (_, found) => {
                let found = found.unwrap_or("none");
                let message = format!("{at}.type: found {found:?}; only functions can be called");
                return Err(ApiError::field(format!("{at}.type"), message).code("unsupported"));
            }
        }
        let inside = match written {
            Written::Chat => tool.get("function").unwrap_or(&Value::Null),
            _ => tool,
        };
        let Some(name) = inside.get("name").and_then(Value::as_str) else {
            return wrong(": the function has no `name`".to_owned());
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if name.is_empty() || name.len() > 128 || !name.chars().all(fits) {
            return wrong(format!(
                ".name: found {name:?}, expected 1 to 128 letters, digits, `_`, `-` or `.`"
            ));
        }
        let field = if written == Written::Messages { "input_schema" } else { "parameters" };
        let schema = match inside.get(field) {
            Some(schema @ Value::Object(_)) => schema.clone(),
            None | Some(Value::Null) => json!({ "type": "object", "properties": {} }),
            Some(other) => {
                return wrong(format!(".{field}: found {}, expected an object", name_of(other)));
            }
        };
        let description = match inside.get("description") {
            Some(Value::String(text)) => text.as_str(),
            None | Some(Value::Null) => "",
            Some(other) => {
                return wrong(format!(".description: found {}, expected a text", name_of(other)));
            }
        };
        let told = json!({ "type": "function", "function": {
            "name": name, "description": description, "parameters": schema,
        } });
        let strict = inside.get("strict") == Some(&Value::Bool(true));
        Ok(Self { name: name.to_owned(), told, schema, strict })
    }
}
