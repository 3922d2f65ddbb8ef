//! One utterance of the pruned first pass: its score rows, labels and contexts.
use std::ops::Range;

use kernels::{AlignedVec, Real, WorkerSlots, par_for, parts_mut};

use crate::{Batch, ScoreSource, Side, TaskScratch, tiles, unigram::UnigramDistribution};

/// Scores and labels of an utterance, as views of the batch.
///
/// Its *contexts* are its U + 1 label rows and, if there is an am-only term, the unigram.
pub(crate) struct UtteranceScores<'a, F, S> {
    /// Scores of the whole batch.
    pub source: &'a S,
    /// Index in the batch.
    pub index: usize,
    /// Rows of the frame scores.
    pub frames: Range<usize>,
    /// Rows of the label scores.
    pub labels: Range<usize>,
    /// Class id of the blank.
    pub blank: usize,
    /// Unigram of the am-only term, if there is one.
    pub unigram: Option<&'a UnigramDistribution<F>>,
    /// Next label of each position but the last.
    pub next_labels: &'a [u32],
    /// Weight of each label, or empty if all are 1.
    pub token_weights: &'a [f64],
    /// Next label of a position, and the position u, ordered by label.
    next_by_class: Vec<(usize, usize)>,
}

impl<'a, F: Real, S: ScoreSource<F>> UtteranceScores<'a, F, S> {
    /// Selects an utterance of a batch.
    pub(crate) fn new(
        source: &'a S,
        batch: &'a Batch,
        index: usize,
        unigram: Option<&'a UnigramDistribution<F>>,
    ) -> Self {
        let next_labels = batch.labels(index);
        let mut next_by_class: Vec<_> =
            next_labels.iter().enumerate().map(|(u, &class)| (class as usize, u)).collect();
        next_by_class.sort_unstable();
        Self {
            source,
            index,
            frames: batch.rows(Side::Frames, index),
            labels: batch.rows(Side::Labels, index),
            blank: batch.blank() as usize,
            unigram,
            next_labels,
            token_weights: batch.token_weights(index),
            next_by_class,
        }
    }

    /// Returns the number of contexts: U + 1, and one more with the unigram.
    pub(crate) fn contexts(&self) -> usize {
        self.labels.len() + usize::from(self.unigram.is_some())
    }

    /// Iterates over label positions whose next label is in `classes`.
    ///
    /// Items are the offset of the label in `classes`, and the position.
    pub(crate) fn next_labels_in(
        &self,
        classes: &Range<usize>,
    ) -> impl Iterator<Item = (usize, usize)> + Clone + '_ {
        let start = self.next_by_class.partition_point(|&(class, _)| class < classes.start);
        let end = self.next_by_class.partition_point(|&(class, _)| class < classes.end);
        let first_class = classes.start;
        self.next_by_class[start..end].iter().map(move |&(class, u)| (class - first_class, u))
    }

    /// Returns the offset of the blank in `classes`.
    pub(crate) fn blank_in(&self, classes: &Range<usize>) -> Option<usize> {
        classes.contains(&self.blank).then(|| self.blank - classes.start)
    }

    /// Computes the scores of some frames, counted from the utterance's first.
    pub(crate) fn fill_frame_scores(
        &self,
        frames: Range<usize>,
        classes: &Range<usize>,
        out: &mut [F],
        packing: &mut AlignedVec<F>,
    ) {
        let first_row = self.frames.start;
        let frames = first_row + frames.start..first_row + frames.end;
        self.source.fill_scores(Side::Frames, frames, classes.clone(), out, packing);
    }

    /// Computes the scores of all label positions.
    pub(crate) fn fill_label_scores(
        &self,
        classes: &Range<usize>,
        out: &mut [F],
        slots: &WorkerSlots<TaskScratch<F>>,
    ) {
        let block_rows = tiles::block_rows(self.labels.len());
        par_for(parts_mut(out, block_rows * classes.len()), |block, out| {
            let first_row = self.labels.start + block * block_rows;
            let rows = first_row..first_row + out.len() / classes.len();
            self.source.fill_scores(Side::Labels, rows, classes.clone(), out, &mut slots.lock().packing);
        });
    }

    /// Computes `exp(score - max)` of all contexts, for known largest scores.
    pub(crate) fn fill_context_exponentials(
        &self,
        max: &[F],
        classes: &Range<usize>,
        out: &mut [F],
        slots: &WorkerSlots<TaskScratch<F>>,
    ) {
        let (labels, unigram) = out.split_at_mut(self.labels.len() * classes.len());
        self.fill_label_scores(classes, labels, slots);
        let rows = labels.chunks_exact_mut(classes.len()).zip(max);
        rows.for_each(|(row, &max)| tiles::subtract_max(row, max));
        kernels::exp(labels);
        if let Some(distribution) = self.unigram {
            unigram.copy_from_slice(&distribution.relative[classes.clone()]);
        }
    }
}
