//! CTC trellis: the 2U + 1 states of an utterance at each frame, as a graph.
//!
//! The CTC loss and its paths walk over it. An arc has the emission of its target state; arcs from
//! the last frame to the end have log-probability 0. Index 0 is the start of the graph; t is a
//! frame, s a state of a frame (even: blank, odd: label); T frames, U labels.
use std::ops::Range;

use crate::{
    Error, Regularizers, Result, delay_shift,
    semiring::{Log, Semiring},
    walk::{self, Graph, Transition},
};

/// The graph of an utterance: labels *U*, emissions *T x (U+1)*.
pub(super) struct Trellis<'a> {
    labels: &'a [u32],
    emissions: &'a [f64],
    regularizers: Regularizers,
    pub frames: usize,
}

impl<'a> Trellis<'a> {
    pub(super) fn new(labels: &'a [u32], emissions: &'a [f64], regularizers: Regularizers) -> Result<Self> {
        let width = labels.len() + 1;
        let frames = emissions.len() / width;
        if frames * width != emissions.len() {
            let (expected, found) = (frames * width, emissions.len());
            return Err(Error::Length { argument: "emissions", expected, found });
        }
        if frames == 0 {
            return Err(Error::NoFrames { utterance: 0 });
        }
        if let Some(index) = emissions.iter().position(|e| e.is_nan() || *e == f64::INFINITY) {
            let (frame, label) = (index / width, index % width);
            return Err(Error::Emission { utterance: 0, frame, label, arc: 0, value: emissions[index] });
        }
        Ok(Self { labels, emissions, regularizers, frames })
    }

    /// Number of states of a frame, 2U + 1.
    pub(super) fn states_per_frame(&self) -> usize {
        2 * self.labels.len() + 1
    }

    /// States in which an alignment may begin.
    fn first_states(&self) -> Range<usize> {
        0..self.states_per_frame().min(2)
    }

    /// States in which an alignment may end.
    fn last_states(&self) -> Range<usize> {
        self.states_per_frame().saturating_sub(2)..self.states_per_frame()
    }

    /// Emission column of a state: 0 for the blank, `j` for the `j`-th label.
    pub(super) fn column(state: usize) -> usize {
        if state.is_multiple_of(2) { 0 } else { state.div_ceil(2) }
    }

    /// Returns true if a state may be entered from `s - 2`: a label after another label.
    pub(super) fn may_skip_to(&self, s: usize) -> bool {
        s % 2 == 1 && s >= 3 && self.labels[s / 2] != self.labels[s / 2 - 1]
    }

    /// The states that may follow a state.
    fn next_states(&self, s: usize) -> [Option<usize>; 3] {
        let exists = |next: usize| next < self.states_per_frame();
        let (advance, skip) = (s + 1, s + 2);
        [
            Some(s),
            Some(advance).filter(|&next| exists(next)),
            Some(skip).filter(|&next| exists(next) && self.may_skip_to(next)),
        ]
    }

    /// Emission of a state at a frame.
    pub(super) fn emission(&self, t: usize, s: usize) -> f64 {
        self.emissions[t * (self.labels.len() + 1) + Self::column(s)]
    }

    /// Emission of a state that continues.
    fn stay_emission(&self, t: usize, s: usize) -> f64 {
        self.emission(t, s) - self.regularizers.sigma
    }

    /// Emission of a state at its first frame.
    fn entry_emission(&self, t: usize, s: usize) -> f64 {
        match Self::column(s) {
            0 => self.stay_emission(t, s),
            _ => self.stay_emission(t, s) + delay_shift(self.regularizers.delay_penalty, t, self.frames),
        }
    }

    /// Index of a state of a frame in the graph; 0 is the start.
    pub(super) fn state_index(&self, t: usize, s: usize) -> usize {
        1 + t * self.states_per_frame() + s
    }

    /// Frame and state of an index other than the start.
    pub(super) fn frame_and_state(&self, index: usize) -> (usize, usize) {
        ((index - 1) / self.states_per_frame(), (index - 1) % self.states_per_frame())
    }

    /// The arc from index `source` to a state of a frame.
    fn arc(&self, source: usize, t: usize, s: usize, is_stay: bool) -> Transition {
        let log_prob = if is_stay { self.stay_emission(t, s) } else { self.entry_emission(t, s) };
        Transition { source, target: Some(self.state_index(t, s)), arc: Self::column(s), log_prob }
    }

    /// The arcs from a state at a frame: to the next frame, or to the end.
    fn arcs_from_state(&self, t: usize, s: usize) -> impl DoubleEndedIterator<Item = Transition> + '_ {
        let (source, is_last_frame) = (self.state_index(t, s), t + 1 == self.frames);
        let next_states = if is_last_frame { [None; 3] } else { self.next_states(s) };
        let arcs =
            next_states.into_iter().flatten().map(move |next| self.arc(source, t + 1, next, next == s));
        let may_end = is_last_frame && self.last_states().contains(&s);
        let end_arc =
            may_end.then_some(Transition { source, target: None, arc: Self::column(s), log_prob: 0.0 });
        arcs.chain(end_arc)
    }

    /// The arcs from the start to the first frame.
    fn start_arcs(&self) -> impl DoubleEndedIterator<Item = Transition> + '_ {
        self.first_states().map(|s| self.arc(0, 0, s, false))
    }

    /// Writes `α` of each state, with its emission; returns the log-probability of the labels.
    pub(super) fn forward(&self, alpha: &mut Vec<f64>) -> Result<f64> {
        alpha.clear();
        alpha.resize(self.states(), 0.0);
        self.check_log_prob(walk::forward::<Log, _>(self, |arc| arc.log_prob, alpha))
    }

    /// Fails if the sum over all paths is NaN or +inf.
    pub(super) fn check_log_prob(&self, log_p: f64) -> Result<f64> {
        match log_p.is_nan() || log_p == f64::INFINITY {
            true => Err(Error::Overflow { utterance: 0, loss: -log_p }),
            false => Ok(log_p),
        }
    }

    /// Returns `β` of each state, without its emission.
    pub(super) fn backward<S: Semiring<Weight = f64>>(&self) -> Vec<f64> {
        let mut beta = Vec::new();
        self.write_backward::<S>(&mut beta);
        beta
    }

    /// Writes [`backward`](Self::backward) into a buffer.
    pub(super) fn write_backward<S: Semiring<Weight = f64>>(&self, beta: &mut Vec<f64>) {
        beta.clear();
        beta.resize(self.states(), 0.0);
        walk::backward::<S, _>(self, |arc| arc.log_prob, beta);
    }
}

impl Graph for Trellis<'_> {
    fn states(&self) -> usize {
        self.state_index(self.frames, 0)
    }

    fn start(&self) -> Option<usize> {
        Some(0)
    }

    fn arcs(&self) -> impl DoubleEndedIterator<Item = Transition> {
        let frame_states =
            (0..self.frames).flat_map(move |t| (0..self.states_per_frame()).map(move |s| (t, s)));
        self.start_arcs().chain(frame_states.flat_map(move |(t, s)| self.arcs_from_state(t, s)))
    }

    fn arcs_from(&self, state: usize) -> impl Iterator<Item = Transition> {
        let frame_and_state = (state > 0).then(|| self.frame_and_state(state));
        let start_arcs = if frame_and_state.is_none() { Some(self.start_arcs()) } else { None };
        start_arcs
            .into_iter()
            .flatten()
            .chain(frame_and_state.into_iter().flat_map(|(t, s)| self.arcs_from_state(t, s)))
    }
}
