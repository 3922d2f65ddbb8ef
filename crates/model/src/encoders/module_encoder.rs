//! `ModuleEncoder`: a custom encoder from any candle module over `[B, T, D]`.
use candle_core::Tensor;
use candle_nn::ModuleT;

use super::Encoder;
use crate::{Error, Result};
use layers::training_pass::TrainingPass;

/// A candle module as an encoder.
///
/// The module maps `[B, T, D]` to `[B, T', W]`, and may shorten time: an utterance of `l` rows has
/// `⌈l / factor⌉` encoder rows, at most T'. B: utterances; T, T': rows of the longest one; D, W:
/// widths of rows. Every [`candle_nn::Module`] is a [`ModuleT`] as well.
/// Dropout in a module uses candle's own generator, so that runs with it are not reproducible.
#[derive(Debug, Clone)]
pub struct ModuleEncoder<M> {
    module: M,
    width: usize,
    factor: usize,
}

impl<M: ModuleT + Send + Sync> ModuleEncoder<M> {
    /// Creates an encoder with rows of `width` values.
    ///
    /// Each is computed from `factor` input rows.
    ///
    /// # Errors
    /// [`Error::Shape`] if the factor is 0.
    pub fn new(module: M, width: usize, factor: usize) -> Result<Self> {
        if factor == 0 {
            return Err(Error::shape("factor", "at least 1", "0"));
        }
        Ok(ModuleEncoder { module, width, factor })
    }
}

impl<M: ModuleT + Send + Sync> Encoder for ModuleEncoder<M> {
    fn width(&self) -> usize {
        self.width
    }

    fn forward(
        &self,
        x: &Tensor,
        lengths: &[usize],
        pass: Option<&mut TrainingPass>,
    ) -> Result<(Tensor, Vec<usize>)> {
        let out = self.module.forward_t(x, pass.is_some())?;
        let batch = lengths.len();
        let expected = || format!("[{batch}, T', {}] from the module", self.width);
        let Ok((found_batch, frames, width)) = out.dims3() else {
            return Err(Error::shape("encoder", expected(), format!("{:?}", out.dims())));
        };
        if (found_batch, width) != (batch, self.width) {
            return Err(Error::shape("encoder", expected(), format!("{:?}", out.dims())));
        }
        let lengths: Vec<usize> = lengths.iter().map(|length| length.div_ceil(self.factor)).collect();
        if let Some(longest) = lengths.iter().max().filter(|&&longest| longest > frames) {
            return Err(Error::shape(
                "encoder",
                format!("at least {longest} rows from the module"),
                frames.to_string(),
            ));
        }
        Ok((out, lengths))
    }
}
