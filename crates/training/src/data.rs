//! Training data: utterances in memory or on disk, and padded batches.
//!
//! manifests or shards → [`UtteranceList`] or [`StreamedSet`] → [`TrainingSet`], which plans and
//! augments batches → prefetched [`Batch`]es of the trainer.
mod batch;
mod encoder_cache;
mod feature_cache;
mod joined;
mod prefetch;
mod source;
mod streamed;
mod training_set;

use std::path::PathBuf;

use speech::{Corpus, Utterance};

pub use batch::Batch;
pub(crate) use encoder_cache::EncoderCacheConfig;
pub(crate) use joined::joined_utterances;
pub(crate) use prefetch::{PREFETCHED_BATCHES, Prefetcher};
pub(crate) use source::iter_utterances;
pub use source::{BatchSource, UtteranceSource};
pub use streamed::StreamedSet;
pub(crate) use streamed::{all_too_long, index_folder};
pub(crate) use training_set::LargestUtterance;
pub use training_set::{TrainingSet, UtteranceStore};

use crate::Result;
use recognizer::bad_items::{BadItems, ExcludedUtterance, LengthMismatch};

/// The utterances of manifests or tar shards, and what they omit.
#[derive(Debug, Default)]
pub struct UtteranceList {
    /// The utterances.
    pub utterances: Vec<Utterance>,
    /// Unusable samples of shards, and recordings of another length.
    ///
    /// `utterances` does not contain the samples.
    pub bad: BadItems,
    /// One warning for each source that is not used completely.
    pub warnings: Vec<String>,
}

/// Reads all utterances of manifests or tar shards.
///
/// # Errors
/// Those of [`Corpus::open`]; [`recognizer::Error::Empty`] if there is no utterance.
pub fn read_manifests(set: &str, paths: &[PathBuf]) -> Result<UtteranceList> {
    let corpus = Corpus::open(paths, None)?;
    let utterances = corpus.utterances().collect::<speech::Result<Vec<_>>>()?;
    if utterances.is_empty() {
        return Err(recognizer::Error::Empty { what: set.to_owned() }.into());
    }
    Ok(UtteranceList { utterances, bad: bad_samples(&corpus), warnings: corpus.warnings().to_vec() })
}

/// Returns the bad items that are known from a corpus's shards.
pub(crate) fn bad_samples(corpus: &Corpus) -> BadItems {
    let excluded = |sample: &speech::corpus::BadSample| ExcludedUtterance {
        id: sample.key.clone(),
        reason: sample.reason.clone(),
        has_other_rate: false,
    };
    let other_length = |recording: &speech::corpus::LengthMismatch| LengthMismatch {
        id: recording.id.clone(),
        expected_seconds: recording.expected_seconds,
        found_seconds: recording.found_seconds,
    };
    BadItems {
        excluded: corpus.bad_samples().iter().map(excluded).collect(),
        other_length: corpus.length_mismatches().iter().map(other_length).collect(),
    }
}
