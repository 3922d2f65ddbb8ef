//! Bonuses for phrases that are likely to occur.
mod boundaries;
mod list;
mod trie;

pub use boundaries::{TokenStyle, WordBoundaries, add_unmarked_variants};
pub use list::{DEFAULT_PHRASE_SCORE, PhraseError, PhraseList, SkippedPhrase, read_phrases};

use crate::Scorer;
use trie::{Trie, root};

/// State of no beginning of a phrase, where a word may begin.
const AFTER_BOUNDARY: usize = 0;
/// State of no beginning of a phrase, within a word.
const WITHIN_WORD: usize = 1;
/// Classes of a row of scores that are processed at a time.
const BLOCK: usize = 64;

/// A sequence of class ids, and the bonus of each.
#[derive(Debug, Clone, PartialEq)]
pub struct Phrase {
    /// Class ids.
    pub tokens: Vec<u32>,
    /// Bonus of a token, a natural logarithm; below 0 for what is unlikely to occur.
    pub score: f32,
}

impl Phrase {
    /// A phrase with a total bonus, spread evenly over its tokens.
    ///
    /// ```
    /// assert_eq!(decoding::Phrase::with_total(vec![3, 1], 5.0).score, 2.5);
    /// ```
    pub fn with_total(tokens: Vec<u32>, total: f32) -> Self {
        let score = total / tokens.len().max(1) as f32;
        Phrase { tokens, score }
    }
}

/// A scorer over class ids that favors phrases (Aho and Corasick 1975, with scores as in icefall's context graph).
///
/// A phrase of m tokens with score s has the bonus B = Σ_{i=1..m} s · d_i, where d_1 = 1 and d_i is the depth scaling for later tokens:
/// 1 for the same bonus each; more favors continuing a phrase over beginning one.
///
/// A phrase matches whole words: it occurs at positions i..j of a sequence if its tokens are there, and word boundaries precede i and
/// follow j ([`WordBoundaries`]).
///
/// **The sum over a path from start to [`finish`](crate::Scorer::finish) is the sum, over all positions of the path, of the bonus of the
/// longest phrase that occurs there.** Phrases may overlap and lie within one another: both count. A phrase that begins another one at the
/// same position adds nothing to it. Of equal phrases the highest score counts.
///
/// A part of the bonus is paid ahead: after k of m tokens `k/m · s Σ_{i=1..k} d_i`, which grows with k² if all tokens count alike, and the
/// largest of all phrases that begin so. More at the first tokens favors hypotheses of which most are never completed. What was paid is
/// withdrawn as soon as the phrase cannot be completed any more, by the same step that breaks it (also a step that continues the last
/// word) or by `finish`. Only the longest open beginning is paid ahead, and negative scores never are.
///
/// A state is the longest end of the sequence that begins a phrase, and whether a word may begin. A step takes two binary
/// searches; a row of scores one pass over the listed arcs, and over the classes if there is something to withdraw. Memory: 12 bytes
/// a token of the list and 12 an arc; in addition to those of the trie, arcs that continue phrases begun within another one.
///
/// ```
/// use decoding::{Scorer, PhraseBooster, WordBoundaries, Phrase, TokenStyle};
///
/// // Characters; the first class is the blank.
/// let classes = WordBoundaries::from_names(&["", " ", "a", "n", "d"], TokenStyle::Characters);
/// let boost = PhraseBooster::with_boundaries(&[Phrase { tokens: vec![2, 3], score: 1.5 }], &classes, 1.0)?;
/// let (a, state) = boost.step(boost.start(), 2);
/// let (n, state) = boost.step(state, 3);
/// let ((space, _), (d, _)) = (boost.step(state, 1), boost.step(state, 4));
/// assert_eq!((a, n, space, d, boost.finish(state)), (0.75, 2.25, 0.0, -3.0, 0.0));
/// # Ok::<(), decoding::PhraseError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct PhraseBooster {
    /// Which classes are labels, and the word boundaries around them.
    classes: Vec<Option<WordBoundaries>>,
    /// Paid ahead in each state.
    ahead: Vec<f32>,
    /// Earned in addition if a word boundary follows a state.
    completed: Vec<f32>,
    /// Whether a word boundary follows a state in any case.
    is_open: Vec<bool>,
    /// Offsets of the arcs of each state; those of the first two states are arcs of all others as well.
    arcs: Vec<u32>,
    arc_class: Vec<u32>,
    /// Earned for good, without what a boundary completes where the arc is one of the first two states.
    arc_earned: Vec<f32>,
    arc_next: Vec<u32>,
}

impl PhraseBooster {
    /// A scorer of phrases over `labels.len()` classes, of which some are labels; a word boundary precedes and follows each
    /// label, as in a model of words.
    ///
    /// # Errors
    /// As [`PhraseBooster::with_boundaries`].
    pub fn new(phrases: &[Phrase], labels: &[bool], depth_scaling: f32) -> Result<Self, PhraseError> {
        let classes: Vec<Option<WordBoundaries>> =
            labels.iter().map(|&is_label| is_label.then_some(WordBoundaries::BOTH)).collect();
        Self::with_boundaries(phrases, &classes, depth_scaling)
    }

