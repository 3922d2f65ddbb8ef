//! The best path of each utterance: backpointers forward, then one walk back.
//!
//! Ties go to the final state of lowest id, at a merge to the blank (to fewer labels in the frame), and among labels to the
//! source of lowest id (the specification's section 10).
use kernels::{Real, ScratchReq, items_mut, par_for};

use crate::{
    Arcs, Context,
    distance::FrameArc,
    group::{UtteranceGroup, Wave},
    step::{FrameStep, StepScratch},
};

/// The best path of an utterance.
#[derive(Debug, Clone, PartialEq)]
pub struct LatticePath {
    /// Frame by frame, for each state of the alignment the label of the arc taken from it, or 0: *N x A*.
    pub alignment: Vec<u32>,
    /// A
    pub per_frame: usize,
    /// Its weight; -inf where all paths are blocked, and the labels mean nothing.
    pub weight: f64,
}

impl LatticePath {
    /// The labels of the path.
    pub fn labels(&self) -> Vec<u32> {
        self.alignment.iter().copied().filter(|&label| label > 0).collect()
    }

    /// Frame by frame the arcs of the path, in the context that it was found in.
    ///
    /// # Panics
    /// If it is none of that context.
    pub fn arcs(&self, context: &dyn Context) -> Vec<Vec<FrameArc>> {
        let mut state = context.start();
        let frames = self.alignment.chunks_exact(self.per_frame);
        let of_frame = |labels: &[u32]| {
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
        frames.map(of_frame).collect()
    }

    /// The frame of each label.
    pub fn frames(&self) -> Vec<usize> {
        let at = |(at, &label): (usize, &u32)| (label > 0).then_some(at / self.per_frame);
        self.alignment.iter().enumerate().filter_map(at).collect()
    }
}

/// Backpointers of a group, and the state of its search.
#[derive(Default)]
pub struct Backpointers<F> {
    /// Best arcs to each state of each packed frame, and after how many labels it ends.
    from: Vec<u32>,
    count: Vec<u32>,
    scratch: Vec<StepScratch<F>>,
    /// `α` of each utterance, *B x C*.
    states: Vec<F>,
}

/// An utterance in a wave.
struct WaveUtterance<'a, F> {
    scratch: &'a mut StepScratch<F>,
    state: &'a mut [F],
    from: &'a mut [u32],
    count: &'a mut [u32],
    blank: &'a [F],
    lexical: &'a [F],
    offset: &'a mut f64,
}

impl<F: Real> Backpointers<F> {
    /// Memory of backpointers, and of the steps of utterances.
    pub fn held(&self) -> [ScratchReq; 2] {
        let scratch = ScratchReq::all_of(self.scratch.iter().map(StepScratch::held));
        [
            ScratchReq::new::<u32>(self.from.capacity() + self.count.capacity()),
            scratch.and(ScratchReq::new::<F>(self.states.capacity())),
        ]
    }

    /// Allocates the backpointers of a group, and sets each utterance to the start.
    pub fn begin(&mut self, step: &FrameStep, group: &UtteranceGroup) {
        let c = step.context().states();
        let [from, count] = step.kept();
        kernels::ensure_len(&mut self.from, group.frames() * from, 0);
        kernels::ensure_len(&mut self.count, group.frames() * count, 0);
        kernels::ensure_len(&mut self.states, group.len() * c, F::ZERO);
        self.scratch.resize_with(self.scratch.len().max(group.len()), StepScratch::default);
        self.states.chunks_exact_mut(c).take(group.len()).for_each(|state| step.begin(state));
    }

    /// Returns `α` of each utterance, and all backpointers, of one frame after the other.
    pub fn states_and_pointers(&mut self) -> (&mut [F], &mut [u32]) {
        (&mut self.states, &mut self.from)
    }

    /// Returns the weight of the best path of each utterance.
    pub fn path_weights(&self, states: usize, offsets: &[f64]) -> Vec<f64> {
        let top = |state: &[F]| state.iter().fold(f64::NEG_INFINITY, |top, x| top.max(x.to_f64()));
        self.states.chunks_exact(states).zip(offsets).map(|(state, offset)| top(state) + offset).collect()
    }

    /// Advances all utterances through a wave, in parallel.
    pub fn forward(
        &mut self,
        step: &FrameStep,
        group: &UtteranceGroup,
        (number, wave): (usize, &Wave),
        Arcs { mut blank, mut lexical }: Arcs<F>,
        offsets: &mut [f64],
    ) {
        let (c, v) = (step.context().states(), step.context().vocabulary());
        let [per_from, per_count] = step.kept();
        let (mut from, mut count) = (self.from.as_mut_slice(), self.count.as_mut_slice());
        let mut utterances = Vec::with_capacity(group.len());
        let each = self.scratch.iter_mut().zip(self.states.chunks_exact_mut(c)).zip(offsets);
        for ((at, &frames), ((scratch, state), offset)) in wave.counts.iter().enumerate().zip(each) {
            // The frames of each utterance: those before the wave, the wave's, and what comes later.
            let skip = (number * group.window).min(group.of(at).len());
            let rest = group.of(at).len() - skip - frames;
            from.split_off_mut(..skip * per_from).expect("there are frames before");
            count.split_off_mut(..skip * per_count).expect("there are frames before");
            utterances.push(WaveUtterance {
                scratch,
                state,
                from: from.split_off_mut(..frames * per_from).expect("there is room for each frame"),
                count: count.split_off_mut(..frames * per_count).expect("there is room for each frame"),
                blank: blank.split_off(..frames * c).expect("there are arcs for each frame"),
                lexical: lexical.split_off(..frames * c * v).expect("there are arcs for each frame"),
                offset,
            });
            from.split_off_mut(..rest * per_from).expect("there are frames behind");
            count.split_off_mut(..rest * per_count).expect("there are frames behind");
        }
        par_for(items_mut(&mut utterances), |_, utterance| {
            let mut next = vec![F::ZERO; c];
            for t in 0..utterance.blank.len() / c {
                let arcs = (&utterance.blank[t * c..][..c], &utterance.lexical[t * c * v..][..c * v]);
                let kept = (
                    &mut utterance.from[t * per_from..][..per_from],
                    &mut utterance.count[t * per_count..][..per_count],
                );
                *utterance.offset +=
                    step.best(utterance.scratch, arcs, utterance.state, &mut next, kept).to_f64();
                utterance.state.copy_from_slice(&next);
            }
        });
    }

    /// The path of an utterance from its end to its start.
    pub fn walk_back(&self, step: &FrameStep, group: &UtteranceGroup, at: usize, weight: f64) -> LatticePath {
        let (c, v) = (step.context().states(), step.context().vocabulary());
        let [per_from, per_count] = step.kept();
        let per_frame = step.alignment().num_states();
        let ends = &self.states[at * c..][..c];
        let best = |best: usize, (at, &end): (usize, &F)| if end > ends[best] { at } else { best };
        let mut state = ends.iter().enumerate().fold(0, best);
        let mut alignment = vec![0; group.of(at).len() * per_frame];
        if weight > f64::NEG_INFINITY {
            for (t, labels) in group.of(at).zip(alignment.chunks_exact_mut(per_frame)).rev() {
                let from = &self.from[t * per_from..][..per_from];
                let count = if per_count > 0 { self.count[t * per_count + state] as usize } else { 1 };
                for i in (0..count).rev() {
                    if let Some(arc) = from[i * c + state].checked_sub(1) {
                        (state, labels[i]) = (arc as usize / v, arc % v as u32 + 1);
                    }
                }
            }
        }
        LatticePath { alignment, per_frame, weight }
    }
}
