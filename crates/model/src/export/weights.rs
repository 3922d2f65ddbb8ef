//! `ExportWeights`: the tensors of a layout with their bytes, from the parameters of a model.
use std::collections::BTreeMap;
use std::path::Path;

use safetensors::Dtype;

use crate::checkpoint::Values;
use crate::encoders::{ConvolutionNorm, EncoderKind};
use crate::import::front_end_tensors::{self, FILTER_BANK_NAME, WINDOW_NAME};
use crate::import::metadata::Base64Bytes;
use crate::import::names::{ForeignTensor, NameOptions, counter_name, foreign_name, foreign_tensors};
use crate::import::tensors::from_f32;
use crate::import::{ImportedSource, ImportedTensor, Layout};
use crate::parameters::Shapes;
use crate::{Error, ModelConfig, Result};

/// Tensors of a layout, in alphabetical order.
pub(super) struct ExportWeights<'a> {
    values: &'a Values,
    tensors: BTreeMap<String, ExportTensor>,
}

/// A tensor to be written.
pub(super) struct ExportTensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    content: Content,
}

enum Content {
    /// Parameters one after the other, and rows of zeros.
    Parameters(ForeignTensor),
    Bytes(Vec<u8>),
}

impl ExportTensor {
    /// Returns the number of bytes.
    pub(super) fn len(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bitsize() / 8
    }
}

impl<'a> ExportWeights<'a> {
    /// Creates the tensors of a layout.
    ///
    /// # Errors
    /// [`Error::Conversion`] for a parameter that the layout does not have.
    pub(super) fn new(
        path: &Path,
        config: &ModelConfig,
        shapes: &Shapes,
        values: &'a Values,
        layout: Layout,
        imported: Option<&ImportedSource>,
    ) -> Result<Self> {
        let options = NameOptions::new(config, layout);
        let foreign = foreign_tensors(shapes, &options).map_err(|name| {
            let expected = format!("parameters that models of {} have", layout.name());
            Error::conversion(path, name, expected, "one without an equivalent")
        })?;
        let source = imported.map(|source| (source, NameOptions::new(config, source.layout)));
        // A dtype is stored under the name in the source's layout.
        let dtype_of = |tensor: &ForeignTensor| {
            let (source, options) = source?;
            source.dtypes.get(&foreign_name(&tensor.parts.first()?.0, &options)?).copied()
        };
        let mut tensors = BTreeMap::new();
        for (name, tensor) in foreign {
            let (dtype, shape) = (dtype_of(&tensor).unwrap_or(Dtype::F32), tensor.shape.clone());
            tensors.insert(name, ExportTensor { dtype, shape, content: Content::Parameters(tensor) });
        }
        for (name, ImportedTensor { dtype, shape, data }) in other_tensors(config, &options, source.as_ref())
        {
            tensors.insert(name, ExportTensor { dtype, shape, content: Content::Bytes(data.0) });
        }
        Ok(ExportWeights { values, tensors })
    }

    /// Iterates over names and tensors in alphabetical order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &ExportTensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// Returns the little-endian elements of a tensor.
    pub(super) fn bytes(&self, tensor: &ExportTensor) -> Vec<u8> {
        let foreign = match &tensor.content {
            Content::Parameters(foreign) => foreign,
            Content::Bytes(bytes) => return bytes.clone(),
        };
        let mut bytes = Vec::with_capacity(tensor.len());
        for (parameter, _) in &foreign.parts {
            let values = self.values.get(parameter).map_or(&[][..], Vec::as_slice);
            bytes.extend(from_f32(tensor.dtype, values).unwrap_or_default());
        }
        bytes.resize(tensor.len(), 0);
        bytes
    }
}

/// Returns tensors that are no parameters: window, filter bank, counters of batches.
///
/// Those of a source of the same layout are restored; others are converted or created.
fn other_tensors(
    config: &ModelConfig,
    options: &NameOptions,
    source: Option<&(&ImportedSource, NameOptions)>,
) -> BTreeMap<String, ImportedTensor> {
    if let Some((source, _)) = source.filter(|(source, _)| source.layout == options.layout) {
        return source.tensors.clone();
    }
    let mut tensors = BTreeMap::new();
    if options.layout == Layout::Nemo {
        for name in [WINDOW_NAME, FILTER_BANK_NAME] {
            let computed = front_end_tensors::computed_tensor(name, config.input.features.mels);
            tensors.extend(computed.map(|tensor| (name.to_owned(), tensor)));
        }
    }
    let layers = match &config.encoder {
        EncoderKind::FastConformer(encoder) if encoder.convolution_norm == ConvolutionNorm::Batch => {
            encoder.layers
        }
        _ => 0,
    };
    for layer in 0..layers {
        let stored = source.and_then(|(source, options)| source.tensors.get(&counter_name(layer, options)?));
        let zero = || ImportedTensor { dtype: Dtype::I64, shape: vec![], data: Base64Bytes(vec![0; 8]) };
        let tensor = stored.cloned().unwrap_or_else(zero);
        tensors.extend(counter_name(layer, options).map(|name| (name, tensor)));
    }
    tensors
}
