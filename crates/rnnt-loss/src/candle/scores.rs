//! The loss of ready-made scores as an operation.
use candle_core::{
    CpuStorage, CustomOp1, D, DType, Layout as TensorLayout, Result as TensorResult, Shape, Tensor,
};
use panda_core::{
    candle::{Element, with_values},
    scores,
};
use rnnt_dp::Lattices;

use super::{expect_dims, expect_dtype, expect_rank};
use crate::{
    Layout, Options, Result, Targets,
    columns::{Columns, Part},
    engine::Forward,
    objective::{Objective, Transducer},
};

struct ScoresLoss<F> {
    forward: Forward<F>,
    site_of_row: Vec<u32>,
    lattices: Lattices,
    options: Options,
}

impl<F: Element> CustomOp1 for ScoresLoss<F> {
    fn name(&self) -> &'static str {
        "scores-loss"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &TensorLayout) -> TensorResult<(CpuStorage, Shape)> {
        Ok((CpuStorage::F64(self.forward.losses().to_vec()), Shape::from(self.lattices.batch())))
    }

    fn bwd(&self, z: &Tensor, _losses: &Tensor, upstream: &Tensor) -> TensorResult<Option<Tensor>> {
        let weights = upstream.to_vec1::<f64>()?;
        let classes = z.dim(D::Minus1)?;
        let mut gradient = with_values([z], |[z]: [&[F]; 1]| TensorResult::Ok(z.to_vec()))?;
        let backward = self.forward.with_adjoints(&self.lattices, &self.options, &weights, |_, part, a| {
            let Part { selection, normalized } = part;
            scores::backward_in_place(&mut gradient, classes, &self.site_of_row, selection, normalized, a)
        });
        backward.map_err(candle_core::Error::wrap)?;
        Tensor::from_vec(gradient, z.shape(), z.device()).map(Some)
    }
}

/// Transducer loss *B* (`f64`) of scores (logits), differentiable.
///
/// # Shapes
/// `scores` *B x T x (U+1) x C*, `f32` or `f64`, on the CPU. Sites beyond an utterance's own are never read and get zero
/// gradients.
///
/// # Errors
/// As [`crate::scores_loss`]; a tensor of another rank, type or device.
///
/// # Cost
/// O(N C) time; a copy of the scores in the backward pass.
pub fn scores_loss(scores: &Tensor, targets: &Targets, options: &Options) -> Result<Tensor> {
    expect_rank("scores", scores, "[B, T, U+1, C]", 4)?;
    let (_, t, u1, classes) = scores.dims4()?;
    expect_dims("scores", scores, &[targets.batch(), t, u1, classes])?;
    let dtype = expect_dtype(&[("scores", scores)])?;
    options.without_head()?;
    targets.check_classes(classes)?;
    let layout = Layout::Padded { frames: t, positions: u1 };
    layout.check(targets)?;
    let (scores, objective) = (scores.contiguous()?, Transducer::new(targets, Columns::Tokens));
    match dtype {
        DType::F32 => run::<f32>(&scores, layout, &objective, options),
        _ => run::<f64>(&scores, layout, &objective, options),
    }
}

/// The loss of scores whose rows lie as in `layout`.
pub(super) fn run<F: Element>(
    z: &Tensor,
    layout: Layout,
    objective: &impl Objective,
    options: &Options,
) -> Result<Tensor> {
    let (classes, lattices) = (z.dim(D::Minus1)?, objective.sites().lattices().clone());
    let site_of_row = layout.site_of_row(objective.sites());
    let forward = with_values([z], |[z]: [&[F]; 1]| {
        let mut workspace = rnnt_dp::Workspace::new();
        Forward::from_normaliser(objective, options, &mut workspace, |_, selection| {
            scores::forward(z, classes, &site_of_row, lattices.sites(), selection)
        })
    })?;
    Ok(z.apply_op1(ScoresLoss { forward, site_of_row, lattices, options: options.clone() })?)
}
