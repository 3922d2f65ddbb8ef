//! What the lattices are asked to explain, and where their rows lie.
use std::ops::Range;

use panda_core::Selection;
use rnnt_dp::{Lattices, Site};

use crate::{Error, Result, error::expect_len, site_buffers::clear_with_capacity};

/// Blank, frame counts and label sequences of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Targets {
    blank: u32,
    big_blanks: Vec<u32>,
    /// One list an utterance, or none if all are 1.
    token_weights: Vec<Vec<f64>>,
    labels: Vec<Vec<u32>>,
    /// One an utterance, or none if they are the places in the batch.
    names: Vec<u64>,
    lattices: Lattices,
}

/// How the rows of a batch lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Utterance after utterance, real rows only.
    Packed,
    /// Every utterance has room for `frames` frames and `positions` label positions (the longest U plus 1, or
    /// more). Rows beyond an utterance's own are never read and get zero gradients.
    Padded {
        /// Frames of the padded tensor.
        frames: usize,
        /// Label positions of the padded tensor.
        positions: usize,
    },
}

impl Targets {
    /// Takes the blank id, `T_b` and the labels of each utterance.
    ///
    /// # Errors
    /// An empty batch, lists of different lengths, an utterance without frames, a label equal to blank. That
    /// labels are classes of the head is checked where the head is known.
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
        let (big_blanks, token_weights, names) = Default::default();
        Ok(Self { blank, big_blanks, token_weights, labels, names, lattices })
    }

    /// The same with big blanks, in the order of their durations in
    /// [`Topology::multi_blank`](rnnt_dp::Topology::multi_blank).
    ///
    /// # Errors
    /// One that is the blank or a label, or that is there twice.
    pub fn with_big_blanks(self, big_blanks: Vec<u32>) -> Result<Self> {
        for (position, &found) in big_blanks.iter().enumerate() {
            let label = self.labels.iter().any(|labels| labels.contains(&found));
            if label || found == self.blank || big_blanks[..position].contains(&found) {
                return Err(Error::BigBlank { position, found });
            }
        }
        Ok(Self { big_blanks, ..self })
    }

    /// The same with a weight for each label of each utterance: the gradient of its log-probability is multiplied by it,
    /// wherever the label is emitted, and the loss is left as it is.
    ///
    /// # Errors
    /// Not one finite weight for each label.
    pub fn with_token_weights(self, token_weights: Vec<Vec<f64>>) -> Result<Self> {
        self.lattices.check_token_weights(&token_weights)?;
        Ok(Self { token_weights, ..self })
    }

    /// The same with names for the utterances, by which [`Dropout`](crate::Dropout) knows them instead of by their places in the
    /// batch: the same units are dropped whoever else is there.
    ///
    /// # Errors
    /// Not one name for each utterance.
    pub fn with_names(self, names: Vec<u64>) -> Result<Self> {
        expect_len("names", self.batch(), names.len())?;
        Ok(Self { names, ..self })
    }

    /// What dropout calls an utterance.
    pub(crate) fn name(&self, utterance: usize) -> u64 {
        self.names.get(utterance).copied().unwrap_or(utterance as u64)
    }

    /// The same with a weight of 1 for each label.
    pub(crate) fn unweighted(&self) -> Self {
        Self { token_weights: Vec::new(), ..self.clone() }
    }

    /// The weights of an utterance's labels, or none if all are 1.
    pub(crate) fn token_weights(&self, utterance: usize) -> &[f64] {
        self.token_weights.get(utterance).map_or(&[], Vec::as_slice)
    }

    /// Multiplies the adjoints of labels, column 1 of `columns`, by their weights.
    pub(crate) fn weigh_tokens(&self, adjoints: &mut [f64], columns: usize) {
        for (utterance, weights) in self.token_weights.iter().enumerate() {
            for (place, site) in
                self.lattices.site_range(utterance).zip(self.lattices.utterance_sites(utterance))
            {
                if let Some(weight) = weights.get(site.label) {
                    adjoints[place * columns + 1] *= weight;
                }
            }
        }
    }

    /// The same with only some sites of the lattices: at each frame, the label positions of `bands[b][t]`. Losses are then
    /// sums over the paths that stay inside, and nothing is computed elsewhere.
    ///
    /// # Errors
    /// Not one band for each frame of each utterance; a band that is empty or reaches beyond U.
    pub fn retained(&self, bands: Vec<Vec<Range<usize>>>) -> Result<Self> {
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

    /// B
    pub fn batch(&self) -> usize {
        self.lattices.batch()
    }

    /// The blank id.
    pub fn blank(&self) -> u32 {
        self.blank
    }

    /// T of an utterance.
    ///
    /// # Panics
    /// Here and below: if there is no such utterance.
    pub fn frames(&self, utterance: usize) -> usize {
        self.lattices.frames(utterance)
    }

    /// The labels of an utterance.
    pub fn labels(&self, utterance: usize) -> &[u32] {
        &self.labels[utterance]
    }

    /// The shapes alone.
    pub fn lattices(&self) -> &Lattices {
        &self.lattices
    }

    /// Some utterances, as a batch of their own.
    pub(crate) fn part(&self, utterances: Range<usize>) -> Self {
        let labels = self.labels[utterances.clone()].to_vec();
        let token_weights = match self.token_weights.is_empty() {
            true => Vec::new(),
            false => self.token_weights[utterances.clone()].to_vec(),
        };
        let names = self.names.get(utterances.clone()).map(<[u64]>::to_vec).unwrap_or_default();
        let lattices = self.lattices.slice(utterances);
        Self {
            blank: self.blank,
            big_blanks: self.big_blanks.clone(),
            token_weights,
            labels,
            names,
            lattices,
        }
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

    /// `{blank, next label, big blanks}` at every site; there is no next label at u = U.
    pub(crate) fn selection(&self, spare: Selection) -> Result<Selection> {
        let tokens = self.tokens();
        let (ids, active) = spare.into_parts();
        let entries = tokens * self.lattices.sites();
        let (mut ids, mut active) = (clear_with_capacity(ids, entries), clear_with_capacity(active, entries));
        for utterance in 0..self.batch() {
            let labels = self.labels(utterance);
            for site in self.lattices.utterance_sites(utterance) {
                let next = labels.get(site.label);
                ids.extend([self.blank, next.copied().unwrap_or(self.blank)]);
                ids.extend_from_slice(&self.big_blanks);
                active.extend([true, next.is_some()]);
                active.extend(self.big_blanks.iter().map(|_| true));
            }
        }
        Ok(Selection::new(ids, active, tokens)?)
    }

    /// The next label at every site.
    pub(crate) fn next_labels(&self, spare: Selection) -> Result<Selection> {
        let (ids, active) = spare.into_parts();
        let sites = self.lattices.sites();
        let (mut ids, mut active) = (clear_with_capacity(ids, sites), clear_with_capacity(active, sites));
        for utterance in 0..self.batch() {
            let labels = self.labels(utterance);
            for site in self.lattices.utterance_sites(utterance) {
                let next = labels.get(site.label);
                ids.push(next.copied().unwrap_or(self.blank));
                active.push(next.is_some());
            }
        }
        Ok(Selection::new(ids, active, 1)?)
    }

    /// Blank, label and big blanks: how many classes a site selects.
    pub(crate) fn tokens(&self) -> usize {
        2 + self.big_blanks.len()
    }
}

impl Layout {
    /// Fails if an utterance does not fit, or if rows could not be counted.
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

    /// First row of each utterance among frame rows, and their number.
    pub(crate) fn frame_starts(&self, targets: &Targets) -> Starts {
        match *self {
            Self::Packed => Starts::running(targets.batch(), |b| targets.frames(b)),
            Self::Padded { frames, .. } => Starts::Every(frames, targets.batch()),
        }
    }

    /// First row of each utterance among label rows, and their number.
    pub(crate) fn label_starts(&self, targets: &Targets) -> Starts {
        match *self {
            Self::Packed => Starts::running(targets.batch(), |b| targets.labels(b).len() + 1),
            Self::Padded { positions, .. } => Starts::Every(positions, targets.batch()),
        }
    }

    /// Rows of a scores matrix.
    pub(crate) fn score_rows(&self, targets: &Targets) -> usize {
        match *self {
            Self::Packed => targets.lattices().sites(),
            Self::Padded { frames, positions } => targets.batch() * frames * positions,
        }
    }

    /// For each row of a scores matrix the site that it belongs to, [`panda_core::scores::PADDING`] for none.
    pub(crate) fn site_of_row(&self, targets: &Targets) -> Vec<u32> {
        let lattices = targets.lattices();
        let Self::Padded { frames, positions } = *self else {
            return (0..lattices.sites() as u32).collect();
        };
        let mut sites = vec![panda_core::scores::PADDING; self.score_rows(targets)];
        for b in 0..targets.batch() {
            for (site, Site { frame, label }) in lattices.site_range(b).zip(lattices.utterance_sites(b)) {
                sites[(b * frames + frame) * positions + label] = site as u32;
            }
        }
        sites
    }
}

/// First rows of utterances.
pub(crate) enum Starts {
    /// One after the other; the last is the number of rows.
    Listed(Vec<usize>),
    /// So many rows for each of so many utterances.
    Every(usize, usize),
}

impl Starts {
    fn running(batch: usize, rows: impl Fn(usize) -> usize) -> Self {
        let mut starts = Vec::with_capacity(batch + 1);
        starts.push(0);
        (0..batch).for_each(|b| starts.push(starts[b] + rows(b)));
        Self::Listed(starts)
    }

    /// That of an utterance.
    pub fn of(&self, utterance: usize) -> usize {
        match self {
            Self::Listed(starts) => starts[utterance],
            Self::Every(rows, _) => utterance * rows,
        }
    }

    /// All rows.
    pub fn total(&self) -> usize {
        match self {
            Self::Listed(starts) => starts.last().copied().unwrap_or(0),
            Self::Every(rows, batch) => rows * batch,
        }
    }
}
