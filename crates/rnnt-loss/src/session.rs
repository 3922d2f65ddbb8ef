//! The object that owns objective, options, budget and buffers, and lives as long as training does.
use panda_core::Real;

use crate::{
    Alignment, Error, Head, Inputs, Joint, Layout, Loss, Options, Output, Pending, Result, Targets, align,
    budget::{CallPlan, Sizes},
    call::Call,
    compact::Compact,
    error::expect_len,
    held::Held,
    internal,
    objective::Recursions,
    pruned, scores,
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
    pub(crate) options: Options,
    /// One for each head.
    pub(crate) normalisers: Vec<panda_core::Workspace<F>>,
    pub(crate) recursions: Recursions,
    pub(crate) compact: Compact,
    /// With pruning alone.
    pub(crate) first: ::pruned::Workspace<F>,
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
        Ok(Self {
            options: options.clone(),
            normalisers: Vec::new(),
            recursions: Recursions::default(),
            compact: Compact::default(),
            first: ::pruned::Workspace::default(),
        })
    }

    /// Makes every part of the session keep to the cut of a call.
    pub(crate) fn keep_to(&mut self, plan: &CallPlan, heads: usize) -> Result<()> {
        self.recursions.keep_within(plan.lattices);
        self.compact.keep_within(plan.compact, plan.left.saturating_sub(self.first.excess()));
        self.normalisers.truncate(heads);
        while self.normalisers.len() < heads {
            let workspace = match self.options.plan {
                None => panda_core::Workspace::new(self.options.budget, self.options.keep_scores),
                Some(plan) => panda_core::Workspace::with_plan(plan.to::<F>())?,
            };
            self.normalisers.push(workspace.with_precision(self.options.precision));
        }
        for (head, (workspace, &budget)) in self.normalisers.iter_mut().zip(&plan.heads).enumerate() {
            workspace.set_budget(budget, self.options.keeps_scores(head));
        }
        Ok(())
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
        targets: &'a Targets,
    ) -> Result<Pending<'a, F>> {
        Pending::new(self, inputs.into(), targets)
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
        F::engine(self).sum(&inputs.into(), targets, weights)
    }
}

impl<F: Element> Session<F> {
    /// Bytes that [`sum`](Self::sum) of such inputs holds at most beside them and its results, buffers of the session included.
    ///
    /// # Errors
    /// As there; [`Error::Budget`] names the smallest cut if the budget is below it.
    pub fn plan<'a>(&self, inputs: impl Into<Inputs<'a, F>>, targets: &Targets) -> Result<usize>
    where
        F: 'a,
    {
        F::look(self).plan(&inputs.into(), targets, false)
    }

    /// The same for [`forward`](Self::forward) and its [`Pending::backward`], over all utterances at once.
    ///
    /// # Errors
    /// As there.
    pub fn plan_whole<'a>(&self, inputs: impl Into<Inputs<'a, F>>, targets: &Targets) -> Result<usize>
    where
        F: 'a,
    {
        F::look(self).plan(&inputs.into(), targets, true)
    }
}

/// `f32` or `f64`; sealed by [`Real`].
///
/// The engine is compiled in this crate, once for each type, and not again in every crate that uses it.
pub trait Element: Real {
    #[doc(hidden)]
    fn engine(session: &mut Session<Self>) -> &mut dyn Engine<Self>;
    #[doc(hidden)]
    fn look(session: &Session<Self>) -> &dyn Engine<Self>;
}

macro_rules! compiled {
    ($($float:ty),*) => {$(
        impl Element for $float {
            #[inline(never)]
            fn engine(session: &mut Session<Self>) -> &mut dyn Engine<Self> {
                session
            }
            #[inline(never)]
            fn look(session: &Session<Self>) -> &dyn Engine<Self> {
                session
            }
        }
    )*};
}

compiled!(f32, f64);

