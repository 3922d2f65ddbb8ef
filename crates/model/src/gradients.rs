//! Gradients of a model for one step: summed over batches, sent to an all-reduce.
//!
//! The trainer creates a [`GradientSum`] for each step. The terms of the all-reduce are the
//! gradients of this rank, one for each parameter.
//!
//! ```text
//! hooks      for the last forward pass of the step
//! backward   runs a backward pass and adds its gradients; LSTM nodes send theirs in it
//! send       sends the other gradients
//! ```
//! Candle returns gradients when the pass has ended. Those of an LSTM's weights, which are nearly
//! all of a recognizer's, are final as soon as their node has run ([`layers::gradient_hooks`]), and
//! an all-reduce can begin with them.
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};

use candle_core::{Tensor, TensorId, Var};
use layers::tensors::with_slice;

use crate::{BatchStatistics, GradientHooks, Parameters, Result, SentGradients};

/// Contiguous gradients by the names of their parameters.
///
/// A parameter is missing if no backward pass had a gradient for it.
pub type Gradients = BTreeMap<String, Tensor>;

/// The sum of the gradients of several batches.
///
/// Each batch is weighted as in the mean over all utterances of the step, so that gradients are
/// only added, here and between processes.
#[derive(Debug)]
pub struct GradientSum<'a> {
    parameters: &'a Parameters,
    sums: Gradients,
    sent: SentGradients,
    /// Statistics of trained batch norms.
    statistics: Vec<BatchStatistics>,
}

/// The terms of an all-reduce of all gradients, each with its position.
#[derive(Debug)]
pub struct GradientTerms {
    /// `order[position]`: index of a parameter among the sorted names of trained parameters.
    order: Vec<usize>,
    /// True if terms may be sent during the last backward pass.
    may_send_early: bool,
    sender: Sender<(usize, Tensor)>,
}

impl GradientTerms {
    /// Creates sender and receiver of terms, in this order of parameters.
    pub fn new(order: &[usize], may_send_early: bool) -> (Self, Receiver<(usize, Tensor)>) {
        let (sender, receiver) = channel();
        (GradientTerms { order: order.to_vec(), may_send_early, sender }, receiver)
    }

    /// Calls `add` with the values of a term.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn read(term: &Tensor, add: &mut dyn FnMut(&[f32])) -> candle_core::Result<()> {
        with_slice(term, |values: &[f32]| {
            add(values);
            Ok(())
        })
    }
}

impl<'a> GradientSum<'a> {
    /// Creates a sum of no gradients.
    pub fn new(parameters: &'a Parameters) -> Self {
        let (sums, sent, statistics) = (Gradients::new(), SentGradients::default(), Vec::new());
        GradientSum { parameters, sums, sent, statistics }
    }

    /// Returns hooks for the last pass of a step, if allowed.
    pub fn hooks(&self, terms: &GradientTerms) -> Option<GradientHooks> {
        if !terms.may_send_early {
            return None;
        }
        let ids: Vec<TensorId> =
            self.parameters.iter_trained().map(|(_, parameter)| parameter.id()).collect();
        let position_by_id = terms.order.iter().enumerate().map(|(position, &index)| (ids[index], position));
        let earlier_sum =
            |(name, parameter): (&str, &Var)| Some((parameter.id(), self.sums.get(name)?.clone()));
        let earlier_sums = self.parameters.iter_trained().filter_map(earlier_sum).collect();
        Some(GradientHooks::new(position_by_id.collect(), earlier_sums, terms.sender.clone()))
    }

