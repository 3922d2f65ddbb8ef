//! What a caller may choose.
use panda_core::{Activation, Tiling};
use rnnt_dp::Topology;

/// Options of the loss; the default is the plain transducer loss with a tanh joint.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Options {
    /// Nonlinearity of the joint.
    pub activation: Activation,
    /// Which arcs leave a site: blank, then the next label.
    pub topology: Topology,
    /// FastEmit λ: scales the gradient of label arcs by `1 + λ`; the reported loss stays `-log P`.
    pub fastemit: f64,
    /// Clips each element of the gradient of the scores of one utterance's own loss to `-clamp ..= clamp`,
    /// before any weight of the utterance is applied (torchaudio's meaning).
    pub clamp: Option<f64>,
    /// Tile sizes; chosen from the shape when `None`.
    pub tiling: Option<Tiling>,
}

impl Options {
    pub(crate) fn tiling(&self, sites: usize, classes: usize) -> Tiling {
        self.tiling.unwrap_or_else(|| Tiling::for_shape(sites, classes))
    }
}
