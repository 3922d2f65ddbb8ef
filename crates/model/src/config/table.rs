//! Helpers for the TOML tables of a model configuration.
//!
//! Enums of kinds, strict splits of keys between types, first differences, places of errors.
use std::path::Path;

use kernels::Excerpt;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};

/// Defines an enum of encoders or predictors, selected by `kind`.
///
/// Each module has the configuration of one kind; the enum derefs to the trait that builds the
/// part.
macro_rules! part_kinds {
    ($(#[$doc:meta])* $name:ident: dyn $build:ident { $($kind:ident: $module:ident::$config:ident,)+ }) => {
        $(pub use $module::$config;)+

        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(tag = "kind", rename_all = "lowercase")]
        pub enum $name {
            $(#[doc = concat!("See [`", stringify!($config), "`].")] $kind($config),)+
        }

        impl std::ops::Deref for $name {
            type Target = dyn $build;

            fn deref(&self) -> &Self::Target {
                match self {
                    $($name::$kind(config) => config,)+
                }
            }
        }
    };
}
pub(crate) use part_kinds;

/// Splits a table into `shared` keys and those of one kind.
///
/// `default_kind` is the default value of the key `kind`. Both types may reject unknown keys; with
/// serde's `flatten`, they could not.
pub fn split<'de, D, Shared, Kind>(
    deserializer: D,
    shared: &[&str],
    default_kind: Option<&str>,
) -> Result<(Shared, Kind), D::Error>
where
    D: Deserializer<'de>,
    Shared: DeserializeOwned,
    Kind: DeserializeOwned,
{
    let mut kind_keys = toml::Table::deserialize(deserializer)?;
    if let Some(kind) = default_kind {
        kind_keys.entry("kind").or_insert_with(|| kind.into());
    }
    let shared_keys = shared.iter().filter_map(|&key| kind_keys.remove_entry(key));
    let shared_keys: toml::Table = shared_keys.collect();
    let tag = kind_keys.contains_key("kind").then_some("kind");
    let added_names: Vec<&str> = tag.into_iter().chain(shared.iter().copied()).collect();
    let error = |error: toml::de::Error| D::Error::custom(with_all_keys(error.message(), &added_names));
    Ok((shared_keys.try_into().map_err(error)?, kind_keys.try_into().map_err(error)?))
}

/// Adds the shared keys to serde's message about an unknown key.
fn with_all_keys(message: &str, shared: &[&str]) -> String {
    let Some((unknown, rest)) =
        message.strip_prefix("unknown field `").and_then(|message| message.split_once('`'))
    else {
        return message.to_owned();
    };
    // The names of the expected keys are between backticks.
    let expected = rest.split('`').skip(1).step_by(2);
    let keys: Vec<String> = shared.iter().copied().chain(expected).map(|key| format!("`{key}`")).collect();
    format!("unknown field `{unknown}`, expected one of {}", keys.join(", "))
}

/// Describes the first key whose values in two tables differ; none if they are equal.
pub fn first_difference(table: &str, left: &toml::Table, right: &toml::Table) -> Option<String> {
    first_differing_key(table, left, right)
        .map(|(name, left, right)| format!("one with {name} = {right} where this has {left}"))
}

/// Returns the first key that differs, and its values in both tables.
pub fn first_differing_key(
    table: &str,
    left: &toml::Table,
    right: &toml::Table,
) -> Option<(String, String, String)> {
    let keys: std::collections::BTreeSet<&String> = left.keys().chain(right.keys()).collect();
    keys.into_iter().find_map(|key| {
        let name = if table.is_empty() { key.clone() } else { format!("{table}.{key}") };
        match (left.get(key), right.get(key)) {
            (left, right) if left == right => None,
            (Some(toml::Value::Table(left)), Some(toml::Value::Table(right))) => {
                first_differing_key(&name, left, right)
            }
            (left, right) => {
                let text = |value: Option<&toml::Value>| value.map_or("none".to_owned(), ToString::to_string);
                Some((name, text(left), text(right)))
            }
        }
    })
}

/// Returns the error of a recipe's text: position, message, and the line itself.
pub fn syntax_error(path: &Path, text: &str, error: &toml::de::Error) -> crate::Error {
    let message = Excerpt(error.message());
    let Some(span) = error.span().filter(|span| text.is_char_boundary(span.start)) else {
        // Without a position, toml names the key in a second line.
        let text = error.to_string();
        let key = text.strip_prefix(error.message()).unwrap_or_default().trim();
        let space = if key.is_empty() { "" } else { " " };
        let message = format!("{message}{space}{}", Excerpt(key));
        return crate::Error::RecipeSyntax { path: path.to_owned(), position: String::new(), message };
    };
    let before = &text[..span.start];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let position = format!(
        "line {}, column {}: ",
        1 + before.matches('\n').count(),
        1 + before[line_start..].chars().count()
    );
    let line = text[line_start..].lines().next().unwrap_or_default().trim();
    let message = match line {
        "" => message.to_string(),
        line => format!("{message}, in the line `{}`", Excerpt(line)),
    };
    crate::Error::RecipeSyntax { path: path.to_owned(), position, message }
}
