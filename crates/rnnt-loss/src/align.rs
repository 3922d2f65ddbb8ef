//! Forced alignment: assigns each label of a known transcript to a frame.
//!
//! The alignment is the most probable path through the lattice; posteriors over all paths give
//! confidences and expected frames. Utterances are processed in groups that fit into the budget.
use std::{borrow::Cow, ops::Range};

use panda_core::Real;
use panda_core::{DEFAULT_BUDGET, Plan};
use rnnt_dp::{Topology, best_path, confidences, expected_emission_frames};

use crate::{
    Error, Inputs, JointInputs, Loss, Options, Result, Targets, budget::SessionBuffers, head_call::HeadCall,
    inputs::InputValues, pruned::second_loss,
};

/// A label with its frame on the best path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AlignedLabel {
    /// The label.
    pub label: u32,
    /// Frame at which the best path emits it.
    pub frame: usize,
    /// Log-probability of the arc that emits it.
    pub log_prob: f64,
    /// Posterior probability of its emission at this frame, over all paths.
    pub confidence: f64,
    /// Expected frame of its emission, over all paths.
    pub expected_frame: f64,
}

/// The best path of an utterance.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelAlignment {
    /// Aligned labels in order.
    pub tokens: Vec<AlignedLabel>,
    /// Log-probability of the best path.
    pub log_prob: f64,
    /// `-log P` over all paths.
    pub loss: f64,
}

/// Implements [`Session::align`](crate::Session::align).
pub(crate) fn alignments<F: Real>(
    session_options: &Options,
    joint: &JointInputs<F>,
    targets: &Targets,
) -> Result<Vec<Option<LabelAlignment>>> {
    // Regularizers are off, so that probabilities are those of the model. No scores are kept, as
    // there is no backward pass.
    let (loss, topology) = without_regularization(&session_options.loss)?;
    let options = Options {
        loss,
        activation: session_options.activation,
        precision: session_options.precision,
        budget: if session_options.budget < DEFAULT_BUDGET { session_options.budget } else { usize::MAX },
        keep_scores: false,
        plan: session_options.plan.map(|plan| Plan { saved_scores: 0, ..plan }),
        ..Options::default()
    };
    let (mut buffers, targets) = (SessionBuffers::default(), targets.unweighted());
    let joint = JointInputs { dropout: None, ..*joint };
    let (loss, values) = (Cow::Borrowed(&options.loss), Inputs::from(joint).values());
    let call = HeadCall::joint(&joint, loss, Cow::Borrowed(&targets), &options)?;
    let plan = call.sizes(&options, 0).in_groups::<F>()?;
    buffers.apply_plan(&plan, call.heads(&options), &options)?;
    let mut alignments = Vec::with_capacity(targets.batch());
    for group in plan.groups {
        let first = group.start;
        let group_alignments = align_group(&call, &values, (&topology, &options), group, &mut buffers);
        alignments.extend(group_alignments.map_err(|error: Error| error.in_group(first))?);
    }
    Ok(alignments)
}

fn align_group<F: Real>(
    call: &HeadCall<F>,
    values: &InputValues<F>,
    (topology, options): (&Topology, &Options),
    utterances: Range<usize>,
    buffers: &mut SessionBuffers<F>,
) -> Result<Vec<Option<LabelAlignment>>> {
    let objective = call.part(utterances.clone());
    let group = call.group(values, &objective, utterances, buffers)?;
    let targets = group.targets();
    let lattices = targets.lattices();
    let state = group.forward(options, buffers)?;
    let (losses, emissions, adjoints) = (state.losses(), state.emissions(), state.adjoints());
    let paths = best_path(lattices, topology, &emissions)?;
    let confidences = confidences(lattices, topology, adjoints, &paths)?;
    let expected = expected_emission_frames(lattices, topology, adjoints)?;
    let alignment = |utterance: usize| {
        let steps = paths[utterance].label_steps(topology).zip(targets.labels(utterance));
        let times = confidences[utterance].iter().zip(&expected[utterance]);
        let tokens = steps.zip(times).map(|((step, &label), (&confidence, &expected_frame))| {
            let (frame, log_prob) = (step.site.frame, step.log_prob);
            AlignedLabel { label, frame, log_prob, confidence, expected_frame }
        });
        let (log_prob, loss) = (paths[utterance].log_prob, losses[utterance]);
        loss.is_finite().then(|| LabelAlignment { tokens: tokens.collect(), log_prob, loss })
    };
    let alignments = (0..lattices.batch()).map(alignment).collect();
    drop(emissions);
    state.release(buffers);
    group.release(buffers);
    Ok(alignments)
}

