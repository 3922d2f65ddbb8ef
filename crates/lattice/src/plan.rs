//! Memory plan of a lattice call: groups of utterances, waves of frames, buffers.
//!
//! Each call of a [`LatticeSession`](crate::LatticeSession) makes a plan before it allocates. A
//! group is a range of utterances that are processed together, a wave a range of their frames whose
//! arc weights exist at the same time. The plan has the largest groups and waves that fit into the
//! budget.
use kernels::{Real, ScratchReq};
use panda_core::DEFAULT_BUDGET;

use crate::{
    Error, Frames, Labels, RecognitionLattice, Result,
    arc_targets::ArcTargets,
    step::{StepScratch, backpointer_counts},
    utterance_group::UtteranceGroup,
    weight_fn::Workload,
};

/// Preferred number of arcs of a wave.
///
/// Large enough for efficient matrix products, small enough for most operands to stay in caches.
pub(crate) const ARCS_PER_WAVE: usize = 400_000;

/// Bytes of the list of gradients and of small allocations.
const CALL_BYTES: usize = 8192;
/// Bytes of lists for each frame of a wave.
const FRAME_LIST_BYTES: usize = 32;
/// Rows of `f64` over label positions, for one frame of a string.
///
/// It is an upper bound of the rows of α, β and sums.
const FRAME_ROWS: usize = 8;
/// Bytes of lists for each utterance of a group.
const UTTERANCE_LIST_BYTES: usize = 512;

/// Number of kinds of buffers that a session keeps.
pub(crate) const BUFFER_KINDS: usize = 5;
/// Index of the buffers of bound weights in [`Plan::buffers`].
const BOUND_WEIGHTS: usize = 4;

/// Memory options of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Hard limit on the bytes that a call allocates.
    ///
    /// Arguments and results do not count.
    pub budget: usize,
    /// Whether arc weights may be kept from forward to backward.
    ///
    /// If true, they are kept if the budget allows it. If false, they are recomputed, and a call
    /// uses no more of the budget than [`DEFAULT_BUDGET`] or the smallest plan.
    pub keep_weights: bool,
}

impl Options {
    /// A budget of `budget` bytes; arc weights are kept if they fit.
    pub const fn new(budget: usize) -> Self {
        Self { budget, keep_weights: true }
    }

    /// Disables keeping arc weights.
    pub const fn recompute(self) -> Self {
        Self { keep_weights: false, ..self }
    }

    /// Bytes that may be used, given the bytes of the smallest plan.
    pub(crate) fn limit(&self, smallest: usize) -> usize {
        if self.keep_weights { self.budget } else { self.budget.min(DEFAULT_BUDGET.max(smallest)) }
    }
}

/// 256 MiB: arc weights of a few frames, and α of minutes of speech in a context of 2 labels of 32.
impl Default for Options {
    fn default() -> Self {
        Self::new(256 << 20)
    }
}

/// A split of a call into groups of utterances and waves.
///
/// It also decides whether arc weights are kept from forward to backward or recomputed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Utterances of a group.
    pub utterances: usize,
    /// Frames of each utterance in a wave.
    pub frames_per_wave: usize,
    /// Whether arc weights are kept from forward to backward.
    pub keeps_arcs: bool,
    /// Whether best paths are found without most arc weights.
    pub screened: bool,
    /// Largest number of bytes that the call allocates.
    ///
    /// Arguments, results, and the packing buffers of threads ([`kernels::packing_bytes`]) are not
    /// counted.
    pub bytes: usize,
    /// Bytes of the budget left for a faster search; 0 if waves are narrower than
    /// [`ARCS_PER_WAVE`].
    pub(crate) spare_bytes: usize,
    /// Memory of the buffers that a session keeps.
    ///
    /// In order: α or backpointers, arc weights of waves, arc weights along strings, scratch of
    /// utterances, bound weights.
    pub(crate) buffers: [ScratchReq; BUFFER_KINDS],
}

