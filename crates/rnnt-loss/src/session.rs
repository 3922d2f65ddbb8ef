//! Sessions: options and buffers that live as long as training does.
use std::borrow::Cow;

use panda_core::Real;

use crate::{
    Alignment, Element, Head, Inputs, Joint, Layout, Options, Output, PruningOutput, Result, Targets,
    budget::SessionBuffers, engine::ForwardState,
};

/// Losses of batches, and their gradients; buffers stay from step to step.
///
/// [`forward`](Self::forward) gives a [`Pending`] that knows the losses, and [`Pending::backward`] the gradients once the weights
/// of the utterances are known. [`sum`](Self::sum) does both utterance group by utterance group, in memory that does not
/// grow with the batch.
///
/// ```
/// use rnnt_loss::{Head, Joint, Options, Session, Targets};
/// let mut session = Session::new(&Options::default())?;
/// let (weight, targets) = ([0.1f32; 3 * 4], Targets::new(0, vec![2], vec![vec![1]])?); // C = 3, H = 4
/// for _step in 0..2 {
///     let (encoded, predicted) = ([1.0; 2 * 4], [1.0; 2 * 4]); // T = 2, U = 1
///     let joint = Joint::new(&encoded, &predicted, Head::new(&weight, None, 4)?);
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
    /// A session without buffers yet.
    ///
    /// # Errors
    /// Options that make no sense or do not go together; a plan with a size of zero.
    pub fn new(options: &Options) -> Result<Self> {
        options.check()?;
        if let Some(plan) = options.plan {
            panda_core::Workspace::with_plan(plan)?;
        }
        Ok(Self { options: options.clone(), buffers: SessionBuffers::default() })
    }
}

impl<F: Element> Session<F> {
    /// What the session was made with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Losses of a batch; gradients follow when the weights of the utterances are known.
    ///
    /// # Shapes
    /// Those of the inputs.
    ///
    /// # Errors
    /// Shapes that do not fit, labels outside the classes, scores that are NaN or +inf, inputs of a kind that the loss does not
    /// take, targets that it has no columns for. An utterance without a path is not an error: its loss is +inf, and it
    /// has no gradient.
    ///
    /// # Cost
    /// 2 N H C floating-point operations; what is held until the gradients are there grows with the batch.
    pub fn forward<'a>(
        &'a mut self,
        inputs: impl Into<Inputs<'a, F>>,
        targets: &Targets,
    ) -> Result<Pending<'a, F>> {
        let (Self { options, buffers }, inputs) = (self, inputs.into());
        let state = F::engine(buffers).forward(&inputs, targets, options)?;
        Ok(Pending { options, buffers, inputs, state })
    }

    /// Losses of a batch and all gradients of `Σ_b weights[b] loss[b]` (with pruning, of both losses in their scales).
    ///
    /// Utterances go in groups, and nothing of a group but its losses and gradients survives it: memory beside arguments
    /// and results does not grow with the batch (sample-wise training, Li et al., arXiv 2211.16270). Padding is never computed.
    ///
    /// # Shapes
    /// Those of the inputs; `weights` *B*.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); a weight that is not finite.
    ///
    /// # Cost
    /// 6 to 8 N H C floating-point operations and memory as [`Options::budget`] says.
    pub fn sum<'a>(
        &mut self,
        inputs: impl Into<Inputs<'a, F>>,
        targets: &Targets,
        weights: &[f64],
    ) -> Result<Output<F>>
    where
        F: 'a,
    {
        F::engine(&mut self.buffers).sum(&inputs.into(), targets, weights, &self.options)
    }

    /// As [`sum`](Self::sum) of [`Scores`](crate::Scores), writing the gradient over the scores; returns the losses.
    ///
    /// # Shapes
    /// `scores` as [`Scores::scores`](crate::Scores::scores), `weights` *B*.
    ///
    /// # Errors
    /// As [`sum`](Self::sum); the scores are then untouched.
    ///
    /// # Cost
    /// O(N C) time; memory as [`plan_whole`](Self::plan_whole) says, nothing of the size of the scores unless the loss has durations.
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

    /// Bytes that [`sum`](Self::sum) of such inputs holds at most beside them and its results, buffers of the session included.
    ///
    /// # Errors
    /// As there; [`Error::Budget`](crate::Error::Budget) names the smallest cut if the budget is below it.
    pub fn plan<'a>(&self, inputs: impl Into<Inputs<'a, F>>, targets: &Targets) -> Result<usize>
    where
        F: 'a,
    {
        F::engine_ref(&self.buffers).plan(&inputs.into(), targets, &self.options, false)
    }

    /// The same for [`forward`](Self::forward) and its [`Pending::backward`], over all utterances at once.
    ///
    /// # Errors
    /// As there.
    pub fn plan_whole<'a>(&self, inputs: impl Into<Inputs<'a, F>>, targets: &Targets) -> Result<usize>
    where
        F: 'a,
    {
        F::engine_ref(&self.buffers).plan(&inputs.into(), targets, &self.options, true)
    }

    /// Best paths of sites `h(t,u) = act(encoded[t] + predicted[u])` under the heads of a loss over arcs; `None` for an utterance
    /// without a path.
    ///
    /// Kind of loss, activation, precision and budget are those of the options. Regularizers, σ, ω and dropout play no part:
    /// these are the model's own probabilities. Utterances go in groups, as in [`sum`](Self::sum).
    ///
    /// # Shapes
    /// Those of [`Joint`]. Returns *B* alignments.
    ///
    /// # Errors
    /// Shapes that do not fit, labels outside the classes, scores that are NaN or +inf, a loss without arcs.
    ///
    /// # Cost
    /// 2 N H C floating-point operations, and memory as [`Options::budget`] says.
    ///
    /// ```
    /// use rnnt_loss::{Head, Joint, Options, Session, Targets};
    /// let (encoded, predicted) = ([0.0f32, 2.0, 0.0], [0.0; 2]); // T = 3, U = 1, H = 1: the second frame says "label"
    /// let weight = [-4.0, 4.0]; // C = 2
    /// let targets = Targets::new(0, vec![3], vec![vec![1]])?;
    /// let joint = Joint::new(&encoded, &predicted, Head::new(&weight, None, 1)?);
    /// let found = Session::new(&Options::default())?.align(&joint, &targets)?;
    /// let token = found[0].as_ref().unwrap().tokens[0];
    /// assert_eq!((token.label, token.frame), (1, 1));
    /// # Ok::<(), rnnt_loss::Error>(())
    /// ```
    pub fn align(&self, joint: &Joint<F>, targets: &Targets) -> Result<Vec<Option<Alignment>>> {
        F::engine_ref(&self.buffers).align(joint, targets, &self.options)
    }

    /// Log-probability of each label by the label side alone: the internal language model of HAT (Variani et al., arXiv
    /// 2003.07705, section 3.2), which shallow fusion with another one subtracts.
    ///
    /// ```text
    /// h(u) = act(predicted[u])      log P(y | u) = z_y - log Σ_{y' not blank} exp z_y'
    /// ```
    ///
    /// The frame's share of the joint is left out, and so is the blank, factored or not. Of the options, activation, budget and
    /// precision count. The log-probability of a whole sequence is the sum over its labels.
    ///
    /// ```
    /// use rnnt_loss::{Head, Layout, Options, Session, Targets};
    /// let (predicted, weight) = ([0.3f32, 0.7], [5.0, 1.0, 1.0]); // U = 1, H = 1, C = 3: both labels are alike
    /// let targets = Targets::new(0, vec![9], vec![vec![2]])?;
    /// let mut session = Session::new(&Options::default())?;
    /// let found = session.internal_lm(&predicted, Head::new(&weight, None, 1)?, Layout::Packed, &targets)?;
    /// assert!((found[0][0] - 0.5f64.ln()).abs() < 1e-6);
    /// # Ok::<(), rnnt_loss::Error>(())
    /// ```
    ///
    /// # Shapes
    /// `predicted` *rows x H* in `layout`, as [`Joint::predicted`](crate::Joint::predicted). Returns U numbers for each utterance.
    ///
    /// # Errors
    /// Shapes that do not fit, labels outside the classes, scores that are NaN or +inf, or -inf for every label.
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

