//! A lock on a file that is never written.
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::input;

/// Attempts to lock a file that others remove as soon as they have finished.
const ATTEMPTS: usize = 100;

/// An empty file that one process has locked, until the value is dropped or the process ends.
///
/// The file is opened without truncation, and only if it is a regular file with one name: a link, or a second name of another file, is
/// refused, and what it leads to is not touched.
#[derive(Debug)]
pub struct FileLock {
    file: File,
    path: PathBuf,
    is_new: bool,
}

impl FileLock {
    /// Locks the file of this name, which is made if need be; none if another process has locked it.
    ///
    /// # Errors
    /// The system's; a link, a pipe, a device, a folder, a file with several names.
    pub fn acquire(path: &Path) -> io::Result<Option<Self>> {
        for _ in 0..ATTEMPTS {
            let is_new = match fs::symlink_metadata(path) {
                Ok(found) => {
                    expect_lock_file(&found)?;
                    false
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => true,
                Err(error) => return Err(error),
            };
            let file = open(path)?;
            expect_lock_file(&file.metadata()?)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // Another process may have removed the name between opening and locking.
            if is_named(&file, path) {
                return Ok(Some(FileLock { file, path: path.to_owned(), is_new }));
            }
        }
        Err(io::Error::other("the file is replaced by other processes again and again"))
    }

    /// Whether there was no such file before.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Removes the file, and with it the lock.
    pub fn remove(self) {
        // The name first, so that whoever opens it from here on makes a new file.
        let _ = fs::remove_file(&self.path);
        let _ = self.file.unlock();
    }
}

/// Opens the file without changing it.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options.open(path)
}

fn expect_lock_file(found: &Metadata) -> io::Result<()> {
    let refused = |what: &str| {
        io::Error::other(format!(
            "expected a regular file with one name, found {what}; remove it if no process uses it"
        ))
    };
    if !found.is_file() {
        return Err(refused(input::name(found.file_type())));
    }
    match names(found) {
        0 | 1 => Ok(()),
        count => Err(refused(&format!("a file with {count} names (hard links)"))),
    }
}

#[cfg(unix)]
fn names(found: &Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::nlink(found)
}

#[cfg(not(unix))]
fn names(_: &Metadata) -> u64 {
    1
}

/// Whether the open file is the one that has this name.
#[cfg(unix)]
fn is_named(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |of: Metadata| (of.dev(), of.ino());
    let open = file.metadata().ok().map(identity);
    open.is_some() && fs::symlink_metadata(path).ok().map(identity) == open
}

#[cfg(not(unix))]
fn is_named(_: &File, path: &Path) -> bool {
    path.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time_and_a_removed_lock_can_be_taken_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".lock");
        let first = FileLock::acquire(&path).unwrap().unwrap();
        assert!(first.is_new());
        assert!(FileLock::acquire(&path).unwrap().is_none());
        drop(first);
        let second = FileLock::acquire(&path).unwrap().unwrap();
        assert!(!second.is_new());
        second.remove();
        assert!(!path.exists());
        assert!(FileLock::acquire(&path).unwrap().unwrap().is_new());
    }

    #[test]
    fn processes_that_remove_their_lock_never_hold_it_together() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".lock");
        let (holders, held) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let Some(lock) = FileLock::acquire(&path).unwrap() else { continue };
                        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                        held.fetch_add(1, Ordering::SeqCst);
                        std::thread::yield_now();
                        holders.fetch_sub(1, Ordering::SeqCst);
                        lock.remove();
                    }
                });
            }
        });
        assert!(held.into_inner() > 0);
    }

    #[cfg(unix)]
    #[test]
    fn what_a_lock_leads_to_is_never_changed() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("victim"), "precious").unwrap();
        let lock = at(".lock");
        let refused = |kind: &str| {
            let error = FileLock::acquire(&lock).unwrap_err().to_string();
            assert!(
                error.starts_with("expected a regular file with one name, found ") && error.contains(kind),
                "{error}"
            );
            assert_eq!(fs::read(at("victim")).unwrap(), b"precious");
            fs::remove_file(&lock).or_else(|_| fs::remove_dir(&lock)).unwrap();
        };
        symlink("victim", &lock).unwrap();
        refused("a symbolic link");
        symlink("nowhere", &lock).unwrap();
        refused("a symbolic link");
        assert!(!at("nowhere").exists());
        fs::hard_link(at("victim"), &lock).unwrap();
        refused("2 names");
        assert!(std::process::Command::new("mkfifo").arg(&lock).status().unwrap().success());
        refused("a named pipe");
        fs::create_dir(&lock).unwrap();
        refused("a folder");
        // A file that something is in is no link; it is not emptied either.
        fs::write(&lock, "12345").unwrap();
        FileLock::acquire(&lock).unwrap().unwrap();
        assert_eq!(fs::read(&lock).unwrap(), b"12345");
    }
}
