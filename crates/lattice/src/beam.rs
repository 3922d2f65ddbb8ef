//! Beam search over the label strings of a recognition lattice, with fusion.
//!
//! ```text
//! a_0 = the hypotheses
//! a_{i+1}[y s] = a_i[s] ⊗ l_t[c(s), y]
//! hypotheses'[s] = ⊕_i a_i[s] ⊗ b_t[c(s)]
//! ```
//! s: label string; y s: s extended by label y; c(s): its context state; `a_i[s]`: weight after i
//! labels in frame t; b, l: weights of blank and labels; ⊗ adds weights; ⊕ is `Merge`. (A label
//! that ends its frame is added to `hypotheses'` with the blanks.)
//!
//! Paths of the same string are merged, and after each step only the `width` best strings are kept.
//! The result is exact if no step exceeds the width. Only the arcs of the context states of
//! hypotheses are scored: instead of `C (1 + V)` per step, `width (1 + V)`.
//!
//! Strings share prefixes in a tree. Unused nodes are removed whenever the tree has doubled.
use std::collections::HashMap;

use kernels::{Real, ScratchReq, items_mut, par_for};

use crate::{
    BoundWeights, Context, Error, Frames, LatticeSession, Merge, PathSum, RecognitionLattice, Result,
    WeightedString,
    execution::CallInputs,
    plan::{LatticeOperation, WalkMemory},
    positions::Positions,
};

/// Options of a beam search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BeamOptions {
    /// Number of strings that are kept.
    pub width: usize,
    /// Weight of a string: of its best path, or of all its paths that were not pruned.
    pub merge: Merge,
}

/// A score for each label of a string: shallow fusion with a language model, or a bias.
///
/// Scores are added to the weights. `()` scores every label 0.
pub trait LabelScorer: Sync {
    /// State of the scorer after a prefix.
    type State: Clone + Send;

    /// Returns the state before the first label.
    fn start(&self) -> Self::State;

    /// Returns the score of a label, and the next state.
    ///
    /// The score is finite or -inf.
    fn score(&self, state: &Self::State, label: u32) -> (f64, Self::State);
}

impl LabelScorer for () {
    type State = ();

    fn start(&self) {}

    fn score(&self, (): &(), _label: u32) -> (f64, ()) {
        (0.0, ())
    }
}

/// A string as its last label and its prefix.
struct PrefixNode<S> {
    /// Node of the prefix.
    parent: u32,
    /// The last label.
    label: u32,
    /// Context state after the string.
    context: u32,
    /// Sum of the scorer's scores of the labels.
    fusion_score: f64,
    /// State of the scorer after the string.
    scorer_state: S,
}

/// A hypothesis or a new candidate: the string of a node, and possibly one more label.
struct StringCandidate<S> {
    node: u32,
    /// The added label, and the state of the scorer after it.
    label: Option<(u32, S)>,
    /// Weight without the scores of the scorer.
    weight: f64,
    /// Sum of the scorer's scores.
    fusion_score: f64,
}

impl<S> StringCandidate<S> {
    fn score(&self) -> f64 {
        self.weight + self.fusion_score
    }
}

/// Hypotheses of one utterance.
struct BeamState<S> {
    nodes: Vec<PrefixNode<S>>,
    /// Node of each (prefix node, label).
    children: HashMap<(u32, u32), u32>,
    /// Common prefix of all hypotheses, removed from the tree.
    common_prefix: Vec<u32>,
    /// Nodes and weights of the hypotheses, best first.
    hypotheses: Vec<(u32, f64)>,
    /// Number of nodes at which the tree is pruned.
    prune_at: usize,
}

/// Smallest number of nodes at which the tree is pruned.
const MIN_PRUNED_NODES: usize = 1024;
/// Bytes of the hash map entries of a node or string.
const MAP_ENTRY_BYTES: usize = 64;

/// Cache of the arcs of one frame from states of hypotheses.
struct FrameArcCache<'a, F> {
    weights: &'a dyn BoundWeights<F>,
    frame: usize,
    /// V, the number of labels.
    vocabulary: usize,
    /// Row of each context state whose arcs have been computed.
    row_of_state: HashMap<u32, usize>,
    /// Weight of the blank, by row.
    blank: Vec<F>,
    /// Weights of the labels, *rows x V*.
    label_arcs: Vec<F>,
}

