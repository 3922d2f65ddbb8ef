//! What a caller may choose.
use panda_core::{Activation, MemoryBudget, Plan, Precision, Real, Workspace};
use rnnt_dp::Topology;

use crate::Result;

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
    /// How many bytes the loss may hold beside its arguments and results.
    pub budget: MemoryBudget,
    /// What the factors of the head's products are rounded to.
    pub precision: Precision,
    /// Leaves the sites of smallest occupancy out of the gradient as long as what they sum to stays below
    /// `skip · (T + U)` in each utterance; the error is bounded by [`Skipped`](crate::Skipped). 0, the default, is
    /// exact; 1e-6 is lost in the rounding of `f32`.
    pub skip: f64,
    /// How the work is cut; chosen from shape and budget when `None`.
    pub plan: Option<Plan>,
}

impl Options {
    pub(crate) fn workspace<F: Real>(&self) -> Result<Workspace<F>> {
        let workspace = match self.plan {
            None => Workspace::new(self.budget),
            Some(plan) => Workspace::with_plan(plan)?,
        };
        Ok(workspace.with_precision(self.precision))
    }
}
