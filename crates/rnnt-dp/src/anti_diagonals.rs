//! Anti-diagonal layout of a transducer lattice: where each site is stored.
//!
//! The recursions of the loss use it. A site is a lattice node (t, u): frame, label position; T
//! frames, U labels. An arc leads from diagonal `d = t + u` to diagonal `d + frames + labels`. The
//! sites of a diagonal do not depend on each other, and the arc targets of neighboring sites are
//! neighbors, so a diagonal is processed in vector registers. A row is a diagonal, ordered by u and
//! padded to whole registers. Diagonal T + U is the end of all paths.
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

use crate::{Lattices, Regularizers, Topology, TopologyArc, compose::needs_composition};

/// Buffer sizes of a lane (worker) of a batch.
///
/// They are the largest over the lane's lattices, and follow from shapes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LaneSizes {
    /// Number of arcs of the topology.
    pub arcs: usize,
    /// Number of diagonals.
    pub diagonals: usize,
    /// Elements of the longest diagonal, padding included.
    pub row_len: usize,
    /// Elements of all diagonals, padding included.
    pub elements: usize,
    /// Diagonals of a ring buffer.
    pub ring_diagonals: usize,
    /// Elements of a row of a ring buffer.
    pub ring_row_len: usize,
    /// Number of composed arc emissions.
    pub composed: usize,
    /// Arcs of a banded lattice.
    pub band_arcs: usize,
    /// Sites of a banded lattice.
    pub band_sites: usize,
}

impl LaneSizes {
    /// Sizes of an utterance of a batch.
    pub(crate) fn new(
        lattices: &Lattices,
        topology: &Topology,
        regularizers: &Regularizers,
        utterance: usize,
    ) -> Self {
        let (arcs, sites) = (topology.arcs().len(), lattices.site_range(utterance).len());
        let composed = if needs_composition(topology, regularizers) { sites * arcs } else { 0 };
        if !lattices.is_full() {
            return Self { composed, band_arcs: sites * arcs, band_sites: sites, ..Self::default() };
        }
        let (frames, labels) = (lattices.num_frames(utterance), lattices.num_labels(utterance));
        let ring = RingSizes::new(frames, labels, topology.arcs());
        Self {
            arcs,
            diagonals: frames + labels + 1,
            row_len: (labels + 1).next_multiple_of(LANES),
            elements: num_elements(frames, labels),
            ring_diagonals: ring.diagonals,
            ring_row_len: ring.row_len,
            composed,
            band_arcs: 0,
            band_sites: 0,
        }
    }

    /// Elementwise maximum of two sizes.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            arcs: self.arcs.max(other.arcs),
            diagonals: self.diagonals.max(other.diagonals),
            row_len: self.row_len.max(other.row_len),
            elements: self.elements.max(other.elements),
            ring_diagonals: self.ring_diagonals.max(other.ring_diagonals),
            ring_row_len: self.ring_row_len.max(other.ring_row_len),
            composed: self.composed.max(other.composed),
            band_arcs: self.band_arcs.max(other.band_arcs),
            band_sites: self.band_sites.max(other.band_sites),
        }
    }
}

/// Sizes of a ring buffer of the diagonals that arcs span.
pub(crate) struct RingSizes {
    /// Number of diagonals, a power of two.
    pub diagonals: usize,
    /// Elements that may be read before and after a row.
    pub margin: usize,
    /// Elements of a row, both margins included.
    pub row_len: usize,
}

impl RingSizes {
    pub(crate) fn new(frames: usize, labels: usize, arcs: &[TopologyArc]) -> Self {
        let fitting_arcs = || arcs.iter().filter(|arc| arc.frames <= frames && arc.labels <= labels);
        let max_span = fitting_arcs().map(|arc| arc.frames + arc.labels).max().unwrap_or(0);
        let margin = fitting_arcs().map(|arc| arc.labels).max().unwrap_or(0).next_multiple_of(LANES);
        let row_len = 2 * margin + (labels + 1).next_multiple_of(LANES) + LANES;
        Self { diagonals: (max_span + 1).next_power_of_two(), margin, row_len }
    }
}

