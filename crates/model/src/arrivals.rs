//! Gradients that are complete while a backward pass goes on.
//!
//! Candle hands gradients out when the pass has ended. Those of an LSTM's weights, nearly all of a recogniser's, are complete as soon as
//! their node has run (`lstm/handle.rs`), and the sum over processes can begin with them.
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::mpsc::Sender;

use candle_core::backprop::GradStore;
use candle_core::{Tensor, TensorId, Var};

use crate::tensors::with_slice;
use crate::{Gradients, Parameters};

thread_local! {
    /// Who hears of gradients that are complete on this thread.
    static LISTENER: RefCell<Option<Arrivals>> = const { RefCell::new(None) };
}

/// Where the gradients of a step are handed in.
pub struct Arrivals {
    /// Parameters, and the places that their gradients have there.
    places: HashMap<TensorId, usize>,
    to: Sender<(usize, Tensor)>,
    /// What the parts of the step before this one have found.
    earlier: HashMap<TensorId, Tensor>,
    /// Places in the order in which they were taken, and what was said to be the gradient of this part.
    handed: Vec<(usize, TensorId, u64)>,
    /// Whether a gradient was handed in that was not all there is.
    torn: bool,
}

impl Arrivals {
    /// For parameters in an order; the place of each is its number there.
    pub fn new<'a>(parameters: impl Iterator<Item = &'a Tensor>, to: Sender<(usize, Tensor)>) -> Self {
        let places = parameters.enumerate().map(|(place, parameter)| (parameter.id(), place)).collect();
        Arrivals { places, to, earlier: HashMap::new(), handed: Vec::new(), torn: false }
    }

    /// Runs the backward pass of the last part of a step, and hears of what is complete in it.
    pub fn during(
        &mut self,
        parameters: &Parameters,
        earlier: &Gradients,
        backward: impl FnOnce() -> candle_core::Result<GradStore>,
    ) -> candle_core::Result<GradStore> {
        let of = |(name, variable): (&str, &Var)| Some((variable.id(), earlier.get(name)?.clone()));
        let earlier = parameters.iter().filter_map(of).collect();
        let (places, to) = (std::mem::take(&mut self.places), self.to.clone());
        LISTENER.set(Some(Arrivals { places, to, earlier, handed: Vec::new(), torn: false }));
        let deaf = Deaf;
        let found = backward();
        let mine = LISTENER.take().expect("nobody else takes it");
        drop(deaf);
        let found = found?;
        self.torn |= mine.torn;
        for (_, parameter, said) in &mine.handed {
            // One that several nodes share has the sum of what each of them says.
            self.torn |= found.get_id(*parameter).map(bits).transpose()? != Some(*said);
        }
        (self.places, self.handed) = (mine.places, mine.handed);
        Ok(found)
    }

    /// Places that have been taken, in this order.
    pub fn handed(&self) -> Vec<usize> {
        self.handed.iter().map(|(place, ..)| *place).collect()
    }

    /// Whether what was handed in is not what the pass has found.
    pub fn torn(&self) -> bool {
        self.torn
    }

    fn hand_in(&mut self, parameter: TensorId, gradient: &Tensor) {
        let Some(&place) = self.places.get(&parameter) else { return };
        let whole = match self.earlier.get(&parameter) {
            Some(earlier) => earlier + gradient,
            None => gradient.contiguous(),
        };
        let again = self.handed.iter().any(|(other, ..)| *other == place);
        match whole.and_then(|whole| Ok((whole, bits(gradient)?))) {
            Ok((whole, bits)) if !again => {
                self.handed.push((place, parameter, bits));
                // Whoever does not listen any more has a reason, which the end of the step hears.
                let _ = self.to.send((place, whole));
            }
            _ => self.torn = true,
        }
    }
}

/// Nobody listens any more when it is dropped: those who wait for gradients hear of a panic by that.
struct Deaf;

impl Drop for Deaf {
    fn drop(&mut self) {
        LISTENER.take();
    }
}

