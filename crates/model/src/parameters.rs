//! `Parameters`: the weights of a model by name, created by candle's `VarBuilder`.
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device, Result as TensorResult, Shape, Tensor, Var};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};

use crate::config::covers;
use crate::frozen::FrozenParameters;
use crate::random;
use crate::{Error, Result};
use layers::tensors::{to_vec, with_slice};

/// The weights of a model by name, in alphabetical order.
///
/// All are `f32` on the CPU. They are created by candle's [`VarBuilder`], with the names of
/// candle's models.
///
/// Parameters named `running_mean` or `running_var`, and frozen ones, are constant: checkpoints
/// store them with the weights, but they have no gradient and no state of an optimizer.
///
/// ```
/// use candle_nn::Module;
/// use model::Parameters;
///
/// let (parameters, layer) = Parameters::build(7, |vb| Ok(candle_nn::linear(3, 2, vb.pp("head"))?))?;
/// let names: Vec<&str> = parameters.iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["head.bias", "head.weight"]);
/// # let _ = layer;
/// # Ok::<(), model::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Parameters {
    variables: BTreeMap<String, Var>,
    frozen: FrozenParameters,
}

impl Parameters {
    /// Creates a model and its parameters.
    ///
    /// Each name has a separate random stream: the same seed gives the same initial values, and a
    /// new parameter does not change the others. A name that is requested twice is one shared
    /// parameter.
    ///
    /// # Errors
    /// Those of `make`; candle's error for a shared name with two shapes, or a dtype other than
    /// `f32`.
    pub fn build<T>(seed: u64, make: impl FnOnce(VarBuilder<'static>) -> Result<T>) -> Result<(Self, T)> {
        Self::build_frozen(seed, &FrozenParameters::default(), make)
    }

    /// Creates a model as [`Self::build`], in which some parameters are constant.
    ///
    /// # Errors
    /// Those of [`Self::build`]; [`Error::RecipeValue`] for a name without a parameter, or if no
    /// parameter is trained.
    pub(crate) fn build_frozen<T>(
        seed: u64,
        frozen: &FrozenParameters,
        make: impl FnOnce(VarBuilder<'static>) -> Result<T>,
    ) -> Result<(Self, T)> {
        let values = Initial::Random { seed };
        let store = ParameterStore { values, variables: Arc::default(), frozen: frozen.clone() };
        let (parameters, model) = store.build(make)?;
        parameters.check_frozen()?;
        Ok((parameters, model))
    }

    /// Creates a model whose parameters have these values.
    ///
    /// # Errors
    /// Those of `make`; candle's error for a name without a value of its shape.
    pub(crate) fn from_values<T>(
        values: BTreeMap<String, Vec<f32>>,
        make: impl FnOnce(VarBuilder<'static>) -> Result<T>,
    ) -> Result<(Self, T)> {
        let values = Initial::Values(Arc::new(Mutex::new(values)));
        let frozen = FrozenParameters::default();
        let store = ParameterStore { values, variables: Arc::default(), frozen };
        store.build(make)
    }

    /// Checks the frozen names; at least one parameter is trained.
    fn check_frozen(&self) -> Result<()> {
        if self.frozen.names().is_empty() {
            return Ok(());
        }
        let error = |expected: &str, found: String| Error::RecipeValue {
            key: "init.frozen".into(),
            expected: expected.into(),
            found,
        };
        let is_unknown = |frozen: &&String| !self.variables.keys().any(|name| covers(frozen, name));
        if let Some(name) = self.frozen.names().iter().find(is_unknown) {
            let expected = "names of this model's parameters or modules (`panda info RECIPE` lists them)";
            return Err(error(expected, format!("{name:?}")));
        }
        match self.iter_trained().next() {
            Some(_) => Ok(()),
            None => Err(error("at least one parameter that is not frozen", "none".into())),
        }
    }

    /// Returns names and shapes of a model's parameters without allocating them.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) fn plan<T>(make: impl FnOnce(VarBuilder<'static>) -> Result<T>) -> Result<(Shapes, T)> {
        let recorder = ShapeRecorder::default();
        let builder = VarBuilder::from_backend(Box::new(recorder.clone()), DType::F32, Device::Cpu);
        let model = make(builder)?;
        let shapes = recorder.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok((shapes, model))
    }

    /// Iterates over names and variables, in alphabetical order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Var)> {
        self.variables.iter().map(|(name, variable)| (name.as_str(), variable))
    }

    /// Iterates over names and variables that training changes, in alphabetical order.
    ///
    /// Those of gradients, optimizers and their all-reduce.
    pub fn iter_trained(&self) -> impl Iterator<Item = (&str, &Var)> {
        self.iter().filter(|(name, _)| !self.frozen.contains(name))
    }

    /// Returns the variable of a name.
    pub fn get(&self, name: &str) -> Option<&Var> {
        self.variables.get(name)
    }

    /// Returns names and shapes.
    pub fn shapes(&self) -> Shapes {
        self.variables.iter().map(|(name, variable)| (name.clone(), variable.dims().to_vec())).collect()
    }

    /// Returns the number of weights.
    pub fn count(&self) -> usize {
        self.variables.values().map(|v| v.elem_count()).sum()
    }

    /// Copies all values, by name.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn values(&self) -> Result<BTreeMap<String, Vec<f32>>> {
        self.variables.iter().map(|(name, variable)| Ok((name.clone(), to_vec(variable)?))).collect()
    }

