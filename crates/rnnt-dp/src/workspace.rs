//! Transducer loss of a batch in reusable memory with a byte limit.
//!
//! The workspace decides the number of parallel lanes (workers) from the limit, and keeps their
//! memory from call to call; `lanes.rs` runs them.
use std::borrow::Borrow;

use kernels::ScratchReq;

use crate::{
    Lattices, Regularizers, Result, Topology,
    anti_diagonals::LaneSizes,
    forward_backward::expect_len,
    lanes::BatchCall,
    schedule::{CallShapes, Schedule, UtteranceSlot, lane_scratch},
    utterance::LaneScratch,
};

/// Reusable memory of [`Workspace::forward_backward`].
///
/// Utterances run in parallel *lanes*, and the two directions of an utterance run in parallel as
/// well. Results do not depend on the number of lanes. The first lane has memory for any utterance
/// of the batch. Later lanes process smaller utterances, so they need no more, and usually less.
///
/// | constructor | lanes, at most one per utterance |
/// |---|---|
/// | [`new`](Self::new) | one per thread |
/// | [`with_lanes`](Self::with_lanes) | a given number |
/// | [`with_budget`](Self::with_budget) | one per thread, limited by a number of bytes |
///
/// ```
/// use rnnt_dp::{Lattices, Regularizers, Topology, Workspace};
/// let lattices = Lattices::new(vec![2], vec![1])?;
/// let (mut losses, mut adjoints) = ([0.0], [0.0; 8]);
/// let mut workspace = Workspace::new();
/// for step in 1..3 {
///     let emissions = [-0.5 / step as f64; 8];
///     let regularizers = Regularizers::default();
///     workspace.forward_backward(
///         &lattices, &Topology::rnnt(), &emissions, &regularizers, &mut losses, &mut adjoints,
///     )?;
/// }
/// assert!((losses[0] - (0.75 - 2f64.ln())).abs() < 1e-12); // two paths of three arcs
/// # Ok::<(), rnnt_dp::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Workspace {
    lanes: Vec<LaneScratch>,
    schedule: Schedule,
    /// List of a call's utterances: empty between calls, keeps its memory.
    slot_buffer: Vec<UtteranceSlot<'static>>,
    lane_limit: LaneLimit,
}

/// Limit on the number of lanes; the number of utterances also limits it.
#[derive(Debug, Clone, Copy, Default)]
enum LaneLimit {
    #[default]
    Threads,
    Lanes(usize),
    Bytes(usize),
}

impl Workspace {
    /// Creates an empty workspace.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a workspace of at most `lanes` lanes, and at least one.
    pub fn with_lanes(lanes: usize) -> Self {
        Self { lane_limit: LaneLimit::Lanes(lanes.max(1)), ..Self::default() }
    }

    /// Creates a workspace that keeps at most `bytes` bytes between calls.
    ///
    /// The struct itself is not counted.
    pub fn with_budget(bytes: usize) -> Self {
        Self { lane_limit: LaneLimit::Bytes(bytes), ..Self::default() }
    }

    /// Sets the number of bytes that may be kept; frees memory above it.
    pub fn set_budget(&mut self, bytes: usize) {
        self.lane_limit = LaneLimit::Bytes(bytes);
        if self.allocated_bytes() > bytes {
            *self = Self::with_budget(bytes);
        }
    }

    /// Scratch memory of `lanes` lanes and of the lists of a batch.
    ///
    /// A new workspace allocates this much, and no more for batches of these shapes.
    ///
    /// # Panics
    /// If `lanes` is 0.
    pub fn scratch(
        lattices: &Lattices,
        topology: &Topology,
        regularizers: &Regularizers,
        lanes: usize,
    ) -> ScratchReq {
        Self::scratch_for_all([(lattices, topology)], regularizers, lanes)
    }

    /// Scratch memory of a workspace for several batches and topologies.
    ///
    /// Lanes are kept between calls.
    ///
    /// # Panics
    /// If `lanes` is 0.
    pub fn scratch_for_all<'a>(
        calls: impl IntoIterator<Item = (impl Borrow<Lattices>, &'a Topology)>,
        regularizers: &Regularizers,
        lanes: usize,
    ) -> ScratchReq {
        assert!(lanes > 0, "`lanes`: expected at least 1, found 0");
        let (mut list_scratch, mut lane_sizes) = (ScratchReq::EMPTY, Vec::new());
        for (lattices, topology) in calls {
            let shapes = CallShapes { lattices: lattices.borrow(), topology, regularizers };
            lane_sizes.resize(lane_sizes.len().max(lanes.min(shapes.lattices.batch())), LaneSizes::default());
            Schedule::new(&shapes).for_each_lane(&shapes, lanes, |lane, _, sizes| {
                lane_sizes[lane] = sizes.max(lane_sizes[lane]);
            });
            list_scratch = list_scratch.or(shapes.list_scratch());
        }
        ScratchReq::all_of(lane_sizes.iter().map(lane_scratch)).and(list_scratch)
    }

