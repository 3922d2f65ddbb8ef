//! Shapes of a batch of transducer lattices, and the order of sites.
//!
//! A site is a lattice node: frame t and label position u of an utterance. Values of the sites are
//! packed, without padding.
use std::ops::Range;

use crate::{Error, Result, forward_backward::expect_len};

/// A lattice node of an utterance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// Frame t.
    pub frame: usize,
    /// Labels emitted so far, u.
    pub label: usize,
}

/// Shapes of a batch of lattices.
///
/// Sites are packed: utterance after utterance, t-major, without padding.
///
/// Either all lattices are full, or each has a band of label positions at every frame, which
/// pruning retained ([`Lattices::banded`]). An arc to a site that was not retained does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lattices {
    /// T of each utterance, its number of frames.
    frames: Vec<usize>,
    /// U of each utterance, its number of labels.
    labels: Vec<usize>,
    /// Number of sites before each utterance; the last entry is the total.
    offsets: Vec<usize>,
    /// One per utterance; empty if all lattices are full.
    bands: Vec<Bands>,
}

/// The retained sites of an utterance.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bands {
    /// Smallest label position of each frame.
    min_label: Vec<u32>,
    /// Number of sites before each frame; the last entry is the total.
    offsets: Vec<u32>,
}

impl Lattices {
    /// Lattices of `T_b` frames and `U_b` labels.
    ///
    /// # Errors
    /// No utterance; lists of different lengths; an utterance without frames; `u32::MAX` sites or
    /// more, since `u32::MAX` is not the index of a site.
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
            let begin = offsets[utterance];
            let sites = u.checked_add(1).and_then(|positions| t.checked_mul(positions));
            let end = sites.and_then(|sites| sites.checked_add(begin));
            match end.filter(|&end| end < u32::MAX as usize) {
                Some(end) => offsets.push(end),
                None => return Err(Error::TooLarge { utterance, frames: t, labels: u }),
            }
        }
        Ok(Self { frames, labels, offsets, bands: Vec::new() })
    }

    /// Lattices of `U_b` labels with only the sites of a band.
    ///
    /// `bands[b][t]` are the label positions of frame t of utterance b.
    ///
    /// ```
    /// use rnnt_dp::{Lattices, Site};
    /// let lattices = Lattices::banded(vec![2], vec![vec![0..2, 1..3]])?; // T = 2, U = 2
    /// let last = Site { frame: 1, label: 2 };
    /// assert_eq!((lattices.num_sites(), lattices.utterance_sites(0).last()), (4, Some(last)));
    /// # Ok::<(), rnnt_dp::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Lattices::new`]; a band that is empty or exceeds U.
    pub fn banded(labels: Vec<usize>, bands: Vec<Vec<Range<usize>>>) -> Result<Self> {
        let mut lattices = Self::new(bands.iter().map(Vec::len).collect(), labels)?;
        let mut sites = 0;
        for (utterance, bands) in bands.iter().enumerate() {
            let positions = lattices.labels[utterance] + 1;
            let mut retained = Bands { min_label: Vec::with_capacity(bands.len()), offsets: vec![0] };
            for (frame, band) in bands.iter().enumerate() {
                if band.is_empty() || band.end > positions {
                    return Err(Error::Band { utterance, frame, positions, found: band.clone() });
                }
                retained.min_label.push(band.start as u32);
                retained.offsets.push(retained.offsets[frame] + band.len() as u32);
            }
            sites += retained.offsets[bands.len()] as usize;
            lattices.offsets[utterance + 1] = sites;
            lattices.bands.push(retained);
        }
        Ok(lattices)
    }

    /// Checks that each label of each utterance has one finite weight.
    ///
    /// # Errors
    /// The first utterance with a wrong number of weights, or a weight that is NaN or infinite.
    pub fn check_token_weights(&self, weights: &[Vec<f64>]) -> Result<()> {
        expect_len("token_weights", self.batch(), weights.len())?;
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

    /// Returns true if the batch was built without bands.
    pub fn is_full(&self) -> bool {
        self.bands.is_empty()
    }

    /// B, the number of utterances.
    pub fn batch(&self) -> usize {
        self.frames.len()
    }

    /// Returns a range of utterances as a batch.
    ///
    /// # Panics
    /// If the range is empty or exceeds the batch.
    pub fn slice(&self, utterances: Range<usize>) -> Self {
        assert!(!utterances.is_empty(), "slice: expected at least one utterance");
        let first_site = self.offsets[utterances.start];
        let offsets = &self.offsets[utterances.start..=utterances.end];
        Self {
            frames: self.frames[utterances.clone()].to_vec(),
            labels: self.labels[utterances.clone()].to_vec(),
            offsets: offsets.iter().map(|offset| offset - first_site).collect(),
            bands: if self.is_full() { Vec::new() } else { self.bands[utterances].to_vec() },
        }
    }

    /// N, the number of sites: Σ T_b (U_b + 1), or as many as were retained.
    pub fn num_sites(&self) -> usize {
        self.offsets[self.batch()]
    }

    /// T, the number of frames of an utterance.
    ///
    /// # Panics
    /// Here and below: if the utterance does not exist.
    pub fn num_frames(&self, utterance: usize) -> usize {
        self.frames[utterance]
    }

    /// U, the number of labels of an utterance.
    pub fn num_labels(&self, utterance: usize) -> usize {
        self.labels[utterance]
    }

    /// Returns the range of an utterance's sites in the batch.
    pub fn site_range(&self, utterance: usize) -> Range<usize> {
        self.offsets[utterance]..self.offsets[utterance + 1]
    }

    /// Returns the label positions of a frame of an utterance.
    pub fn positions(&self, utterance: usize, frame: usize) -> Range<usize> {
        match self.bands.get(utterance) {
            None => 0..self.labels[utterance] + 1,
            Some(Bands { min_label, offsets }) => {
                let min_label = min_label[frame] as usize;
                min_label..min_label + (offsets[frame + 1] - offsets[frame]) as usize
            }
        }
    }

    /// Returns the index of a site in its utterance; none if the site does not exist.
    pub fn site_index(&self, utterance: usize, site: Site) -> Option<usize> {
        let Site { frame, label } = site;
        let is_retained = frame < self.frames[utterance] && self.positions(utterance, frame).contains(&label);
        is_retained.then(|| match self.bands.get(utterance) {
            None => frame * (self.labels[utterance] + 1) + label,
            Some(Bands { min_label, offsets }) => offsets[frame] as usize + label - min_label[frame] as usize,
        })
    }

    /// Returns the site of an index in its utterance.
    ///
    /// # Panics
    /// Also if the utterance has fewer sites.
    pub fn site(&self, utterance: usize, index: usize) -> Site {
        let sites = self.site_range(utterance).len();
        assert!(index < sites, "`index`: expected a site below {sites}, found {index}");
        match self.bands.get(utterance) {
            None => {
                let positions = self.labels[utterance] + 1;
                Site { frame: index / positions, label: index % positions }
            }
            Some(Bands { min_label, offsets }) => {
                let frame = offsets.partition_point(|&offset| offset as usize <= index) - 1;
                Site { frame, label: min_label[frame] as usize + index - offsets[frame] as usize }
            }
        }
    }

    /// Iterates over the sites of an utterance in their order.
    pub fn utterance_sites(&self, utterance: usize) -> impl DoubleEndedIterator<Item = Site> {
        (0..self.frames[utterance])
            .flat_map(move |frame| self.positions(utterance, frame).map(move |label| Site { frame, label }))
    }

    /// Splits packed values, `width` per site, into one slice per utterance.
    ///
    /// # Panics
    /// If there are fewer values.
    pub fn split_mut<'a, T>(&self, mut values: &'a mut [T], width: usize) -> Vec<&'a mut [T]> {
        let mut parts = Vec::with_capacity(self.batch());
        for utterance in 0..self.batch() {
            let (part, rest) = values.split_at_mut(self.site_range(utterance).len() * width);
            parts.push(part);
            values = rest;
        }
        parts
    }
}