impl<'a, F: Real> FrameArcCache<'a, F> {
    /// Creates an empty cache of the arcs of a frame.
    fn new(weights: &'a dyn BoundWeights<F>, frame: usize, context: &dyn Context) -> Self {
        Self {
            weights,
            frame,
            vocabulary: context.vocabulary(),
            row_of_state: HashMap::new(),
            blank: Vec::new(),
            label_arcs: Vec::new(),
        }
    }

    /// Returns the weights of blank and labels from a state.
    fn arcs(&mut self, state: u32) -> (F, &[F]) {
        let Self { weights, frame, vocabulary: v, row_of_state, blank, label_arcs } = self;
        let row = *row_of_state.entry(state).or_insert_with(|| {
            let row = blank.len();
            label_arcs.resize((row + 1) * *v, F::ZERO);
            blank.push(weights.forward_state(*frame, state as usize, &mut label_arcs[row * *v..]));
            row
        });
        (blank[row], &label_arcs[row * *v..][..*v])
    }
}

impl<S: Clone> BeamState<S> {
    fn new(context: &dyn Context, scorer_state: S) -> Self {
        let context = context.start() as u32;
        let root = PrefixNode { parent: 0, label: 0, context, fusion_score: 0.0, scorer_state };
        Self {
            nodes: vec![root],
            children: HashMap::new(),
            common_prefix: Vec::new(),
            hypotheses: vec![(0, 0.0)],
            prune_at: MIN_PRUNED_NODES,
        }
    }

    /// Processes one frame; fails for a weight or score that is NaN or +inf.
    fn advance<F: Real>(
        &mut self,
        context: &dyn Context,
        positions: Positions,
        beam: BeamOptions,
        scorer: &impl LabelScorer<State = S>,
        mut arc_cache: FrameArcCache<F>,
    ) -> std::result::Result<(), SearchError> {
        // Candidates after the frame; hypotheses of the current level, after 0, 1, 2 .. labels.
        let mut frame_ends: Vec<StringCandidate<S>> = Vec::new();
        // Index in `frame_ends` of the string of each node.
        let mut index_of_node: HashMap<u32, usize> = HashMap::new();
        let mut level = std::mem::take(&mut self.hypotheses);
        for position in positions.alignment.topological_visit() {
            let mut extended = Vec::new();
            let ends_frame = match positions.after_label(position) {
                Some(next) => next >= positions.per_frame(),
                None => false,
            };
            // Blanks end the frame; labels end it or lead to the next level.
            for &(node, weight) in &level {
                let PrefixNode { context: context_state, fusion_score, scorer_state, .. } =
                    &self.nodes[node as usize];
                let (blank, label_arcs) = arc_cache.arcs(*context_state);
                let after_blank = StringCandidate {
                    node,
                    label: None,
                    weight: weight + blank.to_f64(),
                    fusion_score: *fusion_score,
                };
                merge_candidate(&mut frame_ends, &mut index_of_node, after_blank, beam.merge);
                if positions.after_label(position).is_none() {
                    continue;
                }
                for (label, w) in (1..).zip(label_arcs) {
                    let weight = weight + w.to_f64();
                    if weight == f64::NEG_INFINITY {
                        continue;
                    }
                    let (score, next_scorer_state) = scorer.score(scorer_state, label);
                    if score.is_nan() || score == f64::INFINITY {
                        return Err(SearchError::Score(label, score));
                    }
                    let fusion_score = fusion_score + score;
                    let (node, new_label) = match self.children.get(&(node, label)) {
                        Some(&child) => (child, None),
                        None => (node, Some((label, next_scorer_state))),
                    };
                    let candidate = StringCandidate { node, label: new_label, weight, fusion_score };
                    if ends_frame {
                        merge_candidate(&mut frame_ends, &mut index_of_node, candidate, beam.merge);
                    } else {
                        extended.push(candidate);
                    }
                }
            }
            level = self.keep_best(context, extended, beam.width)?;
        }
        self.hypotheses = self.keep_best(context, frame_ends, beam.width)?;
        if self.nodes.len() >= self.prune_at {
            self.prune_tree();
        }
        Ok(())
    }

