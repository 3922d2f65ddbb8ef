//! Loss and gradient of one batch over the recognition lattice.
//!
//! Sessions run their calls with this module: [`CallInputs`] are the checked arguments,
//! [`BoundCall`] is the call with bound weights, and [`CallBuffers`] has the memory that is reused.
//! A group is a range of utterances that are processed together. D is the sum over all paths, S the
//! sum over the paths of the labels.
use std::borrow::Cow;

use kernels::{Real, ScratchReq};

use crate::{
    Arcs, BoundWeights, Error, Frames, Labels, RecognitionLattice, Result,
    best_path::Backpointers,
    denominator::{Denominator, SavedState},
    numerator::Numerator,
    plan::{BUFFER_KINDS, Plan},
    step::FrameStep,
    utterance_group::UtteranceGroup,
};

/// The sum over paths that a call computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathSum {
    /// `log D - log S`; with locally normalized weights `-log S`, without D.
    Loss,
    /// `log D`, over all paths.
    Denominator,
    /// `log S`, over the paths of the labels.
    Numerator,
}

/// The arguments of a call, checked for consistency.
pub(crate) struct CallInputs<'a, F: Real> {
    pub frames: &'a Frames<'a, F>,
    pub labels: Option<&'a Labels<'a>>,
    pub lattice: RecognitionLattice<'a, F>,
    /// The requested sum.
    sum: PathSum,
}

impl<'a, F: Real> CallInputs<'a, F> {
    /// Checks the arguments of a call.
    pub(crate) fn new(
        lattice: &RecognitionLattice<'a, F>,
        frames: &'a Frames<'a, F>,
        labels: Option<&'a Labels<'a>>,
        sum: PathSum,
    ) -> Result<Self> {
        lattice.check_frames(frames)?;
        match labels {
            Some(labels) => labels.check(frames, lattice.context().vocabulary())?,
            None if sum == PathSum::Denominator => {}
            None => return Err(Error::shape("labels", "labels for a sum over their paths", "none")),
        }
        let labels = if sum == PathSum::Denominator { None } else { labels };
        Ok(Self { frames, labels, lattice: *lattice, sum })
    }

    /// Returns true if the sum needs all paths.
    pub(crate) fn needs_all_paths(&self) -> bool {
        match self.sum {
            PathSum::Loss => !self.lattice.weight_fn().is_locally_normalized(),
            PathSum::Denominator => true,
            PathSum::Numerator => false,
        }
    }
}

/// Buffers that a session keeps from call to call.
#[derive(Default)]
pub(crate) struct CallBuffers<F> {
    pub denominator: Denominator<F>,
    pub numerator: Numerator<F>,
    pub backpointers: Backpointers<F>,
    /// Buffers of bound weights; empty during a call.
    pub weights: Vec<Vec<F>>,
}

impl<F: Real> CallBuffers<F> {
    /// Frees all buffers if they could exceed `limit` bytes in a call.
    ///
    /// The call needs the bytes of its plan plus the excess of each buffer over its planned size.
    pub(crate) fn fit(&mut self, plan: &Plan, limit: usize) {
        let excess_of = |(allocated, planned): (ScratchReq, &ScratchReq)| {
            ScratchReq::from_bytes(allocated.bytes().saturating_sub(planned.bytes()))
        };
        let excess = ScratchReq::all_of(self.allocated().into_iter().zip(&plan.buffers).map(excess_of));
        if excess.and(ScratchReq::from_bytes(plan.bytes)).bytes() > limit {
            *self = Self {
                denominator: Denominator::default(),
                numerator: Numerator::default(),
                backpointers: Backpointers::default(),
                weights: Vec::new(),
            };
        }
    }

    /// Allocated memory in the order of [`Plan::buffers`].
    fn allocated(&self) -> [ScratchReq; BUFFER_KINDS] {
        let [pointers, best_scratch] = self.backpointers.allocated();
        let [alpha, arcs, sum_scratch] = self.denominator.allocated();
        let weights = self.weights.iter().map(|buffer| ScratchReq::new::<F>(buffer.capacity()));
        [
            pointers.and(alpha),
            arcs,
            self.numerator.allocated(),
            best_scratch.and(sum_scratch),
            ScratchReq::all_of(weights),
        ]
    }
}

/// A call with bound weights.
pub(crate) struct BoundCall<'a, F: Real> {
    pub frames: &'a Frames<'a, F>,
    pub lattice: RecognitionLattice<'a, F>,
    pub step: FrameStep<'a>,
    pub weights: Box<dyn BoundWeights<F> + 'a>,
    labels: Option<&'a Labels<'a>>,
    /// Features of the packed frames of the group.
    frame_rows: Cow<'a, [F]>,
    sum: PathSum,
    /// Whether the sum needs all paths.
    all_paths: bool,
}

/// Sums over the paths of each utterance of a group.
pub(crate) struct GroupSums {
    /// `log D`; empty if the call does not need it.
    denominators: Vec<f64>,
    /// `log S`; empty if the call does not need it.
    numerators: Vec<f64>,
    /// The sums that the call returns.
    pub sums: Vec<f64>,
}

