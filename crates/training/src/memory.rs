//! What something takes is known before it is allocated, and is an error where it is not there.
use crate::{Error, Result, bytes};

/// The environment variable with what a process may take, such as `8GiB`, where that is less than what there is.
pub const VARIABLE: &str = "PANDA_MEMORY";

/// Bytes that [`VARIABLE`] allows, if it is set.
///
/// # Errors
/// What was expected and found, if it is no number of bytes.
pub fn allowed() -> std::result::Result<Option<usize>, String> {
    let Some(text) = std::env::var_os(VARIABLE).filter(|text| !text.is_empty()) else { return Ok(None) };
    let read = text.to_str().and_then(|text| bytes::parse(text).ok());
    let wrong =
        || format!("{VARIABLE}: expected a number of bytes such as 67108864, 64MiB or 8GiB, found {text:?}");
    read.map(Some).ok_or_else(wrong)
}

/// Bytes that the system can still give to this process: what is available, or what is left below the limit of its control
/// group, or [`VARIABLE`], if that is less; none where nobody says.
pub fn available() -> Option<usize> {
    let allowed = allowed().ok().flatten();
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let of_system = read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
    });
    let of_group = read("/sys/fs/cgroup/memory.max").zip(read("/sys/fs/cgroup/memory.current"));
    let of_group = of_group
        .and_then(|(most, now)| most.trim().parse::<usize>().ok()?.checked_sub(now.trim().parse().ok()?));
    of_system.into_iter().chain(of_group).chain(allowed).min()
}

/// Most bytes that this process has held in memory so far; none where the system does not say.
pub fn peak_resident() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

/// Fails if so many bytes are not there.
///
/// # Errors
/// [`Error::Memory`].
pub(crate) fn expect(what: impl FnOnce() -> String, bytes: usize) -> Result<()> {
    match available() {
        Some(available) if bytes > available => Err(Error::Memory { what: what(), bytes, available }),
        _ => Ok(()),
    }
}

/// Bytes as a person reads them.
pub(crate) fn amount(bytes: usize) -> String {
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
    fn what_is_not_there_is_refused_with_both_numbers() {
        expect(|| unreachable!(), 0).unwrap();
        let Some(available) = available() else { return };
        assert!(available > 1 << 20, "{available}");
        let error = expect(|| "the model".to_owned(), usize::MAX).unwrap_err().to_string();
        assert!(error.starts_with("the model: expected at most "), "{error}");
        assert!(error.ends_with("found 17179869184.0 GiB"), "{error}");
    }
}
