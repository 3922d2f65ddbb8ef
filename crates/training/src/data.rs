//! What a run learns from and is judged by.
mod ahead;
mod batch;
mod examples;
mod joined;
mod list;
mod plane_cache;
mod source;
mod streamed;
mod training_set;

use std::path::PathBuf;

use speech::{Corpus, Utterance};

pub(crate) use ahead::Ahead;
pub use batch::Batch;
pub(crate) use batch::{collate, plan, rows};
pub use examples::{Example, load};
pub(crate) use examples::{count_changes, load_as, load_usable};
pub(crate) use joined::joined;
pub use list::List;
pub(crate) use list::each;
pub use source::Source;
pub use streamed::Streamed;
pub(crate) use streamed::{all_too_long, index_folder};
pub use training_set::{Largest, Store, TrainingSet};

use crate::{Error, Result};

/// All utterances of some manifests, or tar shards.
///
/// # Errors
/// Whatever [`Corpus::open`] finds, and [`Error::Empty`] if there is none at all.
pub fn read_manifests(what: &str, paths: &[PathBuf]) -> Result<Vec<Utterance>> {
    let utterances = Corpus::open(paths, None)?.utterances().collect::<speech::Result<Vec<_>>>()?;
    if utterances.is_empty() {
        return Err(Error::Empty { what: what.to_owned() });
    }
    Ok(utterances)
}
