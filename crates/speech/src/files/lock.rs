//! `FileLock`: locks a file against other processes (part of `speech::files`).
//!
//! For example, two processes must not write the same run folder. The lock file itself is never
//! written.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::input;

/// Attempts to lock a file that other processes remove when they finish.
const MAX_ATTEMPTS: usize = 100;

/// An empty file locked by this process.
///
/// The lock is held until the value is dropped or the process ends. The file is opened without
/// truncation, and only if it is a regular file with one name: a link, or a second name of another
/// file, is rejected and its target is not modified.
#[derive(Debug)]
pub struct FileLock {
    file: File,
    path: PathBuf,
    is_new: bool,
}

impl FileLock {
    /// Locks a file, creating it if needed; `None` if another process holds the lock.
    ///
    /// # Errors
    /// Those of the system; a link, a pipe, a device, a folder, a file with several names.
    pub fn acquire(path: &Path) -> io::Result<Option<Self>> {
        for _ in 0..MAX_ATTEMPTS {
            let is_new = match fs::symlink_metadata(path) {
                Ok(metadata) => {
                    check_lock_file(&metadata)?;
                    false
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => true,
                Err(error) => return Err(error),
            };
            let file = open_without_truncation(path)?;
            check_lock_file(&file.metadata()?)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // Another process may have removed the name between opening and locking.
            if is_file_at(&file, path) {
                return Ok(Some(FileLock { file, path: path.to_owned(), is_new }));
            }
        }
        Err(io::Error::other("the file is replaced by other processes repeatedly"))
    }

    /// Returns whether the file did not exist before.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Removes the file and releases the lock.
    pub fn remove(self) {
        // The name is removed first, so that any process that opens it from now on creates a new
        // file.
        let _ = fs::remove_file(&self.path);
        let _ = self.file.unlock();
    }
}

/// Opens the file without changing it.
fn open_without_truncation(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options.open(path)
}

/// Checks that a lock file is a regular file with one name.
fn check_lock_file(metadata: &Metadata) -> io::Result<()> {
    let rejection = |kind: &str| {
        io::Error::other(format!(
            "expected a regular file with one name, found {kind}; remove it if no process uses it"
        ))
    };
    if !metadata.is_file() {
        return Err(rejection(input::type_name(metadata.file_type())));
    }
    match num_links(metadata) {
        0 | 1 => Ok(()),
        count => Err(rejection(&format!("a file with {count} names (hard links)"))),
    }
}

#[cfg(unix)]
fn num_links(metadata: &Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::nlink(metadata)
}

#[cfg(not(unix))]
fn num_links(_: &Metadata) -> u64 {
    1
}

/// Returns whether the open file is the one at `path`.
#[cfg(unix)]
fn is_file_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
    let open_identity = file.metadata().ok().map(identity);
    open_identity.is_some() && fs::symlink_metadata(path).ok().map(identity) == open_identity
}

#[cfg(not(unix))]
fn is_file_at(_: &File, path: &Path) -> bool {
    path.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time_and_a_removed_lock_can_be_acquired_again() {
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
    fn processes_that_remove_their_lock_never_hold_it_at_once() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".lock");
        let (holders, acquisitions) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let Some(lock) = FileLock::acquire(&path).unwrap() else { continue };
                        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                        acquisitions.fetch_add(1, Ordering::SeqCst);
                        std::thread::yield_now();
                        holders.fetch_sub(1, Ordering::SeqCst);
                        lock.remove();
                    }
                });
            }
        });
        assert!(acquisitions.into_inner() > 0);
    }

    #[cfg(unix)]
    #[test]
    fn the_target_of_a_lock_is_never_modified() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let in_folder = |name: &str| folder.path().join(name);
        fs::write(in_folder("victim"), "precious").unwrap();
        let lock = in_folder(".lock");
        let check_rejection = |kind: &str| {
            let error = FileLock::acquire(&lock).unwrap_err().to_string();
            assert!(
                error.starts_with("expected a regular file with one name, found ") && error.contains(kind),
                "{error}"
            );
            assert_eq!(fs::read(in_folder("victim")).unwrap(), b"precious");
            fs::remove_file(&lock).or_else(|_| fs::remove_dir(&lock)).unwrap();
        };
        symlink("victim", &lock).unwrap();
        check_rejection("a symbolic link");
        symlink("nowhere", &lock).unwrap();
        check_rejection("a symbolic link");
        assert!(!in_folder("nowhere").exists());
        fs::hard_link(in_folder("victim"), &lock).unwrap();
        check_rejection("2 names");
        assert!(std::process::Command::new("mkfifo").arg(&lock).status().unwrap().success());
        check_rejection("a named pipe");
        fs::create_dir(&lock).unwrap();
        check_rejection("a folder");
        // A lock file with content is not emptied.
        fs::write(&lock, "12345").unwrap();
        FileLock::acquire(&lock).unwrap().unwrap();
        assert_eq!(fs::read(&lock).unwrap(), b"12345");
    }
}
