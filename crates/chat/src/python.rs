//! JSON as Python writes it: a space after commas and colons, letters of all scripts as they are.

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use std::io::{self, Write};

/// Python's separators on one line.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }
    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }
    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

/// The `tojson` filter, with Python's `indent`.
pub(crate) fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let fail = |e: serde_json::Error| Error::new(ErrorKind::InvalidOperation, e.to_string());
    let indent: Option<usize> = options.get("indent")?;
    let tree = serde_json::to_value(value).map_err(fail)?;
    let mut out = Vec::new();
    match indent {
        None => {
            serde::Serialize::serialize(&tree, &mut Serializer::with_formatter(&mut out, Spaced))
        }
        Some(n) => {
            let spaces = " ".repeat(n.min(16));
            let pretty = PrettyFormatter::with_indent(spaces.as_bytes());
            serde::Serialize::serialize(&tree, &mut Serializer::with_formatter(&mut out, pretty))
        }
    }
    .map_err(fail)?;
    Ok(Value::from_safe_string(String::from_utf8_lossy(&out).into_owned()))
}
