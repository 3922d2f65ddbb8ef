//! Safe reading, atomic writing and locking of files, for all crates.
//!
//! | item | rule |
//! |---|---|
//! | [`Destination`] | results are written atomically; links are followed, pipes are written through |
//! | [`open_regular`], [`read_input`] | inputs are regular files; a pipe is an error and is not waited for |
//! | [`FileLock`] | one process at a time; a lock never modifies the file that its name refers to |

mod destination;
mod input;
mod lock;

use std::path::Path;

pub(crate) use destination::StagedFile;
pub use destination::{Destination, is_same_file, remove_temporary_files, write_atomically};
pub use input::{check_regular, open_regular, read_input, read_input_text, read_regular};
pub use lock::FileLock;

use crate::{Error, Result};

/// Creates a folder and its parents.
pub(crate) fn make_folder(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|source| Error::Write { path: folder.into(), source })
}
