//! Denominator of the lattice loss: log-sum over all paths, and arc posteriors.
//!
//! A wave is a range of frames of each utterance that is processed at a time. α_t and β_t are the
//! log-sums over the paths from the start to each context state before frame t, and from there to
//! the end; D is the sum over all paths. Sizes: C context states, V labels.
//!
//! ```text
//! forward, wave by wave:   arc weights, in parallel with α_{t+1} from α_t of the previous wave
//! backward, last first:    arc weights unless kept, in parallel with marginals and β of a wave
//!                          then the marginals, times cotangents, go to parameters and frames
//! ```
use kernels::{Real, ScratchReq, items_mut, par_for};

use crate::{
    Arcs, ArcsMut, BoundWeights, Error, Result,
    step::{FrameStep, StepScratch, log_sum},
    utterance_group::{UtteranceGroup, Wave},
};

/// Arc weights of a wave of n frames; backward writes marginals.
#[derive(Default)]
pub(crate) struct ArcBuffer<F> {
    /// Weights of blanks, *n x C*.
    blank: Vec<F>,
    /// Weights of labels, *n x C x V*.
    label_arcs: Vec<F>,
}

impl<F: Real> ArcBuffer<F> {
    /// Returns the buffer for `frames` frames.
    pub(crate) fn arcs_mut(&mut self, step: &FrameStep, frames: usize) -> ArcsMut<'_, F> {
        let (c, v) = (step.context().states(), step.context().vocabulary());
        kernels::ensure_len(&mut self.blank, frames * c, F::ZERO);
        kernels::ensure_len(&mut self.label_arcs, frames * c * v, F::ZERO);
        ArcsMut { blank: &mut self.blank[..frames * c], labels: &mut self.label_arcs[..frames * c * v] }
    }

    /// Returns the arcs of `frames` frames.
    pub(crate) fn arcs(&self, step: &FrameStep, frames: usize) -> Arcs<'_, F> {
        let (c, v) = (step.context().states(), step.context().vocabulary());
        Arcs { blank: &self.blank[..frames * c], labels: &self.label_arcs[..frames * c * v] }
    }
}

/// State that forward saves for backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SavedState {
    /// Nothing: there is no backward pass.
    Nothing,
    /// `α` before each frame; arc weights are recomputed.
    Alpha,
    /// `α` before each frame, and all arc weights.
    AlphaAndArcs,
}

impl SavedState {
    /// The state that backward needs.
    pub(crate) fn for_backward(keeps_arcs: bool) -> Self {
        if keeps_arcs { Self::AlphaAndArcs } else { Self::Alpha }
    }
}

/// State saved for backward, and scratch memory of both directions.
#[derive(Default)]
pub(crate) struct Denominator<F> {
    /// `α` before each packed frame, with maximum 0: *n x C*.
    alpha: Vec<F>,
    /// Maximum that was subtracted from α after each frame.
    offsets: Vec<F>,
    /// Arc weights: of two alternating waves, or of all.
    buffers: Vec<ArcBuffer<F>>,
    /// Whether α is saved.
    saves_alpha: bool,
    /// Whether all arc weights are kept.
    keeps_arcs: bool,
    scratch: Vec<StepScratch<F>>,
    /// `α` or `β` of each utterance, *B x C*.
    state_sums: Vec<F>,
}

/// An utterance in a wave.
struct SummedUtterance<'a, F> {
    scratch: &'a mut StepScratch<F>,
    /// `α` or `β`, *C*.
    state_sums: &'a mut [F],
    /// `α` before each frame of the wave; empty if it is not saved.
    alpha: &'a mut [F],
    /// Maximum that was subtracted from `α` after each frame of the wave.
    offsets: &'a mut [F],
    /// Weights of the blanks of the wave, or their marginals.
    blank: &'a mut [F],
    /// Weights of the labels of the wave, or their marginals.
    label_arcs: &'a mut [F],
    /// Index of the utterance in the group.
    index: usize,
    /// Last frame with a wrong sum of posteriors, and the sum.
    imprecise_frame: Option<(usize, f64)>,
}

