//! Padded frames and labels of a batch for recognition lattices.
//!
//! They are checked views of the caller's slices; every call of a session takes them.
use kernels::Real;

use crate::{
    Error, Result,
    error::{expect_len, first_not_finite},
};

/// Frames *B.. x T x F* of a batch, with any number of leading axes, and their lengths.
///
/// Padding is not checked, and has no effect on results.
#[derive(Debug, Clone)]
pub struct Frames<'a, F> {
    values: &'a [F],
    /// The leading axes.
    batch: Vec<usize>,
    /// T, the padded number of frames.
    padded: usize,
    /// F, the number of features of a frame.
    frame_size: usize,
    /// N, the number of frames of each utterance.
    lengths: Vec<usize>,
}

impl<'a, F: Real> Frames<'a, F> {
    /// Frames of a shape *B.. x T x F* with lengths `num_frames` *B..*.
    ///
    /// Lengths above T count as T.
    ///
    /// # Errors
    /// A shape without T and F or with F = 0; lengths that do not fit the shape; a value inside an
    /// utterance that is NaN or infinite.
    pub fn new(values: &'a [F], shape: &[usize], num_frames: &[usize]) -> Result<Self> {
        let [batch @ .., padded, frame_size] = shape else {
            return Err(Error::shape("frames", "axes B.., T and F", format!("{} axes", shape.len())));
        };
        let utterances = product("frames", batch)?;
        if *frame_size == 0 {
            return Err(Error::shape("frames", "at least 1 feature", format!("{shape:?}")));
        }
        expect_len("frames", product("frames", shape)?, values.len())?;
        expect_count("num_frames", utterances, num_frames.len())?;
        let lengths = num_frames.iter().map(|&n| n.min(*padded)).collect();
        let frames =
            Self { values, batch: batch.to_vec(), padded: *padded, frame_size: *frame_size, lengths };
        for utterance in 0..utterances {
            for (frame, row) in frames.utterance(utterance).chunks_exact(*frame_size).enumerate() {
                if let Some(feature) = first_not_finite(row) {
                    return Err(Error::Frame { utterance, frame, value: row[feature].to_f64() });
                }
            }
        }
        Ok(frames)
    }

    /// Number of utterances: the product of the leading axes.
    pub fn utterances(&self) -> usize {
        self.lengths.len()
    }

    /// The leading axes.
    pub fn batch(&self) -> &[usize] {
        &self.batch
    }

    /// T, the padded number of frames.
    pub fn padded(&self) -> usize {
        self.padded
    }

    /// F, the number of features of a frame.
    pub fn frame_size(&self) -> usize {
        self.frame_size
    }

    /// N, the number of frames of an utterance, at most T.
    ///
    /// # Panics
    /// If the utterance does not exist.
    pub fn length(&self, utterance: usize) -> usize {
        self.lengths[utterance]
    }

    /// All frames of a range of utterances, including padding.
    pub(crate) fn rows(&self, utterances: std::ops::Range<usize>) -> &'a [F] {
        let utterance_size = self.padded * self.frame_size;
        &self.values[utterances.start * utterance_size..utterances.end * utterance_size]
    }

    /// The frames of an utterance without padding, *N x F*.
    ///
    /// # Panics
    /// If the utterance does not exist.
    pub fn utterance(&self, utterance: usize) -> &'a [F] {
        &self.values[utterance * self.padded * self.frame_size..][..self.lengths[utterance] * self.frame_size]
    }
}

/// Labels *B.. x U* of a batch, 1 to V, and their lengths.
///
/// Padding is never read.
#[derive(Debug, Clone)]
pub struct Labels<'a> {
    ids: &'a [u32],
    /// The leading axes.
    batch: Vec<usize>,
    /// U, the padded number of labels.
    padded: usize,
    /// Number of labels of each utterance.
    lengths: Vec<usize>,
}

impl<'a> Labels<'a> {
    /// Labels of a shape *B.. x U* with lengths `num_labels` *B..*.
    ///
    /// A length above U is accepted: such an utterance has no path.
    ///
    /// # Errors
    /// A shape without U, or lengths that do not fit the shape.
    pub fn new(ids: &'a [u32], shape: &[usize], num_labels: &[usize]) -> Result<Self> {
        let [batch @ .., padded] = shape else {
            return Err(Error::shape("labels", "axes B.. and U", "0 axes"));
        };
        let utterances = product("labels", batch)?;
        expect_len("labels", product("labels", shape)?, ids.len())?;
        expect_count("num_labels", utterances, num_labels.len())?;
        Ok(Self { ids, batch: batch.to_vec(), padded: *padded, lengths: num_labels.to_vec() })
    }

    /// Number of utterances: the product of the leading axes.
    pub fn utterances(&self) -> usize {
        self.lengths.len()
    }

    /// The leading axes.
    pub fn batch(&self) -> &[usize] {
        &self.batch
    }

    /// The labels of an utterance without padding; none if the length exceeds U.
    ///
    /// # Panics
    /// If the utterance does not exist.
    pub fn utterance(&self, utterance: usize) -> Option<&'a [u32]> {
        let length = self.lengths[utterance];
        (length <= self.padded).then(|| &self.ids[utterance * self.padded..][..length])
    }

    /// Checks the label ids, and the leading axes against the frames.
    pub(crate) fn check<F: Real>(&self, frames: &Frames<F>, vocabulary: usize) -> Result<()> {
        if self.batch != frames.batch {
            let expected = format!("the leading axes {:?} of the frames", frames.batch);
            return Err(Error::shape("labels", expected, format!("{:?}", self.batch)));
        }
        for utterance in 0..self.utterances() {
            let labels = self.utterance(utterance).unwrap_or_default();
            if let Some(position) = labels.iter().position(|&y| y == 0 || y as usize > vocabulary) {
                let id = labels[position].into();
                return Err(Error::Label { utterance, position, vocabulary, found: id });
            }
        }
        Ok(())
    }
}

/// Returns the product of axes, if it does not overflow.
fn product(argument: &str, axes: &[usize]) -> Result<usize> {
    let product = axes.iter().try_fold(1usize, |product, &axis| product.checked_mul(axis));
    product.ok_or_else(|| Error::shape(argument, "axes whose product fits into usize", format!("{axes:?}")))
}

/// Fails unless there is one length for each utterance.
fn expect_count(argument: &str, expected: usize, found: usize) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(Error::shape(argument, format!("{expected} lengths, one per utterance"), found))
}
