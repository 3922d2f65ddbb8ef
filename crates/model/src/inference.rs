//! Models for inference: encoders with packed weights, and checkpoints without copies.
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use kernels::packed::NumberFormat;

use crate::adapter::read_merged;
use crate::checkpoint_file::{CheckpointFile, matrix_shape};
use crate::checksums::{quantized_checksum, values_checksum};
use crate::encoders::packed::PackedEncoder;
use crate::encoders::{EncoderKind, EncoderStream, InferenceEncoder, ReadTensor, WeightValues};
use crate::model::Network;
use crate::parameters::Shapes;
use crate::quantized_weights::{is_encoder_matrix, is_output_matrix, quantize_weight};
use crate::{Error, Model, ModelConfig, Parameters, Result};
use layers::tensors::{to_vec, with_slice};

/// Start of the names of the encoder's parameters.
const ENCODER_PREFIX: &str = "encoder.";

impl Model {
    /// Reads a model for inference, with averaged weights if available.
    ///
    /// Weights of an encoder that has an implementation with packed weights
    /// ([`Self::packed_encoder`]) are packed one by one, those of LSTM and Conformer layer by
    /// layer, and have no other copy: they are not in [`Self::parameters`]. The memory is that of
    /// the packed weights, the other parameters and the largest tensor or layer.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for a damaged file, or one with other parameters than its recipe;
    /// those of [`Self::for_inference`].
    pub fn read_for_inference(path: &Path, format: NumberFormat) -> Result<Self> {
        let file = CheckpointFile::open(path)?;
        let (config, labels) = (file.model_config()?, file.tokenizer()?.size());
        Self::from_file(&file, &config, labels, format)
    }

    /// Reads the model of an open checkpoint, as [`Self::read_for_inference`].
    ///
    /// # Errors
    /// Those of [`Self::read_for_inference`].
    pub fn from_file(
        file: &CheckpointFile,
        config: &ModelConfig,
        labels: usize,
        format: NumberFormat,
    ) -> Result<Self> {
        let shapes = Self::shapes(config, labels)?;
        file.check(&shapes)?;
        Self::check_memory(config, &memory_shapes(config, &shapes, format), 1, 1)?;
        file.check_other_values()?;
        let mut read_encoder = |name: &str| match &config.adapter {
            None => file.read_stored(name),
            adapter => {
                let mut read =
                    |name: &str| shapes.contains_key(name).then(|| file.read_weight(name)).transpose();
                let values = read_merged(adapter.as_ref(), name, &mut read)?;
                Ok(values.map_or_else(|| file.read_weight(name), Ok)?.into())
            }
        };
        let packed = pack(config, format, &mut read_encoder)?;
        Self::from_packed(config, labels, format, packed, &shapes, &mut |name| file.read_stored(name))
    }

    /// Creates a model from a packed encoder and the other weights.
    ///
    /// Without a packed encoder, the weights include those of the encoder.
    fn from_packed(
        config: &ModelConfig,
        labels: usize,
        format: NumberFormat,
        packed: Option<Arc<PackedEncoder>>,
        shapes: &Shapes,
        read: &mut ReadTensor,
    ) -> Result<Self> {
        expect_format(packed.as_ref(), format)?;
        let is_packed =
            |name: &str| packed.as_ref().is_some_and(|packed| packed.checksums.contains_key(name));
        let mut values = BTreeMap::new();
        for (name, shape) in shapes.iter().filter(|(name, _)| !is_packed(name)) {
            let stored = match (read(name)?, format) {
                (WeightValues::F32(values), NumberFormat::Q8) if is_output_matrix(name) => {
                    WeightValues::Q8(quantize_weight(name, &values, matrix_shape(shape).1)?)
                }
                (stored, _) => stored,
            };
            values.insert(name.clone(), stored.into_f32());
        }
        let (parameters, network) = Parameters::from_values(values, |vb| match &packed {
            Some(encoder) => Network::with_encoder(config, labels, encoder.clone(), &vb),
            None => Network::new(config, labels, &vb),
        })?;
        Ok(Self::from_network(config, labels, parameters, network).with_packed(packed))
    }