    /// Keeps the best candidates, with a node for each.
    fn keep_best(
        &mut self,
        context: &dyn Context,
        mut candidates: Vec<StringCandidate<S>>,
        width: usize,
    ) -> std::result::Result<Vec<(u32, f64)>, SearchError> {
        let score = |candidate: &StringCandidate<S>| candidate.score();
        if let Some(invalid) = candidates.iter().map(score).find(|x| x.is_nan() || *x == f64::INFINITY) {
            return Err(SearchError::Weight(invalid));
        }
        candidates.retain(|candidate| candidate.score() > f64::NEG_INFINITY);
        candidates.sort_by(|a, b| b.score().total_cmp(&a.score()));
        candidates.truncate(width);
        let hypotheses =
            candidates.into_iter().map(|StringCandidate { node, label, weight, fusion_score }| match label {
                None => (node, weight),
                Some((label, scorer_state)) => {
                    let new_node = self.nodes.len() as u32;
                    let context =
                        context.next_state(self.nodes[node as usize].context as usize, label as usize);
                    self.nodes.push(PrefixNode {
                        parent: node,
                        label,
                        context: context as u32,
                        fusion_score,
                        scorer_state,
                    });
                    self.children.insert((node, label), new_node);
                    (new_node, weight)
                }
            });
        Ok(hypotheses.collect())
    }

    /// Removes unused nodes, and the common prefix of all hypotheses.
    fn prune_tree(&mut self) {
        // Nodes on the way to a hypothesis, and the number of their needed children.
        let mut needed = vec![false; self.nodes.len()];
        let mut is_hypothesis = vec![false; self.nodes.len()];
        let mut branch_counts = vec![0; self.nodes.len()];
        for &(node, _) in &self.hypotheses {
            (needed[node as usize], is_hypothesis[node as usize]) = (true, true);
        }
        // Parents come before children.
        for node in (1..self.nodes.len()).rev() {
            if needed[node] {
                needed[self.nodes[node].parent as usize] = true;
                branch_counts[self.nodes[node].parent as usize] += 1;
            }
        }
        // The new root is the longest common prefix.
        let mut root = 0;
        while !is_hypothesis[root] && branch_counts[root] == 1 {
            let is_child = |node: &usize| needed[*node] && self.nodes[*node].parent as usize == root;
            root = (root + 1..self.nodes.len()).find(is_child).expect("the root has one branch");
            self.common_prefix.push(self.nodes[root].label);
        }
        needed[..root].fill(false);
        // Removes the other nodes, and renumbers the rest.
        let mut new_index = vec![0; self.nodes.len()];
        let mut new_count = 0;
        let mut old_index = 0;
        self.nodes.retain_mut(|node| {
            let is_needed = needed[old_index];
            if is_needed {
                let parent = if old_index == root { 0 } else { new_index[node.parent as usize] };
                (new_index[old_index], node.parent) = (new_count, parent);
                new_count += 1;
            }
            old_index += 1;
            is_needed
        });
        self.children = (1..)
            .zip(&self.nodes[1.min(self.nodes.len())..])
            .map(|(index, node)| ((node.parent, node.label), index))
            .collect();
        self.hypotheses.iter_mut().for_each(|(node, _)| *node = new_index[*node as usize]);
        self.prune_at = MIN_PRUNED_NODES.max(2 * self.nodes.len());
    }

    /// Returns the strings of the hypotheses, best first.
    fn strings(&self) -> Vec<WeightedString> {
        let string = |&(node, weight): &(u32, f64)| {
            let (mut labels, mut prefix_node) = (Vec::new(), node as usize);
            while prefix_node > 0 {
                labels.push(self.nodes[prefix_node].label);
                prefix_node = self.nodes[prefix_node].parent as usize;
            }
            labels.extend(self.common_prefix.iter().rev());
            labels.reverse();
            WeightedString { labels, weight: weight + self.nodes[node as usize].fusion_score }
        };
        self.hypotheses.iter().map(string).collect()
    }
}

/// A weight or a label's score that is NaN or +inf.
enum SearchError {
    Weight(f64),
    Score(u32, f64),
}

