//! What the lattices are asked to explain, and where their rows lie.
use std::ops::Range;

use rnnt_dp::Lattices;

use crate::{Error, Result, Side};

/// Blank, label sequences, shapes and rows of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    blank: u32,
    labels: Vec<Vec<u32>>,
    lattices: Lattices,
    frame_starts: Vec<usize>,
    label_starts: Vec<usize>,
    /// One list an utterance, or none if all are 1.
    token_weights: Vec<Vec<f64>>,
}

impl Batch {
    /// Utterances whose T frame rows and U + 1 label rows begin anywhere, in the order of the batch.
    ///
    /// # Errors
    /// No utterance, lists of different lengths, an utterance without frames, a label equal to blank, rows that two
    /// utterances share.
    pub fn new(
        blank: u32,
        frames: Vec<usize>,
        labels: Vec<Vec<u32>>,
        frame_starts: Vec<usize>,
        label_starts: Vec<usize>,
    ) -> Result<Self> {
        let lattices = Lattices::new(frames, labels.iter().map(Vec::len).collect())?;
        crate::error::expect("frame_starts", labels.len(), frame_starts.len())?;
        crate::error::expect("label_starts", labels.len(), label_starts.len())?;
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
                let found = batch.starts(side)[utterance];
                if found < expected {
                    return Err(Error::Overlap { side, utterance, expected, found });
                }
                expected = found.saturating_add(batch.count(side, utterance));
            }
        }
        Ok(batch)
    }

    /// Rows of utterance after utterance, without padding.
    ///
    /// # Errors
    /// As [`Batch::new`].
    pub fn packed(blank: u32, frames: Vec<usize>, labels: Vec<Vec<u32>>) -> Result<Self> {
        let frame_starts = running(frames.iter().copied());
        let label_starts = running(labels.iter().map(|labels| labels.len() + 1));
        Self::new(blank, frames, labels, frame_starts, label_starts)
    }

    /// Room for `most_frames` frame rows and `positions` label rows for each utterance; what is behind its own is
    /// padding.
    ///
    /// # Errors
    /// As [`Batch::new`].
    pub fn padded(
        blank: u32,
        frames: Vec<usize>,
        labels: Vec<Vec<u32>>,
        most_frames: usize,
        positions: usize,
    ) -> Result<Self> {
        let every = |step: usize| (0..labels.len()).map(|b| b.saturating_mul(step)).collect();
        let (frame_starts, label_starts) = (every(most_frames), every(positions));
        Self::new(blank, frames, labels, frame_starts, label_starts)
    }

    /// The same with a weight for each label of each utterance: the gradient of its log-probability is multiplied by it, and the
    /// loss is left as it is.
    ///
    /// # Errors
    /// Not one finite weight for each label.
    pub fn with_token_weights(self, token_weights: Vec<Vec<f64>>) -> Result<Self> {
        self.lattices.check_token_weights(&token_weights)?;
        Ok(Self { token_weights, ..self })
    }

    /// Some utterances, as a batch of their own over the same rows.
    ///
    /// # Panics
    /// If there are none, or no such ones.
    pub fn part(&self, utterances: Range<usize>) -> Self {
        let token_weights = match self.token_weights.is_empty() {
            true => Vec::new(),
            false => self.token_weights[utterances.clone()].to_vec(),
        };
        Self {
            blank: self.blank,
            labels: self.labels[utterances.clone()].to_vec(),
            lattices: self.lattices.part(utterances.clone()),
            frame_starts: self.frame_starts[utterances.clone()].to_vec(),
            label_starts: self.label_starts[utterances].to_vec(),
            token_weights,
        }
    }

    /// The weights of an utterance's labels, or none if all are 1.
    pub(crate) fn token_weights(&self, utterance: usize) -> &[f64] {
        self.token_weights.get(utterance).map_or(&[], Vec::as_slice)
    }

    /// B
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Never: there is at least one utterance.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The blank id.
    pub fn blank(&self) -> u32 {
        self.blank
    }

    /// The labels of an utterance.
    ///
    /// # Panics
    /// If there is no such utterance.
    pub fn labels(&self, utterance: usize) -> &[u32] {
        &self.labels[utterance]
    }

    /// The shapes alone.
    pub fn lattices(&self) -> &Lattices {
        &self.lattices
    }

    /// The rows of an utterance.
    pub(crate) fn rows(&self, side: Side, utterance: usize) -> Range<usize> {
        let first = self.starts(side)[utterance];
        first..first + self.count(side, utterance)
    }

    /// Fails unless there are rows and classes for everything.
    ///
    /// # Errors
    /// Too few rows, blank or labels outside the classes.
    pub fn check(&self, frames: usize, labels: usize, classes: usize) -> Result<()> {
        for (side, found) in [(Side::Frames, frames), (Side::Labels, labels)] {
            for utterance in 0..self.len() {
                let needed = self.starts(side)[utterance].saturating_add(self.count(side, utterance));
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

    fn starts(&self, side: Side) -> &[usize] {
        match side {
            Side::Frames => &self.frame_starts,
            Side::Labels => &self.label_starts,
        }
    }

    fn count(&self, side: Side, utterance: usize) -> usize {
        match side {
            Side::Frames => self.lattices.frames(utterance),
            Side::Labels => self.lattices.labels(utterance) + 1,
        }
    }
}

/// ClassSums of all counts before each.
pub(crate) fn running(counts: impl Iterator<Item = usize>) -> Vec<usize> {
    counts
        .scan(0usize, |total, count| {
            let first = *total;
            *total = total.saturating_add(count);
            Some(first)
        })
        .collect()
}
