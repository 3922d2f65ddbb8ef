//! Beam search, frame by frame: hypotheses are strings of labels, each with its context state.
//!
//! ```text
//! a_0 = the hypotheses        a_{i+1}[y s] = a_i[s] ⊗ l_t[c(s), y]        hypotheses' [s] = ⊕_i a_i[s] ⊗ b_t[c(s)]
//! ```
//! (a label that ends its frame goes to `hypotheses'` with the blanks.) Paths of one string merge; behind each step only the
//! `width` best strings stay. With a width that no step exceeds the result is exact. Only arcs of states that some hypothesis
//! stands in are weighed: `width (1 + V)` a step, not `C (1 + V)`.
//!
//! Strings share their beginnings in a tree, which is cut back to what hypotheses stand on whenever it has doubled.
use std::collections::HashMap;

use kernels::{Real, ScratchReq, items_mut, par_for};

use crate::{
    BoundWeights, Context, Error, Frames, LatticeSession, Merge, RecognitionLattice, Result, Sum,
    WeightedString, execution::Request, plan::LatticeOperation, potentials::Positions,
};

/// What a beam search is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BeamOptions {
    /// Strings that stay.
    pub width: usize,
    /// What a string weighs: as the best of its paths, or as all that were not pruned.
    pub merge: Merge,
}

/// A score for each label of a string that is added to its weights: shallow fusion with a language model, or a bias.
///
/// `()` adds nothing.
pub trait LabelScorer: Sync {
    /// What a score depends on of the labels before.
    type State: Clone + Send;

    /// Before the first label.
    fn start(&self) -> Self::State;

    /// Score of a label behind others, finite or -inf, and what it leads to.
    fn score(&self, state: &Self::State, label: u32) -> (f64, Self::State);
}

impl LabelScorer for () {
    type State = ();

    fn start(&self) {}

    fn score(&self, (): &(), _label: u32) -> (f64, ()) {
        (0.0, ())
    }
}

/// A string, as its last label and the string before.
struct PrefixNode<S> {
    parent: u32,
    label: u32,
    context: u32,
    /// Sum of the scores of its labels.
    fused: f64,
    state: S,
}

/// A hypothesis, or one that comes to be: the string of a node, with a label behind it or none.
struct StringCandidate<S> {
    node: u32,
    label: Option<(u32, S)>,
    weight: f64,
    fused: f64,
}

impl<S> StringCandidate<S> {
    fn score(&self) -> f64 {
        self.weight + self.fused
    }
}

/// Hypotheses of an utterance on its way.
struct BeamState<S> {
    nodes: Vec<PrefixNode<S>>,
    /// Node of a string that goes on from a node by a label.
    children: HashMap<(u32, u32), u32>,
    /// Labels before those of the tree, which all hypotheses share.
    common: Vec<u32>,
    /// Nodes and weights, best first.
    live: Vec<(u32, f64)>,
    /// Nodes at which the tree is cut back.
    limit: usize,
}

/// Nodes that are not worth cutting back.
const NODES: usize = 1024;

/// Arcs of one frame, for those states that somebody stands in.
struct ScoredStates<'a, F> {
    weights: &'a dyn BoundWeights<F>,
    frame: usize,
    vocabulary: usize,
    index: HashMap<u32, usize>,
    blank: Vec<F>,
    lexical: Vec<F>,
}

impl<'a, F: Real> ScoredStates<'a, F> {
    fn arcs(&mut self, state: u32) -> (F, &[F]) {
        let Self { weights, frame, vocabulary: v, index, blank, lexical } = self;
        let at = *index.entry(state).or_insert_with(|| {
            let at = blank.len();
            lexical.resize((at + 1) * *v, F::ZERO);
            blank.push(weights.forward_state(*frame, state as usize, &mut lexical[at * *v..]));
            at
        });
        (blank[at], &lexical[at * *v..][..*v])
    }
}

impl<S: Clone> BeamState<S> {
    fn new(context: &dyn Context, state: S) -> Self {
        let root = PrefixNode { parent: 0, label: 0, context: context.start() as u32, fused: 0.0, state };
        Self {
            nodes: vec![root],
            children: HashMap::new(),
            common: Vec::new(),
            live: vec![(0, 0.0)],
            limit: NODES,
        }
    }

