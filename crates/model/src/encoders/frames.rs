//! Any candle module over `[B, T, D]` as an encoder.
use candle_core::Tensor;
use candle_nn::ModuleT;

use super::Encoder;
use crate::training_pass::TrainingPass;
use crate::{Error, Result};

/// A candle module as an encoder.
///
/// The module maps `[B, T, D]` to `[B, T', W]`, and may shorten time: an utterance of `l` rows
/// keeps `⌈l / factor⌉` of them, at most T'. Whatever is a [`candle_nn::Module`] is a [`ModuleT`]
/// as well; dropout in it follows candle's own generator, so that runs with it do not repeat bit
/// for bit.
#[derive(Debug, Clone)]
pub struct ModuleEncoder<M> {
    module: M,
    width: usize,
    factor: usize,
}

impl<M: ModuleT + Send + Sync> ModuleEncoder<M> {
    /// Output rows have `width` values, and `factor` input rows become one.
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
        let Ok((found, frames, width)) = out.dims3() else {
            return Err(Error::shape("encoder", expected(), format!("{:?}", out.dims())));
        };
        if (found, width) != (batch, self.width) {
            return Err(Error::shape("encoder", expected(), format!("{:?}", out.dims())));
        }
        let lengths: Vec<usize> = lengths.iter().map(|length| length.div_ceil(self.factor)).collect();
        if let Some(most) = lengths.iter().max().filter(|&&most| most > frames) {
            return Err(Error::shape(
                "encoder",
                format!("at least {most} rows from the module"),
                frames.to_string(),
            ));
        }
        Ok((out, lengths))
    }
}