/// What differs where a value does; zeros of either sign are the same.
fn bits(gradient: &Tensor) -> candle_core::Result<u64> {
    let sum = |values: &[f32]| {
        values.iter().fold(0u64, |sum, x| sum.wrapping_mul(3).wrapping_add((x + 0.0).to_bits().into()))
    };
    with_slice(&gradient.contiguous()?, |values: &[f32]| Ok(sum(values)))
}

/// Says that gradients are complete, as far as one node of the graph knows.
pub(crate) fn complete(parameters: [TensorId; 3], gradients: [&Tensor; 3]) {
    LISTENER.with_borrow_mut(|listener| {
        let Some(listener) = listener else { return };
        parameters.into_iter().zip(gradients).for_each(|(of, gradient)| listener.hand_in(of, gradient));
    });
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use candle_core::Device;

    use super::*;
    use crate::{Lstm, Result};

    type Ran = (Gradients, Parameters, Vec<(usize, Tensor)>, Arrivals);

    /// The gradients of an LSTM layer that runs so many times over its rows, beside those that came early, with their places.
    fn run(times: usize, earlier: bool) -> Result<Ran> {
        let (parameters, layer) = Parameters::build(3, |vb| {
            vb.pp("other").get_with_hints(4, "weight", candle_nn::Init::Const(0.5))?;
            Lstm::new(4, 4, 0, false, &vb.pp("layer"))
        })?;
        let x: Vec<f32> = (0..2 * 5 * 4).map(|at| (at as f32 * 0.7).sin()).collect();
        let mut x = Tensor::from_vec(x, (2, 5, 4), &Device::Cpu)?;
        let other = parameters.get("other.weight").unwrap().as_tensor();
        for _ in 0..times {
            x = layer.forward(&x, &[5, 3])?.broadcast_mul(other)?;
        }
        let loss = x.sqr()?.sum_all()?;
        let (to, terms) = channel();
        let mut arrivals = Arrivals::new(parameters.iter().map(|(_, parameter)| parameter.as_tensor()), to);
        let mut gradients = Gradients::default();
        if earlier {
            gradients.add(&parameters, loss.backward()?)?;
        }
        let found = arrivals.during(&parameters, &gradients, || loss.backward())?;
        gradients.add(&parameters, found)?;
        Ok((gradients, parameters, terms.try_iter().collect(), arrivals))
    }

    #[test]
    fn weights_of_lstms_come_before_the_end_and_are_all_there_is() -> Result<()> {
        for earlier in [false, true] {
            let (gradients, parameters, early, arrivals) = run(1, earlier)?;
            assert!(!arrivals.torn());
            let names: Vec<&str> = parameters.iter().map(|(name, _)| name).collect();
            let places: Vec<usize> = early.iter().map(|(place, _)| *place).collect();
            assert_eq!(arrivals.handed(), places);
            let mut heard: Vec<&str> = places.iter().map(|&place| names[place]).collect();
            heard.sort_unstable();
            assert_eq!(heard, ["layer.bias_ih_l0", "layer.weight_hh_l0", "layer.weight_ih_l0"]);
            for (place, term) in early {
                let all = gradients.get(names[place]).unwrap();
                assert_eq!(term.flatten_all()?.to_vec1::<f32>()?, all.flatten_all()?.to_vec1::<f32>()?);
            }
        }
        Ok(())
    }

    #[test]
    fn weights_at_work_twice_are_known_to_be_torn() -> Result<()> {
        let (_, _, early, arrivals) = run(2, false)?;
        assert!(arrivals.torn() && early.len() == 3);
        Ok(())
    }

    #[test]
    fn nobody_listens_after_the_pass() -> Result<()> {
        run(1, false)?;
        assert!(LISTENER.take().is_none());
        let (to, terms) = channel();
        let panicked = std::panic::catch_unwind(|| {
            let mut arrivals = Arrivals::new(std::iter::empty(), to);
            let _ =
                arrivals.during(&Parameters::default(), &Gradients::default(), || panic!("on the way back"));
        });
        assert!(panicked.is_err() && terms.recv().is_err());
        Ok(())
    }
}
