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
    /// `Σ_c A[t,c] L[k,c]`, *T x K*; 0 where it is rare.
    pub pairs: Vec<f64>,
    /// Pairs whose products are too small, ascending.
    pub rare: Vec<Rare>,
}

/// A pair of a frame and a context whose products of exponentials are too small for their sum to have all its digits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rare {
    pub frame: usize,
    pub context: usize,
    /// `log Σ_c exp(am - max am + lm - max lm)`
    pub log_sum: f64,
}
