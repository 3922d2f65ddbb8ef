//! `Ragged`: batches of encoder rows without padding, and their conversion from tensors.
//!
//! The rows of the batch's utterances follow each other: `[Σ T_b, D]` instead of `[B, T, D]`. B:
//! utterances; T_b: rows of utterance b; T: rows of the longest one; D: width of a row.
use std::ops::Range;
use std::sync::Arc;

use candle_core::{Shape, Tensor};
use kernels::{Real, items_mut, par_for};

use crate::operation::{SliceOperation, apply1};
use crate::{Error, Result};

/// The rows of each utterance in a ragged batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Ragged {
    /// First row of each utterance; the last entry is the number of all rows.
    starts: Vec<usize>,
}

/// Some rows of an utterance in a buffer.
#[derive(Debug)]
pub(crate) struct RaggedBlock<'a, F> {
    pub utterance: usize,
    /// The index of the first row in the utterance.
    pub first_row: usize,
    pub rows: &'a mut [F],
}

impl Ragged {
    /// Creates a batch of utterances with these numbers of rows.
    pub fn new(lengths: &[usize]) -> Arc<Self> {
        let mut starts = vec![0];
        starts.extend(lengths.iter().scan(0, |end, length| {
            *end += length;
            Some(*end)
        }));
        Arc::new(Ragged { starts })
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Returns the number of utterances.
    pub fn utterances(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the rows of an utterance.
    pub fn range(&self, utterance: usize) -> Range<usize> {
        self.starts[utterance]..self.starts[utterance + 1]
    }

    /// Returns the number of rows of each utterance.
    pub fn lengths(&self) -> Vec<usize> {
        self.starts.windows(2).map(|bounds| bounds[1] - bounds[0]).collect()
    }

    /// Returns the values of an utterance's rows of `width`.
    pub fn utterance<'a, F>(&self, rows: &'a [F], width: usize, utterance: usize) -> &'a [F] {
        let Range { start, end } = self.range(utterance);
        &rows[start * width..end * width]
    }

    /// Divides rows of `width` values into those of each utterance.
    pub fn split_mut<'a, F>(&self, mut rows: &'a mut [F], width: usize) -> Vec<&'a mut [F]> {
        let split_off =
            |b| rows.split_off_mut(..self.range(b).len() * width).expect("rows of all utterances");
        (0..self.utterances()).map(split_off).collect()
    }

    /// Divides rows into blocks of at most `max_rows` rows.
    ///
    /// A block belongs to one utterance; rows have `width` values.
    pub(crate) fn blocks<'a, F>(
        &self,
        rows: &'a mut [F],
        width: usize,
        max_rows: usize,
    ) -> Vec<RaggedBlock<'a, F>> {
        let utterances = self.split_mut(rows, width).into_iter().enumerate();
        let divide = |(utterance, rows): (usize, &'a mut [F])| {
            let blocks = rows.chunks_mut((max_rows * width).max(1)).enumerate();
            blocks.map(move |(index, rows)| RaggedBlock { utterance, first_row: index * max_rows, rows })
        };
        utterances.flat_map(divide).collect()
    }

    /// Removes padding: `[B, T, D]` to `[Σ T_b, D]`.
    ///
    /// # Errors
    /// [`Error::Shape`] if the lengths do not match.
    pub fn pack(self: &Arc<Self>, x: &Tensor) -> Result<Tensor> {
        let (batch, frames, width) =
            x.dims3().map_err(|_| Error::shape("x", "three axes [B, T, D]", format!("{:?}", x.dims())))?;
        let lengths = self.lengths();
        if lengths.len() != batch {
            return Err(Error::shape("lengths", format!("{batch} entries"), lengths.len().to_string()));
        }
        if let Some((b, length)) = lengths.iter().enumerate().find(|&(_, &length)| length > frames) {
            let actual = format!("{length} for utterance {b}");
            return Err(Error::shape("lengths", format!("at most {frames} frames"), actual));
        }
        apply1(Pack(PaddedShape { ragged: self.clone(), frames, width }), x)
    }

    /// Pads with zeros: `[Σ T_b, D]` to `[B, T, D]`, T the longest.
    pub fn unpack(self: &Arc<Self>, x: &Tensor) -> Result<Tensor> {
        let (_, width) = x.dims2()?;
        let frames = self.lengths().into_iter().max().unwrap_or(0);
        apply1(Unpack(PaddedShape { ragged: self.clone(), frames, width }), x)
    }
}

