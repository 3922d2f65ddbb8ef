//! Encoders for sound that is still arriving: rows go in piece by piece, and the state is a plain
//! value.
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// An encoder that looks back only, with the state of each utterance in the caller's hands.
///
/// Pieces of several utterances are encoded together. However an utterance is cut, and whoever else
/// is in the batch, all of its rows together have the bits that
/// [`Encoder::forward`](super::Encoder::forward) gives for the whole.
pub trait EncoderStream: Send + Sync {
    /// Width D of the input rows.
    fn input(&self) -> usize;

    /// Width W of the output rows.
    fn width(&self) -> usize;

    /// The state of an utterance that has not begun.
    fn start(&self) -> EncoderState;

    /// Whether a state can be one of this encoder's.
    ///
    /// # Errors
    /// [`Error::Shape`] that names the first part that is missing, left over, of another size or
    /// not finite.
    fn check(&self, state: &EncoderState) -> Result<()>;

    /// Encodes the next rows of each utterance; rows `[n, W]` of each come back. The state becomes
    /// that after its last row, or, after the end of an utterance, that of one that has not begun.
    ///
    /// # Errors
    /// Those of [`EncoderStream::check`]; [`Error::Shape`] for rows that are no multiple of D or
    /// not finite. No state has changed then.
    fn step(&self, pieces: &mut [EncoderChunk]) -> Result<Vec<Vec<f32>>>;
}

/// The next rows of an utterance.
#[derive(Debug)]
pub struct EncoderChunk<'a> {
    /// How far it came.
    pub state: &'a mut EncoderState,
    /// `[n, D]`, n may be 0.
    pub rows: &'a [f32],
    /// Whether it ends with them.
    pub last: bool,
}

/// What an encoder remembers of an utterance: numbers by name, of a size that does not depend on
/// how long the utterance is.
///
/// States belong to their utterances, not to a batch: they can be cloned, compared, kept, and step
/// in any batch again.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EncoderState {
    /// Values by name.
    pub values: BTreeMap<String, Vec<f32>>,
}

/// What [`EncoderStream::step`] asks of its pieces.
///
/// # Errors
/// As there.
pub(super) fn check(stream: &impl EncoderStream, pieces: &[EncoderChunk]) -> Result<()> {
    let width = stream.input();
    for piece in pieces {
        stream.check(piece.state)?;
        if !piece.rows.len().is_multiple_of(width) {
            let expected = format!("rows of {width} values");
            return Err(Error::shape("rows", expected, format!("{} values", piece.rows.len())));
        }
        if let Some(value) = piece.rows.iter().find(|value| !value.is_finite()) {
            return Err(Error::shape("rows", "finite values", value.to_string()));
        }
    }
    Ok(())
}

impl EncoderState {
    /// Zeros, as many as the first of the sizes of each part.
    pub(super) fn empty(sizes: &BTreeMap<String, Vec<usize>>) -> Self {
        let empty = |(name, sizes): (&String, &Vec<usize>)| (name.clone(), vec![0.0; sizes[0]]);
        EncoderState { values: sizes.iter().map(empty).collect() }
    }

    /// Checks that there are values of exactly these names, as many as `sizes` allows, all of them
    /// finite.
    ///
    /// # Errors
    /// [`Error::Shape`] for the first that is not so.
    pub fn check(&self, sizes: &BTreeMap<String, Vec<usize>>) -> Result<()> {
        for (name, sizes) in sizes {
            let expected = || format!("{sizes:?} values");
            let Some(values) = self.values.get(name) else {
                return Err(Error::shape(format!("state {name}"), expected(), "none"));
            };
            if !sizes.contains(&values.len()) {
                return Err(Error::shape(format!("state {name}"), expected(), values.len().to_string()));
            }
            if let Some(value) = values.iter().find(|value| !value.is_finite()) {
                return Err(Error::shape(format!("state {name}"), "finite values", value.to_string()));
            }
        }
        match self.values.keys().find(|name| !sizes.contains_key(*name)) {
            Some(name) => Err(Error::shape("state", "the encoder's own values only", name.clone())),
            None => Ok(()),
        }
    }
}
