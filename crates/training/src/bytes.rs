//! Counts of bytes in recipes and on the command line.
use rnnt_loss::MemoryBudget;

pub use speech::memory::parse_bytes as parse;

/// Reads a memory budget: `recompute`, `unlimited`, or what [`parse`] reads.
///
/// # Errors
/// Anything else.
pub fn budget(text: &str) -> Result<MemoryBudget, String> {
    match text {
        "recompute" => Ok(MemoryBudget::recompute()),
        "unlimited" => Ok(MemoryBudget::unlimited()),
        bytes => {
            parse(bytes).map(MemoryBudget::bytes).map_err(|error| error + ", or recompute, or unlimited")
        }
    }
}

/// What [`budget`] reads as this budget.
pub fn name(budget: MemoryBudget) -> String {
    if budget == MemoryBudget::recompute() {
        "recompute".into()
    } else if budget == MemoryBudget::unlimited() {
        "unlimited".into()
    } else {
        budget.limit().to_string()
    }
}

/// Counts of bytes in recipes that need not be there.
pub(crate) mod optional {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub fn serialize<S: Serializer>(bytes: &Option<usize>, serializer: S) -> Result<S::Ok, S::Error> {
        bytes.map(|bytes| bytes.to_string()).serialize(serializer)
    }

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
        assert_eq!(budget("56MiB"), Ok(MemoryBudget::default()));
        for text in ["recompute", "unlimited", "58720256", "0"] {
            assert_eq!(name(budget(text).unwrap()), text);
        }
        assert!(budget("much").unwrap_err().contains("unlimited"));
    }
}
