//! Reference for tests: lattices over a table, and all their paths.
use std::collections::BTreeMap;

use lattice::{
    AlignmentLattice, Context, Frames, FullNGram, LatticeSession, Merge, NextStateTable, RecognitionLattice,
    Result, TableWeightFn,
};

/// Random numbers from a seed (Knuth's linear congruential generator).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1)
    }

    /// Returns a number below `limit`.
    pub(crate) fn index(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    /// Returns a number in -2 to 2.
    pub(crate) fn number(&mut self) -> f64 {
        self.index(1 << 20) as f64 / f64::from(1 << 18) - 2.0
    }
}

/// A lattice over a table, and the frames of a batch.
pub(crate) struct TableLattice {
    pub context: Box<dyn Context>,
    pub alignment: AlignmentLattice,
    pub weights: Vec<f64>,
    pub lengths: Vec<usize>,
}

/// A path that is not blocked.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListedPath {
    /// Labels by frame and alignment state, 0 without a label.
    pub alignment: Vec<u32>,
    pub labels: Vec<u32>,
    pub weight: f64,
}

impl TableLattice {
    /// Creates a lattice with any context and alignment.
    ///
    /// A third of the lattices has blocked arcs, another third has ties.
    pub(crate) fn new(seed: u64) -> Self {
        let mut numbers = Random::new(seed);
        let vocabulary = 1 + numbers.index(3);
        let context: Box<dyn Context> = match numbers.index(4) {
            order @ 0..3 => Box::new(FullNGram::new(vocabulary, order).unwrap()),
            _ => {
                let states = 1 + numbers.index(5);
                let table: Vec<i64> =
                    (0..states * vocabulary).map(|_| numbers.index(states) as i64).collect();
                Box::new(NextStateTable::new(&table, states, vocabulary).unwrap())
            }
        };
        let alignment = match numbers.index(4) {
            0 => AlignmentLattice::FrameDependent,
            labels => AlignmentLattice::frame_label_dependent(labels - 1).unwrap(),
        };
        let longest = if alignment.expansions().is_some_and(|labels| labels > 1) { 2 } else { 4 };
        let lengths: Vec<usize> = (0..1 + numbers.index(3)).map(|_| numbers.index(longest + 1)).collect();
        let (kind, mut weights) = (numbers.index(3), Vec::new());
        for _ in 0..lengths.len() * longest * context.states() * (1 + vocabulary) {
            weights.push(match kind {
                0 if numbers.index(4) == 0 => f64::NEG_INFINITY,
                1 => numbers.index(3) as f64 - 1.0,
                _ => numbers.number(),
            });
        }
        Self { context, alignment, weights, lengths }
    }

    /// T
    pub(crate) fn padded(&self) -> usize {
        self.weights.len() / self.lengths.len() / self.arcs()
    }

    /// Number of arcs of a frame.
    fn arcs(&self) -> usize {
        self.context.states() * (1 + self.context.vocabulary())
    }

    /// Returns the arc weights of a state, the blank first.
    pub(crate) fn row(&self, utterance: usize, frame: usize, state: usize) -> &[f64] {
        let labels = 1 + self.context.vocabulary();
        &self.weights[(utterance * self.padded() + frame) * self.arcs() + state * labels..][..labels]
    }

    /// Calls a function with a session, the lattice and its frames.
    pub(crate) fn with<T>(
        &self,
        run: impl FnOnce(&mut LatticeSession<f64>, &RecognitionLattice<f64>, &Frames<f64>) -> Result<T>,
    ) -> Result<T> {
        let (padded, labels) = (self.padded(), 1 + self.context.vocabulary());
        let shape = [self.lengths.len(), padded, self.context.states(), labels];
        let table = TableWeightFn::new(&self.weights, &shape)?;
        let lattice = RecognitionLattice::new(&*self.context, self.alignment, &table)?;
        let rows: Vec<f64> = (0..self.lengths.len()).flat_map(|_| (0..padded).map(|t| t as f64)).collect();
        let frames = Frames::new(&rows, &[self.lengths.len(), padded, 1], &self.lengths)?;
        run(&mut LatticeSession::default(), &lattice, &frames)
    }

    /// Returns one utterance of the batch, alone.
    pub(crate) fn only(&self, utterance: usize) -> Self {
        let size = self.padded() * self.arcs();
        let context = NextStateTable::new(&self.table(), self.context.states(), self.context.vocabulary());
        Self {
            context: Box::new(context.unwrap()),
            alignment: self.alignment,
            weights: self.weights[utterance * size..][..size].to_vec(),
            lengths: vec![self.lengths[utterance]],
        }
    }

    /// Returns the next states, *C x V*.
    fn table(&self) -> Vec<i64> {
        let labels = 1..=self.context.vocabulary();
        let next = |state| labels.clone().map(move |label| self.context.next_state(state, label) as i64);
        (0..self.context.states()).flat_map(next).collect()
    }

    /// Returns all paths of an utterance that are not blocked.
    pub(crate) fn paths(&self, utterance: usize) -> Vec<ListedPath> {
        let mut paths = Vec::new();
        self.extend_path(utterance, (0, 0), self.context.start(), ListedPath::default(), &mut paths);
        paths
    }

    /// Lists all continuations of a path.
    ///
    /// It ends before frame t, in alignment state a and context state p.
    fn extend_path(
        &self,
        utterance: usize,
        (t, a): (usize, usize),
        p: usize,
        path: ListedPath,
        paths: &mut Vec<ListedPath>,
    ) {
        if t == self.lengths[utterance] {
            return paths.push(path);
        }
        let row = self.row(utterance, t, p);
        for (label, &w) in row.iter().enumerate() {
            let next = match (self.alignment.expansions(), label) {
                (None, _) | (Some(_), 0) => (t + 1, 0),
                (Some(limit), _) if a < limit => (t, a + 1),
                _ => continue,
            };
            if w == f64::NEG_INFINITY {
                continue;
            }
            let ListedPath { mut alignment, mut labels, weight } = path.clone();
            alignment.push(label as u32);
            if next.0 > t {
                // Unused entries of the frame.
                let unused = self.alignment.num_states() - 1 - a;
                alignment.extend(std::iter::repeat_n(0, unused));
            }
            if label > 0 {
                labels.push(label as u32);
            }
            let state = self.context.next_state(p, label);
            let extended = ListedPath { alignment, labels, weight: weight + w };
            self.extend_path(utterance, next, state, extended, paths);
        }
    }
}

/// `log Σ exp`
pub(crate) fn log_sum(values: impl IntoIterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.into_iter().collect();
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if max == f64::NEG_INFINITY {
        return max;
    }
    max + values.iter().map(|x| (x - max).exp()).sum::<f64>().ln()
}

/// Returns all strings of some paths with their weights.
pub(crate) fn strings(paths: Vec<ListedPath>, merge: Merge) -> BTreeMap<Vec<u32>, f64> {
    let mut path_weights: BTreeMap<Vec<u32>, Vec<f64>> = BTreeMap::new();
    for ListedPath { labels, weight, .. } in paths {
        path_weights.entry(labels).or_default().push(weight);
    }
    path_weights.into_iter().map(|(labels, weights)| (labels, merged(weights, merge))).collect()
}

/// Combines the weights of paths.
pub(crate) fn merged(weights: Vec<f64>, merge: Merge) -> f64 {
    match merge {
        Merge::Max => weights.into_iter().fold(f64::NEG_INFINITY, f64::max),
        Merge::Sum => log_sum(weights),
    }
}
