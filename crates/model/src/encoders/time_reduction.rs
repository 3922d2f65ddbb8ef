//! `TimeReduction`: concatenates adjacent rows between two LSTM layers.
use serde::{Deserialize, Serialize};

/// `[encoder.time_reduction]`: adjacent rows are concatenated after a layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeReduction {
    /// Number of layers before the reduction: the index of the first layer after it.
    pub after_layer: usize,
    /// Number of rows that are concatenated.
    pub factor: usize,
}

impl TimeReduction {
    /// Returns true if a layer is the first one after the reduction.
    ///
    /// `layer` is its index.
    pub(super) fn is_before(&self, layer: usize) -> bool {
        self.after_layer == layer
    }
}