    /// One frame on. Fails with a weight or a score that is none.
    fn go_on<F: Real>(
        &mut self,
        (context, places, beam): (&dyn Context, Positions, BeamOptions),
        fusion: &impl LabelScorer<State = S>,
        mut seen: ScoredStates<F>,
    ) -> std::result::Result<(), SearchError> {
        let mut ends: Vec<StringCandidate<S>> = Vec::new();
        // Where the string of a node is in `ends`.
        let mut known: HashMap<u32, usize> = HashMap::new();
        let mut level = std::mem::take(&mut self.live);
        for place in places.alignment.topological_visit() {
            let mut longer = Vec::new();
            let ends_frame = match places.after_label(place) {
                Some(next) => next >= places.per_frame(),
                None => false,
            };
            for &(node, weight) in &level {
                let PrefixNode { context: at, fused, state, .. } = &self.nodes[node as usize];
                let (blank, lexical) = seen.arcs(*at);
                let blank =
                    StringCandidate { node, label: None, weight: weight + blank.to_f64(), fused: *fused };
                add(&mut ends, &mut known, blank, beam.merge);
                if places.after_label(place).is_none() {
                    continue;
                }
                for (label, w) in (1..).zip(lexical) {
                    let weight = weight + w.to_f64();
                    if weight == f64::NEG_INFINITY {
                        continue;
                    }
                    let (score, state) = fusion.score(state, label);
                    if score.is_nan() || score == f64::INFINITY {
                        return Err(SearchError::Score(label, score));
                    }
                    let fused = fused + score;
                    let candidate = match self.children.get(&(node, label)) {
                        Some(&node) => StringCandidate { node, label: None, weight, fused },
                        None => StringCandidate { node, label: Some((label, state)), weight, fused },
                    };
                    if ends_frame {
                        add(&mut ends, &mut known, candidate, beam.merge);
                    } else {
                        longer.push(candidate);
                    }
                }
            }
            level = self.keep(context, longer, beam.width)?;
        }
        self.live = self.keep(context, ends, beam.width)?;
        if self.nodes.len() >= self.limit {
            self.cut_back();
        }
        Ok(())
    }

    /// The best of some candidates, with nodes of their own.
    fn keep(
        &mut self,
        context: &dyn Context,
        mut candidates: Vec<StringCandidate<S>>,
        width: usize,
    ) -> std::result::Result<Vec<(u32, f64)>, SearchError> {
        let score = |candidate: &StringCandidate<S>| candidate.score();
        if let Some(wrong) = candidates.iter().map(score).find(|x| x.is_nan() || *x == f64::INFINITY) {
            return Err(SearchError::Weight(wrong));
        }
        candidates.retain(|candidate| candidate.score() > f64::NEG_INFINITY);
        candidates.sort_by(|a, b| b.score().total_cmp(&a.score()));
        candidates.truncate(width);
        let kept = candidates.into_iter().map(|StringCandidate { node, label, weight, fused }| match label {
            None => (node, weight),
            Some((label, state)) => {
                let new = self.nodes.len() as u32;
                let context = context.next_state(self.nodes[node as usize].context as usize, label as usize);
                self.nodes.push(PrefixNode { parent: node, label, context: context as u32, fused, state });
                self.children.insert((node, label), new);
                (new, weight)
            }
        });
        Ok(kept.collect())
    }

    /// Forgets nodes that no hypothesis stands on, and the labels that all share.
    fn cut_back(&mut self) {
        let mut needed = vec![false; self.nodes.len()];
        let mut stops = vec![false; self.nodes.len()];
        let mut branches = vec![0; self.nodes.len()];
        for &(node, _) in &self.live {
            (needed[node as usize], stops[node as usize]) = (true, true);
        }
        // Parents come before children.
        for node in (1..self.nodes.len()).rev() {
            if needed[node] {
                needed[self.nodes[node].parent as usize] = true;
                branches[self.nodes[node].parent as usize] += 1;
            }
        }
        let mut root = 0;
        while !stops[root] && branches[root] == 1 {
            let own = |node: &usize| needed[*node] && self.nodes[*node].parent as usize == root;
            root = (root + 1..self.nodes.len()).find(own).expect("there is the one branch");
            self.common.push(self.nodes[root].label);
        }
        needed[..root].fill(false);
        let mut moved = vec![0; self.nodes.len()];
        let mut kept = 0;
        let mut old = 0;
        self.nodes.retain_mut(|node| {
            let stays = needed[old];
            if stays {
                (moved[old], node.parent) = (kept, if old == root { 0 } else { moved[node.parent as usize] });
                kept += 1;
            }
            old += 1;
            stays
        });
        self.children = (1..)
            .zip(&self.nodes[1.min(self.nodes.len())..])
            .map(|(at, node)| ((node.parent, node.label), at))
            .collect();
        self.live.iter_mut().for_each(|(node, _)| *node = moved[*node as usize]);
        self.limit = NODES.max(2 * self.nodes.len());
    }

