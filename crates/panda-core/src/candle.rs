//! The selected normalizer as a candle operation, and operations with custom gradients.
//!
//! Emissions are `f64` for rows of any type, as explained in the crate documentation. Gradients
//! have the types of their arguments.
use std::sync::{Arc, Mutex};

use kernels::lock;

use candle_core::{
    CpuStorage, CustomOp1, CustomOp3, DType, Device, Error, Layout, Result, Shape, Storage, Tensor, WithDType,
};

use crate::{
    Adjoints, BackwardInputs, DEFAULT_BUDGET, Gradients, Head, Normalized, Real, Rows, Selection, Sites,
    Workspace, backward, forward,
};

/// A float type of both candle and the kernels: `f32` or `f64`.
pub trait Element: Real + WithDType {}
impl Element for f32 {}
impl Element for f64 {}

/// Returns the contiguous values of an operation's argument.
///
/// # Errors
/// Another type, or a layout that is not contiguous.
pub fn values<'a, F: Element>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [F]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&F::cpu_storage_as_slice(storage)?[start..end]),
        None => Err(Error::RequiresContiguous { op: "panda" }.bt()),
    }
}

/// Calls a function with the values of CPU tensors, without a copy.
///
/// # Errors
/// A tensor on another device, of another type, or not contiguous.
fn with_values<F: Element, T, E: From<Error>, const K: usize>(
    tensors: [&Tensor; K],
    work: impl FnOnce([&[F]; K]) -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    let guards = tensors.map(|tensor| tensor.storage_and_layout());
    let mut slices: [&[F]; K] = [&[]; K];
    for (slice, (storage, layout)) in slices.iter_mut().zip(&guards) {
        let Storage::Cpu(storage) = &**storage else {
            return Err(Error::msg("expected tensors on the CPU, found one on another device").into());
        };
        *slice = values(storage, layout)?;
    }
    work(slices)
}

/// Returns an `f64` tensor of given values, with a custom gradient.
///
/// It is a function of any number of tensors. `grad_fn(i, upstream)` returns the gradient of tensor
/// `i`, given the derivative with respect to the values.
///
/// # Errors
/// Values that do not match the shape.
pub fn with_custom_grad(
    name: &'static str,
    tensors: &[Tensor],
    values: Vec<f64>,
    shape: impl Into<Shape>,
    grad_fn: impl Fn(usize, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
) -> Result<Tensor> {
    let (shape, grad_fn) = (shape.into(), Arc::new(grad_fn) as Arc<GradFn>);
    let mut sum: Option<Tensor> = None;
    for (index, tensor) in tensors.iter().enumerate().filter(|(_, tensor)| tensor.track_op()) {
        let values = if sum.is_none() { values.clone() } else { vec![0.0; values.len()] };
        let node = GradientNode { name, values, shape: shape.clone(), index, grad_fn: Arc::clone(&grad_fn) };
        let term = tensor.apply_op1_arc(Arc::new(Box::new(node)))?;
        sum = Some(match sum {
            None => term,
            Some(sum) => (sum + term)?,
        });
    }
    sum.map_or_else(|| Tensor::from_vec(values, shape, &Device::Cpu), Ok)
}

/// Computes the gradient of a tensor, given the upstream derivative.
type GradFn = dyn Fn(usize, &Tensor) -> Result<Tensor> + Send + Sync;

/// A term of the result, for one of its tensors.
///
/// candle operations have at most three differentiable arguments, so the result is a sum of one
/// node for each tensor. The first node has the values and the others are 0; each has the gradient
/// of its tensor.
struct GradientNode {
    name: &'static str,
    values: Vec<f64>,
    shape: Shape,
    /// Index of the tensor.
    index: usize,
    grad_fn: Arc<GradFn>,
}

impl CustomOp1 for GradientNode {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F64(self.values.clone()), self.shape.clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, upstream: &Tensor) -> Result<Option<Tensor>> {
        (self.grad_fn)(self.index, upstream).map(Some)
    }
}

/// The candle operation; `normalized` is the result of forward, for backward.
struct SelectedNormalizer<F> {
    selection: Selection,
    workspace: Mutex<Workspace<F>>,
    normalized: Mutex<Option<Normalized<F>>>,
}

impl<F: Element> SelectedNormalizer<F> {
    /// Computes the emissions; `width` is that of the rows.
    fn forward(&self, rows: &[F], weight: &[F], bias: &[F], width: usize) -> crate::Result<Normalized<F>> {
        let head = Head::new(weight, Some(bias), width)?;
        forward(&Rows::new(rows, width)?, &head, &self.selection, &mut lock(&self.workspace))
    }

