//! Pruning ranges: the label positions of each frame that the second pass keeps.
//!
//! They are selected from the arc posteriors of the first pass (occupancies). t: one of T frames;
//! u: label position from 0 to U; r: width of a band.
use std::ops::Range;

use rayon::prelude::*;
use rnnt_dp::{Lattices, Topology};

use crate::{Error, Result, batch::prefix_sums, error::expect_len, label_arc::LabelArc};

/// A band of label positions for each frame of a batch.
///
/// The bands of an utterance have one width. The first starts at 0, none starts before the previous
/// one, and they contain a path if the utterance has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranges {
    /// First label position of each frame, utterance after utterance.
    starts: Vec<usize>,
    /// Width of the bands of each utterance.
    widths: Vec<usize>,
    /// Index of each utterance's first start, and the number of starts.
    offsets: Vec<usize>,
}

impl Ranges {
    /// Selects the bands that keep the most occupancy.
    ///
    /// For a width r and occupancies `o`, the preferred start of a frame is
    ///
    /// ```text
    /// argmax_s  Σ_{s <= u < s+r} o(blank at (t,u)) - o(label at (t,s-1))      (the first maximum)
    /// ```
    ///
    /// (Kuang et al. 2022), and U - r + 1 in the last frame. Starts are then limited: a start is at
    /// most that of the next frame; the two differ by at most the labels that a frame can emit
    /// (r - 1; 1 if a label advances a frame); and the first start is 0. This is
    /// `get_rnnt_prune_ranges` of fast_rnnt for a batch of one.
    ///
    /// r is `s_range`, or U + 1 if that is less. If labels stay in their frame and an utterance has
    /// more than (r - 1) T of them, fast_rnnt would keep no path; here its bands are as wide as
    /// necessary.
    ///
    /// # Shapes
    /// `occupancies` *N x 2*: blank, next label, as
    /// [`FirstPass::occupancies`](crate::FirstPass::occupancies).
    ///
    /// # Errors
    /// `s_range` below 2, or below 1 for [`Topology::modified`]: regular bands of one position
    /// could not advance, and constrained label arcs read the blank of the next position. An
    /// unsupported topology; a wrong length; an occupancy that is not finite; lattices that are
    /// bands already.
    ///
    /// # Cost
    /// O(N r) additions.
    ///
    /// ```
    /// use pruned::Ranges;
    /// use rnnt_dp::{Lattices, Topology};
    /// // T = 3, U = 2; blank, label: the first frame emits both labels.
    /// let certain = [0., 1., 0., 1., 1., 0., 0., 0., 0., 0., 1., 0., 0., 0., 0., 0., 1., 0.];
    /// let lattices = Lattices::new(vec![3], vec![2])?;
    /// let ranges = Ranges::new(&certain, &lattices, &Topology::rnnt(), 2)?;
    /// assert_eq!((0..3).map(|t| ranges.band(0, t)).collect::<Vec<_>>(), [0..2, 1..3, 1..3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(
        occupancies: &[f64],
        lattices: &Lattices,
        topology: &Topology,
        s_range: usize,
    ) -> Result<Self> {
        let label_arc = check_support(lattices, topology, s_range)?;
        expect_len("occupancies", 2 * lattices.num_sites(), occupancies.len())?;
        let utterance_occupancies =
            |b: usize| &occupancies[2 * lattices.site_range(b).start..2 * lattices.site_range(b).end];
        for utterance in 0..lattices.batch() {
            if let Some(&found) = utterance_occupancies(utterance).iter().find(|o| !o.is_finite()) {
                return Err(Error::Occupancy { utterance, found });
            }
        }
        let widths = band_widths(lattices, label_arc, s_range);
        let starts: Vec<Vec<usize>> = (0..lattices.batch())
            .into_par_iter()
            .map(|b| {
                band_starts(
                    utterance_occupancies(b),
                    lattices.num_frames(b),
                    lattices.num_labels(b),
                    widths[b],
                    label_arc,
                )
            })
            .collect();
        Ok(Self::from_starts(starts, widths))
    }

    /// Creates the bands of [`Ranges::new`] with all starts at 0.
    ///
    /// They are known before the occupancies, for planning.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_zero_starts(lattices: &Lattices, topology: &Topology, s_range: usize) -> Result<Self> {
        let label_arc = check_support(lattices, topology, s_range)?;
        let starts = (0..lattices.batch()).map(|b| vec![0; lattices.num_frames(b)]).collect();
        Ok(Self::from_starts(starts, band_widths(lattices, label_arc, s_range)))
    }

    /// Creates ranges from the starts of each utterance.
    fn from_starts(starts: Vec<Vec<usize>>, widths: Vec<usize>) -> Self {
        let mut offsets = Vec::with_capacity(starts.len() + 1);
        offsets.extend(prefix_sums(starts.iter().map(Vec::len)));
        let starts = starts.concat();
        offsets.push(starts.len());
        Self { starts, widths, offsets }
    }

    /// Concatenates the bands of several batches.
    pub fn concat(batches: &[Self]) -> Self {
        let starts =
            || batches.iter().flat_map(|ranges| (0..ranges.batch()).map(move |b| ranges.starts(b).to_vec()));
        let widths = batches.iter().map(|ranges| ranges.widths.as_slice()).collect::<Vec<_>>().concat();
        Self::from_starts(starts().collect(), widths)
    }

    /// Returns the label positions that a frame keeps.
    ///
    /// # Panics
    /// If there is no such utterance or frame, as for the methods below.
    pub fn band(&self, utterance: usize, frame: usize) -> Range<usize> {
        let start = self.starts(utterance)[frame];
        start..start + self.widths[utterance]
    }

    /// Returns the first label position of each frame.
    pub fn starts(&self, utterance: usize) -> &[usize] {
        &self.starts[self.offsets[utterance]..self.offsets[utterance + 1]]
    }

    /// Returns the width of the bands.
    pub fn width(&self, utterance: usize) -> usize {
        self.widths[utterance]
    }

    /// Returns the number of utterances B.
    pub fn batch(&self) -> usize {
        self.widths.len()
    }

    /// Returns the number of kept sites: Σ T · width.
    pub fn sites(&self) -> usize {
        (0..self.batch()).map(|b| self.starts(b).len() * self.width(b)).sum()
    }
}

