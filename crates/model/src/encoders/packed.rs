//! `PackedEncoder`: an encoder with packed weights as the encoder of a model.
use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use kernels::packed::NumberFormat;

use super::{EncodedRows, Encoder, EncoderStream, InferenceEncoder};
use crate::{Error, Result};
use layers::tensors::with_slice;
use layers::training_pass::TrainingPass;

/// An [`InferenceEncoder`] over padded batches; it has no training pass.
pub(crate) struct PackedEncoder {
    /// The encoder without padding.
    pub encoder: Arc<dyn InferenceEncoder>,
    /// Number format of weights and products.
    pub format: NumberFormat,
    /// CRC-32 of the weights before packing, by name.
    pub checksums: BTreeMap<String, u32>,
}

impl Encoder for PackedEncoder {
    fn width(&self) -> usize {
        self.encoder.width()
    }

    fn forward(
        &self,
        x: &Tensor,
        lengths: &[usize],
        pass: Option<&mut TrainingPass>,
    ) -> Result<(Tensor, Vec<usize>)> {
        if pass.is_some() {
            return Err(Error::shape("pass", "none: the encoder is for inference", "a training pass"));
        }
        let input_width = self.encoder.input_width();
        let is_valid = x.dims3().is_ok_and(|(batch, rows, width)| {
            batch == lengths.len() && width == input_width && lengths.iter().all(|&length| length <= rows)
        });
        if !is_valid {
            let expected = format!("rows [{}, T, {input_width}] and lengths of at most T", lengths.len());
            return Err(Error::shape("x", expected, format!("{:?} and {lengths:?}", x.dims())));
        }
        let utterance_len = x.dim(1)? * input_width;
        let encoded = with_slice(x, |x: &[f32]| {
            let utterances = lengths.iter().enumerate();
            let utterances: Vec<&[f32]> =
                utterances.map(|(b, rows)| &x[b * utterance_len..][..rows * input_width]).collect();
            Ok(self.encoder.encode(&utterances))
        })??;
        pad(&encoded, self.encoder.width())
    }

    fn bytes(&self, batch: usize, rows: usize, _: usize) -> Option<usize> {
        Some(self.encoder.bytes(&vec![rows; batch]))
    }

    fn stream(&self) -> Result<Option<Arc<dyn EncoderStream>>> {
        Ok(self.encoder.clone().stream())
    }
}

/// Pads the rows of each utterance to the longest.
fn pad(encoded: &EncodedRows, width: usize) -> Result<(Tensor, Vec<usize>)> {
    let EncodedRows { rows, lengths } = encoded;
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let mut padded = kernels::alloc(lengths.len() * longest * width, 0.0);
    let mut remaining = &rows[..];
    for (b, length) in lengths.iter().enumerate() {
        let (utterance, later) = remaining.split_at(length * width);
        padded[b * longest * width..][..utterance.len()].copy_from_slice(utterance);
        remaining = later;
    }
    let shape = (lengths.len(), longest, width);
    Ok((Tensor::from_vec(padded, shape, &Device::Cpu)?, lengths.clone()))
}
