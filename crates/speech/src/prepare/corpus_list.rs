//! Lists of checked utterances of a speech corpus, and their summaries.
//!
//! The module of a corpus creates the lists, [`write`](super::write) writes them, and the caller
//! receives a [`CorpusSummary`] of each one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// An utterance of a corpus whose transcript and audio were checked.
pub(super) struct CheckedUtterance {
    pub id: String,
    pub text: String,
    pub speaker: String,
    pub split: &'static str,
    pub subset: Option<&'static str>,
    pub audio_file: AudioSource,
    /// Samples of its only channel.
    pub num_samples: u64,
    pub sample_rate: u32,
    /// Checksum of the samples, as in [`Audio::crc32`](crate::Audio::crc32).
    pub crc32: Option<u32>,
}

impl CheckedUtterance {
    pub(super) fn seconds(&self) -> f64 {
        self.num_samples as f64 / f64::from(self.sample_rate)
    }
}

/// The audio file of an utterance.
pub(super) enum AudioSource {
    /// A file in a format that [`crate::read_audio`] reads.
    ReadableFile(PathBuf),
    /// A file that must be converted.
    FileToConvert(PathBuf),
}

/// A list of utterances.
pub(super) struct CorpusList<'a> {
    pub name: &'a str,
    pub utterances: Vec<&'a CheckedUtterance>,
    /// Whether the list is a union of other lists.
    pub is_union: bool,
    /// Number of transcripts without audio.
    pub excluded: usize,
}

impl CorpusList<'_> {
    pub(super) fn summary(&self) -> CorpusSummary {
        let id_and_seconds = |utterance: &&CheckedUtterance| (utterance.id.clone(), utterance.seconds());
        let utterances = self.utterances.iter().map(|utterance| {
            (id_and_seconds(utterance), utterance.text.as_str(), utterance.speaker.as_str())
        });
        CorpusSummary { excluded: self.excluded, ..CorpusSummary::from_utterances(self.name, utterances) }
    }
}

/// Statistics of a list.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct CorpusSummary {
    /// Name of the list.
    pub name: String,
    /// Number of utterances.
    pub utterances: usize,
    /// Total seconds.
    pub seconds: f64,
    /// Number of speakers.
    pub speakers: usize,
    /// Id and seconds of the (first) shortest utterance.
    pub shortest: (String, f64),
    /// Id and seconds of the (first) longest utterance.
    pub longest: (String, f64),
    /// Occurrences of each character in the texts.
    pub characters: BTreeMap<char, u64>,
    /// Number of transcripts without audio that were skipped, in an excerpt.
    pub excluded: usize,
    /// The manifest, or the shards in the syntax of [`Corpus`](crate::Corpus).
    pub path: PathBuf,
}

impl CorpusSummary {
    /// Summarizes id and seconds, text and speaker of each utterance.
    pub(super) fn from_utterances<'a>(
        name: &str,
        utterances: impl IntoIterator<Item = ((String, f64), &'a str, &'a str)>,
    ) -> Self {
        let mut summary = CorpusSummary {
            name: name.to_owned(),
            utterances: 0,
            seconds: 0.0,
            speakers: 0,
            shortest: (String::new(), f64::INFINITY),
            longest: (String::new(), 0.0),
            characters: BTreeMap::new(),
            excluded: 0,
            path: PathBuf::new(),
        };
        let mut speakers = BTreeSet::new();
        for (id_and_seconds, text, speaker) in utterances {
            let seconds = id_and_seconds.1;
            summary.utterances += 1;
            summary.seconds += seconds;
            speakers.insert(speaker);
            text.chars().for_each(|c| *summary.characters.entry(c).or_default() += 1);
            if seconds < summary.shortest.1 {
                summary.shortest = id_and_seconds.clone();
            }
            if seconds > summary.longest.1 {
                summary.longest = id_and_seconds;
            }
        }
        summary.speakers = speakers.len();
        summary
    }
}