/// Diagonals from the current one to the one that is prefetched.
const PREFETCH_DIAGONALS: usize = 2;

/// Positions of the sites of one utterance on anti-diagonals.
#[derive(Debug, Default)]
pub(crate) struct AntiDiagonals {
    frames: usize,
    labels: usize,
    arcs: Vec<TopologyArc>,
    /// First element of each diagonal; the last entry is that of diagonal T + U.
    offsets: Vec<usize>,
}

/// Number of elements of all diagonals, plus a margin.
///
/// A target row is read from the first arc target on, for the width of the source row.
pub(crate) fn num_elements(frames: usize, labels: usize) -> usize {
    // Diagonals have 1, 2 .. m sites, then m as often as needed, then m .. 2, 1 and 1 again.
    let longest = frames.min(labels + 1);
    // Each of them is padded to whole registers of LANES sites.
    let (full_registers, remaining_sites) = ((longest - 1) / LANES, (longest - 1) % LANES);
    let rising = LANES * LANES * full_registers * (full_registers + 1) / 2
        + remaining_sites * LANES * (full_registers + 1);
    let constant = (frames + labels - 2 * (longest - 1)) * longest.next_multiple_of(LANES);
    2 * rising + constant + LANES + labels + (labels + 1).next_multiple_of(LANES)
}

impl AntiDiagonals {
    /// Reserves memory for `arcs` arcs and `diagonals` diagonals.
    pub(crate) fn reserve(&mut self, arcs: usize, diagonals: usize) {
        ensure_capacity(&mut self.arcs, arcs);
        ensure_capacity(&mut self.offsets, diagonals);
    }

    /// Scratch memory of [`Self::reserve`].
    pub(crate) fn scratch(arcs: usize, diagonals: usize) -> ScratchReq {
        ScratchReq::new::<TopologyArc>(arcs).and(ScratchReq::new::<usize>(diagonals))
    }