    fn list(&self) -> Vec<WeightedString> {
        let of = |&(node, weight): &(u32, f64)| {
            let (mut labels, mut at) = (Vec::new(), node as usize);
            while at > 0 {
                labels.push(self.nodes[at].label);
                at = self.nodes[at].parent as usize;
            }
            labels.extend(self.common.iter().rev());
            labels.reverse();
            WeightedString { labels, weight: weight + self.nodes[node as usize].fused }
        };
        self.live.iter().map(of).collect()
    }
}

/// What stops a search.
enum SearchError {
    Weight(f64),
    Score(u32, f64),
}

impl SearchError {
    fn of(self, utterance: usize) -> Error {
        match self {
            Self::Weight(value) => Error::Overflow { utterance, value },
            Self::Score(label, value) => Error::Fusion { label, value },
        }
    }
}

/// Adds a candidate to others, to the one of the same string if there is one.
fn add<S>(
    to: &mut Vec<StringCandidate<S>>,
    known: &mut HashMap<u32, usize>,
    candidate: StringCandidate<S>,
    merge: Merge,
) {
    // A string without a node comes from one node and label alone, so it comes once.
    if candidate.label.is_none() {
        if let Some(&at) = known.get(&candidate.node) {
            to[at].weight = merge.two(to[at].weight, candidate.weight);
            return;
        }
        known.insert(candidate.node, to.len());
    }
    to.push(candidate);
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
    /// Strings of labels of each utterance by beam search, best first, at most `beam.width`; none where all paths are blocked.
    ///
    /// ```
    /// use lattice::{
    ///     AlignmentLattice, BeamOptions, Frames, FullNGram, Merge, RecognitionLattice, LatticeSession, TableWeightFn,
    /// };
    /// let (context, table) = (FullNGram::new(1, 0)?, TableWeightFn::new(&[0.0; 4], &[2, 1, 2])?);
    /// let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &table)?;
    /// let frames = Frames::new(&[0.0, 1.0], &[1, 2, 1], &[2])?;
    /// let beam = BeamOptions { width: 3, merge: Merge::Sum };
    /// let found = LatticeSession::default().beam_search(&lattice, &frames, beam, &())?;
    /// assert_eq!(found[0][0].labels, [1]); // one label at the first frame or at the second
    /// # Ok::<(), lattice::Error>(())
    /// ```
    ///
    /// # Errors
    /// Inputs that do not fit the lattice, a width of 0, a budget below the smallest cut, weights or scores that are NaN or +inf.
    ///
    /// # Cost
    /// Arc weights of at most `width` states a frame (A times as many where a frame has A states), and as many scores.
    pub fn beam_search<S: LabelScorer>(
        &mut self,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        beam: BeamOptions,
        fusion: &S,
    ) -> Result<Vec<Vec<WeightedString>>> {
        beam.check()?;
        let request = Request::new(lattice, frames, None, Sum::Denominator)?;
        let (v, per_frame) = (1 + lattice.context().vocabulary(), lattice.alignment().num_states());
        let strings = beam.width.saturating_mul(per_frame);
        let node = ScratchReq::new::<PrefixNode<S::State>>(2).and(ScratchReq::from_bytes(64));
        let arc = ScratchReq::new::<F>(1).and(ScratchReq::new::<StringCandidate<S::State>>(2));
        let string = arc.times(v).and(ScratchReq::from_bytes(64));
        let memory = [node.times(strings), string.times(strings).and(node.times(NODES))];
        let (mut execution, plan) = self.start(request, |_| LatticeOperation::walks(false, memory))?;
        let mut results = Vec::with_capacity(frames.utterances());
        for group in plan.groups(frames) {
            execution.set_frames(&group)?;
            let mut found: Vec<Result<Vec<WeightedString>>> =
                (0..group.len()).map(|_| Ok(Vec::new())).collect();
            par_for(items_mut(&mut found), |at, found| {
                let mut hypotheses = BeamState::new(lattice.context(), fusion.start());
                let places = Positions { frames: group.of(at).len(), alignment: lattice.alignment() };
                let go_on = group.of(at).try_for_each(|frame| {
                    let seen = seen(&*execution.weights, frame, lattice.context());
                    hypotheses.go_on((lattice.context(), places, beam), fusion, seen)
                });
                let end = go_on.map(|()| hypotheses.list());
                *found = end.map_err(|wrong| wrong.of(group.utterances.start + at));
            });
            for found in found {
                results.push(found?);
            }
        }
        Ok(results)
    }
}