impl SearchError {
    fn into_error(self, utterance: usize) -> Error {
        match self {
            Self::Weight(value) => Error::Overflow { utterance, value },
            Self::Score(label, value) => Error::Fusion { label, value },
        }
    }
}

/// Adds a candidate to a list, or merges equal strings.
fn merge_candidate<S>(
    candidates: &mut Vec<StringCandidate<S>>,
    index_of_node: &mut HashMap<u32, usize>,
    candidate: StringCandidate<S>,
    merge: Merge,
) {
    // A string without a node arises from one node and label only, so it occurs once.
    if candidate.label.is_none() {
        if let Some(&index) = index_of_node.get(&candidate.node) {
            candidates[index].weight = merge.pair(candidates[index].weight, candidate.weight);
            return;
        }
        index_of_node.insert(candidate.node, candidates.len());
    }
    candidates.push(candidate);
}

impl BeamOptions {
    fn check(&self) -> Result<()> {
        if self.width == 0 {
            return Err(Error::shape("width", "at least 1 hypothesis", 0));
        }
        Ok(())
    }
}

impl<F: Real> LatticeSession<F> {
    /// Finds the best label strings by beam search, best first.
    ///
    /// Returns at most `beam.width` strings, none if all paths are blocked.
    ///
    /// ```
    /// use lattice::{
    ///     AlignmentLattice, BeamOptions, Frames, FullNGram, LatticeSession, Merge,
    ///     RecognitionLattice, TableWeightFn,
    /// };
    /// let (context, table) = (FullNGram::new(1, 0)?, TableWeightFn::new(&[0.0; 4], &[2, 1, 2])?);
    /// let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &table)?;
    /// let frames = Frames::new(&[0.0, 1.0], &[1, 2, 1], &[2])?;
    /// let beam = BeamOptions { width: 3, merge: Merge::Sum };
    /// let strings = LatticeSession::default().beam_search(&lattice, &frames, beam, &())?;
    /// assert_eq!(strings[0][0].labels, [1]); // one label at the first or second frame
    /// # Ok::<(), lattice::Error>(())
    /// ```
    ///
    /// # Errors
    /// Inputs that do not fit the lattice, a width of 0, a budget below the smallest plan, weights
    /// or scores that are NaN or +inf.
    ///
    /// # Cost
    /// Arc weights of at most `width` states per frame (A times as many if a frame has A states),
    /// and as many scores.
    pub fn beam_search<S: LabelScorer>(
        &mut self,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        beam: BeamOptions,
        scorer: &S,
    ) -> Result<Vec<Vec<WeightedString>>> {
        beam.check()?;
        let inputs = CallInputs::new(lattice, frames, None, PathSum::Denominator)?;
        let (arc_count, per_frame) = (1 + lattice.context().vocabulary(), lattice.alignment().num_states());
        let max_strings = beam.width.saturating_mul(per_frame);
        let node_bytes =
            ScratchReq::new::<PrefixNode<S::State>>(2).and(ScratchReq::from_bytes(MAP_ENTRY_BYTES));
        let arc_bytes = ScratchReq::new::<F>(1).and(ScratchReq::new::<StringCandidate<S::State>>(2));
        let string_bytes = arc_bytes.times(arc_count).and(ScratchReq::from_bytes(MAP_ENTRY_BYTES));
        let memory = WalkMemory {
            per_frame: node_bytes.times(max_strings),
            per_utterance: string_bytes.times(max_strings).and(node_bytes.times(MIN_PRUNED_NODES)),
        };
        let (mut call, plan) = self.start_call(inputs, |_| LatticeOperation::walks(false, memory))?;
        let mut results = Vec::with_capacity(frames.utterances());
        for group in plan.groups(frames) {
            call.set_frames(&group)?;
            let mut group_results: Vec<Result<Vec<WeightedString>>> =
                (0..group.len()).map(|_| Ok(Vec::new())).collect();
            par_for(items_mut(&mut group_results), |index, result| {
                let mut beam_state = BeamState::new(lattice.context(), scorer.start());
                let positions =
                    Positions { frames: group.frame_range(index).len(), alignment: lattice.alignment() };
                let outcome = group.frame_range(index).try_for_each(|frame| {
                    let arc_cache = FrameArcCache::new(&*call.weights, frame, lattice.context());
                    beam_state.advance(lattice.context(), positions, beam, scorer, arc_cache)
                });
                let strings = outcome.map(|()| beam_state.strings());
                *result = strings.map_err(|error| error.into_error(group.utterances.start + index));
            });
            for result in group_results {
                results.push(result?);
            }
        }
        Ok(results)
    }
}

