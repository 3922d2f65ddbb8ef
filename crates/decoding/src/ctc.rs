//! Greedy and prefix beam search for CTC.
//!
//! A path has a class on every frame; its labels follow by merging repeated classes and removing
//! blanks (Graves et al., ICML 2006).
mod prefixes;

pub use prefixes::CtcPrefixScorer;

use kernels::{items_mut, par_for, parts};
use rnnt_dp::semiring::{Log, Semiring};

use crate::largest::largest;
use crate::tree::{LabelTree, ROOT};
use crate::{DecodedToken, Error, Fusion, Hypothesis, NBest, RankedHypothesis, Result};

/// Options of [`ctc_beam`].
#[derive(Debug, Clone)]
pub struct CtcBeamOptions {
    /// The blank.
    pub blank: u32,
    /// Beam width: label sequences per utterance, at least 1.
    pub width: usize,
    /// Most label sequences of a result, at least 1.
    pub nbest: usize,
    /// Whether to rank results by `log p / (labels + 1)` instead of `log p`.
    pub normalize_by_length: bool,
    /// Language models and phrase lists, added to each new label before pruning.
    pub fusion: Vec<Fusion>,
    /// Whether to add final scores of the fusion.
    pub end_scores: bool,
}

impl Default for CtcBeamOptions {
    fn default() -> Self {
        CtcBeamOptions {
            blank: 0,
            width: 8,
            nbest: 1,
            normalize_by_length: false,
            fusion: Vec::new(),
            end_scores: true,
        }
    }
}

/// Decodes CTC greedily: the best class of each frame.
///
/// Ties go to the lower class. A label has the frame and the log-probability of the start of its
/// run.
///
/// # Shapes
/// `log_probs`: for each utterance `[T_b, C]`, row-major.
///
/// # Errors
/// [`Error::Blank`] if it is not a class; [`Error::Utterance`] with [`Error::Frames`] for rows that
/// are not whole or [`Error::Score`] for NaN, +inf, or a frame of -inf.
///
/// Cost: `O(T C)`.
///
/// ```
/// let row = |class: usize| (0..3).map(move |c| if c == class { -0.1f32 } else { -3.0 });
/// let rows: Vec<f32> = [1, 1, 0, 1, 2].into_iter().flat_map(row).collect();
/// let hypotheses = decoding::ctc_greedy(&[&rows], 3, 0)?;
/// assert_eq!(hypotheses[0].ids(), [1, 1, 2]);
/// assert_eq!(hypotheses[0].labels[1].frame, 3);
/// # Ok::<(), decoding::Error>(())
/// ```
pub fn ctc_greedy(log_probs: &[&[f32]], classes: usize, blank: u32) -> Result<Vec<Hypothesis>> {
    for_each_utterance(log_probs, classes, blank, |_, rows| {
        let mut labels: Vec<DecodedToken> = Vec::new();
        let mut last = blank;
        for (frame, row) in rows.chunks_exact(classes).enumerate() {
            check(row, frame)?;
            let mut top = [(0.0, 0)];
            largest(row, &mut top);
            let [(score, class)] = top;
            if class != blank && class != last {
                labels.push(decoded_token(class, frame, score, 0.0));
            }
            last = class;
        }
        Ok(Hypothesis { labels, end: rows.len() / classes, is_capped: false })
    })
}

/// Finds the most probable label sequences by CTC prefix beam search.
///
/// The probability of a sequence is the sum over its paths (Hannun et al., arXiv 1408.2873).
///
/// ```text
/// b(y), n(y): sums over the paths of y that end with a blank, and with its last label
///             ε: b = 1, n = 0
/// b'(y)   = (b(y) + n(y)) p(blank)
/// n'(y)   = n(y) p(last of y)
///         + Σ over x with y = x c:  p(c) fused(c | x) (b(x) + n(x), without n(x) if x ends with c)
/// keep the `width` sequences of the largest b' + n'
/// ```
/// A label's frame is that of its first emission on the best path of its sequence. Ties go to
/// existing sequences, then to the better hypothesis, then to the lower class.
///
/// # Shapes
/// `log_probs`: for each utterance `[T_b, C]`, row-major.
///
/// # Errors
/// Those of [`ctc_greedy`]; [`Error::Option`] for `width` or `nbest` of 0, or an invalid weight;
/// [`Error::Fused`] and [`Error::End`] for an invalid fusion score.
///
/// Cost: `O(T (C + width²))` per utterance, `O(T width C)` with fusion; utterances in parallel.
pub fn ctc_beam(log_probs: &[&[f32]], classes: usize, options: &CtcBeamOptions) -> Result<Vec<NBest>> {
    for (option, value) in [("width", options.width), ("nbest", options.nbest)] {
        if value == 0 {
            return Err(Error::Option { option, expected: "at least 1", found: 0.0 });
        }
    }
    crate::greedy::check_weights(&options.fusion)?;
    for_each_utterance(log_probs, classes, options.blank, |_, rows| {
        let mut search = CtcSearch::new(classes, options)?;
        for (frame, row) in rows.chunks_exact(classes).enumerate() {
            check(row, frame)?;
            search.advance(frame, row)?;
        }
        search.rank()
    })
}

