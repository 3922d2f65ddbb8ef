//! Memory sizes such as `"6GiB"` in recipes and command lines.
pub use speech::memory::parse_bytes as parse;

/// Serde functions of optional byte counts in recipes: `#[serde(with = "bytes::optional")]`.
pub mod optional {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    /// Writes a count as text.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(bytes: &Option<usize>, serializer: S) -> Result<S::Ok, S::Error> {
        bytes.map(|bytes| bytes.to_string()).serialize(serializer)
    }

    /// Reads a count such as `"6GiB"`.
    ///
    /// # Errors
    /// Text that is not a byte count.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
        let text = String::deserialize(deserializer)?;
        super::parse(&text).map(Some).map_err(D::Error::custom)
    }
}
