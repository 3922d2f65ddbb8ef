//! `TensorFiles`: tensors in files of another toolkit, read one at a time.
//!
//! Names, dtypes, shapes and positions are in memory, values are not: a model of several gigabytes
//! is converted with the memory of its largest tensor.
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};
use safetensors::Dtype;

use super::file_range::FileRange;
use crate::{Error, Result};

/// Bytes that are read at once to compute a checksum.
const CHECKSUM_BLOCK_BYTES: usize = 1 << 16;

/// A tensor in a file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StoredTensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Distances between elements of each axis, in elements.
    pub strides: Vec<usize>,
    /// Index in [`TensorFiles::storages`].
    pub storage: usize,
    /// First element, counted from the start of the storage.
    pub first_element: u64,
}

/// A range of a file: the elements of one or more tensors.
#[derive(Debug, Clone)]
pub(crate) struct Storage {
    pub file: Arc<File>,
    /// The file for messages.
    pub path: PathBuf,
    pub start: u64,
    pub bytes: u64,
    /// The CRC-32 of the range, until it has been compared.
    pub unchecked_crc32: Cell<Option<u32>>,
}

/// Tensors by name, with their files.
#[derive(Debug, Default)]
pub(crate) struct TensorFiles {
    pub tensors: BTreeMap<String, StoredTensor>,
    pub storages: Vec<Storage>,
}

/// Returns the bytes of an element; none for types that are not whole bytes.
pub(crate) fn element_bytes(dtype: Dtype) -> Option<usize> {
    dtype.bitsize().is_multiple_of(8).then(|| dtype.bitsize() / 8)
}

/// Returns the strides of a contiguous tensor; none if its size overflows.
pub(crate) fn contiguous_strides(shape: &[usize]) -> Option<Vec<usize>> {
    let mut strides = vec![1usize; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].checked_mul(shape[axis])?;
    }
    shape.iter().try_fold(1usize, |count, &axis| count.checked_mul(axis))?;
    Some(strides)
}

impl StoredTensor {
    /// Returns the number of elements.
    fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns true if the elements are adjacent, in row-major order.
    fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        self.shape.iter().zip(&self.strides).rev().all(|(&axis, &stride)| {
            let fits = axis <= 1 || stride == expected;
            expected *= axis;
            fits
        })
    }

    /// Returns the number of elements from the first to the last; none on overflow.
    fn span(&self) -> Option<u64> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        let last_offset = |offset: u64, (&axis, &stride): (&usize, &usize)| {
            offset.checked_add((axis as u64 - 1).checked_mul(stride as u64)?)
        };
        self.shape.iter().zip(&self.strides).try_fold(0, last_offset)?.checked_add(1)
    }
}

impl TensorFiles {
    /// Adds a tensor after checking that its elements are in its storage.
    ///
    /// # Errors
    /// [`Error::Conversion`].
    pub(crate) fn insert(&mut self, name: &str, tensor: StoredTensor) -> Result<()> {
        let storage = &self.storages[tensor.storage];
        let error = |expected: String, found: String| Error::conversion(&storage.path, name, expected, found);
        let Some(element_bytes) = element_bytes(tensor.dtype) else {
            return Err(error("a dtype of whole bytes".into(), tensor.dtype.to_string()));
        };
        let count = tensor.shape.iter().try_fold(1usize, |count, &axis| count.checked_mul(axis));
        let bytes = count.and_then(|count| count.checked_mul(element_bytes));
        let end = tensor.span().and_then(|span| span.checked_add(tensor.first_element));
        let end_byte = end.and_then(|end| end.checked_mul(element_bytes as u64));
        // Repeated elements (stride 0) would make a large tensor of a small file.
        let fits = |bytes: Option<u64>| bytes.is_some_and(|bytes| bytes <= storage.bytes);
        if !fits(end_byte) || !fits(bytes.map(|bytes| bytes as u64)) {
            let StoredTensor { shape, strides, first_element, .. } = &tensor;
            return Err(error(
                format!("elements within its {} bytes", storage.bytes),
                format!(
                    "shape {shape:?}, strides {strides:?} from element {first_element} of {}",
                    tensor.dtype
                ),
            ));
        }
        match self.tensors.insert(name.to_owned(), tensor) {
            None => Ok(()),
            Some(_) => Err(error("one tensor of this name".into(), "two".into())),
        }
    }

    /// Adds all tensors of other files.
    pub(crate) fn extend(&mut self, other: TensorFiles) -> Result<()> {
        let first_storage = self.storages.len();
        self.storages.extend(other.storages);
        for (name, tensor) in other.tensors {
            let storage = tensor.storage + first_storage;
            self.insert(&name, StoredTensor { storage, ..tensor })?;
        }
        Ok(())
    }

    /// Returns the file of a tensor, for messages.
    pub(crate) fn path(&self, tensor: &StoredTensor) -> &Path {
        &self.storages[tensor.storage].path
    }

