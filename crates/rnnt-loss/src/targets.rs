//! Targets of a transducer or CTC loss, and layouts of its inputs.
//!
//! Targets are the label sequences and frame counts of a batch. A site is a lattice node (t, u): t
//! is a frame, u a label position, from 0 to the number of labels U.
//! Frame rows and label rows are the projected encoder and predictor outputs; a packed layout has
//! those of one utterance after another, a padded one is a tensor.
use std::ops::Range;

use panda_core::Selection;
use rnnt_dp::{Lattices, Site};

use crate::{
    Error, Result, column_counts::RNNT_COLUMNS, error::expect_len, site_buffers::clear_with_capacity,
};

/// Label sequences and frame counts of a batch, and the blank.
#[derive(Debug, Clone, PartialEq)]
pub struct Targets {
    blank: u32,
    big_blanks: Vec<u32>,
    /// Weights of the labels of each utterance; empty if all are 1.
    token_weights: Vec<Vec<f64>>,
    labels: Vec<Vec<u32>>,
    /// Id of each utterance; empty if these are the indices in the batch.
    ids: Vec<u64>,
    lattices: Lattices,
}

/// Memory layout of the rows of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Utterance after utterance, without padding.
    Packed,
    /// Each utterance is padded to `frames` frames and `positions` label positions.
    ///
    /// `positions` is at least the longest U plus 1. Padding is never read and has zero gradients.
    Padded {
        /// Frames of the padded tensor.
        frames: usize,
        /// Label positions of the padded tensor.
        positions: usize,
    },
}

impl Targets {
    /// Takes the blank id, and frame count T and labels per utterance.
    ///
    /// # Errors
    /// An empty batch, lists of different lengths, an utterance without frames, a label that equals
    /// the blank. Labels outside the classes are found when the loss is called, since only the head
    /// has the number of classes.
    pub fn new(blank: u32, frames: Vec<usize>, labels: Vec<Vec<u32>>) -> Result<Self> {
        if frames.len() != labels.len() {
            return Err(Error::Batch { expected: frames.len(), found: labels.len() });
        }
        for (utterance, labels) in labels.iter().enumerate() {
            if let Some(position) = labels.iter().position(|&label| label == blank) {
                return Err(Error::BlankLabel { utterance, position, blank });
            }
        }
        let lattices = Lattices::new(frames, labels.iter().map(Vec::len).collect())?;
        let (big_blanks, token_weights, ids) = Default::default();
        Ok(Self { blank, big_blanks, token_weights, labels, ids, lattices })
    }

    /// Sets the big blanks.
    ///
    /// They are in the order of their durations in
    /// [`Topology::multi_blank`](rnnt_dp::Topology::multi_blank).
    ///
    /// # Errors
    /// A big blank that is the blank, a label, or a duplicate.
    pub fn with_big_blanks(self, big_blanks: Vec<u32>) -> Result<Self> {
        for (position, &found) in big_blanks.iter().enumerate() {
            let is_label = self.labels.iter().any(|labels| labels.contains(&found));
            if is_label || found == self.blank || big_blanks[..position].contains(&found) {
                return Err(Error::BigBlank { position, found });
            }
        }
        Ok(Self { big_blanks, ..self })
    }

    /// Sets a weight for each label of each utterance, its token weight.
    ///
    /// It multiplies the gradient of the label's log-probability at all sites, not the loss.
    ///
    /// # Errors
    /// Not one finite weight per label.
    pub fn with_token_weights(self, token_weights: Vec<Vec<f64>>) -> Result<Self> {
        self.lattices.check_token_weights(&token_weights)?;
        Ok(Self { token_weights, ..self })
    }

    /// Sets ids of the utterances, which determine their [`Dropout`](crate::Dropout) masks.
    ///
    /// With ids, a mask does not depend on the batch; the default is the index in the batch.
    ///
    /// # Errors
    /// Not one id per utterance.
    pub fn with_ids(self, ids: Vec<u64>) -> Result<Self> {
        expect_len("ids", self.batch(), ids.len())?;
        Ok(Self { ids, ..self })
    }

    /// Id of an utterance for dropout.
    pub(crate) fn id(&self, utterance: usize) -> u64 {
        self.ids.get(utterance).copied().unwrap_or(utterance as u64)
    }

    /// Copies the targets without token weights.
    pub(crate) fn unweighted(&self) -> Self {
        Self { token_weights: Vec::new(), ..self.clone() }
    }

    /// Weights of the labels of an utterance; empty if all are 1.
    pub(crate) fn token_weights(&self, utterance: usize) -> &[f64] {
        self.token_weights.get(utterance).map_or(&[], Vec::as_slice)
    }