    /// Sets the size and the arcs of the lattice.
    pub(crate) fn set(&mut self, frames: usize, labels: usize, arcs: &[TopologyArc]) {
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

    /// T, the number of frames.
    pub(crate) fn frames(&self) -> usize {
        self.frames
    }

    /// U, the number of labels.
    pub(crate) fn labels(&self) -> usize {
        self.labels
    }

    /// The arcs of the topology.
    pub(crate) fn arcs(&self) -> &[TopologyArc] {
        &self.arcs
    }

    /// The diagonal on which paths end, T + U.
    pub(crate) fn end(&self) -> usize {
        self.frames + self.labels
    }

    /// Returns true if an arc spans no more than the lattice.
    pub(crate) fn arc_fits(&self, arc: &TopologyArc) -> bool {
        arc.frames <= self.frames && arc.labels <= self.labels
    }

    /// Smallest u on a diagonal.
    pub(crate) fn min_label(&self, d: usize) -> usize {
        (d + 1).saturating_sub(self.frames).min(self.labels)
    }

    /// Number of sites on a diagonal.
    fn sites(&self, d: usize) -> usize {
        d.min(self.labels) + 1 - self.min_label(d)
    }

    /// Number of elements of a diagonal: its sites, padded.
    pub(crate) fn width(&self, d: usize) -> usize {
        self.sites(d).next_multiple_of(LANES)
    }

    /// First element of a diagonal.
    pub(crate) fn offset(&self, d: usize) -> usize {
        self.offsets[d]
    }

    /// Returns the range of sites of a diagonal where an arc exists.
    ///
    /// It is relative to the smallest u of the diagonal.
    fn arc_sources(&self, d: usize, arc: &TopologyArc) -> Range<usize> {
        let Some(last_source) = self.labels.checked_sub(arc.labels) else { return 0..0 };
        let (min_label, end_label) = (self.min_label(d), self.min_label(d) + self.sites(d));
        let (first_source, end_source) = if arc.may_end && d + arc.frames == self.frames + last_source {
            // The arc leads from u = last_source to (T, U), and from other sites of the diagonal
            // out of the lattice.
            (last_source, last_source + 1)
        } else {
            // t + frames < T
            ((d + arc.frames + 1).saturating_sub(self.frames), last_source + 1)
        };
        let first_source = first_source.clamp(min_label, end_label);
        first_source - min_label..end_source.clamp(first_source, end_label) - min_label
    }

    /// Gathers row-major emissions of a diagonal into one row for each arc.
    ///
    /// `is_forward` is true in the forward recursion, for prefetching. -inf and missing arcs become
    /// [`LOG_ZERO`](scaled::LOG_ZERO). If true is returned, no arc has an emission of NaN or +inf.
    /// False may also be due to the emission of a missing arc.
    pub(crate) fn gather(&self, d: usize, is_forward: bool, emissions: &[f64], rows: &mut [f64]) -> bool {
        let arcs = self.arcs.len();
        let positions = scaled::diagonal_positions(d, self.min_label(d), self.labels, arcs);
        let arc_sources = |arc: usize| self.arc_sources(d, &self.arcs[arc]);
        scaled::gather(
            emissions,
            positions,
            self.sites(d),
            self.frame_offset(d, is_forward),
            arc_sources,
            arcs,
            rows,
        )
    }

    /// Scatters the rows of a diagonal to row-major order.
    pub(crate) fn scatter(&self, d: usize, is_forward: bool, rows: &[f64], out: &mut Diagonals<'_>) {
        out.scatter(rows, d, self.min_label(d), self.sites(d), self.frame_offset(d, is_forward));
    }

    /// Returns the row-major offset of a frame near diagonal `d`, for prefetching.
    ///
    /// It is a frame that the recursion reaches [`PREFETCH_DIAGONALS`] diagonals later.
    fn frame_offset(&self, d: usize, is_forward: bool) -> usize {
        let frame = if is_forward {
            d + PREFETCH_DIAGONALS
        } else {
            d.saturating_sub(self.labels + PREFETCH_DIAGONALS)
        };
        frame * (self.labels + 1) * self.arcs.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Topology;
    use kernels::scaled::LOG_ZERO;

    #[test]
    fn num_elements_is_the_sum_over_diagonals() {
        for (frames, labels) in (1..40).flat_map(|t| (0..40).map(move |u| (t, u))) {
            let mut diagonals = AntiDiagonals::default();
            diagonals.set(frames, labels, Topology::rnnt().arcs());
            let sum: usize = (0..=diagonals.end()).map(|d| diagonals.width(d)).sum();
            let margin = labels + (labels + 1).next_multiple_of(LANES);
            assert_eq!(num_elements(frames, labels), sum + margin, "T {frames} U {labels}");
        }
    }

    #[test]
    fn gather_and_scatter_are_inverse_except_for_missing_arcs() {
        for (frames, labels) in [(1, 0), (1, 9), (7, 0), (3, 4), (20, 11), (5, 30)] {
            let mut diagonals = AntiDiagonals::default();
            diagonals.set(frames, labels, Topology::rnnt().arcs());
            let emissions: Vec<f64> = (0..2 * frames * (labels + 1)).map(|i| i as f64).collect();
            let mut scattered = vec![f64::NAN; emissions.len()];
            let (mut early, mut late) =
                Diagonals::new(&mut scattered, labels, 2).split_at(diagonals.end() / 2);
            for d in 0..diagonals.end() {
                let mut rows = vec![f64::NAN; 2 * diagonals.width(d)];
                assert!(diagonals.gather(d, true, &emissions, &mut rows));
                assert!(rows.iter().all(|e| !e.is_nan()), "every element is written");
                diagonals.scatter(
                    d,
                    true,
                    &rows,
                    if d < diagonals.end() / 2 { &mut early } else { &mut late },
                );
            }
            for (i, (&value, &emission)) in scattered.iter().zip(&emissions).enumerate() {
                let (t, u, arc) = (i / 2 / (labels + 1), i / 2 % (labels + 1), i % 2);
                let exists = if arc == 0 { t + 1 < frames || u == labels } else { u < labels };
                assert_eq!(
                    value,
                    if exists { emission } else { LOG_ZERO },
                    "T {frames} U {labels} ({t},{u})"
                );
            }
        }
    }
}
