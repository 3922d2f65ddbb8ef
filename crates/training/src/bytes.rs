//! Counts of bytes in recipes and on the command line.
use rnnt_loss::MemoryBudget;

/// Reads `123`, `64KiB`, `48MiB` or `8GiB`.
///
/// # Errors
/// Anything else, and what does not fit into a word.
pub fn parse(text: &str) -> Result<usize, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim() {
        "" | "B" => Some(0),
        "KiB" => Some(10),
        "MiB" => Some(20),
        "GiB" => Some(30),
        _ => None,
    };
    let bytes = shift.and_then(|shift| number.parse::<usize>().ok()?.checked_mul(1 << shift));
    bytes.ok_or_else(|| "expected a number of bytes such as 67108864, 64MiB or 8GiB".to_owned())
}

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
    fn units_are_powers_of_two() {
        assert_eq!(parse("123"), Ok(123));
        assert_eq!(parse("3 KiB"), Ok(3 << 10));
        assert_eq!(parse("8GiB"), Ok(8 << 30));
        for wrong in ["", "GiB", "1GB", "-1", "1.5GiB", "99999999999GiB"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_budget_is_read_as_it_is_written() {
        assert_eq!(budget("56MiB"), Ok(MemoryBudget::default()));
        for text in ["recompute", "unlimited", "58720256", "0"] {
            assert_eq!(name(budget(text).unwrap()), text);
        }
        assert!(budget("much").unwrap_err().contains("unlimited"));
    }
}
