//! `Session`: computes transducer and CTC losses and their gradients in reused buffers.
use std::borrow::Cow;

use panda_core::Real;

use crate::{
    Element, Head, Inputs, JointInputs, LabelAlignment, Layout, LossOutput, Options, PruningOutput, Result,
    Targets, budget::SessionBuffers, engine::ForwardState,
};

/// Computes losses of batches and their gradients; buffers are reused from step to step.
///
/// [`sum`](Self::sum) computes both, one group of utterances at a time, in memory that does not
/// grow with the batch. [`forward`](Self::forward) returns a [`PendingLoss`] with the losses, and
/// [`PendingLoss::backward`] the gradients when the weights of the utterances are known.
///
/// ```
/// use rnnt_loss::{Head, JointInputs, Options, Session, Targets};
/// let mut session = Session::new(&Options::default())?;
/// let weight = [0.1f32; 3 * 4]; // C = 3, H = 4
/// let targets = Targets::new(0, vec![2], vec![vec![1]])?;
/// for _step in 0..2 {
///     let (encoded, predicted) = ([1.0; 2 * 4], [1.0; 2 * 4]); // T = 2, U = 1
///     let joint = JointInputs::new(&encoded, &predicted, Head::new(&weight, None, 4)?);
///     let out = session.sum(joint, &targets, &[1.0])?;
///     assert!((out.losses[0] - (3.0 * 3f64.ln() - 2f64.ln())).abs() < 1e-6);
///     assert_eq!(out.gradients.head.weight.len(), 3 * 4);
/// }
/// # Ok::<(), rnnt_loss::Error>(())
/// ```
#[derive(Debug)]
pub struct Session<F> {
    options: Options,
    buffers: SessionBuffers<F>,
}

impl<F: Real> Session<F> {
    /// Creates a session; buffers are allocated on first use.
    ///
    /// # Errors
    /// Options that are out of range or incompatible; a plan with a size of zero.
    pub fn new(options: &Options) -> Result<Self> {
        options.check()?;
        if let Some(plan) = options.plan {
            panda_core::Workspace::with_plan(plan)?;
        }
        Ok(Self { options: options.clone(), buffers: SessionBuffers::default() })
    }
}

