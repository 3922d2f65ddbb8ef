//! `AttentionLimits`: the keys that a query may attend to.
use std::fmt;
use std::ops::Range;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The range of attention: `"full"`, `{ left, right }` or `{ chunk, left }`, in encoder rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AttentionLimits {
    /// The whole utterance.
    #[default]
    Full,
    /// Rows before and after the query; `None` for all.
    Window {
        /// Rows before the query.
        left: Option<usize>,
        /// Rows after the query.
        right: Option<usize>,
    },
    /// The chunk of the query and some rows before that chunk.
    Chunks {
        /// Rows of a chunk, at least 1.
        chunk: usize,
        /// Rows before the chunk, a multiple of `chunk`; `None` for all.
        left: Option<usize>,
    },
}

impl AttentionLimits {
    /// Returns the keys of a query in an utterance of `rows` rows.
    ///
    /// Neither end of the range decreases with `query`.
    pub fn keys(&self, query: usize, rows: usize) -> Range<usize> {
        match *self {
            AttentionLimits::Full => 0..rows,
            AttentionLimits::Window { left, right } => {
                let start = left.map_or(0, |left| query.saturating_sub(left));
                start..right.map_or(rows, |right| rows.min(query.saturating_add(right).saturating_add(1)))
            }
            AttentionLimits::Chunks { chunk, left } => {
                let chunk_start = query / chunk * chunk;
                let start = left.map_or(0, |left| chunk_start.saturating_sub(left));
                start..rows.min(chunk_start + chunk)
            }
        }
    }
}

/// The table of limits in a recipe.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsTable {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    chunk: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    left: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    right: Option<usize>,
}

impl Serialize for AttentionLimits {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match *self {
            AttentionLimits::Full => serializer.serialize_str("full"),
            AttentionLimits::Window { left, right } => {
                LimitsTable { chunk: None, left, right }.serialize(serializer)
            }
            AttentionLimits::Chunks { chunk, left } => {
                LimitsTable { chunk: Some(chunk), left, right: None }.serialize(serializer)
            }
        }
    }
}

impl<'de> Deserialize<'de> for AttentionLimits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct LimitsVisitor;

        impl<'de> Visitor<'de> for LimitsVisitor {
            type Value = AttentionLimits;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("\"full\", { left = n, right = m } or { chunk = n, left = m } for attention")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<AttentionLimits, E> {
                match text {
                    "full" => Ok(AttentionLimits::Full),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> std::result::Result<AttentionLimits, M::Error> {
                let table =
                    LimitsTable::deserialize(MapAccessDeserializer::new(map)).map_err(M::Error::custom)?;
                match table {
                    LimitsTable { chunk: Some(_), right: Some(_), .. } => {
                        Err(M::Error::custom("attention has either chunk or right, not both"))
                    }
                    LimitsTable { chunk: Some(chunk), left, .. } => {
                        Ok(AttentionLimits::Chunks { chunk, left })
                    }
                    LimitsTable { left: None, right: None, .. } => Ok(AttentionLimits::Full),
                    LimitsTable { left, right, .. } => Ok(AttentionLimits::Window { left, right }),
                }
            }
        }

        deserializer.deserialize_any(LimitsVisitor)
    }
}
