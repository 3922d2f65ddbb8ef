//! The n best label strings of a lattice: best-first search over prefixes.
//!
//! t, a: frame and alignment state; y: next label; β: weight of the paths to the end; ⊕ is `Merge`.
//!
//! ```text
//! h(t,a)          weight of the paths that emit a prefix and end in (t,a), in its context state c;
//!                 at the end, weight of the string
//! bound(prefix y) = ⊕ over (t,a) of h(t,a) ⊗ l_t[c,y] ⊗ β(after the label, δ(c,y))
//! ```
//! A bound is the weight of the best path, or the sum over all paths, whose strings start with the
//! prefix. It is an upper bound for these strings, so the first complete string taken from the
//! queue is the best one. With [`Merge::Max`] some string attains the bound, and the bounds of the
//! prefixes on the way to it are equal, ties included (`n_best.rs`): no more prefixes are expanded
//! than the results have. With [`Merge::Sum`] many strings share a bound, and only `max_prefixes`
//! limits the work.
use std::{cmp::Ordering, collections::BinaryHeap};

use kernels::{Real, ScratchReq};

use crate::{
    Error, Frames, LatticeSession, Merge, RecognitionLattice, Result, WeightedString,
    plan::WalkMemory,
    potentials::{PathWalk, StateArcs},
};

/// Options of a search for the n best strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NBestOptions {
    /// Largest number of strings.
    pub count: usize,
    /// Weight of a string: of its best path, or of all its paths.
    pub merge: Merge,
    /// Largest number of prefixes that are expanded for an utterance.
    pub max_prefixes: usize,
}

/// A prefix that was expanded.
struct StringPrefix {
    /// Index of the prefix without the last label.
    parent: usize,
    /// The last label.
    label: u32,
    /// Context state.
    state: usize,
    /// Number of labels.
    depth: usize,
    /// `h`, *N A + 1*.
    forward: Vec<f64>,
}

/// A prefix to expand, or a complete string (label 0).
struct PrefixCandidate {
    /// Upper bound of the weights of its strings.
    bound: f64,
    /// Number of labels.
    depth: usize,
    /// Index of the prefix without the last label.
    parent: usize,
    /// The last label; 0 completes the parent's string.
    label: u32,
}

impl<F: Real> LatticeSession<F> {
    /// Returns the best label strings of each utterance, best first, all different.
    ///
    /// There are fewer if not enough strings are unblocked.
    ///
    /// Exact for both merges. Under [`Merge::Sum`], the weight minus `log D` is the log-posterior
    /// of the string.
    ///
    /// ```
    /// use lattice::{
    ///     AlignmentLattice, Frames, FullNGram, LatticeSession, Merge, NBestOptions,
    ///     RecognitionLattice, TableWeightFn,
    /// };
    /// let (context, table) = (FullNGram::new(1, 0)?, TableWeightFn::new(&[0.0; 4], &[2, 1, 2])?);
    /// let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &table)?;
    /// let frames = Frames::new(&[0.0, 1.0], &[1, 2, 1], &[2])?;
    /// let options = NBestOptions { count: 1, merge: Merge::Sum, max_prefixes: 100 };
    /// let strings = LatticeSession::default().n_best_strings(&lattice, &frames, options)?;
    /// assert_eq!(strings[0][0].labels, [1]); // one label at the first or second frame
    /// assert!((strings[0][0].weight - 2f64.ln()).abs() < 1e-12);
    /// # Ok::<(), lattice::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`distances`](Self::distances); [`Error::Limit`] if more prefixes would have to be
    /// expanded.
    ///
    /// # Cost
    /// Arc weights of all frames once, and N A C numbers of 8 bytes per utterance; for each
    /// expanded prefix, the arcs of one state in all frames, and N A numbers of 8 bytes.
    pub fn n_best_strings(
        &mut self,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        options: NBestOptions,
    ) -> Result<Vec<Vec<WeightedString>>> {
        let arc_count = 1 + lattice.context().vocabulary();
        let prefixes = ScratchReq::new::<f64>(options.max_prefixes);
        // Weights of the arcs of one label.
        let arcs = ScratchReq::new::<f64>(1).and(ScratchReq::new::<F>(4));
        let candidates = ScratchReq::new::<PrefixCandidate>(arc_count)
            .and(ScratchReq::new::<StringPrefix>(1))
            .times(options.max_prefixes);
        let scores = ScratchReq::new::<f64>(arc_count);
        let state_arcs = StateArcs::<F>::scratch(lattice.context());
        let memory = WalkMemory {
            per_frame: prefixes.times(lattice.alignment().num_states()).and(arcs),
            per_utterance: ScratchReq::all_of([prefixes, candidates, scores, state_arcs]),
        };
        self.walks(lattice, frames, options.merge, memory, |utterance, walk| search(walk, options, utterance))
    }
}

