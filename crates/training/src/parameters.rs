//! Named weights.
use std::collections::BTreeMap;

use candle_core::{Device, Tensor, Var};

use crate::init::Init;
use crate::tensors::to_vec;
use crate::{Error, Result};

/// The weights of a model by name, in alphabetical order.
///
/// All are `f32` on the CPU.
#[derive(Debug, Clone, Default)]
pub struct Parameters {
    seed: u64,
    variables: BTreeMap<String, Var>,
    /// How many values of each, counted from the first, weight decay shrinks.
    decayed: BTreeMap<String, usize>,
}

impl Parameters {
    /// No parameters yet; `seed` decides the first values of those to come.
    pub fn new(seed: u64) -> Self {
        Parameters { seed, ..Parameters::default() }
    }

    /// Makes a parameter and returns it as a tensor that shares its memory.
    pub(crate) fn create(&mut self, name: &str, shape: &[usize], init: Init) -> Result<Var> {
        let values = init.values(self.seed, name, shape);
        self.decayed.insert(name.to_owned(), values.len() - init.biases(shape));
        let variable = Var::from_tensor(&Tensor::from_vec(values, shape, &Device::Cpu)?)?;
        let old = self.variables.insert(name.to_owned(), variable.clone());
        assert!(old.is_none(), "two parameters are called {name}");
        Ok(variable)
    }

    /// Names and variables, in alphabetical order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Var)> {
        self.variables.iter().map(|(name, variable)| (name.as_str(), variable))
    }

    /// How many values of a parameter, counted from the first, weight decay shrinks: all of a matrix, none of a bias, all but the
    /// last row of an LSTM's packed weight, which is its bias.
    pub fn decayed(&self, name: &str) -> usize {
        self.decayed.get(name).copied().unwrap_or(0)
    }

    /// Number of weights in all.
    pub fn count(&self) -> usize {
        self.variables.values().map(|v| v.elem_count()).sum()
    }

    /// Copies all values out, by name.
    ///
    /// # Errors
    /// Candle's own errors.
    pub fn values(&self) -> Result<BTreeMap<String, Vec<f32>>> {
        self.variables.iter().map(|(name, variable)| Ok((name.clone(), to_vec(variable)?))).collect()
    }

    /// Replaces all values.
    ///
    /// # Errors
    /// [`Error::Shape`] if a name is missing or has another number of values; nothing is changed then.
    pub fn set(&self, values: &BTreeMap<String, Vec<f32>>) -> Result<()> {
        for (name, variable) in &self.variables {
            let found = values.get(name).map(Vec::len);
            if found != Some(variable.elem_count()) {
                let found = found.map_or("none".into(), |count| format!("{count} values"));
                return Err(Error::shape(name, format!("{} values", variable.elem_count()), found));
            }
        }
        for (name, variable) in &self.variables {
            variable.set(&Tensor::from_slice(&values[name], variable.shape(), &Device::Cpu)?)?;
        }
        Ok(())
    }
}
