//! What comes out of a call: one type for all kinds of loss and of inputs.
use ::pruned::{HeadsGradient, LinearGradient, MatrixGradient, Ranges};

use crate::Skipped;

/// Losses and all gradients of a weighted sum of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Output<F> {
    /// Loss of each utterance, *B*; +inf without a path. With pruning that of the joint network over the retained sites.
    pub losses: Vec<f64>,
    /// What the trivial joiner found, with pruning alone.
    pub first_pass: Option<PruningOutput>,
    /// Gradients, each shaped like its input; 0 in padding.
    pub gradients: Gradients<F>,
    /// What [`Options::skip`](crate::Options::skip) left out of them.
    pub skipped: Skipped,
}

impl<F> Output<F> {
    /// Bytes of its lists.
    pub fn bytes(&self) -> usize {
        let Self { losses, first_pass, gradients, .. } = self;
        let Gradients { encoded, predicted, hidden, scores, head, durations, simple } = gradients;
        let rows: usize = [encoded, predicted, hidden, scores].map(Vec::len).iter().sum();
        let heads: usize = [head, durations].map(|head| head.weight.len() + head.bias.len()).iter().sum();
        let layer = |layer: &LinearGradient<F>| layer.rows.len() + layer.weight.len() + layer.bias.len();
        let simple = match simple {
            None => 0,
            Some(SimpleGradient::Matrices(MatrixGradient { am, lm })) => am.len() + lm.len(),
            Some(SimpleGradient::Heads(HeadsGradient { am, lm })) => layer(am) + layer(lm),
        };
        let found = first_pass.as_ref().map_or(0, PruningOutput::bytes);
        8 * losses.len() + size_of::<F>() * (rows + heads + simple) + found
    }
}

/// What the trivial joiner found.
#[derive(Debug, Clone, PartialEq)]
pub struct PruningOutput {
    /// `-log P` of each utterance under the trivial joiner, *B*.
    pub losses: Vec<f64>,
    /// The bands that were retained.
    pub ranges: Ranges,
}

impl PruningOutput {
    /// Bytes of its lists.
    fn bytes(&self) -> usize {
        let frames: usize = (0..self.ranges.batch()).map(|b| self.ranges.starts(b).len()).sum();
        8 * (self.losses.len() + frames + 2 * self.ranges.batch() + 1)
    }
}

/// Gradients under the names of the inputs; empty where there is no such input.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients<F> {
    /// Of [`Joint::encoded`](crate::Joint::encoded).
    pub encoded: Vec<F>,
    /// Of [`Joint::predicted`](crate::Joint::predicted).
    pub predicted: Vec<F>,
    /// Of [`Rows::hidden`](crate::Rows::hidden).
    pub hidden: Vec<F>,
    /// Of [`Scores::scores`](crate::Scores::scores).
    pub scores: Vec<F>,
    /// Of the head of the tokens.
    pub head: HeadGradient<F>,
    /// Of the head of the durations.
    pub durations: HeadGradient<F>,
    /// Of the trivial joiner.
    pub simple: Option<SimpleGradient<F>>,
}

/// Gradient of a head.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadGradient<F> {
    /// Of the weight, *C x H*.
    pub weight: Vec<F>,
    /// Of the bias, *C*; also there for a head without one.
    pub bias: Vec<F>,
}

/// Gradient of [`Simple`](crate::Simple), of the same kind.
#[derive(Debug, Clone, PartialEq)]
pub enum SimpleGradient<F> {
    /// Of matrices.
    Matrices(MatrixGradient<F>),
    /// Of linear layers.
    Heads(HeadsGradient<F>),
}

impl<F> Default for HeadGradient<F> {
    fn default() -> Self {
        Self { weight: Vec::new(), bias: Vec::new() }
    }
}

impl<F> Default for Gradients<F> {
    fn default() -> Self {
        Self {
            encoded: Vec::new(),
            predicted: Vec::new(),
            hidden: Vec::new(),
            scores: Vec::new(),
            head: HeadGradient::default(),
            durations: HeadGradient::default(),
            simple: None,
        }
    }
}
