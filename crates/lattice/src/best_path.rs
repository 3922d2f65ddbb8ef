//! The best path of each utterance: backpointers forward, then one walk back.
//!
//! Ties go to the final state of lowest id, at a merge to the blank (to fewer labels in the frame), and among labels to the
//! source of lowest id (the specification's section 10).
use kernels::{Real, items_mut, par_for};

use crate::{
    Context, Frames, RecognitionLattice, Result, Session,
    denominator::two,
    distance::Arc,
    group::{Group, Wave},
    plan::{Plan, Work},
    screened,
    session::{Asked, Call, Sum, among_workers, check_sums},
    step::{Room, Step},
    weight_fn::Screened,
};

/// The best path of an utterance.
#[derive(Debug, Clone, PartialEq)]
pub struct Path {
    /// Frame by frame, for each state of the alignment the label of the arc taken from it, or 0: *N x A*.
    pub alignment: Vec<u32>,
    /// A
    pub per_frame: usize,
    /// Its weight; -inf where all paths are blocked, and the labels mean nothing.
    pub weight: f64,
}

impl Path {
    /// The labels of the path.
    pub fn labels(&self) -> Vec<u32> {
        self.alignment.iter().copied().filter(|&label| label > 0).collect()
    }

    /// Frame by frame the arcs of the path, in the context that it was found in.
    ///
    /// # Panics
    /// If it is none of that context.
    pub fn arcs(&self, context: &dyn Context) -> Vec<Vec<Arc>> {
        let mut state = context.start();
        let frames = self.alignment.chunks_exact(self.per_frame);
        let of_frame = |labels: &[u32]| {
            let mut arcs = Vec::new();
            for (alignment, &label) in labels.iter().enumerate().take_while(|(_, label)| **label > 0) {
                arcs.push(Arc { alignment, context: state, label: label as usize });
                state = context.next_state(state, label as usize);
            }
            // A label ends the frame where the alignment has no other state.
            if arcs.is_empty() || self.per_frame > 1 {
                arcs.push(Arc { alignment: arcs.len(), context: state, label: 0 });
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

/// Backpointers of a group and what its lanes work in.
#[derive(Default)]
pub(crate) struct Best<F> {
    /// Best arcs to each state of each packed frame, and after how many labels it ends.
    from: Vec<u32>,
    count: Vec<u32>,
    rooms: Vec<Room<F>>,
    states: Vec<F>,
}

/// An utterance on its way.
struct Lane<'a, F> {
    room: &'a mut Room<F>,
    state: &'a mut [F],
    from: &'a mut [u32],
    count: &'a mut [u32],
    blank: &'a [F],
    lexical: &'a [F],
    offset: &'a mut f64,
}

impl<F: Real> Session<F> {
    /// How [`best_paths`](Self::best_paths) would be cut.
    ///
    /// # Errors
    /// [`Error::Budget`](crate::Error::Budget), which names the smallest cut, for a budget below it.
    pub fn plan_best_paths(&self, lattice: &RecognitionLattice<F>, frames: &Frames<F>) -> Result<Plan> {
        Asked::new(lattice, frames, None, Sum::Denominator)?;
        Plan::new(lattice, frames, None, (Work::sum(true).best(), self.options))
    }

    /// The best path of each utterance, under max and +, over the whole lattice.
    ///
    /// # Errors
    /// As [`distances`](Self::distances).
    ///
    /// # Cost
    /// Arc weights of all frames once; backpointers of a group, 4 bytes for each frame, state and label of a frame. In `f32`, on a
    /// machine that adds up products of 16-bit pairs (AVX-512 VNNI), the weights of a [`Joint`](crate::Joint) network are only
    /// estimated where one label at most belongs to a frame and many states lead to the same ones, and weighed where an estimate and
    /// its error leave open whether an arc is the best: about two thirds of the time. The paths and their weights are the same, bit
    /// for bit.
    pub fn best_paths(&mut self, lattice: &RecognitionLattice<F>, frames: &Frames<F>) -> Result<Vec<Path>> {
        let asked = Asked::new(lattice, frames, None, Sum::Denominator)?;
        among_workers(|| self.best_paths_asked(asked))
    }

    fn best_paths_asked(&mut self, asked: Asked<F>) -> Result<Vec<Path>> {
        let frames = asked.frames;
        let (mut call, plan) = self.call(asked, |all_paths| Work::sum(all_paths).best())?;
        if plan.screened
            && let Some(panels) = call.step.panels()
        {
            call.weights.screen(panels, plan.utterances.min(frames.utterances()));
        }
        let mut paths = Vec::with_capacity(frames.utterances());
        for group in plan.groups(frames) {
            call.enter(&group)?;
            let weights = self.search(&call, &group);
            check_sums(&weights, &group)?;
            for (at, &weight) in weights.iter().enumerate() {
                paths.push(self.best.walk_back(&call.step, &group, at, weight));
            }
        }
        self.keep_buffers(&mut call);
        Ok(paths)
    }

    /// Fills in all backpointers of a group; returns the weights of its best paths.
    fn search(&mut self, call: &Call<F>, group: &Group) -> Vec<f64> {
        let (step, waves) = (&call.step, group.waves());
        let c = step.context().states();
        let [from, count] = step.kept();
        let Best { from: all, count: counts, rooms, states } = &mut self.best;
        kernels::ensure_len(all, group.frames() * from, 0);
        kernels::ensure_len(counts, group.frames() * count, 0);
        kernels::ensure_len(states, group.len() * c, F::ZERO);
        rooms.resize_with(rooms.len().max(group.len()), Room::default);
        states.chunks_exact_mut(c).take(group.len()).for_each(|state| step.begin(state));
        let mut offsets = vec![0.0; group.len()];
        let top = |state: &[F]| state.iter().fold(f64::NEG_INFINITY, |top, x| top.max(x.to_f64()));
        if let Some(screened) = call.weights.screened() {
            self.best.screen(screened, [c, step.context().vocabulary()], group, &mut offsets);
            return self
                .best
                .states
                .chunks_exact(c)
                .zip(offsets)
                .map(|(state, offset)| top(state) + offset)
                .collect();
        }
        let mut buffers = self.denominator.take_buffers(2);
        let mut before: Option<Wave> = None;
        for at in 0..=waves {
            let wave = (at < waves).then(|| group.wave(at));
            let (ahead, behind) = two(&mut buffers, at % 2, (at + 1) % 2);
            rayon::join(
                || {
                    if let (Some(wave), Some(buffer)) = (&wave, ahead) {
                        call.weights.weigh(&wave.frames, buffer.room(step, wave.frames.len()));
                    }
                },
                || {
                    if let (Some(wave), Some(buffer)) = (&before, behind) {
                        let arcs = buffer.arcs(step, wave.frames.len());
                        self.best.go(step, group, (at - 1, wave), (arcs.blank, arcs.lexical), &mut offsets);
                    }
                },
            );
            before = wave;
        }
        self.denominator.give_buffers(buffers);
        self.best.states.chunks_exact(c).zip(offsets).map(|(state, offset)| top(state) + offset).collect()
    }
}

impl<F: Real> Best<F> {
    /// Bytes of backpointers, and of what lanes work in.
    pub fn held(&self) -> [usize; 2] {
        let rooms = self.rooms.iter().map(Room::held).sum::<usize>();
        [4 * (self.from.capacity() + self.count.capacity()), rooms + self.states.capacity() * size_of::<F>()]
    }

    /// Goes through all frames of a group without most of their weights.
    fn screen(
        &mut self,
        screened: Screened<F>,
        [c, vocabulary]: [usize; 2],
        group: &Group,
        offsets: &mut [f64],
    ) {
        let mut from = self.from.as_mut_slice();
        let each = self.states.chunks_exact_mut(c).zip(offsets).enumerate();
        let lane = |(at, (state, offset))| {
            let frames = group.of(at);
            let from = from.split_off_mut(..frames.len() * c).expect("there is room for each frame");
            screened::Lane { frames, state, from, offset }
        };
        let mut lanes: Vec<_> = each.map(lane).collect();
        screened::search(screened, vocabulary, &mut lanes);
    }

    /// Goes through a wave, the utterances side by side.
    fn go(
        &mut self,
        step: &Step,
        group: &Group,
        (number, wave): (usize, &Wave),
        (mut blank, mut lexical): (&[F], &[F]),
        offsets: &mut [f64],
    ) {
        let (c, v) = (step.context().states(), step.context().vocabulary());
        let [per_from, per_count] = step.kept();
        let (mut from, mut count) = (self.from.as_mut_slice(), self.count.as_mut_slice());
        let mut lanes = Vec::with_capacity(group.len());
        let each = self.rooms.iter_mut().zip(self.states.chunks_exact_mut(c)).zip(offsets);
        for ((at, &frames), ((room, state), offset)) in wave.counts.iter().enumerate().zip(each) {
            // The frames of each utterance: those before the wave, the wave's, and what comes later.
            let skip = (number * group.window).min(group.of(at).len());
            let rest = group.of(at).len() - skip - frames;
            from.split_off_mut(..skip * per_from).expect("there are frames before");
            count.split_off_mut(..skip * per_count).expect("there are frames before");
            lanes.push(Lane {
                room,
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
        par_for(items_mut(&mut lanes), |_, lane| {
            let mut next = vec![F::ZERO; c];
            for t in 0..lane.blank.len() / c {
                let arcs = (&lane.blank[t * c..][..c], &lane.lexical[t * c * v..][..c * v]);
                let kept = (
                    &mut lane.from[t * per_from..][..per_from],
                    &mut lane.count[t * per_count..][..per_count],
                );
                *lane.offset += step.best(lane.room, arcs, lane.state, &mut next, kept).to_f64();
                lane.state.copy_from_slice(&next);
            }
        });
    }

    /// The path of an utterance from its end to its start.
    fn walk_back(&self, step: &Step, group: &Group, at: usize, weight: f64) -> Path {
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
        Path { alignment, per_frame, weight }
    }
}
