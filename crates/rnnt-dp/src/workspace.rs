//! A batch of lattices, in memory that calls share and that is known before they are made.
use std::borrow::Borrow;

use kernels::ScratchReq;

use crate::{
    Lattices, Regularisers, Result, Topology,
    forward_backward::expect,
    lanes::LatticeCall,
    schedule::{CallShapes, Schedule, UtteranceSlot, lane_scratch},
    skew::LaneSizes,
    utterance::LaneScratch,
};

/// Memory for [`Workspace::forward_backward`], which is kept.
///
/// Utterances go through *lanes*, which run at the same time. So does either direction of an utterance, and results do not depend on how
/// many lanes there are. The first lane has room for any utterance of the batch; later ones, which leave the large utterances to those
/// before them, need no more, and mostly less.
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
    lanes: Vec<LaneScratch>,
    schedule: Schedule,
    /// Empty between calls.
    entries: Vec<UtteranceSlot<'static>>,
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
        Self { most: Most::Lanes(lanes.max(1)), ..Self::default() }
    }

    /// One that never holds more than so many bytes from call to call, itself left out.
    pub fn within(bytes: usize) -> Self {
        Self { most: Most::Bytes(bytes), ..Self::default() }
    }

    /// Changes the number of bytes that it may hold, and gives back what is above it.
    pub fn keep_within(&mut self, bytes: usize) {
        self.most = Most::Bytes(bytes);
        if self.held() > bytes {
            *self = Self::within(bytes);
        }
    }

    /// LaneScratch of so many lanes and of the lists of a batch.
    ///
    /// [`Workspace::forward_backward`] allocates it in a new workspace, which holds no more as long as it sees such batches only.
    ///
    /// # Panics
    /// If there is no lane.
    pub fn scratch(
        lattices: &Lattices,
        topology: &Topology,
        regularisers: &Regularisers,
        lanes: usize,
    ) -> ScratchReq {
        Self::scratch_of_all([(lattices, topology)], regularisers, lanes)
    }

    /// The same for a workspace that sees batches and topologies of several shapes, and keeps all lanes from one to the other.
    ///
    /// # Panics
    /// If there is no lane.
    pub fn scratch_of_all<'a>(
        calls: impl IntoIterator<Item = (impl Borrow<Lattices>, &'a Topology)>,
        regularisers: &Regularisers,
        lanes: usize,
    ) -> ScratchReq {
        assert!(lanes > 0, "lanes: expected at least one");
        let (mut lists, mut of_lanes) = (ScratchReq::EMPTY, Vec::new());
        for (lattices, topology) in calls {
            let shapes = CallShapes { lattices: lattices.borrow(), topology, regularisers };
            of_lanes.resize(of_lanes.len().max(lanes.min(shapes.lattices.batch())), LaneSizes::default());
            Schedule::of(&shapes).each(&shapes, lanes, |lane, _, sizes| {
                of_lanes[lane] = sizes.max(of_lanes[lane]);
            });
            lists = lists.or(shapes.lists());
        }
        ScratchReq::all_of(of_lanes.iter().map(lane_scratch)).and(lists)
    }

    /// The most lanes that a number of bytes allows, one an utterance at most.
    ///
    /// # Errors
    /// Fewer bytes than a single lane takes.
    pub fn lanes_within(
        lattices: &Lattices,
        topology: &Topology,
        regularisers: &Regularisers,
        bytes: usize,
    ) -> Result<usize> {
        let shapes = CallShapes { lattices, topology, regularisers };
        Schedule::of(&shapes).lanes_within(&shapes, bytes, lattices.batch())
    }

    /// Bytes that are held.
    pub fn held(&self) -> usize {
        let of_lanes: usize = self.lanes.iter().map(|lane| lane.sizes().scratch().bytes()).sum();
        self.lanes.capacity() * size_of::<LaneScratch>() + of_lanes + self.lists()
    }

    fn lists(&self) -> usize {
        self.schedule.held() + self.entries.capacity() * size_of::<UtteranceSlot>()
    }

    /// As [`forward_backward`](fn@crate::forward_backward), into given slices, and without allocation once a
    /// batch of the same shape has been seen.
    ///
    /// # CallShapes
    /// `emissions` and `adjoints` *N x S*, `losses` *B*. Every number of the latter two is written.
    ///
    /// # Errors
    /// As [`forward_backward`](fn@crate::forward_backward), slices of a wrong length, and fewer bytes than one lane takes. What was
    /// written by then means nothing.
    ///
    /// # Cost
    /// As there. The memory is what [`Workspace::scratch`] says, about two numbers for each site of a lane's largest utterance, where
    /// diagonals count as filled up to multiples of eight sites.
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
        let shapes = CallShapes { lattices, topology, regularisers };
        let threads = rayon::current_num_threads().min(lattices.batch());
        self.make_lists(&shapes);
        let lanes = match self.most {
            Most::Threads => threads,
            Most::Lanes(lanes) => lanes.min(lattices.batch()),
            Most::Bytes(bytes) => {
                let lanes = self.schedule.lanes_within(&shapes, bytes, threads);
                // The lists alone may be above it.
                lanes.inspect_err(|_| *self = Self::within(bytes))?
            }
        };
        self.make_lanes(&shapes, lanes);
        let Self { schedule, entries, .. } = self;
        LatticeCall { shapes, emissions }.run(&mut self.lanes[..lanes], schedule, entries, losses, adjoints)
    }

    /// Lists for a batch, and its order. They take the place of lanes where there is no room for both.
    fn make_lists(&mut self, shapes: &CallShapes) {
        if let Most::Bytes(bytes) = self.most
            && self.held() + shapes.lists().bytes().saturating_sub(self.lists()) > bytes
        {
            *self = Self::within(bytes);
        }
        self.schedule.sort(shapes);
        self.entries.reserve_exact(shapes.lattices.batch());
    }

    /// So many lanes of the sizes that they need. Those that are there stay, unless a number of bytes is against it.
    fn make_lanes(&mut self, shapes: &CallShapes, count: usize) {
        if let Most::Bytes(bytes) = self.most {
            let more =
                self.lanes.len().max(count).saturating_sub(self.lanes.capacity()) * size_of::<LaneScratch>();
            let (lanes, mut grown) = (&self.lanes, more);
            self.schedule.each(shapes, count, |lane, _, sizes| {
                let held = lanes.get(lane).map(|lane| lane.sizes()).unwrap_or_default();
                grown += held.max(sizes).scratch().bytes() - held.scratch().bytes();
            });
            if self.held() + grown > bytes {
                self.lanes = Vec::new();
                self.schedule.shrink();
                self.entries.shrink_to(shapes.lattices.batch());
            }
        }
        let missing = count.saturating_sub(self.lanes.len());
        self.lanes.reserve_exact(missing);
        self.lanes.extend(std::iter::repeat_with(LaneScratch::default).take(missing));
        let lanes = &mut self.lanes;
        self.schedule.each(shapes, count, |lane, _, sizes| lanes[lane].reserve(sizes));
    }
}
