//! The few things of Helm's templates that the chart uses, so that it can be rendered where there is
//! no Helm: values, `if`, `range`, `define` and `include`, and a handful of functions. What else a
//! template says is a failure of the test.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

enum Node {
    Text(String),
    Show(String),
    If(String, Vec<Node>),
    Range(String, Vec<Node>),
    Define(String, Vec<Node>),
}

/// A chart with its values.
pub struct Chart {
    root: Value,
    templates: BTreeMap<String, String>,
}

impl Chart {
    /// Reads a chart; `set` is laid over its values.
    pub fn open(folder: &Path, set: &Value) -> Self {
        let yaml = |name: &str| -> Value {
            serde_yaml_ng::from_str(&std::fs::read_to_string(folder.join(name)).unwrap()).unwrap()
        };
        let (chart, mut values) = (yaml("Chart.yaml"), yaml("values.yaml"));
        overlay(&mut values, set);
        let root = json!({
            "Values": values,
            "Release": { "Name": "chat", "Namespace": "llm", "Service": "Helm" },
            "Chart": {
                "Name": chart["name"], "Version": chart["version"], "AppVersion": chart["appVersion"],
            },
        });
        let mut templates = BTreeMap::new();
        for entry in std::fs::read_dir(folder.join("templates")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            templates.insert(name, std::fs::read_to_string(&path).unwrap());
        }
        Self { root, templates }
    }

    /// The values in use.
    pub fn values(&self) -> &Value {
        &self.root["Values"]
    }

    /// Every document of every template.
    pub fn documents(&self) -> Vec<Value> {
        let mut defined = BTreeMap::new();
        for node in parse(&self.templates["_helpers.tpl"]) {
            if let Node::Define(name, body) = node {
                defined.insert(name, body);
            }
        }
        let mut all = Vec::new();
        for (name, text) in self.templates.iter().filter(|(name, _)| name.ends_with(".yaml")) {
            let scope = Scope { root: &self.root, dot: &self.root, defined: &defined };
            let rendered = scope.render(&parse(text));
            for part in rendered.split("\n---") {
                let value: Value = serde_yaml_ng::from_str(part)
                    .unwrap_or_else(|error| panic!("{name}: {error}\n{part}"));
                if !value.is_null() {
                    all.push(value);
                }
            }
        }
        all
    }
}

fn overlay(values: &mut Value, set: &Value) {
    match (values, set) {
        (Value::Object(values), Value::Object(set)) => {
            for (key, value) in set {
                overlay(values.get_mut(key).unwrap_or_else(|| panic!("no value {key}")), value);
            }
        }
        (value, set) => *value = set.clone(),
    }
}

/// A word that opens a part, and what stands behind it.
type Head = (String, String);

fn parse(text: &str) -> Vec<Node> {
    let mut stack: Vec<(Option<Head>, Vec<Node>)> = vec![(None, Vec::new())];
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let (action, after) = after.split_once("}}").unwrap();
        let (trim_left, trim_right) = (action.starts_with('-'), action.ends_with('-'));
        let before = if trim_left { before.trim_end() } else { before };
        rest = if trim_right { after.trim_start() } else { after };
        let action = action.trim_matches('-').trim().to_owned();
        let open = &mut stack.last_mut().unwrap().1;
        open.push(Node::Text(before.to_owned()));
        let (word, more) = action.split_once(' ').unwrap_or((&action, ""));
        match word {
            "if" | "range" | "define" => {
                stack.push((Some((word.to_owned(), more.to_owned())), Vec::new()));
            }
            "end" => {
                let (head, body) = stack.pop().unwrap();
                let (word, more) = head.expect("an end of something");
                let node = match word.as_str() {
                    "if" => Node::If(more, body),
                    "range" => Node::Range(more, body),
                    _ => Node::Define(more.trim_matches('"').to_owned(), body),
                };
                stack.last_mut().unwrap().1.push(node);
            }
            _ => open.push(Node::Show(action)),
        }
    }
    let (head, mut nodes) = stack.pop().unwrap();
    assert!(head.is_none(), "something has no end");
    nodes.push(Node::Text(rest.to_owned()));
    nodes
}

