//! What language models and lists of phrases are to a search.
use std::sync::Arc;

/// A deterministic automaton over class ids: an n-gram, a list of phrases.
pub trait Automaton: Send + Sync + std::fmt::Debug {
    /// State before any label.
    fn start(&self) -> u32;

    /// Score (natural logarithm) of a class in a state, and the state after it.
    fn step(&self, state: u32, class: u32) -> (f32, u32);

    /// `scores[class] += weight · score` for every class that is a label of the automaton's vocabulary (others such as the blank stay
    /// as they are).
    fn add_scores(&self, state: u32, weight: f32, scores: &mut [f32]);

    /// Score of ending in a state (`</s>` of an n-gram; what an unfinished phrase gives back).
    fn finish(&self, state: u32) -> f32;
}

/// An automaton and the weight of its scores; a negative one takes away what a model has learnt already (density ratio, LODR).
#[derive(Debug, Clone)]
pub struct Fusion {
    /// The language model or list.
    pub automaton: Arc<dyn Automaton>,
    /// What its scores are multiplied by.
    pub weight: f32,
}