impl<F: Real> Denominator<F> {
    /// Computes `log D` of each utterance.
    ///
    /// `saved` is the state that is saved for [`backward`](Self::backward).
    pub(crate) fn forward(
        &mut self,
        step: &FrameStep,
        weights: &dyn BoundWeights<F>,
        group: &UtteranceGroup,
        saved: SavedState,
    ) -> Vec<f64> {
        // Buffers, and α at the start.
        let (c, waves) = (step.context().states(), group.waves());
        let saves_alpha = saved != SavedState::Nothing;
        (self.saves_alpha, self.keeps_arcs) = (saves_alpha, saved == SavedState::AlphaAndArcs);
        let saved_frames = if saves_alpha { group.frames() } else { 0 };
        kernels::ensure_len(&mut self.alpha, saved_frames * c, F::ZERO);
        kernels::ensure_len(&mut self.offsets, group.frames(), F::ZERO);
        kernels::ensure_len(&mut self.state_sums, group.len() * c, F::ZERO);
        self.scratch.resize_with(self.scratch.len().max(group.len()), StepScratch::default);
        let buffer_count = if self.keeps_arcs { waves } else { 2.min(waves) };
        let mut buffers = self.take_buffers(buffer_count);
        self.state_sums.chunks_exact_mut(c).take(group.len()).for_each(|alpha| step.start(alpha));
        // Arc weights of a wave, while α advances over the previous wave.
        let mut previous_wave: Option<Wave> = None;
        for wave_index in 0..=waves {
            let wave = (wave_index < waves).then(|| group.wave(wave_index));
            let (current_slot, previous_slot) = self.buffer_indices(wave_index);
            let (current, previous) = pair_mut(&mut buffers, current_slot, previous_slot);
            rayon::join(
                || {
                    if let (Some(wave), Some(buffer)) = (&wave, current) {
                        weights.forward(&wave.frames, buffer.arcs_mut(step, wave.frames.len()));
                    }
                },
                || {
                    if let (Some(wave), Some(buffer)) = (&previous_wave, previous) {
                        self.for_each_utterance(
                            step,
                            group,
                            wave,
                            buffer.arcs_mut(step, wave.frames.len()),
                            |utterance, frames| {
                                utterance.forward(step, frames, saves_alpha);
                            },
                        );
                    }
                },
            );
            previous_wave = wave;
        }
        self.buffers = buffers;
        // log D: the log-sum of the last α, and the subtracted maxima.
        let last_alphas = self.state_sums.chunks_exact(c).zip(0..group.len());
        last_alphas
            .map(|(alpha, utterance)| {
                let offsets = &self.offsets[group.frame_range(utterance)];
                log_sum(alpha) + offsets.iter().map(|offset| offset.to_f64()).sum::<f64>()
            })
            .collect()
    }

    /// `α` of an utterance before each of `padded` frames; forward must have saved it.
    pub(crate) fn alphas(
        &self,
        state_count: usize,
        group: &UtteranceGroup,
        utterance: usize,
        padded: usize,
    ) -> Vec<f64> {
        let frames = group.frame_range(utterance);
        let mut offset = 0.0;
        let mut alphas = Vec::with_capacity(padded * state_count);
        for t in frames.clone() {
            alphas.extend(self.alpha[t * state_count..][..state_count].iter().map(|a| a.to_f64() + offset));
            offset += self.offsets[t].to_f64();
        }
        let last_alpha = &self.state_sums[utterance * state_count..][..state_count];
        for _ in frames.len()..padded {
            alphas.extend(last_alpha.iter().map(|a| a.to_f64() + offset));
        }
        alphas
    }

    /// Memory of α, of arc weights, and of the scratch of utterances.
    pub(crate) fn allocated(&self) -> [ScratchReq; 3] {
        let arcs = |buffer: &ArcBuffer<F>| buffer.blank.capacity() + buffer.label_arcs.capacity();
        [
            ScratchReq::new::<F>(self.alpha.capacity() + self.offsets.capacity()),
            ScratchReq::new::<F>(self.buffers.iter().map(arcs).sum()),
            ScratchReq::all_of(self.scratch.iter().map(StepScratch::allocated))
                .and(ScratchReq::new::<F>(self.state_sums.capacity())),
        ]
    }

    /// Removes the wave buffers, at least `count` of them.
    pub(crate) fn take_buffers(&mut self, count: usize) -> Vec<ArcBuffer<F>> {
        self.buffers.resize_with(self.buffers.len().max(count), ArcBuffer::default);
        std::mem::take(&mut self.buffers)
    }

