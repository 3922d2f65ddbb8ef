//! `CtcPrefixScorer`: CTC prefix scores of labels, for fusion with a transducer search.
//!
//! T: frames of the utterance, t one of them; C: classes, c one of them; y: a label sequence.
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rnnt_dp::semiring::{Log, Semiring};

use super::check_row;
use crate::{Error, Result, Scorer};

/// Logarithm of a probability of 0.
const LOG_ZERO: f64 = f64::NEG_INFINITY;
/// Lower bound of scores, so that no label is forbidden.
const MIN_SCORE: f64 = -100.0;
/// Log-probability, relative to the sequence's best path, below which paths are dropped.
///
/// They add nothing to the sum now. But a sequence that omits several labels of which the head is
/// certain needs paths far below the best; its score is too low.
const MIN_RELATIVE_LOG_PROB: f64 = -300.0;
/// Number of the newest sequences whose scores are cached.
const CACHED_SEQUENCES: usize = 1024;

/// Prefix scores of a CTC head over an utterance.
///
/// As a [`Scorer`] it adds the evidence of a CTC head to the search of a transducer; the two make
/// different errors.
///
/// ```text
/// ψ(y)         = Σ p_CTC(z) over all z that begin with y
/// score(c | y) = log ψ(y c) - log ψ(y)                             y c: y followed by c
/// end(y)       = log p_CTC(y) - log ψ(y)
/// ```
/// The scores of a sequence and its end sum to `log p_CTC(y)`, over all of its paths, and do not
/// depend on the frames at which a search appends the labels. No score is below -100; a sequence
/// that omits labels which together are more probable by a factor of e^300 scores too low. With
/// `b(y, t)` and `n(y, t)`, the sums of the paths of y over t frames that end with a blank and with
/// its last label (ε: `n = 0`):
///
/// ```text
/// φ(y, c, t)    = b(y, t) + n(y, t) [y does not end with c]
/// n(y c, t + 1) = (n(y c, t) + φ(y, c, t)) p(c | t)             b(y, t + 1) = (b(y, t) + n(y, t)) p(blank | t)
/// ψ(y c)        = Σ_t φ(y, c, t) p(c | t)
/// ```
/// Source: Watanabe et al., "Hybrid CTC/Attention Architecture for End-to-End Speech Recognition"
/// (IEEE JSTSP 2017), algorithm 2, with a transducer in place of the attention decoder.
///
/// A scorer belongs to one complete utterance and to one search:
/// [`BeamSearch::decode_with`](crate::BeamSearch::decode_with) takes one per utterance. Its states
/// index the sequences that were scored so far and are invalid for another scorer, so that it
/// cannot be passed to a deserialized stream.
///
/// Cost: `O(w)` time and `16 w` bytes per sequence, `O(w C)` time for the scores of its
/// continuations, and `4 C` bytes for the last thousand of these. Here w is the number of frames at
/// which the paths of the sequence have at least e^-300 of their largest probability: a second or
/// two plus pauses, independent of the length of the utterance. The utterance takes `8 T C` bytes.
///
/// ```
/// use decoding::{Scorer, CtcPrefixScorer};
///
/// // Two frames; class 0 is the blank.
/// let rows = [0.5f32, 0.3, 0.2, 0.6, 0.4, 0.0].map(f32::ln);
/// let ctc = CtcPrefixScorer::new(&rows, 3, 0)?;
/// let (score, state) = ctc.step(ctc.start(), 1);
/// // Paths (1, any) and (blank, 1) begin with 1.
/// assert!((score.exp() - (0.3 + 0.5 * 0.4)).abs() < 1e-6);
/// assert!(((score + ctc.finish(state)).exp() - (0.3 * 0.6 + 0.3 * 0.4 + 0.5 * 0.4)).abs() < 1e-6);
/// # Ok::<(), decoding::Error>(())
/// ```
#[derive(Debug)]
pub struct CtcPrefixScorer {
    /// Probabilities, *T x C*.
    probs: Vec<f64>,
    classes: usize,
    blank: u32,
    table: Mutex<SequenceTable>,
}

/// The label sequences that were scored.
#[derive(Debug)]
struct SequenceTable {
    /// Sequence of each state; the first is empty.
    sequences: Vec<Arc<LabelSequence>>,
    /// State after a state and a label.
    next_states: HashMap<(u32, u32), u32>,
}

/// Log-probabilities of the paths of a sequence y over t frames.
#[derive(Debug, Clone, Copy)]
struct LogPathSums {
    /// `log n(y, t)`: paths that end with the last label.
    label: f64,
    /// `log b(y, t)`: paths that end with a blank.
    blank: f64,
}

