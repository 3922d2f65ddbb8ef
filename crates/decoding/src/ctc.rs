//! Decoding of CTC models: greedy search and prefix beam search.
//!
//! A path has a class on every frame; its labels follow by merging repeated classes and removing
//! blanks (Graves et al., ICML 2006). T: frames of an utterance, T_b of utterance b; C: classes.
mod greedy;
mod prefix_scorer;

pub use greedy::{CtcGreedySearch, CtcGreedyStream, ctc_greedy};
pub use prefix_scorer::CtcPrefixScorer;

use kernels::{items_mut, par_for, parts};
use rnnt_dp::semiring::{Log, Semiring};

use crate::largest::select_largest;
use crate::tree::{LabelTree, ROOT};
use crate::{DecodedToken, Error, Fusion, NBest, RankedHypothesis, Result};

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

/// Finds the most probable label sequences by CTC prefix beam search.
///
/// The probability of a sequence is the sum over its paths (Hannun et al., arXiv 1408.2873).
///
/// ```text
/// b(y), n(y): probabilities of the paths of y that end with a blank, and with its last label;
///             b' and n' are those after one more frame, p(c) the class probabilities there
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
    for_each_utterance(log_probs, classes, options.blank, |rows| {
        let mut search = CtcSearch::new(classes, options)?;
        for (frame, row) in rows.chunks_exact(classes).enumerate() {
            check_row(row, frame)?;
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
    decode: impl Fn(&[f32]) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    if blank as usize >= classes {
        return Err(Error::Blank { blank, classes });
    }
    let mut results: Vec<Option<Result<T>>> = log_probs.iter().map(|_| None).collect();
    par_for((items_mut(&mut results), parts(log_probs, 1)), |_, (result, rows)| {
        *result = Some(match rows[0].len().is_multiple_of(classes) {
            true => decode(rows[0]),
            false => Err(Error::Frames { width: classes, found: rows[0].len() }),
        });
    });
    let results = results.into_iter().flatten().enumerate();
    results.map(|(b, result)| result.map_err(|error| error.in_utterance(b))).collect()
}

/// Fails for a row with NaN or +inf, or of -inf only.
fn check_row(row: &[f32], frame: usize) -> Result<()> {
    let is_valid = row.iter().fold(true, |valid, &score| valid & (score < f32::INFINITY));
    if is_valid && row.iter().any(|&score| score > f32::NEG_INFINITY) {
        return Ok(());
    }
    Err(score_error(row, frame))
}

/// Returns the error of a row that [`check_row`] rejects.
fn score_error(row: &[f32], frame: usize) -> Error {
    let class = row.iter().position(|score| score.is_nan() || *score == f32::INFINITY).unwrap_or(0);
    Error::Score { frame, class, found: row[class] }
}

/// The record of a label, which advances one frame.
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

/// Best path of a label sequence: its node in the tree and its log-probability.
#[derive(Debug, Clone, Copy)]
struct BestPath {
    log_prob: f64,
    /// Node of the newest label.
    node: u32,
}

impl BestPath {
    const NONE: BestPath = BestPath { log_prob: f64::NEG_INFINITY, node: ROOT };

    /// The more probable of two paths; ties go to `self`.
    fn or_better(self, other: BestPath) -> BestPath {
        if other.log_prob > self.log_prob { other } else { self }
    }

    /// The path extended by a step of this log-probability.
    fn times(self, log_prob: f64) -> BestPath {
        BestPath { log_prob: self.log_prob + log_prob, ..self }
    }
}

/// Paths of a sequence that end alike: with a blank or a label.
#[derive(Debug, Clone, Copy)]
struct PrefixPaths {
    /// Log-probability of all paths: the logarithm of the sum.
    log_prob: f64,
    best_path: BestPath,
}

impl PrefixPaths {
    const NONE: PrefixPaths = PrefixPaths { log_prob: f64::NEG_INFINITY, best_path: BestPath::NONE };

    /// Union of two sets of paths.
    fn plus(self, other: PrefixPaths) -> PrefixPaths {
        PrefixPaths {
            log_prob: Log::plus(self.log_prob, other.log_prob),
            best_path: self.best_path.or_better(other.best_path),
        }
    }

    /// The paths extended by a step of this log-probability.
    fn times(self, log_prob: f64) -> PrefixPaths {
        PrefixPaths { log_prob: self.log_prob + log_prob, best_path: self.best_path.times(log_prob) }
    }
}

/// A label sequence in the beam.
#[derive(Debug, Clone, Copy)]
struct Prefix {
    /// Any node of the sequence.
    node: u32,
    /// Paths that end with a blank.
    blank_paths: PrefixPaths,
    /// Paths that end with the last label.
    label_paths: PrefixPaths,
    /// Index of its scorer states in [`CtcSearch::slots`].
    slot: usize,
}

/// A next prefix: an existing one, or one with a new label.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    /// Index of the prefix that it keeps or extends.
    prefix_index: usize,
    /// New label; none for an existing prefix.
    label: Option<u32>,
    /// Log-probability of its paths.
    log_prob: f64,
}

/// Scorer states of a prefix.
#[derive(Debug, Default)]
struct ScorerSlot {
    /// State of each scorer.
    states: Vec<u32>,
    /// Fusion score of each class.
    fusion_scores: Vec<f32>,
    is_used: bool,
}

/// Prefix beam search over one utterance.
struct CtcSearch<'a> {
    options: &'a CtcBeamOptions,
    classes: usize,
    tree: LabelTree,
    /// Label sequences in the beam.
    prefixes: Vec<Prefix>,
    /// The same label sequences one frame later.
    advanced_prefixes: Vec<Prefix>,
    /// Scorer states of the prefixes, and unused ones.
    slots: Vec<ScorerSlot>,
    /// The best candidates of the next beam, best first.
    candidates: Vec<Candidate>,
    /// Index of each prefix's parent, if it is in the beam.
    parents: Vec<Option<usize>>,
    /// Largest scores of new labels, with their classes.
    largest_scores: Vec<(f32, u32)>,
    /// Log-probabilities of a frame plus the fusion scores of a prefix.
    fused_row: Vec<f32>,
}

