//! Pruning ranges: for each frame the label positions that are kept.
use std::ops::Range;

use rayon::prelude::*;
use rnnt_dp::{Lattices, Topology};

use crate::{Error, Result, batch::running, error::expect, moves::Moves};

/// A band of label positions for each frame of a batch.
///
/// In each utterance all bands have one width; the first begins at 0, none begins before the one of the frame before
/// it, and an utterance that has a path keeps one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranges {
    starts: Vec<usize>,
    widths: Vec<usize>,
    /// Where the starts of each utterance begin, and the end of the last.
    offsets: Vec<usize>,
}

impl Ranges {
    /// The bands that keep the most of the occupancies.
    ///
    /// With r the width and `o` the occupancies, a frame asks for
    ///
    /// ```text
    /// argmax_s  Σ_{s <= u < s+r} o(blank at (t,u)) - o(label at (t,s-1))        (the first of equals)
    /// ```
    ///
    /// (Kuang et al. 2022), and the last one for U - r + 1. Then no band may begin behind the one of the
    /// frame after it, nor further before it than labels can be emitted in a frame (r - 1; 1 if a label moves on by
    /// a frame), nor so late that the first could not begin at 0: `get_rnnt_prune_ranges` of fast_rnnt for a batch of
    /// one.
    ///
    /// r is `s_range`, or U + 1 if that is less. Where labels stay on their frame, an utterance with more than (r - 1) T of them, of which
    /// fast_rnnt would keep no path, gets bands that are as wide as it takes.
    ///
    /// # Shapes
    /// `occupancies` *N x 2*: blank, next label, as [`FirstPass::occupancies`](crate::FirstPass::occupancies).
    ///
    /// # Errors
    /// `s_range` below 2, or below 1 for [`Topology::modified`] (regular bands of one position could never move on,
    /// and constrained label arcs read the blank of the next position); a topology of other moves; a wrong length, an occupancy
    /// that is not finite, lattices of which only bands are left.
    ///
    /// # Cost
    /// O(N r) additions.
    ///
    /// ```
    /// use pruned::Ranges;
    /// use rnnt_dp::{Lattices, Topology};
    /// // T = 3, U = 2; blank, label: the first frame emits both labels.
    /// let certain = [0., 1., 0., 1., 1., 0., 0., 0., 0., 0., 1., 0., 0., 0., 0., 0., 1., 0.];
    /// let ranges = Ranges::new(&certain, &Lattices::new(vec![3], vec![2])?, &Topology::rnnt(), 2)?;
    /// assert_eq!((0..3).map(|t| ranges.band(0, t)).collect::<Vec<_>>(), [0..2, 1..3, 1..3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(
        occupancies: &[f64],
        lattices: &Lattices,
        topology: &Topology,
        s_range: usize,
    ) -> Result<Self> {
        let moves = checked(lattices, topology, s_range)?;
        expect("occupancies", 2 * lattices.sites(), occupancies.len())?;
        let of = |b: usize| &occupancies[2 * lattices.range(b).start..2 * lattices.range(b).end];
        for utterance in 0..lattices.batch() {
            if let Some(&found) = of(utterance).iter().find(|o| !o.is_finite()) {
                return Err(Error::Occupancy { utterance, found });
            }
        }
        let widths = widths(lattices, moves, s_range);
        let bands: Vec<Vec<usize>> = (0..lattices.batch())
            .into_par_iter()
            .map(|b| utterance(of(b), lattices.frames(b), lattices.labels(b), widths[b], moves))
            .collect();
        Ok(Self::from_bands(bands, widths))
    }

    /// As wide and as many as those that [`Ranges::new`] finds, all of them from 0 on: what is known before occupancies are.
    ///
    /// # Errors
    /// As there.
    pub fn shapes(lattices: &Lattices, topology: &Topology, s_range: usize) -> Result<Self> {
        let moves = checked(lattices, topology, s_range)?;
        let bands = (0..lattices.batch()).map(|b| vec![0; lattices.frames(b)]).collect();
        Ok(Self::from_bands(bands, widths(lattices, moves, s_range)))
    }

    fn from_bands(bands: Vec<Vec<usize>>, widths: Vec<usize>) -> Self {
        let mut offsets = Vec::with_capacity(bands.len() + 1);
        offsets.extend(running(bands.iter().map(Vec::len)));
        let starts = bands.concat();
        offsets.push(starts.len());
        Self { starts, widths, offsets }
    }

    /// Those of one batch after the other.
    pub fn concat(parts: &[Self]) -> Self {
        let each = || parts.iter().flat_map(|part| (0..part.batch()).map(move |b| part.starts(b).to_vec()));
        let widths = parts.iter().map(|part| part.widths.as_slice()).collect::<Vec<_>>().concat();
        Self::from_bands(each().collect(), widths)
    }

    /// The label positions that a frame keeps.
    ///
    /// # Panics
    /// Here and below: if there is no such utterance or frame.
    pub fn band(&self, utterance: usize, frame: usize) -> Range<usize> {
        let start = self.starts(utterance)[frame];
        start..start + self.widths[utterance]
    }

    /// The first label position of each frame.
    pub fn starts(&self, utterance: usize) -> &[usize] {
        &self.starts[self.offsets[utterance]..self.offsets[utterance + 1]]
    }

    /// Label positions of each band.
    pub fn width(&self, utterance: usize) -> usize {
        self.widths[utterance]
    }

    /// B
    pub fn batch(&self) -> usize {
        self.widths.len()
    }

    /// Sites that are kept: Σ T · width.
    pub fn sites(&self) -> usize {
        (0..self.batch()).map(|b| self.starts(b).len() * self.width(b)).sum()
    }
}

