//! The convolutions in front of an encoder, piece by piece.
use std::collections::BTreeMap;

use candle_core::Tensor;
use decoding::AffineLayer;
use kernels::PackedRight;

use super::EncoderChunk;
use crate::Result;
use crate::layers::convolution::{Plane, PlanePosition, flat};
use crate::layers::layer_norm::FixedNorm;
use crate::tensors::to_vec;

/// [`super::subsampling::Subsampling`] with its weights packed and its states outside.
///
/// | state | size |
/// |---|---|
/// | `subsampling.0`, `subsampling.1`: frames that the next output frame still needs, at the start one of zeros | 1 or 2 of them |
pub(super) struct SubsamplingStream {
    layers: [PlaneLayer; 2],
    norm: FixedNorm,
    out: AffineLayer,
}

struct PlaneLayer {
    plane: Plane,
    weight: PackedRight<f32>,
    bias: Vec<f32>,
    name: String,
}

impl SubsamplingStream {
    pub fn new(
        planes: [Plane; 2],
        weights: &[[Tensor; 2]; 2],
        norm: FixedNorm,
        out: AffineLayer,
    ) -> Result<Self> {
        let layer = |at: usize| -> Result<PlaneLayer> {
            let [weight, bias] = &weights[at];
            let weight = to_vec::<f32>(&flat(weight)?.contiguous()?)?;
            let (plane, name) = (planes[at], format!("subsampling.{at}"));
            Ok(PlaneLayer { weight: plane.pack(&weight), bias: to_vec(bias)?, plane, name })
        };
        Ok(SubsamplingStream { layers: [layer(0)?, layer(1)?], norm, out })
    }

    /// Values of an input frame.
    pub fn input(&self) -> usize {
        self.layers[0].plane.width()
    }

    /// Sizes of each part of a state; the first is that at the start.
    pub fn sizes(&self) -> BTreeMap<String, Vec<usize>> {
        let size =
            |layer: &PlaneLayer| (layer.name.clone(), [1, 2].map(|n| n * layer.plane.width()).to_vec());
        self.layers.iter().map(size).collect()
    }

    /// The next rows of each utterance.
    pub fn step(&self, pieces: &mut [EncoderChunk]) -> Vec<Vec<f32>> {
        let rows = pieces.iter_mut().map(|piece| {
            let mut rows = piece.rows.to_vec();
            for layer in &self.layers {
                let Some(before) = piece.state.values.get_mut(&layer.name) else { continue };
                rows = layer.step(before, &rows, piece.last);
            }
            self.out.rows(&self.norm.rows(&rows))
        });
        rows.collect()
    }
}

impl PlaneLayer {
    /// Output frames of frames that waited and new ones: as many as have all of their input, or, at
    /// the end, all.
    fn step(&self, before: &mut Vec<f32>, rows: &[f32], last: bool) -> Vec<f32> {
        let Plane { stride, .. } = self.plane;
        let width = self.plane.width();
        before.extend_from_slice(rows);
        // Output frame t sees the frames s t .. s t + 2 of these, and is there if the middle one
        // is.
        let count = before.len() / width;
        let frames =
            if last { (count - 1).div_ceil(stride) } else { (count + stride).saturating_sub(3) / stride };
        let mut out = vec![0.0; frames * self.plane.width_out()];
        let place = PlanePosition { first: 0, outside: 0 };
        self.plane.forward(before, place, &self.weight, &self.bias, &mut out);
        before.drain(..frames * stride * width);
        out
    }
}
