//! Numerator of the lattice loss: log-sum over the paths of a transcript.
//!
//! The weight function computes two arc weights at each site, a frame t and a label position u:
//! `B[t,u]` of the blank (`blank`) and `L[t,u]` of the label after position u (`label_arcs`).
//! Forward returns `log S` of each utterance; backward propagates the marginals of these arcs.
//! `α[u]`: log-sum over the paths to u; a_i (a level): the same over paths that emit i labels in
//! the frame; N frames, M labels, at most K labels per frame.
//!
//! ```text
//! one label or a blank:  α'[u] = log(exp(α[u] + B[t,u]) + exp(α[u-1] + L[t,u-1]))
//! K labels, a blank:     a_0 = α    a_{i+1}[u+1] = a_i[u] + L[t,u]
//!                        α'[u] = B[t,u] + log Σ_i exp a_i[u]
//! log S = α_N[M]
//! ```
//! All sums are f64, which is cheap because there are few sites. Without a path all derivatives are
//! 0.
use kernels::{Real, ScratchReq, items_mut, par_for};
use rnnt_dp::semiring::{Log, Semiring};

use crate::{
    AlignmentLattice, Arcs, ArcsMut, BoundWeights, Error, LabelChain, Labels, Result,
    context::{Context, walk_states},
    denominator::POSTERIOR_SUM_RANGE,
    utterance_group::UtteranceGroup,
};

/// Log-weight of a path that does not exist.
const BLOCKED: f64 = f64::NEG_INFINITY;

/// Transcripts of a group of utterances, and the weights of their arcs.
#[derive(Default)]
pub(crate) struct Numerator<F> {
    /// Transcript of each utterance; none without a path.
    transcripts: Vec<Option<TranscriptStates>>,
    /// Weights of blanks and of labels, *N x (M + 1)* each, by utterance.
    ///
    /// Forward replaces them by marginals if it saves the state for backward.
    arc_weights: Vec<(Vec<F>, Vec<F>)>,
}

/// Context states and labels of an utterance with a path.
struct TranscriptStates {
    /// Context states, *M + 1*.
    states: Vec<usize>,
    /// Labels, *M*.
    labels: Vec<u32>,
}

impl<F: Real> Numerator<F> {
    /// Memory of arc weights.
    pub(crate) fn allocated(&self) -> ScratchReq {
        let lengths =
            self.arc_weights.iter().map(|(blank, label_arcs)| blank.capacity() + label_arcs.capacity());
        ScratchReq::new::<F>(lengths.sum())
    }

    /// Computes `log S` of each utterance.
    ///
    /// `saves_marginals` replaces the weights by marginals, for [`backward`](Self::backward).
    pub(crate) fn forward(
        &mut self,
        context: &dyn Context,
        alignment: AlignmentLattice,
        weights: &dyn BoundWeights<F>,
        group: &UtteranceGroup,
        labels: &Labels,
        saves_marginals: bool,
    ) -> Result<Vec<f64>> {
        self.compute_arc_weights(context, alignment, weights, group, labels)?;
        // `log S` of each utterance, and a frame whose marginals do not sum to 1.
        let mut results = vec![(BLOCKED, None); group.len()];
        let transcripts = &self.transcripts;
        par_for(
            (items_mut(&mut results), items_mut(&mut self.arc_weights)),
            |index, (result, (blank, label_arcs))| {
                if let Some(transcript) = &transcripts[index] {
                    let (frames, positions) = (group.frame_range(index).len(), transcript.states.len());
                    let lattice = TranscriptLattice { alignment, frames, positions };
                    let sites = frames * positions;
                    *result = lattice.log_sum(&mut blank[..sites], &mut label_arcs[..sites], saves_marginals);
                }
            },
        );
        for (utterance, &(_, imprecise_frame)) in group.utterances.clone().zip(&results) {
            if let Some((frame, sum)) = imprecise_frame {
                return Err(Error::Precision { utterance, frame, sum });
            }
        }
        Ok(results.into_iter().map(|(log_sum, _)| log_sum).collect())
    }