/// Searches the best strings of an utterance.
fn search<F: Real>(
    walk: &PathWalk<F>,
    options: NBestOptions,
    utterance: usize,
) -> Result<Vec<WeightedString>> {
    let mut strings = Vec::new();
    let mut prefixes: Vec<StringPrefix> = Vec::new();
    let mut candidates = BinaryHeap::new();
    let mut arcs = StateArcs::default();
    let mut scores = Vec::new();
    if options.count == 0 || walk.total() == f64::NEG_INFINITY {
        return Ok(strings);
    }
    let mut forward = vec![f64::NEG_INFINITY; walk.positions.end() + 1];
    forward[0] = 0.0;
    let start = StringPrefix { parent: 0, label: 0, state: walk.context.start(), depth: 0, forward };
    let mut next_prefix = Some((start, walk.total()));
    loop {
        // Expands a prefix; its extensions become candidates.
        if let Some((mut prefix, bound)) = next_prefix.take() {
            if prefixes.len() == options.max_prefixes {
                return Err(Error::Limit { utterance, limit: options.max_prefixes });
            }
            prefix.expand(walk, options.merge, &mut arcs, &mut scores);
            let best_score = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            for (label, &score) in (0..).zip(&scores).filter(|(_, score)| **score > f64::NEG_INFINITY) {
                let bound = if options.merge == Merge::Max { bound - (best_score - score) } else { score };
                candidates.push(PrefixCandidate {
                    bound,
                    depth: prefix.depth + 1,
                    parent: prefixes.len(),
                    label,
                });
            }
            prefixes.push(prefix);
        }
        // The best candidate is a complete string, or the next prefix.
        match candidates.pop() {
            Some(PrefixCandidate { parent, label: 0, .. }) => {
                strings.push(WeightedString {
                    labels: prefix_labels(&prefixes, parent),
                    weight: prefixes[parent].forward[walk.positions.end()],
                });
            }
            Some(PrefixCandidate { parent, label, bound, .. }) => {
                next_prefix = Some((prefixes[parent].child(walk, parent, label)?, bound));
            }
            None => break,
        }
        if strings.len() == options.count {
            break;
        }
    }
    // Sums in different orders may differ in the last digit.
    strings.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    Ok(strings)
}

/// Returns the labels of a prefix.
fn prefix_labels(prefixes: &[StringPrefix], mut prefix: usize) -> Vec<u32> {
    let mut labels = Vec::with_capacity(prefixes[prefix].depth);
    while prefixes[prefix].depth > 0 {
        labels.push(prefixes[prefix].label);
        prefix = prefixes[prefix].parent;
    }
    labels.reverse();
    labels
}

impl StringPrefix {
    /// Returns the prefix with one more label.
    fn child<F: Real>(&self, walk: &PathWalk<F>, parent: usize, label: u32) -> Result<Self> {
        let weights = walk.label_weights(self.state, label)?;
        let mut forward = vec![f64::NEG_INFINITY; self.forward.len()];
        for (position, weight) in self.forward[..walk.positions.end()].iter().enumerate() {
            if let Some(next) = walk.positions.after_label(position) {
                forward[next] = weight + weights[walk.positions.frame(position)];
            }
        }
        let state = walk.context.next_state(self.state, label as usize);
        Ok(Self { parent, label, state, depth: self.depth + 1, forward })
    }

    /// Adds final blanks, and bounds the end and each next label.
    fn expand<F: Real>(
        &mut self,
        walk: &PathWalk<F>,
        merge: Merge,
        arcs: &mut StateArcs<F>,
        scores: &mut Vec<f64>,
    ) {
        scores.clear();
        scores.resize(1 + walk.context.vocabulary(), f64::NEG_INFINITY);
        for position in 0..walk.positions.end() {
            let forward = self.forward[position];
            if forward == f64::NEG_INFINITY {
                continue;
            }
            walk.arc_scores(position, self.state, arcs);
            let after_blank = &mut self.forward[walk.positions.after_blank(position)];
            *after_blank = merge.pair(*after_blank, forward + arcs.weights[0]);
            for (bound, score) in scores[1..].iter_mut().zip(&arcs.scores[1..]) {
                *bound = merge.pair(*bound, forward + score);
            }
        }
        scores[0] = self.forward[walk.positions.end()];
    }
}

impl Ord for PrefixCandidate {
    /// Orders by bound; ties by the longest prefix, then the newest, then the lowest label.
    fn cmp(&self, other: &Self) -> Ordering {
        let bounds = self.bound.total_cmp(&other.bound);
        let depths = self.depth.cmp(&other.depth);
        bounds.then(depths).then(self.parent.cmp(&other.parent)).then(other.label.cmp(&self.label))
    }
}

impl PartialOrd for PrefixCandidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PrefixCandidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for PrefixCandidate {}
