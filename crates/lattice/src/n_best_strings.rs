//! The n best strings of labels: best first over their prefixes.
//!
//! ```text
//! h(t,a)          weight of the ways to emit a prefix and to be at (t,a); its context state c is one        h at the end: the string
//! bound(prefix y) = ⊕ over (t,a) of h(t,a) ⊗ l_t[c,y] ⊗ β(after the label, δ(c,y))
//! ```
//! A bound is the best path, or the sum over all paths, whose strings begin so. No string that does is heavier; so the first
//! complete one to come up is the heaviest. With [`Merge::Max`] some string is as heavy as the bound, and what leads to it loses
//! nothing, ties included (`n_best.rs`): no more prefixes are looked at than the strings have. With [`Merge::Sum`] a bound is shared
//! by many strings, and nothing but a limit keeps the work in check.
use std::{cmp::Ordering, collections::BinaryHeap};

use kernels::{Real, ScratchReq};

use crate::{
    Error, Frames, LatticeSession, Merge, RecognitionLattice, Result, WeightedString,
    potentials::{PathWalk, StateArcs},
};

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NBestOptions {
    /// How many strings at most.
    pub count: usize,
    /// What a string weighs: as its best path, or as all its paths.
    pub merge: Merge,
    /// The most prefixes that may be looked at in an utterance.
    pub limit: usize,
}

/// A prefix that was looked at.
struct StringPrefix {
    parent: usize,
    label: u32,
    state: usize,
    depth: usize,
    /// `h`, *N A + 1*.
    here: Vec<f64>,
}

/// A prefix to look at, or a string that is complete (label 0).
struct PrefixCandidate {
    bound: f64,
    depth: usize,
    parent: usize,
    label: u32,
}

impl<F: Real> LatticeSession<F> {
    /// The heaviest strings of labels of each utterance, heaviest first, all different; fewer where there are fewer that are not
    /// blocked.
    ///
    /// Exact under both ways to merge. Under [`Merge::Sum`] the weight less `log D` is the log-posterior of the string.
    ///
    /// ```
    /// use lattice::{AlignmentLattice, Frames, FullNGram, Merge, RecognitionLattice, LatticeSession, NBestOptions, TableWeightFn};
    /// let (context, table) = (FullNGram::new(1, 0)?, TableWeightFn::new(&[0.0; 4], &[2, 1, 2])?);
    /// let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &table)?;
    /// let frames = Frames::new(&[0.0, 1.0], &[1, 2, 1], &[2])?;
    /// let asked = NBestOptions { count: 1, merge: Merge::Sum, limit: 100 };
    /// let found = LatticeSession::default().n_best_strings(&lattice, &frames, asked)?;
    /// assert_eq!(found[0][0].labels, [1]); // one label at the first frame or at the second
    /// assert!((found[0][0].weight - 2f64.ln()).abs() < 1e-12);
    /// # Ok::<(), lattice::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`distances`](Self::distances); [`Error::Limit`] where more prefixes would have to be looked at.
    ///
    /// # Cost
    /// Arc weights of all frames once and N A C numbers of 8 bytes an utterance; for each prefix looked at, the arcs of one state in
    /// all frames, and N A numbers of 8 bytes.
    pub fn n_best_strings(
        &mut self,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        asked: NBestOptions,
    ) -> Result<Vec<Vec<WeightedString>>> {
        let labels = 1 + lattice.context().vocabulary();
        let prefixes = ScratchReq::new::<f64>(asked.limit);
        // Weights of one label's arcs.
        let arcs = ScratchReq::new::<f64>(1).and(ScratchReq::new::<F>(4));
        let offers = ScratchReq::new::<PrefixCandidate>(labels)
            .and(ScratchReq::new::<StringPrefix>(1))
            .times(asked.limit);
        let scores = ScratchReq::new::<f64>(labels);
        let memory = [
            prefixes.times(lattice.alignment().num_states()).and(arcs),
            ScratchReq::all_of([prefixes, offers, scores, StateArcs::<F>::scratch(lattice.context())]),
        ];
        self.walks(lattice, frames, (asked.merge, memory), |utterance, walk| search(walk, asked, utterance))
    }
}

