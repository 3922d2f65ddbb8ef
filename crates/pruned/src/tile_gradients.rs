//! `TileGradients`: where the backward pass writes.

/// Gradients of an utterance for a tile of classes.
pub(crate) struct TileGradients<'a, F> {
    /// Gradient of the frame scores, *T x tile*.
    pub frames: &'a mut [F],
    /// Gradient of the label scores, *(U+1) x tile*.
    pub labels: &'a mut [F],
    /// Gradient of the probabilities of the unigram, *tile*; unused if there is none.
    pub unigram: &'a mut [f64],
}
