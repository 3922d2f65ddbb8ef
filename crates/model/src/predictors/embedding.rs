//! Embeddings of the labels before each position.
use candle_core::{DType, Device, Tensor};
use candle_nn::{Init, VarBuilder};
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::tensors::to_vec;

/// What stands for "no label yet".
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StartEmbedding {
    /// An embedding of its own, the blank's.
    #[default]
    Blank,
    /// Zeros; the blank has no embedding.
    Zero,
}

impl StartEmbedding {
    pub(super) fn is_blank(&self) -> bool {
        *self == Self::Blank
    }
}

/// A table of label embeddings, `weight [L + 1, E]`, of which the blank's stands for "no label
/// yet", or `[L, E]` where zeros do.
#[derive(Debug, Clone)]
pub struct Embedding {
    weight: Tensor,
    blank: u32,
    start: StartEmbedding,
}

impl Embedding {
    /// Embeddings of `tokens`, the blank the last of them, of a width; they start normal with
    /// deviation 1.
    ///
    /// # Errors
    /// Those of the builder.
    pub fn new(
        (tokens, width): (usize, usize),
        (blank, start): (u32, StartEmbedding),
        vb: &VarBuilder,
    ) -> Result<Self> {
        let init = Init::Randn { mean: 0.0, stdev: 1.0 };
        let rows = if start == StartEmbedding::Zero { tokens - 1 } else { tokens };
        Ok(Embedding { weight: vb.get_with_hints((rows, width), "weight", init)?, blank, start })
    }

    /// Embeddings of the label `back` places before each position: `[B, U+1, E]`.
    ///
    /// # Errors
    /// Candle's own errors, for instance for a label that has no embedding.
    pub fn before(&self, labels: &[Vec<u32>], back: usize) -> Result<Tensor> {
        let rows = labels.iter().map(Vec::len).max().unwrap_or(0) + 1;
        let ids: Vec<u32> = labels
            .iter()
            .flat_map(|labels| {
                let id = move |u: usize| u.checked_sub(back).and_then(|u| labels.get(u)).copied();
                (0..rows).map(move |u| id(u).unwrap_or(self.start()))
            })
            .collect();
        let ids = Tensor::from_vec(ids, labels.len() * rows, &Device::Cpu)?;
        Ok(self.rows()?.index_select(&ids, 0)?.reshape((labels.len(), rows, ()))?)
    }

    /// The row that stands for "no label yet".
    pub(super) fn start(&self) -> u32 {
        self.blank
    }

    /// The table, with that row.
    fn rows(&self) -> Result<Tensor> {
        Ok(match self.start {
            StartEmbedding::Blank => self.weight.clone(),
            StartEmbedding::Zero => {
                let zeros = Tensor::zeros((1, self.weight.dim(1)?), DType::F32, &Device::Cpu)?;
                Tensor::cat(&[&self.weight, &zeros], 0)?
            }
        })
    }

    /// Numbers of the table.
    pub(super) fn numbers(&self) -> usize {
        self.weight.elem_count()
    }

    /// Copies the table out: its numbers and its width.
    pub(super) fn table(&self) -> Result<(Vec<f32>, usize)> {
        Ok((to_vec(&self.rows()?)?, self.weight.dim(1)?))
    }
}
