//! Initialization of a model's biases and LSTMs: plain, or as in MLPerf's RNN-T.
//!
//! It changes the parameters after each layer has initialized them; `[init]` of a recipe selects
//! the kind.
use candle_core::{Device, Tensor, Var};

use crate::config::InitKind;
use crate::{Parameters, Result};
use layers::random::{initial_values, uniform};
use layers::tensors::to_vec;

impl Parameters {
    /// Initializes biases, and all parameters of LSTMs, as in [`InitKind`].
    ///
    /// An LSTM is recognized by `weight_hh_l*` `[4H, H]`, with gates in the order i, f, g, o; a
    /// linear layer by `weight [O, D]` next to `bias [O]`.
    ///
    /// # Errors
    /// Errors of candle.
    pub(crate) fn initialize(&self, init: &InitKind, seed: u64) -> Result<()> {
        match *init {
            InitKind::Plain {} => self.set_forget_biases(),
            InitKind::Mlperf { scale, hidden_bias_scale } => {
                self.draw_linear_biases(seed)?;
                self.draw_lstms(seed, scale, hidden_bias_scale)
            }
        }
    }

    /// Returns the width of a parameter's LSTM, and its kind.
    ///
    /// The kind is, for instance, `bias_ih`.
    fn lstm_parameter<'a>(&self, name: &'a str) -> Option<(usize, &'a str)> {
        let (path, last_part) = name.rsplit_once('.').map_or(("", name), |(path, last)| (path, last));
        let (kind, layer) = last_part.split_once("_l")?;
        let recurrent = match path {
            "" => format!("weight_hh_l{layer}"),
            path => format!("{path}.weight_hh_l{layer}"),
        };
        let &[gate_rows, hidden] = self.get(&recurrent)?.dims() else { return None };
        let is_lstm = gate_rows == 4 * hidden && self.get(name)?.dim(0).is_ok_and(|rows| rows == gate_rows);
        is_lstm.then_some((hidden, kind))
    }

    /// Sets the biases of all forget gates to 1.
    fn set_forget_biases(&self) -> Result<()> {
        for (name, variable) in self.iter() {
            if let Some((hidden, "bias_ih")) = self.lstm_parameter(name) {
                let forget_gate = hidden..2 * hidden;
                update(variable, |values| values[forget_gate].fill(1.0))?;
            }
        }
        Ok(())
    }

    /// Draws the biases of linear layers like their weights.
    fn draw_linear_biases(&self, seed: u64) -> Result<()> {
        for (name, variable) in self.iter() {
            let weight = name.strip_suffix("bias").and_then(|path| self.get(&format!("{path}weight")));
            let Some(&[outputs, inputs]) = weight.map(|weight| weight.dims()) else { continue };
            if variable.dims() == [outputs] {
                let drawn = initial_values(uniform(inputs), seed, name, variable.shape());
                update(variable, |values| values.copy_from_slice(&drawn))?;
            }
        }
        Ok(())
    }

    /// Draws the biases of LSTMs, and scales all of their parameters.
    fn draw_lstms(&self, seed: u64, scale: f64, hidden_bias_scale: f64) -> Result<()> {
        for (name, variable) in self.iter() {
            let Some((hidden, kind)) = self.lstm_parameter(name) else { continue };
            let drawn = initial_values(uniform(hidden), seed, name, variable.shape());
            let forget_gate = hidden..2 * hidden;
            update(variable, |values| {
                match kind {
                    "bias_ih" => {
                        values.copy_from_slice(&drawn);
                        values[forget_gate].fill(1.0);
                    }
                    "bias_hh" => {
                        values.copy_from_slice(&drawn);
                        values[forget_gate].iter_mut().for_each(|b| *b *= hidden_bias_scale as f32);
                    }
                    _ => {}
                }
                values.iter_mut().for_each(|w| *w *= scale as f32);
            })?;
        }
        Ok(())
    }
}

/// Changes the values of a variable.
fn update(variable: &Var, write: impl FnOnce(&mut [f32])) -> Result<()> {
    let mut values = to_vec::<f32>(variable)?;
    write(&mut values);
    variable.set(&Tensor::from_vec(values, variable.shape(), &Device::Cpu)?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use candle_nn::VarBuilder;
    use candle_nn::rnn::{GRUConfig, LSTMConfig};

    use super::*;

    #[test]
    fn forget_biases_of_lstms_are_1_and_all_others_0() {
        let make = |vb: VarBuilder| {
            candle_nn::lstm(3, 2, LSTMConfig::default(), vb.pp("lstm"))?;
            candle_nn::gru(3, 4, GRUConfig::default(), vb.pp("gru"))?;
            Ok(())
        };
        let (parameters, ()) = Parameters::build(1, make).unwrap();
        parameters.initialize(&InitKind::Plain {}, 1).unwrap();
        let values = parameters.values().unwrap();
        assert_eq!(values["lstm.bias_ih_l0"], [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        assert!(values["lstm.bias_hh_l0"].iter().chain(&values["gru.bias_ih_l0"]).all(|&b| b == 0.0));
    }
}