    /// Multiplies the adjoints of labels, column 1 of `columns`, by the token weights.
    pub(crate) fn apply_token_weights(&self, adjoints: &mut [f64], columns: usize) {
        for (utterance, weights) in self.token_weights.iter().enumerate() {
            for (row, site) in
                self.lattices.site_range(utterance).zip(self.lattices.utterance_sites(utterance))
            {
                if let Some(weight) = weights.get(site.label) {
                    adjoints[row * columns + 1] *= weight;
                }
            }
        }
    }

    /// Restricts the lattices to the label positions `bands[b][t]` of each frame.
    ///
    /// Losses are sums over the paths within the bands; other sites are not computed.
    ///
    /// # Errors
    /// Not one band per frame of each utterance; a band that is empty or extends beyond U.
    pub fn with_bands(&self, bands: Vec<Vec<Range<usize>>>) -> Result<Self> {
        expect_len("bands", self.batch(), bands.len())?;
        for (utterance, bands) in bands.iter().enumerate() {
            let (expected, found) = (self.frames(utterance), bands.len());
            if expected != found {
                return Err(Error::Bands { utterance, expected, found });
            }
        }
        let lattices = Lattices::banded(self.labels.iter().map(Vec::len).collect(), bands)?;
        Ok(Self { lattices, ..self.clone() })
    }

    /// Number of utterances B.
    pub fn batch(&self) -> usize {
        self.lattices.batch()
    }

    /// The blank id.
    pub fn blank(&self) -> u32 {
        self.blank
    }

    /// Number of frames T of an utterance.
    ///
    /// # Panics
    /// If there is no such utterance, as in [`Targets::labels`].
    pub fn frames(&self, utterance: usize) -> usize {
        self.lattices.num_frames(utterance)
    }

    /// The labels of an utterance.
    pub fn labels(&self, utterance: usize) -> &[u32] {
        &self.labels[utterance]
    }

    /// Shapes of the lattices.
    pub fn lattices(&self) -> &Lattices {
        &self.lattices
    }

    /// Copies a range of utterances.
    pub(crate) fn part(&self, utterances: Range<usize>) -> Self {
        let labels = self.labels[utterances.clone()].to_vec();
        let token_weights = match self.token_weights.is_empty() {
            true => Vec::new(),
            false => self.token_weights[utterances.clone()].to_vec(),
        };
        let ids = self.ids.get(utterances.clone()).map(<[u64]>::to_vec).unwrap_or_default();
        let lattices = self.lattices.slice(utterances);
        Self { blank: self.blank, big_blanks: self.big_blanks.clone(), token_weights, labels, ids, lattices }
    }

    /// Fails unless blanks and labels are below `classes`.
    pub(crate) fn check_classes(&self, classes: usize) -> Result<()> {
        let mut blanks = std::iter::once(&self.blank).chain(&self.big_blanks);
        if let Some(&blank) = blanks.find(|blank| **blank as usize >= classes) {
            return Err(Error::BlankOutOfRange { blank, classes });
        }
        for (utterance, labels) in self.labels.iter().enumerate() {
            if let Some(position) = labels.iter().position(|&label| label as usize >= classes) {
                return Err(Error::LabelOutOfRange { utterance, position, label: labels[position], classes });
            }
        }
        Ok(())
    }

    /// Selects blank, next label and big blanks at every site.
    ///
    /// u = U has no next label. Reuses the buffers of `spare`.
    pub(crate) fn selection(&self, spare: Selection) -> Result<Selection> {
        let columns = self.num_token_columns();
        let (ids, active) = spare.into_parts();
        let entries = columns * self.lattices.num_sites();
        let (mut ids, mut active) = (clear_with_capacity(ids, entries), clear_with_capacity(active, entries));
        for utterance in 0..self.batch() {
            let labels = self.labels(utterance);
            for site in self.lattices.utterance_sites(utterance) {
                let next_label = labels.get(site.label);
                ids.extend([self.blank, next_label.copied().unwrap_or(self.blank)]);
                ids.extend_from_slice(&self.big_blanks);
                active.extend([true, next_label.is_some()]);
                active.extend(self.big_blanks.iter().map(|_| true));
            }
        }
        Ok(Selection::new(ids, active, columns)?)
    }