impl<'a> CtcSearch<'a> {
    fn new(classes: usize, options: &'a CtcBeamOptions) -> Result<Self> {
        let start = PrefixPaths { log_prob: 0.0, best_path: BestPath { log_prob: 0.0, node: ROOT } };
        let mut search = CtcSearch {
            options,
            classes,
            tree: LabelTree::default(),
            prefixes: vec![Prefix {
                node: ROOT,
                blank_paths: start,
                label_paths: PrefixPaths::NONE,
                slot: 0,
            }],
            advanced_prefixes: Vec::new(),
            slots: vec![ScorerSlot::default()],
            candidates: Vec::new(),
            parents: Vec::new(),
            // The blank, the last label and the existing children of a prefix are not new: this
            // many classes contain `width` new ones.
            largest_scores: vec![(0.0, 0); options.width.saturating_mul(2).saturating_add(2).min(classes)],
            fused_row: Vec::new(),
        };
        search.slots[0].states = options.fusion.iter().map(|fusion| fusion.scorer.start()).collect();
        search.compute_fusion_scores(0)?;
        Ok(search)
    }

    /// Computes the fusion scores after the prefix of a slot.
    fn compute_fusion_scores(&mut self, slot: usize) -> Result<()> {
        if self.options.fusion.is_empty() {
            return Ok(());
        }
        let ScorerSlot { states, fusion_scores, .. } = &mut self.slots[slot];
        fusion_scores.clear();
        fusion_scores.resize(self.classes, 0.0);
        for (fusion, &state) in self.options.fusion.iter().zip(&*states) {
            fusion.add_scores(state, fusion_scores);
        }
        fusion_scores[self.options.blank as usize] = 0.0;
        match fusion_scores.iter().position(|score| score.is_nan() || *score == f32::INFINITY) {
            None => Ok(()),
            Some(class) => Err(Error::Fused { class, found: fusion_scores[class] }),
        }
    }

    /// Fusion score of a class after a prefix.
    fn fusion_score(&self, prefix: &Prefix, class: u32) -> f32 {
        self.slots[prefix.slot].fusion_scores.get(class as usize).copied().unwrap_or(0.0)
    }