fn checked(lattices: &Lattices, topology: &Topology, s_range: usize) -> Result<Moves> {
    let moves = Moves::new(topology)?;
    if s_range < moves.needed() {
        let (topology, needed) = (Box::new(topology.clone()), moves.needed());
        return Err(Error::Range { topology, needed, found: s_range });
    }
    if lattices.full() { Ok(moves) } else { Err(Error::Banded) }
}

fn widths(lattices: &Lattices, moves: Moves, s_range: usize) -> Vec<usize> {
    let width = |b: usize| {
        let (frames, labels) = (lattices.frames(b), lattices.labels(b));
        s_range.max(moves.fitting(frames, labels)).min(labels + 1)
    };
    (0..lattices.batch()).map(width).collect()
}

fn utterance(occupancies: &[f64], frames: usize, labels: usize, width: usize, moves: Moves) -> Vec<usize> {
    let rows = occupancies.chunks_exact(2 * (labels + 1));
    let mut wanted: Vec<usize> = rows.map(|row| best(row, width)).collect();
    wanted[frames - 1] = labels + 1 - width;
    // A band ends where the last does; the same for all before.
    for t in (0..frames - 1).rev() {
        wanted[t] = wanted[t].min(wanted[t + 1]);
    }
    limit(&wanted, moves.step(width))
}

/// The start that a frame asks for. Each sum is taken anew, from its first position on, as equal ones must be equal.
fn best(row: &[f64], width: usize) -> usize {
    let kept = |start: usize| {
        let blanks: f64 = (start..start + width).map(|u| row[2 * u]).sum();
        let entered = if start == 0 { 0.0 } else { row[2 * start - 1] };
        blanks - entered
    };
    let last = row.len() / 2 - width;
    let mut most = (0, kept(0));
    for start in 1..=last {
        let kept = kept(start);
        if kept > most.1 {
            most = (start, kept);
        }
    }
    most.0
}

/// Moves starts down so that the first is 0 and up so that none is more than `step` before the next.
fn limit(wanted: &[usize], step: usize) -> Vec<usize> {
    let mut starts = wanted.to_vec();
    for t in (0..starts.len() - 1).rev() {
        starts[t] = starts[t].max(starts[t + 1].saturating_sub(step));
    }
    starts.iter().enumerate().map(|(t, &start)| start.min(t.saturating_mul(step))).collect()
}
