//! Connectionist temporal classification (CTC) as an objective of the loss.
//!
//! A site of CTC is a frame. It needs the log-probabilities of the blank and of the distinct labels
//! of its utterance (its selection), not those of all classes. `rnnt_dp::ctc` runs the
//! forward-backward recursions; this module selects the classes, plans the memory, and distributes
//! the utterances over lanes: parallel tasks, each with its own buffers and consecutive utterances.
use std::ops::Range;

use kernels::{ScratchReq, items_mut, par_find, parts_mut};
use panda_core::Selection;
use rnnt_dp::{Regularizers, ctc::CtcWorkspace};

use crate::{Error, Layout, Result, Targets, site_buffers::clear_with_capacity};

/// Maximum number of lanes: lattices of a group that are processed in parallel.
pub(crate) const MAX_LANES: usize = 64;

/// Context that error messages name: an argument is incompatible *for CTC*.
const FOR_CTC: &str = "for CTC";
/// Bytes of a lane for small vectors, an allowance.
const LIST_BYTES: usize = 4096;

/// CTC targets of a batch.
pub(crate) struct CtcObjective {
    /// Targets without labels, whose sites are the frames.
    frame_targets: Targets,
    utterances: Vec<CtcUtterance>,
}

/// Labels of an utterance and the classes that its frames select.
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

    /// Emission column of each label; the blank has the first.
    fn label_columns(&self) -> Vec<usize> {
        let column = |label| 1 + self.classes.partition_point(|class| class < label);
        self.labels.iter().map(column).collect()
    }

    /// Computes the loss and the adjoints of the emissions.
    ///
    /// `emissions` and `adjoints` are *T x width*; `adjoints` must be 0. Repeated labels share a
    /// column here; the recursions need a column for each label, so emissions are copied first.
    fn forward_backward(
        &self,
        emissions: &[f64],
        width: usize,
        regularizers: &Regularizers,
        adjoints: &mut [f64],
        lane: &mut CtcLane,
    ) -> Result<f64> {
        // Copy the emissions, from a column per class to a column per label.
        let columns = self.label_columns();
        let label_width = columns.len() + 1;
        let entries = emissions.len() / width * label_width;
        let CtcLane { label_emissions, label_adjoints, recursions } = lane;
        *label_emissions = clear_with_capacity(std::mem::take(label_emissions), entries);
        for row in emissions.chunks_exact(width) {
            label_emissions.push(row[0]);
            label_emissions.extend(columns.iter().map(|&column| row[column]));
        }
        // Loss and adjoints by label.
        kernels::ensure_len(label_adjoints, entries, 0.0);
        let label_adjoints = &mut label_adjoints[..entries];
        let loss =
            recursions.forward_backward(&self.labels, label_emissions, regularizers, label_adjoints)?;
        // Sum the weighted adjoints of repeated labels.
        for (out, row) in adjoints.chunks_exact_mut(width).zip(label_adjoints.chunks_exact(label_width)) {
            out[0] = row[0];
            for (position, (&column, adjoint)) in columns.iter().zip(&row[1..]).enumerate() {
                out[column] += self.weights.get(position).unwrap_or(&1.0) * adjoint;
            }
        }
        Ok(loss)
    }
}

/// Buffers for one utterance at a time, reused from call to call.
#[derive(Debug, Default)]
pub(crate) struct CtcLane {
    /// Emissions, one column for the blank and each label.
    label_emissions: Vec<f64>,
    /// Adjoints of `label_emissions`.
    label_adjoints: Vec<f64>,
    recursions: CtcWorkspace,
}

/// Scratch memory of a lane, by buffer.
#[derive(Clone, Copy)]
struct CtcLaneScratch {
    /// Emissions and adjoints by label.
    label_values: ScratchReq,
    /// Forward and backward recursions.
    recursions: ScratchReq,
    /// Lists of one utterance, which are freed after it.
    lists: ScratchReq,
}

impl CtcLaneScratch {
    const EMPTY: Self =
        Self { label_values: ScratchReq::EMPTY, recursions: ScratchReq::EMPTY, lists: ScratchReq::EMPTY };

    /// The larger requirement of each buffer.
    fn or(self, other: Self) -> Self {
        Self {
            label_values: self.label_values.or(other.label_values),
            recursions: self.recursions.or(other.recursions),
            lists: self.lists.or(other.lists),
        }
    }

    fn total(self) -> ScratchReq {
        self.label_values.and(self.recursions).and(self.lists)
    }
}

impl CtcLane {
    /// Allocated bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.allocated().total().bytes()
    }

    /// Allocated memory by buffer.
    fn allocated(&self) -> CtcLaneScratch {
        let label_values = self.label_emissions.capacity().max(self.label_adjoints.capacity());
        CtcLaneScratch {
            label_values: ScratchReq::new::<f64>(label_values).times(2),
            recursions: ScratchReq::from_bytes(self.recursions.allocated_bytes()),
            lists: ScratchReq::EMPTY,
        }
    }
}

impl CtcObjective {
    /// Takes the targets of a batch.
    ///
    /// # Errors
    /// Targets with big blanks or bands.
    pub(crate) fn new(targets: &Targets) -> Result<Self> {
        if targets.num_big_blanks() > 0 {
            return Err(Error::incompatible("targets.big_blanks", FOR_CTC, targets.num_big_blanks()));
        }
        if !targets.lattices().is_full() {
            return Err(Error::incompatible("targets.retained", FOR_CTC, "bands"));
        }
        let utterances = 0..targets.batch();
        let frames = utterances.clone().map(|b| targets.frames(b)).collect();
        let frame_targets = Targets::new(targets.blank(), frames, vec![Vec::new(); targets.batch()])?;
        let utterances =
            utterances.map(|b| CtcUtterance::new(targets.labels(b), targets.token_weights(b))).collect();
        Ok(Self { frame_targets, utterances })
    }