    /// Reads the bytes of a tensor: little-endian elements in row-major order.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Conversion`] for a wrong checksum.
    pub(crate) fn read_bytes(&self, name: &str, tensor: &StoredTensor) -> Result<Vec<u8>> {
        let storage = &self.storages[tensor.storage];
        storage.check_crc32(name)?;
        let element_bytes = element_bytes(tensor.dtype).unwrap_or(1);
        let first_byte = tensor.first_element * element_bytes as u64;
        let span = tensor.span().unwrap_or(0) as usize * element_bytes;
        let mut bytes = vec![0; span];
        storage.read_exact(first_byte, &mut bytes)?;
        if tensor.is_contiguous() {
            return Ok(bytes);
        }
        let mut gathered = Vec::with_capacity(tensor.count() * element_bytes);
        gather(&bytes, element_bytes, &tensor.shape, &tensor.strides, 0, &mut gathered);
        Ok(gathered)
    }

    /// Reads the values of a tensor of floating-point numbers.
    ///
    /// # Errors
    /// [`Error::Conversion`] for another dtype, a value that is not finite, or a value of F64 that
    /// is none of F32; those of [`Self::read_bytes`].
    pub(crate) fn read_f32(&self, name: &str, tensor: &StoredTensor) -> Result<Vec<f32>> {
        let error =
            |expected: &str, found: String| Error::conversion(self.path(tensor), name, expected, found);
        if !is_float(tensor.dtype) {
            return Err(error("F32, F16, BF16 or F64", tensor.dtype.to_string()));
        }
        let values = to_f32(tensor.dtype, &self.read_bytes(name, tensor)?)
            .ok_or_else(|| error("F64 values that F32 can represent", "others".into()))?;
        match values.iter().position(|value| !value.is_finite()) {
            Some(index) => Err(error("finite values", format!("{} at {index}", values[index]))),
            None => Ok(values),
        }
    }
}

impl Storage {
    /// Reads bytes from a position in the range.
    fn read_exact(&self, first_byte: u64, bytes: &mut [u8]) -> Result<()> {
        let mut file = &*self.file;
        file.seek(SeekFrom::Start(self.start + first_byte))
            .and_then(|_| file.read_exact(bytes))
            .map_err(Error::io(&self.path, "read the tensors"))
    }

    /// Compares the checksum of the range, the first time.
    fn check_crc32(&self, name: &str) -> Result<()> {
        let Some(expected) = self.unchecked_crc32.get() else { return Ok(()) };
        let mut range = FileRange::new(self.file.clone(), self.start, self.bytes);
        let mut hasher = crc32fast::Hasher::new();
        let mut block = vec![0; CHECKSUM_BLOCK_BYTES];
        loop {
            match range.read(&mut block).map_err(Error::io(&self.path, "read the tensors"))? {
                0 => break,
                count => hasher.update(&block[..count]),
            }
        }
        let actual = hasher.finalize();
        if actual != expected {
            let (expected, found) =
                (format!("the checksum {expected:08x}"), format!("{actual:08x}: damaged"));
            return Err(Error::conversion(&self.path, name, expected, found));
        }
        self.unchecked_crc32.set(None);
        Ok(())
    }
}

/// Appends the elements of a strided tensor in row-major order.
fn gather(
    bytes: &[u8],
    element_bytes: usize,
    shape: &[usize],
    strides: &[usize],
    offset: usize,
    out: &mut Vec<u8>,
) {
    match (shape.split_first(), strides.split_first()) {
        (Some((&axis, shape)), Some((&stride, strides))) => {
            for index in 0..axis {
                gather(bytes, element_bytes, shape, strides, offset + index * stride, out);
            }
        }
        _ => out.extend(&bytes[offset * element_bytes..(offset + 1) * element_bytes]),
    }
}

/// Returns true for the dtypes of weights.
pub(crate) fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::F64)
}

/// Converts little-endian floating-point numbers to `f32`, exactly.
///
/// None for another dtype, and for a value of F64 that is none of F32.
pub(crate) fn to_f32(dtype: Dtype, bytes: &[u8]) -> Option<Vec<f32>> {
    let half = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
    Some(match dtype {
        Dtype::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        Dtype::F16 => bytes.chunks_exact(2).map(|b| f16::from_bits(half(b)).to_f32()).collect(),
        Dtype::BF16 => bytes.chunks_exact(2).map(|b| bf16::from_bits(half(b)).to_f32()).collect(),
        Dtype::F64 => {
            let values = bytes.chunks_exact(8).map(|b| {
                let value = f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]);
                // A value that is not finite is reported by name later.
                let is_exact = !value.is_finite() || f64::from(value as f32).to_bits() == value.to_bits();
                is_exact.then_some(value as f32)
            });
            values.collect::<Option<_>>()?
        }
        _ => return None,
    })
}

