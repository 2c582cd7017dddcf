//! The keys and values at the head of a GGUF file.

use crate::KeyValue;
use ledger::MappedFile;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A value of a key.
#[derive(Clone, Debug, PartialEq)]
pub enum MetaValue {
    /// A truth value.
    Bool(bool),
    /// A whole number of any width.
    Whole(i128),
    /// A float of either width.
    Float(f64),
    /// A text.
    Text(String),
    /// Truth values.
    Bools(Vec<bool>),
    /// Whole numbers.
    Wholes(Vec<i64>),
    /// Floats.
    Floats(Vec<f32>),
    /// Texts.
    Texts(TextList),
}

/// A list of texts, left in its file: for each a length of eight bytes, then so many of UTF-8. The
/// lengths were checked when the file was opened; vocabularies have hundreds of thousands of them.
#[derive(Clone, Debug)]
pub struct TextList {
    pub(crate) file: Arc<MappedFile>,
    /// The first length to the last byte.
    pub(crate) range: Range<usize>,
    pub(crate) count: usize,
}

impl TextList {
    /// The texts; of the first that is none the place in the list.
    fn read(&self) -> Result<Vec<&str>, usize> {
        let mut rest = self.file.get(self.range.clone()).unwrap_or_default();
        let next = |place| {
            let (length, after) = rest.split_first_chunk::<8>().ok_or(place)?;
            let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| place)?;
            let (text, after) = after.split_at_checked(length).ok_or(place)?;
            rest = after;
            std::str::from_utf8(text).map_err(|_| place)
        };
        (0..self.count).map(next).collect()
    }
}

impl PartialEq for TextList {
    fn eq(&self, other: &TextList) -> bool {
        self.count == other.count
            && self.file.get(self.range.clone()) == other.file.get(other.range.clone())
    }
}

impl MetaValue {
    /// What it is, for messages.
    pub fn describe(&self) -> String {
        match self {
            MetaValue::Bool(b) => b.to_string(),
            MetaValue::Whole(n) => n.to_string(),
            MetaValue::Float(x) => x.to_string(),
            MetaValue::Text(t) => format!("{:?}", t.chars().take(60).collect::<String>()),
            MetaValue::Bools(v) => format!("{} truth values", v.len()),
            MetaValue::Wholes(v) => format!("{} whole numbers", v.len()),
            MetaValue::Floats(v) => format!("{} floats", v.len()),
            MetaValue::Texts(v) => format!("{} texts", v.count),
        }
    }
}

/// Keys with their values.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    pub(crate) values: HashMap<String, MetaValue>,
}

impl<'a> FromIterator<&'a (String, KeyValue)> for Metadata {
    /// What a reader will find of keys that are to be written; raw ones and lists of texts, which are
    /// read from files, are left out.
    fn from_iter<I: IntoIterator<Item = &'a (String, KeyValue)>>(keys: I) -> Metadata {
        let read = |value: &KeyValue| {
            Some(match value {
                KeyValue::U32(n) => MetaValue::Whole(i128::from(*n)),
                KeyValue::F32(x) => MetaValue::Float(f64::from(*x)),
                KeyValue::Bool(b) => MetaValue::Bool(*b),
                KeyValue::Text(t) => MetaValue::Text(t.clone()),
                KeyValue::Wholes(all) => {
                    MetaValue::Wholes(all.iter().map(|&n| i64::from(n)).collect())
                }
                KeyValue::Floats(all) => MetaValue::Floats(all.clone()),
                KeyValue::Texts(_) | KeyValue::Raw(_) => return None,
            })
        };
        let values = keys.into_iter().filter_map(|(key, value)| Some((key.clone(), read(value)?)));
        Metadata { values: values.collect() }
    }
}

/// A key whose value is not of the type it must be.
#[derive(Debug, thiserror::Error, PartialEq)]
#[error("key {key} is {found}, expected {expected}")]
pub struct KeyError {
    /// The key.
    pub key: String,
    /// Its value.
    pub found: String,
    /// What it must be.
    pub expected: &'static str,
}

macro_rules! typed {
    ($(#[$doc:meta])* $name:ident, $type:ty, $expected:literal, $pattern:pat => $value:expr) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// When the key is there with a value of another type.
        pub fn $name(&self, key: &str) -> Result<Option<$type>, KeyError> {
            match self.values.get(key) {
                None => Ok(None),
                Some($pattern) => Ok($value),
                Some(other) => Err(KeyError {
                    key: key.to_owned(),
                    found: other.describe(),
                    expected: $expected,
                }),
            }
        }
    };
}

impl Metadata {
    /// A value of any type.
    pub fn get(&self, key: &str) -> Option<&MetaValue> {
        self.values.get(key)
    }

    /// The keys in alphabetical order.
    pub fn keys(&self) -> Vec<&str> {
        let mut keys: Vec<&str> = self.values.keys().map(String::as_str).collect();
        keys.sort_unstable();
        keys
    }

    typed!(
        /// A text.
        text, &str, "a text", MetaValue::Text(t) => Some(t)
    );
    typed!(
        /// A truth value.
        bool, bool, "a truth value", MetaValue::Bool(b) => Some(*b)
    );
    typed!(
        /// Floats.
        floats, &[f32], "floats", MetaValue::Floats(v) => Some(v)
    );
    typed!(
        /// Whole numbers.
        wholes, &[i64], "whole numbers", MetaValue::Wholes(v) => Some(v)
    );
    typed!(
        /// Truth values.
        bools, &[bool], "truth values", MetaValue::Bools(v) => Some(v)
    );

    /// Texts.
    ///
    /// # Errors
    /// When the key is there with a value of another type, or one of the texts is not UTF-8.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, KeyError> {
        let found = match self.values.get(key) {
            None => return Ok(None),
            Some(MetaValue::Texts(list)) => match list.read() {
                Ok(texts) => return Ok(Some(texts)),
                Err(place) => format!("a list whose text {place} is not UTF-8"),
            },
            Some(other) => other.describe(),
        };
        Err(KeyError { key: key.to_owned(), found, expected: "texts" })
    }

    /// A size: a whole number from 0 to the largest of this machine.
    ///
    /// # Errors
    /// When the value is none.
    pub fn size(&self, key: &str) -> Result<Option<usize>, KeyError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        let size = match value {
            MetaValue::Whole(n) => usize::try_from(*n).ok(),
            _ => None,
        };
        let found = || value.describe();
        let fail = || KeyError { key: key.to_owned(), found: found(), expected: "a size" };
        size.map(Some).ok_or_else(fail)
    }

    /// A number; whole ones count.
    ///
    /// # Errors
    /// When the value is none.
    pub fn number(&self, key: &str) -> Result<Option<f64>, KeyError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(MetaValue::Float(x)) => Ok(Some(*x)),
            Some(MetaValue::Whole(n)) => Ok(Some(*n as f64)),
            Some(other) => {
                Err(KeyError { key: key.to_owned(), found: other.describe(), expected: "a number" })
            }
        }
    }
}
