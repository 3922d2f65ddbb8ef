//! Traits of training data: `BatchSource` of batches, `UtteranceSource` of manifest entries.
use std::borrow::Cow;

use speech::{Corpus, Utterance};

use super::Batch;
use crate::Result;

/// The batches of a training set.
///
/// Plans and batches depend on their arguments only, in any order of calls: a run that is resumed,
/// or distributed over processes, uses the same batches.
pub trait BatchSource: Sync {
    /// Returns the indices of the utterances of each batch of an epoch.
    ///
    /// # Errors
    /// If the utterances cannot be divided into batches.
    fn plan(&self, epoch: u64) -> Result<Vec<Vec<usize>>>;

    /// Returns the fraction of padding in a plan's rows, if known.
    fn padding(&self, _plan: &[Vec<usize>]) -> f64 {
        0.0
    }

    /// Returns the number of threads that load batches ahead of their use.
    fn workers(&self) -> usize {
        1
    }

    /// Returns the warnings since the last call.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns a batch of these utterances, augmented for an epoch.
    ///
    /// Utterances that cannot be used are in [`Batch::absent`] instead.
    ///
    /// # Errors
    /// Those of reading them.
    fn batch(&self, epoch: u64, utterances: &[usize]) -> Result<Batch>;
}

/// A list of utterances, in memory or not.
pub trait UtteranceSource {
    /// Returns the number of utterances.
    fn count(&self) -> usize;

    /// Returns one utterance.
    ///
    /// # Errors
    /// Those of reading its entry.
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

/// Iterates over all utterances.
pub(crate) fn iter_utterances(
    list: &dyn UtteranceSource,
) -> impl Iterator<Item = Result<Cow<'_, Utterance>>> {
    (0..list.count()).map(|index| list.get(index))
}
