//! How much memory work on a lattice takes, known from shapes.
use kernels::scaled::LANES;

use crate::{
    Arc, Lattices, Regularisers, Topology,
    banded::Banded,
    compose::composed,
    skew::places,
    storage::{Aligned, Rows},
};

/// What one lattice after the other needs: of each kind, the most that any does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Room {
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

impl Room {
    /// For an utterance of a batch.
    pub fn of(
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

    /// For either.
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

    /// Bytes of a [`Scratch`](crate::utterance::Scratch) with this room, itself left out.
    pub fn bytes(&self) -> usize {
        let Self { kinds, diagonals, row, places, slots, stride, folded, band } = *self;
        let whole = match diagonals {
            0 => 0,
            _ => {
                let skew = kinds * size_of::<Arc>() + diagonals * size_of::<usize>();
                let rings =
                    slots * (2 * size_of::<Rows>() + Rows::bytes(kinds * stride) + Rows::bytes(stride));
                let emissions_and_adjoints = 4 * Aligned::bytes(kinds * row);
                skew + rings
                    + emissions_and_adjoints
                    + Rows::bytes(kinds * row)
                    + Rows::bytes(places)
                    + Rows::bytes(row)
            }
        };
        whole + 2 * folded * size_of::<f64>() + Banded::bytes(band.0, band.1)
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
