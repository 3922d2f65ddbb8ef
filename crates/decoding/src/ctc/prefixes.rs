//! A CTC head as an scorer over labels, for a search by another network.
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rnnt_dp::semiring::{Log, Semiring};

use super::check;
use crate::{Error, Result, Scorer};

const IMPOSSIBLE: f64 = f64::NEG_INFINITY;
/// What is less probable than e to this counts as if it were so: no label is forbidden.
const LEAST: f64 = -100.0;
/// Paths less probable by this than the best of their sequence are left out. What they would add now is nothing; but a text that leaves
/// out labels of which the head is sure lives on paths that were behind, one label's distance for each.
const BEHIND: f64 = -300.0;
/// Sequences, the newest ones, whose scores are kept.
const RECENT: usize = 1024;

/// What a CTC head over an utterance says of label sequences, one label at a time: a search by a transducer's joint finds what both
/// believe, as the two make different mistakes.
///
/// ```text
/// ψ(y) = Σ p_CTC(z) over all z that begin with y        score(c | y) = log ψ(y c) - log ψ(y)        end(y) = log p_CTC(y) - log ψ(y)
/// ```
/// so that the scores of a whole sequence, that of its end with them, add up to `log p_CTC(y)`, the sum over all of its paths, and none of
/// them hangs on the frame at which a search appends the label. No score is below -100, and a text that leaves out more in a row than
/// what the head is sure of by a factor of e^300 has worse ones than it should. With the sums of the paths of y over t frames
/// that end with a blank, and with its last label, `b(y, t)` and `n(y, t)` (ε: `n = 0`):
///
/// ```text
/// φ(y, c, t)    = b(y, t) + n(y, t) [y does not end with c]
/// n(y c, t + 1) = (n(y c, t) + φ(y, c, t)) p(c | t)             b(y, t + 1) = (b(y, t) + n(y, t)) p(blank | t)
/// ψ(y c)        = Σ_t φ(y, c, t) p(c | t)
/// ```
/// Source: Watanabe et al., "Hybrid CTC/Attention Architecture for End-to-End Speech Recognition" (IEEE JSTSP 2017), algorithm 2, with a
/// transducer in the place of the attention decoder.
///
/// It belongs to one utterance, all of which must be known, and to one search: [`BeamSearch::decode_with`](crate::BeamSearch::decode_with)
/// takes one for each utterance. Its states are numbers of the sequences that it was asked about so far, and mean nothing to another one,
/// so that it cannot be given to a stream that was written down.
///
/// Cost: `O(w)` time and `16 w` bytes for each sequence that is stepped to, `O(w C)` time where its continuations are asked for, and `4 C`
/// bytes for the last thousand of these, with w the frames after which the paths of the sequence have more than e^-300 of what they have
/// after the best one: a second or two beside pauses, however long the utterance. `8 T C` bytes of the utterance.
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
    known: Mutex<PrefixScores>,
}

/// The label sequences that were asked for.
#[derive(Debug)]
struct PrefixScores {
    /// A state is a place here; the first is the empty sequence's.
    all: Vec<Arc<Prefix>>,
    /// The state behind a state and a label.
    next: HashMap<(u32, u32), u32>,
}

/// A label sequence y.
#[derive(Debug)]
struct Prefix {
    last: Option<u32>,
    /// `log ψ(y)`.
    log_prob: f64,
    /// `log n(y, t)` and `log b(y, t)` at t = `from`, ..; nothing elsewhere.
    paths: Vec<[f64; 2]>,
    from: usize,
    /// `score(c | y)`, if somebody has asked lately.
    scores: Mutex<Option<Arc<[f32]>>>,
}

