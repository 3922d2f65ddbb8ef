//! The predictor: what the labels so far say about the next one.
use candle_core::{Device, Tensor, Var};

use crate::dropout::Masks;
use crate::init::Init;
use crate::recipe::PredictorConfig;
use crate::{Parameters, Result, linear, lstm};

/// An LSTM over label embeddings, or a look at the last few labels; the blank's embedding stands for "no label yet".
#[derive(Debug, Clone)]
pub struct Predictor {
    config: PredictorConfig,
    blank: u32,
    /// `[C, E]`
    pub(crate) embedding: Var,
    pub(crate) kind: Kind,
}

#[derive(Debug, Clone)]
pub(crate) enum Kind {
    /// Packed weights of each layer.
    Lstm(Vec<Var>),
    /// `[context · E, E]` and `[E]`, over the labels oldest first.
    Stateless { context: usize, weight: Var, bias: Var },
}

impl Predictor {
    /// Makes the parameters `predictor.embedding` and `predictor.N` (LSTM) or `predictor.context[.bias]` (stateless).
    pub(crate) fn new(
        config: &PredictorConfig,
        classes: usize,
        blank: u32,
        parameters: &mut Parameters,
    ) -> Result<Self> {
        let (PredictorConfig::Lstm { embedding: width, .. }
        | PredictorConfig::Stateless { embedding: width, .. }) = *config;
        let embedding = parameters.create("predictor.embedding", &[classes, width], Init::Normal(1.0))?;
        let kind = match *config {
            PredictorConfig::Lstm { hidden, layers, .. } => {
                let create = |layer| {
                    let input = if layer == 0 { width } else { hidden };
                    let shape = [input + hidden + 1, 4 * hidden];
                    parameters.create(&format!("predictor.{layer}"), &shape, Init::Lstm)
                };
                Kind::Lstm((0..layers).map(create).collect::<Result<_>>()?)
            }
            PredictorConfig::Stateless { context, .. } => {
                let inputs = context * width;
                let weight =
                    parameters.create("predictor.context", &[inputs, width], Init::linear(inputs))?;
                let bias = parameters.create("predictor.context.bias", &[width], Init::Zero)?;
                Kind::Stateless { context, weight, bias }
            }
        };
        Ok(Predictor { config: config.clone(), blank, embedding, kind })
    }

    /// Width of the output rows.
    pub fn width(&self) -> usize {
        match self.config {
            PredictorConfig::Lstm { hidden, .. } => hidden,
            PredictorConfig::Stateless { embedding, .. } => embedding,
        }
    }

    /// Rows for the label sequences, row u having seen the first u labels. With masks, dropout is on.
    ///
    /// # Shapes
    /// B label sequences, U the length of the longest; returns `[B, U+1, P]`.
    ///
    /// # Errors
    /// Candle's own errors.
    pub fn forward(&self, labels: &[Vec<u32>], mut masks: Option<&mut Masks>) -> Result<Tensor> {
        let rows = labels.iter().map(Vec::len).max().unwrap_or(0) + 1;
        let (PredictorConfig::Lstm { dropout, .. } | PredictorConfig::Stateless { dropout, .. }) =
            self.config;
        let mut drop = |x: Tensor| match masks.as_deref_mut() {
            Some(masks) => masks.apply(&x, dropout),
            None => Ok(x),
        };
        // Embeddings of the label `back` places before each row.
        let embed = |back: usize| -> Result<Tensor> {
            let ids: Vec<u32> = labels
                .iter()
                .flat_map(|labels| {
                    let id = move |u: usize| u.checked_sub(back).and_then(|u| labels.get(u)).copied();
                    (0..rows).map(move |u| id(u).unwrap_or(self.blank))
                })
                .collect();
            let ids = Tensor::from_vec(ids, labels.len() * rows, &Device::Cpu)?;
            Ok(self.embedding.index_select(&ids, 0)?.reshape((labels.len(), rows, ()))?)
        };
        match &self.kind {
            Kind::Lstm(weights) => {
                let lengths: Vec<usize> = labels.iter().map(|labels| labels.len() + 1).collect();
                let mut x = drop(embed(1)?)?;
                for weight in weights {
                    x = drop(lstm(&x, &lengths, &[weight])?)?;
                }
                Ok(x)
            }
            Kind::Stateless { context, weight, bias } => {
                let embeddings = (1..=*context).rev().map(embed).collect::<Result<Vec<_>>>()?;
                let x = drop(Tensor::cat(&embeddings, 2)?)?;
                Ok(linear(&x, weight, bias)?.tanh()?)
            }
        }
    }
}
