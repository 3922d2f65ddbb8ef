//! `Embedding`: the table of label embeddings, the input of a predictor.
use candle_core::{Device, Tensor};
use candle_nn::{Init, VarBuilder};
use serde::{Deserialize, Serialize};

use crate::Result;
use layers::tensors::to_vec;

/// The embedding before the first label.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StartEmbedding {
    /// The blank's embedding.
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

/// A table of label embeddings.
///
/// `weight` is `[L + 1, E]` with the blank's embedding, or `[L, E]` if the start is zeros; L is the
/// number of labels, E the width of an embedding.
#[derive(Debug, Clone)]
pub struct Embedding {
    weight: Tensor,
    blank: u32,
    start: StartEmbedding,
}

impl Embedding {
    /// Creates embeddings of `tokens`, the last of which is the blank.
    ///
    /// Initial values are normal with standard deviation 1.
    ///
    /// # Errors
    /// Errors of the builder `vb`.
    pub fn new(
        tokens: usize,
        width: usize,
        blank: u32,
        start: StartEmbedding,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let init = Init::Randn { mean: 0.0, stdev: 1.0 };
        let table_rows = if start == StartEmbedding::Zero { tokens - 1 } else { tokens };
        Ok(Embedding { weight: vb.get_with_hints((table_rows, width), "weight", init)?, blank, start })
    }

    /// Returns the embedding of the label `distance` before each position: `[B, U+1, E]`.
    ///
    /// B: utterances; U: labels of the longest one; E: width of an embedding.
    ///
    /// # Errors
    /// Errors of candle, for instance for a label without an embedding.
    pub(crate) fn embed_preceding(&self, labels: &[Vec<u32>], distance: usize) -> Result<Tensor> {
        let positions = labels.iter().map(Vec::len).max().unwrap_or(0) + 1;
        let ids: Vec<u32> = labels
            .iter()
            .flat_map(|labels| {
                let id = move |u: usize| u.checked_sub(distance).and_then(|u| labels.get(u)).copied();
                (0..positions).map(move |u| id(u).unwrap_or(self.start_id()))
            })
            .collect();
        let ids = Tensor::from_vec(ids, labels.len() * positions, &Device::Cpu)?;
        Ok(self.table_with_start()?.index_select(&ids, 0)?.reshape((labels.len(), positions, ()))?)
    }

    /// Returns the id before the first label.
    pub(super) fn start_id(&self) -> u32 {
        self.blank
    }

    /// Returns the table with a row for the start: the blank's, or zeros.
    fn table_with_start(&self) -> Result<Tensor> {
        Ok(match self.start {
            StartEmbedding::Blank => self.weight.clone(),
            StartEmbedding::Zero => {
                let zeros = Tensor::zeros((1, self.weight.dim(1)?), self.weight.dtype(), &Device::Cpu)?;
                Tensor::cat(&[&self.weight, &zeros], 0)?
            }
        })
    }

    /// Returns the table, without a row for a start of zeros.
    pub(super) fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Returns the width E of an embedding.
    pub(super) fn width(&self) -> usize {
        self.weight.dims().last().copied().unwrap_or(0)
    }

    /// Returns the number of weights of the table.
    pub(super) fn weight_count(&self) -> usize {
        self.weight.elem_count()
    }

    /// Copies the table; returns its values and its width.
    pub(super) fn to_table(&self) -> Result<(Vec<f32>, usize)> {
        Ok((to_vec(&self.table_with_start()?)?, self.weight.dim(1)?))
    }
}