fn seen<'a, F: Real>(
    weights: &'a dyn BoundWeights<F>,
    frame: usize,
    context: &dyn Context,
) -> ScoredStates<'a, F> {
    let index = HashMap::new();
    ScoredStates {
        weights,
        frame,
        vocabulary: context.vocabulary(),
        index,
        blank: Vec::new(),
        lexical: Vec::new(),
    }
}

/// A beam search over frames that come bit by bit, with the result of the whole.
///
/// Memory: that of the hypotheses, and 4 bytes for each label of the text so far, which [`LatticeBeamStream::hypotheses`] returns.
///
/// ```
/// use lattice::{AlignmentLattice, BeamOptions, LatticeBeamStream, FullNGram, Merge, RecognitionLattice, TableWeightFn};
/// let (context, table) = (FullNGram::new(1, 0)?, TableWeightFn::new(&[0.0, 1.0, 0.0, -1.0], &[2, 1, 2])?);
/// let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &table)?;
/// let mut stream = LatticeBeamStream::new(&lattice, BeamOptions { width: 2, merge: Merge::Max }, &())?;
/// stream.push(&[0.0])?;
/// stream.push(&[1.0, 1.0])?;
/// assert_eq!(stream.hypotheses()[0].labels, [1]);
/// # Ok::<(), lattice::Error>(())
/// ```
pub struct LatticeBeamStream<'a, F, S: LabelScorer> {
    lattice: RecognitionLattice<'a, F>,
    weights: Box<dyn BoundWeights<F> + 'a>,
    beam: BeamOptions,
    fusion: &'a S,
    hypotheses: BeamState<S::State>,
    frames: usize,
}

impl<'a, F: Real, S: LabelScorer> LatticeBeamStream<'a, F, S> {
    /// Before the first frame.
    ///
    /// # Errors
    /// A width of 0, or parameters that do not fit together.
    pub fn new(lattice: &RecognitionLattice<'a, F>, beam: BeamOptions, fusion: &'a S) -> Result<Self> {
        beam.check()?;
        let weights = lattice.weight_fn().bind(&mut Vec::new())?;
        let hypotheses = BeamState::new(lattice.context(), fusion.start());
        Ok(Self { lattice: *lattice, weights, beam, fusion, hypotheses, frames: 0 })
    }

    /// More frames, *n x F*.
    ///
    /// # Errors
    /// As [`LatticeSession::beam_search`]; rows that are none leave the stream as it was, weights that are none end it.
    pub fn push(&mut self, rows: &[F]) -> Result<()> {
        let new = set_frames(&self.lattice, &mut *self.weights, rows, self.frames)?;
        let context = self.lattice.context();
        let places = Positions { frames: new, alignment: self.lattice.alignment() };
        for frame in 0..new {
            let seen = seen(&*self.weights, frame, context);
            let go_on = self.hypotheses.go_on((context, places, self.beam), self.fusion, seen);
            go_on.map_err(|wrong| wrong.of(0))?;
            self.frames += 1;
        }
        Ok(())
    }

    /// Strings so far, best first.
    pub fn hypotheses(&self) -> Vec<WeightedString> {
        self.hypotheses.list()
    }
}

/// Checks rows of one utterance with `before` earlier frames, and sets them as frames; returns their number.
pub(crate) fn set_frames<F: Real>(
    lattice: &RecognitionLattice<F>,
    weights: &mut dyn BoundWeights<F>,
    rows: &[F],
    before: usize,
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
        Error::Frame { utterance, frame, value } => Error::Frame { utterance, frame: before + frame, value },
        other => other,
    })?;
    weights.set_frames(rows, &vec![0; count])?;
    Ok(count)
}
