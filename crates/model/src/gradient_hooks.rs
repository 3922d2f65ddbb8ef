//! Gradients that are final before their backward pass has ended.
//!
//! Candle returns gradients when the pass has ended. Those of an LSTM's weights, nearly all of a recognizer's, are final as soon as
//! their node has run (`lstm/handle.rs`), and an all-reduce can begin with them.
use std::collections::HashMap;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::backprop::GradStore;
use candle_core::{Tensor, TensorId};

use crate::tensors::with_slice;

/// Sends gradients of one backward pass to the all-reduce of their step.
///
/// A forward pass passes a clone on to the operations whose backward sends gradients.
#[derive(Debug, Clone)]
pub struct GradientHooks(Arc<Mutex<Option<HookState>>>);

#[derive(Debug)]
struct HookState {
    /// Positions of the parameters among the terms of the all-reduce.
    positions: HashMap<TensorId, usize>,
    /// Gradients of the passes of the step before this one.
    earlier: HashMap<TensorId, Tensor>,
    terms: Sender<(usize, Tensor)>,
    /// Position, parameter, and [`checksum`] of this pass's gradient, in the order in which they were sent.
    sent: Vec<(usize, TensorId, u64)>,
    is_incomplete: bool,
}

/// What a backward pass has sent.
#[derive(Debug, Default)]
pub struct SentGradients {
    /// Positions of the gradients, in the order in which they were sent.
    pub positions: Vec<usize>,
    /// True if a gradient was sent before it was final, as that of a parameter that several nodes use.
    pub is_incomplete: bool,
}

impl GradientHooks {
    /// Hooks for parameters in the order of the terms of an all-reduce, whose gradients are added to `earlier` ones.
    pub fn new(
        parameters: &[TensorId],
        earlier: HashMap<TensorId, Tensor>,
        terms: Sender<(usize, Tensor)>,
    ) -> Self {
        let positions = parameters.iter().enumerate().map(|(position, &parameter)| (parameter, position));
        let state = HookState {
            positions: positions.collect(),
            earlier,
            terms,
            sent: Vec::new(),
            is_incomplete: false,
        };
        GradientHooks(Arc::new(Mutex::new(Some(state))))
    }

    /// Sends gradients that are final as far as one node of the graph can tell.
    pub(crate) fn send(&self, parameters: [TensorId; 3], gradients: [&Tensor; 3]) {
        if let Some(state) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            parameters.into_iter().zip(gradients).for_each(|(of, gradient)| state.send(of, gradient));
        }
    }

    /// Ends the pass, and compares the gradients that were sent with those that it returned.
    ///
    /// # Errors
    /// Candle's own errors.
    pub fn finish(self, returned: &GradStore) -> candle_core::Result<SentGradients> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(HookState { sent, mut is_incomplete, .. }) = state else {
            return Ok(SentGradients::default());
        };
        for (_, parameter, of_node) in &sent {
            // The gradient of a parameter that several nodes use is the sum of theirs.
            is_incomplete |= returned.get_id(*parameter).map(checksum).transpose()? != Some(*of_node);
        }
        Ok(SentGradients { positions: sent.iter().map(|(position, ..)| *position).collect(), is_incomplete })
    }
}

impl HookState {
    fn send(&mut self, parameter: TensorId, gradient: &Tensor) {
        let Some(&position) = self.positions.get(&parameter) else { return };
        let sum = match self.earlier.get(&parameter) {
            Some(earlier) => earlier + gradient,
            None => gradient.contiguous(),
        };
        let is_repeated = self.sent.iter().any(|(other, ..)| *other == position);
        match sum.and_then(|sum| Ok((sum, checksum(gradient)?))) {
            Ok((sum, checksum)) if !is_repeated => {
                self.sent.push((position, parameter, checksum));
                // Fails if the all-reduce has failed, which its result reports.
                let _ = self.terms.send((position, sum));
            }
            _ => self.is_incomplete = true,
        }
    }
}

