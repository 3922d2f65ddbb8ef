//! What the normaliser leaves behind.

/// Sums over the classes of one utterance, with K contexts; what backward needs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sums<F> {
    /// Largest score of each frame.
    pub frame_max: Vec<F>,
    /// Largest score of each label position.
    pub label_max: Vec<F>,
    /// `Σ_c L[u,c]`
    pub label_sums: Vec<f64>,
    /// `Σ_c A[t,c] L[k,c]`, *T x K*. Where it would be too small to have all its digits, the pair is *rare*: its logarithm, which is
    /// negative.
    pub pairs: Vec<f64>,
}

/// Whether a number of [`Sums::pairs`] is a logarithm.
pub(crate) fn rare(pair: f64) -> bool {
    pair < 0.0
}

/// `log Σ_c A[t,c] L[k,c]`
pub(crate) fn log(pair: f64) -> f64 {
    if rare(pair) { pair } else { pair.ln() }
}
