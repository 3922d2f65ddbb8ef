//! Writes a checkpoint for recognition whose encoder weights are smaller.
//!
//! | format | encoder | LSTM predictor, joint network, CTC head |
//! |---|---|---|
//! | q8 | 8-bit blocks of 32 values of a row with an f16 scale: 1.0625 bytes | the same |
//! | bf16 | FastConformer only: rounded to nearest even, 2 bytes | `f32` |
//!
//! In a FastConformer or Conformer these are the linear layers of attention, feed-forward modules
//! and pointwise convolutions, 99 % of the weights of a large encoder; in an LSTM encoder the
//! matrices of its layers. All other weights are `f32`: embeddings, norms, biases, subsampling and
//! depthwise convolutions.
use std::cell::RefCell;
use std::path::Path;

use kernels::packed::{NumberFormat, QuantizedMatrix};

use crate::checkpoint::SCALES_SUFFIX;
use crate::checkpoint_file::{CheckpointFile, matrix_shape};
use crate::checkpoint_writer::{CheckpointWriter, MetadataRef};
use crate::encoders::{EncoderKind, is_linear_weight};
use crate::quantized_weights::{is_encoder_matrix, is_output_matrix, quantize_weight};
use crate::{Error, Model, Progress, Result};

/// Writes a checkpoint for recognition with encoder weights in a smaller format.
///
/// Averages are taken if the file has them. Weights are converted one at a time.
/// [`Model::read_for_inference`] in q8 gives the same model for both files; in bf16, a few weights
/// are rounded twice.
///
/// # Errors
/// [`Error::Checkpoint`] for a file that was quantized before, with an adapter, or for bf16 without
/// a FastConformer encoder; [`Error::Shape`] for values that cannot be quantized and for the format
/// `f32`; [`Error::Io`].
pub fn quantize(file: &CheckpointFile, format: NumberFormat, output: &Path) -> Result<()> {
    let invalid = |expected: &str, found: &str| Err(Error::checkpoint(file.path(), expected, found));
    file.expect_f32()?;
    let (config, tokenizer) = (file.model_config()?, file.tokenizer()?);
    file.check(&Model::shapes(&config, tokenizer.size())?)?;
    if format == NumberFormat::Bf16 && !matches!(config.encoder, EncoderKind::FastConformer(_)) {
        return invalid("a FastConformer encoder, for bf16", "another kind of encoder");
    }
    if config.adapter.is_some() {
        return invalid("a model without an adapter, to quantize", "one; `panda adapter merge` merges it");
    }
    if format == NumberFormat::F32 {
        return Err(Error::shape("format", "q8 or bf16", "f32"));
    }
    file.check_other_values()?;
    let (recipe, tokenizer, progress) = (file.recipe(), tokenizer.to_json()?, Progress::default());
    let metadata = MetadataRef { recipe: &recipe, tokenizer: &tokenizer, progress: &progress, data: None };
    let cache = QuantizedCache { file, matrix: RefCell::new(None) };
    let mut writer = CheckpointWriter::new(metadata).with_imported(file.imported());
    for (name, shape) in file.shapes() {
        let full_name = format!("weight/{name}");
        match format {
            NumberFormat::Q8 if is_encoder_matrix(name) || is_output_matrix(name) => {
                let (rows, columns) = matrix_shape(shape);
                let cache = &cache;
                writer.add_bytes(full_name.clone(), shape.clone(), "I8", move || {
                    cache.with(name, columns, |matrix| {
                        matrix.values().iter().map(|value| value.cast_unsigned()).collect()
                    })
                });
                let scales_shape = vec![rows, QuantizedMatrix::blocks(columns)];
                writer.add_bytes(full_name + SCALES_SUFFIX, scales_shape, "F16", move || {
                    cache.with(name, columns, |matrix| {
                        matrix.scales().iter().flat_map(|scale| scale.to_le_bytes()).collect()
                    })
                });
            }
            NumberFormat::Bf16 if is_linear_weight(name) => {
                writer.add_bytes(full_name, shape.clone(), "BF16", move || {
                    let values = file.read_weight(name)?;
                    Ok(values.iter().flat_map(|&value| to_bf16(value).to_le_bytes()).collect())
                });
            }
            _ => writer.add_reader("weight", name, shape.clone(), || file.read_weight(name)),
        }
    }
    writer.write(output)
}

/// Rounds a finite number to the nearest bf16, to even.
fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits + 0x7fff + (bits >> 16 & 1);
    // The largest numbers would become infinite.
    if f32::from_bits(rounded & 0xffff_0000).is_finite() {
        (rounded >> 16) as u16
    } else {
        (bits >> 16) as u16
    }
}

/// The last quantized weight: its integers and scales are read one after the other.
struct QuantizedCache<'a> {
    file: &'a CheckpointFile,
    matrix: RefCell<Option<(String, QuantizedMatrix)>>,
}

impl QuantizedCache<'_> {
    fn with(
        &self,
        name: &str,
        columns: usize,
        read: impl FnOnce(&QuantizedMatrix) -> Vec<u8>,
    ) -> Result<Vec<u8>> {
        let mut cached = self.matrix.borrow_mut();
        match &*cached {
            Some((cached_name, matrix)) if cached_name == name => Ok(read(matrix)),
            _ => {
                *cached = None;
                let values = self.file.read_weight(name)?;
                let matrix = quantize_weight(name, &values, columns)?;
                let bytes = read(&matrix);
                *cached = Some((name.to_owned(), matrix));
                Ok(bytes)
            }
        }
    }
}