/// Converts `f32` to little-endian numbers of a dtype; the inverse of [`to_f32`].
///
/// Values that the dtype cannot represent are rounded to the nearest one.
pub(crate) fn from_f32(dtype: Dtype, values: &[f32]) -> Option<Vec<u8>> {
    Some(match dtype {
        Dtype::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Dtype::F16 => values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect(),
        Dtype::BF16 => values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect(),
        Dtype::F64 => values.iter().flat_map(|&value| f64::from(value).to_le_bytes()).collect(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// A storage with the bytes of a temporary file.
    pub(crate) fn storage(bytes: &[u8]) -> Storage {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[&[9; 3], bytes].concat()).unwrap();
        let (start, bytes, unchecked_crc32) =
            (3, bytes.len() as u64, Cell::new(Some(crc32fast::hash(bytes))));
        Storage { file: Arc::new(file), path: "weights".into(), start, bytes, unchecked_crc32 }
    }

    fn tensor(shape: &[usize], strides: &[usize], first_element: u64) -> StoredTensor {
        StoredTensor {
            dtype: Dtype::F32,
            shape: shape.into(),
            strides: strides.into(),
            storage: 0,
            first_element,
        }
    }

    #[test]
    fn strided_tensors_are_read_in_row_major_order() {
        let values: Vec<u8> = (0..12).flat_map(|n| (n as f32).to_le_bytes()).collect();
        let mut files = TensorFiles { storages: vec![storage(&values)], ..TensorFiles::default() };
        for (name, shape, strides, first, expected) in [
            ("rows", &[3, 4][..], &[4, 1][..], 0, &[0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11.][..]),
            ("transposed", &[2, 3], &[1, 4], 1, &[1., 5., 9., 2., 6., 10.]),
            ("every second", &[2, 2], &[4, 2], 5, &[5., 7., 9., 11.]),
            ("last", &[1, 1], &[100, 7], 11, &[11.]),
            ("scalar", &[], &[], 3, &[3.]),
            ("empty", &[0, 4], &[4, 1], 0, &[]),
        ] {
            files.insert(name, tensor(shape, strides, first)).unwrap();
            assert_eq!(files.read_f32(name, &files.tensors[name]).unwrap(), expected, "{name}");
        }
        // Elements behind the end, and more elements than the file has.
        for (shape, strides, first) in [
            (&[3, 4][..], &[4, 1][..], 1),
            (&[2], &[11], 1),
            (&[13], &[0], 0),
            (&[1], &[1], u64::MAX),
            (&[usize::MAX, 2], &[1, 1], 0),
            (&[2, 2], &[usize::MAX, 1], 0),
        ] {
            let error = files.insert("outside", tensor(shape, strides, first)).unwrap_err().to_string();
            assert!(error.contains("outside: expected elements within its 48 bytes"), "{error}");
        }
        assert!(files.insert("scalar", tensor(&[], &[], 0)).unwrap_err().to_string().contains("found two"));
    }

    #[test]
    fn damage_is_found_by_the_checksum() {
        let storage = storage(&[0; 8]);
        storage.unchecked_crc32.set(Some(1));
        let mut files = TensorFiles { storages: vec![storage], ..TensorFiles::default() };
        files.insert("w", tensor(&[2], &[1], 0)).unwrap();
        let error = files.read_f32("w", &files.tensors["w"]).unwrap_err().to_string();
        assert!(error.contains("w: expected the checksum 00000001, found "), "{error}");
    }

    #[test]
    fn short_numbers_are_converted_exactly_in_both_directions() {
        for dtype in [Dtype::F16, Dtype::BF16] {
            let finite = |bits: &u16| match dtype {
                Dtype::F16 => f16::from_bits(*bits).is_finite(),
                _ => bf16::from_bits(*bits).is_finite(),
            };
            let bytes: Vec<u8> = (0..=u16::MAX).filter(finite).flat_map(u16::to_le_bytes).collect();
            assert_eq!(from_f32(dtype, &to_f32(dtype, &bytes).unwrap()).unwrap(), bytes);
        }
        let doubles = |values: &[f64]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>();
        let exact = doubles(&[-0.0, 0.5, f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX)]);
        assert_eq!(from_f32(Dtype::F64, &to_f32(Dtype::F64, &exact).unwrap()).unwrap(), exact);
        assert_eq!(to_f32(Dtype::F64, &doubles(&[0.1])), None);
    }

    #[test]
    fn values_that_are_not_finite_and_integers_are_rejected_by_name() {
        let values = [1f32, f32::NAN].map(f32::to_le_bytes).concat();
        let mut files = TensorFiles { storages: vec![storage(&values)], ..TensorFiles::default() };
        files.insert("nan", tensor(&[2], &[1], 0)).unwrap();
        files.insert("count", StoredTensor { dtype: Dtype::I64, ..tensor(&[], &[], 0) }).unwrap();
        for (name, message) in [
            ("nan", "weights: nan: expected finite values, found NaN at 1"),
            ("count", "weights: count: expected F32, F16, BF16 or F64, found I64"),
        ] {
            assert_eq!(files.read_f32(name, &files.tensors[name]).unwrap_err().to_string(), message);
        }
    }
}
