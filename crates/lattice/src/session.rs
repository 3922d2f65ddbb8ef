//! Sums over the paths of a batch, with gradients.
use kernels::Real;

use crate::{
    Frames, Labels, LatticePath, Parameters, RecognitionLattice, Result,
    execution::{CallBuffers, Execution, GroupSums, Request, Sum, check_weights},
    group::UtteranceGroup,
    path_search::PathSearch,
    plan::{LatticeOperation, Options, Plan},
};

/// Owns the options and the buffers of calls, for the length of a training run.
pub struct LatticeSession<F> {
    options: Options,
    pub(crate) buffers: CallBuffers<F>,
}

/// Sums of a batch and gradients of a weighted sum of them.
#[derive(Debug, Clone, PartialEq)]
pub struct LatticeOutput<F> {
    /// Sum of each utterance, *B..*. A loss without a path is +inf.
    pub sums: Vec<f64>,
    /// Gradient of the frames, *B.. x T x F*; 0 in padding.
    pub frames: Vec<F>,
    /// Gradients of the parameters, by their names.
    pub parameters: Parameters<F>,
}

/// Losses of a batch, whose gradients wait for the weights of the utterances.
pub struct PendingLosses<'a, F: Real> {
    buffers: &'a mut CallBuffers<F>,
    execution: Execution<'a, F>,
    group: UtteranceGroup,
    found: GroupSums,
}

impl<F: Real> PendingLosses<'_, F> {
    /// Loss of each utterance, *B..*; +inf without a path.
    pub fn losses(&self) -> &[f64] {
        &self.found.sums
    }

    /// All gradients of `Σ_b weights[b] loss[b]`.
    ///
    /// # Errors
    /// Not one finite weight for each utterance.
    pub fn backward(self, weights: &[f64]) -> Result<LatticeOutput<F>> {
        let Self { buffers, mut execution, group, found } = self;
        let frames = execution.frames;
        check_weights(frames, weights)?;
        execution.backward(buffers, &group, &found, weights)?;
        let mut gradient = vec![F::ZERO; frames.utterances() * frames.padded() * frames.size()];
        execution.frame_gradient(&group, &mut gradient);
        buffers.weights = execution.weights.take_buffers();
        Ok(LatticeOutput { sums: found.sums, frames: gradient, parameters: execution.weights.finish() })
    }
}

impl<F: Real> Default for LatticeSession<F> {
    fn default() -> Self {
        Self::new(Options::default())
    }
}

impl<F: Real> LatticeSession<F> {
    /// A session without buffers yet.
    pub fn new(options: Options) -> Self {
        Self { options, buffers: CallBuffers::default() }
    }

    /// The options of the session.
    pub fn options(&self) -> Options {
        self.options
    }

    /// How [`sum`](Self::sum) would be split.
    ///
    /// # Errors
    /// [`Error::Budget`](crate::Error::Budget), which names the smallest plan, for a budget below it.
    pub fn plan(&self, lattice: &RecognitionLattice<F>, frames: &Frames<F>, labels: &Labels) -> Result<Plan> {
        let request = Request::new(lattice, frames, Some(labels), Sum::Loss)?;
        let operation = LatticeOperation::sum(request.needs_all_paths()).with_gradients();
        Plan::new(lattice, frames, request.labels, (operation, self.options))
    }

    /// How [`best_paths`](Self::best_paths) would be split.
    ///
    /// # Errors
    /// [`Error::Budget`](crate::Error::Budget), which names the smallest plan, for a budget below it.
    pub fn plan_best_paths(&self, lattice: &RecognitionLattice<F>, frames: &Frames<F>) -> Result<Plan> {
        Request::new(lattice, frames, None, Sum::Denominator)?;
        Ok(PathSearch::new(lattice, frames, self.options)?.plan)
    }

