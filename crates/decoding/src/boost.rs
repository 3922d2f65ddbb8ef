//! Phrase boosting (contextual biasing) for decoding: bonuses for likely phrases.
mod boundaries;
mod list;
mod trie;

pub use boundaries::{TokenStyle, WordBoundaries, add_unmarked_variants};
pub use list::{DEFAULT_PHRASE_SCORE, PhraseError, PhraseList, SkippedPhrase, read_phrases};

use crate::Scorer;
use trie::{Trie, root};

/// State without a matched prefix, at a word boundary.
const AFTER_BOUNDARY: usize = 0;
/// State without a matched prefix, within a word.
const WITHIN_WORD: usize = 1;
/// Classes of a row of scores that are processed together.
const CLASSES_PER_BLOCK: usize = 64;

/// A sequence of class ids with a bonus per token.
#[derive(Debug, Clone, PartialEq)]
pub struct Phrase {
    /// Class ids.
    pub tokens: Vec<u32>,
    /// Bonus per token, a natural logarithm; negative for unlikely phrases.
    pub score: f32,
}

impl Phrase {
    /// Creates a phrase from a total bonus, spread evenly over its tokens.
    ///
    /// ```
    /// assert_eq!(decoding::Phrase::with_total(vec![3, 1], 5.0).score, 2.5);
    /// ```
    pub fn with_total(tokens: Vec<u32>, total: f32) -> Self {
        let score = total / tokens.len().max(1) as f32;
        Phrase { tokens, score }
    }
}

/// Adds bonuses to phrases as they are decoded (Aho-Corasick automaton, context graph).
///
/// Aho and Corasick 1975, with scores as in icefall's context graph.
///
/// A phrase of m tokens with score s has the bonus B = Σ_{i=1..m} s · d_i, where d_1 = 1 and d_i is
/// the depth scaling for later tokens: 1 for equal bonuses; a larger value favors continuing a
/// phrase over starting one.
///
/// A phrase matches whole words: it occurs at positions i..j of a sequence if the tokens match, and
/// word boundaries precede i and follow j ([`WordBoundaries`]).
///
/// **The sum over a path from start to [`finish`](crate::Scorer::finish) is the sum, over all
/// positions of the path, of the bonus of the longest phrase that occurs there.** Overlapping and
/// nested phrases all count. A phrase that is a prefix of another one at the same position adds
/// nothing to it. Of equal phrases the highest score counts.
///
/// A part of the bonus is paid in advance: after k of m tokens `k/m · s Σ_{i=1..k} d_i`, which
/// grows with k² for equal bonuses; of several phrases with the same prefix, the largest. A larger
/// share for the first tokens would favor hypotheses that mostly never complete a phrase. The
/// advance is withdrawn by the step that breaks the match (also one that continues the last word),
/// or by `finish`. Only the longest open prefix has an advance, and negative scores have none.
///
/// A state is the longest suffix of the sequence that is a prefix of a phrase, and whether it ends
/// at a word boundary. A step takes two binary searches, a row of scores one pass over the arcs of
/// the state, and one over the classes if there is an advance to withdraw. Memory: 12 bytes per
/// token of the list and 12 per arc; arcs are those of the trie and those that continue a phrase
/// begun within another.
///
/// ```
/// use decoding::{Scorer, PhraseBooster, WordBoundaries, Phrase, TokenStyle};
///
/// // Characters; the first class is the blank.
/// let classes = WordBoundaries::from_names(&["", " ", "a", "n", "d"], TokenStyle::Characters);
/// let phrase = Phrase { tokens: vec![2, 3], score: 1.5 };
/// let booster = PhraseBooster::with_boundaries(&[phrase], &classes, 1.0)?;
/// let (a, state) = booster.step(booster.start(), 2);
/// let (n, state) = booster.step(state, 3);
/// let ((space, _), (d, _)) = (booster.step(state, 1), booster.step(state, 4));
/// assert_eq!((a, n, space, d, booster.finish(state)), (0.75, 2.25, 0.0, -3.0, 0.0));
/// # Ok::<(), decoding::PhraseError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct PhraseBooster {
    /// Word boundaries around each label; none for other classes.
    classes: Vec<Option<WordBoundaries>>,
    /// Part of a bonus that is paid in advance in each state.
    advances: Vec<f32>,
    /// Bonus of the phrases that a word boundary after a state completes.
    completed_bonuses: Vec<f32>,
    /// Whether a word boundary always follows the last label of a state.
    ends_word: Vec<bool>,
    /// Offsets of the arcs of each state; all states have the arcs of the first two as well.
    arc_offsets: Vec<u32>,
    /// Class of each arc, ascending within a state.
    arc_classes: Vec<u32>,
    /// Final bonus of each arc; for arcs of the first two states without `completed_bonuses`.
    arc_bonuses: Vec<f32>,
    /// State after each arc.
    arc_states: Vec<u32>,
}

impl PhraseBooster {
    /// Creates a scorer for a model of words: word boundaries surround each label.
    ///
    /// `labels` has one entry per class, true for labels.
    ///
    /// # Errors
    /// Those of [`PhraseBooster::with_boundaries`].
    pub fn new(phrases: &[Phrase], labels: &[bool], depth_scaling: f32) -> Result<Self, PhraseError> {
        let classes: Vec<Option<WordBoundaries>> =
            labels.iter().map(|&is_label| is_label.then_some(WordBoundaries::BOTH)).collect();
        Self::with_boundaries(phrases, &classes, depth_scaling)
    }