/// Frames of an utterance, and label positions of its string.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UtteranceLength {
    pub frames: usize,
    /// *U + 1*; 0 without labels.
    pub positions: usize,
}

/// The operation of a call on a lattice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LatticeOperation {
    /// Whether it visits all paths.
    pub all_paths: bool,
    /// Whether it finds best paths, of all or of strings.
    finds_best_paths: bool,
    /// Whether it has a backward pass.
    has_gradients: bool,
    /// Whether all utterances are processed together.
    has_one_group: bool,
    /// Memory of walks; none if there are no walks.
    walks: Option<WalkMemory>,
}

/// Memory of a walk: a search that follows paths from the start state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WalkMemory {
    pub per_frame: ScratchReq,
    pub per_utterance: ScratchReq,
}

impl LatticeOperation {
    /// A sum over paths.
    pub(crate) const fn sum(all_paths: bool) -> Self {
        Self { all_paths, finds_best_paths: false, has_gradients: false, has_one_group: false, walks: None }
    }

    /// The best path in place of the sum.
    pub(crate) const fn with_best_paths(self) -> Self {
        Self { finds_best_paths: true, ..self }
    }

    /// A search by walks that need `memory`.
    pub(crate) const fn walks(all_paths: bool, memory: WalkMemory) -> Self {
        Self { walks: Some(memory), ..Self::sum(all_paths) }
    }

    /// Adds a backward pass.
    pub(crate) const fn with_gradients(self) -> Self {
        Self { has_gradients: true, ..self }
    }

    /// Processes all utterances at once.
    pub(crate) const fn for_all_utterances(self) -> Self {
        Self { has_one_group: true, ..self }
    }
}

impl Plan {
    /// Returns the plan with the largest groups within the budget.
    ///
    /// It keeps arc weights if they fit.
    ///
    /// # Errors
    /// [`Error::Budget`] for a budget below the smallest plan, or a plan whose size overflows.
    pub(crate) fn new<F: Real>(
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        labels: Option<&Labels>,
        operation: LatticeOperation,
        options: Options,
    ) -> Result<Self> {
        let positions =
            |b: usize| labels.and_then(|labels| labels.utterance(b)).map_or(0, |labels| labels.len() + 1);
        let length = |b: usize| UtteranceLength { frames: frames.length(b), positions: positions(b) };
        let lengths = (0..frames.utterances()).map(length).collect();
        Self::for_lengths(lattice, lengths, frames.frame_size(), operation, options)
    }

