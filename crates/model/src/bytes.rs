//! Counts of bytes in recipes and on the command line.
use std::{fmt, str::FromStr};

pub use speech::memory::parse_bytes as parse;

/// Memory of a loss: `budget` of `[loss]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LossBudget {
    /// [`Options::budget`](rnnt_loss::Options::budget)
    pub bytes: usize,
    /// [`Options::keep_scores`](rnnt_loss::Options::keep_scores)
    pub keep_scores: bool,
}

impl LossBudget {
    const RECOMPUTE: Self = Self { bytes: usize::MAX, keep_scores: false };
    const UNLIMITED: Self = Self { bytes: usize::MAX, keep_scores: true };
}

impl Default for LossBudget {
    fn default() -> Self {
        Self { bytes: rnnt_loss::DEFAULT_BUDGET, keep_scores: true }
    }
}

impl FromStr for LossBudget {
    type Err = String;

    /// Reads `recompute`, `unlimited`, or what [`parse`] reads.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "recompute" => Ok(Self::RECOMPUTE),
            "unlimited" => Ok(Self::UNLIMITED),
            bytes => parse(bytes)
                .map(|bytes| Self { bytes, keep_scores: true })
                .map_err(|error| error + ", or recompute, or unlimited"),
        }
    }
}

impl fmt::Display for LossBudget {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match *self {
            Self::RECOMPUTE => f.write_str("recompute"),
            Self::UNLIMITED => f.write_str("unlimited"),
            Self { bytes, .. } => bytes.fmt(f),
        }
    }
}

/// Counts of bytes in recipes that need not be there.
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
    /// Text that is no count.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
        let text = String::deserialize(deserializer)?;
        super::parse(&text).map(Some).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_read_as_it_is_written() {
        assert_eq!("56MiB".parse(), Ok(LossBudget::default()));
        for text in ["recompute", "unlimited", "58720256", "0"] {
            assert_eq!(text.parse::<LossBudget>().unwrap().to_string(), text);
        }
        assert!("much".parse::<LossBudget>().unwrap_err().contains("unlimited"));
    }
}
