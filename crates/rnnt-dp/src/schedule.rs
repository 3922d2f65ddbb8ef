//! What lanes take, known from the shapes of a batch alone.
use std::{cmp::Reverse, ops::Range};

use kernels::ScratchReq;

use crate::{Error, Lattices, Regularisers, Result, Topology, skew::LaneSizes, utterance::LaneScratch};

/// The shapes of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallShapes<'a> {
    pub lattices: &'a Lattices,
    pub topology: &'a Topology,
    pub regularisers: &'a Regularisers,
}

/// Loss and adjoints of an utterance, until they are taken.
pub(crate) type UtteranceSlot<'a> = Option<(&'a mut f64, &'a mut [f64])>;

impl CallShapes<'_> {
    fn sites(&self, utterance: usize) -> usize {
        self.lattices.range(utterance).len()
    }

    /// Scratch of the lists of a call: of [`Schedule`], and what utterances are given.
    pub fn lists(&self) -> ScratchReq {
        ScratchReq::new::<(usize, Range<usize>, UtteranceSlot)>(self.lattices.batch())
    }
}

/// How lanes share the utterances: in turn, those with the most sites first, and each lane begins at a turn of its own.
///
/// A lane takes the utterances from its turn to that of the next lane, then what later lanes have left. So it never sees one of an
/// earlier turn, which are the large ones, and needs no room for it. The lanes up to one together have at least their share of all sites,
/// and none has an utterance more than its own to itself.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    /// Utterances, the largest first.
    order: Vec<usize>,
    /// What is left of each lane's own turns.
    left: Vec<Range<usize>>,
}

impl Schedule {
    pub fn of(shapes: &CallShapes) -> Self {
        let mut turns = Self::default();
        turns.sort(shapes);
        turns
    }

    /// Makes room for the utterances, and puts them in order.
    pub fn sort(&mut self, shapes: &CallShapes) {
        let batch = shapes.lattices.batch();
        self.left.clear();
        self.left.reserve_exact(batch);
        self.order.clear();
        self.order.reserve_exact(batch);
        self.order.extend(0..batch);
        self.order.sort_unstable_by_key(|&b| (Reverse(shapes.sites(b)), b));
    }

    /// Visits so many lanes, at most one an utterance, the last one first: its own turns, and the sizes for all from there on.
    pub fn each(
        &self,
        shapes: &CallShapes,
        lanes: usize,
        mut visit: impl FnMut(usize, Range<usize>, LaneSizes),
    ) {
        let CallShapes { lattices, topology, regularisers } = *shapes;
        let (all, lanes) = (lattices.sites() as u128, lanes.min(self.order.len()));
        // Sites before the turn at which a lane begins.
        let (mut before, mut begin, mut sizes) = (all, self.order.len(), LaneSizes::default());
        for lane in (0..lanes).rev() {
            let end = begin;
            while begin > lane {
                let utterance = self.order[begin - 1];
                let rest = before - shapes.sites(utterance) as u128;
                if rest * (lanes as u128) < all * lane as u128 {
                    break;
                }
                sizes = sizes.max(LaneSizes::new(lattices, topology, regularisers, utterance));
                (before, begin) = (rest, begin - 1);
            }
            visit(lane, begin..end, sizes);
        }
    }

    /// Scratch of so many lanes, at most one an utterance, and of lists. More lanes never take less.
    pub fn scratch(&self, shapes: &CallShapes, lanes: usize) -> ScratchReq {
        let mut sum = shapes.lists();
        self.each(shapes, lanes, |_, _, sizes| sum = sum.and(lane_scratch(&sizes)));
        sum
    }

    /// The most lanes of so many bytes, `most` at most.
    pub fn lanes_within(&self, shapes: &CallShapes, bytes: usize, most: usize) -> Result<usize> {
        let (mut fit, mut too_many) = (0, most.min(self.order.len()) + 1);
        while fit + 1 < too_many {
            let lanes = fit.midpoint(too_many);
            if self.scratch(shapes, lanes).bytes() <= bytes { fit = lanes } else { too_many = lanes }
        }
        let needed = || self.scratch(shapes, 1).bytes();
        if fit == 0 { Err(Error::Memory { needed: needed(), found: bytes }) } else { Ok(fit) }
    }

    /// Shares the utterances out.
    pub fn share(&mut self, shapes: &CallShapes, lanes: usize) {
        let mut left = std::mem::take(&mut self.left);
        left.clear();
        left.resize(lanes.min(self.order.len()), 0..0);
        self.each(shapes, lanes, |lane, turns, _| left[lane] = turns);
        self.left = left;
    }

    /// The next utterance for a lane.
    pub fn next(&mut self, lane: usize) -> Option<usize> {
        self.left[lane..].iter_mut().find_map(Iterator::next).map(|turn| self.order[turn])
    }

    /// Gives back what no batch of this size needs.
    pub fn shrink(&mut self) {
        self.left.shrink_to(self.order.len());
        self.order.shrink_to_fit();
    }

    /// Bytes that are held.
    pub fn held(&self) -> usize {
        self.order.capacity() * size_of::<usize>() + self.left.capacity() * size_of::<Range<usize>>()
    }
}

/// Scratch of a lane with buffers of some sizes.
pub(crate) fn lane_scratch(sizes: &LaneSizes) -> ScratchReq {
    ScratchReq::new::<LaneScratch>(1).and(sizes.scratch())
}
