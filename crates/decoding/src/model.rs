//! How a decoder sees a model.

/// A transducer during inference: a predictor that advances label by label, and a joint network.
///
/// Axes: `H` joint width, `C` classes with the blank among them.
pub trait Transducer {
    /// What the predictor remembers of the labels so far.
    type State: Clone;

    /// Class id of the blank.
    fn blank(&self) -> u32;

    /// Number of classes C, blank included.
    fn classes(&self) -> usize;

    /// Joint width H.
    fn width(&self) -> usize;

    /// State and projected predictor row `[H]` before any label.
    fn start(&self) -> (Self::State, Vec<f32>);

    /// State and projected predictor row `[H]` after one more label.
    fn step(&self, state: &Self::State, label: u32) -> (Self::State, Vec<f32>);

    /// Writes the scores (logits) `[C]` of the site where a projected frame `[H]` meets a predictor row `[H]`.
    fn joint(&self, frame: &[f32], row: &[f32], scores: &mut [f32]);
}
