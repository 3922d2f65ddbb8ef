//! Best paths whose arcs are screened: of the arcs to a state only those that may be the best are weighed.
//!
//! ```text
//! for each frame:  par for each few runs of states, for each of their panels, for each utterance:  best arcs into the run, blanks
//!                  par for each utterance:  arcs from states in no panel, then the blank where it is no worse
//! ```
//! Weights and back pointers are those of [`Step::best`](crate::step::Step::best), bit for bit.
use kernels::{Fan, PANEL, Real, ScreenRoom, Sources, Winners, items_mut, par_for};

use crate::{
    step::take,
    weight_fn::{Run, Screened},
};

/// Utterances that read a panel one after the other.
const TOGETHER: usize = 4;
/// Panels of a task.
const PANELS: usize = 2;

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
    /// The frame in the middle of all states, *H*.
    middle: Vec<F>,
}

/// Successive runs.
struct Task<'a, F> {
    runs: &'a [Run],
    /// The first state that is theirs, and how many are.
    first: usize,
    states: usize,
    room: ScreenRoom<F>,
}

/// One utterance's part of a task.
struct Share<'a, F> {
    frame: usize,
    middle: &'a [F],
    alpha: &'a [F],
    /// Arcs from states in no panel, from this frame on.
    rest: &'a [F],
    next: &'a mut [F],
    from: &'a mut [u32],
    /// By places in the panels of the task.
    blank: &'a mut [[F; PANEL]],
}

/// Goes through all frames of some utterances.
pub fn search<F: Real>(screened: Screened<F>, vocabulary: usize, lanes: &mut [Lane<F>]) {
    let mut chunks: Vec<_> = lanes.chunks_mut(TOGETHER).collect();
    // Tasks of a frame are short: who deals them out is one of those that do them.
    rayon::scope(|_| par_for(items_mut(&mut chunks), |_, lanes| few(screened, vocabulary, lanes)));
}

fn few<F: Real>(screened: Screened<F>, vocabulary: usize, lanes: &mut [Lane<F>]) {
    let panels = screened.panels();
    let c = panels.places.len();
    let mut desks: Vec<Desk<F>> = lanes.iter().map(|_| Desk::new(screened, c, vocabulary)).collect();
    let mut tasks = Task::all(&panels.runs, c);
    let longest = lanes.iter().map(|lane| lane.frames.len()).max().unwrap_or(0);
    for t in 0..longest {
        let mut shares: Vec<Vec<Share<F>>> = tasks.iter().map(|_| Vec::with_capacity(lanes.len())).collect();
        for (lane, desk) in lanes.iter_mut().zip(&mut desks).filter(|(lane, _)| t < lane.frames.len()) {
            let frame = lane.frames.start + t;
            if t % PANEL == 0 {
                let frames: Vec<usize> = (frame..lane.frames.end).take(PANEL).collect();
                screened.weigh_rest(&frames, &mut desk.rest);
            }
            screened.enter(frame, &mut desk.middle);
            let (mut next, mut from) = (&mut desk.next[..], &mut lane.from[t * c..][..c]);
            let mut blank = &mut desk.blank.as_chunks_mut().0[..panels.states.len()];
            for (task, shares) in tasks.iter().zip(&mut shares) {
                shares.push(Share {
                    frame,
                    middle: &desk.middle,
                    alpha: lane.state,
                    rest: &desk.rest[t % PANEL * (1 + vocabulary)..],
                    next: next.split_off_mut(..task.states).expect("tasks have their own states"),
                    from: from.split_off_mut(..task.states).expect("tasks have their own states"),
                    blank: blank.split_off_mut(..task.panels().len()).expect("tasks have their own panels"),
                });
            }
        }
        par_for((items_mut(&mut tasks), items_mut(&mut shares)), |_, (task, shares)| {
            task.go(screened, vocabulary, shares);
        });
        let mut pairs: Vec<_> = lanes.iter_mut().zip(&mut desks).collect();
        par_for(items_mut(&mut pairs), |_, (lane, desk)| {
            if t < lane.frames.len() {
                lane.go_on(desk, screened, vocabulary, t);
            }
        });
    }
}

impl<'a, F: Real> Task<'a, F> {
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
            tasks.push(Self { runs: own, first, states: end - first, room: ScreenRoom::default() });
            first = end;
        }
        tasks
    }

    fn panels(&self) -> std::ops::Range<usize> {
        let [first, .., last] = self.runs else { return self.runs[0].panels.clone() };
        first.panels.start..last.panels.end
    }

    /// Best arcs into the task's states, but for those of their blanks, which are scores by place.
    fn go(&mut self, screened: Screened<F>, vocabulary: usize, shares: &mut [Share<F>]) {
        let (panels, arcs) = (screened.panels(), PANEL * (1 + vocabulary));
        let shifts: Vec<[F; PANEL]> = self
            .panels()
            .flat_map(|panel| shares.iter().map(move |share| screened.shifts(panel, share.alpha)))
            .collect();
        for share in &mut *shares {
            share.next.fill(F::NEG_INFINITY);
            share.from.fill(0);
            for run in self.runs {
                let states = run.start - self.first..run.start - self.first + vocabulary;
                let (next, from) = (&mut share.next[states.clone()], &mut share.from[states]);
                for (at, &state) in run.rest.clone().zip(&panels.rest[run.rest.clone()]) {
                    let rows = &share.rest[at * arcs + 1..][..vocabulary];
                    let fan = Fan { rows, shifts: &[share.alpha[state]], starts: &[0], first: state };
                    F::fan_best(next, from, fan);
                }
            }
        }
        let (mut sources, mut winners) = (Vec::with_capacity(shifts.len()), Vec::new());
        let mut shifts = shifts.iter();
        let mut parts: Vec<_> = shares
            .iter_mut()
            .map(|share| {
                let Share { frame, middle, next, from, blank, .. } = share;
                (*frame, *middle, &mut next[..], &mut from[..], blank.iter_mut())
            })
            .collect();
        let mut skipped = self.first;
        for run in self.runs {
            for panel in run.panels.clone() {
                for (lane, (frame, middle, .., blank)) in parts.iter_mut().enumerate() {
                    sources.push(Sources {
                        addends: screened.addends(panel, *frame),
                        middle,
                        shifts: shifts.next().expect("shifts of each panel"),
                        arcs: screened.arcs(panel),
                        to: winners.len() + lane,
                        blank: blank.next().expect("blanks of each panel"),
                    });
                }
            }
            for (_, _, next, from, _) in &mut parts {
                let skip = run.start - skipped;
                let best = next.split_off_mut(skip..).expect("runs do not overlap");
                let arcs = from.split_off_mut(skip..).expect("runs do not overlap");
                let (best, rest) = best.split_at_mut(vocabulary);
                *next = rest;
                let (from_run, rest) = arcs.split_at_mut(vocabulary);
                *from = rest;
                winners.push(Winners { best, from: from_run });
            }
            skipped = run.start + vocabulary;
        }
        screened.screen().best(&mut self.room, &mut sources, &mut winners);
    }
}

impl<F: Real> Desk<F> {
    fn new(screened: Screened<F>, states: usize, vocabulary: usize) -> Self {
        let panels = screened.panels();
        Self {
            next: vec![F::ZERO; states],
            blank: vec![F::ZERO; panels.count()],
            rest: vec![F::ZERO; panels.rest.len() * PANEL * (1 + vocabulary)],
            middle: vec![F::ZERO; screened.hidden()],
        }
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
