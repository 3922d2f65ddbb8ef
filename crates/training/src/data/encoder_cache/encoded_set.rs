//! `EncodedTrainingSet`: batches of encoder rows from a cache.
use recognizer::LengthMismatch;
use recognizer::bad_items::{BadItems, ExcludedUtterance};

use super::{EncoderCache, EncoderRows};
use crate::Result;
use crate::data::{Batch, BatchSource, TrainingSet};

/// A training set whose batches contain encoder rows instead of input rows.
///
/// Batches have the same utterances as those of the [`TrainingSet`].
pub(crate) struct EncodedTrainingSet<'a> {
    set: TrainingSet<'a>,
    cache: EncoderCache,
}

/// An utterance with its encoder rows.
struct EncodedUtterance {
    id: String,
    labels: Vec<u32>,
    encoded: EncoderRows,
}

impl<'a> EncodedTrainingSet<'a> {
    /// Creates the set from a cache of all its utterances.
    pub(super) fn new(set: TrainingSet<'a>, cache: EncoderCache) -> Self {
        EncodedTrainingSet { set, cache }
    }

    /// Reads an utterance; none if it cannot be used.
    fn read(&self, index: usize) -> Result<Option<EncodedUtterance>> {
        let Some(encoded) = self.cache.read(index)? else { return Ok(None) };
        let id_and_labels = self.set.id_and_labels(index)?;
        Ok(id_and_labels.map(|(id, labels)| EncodedUtterance { id, labels, encoded }))
    }

    /// Adds the reason for which an utterance without rows cannot be used.
    fn add_reason(&self, epoch: u64, index: usize, bad: &mut BadItems) -> Result<()> {
        let Batch { ids, bad: reasons, .. } = self.set.batch(epoch, &[index])?;
        bad.extend(reasons);
        let reason = "it could not be used when its encoder rows were computed";
        let new_item = |id| ExcludedUtterance { id, reason: reason.to_owned(), has_other_rate: false };
        bad.excluded.extend(ids.into_iter().map(new_item));
        Ok(())
    }
}

impl BatchSource for EncodedTrainingSet<'_> {
    fn plan(&self, epoch: u64) -> Result<Vec<Vec<usize>>> {
        self.set.plan(epoch)
    }

    fn padding(&self, plan: &[Vec<usize>]) -> f64 {
        self.set.padding(plan)
    }

    fn workers(&self) -> usize {
        self.set.workers()
    }

    fn warnings(&self) -> Vec<String> {
        self.set.warnings()
    }

    fn batch(&self, epoch: u64, utterances: &[usize]) -> Result<Batch> {
        let (mut absent, mut bad) = (Vec::new(), BadItems::default());
        let (mut present, mut audio_seconds) = (Vec::new(), 0.0);
        for &index in utterances {
            let Some(utterance) = self.read(index)? else {
                self.add_reason(epoch, index, &mut bad)?;
                absent.push(index);
                continue;
            };
            let seconds = self.set.seconds(index);
            audio_seconds += seconds;
            let mismatch = |found| LengthMismatch::new(&utterance.id, seconds, found);
            bad.other_length.extend(utterance.encoded.other_seconds.and_then(mismatch));
            present.push(utterance);
        }
        let width = self.cache.width();
        let lengths: Vec<usize> = present.iter().map(|utterance| utterance.encoded.rows).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let mut rows = vec![0f32; present.len() * longest * width];
        for (padded_rows, utterance) in rows.chunks_mut((longest * width).max(1)).zip(&present) {
            padded_rows[..utterance.encoded.values.len()].copy_from_slice(&utterance.encoded.values);
        }
        let rows = model::tensors::from_vec(rows, (present.len(), longest, width))?;
        let (ids, labels) = present.into_iter().map(|utterance| (utterance.id, utterance.labels)).unzip();
        let batch = Batch::new(rows, lengths, labels);
        Ok(Batch { ids, audio_seconds, absent, bad, is_encoded: true, ..batch })
    }
}