/// Returns the loss with the same arcs, without regularization.
///
/// σ is logit under-normalization, ω the share of the RNN-T loss in TDT.
fn without_regularization(loss: &Loss) -> Result<(Loss, Topology)> {
    match second_loss(loss) {
        Loss::Transducer { topology, tokens, .. } => {
            Ok((Loss::Transducer { topology: topology.clone(), tokens, sigma: 0.0 }, topology))
        }
        Loss::Tdt { topology, .. } => {
            Ok((Loss::Tdt { topology: topology.clone(), sigma: 0.0, omega: 0.0 }, topology))
        }
        Loss::Pruned { .. } | Loss::Ctc => Err(Error::joint_with_ctc()),
    }
}

#[cfg(test)]
mod tests {
    // Compared with dense scores and the functions of the lattice.
    use panda_core::Head;
    use rnnt_dp::{Regularizers, Topology, forward_backward};

    use super::*;
    use crate::Session;
    use crate::{Layout, TokenNormalization};

    /// Deterministic pseudo-random numbers.
    fn wave(count: usize, step: f64, scale: f64) -> Vec<f64> {
        (0..count).map(|i| scale * (step * (i * i + 3 * i + 1) as f64).sin()).collect()
    }

    const HIDDEN: usize = 5;
    const CLASSES: usize = 6;
    const BLANK: usize = 2;

    struct Case {
        frames: Vec<f64>,
        labels: Vec<f64>,
        head: Vec<f64>,
        durations: Vec<f64>,
        bias: Vec<f64>,
        targets: Targets,
    }

    impl Case {
        /// T = 4, 2, 6 and U = 2, 3, 0; with one label per frame, the second has no path.
        fn new() -> Self {
            let targets = Targets::new(BLANK as u32, vec![4, 2, 6], vec![vec![1, 5], vec![3, 3, 0], vec![]]);
            Self {
                frames: wave(12 * HIDDEN, 0.7, 1.5),
                labels: wave(8 * HIDDEN, 1.1, 1.5),
                head: wave(CLASSES * HIDDEN, 0.3, 1.0),
                durations: wave(3 * HIDDEN, 0.9, 1.0),
                bias: wave(CLASSES, 2.3, 0.5),
                targets: targets.unwrap(),
            }
        }

        /// Emissions of all sites by the definition.
        ///
        /// `tokens` returns the log-probabilities of the blank and the next label.
        fn emissions(
            &self,
            tokens: impl Fn(&[f64], Option<usize>) -> [f64; 2],
            with_durations: bool,
        ) -> Vec<f64> {
            let scores = |h: &[f64], weight: &[f64], bias: &[f64]| -> Vec<f64> {
                let rows = weight.chunks(HIDDEN).zip(bias);
                rows.map(|(row, bias)| row.iter().zip(h).map(|(w, h)| w * h).sum::<f64>() + bias).collect()
            };
            let (mut out, mut frame_row, mut label_row) = (Vec::new(), 0, 0);
            for b in 0..self.targets.batch() {
                let labels = self.targets.labels(b);
                for site in self.targets.lattices().utterance_sites(b) {
                    let (f, g) = (frame_row + site.frame, label_row + site.label);
                    let rows =
                        self.frames[f * HIDDEN..][..HIDDEN].iter().zip(&self.labels[g * HIDDEN..][..HIDDEN]);
                    let h: Vec<f64> = rows.map(|(f, g)| (f + g).tanh()).collect();
                    let next = labels.get(site.label).map(|&label| label as usize);
                    out.extend(tokens(&scores(&h, &self.head, &self.bias), next));
                    if with_durations {
                        let z = scores(&h, &self.durations, &[0.0; 3]);
                        out.extend((0..3).map(|d| z[d] - log_sum(&z)));
                    }
                }
                frame_row += self.targets.frames(b);
                label_row += labels.len() + 1;
            }
            out
        }