/// The padded and the ragged form of a batch.
struct PaddedShape {
    ragged: Arc<Ragged>,
    frames: usize,
    width: usize,
}

impl PaddedShape {
    /// Copies the rows of all utterances, without padding.
    fn pack<F: Real>(&self, x: &[F]) -> Vec<F> {
        let mut out = vec![F::ZERO; self.ragged.rows() * self.width];
        par_for(items_mut(&mut self.ragged.split_mut(&mut out, self.width)), |b, out| {
            out.copy_from_slice(&x[b * self.frames * self.width..][..out.len()]);
        });
        out
    }

    /// Copies the rows of all utterances, with zeros as padding.
    fn unpack<F: Real>(&self, rows: &[F]) -> Vec<F> {
        let utterance_len = self.frames * self.width;
        let mut out = vec![F::ZERO; self.ragged.utterances() * utterance_len];
        par_for(kernels::parts_mut(&mut out, utterance_len.max(1)), |b, out| {
            let rows = self.ragged.utterance(rows, self.width, b);
            out[..rows.len()].copy_from_slice(rows);
        });
        out
    }
}

/// The operation of [`Ragged::pack`].
struct Pack(PaddedShape);
/// The operation of [`Ragged::unpack`].
struct Unpack(PaddedShape);

impl SliceOperation<1> for Pack {
    const NAME: &'static str = "pack";

    fn shape(&self) -> Shape {
        Shape::from((self.0.ragged.rows(), self.0.width))
    }

    fn forward<F: Real>(&self, [x]: [&[F]; 1]) -> Vec<F> {
        self.0.pack(x)
    }

    fn backward<F: Real>(&self, _: [&[F]; 1], _: &[F], d_out: &[F], _: bool) -> [Vec<F>; 1] {
        [self.0.unpack(d_out)]
    }
}

impl SliceOperation<1> for Unpack {
    const NAME: &'static str = "unpack";

    fn shape(&self) -> Shape {
        Shape::from((self.0.ragged.utterances(), self.0.frames, self.0.width))
    }

    fn forward<F: Real>(&self, [x]: [&[F]; 1]) -> Vec<F> {
        self.0.unpack(x)
    }

    fn backward<F: Real>(&self, _: [&[F]; 1], _: &[F], d_out: &[F], _: bool) -> [Vec<F>; 1] {
        [self.0.pack(d_out)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::tests::{check_gradients, test_values, values};

    #[test]
    fn rows_are_packed_and_unpacked_without_reading_padding() {
        let ragged = Ragged::new(&[2, 0, 3]);
        let x = test_values(&[3, 4, 2], 1.1);
        let packed = ragged.pack(&x).unwrap();
        let (all, rows) = (values(&x), values(&packed));
        assert_eq!(rows, [&all[..4], &all[16..22]].concat());
        let unpacked = ragged.unpack(&packed).unwrap();
        assert_eq!(unpacked.dims(), [3, 3, 2]);
        assert_eq!(values(&unpacked)[..6], [&all[..4], &[0.0; 2]].concat());
        check_gradients(|x| ragged.unpack(&ragged.pack(&x[0]).unwrap()).unwrap(), std::slice::from_ref(&x));
        for lengths in [&[2, 0][..], &[2, 0, 5]] {
            assert!(matches!(Ragged::new(lengths).pack(&x), Err(Error::Shape { .. })));
        }
    }
}
