//! Session of recognition lattices: losses, gradients and best paths of batches.
//!
//! D is the sum over all paths of an utterance, S the sum over the paths of its labels. Buffers are
//! reused from call to call.
use kernels::Real;

use crate::{
    Frames, Labels, LatticePath, Parameters, RecognitionLattice, Result,
    denominator::SavedState,
    execution::{BoundCall, CallBuffers, CallInputs, GroupSums, PathSum, check_weights},
    path_search::PathSearch,
    plan::{LatticeOperation, Options, Plan},
    screened,
    utterance_group::UtteranceGroup,
};

/// Options and buffers of calls, for the length of a training run.
pub struct LatticeSession<F> {
    options: Options,
    pub(crate) buffers: CallBuffers<F>,
}

/// Sums of a batch, and gradients of a weighted sum of them.
#[derive(Debug, Clone, PartialEq)]
pub struct LatticeOutput<F> {
    /// Sum of each utterance, *B..*; a loss without a path is +inf.
    pub sums: Vec<f64>,
    /// Gradient of the frames, *B.. x T x F*; 0 in padding.
    pub frames: Vec<F>,
    /// Gradients of the parameters, by name.
    pub parameters: Parameters<F>,
}

/// Losses of a batch, before their gradients are computed.
pub struct PendingLosses<'a, F: Real> {
    buffers: &'a mut CallBuffers<F>,
    call: BoundCall<'a, F>,
    group: UtteranceGroup,
    group_sums: GroupSums,
}

impl<F: Real> PendingLosses<'_, F> {
    /// Loss of each utterance, *B..*; +inf without a path.
    pub fn losses(&self) -> &[f64] {
        &self.group_sums.sums
    }

    /// Computes the gradients of `Σ_b weights[b] loss[b]`.
    ///
    /// # Errors
    /// Not one finite weight for each utterance.
    pub fn backward(self, weights: &[f64]) -> Result<LatticeOutput<F>> {
        let Self { buffers, mut call, group, group_sums } = self;
        let frames = call.frames;
        check_weights(frames, weights)?;
        call.backward(buffers, &group, &group_sums, weights)?;
        let mut gradient = Vec::new();
        call.frame_gradient(&group, &mut gradient);
        buffers.weights = call.weights.take_buffers();
        Ok(LatticeOutput { sums: group_sums.sums, frames: gradient, parameters: call.weights.finish() })
    }
}

impl<F: Real> Default for LatticeSession<F> {
    fn default() -> Self {
        Self::new(Options::default())
    }
}

impl<F: Real> LatticeSession<F> {
    /// Creates a session with empty buffers.
    pub fn new(options: Options) -> Self {
        Self { options, buffers: CallBuffers::default() }
    }

    /// The options of the session.
    pub fn options(&self) -> Options {
        self.options
    }

    /// Returns the plan of [`sum`](Self::sum).
    ///
    /// # Errors
    /// [`Error::Budget`](crate::Error::Budget) with the smallest plan, for a budget below it.
    pub fn plan(&self, lattice: &RecognitionLattice<F>, frames: &Frames<F>, labels: &Labels) -> Result<Plan> {
        let inputs = CallInputs::new(lattice, frames, Some(labels), PathSum::Loss)?;
        let operation = LatticeOperation::sum(inputs.needs_all_paths()).with_gradients();
        Plan::new(lattice, frames, inputs.labels, operation, self.options)
    }

    /// Returns the plan of [`best_paths`](Self::best_paths).
    ///
    /// # Errors
    /// [`Error::Budget`](crate::Error::Budget) with the smallest plan, for a budget below it.
    pub fn plan_best_paths(&self, lattice: &RecognitionLattice<F>, frames: &Frames<F>) -> Result<Plan> {
        CallInputs::new(lattice, frames, None, PathSum::Denominator)?;
        Ok(select_search(lattice, frames, self.options)?.plan)
    }