    /// Returns the wave buffers after [`take_buffers`](Self::take_buffers).
    pub(crate) fn return_buffers(&mut self, buffers: Vec<ArcBuffer<F>>) {
        self.buffers = buffers;
    }

    /// Indices of the buffers of a wave and of the previous one.
    fn buffer_indices(&self, wave: usize) -> (usize, usize) {
        if self.keeps_arcs { (wave, wave.wrapping_sub(1)) } else { (wave % 2, (wave + 1) % 2) }
    }

    /// Computes the marginals of all arcs times `cotangents`, last wave first.
    ///
    /// The marginals overwrite the arc weights. Calls `take_adjoints(weights, frames, adjoints)`
    /// for each wave.
    pub(crate) fn backward(
        &mut self,
        step: &FrameStep,
        weights: &mut dyn BoundWeights<F>,
        group: &UtteranceGroup,
        cotangents: &[f64],
        mut take_adjoints: impl FnMut(&mut dyn BoundWeights<F>, &[usize], Arcs<F>) -> Result<()>,
    ) -> Result<()> {
        let c = step.context().states();
        let start_beta = |sums: &mut [F]| {
            // The sums are still the last α. Without a path, all gradients are 0.
            let total = log_sum(sums);
            sums.fill(if total.is_finite() { F::from_f64(-total) } else { F::NEG_INFINITY });
            total.is_finite()
        };
        let has_path: Vec<bool> =
            self.state_sums.chunks_exact_mut(c).take(group.len()).map(start_beta).collect();
        let mut buffers = self.take_buffers(0);
        let waves = group.waves();
        for wave_index in (0..waves).rev() {
            let wave = group.wave(wave_index);
            // The weights of the last wave are still in their buffer.
            let earlier_wave = (wave_index > 0 && !self.keeps_arcs).then(|| group.wave(wave_index - 1));
            let (current_slot, earlier_slot) = if self.keeps_arcs {
                (wave_index, usize::MAX)
            } else {
                (wave_index % 2, (wave_index + 1) % 2)
            };
            let (current, earlier_buffer) = pair_mut(&mut buffers, current_slot, earlier_slot);
            let current = current.expect("each wave has a buffer");
            let shared_weights = &*weights;
            let (_, imprecise) = rayon::join(
                || {
                    if let (Some(wave), Some(buffer)) = (&earlier_wave, earlier_buffer) {
                        shared_weights.forward(&wave.frames, buffer.arcs_mut(step, wave.frames.len()));
                    }
                },
                || {
                    let arcs = current.arcs_mut(step, wave.frames.len());
                    self.for_each_utterance(step, group, &wave, arcs, |utterance, frames| {
                        utterance.backward(
                            step,
                            frames,
                            cotangents[utterance.index],
                            has_path[utterance.index],
                        );
                    })
                },
            );
            if let Some((utterance, frame, sum)) = imprecise {
                self.buffers = buffers;
                let (utterance, frame) =
                    (group.utterances.start + utterance, wave_index * group.frames_per_wave + frame);
                return Err(Error::Precision { utterance, frame, sum });
            }
            take_adjoints(weights, &wave.frames, current.arcs(step, wave.frames.len()))?;
        }
        self.buffers = buffers;
        Ok(())
    }

