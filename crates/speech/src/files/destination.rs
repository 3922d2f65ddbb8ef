//! `Destination`: writes files atomically; a failed write keeps the old file.
//!
//! Part of `speech::files`, through which all crates write their results.
//!
//! | existing file | result |
//! |---|---|
//! | none, or a regular file | a temporary file next to it is written, flushed to disk and renamed |
//! | a link | the same for its target; the link is kept |
//! | a pipe that a process reads, a device, another open file of the process | the bytes are written through it |
//! | a pipe that no process reads within 10 s | an error |
//! | a folder | an error |

use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::{NamedTempFile, TempPath};

/// Largest number of links that are followed, as on Linux.
const MAX_LINKS: usize = 40;
/// Suffix of temporary files; they begin with a dot and the truncated file name.
const TEMPORARY_SUFFIX: &str = ".tmp";
/// Random characters in the name of a temporary file.
const RANDOM_CHARACTERS: usize = 6;
/// Longest file name in bytes on all common file systems.
const MAX_NAME_BYTES: usize = 255;
/// Time to wait for a reader of a pipe.
const READER_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of the attempts to open a pipe.
const PIPE_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The target of a write: a path to replace, or an open file.
#[derive(Debug)]
pub struct Destination(DestinationKind);

#[derive(Debug)]
enum DestinationKind {
    /// A regular file, existing or not, after following all links.
    RegularFile(PathBuf),
    /// An open file that cannot be replaced.
    OpenFile(File),
    /// Standard output of this process.
    StandardOutput,
}

/// A function that writes the content of a file.
type WriteFn<'a> = &'a mut dyn FnMut(&mut dyn Write) -> io::Result<()>;

impl Destination {
    /// Follows links and opens files that cannot be replaced.
    ///
    /// # Errors
    /// Those of the system; a folder, a cycle of links, a pipe without a reader.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut target = path.to_owned();
        for _ in 0..MAX_LINKS {
            if let Some(kind) = open_file_of_this_process(&target)? {
                return Ok(Destination(kind));
            }
            let kind = match fs::symlink_metadata(&target) {
                Ok(metadata) if metadata.is_symlink() => {
                    target = parent_folder(&target).join(fs::read_link(&target)?);
                    continue;
                }
                Ok(metadata) if metadata.is_dir() => return Err(directory_error()),
                Ok(metadata) if metadata.is_file() => DestinationKind::RegularFile(target),
                Ok(metadata) => DestinationKind::OpenFile(open_through(&target, &metadata, READER_TIMEOUT)?),
                Err(error) if error.kind() == ErrorKind::NotFound && target.file_name().is_some() => {
                    DestinationKind::RegularFile(target)
                }
                Err(error) => return Err(error),
            };
            return Ok(Destination(kind));
        }
        Err(io::Error::other("too many links"))
    }

    /// Checks that a file can be created in the folder.
    ///
    /// # Errors
    /// Those of the system.
    pub fn check_writable(&self) -> io::Result<()> {
        match &self.0 {
            DestinationKind::RegularFile(path) => create_temporary_file(path).map(drop),
            DestinationKind::OpenFile(_) | DestinationKind::StandardOutput => Ok(()),
        }
    }

    /// Returns the regular file after all links; `None` for pipes and standard output.
    pub fn resolved_path(&self) -> Option<PathBuf> {
        match &self.0 {
            DestinationKind::RegularFile(target) => {
                Some(parent_folder(target).canonicalize().ok()?.join(target.file_name()?))
            }
            DestinationKind::OpenFile(_) | DestinationKind::StandardOutput => None,
        }
    }

    /// Returns whether this is the standard output of the process.
    pub fn is_standard(&self) -> bool {
        matches!(self.0, DestinationKind::StandardOutput)
    }

    /// Writes `bytes`.
    ///
    /// # Errors
    /// Those of the system; an existing file is then unchanged, and no partial file remains.
    pub fn write(self, bytes: &[u8]) -> io::Result<()> {
        self.write_with(&mut |file| file.write_all(bytes))
    }

    /// Writes with a function, for content that is not in memory.
    ///
    /// # Errors
    /// Those of the function and the system; an existing file is then unchanged.
    pub fn write_with(self, write: WriteFn) -> io::Result<()> {
        match self.0 {
            DestinationKind::OpenFile(mut file) => write(&mut file),
            DestinationKind::StandardOutput => {
                let mut out = io::stdout().lock();
                write(&mut out)?;
                out.flush()
            }
            DestinationKind::RegularFile(_) => self.stage(write)?.commit(),
        }
    }

    /// Writes a temporary file that [`StagedFile::commit`] moves into place.
    ///
    /// For several files that belong together.
    ///
    /// # Errors
    /// Those of [`Self::write_with`].
    pub(crate) fn stage(self, write: WriteFn) -> io::Result<StagedFile> {
        let DestinationKind::RegularFile(path) = self.0 else {
            let mut bytes = Vec::new();
            write(&mut bytes)?;
            return Ok(StagedFile(StagedContent::Bytes(bytes, self)));
        };
        let mut file = create_temporary_file(&path)?;
        {
            let mut buffered = io::BufWriter::with_capacity(1 << 16, file.as_file_mut());
            write(&mut buffered)?;
            buffered.flush()?;
        }
        if let Ok(old_metadata) = fs::metadata(&path) {
            file.as_file().set_permissions(old_metadata.permissions())?;
        }
        file.as_file().sync_all()?;
        Ok(StagedFile(StagedContent::File(file.into_temp_path(), path)))
    }
}

/// A written file that is not in place yet; dropping it removes the file.
#[derive(Debug)]
pub(crate) struct StagedFile(StagedContent);