        fn joint(&self) -> JointInputs<'_, f64> {
            JointInputs::new(
                &self.frames,
                &self.labels,
                Head::new(&self.head, Some(&self.bias), HIDDEN).unwrap(),
            )
        }

        fn check(&self, emissions: &[f64], durations: Option<Head<f64>>, options: &Options) {
            let (lattices, topology) = (self.targets.lattices(), options.loss.topology().unwrap());
            let joint = JointInputs { durations, ..self.joint() };
            let alignments = Session::new(options).unwrap().align(&joint, &self.targets).unwrap();
            let posterior =
                forward_backward(lattices, topology, emissions, &Regularizers::default()).unwrap();
            let paths = best_path(lattices, topology, emissions).unwrap();
            let confidences = confidences(lattices, topology, &posterior.adjoints, &paths).unwrap();
            let expected = expected_emission_frames(lattices, topology, &posterior.adjoints).unwrap();
            assert!(alignments.iter().any(Option::is_some));
            for (b, alignment) in alignments.iter().enumerate() {
                assert_eq!(alignment.is_some(), posterior.losses[b].is_finite());
                let Some(alignment) = alignment else { continue };
                assert!((alignment.loss - posterior.losses[b]).abs() < 1e-12);
                assert!((alignment.log_prob - paths[b].log_prob).abs() < 1e-12);
                let steps: Vec<_> = paths[b].label_steps(topology).collect();
                assert_eq!(
                    (alignment.tokens.len(), steps.len()),
                    (confidences[b].len(), self.targets.labels(b).len())
                );
                for (u, token) in alignment.tokens.iter().enumerate() {
                    assert_eq!((token.label, token.frame), (self.targets.labels(b)[u], steps[u].site.frame));
                    assert!((token.log_prob - steps[u].log_prob).abs() < 1e-12);
                    assert!((token.confidence - confidences[b][u]).abs() < 1e-12);
                    assert!((token.expected_frame - expected[b][u]).abs() < 1e-11);
                }
            }
        }
    }

    fn log_sum(z: &[f64]) -> f64 {
        z.iter().map(|z| z.exp()).sum::<f64>().ln()
    }

    fn softmax(z: &[f64], next: Option<usize>) -> [f64; 2] {
        [z[BLANK] - log_sum(z), next.map_or(-1.0, |next| z[next] - log_sum(z))]
    }

    #[test]
    fn alignments_match_best_paths_of_dense_scores() {
        let mut case = Case::new();
        // Groups of one utterance, regularizers and token weights change nothing.
        case.targets = case.targets.with_token_weights(vec![vec![0.5, 2.0], vec![3.0; 3], vec![]]).unwrap();
        let plan = Plan::custom(1, 1, 4, 1, 0);
        for topology in [Topology::rnnt(), Topology::modified(), Topology::constrained()] {
            let plain = Options::new(Loss::with_topology(topology));
            case.check(&case.emissions(softmax, false), None, &plain);
            let cut = Options { plan: Some(plan), fastemit: 0.3, delay_penalty: 0.1, skip: 0.5, ..plain };
            case.check(&case.emissions(softmax, false), None, &cut);
            let with_z_loss = Options { skip: 0.0, z_loss: 0.1, ..cut };
            case.check(&case.emissions(softmax, false), None, &with_z_loss);
        }
    }

    #[test]
    fn durations_and_factored_blanks_are_supported() {
        let case = Case::new();
        let durations = Head::new(&case.durations, None, HIDDEN).unwrap();
        let topology = Topology::tdt(&[0, 1, 2]).unwrap();
        let options = Options::new(Loss::Tdt { topology, sigma: 0.1, omega: 0.2 });
        case.check(&case.emissions(softmax, true), Some(durations), &options);

        let factored = |z: &[f64], next: Option<usize>| {
            let label_scores: Vec<f64> = (0..CLASSES).filter(|&c| c != BLANK).map(|c| z[c]).collect();
            let sigmoid = |z: f64| -(-z).exp().ln_1p();
            let label = |next: usize| sigmoid(-z[BLANK]) + z[next] - log_sum(&label_scores);
            [sigmoid(z[BLANK]), next.map_or(-1.0, label)]
        };
        let (topology, tokens) = (Topology::rnnt(), TokenNormalization::FactoredBlank);
        for sigma in [0.0, 0.3] {
            let options = Options::new(Loss::Transducer { topology: topology.clone(), tokens, sigma });
            case.check(&case.emissions(factored, false), None, &options);
        }
    }

    #[test]
    fn padding_and_batch_mates_change_nothing() {
        let case = Case::new();
        let session = Session::new(&Options::new(Loss::with_topology(Topology::modified()))).unwrap();
        let packed = session.align(&case.joint(), &case.targets).unwrap();
        let (mut frames, mut labels) = (vec![f64::NAN; 3 * 7 * HIDDEN], vec![f64::NAN; 3 * 5 * HIDDEN]);
        for (b, (f, g)) in [(0, 0), (4, 3), (6, 7)].into_iter().enumerate() {
            let (t, u) = (case.targets.frames(b) * HIDDEN, (case.targets.labels(b).len() + 1) * HIDDEN);
            frames[b * 7 * HIDDEN..][..t].copy_from_slice(&case.frames[f * HIDDEN..][..t]);
            labels[b * 5 * HIDDEN..][..u].copy_from_slice(&case.labels[g * HIDDEN..][..u]);
            let alone = case.targets.part(b..b + 1);
            let (f, g) = (&case.frames[f * HIDDEN..][..t], &case.labels[g * HIDDEN..][..u]);
            let alone = session.align(&JointInputs::new(f, g, case.joint().head), &alone).unwrap();
            assert_eq!(alone[0], packed[b]);
        }
        let layout = Layout::Padded { frames: 7, positions: 5 };
        let joint = JointInputs::new(&frames, &labels, case.joint().head).with_layout(layout);
        let padded = session.align(&joint, &case.targets).unwrap();
        assert_eq!(padded, packed);
        assert!(packed[1].is_none() && packed[2].as_ref().unwrap().tokens.is_empty());
    }

    #[test]
    fn invalid_inputs_are_errors() {
        let case = Case::new();
        let run = |encoded: &[f64], durations: Option<Head<f64>>, loss: Loss| {
            let joint = JointInputs { encoded, durations, ..case.joint() };
            Session::new(&Options::new(loss))?.align(&joint, &case.targets)
        };
        let short = run(&case.frames[1..], None, Loss::rnnt());
        assert!(matches!(short, Err(Error::Shape { argument: "encoded", .. })));
        let narrow = Head::new(&case.durations[..3 * 3], None, 3).unwrap();
        let error = run(&case.frames, Some(narrow), Loss::tdt(&[0, 1, 2]).unwrap());
        assert!(matches!(error, Err(Error::Shape { argument: "durations", .. })));
        let error = run(&case.frames, None, Loss::tdt(&[0, 1, 2]).unwrap());
        assert!(matches!(error, Err(Error::Durations { expected: 3, found: 0 })));
        let error = run(&case.frames, None, Loss::with_topology(Topology::tdt(&[0, 1, 2]).unwrap()));
        assert!(matches!(error, Err(Error::Columns { expected: 2, found: 5, .. })));
        assert!(matches!(run(&case.frames, None, Loss::Ctc), Err(Error::Inputs { .. })));
        let mut frames = case.frames.clone();
        frames[5 * HIDDEN] = f64::NAN;
        let error = run(&frames, None, Loss::rnnt()).unwrap_err();
        assert!(matches!(error, Error::Scores { utterance: 1, frame: 1, .. }), "{error}");
    }
}
