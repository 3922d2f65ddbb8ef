//! The transducer lattice loss as a candle operation with autograd.
//!
//! Forward computes losses and adjoints; backward multiplies the adjoints of each utterance by the
//! gradient of its loss.
use std::sync::Mutex;

use candle_core::{CpuStorage, CustomOp1, DType, Error, Layout, Result, Shape, Tensor};

use crate::{Lattices, Posterior, Regularizers, Topology, forward_backward};

/// Name of the operation in candle's errors.
const OPERATION_NAME: &str = "lattice-loss";

/// The candle operation; forward keeps its adjoints for backward.
struct LatticeLoss {
    lattices: Lattices,
    topology: Topology,
    regularizers: Regularizers,
    posterior: Mutex<Option<Posterior>>,
}

impl CustomOp1 for LatticeLoss {
    fn name(&self) -> &'static str {
        OPERATION_NAME
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            return Err(Error::RequiresContiguous { op: OPERATION_NAME }.bt());
        };
        let emissions = &storage.as_slice::<f64>()?[start..end];
        let out = forward_backward(&self.lattices, &self.topology, emissions, &self.regularizers);
        let out = out.map_err(Error::wrap)?;
        let losses = out.losses.clone();
        *self.posterior.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(out);
        Ok((CpuStorage::F64(losses), Shape::from(self.lattices.batch())))
    }

    fn bwd(&self, emissions: &Tensor, _losses: &Tensor, upstream: &Tensor) -> Result<Option<Tensor>> {
        let upstream = upstream.to_vec1::<f64>()?;
        let guard = self.posterior.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let posterior = guard.as_ref().expect("candle runs forward before backward");
        let mut adjoints = posterior.adjoints.clone();
        let utterances = self.lattices.split_mut(&mut adjoints, self.topology.num_columns());
        for (utterance_adjoints, (factor, loss)) in
            utterances.into_iter().zip(upstream.iter().zip(&posterior.losses))
        {
            // An impossible utterance has zero gradient, even if an operation after the loss
            // multiplies by inf.
            if loss.is_finite() {
                utterance_adjoints.iter_mut().for_each(|adjoint| *adjoint *= factor);
            }
        }
        Tensor::from_vec(adjoints, emissions.shape(), emissions.device()).map(Some)
    }
}

/// Returns the loss of each lattice, *B* (`f64`), differentiable in the emissions.
///
/// # Shapes
/// `emissions` *N x S*, `f32` or `f64`.
///
/// # Errors
/// As [`forward_backward`], wrapped in candle's error; another shape or dtype of emissions.
///
/// ```
/// use candle_core::{Device, Var};
/// use rnnt_dp::{candle::lattice_loss, Lattices, Regularizers, Topology};
/// let emissions = Var::from_slice(&[-0.7f64; 8], (4, 2), &Device::Cpu)?;
/// let lattices = Lattices::new(vec![2], vec![1]).unwrap();
/// let loss = lattice_loss(&emissions, lattices, Topology::rnnt(), Regularizers::default())?;
/// let gradients = loss.sum_all()?.backward()?;
/// assert_eq!(gradients.get(&emissions).unwrap().dims(), [4, 2]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn lattice_loss(
    emissions: &Tensor,
    lattices: Lattices,
    topology: Topology,
    regularizers: Regularizers,
) -> Result<Tensor> {
    let (expected, found) = (vec![lattices.num_sites(), topology.num_columns()], emissions.dims().to_vec());
    if expected != found {
        return Err(Error::wrap(crate::Error::Shape { argument: "emissions", expected, found }));
    }
    if !matches!(emissions.dtype(), DType::F32 | DType::F64) {
        return Err(Error::UnsupportedDTypeForOp(emissions.dtype(), OPERATION_NAME).bt());
    }
    let op = LatticeLoss { lattices, topology, regularizers, posterior: Mutex::new(None) };
    emissions.to_dtype(DType::F64)?.contiguous()?.apply_op1(op)
}
