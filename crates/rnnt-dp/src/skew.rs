//! A lattice by anti-diagonals.
//!
//! An arc leads from diagonal `d = t + u` to diagonal `d + frames + labels`, so that the sites of a diagonal do not
//! depend on each other, and the landings of neighbours are neighbours. A row is a diagonal, ordered by u and filled up
//! to whole vector registers; diagonal T + U is the end of all paths, one site.
//!
//! ```text
//! t\u  0 1 2        d = 0   (0,0)
//!  0   a b c            1   (1,0) (0,1)
//!  1   d e f            2         (1,1) (0,2)
//!                       3               (1,2)
//!                       4                end
//! ```
use std::ops::Range;

use kernels::{
    ScratchReq, ensure_capacity,
    scaled::{self, Diagonals, LANES},
};

use crate::{Arc, Lattices, Regularisers, Topology, compose::composed};

/// Sizes of a lane's buffers, known from shapes: the largest of the lattices that it works on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LaneSizes {
    /// Kinds of arcs.
    pub kinds: usize,
    /// Diagonals.
    pub diagonals: usize,
    /// Places of a diagonal.
    pub row: usize,
    /// Places of all diagonals.
    pub places: usize,
    /// Of the diagonals that arcs span: how many, and how long their rows are.
    pub slots: usize,
    pub stride: usize,
    /// Arcs with emissions that are not those of the columns.
    pub folded: usize,
    /// Arcs and sites of bands.
    pub band: (usize, usize),
}

impl LaneSizes {
    /// The sizes of an utterance of a batch.
    pub fn new(
        lattices: &Lattices,
        topology: &Topology,
        regularisers: &Regularisers,
        utterance: usize,
    ) -> Self {
        let (kinds, sites) = (topology.arcs().len(), lattices.range(utterance).len());
        let folded = if composed(topology, regularisers) { sites * kinds } else { 0 };
        if !lattices.full() {
            return Self { folded, band: (sites * kinds, sites), ..Self::default() };
        }
        let (frames, labels) = (lattices.frames(utterance), lattices.labels(utterance));
        let (slots, _, stride) = ring(frames, labels, topology.arcs());
        Self {
            kinds,
            diagonals: frames + labels + 1,
            row: (labels + 1).next_multiple_of(LANES),
            places: places(frames, labels),
            slots,
            stride,
            folded,
            band: (0, 0),
        }
    }

    /// The sizes for both, one after the other.
    pub fn max(self, other: Self) -> Self {
        Self {
            kinds: self.kinds.max(other.kinds),
            diagonals: self.diagonals.max(other.diagonals),
            row: self.row.max(other.row),
            places: self.places.max(other.places),
            slots: self.slots.max(other.slots),
            stride: self.stride.max(other.stride),
            folded: self.folded.max(other.folded),
            band: (self.band.0.max(other.band.0), self.band.1.max(other.band.1)),
        }
    }
}

/// The diagonals that arcs span: their number, a power of two, how far a row is read beyond either end, and its length.
pub(crate) fn ring(frames: usize, labels: usize, arcs: &[Arc]) -> (usize, usize, usize) {
    let fitting = || arcs.iter().filter(|arc| arc.frames <= frames && arc.labels <= labels);
    let span = fitting().map(|arc| arc.frames + arc.labels).max().unwrap_or(0);
    let margin = fitting().map(|arc| arc.labels).max().unwrap_or(0).next_multiple_of(LANES);
    let stride = 2 * margin + (labels + 1).next_multiple_of(LANES) + LANES;
    ((span + 1).next_power_of_two(), margin, stride)
}

/// Where the sites of one utterance are.
#[derive(Debug, Default)]
pub(crate) struct Skew {
    frames: usize,
    labels: usize,
    arcs: Vec<Arc>,
    /// First place of each diagonal, and the end of the last.
    offsets: Vec<usize>,
}

/// Number of places on all diagonals, and a margin: a row that paths land on is read from the first landing on, and
/// as far as the row they leave is wide.
pub(crate) fn places(frames: usize, labels: usize) -> usize {
    // Diagonals have 1, 2 .. m sites, m as often as it takes, and m .. 2, 1 and 1 again.
    let most = frames.min(labels + 1);
    let (whole, rest) = ((most - 1) / LANES, (most - 1) % LANES);
    let rising = LANES * LANES * whole * (whole + 1) / 2 + rest * LANES * (whole + 1);
    let level = (frames + labels - 2 * (most - 1)) * most.next_multiple_of(LANES);
    2 * rising + level + LANES + labels + (labels + 1).next_multiple_of(LANES)
}

impl Skew {
    /// Makes room for so many kinds of arcs and diagonals.
    pub fn reserve(&mut self, kinds: usize, diagonals: usize) {
        ensure_capacity(&mut self.arcs, kinds);
        ensure_capacity(&mut self.offsets, diagonals);
    }

    /// Scratch of [`Self::reserve`].
    pub fn scratch(kinds: usize, diagonals: usize) -> ScratchReq {
        ScratchReq::new::<Arc>(kinds).and(ScratchReq::new::<usize>(diagonals))
    }

    pub fn set(&mut self, frames: usize, labels: usize, arcs: &[Arc]) {
        (self.frames, self.labels) = (frames, labels);
        self.arcs.clear();
        self.arcs.extend_from_slice(arcs);
        self.offsets.clear();
        let mut offset = 0;
        for d in 0..=self.end() {
            self.offsets.push(offset);
            offset += self.width(d);
        }
    }