impl<'a, F: Real> BoundCall<'a, F> {
    /// Binds the weights of a call, reusing `buffers` of earlier calls.
    pub(crate) fn new(inputs: CallInputs<'a, F>, buffers: &mut Vec<Vec<F>>) -> Result<Self> {
        let all_paths = inputs.needs_all_paths();
        let CallInputs { frames, labels, lattice, sum } = inputs;
        let weights = lattice.weight_fn().bind(buffers)?;
        // Free buffers that the weights did not take.
        buffers.clear();
        let frame_rows = Cow::Borrowed(&[][..]);
        Ok(Self { frames, labels, lattice, step: lattice.step(), weights, frame_rows, sum, all_paths })
    }

    /// Sets the frames of a group.
    pub(crate) fn set_frames(&mut self, group: &UtteranceGroup) -> Result<()> {
        self.frame_rows = group.rows(self.frames);
        self.weights.set_frames(&self.frame_rows, &group.utterances())
    }

    /// Computes the sums of a group.
    ///
    /// `saved` is the state that is saved for [`backward`](Self::backward).
    pub(crate) fn forward(
        &mut self,
        buffers: &mut CallBuffers<F>,
        group: &UtteranceGroup,
        saved: SavedState,
    ) -> Result<GroupSums> {
        self.set_frames(group)?;
        let mut group_sums = GroupSums { denominators: Vec::new(), numerators: Vec::new(), sums: Vec::new() };
        if self.all_paths {
            group_sums.denominators = buffers.denominator.forward(&self.step, &*self.weights, group, saved);
            check_sums(&group_sums.denominators, group)?;
        }
        if let Some(labels) = self.labels {
            let (context, alignment) = (self.lattice.context(), self.lattice.alignment());
            let saves_marginals = saved != SavedState::Nothing;
            group_sums.numerators = buffers.numerator.forward(
                context,
                alignment,
                &*self.weights,
                group,
                labels,
                saves_marginals,
            )?;
            check_sums(&group_sums.numerators, group)?;
        }
        group_sums.sums = match self.sum {
            PathSum::Denominator => group_sums.denominators.clone(),
            PathSum::Numerator => group_sums.numerators.clone(),
            PathSum::Loss if !self.all_paths => group_sums.numerators.iter().map(|s| -s).collect(),
            PathSum::Loss => {
                let pairs = group_sums.denominators.iter().zip(&group_sums.numerators);
                let loss =
                    |(&d, &s): (&f64, &f64)| if s == f64::NEG_INFINITY { f64::INFINITY } else { d - s };
                pairs.map(loss).collect()
            }
        };
        Ok(group_sums)
    }

    /// Adds the gradients of the group of the last [`forward`](Self::forward).
    pub(crate) fn backward(
        &mut self,
        buffers: &mut CallBuffers<F>,
        group: &UtteranceGroup,
        group_sums: &GroupSums,
        cotangents: &[f64],
    ) -> Result<()> {
        if !group_sums.numerators.is_empty() {
            let sign = if self.sum == PathSum::Loss { -1.0 } else { 1.0 };
            let signed_cotangents: Vec<f64> = cotangents.iter().map(|g| sign * g).collect();
            buffers.numerator.backward(&mut *self.weights, group, &signed_cotangents)?;
        }
        if !group_sums.denominators.is_empty() {
            let backward = |weights: &mut dyn BoundWeights<F>, frames: &[usize], adjoints: Arcs<F>| {
                weights.backward(frames, adjoints);
                Ok(())
            };
            buffers.denominator.backward(&self.step, &mut *self.weights, group, cotangents, backward)?;
        }
        Ok(())
    }

    /// Writes the frame gradient of a group to its batch positions.
    ///
    /// `out` is the gradient of the batch; it is empty before the first group.
    pub(crate) fn frame_gradient(&mut self, group: &UtteranceGroup, out: &mut Vec<F>) {
        let (size, padded) = (self.frames.frame_size(), self.frames.padded());
        let batch_len = self.frames.utterances() * padded * size;
        let gradient_rows = self.weights.frame_gradient(&self.frame_rows);
        if gradient_rows.len() == batch_len {
            // A single group without padding: its rows are the result.
            *out = gradient_rows;
            return;
        }
        out.resize(batch_len, F::ZERO);
        for (row, position) in gradient_rows.chunks_exact(size).zip(group.batch_positions(padded)) {
            out[position * size..][..size].copy_from_slice(row);
        }
    }
}

/// Fails for a sum that is NaN or +inf.
pub(crate) fn check_sums(sums: &[f64], group: &UtteranceGroup) -> Result<()> {
    match sums.iter().position(|sum| sum.is_nan() || *sum == f64::INFINITY) {
        None => Ok(()),
        Some(index) => Err(Error::Overflow { utterance: group.utterances.start + index, value: sums[index] }),
    }
}

/// Fails unless each utterance has one finite weight.
pub(crate) fn check_weights<F: Real>(frames: &Frames<F>, weights: &[f64]) -> Result<()> {
    let expected = frames.utterances();
    if weights.len() != expected {
        return Err(Error::shape("weights", format!("{expected} weights, one per utterance"), weights.len()));
    }
    crate::error::expect_finite("weights", weights)?;
    // A weight may be infinite in single precision only.
    let rounded: Vec<F> = weights.iter().map(|&weight| F::from_f64(weight)).collect();
    crate::error::expect_finite("weights", &rounded)
}