    /// Creates a scorer of phrases that match whole words.
    ///
    /// Classes without [`WordBoundaries`] are not labels. An empty list boosts nothing.
    ///
    /// # Errors
    /// [`PhraseError::Empty`], [`PhraseError::Class`] for a class that is not a label,
    /// [`PhraseError::Score`] for a score that is not finite or too large,
    /// [`PhraseError::DepthScaling`]; `line` is the index of the phrase, from 1.
    pub fn with_boundaries(
        phrases: &[Phrase],
        classes: &[Option<WordBoundaries>],
        depth_scaling: f32,
    ) -> Result<Self, PhraseError> {
        if !(depth_scaling.is_finite() && depth_scaling >= 0.0) {
            return Err(PhraseError::DepthScaling { found: depth_scaling });
        }
        for (line, phrase) in (1..).zip(phrases) {
            check_phrase(line, phrase, classes, depth_scaling)?;
        }
        Ok(Trie::new(phrases, classes, depth_scaling).flatten())
    }

    /// Number of states.
    pub fn states(&self) -> usize {
        self.advances.len()
    }

    /// The state, or `AFTER_BOUNDARY` for an invalid number.
    fn valid_state(&self, state: u32) -> usize {
        if (state as usize) < self.states() { state as usize } else { AFTER_BOUNDARY }
    }

    /// Arcs of a state: its own, and shared ones of the first two.
    fn arcs_of(&self, state: usize) -> [std::ops::Range<usize>; 2] {
        let range = |state: usize| self.arc_offsets[state] as usize..self.arc_offsets[state + 1] as usize;
        let own = if state == AFTER_BOUNDARY || state == WITHIN_WORD { 0..0 } else { range(state) };
        [own, range(root(self.ends_word[state]))]
    }

    /// Score of an arc: the state's own, or one that it shares with the first two states.
    fn arc_score(&self, state: usize, arc: usize, is_own: bool) -> f32 {
        let completed = if is_own { 0.0 } else { self.completed_bonuses[state] };
        completed + self.arc_bonuses[arc] + self.advances[self.arc_states[arc] as usize]
            - self.advances[state]
    }

    /// Score of a label without an arc.
    fn score_without_arc(&self, state: usize, boundaries: WordBoundaries) -> f32 {
        let completed = if boundaries.before { self.completed_bonuses[state] } else { 0.0 };
        completed - self.advances[state]
    }
}

impl Scorer for PhraseBooster {
    fn start(&self) -> u32 {
        AFTER_BOUNDARY as u32
    }

    fn step(&self, state: u32, class: u32) -> (f32, u32) {
        let Some(&Some(boundaries)) = self.classes.get(class as usize) else { return (0.0, state) };
        let state = self.valid_state(state);
        for (arcs, is_own) in self.arcs_of(state).into_iter().zip([true, false]) {
            if let Ok(offset) = self.arc_classes[arcs.clone()].binary_search(&class) {
                let arc = arcs.start + offset;
                return (self.arc_score(state, arc, is_own), self.arc_states[arc]);
            }
        }
        (self.score_without_arc(state, boundaries), root(boundaries.after) as u32)
    }

    fn add_scores(&self, state: u32, weight: f32, scores: &mut [f32]) {
        let state = self.valid_state(state);
        let limit = scores.len().min(self.classes.len());
        // Scores of labels without an arc, after a word boundary and within a word.
        let [boundary_score, inner_score] = [WordBoundaries::BOTH, WordBoundaries::NEITHER]
            .map(|boundaries| weight * self.score_without_arc(state, boundaries));
        // The state's own arcs come last and replace the shared ones.
        let [mut own_arcs, mut shared_arcs] = self.arcs_of(state);
        for first_class in (0..limit).step_by(CLASSES_PER_BLOCK) {
            let block = &mut scores[first_class..limit.min(first_class + CLASSES_PER_BLOCK)];
            let mut initial = [0.0; CLASSES_PER_BLOCK];
            initial[..block.len()].copy_from_slice(block);
            // Zero in the usual case: nothing to withdraw or to complete.
            if boundary_score != 0.0 || inner_score != 0.0 {
                for (score, class) in block.iter_mut().zip(&self.classes[first_class..]) {
                    *score += match class {
                        Some(WordBoundaries { before: true, .. }) => boundary_score,
                        Some(_) => inner_score,
                        None => 0.0,
                    };
                }
            }
            for (arcs, is_own) in [(&mut shared_arcs, false), (&mut own_arcs, true)] {
                while arcs.start < arcs.end
                    && (self.arc_classes[arcs.start] as usize) < first_class + block.len()
                {
                    let offset = self.arc_classes[arcs.start] as usize - first_class;
                    block[offset] = initial[offset] + weight * self.arc_score(state, arcs.start, is_own);
                    arcs.start += 1;
                }
            }
        }
    }

    fn finish(&self, state: u32) -> f32 {
        self.score_without_arc(self.valid_state(state), WordBoundaries::BOTH)
    }
}

/// Fails for an empty phrase, invalid labels, or an excessive bonus.
fn check_phrase(
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
    if !(bonus.is_finite() && phrase.score.abs() <= MAX_BONUS && bonus.abs() <= MAX_BONUS) {
        return Err(PhraseError::Score { line, found: phrase.score.to_string() });
    }
    Ok(())
}

/// Largest score and bonus, so that sums stay finite.
const MAX_BONUS: f32 = 1e9;

/// Bonus of the first `length` tokens.
fn bonus(phrase: &Phrase, length: usize, depth_scaling: f32) -> f32 {
    match length {
        0 => 0.0,
        _ => phrase.score * (1.0 + depth_scaling * (length - 1) as f32),
    }
}

#[cfg(test)]
mod tests;
