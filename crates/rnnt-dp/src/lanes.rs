//! How a batch is cut into lanes, by the shapes of its lattices alone.
use std::ops::Range;

use crate::{Error, Lattices, Regularisers, Result, Topology, room::Room, utterance::Scratch};

/// The shapes of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shapes<'a> {
    pub lattices: &'a Lattices,
    pub topology: &'a Topology,
    pub regularisers: &'a Regularisers,
}

impl Shapes<'_> {
    /// Calls `visit(lane, room that its utterances need)` for each lane.
    pub fn each_lane(&self, lanes: usize, visit: &mut impl FnMut(usize, Room)) {
        self.lanes_of(0..self.lattices.batch(), 0..lanes.min(self.lattices.batch()), visit);
    }

    fn lanes_of(&self, utterances: Range<usize>, lanes: Range<usize>, visit: &mut impl FnMut(usize, Room)) {
        if lanes.len() > 1 {
            let split = cut(self.lattices, &utterances, lanes.len());
            let middle = lanes.start + lanes.len() / 2;
            self.lanes_of(utterances.start..split, lanes.start..middle, visit);
            self.lanes_of(split..utterances.end, middle..lanes.end, visit);
        } else {
            let room = |b| Room::of(self.lattices, self.topology, self.regularisers, b);
            visit(lanes.start, utterances.map(room).fold(Room::default(), Room::max));
        }
    }

    /// Bytes of so many lanes.
    pub fn bytes(&self, lanes: usize) -> usize {
        let mut bytes = 0;
        self.each_lane(lanes, &mut |_, room| bytes += size_of::<Scratch>() + room.bytes());
        bytes
    }

    /// The most lanes of so many bytes, `most` at most.
    pub fn lanes_within(&self, bytes: usize, most: usize) -> Result<usize> {
        let fits = |lanes: &usize| self.bytes(*lanes) <= bytes;
        match (1..=most.min(self.lattices.batch())).rev().find(fits) {
            Some(lanes) => Ok(lanes),
            None => Err(Error::Memory { needed: self.bytes(1), found: bytes }),
        }
    }
}

/// Where the utterances of two halves of the lanes part, those of either having about as many sites a lane: the first of
/// the second half. There are at least as many utterances as lanes, and so there are in each half.
pub(crate) fn cut(lattices: &Lattices, utterances: &Range<usize>, lanes: usize) -> usize {
    let (Range { start, end }, left) = (utterances.clone(), lanes / 2);
    let sites = |from: usize, to: usize| lattices.range(to - 1).end - lattices.range(from).start;
    let share = sites(start, end) * left / lanes;
    let (first, last) = (start + left, end - (lanes - left));
    (first..last).find(|&split| sites(start, split) >= share).unwrap_or(last)
}
