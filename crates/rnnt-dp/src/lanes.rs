//! What lanes take, known from the shapes of a batch alone.
use std::cmp::Reverse;

use crate::{Error, Lattices, Regularisers, Result, Topology, room::Room, utterance::Scratch};

/// The shapes of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shapes<'a> {
    pub lattices: &'a Lattices,
    pub topology: &'a Topology,
    pub regularisers: &'a Regularisers,
}

/// How lanes share the utterances: in turn, those with the most sites first, and each lane begins at a turn of its own.
///
/// A lane takes the utterances from its turn to that of the next lane, then what later lanes have left. So it never sees one of an
/// earlier turn, which are the large ones, and needs no room for it. Earlier lanes have their share of all sites to themselves, and less
/// than an utterance beyond it.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Utterances, the largest first.
    order: Vec<usize>,
    /// Where lanes begin.
    begins: Vec<usize>,
}

impl Turns {
    fn new(lattices: &Lattices, lanes: usize) -> Self {
        let sites = |b: usize| lattices.range(b).len();
        let mut order: Vec<usize> = (0..lattices.batch()).collect();
        order.sort_unstable_by_key(|&b| (Reverse(sites(b)), b));
        let lanes = lanes.min(order.len());
        let (mut at, mut before) = (0, 0u128);
        let begin = |lane: usize| {
            while at < lane || before * (lanes as u128) < lattices.sites() as u128 * lane as u128 {
                before += sites(order[at]) as u128;
                at += 1;
            }
            at
        };
        let begins = (0..lanes).map(begin).collect();
        Self { order, begins }
    }

    /// The utterances of a lane, until the next one begins.
    pub fn of(&self, lane: usize) -> &[usize] {
        let end = self.begins.get(lane + 1).copied().unwrap_or(self.order.len());
        &self.order[self.begins[lane]..end]
    }
}

impl Shapes<'_> {
    /// How so many lanes share the utterances; at most one lane an utterance.
    pub fn turns(&self, lanes: usize) -> Turns {
        Turns::new(self.lattices, lanes)
    }

    /// The rooms of so many lanes, each for all utterances from its turn on.
    pub fn rooms(&self, lanes: usize) -> Vec<Room> {
        let turns = self.turns(lanes);
        let of = |b: &usize| Room::of(self.lattices, self.topology, self.regularisers, *b);
        let mut rooms = vec![Room::default(); turns.begins.len()];
        let mut behind = Room::default();
        for (lane, room) in rooms.iter_mut().enumerate().rev() {
            behind = turns.of(lane).iter().map(of).fold(behind, Room::max);
            *room = behind;
        }
        rooms
    }

    /// Bytes of so many lanes, at most one an utterance. More lanes never take less.
    pub fn bytes(&self, lanes: usize) -> usize {
        self.rooms(lanes).iter().map(of_lane).sum()
    }

    /// The most lanes of so many bytes, `most` at most.
    pub fn lanes_within(&self, bytes: usize, most: usize) -> Result<usize> {
        let (mut fit, mut too_many) = (0, most.min(self.lattices.batch()) + 1);
        while fit + 1 < too_many {
            let lanes = fit.midpoint(too_many);
            if self.bytes(lanes) <= bytes { fit = lanes } else { too_many = lanes }
        }
        if fit == 0 { Err(Error::Memory { needed: self.bytes(1), found: bytes }) } else { Ok(fit) }
    }
}

fn of_lane(room: &Room) -> usize {
    size_of::<Scratch>() + room.bytes()
}
