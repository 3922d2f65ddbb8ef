//! Candle tensors of a batch for recognition lattices, checked for consistency.
//!
//! Axes: B.. leading axes, T padded frames, F features, U padded labels. Labels are 1 to V; N and M
//! are the numbers of frames and labels of an utterance.
use candle_core::{DType, Tensor};

use crate::{Error, Result};

/// Frames and labels of a padded batch with any leading axes.
///
/// `frames` are `f32` or `f64`, the others integers of any dtype, all on the CPU. Padding is never
/// read.
#[derive(Debug, Clone, Copy)]
pub struct BatchTensors<'a> {
    /// Frames, *B.. x T x F*.
    pub frames: &'a Tensor,
    /// N of each utterance, *B..*; values above T count as T.
    pub num_frames: &'a Tensor,
    /// Labels, *B.. x U*, 1 to V.
    pub labels: &'a Tensor,
    /// M of each utterance, *B..*; no path has a string of more than U labels.
    pub num_labels: &'a Tensor,
}

/// Contiguous frames of utterances, and their lengths.
#[derive(Debug, Clone)]
pub(super) struct FrameBatch {
    /// *B.. x T x F*
    pub values: Tensor,
    /// N of each utterance.
    pub lengths: Vec<usize>,
}

/// Labels of utterances, and their lengths.
#[derive(Debug, Clone)]
pub(super) struct LabelBatch {
    /// *B.. x U*
    pub ids: Vec<u32>,
    pub shape: Vec<usize>,
    /// M of each utterance.
    pub lengths: Vec<usize>,
}

impl FrameBatch {
    pub(super) fn new(frames: &Tensor, num_frames: &Tensor) -> Result<Self> {
        expect_cpu("frames", frames)?;
        let [batch @ .., _, _] = frames.dims() else {
            return Err(Error::shape("frames", "axes B.., T and F", format!("{:?}", frames.dims())));
        };
        Ok(Self { values: frames.contiguous()?, lengths: counts("num_frames", num_frames, batch)? })
    }

    /// Sizes of the leading axes, *B..*.
    pub(super) fn batch(&self) -> &[usize] {
        let dims = self.values.dims();
        &dims[..dims.len() - 2]
    }

    pub(super) fn dtype(&self) -> DType {
        self.values.dtype()
    }
}

impl LabelBatch {
    /// Labels 1 to V of utterances with the leading axes of their frames.
    pub(super) fn new(
        labels: &Tensor,
        num_labels: &Tensor,
        batch: &[usize],
        vocabulary: usize,
    ) -> Result<Self> {
        let lengths = counts("num_labels", num_labels, batch)?;
        let dims = || format!("{:?}", labels.dims());
        let Some((&padded, leading)) = labels.dims().split_last() else {
            return Err(Error::shape("labels", "axes B.. and U", dims()));
        };
        if leading != batch {
            return Err(Error::shape("labels", format!("the leading axes {batch:?} of the frames"), dims()));
        }
        let values = integers("labels", labels)?;
        let mut ids = vec![0; values.len()];
        for (utterance, &length) in lengths.iter().enumerate().filter(|(_, length)| **length <= padded) {
            for position in 0..length {
                let index = utterance * padded + position;
                let value = values[index];
                let id = u32::try_from(value).ok().filter(|&id| id > 0 && id as usize <= vocabulary);
                ids[index] = id.ok_or(Error::Label { utterance, position, vocabulary, found: value })?;
            }
        }
        Ok(Self { ids, shape: labels.dims().to_vec(), lengths })
    }
}

/// Reads one count per utterance.
fn counts(argument: &str, tensor: &Tensor, batch: &[usize]) -> Result<Vec<usize>> {
    if tensor.dims() != batch {
        let expected = format!("the leading axes {batch:?} of the frames");
        return Err(Error::shape(argument, expected, format!("{:?}", tensor.dims())));
    }
    let to_count = |count: i64| {
        usize::try_from(count).map_err(|_| Error::shape(argument, "counts of at least 0", count))
    };
    integers(argument, tensor)?.into_iter().map(to_count).collect()
}

/// Reads integers of any dtype.
fn integers(argument: &str, tensor: &Tensor) -> Result<Vec<i64>> {
    expect_cpu(argument, tensor)?;
    if tensor.dtype().is_float() {
        return Err(Error::shape(argument, "integers", tensor.dtype().as_str()));
    }
    Ok(tensor.to_dtype(DType::I64)?.flatten_all()?.to_vec1()?)
}

/// Fails for a tensor that is not on the CPU.
pub(super) fn expect_cpu(argument: &str, tensor: &Tensor) -> Result<()> {
    if tensor.device().is_cpu() {
        return Ok(());
    }
    Err(Error::shape(
        argument,
        "a tensor on the CPU",
        format!("a tensor on {:?}", tensor.device().location()),
    ))
}
