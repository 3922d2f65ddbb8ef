//! The packed sites of a batch.
use std::ops::Range;

use crate::{Error, Result, forward_backward::expect};

/// A lattice node of an utterance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// Frame t.
    pub frame: usize,
    /// Labels emitted so far, u.
    pub label: usize,
}

/// Shapes of a batch of lattices; sites are packed utterance after utterance, t-major, without padding.
///
/// A lattice is full, or what pruning retained of it: a band of label positions at each frame ([`Lattices::banded`]). An
/// arc to a site that was not retained does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lattices {
    frames: Vec<usize>,
    labels: Vec<usize>,
    offsets: Vec<usize>,
    /// One an utterance, or none if all are full.
    bands: Vec<Bands>,
}

/// The retained sites of an utterance.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bands {
    /// Smallest label position of each frame.
    low: Vec<u32>,
    /// Sites before each frame, and those of all.
    first: Vec<u32>,
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
        Ok(Self { frames, labels, offsets, bands: Vec::new() })
    }

    /// Lattices of `U_b` labels of which only some sites exist: at each frame, those of `bands[b][t]`.
    ///
    /// ```
    /// use rnnt_dp::{Lattices, Site};
    /// let lattices = Lattices::banded(vec![2], vec![vec![0..2, 1..3]])?; // T = 2, U = 2
    /// let last = Site { frame: 1, label: 2 };
    /// assert_eq!((lattices.sites(), lattices.sites_of(0).last()), (4, Some(last)));
    /// # Ok::<(), rnnt_dp::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Lattices::new`]; a band that is empty or reaches beyond U.
    pub fn banded(labels: Vec<usize>, bands: Vec<Vec<Range<usize>>>) -> Result<Self> {
        let mut lattices = Self::new(bands.iter().map(Vec::len).collect(), labels)?;
        let mut sites = 0;
        for (utterance, bands) in bands.iter().enumerate() {
            let positions = lattices.labels[utterance] + 1;
            let mut kept = Bands { low: Vec::with_capacity(bands.len()), first: vec![0] };
            for (frame, band) in bands.iter().enumerate() {
                if band.is_empty() || band.end > positions {
                    let found = band.clone();
                    return Err(Error::Band { utterance, frame, positions, found });
                }
                kept.low.push(band.start as u32);
                kept.first.push(kept.first[frame] + band.len() as u32);
            }
            sites += kept.first[bands.len()] as usize;
            lattices.offsets[utterance + 1] = sites;
            lattices.bands.push(kept);
        }
        Ok(lattices)
    }

    /// Fails unless there is one finite weight for each label of each utterance.
    ///
    /// # Errors
    /// Names the first utterance where there is not.
    pub fn check_token_weights(&self, weights: &[Vec<f64>]) -> Result<()> {
        expect("token_weights", self.batch(), weights.len())?;
        for (utterance, (weights, &expected)) in weights.iter().zip(&self.labels).enumerate() {
            if weights.len() != expected {
                return Err(Error::TokenWeights { utterance, expected, found: weights.len() });
            }
            if let Some(label) = weights.iter().position(|weight| !weight.is_finite()) {
                return Err(Error::TokenWeight { utterance, label, found: weights[label] });
            }
        }
        Ok(())
    }

    /// Whether every site of every lattice exists.
    pub fn full(&self) -> bool {
        self.bands.is_empty()
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
            bands: if self.full() { Vec::new() } else { self.bands[utterances].to_vec() },
        }
    }

    /// N = Σ T_b (U_b + 1), or as many as were retained.
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

    /// The label positions that a frame of an utterance has.
    pub fn positions(&self, utterance: usize, frame: usize) -> Range<usize> {
        match self.bands.get(utterance) {
            None => 0..self.labels[utterance] + 1,
            Some(Bands { low, first }) => {
                let low = low[frame] as usize;
                low..low + (first[frame + 1] - first[frame]) as usize
            }
        }
    }

    /// Where a site is among those of its utterance, if it is one of them.
    pub fn place(&self, utterance: usize, site: Site) -> Option<usize> {
        let Site { frame, label } = site;
        let here = frame < self.frames[utterance] && self.positions(utterance, frame).contains(&label);
        here.then(|| match self.bands.get(utterance) {
            None => frame * (self.labels[utterance] + 1) + label,
            Some(Bands { low, first }) => first[frame] as usize + label - low[frame] as usize,
        })
    }

    /// The site with an index among those of its utterance.
    ///
    /// # Panics
    /// Also if there are not so many.
    pub fn site(&self, utterance: usize, index: usize) -> Site {
        assert!(index < self.range(utterance).len(), "site: expected one of the utterance's");
        match self.bands.get(utterance) {
            None => {
                let positions = self.labels[utterance] + 1;
                Site { frame: index / positions, label: index % positions }
            }
            Some(Bands { low, first }) => {
                let frame = first.partition_point(|&first| first as usize <= index) - 1;
                Site { frame, label: low[frame] as usize + index - first[frame] as usize }
            }
        }
    }

    /// The sites of an utterance in their order.
    pub fn sites_of(&self, utterance: usize) -> impl DoubleEndedIterator<Item = Site> {
        (0..self.frames[utterance])
            .flat_map(move |frame| self.positions(utterance, frame).map(move |label| Site { frame, label }))
    }

    /// Cuts packed values, `width` a site, into one slice an utterance.
    ///
    /// # Panics
    /// If there are fewer values.
    pub fn split_mut<'a, T>(&self, mut values: &'a mut [T], width: usize) -> Vec<&'a mut [T]> {
        let mut parts = Vec::with_capacity(self.batch());
        for utterance in 0..self.batch() {
            let (part, rest) = values.split_at_mut(self.range(utterance).len() * width);
            parts.push(part);
            values = rest;
        }
        parts
    }
}
