//! Where batches come from.
use super::Batch;
use crate::Result;

/// The batches of a training set.
///
/// Plans and batches are functions of their arguments alone, whoever calls them in whatever order: a run that is resumed, or shared
/// among processes, sees the same batches.
pub trait Source: Sync {
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
