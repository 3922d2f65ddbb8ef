//! `EncoderStream`: the trait of streaming encoders, and the state of an utterance.
//!
//! Rows arrive in chunks of any size; the state between chunks is a plain value. The LSTM and the
//! chunked Conformer implement the trait, and the streaming recognizer calls it.
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// A streaming encoder, which depends on earlier rows only.
///
/// Callers own the state of each utterance, and chunks of several utterances are encoded together.
/// In `f32`, and in 8-bit blocks for LSTM and Conformer, the rows of an utterance have the bits of
/// [`InferenceEncoder::encode`], however it is divided into chunks, and with any other utterances
/// in the batch. Those of LSTM and Conformer in `f32` have the bits of [`Encoder::forward`].
///
/// [`InferenceEncoder::encode`]: super::InferenceEncoder::encode
/// [`Encoder::forward`]: super::Encoder::forward
pub trait EncoderStream: Send + Sync {
    /// Returns the width D of input rows.
    fn input(&self) -> usize;

    /// Returns the width W of encoder rows.
    fn width(&self) -> usize;

    /// Returns the state at the start of an utterance.
    fn start(&self) -> EncoderState;

    /// Checks that a state is valid for this encoder.
    ///
    /// # Errors
    /// [`Error::Shape`] for the first value that is missing, unknown, of another size or not
    /// finite.
    fn check(&self, state: &EncoderState) -> Result<()>;

    /// Encodes the next rows of each utterance; returns rows `[n, W]` for each.
    ///
    /// n may be 0, if no row is complete yet. Each state is updated; after the end of an utterance,
    /// it is that of a new utterance.
    ///
    /// # Errors
    /// Those of [`EncoderStream::check`]; [`Error::Shape`] for rows that are not finite or not a
    /// multiple of D. No state has changed then.
    fn step(&self, chunks: &mut [EncoderChunk]) -> Result<Vec<Vec<f32>>>;
}

/// The next input rows of an utterance.
#[derive(Debug)]
pub struct EncoderChunk<'a> {
    /// The state of the utterance.
    pub state: &'a mut EncoderState,
    /// Rows `[n, D]`; n may be 0.
    pub rows: &'a [f32],
    /// True if the utterance ends with these rows.
    pub is_last: bool,
}

/// The state of an utterance in a streaming encoder: values by name.
///
/// Its size does not depend on the length of the utterance. States can be cloned, compared and
/// stored, and continue in any batch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EncoderState {
    /// Values by name.
    pub values: BTreeMap<String, Vec<f32>>,
}

/// The allowed lengths of each part of a state, by name.
///
/// The name of a part is, for example, `layers.0.h`; a length is a number of values. A part with
/// waiting or earlier rows has several allowed lengths; the first is its length at the start of an
/// utterance.
pub(super) type PartSizes = BTreeMap<String, Vec<usize>>;

/// Checks the arguments of [`EncoderStream::step`].
///
/// # Errors
/// Those of [`EncoderStream::step`].
pub(super) fn check_chunks(stream: &impl EncoderStream, chunks: &[EncoderChunk]) -> Result<()> {
    let input_width = stream.input();
    for chunk in chunks {
        stream.check(chunk.state)?;
        if !chunk.rows.len().is_multiple_of(input_width) {
            let expected = format!("rows of {input_width} values");
            return Err(Error::shape("rows", expected, format!("{} values", chunk.rows.len())));
        }
        if let Some(value) = chunk.rows.iter().find(|value| !value.is_finite()) {
            return Err(Error::shape("rows", "finite values", value.to_string()));
        }
    }
    Ok(())
}

/// Divides rows of `width` values into those of each utterance.
pub(super) fn split_rows(rows: &[f32], lengths: &[usize], width: usize) -> Vec<Vec<f32>> {
    let mut remaining = rows;
    let mut split_utterance = |length: &usize| {
        let (utterance, later) = remaining.split_at(length * width);
        remaining = later;
        utterance.to_vec()
    };
    lengths.iter().map(&mut split_utterance).collect()
}

impl EncoderState {
    /// Creates the state at the start of an utterance: zeros.
    pub(super) fn initial(part_sizes: &PartSizes) -> Self {
        let zeros = |(name, sizes): (&String, &Vec<usize>)| (name.clone(), vec![0.0; sizes[0]]);
        EncoderState { values: part_sizes.iter().map(zeros).collect() }
    }

    /// Checks names, sizes and finiteness of the values.
    ///
    /// `part_sizes` has the allowed lengths of each part, by its name.
    ///
    /// # Errors
    /// [`Error::Shape`] for the first part that is missing, unknown or invalid.
    pub fn check(&self, part_sizes: &BTreeMap<String, Vec<usize>>) -> Result<()> {
        for (name, sizes) in part_sizes {
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
        match self.values.keys().find(|name| !part_sizes.contains_key(*name)) {
            Some(name) => Err(Error::shape("state", "the encoder's own values only", name.clone())),
            None => Ok(()),
        }
    }
}
