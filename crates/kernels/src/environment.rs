//! Environment variables of this process.
#![allow(unsafe_code)]

/// Sets an environment variable to a default value, unless it is set.
///
/// Does nothing if the process has several threads, which may read the environment at the same
/// time, or if their number is unknown: on other systems than Linux.
///
/// ```standalone_crate
/// # #[cfg(target_os = "linux")] {
/// kernels::set_default_variable("THREADS_OF_A_LIBRARY", "1");
/// kernels::set_default_variable("THREADS_OF_A_LIBRARY", "2");
/// assert_eq!(std::env::var("THREADS_OF_A_LIBRARY").unwrap(), "1");
/// # }
/// ```
pub fn set_default_variable(name: &str, value: &str) {
    if std::env::var_os(name).is_none() && has_one_thread() {
        // SAFETY: this is the only thread, so that no other one reads, changes or can be started.
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
        let thread = std::thread::spawn(|| {
            set_default_variable("PANDA_TEST_OF_ENVIRONMENT", "1");
            assert!(std::env::var_os("PANDA_TEST_OF_ENVIRONMENT").is_none());
        });
        thread.join().unwrap();
    }
}
