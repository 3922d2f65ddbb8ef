//! Scorers of label sequences, for fusion in a search: language models, phrases, CTC.
use std::sync::Arc;

use crate::{Error, Result};

/// A deterministic automaton that scores class ids one after another.
///
/// Examples are an n-gram, a list of phrases and the CTC head of an encoder. States are numbers, so
/// that hypotheses copy and compare them cheaply; equal states have equal futures. Every method is
/// total: a class without a name (a blank) or beyond the vocabulary scores 0 and leaves the state
/// unchanged, and a number that is not a state counts as the state without context.
pub trait Scorer: Send + Sync + std::fmt::Debug {
    /// State before any label.
    fn start(&self) -> u32;
    /// Natural-log score of a class in a state, and the next state.
    fn step(&self, state: u32, class: u32) -> (f32, u32);
    /// Adds `weight · score` to `scores[class]` of each label of the vocabulary.
    ///
    /// Other classes, such as the blank, are unchanged.
    fn add_scores(&self, state: u32, weight: f32, scores: &mut [f32]);
    /// Score of the end in a state: `</s>` of an n-gram, the refund of an open phrase.
    fn finish(&self, state: u32) -> f32;
}

/// A scorer and the weight of its scores.
///
/// A negative weight removes what a model has learned (density ratio, LODR). A weight of 0 disables
/// the scorer, including labels that it forbids.
#[derive(Debug, Clone)]
pub struct Fusion {
    /// The scorer.
    pub scorer: Arc<dyn Scorer>,
    /// Factor of the scores.
    pub weight: f32,
}

impl Fusion {
    /// [`Scorer::add_scores`] with the weight.
    pub(crate) fn add_scores(&self, state: u32, scores: &mut [f32]) {
        if self.weight != 0.0 {
            self.scorer.add_scores(state, self.weight, scores);
        }
    }

    /// Weighted score of the end in a state.
    pub(crate) fn finish(&self, state: u32) -> f64 {
        if self.weight == 0.0 { 0.0 } else { f64::from(self.weight * self.scorer.finish(state)) }
    }
}

/// Checks the number of fusions of a restored stream.
pub(crate) fn expect_count(fusion: Vec<Fusion>, expected: usize) -> Result<Vec<Fusion>> {
    if fusion.len() == expected {
        return Ok(fusion);
    }
    let (expected, found) = (format!("{expected} fusions of the stream itself"), fusion.len().to_string());
    Err(Error::Stream { expected, found })
}

/// Fails if a fusion score is NaN or +inf.
pub(crate) fn check_fused(fused: &[f32]) -> Result<()> {
    // No early exit, so that the compiler vectorizes the loop.
    if fused.iter().fold(true, |valid, &score| valid & (score < f32::INFINITY)) {
        return Ok(());
    }
    let class = fused.iter().position(|score| score.is_nan() || *score == f32::INFINITY).unwrap_or(0);
    Err(Error::Fused { class, found: fused[class] })
}

/// One constant score per class, independent of the context.
///
/// A bonus for every label, or for labels that begin a word, offsets the cost of words in a
/// language model.
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
    /// Takes the scores of classes 0, 1, ..; other classes score 0.
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
        scores.iter_mut().zip(&self.0).for_each(|(sum, score)| *sum += weight * score);
    }

    fn finish(&self, _: u32) -> f32 {
        0.0
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Score of a label sequence from the start, and its last state.
    pub(crate) fn sequence_score(scorer: &dyn Scorer, classes: &[u32]) -> (f32, u32) {
        let step = |(sum, state), &class| {
            let (score, next) = scorer.step(state, class);
            (sum + score, next)
        };
        classes.iter().fold((0.0, scorer.start()), step)
    }

    /// Asserts that `add_scores` equals the scores of `step`, bit by bit.
    pub(crate) fn assert_row_matches_steps(
        scorer: &dyn Scorer,
        state: u32,
        classes: usize,
        nameless: &[u32],
    ) {
        let initial: Vec<f32> = (0..classes).map(|class| class as f32 / 7.0 - 1.0).collect();
        let mut row = initial.clone();
        scorer.add_scores(state, 0.7, &mut row);
        for class in 0..classes as u32 {
            let (score, _) = scorer.step(state, class);
            let expected = match nameless.contains(&class) {
                true => initial[class as usize],
                false => initial[class as usize] + 0.7 * score,
            };
            assert_eq!(row[class as usize].to_bits(), expected.to_bits(), "state {state}, class {class}");
        }
    }
}
