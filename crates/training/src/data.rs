//! What a run learns from and is judged by.
mod batch;
mod joined;
mod plane_cache;
mod prefetch;
mod source;
mod streamed;
mod training_set;

use std::path::PathBuf;

use speech::{Corpus, Utterance};

pub use batch::Batch;
pub(crate) use joined::joined;
pub(crate) use prefetch::{PREFETCHED_BATCHES, Prefetcher};
pub(crate) use source::each;
pub use source::{BatchSource, UtteranceSource};
pub use streamed::Streamed;
pub(crate) use streamed::{all_too_long, index_folder};
pub use training_set::{Largest, TrainingSet, UtteranceStore};

use crate::Result;
use recognizer::bad_items::{BadItems, ExcludedUtterance, LengthMismatch};

/// The utterances of some manifests or tar shards, and what of these is not used.
#[derive(Debug, Default)]
pub struct Listed {
    /// The utterances.
    pub utterances: Vec<Utterance>,
    /// Samples of shards that cannot be used, which are not among the utterances, and those of another length.
    pub bad: BadItems,
    /// Members of shards and lines of manifests that are not used, a line a source.
    pub warnings: Vec<String>,
}

/// Reads all utterances of some manifests or tar shards.
///
/// # Errors
/// Those of [`Corpus::open`], and [`recognizer::Error::Empty`] if there is none at all.
pub fn read_manifests(what: &str, paths: &[PathBuf]) -> Result<Listed> {
    let corpus = Corpus::open(paths, None)?;
    let utterances = corpus.utterances().collect::<speech::Result<Vec<_>>>()?;
    if utterances.is_empty() {
        return Err(recognizer::Error::Empty { what: what.to_owned() }.into());
    }
    Ok(Listed { utterances, bad: bad_samples(&corpus), warnings: corpus.warnings().to_vec() })
}

/// The bad items of a corpus that are known from its shards.
pub(crate) fn bad_samples(corpus: &Corpus) -> BadItems {
    let left_out = |one: &speech::corpus::BadSample| ExcludedUtterance {
        id: one.key.clone(),
        reason: one.reason.clone(),
        has_other_rate: false,
    };
    let other_length = |one: &speech::corpus::LengthMismatch| LengthMismatch {
        id: one.id.clone(),
        expected_seconds: one.expected_seconds,
        found_seconds: one.found_seconds,
    };
    BadItems {
        left_out: corpus.bad_samples().iter().map(left_out).collect(),
        other_length: corpus.length_mismatches().iter().map(other_length).collect(),
    }
}