/// Decodes utterances in parallel; returns the error of the first invalid one.
fn for_each_utterance<T: Send>(
    log_probs: &[&[f32]],
    classes: usize,
    blank: u32,
    decode: impl Fn(usize, &[f32]) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    if blank as usize >= classes {
        return Err(Error::Blank { blank, classes });
    }
    let mut results: Vec<Option<Result<T>>> = log_probs.iter().map(|_| None).collect();
    par_for((items_mut(&mut results), parts(log_probs, 1)), |b, (result, rows)| {
        *result = Some(match rows[0].len().is_multiple_of(classes) {
            true => decode(b, rows[0]),
            false => Err(Error::Frames { width: classes, found: rows[0].len() }),
        });
    });
    let results = results.into_iter().flatten().enumerate();
    results.map(|(b, result)| result.map_err(|error| error.in_utterance(b))).collect()
}

/// Fails for a row with NaN or +inf, or of -inf only.
fn check(row: &[f32], frame: usize) -> Result<()> {
    let valid = row.iter().fold(true, |valid, &score| valid & (score < f32::INFINITY));
    if valid && row.iter().any(|&score| score > f32::NEG_INFINITY) {
        return Ok(());
    }
    let class = row.iter().position(|score| score.is_nan() || *score == f32::INFINITY).unwrap_or(0);
    Err(Error::Score { frame, class, found: row[class] })
}

fn decoded_token(label: u32, frame: usize, log_prob: f32, fused: f32) -> DecodedToken {
    DecodedToken {
        label,
        frame,
        duration: 1,
        log_prob: f64::from(log_prob),
        duration_log_prob: 0.0,
        logit: log_prob,
        fused,
        confidence: 1.0,
    }
}

/// Best path of a sequence: its node in the tree and its log-probability.
#[derive(Debug, Clone, Copy)]
struct BestPath {
    log_prob: f64,
    node: u32,
}

impl BestPath {
    const NONE: BestPath = BestPath { log_prob: f64::NEG_INFINITY, node: ROOT };

    fn or(self, other: BestPath) -> BestPath {
        if other.log_prob > self.log_prob { other } else { self }
    }

    fn times(self, log_prob: f64) -> BestPath {
        BestPath { log_prob: self.log_prob + log_prob, ..self }
    }
}

/// Paths of a sequence with the same kind of last class.
#[derive(Debug, Clone, Copy)]
struct PrefixPaths {
    sum: f64,
    best: BestPath,
}

impl PrefixPaths {
    const NONE: PrefixPaths = PrefixPaths { sum: f64::NEG_INFINITY, best: BestPath::NONE };

    fn plus(self, other: PrefixPaths) -> PrefixPaths {
        PrefixPaths { sum: Log::plus(self.sum, other.sum), best: self.best.or(other.best) }
    }

    fn times(self, log_prob: f64) -> PrefixPaths {
        PrefixPaths { sum: self.sum + log_prob, best: self.best.times(log_prob) }
    }
}

/// A label sequence in the beam.
#[derive(Debug, Clone, Copy)]
struct Prefix {
    /// Any node of the sequence.
    node: u32,
    /// Paths that end with a blank.
    blank: PrefixPaths,
    /// Paths that end with the last label.
    label: PrefixPaths,
    /// Index of its scorer states.
    slot: usize,
}

/// A next prefix: an existing one, or one with a new label.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    from: usize,
    label: Option<u32>,
    sum: f64,
}

/// Scorer states of a prefix.
#[derive(Debug, Default)]
struct ScorerSlot {
    states: Vec<u32>,
    /// Fusion score of each class.
    fused: Vec<f32>,
    is_used: bool,
}

struct CtcSearch<'a> {
    options: &'a CtcBeamOptions,
    classes: usize,
    tree: LabelTree,
    prefixes: Vec<Prefix>,
    next: Vec<Prefix>,
    slots: Vec<ScorerSlot>,
    candidates: Vec<Candidate>,
    /// Index of each prefix's parent, if it is in the beam.
    parents: Vec<Option<usize>>,
    largest: Vec<(f32, u32)>,
    compared: Vec<f32>,
}

