//! Deserializes ids and names in manifests, which JSON may give as numbers.

use serde::de::{Deserialize, Deserializer, Error};
use serde_json::value::RawValue;

/// Deserializes an optional `id`: a string, or the text of a number.
///
/// 17 becomes "17", with any number of digits.
///
/// # Errors
/// Any other value but null; the error names the key.
pub(crate) fn optional_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let Some(raw) = Option::<Box<RawValue>>::deserialize(deserializer)? else { return Ok(None) };
    parse_name(&raw).map(Some).map_err(|found| name_error("id", found))
}

/// Deserializes a required `id`: a string, or the text of a number.
///
/// # Errors
/// Any other value; the error names the key.
pub fn required_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    optional_id(deserializer)?.ok_or_else(|| name_error("id", "null"))
}

/// Deserializes the ids of `recordings`.
///
/// # Errors
/// Any value but null and a list of strings and numbers; the error names the key.
pub(crate) fn id_list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    let Some(raw) = Option::<Box<RawValue>>::deserialize(deserializer)? else { return Ok(None) };
    let list: Vec<Box<RawValue>> = match serde_json::from_str(raw.get()) {
        Ok(list) => list,
        Err(_) => return Err(D::Error::custom("field `recordings`: expected a list of ids")),
    };
    let names = list.iter().map(|raw| parse_name(raw).map_err(|found| name_error("recordings", found)));
    names.collect::<Result<_, _>>().map(Some)
}

/// Deserializes an optional name for reports, such as `speaker`.
///
/// The name is a string, or the JSON text of any other value but null.
///
/// # Errors
/// Only text that is not JSON.
pub fn report_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let raw = Option::<Box<RawValue>>::deserialize(deserializer)?;
    Ok(raw.map(|raw| parse_name(&raw).unwrap_or_else(|text| text.to_owned())))
}

fn name_error<E: Error>(key: &str, found: &str) -> E {
    E::custom(format_args!("field `{key}`: expected a string or a number, found {found}"))
}

/// Returns a string or the text of a number; the error is the text of another value.
fn parse_name(raw: &RawValue) -> Result<String, &str> {
    let text = raw.get();
    match text.as_bytes().first() {
        Some(b'"') => serde_json::from_str(text).map_err(|_| text),
        Some(b'-' | b'0'..=b'9') => Ok(text.to_owned()),
        _ => Err(text),
    }
}
