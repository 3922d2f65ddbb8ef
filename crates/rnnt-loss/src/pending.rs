//! Losses of a forward pass, whose gradients wait for the weights of the utterances.
use std::borrow::Cow;

use crate::{
    Element, Inputs, Options, Output, PruningOutput, Result, buffers::SessionBuffers, loss_call::ForwardState,
};

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
    pub(crate) options: &'a Options,
    pub(crate) buffers: &'a mut SessionBuffers<F>,
    pub(crate) inputs: Inputs<'a, F>,
    pub(crate) state: ForwardState<F>,
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
