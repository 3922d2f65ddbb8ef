//! What lanes take, known from the shapes of a batch alone.
use crate::{Error, Lattices, Regularisers, Result, Topology, room::Room, utterance::Scratch};

/// The shapes of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shapes<'a> {
    pub lattices: &'a Lattices,
    pub topology: &'a Topology,
    pub regularisers: &'a Regularisers,
}

impl Shapes<'_> {
    /// The room of a lane: any utterance may come to any of them.
    pub fn room(&self) -> Room {
        let room = |b| Room::of(self.lattices, self.topology, self.regularisers, b);
        (0..self.lattices.batch()).map(room).fold(Room::default(), Room::max)
    }

    fn bytes_of_lane(&self) -> usize {
        size_of::<Scratch>() + self.room().bytes()
    }

    /// Bytes of so many lanes, at most one an utterance.
    pub fn bytes(&self, lanes: usize) -> usize {
        lanes.min(self.lattices.batch()) * self.bytes_of_lane()
    }

    /// The most lanes of so many bytes, `most` at most.
    pub fn lanes_within(&self, bytes: usize, most: usize) -> Result<usize> {
        let needed = self.bytes_of_lane();
        match (bytes / needed).min(most).min(self.lattices.batch()) {
            0 => Err(Error::Memory { needed, found: bytes }),
            lanes => Ok(lanes),
        }
    }
}
