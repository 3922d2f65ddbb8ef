//! Single paths: the best one, draws from the posterior, and when a path emits its labels.
mod best;
mod emitted;
mod sample;

pub use best::best_path;
pub use emitted::{confidences, expected_emission_frames};
pub use sample::{Draws, sample_paths};

use rayon::prelude::*;

use crate::{
    Lattices, Result, Site, Topology,
    walk::{Lattice, Transition},
};

/// One arc of a path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Where it leaves.
    pub site: Site,
    /// Which of the topology's arcs it is.
    pub arc: usize,
    /// Its emission.
    pub log_prob: f64,
}

/// A way from the first site to the end.
#[derive(Debug, Clone, PartialEq)]
pub struct Path {
    /// Sum of the emissions; -inf for an utterance without a path.
    pub log_prob: f64,
    /// Its arcs in order; none for an utterance without a path.
    pub steps: Vec<Step>,
}

impl Path {
    fn new(lattice: &Lattice, log_prob: f64, arcs: &[Transition]) -> Self {
        let step =
            |arc: &Transition| Step { site: lattice.site(arc.from), arc: arc.arc, log_prob: arc.log_prob };
        Self { log_prob, steps: arcs.iter().map(step).collect() }
    }

    /// What an utterance without a path has.
    pub(crate) fn impossible() -> Self {
        Self { log_prob: f64::NEG_INFINITY, steps: Vec::new() }
    }

    /// The step that emits each label, U of them; one that emits several labels comes as often.
    ///
    /// The frame at which it leaves its site is that of the label's emission.
    pub fn emitting<'a>(&'a self, topology: &'a Topology) -> impl Iterator<Item = &'a Step> + 'a {
        let labels = |step: &Step| topology.arcs().get(step.arc).map_or(0, |arc| arc.labels);
        self.steps.iter().flat_map(move |step| std::iter::repeat_n(step, labels(step)))
    }
}

/// Goes through the utterances in parallel; of several mistakes, the first utterance's is told.
fn each<T: Send>(lattices: &Lattices, one: impl Fn(usize) -> Result<T> + Sync + Send) -> Result<Vec<T>> {
    let outcomes = (0..lattices.batch()).into_par_iter().map(one);
    outcomes.collect::<Vec<Result<T>>>().into_iter().collect()
}
