//! The concatenating predictor: the embeddings of the last few labels next to each other.
use std::sync::Arc;

use candle_core::Tensor;
use candle_nn::VarBuilder;
use decoding::{NO_LABEL, PredictorActivation};
use serde::{Deserialize, Serialize};

use super::embedding::{Embedding, StartEmbedding};
use super::{BuildPredictor, Predictor};
use crate::Result;
use crate::config::values::{MAX_SMALL_COUNT, MAX_WIDTH, check_count, check_dropout, ensure};
use layers::layer_norm::layer_norm;
use layers::tensors::to_vec;
use layers::training_pass::TrainingPass;

/// `[predictor]` with `kind = "concat"`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConcatPredictorConfig {
    /// Width P of the rows, that of all embeddings together.
    pub width: usize,
    /// Number of labels C that a row depends on.
    pub context: usize,
    /// True if rows are normalized to mean 0 and variance 1.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub normalize: bool,
    /// Dropout rate after the embeddings.
    #[serde(default)]
    pub dropout: f32,
}

impl ConcatPredictorConfig {
    /// Returns the width of the embedding of each label, the newest first.
    ///
    /// Older labels have half of the width together, rounded down: `⌊⌊P/2⌋/C⌋` each.
    fn embedding_widths(&self) -> Vec<usize> {
        let older = self.width / 2 / self.context.max(1);
        let newest = self.width - (self.context.max(1) - 1) * older;
        std::iter::once(newest).chain(std::iter::repeat_n(older, self.context.saturating_sub(1))).collect()
    }
}

impl BuildPredictor for ConcatPredictorConfig {
    fn check(&self) -> Result<()> {
        check_count("predictor.width", self.width, MAX_WIDTH)?;
        check_count("predictor.context", self.context, MAX_SMALL_COUNT)?;
        let min_width = if self.context > 1 { 2 * self.context } else { 1 };
        let expected = format!("at least {min_width}, for {} labels", self.context);
        ensure("predictor.width", &expected, self.width >= min_width, self.width)?;
        check_dropout("predictor.dropout", self.dropout)
    }

    fn build(&self, tokens: usize, blank: u32, vb: &VarBuilder) -> Result<Arc<dyn Predictor>> {
        Ok(Arc::new(ConcatPredictor::new(self, tokens, blank, vb)?))
    }
}

/// A predictor `[e_1(y_{u-1}), .., e_C(y_{u-C})]`, labels newest first.
///
/// e_i(y) is the embedding of label y at distance i, zeros before the first label; u is the number
/// of labels so far, C the context. This is the stateless predictor of NeMo.
#[derive(Debug, Clone)]
pub struct ConcatPredictor {
    /// The table of each distance, from 1 on.
    embeddings: Vec<Embedding>,
    config: ConcatPredictorConfig,
}

impl ConcatPredictor {
    /// Creates the parameters `embeddings.N.weight`, `[L, width]`.
    ///
    /// N is the distance of the label less 1, L the number of labels. Of the width P, the label at
    /// distance 1 has `P - (C - 1) ⌊⌊P/2⌋/C⌋` values, each older one `⌊⌊P/2⌋/C⌋`.
    ///
    /// # Errors
    /// Errors of the builder `vb`.
    pub fn new(config: &ConcatPredictorConfig, tokens: usize, blank: u32, vb: &VarBuilder) -> Result<Self> {
        let embedding = |(index, width): (usize, usize)| {
            let vb = vb.pp("embeddings").pp(index);
            Embedding::new(tokens, width, blank, StartEmbedding::Zero, &vb)
        };
        let embeddings = config.embedding_widths().into_iter().enumerate().map(embedding);
        Ok(ConcatPredictor { embeddings: embeddings.collect::<Result<_>>()?, config: config.clone() })
    }
}

impl Predictor for ConcatPredictor {
    fn width(&self) -> usize {
        self.config.width
    }

    fn forward(&self, labels: &[Vec<u32>], pass: Option<&mut TrainingPass>) -> Result<Tensor> {
        let rows = (1..).zip(&self.embeddings);
        let rows = rows.map(|(distance, embedding)| embedding.embed_preceding(labels, distance));
        let mut x = Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 2)?;
        if let Some(pass) = pass {
            x = pass.apply(&x, self.config.dropout)?;
        }
        if !self.config.normalize {
            return Ok(x);
        }
        let weight = Tensor::ones(self.config.width, x.dtype(), x.device())?;
        Ok(layer_norm(&x, &weight, &weight.zeros_like()?)?)
    }

    fn bytes(&self, batch: usize, rows: usize) -> Option<usize> {
        // Embeddings of each distance, concatenated, after dropout, normalized, and the gradients
        // of these; tables with the start, their gradients and the sums of these.
        let weights: usize = self.embeddings.iter().map(Embedding::weight_count).sum();
        let starts = self.config.width;
        Some(size_of::<f32>() * (10 * batch * rows * self.config.width + 5 * (weights + starts)))
    }

    fn decoder(&self) -> Result<Arc<dyn decoding::Predictor>> {
        // Without the start: labels before the first have no embedding.
        let tables =
            self.embeddings.iter().map(|embedding| Ok((to_vec(embedding.weight())?, embedding.width())));
        let tables: Vec<(Vec<f32>, usize)> = tables.collect::<Result<_>>()?;
        let tables: Vec<(&[f32], usize)> = tables.iter().map(|(table, width)| (&table[..], *width)).collect();
        let activation = match self.config.normalize {
            true => PredictorActivation::Normalize,
            false => PredictorActivation::Identity,
        };
        let start = vec![NO_LABEL; self.config.context];
        Ok(Arc::new(decoding::StatelessPredictor::concatenate(&tables, &start, activation)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_label_has_half_of_the_width_and_the_rest() {
        let widths = |width, context| {
            ConcatPredictorConfig { width, context, ..Default::default() }.embedding_widths()
        };
        assert_eq!(widths(40, 2), [30, 10]);
        assert_eq!(widths(640, 2), [480, 160]);
        assert_eq!(widths(11, 3), [9, 1, 1]);
        assert_eq!(widths(7, 1), [7]);
        for (width, context, is_valid) in [(4, 2, true), (3, 2, false), (1, 1, true), (5, 3, false)] {
            let config = ConcatPredictorConfig { width, context, ..Default::default() };
            assert_eq!(config.check().is_ok(), is_valid, "{width} {context}");
        }
    }
}
