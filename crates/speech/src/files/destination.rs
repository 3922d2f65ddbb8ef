//! Files that are written whole or not at all.
//!
//! | what is there | what happens |
//! |---|---|
//! | nothing, or a regular file | a temporary file next to it is written, flushed to disk and renamed |
//! | a link | the same where it leads; the link stays |
//! | a pipe that a process reads, a device, another open file of the process | the bytes are written through it |
//! | a pipe that no process reads within 10 s | an error |
//! | a folder | an error |
use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::{NamedTempFile, TempPath};

/// Links that are followed until they count as a cycle, as on Linux.
const MAX_LINKS: usize = 40;
/// Suffix of temporary files; they begin with a dot and the name of the file, cut if it is long.
const TEMPORARY: &str = ".tmp";
/// Random characters of the name of a temporary file.
const RANDOM: usize = 6;
/// Longest name of a file in bytes, on all common file systems.
const MAX_NAME: usize = 255;
/// How long a pipe may have no reader.
const READER_WAIT: Duration = Duration::from_secs(10);
/// Interval at which a pipe is tried.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Where a result goes, open or known to be writable.
#[derive(Debug)]
pub struct Destination(DestinationKind);

#[derive(Debug)]
enum DestinationKind {
    /// A regular file, there or not yet, at the end of all links.
    Regular(PathBuf),
    /// A file that cannot be replaced, open.
    Through(File),
    /// This process's own standard output.
    Standard,
}

/// Writes all of a file.
type Put<'a> = &'a mut dyn FnMut(&mut dyn Write) -> io::Result<()>;

impl Destination {
    /// Follows links and opens what cannot be replaced.
    ///
    /// # Errors
    /// The system's; a folder, a cycle of links, a pipe without a reader.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut end = path.to_owned();
        for _ in 0..MAX_LINKS {
            if let Some(kind) = open_file_of_this_process(&end)? {
                return Ok(Destination(kind));
            }
            let kind = match fs::symlink_metadata(&end) {
                Ok(there) if there.is_symlink() => {
                    end = folder(&end).join(fs::read_link(&end)?);
                    continue;
                }
                Ok(there) if there.is_dir() => return Err(is_a_directory()),
                Ok(there) if there.is_file() => DestinationKind::Regular(end),
                Ok(there) => DestinationKind::Through(open_through(&end, &there, READER_WAIT)?),
                Err(error) if error.kind() == ErrorKind::NotFound && end.file_name().is_some() => {
                    DestinationKind::Regular(end)
                }
                Err(error) => return Err(error),
            };
            return Ok(Destination(kind));
        }
        Err(io::Error::other("too many links"))
    }

    /// Fails unless a file can be made in the folder.
    ///
    /// # Errors
    /// The system's.
    pub fn probe(&self) -> io::Result<()> {
        match &self.0 {
            DestinationKind::Regular(path) => temporary(path).map(drop),
            DestinationKind::Through(_) | DestinationKind::Standard => Ok(()),
        }
    }

    /// The regular file behind all links; none for pipes and standard output.
    pub fn resolved_path(&self) -> Option<PathBuf> {
        match &self.0 {
            DestinationKind::Regular(end) => Some(folder(end).canonicalize().ok()?.join(end.file_name()?)),
            DestinationKind::Through(_) | DestinationKind::Standard => None,
        }
    }

    /// Whether it is the process's standard output.
    pub fn is_standard(&self) -> bool {
        matches!(self.0, DestinationKind::Standard)
    }

    /// Writes everything.
    ///
    /// # Errors
    /// The system's; an old file is then as it was, and nothing half-written stays behind.
    pub fn write(self, bytes: &[u8]) -> io::Result<()> {
        self.write_with(&mut |file| file.write_all(bytes))
    }

    /// Writes by a function that has not all of the bytes at once.
    ///
    /// # Errors
    /// Those of the function and the system's; an old file is then as it was.
    pub fn write_with(self, put: Put) -> io::Result<()> {
        match self.0 {
            DestinationKind::Through(mut file) => put(&mut file),
            DestinationKind::Standard => {
                let mut out = io::stdout().lock();
                put(&mut out)?;
                out.flush()
            }
            DestinationKind::Regular(_) => self.stage(put)?.commit(),
        }
    }

    /// Writes everything but puts it in place with [`StagedFile::commit`] only: for several files that belong together.
    ///
    /// # Errors
    /// As [`Self::write_with`].
    pub fn stage(self, put: Put) -> io::Result<StagedFile> {
        let DestinationKind::Regular(path) = self.0 else {
            let mut bytes = Vec::new();
            put(&mut bytes)?;
            return Ok(StagedFile(Stage::Bytes(bytes, self)));
        };
        let mut file = temporary(&path)?;
        {
            let mut buffered = io::BufWriter::with_capacity(1 << 16, file.as_file_mut());
            put(&mut buffered)?;
            buffered.flush()?;
        }
        if let Ok(old) = fs::metadata(&path) {
            file.as_file().set_permissions(old.permissions())?;
        }
        file.as_file().sync_all()?;
        Ok(StagedFile(Stage::File(file.into_temp_path(), path)))
    }
}

/// A result that is not in its place yet; dropped, it leaves nothing behind.
#[derive(Debug)]
pub struct StagedFile(Stage);