    /// Stores the transcripts of a group and computes their arc weights.
    pub(crate) fn compute_arc_weights(
        &mut self,
        context: &dyn Context,
        alignment: AlignmentLattice,
        weights: &dyn BoundWeights<F>,
        group: &UtteranceGroup,
        labels: &Labels,
    ) -> Result<()> {
        self.transcripts.clear();
        self.arc_weights.resize_with(self.arc_weights.len().max(group.len()), Default::default);
        for (index, utterance) in group.utterances.clone().enumerate() {
            let labels = labels
                .utterance(utterance)
                .filter(|labels| alignment.has_path(group.frame_range(index).len(), labels.len()));
            self.transcripts.push(match labels {
                None => None,
                Some(labels) => {
                    Some(TranscriptStates { states: walk_states(context, labels)?, labels: labels.to_vec() })
                }
            });
            let Some(transcript) = &self.transcripts[index] else { continue };
            let sites = group.frame_range(index).len() * transcript.states.len();
            let (blank, label_arcs) = &mut self.arc_weights[index];
            for buffer in [&mut *blank, &mut *label_arcs] {
                kernels::ensure_len(buffer, sites, F::ZERO);
            }
            let arcs = ArcsMut { blank: &mut blank[..sites], labels: &mut label_arcs[..sites] };
            weights.forward_chain(group.frame_range(index).start, transcript.label_chain(), arcs)?;
        }
        Ok(())
    }

    /// Returns the labels and arc weights of an utterance.
    ///
    /// None if the labels do not fit into the frames.
    pub(crate) fn labels_and_arcs(
        &self,
        group: &UtteranceGroup,
        index: usize,
    ) -> Option<(&[u32], Arcs<'_, F>)> {
        let transcript = self.transcripts[index].as_ref()?;
        let sites = group.frame_range(index).len() * transcript.states.len();
        let (blank, label_arcs) = &self.arc_weights[index];
        Some((&transcript.labels, Arcs { blank: &blank[..sites], labels: &label_arcs[..sites] }))
    }

    /// Propagates the marginals, times `cotangents`, to parameters and frames.
    pub(crate) fn backward(
        &mut self,
        weights: &mut dyn BoundWeights<F>,
        group: &UtteranceGroup,
        cotangents: &[f64],
    ) -> Result<()> {
        for (index, &cotangent) in cotangents.iter().enumerate() {
            let Some(transcript) = &self.transcripts[index] else { continue };
            let sites = group.frame_range(index).len() * transcript.states.len();
            if cotangent == 0.0 || sites == 0 {
                continue;
            }
            let (blank, label_arcs) = &mut self.arc_weights[index];
            let (blank, label_arcs) = (&mut blank[..sites], &mut label_arcs[..sites]);
            let scale = F::from_f64(cotangent);
            blank.iter_mut().chain(&mut *label_arcs).for_each(|marginal| *marginal *= scale);
            weights.backward_chain(
                group.frame_range(index).start,
                transcript.label_chain(),
                Arcs { blank, labels: label_arcs },
            )?;
        }
        Ok(())
    }
}

impl TranscriptStates {
    fn label_chain(&self) -> LabelChain<'_> {
        LabelChain { states: &self.states, labels: &self.labels }
    }
}

/// The lattice of one transcript: frames x label positions.
struct TranscriptLattice {
    alignment: AlignmentLattice,
    /// N, the number of frames.
    frames: usize,
    /// M + 1, the number of label positions.
    positions: usize,
}

impl TranscriptLattice {
    /// Computes `log S`; replaces the weights by marginals if `saves_marginals` is true.
    ///
    /// Also returns an imprecise frame, whose marginals do not sum to 1, and their sum.
    fn log_sum<F: Real>(
        &self,
        blank: &mut [F],
        label_arcs: &mut [F],
        saves_marginals: bool,
    ) -> (f64, Option<(usize, f64)>) {
        let Self { frames, positions, .. } = *self;
        // Forward: `α` before each frame and after the last.
        let mut alpha = vec![BLOCKED; (frames + 1) * positions];
        alpha[0] = 0.0;
        let mut levels = vec![BLOCKED; self.alignment.num_states() * positions];
        for t in 0..frames {
            let (current, later) = alpha[t * positions..].split_at_mut(positions);
            let arcs = Arcs {
                blank: &blank[t * positions..][..positions],
                labels: &label_arcs[t * positions..][..positions],
            };
            self.forward(current, arcs, &mut later[..positions], &mut levels);
        }
        let log_sum = alpha[(frames + 1) * positions - 1];
        if !saves_marginals {
            return (log_sum, None);
        }
        // Backward: the marginals, frame by frame.
        let mut beta = vec![BLOCKED; positions];
        beta[positions - 1] = if log_sum.is_finite() { -log_sum } else { BLOCKED };
        let mut imprecise_frame = None;
        for t in (0..frames).rev() {
            let blank = &mut blank[t * positions..][..positions];
            let label_arcs = &mut label_arcs[t * positions..][..positions];
            let arcs = ArcsMut { blank: &mut *blank, labels: &mut *label_arcs };
            self.backward(&alpha[t * positions..][..positions], arcs, &mut beta, &mut levels);
            // A path has one blank in each frame or, if a label ends the frame, exactly one arc.
            let other_arcs: &[F] = if self.alignment.expansions().is_some() { &[] } else { label_arcs };
            let frame_sum: f64 = blank.iter().chain(other_arcs).map(|marginal| marginal.to_f64()).sum();
            if log_sum.is_finite() && !POSTERIOR_SUM_RANGE.contains(&frame_sum) {
                imprecise_frame = Some((t, frame_sum));
            }
        }
        (log_sum, imprecise_frame)
    }

