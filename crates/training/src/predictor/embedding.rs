//! Embeddings of the labels before each position.
use candle_core::{Device, Tensor};
use candle_nn::{Init, VarBuilder};

use crate::Result;
use crate::tensors::to_vec;

/// A table of label embeddings, `weight [L + 1, E]`, of which the blank's stands for "no label yet".
#[derive(Debug, Clone)]
pub struct Embedding {
    weight: Tensor,
    blank: u32,
}

impl Embedding {
    /// Embeddings of width `width`; they start normal with deviation 1.
    ///
    /// # Errors
    /// Those of the builder.
    pub fn new(tokens: usize, width: usize, blank: u32, vb: &VarBuilder) -> Result<Self> {
        let start = Init::Randn { mean: 0.0, stdev: 1.0 };
        Ok(Embedding { weight: vb.get_with_hints((tokens, width), "weight", start)?, blank })
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
                (0..rows).map(move |u| id(u).unwrap_or(self.blank))
            })
            .collect();
        let ids = Tensor::from_vec(ids, labels.len() * rows, &Device::Cpu)?;
        Ok(self.weight.index_select(&ids, 0)?.reshape((labels.len(), rows, ()))?)
    }

    /// Copies the table out: its numbers and its width.
    pub(super) fn table(&self) -> Result<(Vec<f32>, usize)> {
        Ok((to_vec(&self.weight)?, self.weight.dim(1)?))
    }
}
