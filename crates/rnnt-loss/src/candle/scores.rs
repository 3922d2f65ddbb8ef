//! The loss of ready-made scores as an operation.
use candle_core::{
    CpuStorage, CustomOp1, DType, Layout as TensorLayout, Result as TensorResult, Shape, Tensor,
};
use panda_core::{
    candle::{Element, with_values},
    scores,
};

use super::{expect_dims, expect_dtype, expect_rank};
use crate::{
    Layout, Options, Result, Targets,
    columns::{Columns, Part},
    engine::Forward,
};

struct ScoresLoss<F> {
    forward: Forward<F>,
    site_of_row: Vec<u32>,
    targets: Targets,
    options: Options,
}

impl<F: Element> CustomOp1 for ScoresLoss<F> {
    fn name(&self) -> &'static str {
        "scores-loss"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &TensorLayout) -> TensorResult<(CpuStorage, Shape)> {
        Ok((CpuStorage::F64(self.forward.losses().to_vec()), Shape::from(self.targets.batch())))
    }

    fn bwd(&self, z: &Tensor, _losses: &Tensor, upstream: &Tensor) -> TensorResult<Option<Tensor>> {
        let weights = upstream.to_vec1::<f64>()?;
        let classes = z.dim(3)?;
        let mut gradient = with_values([z], |[z]: [&[F]; 1]| TensorResult::Ok(z.to_vec()))?;
        let backward = self.forward.with_adjoints(&self.targets, &self.options, &weights, |_, part, a| {
            let Part { selection, normalized } = part;
            scores::backward_in_place(&mut gradient, classes, &self.site_of_row, selection, normalized, a)
        });
        backward.map_err(candle_core::Error::wrap)?;
        Tensor::from_vec(gradient, z.shape(), z.device()).map(Some)
    }
}

/// Transducer loss *B* (`f64`) of scores *B x T x (U+1) x C* (logits), differentiable.
///
/// Sites beyond an utterance's own are never read and get zero gradients.
///
/// # Errors
/// As [`crate::scores_loss`]; a tensor of another rank, type or device.
pub fn scores_loss(scores: &Tensor, targets: &Targets, options: &Options) -> Result<Tensor> {
    expect_rank("scores", scores, "[B, T, U+1, C]", 4)?;
    let (_, t, u1, classes) = scores.dims4()?;
    expect_dims("scores", scores, &[targets.batch(), t, u1, classes])?;
    let dtype = expect_dtype(&[("scores", scores)])?;
    options.without_head()?;
    targets.check_classes(classes)?;
    let layout = Layout::Padded { frames: t, positions: u1 };
    layout.check(targets)?;
    match dtype {
        DType::F32 => run::<f32>(&scores.contiguous()?, layout, targets, options),
        _ => run::<f64>(&scores.contiguous()?, layout, targets, options),
    }
}

fn run<F: Element>(z: &Tensor, layout: Layout, targets: &Targets, options: &Options) -> Result<Tensor> {
    let (classes, sites) = (z.dim(3)?, targets.lattices().sites());
    let site_of_row = layout.site_of_row(targets);
    let forward = with_values([z], |[z]: [&[F]; 1]| {
        let mut workspace = rnnt_dp::Workspace::new();
        Forward::from_normaliser(targets, Columns::Tokens, options, &mut workspace, |_, selection| {
            scores::forward(z, classes, &site_of_row, sites, selection)
        })
    })?;
    let op = ScoresLoss { forward, site_of_row, targets: targets.clone(), options: options.clone() };
    Ok(z.apply_op1(op)?)
}