#[derive(Debug)]
enum Stage {
    /// A whole file under a temporary name, and its place.
    File(TempPath, PathBuf),
    /// What is to be written through.
    Bytes(Vec<u8>, Destination),
}

impl StagedFile {
    /// Puts it in its place.
    ///
    /// # Errors
    /// The system's.
    pub fn commit(self) -> io::Result<()> {
        match self.0 {
            Stage::File(file, path) => {
                file.persist(&path).map_err(|error| error.error)?;
                // The name is on the disk when the folder is; where folders cannot be flushed, nothing is lost but that.
                let _ = File::open(folder(&path)).and_then(|folder| folder.sync_all());
                Ok(())
            }
            Stage::Bytes(bytes, destination) => destination.write(&bytes),
        }
    }
}

/// Writes a file as [`Destination`] does.
///
/// # Errors
/// The system's; an old file is then as it was, and nothing half-written stays behind.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    Destination::open(path)?.write(bytes)
}

/// Whether two paths lead to one regular file.
pub fn is_same_file(a: &Path, b: &Path) -> bool {
    let own = identity(a);
    own.is_some() && identity(b) == own
}

/// What tells a regular file from all others, by whatever path.
#[cfg(unix)]
fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).ok().filter(|of| of.is_file()).map(|of| (of.dev(), of.ino()))
}

#[cfg(not(unix))]
fn identity(path: &Path) -> Option<PathBuf> {
    fs::canonicalize(path).ok()
}

/// Removes the temporary files that killed processes left next to a file.
///
/// # Errors
/// The system's.
pub fn remove_temporary_files(path: &Path) -> io::Result<()> {
    let prefix = prefix(path);
    for entry in fs::read_dir(folder(path))? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(&prefix) && name.ends_with(TEMPORARY) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// `/dev/stdout` and its like lead to numbers of open files, behind which there may be a regular file that has been
/// written in part, and no name to put in its place.
fn open_file_of_this_process(path: &Path) -> io::Result<Option<DestinationKind>> {
    if !is_open_file(path) {
        return Ok(None);
    }
    let parent = folder(path).canonicalize()?;
    let own = parent.starts_with(format!("/proc/{}", std::process::id())) || parent.starts_with("/dev");
    match path.file_name().and_then(|name| name.to_str()) {
        Some("1") if own => Ok(Some(DestinationKind::Standard)),
        _ => Ok(Some(DestinationKind::Through(OpenOptions::new().append(true).open(path)?))),
    }
}

/// Whether a path names an open file of a process, such as `/dev/fd/3`, links not followed.
pub(super) fn is_open_file(path: &Path) -> bool {
    folder(path).canonicalize().is_ok_and(|parent| {
        parent.starts_with("/proc") && parent.ends_with("fd") || parent == Path::new("/dev/fd")
    })
}

/// Opens a pipe or a device for writing; a pipe needs a reader, which may come a little later.
#[cfg(unix)]
fn open_through(path: &Path, there: &fs::Metadata, wait: Duration) -> io::Result<File> {
    use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
    if !there.file_type().is_fifo() {
        return OpenOptions::new().write(true).open(path);
    }
    let started = Instant::now();
    loop {
        match OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path) {
            // Once there is a reader, opening does not wait any more, and writing may.
            Ok(_reader) => return OpenOptions::new().write(true).open(path),
            Err(error) if error.raw_os_error() != Some(libc::ENXIO) => return Err(error),
            Err(_) if started.elapsed() >= wait => {
                return Err(io::Error::other(format!(
                    "expected a process that reads this pipe, found none within {} s",
                    wait.as_secs()
                )));
            }
            Err(_) => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

#[cfg(not(unix))]
fn open_through(path: &Path, _: &fs::Metadata, _: Duration) -> io::Result<File> {
    OpenOptions::new().write(true).open(path)
}

/// A new file next to another one, gone again unless it takes that one's place.
fn temporary(path: &Path) -> io::Result<NamedTempFile> {
    let prefix = prefix(path);
    // `tempfile` adds its own path to errors; the system's error is what the user needs.
    let system_error = Cell::new(None);
    let create = |path: &Path| {
        // As any new file: the process's mask decides about permissions.
        let created = OpenOptions::new().read(true).write(true).create_new(true).open(path);
        created.inspect_err(|error| system_error.set(error.raw_os_error()))
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).rand_bytes(RANDOM).suffix(TEMPORARY);
    builder
        .make_in(folder(path), create)
        .map_err(|error| system_error.get().map_or(error, io::Error::from_raw_os_error))
}

/// Beginning of the names of a file's temporary files.
fn prefix(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // A dot in front of the name and one behind it.
    let longest = MAX_NAME - 2 - RANDOM - TEMPORARY.len();
    format!(".{}.", &name[..name.floor_char_boundary(longest)])
}

/// The error of a folder in place of a file, in the system's words.
pub(super) fn is_a_directory() -> io::Error {
    #[cfg(unix)]
    return io::Error::from_raw_os_error(libc::EISDIR);
    #[cfg(not(unix))]
    return ErrorKind::IsADirectory.into();
}

/// The folder that a path is in.
pub(super) fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        Some(_) => Path::new("."),
        None => path,
    }
}

#[cfg(test)]
mod tests;
