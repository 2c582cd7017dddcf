//! Tools that an answer may call: what clients say of them, the grammar that makes an answer call one,
//! and the calls that an answer makes.

use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Fields, name_of};
use crate::grammar::Grammar;
use chat::{CallFormat, CallReader, Read};
use engine::serving::Chosen;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// Tools of one request, at most.
const MOST_TOOLS: usize = 128;
/// Calls of one answer, at most.
const MOST_CALLS: usize = 16;

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
            fields.warnings.extend(tools.notes(template));
        }
        Ok(tools)
    }

    fn are_offered(&self) -> bool {
        !self.all.is_empty() && self.choice != Choice::None
    }

    fn notes(&self, template: Option<&chat::ChatTemplate>) -> Vec<String> {
        let mut notes = Vec::new();
        if template.is_some_and(|template| !template.takes_tools()) {
            let note = "tools: this model's template has no place for them; they are told of in the \
                 system message";
            notes.push(note.to_owned());
        }
        let strict = self.all.iter().find(|tool| tool.strict);
        if let (Some(tool), Choice::Auto) = (strict, &self.choice) {
            let note = format!(
                "tools: `strict` of {:?} holds only where a call is required; a call that the model \
                 makes by itself may depart from the schema",
                tool.name
            );
            notes.push(note);
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

    /// The grammar of an answer that must call a tool.
    ///
    /// # Errors
    /// A model whose way to write calls is not known.
    pub fn grammar(&self, app: &App) -> Result<Option<Grammar>, ApiError> {
        let callable: Vec<&Tool> = match &self.choice {
            Choice::None | Choice::Auto => return Ok(None),
            Choice::Required => self.all.iter().collect(),
            Choice::Named(name) => self.all.iter().filter(|tool| tool.name == *name).collect(),
        };
        let Some(format) = self.format else {
            let message = "tool_choice: how this model writes calls is not known; use `auto`";
            return Err(ApiError::field("tool_choice", message).code("unsupported"));
        };
        Ok(Some(Grammar::Lark(lark(app, format, &callable, self.parallel))))
    }

    /// Hears one answer.
    #[must_use]
    pub fn listener(&self, app: &App) -> Listener {
        let format = self.format.filter(|_| self.are_offered());
        let Some(format) = format else { return Listener::default() };
        let tokenizer = &app.model.tokenizer;
        // Control tokens have no text, and some are the marks of a call.
        let marks = format.marks().iter().filter_map(|mark| {
            let id = tokenizer.id(mark)?;
            tokenizer.token_bytes(id).is_empty().then_some((id, *mark))
        });
        let names = self.all.iter().map(|tool| tool.name.clone()).collect();
        let most = if self.parallel { MOST_CALLS } else { 1 };
        Listener {
            reader: Some(CallReader::new(format, names, most)),
            marks: marks.collect(),
            short_ids: is_mistral(format),
        }
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

fn hex(bytes: &[u8]) -> String {
    let mut out = String::new();
    for byte in Sha256::digest(bytes) {
        // A text takes all that is written to it.
        let _ = write!(out, "{byte:02x}");
    }
    out
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

    /// The schema that a call's arguments follow: an object with nothing that nobody named, written
    /// as Python writes JSON, which is what models have seen.
    fn strict_schema(&self) -> Value {
        let mut schema = self.schema.clone();
        if let Some(map) = schema.as_object_mut() {
            map.entry("type").or_insert("object".into());
            map.entry("properties").or_insert(json!({}));
            let open = ["$ref", "anyOf", "oneOf", "allOf", "patternProperties"];
            if !open.iter().any(|key| map.contains_key(*key)) {
                map.entry("additionalProperties").or_insert(false.into());
            }
            let spaced = json!({
                "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ",
            });
            map.insert("x-guidance".to_owned(), spaced);
        }
        schema
    }
}

fn lark(app: &App, format: CallFormat, tools: &[&Tool], parallel: bool) -> String {
    let quoted = |text: &str| json!(text).to_string();
    let mark = |text: &str| {
        let tokenizer = &app.model.tokenizer;
        match tokenizer.id(text).filter(|&id| tokenizer.token_bytes(id).is_empty()) {
            Some(id) => format!("<[{id}]>"),
            None => quoted(text),
        }
    };
    let again = |what: &str| match parallel {
        true => format!(" ({what}){{0,{}}}", MOST_CALLS - 1),
        false => String::new(),
    };
    let mut out = match format {
        CallFormat::Hermes => format!(
            "start: call{}\ncall: {} \"\\n\" one \"\\n\" {}\n",
            again("\"\\n\" call"),
            mark("<tool_call>"),
            mark("</tool_call>")
        ),
        // This family calls one at a time.
        CallFormat::Llama => "start: one\n".to_owned(),
        CallFormat::Mistral => {
            let more = again("\", \" one");
            format!("start: {} \"[\" one{more} \"]\"\n", mark("[TOOL_CALLS]"))
        }
        CallFormat::MistralArgs => format!("start: one{}\n", again("one")),
    };
    let names: Vec<String> = (0..tools.len()).map(|i| format!("f{i}")).collect();
    out += &format!("one: {}\n", names.join(" | "));
    let key = if format == CallFormat::Llama { "parameters" } else { "arguments" };
    for (i, tool) in tools.iter().enumerate() {
        let rule = match format {
            CallFormat::MistralArgs => {
                format!("{} {} {} a{i}", mark("[TOOL_CALLS]"), quoted(&tool.name), mark("[ARGS]"))
            }
            _ => {
                let head = format!("{{\"name\": {}, \"{key}\": ", quoted(&tool.name));
                format!("{} a{i} \"}}\"", quoted(&head))
            }
        };
        out += &format!("f{i}: {rule}\na{i}: %json {}\n", tool.strict_schema());
    }
    out
}

/// A part of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// Text.
    Text(String),
    /// A call of a tool.
    Call(Called),
}

/// A call of a tool, with its name for the answer to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Called {
    /// Letters and digits, not two alike.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The JSON of an object.
    pub arguments: String,
}

/// Hears one sequence.
#[derive(Debug, Clone, Default)]
pub struct Listener {
    reader: Option<CallReader>,
    marks: Vec<(u32, &'static str)>,
    short_ids: bool,
}

impl Listener {
    /// What a token says. `name` is the answer's own, which the ids of its calls follow from.
    pub fn hear(&mut self, chosen: &Chosen, name: &str) -> Vec<Part> {
        let Some(reader) = &mut self.reader else {
            return match chosen.text.is_empty() {
                true => Vec::new(),
                false => vec![Part::Text(chosen.text.clone())],
            };
        };
        let before = reader.calls();
        let mut read = reader.push(&chosen.text);
        if let Some((_, mark)) = self.marks.iter().find(|(id, _)| *id == chosen.choice.id) {
            read.extend(reader.push(mark));
        }
        if chosen.finish.is_some() {
            read.extend(reader.finish());
        }
        self.parts(read, before, name)
    }

    /// The answer ended without a token.
    pub fn end(&mut self, name: &str) -> Vec<Part> {
        let Some(reader) = &mut self.reader else { return Vec::new() };
        let before = reader.calls();
        let read = reader.finish();
        self.parts(read, before, name)
    }

    fn parts(&self, read: Vec<Read>, mut before: usize, name: &str) -> Vec<Part> {
        let part = |one: Read| match one {
            Read::Text(text) => Part::Text(text),
            Read::Call(call) => {
                before += 1;
                let id = hex(format!("{name} {before}").as_bytes());
                let id = if self.short_ids { &id[..9] } else { &id[..24] };
                Part::Call(Called { id: id.to_owned(), name: call.name, arguments: call.arguments })
            }
        };
        read.into_iter().map(part).collect()
    }

    /// Whether the answer has called a tool.
    #[must_use]
    pub fn has_called(&self) -> bool {
        self.reader.as_ref().is_some_and(|reader| reader.calls() > 0)
    }

    /// What did not hold, since the last time.
    pub fn take_warnings(&mut self) -> Vec<String> {
        self.reader.as_mut().map(|reader| std::mem::take(&mut reader.warnings)).unwrap_or_default()
    }
}