    /// A scorer of phrases that match whole words; classes without [`WordBoundaries`] are no labels. An empty list boosts nothing.
    ///
    /// # Errors
    /// [`PhraseError::Empty`], [`PhraseError::Class`] for a class that is no label, [`PhraseError::Score`] for a score or depth
    /// scaling that is not finite (or below 0), or so large that a sum is not; `line` is the index of the phrase, from 1.
    pub fn with_boundaries(
        phrases: &[Phrase],
        classes: &[Option<WordBoundaries>],
        depth_scaling: f32,
    ) -> Result<Self, PhraseError> {
        if !(depth_scaling.is_finite() && depth_scaling >= 0.0) {
            return Err(PhraseError::DepthScaling { found: depth_scaling });
        }
        for (line, phrase) in (1..).zip(phrases) {
            check(line, phrase, classes, depth_scaling)?;
        }
        Ok(Trie::new(phrases, classes, depth_scaling).flatten())
    }

    /// Number of states.
    pub fn states(&self) -> usize {
        self.ahead.len()
    }

    fn known(&self, state: u32) -> usize {
        if (state as usize) < self.states() { state as usize } else { AFTER_BOUNDARY }
    }

    /// Arcs of a state, and those of the first two states that it has as well.
    fn arcs_of(&self, state: usize) -> [std::ops::Range<usize>; 2] {
        let of = |state: usize| self.arcs[state] as usize..self.arcs[state + 1] as usize;
        let own = if state == AFTER_BOUNDARY || state == WITHIN_WORD { 0..0 } else { of(state) };
        [own, of(root(self.is_open[state]))]
    }

    /// Score of an arc of a state, or of one of the first two states that it has as well.
    fn arc_score(&self, state: usize, arc: usize, is_own: bool) -> f32 {
        let completed = if is_own { 0.0 } else { self.completed[state] };
        completed + self.arc_earned[arc] + self.ahead[self.arc_next[arc] as usize] - self.ahead[state]
    }

    /// Score of a label that no arc has.
    fn score_of_other(&self, state: usize, boundaries: WordBoundaries) -> f32 {
        let completed = if boundaries.before { self.completed[state] } else { 0.0 };
        completed - self.ahead[state]
    }
}

impl Scorer for PhraseBooster {
    fn start(&self) -> u32 {
        AFTER_BOUNDARY as u32
    }

    fn step(&self, state: u32, class: u32) -> (f32, u32) {
        let Some(&Some(boundaries)) = self.classes.get(class as usize) else { return (0.0, state) };
        let state = self.known(state);
        for (arcs, is_own) in self.arcs_of(state).into_iter().zip([true, false]) {
            if let Ok(at) = self.arc_class[arcs.clone()].binary_search(&class) {
                let arc = arcs.start + at;
                return (self.arc_score(state, arc, is_own), self.arc_next[arc]);
            }
        }
        (self.score_of_other(state, boundaries), root(boundaries.after) as u32)
    }

    fn add_scores(&self, state: u32, weight: f32, scores: &mut [f32]) {
        let state = self.known(state);
        let limit = scores.len().min(self.classes.len());
        let [before, within] = [WordBoundaries::BOTH, WordBoundaries::NEITHER]
            .map(|boundaries| weight * self.score_of_other(state, boundaries));
        // The arcs of the state itself come last, and replace the others.
        let [mut own, mut first] = self.arcs_of(state);
        for from in (0..limit).step_by(BLOCK) {
            let block = &mut scores[from..limit.min(from + BLOCK)];
            let mut unscored = [0.0; BLOCK];
            unscored[..block.len()].copy_from_slice(block);
            // Nothing to withdraw or to complete: the usual case.
            if before != 0.0 || within != 0.0 {
                for (score, class) in block.iter_mut().zip(&self.classes[from..]) {
                    *score += match class {
                        Some(WordBoundaries { before: true, .. }) => before,
                        Some(_) => within,
                        None => 0.0,
                    };
                }
            }
            for (arcs, is_own) in [(&mut first, false), (&mut own, true)] {
                while arcs.start < arcs.end && (self.arc_class[arcs.start] as usize) < from + block.len() {
                    let at = self.arc_class[arcs.start] as usize - from;
                    block[at] = unscored[at] + weight * self.arc_score(state, arcs.start, is_own);
                    arcs.start += 1;
                }
            }
        }
    }

    fn finish(&self, state: u32) -> f32 {
        self.score_of_other(self.known(state), WordBoundaries::BOTH)
    }
}

fn check(
    line: usize,
    phrase: &Phrase,
    classes: &[Option<WordBoundaries>],
    depth_scaling: f32,
) -> Result<(), PhraseError> {
    if phrase.tokens.is_empty() {
        return Err(PhraseError::Empty { line });
    }
    let is_label = |class: u32| classes.get(class as usize).is_some_and(Option::is_some);
    if let Some(&class) = phrase.tokens.iter().find(|&&class| !is_label(class)) {
        return Err(PhraseError::Class { line, class, classes: classes.len() });
    }
    // Sums of many bonuses must stay finite.
    let bonus = bonus(phrase, phrase.tokens.len(), depth_scaling);
    if !(bonus.is_finite() && phrase.score.abs() <= LARGEST && bonus.abs() <= LARGEST) {
        return Err(PhraseError::Score { line, found: phrase.score.to_string() });
    }
    Ok(())
}

/// Largest score and bonus; sums of many stay finite.
const LARGEST: f32 = 1e9;

/// Bonus of the first `length` tokens.
fn bonus(phrase: &Phrase, length: usize, depth_scaling: f32) -> f32 {
    match length {
        0 => 0.0,
        _ => phrase.score * (1.0 + depth_scaling * (length - 1) as f32),
    }
}

#[cfg(test)]
mod tests;
