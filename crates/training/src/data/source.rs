//! Sources of utterances and of batches.
use std::borrow::Cow;

use speech::{Corpus, Utterance};

use super::Batch;
use crate::Result;

/// The batches of a training set.
///
/// Plans and batches are functions of their arguments alone, whoever calls them in whatever order: a run that is resumed, or shared
/// among processes, sees the same batches.
pub trait BatchSource: Sync {
    /// The utterances, by number, of each batch of an epoch.
    ///
    /// # Errors
    /// What no epoch can be cut into.
    fn plan(&self, epoch: u64) -> Result<Vec<Vec<usize>>>;

    /// Share of a plan's rows that is padding, as far as it is known.
    fn padding(&self, _plan: &[Vec<usize>]) -> f64 {
        0.0
    }

    /// Threads that make batches ahead of their use.
    fn workers(&self) -> usize {
        1
    }

    /// Warnings since the last call.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// A batch of these utterances as that epoch hears them. Those that cannot be used are in [`Batch::absent`] in place of the batch.
    ///
    /// # Errors
    /// Those of reading them.
    fn batch(&self, epoch: u64, utterances: &[usize]) -> Result<Batch>;
}

/// A list of utterances, in memory or not.
pub trait UtteranceSource {
    /// How many there are.
    fn count(&self) -> usize;

    /// One of them.
    ///
    /// # Errors
    /// Those of reading what is said about it.
    fn get(&self, index: usize) -> Result<Cow<'_, Utterance>>;
}

impl UtteranceSource for Vec<Utterance> {
    fn count(&self) -> usize {
        self.len()
    }

    fn get(&self, index: usize) -> Result<Cow<'_, Utterance>> {
        Ok(Cow::Borrowed(&self[index]))
    }
}

impl UtteranceSource for Corpus {
    fn count(&self) -> usize {
        self.len()
    }

    fn get(&self, index: usize) -> Result<Cow<'_, Utterance>> {
        Ok(Cow::Owned(self.utterance(index)?))
    }
}

/// All of them, one after another.
pub(crate) fn each(list: &dyn UtteranceSource) -> impl Iterator<Item = Result<Cow<'_, Utterance>>> {
    (0..list.count()).map(|index| list.get(index))
}
