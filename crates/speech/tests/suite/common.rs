//! Where the real speech lies that some tests read.

use std::path::PathBuf;

/// A file of the shared speech data, which a user's clone does not have; CI must have it.
pub fn shared(file: &str) -> Option<PathBuf> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(file);
    if path.exists() {
        return Some(path);
    }
    assert!(
        std::env::var_os("CI").is_none_or(|ci| ci != "true"),
        "{} is missing, and CI must have it",
        path.display()
    );
    println!("skipped: {} is missing", path.display());
    None
}

/// A file of the digits that ship with the repository.
pub fn digits(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../data/digits").join(file)
}