    /// Last label of a prefix.
    fn last_label(&self, prefix: &Prefix) -> Option<u32> {
        self.tree.last(prefix.node).map(|(label, _)| label)
    }

    /// Paths of a prefix that a label may extend.
    fn extensible_paths(&self, prefix: &Prefix, label: u32) -> PrefixPaths {
        match self.last_label(prefix) == Some(label) {
            true => prefix.blank_paths,
            false => prefix.blank_paths.plus(prefix.label_paths),
        }
    }

    /// Advances the beam by a frame.
    fn advance(&mut self, frame: usize, row: &[f32]) -> Result<()> {
        self.find_parents();
        self.extend_existing(frame, row);
        self.collect_new_labels(row);
        self.replace_prefixes(frame, row)?;
        if self.tree.may_have_many_dead_nodes() {
            self.sweep();
        }
        Ok(())
    }

    /// Finds the parent of each prefix: the prefix without its last label.
    fn find_parents(&mut self) {
        self.parents.clear();
        for prefix in &self.prefixes {
            let parent = self.last_label(prefix).and_then(|label| {
                self.prefixes.iter().position(|other| self.tree.is_child(prefix.node, other.node, label))
            });
            self.parents.push(parent);
        }
    }

    /// Advances existing prefixes by a frame, into `advanced_prefixes`; each is a candidate.
    fn extend_existing(&mut self, frame: usize, row: &[f32]) {
        self.advanced_prefixes.clear();
        self.candidates.clear();
        for index in 0..self.prefixes.len() {
            let prefix = self.prefixes[index];
            let all_paths = prefix.blank_paths.plus(prefix.label_paths);
            let blank_paths = all_paths.times(f64::from(row[self.options.blank as usize]));
            let mut label_paths = PrefixPaths::NONE;
            if let Some(last) = self.last_label(&prefix) {
                // Paths that repeat the last label.
                let score = row[last as usize];
                label_paths = prefix.label_paths.times(f64::from(score));
                // Paths of the parent, which emit the last label on this frame.
                if let Some(parent) = self.parents[index].map(|parent| self.prefixes[parent]) {
                    let fused = self.fusion_score(&parent, last);
                    let mut new_paths =
                        self.extensible_paths(&parent, last).times(f64::from(score) + f64::from(fused));
                    if new_paths.best_path.log_prob > label_paths.best_path.log_prob {
                        let token = decoded_token(last, frame, score, fused);
                        new_paths.best_path.node = self.tree.push(new_paths.best_path.node, token);
                    }
                    label_paths = label_paths.plus(new_paths);
                }
            }
            self.advanced_prefixes.push(Prefix { blank_paths, label_paths, ..prefix });
            self.push_candidate(Candidate {
                prefix_index: index,
                label: None,
                log_prob: Log::plus(blank_paths.log_prob, label_paths.log_prob),
            });
        }
    }

    /// Collects candidates with a new label.
    fn collect_new_labels(&mut self, row: &[f32]) {
        let mut largest_scores = std::mem::take(&mut self.largest_scores);
        let mut fused_row = std::mem::take(&mut self.fused_row);
        for index in 0..self.prefixes.len() {
            let prefix = self.prefixes[index];
            let fusion_scores = &self.slots[prefix.slot].fusion_scores;
            if !fusion_scores.is_empty() {
                fused_row.clear();
                fused_row.extend_from_slice(row);
                kernels::add(&mut fused_row, fusion_scores);
                select_largest(&fused_row, &mut largest_scores);
            } else if index == 0 {
                // Without fusion, all prefixes have the same largest scores.
                select_largest(row, &mut largest_scores);
            }
            for &(_, class) in &largest_scores {
                let is_in_beam = |(other, parent): (&Prefix, &Option<usize>)| {
                    *parent == Some(index) && self.last_label(other) == Some(class)
                };
                if class == self.options.blank || self.prefixes.iter().zip(&self.parents).any(is_in_beam) {
                    continue;
                }
                let score = f64::from(row[class as usize]) + f64::from(self.fusion_score(&prefix, class));
                let log_prob = self.extensible_paths(&prefix, class).log_prob + score;
                self.push_candidate(Candidate { prefix_index: index, label: Some(class), log_prob });
            }
        }
        (self.largest_scores, self.fused_row) = (largest_scores, fused_row);
    }