/// Returns a number that differs where a value does; zeros of either sign are the same.
fn checksum(gradient: &Tensor) -> candle_core::Result<u64> {
    let sum = |values: &[f32]| {
        values.iter().fold(0u64, |sum, x| sum.wrapping_mul(3).wrapping_add((x + 0.0).to_bits().into()))
    };
    with_slice(&gradient.contiguous()?, |values: &[f32]| Ok(sum(values)))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use candle_core::Device;

    use super::*;
    use crate::{Gradients, Lstm, Parameters, Result};

    type Terms = Receiver<(usize, Tensor)>;

    /// An LSTM layer that runs so many times over its rows: parameters, hooks, and what is sent through them.
    fn network(times: usize, earlier: bool) -> Result<(Parameters, GradientHooks, Terms, Gradients, Tensor)> {
        let (parameters, layer) = Parameters::build(3, |vb| {
            vb.pp("other").get_with_hints(4, "weight", candle_nn::Init::Const(0.5))?;
            Lstm::new(4, 4, 0, false, &vb.pp("layer"))
        })?;
        let x: Vec<f32> = (0..2 * 5 * 4).map(|at| (at as f32 * 0.7).sin()).collect();
        let x = Tensor::from_vec(x, (2, 5, 4), &Device::Cpu)?;
        let other = parameters.get("other.weight").unwrap().as_tensor();
        let loss = |hooks: Option<&GradientHooks>| -> Result<Tensor> {
            let mut x = x.clone();
            for _ in 0..times {
                x = layer.forward_with_hooks(&x, &[5, 3], hooks)?.broadcast_mul(other)?;
            }
            Ok(x.sqr()?.sum_all()?)
        };
        let mut gradients = Gradients::default();
        if earlier {
            gradients.add(&parameters, loss(None)?.backward()?)?;
        }
        let ids: Vec<TensorId> = parameters.iter().map(|(_, variable)| variable.id()).collect();
        let of =
            |(name, variable): (&str, &candle_core::Var)| Some((variable.id(), gradients.get(name)?.clone()));
        let (sender, terms) = channel();
        let hooks = GradientHooks::new(&ids, parameters.iter().filter_map(of).collect(), sender);
        let loss = loss(Some(&hooks))?;
        Ok((parameters, hooks, terms, gradients, loss))
    }

    #[test]
    fn gradients_of_lstms_are_sent_during_the_pass_and_are_final() -> Result<()> {
        for earlier in [false, true] {
            let (parameters, hooks, terms, mut gradients, loss) = network(1, earlier)?;
            let found = loss.backward()?;
            let sent = hooks.finish(&found)?;
            assert!(!sent.is_incomplete);
            gradients.add(&parameters, found)?;
            let early: Vec<(usize, Tensor)> = terms.try_iter().collect();
            let names: Vec<&str> = parameters.iter().map(|(name, _)| name).collect();
            let positions: Vec<usize> = early.iter().map(|(position, _)| *position).collect();
            assert_eq!(sent.positions, positions);
            let mut of_layer: Vec<&str> = positions.iter().map(|&position| names[position]).collect();
            of_layer.sort_unstable();
            assert_eq!(of_layer, ["layer.bias_ih_l0", "layer.weight_hh_l0", "layer.weight_ih_l0"]);
            for (position, term) in early {
                let all = gradients.get(names[position]).unwrap();
                assert_eq!(term.flatten_all()?.to_vec1::<f32>()?, all.flatten_all()?.to_vec1::<f32>()?);
            }
        }
        Ok(())
    }

    #[test]
    fn a_layer_that_runs_twice_is_incomplete() -> Result<()> {
        let (_, hooks, terms, _, loss) = network(2, false)?;
        assert!(hooks.finish(&loss.backward()?)?.is_incomplete);
        assert_eq!(terms.try_iter().count(), 3);
        Ok(())
    }

    #[test]
    fn nothing_is_sent_after_the_pass_and_a_panic_ends_the_terms() -> Result<()> {
        let (_, hooks, terms, _, loss) = network(1, false)?;
        hooks.clone().finish(&loss.backward()?)?;
        assert_eq!(terms.try_iter().count(), 3);
        loss.backward()?;
        assert!(terms.recv().is_err() && hooks.finish(&loss.backward()?)?.positions.is_empty());

        let (_, hooks, terms, _, loss) = network(1, false)?;
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _hooks = hooks;
            drop(loss);
            panic!("in the backward pass")
        }));
        assert!(panicked.is_err() && terms.recv().is_err());
        Ok(())
    }
}
