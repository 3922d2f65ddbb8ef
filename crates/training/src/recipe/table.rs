//! Tables whose keys belong to two types: what all kinds share, and what one kind has of its own.
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};

/// Reads a table as its `shared` keys and the rest; `kind` is what the rest is called if it does not say so itself.
///
/// Both parts may refuse keys that they do not know, which serde's own flattening cannot.
pub(super) fn split<'de, D, A, B>(
    deserializer: D,
    shared: &[&str],
    kind: Option<&str>,
) -> Result<(A, B), D::Error>
where
    D: Deserializer<'de>,
    A: DeserializeOwned,
    B: DeserializeOwned,
{
    let mut rest = toml::Table::deserialize(deserializer)?;
    if let Some(kind) = kind {
        rest.entry("kind").or_insert_with(|| kind.into());
    }
    let common = shared.iter().filter_map(|&key| rest.remove_entry(key));
    let common: toml::Table = common.collect();
    let part = |error: toml::de::Error| D::Error::custom(error.message());
    Ok((common.try_into().map_err(part)?, rest.try_into().map_err(part)?))
}
