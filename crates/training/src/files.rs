//! Files that are either whole or not there.
use std::io::Write;
use std::path::{Path, PathBuf};

/// Writes a file under a temporary name beside its place (`NAME.tmp`), flushes it to disk, and renames it.
///
/// # Errors
/// The system's; neither a half-written file nor the temporary one stays behind, and an old file is left as it was.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    let temporary: PathBuf = path.with_file_name(name);
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    write().inspect_err(|_| {
        // Nothing half-written stays; the first error is the one worth telling.
        let _ = std::fs::remove_file(&temporary);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        write_atomically(&path, b"old").unwrap();
        write_atomically(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        // A folder cannot be replaced by a file.
        let taken = folder.path().join("taken");
        std::fs::create_dir_all(taken.join("inside")).unwrap();
        let write = |path: &Path| {
            write_atomically(path, b"more").map_err(crate::Error::io(path, "write")).unwrap_err()
        };
        let error = write(&taken);
        assert!(error.to_string().contains("taken: could not write"), "{error}");
        let error = write(&folder.path().join("no/such"));
        assert!(matches!(error, crate::Error::Io { action: "write", .. }));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
