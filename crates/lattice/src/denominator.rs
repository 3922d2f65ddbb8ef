//! All paths: shortest distance in the log semiring, forward and backward.
//!
//! ```text
//! for waves of frames:  weights of all arcs, while the frames of the wave before go on:  α_{t+1} from α_t
//! backward, last wave first:  weights again, unless they were kept, while the wave behind goes back:  marginals in their place, β
//!                             then the marginals, times the utterance's cotangent, go to parameters and frames
//! ```
use kernels::{Real, ScratchReq, items_mut, par_for};

use crate::{
    Arcs, ArcsMut, BoundWeights, Error, Result,
    group::{UtteranceGroup, Wave},
    step::{FrameStep, StepScratch, log_sum},
};

/// Arc weights of a wave: *n x C* and *n x C x V*.
#[derive(Default)]
pub struct ArcBuffer<F> {
    blank: Vec<F>,
    lexical: Vec<F>,
}

impl<F: Real> ArcBuffer<F> {
    /// Room for so many frames.
    pub fn room(&mut self, step: &FrameStep, frames: usize) -> ArcsMut<'_, F> {
        let (c, v) = (step.context().states(), step.context().vocabulary());
        kernels::ensure_len(&mut self.blank, frames * c, F::ZERO);
        kernels::ensure_len(&mut self.lexical, frames * c * v, F::ZERO);
        ArcsMut { blank: &mut self.blank[..frames * c], lexical: &mut self.lexical[..frames * c * v] }
    }

    pub fn arcs(&self, step: &FrameStep, frames: usize) -> Arcs<'_, F> {
        let (c, v) = (step.context().states(), step.context().vocabulary());
        Arcs { blank: &self.blank[..frames * c], lexical: &self.lexical[..frames * c * v] }
    }
}

/// What forward keeps for backward, and what both work in.
#[derive(Default)]
pub struct Denominator<F> {
    /// `α` before each packed frame, its largest value 0: *n x C*.
    alpha: Vec<F>,
    /// What each frame took from its `α'`.
    offsets: Vec<F>,
    /// Arc weights: two waves that take turns, or all of them.
    buffers: Vec<ArcBuffer<F>>,
    /// Whether α and arc weights stay.
    stored: bool,
    kept: bool,
    rooms: Vec<StepScratch<F>>,
    /// `α` or `β` of each utterance, *B x C*.
    states: Vec<F>,
}

/// An utterance on its way.
struct SummedUtterance<'a, F> {
    room: &'a mut StepScratch<F>,
    state: &'a mut [F],
    alpha: &'a mut [F],
    offsets: &'a mut [F],
    blank: &'a mut [F],
    lexical: &'a mut [F],
    /// The utterance's place in the group.
    at: usize,
    /// The last frame of the wave whose posteriors do not add up, and to what they do.
    wrong: Option<(usize, f64)>,
}

impl<F: Real> Denominator<F> {
    /// `log D` of each utterance. `keep` says whether arc weights stay for [`backward`](Self::backward), which needs what is
    /// `stored`.
    pub fn forward(
        &mut self,
        step: &FrameStep,
        weights: &dyn BoundWeights<F>,
        group: &UtteranceGroup,
        stored: bool,
        keep: bool,
    ) -> Vec<f64> {
        let (c, waves) = (step.context().states(), group.waves());
        (self.stored, self.kept) = (stored, keep && stored);
        let rows = if stored { group.frames() } else { 0 };
        kernels::ensure_len(&mut self.alpha, rows * c, F::ZERO);
        kernels::ensure_len(&mut self.offsets, group.frames(), F::ZERO);
        kernels::ensure_len(&mut self.states, group.len() * c, F::ZERO);
        self.rooms.resize_with(self.rooms.len().max(group.len()), StepScratch::default);
        let needed = if self.kept { waves } else { 2.min(waves) };
        let mut buffers = self.take_buffers(needed);
        self.states.chunks_exact_mut(c).take(group.len()).for_each(|state| step.begin(state));
        let mut before: Option<(Wave, usize)> = None;
        for at in 0..=waves {
            let wave = (at < waves).then(|| group.wave(at));
            let (own, other) = self.slots(at);
            let (ahead, behind) = two(&mut buffers, own, other);
            rayon::join(
                || {
                    if let (Some(wave), Some(buffer)) = (&wave, ahead) {
                        weights.forward(&wave.frames, buffer.room(step, wave.frames.len()));
                    }
                },
                || {
                    if let (Some((wave, _)), Some(buffer)) = (&before, behind) {
                        self.go(step, group, wave, buffer.room(step, wave.frames.len()), |lane, frame| {
                            lane.forward(step, frame, stored);
                        });
                    }
                },
            );
            before = wave.map(|wave| (wave, at));
        }
        self.buffers = buffers;
        let lanes = self.states.chunks_exact(c).zip(0..group.len());
        lanes
            .map(|(state, at)| {
                let offsets = &self.offsets[group.of(at)];
                log_sum(state) + offsets.iter().map(|offset| offset.to_f64()).sum::<f64>()
            })
            .collect()
    }