impl LogPathSums {
    /// Log-probability of all paths.
    fn total(&self) -> f64 {
        Log::plus(self.label, self.blank)
    }

    /// The larger of the two log-probabilities.
    fn max(&self) -> f64 {
        self.label.max(self.blank)
    }
}

/// A label sequence y.
#[derive(Debug)]
struct LabelSequence {
    last_label: Option<u32>,
    /// `log ψ(y)`.
    log_prob: f64,
    /// Paths over t = `first_frame`, .. frames; -inf elsewhere.
    paths: Vec<LogPathSums>,
    /// First number of frames t whose paths are stored.
    first_frame: usize,
    /// `score(c | y)`, if cached.
    scores: Mutex<Option<Arc<[f32]>>>,
}

impl CtcPrefixScorer {
    /// Takes the log-probabilities or logits of a CTC head.
    ///
    /// # Shapes
    /// `scores`: `[T, C]`, row-major, natural logarithms; frames, classes and blank are those of
    /// the joint.
    ///
    /// # Errors
    /// [`Error::Blank`], [`Error::Frames`] and [`Error::Score`] as in
    /// [`ctc_greedy`](crate::ctc_greedy).
    pub fn new(scores: &[f32], classes: usize, blank: u32) -> Result<Self> {
        if blank as usize >= classes {
            return Err(Error::Blank { blank, classes });
        }
        if !scores.len().is_multiple_of(classes) {
            return Err(Error::Frames { width: classes, found: scores.len() });
        }
        let mut probs = Vec::with_capacity(scores.len());
        let mut paths = vec![LogPathSums { label: LOG_ZERO, blank: 0.0 }];
        let mut log_prob_of_blanks = 0.0;
        for (frame, scores) in scores.chunks_exact(classes).enumerate() {
            check_row(scores, frame)?;
            let max = f64::from(scores.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            let row = probs.len()..probs.len() + classes;
            probs.extend(scores.iter().map(|&score| (f64::from(score) - max).exp()));
            let sum: f64 = probs[row.clone()].iter().sum();
            probs[row.clone()].iter_mut().for_each(|p| *p /= sum);
            log_prob_of_blanks += probs[row.start + blank as usize].ln();
            paths.push(LogPathSums { label: LOG_ZERO, blank: log_prob_of_blanks });
        }
        let empty = LabelSequence::new(None, 0.0, 0, &paths);
        let table = SequenceTable { sequences: vec![Arc::new(empty)], next_states: HashMap::new() };
        Ok(Self { probs, classes, blank, table: Mutex::new(table) })
    }

    /// The label sequence of a state.
    fn sequence(&self, state: u32) -> Arc<LabelSequence> {
        lock(&self.table).get(state).1
    }

    fn is_label(&self, class: u32) -> bool {
        class != self.blank && (class as usize) < self.classes
    }

    /// Probabilities of the frames from `first_frame` on.
    fn frames_from(&self, first_frame: usize) -> impl Iterator<Item = &[f64]> {
        self.probs.chunks_exact(self.classes).skip(first_frame)
    }

    /// `score(c | y)` of all classes.
    fn scores(&self, sequence: &LabelSequence) -> Arc<[f32]> {
        lock(&sequence.scores).get_or_insert_with(|| self.compute_scores(sequence)).clone()
    }

    /// [`Self::scores`] without the cache.
    fn compute_scores(&self, sequence: &LabelSequence) -> Arc<[f32]> {
        let score = |log_unit: f64, sum: f64| (log_unit + sum.ln() - sequence.log_prob).max(MIN_SCORE) as f32;
        // All labels, as if none of them were the last label of y.
        let mut sums = vec![0.0; self.classes];
        let log_unit = self.for_each_phi(sequence, LogPathSums::total, |row, phi| {
            sums.iter_mut().zip(row).for_each(|(sum, p)| *sum += phi * p);
        });
        let mut scores: Vec<f32> = sums.iter().map(|&sum| score(log_unit, sum)).collect();
        // The last label continues its run unless a blank precedes it.
        if let Some(last) = sequence.last_label.map(|last| last as usize) {
            let mut sum = 0.0;
            let log_unit =
                self.for_each_phi(sequence, |paths| paths.blank, |row, phi| sum += phi * row[last]);
            scores[last] = score(log_unit, sum);
        }
        scores[self.blank as usize] = 0.0;
        scores.into()
    }

    /// Calls `add` with each frame's probabilities and `φ / unit <= 1`; returns `log unit`.
    ///
    /// `unit` is the largest φ, so that the sums neither overflow nor underflow.
    fn for_each_phi(
        &self,
        sequence: &LabelSequence,
        log_phi: impl Fn(&LogPathSums) -> f64,
        mut add: impl FnMut(&[f64], f64),
    ) -> f64 {
        let log_unit = sequence.paths.iter().map(&log_phi).fold(f64::MIN, f64::max);
        for (row, paths) in self.frames_from(sequence.first_frame).zip(&sequence.paths) {
            add(row, (log_phi(paths) - log_unit).exp());
        }
        log_unit
    }

    /// Computes the sequence extended by a label.
    fn extend(&self, sequence: &LabelSequence, label: u32) -> LabelSequence {
        let (mut log_prob, mut largest) = (LOG_ZERO, LOG_ZERO);
        let mut current = LogPathSums { label: LOG_ZERO, blank: LOG_ZERO };
        let mut paths = Vec::with_capacity(sequence.paths.len());
        for (i, row) in self.frames_from(sequence.first_frame).enumerate() {
            let (log_p, log_p_blank) = (row[label as usize].ln(), row[self.blank as usize].ln());
            let log_phi = match sequence.paths.get(i) {
                Some(paths) if sequence.last_label == Some(label) => paths.blank,
                Some(paths) => paths.total(),
                // Without new paths the sum only decreases.
                None if current.max() <= largest + MIN_RELATIVE_LOG_PROB => break,
                None => LOG_ZERO,
            };
            log_prob = Log::plus(log_prob, log_phi + log_p);
            current = LogPathSums {
                label: Log::plus(current.label, log_phi) + log_p,
                blank: current.total() + log_p_blank,
            };
            largest = largest.max(current.label).max(current.blank);
            paths.push(current);
        }
        LabelSequence::new(Some(label), log_prob, sequence.first_frame + 1, &paths)
    }
}

impl LabelSequence {
    /// Creates a sequence without the frames at which its paths are negligible.
    fn new(last_label: Option<u32>, log_prob: f64, first_frame: usize, paths: &[LogPathSums]) -> Self {
        let largest = paths.iter().map(LogPathSums::max).fold(LOG_ZERO, f64::max);
        let is_relevant = |paths: &LogPathSums| paths.max() > largest + MIN_RELATIVE_LOG_PROB;
        let begin = paths.iter().position(is_relevant).unwrap_or(paths.len());
        let end = paths.iter().rposition(is_relevant).map_or(begin, |last| last + 1);
        let paths = paths[begin..end].to_vec();
        // Finite, so that differences of log-probabilities are finite.
        let log_prob = log_prob.max(f64::MIN);
        Self { last_label, log_prob, paths, first_frame: first_frame + begin, scores: Mutex::default() }
    }
}

/// Locks a mutex; a panic of another thread leaves its value consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SequenceTable {
    /// A valid state and its sequence; an invalid state becomes that of the empty sequence.
    fn get(&self, state: u32) -> (u32, Arc<LabelSequence>) {
        match self.sequences.get(state as usize) {
            Some(sequence) => (state, sequence.clone()),
            None => (0, self.sequences[0].clone()),
        }
    }
}