    /// Creates a plan from the lengths of each utterance.
    ///
    /// `features` is the number of features of a frame.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn for_lengths<F: Real>(
        lattice: &RecognitionLattice<F>,
        lengths: Vec<UtteranceLength>,
        features: usize,
        operation: LatticeOperation,
        options: Options,
    ) -> Result<Self> {
        // Frames of each utterance in a wave with the preferred number of arcs, and the smallest
        // plan with such waves.
        let utterance_count = lengths.len().max(1);
        let call = CallShape { lattice: *lattice, operation, lengths, features };
        let min_utterances = if operation.has_one_group { utterance_count } else { 1 };
        let preferred_wave = |utterances: usize| {
            ARCS_PER_WAVE.div_ceil(call.arcs_per_frame().saturating_mul(utterances)).max(1)
        };
        let smallest = call.plan(min_utterances, preferred_wave(min_utterances), false).bytes;
        let limit = options.limit(smallest).min(isize::MAX as usize);
        // In order of preference: more utterances, kept arc weights, long waves.
        let mut utterances = utterance_count;
        loop {
            let frames_per_wave = preferred_wave(utterances);
            let plan_within_limit = |frames_per_wave, keeps_arcs| {
                Some(call.plan(utterances, frames_per_wave, keeps_arcs)).filter(|plan| plan.bytes <= limit)
            };
            if operation.all_paths
                && !operation.finds_best_paths
                && operation.has_gradients
                && options.keep_weights
                && let Some(plan) = plan_within_limit(frames_per_wave, true)
            {
                return Ok(plan);
            }
            if let Some(plan) = plan_within_limit(frames_per_wave, false) {
                return Ok(Self { spare_bytes: limit - plan.bytes, ..plan });
            }
            let shorter_waves = std::iter::successors(Some(frames_per_wave / 2), |&frames_per_wave| {
                Some(frames_per_wave / 2)
            });
            if let Some(plan) = shorter_waves
                .take_while(|&frames_per_wave| frames_per_wave > 0)
                .find_map(|frames_per_wave| plan_within_limit(frames_per_wave, false))
            {
                return Ok(plan);
            }
            if utterances == min_utterances {
                let smallest = call.plan(utterances, 1, false).bytes;
                return Err(Error::Budget { smallest, found: limit });
            }
            utterances = (utterances / 2).max(min_utterances);
        }
    }

    /// Returns the plan of a search with screening.
    ///
    /// `screening` is the memory that it needs in addition. None if that exceeds the budget.
    pub(crate) fn with_screening(self, screening: ScratchReq) -> Option<Self> {
        let spare_bytes = self.spare_bytes.checked_sub(screening.bytes())?;
        let mut buffers = self.buffers;
        buffers[BOUND_WEIGHTS] = buffers[BOUND_WEIGHTS].and(screening);
        Some(Self { screened: true, bytes: self.bytes + screening.bytes(), spare_bytes, buffers, ..self })
    }

    /// Splits the utterances into groups.
    pub(crate) fn groups<F: Real>(&self, frames: &Frames<F>) -> Vec<UtteranceGroup> {
        let starts = (0..frames.utterances()).step_by(self.utterances);
        let end = |start: usize| (start + self.utterances).min(frames.utterances());
        starts.map(|start| UtteranceGroup::new(frames, start..end(start), self.frames_per_wave)).collect()
    }
}

/// A lattice, an operation, and the sizes of the utterances.
struct CallShape<'a, F> {
    lattice: RecognitionLattice<'a, F>,
    operation: LatticeOperation,
    lengths: Vec<UtteranceLength>,
    /// Number of features of a frame.
    features: usize,
}