    /// Returns the sum of the bits of all values.
    ///
    /// Ranks compare their weights with it.
    pub fn checksum(&self) -> Result<u64> {
        let sum_of_bits =
            |values: &[f32]| values.iter().fold(0, |sum: u64, x| sum.wrapping_add(x.to_bits().into()));
        let variable_sum =
            |variable: &Var| Ok(with_slice(variable, |values: &[f32]| Ok(sum_of_bits(values)))?);
        let sums = self.variables.values().map(variable_sum);
        sums.into_iter().try_fold(0, |total: u64, sum: Result<u64>| Ok(total.wrapping_add(sum?)))
    }

    /// Returns true if all values are finite.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn are_finite(&self) -> Result<bool> {
        for variable in self.variables.values() {
            if !with_slice(variable, |values: &[f32]| Ok(values.iter().all(|value| value.is_finite())))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Replaces all values.
    ///
    /// # Errors
    /// [`Error::Shape`] if a name is missing or has another number of values; nothing is changed
    /// then.
    pub fn set(&self, values: &BTreeMap<String, Vec<f32>>) -> Result<()> {
        for (name, variable) in &self.variables {
            let count = values.get(name).map(Vec::len);
            if count != Some(variable.elem_count()) {
                let found_count = count.map_or("none".into(), |count| format!("{count} values"));
                return Err(Error::shape(name, format!("{} values", variable.elem_count()), found_count));
            }
        }
        self.variables.keys().try_for_each(|name| self.set_parameter(name, &values[name]))
    }

    /// Sets the values of one parameter.
    ///
    /// # Errors
    /// [`Error::Shape`] for an unknown name or another number of values.
    pub fn set_parameter(&self, name: &str, values: &[f32]) -> Result<()> {
        let variable = self.variables.get(name);
        let variable = variable.ok_or_else(|| Error::shape(name, "a parameter of the model", "none"))?;
        if values.len() != variable.elem_count() {
            let expected = format!("{} values", variable.elem_count());
            return Err(Error::shape(name, expected, format!("{} values", values.len())));
        }
        Ok(variable.set(&Tensor::from_slice(values, variable.shape(), &Device::Cpu)?)?)
    }
}

/// Shapes of parameters by name.
pub type Shapes = BTreeMap<String, Vec<usize>>;

/// A backend that records names and shapes; all elements of its tensors are one shared zero.
#[derive(Clone, Default)]
struct ShapeRecorder(Arc<Mutex<Shapes>>);

impl SimpleBackend for ShapeRecorder {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> TensorResult<Tensor> {
        let mut shapes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shapes.insert(name.to_owned(), shape.dims().to_vec());
        // One zero for all elements: all strides are 0.
        Tensor::zeros((), dtype, device)?.broadcast_as(shape)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> TensorResult<Tensor> {
        let shapes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match shapes.get(name) {
            Some(shape) => Tensor::zeros((), dtype, device)?.broadcast_as(shape.as_slice()),
            None => candle_core::bail!("{name}: expected a shape for a new parameter, found none"),
        }
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(name)
    }
}

/// The initial values of parameters.
#[derive(Clone)]
enum Initial {
    /// Random values, with the distribution that a layer requests.
    Random { seed: u64 },
    /// Values by name; each is removed when its parameter is created.
    Values(Arc<Mutex<BTreeMap<String, Vec<f32>>>>),
}

impl Initial {
    /// Creates the values of a new parameter.
    fn create(&self, name: &str, shape: Shape, init: Init, device: &Device) -> TensorResult<Tensor> {
        let values = match self {
            Self::Random { seed } => random::initial_values(init, *seed, name, &shape),
            Self::Values(values) => {
                let values = values.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
                match values {
                    Some(values) if values.len() == shape.elem_count() => values,
                    other => {
                        let count = other.map_or(0, |values| values.len());
                        candle_core::bail!("{name}: expected {} values, found {count}", shape.elem_count())
                    }
                }
            }
        };
        Tensor::from_vec(values, shape, device)
    }
}

/// A backend that creates and stores parameters.
#[derive(Clone)]
struct ParameterStore {
    values: Initial,
    variables: Arc<Mutex<BTreeMap<String, Var>>>,
    frozen: FrozenParameters,
}

impl ParameterStore {
    /// Creates a model and collects its parameters.
    fn build<T>(self, make: impl FnOnce(VarBuilder<'static>) -> Result<T>) -> Result<(Parameters, T)> {
        let builder = VarBuilder::from_backend(Box::new(self.clone()), DType::F32, Device::Cpu);
        let model = make(builder)?;
        let variables = self.variables.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok((Parameters { variables, frozen: self.frozen }, model))
    }

    /// Returns a variable's tensor for a layer; that of a constant has no gradient.
    ///
    /// Both share the values of the variable.
    fn layer_tensor(&self, name: &str, variable: &Var) -> Tensor {
        let tensor = variable.as_tensor();
        if self.frozen.contains(name) { tensor.detach() } else { tensor.clone() }
    }
}

impl SimpleBackend for ParameterStore {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        init: Init,
        dtype: DType,
        device: &Device,
    ) -> TensorResult<Tensor> {
        if dtype != DType::F32 || !device.is_cpu() {
            candle_core::bail!("{name}: expected f32 on the CPU, found {dtype:?} on {device:?}");
        }
        let mut variables = self.variables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(variable) = variables.get(name) {
            if variable.shape() != &shape {
                candle_core::bail!(
                    "{name}: expected shape {:?} as before, found {shape:?}",
                    variable.shape()
                );
            }
            return Ok(self.layer_tensor(name, variable));
        }
        let variable = Var::from_tensor(&self.values.create(name, shape, init, device)?)?;
        let tensor = self.layer_tensor(name, &variable);
        variables.insert(name.to_owned(), variable);
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> TensorResult<Tensor> {
        let variables = self.variables.lock().unwrap_or_else(PoisonError::into_inner);
        match variables.get(name) {
            Some(variable) => Ok(self.layer_tensor(name, variable)),
            None => candle_core::bail!("{name}: expected a shape for a new parameter, found none"),
        }
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.variables.lock().unwrap_or_else(PoisonError::into_inner).contains_key(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frozen::is_constant;

    #[test]
    fn a_new_parameter_does_not_change_the_others() {
        let values = |names: &[&str]| {
            let make = |vb: VarBuilder| {
                names
                    .iter()
                    .try_for_each(|name| candle_nn::linear(3, 2, vb.pp(name)).map(drop).map_err(Error::from))
            };
            Parameters::build(7, make).unwrap().0.values().unwrap()
        };
        let (single, several) = (values(&["b"]), values(&["a", "b", "c"]));
        assert_eq!((single.len(), several.len()), (2, 6));
        assert!(single.iter().all(|(name, values)| several[name] == *values));
        assert_ne!(several["a.weight"], several["b.weight"]);
    }

    #[test]
    fn a_name_with_two_shapes_and_other_dtypes_are_rejected() {
        let error = Parameters::build(1, |vb| {
            vb.get(3, "w")?;
            Ok(vb.get(4, "w").map(drop)?)
        });
        assert!(error.unwrap_err().to_string().contains("w: expected shape [3] as before"));
        let error = Parameters::build(1, |vb| {
            Ok(vb.get_with_hints_dtype(3, "w", Init::Const(0.0), DType::F64).map(drop)?)
        });
        assert!(error.unwrap_err().to_string().contains("expected f32"));
        let shared = Parameters::build(1, |vb| Ok((vb.get(3, "w")?, vb.get(3, "w")?))).unwrap();
        assert_eq!(shared.0.iter().count(), 1);
    }

    #[test]
    fn statistics_of_batch_norms_are_constant_and_share_their_values_with_layers() {
        let (parameters, layer) =
            Parameters::build(1, |vb| Ok(layers::batch_norm::BatchNorm::new(2, &vb.pp("norm"))?)).unwrap();
        let trained: Vec<&str> = parameters.iter_trained().map(|(name, _)| name).collect();
        assert_eq!(trained, ["norm.bias", "norm.weight"]);
        assert_eq!((parameters.iter().count(), parameters.count()), (4, 8));
        let mut values = parameters.values().unwrap();
        values.insert("norm.running_mean".into(), vec![3.0, 5.0]);
        parameters.set(&values).unwrap();
        let x = Tensor::from_slice(&[4.0f32, 4.0], (1, 2), &Device::Cpu).unwrap();
        let y = layer.apply(&x).unwrap();
        assert!(to_vec::<f32>(&y).unwrap().iter().zip([1.0, -1.0]).all(|(y, x)| (y - x).abs() < 1e-4));
        let gradients = y.sum_all().unwrap().backward().unwrap();
        for (name, variable) in parameters.iter() {
            assert_eq!(gradients.get(variable).is_some(), !is_constant(name), "{name}");
        }
        for (name, is_constant_name) in [
            ("running_mean", true),
            ("a.running_var", true),
            ("running_var.weight", false),
            ("a.weight", false),
        ] {
            assert_eq!(is_constant(name), is_constant_name, "{name}");
        }
    }

    #[test]
    fn parameters_share_their_values_with_layers() {
        let (parameters, layer) = Parameters::build(1, |vb| Ok(candle_nn::linear(2, 1, vb)?)).unwrap();
        let set = |bias| {
            let values = [("weight", vec![3.0, 4.0]), ("bias", vec![bias])];
            parameters.set(&values.map(|(name, values)| (name.to_owned(), values)).into()).unwrap();
        };
        set(5.0);
        assert_eq!(to_vec::<f32>(&layer.weight().flatten_all().unwrap()).unwrap(), [3.0, 4.0]);
        assert!(parameters.are_finite().unwrap());
        for value in [f32::NAN, f32::INFINITY] {
            set(value);
            assert!(!parameters.are_finite().unwrap());
        }
    }

    #[test]
    fn a_layer_without_bias_has_one_parameter() {
        let (parameters, layer) =
            Parameters::build(1, |vb| Ok(crate::Linear::without_bias(3, 2, &vb.pp("layer"))?)).unwrap();
        let names: Vec<&str> = parameters.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["layer.weight"]);
        assert_eq!(layer.bias().to_vec1::<f32>().unwrap(), [0.0; 2]);
    }
}