/// A beam search over a stream of frames.
///
/// The result is that of [`LatticeSession::beam_search`].
///
/// Memory: the hypotheses, and 4 bytes for each label that [`LatticeBeamStream::hypotheses`]
/// returns.
///
/// ```
/// use lattice::{
///     AlignmentLattice, BeamOptions, FullNGram, LatticeBeamStream, Merge, RecognitionLattice,
///     TableWeightFn,
/// };
/// let context = FullNGram::new(1, 0)?;
/// let table = TableWeightFn::new(&[0.0, 1.0, 0.0, -1.0], &[2, 1, 2])?;
/// let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &table)?;
/// let beam = BeamOptions { width: 2, merge: Merge::Max };
/// let mut stream = LatticeBeamStream::new(&lattice, beam, &())?;
/// stream.push(&[0.0])?;
/// stream.push(&[1.0, 1.0])?;
/// assert_eq!(stream.hypotheses()[0].labels, [1]);
/// # Ok::<(), lattice::Error>(())
/// ```
pub struct LatticeBeamStream<'a, F, S: LabelScorer> {
    lattice: RecognitionLattice<'a, F>,
    weights: Box<dyn BoundWeights<F> + 'a>,
    options: BeamOptions,
    scorer: &'a S,
    beam_state: BeamState<S::State>,
    /// Number of frames so far.
    frames: usize,
}

impl<'a, F: Real, S: LabelScorer> LatticeBeamStream<'a, F, S> {
    /// Starts a stream.
    ///
    /// # Errors
    /// A width of 0, or parameters that do not fit together.
    pub fn new(lattice: &RecognitionLattice<'a, F>, beam: BeamOptions, scorer: &'a S) -> Result<Self> {
        beam.check()?;
        let weights = lattice.weight_fn().bind(&mut Vec::new())?;
        let beam_state = BeamState::new(lattice.context(), scorer.start());
        Ok(Self { lattice: *lattice, weights, options: beam, scorer, beam_state, frames: 0 })
    }

    /// Processes more frames, *n x F*.
    ///
    /// # Errors
    /// As [`LatticeSession::beam_search`]. After invalid rows the stream is unchanged; after
    /// invalid weights it is unusable.
    pub fn push(&mut self, rows: &[F]) -> Result<()> {
        let new_frames = set_stream_frames(&self.lattice, &mut *self.weights, rows, self.frames)?;
        let context = self.lattice.context();
        let positions = Positions { frames: new_frames, alignment: self.lattice.alignment() };
        for frame in 0..new_frames {
            let arc_cache = FrameArcCache::new(&*self.weights, frame, context);
            let outcome = self.beam_state.advance(context, positions, self.options, self.scorer, arc_cache);
            outcome.map_err(|error| error.into_error(0))?;
            self.frames += 1;
        }
        Ok(())
    }

    /// Returns the current hypotheses, best first.
    pub fn hypotheses(&self) -> Vec<WeightedString> {
        self.beam_state.strings()
    }
}

/// Checks and sets rows of one utterance, and returns their number.
///
/// `earlier_frames` is the number of earlier frames.
pub(crate) fn set_stream_frames<F: Real>(
    lattice: &RecognitionLattice<F>,
    weights: &mut dyn BoundWeights<F>,
    rows: &[F],
    earlier_frames: usize,
) -> Result<usize> {
    let size = lattice.weight_fn().frame_size().unwrap_or(1).max(1);
    if !rows.len().is_multiple_of(size) {
        return Err(Error::shape(
            "rows",
            format!("rows of {size} features"),
            format!("{} values", rows.len()),
        ));
    }
    let count = rows.len() / size;
    Frames::new(rows, &[1, count, size], &[count]).map_err(|error| match error {
        Error::Frame { utterance, frame, value } => {
            Error::Frame { utterance, frame: earlier_frames + frame, value }
        }
        other => other,
    })?;
    weights.set_frames(rows, &vec![0; count])?;
    Ok(count)
}