/// Losses of a batch, whose gradients wait for the weights of the utterances.
///
/// ```
/// use rnnt_loss::{Head, Joint, Options, Session, Targets};
/// let (weight, rows) = ([0.1f32; 3 * 4], [1.0; 2 * 4]);
/// let mut session = Session::new(&Options::default())?;
/// let targets = Targets::new(0, vec![2], vec![vec![1]])?;
/// let pending = session.forward(Joint::new(&rows, &rows, Head::new(&weight, None, 4)?), &targets)?;
/// let weights: Vec<f64> = pending.losses().iter().map(|loss| 1.0 / (1.0 + loss)).collect();
/// let gradients = pending.backward(&weights)?.gradients;
/// assert_eq!(gradients.encoded.len(), 2 * 4);
/// # Ok::<(), rnnt_loss::Error>(())
/// ```
pub struct Pending<'a, F> {
    options: &'a Options,
    buffers: &'a mut SessionBuffers<F>,
    inputs: Inputs<'a, F>,
    state: ForwardState<F>,
}

impl<F: Element> Pending<'_, F> {
    /// Loss of each utterance, *B*; +inf without a path. With pruning that of the joint network.
    pub fn losses(&self) -> &[f64] {
        self.state.losses()
    }

    /// Losses and ranges of the first pass, with pruning only.
    pub fn first_pass(&self) -> Option<&PruningOutput> {
        self.state.first_pass()
    }

    /// Columns of the lattice, log-probabilities before smoothing, delay penalty and σ: *N x S*, sites packed.
    pub fn emissions(&self) -> Cow<'_, [f64]> {
        self.state.emissions()
    }

    /// Derivatives of each utterance's loss by its columns, *N x S*.
    pub fn adjoints(&self) -> &[f64] {
        self.state.adjoints()
    }

    /// All gradients of `Σ_b weights[b] loss[b]` (with pruning, of both losses in their scales).
    ///
    /// # Errors
    /// Not one finite weight for each utterance.
    ///
    /// # Cost
    /// 4 N H C floating-point operations, and 2 for each site whose scores the budget had no room for.
    pub fn backward(self, weights: &[f64]) -> Result<Output<F>> {
        let Self { options, buffers, inputs, state } = self;
        F::engine(buffers).backward(state, &inputs, weights, options)
    }
}
