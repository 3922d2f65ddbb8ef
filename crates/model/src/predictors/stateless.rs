//! A look at the last few labels.
use std::sync::Arc;

use candle_core::Tensor;
use candle_nn::VarBuilder;
use decoding::PredictorActivation;
use serde::{Deserialize, Serialize};

use super::embedding::{Embedding, Start};
use super::{BuildPredictor, Predictor};
use crate::config::values as check;
use crate::config::values::{MANY, WIDEST};
use crate::tensors::to_vec;
use crate::training_pass::TrainingPass;
use crate::{Linear, Result};

/// `[predictor]`, kind `stateless`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatelessPredictorConfig {
    /// Width of a label's embedding.
    pub embedding: usize,
    /// How many labels it sees.
    pub context: usize,
    /// Share of values dropped after the embedding.
    #[serde(default)]
    pub dropout: f32,
}

impl BuildPredictor for StatelessPredictorConfig {
    fn check(&self) -> Result<()> {
        check::whole("predictor.embedding", self.embedding, WIDEST)?;
        check::whole("predictor.context", self.context, MANY)?;
        check::dropout("predictor.dropout", self.dropout)
    }

    fn build(&self, tokens: usize, blank: u32, vb: &VarBuilder) -> Result<Arc<dyn Predictor>> {
        Ok(Arc::new(StatelessPredictor::new(self, tokens, blank, vb)?))
    }
}

/// `tanh(W [e(y_{u-context}), .., e(y_{u-1})] + b)`, labels oldest first.
#[derive(Debug, Clone)]
pub struct StatelessPredictor {
    embedding: Embedding,
    context: Linear,
    config: StatelessPredictorConfig,
    blank: u32,
}

impl StatelessPredictor {
    /// Makes the parameters `embedding.weight`, `context.weight` `[E, context · E]` and `context.bias`.
    ///
    /// # Errors
    /// Those of the builder.
    pub fn new(
        config: &StatelessPredictorConfig,
        tokens: usize,
        blank: u32,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let width = config.embedding;
        let embedding = Embedding::new((tokens, width), (blank, Start::Blank), &vb.pp("embedding"))?;
        let context = Linear::new(config.context * width, width, &vb.pp("context"))?;
        Ok(StatelessPredictor { embedding, context, config: config.clone(), blank })
    }
}

impl Predictor for StatelessPredictor {
    fn width(&self) -> usize {
        self.config.embedding
    }

    fn forward(&self, labels: &[Vec<u32>], pass: Option<&mut TrainingPass>) -> Result<Tensor> {
        let places = (1..=self.config.context).rev();
        let embeddings =
            places.map(|back| self.embedding.before(labels, back)).collect::<Result<Vec<_>>>()?;
        let mut x = Tensor::cat(&embeddings, 2)?;
        if let Some(pass) = pass {
            x = pass.apply(&x, self.config.dropout)?;
        }
        Ok(self.context.apply(&x)?.tanh()?)
    }

    fn bytes(&self, batch: usize, rows: usize) -> Option<usize> {
        let StatelessPredictorConfig { embedding, context, .. } = self.config;
        // Embeddings of each place, joined, dropped out, and the gradients of these; the sum, its tanh and theirs.
        let numbers = batch * rows * embedding * (6 * context + 6) + (2 + context) * self.embedding.numbers();
        Some(size_of::<f32>() * numbers)
    }

    fn decoder(&self) -> Result<Arc<dyn decoding::Predictor>> {
        let (table, width) = self.embedding.table()?;
        let (weight, bias) = (to_vec(self.context.weight())?, to_vec(self.context.bias())?);
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
