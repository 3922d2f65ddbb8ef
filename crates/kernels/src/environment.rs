//! Environment variables of this process.
#![allow(unsafe_code)]

/// Sets an environment variable to a default value, unless it is set.
///
/// A process with more than one thread keeps its environment, since threads may read it at the
/// same time. So does a process whose number of threads is unknown: one of other systems than
/// Linux.
pub fn set_default_variable(name: &str, value: &str) {
    if std::env::var_os(name).is_none() && has_one_thread() {
        // SAFETY: no other thread reads or changes the environment.
        unsafe { std::env::set_var(name, value) };
    }
}

/// Returns whether this process is known to have one thread.
fn has_one_thread() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_keeps_its_environment() {
        // The test runner has a thread for each test.
        assert!(!has_one_thread());
        set_default_variable("PANDA_TEST_OF_ENVIRONMENT", "1");
        assert!(std::env::var_os("PANDA_TEST_OF_ENVIRONMENT").is_none());
    }
}
