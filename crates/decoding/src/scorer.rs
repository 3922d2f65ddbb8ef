//! What scores labels one after another, whatever the frame at which they come.
use std::sync::Arc;

use crate::{Error, Result};

/// A deterministic scorer over class ids: an n-gram, a list of phrases, what a CTC head says of an utterance.
///
/// States are numbers, so that hypotheses carry and compare them cheaply. Equal states have equal futures. Every method is total: a
/// class without a name (a blank) or beyond the vocabulary scores 0 and stays in its state, and a number that is no state of
/// the scorer counts as the state after nothing that it knows.
pub trait Scorer: Send + Sync + std::fmt::Debug {
    /// State before any label.
    fn start(&self) -> u32;
    /// Score (natural logarithm) of a class in a state, and the state after it.
    fn step(&self, state: u32, class: u32) -> (f32, u32);
    /// `scores[class] += weight · score` for every class that is a label of the automaton's vocabulary (others such as the blank
    /// stay as they are).
    fn add_scores(&self, state: u32, weight: f32, scores: &mut [f32]);
    /// Score of ending in a state (`</s>` of an n-gram; what an unfinished phrase gives back).
    fn finish(&self, state: u32) -> f32;
}

/// A scorer and the weight of its scores; a negative one takes away what a model has learnt already (density ratio, LODR), and 0
/// says nothing, not even that something is impossible.
#[derive(Debug, Clone)]
pub struct Fusion {
    /// The language model or list.
    pub scorer: Arc<dyn Scorer>,
    /// What its scores are multiplied by.
    pub weight: f32,
}

impl Fusion {
    /// As [`Scorer::add_scores`].
    pub(crate) fn add_scores(&self, state: u32, scores: &mut [f32]) {
        if self.weight != 0.0 {
            self.scorer.add_scores(state, self.weight, scores);
        }
    }

    /// What ending in a state adds.
    pub(crate) fn finish(&self, state: u32) -> f64 {
        if self.weight == 0.0 { 0.0 } else { f64::from(self.weight * self.scorer.finish(state)) }
    }
}

/// Lists for a stream that had so many of its own.
pub(crate) fn as_many(lists: Vec<Fusion>, expected: usize) -> Result<Vec<Fusion>> {
    if lists.len() == expected {
        return Ok(lists);
    }
    let (expected, found) = (format!("{expected} lists, as it had"), lists.len().to_string());
    Err(Error::Stream { expected, found })
}

/// Fails if something was added that is no score: NaN or +inf.
pub(crate) fn check_fused(fused: &[f32]) -> Result<()> {
    // A fold, and no early exit, so that the compiler makes vectors of it.
    if fused.iter().fold(true, |sound, &score| sound & (score < f32::INFINITY)) {
        return Ok(());
    }
    let class = fused.iter().position(|score| score.is_nan() || *score == f32::INFINITY).unwrap_or(0);
    Err(Error::Fused { class, found: fused[class] })
}

/// A score of its own for each class, whatever came before: a bonus for every label, or for those that begin a word, against the
/// words that a language model costs.
///
/// ```
/// use decoding::{Scorer, ClassScores};
/// let bonus = ClassScores::new(vec![1.5, 0.0])?;
/// assert_eq!(bonus.step(bonus.start(), 0), (1.5, 0));
/// # Ok::<(), decoding::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ClassScores(Vec<f32>);

impl ClassScores {
    /// The scores of classes 0, 1, ..; others score 0.
    ///
    /// # Errors
    /// [`Error::Shape`] if one of them is not finite.
    pub fn new(scores: Vec<f32>) -> Result<Self> {
        match scores.iter().find(|score| !score.is_finite()) {
            Some(score) => Err(Error::shape("scores", "finite numbers".into(), score)),
            None => Ok(Self(scores)),
        }
    }
}

impl Scorer for ClassScores {
    fn start(&self) -> u32 {
        0
    }

    fn step(&self, state: u32, class: u32) -> (f32, u32) {
        (self.0.get(class as usize).copied().unwrap_or(0.0), state)
    }

    fn add_scores(&self, _: u32, weight: f32, scores: &mut [f32]) {
        scores.iter_mut().zip(&self.0).for_each(|(score, own)| *score += weight * own);
    }

    fn finish(&self, _: u32) -> f32 {
        0.0
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The sum of a path from start to end, and its last state.
    pub fn path(scorer: &dyn Scorer, classes: &[u32]) -> (f32, u32) {
        let step = |(sum, state), &class| {
            let (score, next) = scorer.step(state, class);
            (sum + score, next)
        };
        classes.iter().fold((0.0, scorer.start()), step)
    }

    /// A row of scores is that of the steps, bit by bit.
    pub fn row_is_steps(scorer: &dyn Scorer, state: u32, classes: usize, nameless: &[u32]) {
        let before: Vec<f32> = (0..classes).map(|class| class as f32 / 7.0 - 1.0).collect();
        let mut after = before.clone();
        scorer.add_scores(state, 0.7, &mut after);
        for class in 0..classes as u32 {
            let (score, _) = scorer.step(state, class);
            let wanted = match nameless.contains(&class) {
                true => before[class as usize],
                false => before[class as usize] + 0.7 * score,
            };
            assert_eq!(after[class as usize].to_bits(), wanted.to_bits(), "state {state}, class {class}");
        }
    }
}
