//! Connectionist temporal classification (CTC) as an objective.
//!
//! A site of CTC is a frame. It needs the log-probabilities of the blank and of the distinct labels
//! of its utterance (its selection), not those of all classes. Utterances run in parallel lanes,
//! each with its own buffers.
use std::ops::Range;

use kernels::{ScratchReq, items_mut, par_find, parts_mut};
use panda_core::Selection;
use rnnt_dp::{Regularizers, ctc::CtcWorkspace};

use crate::{Error, Layout, Result, Targets, site_buffers::clear_with_capacity};

const CTC: &str = "for CTC";
/// Most utterances that are processed in parallel.
const MAX_LANES: usize = 64;

/// CTC targets of a batch.
pub(crate) struct Ctc {
    /// Targets without labels, whose sites are the frames.
    frames: Targets,
    utterances: Vec<CtcUtterance>,
}

#[derive(Clone)]
struct CtcUtterance {
    labels: Vec<u32>,
    /// Token weights; empty if all are 1.
    weights: Vec<f64>,
    /// Distinct labels, sorted.
    classes: Vec<u32>,
}

impl CtcUtterance {
    fn new(labels: &[u32], weights: &[f64]) -> Self {
        let mut classes = labels.to_vec();
        classes.sort_unstable();
        classes.dedup();
        Self { labels: labels.to_vec(), weights: weights.to_vec(), classes }
    }

    /// Column of each label; the blank has the first.
    fn columns(&self) -> Vec<usize> {
        let column = |label| 1 + self.classes.partition_point(|class| class < label);
        self.labels.iter().map(column).collect()
    }

    /// Computes the loss and the adjoints of the emissions.
    ///
    /// `emissions` and `adjoints` are *T x width*; `adjoints` must be 0. Repeated labels share a
    /// column, so that emissions are first copied to one column per label (`spread`).
    fn forward_backward(
        &self,
        emissions: &[f64],
        width: usize,
        regularizers: &Regularizers,
        adjoints: &mut [f64],
        lane: &mut CtcLane,
    ) -> Result<f64> {
        let columns = self.columns();
        let label_columns = columns.len() + 1;
        let entries = emissions.len() / width * label_columns;
        let CtcLane { emissions: spread, adjoints: spread_adjoints, sums } = lane;
        *spread = clear_with_capacity(std::mem::take(spread), entries);
        for row in emissions.chunks_exact(width) {
            spread.push(row[0]);
            spread.extend(columns.iter().map(|&column| row[column]));
        }
        kernels::ensure_len(spread_adjoints, entries, 0.0);
        let spread_adjoints = &mut spread_adjoints[..entries];
        let loss = sums.forward_backward(&self.labels, spread, regularizers, spread_adjoints)?;
        for (into, row) in adjoints.chunks_exact_mut(width).zip(spread_adjoints.chunks_exact(label_columns)) {
            into[0] = row[0];
            for (label, (&column, adjoint)) in columns.iter().zip(&row[1..]).enumerate() {
                into[column] += self.weights.get(label).unwrap_or(&1.0) * adjoint;
            }
        }
        Ok(loss)
    }
}

/// Buffers for one utterance at a time, reused from call to call.
#[derive(Debug, Default)]
pub(crate) struct CtcLane {
    emissions: Vec<f64>,
    adjoints: Vec<f64>,
    sums: CtcWorkspace,
}

/// Elementwise maximum of the scratch requirements of a lane.
fn max_requirements(a: [ScratchReq; 3], b: [ScratchReq; 3]) -> [ScratchReq; 3] {
    [a[0].or(b[0]), a[1].or(b[1]), a[2].or(b[2])]
}

impl CtcLane {
    pub fn bytes(&self) -> usize {
        ScratchReq::all_of(self.held()).bytes()
    }

    /// Memory in use: emissions and adjoints by label, both recursions, lists of one utterance.
    fn held(&self) -> [ScratchReq; 3] {
        let by_label = self.emissions.capacity().max(self.adjoints.capacity());
        let sums = ScratchReq::from_bytes(self.sums.allocated_bytes());
        [ScratchReq::new::<f64>(by_label).times(2), sums, ScratchReq::EMPTY]
    }
}

impl Ctc {
    pub fn new(targets: &Targets) -> Result<Self> {
        if targets.tokens() > 2 {
            return Err(Error::incompatible("targets.big_blanks", CTC, targets.tokens() - 2));
        }
        if !targets.lattices().is_full() {
            return Err(Error::incompatible("targets.retained", CTC, "bands"));
        }
        let utterances = 0..targets.batch();
        let frames = utterances.clone().map(|b| targets.frames(b)).collect();
        let frames = Targets::new(targets.blank(), frames, vec![Vec::new(); targets.batch()])?;
        let utterances =
            utterances.map(|b| CtcUtterance::new(targets.labels(b), targets.token_weights(b))).collect();
        Ok(Self { frames, utterances })
    }

