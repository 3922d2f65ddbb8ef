//! The input of an encoder: rows of stacked log-mel frames.
use candle_core::Tensor;
use serde::{Deserialize, Serialize};
use speech::{FeatureConfig, Features};

use crate::{Result, tensors};

/// From samples to the rows that an encoder reads.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct InputConfig {
    /// From samples to frames.
    pub features: FeatureConfig,
    /// From frames to rows.
    pub rows: RowsConfig,
}

impl InputConfig {
    /// Values of a row.
    pub fn width(&self) -> usize {
        self.rows.width(self.features.mels)
    }
}

/// The keys of `[encoder]` that all kinds share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RowsConfig {
    /// Neighbouring frames that become one input row.
    pub stack: usize,
    /// Frames from one input row to the next.
    pub stride: usize,
    /// Fewest values of an input row, zeros behind those of its frames: 256 makes MLPerf's rows of
    /// 240 a multiple of 32. 0 = none.
    #[serde(skip_serializing_if = "is_zero")]
    pub channels: usize,
}

impl RowsConfig {
    /// Values of a row, made of frames of so many mel bins.
    pub fn width(&self, mels: usize) -> usize {
        (mels * self.stack).max(self.channels)
    }
}

impl Default for RowsConfig {
    fn default() -> Self {
        RowsConfig { stack: 3, stride: 3, channels: 0 }
    }
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Stacks frames and pads with zeros: rows `[B, T, stack · D]`, or of more channels, and their
/// lengths.
pub fn collate(planes: &[&Features], config: &RowsConfig) -> Result<(Tensor, Vec<usize>)> {
    let stacked: Vec<Features> =
        planes.iter().map(|plane| plane.stack_into(config.stack, config.stride, config.channels)).collect();
    let lengths: Vec<usize> = stacked.iter().map(|plane| plane.frames).collect();
    let frames = lengths.iter().copied().max().unwrap_or(0);
    let width = stacked.first().map_or(0, |plane| plane.dim);
    let mut rows = vec![0f32; stacked.len() * frames * width];
    for (to, plane) in rows.chunks_mut((frames * width).max(1)).zip(&stacked) {
        to[..plane.data.len()].copy_from_slice(&plane.data);
    }
    Ok((tensors::from_vec(rows, (stacked.len(), frames, width))?, lengths))
}