    /// Plans a call and then binds its weights: planning comes before all allocations.
    pub(crate) fn start<'a>(
        &mut self,
        request: Request<'a, F>,
        operation: impl FnOnce(bool) -> LatticeOperation,
    ) -> Result<(Execution<'a, F>, Plan)> {
        let operation = operation(request.needs_all_paths());
        let plan = Plan::new(&request.lattice, request.frames, request.labels, (operation, self.options))?;
        Ok((self.bind(request, &plan)?, plan))
    }

    /// Binds the weights of a planned call.
    fn bind<'a>(&mut self, request: Request<'a, F>, plan: &Plan) -> Result<Execution<'a, F>> {
        self.buffers.fit(plan, self.options.limit(0));
        Execution::new(request, &mut self.buffers.weights)
    }

    /// Losses now, gradients when the weights of the utterances are known.
    ///
    /// # Errors
    /// As [`sum`](Self::sum).
    pub fn forward<'a>(
        &'a mut self,
        lattice: &RecognitionLattice<'a, F>,
        frames: &'a Frames<'a, F>,
        labels: &'a Labels<'a>,
    ) -> Result<PendingLosses<'a, F>> {
        let request = Request::new(lattice, frames, Some(labels), Sum::Loss)?;
        let operation = |all_paths| LatticeOperation::sum(all_paths).with_gradients().whole();
        let (mut execution, plan) = self.start(request, operation)?;
        let group = UtteranceGroup::new(frames, 0..frames.utterances(), plan.window);
        let found = execution.forward(&mut self.buffers, &group, Some(plan.kept))?;
        Ok(PendingLosses { buffers: &mut self.buffers, execution, group, found })
    }

    /// Losses and all gradients of `Σ_b weights[b] loss[b]`, group of utterances by group.
    ///
    /// ```text
    /// loss = log D - log S        any weight function that is not locally normalised
    /// loss = -log S               one that is
    /// ```
    /// A string without a path has the loss +inf and leaves the gradient of D alone; where all paths are blocked the loss is +inf
    /// too, and there is no gradient. The other utterances do not notice.
    ///
    /// # Shapes
    /// `weights` *B..*.
    ///
    /// # Errors
    /// Inputs that do not fit the lattice or one another, labels that are none, a budget below the smallest cut, weights of arcs
    /// whose sum is NaN or +inf.
    ///
    /// # Cost
    /// Arc weights of all frames three times over, forward, again and backward (twice with a budget that keeps them), and two of
    /// each site of the string; α of a group, *N x C*, and the arc weights of a few frames.
    pub fn sum(
        &mut self,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        labels: &Labels,
        weights: &[f64],
    ) -> Result<LatticeOutput<F>> {
        self.sum_of(Sum::Loss, lattice, frames, Some(labels), weights)
    }

    /// [`sum`](Self::sum) of another sum over paths; one over all of them needs no labels.
    ///
    /// # Errors
    /// As there.
    pub fn sum_of(
        &mut self,
        sum: Sum,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        labels: Option<&Labels>,
        weights: &[f64],
    ) -> Result<LatticeOutput<F>> {
        let request = Request::new(lattice, frames, labels, sum)?;
        check_weights(frames, weights)?;
        kernels::install(|| self.sum_request(request, weights))
    }

    fn sum_request(&mut self, request: Request<F>, weights: &[f64]) -> Result<LatticeOutput<F>> {
        let frames = request.frames;
        let (mut execution, plan) =
            self.start(request, |all_paths| LatticeOperation::sum(all_paths).with_gradients())?;
        let mut sums = Vec::with_capacity(frames.utterances());
        let mut gradient = vec![F::ZERO; frames.utterances() * frames.padded() * frames.size()];
        for group in plan.groups(frames) {
            let found = execution.forward(&mut self.buffers, &group, Some(plan.kept))?;
            execution.backward(&mut self.buffers, &group, &found, &weights[group.utterances.clone()])?;
            execution.frame_gradient(&group, &mut gradient);
            sums.extend(found.sums);
        }
        self.buffers.weights = execution.weights.take_buffers();
        Ok(LatticeOutput { sums, frames: gradient, parameters: execution.weights.finish() })
    }

    /// One of the sums without gradients: the shortest distance in the log semiring. -inf where there is no path.
    ///
    /// ```text
    /// α_0[p] = 1̄ if p = start else 0̄      α_{t+1} = forward(α_t)      D = ⊕_p α_N[p]
    /// ```
    /// # Errors
    /// As [`sum`](Self::sum).
    pub fn distances(
        &mut self,
        sum: Sum,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        labels: Option<&Labels>,
    ) -> Result<Vec<f64>> {
        let request = Request::new(lattice, frames, labels, sum)?;
        kernels::install(|| self.distances_request(request))
    }

    fn distances_request(&mut self, request: Request<F>) -> Result<Vec<f64>> {
        let frames = request.frames;
        let (mut execution, plan) = self.start(request, LatticeOperation::sum)?;
        let mut sums = Vec::with_capacity(frames.utterances());
        for group in plan.groups(frames) {
            sums.extend(execution.forward(&mut self.buffers, &group, None)?.sums);
        }
        self.buffers.weights = execution.weights.take_buffers();
        Ok(sums)
    }

    /// The best path of each utterance, under max and +, over the whole lattice.
    ///
    /// # Errors
    /// As [`distances`](Self::distances).
    ///
    /// # Cost
    /// Arc weights of all frames once; backpointers of a group, 4 bytes for each frame, state and label of a frame. In `f32`, on a
    /// machine that adds up products of 16-bit pairs (AVX-512 VNNI), the weights of a [`JointWeightFn`](crate::JointWeightFn) network are only
    /// estimated where a frame has at most one label and many states lead to the same ones, and computed where an estimate and its
    /// error do not exclude that an arc is the best: about two thirds of the time. The paths and their weights are the same, bit for
    /// bit.
    pub fn best_paths(
        &mut self,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
    ) -> Result<Vec<LatticePath>> {
        let request = Request::new(lattice, frames, None, Sum::Denominator)?;
        kernels::install(|| {
            let PathSearch { plan, run } = PathSearch::new(lattice, frames, self.options)?;
            let mut execution = self.bind(request, &plan)?;
            let paths = run(&mut execution, &plan, &mut self.buffers)?;
            self.buffers.weights = execution.weights.take_buffers();
            Ok(paths)
        })
    }

    /// Forward weights: α before each frame in the log semiring, *B.. x T x C*; behind the last frame of an utterance they stay.
    ///
    /// ```text
    /// α_0[p] = 1̄ if p = start else 0̄      α_{t+1} = forward(α_t)
    /// ```
    /// # Errors
    /// As [`sum`](Self::sum).
    pub fn alphas(&mut self, lattice: &RecognitionLattice<F>, frames: &Frames<F>) -> Result<Vec<f64>> {
        let c = lattice.context().states();
        let request = Request::new(lattice, frames, None, Sum::Denominator)?;
        let (mut execution, plan) =
            self.start(request, |all_paths| LatticeOperation::sum(all_paths).with_gradients())?;
        let mut alphas = Vec::with_capacity(frames.utterances() * frames.padded() * c);
        for group in plan.groups(frames) {
            execution.forward(&mut self.buffers, &group, Some(plan.kept))?;
            for at in 0..group.len() {
                alphas.extend(self.buffers.denominator.alphas(c, &group, at, frames.padded()));
            }
        }
        Ok(alphas)
    }

    /// Posteriors of all arcs, summed over states of the alignment: *B.. x T x C* blank and *B.. x T x C x V* lexical, 0 in padding
    /// and where all paths are blocked. Over all paths, or over those of the labels.
    ///
    /// # Errors
    /// As [`sum`](Self::sum).
    ///
    /// # Cost
    /// The result is as large as all arcs: for looking at lattices, not for training.
    pub fn marginals(
        &mut self,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
    ) -> Result<(Vec<F>, Vec<F>)> {
        let (c, v) = (lattice.context().states(), lattice.context().vocabulary());
        let request = Request::new(lattice, frames, None, Sum::Denominator)?;
        let (mut execution, plan) =
            self.start(request, |all_paths| LatticeOperation::sum(all_paths).with_gradients())?;
        let rows = frames.utterances() * frames.padded();
        let (mut blank, mut lexical) = (vec![F::ZERO; rows * c], vec![F::ZERO; rows * c * v]);
        for group in plan.groups(frames) {
            execution.forward(&mut self.buffers, &group, Some(plan.kept))?;
            let places = group.places(frames.padded());
            let ones = vec![1.0; group.len()];
            self.buffers.denominator.backward(
                &execution.step,
                &mut *execution.weights,
                &group,
                &ones,
                |_, frames, adjoints| {
                    for (at, &frame) in frames.iter().enumerate() {
                        let to = places[frame];
                        blank[to * c..][..c].copy_from_slice(&adjoints.blank[at * c..][..c]);
                        lexical[to * c * v..][..c * v]
                            .copy_from_slice(&adjoints.lexical[at * c * v..][..c * v]);
                    }
                    Ok(())
                },
            )?;
        }
        Ok((blank, lexical))
    }
}
