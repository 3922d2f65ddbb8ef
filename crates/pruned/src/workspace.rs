//! Buffers of first passes, which stay from call to call.
use kernels::{AlignedVec, Real, ReusableBuffer, ScratchReq, WorkerSlots, ensure_len};

use crate::{FirstPass, PassScratch, sums::BatchSums, unigram::UnigramRow};

/// Buffers of first passes, and vectors of earlier ones: the second pass of a shape allocates lists only.
///
/// One workspace serves any number of passes, one after the other; what it holds never reaches a result.
#[derive(Debug)]
pub struct Workspace<F> {
    pub(crate) slots: WorkerSlots<TaskScratch<F>>,
    pub(crate) lattices: rnnt_dp::Workspace,
    /// What the utterances of a group work in, cut up by their shapes.
    pub(crate) narrow: Vec<F>,
    pub(crate) wide: Vec<f64>,
    pub(crate) spare: Spare<F>,
    /// Bytes that are held above what was needed last.
    excess: usize,
}

/// Vectors of a pass.
#[derive(Debug)]
pub(crate) struct Spare<F> {
    pub sums: BatchSums<F>,
    pub occupancies: Vec<f64>,
    pub unigrams: Vec<UnigramRow<F>>,
}

impl<F> Default for Spare<F> {
    fn default() -> Self {
        let sums = BatchSums {
            frame_max: Vec::new(),
            label_max: Vec::new(),
            label_sums: Vec::new(),
            pairs: Vec::new(),
        };
        Self { sums, occupancies: Vec::new(), unigrams: Vec::new() }
    }
}

impl<F> Default for Workspace<F> {
    fn default() -> Self {
        Self {
            slots: WorkerSlots::default(),
            lattices: rnnt_dp::Workspace::within(0),
            narrow: Vec::new(),
            wide: Vec::new(),
            spare: Spare::default(),
            excess: 0,
        }
    }
}

/// Scratch of one task at a time.
#[derive(Debug)]
pub struct TaskScratch<F> {
    /// What products pack into.
    pub packing: AlignedVec<F>,
    scores: Vec<F>,
    sums: Vec<F>,
}

impl<F> Default for TaskScratch<F> {
    fn default() -> Self {
        Self { packing: AlignedVec::default(), scores: Vec::new(), sums: Vec::new() }
    }
}

impl<F: Real> TaskScratch<F> {
    /// Memory for packing, and as many scores and sums, with whatever an earlier task left in them.
    pub(crate) fn split(&mut self, scores: usize, sums: usize) -> (&mut AlignedVec<F>, &mut [F], &mut [F]) {
        ensure_len(&mut self.scores, scores, F::ZERO);
        ensure_len(&mut self.sums, sums, F::ZERO);
        (&mut self.packing, &mut self.scores[..scores], &mut self.sums[..sums])
    }

    /// What it holds: packing, scores, sums.
    fn requirements(&self) -> [ScratchReq; 3] {
        [self.packing.requirement(), self.scores.requirement(), self.sums.requirement()]
    }
}

/// Makes `count` slots, and reserves the scratch of a task for all threads: any of them may need it.
pub(crate) fn reserve_slots<F: Real>(
    slots: &mut WorkerSlots<TaskScratch<F>>,
    count: usize,
    of_task: [ScratchReq; 3],
) {
    slots.resize(count);
    let [packing, scores, sums] = of_task.map(ScratchReq::bytes);
    for scratch in slots.iter_mut().take(rayon::current_num_threads()) {
        scratch.packing.ensure_bytes(packing, F::ZERO);
        scratch.split(scores / size_of::<F>(), sums / size_of::<F>());
    }
}

impl<F: Real> Workspace<F> {
    /// Frees everything if it holds more bytes above what the next passes need than are left to them.
    pub fn keep_within(&mut self, needed: &PassScratch, left: usize) {
        self.slots.resize(needed.tasks);
        let above = |held: &[ScratchReq], needed: &[ScratchReq]| -> usize {
            held.iter().zip(needed).map(|(held, needed)| held.bytes().saturating_sub(needed.bytes())).sum()
        };
        let of_slots = self.slots.iter_mut().map(|slot| above(&slot.requirements(), &needed.of_task));
        self.excess = of_slots.sum::<usize>() + above(&self.held(), &needed.buffers);
        if self.excess > left {
            *self = Self::default();
        }
    }

    /// Bytes that are held above what was needed last.
    pub fn excess(&self) -> usize {
        self.excess
    }

    /// Takes back a pass that is not needed any more.
    pub fn recycle(&mut self, pass: FirstPass<F>) {
        let FirstPass { sums, occupancies, unigrams, .. } = pass;
        self.spare = Spare { sums, occupancies, unigrams };
    }

    /// What the buffers hold, in the order of [`PassScratch::buffers`].
    fn held(&self) -> [ScratchReq; 9] {
        let Self { lattices, narrow, wide, spare: Spare { sums, occupancies, unigrams }, .. } = self;
        [
            ScratchReq::from_bytes(lattices.held()),
            narrow.requirement(),
            wide.requirement(),
            sums.frame_max.requirement(),
            sums.label_max.requirement(),
            sums.label_sums.requirement(),
            sums.pairs.requirement(),
            occupancies.requirement(),
            ScratchReq::all_of(unigrams.iter().map(UnigramRow::requirement)),
        ]
    }
}