impl<F: Element> Session<F> {
    /// Options of the session.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Computes the losses of a batch; gradients follow in [`PendingLoss::backward`].
    ///
    /// # Shapes
    /// Those of the inputs.
    ///
    /// # Errors
    /// Mismatched shapes, labels outside the classes, scores that are NaN or +inf, inputs or
    /// targets that the loss does not support. An utterance without a path is not an error: its
    /// loss is +inf, and its gradient is zero.
    ///
    /// # Cost
    /// 2 N H C floating-point operations; the memory until the backward pass grows with the batch.
    pub fn forward<'a>(
        &'a mut self,
        inputs: impl Into<Inputs<'a, F>>,
        targets: &Targets,
    ) -> Result<PendingLoss<'a, F>> {
        let (Self { options, buffers }, inputs) = (self, inputs.into());
        let state = F::engine(buffers).forward(&inputs, targets, options)?;
        Ok(PendingLoss { options, buffers, inputs, state })
    }

    /// Computes the losses and all gradients of `Σ_b weights[b] loss[b]`.
    ///
    /// With pruning the sum has both losses, times their scales. Utterances are processed in
    /// groups, of which only losses and gradients remain: memory in addition to arguments and
    /// results does not grow with the batch (sample-wise training, Li et al., arXiv 2211.16270).
    /// Padding is never computed.
    ///
    /// # Shapes
    /// Those of the inputs; `weights` *B*.
    ///
    /// # Errors
    /// Those of [`forward`](Self::forward); a weight that is not finite.
    ///
    /// # Cost
    /// 6 to 8 N H C floating-point operations; memory within [`Options::budget`].
    pub fn sum<'a>(
        &mut self,
        inputs: impl Into<Inputs<'a, F>>,
        targets: &Targets,
        weights: &[f64],
    ) -> Result<LossOutput<F>>
    where
        F: 'a,
    {
        F::engine(&mut self.buffers).sum(&inputs.into(), targets, weights, &self.options)
    }

    /// Computes [`sum`](Self::sum) of scores in place; returns the losses.
    ///
    /// The gradient overwrites the scores.
    ///
    /// # Shapes
    /// `scores` as [`ScoreInputs::scores`](crate::ScoreInputs::scores), `weights` *B*.
    ///
    /// # Errors
    /// Those of [`sum`](Self::sum); the scores are then unchanged.
    ///
    /// # Cost
    /// O(N C) time; memory as [`plan_forward`](Self::plan_forward) returns, without a copy of the
    /// scores unless the loss has durations.
    pub fn sum_in_place(
        &mut self,
        scores: &mut [F],
        (classes, layout): (usize, Layout),
        targets: &Targets,
        weights: &[f64],
    ) -> Result<Vec<f64>> {
        let engine = F::engine(&mut self.buffers);
        engine.sum_in_place(scores, (classes, layout), targets, weights, &self.options)
    }

    /// Returns the most bytes of [`sum`](Self::sum) in addition to inputs and results.
    ///
    /// They include the buffers of the session.
    ///
    /// # Errors
    /// Those of [`sum`](Self::sum); [`Error::Budget`](crate::Error::Budget) with the smallest
    /// sufficient budget.
    pub fn plan_sum<'a>(&self, inputs: impl Into<Inputs<'a, F>>, targets: &Targets) -> Result<usize>
    where
        F: 'a,
    {
        F::engine_ref(&self.buffers).plan(&inputs.into(), targets, &self.options, false)
    }

    /// Returns the most bytes of [`forward`](Self::forward) and [`PendingLoss::backward`].
    ///
    /// # Errors
    /// Those of [`plan_sum`](Self::plan_sum).
    pub fn plan_forward<'a>(&self, inputs: impl Into<Inputs<'a, F>>, targets: &Targets) -> Result<usize>
    where
        F: 'a,
    {
        F::engine_ref(&self.buffers).plan(&inputs.into(), targets, &self.options, true)
    }

    /// Aligns labels with frames by the best paths; `None` without a path.
    ///
    /// Sites are `h(t,u) = act(encoded[t] + predicted[u])`. Loss, activation, precision and budget
    /// are those of the options; regularizers, σ, ω and dropout are ignored. Utterances are
    /// processed in groups, as in [`sum`](Self::sum).
    ///
    /// # Shapes
    /// Those of [`JointInputs`]. Returns *B* alignments.
    ///
    /// # Errors
    /// Mismatched shapes, labels outside the classes, scores that are NaN or +inf, the CTC loss.
    ///
    /// # Cost
    /// 2 N H C floating-point operations. Memory is within [`Options::budget`] if that is below the
    /// default; otherwise it is as for the default, and more only for a long utterance that needs
    /// it.
    ///
    /// ```
    /// use rnnt_loss::{Head, JointInputs, Options, Session, Targets};
    /// // T = 3, U = 1, H = 1: the label is most probable at t = 1.
    /// let (encoded, predicted) = ([0.0f32, 2.0, 0.0], [0.0; 2]);
    /// let weight = [-4.0, 4.0]; // C = 2
    /// let targets = Targets::new(0, vec![3], vec![vec![1]])?;
    /// let joint = JointInputs::new(&encoded, &predicted, Head::new(&weight, None, 1)?);
    /// let alignments = Session::new(&Options::default())?.align(&joint, &targets)?;
    /// let first = alignments[0].as_ref().unwrap().labels[0];
    /// assert_eq!((first.label, first.frame), (1, 1));
    /// # Ok::<(), rnnt_loss::Error>(())
    /// ```
    pub fn align(&self, joint: &JointInputs<F>, targets: &Targets) -> Result<Vec<Option<LabelAlignment>>> {
        F::engine_ref(&self.buffers).align(joint, targets, &self.options)
    }

    /// Computes label log-probabilities of the internal language model.
    ///
    /// HAT (Variani et al., arXiv 2003.07705, section 3.2) defines it by the predictor only;
    /// shallow fusion with another language model subtracts it.
    ///
    /// ```text
    /// h(u) = act(predicted[u])      log P(y | u) = z_y - log Σ_{y' not blank} exp z_y'
    /// ```
    ///
    /// The encoder row is 0, and the blank is excluded, factored or not. The options activation,
    /// budget and precision apply. The log-probability of a sequence is the sum over its labels.
    ///
    /// ```
    /// use rnnt_loss::{Head, Layout, Options, Session, Targets};
    /// let (predicted, weight) = ([0.3f32, 0.7], [5.0, 1.0, 1.0]); // U = 1, H = 1, C = 3
    /// let targets = Targets::new(0, vec![9], vec![vec![2]])?;
    /// let mut session = Session::new(&Options::default())?;
    /// let head = Head::new(&weight, None, 1)?;
    /// let log_probs = session.internal_lm(&predicted, head, Layout::Packed, &targets)?;
    /// assert!((log_probs[0][0] - 0.5f64.ln()).abs() < 1e-6);
    /// # Ok::<(), rnnt_loss::Error>(())
    /// ```
    ///
    /// # Shapes
    /// `predicted` *rows x H* in `layout`, as
    /// [`JointInputs::predicted`](crate::JointInputs::predicted). Returns U numbers for each
    /// utterance.
    ///
    /// # Errors
    /// Mismatched shapes, labels outside the classes, scores that are NaN or +inf, or -inf for all
    /// labels.
    ///
    /// # Cost
    /// 2 Σ (U+1) H C floating-point operations.
    pub fn internal_lm(
        &mut self,
        predicted: &[F],
        head: Head<F>,
        layout: Layout,
        targets: &Targets,
    ) -> Result<Vec<Vec<f64>>> {
        let engine = F::engine(&mut self.buffers);
        engine.internal_lm(predicted, head, layout, targets, &self.options)
    }
}