    /// Computes the gradients of rows, weight and bias.
    fn backward(
        &self,
        [rows, weight, bias]: [&[F]; 3],
        width: usize,
        adjoints: &[f64],
    ) -> crate::Result<[Vec<F>; 3]> {
        let head = &Head::new(weight, Some(bias), width)?;
        let guard = lock(&self.normalized);
        let normalized = guard.as_ref().expect("candle runs forward before backward");
        let (adjoints, selection) = (&Adjoints::new(adjoints), &self.selection);
        let workspace = &mut lock(&self.workspace);
        let sites = &Rows::new(rows, width)?;
        let mut gradients = Gradients::zero(sites.zero_gradient(), head);
        backward(BackwardInputs { sites, head, selection, normalized, adjoints }, workspace, &mut gradients)?;
        Ok([
            gradients.sites,
            gradients.weight,
            gradients.bias.into_iter().map(kernels::Real::from_f64).collect(),
        ])
    }
}

impl<F: Element> CustomOp3 for SelectedNormalizer<F> {
    fn name(&self) -> &'static str {
        "selected-normalizer"
    }

    fn cpu_fwd(
        &self,
        rows: &CpuStorage,
        rows_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (_, width) = weight_layout.shape().dims2()?;
        let (rows, weight) = (values(rows, rows_layout)?, values(weight, weight_layout)?);
        let out = self.forward(rows, weight, values(bias, bias_layout)?, width).map_err(Error::wrap)?;
        let shape = Shape::from((out.max.len(), self.selection.per_site()));
        let emissions = CpuStorage::F64(out.emissions.clone());
        *lock(&self.normalized) = Some(out);
        Ok((emissions, shape))
    }

    fn bwd(
        &self,
        rows: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _emissions: &Tensor,
        adjoints: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let adjoints = adjoints.flatten_all()?.to_vec1::<f64>()?;
        let [rows_gradient, weight_gradient, bias_gradient] =
            with_values([rows, weight, bias], |arguments| {
                self.backward(arguments, weight.dim(1)?, &adjoints).map_err(Error::wrap)
            })?;
        let tensor = |values, like: &Tensor| Tensor::from_vec(values, like.shape(), like.device()).map(Some);
        Ok((tensor(rows_gradient, rows)?, tensor(weight_gradient, weight)?, tensor(bias_gradient, bias)?))
    }
}

/// Creates the operation with a workspace of the default budget.
fn new_operation<F: Element>(selection: Selection) -> SelectedNormalizer<F> {
    let workspace = Mutex::new(Workspace::new(DEFAULT_BUDGET, true));
    SelectedNormalizer { selection, workspace, normalized: Mutex::new(None) }
}

/// Fails unless a tensor has the expected shape.
fn expect_dims(argument: &'static str, tensor: &Tensor, expected: &[usize]) -> Result<()> {
    if tensor.dims() == expected {
        return Ok(());
    }
    let (expected, found) = (expected.to_vec(), tensor.dims().to_vec());
    Err(Error::wrap(crate::Error::Shape { argument, expected, found }))
}

/// Computes emissions *N x S* (`f64`) of hidden rows.
///
/// The result is differentiable in all three tensors.
///
/// # Shapes
/// `hidden` *N x H*, `weight` *C x H*, `bias` *C*; `f32` or `f64`, on the CPU.
///
/// # Errors
/// As [`crate::forward()`], wrapped in candle's error.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use panda_core::{candle::normalize_rows, Selection};
/// let hidden = Var::from_slice(&[0.5f32, -1.0], (1, 2), &Device::Cpu)?;
/// let weight = Tensor::new(&[[1.0f32, 0.0], [0.0, 1.0], [1.0, 1.0]], &Device::Cpu)?;
/// let bias = Tensor::zeros(3, candle_core::DType::F32, &Device::Cpu)?;
/// let selection = Selection::new(vec![0, 2], vec![true, true], 2).unwrap();
/// let emissions = normalize_rows(&hidden, &weight, &bias, selection)?;
/// let gradients = emissions.sum_all()?.backward()?;
/// assert_eq!(gradients.get(&hidden).unwrap().dims(), [1, 2]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn normalize_rows(
    hidden: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    selection: Selection,
) -> Result<Tensor> {
    let sites = hidden.dim(0)?;
    expect_dims("hidden", hidden, &[sites, weight.dim(1)?])?;
    let (classes, width) = weight.dims2()?;
    expect_dims("weight", weight, &[classes.max(1), width.max(1)])?;
    expect_dims("bias", bias, &[classes])?;
    let (hidden, weight, bias) = (hidden.contiguous()?, weight.contiguous()?, bias.contiguous()?);
    match hidden.dtype() {
        DType::F32 => hidden.apply_op3(&weight, &bias, new_operation::<f32>(selection)),
        DType::F64 => hidden.apply_op3(&weight, &bias, new_operation::<f64>(selection)),
        dtype => Err(Error::UnsupportedDTypeForOp(dtype, "selected-normalizer").bt()),
    }
}