    /// Returns this model with an encoder for inference.
    ///
    /// The encoder has a copy of the current weights, packed for products, if its kind has such an
    /// implementation; otherwise it is unchanged. It has no training pass. With
    /// [`NumberFormat::Q8`], the model is that of [`Self::read_for_inference`] with a file of the
    /// same `f32` weights: it has copies of all weights, and those of LSTM predictor, joint network
    /// and CTC head are rounded.
    ///
    /// # Errors
    /// [`Error::Shape`] for a format that the encoder does not have: one without packed weights
    /// computes in `f32`, one that was packed before keeps its format. Errors of candle.
    pub fn for_inference(&self, format: NumberFormat) -> Result<Self> {
        let packed = self.pack_encoder(format)?;
        expect_format(packed.as_ref(), format)?;
        if format != NumberFormat::Q8 || self.packed.is_some() {
            return Ok(self.clone().with_packed(packed));
        }
        let parameters = self.parameters();
        let shapes = parameters.iter().map(|(name, variable)| (name.to_owned(), variable.dims().to_vec()));
        Self::from_packed(self.config(), self.labels, format, packed, &shapes.collect(), &mut |name| {
            let variable = parameters.get(name).expect("a parameter of the model");
            Ok(to_vec::<f32>(variable)?.into())
        })
    }

    /// Returns the number format of a packed encoder.
    ///
    /// None if the encoder computes in candle.
    pub fn encoder_format(&self) -> Option<NumberFormat> {
        self.packed.as_ref().map(|packed| packed.format)
    }

    /// Packs the current weights of the encoder for inference without candle.
    ///
    /// Weights include the updates of an adapter. None if the kind of encoder has no such
    /// implementation in this format (LSTM and Conformer have none in bf16), or the model has a
    /// custom encoder.
    ///
    /// # Errors
    /// Errors of candle; [`Error::Shape`] for weights that the encoder does not support, or for
    /// another format than that of an encoder that was packed before.
    pub fn packed_encoder(&self, format: NumberFormat) -> Result<Option<Arc<dyn InferenceEncoder>>> {
        Ok(self.pack_encoder(format)?.map(|packed| packed.encoder.clone()))
    }

    /// Returns a streaming encoder with a copy of the current weights.
    ///
    /// None if the encoder needs whole utterances.
    ///
    /// # Errors
    /// As [`Self::packed_encoder`].
    pub fn stream_encoder(&self) -> Result<Option<Arc<dyn EncoderStream>>> {
        let format = self.encoder_format().unwrap_or(NumberFormat::F32);
        match self.packed_encoder(format)? {
            Some(encoder) => Ok(encoder.stream()),
            None => self.encoder().stream(),
        }
    }

    /// Returns the CRC-32 of each weight by name.
    ///
    /// Values are little-endian `f32`, or 8-bit blocks as the file has them; those of a packed
    /// encoder are its weights before packing, with the updates of an adapter.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn weight_checksums(&self) -> Result<BTreeMap<String, u32>> {
        let mut checksums = self.packed.as_ref().map(|packed| packed.checksums.clone()).unwrap_or_default();
        for (name, variable) in self.parameters().iter() {
            if self.packed.is_none() || !name.starts_with(ENCODER_PREFIX) {
                let checksum = with_slice(variable, |values: &[f32]| Ok(values_checksum(values)))?;
                checksums.insert(name.to_owned(), checksum);
            }
        }
        Ok(checksums)
    }

    fn pack_encoder(&self, format: NumberFormat) -> Result<Option<Arc<PackedEncoder>>> {
        if let Some(packed) = &self.packed {
            expect_format(Some(packed), format)?;
            return Ok(Some(packed.clone()));
        }
        if self.has_custom_encoder {
            return Ok(None);
        }
        let config = self.config();
        let mut read =
            |name: &str| Ok(self.parameters().get(name).map(|variable| to_vec(variable)).transpose()?);
        pack(config, format, &mut |name| {
            let values = read_merged(config.adapter.as_ref(), name, &mut read)?;
            let values = values.ok_or_else(|| Error::shape(name, "a parameter of the encoder", "none"))?;
            Ok(values.into())
        })
    }
}

