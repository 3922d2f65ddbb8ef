//! Files that are either whole or not there.
use std::path::Path;

use super::error::{BenchError, Result};

/// Writes a file under a temporary name beside its place (`NAME.tmp`) and renames it.
///
/// # Errors
/// [`BenchError::File`]; nothing half-written stays behind, and an old file is left as it was.
pub fn write_atomically(path: &Path, text: &str) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    let temporary = path.with_file_name(name);
    let written = std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, path));
    written.map_err(|source| {
        let _ = std::fs::remove_file(&temporary);
        BenchError::file(path, "write")(source)
    })
}
