//! Viterbi search over a recognition lattice, with backpointers.
//!
//! A wave is a range of frames of each utterance that is processed at a time. `α[p]` is the weight
//! of the best path to context state p. Sizes: B utterances of a group, C context states, V labels,
//! A alignment states of a frame.
//!
//! Ties are resolved in favor of the final state of lowest id. At a merge the blank wins (fewer
//! labels in the frame), and among labels the source of lowest id.
use kernels::{Real, ScratchReq, items_mut, par_for};

use crate::{
    Arcs, Context,
    distance::FrameArc,
    step::{FrameBackpointers, FrameStep, StepScratch},
    utterance_group::{UtteranceGroup, Wave},
};

/// The best path of an utterance.
#[derive(Debug, Clone, PartialEq)]
pub struct LatticePath {
    /// Labels of the arcs, by frame and alignment state, 0 without a label.
    ///
    /// *N x A*, with N frames.
    pub alignment: Vec<u32>,
    /// A, the number of alignment states of a frame.
    pub per_frame: usize,
    /// Weight of the path; -inf if all paths are blocked, then the labels are arbitrary.
    pub weight: f64,
}

impl LatticePath {
    /// Returns the labels of the path.
    pub fn labels(&self) -> Vec<u32> {
        self.alignment.iter().copied().filter(|&label| label > 0).collect()
    }

    /// Returns the arcs of each frame, in the context of the search.
    ///
    /// # Panics
    /// If the path does not fit the context.
    pub fn arcs(&self, context: &dyn Context) -> Vec<Vec<FrameArc>> {
        let mut state = context.start();
        let frames = self.alignment.chunks_exact(self.per_frame);
        let frame_arcs = |labels: &[u32]| {
            let mut arcs = Vec::new();
            for (alignment, &label) in labels.iter().enumerate().take_while(|(_, label)| **label > 0) {
                arcs.push(FrameArc { alignment, context: state, label: label as usize });
                state = context.next_state(state, label as usize);
            }
            // A label ends the frame where the alignment has no other state.
            if arcs.is_empty() || self.per_frame > 1 {
                arcs.push(FrameArc { alignment: arcs.len(), context: state, label: 0 });
            }
            arcs
        };
        frames.map(frame_arcs).collect()
    }

    /// Returns the frame of each label.
    pub fn frames(&self) -> Vec<usize> {
        let frame = |(index, &label): (usize, &u32)| (label > 0).then_some(index / self.per_frame);
        self.alignment.iter().enumerate().filter_map(frame).collect()
    }
}

/// Backpointers of a group, and the search state.
#[derive(Default)]
pub(crate) struct Backpointers<F> {
    /// Best arcs to each state of each packed frame.
    ///
    /// 0: blank; otherwise `1 + p V + y - 1` for label y, 1 to V, from state p.
    best_arcs: Vec<u32>,
    /// Number of labels of each frame, by context state after it.
    label_counts: Vec<u32>,
    scratch: Vec<StepScratch<F>>,
    /// `α` of each utterance, *B x C*.
    alphas: Vec<F>,
}

/// An utterance in a wave.
struct WaveUtterance<'a, F> {
    scratch: &'a mut StepScratch<F>,
    /// `α`, *C*.
    alpha: &'a mut [F],
    /// Backpointers and label counts of the frames of the wave.
    best_arcs: &'a mut [u32],
    label_counts: &'a mut [u32],
    /// Weights of the arcs of the wave.
    blank: &'a [F],
    label_arcs: &'a [F],
    /// Sum of the maxima that were subtracted from `α`.
    offset: &'a mut f64,
}

impl<F: Real> Backpointers<F> {
    /// Memory of backpointers, and of the scratch of utterances.
    pub(crate) fn allocated(&self) -> [ScratchReq; 2] {
        let scratch = ScratchReq::all_of(self.scratch.iter().map(StepScratch::allocated));
        [
            ScratchReq::new::<u32>(self.best_arcs.capacity() + self.label_counts.capacity()),
            scratch.and(ScratchReq::new::<F>(self.alphas.capacity())),
        ]
    }

    /// Allocates the backpointers of a group and initializes each utterance.
    pub(crate) fn start(&mut self, step: &FrameStep, group: &UtteranceGroup) {
        let c = step.context().states();
        let [arcs_per_frame, counts_per_frame] = step.backpointer_counts();
        kernels::ensure_len(&mut self.best_arcs, group.frames() * arcs_per_frame, 0);
        kernels::ensure_len(&mut self.label_counts, group.frames() * counts_per_frame, 0);
        kernels::ensure_len(&mut self.alphas, group.len() * c, F::ZERO);
        self.scratch.resize_with(self.scratch.len().max(group.len()), StepScratch::default);
        self.alphas.chunks_exact_mut(c).take(group.len()).for_each(|alpha| step.start(alpha));
    }

    /// `α` of each utterance, and all backpointers, frame after frame.
    pub(crate) fn alphas_and_pointers(&mut self) -> (&mut [F], &mut [u32]) {
        (&mut self.alphas, &mut self.best_arcs)
    }

