//! Reports the unused members and samples of tar shards of speech.

use std::path::Path;

use kernels::Excerpt;
use serde::{Deserialize, Serialize};

use crate::BlankLines;

/// Largest number of unused members that a warning names.
const MAX_NAMED_MEMBERS: usize = 5;

/// A sample of a shard that cannot be used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BadSample {
    /// Member name without extension.
    pub key: String,
    /// The shard and the problem of the sample.
    pub reason: String,
}

impl BadSample {
    /// Adds the name of the shard to the reason.
    pub(super) fn with_shard(self, shard: &Path) -> Self {
        BadSample { reason: format!("{}: {}", shard.display(), self.reason), ..self }
    }
}

/// A sample whose audio length differs from its JSON; it is used as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LengthMismatch {
    /// Id of the utterance.
    pub id: String,
    /// Seconds in the JSON.
    pub expected_seconds: f64,
    /// Seconds of the audio.
    pub found_seconds: f64,
}

/// The unused and unexpected parts of a source; the index file stores it as JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct SourceReport {
    /// Members that belong to no sample.
    #[serde(rename = "unused")]
    pub num_unused: usize,
    /// Names of the first of these members.
    #[serde(rename = "names")]
    pub unused_names: Vec<String>,
    /// Blank lines of a manifest.
    #[serde(default)]
    pub blank_lines: BlankLines,
    /// Samples that cannot be used.
    #[serde(rename = "bad")]
    pub bad_samples: Vec<BadSample>,
    /// Samples whose audio length differs from their JSON.
    #[serde(rename = "other_length")]
    pub length_mismatches: Vec<LengthMismatch>,
}

impl SourceReport {
    /// Returns whether every member and sample is used.
    pub(super) fn is_empty(&self) -> bool {
        self.num_unused == 0 && self.bad_samples.is_empty()
    }

    /// Describes why a shard has no usable sample.
    pub(super) fn describe(&self) -> String {
        let bad = match &self.bad_samples[..] {
            [] => None,
            [sample] => Some(format!("1 sample that cannot be used, {}: {}", sample.key, sample.reason)),
            [first, ..] => {
                let count = self.bad_samples.len();
                Some(format!(
                    "{count} samples that cannot be used, the first {}: {}",
                    first.key, first.reason
                ))
            }
        };
        bad.into_iter().chain(self.unused_warning()).collect::<Vec<_>>().join("; ")
    }

    /// Counts an unused member.
    pub(super) fn add_unused(&mut self, name: &str) {
        self.num_unused += 1;
        if self.unused_names.len() < MAX_NAMED_MEMBERS {
            self.unused_names.push(Excerpt(name).to_string());
        }
    }

    /// Returns a warning about unused members, if any.
    pub(super) fn unused_warning(&self) -> Option<String> {
        let names = self.unused_names.join(", ");
        let ellipsis = if self.num_unused > self.unused_names.len() { ", ..." } else { "" };
        match self.num_unused {
            0 => None,
            1 => Some(format!("1 member is not used: {names}")),
            count => Some(format!("{count} members are not used: {names}{ellipsis}")),
        }
    }
}