impl CtcPrefixScorer {
    /// Of what a CTC head says of an utterance: log-probabilities, or scores that softmax makes probabilities of.
    ///
    /// # Shapes
    /// `scores`: `[T, C]`, row-major, natural logarithms, with as many frames as the utterance has for the joint; classes and blank are
    /// the joint's.
    ///
    /// # Errors
    /// [`Error::Blank`], [`Error::Frames`] and [`Error::Score`] as [`ctc_greedy`](crate::ctc_greedy).
    pub fn new(scores: &[f32], classes: usize, blank: u32) -> Result<Self> {
        if blank as usize >= classes {
            return Err(Error::Blank { blank, classes });
        }
        if !scores.len().is_multiple_of(classes) {
            return Err(Error::Frames { width: classes, found: scores.len() });
        }
        let mut probs = Vec::with_capacity(scores.len());
        let mut paths = vec![[IMPOSSIBLE, 0.0]];
        let mut blanks = 0.0;
        for (frame, scores) in scores.chunks_exact(classes).enumerate() {
            check(scores, frame)?;
            let largest = f64::from(scores.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            let row = probs.len()..probs.len() + classes;
            probs.extend(scores.iter().map(|&score| (f64::from(score) - largest).exp()));
            let sum: f64 = probs[row.clone()].iter().sum();
            probs[row.clone()].iter_mut().for_each(|p| *p /= sum);
            blanks += probs[row.start + blank as usize].ln();
            paths.push([IMPOSSIBLE, blanks]);
        }
        let empty = Prefix::new((None, 0.0), 0, &paths);
        let known = PrefixScores { all: vec![Arc::new(empty)], next: HashMap::new() };
        Ok(Self { probs, classes, blank, known: Mutex::new(known) })
    }

    fn prefix(&self, state: u32) -> Arc<Prefix> {
        lock(&self.known).at(state).1
    }

    fn is_label(&self, class: u32) -> bool {
        class != self.blank && (class as usize) < self.classes
    }

    /// Probabilities of the frames from one on.
    fn rows(&self, from: usize) -> impl Iterator<Item = &[f64]> {
        self.probs.chunks_exact(self.classes).skip(from)
    }

    /// `score(c | y)` of all classes.
    fn scores(&self, prefix: &Prefix) -> Arc<[f32]> {
        lock(&prefix.scores).get_or_insert_with(|| self.find_scores(prefix)).clone()
    }

    fn find_scores(&self, prefix: &Prefix) -> Arc<[f32]> {
        let score = |unit: f64, sum: f64| (unit + sum.ln() - prefix.log_prob).max(LEAST) as f32;
        let mut sums = vec![0.0; self.classes];
        let open = |&[label, blank]: &[f64; 2]| Log::plus(label, blank);
        let unit = self.add_phi(prefix, open, |row, phi| {
            sums.iter_mut().zip(row).for_each(|(sum, p)| *sum += phi * p);
        });
        let mut scores: Vec<f32> = sums.iter().map(|&sum| score(unit, sum)).collect();
        if let Some(last) = prefix.last.map(|last| last as usize) {
            let mut sum = 0.0;
            let unit = self.add_phi(prefix, |&[_, blank]| blank, |row, phi| sum += phi * row[last]);
            scores[last] = score(unit, sum);
        }
        scores[self.blank as usize] = 0.0;
        scores.into()
    }

    /// Calls `add` with each frame's probabilities and `φ / unit`, which is 1 at most; returns `log unit`.
    fn add_phi(
        &self,
        prefix: &Prefix,
        log_phi: impl Fn(&[f64; 2]) -> f64,
        mut add: impl FnMut(&[f64], f64),
    ) -> f64 {
        let unit = prefix.paths.iter().map(&log_phi).fold(f64::MIN, f64::max);
        for (row, paths) in self.rows(prefix.from).zip(&prefix.paths) {
            add(row, (log_phi(paths) - unit).exp());
        }
        unit
    }

    /// The sequence with one more label.
    fn longer(&self, prefix: &Prefix, label: u32) -> Prefix {
        let (mut log_prob, mut largest, mut at) = (IMPOSSIBLE, IMPOSSIBLE, [IMPOSSIBLE; 2]);
        let mut paths = Vec::with_capacity(prefix.paths.len());
        for (i, row) in self.rows(prefix.from).enumerate() {
            let (p, p_blank) = (row[label as usize].ln(), row[self.blank as usize].ln());
            let phi = match prefix.paths.get(i) {
                Some(&[_, blank]) if prefix.last == Some(label) => blank,
                Some(&[label, blank]) => Log::plus(label, blank),
                // Without new paths their sum only falls.
                None if at[0].max(at[1]) <= largest + BEHIND => break,
                None => IMPOSSIBLE,
            };
            log_prob = Log::plus(log_prob, phi + p);
            at = [Log::plus(at[0], phi) + p, Log::plus(at[0], at[1]) + p_blank];
            largest = largest.max(at[0]).max(at[1]);
            paths.push(at);
        }
        Prefix::new((Some(label), log_prob), prefix.from + 1, &paths)
    }
}

impl Prefix {
    /// Keeps of its paths what counts.
    fn new((last, log_prob): (Option<u32>, f64), from: usize, paths: &[[f64; 2]]) -> Self {
        let log_sum = |[label, blank]: &[f64; 2]| label.max(*blank);
        let largest = paths.iter().map(log_sum).fold(IMPOSSIBLE, f64::max);
        let counts = |paths: &[f64; 2]| log_sum(paths) > largest + BEHIND;
        let begin = paths.iter().position(counts).unwrap_or(paths.len());
        let end = paths.iter().rposition(counts).map_or(begin, |last| last + 1);
        let paths = paths[begin..end].to_vec();
        // A number, so that differences are.
        let log_prob = log_prob.max(f64::MIN);
        Self { last, log_prob, paths, from: from + begin, scores: Mutex::default() }
    }
}

/// A thread that panicked has left nothing half done.
fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PrefixScores {
    /// The state of a number, and its sequence; a number that is no state is that of the empty one.
    fn at(&self, state: u32) -> (u32, Arc<Prefix>) {
        match self.all.get(state as usize) {
            Some(prefix) => (state, prefix.clone()),
            None => (0, self.all[0].clone()),
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
        let (state, prefix) = lock(&self.known).at(state);
        let score = self.scores(&prefix)[class as usize];
        let mut known = lock(&self.known);
        if let Some(&next) = known.next.get(&(state, class)) {
            return (score, next);
        }
        let next = known.all.len() as u32;
        known.all.push(Arc::new(self.longer(&prefix, class)));
        known.next.insert((state, class), next);
        if let Some(old) = known.all.len().checked_sub(RECENT).and_then(|old| known.all.get(old)) {
            *lock(&old.scores) = None;
        }
        (score, next)
    }

    fn add_scores(&self, state: u32, weight: f32, scores: &mut [f32]) {
        let prefix = self.prefix(state);
        for (class, (score, own)) in (0..).zip(scores.iter_mut().zip(self.scores(&prefix).iter())) {
            if class != self.blank {
                *score += weight * own;
            }
        }
    }

    fn finish(&self, state: u32) -> f32 {
        let prefix = self.prefix(state);
        let frames = self.probs.len() / self.classes;
        let at_end = frames.checked_sub(prefix.from).and_then(|at| prefix.paths.get(at));
        let sum = at_end.map_or(IMPOSSIBLE, |&[label, blank]| Log::plus(label, blank));
        (sum - prefix.log_prob).max(LEAST) as f32
    }
}
