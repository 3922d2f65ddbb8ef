//! Files that are written whole or not at all, wherever a path leads.
//!
//! | what is there | what happens |
//! |---|---|
//! | nothing, or a regular file | a temporary file beside it is written, flushed to disk and renamed |
//! | a link | the same where it leads; the link stays |
//! | a pipe, a device, another open file of the process | the bytes go through it |
//! | a folder | an error |
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Links that are followed until they count as a circle, as Linux has it.
const LINKS: usize = 40;
/// How temporary files end; they begin with a dot and the name of the file.
const TEMPORARY: &str = ".tmp";

/// A place for a result, known to be writable before the work is done that it is the result of.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("words.ctm");
/// let output = training::files::Output::new(&path, &[])?;
/// // Long work.
/// output.write(b"utterance 1 0.00 0.30 yes 0.99\n")?;
/// assert!(path.exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    target: Target,
}

#[derive(Debug)]
enum Target {
    /// A regular file, there or not yet, at the end of all links.
    Regular(PathBuf),
    /// What cannot be replaced, open.
    Through(File),
    /// This process's own standard output.
    Standard,
}

impl Output {
    /// Follows links and makes sure that what is there can be written: a file can be made in the folder, a pipe is open. `-` is
    /// standard output.
    ///
    /// # Errors
    /// [`Error::OutputIsInput`] if it is the same file as one of the inputs; [`Error::Io`] if it cannot be written.
    pub fn new(path: &Path, inputs: &[&Path]) -> Result<Self> {
        let path = if path == Path::new("-") { Path::new("/dev/stdout") } else { path };
        let own = identity(path);
        if let Some(input) = inputs.iter().find(|input| own.is_some() && identity(input) == own) {
            return Err(Error::OutputIsInput { output: path.to_owned(), input: input.to_path_buf() });
        }
        let target = Target::of(path).and_then(|target| {
            if let Target::Regular(file) = &target {
                temporary(file)?;
            }
            Ok(target)
        });
        Ok(Self { path: path.to_owned(), target: target.map_err(Error::io(path, "write"))? })
    }

    /// Where it was asked for.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The regular file that it is going to be, behind all links; none for pipes and the standard output.
    pub fn place(&self) -> Option<PathBuf> {
        match &self.target {
            Target::Regular(end) => Some(folder(end).canonicalize().ok()?.join(end.file_name()?)),
            Target::Through(_) | Target::Standard => None,
        }
    }

    /// Whether it is the process's standard output.
    pub fn is_standard(&self) -> bool {
        matches!(self.target, Target::Standard)
    }

    /// Writes everything.
    ///
    /// # Errors
    /// [`Error::Io`]; an old file is then as it was, and nothing half-written stays behind.
    pub fn write(self, bytes: &[u8]) -> Result<()> {
        self.target.write(bytes).map_err(Error::io(&self.path, "write"))
    }
}

/// Writes a file as [`Output`] does.
///
/// # Errors
/// The system's; an old file is then as it was, and nothing half-written stays behind.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    Target::of(path)?.write(bytes)
}

/// Writes a file as [`Output`] does, by a function that has not all of it at once.
pub(crate) fn write_through(path: &Path, put: Put) -> io::Result<()> {
    Target::of(path)?.write_by(put)
}

/// Writes all of a file.
type Put<'a> = &'a mut dyn FnMut(&mut dyn Write) -> io::Result<()>;