    /// Converts a layout of sites to one with a row per frame.
    pub(crate) fn layout(layout: Layout) -> Layout {
        match layout {
            Layout::Packed => Layout::Packed,
            Layout::Padded { frames, .. } => Layout::Padded { frames, positions: 1 },
        }
    }

    /// Targets without labels, whose sites are the frames.
    pub(crate) fn frame_targets(&self) -> &Targets {
        &self.frame_targets
    }

    /// Number of columns: the blank, and the most distinct labels of an utterance.
    pub(crate) fn num_columns(&self) -> usize {
        1 + self.utterances.iter().map(|utterance| utterance.classes.len()).max().unwrap_or(0)
    }

    /// Objective of a range of utterances.
    pub(crate) fn part(&self, utterances: Range<usize>) -> Self {
        let frame_targets = self.frame_targets.part(utterances.clone());
        Self { frame_targets, utterances: self.utterances[utterances].to_vec() }
    }

    /// Bytes of a copy of an utterance's labels, classes and weights.
    pub(crate) fn utterance_bytes(&self, utterance: usize) -> usize {
        let CtcUtterance { labels, weights, classes } = &self.utterances[utterance];
        size_of::<u32>() * (labels.len() + classes.len()) + size_of::<f64>() * weights.len()
    }

    /// Memory of a lane for a range of utterances.
    pub(crate) fn lane_scratch(&self, utterances: Range<usize>) -> ScratchReq {
        self.lane_scratch_by_buffer(utterances).total()
    }

    /// Memory of each buffer of a lane for a range of utterances.
    fn lane_scratch_by_buffer(&self, utterances: Range<usize>) -> CtcLaneScratch {
        let utterance_scratch = utterances.map(|b| {
            let (frames, labels) = (self.frame_targets.frames(b), self.utterances[b].labels.len());
            CtcLaneScratch {
                label_values: ScratchReq::new::<f64>(frames * (labels + 1)).times(2),
                recursions: CtcWorkspace::scratch(frames, labels),
                // The column of each label, and the allowance for small vectors.
                lists: ScratchReq::from_bytes(size_of::<usize>() * labels + LIST_BYTES),
            }
        });
        utterance_scratch.fold(CtcLaneScratch::EMPTY, CtcLaneScratch::or)
    }

    /// Selects the blank and the distinct labels at every frame.
    pub(crate) fn selection(&self, spare: Selection) -> Result<Selection> {
        let (blank, columns) = (self.frame_targets.blank(), self.num_columns());
        let entries = self.frame_targets.lattices().num_sites() * columns;
        let (ids, active) = spare.into_parts();
        let (mut ids, mut active) = (clear_with_capacity(ids, entries), clear_with_capacity(active, entries));
        for (b, utterance) in self.utterances.iter().enumerate() {
            let selected = 1 + utterance.classes.len();
            for _ in 0..self.frame_targets.frames(b) {
                ids.push(blank);
                ids.extend_from_slice(&utterance.classes);
                ids.extend(std::iter::repeat_n(blank, columns - selected));
                active.extend((0..columns).map(|column| column < selected));
            }
        }
        Ok(Selection::new(ids, active, columns)?)
    }

    /// Computes losses and adjoints of the emissions, including token weights.
    ///
    /// ```text
    /// par for each lane:  for each of its utterances:  both directions
    /// ```
    pub(crate) fn forward_backward(
        &self,
        emissions: &[f64],
        regularizers: &Regularizers,
        lanes: &mut Vec<CtcLane>,
        budget: usize,
        losses: &mut [f64],
        adjoints: &mut [f64],
    ) -> Result<()> {
        let (width, lattices) = (self.num_columns(), self.frame_targets.lattices());
        // As many lanes as the budget allows; larger ones of earlier calls are freed if necessary.
        let needed = self.lane_scratch_by_buffer(0..self.utterances.len());
        let lane_bytes = needed.total().bytes();
        let num_lanes = (budget / lane_bytes.max(1)).clamp(1, self.utterances.len().min(MAX_LANES));
        lanes.truncate(num_lanes);
        let existing_bytes: usize =
            lanes.iter().map(|lane| lane.allocated().or(needed).total().bytes()).sum();
        if existing_bytes.saturating_add((num_lanes - lanes.len()) * lane_bytes) > budget {
            *lanes = Vec::new();
        }
        lanes.resize_with(num_lanes, CtcLane::default);
        // Split inputs and results by utterance.
        let mut remaining_adjoints = adjoints;
        let utterances = losses.iter_mut().zip(&self.utterances).enumerate().map(|(b, (loss, utterance))| {
            let Range { start, end } = lattices.site_range(b);
            let utterance_adjoints = remaining_adjoints
                .split_off_mut(..(end - start) * width)
                .expect("every utterance has adjoints");
            (b, utterance, &emissions[start * width..end * width], loss, utterance_adjoints)
        });
        let mut utterances: Vec<_> = utterances.collect();
        // Run each lane over consecutive utterances.
        let utterances_per_lane = utterances.len().div_ceil(num_lanes);
        let error = par_find(
            (parts_mut(&mut utterances, utterances_per_lane), items_mut(lanes)),
            |_, (utterances, lane)| {
                let mut utterances = utterances.iter_mut();
                let outcome = utterances.try_for_each(|(b, utterance, emissions, loss, adjoints)| {
                    let outcome = utterance.forward_backward(emissions, width, regularizers, adjoints, lane);
                    **loss = outcome.map_err(|error| error.in_group(*b))?;
                    Ok(())
                });
                outcome.err()
            },
        );
        error.map_or(Ok(()), Err)
    }
}
