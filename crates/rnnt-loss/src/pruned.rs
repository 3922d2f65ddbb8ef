//! Door for pruned training: a trivial joiner chooses the sites, and the joint network sees no others.
use ::pruned::{Batch, FirstPass, Ranges, Source, first_pass};
use panda_core::{Head, Real};
use rnnt_dp::Topology;

use crate::{Error, Layout, Options, ProjectedLoss, Result, Targets, Workspace, error::expect_len};

/// Options of the first pass and of what joins it to the second.
#[derive(Debug, Clone, PartialEq)]
pub struct Pruning {
    /// The trivial joiner; its topology is that of the second pass too.
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
    pub fn warm_up(&self, step: usize, steps: usize) -> Self {
        let progress = if step < steps { step as f64 / steps as f64 } else { 1.0 };
        let between = |from: f64, to: f64| from + progress * (to - from);
        let simple_scale = between(1.0, self.simple_scale);
        Self { simple_scale, pruned_scale: between(0.1 * self.pruned_scale, self.pruned_scale), ..self.clone() }
    }

    fn check(&self) -> Result<()> {
        for (argument, found) in [("simple_scale", self.simple_scale), ("pruned_scale", self.pruned_scale)] {
            if !(0.0..=f64::MAX).contains(&found) {
                return Err(Error::Regulariser { argument, most: f64::MAX, found });
            }
        }
        Ok(())
    }

    /// The topology of the second pass.
    pub fn topology(&self) -> Topology {
        self.first.topology.clone()
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
/// | option | first pass | second pass |
/// |---|---|---|
/// | topology | [`Pruning::first`] | the same |
/// | FastEmit, delay penalty | [`Pruning::first`] | [`Options`] |
/// | smoothing with scores of one side | [`Pruning::first`] | none |
/// | label smoothing, z-loss, clamp, factored blank, σ, skip, budget, precision | none | [`Options`] |
/// | weights of tokens and of utterances | [`Targets`], `weights` | the same |
///
/// # Shapes
/// `source`: scores of T frames and U + 1 label positions an utterance, rows as in `layout`; others as in
/// [`projected_loss`](crate::projected_loss()). [`Options::topology`] is not read: [`Pruning::first`] says it.
///
/// # Errors
/// Those of both passes; a width below 2; a scale that is no number from 0 on; targets of which bands were retained already.
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
        pruning.check()?;
        if !targets.lattices().full() {
            return Err(Error::misplaced("targets.retained", "where pruning chooses the sites", "bands"));
        }
        layout.check(targets)?;
        let pass = first_pass(source, &batch(targets, layout)?, &pruning.first)?;
        let ranges = pass.ranges(pruning.s_range)?;
        let retained = retained(targets, &ranges)?;
        let scaled = |scale: f64| weights.iter().map(|weight| scale * weight).collect::<Vec<f64>>();
        let pruned = scaled(pruning.pruned_scale);
        let topology = std::mem::replace(&mut self.options.topology, pruning.topology());
        let second = self.projected_loss(frames, labels, head, layout, &retained, &pruned);
        self.options.topology = topology;
        let second = second?;
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
    let batch = match layout {
        Layout::Packed => Batch::packed(targets.blank(), frames, labels)?,
        Layout::Padded { frames: most, positions } => {
            Batch::padded(targets.blank(), frames, labels, most, positions)?
        }
    };
    let weights = |b: usize| targets.token_weights(b).to_vec();
    match (0..targets.batch()).all(|b| targets.token_weights(b).is_empty()) {
        true => Ok(batch),
        false => Ok(batch.with_token_weights((0..targets.batch()).map(weights).collect())?),
    }
}

/// The sites that some ranges keep.
fn retained(targets: &Targets, ranges: &Ranges) -> Result<Targets> {
    let bands = |b: usize| (0..targets.frames(b)).map(|frame| ranges.band(b, frame)).collect();
    targets.retained((0..targets.batch()).map(bands).collect())
}