    pub fn frames(&self) -> usize {
        self.frames
    }

    pub fn labels(&self) -> usize {
        self.labels
    }

    pub fn arcs(&self) -> &[Arc] {
        &self.arcs
    }

    /// T + U: the diagonal on which paths end.
    pub fn end(&self) -> usize {
        self.frames + self.labels
    }

    /// Whether an arc fits into the lattice at all.
    pub fn fits(&self, arc: &Arc) -> bool {
        arc.frames <= self.frames && arc.labels <= self.labels
    }

    /// Smallest u on a diagonal.
    pub fn low(&self, d: usize) -> usize {
        (d + 1).saturating_sub(self.frames).min(self.labels)
    }

    /// Number of sites on a diagonal.
    fn sites(&self, d: usize) -> usize {
        d.min(self.labels) + 1 - self.low(d)
    }

    /// Number of places on a diagonal: its sites, filled up.
    pub fn width(&self, d: usize) -> usize {
        self.sites(d).next_multiple_of(LANES)
    }

    /// First place of a diagonal.
    pub fn offset(&self, d: usize) -> usize {
        self.offsets[d]
    }

    /// Which sites of a diagonal, counted from the lowest u, an arc leaves for another site or the end.
    fn leaving(&self, d: usize, arc: &Arc) -> Range<usize> {
        let Some(last) = self.labels.checked_sub(arc.labels) else { return 0..0 };
        let (low, beyond) = (self.low(d), self.low(d) + self.sites(d));
        let (first, behind) = if arc.may_end && d + arc.frames == self.frames + last {
            // From u = last it lands on (T, U), from elsewhere on this diagonal outside of the lattice.
            (last, last + 1)
        } else {
            // t + frames < T
            ((d + arc.frames + 1).saturating_sub(self.frames), last + 1)
        };
        let first = first.clamp(low, beyond);
        first - low..behind.clamp(first, beyond) - low
    }

    /// Brings the emissions of a diagonal, row-major, into rows: one of each arc, with [`LOG_ZERO`] for -inf and where no arc
    /// is. Returns whether the emissions are below +inf, those of no arc included.
    pub fn gather(&self, d: usize, up: bool, emissions: &[f64], rows: &mut [f64]) -> bool {
        let arcs = self.arcs.len();
        let stride = scaled::stride(d, self.low(d), self.labels, arcs);
        let exists = |s: usize| self.leaving(d, &self.arcs[s]);
        scaled::gather(emissions, stride, self.sites(d), self.entering(d, up), exists, arcs, rows)
    }

    /// Writes the rows of a diagonal to where they belong in row-major order.
    pub fn scatter(&self, d: usize, up: bool, rows: &[f64], out: &mut Diagonals<'_>) {
        out.scatter(rows, d, self.low(d), self.sites(d), self.entering(d, up));
    }

    /// Where in a row-major matrix the frame begins that diagonals reach soon after `d`, or before it.
    fn entering(&self, d: usize, up: bool) -> usize {
        let frame = if up { d + 2 } else { d.saturating_sub(self.labels + 2) };
        frame * (self.labels + 1) * self.arcs.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Topology;
    use kernels::scaled::LOG_ZERO;

    #[test]
    fn places_are_those_of_all_diagonals() {
        for (frames, labels) in (1..40).flat_map(|t| (0..40).map(move |u| (t, u))) {
            let mut skew = Skew::default();
            skew.set(frames, labels, Topology::rnnt().arcs());
            let all: usize = (0..=skew.end()).map(|d| skew.width(d)).sum();
            let margin = labels + (labels + 1).next_multiple_of(LANES);
            assert_eq!(places(frames, labels), all + margin, "T {frames} U {labels}");
        }
    }

    #[test]
    fn rows_come_back_as_they_were_but_for_arcs_that_do_not_exist() {
        for (frames, labels) in [(1, 0), (1, 9), (7, 0), (3, 4), (20, 11), (5, 30)] {
            let mut skew = Skew::default();
            skew.set(frames, labels, Topology::rnnt().arcs());
            let emissions: Vec<f64> = (0..2 * frames * (labels + 1)).map(|i| i as f64).collect();
            let mut back = vec![f64::NAN; emissions.len()];
            let (mut early, mut late) = Diagonals::new(&mut back, labels, 2).split_at(skew.end() / 2);
            for d in 0..skew.end() {
                let mut rows = vec![f64::NAN; 2 * skew.width(d)];
                assert!(skew.gather(d, true, &emissions, &mut rows));
                assert!(rows.iter().all(|e| !e.is_nan()), "every place is written");
                skew.scatter(d, true, &rows, if d < skew.end() / 2 { &mut early } else { &mut late });
            }
            for (i, (&found, &emission)) in back.iter().zip(&emissions).enumerate() {
                let (t, u, arc) = (i / 2 / (labels + 1), i / 2 % (labels + 1), i % 2);
                let exists = if arc == 0 { t + 1 < frames || u == labels } else { u < labels };
                assert_eq!(
                    found,
                    if exists { emission } else { LOG_ZERO },
                    "T {frames} U {labels} ({t},{u})"
                );
            }
        }
    }
}