impl<'a> CtcSearch<'a> {
    fn new(classes: usize, options: &'a CtcBeamOptions) -> Result<Self> {
        let start = PrefixPaths { sum: 0.0, best: BestPath { log_prob: 0.0, node: ROOT } };
        let mut search = CtcSearch {
            options,
            classes,
            tree: LabelTree::default(),
            prefixes: vec![Prefix { node: ROOT, blank: start, label: PrefixPaths::NONE, slot: 0 }],
            next: Vec::new(),
            slots: vec![ScorerSlot::default()],
            candidates: Vec::new(),
            parents: Vec::new(),
            // The blank, the last label and the existing children of a prefix are not new: this
            // many classes contain `width` new ones.
            largest: vec![(0.0, 0); options.width.saturating_mul(2).saturating_add(2).min(classes)],
            compared: Vec::new(),
        };
        search.slots[0].states = options.fusion.iter().map(|fusion| fusion.scorer.start()).collect();
        search.fuse(0)?;
        Ok(search)
    }

    /// Computes the fusion scores after a prefix.
    fn fuse(&mut self, slot: usize) -> Result<()> {
        if self.options.fusion.is_empty() {
            return Ok(());
        }
        let ScorerSlot { states, fused, .. } = &mut self.slots[slot];
        fused.clear();
        fused.resize(self.classes, 0.0);
        for (fusion, &state) in self.options.fusion.iter().zip(&*states) {
            fusion.add_scores(state, fused);
        }
        fused[self.options.blank as usize] = 0.0;
        match fused.iter().position(|score| score.is_nan() || *score == f32::INFINITY) {
            None => Ok(()),
            Some(class) => Err(Error::Fused { class, found: fused[class] }),
        }
    }

    fn fused(&self, prefix: &Prefix, class: u32) -> f32 {
        self.slots[prefix.slot].fused.get(class as usize).copied().unwrap_or(0.0)
    }

    fn last(&self, prefix: &Prefix) -> Option<u32> {
        self.tree.last(prefix.node).map(|(label, _)| label)
    }

    /// Paths of a prefix that a label may extend.
    fn extensible_paths(&self, prefix: &Prefix, label: u32) -> PrefixPaths {
        match self.last(prefix) == Some(label) {
            true => prefix.blank,
            false => prefix.blank.plus(prefix.label),
        }
    }

    fn advance(&mut self, frame: usize, row: &[f32]) -> Result<()> {
        self.find_parents();
        self.extend_existing(frame, row);
        self.collect_new(row);
        self.choose(frame, row)?;
        if self.tree.is_overgrown() {
            self.sweep();
        }
        Ok(())
    }

    fn find_parents(&mut self) {
        self.parents.clear();
        for prefix in &self.prefixes {
            let parent = self.last(prefix).and_then(|label| {
                self.prefixes.iter().position(|other| self.tree.is_child(prefix.node, other.node, label))
            });
            self.parents.push(parent);
        }
    }

    /// Advances existing prefixes by a frame, into `next`; each is a candidate.
    fn extend_existing(&mut self, frame: usize, row: &[f32]) {
        self.next.clear();
        self.candidates.clear();
        for at in 0..self.prefixes.len() {
            let prefix = self.prefixes[at];
            let blank = prefix.blank.plus(prefix.label).times(f64::from(row[self.options.blank as usize]));
            let mut label = PrefixPaths::NONE;
            if let Some(last) = self.last(&prefix) {
                let score = row[last as usize];
                label = prefix.label.times(f64::from(score));
                if let Some(parent) = self.parents[at].map(|parent| self.prefixes[parent]) {
                    let fused = self.fused(&parent, last);
                    let mut new =
                        self.extensible_paths(&parent, last).times(f64::from(score) + f64::from(fused));
                    if new.best.log_prob > label.best.log_prob {
                        new.best.node =
                            self.tree.push(new.best.node, decoded_token(last, frame, score, fused));
                    }
                    label = label.plus(new);
                }
            }
            self.next.push(Prefix { blank, label, ..prefix });
            self.push_candidate(Candidate { from: at, label: None, sum: Log::plus(blank.sum, label.sum) });
        }
    }