    /// The weight of the best path of each utterance.
    pub(crate) fn path_weights(&self, state_count: usize, offsets: &[f64]) -> Vec<f64> {
        let max = |alpha: &[F]| alpha.iter().fold(f64::NEG_INFINITY, |max, x| max.max(x.to_f64()));
        self.alphas
            .chunks_exact(state_count)
            .zip(offsets)
            .map(|(alpha, offset)| max(alpha) + offset)
            .collect()
    }

    /// Advances all utterances through a wave, in parallel.
    pub(crate) fn forward(
        &mut self,
        step: &FrameStep,
        group: &UtteranceGroup,
        wave_index: usize,
        wave: &Wave,
        Arcs { mut blank, labels: mut label_arcs }: Arcs<F>,
        offsets: &mut [f64],
    ) {
        let (c, v) = (step.context().states(), step.context().vocabulary());
        let [arcs_per_frame, counts_per_frame] = step.backpointer_counts();
        let (mut best_arcs, mut label_counts) =
            (self.best_arcs.as_mut_slice(), self.label_counts.as_mut_slice());
        // Backpointers and arcs of each utterance in the wave.
        let mut utterances = Vec::with_capacity(group.len());
        let buffers = self.scratch.iter_mut().zip(self.alphas.chunks_exact_mut(c)).zip(offsets);
        for ((index, &frame_count), ((scratch, alpha), offset)) in wave.counts.iter().enumerate().zip(buffers)
        {
            // Frames of each utterance: before the wave, in the wave, and later.
            let earlier_frames = (wave_index * group.frames_per_wave).min(group.frame_range(index).len());
            let later_frames = group.frame_range(index).len() - earlier_frames - frame_count;
            best_arcs.split_off_mut(..earlier_frames * arcs_per_frame).expect("earlier frames exist");
            label_counts.split_off_mut(..earlier_frames * counts_per_frame).expect("earlier frames exist");
            utterances.push(WaveUtterance {
                scratch,
                alpha,
                best_arcs: best_arcs
                    .split_off_mut(..frame_count * arcs_per_frame)
                    .expect("each frame has backpointers"),
                label_counts: label_counts
                    .split_off_mut(..frame_count * counts_per_frame)
                    .expect("each frame has backpointers"),
                blank: blank.split_off(..frame_count * c).expect("each frame has arcs"),
                label_arcs: label_arcs.split_off(..frame_count * c * v).expect("each frame has arcs"),
                offset,
            });
            best_arcs.split_off_mut(..later_frames * arcs_per_frame).expect("later frames exist");
            label_counts.split_off_mut(..later_frames * counts_per_frame).expect("later frames exist");
        }
        par_for(items_mut(&mut utterances), |_, utterance| {
            let mut next = vec![F::ZERO; c];
            for t in 0..utterance.blank.len() / c {
                let arcs = Arcs {
                    blank: &utterance.blank[t * c..][..c],
                    labels: &utterance.label_arcs[t * c * v..][..c * v],
                };
                let pointers = FrameBackpointers {
                    best_arcs: &mut utterance.best_arcs[t * arcs_per_frame..][..arcs_per_frame],
                    label_counts: &mut utterance.label_counts[t * counts_per_frame..][..counts_per_frame],
                };
                *utterance.offset +=
                    step.viterbi(utterance.scratch, arcs, utterance.alpha, &mut next, pointers).to_f64();
                utterance.alpha.copy_from_slice(&next);
            }
        });
    }

    /// Traces the path of an utterance from its end to its start.
    pub(crate) fn trace_back(
        &self,
        step: &FrameStep,
        group: &UtteranceGroup,
        utterance: usize,
        weight: f64,
    ) -> LatticePath {
        let (c, v) = (step.context().states(), step.context().vocabulary());
        let [arcs_per_frame, counts_per_frame] = step.backpointer_counts();
        let per_frame = step.alignment().num_states();
        let last_alpha = &self.alphas[utterance * c..][..c];
        let larger =
            |best: usize, (state, &weight): (usize, &F)| if weight > last_alpha[best] { state } else { best };
        // The first of the best final states, and then its backpointers.
        let mut state = last_alpha.iter().enumerate().fold(0, larger);
        let mut alignment = vec![0; group.frame_range(utterance).len() * per_frame];
        if weight > f64::NEG_INFINITY {
            for (t, labels) in group.frame_range(utterance).zip(alignment.chunks_exact_mut(per_frame)).rev() {
                let best_arcs = &self.best_arcs[t * arcs_per_frame..][..arcs_per_frame];
                let label_count = if counts_per_frame > 0 {
                    self.label_counts[t * counts_per_frame + state] as usize
                } else {
                    1
                };
                for i in (0..label_count).rev() {
                    if let Some(arc) = best_arcs[i * c + state].checked_sub(1) {
                        (state, labels[i]) = (arc as usize / v, arc % v as u32 + 1);
                    }
                }
            }
        }
        LatticePath { alignment, per_frame, weight }
    }
}