/// Fails for an unsupported topology, too narrow bands, or pruned lattices.
fn check_support(lattices: &Lattices, topology: &Topology, s_range: usize) -> Result<LabelArc> {
    let label_arc = LabelArc::new(topology)?;
    if s_range < label_arc.min_width() {
        let (topology, needed) = (Box::new(topology.clone()), label_arc.min_width());
        return Err(Error::Range { topology, needed, found: s_range });
    }
    if lattices.is_full() { Ok(label_arc) } else { Err(Error::Banded) }
}

/// Returns the band width r of each utterance.
fn band_widths(lattices: &Lattices, label_arc: LabelArc, s_range: usize) -> Vec<usize> {
    let width = |b: usize| {
        let (frames, labels) = (lattices.num_frames(b), lattices.num_labels(b));
        s_range.max(label_arc.feasible_width(frames, labels)).min(labels + 1)
    };
    (0..lattices.batch()).map(width).collect()
}

/// Returns the first kept label position of each frame of an utterance.
fn band_starts(
    occupancies: &[f64],
    frames: usize,
    labels: usize,
    width: usize,
    label_arc: LabelArc,
) -> Vec<usize> {
    let rows = occupancies.chunks_exact(2 * (labels + 1));
    let mut preferred: Vec<usize> = rows.map(|row| best_start(row, width)).collect();
    preferred[frames - 1] = labels + 1 - width;
    // No band starts after the next one.
    for t in (0..frames - 1).rev() {
        preferred[t] = preferred[t].min(preferred[t + 1]);
    }
    limit_steps(&preferred, label_arc.max_start_step(width))
}

/// Returns the preferred start of a frame.
///
/// Each sum is computed from its first position, so that equal sums have equal bits.
fn best_start(row: &[f64], width: usize) -> usize {
    let kept_occupancy = |start: usize| {
        let blanks: f64 = (start..start + width).map(|u| row[2 * u]).sum();
        let label_before = if start == 0 { 0.0 } else { row[2 * start - 1] };
        blanks - label_before
    };
    let last_start = row.len() / 2 - width;
    let (mut best_start, mut max_kept) = (0, kept_occupancy(0));
    for start in 1..=last_start {
        let kept = kept_occupancy(start);
        if kept > max_kept {
            (best_start, max_kept) = (start, kept);
        }
    }
    best_start
}

/// Limits the first start to 0, and steps between starts to `max_step`.
fn limit_steps(preferred: &[usize], max_step: usize) -> Vec<usize> {
    let mut starts = preferred.to_vec();
    for t in (0..starts.len() - 1).rev() {
        starts[t] = starts[t].max(starts[t + 1].saturating_sub(max_step));
    }
    starts.iter().enumerate().map(|(t, &start)| start.min(t.saturating_mul(max_step))).collect()
}