    /// Plans a call, and then binds its weights.
    ///
    /// Planning comes before all allocations. `operation` gets whether the call visits all paths.
    pub(crate) fn start_call<'a>(
        &mut self,
        inputs: CallInputs<'a, F>,
        operation: impl FnOnce(bool) -> LatticeOperation,
    ) -> Result<(BoundCall<'a, F>, Plan)> {
        let operation = operation(inputs.needs_all_paths());
        let plan = Plan::new(&inputs.lattice, inputs.frames, inputs.labels, operation, self.options)?;
        Ok((self.bind(inputs, &plan)?, plan))
    }

    /// Binds the weights of a planned call.
    fn bind<'a>(&mut self, inputs: CallInputs<'a, F>, plan: &Plan) -> Result<BoundCall<'a, F>> {
        self.buffers.fit(plan, self.options.limit(0));
        BoundCall::new(inputs, &mut self.buffers.weights)
    }

    /// Computes losses now; gradients follow when the utterance weights are known.
    ///
    /// # Errors
    /// As [`sum`](Self::sum).
    pub fn forward<'a>(
        &'a mut self,
        lattice: &RecognitionLattice<'a, F>,
        frames: &'a Frames<'a, F>,
        labels: &'a Labels<'a>,
    ) -> Result<PendingLosses<'a, F>> {
        let inputs = CallInputs::new(lattice, frames, Some(labels), PathSum::Loss)?;
        let operation = |all_paths| LatticeOperation::sum(all_paths).with_gradients().for_all_utterances();
        let (mut call, plan) = self.start_call(inputs, operation)?;
        let group = UtteranceGroup::new(frames, 0..frames.utterances(), plan.frames_per_wave);
        let group_sums =
            call.forward(&mut self.buffers, &group, SavedState::for_backward(plan.keeps_arcs))?;
        Ok(PendingLosses { buffers: &mut self.buffers, call, group, group_sums })
    }

    /// Computes losses and the gradients of `Σ_b weights[b] loss[b]`, group by group.
    ///
    /// ```text
    /// loss = log D - log S        with globally normalized weights
    /// loss = -log S               with locally normalized weights
    /// ```
    /// A string without a path has the loss +inf and only the gradient of D. If all paths are
    /// blocked the loss is +inf, and there is no gradient. Other utterances are not affected.
    ///
    /// # Shapes
    /// `weights` *B..*.
    ///
    /// # Errors
    /// Inputs that do not fit together or do not fit the lattice; labels out of range; a budget
    /// below the smallest plan; arc weights whose sum is NaN or +inf.
    ///
    /// # Cost
    /// Arc weights of all frames three times: forward, again, and backward (twice if the budget
    /// allows keeping them), and two weights for each site of the string. Memory: α of a group, *N
    /// x C*, and the arc weights of a few frames.
    pub fn sum(
        &mut self,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        labels: &Labels,
        weights: &[f64],
    ) -> Result<LatticeOutput<F>> {
        self.sum_paths(PathSum::Loss, lattice, frames, Some(labels), weights)
    }

    /// [`sum`](Self::sum) for a given sum over paths; [`PathSum::Denominator`] needs no labels.
    ///
    /// # Errors
    /// As [`sum`](Self::sum).
    pub fn sum_paths(
        &mut self,
        sum: PathSum,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        labels: Option<&Labels>,
        weights: &[f64],
    ) -> Result<LatticeOutput<F>> {
        let inputs = CallInputs::new(lattice, frames, labels, sum)?;
        check_weights(frames, weights)?;
        kernels::run_in_pool(|| self.sum_groups(inputs, weights))
    }

    /// Computes sums and gradients, group by group.
    fn sum_groups(&mut self, inputs: CallInputs<F>, weights: &[f64]) -> Result<LatticeOutput<F>> {
        let frames = inputs.frames;
        let (mut call, plan) =
            self.start_call(inputs, |all_paths| LatticeOperation::sum(all_paths).with_gradients())?;
        let mut sums = Vec::with_capacity(frames.utterances());
        let mut gradient = Vec::new();
        for group in plan.groups(frames) {
            let group_sums =
                call.forward(&mut self.buffers, &group, SavedState::for_backward(plan.keeps_arcs))?;
            call.backward(&mut self.buffers, &group, &group_sums, &weights[group.utterances.clone()])?;
            call.frame_gradient(&group, &mut gradient);
            sums.extend(group_sums.sums);
        }
        self.buffers.weights = call.weights.take_buffers();
        Ok(LatticeOutput { sums, frames: gradient, parameters: call.weights.finish() })
    }

    /// Computes a sum over paths without gradients; -inf without a path.
    ///
    /// It is the shortest distance in the log semiring.
    ///
    /// ```text
    /// α_0[p] = 1̄ if p = start else 0̄      α_{t+1} = forward(α_t)      D = ⊕_p α_N[p]
    /// ```
    ///
    /// # Errors
    /// As [`sum`](Self::sum).
    pub fn distances(
        &mut self,
        sum: PathSum,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        labels: Option<&Labels>,
    ) -> Result<Vec<f64>> {
        let inputs = CallInputs::new(lattice, frames, labels, sum)?;
        kernels::run_in_pool(|| self.distances_of_groups(inputs))
    }

    /// Computes sums without gradients, group by group.
    fn distances_of_groups(&mut self, inputs: CallInputs<F>) -> Result<Vec<f64>> {
        let frames = inputs.frames;
        let (mut call, plan) = self.start_call(inputs, LatticeOperation::sum)?;
        let mut sums = Vec::with_capacity(frames.utterances());
        for group in plan.groups(frames) {
            sums.extend(call.forward(&mut self.buffers, &group, SavedState::Nothing)?.sums);
        }
        self.buffers.weights = call.weights.take_buffers();
        Ok(sums)
    }

    /// Returns the best path of each utterance, in the tropical semiring.
    ///
    /// # Errors
    /// As [`distances`](Self::distances).
    ///
    /// # Cost
    /// Arc weights of all frames once; backpointers of a group, 4 bytes for each frame, state and
    /// label of a frame.
    ///
    /// In `f32`, on a CPU with AVX-512 VNNI, the weights of a
    /// [`JointWeightFn`](crate::JointWeightFn) are only estimated if a frame has at most one label
    /// and many states lead to the same ones. They are computed where an estimate and its error
    /// bound do not exclude that an arc is the best. This takes about two thirds of the time. Paths
    /// and weights are the same, bit for bit.
    pub fn best_paths(
        &mut self,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
    ) -> Result<Vec<LatticePath>> {
        let inputs = CallInputs::new(lattice, frames, None, PathSum::Denominator)?;
        kernels::run_in_pool(|| {
            let PathSearch { plan, run } = select_search(lattice, frames, self.options)?;
            let mut call = self.bind(inputs, &plan)?;
            let paths = run(&mut call, &plan, &mut self.buffers)?;
            self.buffers.weights = call.weights.take_buffers();
            Ok(paths)
        })
    }

    /// Returns α before each frame in the log semiring, *B.. x T x C*.
    ///
    /// After the last frame of an utterance the values repeat.
    ///
    /// ```text
    /// α_0[p] = 1̄ if p = start else 0̄      α_{t+1} = forward(α_t)
    /// ```
    ///
    /// # Errors
    /// As [`sum`](Self::sum).
    pub fn alphas(&mut self, lattice: &RecognitionLattice<F>, frames: &Frames<F>) -> Result<Vec<f64>> {
        let state_count = lattice.context().states();
        let inputs = CallInputs::new(lattice, frames, None, PathSum::Denominator)?;
        let (mut call, plan) =
            self.start_call(inputs, |all_paths| LatticeOperation::sum(all_paths).with_gradients())?;
        let mut alphas = Vec::with_capacity(frames.utterances() * frames.padded() * state_count);
        for group in plan.groups(frames) {
            call.forward(&mut self.buffers, &group, SavedState::for_backward(plan.keeps_arcs))?;
            for utterance in 0..group.len() {
                alphas.extend(self.buffers.denominator.alphas(
                    state_count,
                    &group,
                    utterance,
                    frames.padded(),
                ));
            }
        }
        Ok(alphas)
    }

    /// Returns the posteriors of all arcs, summed over alignment states.
    ///
    /// They are *B.. x T x C* for blanks and *B.. x T x C x V* for labels, 0 in padding and where
    /// all paths are blocked.
    ///
    /// # Errors
    /// As [`sum`](Self::sum).
    ///
    /// # Cost
    /// The result is as large as all arcs: for inspection of lattices, not for training.
    pub fn marginals(
        &mut self,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
    ) -> Result<(Vec<F>, Vec<F>)> {
        let (c, v) = (lattice.context().states(), lattice.context().vocabulary());
        let inputs = CallInputs::new(lattice, frames, None, PathSum::Denominator)?;
        let (mut call, plan) =
            self.start_call(inputs, |all_paths| LatticeOperation::sum(all_paths).with_gradients())?;
        let padded_frames = frames.utterances() * frames.padded();
        let (mut blank, mut label_arcs) =
            (vec![F::ZERO; padded_frames * c], vec![F::ZERO; padded_frames * c * v]);
        for group in plan.groups(frames) {
            call.forward(&mut self.buffers, &group, SavedState::for_backward(plan.keeps_arcs))?;
            let positions = group.batch_positions(frames.padded());
            let cotangents = vec![1.0; group.len()];
            self.buffers.denominator.backward(
                &call.step,
                &mut *call.weights,
                &group,
                &cotangents,
                |_, frames, adjoints| {
                    for (wave_row, &frame) in frames.iter().enumerate() {
                        let position = positions[frame];
                        blank[position * c..][..c].copy_from_slice(&adjoints.blank[wave_row * c..][..c]);
                        label_arcs[position * c * v..][..c * v]
                            .copy_from_slice(&adjoints.labels[wave_row * c * v..][..c * v]);
                    }
                    Ok(())
                },
            )?;
        }
        Ok((blank, label_arcs))
    }
}

/// Selects the fastest search that fits into the budget; all find the same paths.
fn select_search<F: Real>(
    lattice: &RecognitionLattice<F>,
    frames: &Frames<F>,
    options: Options,
) -> Result<PathSearch<F>> {
    let all_arcs = PathSearch::over_all_arcs(lattice, frames, options)?;
    Ok(screened::search(lattice, &all_arcs.plan).unwrap_or(all_arcs))
}