    /// Collects candidates with a new label.
    fn collect_new(&mut self, row: &[f32]) {
        let mut tops = std::mem::take(&mut self.largest);
        let mut compared = std::mem::take(&mut self.compared);
        for at in 0..self.prefixes.len() {
            let prefix = self.prefixes[at];
            let fused = &self.slots[prefix.slot].fused;
            if !fused.is_empty() {
                compared.clear();
                compared.extend_from_slice(row);
                kernels::add(&mut compared, fused);
                largest(&compared, &mut tops);
            } else if at == 0 {
                largest(row, &mut tops);
            }
            for &(_, class) in &tops {
                let exists = |(other, parent): (&Prefix, &Option<usize>)| {
                    *parent == Some(at) && self.last(other) == Some(class)
                };
                if class == self.options.blank || self.prefixes.iter().zip(&self.parents).any(exists) {
                    continue;
                }
                let score = f64::from(row[class as usize]) + f64::from(self.fused(&prefix, class));
                let sum = self.extensible_paths(&prefix, class).sum + score;
                self.push_candidate(Candidate { from: at, label: Some(class), sum });
            }
        }
        (self.largest, self.compared) = (tops, compared);
    }

    fn push_candidate(&mut self, candidate: Candidate) {
        let better = |other: &Candidate| other.sum < candidate.sum;
        let is_full = self.candidates.len() == self.options.width;
        if candidate.sum == f64::NEG_INFINITY || is_full && !self.candidates.last().is_some_and(better) {
            return;
        }
        if is_full {
            self.candidates.pop();
        }
        let position = self.candidates.partition_point(|other| !better(other));
        self.candidates.insert(position, candidate);
    }

    /// Replaces the prefixes by the candidates.
    fn choose(&mut self, frame: usize, row: &[f32]) -> Result<()> {
        let candidates = std::mem::take(&mut self.candidates);
        self.slots.iter_mut().for_each(|slot| slot.is_used = false);
        // The states of the parents are read below.
        self.prefixes.iter().for_each(|prefix| self.slots[prefix.slot].is_used = true);
        let mut chosen = Vec::with_capacity(candidates.len());
        for &Candidate { from, label, .. } in &candidates {
            let Some(class) = label else {
                chosen.push(self.next[from]);
                continue;
            };
            let parent = self.prefixes[from];
            let (score, fused) = (row[class as usize], self.fused(&parent, class));
            let mut label = self.extensible_paths(&parent, class).times(f64::from(score) + f64::from(fused));
            label.best.node = self.tree.push(label.best.node, decoded_token(class, frame, score, fused));
            let slot = self.extend_slot(parent.slot, class)?;
            chosen.push(Prefix { node: label.best.node, blank: PrefixPaths::NONE, label, slot });
        }
        self.prefixes = chosen;
        self.candidates = candidates;
        Ok(())
    }

    /// Returns the slot of a prefix extended by a class.
    fn extend_slot(&mut self, from: usize, class: u32) -> Result<usize> {
        if self.options.fusion.is_empty() {
            return Ok(0);
        }
        let slot = self.slots.iter().position(|slot| !slot.is_used).unwrap_or(self.slots.len());
        if slot == self.slots.len() {
            self.slots.push(ScorerSlot::default());
        }
        let states = self.options.fusion.iter().zip(&self.slots[from].states);
        let states: Vec<u32> = states.map(|(fusion, &state)| fusion.scorer.step(state, class).1).collect();
        (self.slots[slot].states, self.slots[slot].is_used) = (states, true);
        self.fuse(slot)?;
        Ok(slot)
    }

    fn sweep(&mut self) {
        let Self { tree, prefixes, .. } = self;
        tree.unmark();
        for prefix in &*prefixes {
            [prefix.node, prefix.blank.best.node, prefix.label.best.node]
                .into_iter()
                .for_each(|node| tree.mark(node));
        }
        tree.sweep();
        for prefix in prefixes {
            for node in [&mut prefix.node, &mut prefix.blank.best.node, &mut prefix.label.best.node] {
                *node = tree.moved(*node);
            }
        }
    }

    fn rank(&self) -> Result<NBest> {
        let mut hypotheses = Vec::with_capacity(self.prefixes.len());
        for prefix in &self.prefixes {
            let paths = prefix.blank.plus(prefix.label);
            let mut log_prob = paths.sum;
            if self.options.end_scores {
                let scorers = self.options.fusion.iter().zip(&self.slots[prefix.slot].states);
                let ends: f64 = scorers.map(|(fusion, &state)| fusion.finish(state)).sum();
                if ends.is_nan() || ends == f64::INFINITY {
                    return Err(Error::End { found: ends });
                }
                log_prob += ends;
            }
            if log_prob > f64::NEG_INFINITY {
                let labels = self.tree.labels(paths.best.node);
                let score = if self.options.normalize_by_length {
                    log_prob / (labels.len() as f64 + 1.0)
                } else {
                    log_prob
                };
                hypotheses.push(RankedHypothesis { labels, log_prob, score });
            }
        }
        hypotheses.sort_by(|a, b| b.score.total_cmp(&a.score));
        hypotheses.truncate(self.options.nbest);
        Ok(NBest { hypotheses })
    }
}
