//! The LSTM predictor (prediction network): LSTM layers over label embeddings.
use std::sync::Arc;

use candle_core::Tensor;
use candle_nn::VarBuilder;
use decoding::LstmLayer;
use serde::{Deserialize, Serialize};

use super::embedding::{Embedding, StartEmbedding};
use super::{BuildPredictor, Predictor};
use crate::config::values::{MAX_SMALL_COUNT, MAX_WIDTH, check_count, check_dropout};
use crate::{Lstm, LstmWeights, Result};
use layers::footprint::{self, Footprint};
use layers::tensors::to_vec;
use layers::training_pass::TrainingPass;

/// `[predictor]` with `kind = "lstm"`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LstmPredictorConfig {
    /// Width of a label's embedding.
    pub embedding: usize,
    /// Width of the states.
    pub hidden: usize,
    /// Number of layers.
    pub layers: usize,
    /// Dropout rate after each layer, and by default after the embedding.
    #[serde(default)]
    pub dropout: f32,
    /// Dropout rate after the embedding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding_dropout: Option<f32>,
    /// The embedding before the first label.
    #[serde(default, skip_serializing_if = "StartEmbedding::is_blank")]
    pub start: StartEmbedding,
    /// True if each layer has a second bias, as in other toolkits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub two_biases: bool,
}

impl BuildPredictor for LstmPredictorConfig {
    fn check(&self) -> Result<()> {
        check_count("predictor.embedding", self.embedding, MAX_WIDTH)?;
        check_count("predictor.hidden", self.hidden, MAX_WIDTH)?;
        check_count("predictor.layers", self.layers, MAX_SMALL_COUNT)?;
        check_dropout("predictor.embedding_dropout", self.embedding_dropout.unwrap_or_default())?;
        check_dropout("predictor.dropout", self.dropout)
    }

    fn build(&self, tokens: usize, blank: u32, vb: &VarBuilder) -> Result<Arc<dyn Predictor>> {
        Ok(Arc::new(LstmPredictor::new(self, tokens, blank, vb)?))
    }
}

/// A predictor of LSTM layers over label embeddings, with dropout after each.
#[derive(Debug, Clone)]
pub struct LstmPredictor {
    embedding: Embedding,
    layers: Vec<Lstm>,
    config: LstmPredictorConfig,
}

impl LstmPredictor {
    /// Creates the parameters `embedding.weight` and those of [`Lstm`] under `layers.N`.
    ///
    /// # Errors
    /// Errors of the builder `vb`.
    pub fn new(config: &LstmPredictorConfig, tokens: usize, blank: u32, vb: &VarBuilder) -> Result<Self> {
        let LstmPredictorConfig { embedding: width, hidden, layers, two_biases, start, .. } = *config;
        let layer = |index: usize| {
            let input = if index == 0 { width } else { hidden };
            let vb = vb.pp("layers").pp(index);
            let layer = Lstm::new(input, hidden, 0, false, &vb)?;
            if two_biases { layer.with_two_biases(0, &vb) } else { Ok(layer) }
        };
        let embedding = Embedding::new(tokens, width, blank, start, &vb.pp("embedding"))?;
        let layers = (0..layers).map(layer).collect::<layers::Result<_>>()?;
        let layers = Lstm::with_shared_buffers(layers);
        Ok(LstmPredictor { embedding, layers, config: config.clone() })
    }
}

impl Predictor for LstmPredictor {
    fn width(&self) -> usize {
        self.config.hidden
    }

    fn forward(&self, labels: &[Vec<u32>], mut pass: Option<&mut TrainingPass>) -> Result<Tensor> {
        let hooks = pass.as_deref().and_then(TrainingPass::gradient_hooks).cloned();
        let mut apply_dropout = |x: Tensor, rate: f32| match pass.as_deref_mut() {
            Some(pass) => pass.apply(&x, rate),
            None => Ok(x),
        };
        let LstmPredictorConfig { dropout, embedding_dropout, .. } = self.config;
        let lengths: Vec<usize> = labels.iter().map(|labels| labels.len() + 1).collect();
        let mut x =
            apply_dropout(self.embedding.embed_preceding(labels, 1)?, embedding_dropout.unwrap_or(dropout))?;
        for layer in &self.layers {
            x = apply_dropout(layer.forward_with_hooks(&x, &lengths, hooks.as_ref())?, dropout)?;
        }
        Ok(x)
    }

    fn bytes(&self, batch: usize, rows: usize) -> Option<usize> {
        let LstmPredictorConfig { embedding, hidden, layers, dropout, .. } = self.config;
        let rows = batch * rows;
        let layer_footprint = |layer: usize| {
            footprint::lstm_layer(rows, if layer == 0 { embedding } else { hidden }, hidden, 1, dropout > 0.0)
        };
        // The embeddings before and after dropout, their gradient, and the gradient of the table
        // and its sum.
        let embedding_bytes = size_of::<f32>() * (4 * rows * embedding + 3 * self.embedding.weight_count());
        let layers = (0..layers).map(layer_footprint).fold(Footprint::default(), footprint::chain);
        Some(footprint::peak_bytes(layers) + embedding_bytes)
    }

    fn decoder(&self) -> Result<Arc<dyn decoding::Predictor>> {
        self.packed(decoding::LstmPredictor::new)
    }

    fn quantized_decoder(&self) -> Result<Arc<dyn decoding::Predictor>> {
        self.packed(decoding::LstmPredictor::quantized)
    }
}

/// A function that packs embeddings of a width and layers; the last argument is the start label.
type Pack = fn(&[f32], usize, &[LstmLayer], u32) -> decoding::Result<decoding::LstmPredictor>;

impl LstmPredictor {
    fn packed(&self, pack: Pack) -> Result<Arc<dyn decoding::Predictor>> {
        let weights = |layer: &Lstm| -> Result<[Vec<f32>; 3]> {
            let LstmWeights { input, recurrent, bias } = &layer.directions()?[0];
            Ok([to_vec(input)?, to_vec(recurrent)?, to_vec(bias)?])
        };
        let weights = self.layers.iter().map(weights).collect::<Result<Vec<_>>>()?;
        let layers: Vec<LstmLayer> =
            weights.iter().map(|[input, recurrent, bias]| LstmLayer { input, recurrent, bias }).collect();
        let (table, width) = self.embedding.to_table()?;
        Ok(Arc::new(pack(&table, width, &layers, self.embedding.start_id())?))
    }
}
