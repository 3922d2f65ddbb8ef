//! Where the golden vectors are: answers of independent programs, kept beside the clone.
use std::path::{Path, PathBuf};

/// The golden folder; none on a clone without the shared data, which is said on standard output.
///
/// # Panics
/// If the folder is missing in CI, which must have it.
pub fn folder() -> Option<PathBuf> {
    folder_of("rnnt")
}

/// The golden vectors of another system, as [`folder`].
///
/// # Panics
/// As [`folder`].
pub fn folder_of(system: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden").join(system);
    if folder.is_dir() {
        return Some(folder);
    }
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{} is missing in CI", folder.display());
    println!("skipped: {} is not here", folder.display());
    None
}
