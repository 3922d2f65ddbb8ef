//! Opens input files; rejects pipes and devices where regular files are required.
//!
//! Part of `speech::files`, through which all crates read their inputs.
//!
//! Opening a pipe blocks until a process writes it, and reading a device may never end. Files named
//! in a list must be regular files and are rejected before they are opened. A file given by the
//! user may also be a pipe that is already open, as in `panda lm <(zcat text.gz)`.

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use super::destination::{directory_error, is_open_file, parent_folder};

/// Largest number of links that are followed, as on Linux.
const MAX_LINKS: usize = 40;

/// Opens a regular file for reading.
///
/// # Errors
/// Those of the system; a pipe, socket, device or folder, without waiting for it.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open_if_accepted(path, |metadata| metadata.is_file())
}

/// Opens a file given by the user: a regular file or an open pipe.
///
/// Otherwise as [`open_regular`]; `/dev/stdin` is an example of an open pipe.
///
/// # Errors
/// Those of [`open_regular`].
pub(crate) fn open_input(path: &Path) -> io::Result<File> {
    open_if_accepted(path, |metadata| {
        metadata.is_file() || is_pipe(metadata.file_type()) && leads_to_open_file(path)
    })
}

/// Reads a file as opened by [`open_regular`].
///
/// # Errors
/// Those of [`open_regular`].
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    read_all(open_regular(path)?)
}

/// Reads a file given by the user: a regular file or an open pipe.
///
/// # Errors
/// Those of [`open_regular`].
pub fn read_input(path: &Path) -> io::Result<Vec<u8>> {
    read_all(open_input(path)?)
}

/// Reads UTF-8 text from a file as [`read_input`].
///
/// # Errors
/// Those of [`read_input`]; bytes that are not UTF-8.
pub fn read_input_text(path: &Path) -> io::Result<String> {
    let invalid = |_| io::Error::new(ErrorKind::InvalidData, "stream did not contain valid UTF-8");
    String::from_utf8(read_input(path)?).map_err(invalid)
}

/// Checks that a path is a regular file, or does not exist; links are followed.
///
/// # Errors
/// Those of [`open_regular`].
pub fn check_regular(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => Ok(()),
        Ok(metadata) => Err(not_regular_error(&metadata)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn read_all(mut file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a file that `accepts` returns true for, without waiting.
fn open_if_accepted(path: &Path, accepts: impl Fn(&Metadata) -> bool) -> io::Result<File> {
    // Checked before opening, since opening a device may have effects, and again when open.
    let check =
        |metadata: Metadata| if accepts(&metadata) { Ok(()) } else { Err(not_regular_error(&metadata)) };
    check(fs::metadata(path)?)?;
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    if !leads_to_open_file(path) {
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    }
    let file = options.open(path)?;
    check(file.metadata()?)?;
    Ok(file)
}

/// Returns whether a path resolves to an open file of a process.
///
/// `/dev/stdin` is an example.
fn leads_to_open_file(path: &Path) -> bool {
    let mut target = path.to_owned();
    for _ in 0..MAX_LINKS {
        if is_open_file(&target) {
            return true;
        }
        match fs::read_link(&target) {
            Ok(next) => target = parent_folder(&target).join(next),
            Err(_) => return false,
        }
    }
    false
}

fn not_regular_error(metadata: &Metadata) -> io::Error {
    if metadata.is_dir() {
        return directory_error();
    }
    io::Error::other(format!("expected a regular file, found {}", type_name(metadata.file_type())))
}

#[cfg(unix)]
fn is_pipe(file_type: FileType) -> bool {
    std::os::unix::fs::FileTypeExt::is_fifo(&file_type)
}

#[cfg(not(unix))]
fn is_pipe(_: FileType) -> bool {
    false
}

/// Returns the name of a file type that is not regular.
#[cfg(unix)]
pub(super) fn type_name(file_type: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    match file_type {
        file_type if file_type.is_symlink() => "a symbolic link",
        file_type if file_type.is_dir() => "a folder",
        file_type if file_type.is_fifo() => "a named pipe (FIFO)",
        file_type if file_type.is_socket() => "a socket",
        _ => "a device",
    }
}

#[cfg(not(unix))]
pub(super) fn type_name(_: FileType) -> &'static str {
    "something else"
}

#[cfg(all(test, unix))]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_regular_files_are_opened_without_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let in_folder = |name: &str| folder.path().join(name);
        fs::write(in_folder("file"), "text").unwrap();
        assert!(std::process::Command::new("mkfifo").arg(in_folder("pipe")).status().unwrap().success());
        let _socket = UnixListener::bind(in_folder("socket")).unwrap();
        for (link, to) in
            [("to file", "file"), ("to pipe", "pipe"), ("to device", "/dev/null"), ("round", "round")]
        {
            symlink(to, in_folder(link)).unwrap();
        }
        for name in ["file", "to file"] {
            assert_eq!(read_regular(&in_folder(name)).unwrap(), b"text");
            assert_eq!(read_input_text(&in_folder(name)).unwrap(), "text");
            check_regular(&in_folder(name)).unwrap();
        }
        let kinds = [
            ("pipe", "a named pipe"),
            ("to pipe", "a named pipe"),
            ("socket", "a socket"),
            ("to device", "a device"),
        ];
        for (name, kind) in kinds {
            for error in [
                read_regular(&in_folder(name)).unwrap_err(),
                read_input(&in_folder(name)).unwrap_err(),
                check_regular(&in_folder(name)).unwrap_err(),
            ] {
                assert!(
                    error.to_string().starts_with(&format!("expected a regular file, found {kind}")),
                    "{error}"
                );
            }
        }
        assert_eq!(read_regular(folder.path()).unwrap_err().kind(), ErrorKind::IsADirectory);
        assert!(read_regular(&in_folder("round")).is_err());
        assert_eq!(read_regular(&in_folder("none")).unwrap_err().kind(), ErrorKind::NotFound);
        check_regular(&in_folder("none")).unwrap();
    }

    #[test]
    fn an_open_pipe_is_read_if_the_user_gives_it() {
        use std::os::fd::AsRawFd;
        let (reader, mut writer) = std::io::pipe().unwrap();
        let path = std::path::PathBuf::from(format!("/dev/fd/{}", reader.as_raw_fd()));
        if !path.exists() {
            return;
        }
        writer.write_all(b"through").unwrap();
        drop(writer);
        assert!(read_regular(&path).is_err());
        assert_eq!(read_input(&path).unwrap(), b"through");
    }
}
