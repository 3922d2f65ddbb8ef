//! Resident memory of this process.
use super::machine::{field, kilobytes};

/// Remembers what is resident now, and finds the peak since.
pub struct Meter {
    before: Option<u64>,
}

impl Meter {
    /// Starts: what is resident now does not count.
    pub fn start() -> Self {
        // "5" lets the kernel forget the peak so far; where it cannot, the peak would be someone else's.
        let reset = std::fs::write("/proc/self/clear_refs", "5").is_ok();
        Self { before: if reset { status("VmRSS") } else { None } }
    }

    /// Bytes of the largest resident set since the start, above the one at the start.
    pub fn peak(&self) -> Option<u64> {
        Some(status("VmHWM")?.saturating_sub(self.before?))
    }
}

/// Bytes of the largest resident set of this process since a [`Meter`] started.
pub fn resident_peak() -> Option<u64> {
    status("VmHWM")
}

fn status(name: &str) -> Option<u64> {
    kilobytes(&field(&std::fs::read_to_string("/proc/self/status").ok()?, name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn sees_memory_that_was_given_back() {
        let meter = Meter::start();
        drop(std::hint::black_box(vec![1u8; 100 << 20]));
        let peak = meter.peak().unwrap();
        assert!((95 << 20..200 << 20).contains(&peak), "{peak}");
    }
}
