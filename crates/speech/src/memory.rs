//! Memory that this process may still allocate: system, cgroup and `PANDA_MEMORY`.
//!
//! Readers of audio compare with it before they allocate; other crates plan with it.

/// Environment variable that limits the memory of a process, such as `8GiB`.
pub(crate) const MEMORY_VARIABLE: &str = "PANDA_MEMORY";

/// Parses `123`, `64KiB`, `48MiB` or `8GiB`.
///
/// # Errors
/// Any other text, and a number of bytes that does not fit into a `usize`.
pub fn parse_bytes(text: &str) -> Result<usize, String> {
    let num_digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(num_digits);
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

/// Returns the limit in `PANDA_MEMORY`, if it is set.
///
/// # Errors
/// A value that is not a number of bytes.
pub fn limit_from_env() -> Result<Option<usize>, String> {
    let Some(text) = std::env::var_os(MEMORY_VARIABLE).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let bytes = text.to_str().and_then(|text| parse_bytes(text).ok());
    let invalid = || {
        format!(
            "{MEMORY_VARIABLE}: expected a number of bytes such as 67108864, 64MiB or 8GiB, found {text:?}"
        )
    };
    bytes.map(Some).ok_or_else(invalid)
}

/// Returns the bytes that this process can still allocate, if known.
///
/// The smallest of the memory available in the system, the remainder of the control group's limit,
/// and `PANDA_MEMORY`.
pub fn available_bytes() -> Option<usize> {
    let limit = limit_from_env().ok().flatten();
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let system_bytes = read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
    });
    let group_files = read("/sys/fs/cgroup/memory.max").zip(read("/sys/fs/cgroup/memory.current"));
    let group_bytes = group_files.and_then(|(group_limit, used)| {
        group_limit.trim().parse::<usize>().ok()?.checked_sub(used.trim().parse().ok()?)
    });
    system_bytes.into_iter().chain(group_bytes).chain(limit).min()
}

/// Formats bytes in MiB or GiB, for messages.
pub fn format_bytes(bytes: usize) -> String {
    let gibibytes = bytes as f64 / (1u64 << 30) as f64;
    match gibibytes {
        small if small < 1.0 => format!("{:.0} MiB", small * 1024.0),
        large => format!("{large:.1} GiB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_two() {
        assert_eq!(parse_bytes("123"), Ok(123));
        assert_eq!(parse_bytes("3 KiB"), Ok(3 << 10));
        assert_eq!(parse_bytes("8GiB"), Ok(8 << 30));
        for invalid in ["", "GiB", "1GB", "-1", "1.5GiB", "99999999999GiB"] {
            assert!(parse_bytes(invalid).is_err(), "{invalid}");
        }
    }
}
