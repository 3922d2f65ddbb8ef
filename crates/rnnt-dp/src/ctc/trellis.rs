//! The states of an utterance at each of its frames, as a graph.
//!
//! An arc has the emission of the state that it leads to; what leaves the last frame leads to the end for nothing.
use std::ops::Range;

use crate::{
    Error, Regularisers, Result, delay,
    semiring::{Log, Semiring},
    walk::{self, Graph, Transition},
};

pub(super) struct Trellis<'a> {
    labels: &'a [u32],
    emissions: &'a [f64],
    regularisers: Regularisers,
    pub frames: usize,
}

impl<'a> Trellis<'a> {
    pub fn new(labels: &'a [u32], emissions: &'a [f64], regularisers: Regularisers) -> Result<Self> {
        let width = labels.len() + 1;
        let frames = emissions.len() / width;
        if frames * width != emissions.len() {
            let (expected, found) = (frames * width, emissions.len());
            return Err(Error::Length { argument: "emissions", expected, found });
        }
        if frames == 0 {
            return Err(Error::NoFrames { utterance: 0 });
        }
        if let Some(at) = emissions.iter().position(|e| e.is_nan() || *e == f64::INFINITY) {
            let (frame, label) = (at / width, at % width);
            return Err(Error::Emission { utterance: 0, frame, label, arc: 0, value: emissions[at] });
        }
        Ok(Self { labels, emissions, regularisers, frames })
    }

    pub fn states(&self) -> usize {
        2 * self.labels.len() + 1
    }

    /// The states in which an utterance may begin.
    fn first(&self) -> Range<usize> {
        0..self.states().min(2)
    }

    /// The states in which it may end.
    fn last(&self) -> Range<usize> {
        self.states().saturating_sub(2)..self.states()
    }

    /// Column of a state: 0 for blank, `j` for the `j`-th label.
    pub fn column(state: usize) -> usize {
        if state.is_multiple_of(2) { 0 } else { state.div_ceil(2) }
    }

    /// Whether a state may be entered from the second before it.
    fn skips(&self, s: usize) -> bool {
        s % 2 == 1 && s >= 3 && self.labels[s / 2] != self.labels[s / 2 - 1]
    }

    /// The states that may follow.
    fn next(&self, s: usize) -> [Option<usize>; 3] {
        let inside = |next: usize| next < self.states();
        let skipped = s + 2;
        [Some(s), Some(s + 1).filter(|&s| inside(s)), Some(skipped).filter(|&s| inside(s) && self.skips(s))]
    }

    /// Emission of a state.
    fn at(&self, t: usize, s: usize) -> f64 {
        self.emissions[t * (self.labels.len() + 1) + Self::column(s)]
    }

    /// Emission of a state that was there before.
    fn stay(&self, t: usize, s: usize) -> f64 {
        self.at(t, s) - self.regularisers.sigma
    }

    /// Emission of a state that comes from another, or begins the utterance.
    fn enter(&self, t: usize, s: usize) -> f64 {
        match Self::column(s) {
            0 => self.stay(t, s),
            _ => self.stay(t, s) + delay(self.regularisers.delay_penalty, t, self.frames),
        }
    }

    /// Where a state is among all of the graph, at each of the frames; 0 is the start.
    pub fn place(&self, t: usize, s: usize) -> usize {
        1 + t * self.states() + s
    }

    /// Frame and state of a place that is not the start.
    pub fn at_place(&self, place: usize) -> (usize, usize) {
        ((place - 1) / self.states(), (place - 1) % self.states())
    }

    /// The arc to a state from another, from itself, or from the start.
    fn arc(&self, from: usize, t: usize, s: usize, stays: bool) -> Transition {
        let log_prob = if stays { self.stay(t, s) } else { self.enter(t, s) };
        Transition { from, to: Some(self.place(t, s)), arc: Self::column(s), log_prob }
    }

    /// The arcs that leave a state at a frame: to the next, or to the end.
    fn onward(&self, t: usize, s: usize) -> impl DoubleEndedIterator<Item = Transition> + '_ {
        let (from, last) = (self.place(t, s), t + 1 == self.frames);
        let next = if last { [None; 3] } else { self.next(s) };
        let arcs = next.into_iter().flatten().map(move |next| self.arc(from, t + 1, next, next == s));
        let ends = last && self.last().contains(&s);
        let end = ends.then_some(Transition { from, to: None, arc: Self::column(s), log_prob: 0.0 });
        arcs.chain(end)
    }

    fn begin(&self) -> impl DoubleEndedIterator<Item = Transition> + '_ {
        self.first().map(|s| self.arc(0, 0, s, false))
    }

    /// Writes `α`, its own emission included, of each place; the log-probability of the labels.
    pub fn forward(&self, alpha: &mut Vec<f64>) -> Result<f64> {
        alpha.clear();
        alpha.resize(Graph::states(self), 0.0);
        self.log_p(walk::forward::<Log, _>(self, |arc| arc.log_prob, alpha))
    }

    /// Fails for a sum over all paths that overflowed.
    pub fn log_p(&self, log_p: f64) -> Result<f64> {
        match log_p.is_nan() || log_p == f64::INFINITY {
            true => Err(Error::Overflow { utterance: 0, loss: -log_p }),
            false => Ok(log_p),
        }
    }

    /// `β`, what follows, its own emission left out, of each place.
    pub fn backward<S: Semiring<Weight = f64>>(&self) -> Vec<f64> {
        let mut beta = Vec::new();
        self.backward_into::<S>(&mut beta);
        beta
    }

    /// Writes them.
    pub fn backward_into<S: Semiring<Weight = f64>>(&self, beta: &mut Vec<f64>) {
        beta.clear();
        beta.resize(Graph::states(self), 0.0);
        walk::backward::<S, _>(self, |arc| arc.log_prob, beta);
    }
}

impl Graph for Trellis<'_> {
    fn states(&self) -> usize {
        self.place(self.frames, 0)
    }

    fn start(&self) -> Option<usize> {
        Some(0)
    }

    fn arcs(&self) -> impl DoubleEndedIterator<Item = Transition> {
        let rows = (0..self.frames).flat_map(move |t| (0..Trellis::states(self)).map(move |s| (t, s)));
        self.begin().chain(rows.flat_map(move |(t, s)| self.onward(t, s)))
    }

    fn leaving(&self, state: usize) -> impl Iterator<Item = Transition> {
        let row = (state > 0).then(|| self.at_place(state));
        let begin = if row.is_none() { Some(self.begin()) } else { None };
        begin.into_iter().flatten().chain(row.into_iter().flat_map(|(t, s)| self.onward(t, s)))
    }
}