    /// `α` of an utterance before each frame, of which there are `padded`; forward stored it.
    pub fn alphas(&self, c: usize, group: &UtteranceGroup, at: usize, padded: usize) -> Vec<f64> {
        let frames = group.of(at);
        let mut offset = 0.0;
        let mut alphas = Vec::with_capacity(padded * c);
        for t in frames.clone() {
            alphas.extend(self.alpha[t * c..][..c].iter().map(|a| a.to_f64() + offset));
            offset += self.offsets[t].to_f64();
        }
        let last = &self.states[at * c..][..c];
        for _ in frames.len()..padded {
            alphas.extend(last.iter().map(|a| a.to_f64() + offset));
        }
        alphas
    }

    /// Memory of α, of arc weights, and of the steps of utterances.
    pub fn held(&self) -> [ScratchReq; 3] {
        let arcs = |buffer: &ArcBuffer<F>| buffer.blank.capacity() + buffer.lexical.capacity();
        [
            ScratchReq::new::<F>(self.alpha.capacity() + self.offsets.capacity()),
            ScratchReq::new::<F>(self.buffers.iter().map(arcs).sum()),
            ScratchReq::all_of(self.rooms.iter().map(StepScratch::held))
                .and(ScratchReq::new::<F>(self.states.capacity())),
        ]
    }

    /// Lends buffers for waves.
    pub fn take_buffers(&mut self, count: usize) -> Vec<ArcBuffer<F>> {
        self.buffers.resize_with(self.buffers.len().max(count), ArcBuffer::default);
        std::mem::take(&mut self.buffers)
    }

    /// Takes them back.
    pub fn give_buffers(&mut self, buffers: Vec<ArcBuffer<F>>) {
        self.buffers = buffers;
    }

    /// Buffers of a wave and of its neighbour.
    fn slots(&self, wave: usize) -> (usize, usize) {
        if self.kept { (wave, wave.wrapping_sub(1)) } else { (wave % 2, (wave + 1) % 2) }
    }

    /// Marginals of all arcs times `cotangents`, to wherever `take(frames, adjoints)` wants them, last wave first.
    pub fn backward(
        &mut self,
        step: &FrameStep,
        weights: &mut dyn BoundWeights<F>,
        group: &UtteranceGroup,
        cotangents: &[f64],
        mut take: impl FnMut(&mut dyn BoundWeights<F>, &[usize], Arcs<F>) -> Result<()>,
    ) -> Result<()> {
        let c = step.context().states();
        let begin = |state: &mut [F]| {
            // The last α is still here; without a path nothing comes back.
            let total = log_sum(state);
            state.fill(if total.is_finite() { F::from_f64(-total) } else { F::NEG_INFINITY });
            total.is_finite()
        };
        let has_path: Vec<bool> = self.states.chunks_exact_mut(c).take(group.len()).map(begin).collect();
        let mut buffers = self.take_buffers(0);
        let waves = group.waves();
        for at in (0..waves).rev() {
            let wave = group.wave(at);
            // The weights of the last wave are still where forward put them.
            let next = (at > 0 && !self.kept).then(|| group.wave(at - 1));
            let (own, other) = if self.kept { (at, usize::MAX) } else { (at % 2, (at + 1) % 2) };
            let (here, ahead) = two(&mut buffers, own, other);
            let here = here.expect("there is a buffer for each wave");
            let shared = &*weights;
            let (_, wrong) = rayon::join(
                || {
                    if let (Some(wave), Some(buffer)) = (&next, ahead) {
                        shared.forward(&wave.frames, buffer.room(step, wave.frames.len()));
                    }
                },
                || {
                    self.go(step, group, &wave, here.room(step, wave.frames.len()), |lane, frame| {
                        lane.backward(step, frame, cotangents[lane.at], has_path[lane.at]);
                    })
                },
            );
            if let Some((utterance, frame, sum)) = wrong {
                self.buffers = buffers;
                let (utterance, frame) = (group.utterances.start + utterance, at * group.window + frame);
                return Err(Error::Precision { utterance, frame, sum });
            }
            take(weights, &wave.frames, here.arcs(step, wave.frames.len()))?;
        }
        self.buffers = buffers;
        Ok(())
    }