/// Returns the CRC-32 of little-endian `f32`, or of 8-bit blocks.
fn weight_checksum(values: &WeightValues) -> u32 {
    match values {
        WeightValues::F32(values) => values_checksum(values),
        WeightValues::Q8(matrix) => quantized_checksum(matrix),
    }
}

/// Returns shapes of the `f32` values that packing needs.
///
/// These are the packed parameters and, for LSTM and Conformer, the largest layer before packing.
fn memory_shapes(config: &ModelConfig, shapes: &Shapes, format: NumberFormat) -> Shapes {
    let divisor = match format {
        NumberFormat::F32 => 1,
        NumberFormat::Bf16 => 2,
        NumberFormat::Q8 => 3,
    };
    let mut packed = shapes.clone();
    for (_, shape) in packed.iter_mut().filter(|(name, _)| is_encoder_matrix(name)) {
        shape.iter_mut().take(1).for_each(|rows| *rows = rows.div_ceil(divisor));
    }
    if !matches!(config.encoder, EncoderKind::FastConformer(_)) {
        let mut layers: BTreeMap<String, usize> = BTreeMap::new();
        for (name, shape) in shapes.iter().filter(|(name, _)| name.starts_with(ENCODER_PREFIX)) {
            // `encoder.layers.N`, or another module such as `encoder.pre_encode`.
            let depth = if name.starts_with("encoder.layers.") { 3 } else { 2 };
            let layer: Vec<&str> = name.split('.').take(depth).collect();
            *layers.entry(layer.join(".")).or_default() += shape.iter().product::<usize>();
        }
        let largest = layers.into_iter().max_by_key(|(_, values)| *values);
        packed.extend(largest.map(|(name, values)| (format!("{name} before packing"), vec![values])));
    }
    packed
}

/// Packs the encoder of a configuration; none if its kind has no packed form.
fn pack(
    config: &ModelConfig,
    format: NumberFormat,
    read: &mut ReadTensor,
) -> Result<Option<Arc<PackedEncoder>>> {
    let mut checksums = BTreeMap::new();
    let encoder = config.encoder.pack(config.input.width(), format, &mut |name| {
        let values = read(name)?;
        checksums.insert(name.to_owned(), weight_checksum(&values));
        Ok(values)
    })?;
    Ok(encoder.map(|encoder| Arc::new(PackedEncoder { encoder, format, checksums })))
}

/// Checks the format of an encoder, which is `f32` without packed weights.
fn expect_format(packed: Option<&Arc<PackedEncoder>>, format: NumberFormat) -> Result<()> {
    let expected = match packed {
        Some(packed) if packed.format == format => return Ok(()),
        Some(packed) => format!("{}, that of this encoder", packed.format.name()),
        None if format == NumberFormat::F32 => return Ok(()),
        None => "f32 for this encoder (bf16: FastConformer; custom encoders: f32 only)".into(),
    };
    Err(Error::shape("format", expected, format.name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::JointConfig;
    use crate::encoders::LstmEncoderConfig;

    #[test]
    fn packing_needs_the_packed_weights_and_the_largest_layer() {
        let names =
            ["encoder.layers.0.weight_ih_l0", "encoder.layers.1.weight_ih_l0", "encoder.layers.1.bias"];
        let shapes: Shapes =
            names.into_iter().map(str::to_owned).zip([vec![30, 2], vec![30, 4], vec![30]]).collect();
        let lstm = EncoderKind::Lstm(LstmEncoderConfig::default());
        for (format, weights) in [(NumberFormat::F32, 60 + 120 + 30), (NumberFormat::Q8, 20 + 40 + 30)] {
            let config = ModelConfig::new(lstm.clone(), JointConfig { width: 1, dropout: 0.0 });
            let needed = memory_shapes(&config, &shapes, format);
            let values: usize = needed.values().map(|shape| shape.iter().product::<usize>()).sum();
            assert_eq!(values, weights + 120 + 30, "{}", format.name());
        }
    }
}