fn search<F: Real>(walk: &PathWalk<F>, asked: NBestOptions, utterance: usize) -> Result<Vec<WeightedString>> {
    let mut found = Vec::new();
    let mut prefixes: Vec<StringPrefix> = Vec::new();
    let mut offers = BinaryHeap::new();
    let mut row = StateArcs::default();
    let mut scores = Vec::new();
    if asked.count == 0 || walk.total() == f64::NEG_INFINITY {
        return Ok(found);
    }
    let mut here = vec![f64::NEG_INFINITY; walk.places.end() + 1];
    here[0] = 0.0;
    let start = StringPrefix { parent: 0, label: 0, state: walk.context.start(), depth: 0, here };
    let mut next = Some((start, walk.total()));
    loop {
        if let Some((mut prefix, bound)) = next.take() {
            if prefixes.len() == asked.limit {
                return Err(Error::Limit { utterance, limit: asked.limit });
            }
            prefix.go_on(walk, asked.merge, &mut row, &mut scores);
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            for (label, &score) in (0..).zip(&scores).filter(|(_, score)| **score > f64::NEG_INFINITY) {
                let bound = if asked.merge == Merge::Max { bound - (top - score) } else { score };
                offers.push(PrefixCandidate {
                    bound,
                    depth: prefix.depth + 1,
                    parent: prefixes.len(),
                    label,
                });
            }
            prefixes.push(prefix);
        }
        match offers.pop() {
            Some(PrefixCandidate { parent, label: 0, .. }) => {
                found.push(WeightedString {
                    labels: labels(&prefixes, parent),
                    weight: prefixes[parent].here[walk.places.end()],
                });
            }
            Some(PrefixCandidate { parent, label, bound, .. }) => {
                next = Some((prefixes[parent].child(walk, parent, label)?, bound));
            }
            None => break,
        }
        if found.len() == asked.count {
            break;
        }
    }
    // Sums in another order may differ in the last place.
    found.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    Ok(found)
}

fn labels(prefixes: &[StringPrefix], mut at: usize) -> Vec<u32> {
    let mut labels = Vec::with_capacity(prefixes[at].depth);
    while prefixes[at].depth > 0 {
        labels.push(prefixes[at].label);
        at = prefixes[at].parent;
    }
    labels.reverse();
    labels
}

impl StringPrefix {
    /// Another label: where it is emitted.
    fn child<F: Real>(&self, walk: &PathWalk<F>, parent: usize, label: u32) -> Result<Self> {
        let weights = walk.weigh_label(self.state, label)?;
        let mut here = vec![f64::NEG_INFINITY; self.here.len()];
        for (place, weight) in self.here[..walk.places.end()].iter().enumerate() {
            if let Some(next) = walk.places.after_label(place) {
                here[next] = weight + weights[walk.places.frame(place)];
            }
        }
        let state = walk.context.next_state(self.state, label as usize);
        Ok(Self { parent, label, state, depth: self.depth + 1, here })
    }

    /// Blanks behind its last label, and the bounds of what comes next: the end, or each label.
    fn go_on<F: Real>(
        &mut self,
        walk: &PathWalk<F>,
        merge: Merge,
        row: &mut StateArcs<F>,
        scores: &mut Vec<f64>,
    ) {
        scores.clear();
        scores.resize(1 + walk.context.vocabulary(), f64::NEG_INFINITY);
        for place in 0..walk.places.end() {
            let here = self.here[place];
            if here == f64::NEG_INFINITY {
                continue;
            }
            walk.look(place, self.state, row);
            let behind = &mut self.here[walk.places.after_blank(place)];
            *behind = merge.two(*behind, here + row.weights[0]);
            for (bound, score) in scores[1..].iter_mut().zip(&row.scores[1..]) {
                *bound = merge.two(*bound, here + score);
            }
        }
        scores[0] = self.here[walk.places.end()];
    }
}

impl Ord for PrefixCandidate {
    /// The largest bound first; of ties the longest prefix, then the newest, then the lowest label.
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
