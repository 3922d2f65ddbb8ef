//! Buffers of first passes, which stay from call to call.
use kernels::Real;

use crate::{Bytes, FirstPass, Scratches, sums::OfBatch, unigram::Row};

/// What first passes work in, and what of earlier ones nobody needs any more: the second pass of a shape allocates lists alone.
///
/// One workspace serves any number of passes, one after the other; what it holds never reaches a result.
#[derive(Debug)]
pub struct Workspace<F> {
    pub(crate) scratches: Scratches<F>,
    pub(crate) lattices: rnnt_dp::Workspace,
    /// What the utterances of a group work in, cut up by their shapes.
    pub(crate) narrow: Vec<F>,
    pub(crate) wide: Vec<f64>,
    pub(crate) spare: Spare<F>,
    /// Bytes that are held above what the last call named.
    excess: usize,
}

/// Vectors of a pass.
#[derive(Debug)]
pub(crate) struct Spare<F> {
    pub sums: OfBatch<F>,
    pub occupancies: Vec<f64>,
    pub unigrams: Vec<Row<F>>,
}

impl<F> Default for Spare<F> {
    fn default() -> Self {
        let sums = OfBatch {
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
            scratches: Scratches::default(),
            lattices: rnnt_dp::Workspace::within(0),
            narrow: Vec::new(),
            wide: Vec::new(),
            spare: Spare::default(),
            excess: 0,
        }
    }
}

/// Bytes of each buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Parts {
    pub tasks: usize,
    /// Of a task.
    pub scratch: [usize; 3],
    /// Lattices; rooms of a group; vectors of a pass.
    pub vectors: [usize; 9],
}

impl Parts {
    pub fn bytes(&self) -> usize {
        let scratch: usize = self.scratch.iter().sum();
        self.vectors.iter().fold(scratch.saturating_mul(self.tasks), |sum, &part| sum.saturating_add(part))
    }

    /// Of either.
    pub fn max(self, other: Self) -> Self {
        let Self { mut scratch, mut vectors, tasks } = self;
        scratch.iter_mut().zip(other.scratch).for_each(|(part, other)| *part = other.max(*part));
        vectors.iter_mut().zip(other.vectors).for_each(|(part, other)| *part = other.max(*part));
        Self { tasks: tasks.max(other.tasks), scratch, vectors }
    }
}

impl<F: Real> Workspace<F> {
    /// Lets go of everything if there is more of it than the next passes need, by more bytes than are left to them.
    pub fn keep_within(&mut self, needed: &Bytes, left: usize) {
        let Parts { tasks, scratch, vectors } = needed.parts;
        self.scratches.count(tasks);
        let above = |held: &[usize], needed: &[usize]| -> usize {
            held.iter().zip(needed).map(|(held, needed)| held.saturating_sub(*needed)).sum()
        };
        let of_scratches: usize = self.scratches.held().map(|held| above(&held, &scratch)).sum();
        self.excess = of_scratches + above(&self.vectors(), &vectors);
        if self.excess > left {
            *self = Self::default();
        }
    }

    /// Bytes that are held above what was named last.
    pub fn excess(&self) -> usize {
        self.excess
    }

    /// Takes back a pass that nobody needs any more.
    pub fn recycle(&mut self, pass: FirstPass<F>) {
        let FirstPass { sums, occupancies, unigrams, .. } = pass;
        self.spare = Spare { sums, occupancies, unigrams };
    }

    fn vectors(&self) -> [usize; 9] {
        let Self { lattices, narrow, wide, spare: Spare { sums, occupancies, unigrams }, .. } = self;
        let [frames, labels, of_labels, pairs] = sums.held();
        [
            lattices.held(),
            size_of::<F>() * narrow.capacity(),
            8 * wide.capacity(),
            frames,
            labels,
            of_labels,
            pairs,
            8 * occupancies.capacity(),
            unigrams.iter().map(Row::held).sum(),
        ]
    }
}
