//! The encoder: LSTM layers over a ragged batch of rows.
use candle_core::{Tensor, Var};

use crate::dropout::Masks;
use crate::init::Init;
use crate::recipe::EncoderConfig;
use crate::{Parameters, Result, lstm};

/// LSTM layers, one or two directions each, with dropout after each and an optional time reduction between two.
#[derive(Debug, Clone)]
pub struct Encoder {
    config: EncoderConfig,
    /// Packed weights of each layer's directions.
    layers: Vec<Vec<Var>>,
}

impl Encoder {
    /// Makes the parameters `encoder.N.forth` and `encoder.N.back` for rows of width `input`.
    pub(crate) fn new(config: &EncoderConfig, input: usize, parameters: &mut Parameters) -> Result<Self> {
        let hidden = config.hidden;
        let directions: &[&str] = if config.bidirectional { &["forth", "back"] } else { &["forth"] };
        let mut width = input;
        let mut layers = Vec::new();
        for layer in 0..config.layers {
            if let Some(reduction) = config.time_reduction.as_ref().filter(|r| r.after_layer == layer) {
                width *= reduction.factor;
            }
            let shape = [width + hidden + 1, 4 * hidden];
            let weights = directions.iter().map(|direction| {
                parameters.create(&format!("encoder.{layer}.{direction}"), &shape, Init::Lstm)
            });
            layers.push(weights.collect::<Result<_>>()?);
            width = hidden * directions.len();
        }
        Ok(Encoder { config: config.clone(), layers })
    }

    /// Width of the output rows.
    pub fn width(&self) -> usize {
        self.config.hidden * self.layers[0].len()
    }

    /// Encodes a padded batch. With masks, dropout is on.
    ///
    /// # Shapes
    /// `x [B, T, D]`; `lengths` has B entries of at most T. Returns `[B, T', W]` and the new lengths, T' = ⌈T / factor⌉ with a time
    /// reduction and T without. Rows beyond an utterance's end are 0.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] if the input does not fit.
    pub fn forward(
        &self,
        x: &Tensor,
        lengths: &[usize],
        mut masks: Option<&mut Masks>,
    ) -> Result<(Tensor, Vec<usize>)> {
        let (mut x, mut lengths) = (x.clone(), lengths.to_vec());
        for (layer, weights) in self.layers.iter().enumerate() {
            if let Some(reduction) = self.config.time_reduction.as_ref().filter(|r| r.after_layer == layer) {
                x = reduce(&x, reduction.factor)?;
                lengths.iter_mut().for_each(|length| *length = length.div_ceil(reduction.factor));
            }
            let weights: Vec<&Tensor> = weights.iter().map(Var::as_tensor).collect();
            x = lstm(&x, &lengths, &weights)?;
            if let Some(masks) = masks.as_deref_mut() {
                x = masks.apply(&x, self.config.dropout)?;
            }
        }
        Ok((x, lengths))
    }
}

/// Concatenates `factor` neighbouring rows: `[B, T, D]` to `[B, ⌈T/factor⌉, factor·D]`, zeros after the end.
fn reduce(x: &Tensor, factor: usize) -> Result<Tensor> {
    let (batch, frames, width) = x.dims3()?;
    let rows = frames.div_ceil(factor);
    let x = x.pad_with_zeros(1, 0, rows * factor - frames)?;
    Ok(x.reshape((batch, rows, factor * width))?)
}
