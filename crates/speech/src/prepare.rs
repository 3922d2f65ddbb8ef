//! Prepares speech corpora as they are distributed: writes manifests or shards.
//!
//! Everything is checked before anything is written.
//!
//! | corpus | content of its folder | lists |
//! |---|---|---|
//! | [`librispeech`] | `LibriSpeech/SUBSET/SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt` and `.flac` ([OpenSLR 12]) | one per subset, `train-960` |
//! | [`an4`] | `an4/etc/an4_{train,test}.{fileids,transcription}`, `an4/wav/...` in NIST's SPHERE or raw ([CMU]) | `train`, `dev`, `test` |
//! | [`fsdd`] | `recordings/DIGIT_SPEAKER_TAKE.wav` ([Free Spoken Digit Dataset]) | `train`, `test`; strings of digits |
//!
//! [OpenSLR 12]: https://www.openslr.org/12
//! [CMU]: http://www.speech.cs.cmu.edu/databases/an4/
//! [Free Spoken Digit Dataset]: https://github.com/Jakobovski/free-spoken-digit-dataset

mod an4;
mod check;
mod corpus_files;
mod corpus_list;
mod digit_strings;
mod fsdd;
mod librispeech;
mod sphere;
mod write;

use std::path::{Path, PathBuf};

pub use an4::an4;
pub use corpus_list::CorpusSummary;
pub use digit_strings::StringCounts;
pub use fsdd::fsdd;
pub use librispeech::librispeech;

/// Options of the preparation of a corpus.
#[derive(Debug, Clone, PartialEq)]
pub struct PrepareOptions {
    /// Output folder, created if needed.
    pub output: PathBuf,
    /// Accepts excerpts.
    ///
    /// Total counts and hours are not checked, and transcripts without audio are skipped.
    pub allow_incomplete: bool,
    /// Utterances per tar shard for [`Corpus`](crate::Corpus); `None` writes manifests.
    pub shards: Option<usize>,
}

impl PrepareOptions {
    /// Options for manifests of a complete corpus.
    pub fn new(output: impl Into<PathBuf>) -> Self {
        PrepareOptions { output: output.into(), allow_incomplete: false, shards: None }
    }
}

/// Returns the subfolder `name`, or `dir` itself if there is none.
fn subfolder_or_self(dir: &Path, name: &str) -> PathBuf {
    let inner = dir.join(name);
    if inner.is_dir() { inner } else { dir.to_owned() }
}
