//! Two strided convolutions over (time, mel) in front of an encoder.
use std::sync::Arc;

use candle_core::Tensor;
use candle_nn::{Init, VarBuilder};
use serde::{Deserialize, Serialize};

use super::subsampling_stream::SubsamplingStream;
use crate::config::values as check;
use crate::config::values::MAX_WIDTH;
use crate::layers::convolution::{Plane, convolution};
use crate::layers::footprint::{self, Footprint};
use crate::layers::layer_norm::LayerNorm;
use crate::layers::ragged::Ragged;
use crate::{Linear, Result};

/// `[encoder.subsampling]`: convolutions make one row of some frames.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubsamplingConfig {
    /// Channels of both convolutions.
    pub channels: usize,
    /// How many frames become one row: 2 or 4.
    #[serde(default = "four")]
    pub factor: usize,
}

fn four() -> usize {
    4
}

impl SubsamplingConfig {
    pub(super) fn check(&self) -> Result<()> {
        check::check_count("encoder.subsampling.channels", self.channels, MAX_WIDTH)?;
        check::ensure("encoder.subsampling.factor", "2 or 4", [2, 4].contains(&self.factor), self.factor)
    }

    /// Both convolutions, for frames of `bins` values.
    pub(super) fn planes(&self, bins: usize) -> [Plane; 2] {
        let first = Plane { bins, inputs: 1, outputs: self.channels, stride: 2 };
        let bins = first.bins_out();
        [first, Plane { bins, inputs: self.channels, outputs: self.channels, stride: self.factor / 2 }]
    }
}

/// Two 3 x 3 convolutions with ReLU, a layer norm, then a linear layer.
///
/// ```text
/// conv    stride 2 over time and mel; then 2 over mel and factor/2 over time; zeros outside of an utterance
/// norm    over the ⌈⌈F/2⌉/2⌉ · C values of a row, channels innermost
/// out     to W values
/// ```
/// The norm is there as what comes out of ReLU is positive: without it a step of the optimiser
/// moves all of a row's values together.
///
/// A row has seen seven frames, up to the third after its own first.
///
/// | parameter | shape |
/// |---|---|
/// | `conv.0.weight`, `conv.2.weight`, each with a bias | `[C, 1, 3, 3]`, `[C, C, 3, 3]` |
/// | `norm.weight`, with a bias | `[⌈⌈F/2⌉/2⌉ · C]` |
/// | `out.weight`, with a bias | `[W, ⌈⌈F/2⌉/2⌉ · C]` |
#[derive(Debug, Clone)]
pub(super) struct Subsampling {
    planes: [Plane; 2],
    /// Weight and bias of each.
    convolutions: [[Tensor; 2]; 2],
    norm: LayerNorm,
    out: Linear,
}

impl Subsampling {
    /// For frames of `bins` values and rows of `width`.
    pub fn new(config: &SubsamplingConfig, bins: usize, width: usize, vb: &VarBuilder) -> Result<Self> {
        let planes = config.planes(bins);
        let make = |plane: &Plane, vb: VarBuilder| -> Result<[Tensor; 2]> {
            let shape = (plane.outputs, plane.inputs, 3, 3);
            // Rows keep their scale through ReLU: with the usual ±1/√inputs they would be a tenth
            // of the frames.
            let weight = vb.get_with_hints(shape, "weight", candle_nn::init::DEFAULT_KAIMING_UNIFORM)?;
            Ok([weight, vb.get_with_hints(plane.outputs, "bias", Init::Const(0.0))?])
        };
        let [first, second] = &planes;
        let conv = vb.pp("conv");
        let convolutions = [make(first, conv.pp(0))?, make(second, conv.pp(2))?];
        let norm = LayerNorm::new(second.width_out(), &vb.pp("norm"))?;
        let out = Linear::new(second.width_out(), width, &vb.pp("out"))?;
        Ok(Subsampling { planes, convolutions, norm, out })
    }

    /// `[B, T, F]` to ragged rows `[Σ T'_b, W]`.
    pub fn forward(&self, x: &Tensor, lengths: &[usize]) -> Result<(Tensor, Arc<Ragged>)> {
        let mut ragged = Ragged::new(lengths);
        let mut x = ragged.pack(x)?;
        for (plane, [weight, bias]) in self.planes.iter().zip(&self.convolutions) {
            let to: Vec<usize> = ragged.lengths().iter().map(|l| l.div_ceil(plane.stride)).collect();
            let to = Ragged::new(&to);
            x = convolution(&x, (&ragged, &to), *plane, weight, bias)?;
            ragged = to;
        }
        Ok((self.out.apply(&self.norm.apply(&x)?)?, ragged))
    }

    /// Frames that become one row.
    pub fn factor(&self) -> usize {
        self.planes.iter().map(|plane| plane.stride).product()
    }

    /// What a padded batch takes.
    pub fn held(&self, batch: usize, frames: usize) -> Footprint {
        let width = self.out.bias().elem_count();
        let mut rows = frames;
        let mut held = footprint::numbers(batch * frames * self.planes[0].width(), 0);
        for plane in &self.planes {
            let before = rows;
            rows = rows.div_ceil(plane.stride);
            held = footprint::then(held, plane.held(batch, [before, rows]));
        }
        let (inner, rows) = (self.planes[1].width_out(), batch * rows);
        // The norm's rows and those of the layer; both gradients of both, packed operands.
        let after =
            footprint::numbers(rows * (inner + width), rows * (4 * inner + 3 * width) + 3 * inner * width);
        footprint::then(held, after)
    }

    /// The same for frames that arrive in pieces, with a copy of the weights.
    pub fn stream(&self) -> Result<SubsamplingStream> {
        let out = self.out.packed("pre_encode.out")?;
        SubsamplingStream::new(self.planes, &self.convolutions, self.norm.fixed()?, out)
    }
}
