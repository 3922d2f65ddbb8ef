//! Door for projected encodings and predictions: joint sites, head, loss, and their gradients.
use panda_core::{Head, JointGradient, Real};

use crate::{
    Layout, Options, Result, Skipped, Targets, Workspace,
    heads::{Heads, HeadsLoss},
};

/// Loss and gradients of [`projected_loss`], each shaped like its argument.
#[derive(Debug, Clone, PartialEq)]
pub struct ProjectedLoss<F> {
    /// `-log P` of each utterance, *B*.
    pub losses: Vec<f64>,
    /// Gradient of the frame rows; 0 in padding.
    pub frames: Vec<F>,
    /// Gradient of the label rows; 0 in padding.
    pub labels: Vec<F>,
    /// Gradient of the head's weight, *C x H*.
    pub weight: Vec<F>,
    /// Gradient of the head's bias, *C*; also there for a head without one.
    pub bias: Vec<F>,
    /// What [`Options::skip`] left out of the gradients.
    pub skipped: Skipped,
}

/// Transducer loss of sites `h(t,u) = act(frames[t] + labels[u])`, with all gradients of `Σ_b weights[b] loss[b]`.
///
/// Utterances go in groups, and nothing of a group but its losses and gradients survives it: memory beside arguments
/// and results does not grow with the batch (sample-wise training, arXiv 2211.16270). Padding is never computed.
///
/// # Shapes
/// `frames` *rows x H* and `labels` *rows x H* in `layout` ([`Layout::Padded`]: *B x T x H* and *B x (U+1) x H*),
/// `weights` *B*.
///
/// # Errors
/// Shapes that do not fit, labels outside the classes, scores that are NaN or +inf.
///
/// # Cost
/// 6 to 8 N H C floating-point operations and memory as [`Options::budget`] says.
pub fn projected_loss<F: Real>(
    frames: &[F],
    labels: &[F],
    head: &Head<F>,
    layout: Layout,
    targets: &Targets,
    options: &Options,
    weights: &[f64],
) -> Result<ProjectedLoss<F>> {
    Workspace::new(options)?.projected_loss(frames, labels, head, layout, targets, weights)
}

impl<F: Real> Workspace<F> {
    /// [`projected_loss`](crate::projected_loss()) with buffers of earlier calls.
    ///
    /// # Errors
    /// As there.
    pub fn projected_loss(
        &mut self,
        frames: &[F],
        labels: &[F],
        head: &Head<F>,
        layout: Layout,
        targets: &Targets,
        weights: &[f64],
    ) -> Result<ProjectedLoss<F>> {
        targets.check_classes(head.classes())?;
        let heads = Heads::new(head, None, targets.blank(), &self.options)?;
        let out = self.heads_loss((frames, labels), &heads, layout, targets, weights)?;
        let HeadsLoss { losses, rows: JointGradient { frames, labels }, mut heads, skipped } = out;
        let (weight, bias) = heads.swap_remove(0);
        Ok(ProjectedLoss { losses, frames, labels, weight, bias, skipped })
    }
}
