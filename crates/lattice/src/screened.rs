//! Best paths whose arcs are screened: of the arcs to a state only those that may be the best are weighed.
//!
//! ```text
//! for each frame:  par for each few runs of states, for each utterance:  best arcs into them, from states in panels and in none; blanks
//!                  par for each utterance:                               the blank where it is no worse
//! ```
//! Weights and back pointers are those of [`Step::best`](crate::step::Step::best), bit for bit.
use kernels::{Fan, PANEL, Real, Sources, Winners, items_mut, par_for, parts, parts_mut};

use crate::{panels::Run, step::take, weight_fn::Screened};

/// Utterances that read a panel one after the other.
const TOGETHER: usize = 2;
/// Panels of a task.
const PANELS: usize = 2;
/// Frames of a task that does not wait for `α`.
const FEW: usize = 8;

/// An utterance on its way.
pub struct Lane<'a, F> {
    /// Its frames.
    pub frames: std::ops::Range<usize>,
    /// `α`, its largest value 0, *C*.
    pub state: &'a mut [F],
    /// Back pointers, *N x C*.
    pub from: &'a mut [u32],
    /// What was taken from `α`.
    pub offset: &'a mut f64,
}

/// What an utterance works in.
struct Desk<F> {
    /// `α'` of labels alone, *C*.
    next: Vec<F>,
    /// Weights of blanks, by place.
    blank: Vec<F>,
    /// Arcs from states in no panel in a few frames, *rest x PANEL x (1 + V)*.
    rest: Vec<F>,
    /// These frames in the middle of all states, *PANEL x H*.
    middles: Vec<F>,
}

/// Successive runs.
struct Task<'a> {
    runs: &'a [Run],
    /// The first state that is theirs, and how many are.
    first: usize,
    states: usize,
}

/// One utterance's frame, or a task's part of it.
struct Share<'a, F> {
    frame: usize,
    middle: &'a [F],
    alpha: &'a [F],
    /// Arcs from states in no panel, from this frame on.
    rest: &'a [F],
    next: &'a mut [F],
    from: &'a mut [u32],
    /// By places in panels.
    blank: &'a mut [[F; PANEL]],
}

/// Goes through all frames of some utterances.
pub fn search<F: Real>(screened: Screened<F>, vocabulary: usize, lanes: &mut [Lane<F>]) {
    let mut chunks: Vec<_> = lanes.chunks_mut(TOGETHER).collect();
    par_for(items_mut(&mut chunks), |_, lanes| few(screened, vocabulary, lanes));
}

fn few<F: Real>(screened: Screened<F>, vocabulary: usize, lanes: &mut [Lane<F>]) {
    let panels = screened.panels();
    let c = panels.places.len();
    let mut desks: Vec<Desk<F>> = lanes.iter().map(|_| Desk::new(screened, c, vocabulary)).collect();
    let tasks = Task::all(&panels.runs, c);
    let longest = lanes.iter().map(|lane| lane.frames.len()).max().unwrap_or(0);
    for t in 0..longest {
        if t % PANEL == 0 {
            let alive = lanes.iter().zip(&mut desks).filter(|(lane, _)| t < lane.frames.len());
            for (lane, desk) in alive {
                desk.prepare(screened, lane.frames.clone().skip(t));
            }
        }
        let alive = lanes.iter_mut().zip(&mut desks).filter(|(lane, _)| t < lane.frames.len());
        let mut rest: Vec<Share<F>> = alive.map(|(lane, desk)| Share::new(screened, lane, desk, t)).collect();
        let count = rest.len();
        let mut shares = Vec::with_capacity(tasks.len() * count);
        for task in &tasks {
            shares.extend(rest.iter_mut().map(|rest| rest.split_off(task)));
        }
        par_for((parts(&tasks, 1), parts_mut(&mut shares, count)), |_, (task, shares)| {
            task[0].go(screened, vocabulary, shares);
        });
        let mut pairs: Vec<_> = lanes.iter_mut().zip(&mut desks).collect();
        par_for(items_mut(&mut pairs), |_, (lane, desk)| {
            if t < lane.frames.len() {
                lane.go_on(desk, screened, vocabulary, t);
            }
        });
    }
}

impl<'a, F: Real> Share<'a, F> {
    /// All of a frame.
    fn new(screened: Screened<F>, lane: &'a mut Lane<F>, desk: &'a mut Desk<F>, t: usize) -> Self {
        let (c, h, panels) = (lane.state.len(), screened.hidden(), screened.panels());
        let arcs = desk.rest.len() / (PANEL * panels.rest.len()).max(1);
        Self {
            frame: lane.frames.start + t,
            middle: &desk.middles[t % PANEL * h..][..h],
            alpha: lane.state,
            rest: &desk.rest[t % PANEL * arcs..],
            next: &mut desk.next,
            from: &mut lane.from[t * c..][..c],
            blank: &mut desk.blank.as_chunks_mut().0[..panels.states.len()],
        }
    }

