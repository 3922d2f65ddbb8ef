//! What a call is about: frames and labels of utterances, padded or not.
use kernels::Real;

use crate::{
    Error, Result,
    error::{expect_len, first_not_finite},
};

/// Frames *B.. x T x F* of a batch with any number of leading axes, and how many of them count. Padding is never read.
#[derive(Debug, Clone)]
pub struct Frames<'a, F> {
    values: &'a [F],
    batch: Vec<usize>,
    padded: usize,
    size: usize,
    lengths: Vec<usize>,
}

impl<'a, F: Real> Frames<'a, F> {
    /// Frames of a shape *B.. x T x F*; `num_frames` *B..*, more than T count as T.
    ///
    /// # Errors
    /// A shape without T and F or with F = 0, lengths that do not fit it, a value that is NaN or infinite inside an utterance's
    /// length.
    pub fn new(values: &'a [F], shape: &[usize], num_frames: &[usize]) -> Result<Self> {
        let [batch @ .., padded, size] = shape else {
            return Err(Error::shape("frames", "axes B.., T and F", format!("{} axes", shape.len())));
        };
        let utterances = product("frames", batch)?;
        if *size == 0 {
            return Err(Error::shape("frames", "at least 1 feature", format!("{shape:?}")));
        }
        expect_len("frames", product("frames", shape)?, values.len())?;
        expect_count("num_frames", utterances, num_frames.len())?;
        let lengths = num_frames.iter().map(|&n| n.min(*padded)).collect();
        let frames = Self { values, batch: batch.to_vec(), padded: *padded, size: *size, lengths };
        for utterance in 0..utterances {
            for (frame, row) in frames.of(utterance).chunks_exact(*size).enumerate() {
                if let Some(at) = first_not_finite(row) {
                    return Err(Error::Frame { utterance, frame, value: row[at].to_f64() });
                }
            }
        }
        Ok(frames)
    }

    /// Number of utterances, all leading axes together.
    pub fn utterances(&self) -> usize {
        self.lengths.len()
    }

    /// The leading axes.
    pub fn batch(&self) -> &[usize] {
        &self.batch
    }

    /// T
    pub fn padded(&self) -> usize {
        self.padded
    }

    /// F
    pub fn size(&self) -> usize {
        self.size
    }

    /// N of an utterance, at most T.
    ///
    /// # Panics
    /// If there is no such utterance.
    pub fn length(&self, utterance: usize) -> usize {
        self.lengths[utterance]
    }

    /// All frames of some utterances, padding and all.
    pub(crate) fn rows(&self, utterances: std::ops::Range<usize>) -> &'a [F] {
        let each = self.padded * self.size;
        &self.values[utterances.start * each..utterances.end * each]
    }

    /// The frames of an utterance that count, *N x F*.
    ///
    /// # Panics
    /// If there is no such utterance.
    pub fn of(&self, utterance: usize) -> &'a [F] {
        &self.values[utterance * self.padded * self.size..][..self.lengths[utterance] * self.size]
    }
}

/// Labels *B.. x U* of a batch, 1 to V, and how many of them count. Padding is never read.
#[derive(Debug, Clone)]
pub struct Labels<'a> {
    ids: &'a [u32],
    batch: Vec<usize>,
    padded: usize,
    lengths: Vec<usize>,
}

impl<'a> Labels<'a> {
    /// Labels of a shape *B.. x U*; `num_labels` *B..*, which may say more than U: no path has such a string.
    ///
    /// # Errors
    /// A shape without U, or lengths that do not fit it.
    pub fn new(ids: &'a [u32], shape: &[usize], num_labels: &[usize]) -> Result<Self> {
        let [batch @ .., padded] = shape else {
            return Err(Error::shape("labels", "axes B.. and U", "0 axes"));
        };
        let utterances = product("labels", batch)?;
        expect_len("labels", product("labels", shape)?, ids.len())?;
        expect_count("num_labels", utterances, num_labels.len())?;
        Ok(Self { ids, batch: batch.to_vec(), padded: *padded, lengths: num_labels.to_vec() })
    }

    /// Number of utterances, all leading axes together.
    pub fn utterances(&self) -> usize {
        self.lengths.len()
    }

    /// The leading axes.
    pub fn batch(&self) -> &[usize] {
        &self.batch
    }

    /// The labels of an utterance that count; none where there are more than the array has.
    ///
    /// # Panics
    /// If there is no such utterance.
    pub fn of(&self, utterance: usize) -> Option<&'a [u32]> {
        let length = self.lengths[utterance];
        (length <= self.padded).then(|| &self.ids[utterance * self.padded..][..length])
    }

    /// Fails unless all labels are some and the leading axes are those of the frames.
    pub(crate) fn check<F: Real>(&self, frames: &Frames<F>, vocabulary: usize) -> Result<()> {
        if self.batch != frames.batch {
            let expected = format!("the leading axes {:?} of the frames", frames.batch);
            return Err(Error::shape("labels", expected, format!("{:?}", self.batch)));
        }
        for utterance in 0..self.utterances() {
            let labels = self.of(utterance).unwrap_or_default();
            if let Some(position) = labels.iter().position(|&y| y == 0 || y as usize > vocabulary) {
                let found = labels[position].into();
                return Err(Error::Label { utterance, position, vocabulary, found });
            }
        }
        Ok(())
    }
}

fn product(argument: &str, axes: &[usize]) -> Result<usize> {
    let all = axes.iter().try_fold(1usize, |all, &axis| all.checked_mul(axis));
    all.ok_or_else(|| Error::shape(argument, "axes whose product is a number of values", format!("{axes:?}")))
}

fn expect_count(argument: &str, expected: usize, found: usize) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(Error::shape(argument, format!("one for each of {expected} utterances"), found))
}
