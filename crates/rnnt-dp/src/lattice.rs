//! The packed sites of a batch.
use std::ops::Range;

use crate::{Error, Result};

/// A lattice node of an utterance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// Frame t.
    pub frame: usize,
    /// Labels emitted so far, u.
    pub label: usize,
}

/// Shapes of a batch of lattices; sites are packed utterance after utterance, t-major, without padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lattices {
    frames: Vec<usize>,
    labels: Vec<usize>,
    offsets: Vec<usize>,
}

impl Lattices {
    /// Lattices of `T_b` frames and `U_b` labels.
    ///
    /// # Errors
    /// No utterance, lists of different lengths, an utterance without frames, more sites than `u32` indices.
    pub fn new(frames: Vec<usize>, labels: Vec<usize>) -> Result<Self> {
        if frames.is_empty() {
            return Err(Error::EmptyBatch);
        }
        if frames.len() != labels.len() {
            return Err(Error::Length { argument: "labels", expected: frames.len(), found: labels.len() });
        }
        let mut offsets = vec![0usize];
        for (utterance, (&t, &u)) in frames.iter().zip(&labels).enumerate() {
            if t == 0 {
                return Err(Error::NoFrames { utterance });
            }
            let last = offsets[utterance];
            let end = u.checked_add(1).and_then(|u| t.checked_mul(u)).and_then(|n| n.checked_add(last));
            match end.filter(|&end| end < u32::MAX as usize) {
                Some(end) => offsets.push(end),
                None => return Err(Error::TooLarge { utterance, frames: t, labels: u }),
            }
        }
        Ok(Self { frames, labels, offsets })
    }

    /// B
    pub fn batch(&self) -> usize {
        self.frames.len()
    }

    /// Some utterances, as a batch of their own.
    ///
    /// # Panics
    /// If the range is empty or reaches beyond the batch.
    pub fn part(&self, utterances: Range<usize>) -> Self {
        assert!(!utterances.is_empty(), "part: expected at least one utterance");
        let first = self.offsets[utterances.start];
        let offsets = &self.offsets[utterances.start..=utterances.end];
        Self {
            frames: self.frames[utterances.clone()].to_vec(),
            labels: self.labels[utterances.clone()].to_vec(),
            offsets: offsets.iter().map(|offset| offset - first).collect(),
        }
    }

    /// N = Σ T_b (U_b + 1)
    pub fn sites(&self) -> usize {
        self.offsets[self.batch()]
    }

    /// T of an utterance.
    ///
    /// # Panics
    /// Here and below: if there is no such utterance.
    pub fn frames(&self, utterance: usize) -> usize {
        self.frames[utterance]
    }

    /// U of an utterance.
    pub fn labels(&self, utterance: usize) -> usize {
        self.labels[utterance]
    }

    /// The sites of an utterance among all.
    pub fn range(&self, utterance: usize) -> Range<usize> {
        self.offsets[utterance]..self.offsets[utterance + 1]
    }

    /// The sites of an utterance in their order.
    pub fn sites_of(&self, utterance: usize) -> impl Iterator<Item = Site> + use<> {
        let labels = self.labels[utterance];
        (0..self.frames[utterance])
            .flat_map(move |frame| (0..=labels).map(move |label| Site { frame, label }))
    }

    /// Cuts packed values, `width` a site, into one slice an utterance.
    pub(crate) fn split_mut<'a, T>(&self, mut values: &'a mut [T], width: usize) -> Vec<&'a mut [T]> {
        let mut parts = Vec::with_capacity(self.batch());
        for utterance in 0..self.batch() {
            let (part, rest) = values.split_at_mut(self.range(utterance).len() * width);
            parts.push(part);
            values = rest;
        }
        parts
    }
}