    /// What is the next task's of what is left.
    fn split_off(&mut self, task: &Task) -> Self {
        let Self { frame, middle, alpha, rest, next, from, blank } = self;
        Self {
            frame: *frame,
            middle,
            alpha,
            rest,
            next: next.split_off_mut(..task.states).expect("tasks have their own states"),
            from: from.split_off_mut(..task.states).expect("tasks have their own states"),
            blank: blank.split_off_mut(..task.panels().len()).expect("tasks have their own panels"),
        }
    }
}

impl<'a> Task<'a> {
    /// All runs, between which states and panels are cut.
    fn all(mut runs: &'a [Run], states: usize) -> Vec<Self> {
        let mut tasks: Vec<Self> = Vec::new();
        let mut first = 0;
        while let [run, rest @ ..] = runs {
            let full = |other: &Run| other.panels.end - run.panels.start > PANELS;
            let count = 1 + rest.iter().position(full).unwrap_or(rest.len());
            let own;
            (own, runs) = runs.split_at(count);
            let end = runs.first().map_or(states, |next| next.start);
            tasks.push(Self { runs: own, first, states: end - first });
            first = end;
        }
        tasks
    }

    fn panels(&self) -> std::ops::Range<usize> {
        let [first, .., last] = self.runs else { return self.runs[0].panels.clone() };
        first.panels.start..last.panels.end
    }

    /// Best arcs into the task's states, but for those of their blanks, which are scores by place.
    fn go<F: Real>(&self, screened: Screened<F>, vocabulary: usize, shares: &mut [Share<F>]) {
        let (panels, arcs) = (screened.panels(), PANEL * (1 + vocabulary));
        let mut sources = Vec::with_capacity(self.panels().len() * shares.len());
        let mut winners = Vec::with_capacity(self.runs.len() * shares.len());
        for Share { frame, middle, alpha, rest, next, from, blank } in shares {
            next.fill(F::NEG_INFINITY);
            from.fill(0);
            let (mut next, mut from, mut blank) = (&mut **next, &mut **from, blank.iter_mut());
            let mut skipped = self.first;
            for run in self.runs {
                let (best, from) = (
                    of_run(&mut next, run.start - skipped, vocabulary),
                    of_run(&mut from, run.start - skipped, vocabulary),
                );
                skipped = run.start + vocabulary;
                for (at, &state) in run.rest.clone().zip(&panels.rest[run.rest.clone()]) {
                    let rows = &rest[at * arcs + 1..][..vocabulary];
                    F::fan_best(
                        best,
                        from,
                        Fan { rows, shifts: &[alpha[state]], starts: &[0], first: state },
                    );
                }
                sources.extend(run.panels.clone().zip(&mut blank).map(|(panel, blank)| Sources {
                    addends: screened.addends(panel, *frame),
                    middle,
                    shifts: screened.shifts(panel, alpha),
                    arcs: screened.arcs(panel),
                    to: winners.len(),
                    blank,
                }));
                winners.push(Winners { best, from });
            }
        }
        screened.screen().best(&mut sources, &mut winners);
    }
}

/// The states of a run behind some others; what is left are those behind it.
fn of_run<'a, T>(states: &mut &'a mut [T], skip: usize, len: usize) -> &'a mut [T] {
    states.split_off_mut(..skip).expect("runs do not overlap");
    states.split_off_mut(..len).expect("runs are states")
}

impl<F: Real> Desk<F> {
    fn new(screened: Screened<F>, states: usize, vocabulary: usize) -> Self {
        let panels = screened.panels();
        Self {
            next: vec![F::ZERO; states],
            blank: vec![F::ZERO; panels.count()],
            rest: vec![F::ZERO; panels.rest.len() * PANEL * (1 + vocabulary)],
            middles: vec![F::ZERO; PANEL * screened.hidden()],
        }
    }

    /// Does what needs no `α` for the next few frames.
    fn prepare(&mut self, screened: Screened<F>, frames: impl Iterator<Item = usize>) {
        let frames: Vec<usize> = frames.take(PANEL).collect();
        screened.weigh_rest(&frames, &mut self.rest);
        let h = screened.hidden();
        par_for((parts_mut(&mut self.middles, FEW * h), parts(&frames, FEW)), |_, (middles, frames)| {
            middles
                .chunks_exact_mut(h)
                .zip(frames)
                .for_each(|(middle, &frame)| screened.enter(frame, middle));
        });
    }
}

impl<F: Real> Lane<'_, F> {
    /// Adds blanks to what is known of a frame, and ends it.
    fn go_on(&mut self, desk: &mut Desk<F>, screened: Screened<F>, vocabulary: usize, t: usize) {
        let panels = screened.panels();
        let Desk { next, blank, rest, .. } = desk;
        let of_rest = rest.iter().skip(t % PANEL * (1 + vocabulary)).step_by(PANEL * (1 + vocabulary));
        blank[panels.states.len() * PANEL..].iter_mut().zip(of_rest).for_each(|(blank, &w)| *blank = w);
        let from = &mut self.from[t * next.len()..][..next.len()];
        let top = F::fan_stay(next, from, self.state, blank, &panels.places);
        *self.offset += take(next, top).to_f64();
        self.state.copy_from_slice(next);
    }
}
