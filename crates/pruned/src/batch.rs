//! A batch of the pruned first pass: labels, shapes, and rows of the scores.
use std::ops::Range;

use rnnt_dp::Lattices;

use crate::{Error, Result, Side};

/// Blank, label sequences, shapes and score rows of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    blank: u32,
    labels: Vec<Vec<u32>>,
    lattices: Lattices,
    /// First row of each utterance in the frame scores.
    frame_starts: Vec<usize>,
    /// First row of each utterance in the label scores.
    label_starts: Vec<usize>,
    /// Weights of the labels of each utterance; empty if all are 1.
    token_weights: Vec<Vec<f64>>,
}

impl Batch {
    /// Creates a batch with explicit start rows, ascending in both matrices.
    ///
    /// An utterance has T frame rows and U + 1 label rows.
    ///
    /// # Errors
    /// No utterance, lists of different lengths, an utterance without frames, a label equal to
    /// blank, overlapping rows.
    pub fn new(
        blank: u32,
        frames: Vec<usize>,
        labels: Vec<Vec<u32>>,
        frame_starts: Vec<usize>,
        label_starts: Vec<usize>,
    ) -> Result<Self> {
        let lattices = Lattices::new(frames, labels.iter().map(Vec::len).collect())?;
        crate::error::expect_len("frame_starts", labels.len(), frame_starts.len())?;
        crate::error::expect_len("label_starts", labels.len(), label_starts.len())?;
        for (utterance, labels) in labels.iter().enumerate() {
            if let Some(position) = labels.iter().position(|&label| label == blank) {
                return Err(Error::BlankLabel { utterance, position, blank });
            }
        }
        let token_weights = Vec::new();
        let batch = Self { blank, labels, lattices, frame_starts, label_starts, token_weights };
        for side in [Side::Frames, Side::Labels] {
            let mut expected = 0;
            for utterance in 0..batch.len() {
                let start = batch.row_starts(side)[utterance];
                if start < expected {
                    return Err(Error::Overlap { side, utterance, expected, found: start });
                }
                expected = start.saturating_add(batch.row_count(side, utterance));
            }
        }
        Ok(batch)
    }

    /// Creates a batch of rows without padding.
    ///
    /// # Errors
    /// As [`Batch::new`].
    pub fn packed(blank: u32, frames: Vec<usize>, labels: Vec<Vec<u32>>) -> Result<Self> {
        let frame_starts = prefix_sums(frames.iter().copied());
        let label_starts = prefix_sums(labels.iter().map(|labels| labels.len() + 1));
        Self::new(blank, frames, labels, frame_starts, label_starts)
    }

    /// Creates a padded batch.
    ///
    /// Each utterance has `max_frames` frame rows and `positions` label rows; excess rows are
    /// padding.
    ///
    /// # Errors
    /// As [`Batch::new`].
    pub fn padded(
        blank: u32,
        frames: Vec<usize>,
        labels: Vec<Vec<u32>>,
        max_frames: usize,
        positions: usize,
    ) -> Result<Self> {
        let starts = |rows: usize| (0..labels.len()).map(|b| b.saturating_mul(rows)).collect();
        let (frame_starts, label_starts) = (starts(max_frames), starts(positions));
        Self::new(blank, frames, labels, frame_starts, label_starts)
    }

    /// Sets a weight for each label of each utterance.
    ///
    /// It multiplies the gradient of the label's log-probability; the loss does not change.
    ///
    /// # Errors
    /// A wrong number of weights, or a weight that is not finite.
    pub fn with_token_weights(self, token_weights: Vec<Vec<f64>>) -> Result<Self> {
        self.lattices.check_token_weights(&token_weights)?;
        Ok(Self { token_weights, ..self })
    }

    /// Returns some utterances as a batch over the same rows.
    ///
    /// # Panics
    /// If the range is empty or out of bounds.
    pub fn part(&self, utterances: Range<usize>) -> Self {
        let token_weights = match self.token_weights.is_empty() {
            true => Vec::new(),
            false => self.token_weights[utterances.clone()].to_vec(),
        };
        Self {
            blank: self.blank,
            labels: self.labels[utterances.clone()].to_vec(),
            lattices: self.lattices.slice(utterances.clone()),
            frame_starts: self.frame_starts[utterances.clone()].to_vec(),
            label_starts: self.label_starts[utterances].to_vec(),
            token_weights,
        }
    }

    /// Returns the label weights of an utterance; empty if all are 1.
    pub(crate) fn token_weights(&self, utterance: usize) -> &[f64] {
        self.token_weights.get(utterance).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of utterances B.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Returns false: there is at least one utterance.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Returns the blank id.
    pub fn blank(&self) -> u32 {
        self.blank
    }

    /// Returns the labels of an utterance.
    ///
    /// # Panics
    /// If there is no such utterance.
    pub fn labels(&self, utterance: usize) -> &[u32] {
        &self.labels[utterance]
    }

    /// Returns the shapes of the lattices.
    pub fn lattices(&self) -> &Lattices {
        &self.lattices
    }

    /// Returns the rows of an utterance.
    pub(crate) fn rows(&self, side: Side, utterance: usize) -> Range<usize> {
        let start = self.row_starts(side)[utterance];
        start..start + self.row_count(side, utterance)
    }

    /// Fails unless all rows, labels and the blank exist.
    ///
    /// # Errors
    /// Too few rows, blank or labels outside the classes.
    pub fn check(&self, frame_rows: usize, label_rows: usize, classes: usize) -> Result<()> {
        for (side, found) in [(Side::Frames, frame_rows), (Side::Labels, label_rows)] {
            for utterance in 0..self.len() {
                let needed = self.row_starts(side)[utterance].saturating_add(self.row_count(side, utterance));
                if needed > found {
                    return Err(Error::TooFewRows { side, utterance, needed, found });
                }
            }
        }
        if self.blank as usize >= classes {
            return Err(Error::BlankOutOfRange { blank: self.blank, classes });
        }
        for (utterance, labels) in self.labels.iter().enumerate() {
            if let Some(position) = labels.iter().position(|&label| label as usize >= classes) {
                return Err(Error::LabelOutOfRange { utterance, position, label: labels[position], classes });
            }
        }
        Ok(())
    }

    /// Returns the first row of each utterance.
    fn row_starts(&self, side: Side) -> &[usize] {
        match side {
            Side::Frames => &self.frame_starts,
            Side::Labels => &self.label_starts,
        }
    }

    /// Returns the number of rows of an utterance: T, or U + 1.
    fn row_count(&self, side: Side, utterance: usize) -> usize {
        match side {
            Side::Frames => self.lattices.num_frames(utterance),
            Side::Labels => self.lattices.num_labels(utterance) + 1,
        }
    }
}

/// Returns the exclusive prefix sums of counts.
pub(crate) fn prefix_sums(counts: impl Iterator<Item = usize>) -> Vec<usize> {
    counts
        .scan(0usize, |total, count| {
            let sum_before = *total;
            *total = total.saturating_add(count);
            Some(sum_before)
        })
        .collect()
}
