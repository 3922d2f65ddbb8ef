//! How a decoder sees a model.
use rnnt_dp::Topology;

/// A transducer during inference: a predictor that advances label by label, and a joint network.
///
/// Axes: `H` joint width, `C` classes with the blanks among them, `D` durations of the topology (0 but for token-and-duration
/// transducers).
pub trait Transducer {
    /// What the predictor remembers of the labels so far.
    type State: Clone;

    /// Class id of the blank.
    fn blank(&self) -> u32;

    /// Number of classes C, blanks included.
    fn classes(&self) -> usize;

    /// Joint width H.
    fn width(&self) -> usize;

    /// How tokens move on: that of the training, in which each label is one token.
    fn topology(&self) -> &Topology;

    /// Class ids of the topology's big blanks, in their order.
    fn big_blanks(&self) -> &[u32] {
        &[]
    }

    /// State and projected predictor row `[H]` before any label.
    fn start(&self) -> (Self::State, Vec<f32>);

    /// State and projected predictor row `[H]` after one more label.
    fn step(&self, state: &Self::State, label: u32) -> (Self::State, Vec<f32>);

    /// Writes the scores (logits) `[C + D]`, classes first, of the site where a projected frame `[H]` meets a predictor row
    /// `[H]`. A model with a factored blank writes what [`factor_blank`](crate::factor_blank) makes of them.
    fn joint(&self, frame: &[f32], row: &[f32], scores: &mut [f32]);
}
