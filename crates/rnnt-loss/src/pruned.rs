//! Pruned training: a trivial joiner chooses the sites, and the joint network sees no others.
use ::pruned::{Batch, FirstPass, Ranges, Unigram};
use kernels::Real;

use crate::{
    Error, Found, Layout, Loss, Options, Output, PrunedJoint, Result, Scales, Session, Simple,
    SimpleGradient, Targets, call::Call, error::expect_len,
};

/// How the trivial joiner chooses sites, for [`Loss::Pruned`].
///
/// The first pass ([`pruned::first_pass`](fn@::pruned::first_pass)) is exact over the whole lattice; it says which label positions
/// each frame keeps, and no gradient goes through that choice. The second is that of [`Loss::Transducer`] over the retained
/// sites ([`Targets::retained`]): pruning leaves out sites and the selected normaliser keeps no classes, so that neither lattice
/// nor vocabulary costs memory.
///
/// | option | first pass | second pass |
/// |---|---|---|
/// | topology, FastEmit, delay penalty, weights of tokens and of utterances | yes | yes |
/// | shares below | yes | no |
/// | label smoothing, z-loss, clamp, factored blank, skip, budget, precision | no | yes |
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pruning {
    /// Label positions that a frame keeps.
    pub s_range: usize,
    /// Share of the trivial joiner's log-probabilities that the label scores have alone.
    pub lm_only_scale: f64,
    /// Share that the frame scores and the unigram have alone.
    pub am_only_scale: f64,
    /// What the unigram is averaged over.
    pub unigram: Unigram,
}

/// Five positions a frame, no smoothing.
impl Default for Pruning {
    fn default() -> Self {
        Self { s_range: 5, lm_only_scale: 0.0, am_only_scale: 0.0, unigram: Unigram::default() }
    }
}

impl Pruning {
    /// The first pass checks shares and width where it meets them.
    pub(crate) fn check(&self) -> Result<()> {
        Ok(())
    }
}

impl Scales {
    fn check(self) -> Result<()> {
        for (argument, found) in [("scales.simple", self.simple), ("scales.pruned", self.pruned)] {
            if !(0.0..=f64::MAX).contains(&found) {
                return Err(Error::Regulariser { argument, most: f64::MAX, found });
            }
        }
        Ok(())
    }
}

/// The loss of the retained sites.
pub(crate) fn second_loss(loss: &Loss) -> Loss {
    match loss {
        Loss::Pruned { topology, tokens, .. } => {
            Loss::Transducer { topology: topology.clone(), tokens: *tokens, sigma: 0.0 }
        }
        other => other.clone(),
    }
}

/// First pass, what it found, and the targets that are left of the lattice.
pub(crate) fn first_pass<F: Real>(
    options: &Options,
    inputs: &PrunedJoint<F>,
    loss: &Loss,
    targets: &Targets,
) -> Result<(FirstPass<F>, Found, Targets)> {
    let Loss::Pruned { topology, pruning, .. } = loss else {
        let expected = "those of the loss, which has no first pass";
        return Err(Error::Inputs { expected, found: "a trivial joiner" });
    };
    inputs.scales.check()?;
    if !targets.lattices().full() {
        return Err(Error::misplaced("targets.retained", "where pruning chooses the sites", "bands"));
    }
    let layout = inputs.joint.layout;
    layout.check(targets)?;
    let first = ::pruned::Options {
        topology: topology.clone(),
        lm_only_scale: pruning.lm_only_scale,
        am_only_scale: pruning.am_only_scale,
        unigram: pruning.unigram,
        delay_penalty: options.delay_penalty,
        fastemit: options.fastemit,
    };
    let batch = batch(targets, layout)?;
    let pass = match &inputs.simple {
        Simple::Matrices(source) => ::pruned::first_pass(source, &batch, &first)?,
        Simple::Heads(source) => ::pruned::first_pass(source, &batch, &first)?,
    };
    let ranges = pass.ranges(pruning.s_range)?;
    let retained = retained(targets, &ranges)?;
    let found = Found { losses: pass.losses.clone(), ranges };
    Ok((pass, found, retained))
}

/// Bytes beside arguments and results.
pub(crate) fn bytes<F: Real>(
    options: &Options,
    inputs: &PrunedJoint<F>,
    targets: &Targets,
    whole: bool,
) -> Result<usize> {
    let (_, found, retained) = first_pass(options, inputs, &options.loss, targets)?;
    let second = second_loss(&options.loss);
    let call = Call::joint(&inputs.joint, &second, &retained, options)?;
    drop(found);
    let sizes = call.sizes(options, 0);
    Ok(if whole { sizes.whole::<F>()? } else { sizes.in_groups::<F>()? }.bytes)
}

/// Gradient of the trivial joiner under the weights of the utterances and its scale.
pub(crate) fn pull_back_first<F: Real>(
    pass: &FirstPass<F>,
    inputs: &PrunedJoint<F>,
    weights: &[f64],
) -> Result<SimpleGradient<F>> {
    let weights: Vec<f64> = weights.iter().map(|weight| inputs.scales.simple * weight).collect();
    Ok(match &inputs.simple {
        Simple::Matrices(source) => SimpleGradient::Matrices(pass.backward(source, &weights)?),
        Simple::Heads(source) => SimpleGradient::Heads(pass.backward(source, &weights)?),
    })
}

impl<F: Real> Session<F> {
    /// Both passes, the second utterance group by utterance group.
    pub(crate) fn sum_of_both(
        &mut self,
        inputs: &PrunedJoint<F>,
        loss: &Loss,
        targets: &Targets,
        weights: &[f64],
    ) -> Result<Output<F>> {
        expect_len("weights", targets.batch(), weights.len())?;
        let (pass, found, retained) = first_pass(&self.options, inputs, loss, targets)?;
        let second = second_loss(loss);
        let scaled: Vec<f64> = weights.iter().map(|weight| inputs.scales.pruned * weight).collect();
        let mut out = {
            let call = Call::joint(&inputs.joint, &second, &retained, &self.options)?;
            self.sum_of(&call, &scaled, 0)?
        };
        out.gradients.simple = Some(pull_back_first(&pass, inputs, weights)?);
        out.first_pass = Some(found);
        Ok(out)
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
