//! The stateless predictor: a linear layer over the embeddings of the last few labels.
use std::sync::Arc;

use candle_core::Tensor;
use candle_nn::VarBuilder;
use decoding::PredictorActivation;
use serde::{Deserialize, Serialize};

use super::embedding::{Embedding, StartEmbedding};
use super::{BuildPredictor, Predictor};
use crate::config::values::{MAX_SMALL_COUNT, MAX_WIDTH, check_count, check_dropout};
use crate::{Linear, Result};
use layers::tensors::to_vec;
use layers::training_pass::TrainingPass;

/// `[predictor]` with `kind = "stateless"`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatelessPredictorConfig {
    /// Width of a label's embedding.
    pub embedding: usize,
    /// Number of labels that a row depends on.
    pub context: usize,
    /// Dropout rate after the embedding.
    #[serde(default)]
    pub dropout: f32,
}

impl BuildPredictor for StatelessPredictorConfig {
    fn check(&self) -> Result<()> {
        check_count("predictor.embedding", self.embedding, MAX_WIDTH)?;
        check_count("predictor.context", self.context, MAX_SMALL_COUNT)?;
        check_dropout("predictor.dropout", self.dropout)
    }

    fn build(&self, tokens: usize, blank: u32, vb: &VarBuilder) -> Result<Arc<dyn Predictor>> {
        Ok(Arc::new(StatelessPredictor::new(self, tokens, blank, vb)?))
    }
}

/// A predictor `tanh(W [e(y_{u-context}), .., e(y_{u-1})] + b)`, labels oldest first.
///
/// e(y) is the embedding of label y, u the number of labels so far, W the weight and b the bias of
/// a linear layer; the blank stands for labels before the first.
#[derive(Debug, Clone)]
pub struct StatelessPredictor {
    embedding: Embedding,
    context_layer: Linear,
    config: StatelessPredictorConfig,
    blank: u32,
}

impl StatelessPredictor {
    /// Creates the parameters `embedding.weight`, `context.weight` and `context.bias`.
    ///
    /// `context.weight` is `[E, context · E]`; E is the width of an embedding and of the output.
    ///
    /// # Errors
    /// Errors of the builder `vb`.
    pub fn new(
        config: &StatelessPredictorConfig,
        tokens: usize,
        blank: u32,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let width = config.embedding;
        let start = StartEmbedding::Blank;
        let embedding = Embedding::new(tokens, width, blank, start, &vb.pp("embedding"))?;
        let context_layer = Linear::new(config.context * width, width, &vb.pp("context"))?;
        Ok(StatelessPredictor { embedding, context_layer, config: config.clone(), blank })
    }
}

impl Predictor for StatelessPredictor {
    fn width(&self) -> usize {
        self.config.embedding
    }

    fn forward(&self, labels: &[Vec<u32>], pass: Option<&mut TrainingPass>) -> Result<Tensor> {
        let distances = (1..=self.config.context).rev();
        let embeddings = distances
            .map(|distance| self.embedding.embed_preceding(labels, distance))
            .collect::<Result<Vec<_>>>()?;
        let mut x = Tensor::cat(&embeddings, 2)?;
        if let Some(pass) = pass {
            x = pass.apply(&x, self.config.dropout)?;
        }
        Ok(self.context_layer.apply(&x)?.tanh()?)
    }

    fn bytes(&self, batch: usize, rows: usize) -> Option<usize> {
        let StatelessPredictorConfig { embedding, context, .. } = self.config;
        // Embeddings of each distance, concatenated, after dropout, and the gradients of these; the
        // sum, its tanh and their gradients.
        let values =
            batch * rows * embedding * (6 * context + 6) + (2 + context) * self.embedding.weight_count();
        Some(size_of::<f32>() * values)
    }

    fn decoder(&self) -> Result<Arc<dyn decoding::Predictor>> {
        let (table, width) = self.embedding.to_table()?;
        let (weight, bias) = (to_vec(self.context_layer.weight())?, to_vec(self.context_layer.bias())?);
        let start = vec![self.blank; self.config.context];
        let table = (&table[..], width);
        Ok(Arc::new(decoding::StatelessPredictor::new(
            table,
            &weight,
            &bias,
            &start,
            PredictorActivation::Tanh,
        )?))
    }
}
