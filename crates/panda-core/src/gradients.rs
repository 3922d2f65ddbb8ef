//! What a backward adds to.
use kernels::zeros;

use crate::{Head, Real};

/// Gradients of everything that made the scores.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients<F, G> {
    /// Gradient of what the sites were made of.
    pub sites: G,
    /// Gradient of the head's weight, *C x H*.
    pub weight: Vec<F>,
    /// Gradient of the head's bias, *C*; also there for a head without one. Strips of sites are summed in `f64`.
    pub bias: Vec<f64>,
}

impl<F: Real, G> Gradients<F, G> {
    /// Zero gradients of a head, around a gradient of sites.
    pub fn zero(sites: G, head: &Head<F>) -> Self {
        Self { sites, weight: zeros(head.weight.len()), bias: vec![0.0; head.classes] }
    }
}
