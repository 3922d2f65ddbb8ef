//! The input rows of an encoder: one or more stacked log-mel frames each.
use candle_core::Tensor;
use serde::{Deserialize, Serialize};
use speech::{FeatureConfig, Features};

use crate::{Result, tensors};

/// The computation of the encoder's input rows from audio.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct InputConfig {
    /// Log-mel features.
    pub features: FeatureConfig,
    /// Input rows, from one or more frames each.
    pub rows: RowsConfig,
}

impl InputConfig {
    /// Returns the width of a row.
    pub fn width(&self) -> usize {
        self.rows.width(self.features.mels)
    }
}

/// The keys of `[encoder]` that all kinds of encoders share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RowsConfig {
    /// Number of adjacent frames that are stacked to one input row.
    pub stack: usize,
    /// Number of frames between input rows.
    pub stride: usize,
    /// Minimum width of an input row; narrower rows are padded with zeros.
    ///
    /// 256 makes MLPerf's rows of 240 values a multiple of 32.
    #[serde(skip_serializing_if = "is_zero")]
    pub channels: usize,
}

impl RowsConfig {
    /// Returns the width of a row of frames with `mels` mel bands.
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

/// Stacks the frames of each utterance and pads with zeros.
///
/// Returns rows `[B, T, stack · D]`, or of more channels, and the number of rows of each utterance.
/// B: utterances; T: rows of the longest one; D: values of a frame.
pub fn collate(features: &[&Features], config: &RowsConfig) -> Result<(Tensor, Vec<usize>)> {
    let stack = |features: &&Features| features.stack_padded(config.stack, config.stride, config.channels);
    let stacked: Vec<Features> = features.iter().map(stack).collect();
    let lengths: Vec<usize> = stacked.iter().map(|features| features.frames).collect();
    let frames = lengths.iter().copied().max().unwrap_or(0);
    let width = stacked.first().map_or(0, |features| features.dim);
    let mut rows = vec![0f32; stacked.len() * frames * width];
    for (padded_rows, features) in rows.chunks_mut((frames * width).max(1)).zip(&stacked) {
        padded_rows[..features.data.len()].copy_from_slice(&features.data);
    }
    Ok((tensors::from_vec(rows, (stacked.len(), frames, width))?, lengths))
}