    /// Inserts a candidate if it is among the best.
    fn push_candidate(&mut self, candidate: Candidate) {
        let is_better_than = |other: &Candidate| other.log_prob < candidate.log_prob;
        let is_full = self.candidates.len() == self.options.width;
        if candidate.log_prob == f64::NEG_INFINITY
            || is_full && !self.candidates.last().is_some_and(is_better_than)
        {
            return;
        }
        if is_full {
            self.candidates.pop();
        }
        let position = self.candidates.partition_point(|other| !is_better_than(other));
        self.candidates.insert(position, candidate);
    }

    /// Replaces the prefixes by the candidates.
    fn replace_prefixes(&mut self, frame: usize, row: &[f32]) -> Result<()> {
        let candidates = std::mem::take(&mut self.candidates);
        self.slots.iter_mut().for_each(|slot| slot.is_used = false);
        // The states of the parents are read below.
        self.prefixes.iter().for_each(|prefix| self.slots[prefix.slot].is_used = true);
        let mut next_prefixes = Vec::with_capacity(candidates.len());
        for &Candidate { prefix_index, label, .. } in &candidates {
            let Some(class) = label else {
                next_prefixes.push(self.advanced_prefixes[prefix_index]);
                continue;
            };
            let parent = self.prefixes[prefix_index];
            let (score, fused) = (row[class as usize], self.fusion_score(&parent, class));
            let mut label_paths =
                self.extensible_paths(&parent, class).times(f64::from(score) + f64::from(fused));
            let node = self.tree.push(label_paths.best_path.node, decoded_token(class, frame, score, fused));
            label_paths.best_path.node = node;
            let slot = self.extend_slot(parent.slot, class)?;
            next_prefixes.push(Prefix { node, blank_paths: PrefixPaths::NONE, label_paths, slot });
        }
        self.prefixes = next_prefixes;
        self.candidates = candidates;
        Ok(())
    }

    /// Returns the slot of a prefix extended by a class.
    fn extend_slot(&mut self, parent_slot: usize, class: u32) -> Result<usize> {
        if self.options.fusion.is_empty() {
            return Ok(0);
        }
        let slot = self.slots.iter().position(|slot| !slot.is_used).unwrap_or(self.slots.len());
        if slot == self.slots.len() {
            self.slots.push(ScorerSlot::default());
        }
        let states = self.options.fusion.iter().zip(&self.slots[parent_slot].states);
        let states: Vec<u32> = states.map(|(fusion, &state)| fusion.scorer.step(state, class).1).collect();
        (self.slots[slot].states, self.slots[slot].is_used) = (states, true);
        self.compute_fusion_scores(slot)?;
        Ok(slot)
    }

    /// Removes dead labels from the tree.
    fn sweep(&mut self) {
        let Self { tree, prefixes, .. } = self;
        tree.unmark();
        for prefix in &*prefixes {
            [prefix.node, prefix.blank_paths.best_path.node, prefix.label_paths.best_path.node]
                .into_iter()
                .for_each(|node| tree.mark(node));
        }
        tree.sweep();
        for prefix in prefixes {
            let (blank_paths, label_paths) = (&mut prefix.blank_paths, &mut prefix.label_paths);
            for node in [&mut prefix.node, &mut blank_paths.best_path.node, &mut label_paths.best_path.node] {
                *node = tree.new_index(*node);
            }
        }
    }

    /// Ranks the prefixes, with final scores of the fusion.
    fn rank(&self) -> Result<NBest> {
        let mut hypotheses = Vec::with_capacity(self.prefixes.len());
        for prefix in &self.prefixes {
            let paths = prefix.blank_paths.plus(prefix.label_paths);
            let mut log_prob = paths.log_prob;
            if self.options.end_scores {
                let scorers = self.options.fusion.iter().zip(&self.slots[prefix.slot].states);
                let end_score: f64 = scorers.map(|(fusion, &state)| fusion.finish(state)).sum();
                if end_score.is_nan() || end_score == f64::INFINITY {
                    return Err(Error::End { found: end_score });
                }
                log_prob += end_score;
            }
            if log_prob > f64::NEG_INFINITY {
                let labels = self.tree.labels(paths.best_path.node);
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
