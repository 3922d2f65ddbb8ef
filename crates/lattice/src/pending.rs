//! What a session's forward pass returns: losses now, gradients when the weights are known.
use kernels::Real;

use crate::{
    Output, Result, Session,
    group::Group,
    plan::Plan,
    session::{Call, Found, check_weights},
};

/// Losses of a batch, whose gradients wait for the weights of the utterances.
pub struct Pending<'a, F: Real> {
    session: &'a mut Session<F>,
    call: Call<'a, F>,
    group: Group,
    found: Found,
}

impl<'a, F: Real> Pending<'a, F> {
    pub(crate) fn new(session: &'a mut Session<F>, mut call: Call<'a, F>, plan: &Plan) -> Result<Self> {
        let group = Group::new(call.frames, 0..call.frames.utterances(), plan.window);
        let found = call.forward(session, &group, Some(plan.kept))?;
        Ok(Self { session, call, group, found })
    }

    /// Loss of each utterance, *B..*; +inf without a path.
    pub fn losses(&self) -> &[f64] {
        &self.found.sums
    }

    /// All gradients of `Σ_b weights[b] loss[b]`.
    ///
    /// # Errors
    /// Not one finite weight for each utterance.
    pub fn backward(self, weights: &[f64]) -> Result<Output<F>> {
        let Self { session, mut call, group, found } = self;
        check_weights(call.frames, weights)?;
        call.backward(session, &group, &found, weights)?;
        let frames = call.frames;
        let mut gradient = vec![F::ZERO; frames.utterances() * frames.padded() * frames.size()];
        call.frame_gradient(&group, &mut gradient);
        session.keep_buffers(&mut call);
        Ok(Output { sums: found.sums, frames: gradient, parameters: call.weights.finish() })
    }
}
