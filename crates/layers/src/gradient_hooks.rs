//! `GradientHooks`: sends the gradients of LSTM weights during a backward pass.
use std::collections::HashMap;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::backprop::GradStore;
use candle_core::{Tensor, TensorId};

use crate::tensors::with_slice;

/// The gradients that a backward pass has sent.
#[derive(Debug, Default)]
pub struct SentGradients {
    /// Positions of the gradients, in the order in which they were sent.
    pub positions: Vec<usize>,
    /// True if a gradient was sent before it was final.
    ///
    /// The sent value is then wrong. This is the case if several nodes use a parameter.
    pub is_incomplete: bool,
}

/// Sends gradients of one backward pass to the all-reduce of their step.
///
/// A forward pass stores clones in the operations that send gradients in their backward pass.
#[derive(Debug, Clone)]
pub struct GradientHooks(Arc<Mutex<Option<HookState>>>);

/// The state of the hooks during a pass.
#[derive(Debug)]
struct HookState {
    /// Positions of the parameters in the terms.
    positions: HashMap<TensorId, usize>,
    /// Sums of the gradients of the earlier passes of the step.
    earlier_sums: HashMap<TensorId, Tensor>,
    /// Sends terms, each with its position.
    sender: Sender<(usize, Tensor)>,
    sent: Vec<SentGradient>,
    /// See [`SentGradients::is_incomplete`].
    is_incomplete: bool,
}

/// A gradient that was sent during the pass.
#[derive(Debug)]
struct SentGradient {
    /// Position of the parameter in the terms.
    position: usize,
    parameter: TensorId,
    /// The [`checksum`] of the gradient, without those of earlier passes.
    checksum: u64,
}

impl GradientHooks {
    /// Creates the hooks of a pass.
    ///
    /// `positions` are those of the parameters in the terms, `earlier_sums` the sums of the
    /// gradients of earlier passes. A term is sent with its position.
    pub fn new(
        positions: HashMap<TensorId, usize>,
        earlier_sums: HashMap<TensorId, Tensor>,
        sender: Sender<(usize, Tensor)>,
    ) -> Self {
        let state = HookState { positions, earlier_sums, sender, sent: Vec::new(), is_incomplete: false };
        GradientHooks(Arc::new(Mutex::new(Some(state))))
    }

    /// Sends the gradients of one node.
    ///
    /// They are final if no other node uses the parameters.
    pub(crate) fn send(&self, parameters: [TensorId; 3], gradients: [&Tensor; 3]) {
        if let Some(state) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            let gradients = parameters.into_iter().zip(gradients);
            gradients.for_each(|(parameter, gradient)| state.send(parameter, gradient));
        }
    }

    /// Ends the pass, and compares sent with final gradients.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn finish(self, returned: &GradStore) -> candle_core::Result<SentGradients> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(HookState { sent, mut is_incomplete, .. }) = state else {
            return Ok(SentGradients::default());
        };
        for gradient in &sent {
            // The gradient of a parameter that several nodes use is the sum of theirs.
            let final_checksum = returned.get_id(gradient.parameter).map(checksum).transpose()?;
            is_incomplete |= final_checksum != Some(gradient.checksum);
        }
        Ok(SentGradients {
            positions: sent.iter().map(|gradient| gradient.position).collect(),
            is_incomplete,
        })
    }
}

impl HookState {
    /// Adds earlier sums to a gradient, and sends the sum.
    fn send(&mut self, parameter: TensorId, gradient: &Tensor) {
        let Some(&position) = self.positions.get(&parameter) else { return };
        let sum = match self.earlier_sums.get(&parameter) {
            Some(earlier) => earlier + gradient,
            None => gradient.contiguous(),
        };
        let is_repeated = self.sent.iter().any(|sent| sent.position == position);
        match sum.and_then(|sum| Ok((sum, checksum(gradient)?))) {
            Ok((sum, checksum)) if !is_repeated => {
                self.sent.push(SentGradient { position, parameter, checksum });
                // Fails if the all-reduce has failed, which its result reports.
                let _ = self.sender.send((position, sum));
            }
            _ => self.is_incomplete = true,
        }
    }
}

/// Returns a hash of the values; zeros of both signs are equal.
fn checksum(gradient: &Tensor) -> candle_core::Result<u64> {
    let hash = |values: &[f32]| {
        values.iter().fold(0u64, |hash, x| hash.wrapping_mul(3).wrapping_add((x + 0.0).to_bits().into()))
    };
    with_slice(&gradient.contiguous()?, |values: &[f32]| Ok(hash(values)))
}