    /// Runs the backward pass of a loss, and adds its gradients.
    ///
    /// `hooks` are those of its forward pass.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn backward(&mut self, loss: &Tensor, hooks: Option<GradientHooks>) -> Result<()> {
        let mut returned = loss.backward()?;
        if let Some(hooks) = hooks {
            self.sent = hooks.finish(&returned)?;
        }
        for (name, variable) in self.parameters.iter_trained() {
            let Some(gradient) = returned.remove(variable) else { continue };
            let sum = match self.sums.remove(name) {
                Some(earlier) => (earlier + gradient)?,
                None => gradient.contiguous()?,
            };
            self.sums.insert(name.to_owned(), sum);
        }
        Ok(())
    }

    /// Sends all gradients that the last backward pass has not sent.
    ///
    /// A parameter without a gradient sends zeros.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn send(&self, terms: GradientTerms) -> Result<()> {
        let GradientTerms { order, may_send_early, sender } = terms;
        let sent_positions = if may_send_early { &self.sent.positions[..] } else { &[] };
        let parameters: Vec<(&str, &Var)> = self.parameters.iter_trained().collect();
        let is_unsent = |(position, _): &(usize, &usize)| !sent_positions.contains(position);
        for (position, &index) in order.iter().enumerate().filter(is_unsent) {
            let (name, parameter) = parameters[index];
            let gradient = match self.sums.get(name) {
                Some(gradient) => gradient.clone(),
                None => parameter.zeros_like()?,
            };
            // Fails if the all-reduce has failed, which its result reports.
            let _ = sender.send((position, gradient));
        }
        Ok(())
    }

    /// Returns the parameters.
    pub fn parameters(&self) -> &'a Parameters {
        self.parameters
    }

    /// Returns the gradients that the last backward pass has sent.
    pub fn sent(&self) -> &SentGradients {
        &self.sent
    }

    /// Returns true for each trained parameter with a gradient.
    ///
    /// Parameters are in the order of their names.
    pub fn has_gradient(&self) -> Vec<bool> {
        self.parameters.iter_trained().map(|(name, _)| self.sums.contains_key(name)).collect()
    }

    /// Adds the statistics of a forward pass; see [`TrainingPass::take_statistics`].
    ///
    /// [`TrainingPass::take_statistics`]: crate::TrainingPass::take_statistics
    pub fn add_statistics(&mut self, statistics: Vec<BatchStatistics>) {
        self.statistics.extend(statistics);
    }

    /// Returns the statistics of trained batch norms, in order of batches.
    pub fn statistics(&self) -> &[BatchStatistics] {
        &self.statistics
    }

    /// Returns the sum.
    pub fn into_gradients(self) -> Gradients {
        self.sums
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::Lstm;

    /// An LSTM layer that is applied several times.
    struct Network {
        layer: Lstm,
        x: Tensor,
        factors: Tensor,
        applications: usize,
    }

    impl Network {
        fn new(applications: usize) -> Result<(Parameters, Self)> {
            let (parameters, layer) = Parameters::build(3, |vb| {
                vb.pp("other").get_with_hints(4, "weight", candle_nn::Init::Const(0.5))?;
                Ok(Lstm::new(4, 4, 0, false, &vb.pp("layer"))?)
            })?;
            let x: Vec<f32> = (0..2 * 5 * 4).map(|index| (index as f32 * 0.7).sin()).collect();
            let x = Tensor::from_vec(x, (2, 5, 4), &Device::Cpu)?;
            let factors = parameters.get("other.weight").unwrap().as_tensor().clone();
            Ok((parameters, Network { layer, x, factors, applications }))
        }

        fn loss(&self, hooks: Option<&GradientHooks>) -> Result<Tensor> {
            let mut x = self.x.clone();
            for _ in 0..self.applications {
                x = self.layer.forward_with_hooks(&x, &[5, 3], hooks)?.broadcast_mul(&self.factors)?;
            }
            Ok(x.sqr()?.sum_all()?)
        }
    }

    #[test]
    fn gradients_of_lstms_are_sent_during_the_pass_and_are_final() -> Result<()> {
        for has_earlier_batch in [false, true] {
            let (parameters, network) = Network::new(1)?;
            let mut sum = GradientSum::new(&parameters);
            if has_earlier_batch {
                sum.backward(&network.loss(None)?, None)?;
            }
            let (terms, receiver) = GradientTerms::new(&[0, 1, 2, 3], true);
            let hooks = sum.hooks(&terms);
            sum.backward(&network.loss(hooks.as_ref())?, hooks)?;
            assert!(!sum.sent().is_incomplete);
            let early: Vec<(usize, Tensor)> = receiver.try_iter().collect();
            let names: Vec<&str> = parameters.iter().map(|(name, _)| name).collect();
            let positions: Vec<usize> = early.iter().map(|(position, _)| *position).collect();
            assert_eq!(sum.sent().positions, positions);
            let mut early_names: Vec<&str> = positions.iter().map(|&position| names[position]).collect();
            early_names.sort_unstable();
            assert_eq!(early_names, ["layer.bias_ih_l0", "layer.weight_hh_l0", "layer.weight_ih_l0"]);
            sum.send(terms)?;
            let rest: Vec<(usize, Tensor)> = receiver.iter().collect();
            assert_eq!((rest.len(), names[rest[0].0]), (1, "other.weight"));
            let gradients = sum.into_gradients();
            for (position, term) in early.into_iter().chain(rest) {
                let expected = &gradients[names[position]];
                assert_eq!(term.flatten_all()?.to_vec1::<f32>()?, expected.flatten_all()?.to_vec1::<f32>()?);
            }
        }
        Ok(())
    }

    #[test]
    fn gradients_of_a_layer_that_is_applied_twice_are_incomplete() -> Result<()> {
        let (parameters, network) = Network::new(2)?;
        let mut sum = GradientSum::new(&parameters);
        let (terms, receiver) = GradientTerms::new(&[0, 1, 2, 3], true);
        let hooks = sum.hooks(&terms);
        sum.backward(&network.loss(hooks.as_ref())?, hooks)?;
        assert!(sum.sent().is_incomplete);
        assert_eq!(receiver.try_iter().count(), 3);
        Ok(())
    }

    #[test]
    fn hooks_send_nothing_after_the_pass_and_a_panic_closes_the_channel() -> Result<()> {
        let (parameters, network) = Network::new(1)?;
        let start = || {
            let (sum, (terms, receiver)) =
                (GradientSum::new(&parameters), GradientTerms::new(&[0, 1, 2, 3], true));
            let hooks = sum.hooks(&terms);
            let loss = network.loss(hooks.as_ref()).unwrap();
            (sum, hooks, receiver, loss)
        };
        let (mut sum, hooks, receiver, loss) = start();
        sum.backward(&loss, hooks.clone())?;
        assert_eq!(receiver.try_iter().count(), 3);
        loss.backward()?;
        assert!(receiver.recv().is_err());
        sum.backward(&loss, hooks)?;
        assert!(sum.sent().positions.is_empty());

        let (_, hooks, receiver, loss) = start();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _hooks = hooks;
            drop(loss);
            panic!("in the backward pass")
        }));
        assert!(panicked.is_err() && receiver.recv().is_err());
        Ok(())
    }
}
