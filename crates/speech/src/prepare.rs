//! Manifests, or shards, of corpora as they are distributed. Everything is checked before anything is written.
//!
//! | corpus | what its folder holds | lists |
//! |---|---|---|
//! | [`librispeech`] | `LibriSpeech/SUBSET/SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt` and `.flac` ([OpenSLR 12]) | a subset each, `train-960` |
//! | [`an4`] | `an4/etc/an4_{train,test}.{fileids,transcription}`, `an4/wav/...` in NIST's SPHERE or raw ([CMU]) | `train`, `dev`, `test` |
//! | [`fsdd`] | `recordings/DIGIT_SPEAKER_TAKE.wav` ([Free Spoken Digit Dataset]) | `train`, `test`; strings of digits |
//!
//! [OpenSLR 12]: https://www.openslr.org/12
//! [CMU]: http://www.speech.cs.cmu.edu/databases/an4/
//! [Free Spoken Digit Dataset]: https://github.com/Jakobovski/free-spoken-digit-dataset

mod an4;
mod check;
mod fsdd;
mod librispeech;
mod list;
mod sphere;
mod strings;
mod write;

use std::path::{Path, PathBuf};

pub use an4::an4;
pub use fsdd::fsdd;
pub use librispeech::librispeech;
pub use list::CorpusSummary;
pub use strings::StringCounts;

/// How a corpus is prepared.
#[derive(Debug, Clone, PartialEq)]
pub struct PrepareOptions {
    /// Folder for the manifests; made if need be.
    pub output: PathBuf,
    /// For excerpts: the counts and hours of the whole are not asked for, and transcripts without sound are passed over.
    pub allow_incomplete: bool,
    /// Writes tar shards of so many utterances instead of manifests, for [`Corpus`](crate::Corpus).
    pub shards: Option<usize>,
}

impl PrepareOptions {
    /// Manifests of a whole corpus.
    pub fn new(output: impl Into<PathBuf>) -> Self {
        PrepareOptions { output: output.into(), allow_incomplete: false, shards: None }
    }
}

/// The folder of that name inside, or the given one, where somebody is inside already.
fn inside(dir: &Path, name: &str) -> PathBuf {
    let inner = dir.join(name);
    if inner.is_dir() { inner } else { dir.to_owned() }
}