    /// Returns the largest number of lanes that fits into `bytes`.
    ///
    /// There is at most one lane per utterance.
    ///
    /// # Errors
    /// Fewer bytes than one lane needs.
    pub fn max_lanes(
        lattices: &Lattices,
        topology: &Topology,
        regularizers: &Regularizers,
        bytes: usize,
    ) -> Result<usize> {
        let shapes = CallShapes { lattices, topology, regularizers };
        Schedule::new(&shapes).max_lanes(&shapes, bytes, lattices.batch())
    }

    /// Allocated bytes.
    pub fn allocated_bytes(&self) -> usize {
        let lanes: usize = self.lanes.iter().map(|lane| lane.sizes().scratch().bytes()).sum();
        self.lanes.capacity() * size_of::<LaneScratch>() + lanes + self.list_bytes()
    }

    fn list_bytes(&self) -> usize {
        self.schedule.allocated_bytes() + self.slot_buffer.capacity() * size_of::<UtteranceSlot>()
    }

    /// Computes [`forward_backward`](fn@crate::forward_backward) into given slices.
    ///
    /// Allocates nothing after a batch of the same shape.
    ///
    /// # Shapes
    /// `emissions` and `adjoints` *N x S*, `losses` *B*. Every element of the latter two is
    /// written.
    ///
    /// # Errors
    /// As [`forward_backward`](fn@crate::forward_backward); slices of a wrong length; fewer bytes
    /// than one lane needs. After an error the output slices have arbitrary values.
    ///
    /// # Cost
    /// As [`forward_backward`](fn@crate::forward_backward). The memory is that of
    /// [`Workspace::scratch`]: about two numbers for each site of a lane's largest utterance, with
    /// diagonals padded to multiples of eight sites.
    pub fn forward_backward(
        &mut self,
        lattices: &Lattices,
        topology: &Topology,
        emissions: &[f64],
        regularizers: &Regularizers,
        losses: &mut [f64],
        adjoints: &mut [f64],
    ) -> Result<()> {
        let num_emissions = lattices.num_sites() * topology.num_columns();
        expect_len("emissions", num_emissions, emissions.len())?;
        expect_len("losses", lattices.batch(), losses.len())?;
        expect_len("adjoints", num_emissions, adjoints.len())?;
        regularizers.check()?;
        let shapes = CallShapes { lattices, topology, regularizers };
        let threads = rayon::current_num_threads().min(lattices.batch());
        self.reserve_lists(&shapes);
        let lanes = match self.lane_limit {
            LaneLimit::Threads => threads,
            LaneLimit::Lanes(lanes) => lanes.min(lattices.batch()),
            LaneLimit::Bytes(bytes) => {
                let lanes = self.schedule.max_lanes(&shapes, bytes, threads);
                // Even the lists may exceed the budget.
                lanes.inspect_err(|_| *self = Self::with_budget(bytes))?
            }
        };
        self.reserve_lanes(&shapes, lanes);
        let Self { schedule, slot_buffer, .. } = self;
        BatchCall { shapes, emissions }.run(&mut self.lanes[..lanes], schedule, slot_buffer, losses, adjoints)
    }

    /// Sorts a batch and reserves its lists; frees lanes if both do not fit into the budget.
    fn reserve_lists(&mut self, shapes: &CallShapes) {
        if let LaneLimit::Bytes(bytes) = self.lane_limit
            && self.allocated_bytes() + shapes.list_scratch().bytes().saturating_sub(self.list_bytes())
                > bytes
        {
            *self = Self::with_budget(bytes);
        }
        self.schedule.sort(shapes);
        self.slot_buffer.reserve_exact(shapes.lattices.batch());
    }

    /// Reserves `count` lanes of the sizes that they need; frees existing lanes if the budget
    /// requires it.
    fn reserve_lanes(&mut self, shapes: &CallShapes, count: usize) {
        if let LaneLimit::Bytes(bytes) = self.lane_limit {
            let new_lane_bytes =
                self.lanes.len().max(count).saturating_sub(self.lanes.capacity()) * size_of::<LaneScratch>();
            let (lanes, mut growth) = (&self.lanes, new_lane_bytes);
            self.schedule.for_each_lane(shapes, count, |lane, _, sizes| {
                let current = lanes.get(lane).map(|lane| lane.sizes()).unwrap_or_default();
                growth += current.max(sizes).scratch().bytes() - current.scratch().bytes();
            });
            if self.allocated_bytes() + growth > bytes {
                self.lanes = Vec::new();
                self.schedule.shrink();
                self.slot_buffer.shrink_to(shapes.lattices.batch());
            }
        }
        let missing = count.saturating_sub(self.lanes.len());
        self.lanes.reserve_exact(missing);
        self.lanes.extend(std::iter::repeat_with(LaneScratch::default).take(missing));
        let lanes = &mut self.lanes;
        self.schedule.for_each_lane(shapes, count, |lane, _, sizes| lanes[lane].reserve(sizes));
    }
}