/// What a session does for any inputs; see its methods of the same names.
pub trait Engine<F> {
    #[doc(hidden)]
    fn plan(&self, inputs: &Inputs<F>, targets: &Targets, whole: bool) -> Result<usize>;
    #[doc(hidden)]
    fn sum(&mut self, inputs: &Inputs<F>, targets: &Targets, weights: &[f64]) -> Result<Output<F>>;
    #[doc(hidden)]
    fn sum_in_place(
        &mut self,
        scores: &mut [F],
        shape: (usize, Layout),
        targets: &Targets,
        weights: &[f64],
    ) -> Result<Vec<f64>>;
    #[doc(hidden)]
    fn forward(&mut self, inputs: &Inputs<F>, targets: &Targets) -> Result<Held<F>>;
    #[doc(hidden)]
    fn backward(
        &mut self,
        held: Held<F>,
        inputs: &Inputs<F>,
        targets: &Targets,
        weights: &[f64],
    ) -> Result<Output<F>>;
    #[doc(hidden)]
    fn align(&self, joint: &Joint<F>, targets: &Targets) -> Result<Vec<Option<Alignment>>>;
    #[doc(hidden)]
    fn internal_lm(
        &mut self,
        predicted: &[F],
        head: Head<F>,
        layout: Layout,
        targets: &Targets,
    ) -> Result<Vec<Vec<f64>>>;
}

impl<F: Real> Engine<F> for Session<F> {
    fn plan(&self, inputs: &Inputs<F>, targets: &Targets, whole: bool) -> Result<usize> {
        let (options, loss) = (&self.options, &self.options.loss);
        let of = |sizes: Sizes| Ok(if whole { sizes.whole::<F>()? } else { sizes.in_groups::<F>()? }.bytes);
        match inputs {
            Inputs::Joint(joint) => of(Call::joint(joint, loss, targets, options)?.sizes(options, 0)),
            Inputs::Rows(rows) => of(Call::rows(rows, loss, targets, options)?.sizes(options, 0)),
            Inputs::Scores(scores) => {
                of(scores::Call::new(scores, loss, targets, options)?.sizes::<F>(options))
            }
            Inputs::Pruned(inputs) => Ok(pruned::plan(options, inputs, targets, whole)?.second.bytes),
        }
    }

    fn sum(&mut self, inputs: &Inputs<F>, targets: &Targets, weights: &[f64]) -> Result<Output<F>> {
        let loss = self.options.loss.clone();
        expect_len("weights", targets.batch(), weights.len())?;
        match inputs {
            Inputs::Joint(joint) => {
                reject_pruned(&loss)?;
                Call::joint(joint, &loss, targets, &self.options)?.sum(self, weights, 0)
            }
            Inputs::Rows(rows) => {
                reject_pruned(&loss)?;
                let call = Call::rows(rows, &loss, targets, &self.options)?;
                call.sum(self, weights, 0).map_err(|error| error.of(&loss))
            }
            Inputs::Scores(inputs) => scores::sum(self, inputs, targets, weights),
            Inputs::Pruned(inputs) => pruned::sum(self, inputs, targets, weights),
        }
    }

    fn sum_in_place(
        &mut self,
        scores: &mut [F],
        shape: (usize, Layout),
        targets: &Targets,
        weights: &[f64],
    ) -> Result<Vec<f64>> {
        scores::sum_in_place(self, scores, shape, targets, weights)
    }

    fn forward(&mut self, inputs: &Inputs<F>, targets: &Targets) -> Result<Held<F>> {
        Held::new(self, inputs, targets)
    }

    fn backward(
        &mut self,
        held: Held<F>,
        inputs: &Inputs<F>,
        targets: &Targets,
        weights: &[f64],
    ) -> Result<Output<F>> {
        held.backward(self, inputs, targets, weights)
    }

    fn align(&self, joint: &Joint<F>, targets: &Targets) -> Result<Vec<Option<Alignment>>> {
        align::alignments(&self.options, joint, targets)
    }

    fn internal_lm(
        &mut self,
        predicted: &[F],
        head: Head<F>,
        layout: Layout,
        targets: &Targets,
    ) -> Result<Vec<Vec<f64>>> {
        internal::label_side(self, predicted, head, layout, targets)
    }
}

/// Fails where sites would have to be chosen first.
pub(crate) fn reject_pruned(loss: &Loss) -> Result<()> {
    match loss {
        Loss::Pruned { .. } => Err(Error::Inputs {
            expected: "a trivial joiner and a joint network",
            found: "no trivial joiner",
        }),
        _ => Ok(()),
    }
}