    /// Selects the next label at every site; reuses the buffers of `spare`.
    pub(crate) fn next_labels(&self, spare: Selection) -> Result<Selection> {
        let (ids, active) = spare.into_parts();
        let sites = self.lattices.num_sites();
        let (mut ids, mut active) = (clear_with_capacity(ids, sites), clear_with_capacity(active, sites));
        for utterance in 0..self.batch() {
            let labels = self.labels(utterance);
            for site in self.lattices.utterance_sites(utterance) {
                let next_label = labels.get(site.label);
                ids.push(next_label.copied().unwrap_or(self.blank));
                active.push(next_label.is_some());
            }
        }
        Ok(Selection::new(ids, active, 1)?)
    }

    /// Number of emission columns of a site: blank, next label and big blanks.
    ///
    /// Durations have further columns.
    pub(crate) fn num_token_columns(&self) -> usize {
        RNNT_COLUMNS + self.big_blanks.len()
    }

    /// Number of big blanks.
    pub(crate) fn num_big_blanks(&self) -> usize {
        self.big_blanks.len()
    }
}

impl Layout {
    /// Fails if an utterance exceeds the padding, or for too many rows.
    pub(crate) fn check(&self, targets: &Targets) -> Result<()> {
        let Self::Padded { frames, positions } = *self else { return Ok(()) };
        let rows = targets.batch().checked_mul(frames).and_then(|rows| rows.checked_mul(positions));
        if rows.is_none_or(|rows| rows >= u32::MAX as usize) {
            return Err(Error::LayoutTooLarge { batch: targets.batch(), frames, positions });
        }
        for utterance in 0..targets.batch() {
            let needs = [
                ("frames", targets.frames(utterance), frames),
                ("label positions", targets.labels(utterance).len() + 1, positions),
            ];
            if let Some(&(argument, needed, found)) = needs.iter().find(|(_, needed, found)| needed > found) {
                return Err(Error::TooLong { argument, utterance, needed, found });
            }
        }
        Ok(())
    }

    /// First frame row of each utterance.
    pub(crate) fn frame_starts(&self, targets: &Targets) -> RowStarts {
        match *self {
            Self::Packed => RowStarts::packed(targets.batch(), |b| targets.frames(b)),
            Self::Padded { frames, .. } => {
                RowStarts::Padded { rows_per_utterance: frames, batch: targets.batch() }
            }
        }
    }

    /// First label row of each utterance.
    pub(crate) fn label_starts(&self, targets: &Targets) -> RowStarts {
        match *self {
            Self::Packed => RowStarts::packed(targets.batch(), |b| targets.labels(b).len() + 1),
            Self::Padded { positions, .. } => {
                RowStarts::Padded { rows_per_utterance: positions, batch: targets.batch() }
            }
        }
    }

    /// Rows of a score matrix.
    pub(crate) fn score_rows(&self, targets: &Targets) -> usize {
        match *self {
            Self::Packed => targets.lattices().num_sites(),
            Self::Padded { frames, positions } => targets.batch() * frames * positions,
        }
    }

    /// Site of each row of a score matrix; [`panda_core::scores::PADDING`] for padding.
    pub(crate) fn site_of_row(&self, targets: &Targets) -> Vec<u32> {
        let lattices = targets.lattices();
        let Self::Padded { frames, positions } = *self else {
            return (0..lattices.num_sites() as u32).collect();
        };
        let mut site_of_row = vec![panda_core::scores::PADDING; self.score_rows(targets)];
        for b in 0..targets.batch() {
            for (site, Site { frame, label }) in lattices.site_range(b).zip(lattices.utterance_sites(b)) {
                site_of_row[(b * frames + frame) * positions + label] = site as u32;
            }
        }
        site_of_row
    }
}

/// First row of each utterance.
pub(crate) enum RowStarts {
    /// First row of each utterance, then the number of rows.
    Packed(Vec<usize>),
    /// The same number of rows for each of `batch` utterances.
    Padded { rows_per_utterance: usize, batch: usize },
}

impl RowStarts {
    /// Takes the number of rows of each utterance.
    fn packed(batch: usize, row_count: impl Fn(usize) -> usize) -> Self {
        let mut starts = Vec::with_capacity(batch + 1);
        starts.push(0);
        (0..batch).for_each(|b| starts.push(starts[b] + row_count(b)));
        Self::Packed(starts)
    }

    /// First row of an utterance.
    pub(crate) fn start(&self, utterance: usize) -> usize {
        match self {
            Self::Packed(starts) => starts[utterance],
            Self::Padded { rows_per_utterance, .. } => utterance * rows_per_utterance,
        }
    }

    /// Number of rows.
    pub(crate) fn total(&self) -> usize {
        match self {
            Self::Packed(starts) => starts.last().copied().unwrap_or(0),
            Self::Padded { rows_per_utterance, batch } => rows_per_utterance * batch,
        }
    }
}
