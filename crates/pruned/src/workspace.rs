//! Reusable buffers of the pruned first pass, and their memory requirements.
use kernels::{AlignedVec, Real, ReusableBuffer, ScratchReq, WorkerSlots, ensure_len};

use crate::{FirstPass, PassScratch, sums::BatchSums, unigram::UnigramDistribution};

/// Buffers of first passes; repeated passes of a shape allocate only small lists.
///
/// A workspace serves any number of passes, one after the other; its contents never affect results.
#[derive(Debug)]
pub struct Workspace<F> {
    pub(crate) slots: WorkerSlots<TaskScratch<F>>,
    pub(crate) lattices: rnnt_dp::Workspace,
    /// Scratch of the utterances of a group, divided by their shapes.
    pub(crate) scratch: Vec<F>,
    /// Emissions in forward, and scratch of the utterances of a group.
    pub(crate) scratch_f64: Vec<f64>,
    pub(crate) recycled: RecycledBuffers<F>,
    /// Bytes held in excess of the last requirement.
    excess: usize,
}

/// Buffers of a recycled pass.
#[derive(Debug)]
pub(crate) struct RecycledBuffers<F> {
    pub sums: BatchSums<F>,
    pub occupancies: Vec<f64>,
    pub unigrams: Vec<UnigramDistribution<F>>,
}

impl<F> Default for RecycledBuffers<F> {
    fn default() -> Self {
        let sums = BatchSums {
            frame_max: Vec::new(),
            label_max: Vec::new(),
            label_sums: Vec::new(),
            pair_sums: Vec::new(),
        };
        Self { sums, occupancies: Vec::new(), unigrams: Vec::new() }
    }
}

impl<F> Default for Workspace<F> {
    fn default() -> Self {
        Self {
            slots: WorkerSlots::default(),
            lattices: rnnt_dp::Workspace::with_budget(0),
            scratch: Vec::new(),
            scratch_f64: Vec::new(),
            recycled: RecycledBuffers::default(),
            excess: 0,
        }
    }
}

/// Scratch memory of a task.
#[derive(Debug)]
pub struct TaskScratch<F> {
    /// Packing memory of products.
    pub packing: AlignedVec<F>,
    /// Scores of a block of rows in a tile.
    scores: Vec<F>,
    /// Products of a block of frames with the contexts.
    sums: Vec<F>,
}

impl<F> Default for TaskScratch<F> {
    fn default() -> Self {
        Self { packing: AlignedVec::default(), scores: Vec::new(), sums: Vec::new() }
    }
}

impl<F: Real> TaskScratch<F> {
    /// Returns packing memory, scores and sums; contents are unspecified.
    pub(crate) fn split(&mut self, scores: usize, sums: usize) -> (&mut AlignedVec<F>, &mut [F], &mut [F]) {
        ensure_len(&mut self.scores, scores, F::ZERO);
        ensure_len(&mut self.sums, sums, F::ZERO);
        (&mut self.packing, &mut self.scores[..scores], &mut self.sums[..sums])
    }

    /// Returns the allocated memory: packing, scores, sums.
    fn allocated_by_buffer(&self) -> [ScratchReq; 3] {
        [self.packing.allocated(), self.scores.allocated(), self.sums.allocated()]
    }
}

/// Creates `count` slots, and reserves scratch for each thread.
pub(crate) fn reserve_slots<F: Real>(
    slots: &mut WorkerSlots<TaskScratch<F>>,
    count: usize,
    task_scratch: [ScratchReq; 3],
) {
    slots.resize(count);
    let [packing, scores, sums] = task_scratch.map(ScratchReq::bytes);
    for scratch in slots.iter_mut().take(rayon::current_num_threads()) {
        scratch.packing.ensure_bytes(packing, F::ZERO);
        scratch.split(scores / size_of::<F>(), sums / size_of::<F>());
    }
}

impl<F: Real> Workspace<F> {
    /// Frees all buffers if they exceed `needed` by more than `max_excess` bytes.
    pub fn keep_within(&mut self, needed: &PassScratch, max_excess: usize) {
        self.slots.resize(needed.tasks);
        let excess_bytes = |allocated: &[ScratchReq], needed: &[ScratchReq]| -> usize {
            allocated
                .iter()
                .zip(needed)
                .map(|(allocated, needed)| allocated.bytes().saturating_sub(needed.bytes()))
                .sum()
        };
        let slot_excess =
            self.slots.iter_mut().map(|slot| excess_bytes(&slot.allocated_by_buffer(), &needed.task_scratch));
        self.excess = slot_excess.sum::<usize>() + excess_bytes(&self.allocated_by_buffer(), &needed.buffers);
        if self.excess > max_excess {
            *self = Self::default();
        }
    }

    /// Returns the bytes held in excess of the last requirement.
    pub fn excess(&self) -> usize {
        self.excess
    }

    /// Keeps the memory of a pass for the next one.
    pub fn recycle(&mut self, pass: FirstPass<F>) {
        let FirstPass { sums, occupancies, unigrams, .. } = pass;
        self.recycled = RecycledBuffers { sums, occupancies, unigrams };
    }

    /// Returns the allocated memory of the buffers, in the order of [`PassScratch::buffers`].
    fn allocated_by_buffer(&self) -> [ScratchReq; 9] {
        let Self {
            lattices,
            scratch,
            scratch_f64,
            recycled: RecycledBuffers { sums, occupancies, unigrams },
            ..
        } = self;
        [
            ScratchReq::from_bytes(lattices.allocated_bytes()),
            scratch.allocated(),
            scratch_f64.allocated(),
            sums.frame_max.allocated(),
            sums.label_max.allocated(),
            sums.label_sums.allocated(),
            sums.pair_sums.allocated(),
            occupancies.allocated(),
            ScratchReq::all_of(unigrams.iter().map(UnigramDistribution::allocated)),
        ]
    }
}
