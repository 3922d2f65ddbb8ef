//! Alignment paths of transducer lattices: Viterbi, posterior samples, emission times.
mod best;
mod emission_times;
mod sample;

pub use best::best_path;
pub use emission_times::{confidences, expected_emission_frames};
pub use sample::{PathRng, sample_paths};

use rayon::prelude::*;

use crate::{
    Lattices, Result, Site, Topology,
    walk::{Lattice, Transition},
};

/// An arc of a path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathStep {
    /// Site that the arc leaves.
    pub site: Site,
    /// Index of the arc in the topology.
    pub arc: usize,
    /// Emission of the arc.
    pub log_prob: f64,
}

/// A path from the first site to the end.
#[derive(Debug, Clone, PartialEq)]
pub struct AlignmentPath {
    /// Sum of the emissions; -inf for an utterance without a path.
    pub log_prob: f64,
    /// Arcs in order; empty for an utterance without a path.
    pub steps: Vec<PathStep>,
}

impl AlignmentPath {
    fn new(lattice: &Lattice, log_prob: f64, arcs: &[Transition]) -> Self {
        let step = |arc: &Transition| PathStep {
            site: lattice.site(arc.source),
            arc: arc.arc,
            log_prob: arc.log_prob,
        };
        Self { log_prob, steps: arcs.iter().map(step).collect() }
    }

    /// The path of an utterance without one.
    pub(crate) fn impossible() -> Self {
        Self { log_prob: f64::NEG_INFINITY, steps: Vec::new() }
    }

    /// Iterates over the steps that emit labels, one item per label.
    ///
    /// A step that emits several labels is repeated.
    ///
    /// The frame of the step's site is the frame of the emission.
    pub fn label_steps<'a>(&'a self, topology: &'a Topology) -> impl Iterator<Item = &'a PathStep> + 'a {
        let labels = |step: &PathStep| topology.arcs().get(step.arc).map_or(0, |arc| arc.labels);
        self.steps.iter().flat_map(move |step| std::iter::repeat_n(step, labels(step)))
    }
}

/// Runs all utterances in parallel; returns the error of the first utterance that has one.
fn map_utterances<T: Send>(
    lattices: &Lattices,
    run: impl Fn(usize) -> Result<T> + Sync + Send,
) -> Result<Vec<T>> {
    let outcomes = (0..lattices.batch()).into_par_iter().map(run);
    outcomes.collect::<Vec<Result<T>>>().into_iter().collect()
}
