//! `Section`: a table of another toolkit's configuration, whose every key must be known.
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};

use crate::{Error, Result};

/// Largest relative difference of numbers that are the same.
const NUMBER_TOLERANCE: f64 = 1e-6;

/// A table with its dotted name for messages.
pub(crate) struct Section<'a> {
    path: &'a Path,
    name: String,
    table: &'a Map<String, Value>,
    known_keys: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Section<'a> {
    /// Creates a section of the whole configuration.
    pub(crate) fn root(path: &'a Path, value: &'a Value) -> Result<Self> {
        match value.as_object() {
            Some(table) => Ok(Self::new(path, String::new(), table)),
            None => Err(Error::conversion(path, "configuration", "a table", type_name(value))),
        }
    }

    fn new(path: &'a Path, name: String, table: &'a Map<String, Value>) -> Self {
        Section { path, name, table, known_keys: RefCell::default() }
    }

    /// Returns the dotted name of a key.
    pub(crate) fn key_name(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    /// Creates an error about a key.
    pub(crate) fn error(&self, key: &str, expected: impl Into<String>, found: impl Into<String>) -> Error {
        Error::conversion(self.path, self.key_name(key), expected, found)
    }

    /// Returns a value; none if it is absent or null.
    pub(crate) fn value(&self, key: &'static str) -> Option<&'a Value> {
        self.known_keys.borrow_mut().insert(key);
        self.table.get(key).filter(|value| !value.is_null())
    }

    /// Returns a table; none if it is absent or null.
    pub(crate) fn optional_section(&self, key: &'static str) -> Result<Option<Section<'a>>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match value.as_object() {
            Some(table) => Ok(Some(Self::new(self.path, self.key_name(key), table))),
            None => Err(self.error(key, "a table", type_name(value))),
        }
    }

    /// Returns a required table.
    pub(crate) fn section(&self, key: &'static str) -> Result<Section<'a>> {
        self.optional_section(key)?.ok_or_else(|| self.error(key, "a table", "none"))
    }

    /// Returns a count or a default.
    pub(crate) fn count(&self, key: &'static str, default: Option<usize>) -> Result<usize> {
        self.required(key, "an integer of at least 0", default, |value| {
            value.as_u64().and_then(|count| usize::try_from(count).ok())
        })
    }

    /// Returns an integer or a default.
    pub(crate) fn integer(&self, key: &'static str, default: Option<i64>) -> Result<i64> {
        self.required(key, "an integer", default, Value::as_i64)
    }

    /// Returns a number or a default.
    pub(crate) fn number(&self, key: &'static str, default: Option<f64>) -> Result<f64> {
        self.required(key, "a number", default, Value::as_f64)
    }

    /// Returns a boolean or a default.
    pub(crate) fn flag(&self, key: &'static str, default: bool) -> Result<bool> {
        self.required(key, "true or false", Some(default), Value::as_bool)
    }

    /// Returns a text or a default.
    pub(crate) fn text(&self, key: &'static str, default: Option<&'a str>) -> Result<&'a str> {
        self.required(key, "a text", default, Value::as_str)
    }

    /// Returns a list of counts; none if it is absent.
    pub(crate) fn counts(&self, key: &'static str) -> Result<Option<Vec<usize>>> {
        let parse = |value: &Value| {
            let counts = value.as_array()?.iter();
            counts
                .map(|count| count.as_u64().and_then(|count| usize::try_from(count).ok()))
                .collect::<Option<Vec<_>>>()
        };
        let Some(value) = self.value(key) else { return Ok(None) };
        parse(value).map(Some).ok_or_else(|| self.error(key, "a list of integers", describe(value)))
    }

    /// Returns a list of texts; none if it is absent.
    pub(crate) fn texts(&self, key: &'static str) -> Result<Option<Vec<&'a str>>> {
        let parse =
            |value: &'a Value| value.as_array()?.iter().map(Value::as_str).collect::<Option<Vec<_>>>();
        let Some(value) = self.value(key) else { return Ok(None) };
        parse(value).map(Some).ok_or_else(|| self.error(key, "a list of texts", describe(value)))
    }

    fn required<T>(
        &self,
        key: &'static str,
        expected: &str,
        default: Option<T>,
        parse: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<T> {
        match self.value(key) {
            Some(value) => parse(value).ok_or_else(|| self.error(key, expected, describe(value))),
            None => default.ok_or_else(|| self.error(key, expected, "none")),
        }
    }

    /// Checks that a value is supported; an absent one is the default.
    ///
    /// # Errors
    /// [`Error::Conversion`] with the supported values.
    pub(crate) fn expect(&self, key: &'static str, default: Value, supported: &[Value]) -> Result<()> {
        let value = self.value(key).unwrap_or(&default);
        if supported.iter().any(|supported| is_same(value, supported)) {
            return Ok(());
        }
        let supported: Vec<String> = supported.iter().map(describe).collect();
        Err(self.error(key, supported.join(" or "), describe(value)))
    }

    /// Checks the last part of a Python class's name.
    ///
    /// # Errors
    /// [`Error::Conversion`] for another class; none is an error unless `is_optional`.
    pub(crate) fn expect_class(&self, key: &'static str, class: &str, is_optional: bool) -> Result<()> {
        match self.value(key) {
            None if is_optional => Ok(()),
            Some(Value::String(name)) if name.rsplit('.').next() == Some(class) => Ok(()),
            value => Err(self.error(key, class, value.map_or("none".into(), describe))),
        }
    }

    /// Marks keys that have no effect on the imported model.
    pub(crate) fn ignore(&self, keys: &[&'static str]) {
        self.known_keys.borrow_mut().extend(keys);
    }

    /// Returns the keys of the table.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&'a str, &'a Value)> {
        self.table.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Checks that all keys of the table are known.
    ///
    /// # Errors
    /// [`Error::Conversion`] that names the first unknown key with a value.
    pub(crate) fn finish(self) -> Result<()> {
        self.check_known()
    }

    /// As [`Self::finish`], for a borrowed section.
    pub(crate) fn check_known(&self) -> Result<()> {
        let known_keys = self.known_keys.borrow();
        match self.keys().find(|(key, value)| !value.is_null() && !known_keys.contains(key)) {
            Some((key, value)) => Err(self.error(key, "a supported key", describe(value))),
            None => Ok(()),
        }
    }
}

/// Returns true for equal values; numbers may differ by rounding.
fn is_same(left: &Value, right: &Value) -> bool {
    match (left.as_f64(), right.as_f64()) {
        (Some(left), Some(right)) => (left - right).abs() <= NUMBER_TOLERANCE * right.abs(),
        _ => left == right,
    }
}

/// Returns a value as JSON.
pub(crate) fn describe(value: &Value) -> String {
    value.to_string()
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a table",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_checked_under_their_dotted_names() {
        let value = json!({"a": {"count": 3, "text": "x", "flag": null, "list": [1, 2], "other": 0.97}});
        let path = Path::new("config.yaml");
        let root = Section::root(path, &value).unwrap();
        let section = root.section("a").unwrap();
        assert_eq!(section.count("count", None).unwrap(), 3);
        assert!(section.flag("flag", true).unwrap());
        assert_eq!(section.counts("list").unwrap().unwrap(), [1, 2]);
        section.expect("other", json!(0), &[json!(1), json!(0.97f32)]).unwrap();
        section.expect("absent", json!(0), &[json!(0)]).unwrap();
        for (error, message) in [
            (
                section.count("text", None).unwrap_err(),
                "a.text: expected an integer of at least 0, found \"x\"",
            ),
            (section.text("none", None).map(drop).unwrap_err(), "a.none: expected a text, found none"),
            (section.counts("text").unwrap_err(), "a.text: expected a list of integers, found \"x\""),
            (
                section.expect("other", json!(0), &[json!(1), json!("two")]).unwrap_err(),
                "a.other: expected 1 or \"two\", found 0.97",
            ),
            (root.section("b").map(drop).unwrap_err(), "b: expected a table, found none"),
        ] {
            assert_eq!(error.to_string(), format!("config.yaml: {message}"));
        }
    }

    #[test]
    fn unknown_keys_with_a_value_are_errors() {
        let value = json!({"known": 1, "unset": null, "adapters": {"x": 1}});
        let section = Section::root(Path::new("c"), &value).unwrap();
        section.ignore(&["known"]);
        let error = section.finish().unwrap_err().to_string();
        assert_eq!(error, "c: adapters: expected a supported key, found {\"x\":1}");
    }
}
