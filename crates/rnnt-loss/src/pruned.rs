//! Door for pruned training: a trivial joiner chooses the sites, and the joint network sees no others.
use ::pruned::{Batch, FirstPass, Ranges, Source, Transducer, first_pass};
use panda_core::{Head, Real};
use rnnt_dp::Topology;

use crate::{Layout, Options, ProjectedLoss, Result, Targets, Workspace, error::expect_len};

/// Options of the first pass and of what joins it to the second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pruning {
    /// The trivial joiner; its transducer is that of the second pass too.
    pub first: ::pruned::Options,
    /// Label positions that a frame keeps.
    pub s_range: usize,
    /// Factor of the first pass's loss in the sum.
    pub simple_scale: f64,
    /// Factor of the second pass's.
    pub pruned_scale: f64,
}

/// Five positions a frame, half of the simple loss: what k2's recipes end with.
impl Default for Pruning {
    fn default() -> Self {
        Self { first: ::pruned::Options::default(), s_range: 5, simple_scale: 0.5, pruned_scale: 1.0 }
    }
}

impl Pruning {
    /// Scales for a step of training, when bands do not yet mean much: from 1 and 0.1 to the scales of `self`, in a straight
    /// line over `steps` (k2's recipes).
    pub fn warm_up(self, step: usize, steps: usize) -> Self {
        let progress = if step < steps { step as f64 / steps as f64 } else { 1.0 };
        let between = |from: f64, to: f64| from + progress * (to - from);
        let simple_scale = between(1.0, self.simple_scale);
        Self { simple_scale, pruned_scale: between(0.1 * self.pruned_scale, self.pruned_scale), ..self }
    }

    /// The topology of the second pass.
    pub fn topology(&self) -> Topology {
        match self.first.transducer {
            Transducer::Regular => Topology::rnnt(),
            Transducer::Modified => Topology::modified(),
            Transducer::Constrained => Topology::constrained(),
        }
    }
}

/// Losses and gradients of [`pruned_loss`].
#[derive(Debug, Clone, PartialEq)]
pub struct PrunedLoss<F, G> {
    /// `-log P` of each utterance under the trivial joiner, *B*.
    pub simple: Vec<f64>,
    /// The bands that were retained.
    pub ranges: Ranges,
    /// Gradient of the trivial joiner's scores or of what they were made of.
    pub source: G,
    /// Losses under the joint network over the retained sites, and its gradients.
    pub second: ProjectedLoss<F>,
}

/// Pruned transducer loss (Kuang et al., arXiv 2206.13236), with all gradients of
/// `Σ_b weights[b] (simple_scale · simple[b] + pruned_scale · pruned[b])`.
///
/// The first pass ([`first_pass`]) is exact over the whole lattice of a trivial joiner; it says which `s_range` label
/// positions each frame keeps, and no gradient goes through that choice. The second is
/// [`projected_loss`](crate::projected_loss()) over the retained sites ([`Targets::retained`]): pruning leaves out sites and the
/// selected normaliser keeps no classes, so that neither lattice nor vocabulary costs memory.
///
/// # Shapes
/// `source`: scores of T frames and U + 1 label positions an utterance, rows as in `layout`; others as in
/// [`projected_loss`](crate::projected_loss()). [`Options::topology`] is not read: [`Pruning::first`] says it.
///
/// # Errors
/// Those of both passes; a width below 2.
///
/// # Cost
/// That of both passes: about Σ T (U+1) C multiply-adds three times, and 6 to 8 H C for each of Σ T · s_range sites.
pub fn pruned_loss<F: Real, S: Source<F>>(
    source: &S,
    frames: &[F],
    labels: &[F],
    head: &Head<F>,
    layout: Layout,
    targets: &Targets,
    options: &Options,
    pruning: &Pruning,
    weights: &[f64],
) -> Result<PrunedLoss<F, S::Gradient>> {
    Workspace::new(options)?.pruned_loss(source, frames, labels, head, layout, targets, pruning, weights)
}

impl<F: Real> Workspace<F> {
    /// [`pruned_loss`](crate::pruned_loss()) with buffers of earlier calls.
    ///
    /// # Errors
    /// As there.
    pub fn pruned_loss<S: Source<F>>(
        &mut self,
        source: &S,
        frames: &[F],
        labels: &[F],
        head: &Head<F>,
        layout: Layout,
        targets: &Targets,
        pruning: &Pruning,
        weights: &[f64],
    ) -> Result<PrunedLoss<F, S::Gradient>> {
        expect_len("weights", targets.batch(), weights.len())?;
        layout.check(targets)?;
        let pass = first_pass(source, &batch(targets, layout)?, &pruning.first)?;
        let ranges = pass.ranges(pruning.s_range)?;
        let retained = retained(targets, &ranges)?;
        self.options.topology = pruning.topology();
        let scaled = |scale: f64| weights.iter().map(|weight| scale * weight).collect::<Vec<f64>>();
        let pruned = scaled(pruning.pruned_scale);
        let second = self.projected_loss(frames, labels, head, layout, &retained, &pruned)?;
        let gradient = pass.backward(source, &scaled(pruning.simple_scale))?;
        let FirstPass { losses: simple, .. } = pass;
        Ok(PrunedLoss { simple, ranges, source: gradient, second })
    }
}

/// The batch of the first pass.
fn batch(targets: &Targets, layout: Layout) -> Result<Batch> {
    let each = 0..targets.batch();
    let frames = each.clone().map(|b| targets.frames(b)).collect();
    let labels = each.map(|b| targets.labels(b).to_vec()).collect();
    Ok(match layout {
        Layout::Packed => Batch::packed(targets.blank(), frames, labels)?,
        Layout::Padded { frames: most, positions } => {
            Batch::padded(targets.blank(), frames, labels, most, positions)?
        }
    })
}

/// The sites that some ranges keep.
fn retained(targets: &Targets, ranges: &Ranges) -> Result<Targets> {
    let bands = |b: usize| (0..targets.frames(b)).map(|frame| ranges.band(b, frame)).collect();
    targets.retained((0..targets.batch()).map(bands).collect())
}
