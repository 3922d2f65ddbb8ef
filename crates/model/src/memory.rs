//! What something takes is known before it is allocated, and is an error where it is not there.
use crate::{Error, Result};

pub use speech::memory::{VARIABLE, allowed, amount, available};

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
pub fn expect(what: impl FnOnce() -> String, bytes: usize) -> Result<()> {
    match available() {
        Some(available) if bytes > available => Err(Error::Memory { what: what(), bytes, available }),
        _ => Ok(()),
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