    /// Layout with one row per frame.
    pub fn layout(layout: Layout) -> Layout {
        match layout {
            Layout::Packed => Layout::Packed,
            Layout::Padded { frames, .. } => Layout::Padded { frames, positions: 1 },
        }
    }

    /// Targets without labels, whose sites are the frames.
    pub fn frames(&self) -> &Targets {
        &self.frames
    }

    /// Number of columns: the blank, and the most distinct labels of an utterance.
    pub fn columns(&self) -> usize {
        1 + self.utterances.iter().map(|utterance| utterance.classes.len()).max().unwrap_or(0)
    }

    /// Objective of a range of utterances.
    pub fn part(&self, utterances: Range<usize>) -> Self {
        let frames = self.frames.part(utterances.clone());
        Self { frames, utterances: self.utterances[utterances].to_vec() }
    }

    /// Bytes of a copy of an utterance.
    pub fn utterance_bytes(&self, utterance: usize) -> usize {
        let CtcUtterance { labels, weights, classes } = &self.utterances[utterance];
        4 * labels.len() + 8 * weights.len() + 4 * classes.len()
    }

    /// Memory of a lane for a range of utterances.
    pub fn lane_scratch(&self, utterances: Range<usize>) -> ScratchReq {
        ScratchReq::all_of(self.lane_parts(utterances))
    }

    /// Memory of each part of a lane, in the order of [`CtcLane::held`].
    fn lane_parts(&self, utterances: Range<usize>) -> [ScratchReq; 3] {
        let parts = utterances.map(|b| {
            let (frames, labels) = (self.frames.frames(b), self.utterances[b].labels.len());
            let by_label = ScratchReq::new::<f64>(frames * (labels + 1)).times(2);
            let sums = CtcWorkspace::scratch(frames, labels);
            [by_label, sums, ScratchReq::from_bytes(8 * labels + 4096)]
        });
        parts.fold([ScratchReq::EMPTY; 3], max_requirements)
    }

    /// Selects the blank and the distinct labels at every frame.
    pub fn selection(&self, spare: Selection) -> Result<Selection> {
        let (blank, columns) = (self.frames.blank(), self.columns());
        let entries = self.frames.lattices().sites() * columns;
        let (ids, active) = spare.into_parts();
        let (mut ids, mut active) = (clear_with_capacity(ids, entries), clear_with_capacity(active, entries));
        for (b, utterance) in self.utterances.iter().enumerate() {
            let own = 1 + utterance.classes.len();
            for _ in 0..self.frames.frames(b) {
                ids.push(blank);
                ids.extend_from_slice(&utterance.classes);
                ids.extend(std::iter::repeat_n(blank, columns - own));
                active.extend((0..columns).map(|column| column < own));
            }
        }
        Ok(Selection::new(ids, active, columns)?)
    }

    /// Computes losses and adjoints of the emissions, including token weights.
    ///
    /// ```text
    /// par for each lane:  for each of its utterances:  both directions
    /// ```
    pub fn forward_backward(
        &self,
        emissions: &[f64],
        regularizers: &Regularizers,
        (lanes, bytes): (&mut Vec<CtcLane>, usize),
        losses: &mut [f64],
        adjoints: &mut [f64],
    ) -> Result<()> {
        let (width, lattices) = (self.columns(), self.frames.lattices());
        let parts = self.lane_parts(0..self.utterances.len());
        let lane = ScratchReq::all_of(parts).bytes();
        let count = (bytes / lane.max(1)).clamp(1, self.utterances.len().min(MAX_LANES));
        lanes.truncate(count);
        let held: usize =
            lanes.iter().map(|lane| ScratchReq::all_of(max_requirements(lane.held(), parts)).bytes()).sum();
        if held.saturating_add((count - lanes.len()) * lane) > bytes {
            *lanes = Vec::new();
        }
        lanes.resize_with(count, CtcLane::default);
        let mut rest = adjoints;
        let parts = losses.iter_mut().zip(&self.utterances).enumerate().map(|(b, (loss, utterance))| {
            let Range { start, end } = lattices.site_range(b);
            let own = rest.split_off_mut(..(end - start) * width).expect("every utterance has adjoints");
            (b, utterance, &emissions[start * width..end * width], loss, own)
        });
        let mut parts: Vec<_> = parts.collect();
        let utterances_per_lane = parts.len().div_ceil(count);
        let error =
            par_find((parts_mut(&mut parts, utterances_per_lane), items_mut(lanes)), |_, (parts, lane)| {
                let mut parts = parts.iter_mut();
                let outcome = parts.try_for_each(|(b, utterance, emissions, loss, adjoints)| {
                    let outcome = utterance.forward_backward(emissions, width, regularizers, adjoints, lane);
                    **loss = outcome.map_err(|error| error.in_group(*b))?;
                    Ok(())
                });
                outcome.err()
            });
        error.map_or(Ok(()), Err)
    }
}
