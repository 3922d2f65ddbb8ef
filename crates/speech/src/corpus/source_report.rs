//! What a source has that is not used: members of a shard, and samples that cannot be read.

use std::path::Path;

use kernels::Excerpt;
use serde::{Deserialize, Serialize};

use crate::BlankLines;

/// NameRange that a list of members that are not used has.
const MAX_NAMED: usize = 5;

/// A sample of a shard that cannot be used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BadSample {
    /// Name of its members without their endings.
    pub key: String,
    /// The shard, and what is wrong with the sample.
    pub reason: String,
}

impl BadSample {
    /// The same with the name of its shard.
    pub(super) fn within(self, shard: &Path) -> Self {
        BadSample { reason: format!("{}: {}", shard.display(), self.reason), ..self }
    }
}

/// A sample of a shard whose sound is not as long as its JSON says; it is used as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LengthMismatch {
    /// Id of the utterance.
    pub id: String,
    /// Seconds of its JSON.
    pub expected_seconds: f64,
    /// Seconds of its sound.
    pub found_seconds: f64,
}

/// What a source has that is not used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct SourceReport {
    /// Members that belong to no sample.
    pub unused: usize,
    /// The first of their names.
    pub names: Vec<String>,
    /// Of a manifest.
    #[serde(default)]
    pub blank_lines: BlankLines,
    pub bad: Vec<BadSample>,
    pub other_length: Vec<LengthMismatch>,
}

impl SourceReport {
    /// Whether there is nothing that is not used.
    pub fn is_empty(&self) -> bool {
        self.unused == 0 && self.bad.is_empty()
    }

    /// Why a shard without a sample that can be used has none.
    pub fn reasons(&self) -> String {
        let bad = match &self.bad[..] {
            [] => None,
            [one] => Some(format!("1 sample that cannot be used, {}: {}", one.key, one.reason)),
            [first, ..] => {
                let count = self.bad.len();
                Some(format!(
                    "{count} samples that cannot be used, the first {}: {}",
                    first.key, first.reason
                ))
            }
        };
        bad.into_iter().chain(self.unused()).collect::<Vec<_>>().join("; ")
    }

    /// Counts a member that is not used.
    pub fn add_unused(&mut self, name: &str) {
        self.unused += 1;
        if self.names.len() < MAX_NAMED {
            self.names.push(Excerpt(name).to_string());
        }
    }

    /// How many members are not used, and which; none if all are.
    pub fn unused(&self) -> Option<String> {
        let names = self.names.join(", ");
        let more = if self.unused > self.names.len() { ", ..." } else { "" };
        match self.unused {
            0 => None,
            1 => Some(format!("1 member is not used: {names}")),
            count => Some(format!("{count} members are not used: {names}{more}")),
        }
    }
}