/// Losses of a batch whose backward pass is pending.
///
/// ```
/// use rnnt_loss::{Head, JointInputs, Options, Session, Targets};
/// let (weight, rows) = ([0.1f32; 3 * 4], [1.0; 2 * 4]);
/// let mut session = Session::new(&Options::default())?;
/// let targets = Targets::new(0, vec![2], vec![vec![1]])?;
/// let joint = JointInputs::new(&rows, &rows, Head::new(&weight, None, 4)?);
/// let pending = session.forward(joint, &targets)?;
/// let weights: Vec<f64> = pending.losses().iter().map(|loss| 1.0 / (1.0 + loss)).collect();
/// let gradients = pending.backward(&weights)?.gradients;
/// assert_eq!(gradients.encoded.len(), 2 * 4);
/// # Ok::<(), rnnt_loss::Error>(())
/// ```
pub struct PendingLoss<'a, F> {
    options: &'a Options,
    buffers: &'a mut SessionBuffers<F>,
    inputs: Inputs<'a, F>,
    state: ForwardState<F>,
}

impl<F: Element> PendingLoss<'_, F> {
    /// Loss of each utterance, *B*; +inf without a path.
    ///
    /// With pruning it is the loss of the joint network.
    pub fn losses(&self) -> &[f64] {
        self.state.losses()
    }

    /// Losses and ranges of the first pass, only with pruning.
    pub fn first_pass(&self) -> Option<&PruningOutput> {
        self.state.first_pass()
    }

    /// Emissions of the lattice, *N x S*, sites packed.
    ///
    /// They are log-probabilities without label smoothing, delay penalty and σ.
    pub fn emissions(&self) -> Cow<'_, [f64]> {
        self.state.emissions()
    }

    /// Adjoints of the emissions, *N x S*: derivatives of each utterance's loss.
    pub fn adjoints(&self) -> &[f64] {
        self.state.adjoints()
    }

    /// Computes all gradients of `Σ_b weights[b] loss[b]`.
    ///
    /// With pruning the sum has both losses, times their scales.
    ///
    /// # Errors
    /// Not one finite weight per utterance.
    ///
    /// # Cost
    /// 4 N H C floating-point operations, and 2 H C for each site whose scores were not kept.
    pub fn backward(self, weights: &[f64]) -> Result<LossOutput<F>> {
        let Self { options, buffers, inputs, state } = self;
        F::engine(buffers).backward(state, &inputs, weights, options)
    }
}