    /// Calls `run(utterance, frames of the wave)` for each utterance of a wave, in parallel.
    ///
    /// Returns the first utterance with an imprecise frame: its index in the group, the frame, and
    /// its sum.
    fn for_each_utterance(
        &mut self,
        step: &FrameStep,
        group: &UtteranceGroup,
        wave: &Wave,
        arcs: ArcsMut<F>,
        run: impl Fn(&mut SummedUtterance<F>, FrameRange) + Sync,
    ) -> Option<(usize, usize, f64)> {
        let (c, v) = (step.context().states(), step.context().vocabulary());
        let (mut blank, mut label_arcs) = (arcs.blank, arcs.labels);
        let (mut alpha, mut offsets) = (self.alpha.as_mut_slice(), self.offsets.as_mut_slice());
        let saves_alpha = self.saves_alpha;
        // Frames of α and offsets, and of the wave, before the current utterance.
        let mut split_frames = 0;
        let mut wave_row = 0;
        let mut utterances = Vec::with_capacity(group.len());
        let buffers = self.scratch.iter_mut().zip(self.state_sums.chunks_exact_mut(c));
        for ((index, &frame_count), (scratch, state_sums)) in wave.counts.iter().enumerate().zip(buffers) {
            let first_frame = wave.frames.get(wave_row).copied().unwrap_or(split_frames);
            let alpha_len = |frames: usize| if saves_alpha { frames * c } else { 0 };
            if frame_count > 0 {
                alpha = alpha
                    .split_off_mut(alpha_len(first_frame - split_frames)..)
                    .expect("frames are in order");
                offsets = offsets.split_off_mut(first_frame - split_frames..).expect("frames are in order");
                split_frames = first_frame + frame_count;
            }
            utterances.push(SummedUtterance {
                scratch,
                state_sums,
                alpha: alpha.split_off_mut(..alpha_len(frame_count)).expect("each frame has α"),
                offsets: offsets.split_off_mut(..frame_count).expect("each frame has an offset"),
                blank: blank.split_off_mut(..frame_count * c).expect("each frame has arcs"),
                label_arcs: label_arcs.split_off_mut(..frame_count * c * v).expect("each frame has arcs"),
                index,
                imprecise_frame: None,
            });
            wave_row += frame_count;
        }
        par_for(items_mut(&mut utterances), |_, utterance| run(utterance, 0..utterance.offsets.len()));
        utterances
            .iter()
            .find_map(|utterance| utterance.imprecise_frame.map(|(frame, sum)| (utterance.index, frame, sum)))
    }
}

/// Frames of an utterance, counted from its first frame in the wave.
type FrameRange = std::ops::Range<usize>;

/// Valid sums of the posteriors of a frame.
///
/// In single precision, weights up to about 10^5 stay within the range; in double precision, up to
/// 10^14.
pub(crate) const POSTERIOR_SUM_RANGE: std::ops::Range<f64> = 0.9..1.1;

impl<F: Real> SummedUtterance<'_, F> {
    /// Advances α over frames of the wave.
    fn forward(&mut self, step: &FrameStep, frames: FrameRange, saves_alpha: bool) {
        let (c, v) = (step.context().states(), step.context().vocabulary());
        let mut next = vec![F::ZERO; c];
        for t in frames {
            let arcs =
                Arcs { blank: &self.blank[t * c..][..c], labels: &self.label_arcs[t * c * v..][..c * v] };
            if saves_alpha {
                self.alpha[t * c..][..c].copy_from_slice(self.state_sums);
            }
            self.offsets[t] = step.forward(self.scratch, arcs, self.state_sums, &mut next);
            self.state_sums.copy_from_slice(&next);
        }
    }

    /// Replaces arc weights by marginals times the cotangent, last frame first.
    fn backward(&mut self, step: &FrameStep, frames: FrameRange, cotangent: f64, has_path: bool) {
        let (c, v) = (step.context().states(), step.context().vocabulary());
        let scale = F::from_f64(cotangent);
        for t in frames.rev() {
            let (blank, label_arcs) =
                (&mut self.blank[t * c..][..c], &mut self.label_arcs[t * c * v..][..c * v]);
            let sum = step.backward(
                self.scratch,
                ArcsMut { blank: &mut *blank, labels: &mut *label_arcs },
                &self.alpha[t * c..][..c],
                self.offsets[t],
                self.state_sums,
            );
            if has_path && !POSTERIOR_SUM_RANGE.contains(&sum) && self.imprecise_frame.is_none() {
                self.imprecise_frame = Some((t, sum));
            }
            if cotangent != 1.0 {
                blank.iter_mut().chain(label_arcs).for_each(|g| *g *= scale);
            }
        }
    }
}

/// Returns two different elements of a slice; `None` for an index beyond its end.
pub(crate) fn pair_mut<T>(list: &mut [T], first: usize, second: usize) -> (Option<&mut T>, Option<&mut T>) {
    match (first < list.len(), second < list.len()) {
        (true, true) => {
            let [first, second] = list.get_disjoint_mut([first, second]).expect("the indices differ");
            (Some(first), Some(second))
        }
        (true, false) => (list.get_mut(first), None),
        (false, _) => (None, list.get_mut(second)),
    }
}
