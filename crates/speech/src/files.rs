//! Files that appear whole or not at all.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::Path;

use tempfile::TempPath;

use crate::{Error, Result};

/// A folder, and those around it.
pub(crate) fn make(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(|source| Error::Write { path: folder.into(), source })
}

/// A file that is whole on the disk, under another name beside its own until somebody persists it.
pub(crate) fn temporary(
    path: &Path,
    write: impl FnOnce(BufWriter<&File>) -> io::Result<()>,
) -> Result<TempPath> {
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    make(folder)?;
    let failed = |source| Error::Write { path: path.into(), source };
    let prefix = format!(".{}.", path.file_name().unwrap_or_default().to_string_lossy());
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(".tmp");
    #[cfg(unix)]
    // As any new file: the process's mask decides.
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let file = builder.tempfile_in(folder).map_err(failed)?;
    write(BufWriter::with_capacity(1 << 16, file.as_file())).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    Ok(file.into_temp_path())
}

/// Puts it in its place.
pub(crate) fn persist(temporary: TempPath, path: &Path) -> Result<()> {
    temporary.persist(path).map_err(|error| Error::Write { path: path.into(), source: error.error })
}
