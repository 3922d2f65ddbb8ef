//! Packs the encoder of a model for inference.
use std::sync::Arc;

use kernels::packed::NumberFormat;

use crate::adapter::read_merged;
use crate::encoders::{EncoderStream, InferenceEncoder};
use crate::{Error, Model, Result};

impl Model {
    /// Packs the current weights of the encoder for inference without candle.
    ///
    /// Weights include the updates of an adapter. None if the kind of encoder has no such
    /// implementation, or the model has a custom encoder.
    ///
    /// # Errors
    /// Errors of candle; [`Error::Shape`] for weights that the encoder does not support.
    pub fn packed_encoder(&self, format: NumberFormat) -> Result<Option<Arc<dyn InferenceEncoder>>> {
        let config = self.config();
        let mut is_missing = false;
        let encoder = config.encoder.pack(config.input.width(), format, &mut |name| {
            let values = read_merged(self.parameters(), config.adapter.as_ref(), name)?;
            is_missing |= values.is_none();
            values.ok_or_else(|| Error::shape(name, "a parameter of the encoder", "none"))
        });
        // A custom encoder has other parameters than the one of the configuration.
        if is_missing { Ok(None) } else { encoder }
    }

    /// Returns a streaming encoder with a copy of the current weights.
    ///
    /// None if the encoder needs whole utterances.
    ///
    /// # Errors
    /// As [`Self::packed_encoder`].
    pub fn stream_encoder(&self) -> Result<Option<Arc<dyn EncoderStream>>> {
        match self.packed_encoder(NumberFormat::F32)? {
            Some(encoder) => Ok(encoder.stream()),
            None => self.encoder().stream(),
        }
    }
}
