//! Pruned training: a trivial joiner chooses the sites, and the joint network sees no others.
use ::pruned::Unigram;
use panda_core::Real;

use crate::{
    Error, Loss, Options, Output, PrunedJoint, Result, Scales, Session, Targets,
    budget::CallPlan,
    call::Call,
    error::expect_len,
    first_pass::{FirstPlan, Question, retained},
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
/// | budget | yes | yes |
/// | label smoothing, z-loss, clamp, factored blank, skip, precision | no | yes |
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
    pub(crate) fn check(self) -> Result<()> {
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

/// Both passes, planned.
pub(crate) struct BothPlans {
    pub question: Question,
    pub first: FirstPlan,
    /// Of the second, the first's bytes included.
    pub second: CallPlan,
    heads: usize,
}

impl BothPlans {
    /// Makes every part of the session keep to both.
    pub fn keep<F: Real>(&self, session: &mut Session<F>) -> Result<()> {
        session.first.keep_within(&self.first.of_group, self.second.left);
        session.keep_to(&self.second, self.heads)
    }
}

/// Half of the budget at most for the first pass, unless its smallest cut needs more; a quarter where the second cannot keep most of its
/// scores beside half, if the first still takes utterances together then: one alone leaves threads without work.
///
/// # Errors
/// As the passes, as far as shapes tell; [`Error::Budget`] with the bytes of the smallest cuts of both.
pub(crate) fn plan<F: Real>(
    options: &Options,
    inputs: &PrunedJoint<F>,
    targets: &Targets,
    whole: bool,
) -> Result<BothPlans> {
    let question = Question::new(options, inputs, &options.loss, targets)?;
    let second = second_loss(&options.loss);
    let shapes = question.shapes(targets)?;
    let call = Call::joint(&inputs.joint, &second, &shapes, options)?;
    let with = |bytes: usize| {
        let first = question.plan(&inputs.simple, bytes, whole);
        let sizes = call.sizes(options, first.bytes);
        let second = if whole { sizes.whole::<F>() } else { sizes.in_groups::<F>() };
        second.map(|second| (first, second))
    };
    let limit = options.working_bytes();
    let (first, second) = match with(limit / 2) {
        Ok(half) if !half.1.kept => {
            let together = |first: &FirstPlan| first.groups.len() <= targets.batch().div_ceil(2);
            with(limit / 4).ok().filter(|(first, _)| together(first)).unwrap_or(half)
        }
        Err(Error::Budget { .. }) => with(0)?,
        both => both?,
    };
    let heads = call.heads.list()?.len();
    Ok(BothPlans { question, first, second, heads })
}

/// Weights of the utterances times the scale of a pass.
pub(crate) fn scaled(weights: &[f64], scale: f64) -> Vec<f64> {
    weights.iter().map(|weight| scale * weight).collect()
}

/// Both passes utterance group by utterance group, one after the other.
pub(crate) fn sum<F: Real>(
    session: &mut Session<F>,
    inputs: &PrunedJoint<F>,
    targets: &Targets,
    weights: &[f64],
) -> Result<Output<F>> {
    expect_len("weights", targets.batch(), weights.len())?;
    let plans = plan(&session.options, inputs, targets, false)?;
    plans.keep(session)?;
    let (BothPlans { question, first, .. }, simple) = (plans, scaled(weights, inputs.scales.simple));
    let (gradient, found) = question.sum(&inputs.simple, &first, &simple, &mut session.first)?;
    let (second, retained) = (second_loss(&session.options.loss), retained(targets, &found.ranges)?);
    let call = Call::joint(&inputs.joint, &second, &retained, &session.options)?;
    let mut out = call.sum(session, &scaled(weights, inputs.scales.pruned), first.bytes)?;
    out.gradients.simple = Some(gradient);
    out.first_pass = Some(found);
    Ok(out)
}
