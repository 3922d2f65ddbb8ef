//! An LSTM over label embeddings.
use std::sync::Arc;

use candle_core::Tensor;
use candle_nn::VarBuilder;
use kernels::{sigmoid, tanh};
use serde::{Deserialize, Serialize};

use super::embedding::{Embedding, Table};
use super::{BuildPredictor, Memory, Predictor, Steps};
use crate::dropout::Masks;
use crate::recipe::check::{self, MANY, WIDEST};
use crate::stepwise::Affine;
use crate::{Lstm, Result};

/// `[predictor]`, kind `lstm`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LstmPredictorConfig {
    /// Width of a label's embedding.
    pub embedding: usize,
    /// State width.
    pub hidden: usize,
    /// Number of layers.
    pub layers: usize,
    /// Share of values dropped after the embedding and after each layer.
    #[serde(default)]
    pub dropout: f32,
}

impl BuildPredictor for LstmPredictorConfig {
    fn check(&self) -> Result<()> {
        check::whole("predictor.embedding", self.embedding, WIDEST)?;
        check::whole("predictor.hidden", self.hidden, WIDEST)?;
        check::whole("predictor.layers", self.layers, MANY)?;
        check::dropout("predictor.dropout", self.dropout)
    }

    fn build(&self, tokens: usize, blank: u32, vb: &VarBuilder) -> Result<Arc<dyn Predictor>> {
        Ok(Arc::new(LstmPredictor::new(self, tokens, blank, vb)?))
    }
}

/// LSTM layers over label embeddings, with dropout after each.
#[derive(Debug, Clone)]
pub struct LstmPredictor {
    embedding: Embedding,
    layers: Vec<Lstm>,
    hidden: usize,
    dropout: f32,
    blank: u32,
}

impl LstmPredictor {
    /// Makes the parameters `embedding.weight` and those of [`Lstm`] under `layers.N`.
    ///
    /// # Errors
    /// Those of the builder.
    pub fn new(config: &LstmPredictorConfig, tokens: usize, blank: u32, vb: &VarBuilder) -> Result<Self> {
        let LstmPredictorConfig { embedding: width, hidden, layers, dropout } = *config;
        let layer = |layer: usize| {
            let input = if layer == 0 { width } else { hidden };
            Lstm::new(input, hidden, 0, false, &vb.pp("layers").pp(layer))
        };
        let embedding = Embedding::new(tokens, width, blank, &vb.pp("embedding"))?;
        let layers = (0..layers).map(layer).collect::<Result<_>>()?;
        Ok(LstmPredictor { embedding, layers, hidden, dropout, blank })
    }
}

impl Predictor for LstmPredictor {
    fn width(&self) -> usize {
        self.hidden
    }

    fn forward(&self, labels: &[Vec<u32>], mut masks: Option<&mut Masks>) -> Result<Tensor> {
        let mut drop = |x: Tensor| match masks.as_deref_mut() {
            Some(masks) => masks.apply(&x, self.dropout),
            None => Ok(x),
        };
        let lengths: Vec<usize> = labels.iter().map(|labels| labels.len() + 1).collect();
        let mut x = drop(self.embedding.before(labels, 1)?)?;
        for layer in &self.layers {
            x = drop(layer.forward(&x, &lengths)?)?;
        }
        Ok(x)
    }

    fn stepwise(&self) -> Result<Arc<dyn Steps>> {
        let layer = |layer: &Lstm| -> Result<Layer> {
            let weights = &layer.directions()[0];
            Ok(Layer {
                input: Affine::new(&weights.input, Some(&weights.bias))?,
                recurrent: Affine::new(&weights.recurrent, None)?,
            })
        };
        Ok(Arc::new(LstmSteps {
            table: self.embedding.table()?,
            layers: self.layers.iter().map(layer).collect::<Result<_>>()?,
            hidden: self.hidden,
            blank: self.blank,
        }))
    }
}

struct Layer {
    input: Affine,
    recurrent: Affine,
}

/// The memory's values are h and c of each layer.
struct LstmSteps {
    table: Table,
    layers: Vec<Layer>,
    hidden: usize,
    blank: u32,
}

impl Steps for LstmSteps {
    fn start(&self) -> (Memory, Vec<f32>) {
        let values = vec![0.0; 2 * self.hidden * self.layers.len()];
        self.step(&Memory { values, ..Memory::default() }, self.blank)
    }

    fn step(&self, memory: &Memory, label: u32) -> (Memory, Vec<f32>) {
        let mut next = memory.clone();
        let mut x = self.table.row(label).to_vec();
        for (layer, state) in self.layers.iter().zip(next.values.chunks_exact_mut(2 * self.hidden)) {
            let (h, c) = state.split_at_mut(self.hidden);
            cell(layer, &x, h, c);
            x.clear();
            x.extend_from_slice(h);
        }
        (next, x)
    }
}

/// One LSTM step; gates in the order i, f, g, o.
fn cell(layer: &Layer, x: &[f32], h: &mut [f32], c: &mut [f32]) {
    let hidden = h.len();
    let mut gates = layer.input.apply(x);
    gates.iter_mut().zip(layer.recurrent.apply(h)).for_each(|(a, b)| *a += b);
    let (input_and_forget, rest) = gates.split_at_mut(2 * hidden);
    let (g, o) = rest.split_at_mut(hidden);
    sigmoid(input_and_forget);
    tanh(g);
    sigmoid(o);
    for k in 0..hidden {
        c[k] = input_and_forget[hidden + k] * c[k] + input_and_forget[k] * g[k];
    }
    h.copy_from_slice(c);
    tanh(h);
    h.iter_mut().zip(o).for_each(|(h, &mut o)| *h *= o);
}