/// Whether two paths lead to one regular file.
pub(crate) fn same_file(a: &Path, b: &Path) -> bool {
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

/// Removes the temporary files that killed processes left beside a file.
///
/// # Errors
/// The system's.
pub fn remove_leftovers(path: &Path) -> io::Result<()> {
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

impl Target {
    fn of(path: &Path) -> io::Result<Self> {
        let mut end = path.to_owned();
        for _ in 0..LINKS {
            if let Some(target) = Self::open_file_of_this_process(&end)? {
                return Ok(target);
            }
            match fs::symlink_metadata(&end) {
                Ok(there) if there.is_symlink() => end = folder(&end).join(fs::read_link(&end)?),
                Ok(there) if there.is_dir() => return Err(ErrorKind::IsADirectory.into()),
                Ok(there) if there.is_file() => return Ok(Self::Regular(end)),
                Ok(_) => return Ok(Self::Through(OpenOptions::new().write(true).open(&end)?)),
                Err(error) if error.kind() == ErrorKind::NotFound && end.file_name().is_some() => {
                    return Ok(Self::Regular(end));
                }
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("too many links"))
    }

    /// `/dev/stdout` and its like lead to numbers of open files, behind which there may be a regular file that has been
    /// written in part, and no name to put in its place.
    fn open_file_of_this_process(path: &Path) -> io::Result<Option<Self>> {
        let Ok(parent) = folder(path).canonicalize() else { return Ok(None) };
        if !(parent.starts_with("/proc") && parent.ends_with("fd") || parent == Path::new("/dev/fd")) {
            return Ok(None);
        }
        let own = parent.starts_with(format!("/proc/{}", std::process::id())) || parent.starts_with("/dev");
        match path.file_name().and_then(|name| name.to_str()) {
            Some("1") if own => Ok(Some(Self::Standard)),
            _ => Ok(Some(Self::Through(OpenOptions::new().append(true).open(path)?))),
        }
    }

    fn write(self, bytes: &[u8]) -> io::Result<()> {
        self.write_by(&mut |file| file.write_all(bytes))
    }

    fn write_by(self, put: Put) -> io::Result<()> {
        match self {
            Self::Regular(path) => {
                let mut file = temporary(&path)?;
                put(file.as_file_mut())?;
                if let Ok(old) = fs::metadata(&path) {
                    file.as_file().set_permissions(old.permissions())?;
                }
                file.as_file().sync_all()?;
                file.persist(&path).map_err(|error| error.error)?;
                // The name is on the disk when the folder is; where folders cannot be flushed, nothing is lost but that.
                let _ = File::open(folder(&path)).and_then(|folder| folder.sync_all());
                Ok(())
            }
            Self::Through(mut file) => put(&mut file),
            Self::Standard => {
                let mut out = io::stdout().lock();
                put(&mut out)?;
                out.flush()
            }
        }
    }
}

/// A new file beside another one, gone again unless it takes that one's place.
fn temporary(path: &Path) -> io::Result<tempfile::NamedTempFile> {
    let prefix = prefix(path);
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(TEMPORARY);
    #[cfg(unix)]
    // As any new file: the process's mask decides.
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder(path)).map_err(|error| match error.get_ref() {
        // Not the name of a file that nobody asked for.
        Some(_) => error.kind().into(),
        None => error,
    })
}

fn prefix(path: &Path) -> String {
    format!(".{}.", path.file_name().unwrap_or_default().to_string_lossy())
}

/// The folder that a path is in.
fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        Some(_) => Path::new("."),
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        write_atomically(&path, b"old").unwrap();
        write_atomically(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        // A folder cannot be replaced by a file.
        let taken = folder.path().join("taken");
        fs::create_dir_all(taken.join("inside")).unwrap();
        for path in [taken, folder.path().join("no/such")] {
            let error = write_atomically(&path, b"more").map_err(Error::io(&path, "write")).unwrap_err();
            let start = format!("{}: could not write: ", path.display());
            let reason = error.to_string().strip_prefix(&start).expect("the file that was meant").to_owned();
            let before = Output::new(&path, &[]).unwrap_err();
            assert_eq!(before.to_string(), error.to_string());
            assert!(!reason.contains(TEMPORARY), "{error}");
        }
        assert_eq!(count(folder.path()), 2);
    }

    #[test]
    fn what_kills_left_behind_is_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        for name in [".file.x7.tmp", "file.tmp", ".other.x.tmp", "file"] {
            fs::write(folder.path().join(name), b"").unwrap();
        }
        remove_leftovers(&folder.path().join("file")).unwrap();
        assert_eq!(count(folder.path()), 3);
        assert!(!folder.path().join(".file.x7.tmp").exists());
    }

    #[test]
    fn inputs_are_no_outputs_by_whatever_name() {
        let folder = tempfile::tempdir().unwrap();
        let input = folder.path().join("input");
        fs::write(&input, b"data").unwrap();
        let again = folder.path().join("x/../input");
        fs::create_dir(folder.path().join("x")).unwrap();
        let inputs: [&Path; 2] = [Path::new("/nowhere"), &input];
        for output in [&input, &again] {
            let error = Output::new(output, &inputs).unwrap_err();
            assert!(matches!(error, Error::OutputIsInput { .. }), "{error}");
        }
        Output::new(&folder.path().join("new"), &inputs).unwrap();
        assert_eq!((fs::read(&input).unwrap().as_slice(), count(folder.path())), (&b"data"[..], 2));
    }

    #[cfg(unix)]
    mod unix {
        use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};

        use super::*;

        #[test]
        fn links_are_followed_to_their_end_and_stay() {
            let folder = tempfile::tempdir().unwrap();
            let at = |name: &str| folder.path().join(name);
            fs::create_dir(at("far")).unwrap();
            fs::write(at("far/file"), b"old").unwrap();
            symlink("far/file", at("link")).unwrap();
            symlink(at("link"), at("link to it")).unwrap();
            symlink("far/not yet", at("dangling")).unwrap();
            for (link, file) in
                [("link", "far/file"), ("link to it", "far/file"), ("dangling", "far/not yet")]
            {
                write_atomically(&at(link), link.as_bytes()).unwrap();
                assert!(fs::symlink_metadata(at(link)).unwrap().is_symlink());
                assert!(!fs::symlink_metadata(at(file)).unwrap().is_symlink());
                assert_eq!(fs::read(at(file)).unwrap(), link.as_bytes());
            }
            assert!(matches!(Output::new(&at("link"), &[&at("far/file")]), Err(Error::OutputIsInput { .. })));
            symlink("round", at("round")).unwrap();
            assert!(write_atomically(&at("round"), b"").is_err());
            assert_eq!((count(folder.path()), count(&at("far"))), (5, 2));
        }

        #[test]
        fn pipes_are_written_through_and_stay() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("pipe");
            assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
            let reader = {
                let path = path.clone();
                std::thread::spawn(move || fs::read(path).unwrap())
            };
            Output::new(&path, &[&path]).unwrap().write(b"through").unwrap();
            assert_eq!(reader.join().unwrap(), b"through");
            assert!(fs::metadata(&path).unwrap().file_type().is_fifo());
            assert_eq!(count(folder.path()), 1);
        }

        #[test]
        fn open_files_are_written_through() {
            use std::os::fd::AsRawFd;
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("file");
            let mut file = File::create(&path).unwrap();
            file.write_all(b"first ").unwrap();
            let number = PathBuf::from(format!("/dev/fd/{}", file.as_raw_fd()));
            if number.exists() {
                write_atomically(&number, b"second").unwrap();
                assert_eq!(fs::read(&path).unwrap(), b"first second");
                assert!(Output::new(Path::new("/dev/stdout"), &[]).unwrap().is_standard());
            }
        }

        #[test]
        fn a_file_keeps_its_mode_and_a_new_one_has_the_usual() {
            let folder = tempfile::tempdir().unwrap();
            let (old, new, plain) =
                (folder.path().join("a"), folder.path().join("b"), folder.path().join("c"));
            fs::write(&old, b"").unwrap();
            fs::set_permissions(&old, fs::Permissions::from_mode(0o640)).unwrap();
            File::create(&plain).unwrap();
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            [&old, &new].iter().for_each(|path| write_atomically(path, b"x").unwrap());
            assert_eq!((mode(&old), mode(&new)), (0o640, mode(&plain)));
        }
    }
}
