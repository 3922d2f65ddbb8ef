//! Description of the benchmark machine, and resident memory of this process.
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// Processor, memory and time.
#[derive(Serialize)]
pub(crate) struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Vector instructions.
    pub features: Vec<&'static str>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Load average of the minute before the suite.
    pub load: Option<f64>,
    /// Date and time in UTC (ISO 8601).
    pub date: String,
    /// Version of this program.
    pub version: &'static str,
}

impl Machine {
    /// Describes this machine at this time.
    pub(crate) fn detect() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let load = read("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok());
        Self {
            cpu: find_field(&read("/proc/cpuinfo"), "model name")
                .unwrap_or(std::env::consts::ARCH.to_owned()),
            cores: available_cores(),
            features: detect_features(),
            memory: find_field(&read("/proc/meminfo"), "MemTotal").as_deref().and_then(parse_kilobytes),
            load,
            date: format_date(
                SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            ),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// Returns the number of cores that this process may use.
pub(crate) fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the value of the first `NAME : VALUE` line.
pub(crate) fn find_field(text: &str, name: &str) -> Option<String> {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.into_iter().find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
}

/// Converts `123 kB` to bytes.
pub(crate) fn parse_kilobytes(value: &str) -> Option<u64> {
    value.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(target_arch = "x86_64")]
fn detect_features() -> Vec<&'static str> {
    let known = [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bf16", is_x86_feature_detected!("avx512bf16")),
    ];
    known.into_iter().filter_map(|(name, is_detected)| is_detected.then_some(name)).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn detect_features() -> Vec<&'static str> {
    Vec::new()
}

/// Formats seconds since 1970 as `2026-11-21T10:00:00Z`.
///
/// The algorithm is Howard Hinnant's `civil_from_days`.
fn format_date(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    // Years begin in March, so that the leap day is the last day of a year.
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + 400 * era + carry;
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Measures the peak of the resident memory since a start.
pub(crate) struct MemoryMeter {
    start_bytes: Option<u64>,
}

impl MemoryMeter {
    /// Starts to measure; memory that is resident now does not count.
    pub(crate) fn start() -> Self {
        // "5" resets the peak; without a reset, an earlier peak would be reported.
        let reset = std::fs::write("/proc/self/clear_refs", "5").is_ok();
        Self { start_bytes: if reset { status_bytes("VmRSS") } else { None } }
    }

    /// Returns the peak in bytes, above the resident memory at the start.
    pub(crate) fn peak(&self) -> Option<u64> {
        Some(status_bytes("VmHWM")?.saturating_sub(self.start_bytes?))
    }
}

/// Returns the peak resident bytes of this process since a [`MemoryMeter`] started.
pub(crate) fn resident_peak() -> Option<u64> {
    status_bytes("VmHWM")
}

fn status_bytes(name: &str) -> Option<u64> {
    parse_kilobytes(&find_field(&std::fs::read_to_string("/proc/self/status").ok()?, name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(format_date(0), "1970-01-01T00:00:00Z");
        assert_eq!(format_date(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(format_date(1_798_761_599), "2026-12-31T23:59:59Z");
    }

    #[test]
    fn fields_are_selected_by_name() {
        let text = "VmHWMs:\t1 kB\nVmHWM:\t  2048 kB\n";
        assert_eq!(find_field(text, "VmHWM").as_deref().and_then(parse_kilobytes), Some(2 << 20));
        assert_eq!(find_field(text, "VmRSS"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_peak_includes_freed_memory() {
        let meter = MemoryMeter::start();
        drop(std::hint::black_box(vec![1u8; 100 << 20]));
        let peak = meter.peak().unwrap();
        assert!((95 << 20..200 << 20).contains(&peak), "{peak}");
    }
}