impl<F: Real> CallShape<'_, F> {
    /// Arcs of a frame.
    fn arcs_per_frame(&self) -> usize {
        self.lattice.context().states() * (1 + self.lattice.context().vocabulary())
    }

    /// Returns the plan for given groups and waves.
    ///
    /// Groups have `utterances` utterances, waves `frames_per_wave` frames of each utterance.
    ///
    /// Buffers are kept from one group to the next, so each has its largest size of all groups.
    fn plan(&self, utterances: usize, frames_per_wave: usize, keeps_arcs: bool) -> Plan {
        let (mut buffers, mut temporary) = ([ScratchReq::EMPTY; BUFFER_KINDS], ScratchReq::EMPTY);
        for group in self.lengths.chunks(utterances) {
            let (group_buffers, group_temporary) = self.group_memory(group, frames_per_wave, keeps_arcs);
            buffers.iter_mut().zip(group_buffers).for_each(|(buffer, size)| *buffer = buffer.or(size));
            temporary = temporary.or(group_temporary);
        }
        // Lists of the context and of the call.
        let fixed =
            ArcTargets::scratch(self.lattice.context().states()).and(ScratchReq::from_bytes(CALL_BYTES));
        let bytes = ScratchReq::all_of(buffers).and(temporary).and(fixed).bytes();
        Plan { utterances, frames_per_wave, keeps_arcs, screened: false, bytes, spare_bytes: 0, buffers }
    }

    /// Memory of a group: buffers that are kept, and temporary ones.
    fn group_memory(
        &self,
        group: &[UtteranceLength],
        frames_per_wave: usize,
        keeps_arcs: bool,
    ) -> ([ScratchReq; BUFFER_KINDS], ScratchReq) {
        let (context, alignment) = (self.lattice.context(), self.lattice.alignment());
        let (states, state_row) = (context.states(), ScratchReq::new::<F>(context.states()));
        let LatticeOperation { all_paths, finds_best_paths, has_gradients, walks, .. } = self.operation;
        let sum_of =
            |size: &dyn Fn(&UtteranceLength) -> usize| group.iter().map(size).fold(0, usize::saturating_add);
        let frames = sum_of(&|length| length.frames);
        let wave_frames = sum_of(&|length| length.frames.min(frames_per_wave));
        let saved_per_frame = match (all_paths, finds_best_paths) {
            (true, true) => ScratchReq::new::<u32>(backpointer_counts(context, alignment).iter().sum()),
            (true, false) => ScratchReq::new::<F>(if has_gradients { states + 1 } else { 1 }),
            (false, _) => ScratchReq::EMPTY,
        };
        let frame_arcs = ScratchReq::new::<F>(if all_paths { self.arcs_per_frame() } else { 0 });
        let sites = sum_of(&|length| length.frames.saturating_mul(length.positions));
        let positions = match walks {
            // One label at a time.
            Some(_) => 2,
            None => group.iter().map(|length| length.positions).max().unwrap_or(0),
        };
        // Buffers that a session keeps.
        let steps = StepScratch::<F>::scratch(context, alignment).and(state_row.times(2));
        let buffers = [
            saved_per_frame.times(frames),
            frame_arcs.times(if keeps_arcs { frames } else { wave_frames.saturating_mul(2) }),
            ScratchReq::new::<[F; 2]>(sites),
            steps.times(if all_paths { group.len() } else { 0 }),
            self.lattice.weight_fn().scratch(Workload {
                frames,
                wave: wave_frames,
                positions,
                gradients: has_gradients,
            }),
        ];
        // Sums along strings in f64 (for best paths, label counts of each frame), and rows of α of
        // one frame.
        let position_sums =
            sum_of(&|length| length.positions.saturating_mul(alignment.num_states() + FRAME_ROWS));
        let sums = ScratchReq::new::<f64>(sites.saturating_add(position_sums));
        // Packed rows and their utterances; frames of waves; utterances of groups.
        let packed_row = ScratchReq::new::<F>(self.features).and(ScratchReq::new::<u32>(1));
        let lists = ScratchReq::all_of([
            packed_row.times(frames),
            ScratchReq::from_bytes(FRAME_LIST_BYTES).times(wave_frames),
            ScratchReq::from_bytes(UTTERANCE_LIST_BYTES).times(group.len()),
        ]);
        let walk = walks.unwrap_or_default();
        (
            buffers,
            ScratchReq::all_of([
                sums,
                lists,
                walk.per_frame.times(frames),
                walk.per_utterance.times(group.len()),
            ]),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlignmentLattice, FullNGram, TableWeightFn};

    #[test]
    fn long_utterances_have_a_plan_without_a_limit() {
        let (context, length) = (FullNGram::new(32, 2).unwrap(), 16_000);
        let values = vec![0f32; 1_057 * 33];
        let table = TableWeightFn::new(&values, &[1, 1_057, 33]).unwrap();
        let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &table).unwrap();
        let rows = vec![0f32; 2 * length];
        let frames = Frames::new(&rows, &[2, length, 1], &[length; 2]).unwrap();
        let operation = LatticeOperation::sum(true).with_gradients();
        let plan = |options| Plan::new(&lattice, &frames, None, operation, options);
        let default = plan(Options::new(usize::MAX).recompute()).unwrap();
        assert!(default.bytes > DEFAULT_BUDGET);
        assert_eq!((default.utterances, default.keeps_arcs), (1, false));
        // An explicit limit is respected.
        let limited = Options::new(DEFAULT_BUDGET);
        assert!(matches!(plan(limited), Err(Error::Budget { .. })));
        assert!(matches!(plan(limited.recompute()), Err(Error::Budget { .. })));
    }
}