#[derive(Debug)]
enum StagedContent {
    /// A temporary file and its target.
    File(TempPath, PathBuf),
    /// Bytes to write through.
    Bytes(Vec<u8>, Destination),
}

impl StagedFile {
    /// Moves the file into place.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn commit(self) -> io::Result<()> {
        match self.0 {
            StagedContent::File(file, path) => {
                file.persist(&path).map_err(|error| error.error)?;
                // Flushing the folder makes the name durable; where it is not supported, only the
                // name is at risk.
                let _ = File::open(parent_folder(&path)).and_then(|folder| folder.sync_all());
                Ok(())
            }
            StagedContent::Bytes(bytes, destination) => destination.write(&bytes),
        }
    }
}

/// Writes a file through a [`Destination`].
///
/// # Errors
/// Those of the system; an existing file is then unchanged, and no partial file remains.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    Destination::open(path)?.write(bytes)
}

/// Returns whether two paths refer to the same regular file.
pub fn is_same_file(a: &Path, b: &Path) -> bool {
    let identity_a = file_identity(a);
    identity_a.is_some() && file_identity(b) == identity_a
}

/// Returns an identifier shared by all paths of a regular file.
#[cfg(unix)]
fn file_identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path)
        .ok()
        .filter(|metadata| metadata.is_file())
        .map(|metadata| (metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
fn file_identity(path: &Path) -> Option<PathBuf> {
    fs::canonicalize(path).ok()
}

/// Removes temporary files that killed processes left next to a file.
///
/// # Errors
/// Those of the system.
pub fn remove_temporary_files(path: &Path) -> io::Result<()> {
    let prefix = temporary_prefix(path);
    for entry in fs::read_dir(parent_folder(path))? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(&prefix) && name.ends_with(TEMPORARY_SUFFIX) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Opens paths such as `/dev/stdout`, which refer to numbers of open files.
///
/// The open file may be a regular file that has been written in part, and has no name to rename to.
fn open_file_of_this_process(path: &Path) -> io::Result<Option<DestinationKind>> {
    if !is_open_file(path) {
        return Ok(None);
    }
    let parent = parent_folder(path).canonicalize()?;
    let is_own = parent.starts_with(format!("/proc/{}", std::process::id())) || parent.starts_with("/dev");
    match path.file_name().and_then(|name| name.to_str()) {
        Some("1") if is_own => Ok(Some(DestinationKind::StandardOutput)),
        _ => Ok(Some(DestinationKind::OpenFile(OpenOptions::new().append(true).open(path)?))),
    }
}

/// Returns whether a path such as `/dev/fd/3` names an open file.
///
/// Links are not followed.
pub(super) fn is_open_file(path: &Path) -> bool {
    parent_folder(path).canonicalize().is_ok_and(|parent| {
        parent.starts_with("/proc") && parent.ends_with("fd") || parent == Path::new("/dev/fd")
    })
}

/// Opens a pipe or device for writing.
///
/// A pipe needs a reader, which may open it within the timeout.
#[cfg(unix)]
fn open_through(path: &Path, metadata: &fs::Metadata, timeout: Duration) -> io::Result<File> {
    use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
    if !metadata.file_type().is_fifo() {
        return OpenOptions::new().write(true).open(path);
    }
    let started = Instant::now();
    loop {
        match OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path) {
            // Once there is a reader, opening does not block any more, and writing may.
            Ok(_reader) => return OpenOptions::new().write(true).open(path),
            Err(error) if error.raw_os_error() != Some(libc::ENXIO) => return Err(error),
            Err(_) if started.elapsed() >= timeout => {
                return Err(io::Error::other(format!(
                    "expected a process that reads this pipe, found none within {} s",
                    timeout.as_secs()
                )));
            }
            Err(_) => std::thread::sleep(PIPE_POLL_INTERVAL),
        }
    }
}

#[cfg(not(unix))]
fn open_through(path: &Path, _: &fs::Metadata, _: Duration) -> io::Result<File> {
    OpenOptions::new().write(true).open(path)
}

/// Creates a temporary file next to another file; it is removed unless renamed.
fn create_temporary_file(path: &Path) -> io::Result<NamedTempFile> {
    let prefix = temporary_prefix(path);
    // `tempfile` adds its path to errors; the user needs only the system's error.
    let last_error = Cell::new(None);
    let create = |path: &Path| {
        // Permissions follow the umask of the process, as for any new file.
        let created = OpenOptions::new().read(true).write(true).create_new(true).open(path);
        created.inspect_err(|error| last_error.set(error.raw_os_error()))
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).rand_bytes(RANDOM_CHARACTERS).suffix(TEMPORARY_SUFFIX);
    builder
        .make_in(parent_folder(path), create)
        .map_err(|error| last_error.get().map_or(error, io::Error::from_raw_os_error))
}

/// Returns the prefix of a file's temporary files.
fn temporary_prefix(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // The name is between two dots.
    let max_bytes = MAX_NAME_BYTES - 2 - RANDOM_CHARACTERS - TEMPORARY_SUFFIX.len();
    format!(".{}.", &name[..name.floor_char_boundary(max_bytes)])
}

/// Returns the system's error for a folder in place of a file.
pub(super) fn directory_error() -> io::Error {
    #[cfg(unix)]
    return io::Error::from_raw_os_error(libc::EISDIR);
    #[cfg(not(unix))]
    return ErrorKind::IsADirectory.into();
}

/// Returns the folder of a path.
pub(super) fn parent_folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        Some(_) => Path::new("."),
        None => path,
    }
}

#[cfg(test)]
mod tests;
