//! Weights that are stored in bf16 or in 8-bit blocks with scales.
use kernels::packed::{NumberFormat, QuantizedMatrix};
use safetensors::tensor::Dtype;

use super::CheckpointFile;
use crate::checkpoint::SCALES_SUFFIX;
use crate::encoders::WeightValues;
use crate::parameters::Shapes;
use crate::{Error, Result};

/// The values of a part of a model in one number format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPart {
    /// The first component of the names, such as `encoder`.
    pub name: String,
    /// The number format.
    pub format: NumberFormat,
    /// The number of values.
    pub values: usize,
    /// Their bytes in the file, scales included.
    pub bytes: usize,
}

impl StoredPart {
    /// Returns the parts of parameters in `f32`.
    pub fn of_shapes(shapes: &Shapes) -> Vec<Self> {
        Self::merge(shapes.iter().map(|(name, shape)| {
            let values: usize = shape.iter().product();
            let bytes = values * size_of::<f32>();
            StoredPart { name: name.clone(), format: NumberFormat::F32, values, bytes }
        }))
    }

    /// Adds up parameters of one part and format.
    fn merge(parameters: impl Iterator<Item = Self>) -> Vec<Self> {
        let mut parts: Vec<Self> = Vec::new();
        for Self { name, format, values, bytes } in parameters {
            let name = name.split('.').next().unwrap_or(&name);
            match parts.iter_mut().find(|part| part.name == name && part.format == format) {
                Some(part) => (part.values, part.bytes) = (part.values + values, part.bytes + bytes),
                None => parts.push(Self { name: name.to_owned(), format, values, bytes }),
            }
        }
        parts
    }
}

impl CheckpointFile {
    /// Returns the smallest number format of the weights.
    pub fn format(&self) -> NumberFormat {
        let kind = format!("{}/", self.weight_kind());
        let tensors = self.tensors.iter().filter(|(name, _)| name.starts_with(&kind));
        let has = |dtype| tensors.clone().any(|(_, place)| place.dtype == dtype);
        match (has(Dtype::I8), has(Dtype::BF16)) {
            (true, _) => NumberFormat::Q8,
            (false, true) => NumberFormat::Bf16,
            (false, false) => NumberFormat::F32,
        }
    }

    /// Returns number formats and bytes of the parts, such as `encoder`.
    ///
    /// Averages are listed if the file has them, otherwise weights.
    pub fn stored_parts(&self) -> Vec<StoredPart> {
        let part = |(name, shape): (&String, &Vec<usize>)| {
            let place = self.tensors.get(&format!("{}/{name}", self.weight_kind()))?;
            let format = match place.dtype {
                Dtype::I8 => NumberFormat::Q8,
                Dtype::BF16 => NumberFormat::Bf16,
                _ => NumberFormat::F32,
            };
            let scales = self.tensors.get(&format!("{}/{name}{SCALES_SUFFIX}", self.weight_kind()));
            let bytes = place.bytes + scales.map_or(0, |scales| scales.bytes);
            Some(StoredPart { name: name.clone(), format, values: shape.iter().product(), bytes })
        };
        StoredPart::merge(self.shapes.iter().filter_map(part))
    }

    /// Fails for a file of `panda quantize`.
    ///
    /// # Errors
    /// [`Error::Checkpoint`].
    pub(crate) fn expect_f32(&self) -> Result<()> {
        let weights = match self.format() {
            NumberFormat::F32 => return Ok(()),
            NumberFormat::Bf16 => "weights in bf16",
            NumberFormat::Q8 => "weights in 8-bit blocks",
        };
        let hint = "which `panda quantize` wrote for recognition only; use the file that it read";
        Err(Error::checkpoint(&self.path, "weights in f32", format!("{weights}, {hint}")))
    }

    /// Checks that 8-bit integers have scales, and scales have integers.
    pub(super) fn check_scales(&self) -> Result<()> {
        let invalid = |expected: String, found: String| Err(Error::checkpoint(&self.path, expected, found));
        for (name, place) in &self.tensors {
            match place.dtype {
                Dtype::I8 => {
                    let (rows, columns) = matrix_shape(&place.shape);
                    let expected = vec![rows, QuantizedMatrix::blocks(columns)];
                    let scales_name = format!("{name}{SCALES_SUFFIX}");
                    let scales = self.tensors.get(&scales_name);
                    if !scales.is_some_and(|scales| scales.dtype == Dtype::F16 && scales.shape == expected) {
                        let actual = scales.map_or_else(
                            || "none".to_owned(),
                            |scales| format!("{:?} of shape {:?}", scales.dtype, scales.shape),
                        );
                        return invalid(format!("{scales_name} in F16, of shape {expected:?}"), actual);
                    }
                }
                Dtype::F16 => {
                    let integers = self.tensors.get(name.strip_suffix(SCALES_SUFFIX).unwrap_or(name));
                    if integers.is_none_or(|integers| integers.dtype != Dtype::I8) {
                        return invalid(format!("integers with the scales {name}"), "none".to_owned());
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads the values of a kind, such as `weight`.
    pub(super) fn read_tensor(&self, kind: &str, name: &str) -> Result<WeightValues> {
        let invalid = |expected: String, found: String| Error::checkpoint(&self.path, expected, found);
        let full_name = format!("{kind}/{name}");
        let place = self.place(&full_name)?;
        let mut values: Vec<f32> = Vec::new();
        match place.dtype {
            Dtype::I8 => {
                let mut values = Vec::with_capacity(place.bytes);
                self.read_blocks(&full_name, |block| values.extend(block.iter().map(|b| b.cast_signed())))?;
                let (mut scales, scales_name) = (Vec::new(), format!("{full_name}{SCALES_SUFFIX}"));
                self.read_blocks(&scales_name, |block| {
                    scales.extend(block.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes)));
                })?;
                let columns = matrix_shape(&place.shape).1;
                let matrix = QuantizedMatrix::from_parts(columns, values, scales);
                return matrix.map(WeightValues::Q8).ok_or_else(|| {
                    invalid(format!("scales from 0 to 65504 in {scales_name}"), "other values".into())
                });
            }
            Dtype::BF16 => {
                values.reserve_exact(place.bytes / size_of::<u16>());
                self.read_blocks(&full_name, |block| {
                    let words = block.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes));
                    values.extend(words.map(|bits| f32::from_bits(u32::from(bits) << 16)));
                })?;
            }
            _ => {
                values.reserve_exact(place.bytes / size_of::<f32>());
                self.read_blocks(&full_name, |block| {
                    values.extend(block.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
                })?;
            }
        }
        if let Some(index) = values.iter().position(|value| !value.is_finite()) {
            let value = format!("{} at {index}", values[index]);
            return Err(invalid(format!("finite values in {full_name}"), value));
        }
        Ok(WeightValues::F32(values))
    }
}

/// Returns the rows and columns of a tensor; rows are those of the first axis.
pub(crate) fn matrix_shape(shape: &[usize]) -> (usize, usize) {
    let rows = shape.first().copied().unwrap_or(1);
    (rows, shape.iter().skip(1).fold(1, |product: usize, &size| product.saturating_mul(size)))
}