struct Scope<'a> {
    root: &'a Value,
    dot: &'a Value,
    defined: &'a BTreeMap<String, Vec<Node>>,
}

impl Scope<'_> {
    fn render(&self, nodes: &[Node]) -> String {
        let mut out = String::new();
        for node in nodes {
            match node {
                Node::Text(text) => out.push_str(text),
                Node::Show(what) => out.push_str(&shown(&self.value(what))),
                Node::If(what, body) if truth(&self.value(what)) => out += &self.render(body),
                Node::If(..) | Node::Define(..) => {}
                Node::Range(what, body) => {
                    for one in self.value(what).as_array().unwrap() {
                        out += &Scope { dot: one, ..*self }.render(body);
                    }
                }
            }
        }
        out
    }

    /// A pipeline.
    fn value(&self, text: &str) -> Value {
        let mut value = None;
        for stage in cut(text, '|') {
            let mut words = cut(&stage, ' ').into_iter().filter(|word| !word.is_empty());
            let first = words.next().unwrap();
            let mut arguments: Vec<Value> = words.map(|word| self.word(&word)).collect();
            let is_function =
                first.chars().all(char::is_alphanumeric) && first.parse::<u64>().is_err();
            if !is_function {
                value = Some(self.word(&first));
                continue;
            }
            arguments.extend(value.take());
            value = Some(self.call(&first, &arguments));
        }
        value.unwrap()
    }

    fn word(&self, word: &str) -> Value {
        if let Some(inner) = word.strip_prefix('(') {
            return self.value(inner.strip_suffix(')').unwrap());
        }
        if word.starts_with('"') {
            return serde_json::from_str(word).unwrap();
        }
        let path = |from: &Value, path: &str| -> Value {
            let parts = path.split('.').filter(|part| !part.is_empty());
            parts.fold(from.clone(), |value, part| {
                value.get(part).unwrap_or_else(|| panic!("there is no {word}")).clone()
            })
        };
        match word.strip_prefix('$') {
            Some(rest) => path(self.root, rest),
            None if word.starts_with('.') => path(self.dot, word),
            None => serde_json::from_str(word).unwrap_or_else(|_| panic!("what is {word}?")),
        }
    }

    fn call(&self, name: &str, given: &[Value]) -> Value {
        let number = |i: usize| given[i].as_i64().unwrap();
        match name {
            "include" => {
                let body = &self.defined[given[0].as_str().unwrap()];
                Scope { dot: &given[1], ..*self }.render(body).into()
            }
            "nindent" => {
                let space = " ".repeat(usize::try_from(number(0)).unwrap());
                let text = given[1].as_str().unwrap().trim_end().to_owned();
                format!("\n{space}{}", text.replace('\n', &format!("\n{space}"))).into()
            }
            "toYaml" => serde_yaml_ng::to_string(&given[0]).unwrap().trim_end().into(),
            "quote" => json!(shown(&given[0])).to_string().into(),
            "default" if truth(&given[1]) => given[1].clone(),
            "default" => given[0].clone(),
            "ternary" => given[usize::from(!truth(&given[2]))].clone(),
            "add" => (0..given.len()).map(number).sum::<i64>().into(),
            "div" => (number(0) / number(1)).into(),
            "not" => (!truth(&given[0])).into(),
            "int" => given[0].clone(),
            "until" => (0..number(0)).collect(),
            "printf" => given[1..].iter().map(Value::to_string).collect::<String>().into(),
            "sha256sum" => "0".repeat(64).into(),
            other => panic!("the chart uses {other}, which this cannot"),
        }
    }
}

fn truth(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(set) => *set,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Number(number) => number.as_f64() != Some(0.0),
    }
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Cuts at a mark outside quotes and parentheses.
fn cut(text: &str, mark: char) -> Vec<String> {
    let (mut parts, mut depth, mut quoted) = (vec![String::new()], 0, false);
    for c in text.trim().chars() {
        match c {
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            _ => {}
        }
        if c == mark && depth == 0 && !quoted {
            parts.push(String::new());
        } else {
            parts.last_mut().unwrap().push(c);
        }
    }
    parts
}
