//! Inputs, which are regular files.
//!
//! Opening a pipe waits for a process that writes it, and reading a device may never end. A file that a list names is never meant to be
//! one of them: it is refused before it is opened. A file that the user gives may also be a pipe that is open already, as in
//! `panda lm <(zcat text.gz)`.
use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use super::destination::{folder, is_a_directory, is_open_file};

/// Links that are followed until they count as a cycle, as on Linux.
const MAX_LINKS: usize = 40;

/// Opens a regular file for reading.
///
/// # Errors
/// The system's; a pipe, socket, device or folder, which is never waited for.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open(path, |found| found.is_file())
}

/// Opens a file that the user has given: as [`open_regular`], but a pipe that is open already, such as `/dev/stdin`, will do.
///
/// # Errors
/// As [`open_regular`].
pub fn open_input(path: &Path) -> io::Result<File> {
    open(path, |found| found.is_file() || is_pipe(found.file_type()) && leads_to_open_file(path))
}

/// Reads a file that [`open_regular`] opens.
///
/// # Errors
/// As [`open_regular`].
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    read(open_regular(path)?)
}

/// Reads a file that [`open_input`] opens.
///
/// # Errors
/// As [`open_input`].
pub fn read_input(path: &Path) -> io::Result<Vec<u8>> {
    read(open_input(path)?)
}

/// Reads a text in UTF-8 that [`open_input`] opens.
///
/// # Errors
/// As [`open_input`]; other bytes than UTF-8.
pub fn read_input_text(path: &Path) -> io::Result<String> {
    let wrong = |_| io::Error::new(ErrorKind::InvalidData, "stream did not contain valid UTF-8");
    String::from_utf8(read_input(path)?).map_err(wrong)
}

/// Fails if there is something other than a regular file, links followed; nothing at all is fine.
///
/// # Errors
/// As [`open_regular`].
pub fn check_regular(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => Ok(()),
        Ok(found) => Err(refused(&found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn read(mut file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn open(path: &Path, accepts: impl Fn(&Metadata) -> bool) -> io::Result<File> {
    // Looked at first, since opening a device may do something, and again when it is open.
    let expect = |found: Metadata| if accepts(&found) { Ok(()) } else { Err(refused(&found)) };
    expect(fs::metadata(path)?)?;
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    if !leads_to_open_file(path) {
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    }
    let file = options.open(path)?;
    expect(file.metadata()?)?;
    Ok(file)
}

/// Whether a path leads to an open file of a process, as `/dev/stdin` does.
fn leads_to_open_file(path: &Path) -> bool {
    let mut end = path.to_owned();
    for _ in 0..MAX_LINKS {
        if is_open_file(&end) {
            return true;
        }
        match fs::read_link(&end) {
            Ok(next) => end = folder(&end).join(next),
            Err(_) => return false,
        }
    }
    false
}

fn refused(found: &Metadata) -> io::Error {
    if found.is_dir() {
        return is_a_directory();
    }
    io::Error::other(format!("expected a regular file, found {}", name(found.file_type())))
}

#[cfg(unix)]
fn is_pipe(of: FileType) -> bool {
    std::os::unix::fs::FileTypeExt::is_fifo(&of)
}

#[cfg(not(unix))]
fn is_pipe(_: FileType) -> bool {
    false
}

/// What a file that is not regular is called.
#[cfg(unix)]
pub(super) fn name(of: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    match of {
        of if of.is_symlink() => "a symbolic link",
        of if of.is_dir() => "a folder",
        of if of.is_fifo() => "a named pipe (FIFO)",
        of if of.is_socket() => "a socket",
        _ => "a device",
    }
}

#[cfg(not(unix))]
pub(super) fn name(_: FileType) -> &'static str {
    "something else"
}

#[cfg(all(test, unix))]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_nothing_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "text").unwrap();
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        let _socket = UnixListener::bind(at("socket")).unwrap();
        for (link, to) in
            [("to file", "file"), ("to pipe", "pipe"), ("to device", "/dev/null"), ("round", "round")]
        {
            symlink(to, at(link)).unwrap();
        }
        for name in ["file", "to file"] {
            assert_eq!(read_regular(&at(name)).unwrap(), b"text");
            assert_eq!(read_input_text(&at(name)).unwrap(), "text");
            check_regular(&at(name)).unwrap();
        }
        let kinds = [
            ("pipe", "a named pipe"),
            ("to pipe", "a named pipe"),
            ("socket", "a socket"),
            ("to device", "a device"),
        ];
        for (name, kind) in kinds {
            for error in [
                read_regular(&at(name)).unwrap_err(),
                read_input(&at(name)).unwrap_err(),
                check_regular(&at(name)).unwrap_err(),
            ] {
                assert!(
                    error.to_string().starts_with(&format!("expected a regular file, found {kind}")),
                    "{error}"
                );
            }
        }
        assert_eq!(read_regular(folder.path()).unwrap_err().kind(), ErrorKind::IsADirectory);
        assert!(read_regular(&at("round")).is_err());
        assert_eq!(read_regular(&at("none")).unwrap_err().kind(), ErrorKind::NotFound);
        check_regular(&at("none")).unwrap();
    }

    #[test]
    fn a_pipe_that_is_open_already_is_read_where_the_user_gives_it() {
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
