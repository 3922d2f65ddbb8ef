//! A batch of lattices, in memory that calls share and that is known before they are made.
use crate::{
    Lattices, Regularisers, Result, Topology, batch::Batch, forward_backward::expect, lanes::Shapes,
    room::Room, utterance::Scratch,
};

/// Memory for [`Workspace::forward_backward`], which is kept.
///
/// Utterances go through *lanes*, which run at the same time. So does either direction of an utterance, and results do not depend on how
/// many lanes there are. The first lane is as large as the largest utterance needs; later ones, which leave the large utterances to
/// those before them, are smaller.
///
/// | made by | lanes, at most one an utterance |
/// |---|---|
/// | [`new`](Self::new) | one a thread |
/// | [`with_lanes`](Self::with_lanes) | so many |
/// | [`within`](Self::within) | one a thread, but only as many as a number of bytes allows |
///
/// ```
/// use rnnt_dp::{Lattices, Regularisers, Topology, Workspace};
/// let lattices = Lattices::new(vec![2], vec![1])?;
/// let (mut losses, mut adjoints) = ([0.0], [0.0; 8]);
/// let mut workspace = Workspace::new();
/// for step in 1..3 {
///     let emissions = [-0.5 / step as f64; 8];
///     let regularisers = Regularisers::default();
///     workspace.forward_backward(
///         &lattices, &Topology::rnnt(), &emissions, &regularisers, &mut losses, &mut adjoints,
///     )?;
/// }
/// assert!((losses[0] - (0.75 - 2f64.ln())).abs() < 1e-12); // two paths of three arcs
/// # Ok::<(), rnnt_dp::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Workspace {
    lanes: Vec<Scratch>,
    most: Most,
}

/// What bounds the number of lanes, beside the utterances.
#[derive(Debug, Clone, Copy, Default)]
enum Most {
    #[default]
    Threads,
    Lanes(usize),
    Bytes(usize),
}

impl Workspace {
    /// A workspace that is still empty.
    pub fn new() -> Self {
        Self::default()
    }

    /// One of at most so many lanes, and at least 1.
    pub fn with_lanes(lanes: usize) -> Self {
        Self { lanes: Vec::new(), most: Most::Lanes(lanes.max(1)) }
    }

    /// One that never holds more than so many bytes, itself left out.
    pub fn within(bytes: usize) -> Self {
        Self { lanes: Vec::new(), most: Most::Bytes(bytes) }
    }

    /// Changes the number of bytes that it may hold, and gives back what is above it.
    pub fn keep_within(&mut self, bytes: usize) {
        self.most = Most::Bytes(bytes);
        if self.held() > bytes {
            self.lanes = Vec::new();
        }
    }

    /// Bytes of so many lanes, which [`Workspace::forward_backward`] allocates in a new workspace, and all that it ever holds if it sees
    /// no larger batch. Lists of the batch, 96 bytes an utterance at most, live as long as a call.
    ///
    /// # Panics
    /// If there is no lane.
    pub fn bytes(
        lattices: &Lattices,
        topology: &Topology,
        regularisers: &Regularisers,
        lanes: usize,
    ) -> usize {
        assert!(lanes > 0, "lanes: expected at least one");
        Shapes { lattices, topology, regularisers }.bytes(lanes)
    }

    /// Bytes of a single lane, the least that there can be.
    pub fn smallest(lattices: &Lattices, topology: &Topology, regularisers: &Regularisers) -> usize {
        Self::bytes(lattices, topology, regularisers, 1)
    }

    /// The most lanes that a number of bytes allows, one an utterance at most.
    ///
    /// # Errors
    /// Fewer bytes than [`Workspace::smallest`] says.
    pub fn lanes_within(
        lattices: &Lattices,
        topology: &Topology,
        regularisers: &Regularisers,
        bytes: usize,
    ) -> Result<usize> {
        Shapes { lattices, topology, regularisers }.lanes_within(bytes, lattices.batch())
    }

    /// Bytes that are held.
    pub fn held(&self) -> usize {
        let rooms: usize = self.lanes.iter().map(|scratch| scratch.room().bytes()).sum();
        self.lanes.capacity() * size_of::<Scratch>() + rooms
    }

    /// As [`forward_backward`](fn@crate::forward_backward), into given slices, and without allocation once a batch of the
    /// same shape has been seen.
    ///
    /// # Shapes
    /// `emissions` and `adjoints` *N x S*, `losses` *B*. Every number of the latter two is written.
    ///
    /// # Errors
    /// As [`forward_backward`](fn@crate::forward_backward), slices of a wrong length, and fewer bytes than one lane takes. What was
    /// written by then means nothing.
    ///
    /// # Cost
    /// As there. The memory is what [`Workspace::bytes`] says, about two numbers for each site of an utterance a lane; diagonals
    /// count as filled up to multiples of eight sites.
    pub fn forward_backward(
        &mut self,
        lattices: &Lattices,
        topology: &Topology,
        emissions: &[f64],
        regularisers: &Regularisers,
        losses: &mut [f64],
        adjoints: &mut [f64],
    ) -> Result<()> {
        let entries = lattices.sites() * topology.columns();
        expect("emissions", entries, emissions.len())?;
        expect("losses", lattices.batch(), losses.len())?;
        expect("adjoints", entries, adjoints.len())?;
        regularisers.check()?;
        let shapes = Shapes { lattices, topology, regularisers };
        let threads = rayon::current_num_threads().min(lattices.batch());
        let lanes = match self.most {
            Most::Threads => threads,
            Most::Lanes(lanes) => lanes,
            Most::Bytes(bytes) => shapes.lanes_within(bytes, threads)?,
        };
        let lanes = self.make_room(&shapes.rooms(lanes));
        Batch { shapes, emissions }.run(lanes, losses, adjoints)
    }

    /// Lanes with these rooms.
    fn make_room(&mut self, rooms: &[Room]) -> &mut [Scratch] {
        if let Most::Bytes(bytes) = self.most {
            let grown =
                |(lane, room): (&Scratch, &Room)| lane.room().max(*room).bytes() - lane.room().bytes();
            let more: usize = self.lanes.iter().zip(rooms).map(grown).sum();
            if self.held() + more > bytes {
                self.lanes = Vec::new();
            }
        }
        if self.lanes.len() < rooms.len() {
            self.lanes = Vec::new();
            self.lanes.reserve_exact(rooms.len());
            self.lanes.resize_with(rooms.len(), Scratch::default);
        }
        let lanes = &mut self.lanes[..rooms.len()];
        lanes.iter_mut().zip(rooms).for_each(|(lane, room)| lane.reserve(*room));
        lanes
    }
}