    /// Computes `α` after a frame.
    fn forward<F: Real>(
        &self,
        alpha: &[f64],
        Arcs { blank, labels: label_arcs }: Arcs<F>,
        next: &mut [f64],
        levels: &mut [f64],
    ) {
        let [b, l] = [blank, label_arcs].map(|arcs| |u: usize| arcs[u].to_f64());
        match self.alignment.expansions() {
            None => {
                next[0] = alpha[0] + b(0);
                for u in 1..alpha.len() {
                    next[u] = Log::plus(alpha[u] + b(u), alpha[u - 1] + l(u - 1));
                }
            }
            Some(labels) => {
                self.write_levels(alpha, label_arcs, levels);
                next.fill(BLOCKED);
                for level in levels.chunks_exact(alpha.len()).take(labels + 1) {
                    next.iter_mut().zip(level).for_each(|(next, &a)| *next = Log::plus(*next, a));
                }
                next.iter_mut().enumerate().for_each(|(u, next)| *next += b(u));
            }
        }
    }

    /// Writes `a_0 .. a_K`.
    fn write_levels<F: Real>(&self, alpha: &[f64], label_arcs: &[F], levels: &mut [f64]) {
        levels[..alpha.len()].copy_from_slice(alpha);
        for i in 1..self.alignment.num_states() {
            let (level, next_level) = levels[(i - 1) * alpha.len()..].split_at_mut(alpha.len());
            next_level[0] = BLOCKED;
            (1..alpha.len()).for_each(|u| next_level[u] = level[u - 1] + label_arcs[u - 1].to_f64());
        }
    }

    /// Replaces `β` by its value before the frame, and weights by marginals.
    ///
    /// `log S` is subtracted from `β`, so that marginals are `exp(α + weight + β)`.
    fn backward<F: Real>(
        &self,
        alpha: &[f64],
        ArcsMut { blank, labels: label_arcs }: ArcsMut<F>,
        beta: &mut [f64],
        levels: &mut [f64],
    ) {
        let last_position = alpha.len() - 1;
        let exp = |log: f64| if log == BLOCKED { 0.0 } else { log.exp() };
        match self.alignment.expansions() {
            None => {
                for u in 0..=last_position {
                    let after_blank = blank[u].to_f64() + beta[u];
                    let after_label =
                        if u < last_position { label_arcs[u].to_f64() + beta[u + 1] } else { BLOCKED };
                    blank[u] = F::from_f64(exp(alpha[u] + after_blank));
                    label_arcs[u] = F::from_f64(exp(alpha[u] + after_label));
                    beta[u] = Log::plus(after_blank, after_label);
                }
            }
            Some(labels) => {
                self.write_levels(alpha, label_arcs, levels);
                let after_blank: Vec<f64> =
                    beta.iter().zip(&*blank).map(|(beta, b)| beta + b.to_f64()).collect();
                let label_weights: Vec<f64> = label_arcs.iter().map(|l| l.to_f64()).collect();
                let (mut blank_sums, mut label_sums) =
                    (vec![0.0; last_position + 1], vec![0.0; last_position + 1]);
                for i in (0..=labels).rev() {
                    let level = &levels[i * alpha.len()..][..alpha.len()];
                    for u in 0..=last_position {
                        blank_sums[u] += exp(level[u] + after_blank[u]);
                        let after_label = if i < labels && u < last_position {
                            label_weights[u] + beta[u + 1]
                        } else {
                            BLOCKED
                        };
                        label_sums[u] += exp(level[u] + after_label);
                        // Position u + 1 is read before it is written, because it comes later.
                        beta[u] = Log::plus(after_blank[u], after_label);
                    }
                }
                let write = |out: &mut [F], sums: Vec<f64>| {
                    out.iter_mut().zip(sums).for_each(|(out, sum)| *out = F::from_f64(sum));
                };
                write(blank, blank_sums);
                write(label_arcs, label_sums);
            }
        }
    }
}
