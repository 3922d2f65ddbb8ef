//! What a run learns from and is judged by.
mod ahead;
mod batch;
mod examples;
mod in_memory;
mod joined;
mod source;

use std::path::PathBuf;

use speech::{Utterance, read_manifest};

pub(crate) use ahead::Ahead;
pub use batch::Batch;
pub(crate) use batch::{collate, plan};
pub use examples::{Example, load};
pub(crate) use examples::{count_changes, load_as};
pub use in_memory::InMemory;
pub(crate) use joined::joined;
pub use source::Source;

use crate::{Error, Result};

/// All utterances of some manifests.
///
/// # Errors
/// Whatever [`speech::read_manifest`] finds, and [`Error::Empty`] if there is none at all.
pub fn read_manifests(what: &str, paths: &[PathBuf]) -> Result<Vec<Utterance>> {
    let mut utterances = Vec::new();
    for path in paths {
        utterances.extend(read_manifest(path)?);
    }
    if utterances.is_empty() {
        return Err(Error::Empty { what: what.to_owned() });
    }
    Ok(utterances)
}
