//! Model configuration: TOML tables with a `kind`, differences of tables, syntax errors.
//!
//! ```text
//! part_kinds!                            enum of the encoders or predictors that `kind` selects
//! split                                  one table, read as two types that reject unknown keys
//! first_difference, first_differing_key  the first key whose values in two recipes differ
//! syntax_error                           position and line of an error in a recipe's text
//! ```
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

/// Splits a table into `shared_keys` and the keys of one kind.
///
/// `default_kind` is the default value of the key `kind`. Both types may reject unknown keys; with
/// serde's `flatten`, they could not.
pub fn split<'de, D, Shared, Kind>(
    deserializer: D,
    shared_keys: &[&str],
    default_kind: Option<&str>,
) -> Result<(Shared, Kind), D::Error>
where
    D: Deserializer<'de>,
    Shared: DeserializeOwned,
    Kind: DeserializeOwned,
{
    let mut kind_table = toml::Table::deserialize(deserializer)?;
    if let Some(kind) = default_kind {
        kind_table.entry("kind").or_insert_with(|| kind.into());
    }
    let shared_entries = shared_keys.iter().filter_map(|&key| kind_table.remove_entry(key));
    let shared_table: toml::Table = shared_entries.collect();
    let kind_key = kind_table.contains_key("kind").then_some("kind");
    // Neither type has all keys, so that a message about an unknown key would list only some.
    let other_keys: Vec<&str> = kind_key.into_iter().chain(shared_keys.iter().copied()).collect();
    let error = |error: toml::de::Error| D::Error::custom(list_all_keys(error.message(), &other_keys));
    Ok((shared_table.try_into().map_err(error)?, kind_table.try_into().map_err(error)?))
}

/// Adds `other_keys` to serde's message about an unknown key.
fn list_all_keys(message: &str, other_keys: &[&str]) -> String {
    let Some((unknown_key, rest)) =
        message.strip_prefix("unknown field `").and_then(|message| message.split_once('`'))
    else {
        return message.to_owned();
    };
    // The names of the expected keys are between backticks.
    let expected = rest.split('`').skip(1).step_by(2);
    let keys: Vec<String> =
        other_keys.iter().copied().chain(expected).map(|key| format!("`{key}`")).collect();
    format!("unknown field `{unknown_key}`, expected one of {}", keys.join(", "))
}

/// Describes the first key whose values in two tables differ; none if they are equal.
///
/// `table_name` is the dotted name of the tables in the recipe, "" for the whole recipe; `left` is
/// the table that the description calls this.
pub fn first_difference(table_name: &str, left: &toml::Table, right: &toml::Table) -> Option<String> {
    first_differing_key(table_name, left, right)
        .map(|(name, left, right)| format!("one with {name} = {right} where this has {left}"))
}

/// Returns the first key that differs, and its values in both tables.
pub fn first_differing_key(
    table_name: &str,
    left: &toml::Table,
    right: &toml::Table,
) -> Option<(String, String, String)> {
    let keys: std::collections::BTreeSet<&String> = left.keys().chain(right.keys()).collect();
    keys.into_iter().find_map(|key| {
        let name = if table_name.is_empty() { key.clone() } else { format!("{table_name}.{key}") };
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
        let full_message = error.to_string();
        let key = full_message.strip_prefix(error.message()).unwrap_or_default().trim();
        let space = if key.is_empty() { "" } else { " " };
        let message = format!("{message}{space}{}", Excerpt(key));
        return crate::Error::RecipeSyntax { path: path.to_owned(), position: String::new(), message };
    };
    let text_before = &text[..span.start];
    let line_start = text_before.rfind('\n').map_or(0, |newline| newline + 1);
    let position = format!(
        "line {}, column {}: ",
        1 + text_before.matches('\n').count(),
        1 + text_before[line_start..].chars().count()
    );
    let line = text[line_start..].lines().next().unwrap_or_default().trim();
    let message = match line {
        "" => message.to_string(),
        line => format!("{message}, in the line `{}`", Excerpt(line)),
    };
    crate::Error::RecipeSyntax { path: path.to_owned(), position, message }
}