impl Scorer for CtcPrefixScorer {
    fn start(&self) -> u32 {
        0
    }

    fn step(&self, state: u32, class: u32) -> (f32, u32) {
        if !self.is_label(class) {
            return (0.0, state);
        }
        let (state, sequence) = lock(&self.table).get(state);
        let score = self.scores(&sequence)[class as usize];
        let mut table = lock(&self.table);
        if let Some(&next) = table.next_states.get(&(state, class)) {
            return (score, next);
        }
        let next = table.sequences.len() as u32;
        table.sequences.push(Arc::new(self.extend(&sequence, class)));
        table.next_states.insert((state, class), next);
        // The scores of old sequences are computed again if they are needed.
        let uncached_index = table.sequences.len().checked_sub(CACHED_SEQUENCES);
        if let Some(sequence) = uncached_index.and_then(|index| table.sequences.get(index)) {
            *lock(&sequence.scores) = None;
        }
        (score, next)
    }

    fn add_scores(&self, state: u32, weight: f32, scores: &mut [f32]) {
        let sequence = self.sequence(state);
        for (class, (sum, score)) in (0..).zip(scores.iter_mut().zip(self.scores(&sequence).iter())) {
            if class != self.blank {
                *sum += weight * score;
            }
        }
    }

    fn finish(&self, state: u32) -> f32 {
        let sequence = self.sequence(state);
        let frames = self.probs.len() / self.classes;
        let final_paths =
            frames.checked_sub(sequence.first_frame).and_then(|index| sequence.paths.get(index));
        let log_sum = final_paths.map_or(LOG_ZERO, LogPathSums::total);
        (log_sum - sequence.log_prob).max(MIN_SCORE) as f32
    }
}
