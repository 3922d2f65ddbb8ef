//! Files that are read or written by one set of rules, whatever a path leads to.
//!
//! | module | rule |
//! |---|---|
//! | [`Destination`] | results appear whole or not at all; links are followed, pipes are written through |
//! | [`open_regular`], [`open_input`] | inputs are regular files; a pipe is an error, not waited for |
//! | [`FileLock`] | one process at a time; what the lock's name leads to is never changed |
mod destination;
mod input;
mod lock;

use std::path::Path;

pub use destination::{Destination, StagedFile, is_same_file, remove_temporary_files, write_atomically};
pub use input::{check_regular, open_input, open_regular, read_input, read_input_text, read_regular};
pub use lock::FileLock;

use crate::{Error, Result};

/// Makes a folder, and those around it.
pub(crate) fn make_folder(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|source| Error::Write { path: folder.into(), source })
}
