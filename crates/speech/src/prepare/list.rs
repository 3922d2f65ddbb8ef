//! Utterances that are going to be written, and what is told of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// An utterance that has been checked.
pub(super) struct Item {
    pub id: String,
    pub text: String,
    pub speaker: String,
    pub split: &'static str,
    pub subset: Option<&'static str>,
    pub sound: Sound,
    pub samples: u64,
    pub rate: u32,
    pub crc32: Option<u32>,
}

impl Item {
    pub fn seconds(&self) -> f64 {
        self.samples as f64 / f64::from(self.rate)
    }
}

/// Where its sound is.
pub(super) enum Sound {
    /// A file that our reader knows.
    Known(PathBuf),
    /// One that has to be converted.
    Foreign(PathBuf),
}

/// A list of them.
pub(super) struct CorpusList<'a> {
    pub name: &'a str,
    pub items: Vec<&'a Item>,
    /// Whether other lists have all of it.
    pub joined: bool,
    /// Transcripts without sound.
    pub left_out: usize,
}

impl CorpusList<'_> {
    pub fn summary(&self) -> CorpusSummary {
        let of = |item: &&Item| (item.id.clone(), item.seconds());
        let said = self.items.iter().map(|item| (of(item), item.text.as_str(), item.speaker.as_str()));
        CorpusSummary { left_out: self.left_out, ..CorpusSummary::of(self.name, said) }
    }
}

/// What a list holds.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct CorpusSummary {
    /// Name of the list.
    pub name: String,
    /// Number of utterances.
    pub utterances: usize,
    /// Seconds of all together.
    pub seconds: f64,
    /// Number of speakers.
    pub speakers: usize,
    /// Id and seconds of the shortest utterance, the first of several.
    pub shortest: (String, f64),
    /// Id and seconds of the longest utterance, the first of several.
    pub longest: (String, f64),
    /// How often each character occurs in the texts.
    pub characters: BTreeMap<char, u64>,
    /// Transcripts without sound that were passed over, in an excerpt.
    pub left_out: usize,
    /// The manifest, or the shards as [`Corpus`](crate::Corpus) names them.
    pub path: PathBuf,
}

impl CorpusSummary {
    /// Of id and seconds, text and speaker of each utterance.
    pub(super) fn of<'a>(
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
            left_out: 0,
            path: PathBuf::new(),
        };
        let mut speakers = BTreeSet::new();
        for (one, text, speaker) in utterances {
            summary.utterances += 1;
            summary.seconds += one.1;
            speakers.insert(speaker);
            text.chars().for_each(|c| *summary.characters.entry(c).or_default() += 1);
            if one.1 < summary.shortest.1 {
                summary.shortest = one.clone();
            }
            if one.1 > summary.longest.1 {
                summary.longest = one;
            }
        }
        summary.speakers = speakers.len();
        summary
    }
}
