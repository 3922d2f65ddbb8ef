//! Files that are read or written by one set of rules, whatever a path leads to.
//!
//! | module | rule |
//! |---|---|
//! | [`Destination`] | results appear whole or not at all; links are followed, pipes are written through |
//! | [`open_regular`], [`open_given`] | inputs are regular files; a pipe is an error, not waited for |
//! | [`FileLock`] | one process at a time; what the lock's name leads to is never changed |
mod destination;
mod input;
mod lock;

use std::path::Path;

pub use destination::{Destination, Staged, is_same_file, remove_leftovers, write_atomically};
pub use input::{expect_regular, open_given, open_regular, read_given, read_given_text, read_regular};
pub use lock::FileLock;

use crate::{Error, Result};

/// Makes a folder, and those around it.
pub(crate) fn make_folder(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|source| Error::Write { path: folder.into(), source })
}