    /// Goes through a wave, the utterances side by side: `each(lane, frame within the wave)` in order, or in reverse. Returns the
    /// first utterance with a frame that went wrong, by its place in the group, that frame of the wave, and what it adds up to.
    fn go(
        &mut self,
        step: &FrameStep,
        group: &UtteranceGroup,
        wave: &Wave,
        arcs: ArcsMut<F>,
        each: impl Fn(&mut SummedUtterance<F>, Range) + Sync,
    ) -> Option<(usize, usize, f64)> {
        let (c, v) = (step.context().states(), step.context().vocabulary());
        let (mut blank, mut lexical) = (arcs.blank, arcs.lexical);
        let (mut alpha, mut offsets) = (self.alpha.as_mut_slice(), self.offsets.as_mut_slice());
        let stored = self.stored;
        let mut skipped = 0;
        let mut first = 0;
        let mut lanes = Vec::with_capacity(group.len());
        let rooms = self.rooms.iter_mut().zip(self.states.chunks_exact_mut(c));
        for ((at, &count), (room, state)) in wave.counts.iter().enumerate().zip(rooms) {
            let from = wave.frames.get(first).copied().unwrap_or(skipped);
            let mine = |len: usize| if stored { len * c } else { 0 };
            if count > 0 {
                alpha = alpha.split_off_mut(mine(from - skipped)..).expect("frames are in order");
                offsets = offsets.split_off_mut(from - skipped..).expect("frames are in order");
                skipped = from + count;
            }
            lanes.push(SummedUtterance {
                room,
                state,
                alpha: alpha.split_off_mut(..mine(count)).expect("there is α for each frame"),
                offsets: offsets.split_off_mut(..count).expect("there is an offset for each frame"),
                blank: blank.split_off_mut(..count * c).expect("there are arcs for each frame"),
                lexical: lexical.split_off_mut(..count * c * v).expect("there are arcs for each frame"),
                at,
                wrong: None,
            });
            first += count;
        }
        par_for(items_mut(&mut lanes), |_, lane| each(lane, 0..lane.offsets.len()));
        lanes.iter().find_map(|lane| lane.wrong.map(|(frame, sum)| (lane.at, frame, sum)))
    }
}

type Range = std::ops::Range<usize>;

/// What posteriors of a frame may add up to. In single precision weights of some 10^5 keep within it, in double those of 10^14.
pub const ADDS_UP: std::ops::Range<f64> = 0.9..1.1;

impl<F: Real> SummedUtterance<'_, F> {
    fn forward(&mut self, step: &FrameStep, frames: Range, stored: bool) {
        let (c, v) = (step.context().states(), step.context().vocabulary());
        let mut next = vec![F::ZERO; c];
        for t in frames {
            let arcs = (&self.blank[t * c..][..c], &self.lexical[t * c * v..][..c * v]);
            if stored {
                self.alpha[t * c..][..c].copy_from_slice(self.state);
            }
            self.offsets[t] = step.forward(self.room, arcs, self.state, &mut next);
            self.state.copy_from_slice(&next);
        }
    }

    fn backward(&mut self, step: &FrameStep, frames: Range, cotangent: f64, has_path: bool) {
        let (c, v) = (step.context().states(), step.context().vocabulary());
        let scale = F::from_f64(cotangent);
        for t in frames.rev() {
            let arcs = (&mut self.blank[t * c..][..c], &mut self.lexical[t * c * v..][..c * v]);
            let sum = step.backward(
                self.room,
                (&mut *arcs.0, &mut *arcs.1),
                &self.alpha[t * c..][..c],
                self.offsets[t],
                self.state,
            );
            if has_path && !ADDS_UP.contains(&sum) && self.wrong.is_none() {
                self.wrong = Some((t, sum));
            }
            if cotangent != 1.0 {
                arcs.0.iter_mut().chain(arcs.1).for_each(|g| *g *= scale);
            }
        }
    }
}

/// Two different buffers of a list, if they are there.
pub fn two<T>(list: &mut [T], first: usize, second: usize) -> (Option<&mut T>, Option<&mut T>) {
    match (first < list.len(), second < list.len()) {
        (true, true) => {
            let [first, second] = list.get_disjoint_mut([first, second]).expect("they differ");
            (Some(first), Some(second))
        }
        (true, false) => (list.get_mut(first), None),
        (false, _) => (None, list.get_mut(second)),
    }
}
