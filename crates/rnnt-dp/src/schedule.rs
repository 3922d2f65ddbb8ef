//! Assigns the utterances of a loss call to lanes; computes lane memory.
//!
//! A lane is a worker with its own scratch memory. A turn is a position in the order of utterances,
//! the largest first. The assignment depends only on shapes.
use std::{cmp::Reverse, ops::Range};

use kernels::ScratchReq;

use crate::{
    Error, Lattices, Regularizers, Result, Topology, anti_diagonals::LaneSizes, utterance::LaneScratch,
};

/// The shapes of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallShapes<'a> {
    pub lattices: &'a Lattices,
    pub topology: &'a Topology,
    pub regularizers: &'a Regularizers,
}

/// Loss and adjoints of an utterance, until a lane takes them.
pub(crate) type UtteranceSlot<'a> = Option<(&'a mut f64, &'a mut [f64])>;

impl CallShapes<'_> {
    fn sites(&self, utterance: usize) -> usize {
        self.lattices.site_range(utterance).len()
    }

    /// Scratch memory of the lists of a call: those of [`Schedule`] and the utterance slots.
    pub(crate) fn list_scratch(&self) -> ScratchReq {
        ScratchReq::new::<(usize, Range<usize>, UtteranceSlot)>(self.lattices.batch())
    }
}

/// Order in which lanes process utterances, the largest first.
///
/// A lane processes the utterances from its first turn to that of the next lane, then those that
/// later lanes have left. Utterances of earlier turns, the larger ones, never reach it, so it needs
/// no memory for them. The lanes up to each lane together own at least their proportion of all
/// sites, and no more utterances than that takes.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    /// Utterances, the largest first.
    order: Vec<usize>,
    /// Remaining own turns of each lane.
    remaining_turns: Vec<Range<usize>>,
}

impl Schedule {
    pub(crate) fn new(shapes: &CallShapes) -> Self {
        let mut schedule = Self::default();
        schedule.sort(shapes);
        schedule
    }

    /// Reserves memory for the utterances and sorts them.
    pub(crate) fn sort(&mut self, shapes: &CallShapes) {
        let batch = shapes.lattices.batch();
        self.remaining_turns.clear();
        self.remaining_turns.reserve_exact(batch);
        self.order.clear();
        self.order.reserve_exact(batch);
        self.order.extend(0..batch);
        self.order.sort_unstable_by_key(|&b| (Reverse(shapes.sites(b)), b));
    }

    /// Visits the lanes, at most one per utterance, last lane first.
    ///
    /// Calls `visit(lane, turns, sizes)` with the lane's own turns, and the buffer sizes for these
    /// and all later turns.
    pub(crate) fn for_each_lane(
        &self,
        shapes: &CallShapes,
        lanes: usize,
        mut visit: impl FnMut(usize, Range<usize>, LaneSizes),
    ) {
        let CallShapes { lattices, topology, regularizers } = *shapes;
        let (total_sites, lanes) = (lattices.num_sites() as u128, lanes.min(self.order.len()));
        // First turn of the lane, number of sites before it, and buffer sizes from it on.
        let (mut first_turn, mut sites_before, mut sizes) =
            (self.order.len(), total_sites, LaneSizes::default());
        for lane in (0..lanes).rev() {
            let end_turn = first_turn;
            while first_turn > lane {
                let utterance = self.order[first_turn - 1];
                let remaining_sites = sites_before - shapes.sites(utterance) as u128;
                // The lanes before this one keep at least their proportion of all sites.
                if remaining_sites * (lanes as u128) < total_sites * lane as u128 {
                    break;
                }
                sizes = sizes.max(LaneSizes::new(lattices, topology, regularizers, utterance));
                (sites_before, first_turn) = (remaining_sites, first_turn - 1);
            }
            visit(lane, first_turn..end_turn, sizes);
        }
    }

    /// Scratch memory of `lanes` lanes and of the lists; it never decreases with more lanes.
    pub(crate) fn scratch(&self, shapes: &CallShapes, lanes: usize) -> ScratchReq {
        let mut scratch = shapes.list_scratch();
        self.for_each_lane(shapes, lanes, |_, _, sizes| scratch = scratch.and(lane_scratch(&sizes)));
        scratch
    }

    /// Returns the number of lanes that fit into `bytes`, up to `limit`.
    pub(crate) fn max_lanes(&self, shapes: &CallShapes, bytes: usize, limit: usize) -> Result<usize> {
        // Bisection.
        let (mut max_fitting, mut too_many) = (0, limit.min(self.order.len()) + 1);
        while max_fitting + 1 < too_many {
            let lanes = max_fitting.midpoint(too_many);
            if self.scratch(shapes, lanes).bytes() <= bytes { max_fitting = lanes } else { too_many = lanes }
        }
        let needed = || self.scratch(shapes, 1).bytes();
        if max_fitting == 0 { Err(Error::Memory { needed: needed(), found: bytes }) } else { Ok(max_fitting) }
    }

    /// Assigns the utterances to lanes.
    pub(crate) fn assign(&mut self, shapes: &CallShapes, lanes: usize) {
        let mut remaining_turns = std::mem::take(&mut self.remaining_turns);
        remaining_turns.clear();
        remaining_turns.resize(lanes.min(self.order.len()), 0..0);
        self.for_each_lane(shapes, lanes, |lane, turns, _| remaining_turns[lane] = turns);
        self.remaining_turns = remaining_turns;
    }

    /// Returns the next utterance of a lane.
    pub(crate) fn next(&mut self, lane: usize) -> Option<usize> {
        self.remaining_turns[lane..].iter_mut().find_map(Iterator::next).map(|turn| self.order[turn])
    }

    /// Frees memory that a batch of this size does not need.
    pub(crate) fn shrink(&mut self) {
        self.remaining_turns.shrink_to(self.order.len());
        self.order.shrink_to_fit();
    }

    /// Allocated bytes.
    pub(crate) fn allocated_bytes(&self) -> usize {
        self.order.capacity() * size_of::<usize>()
            + self.remaining_turns.capacity() * size_of::<Range<usize>>()
    }
}

/// Scratch memory of a lane with buffers of the given sizes.
pub(crate) fn lane_scratch(sizes: &LaneSizes) -> ScratchReq {
    ScratchReq::new::<LaneScratch>(1).and(sizes.scratch())
}
