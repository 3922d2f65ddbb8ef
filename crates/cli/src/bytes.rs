//! Counts of bytes on the command line.

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
}
