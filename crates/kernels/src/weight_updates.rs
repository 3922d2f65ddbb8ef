//! Optimizer steps over weight slices: Adam, LAMB, and exponential moving averages.
//!
//! ```text
//! m ← β₁m + (1-β₁)g      v ← β₂v + (1-β₂)g²
//! ```
//! g: gradient; m, v: first and second moment; w: weight; s: number of the step. The functions are
//! limited by the memory bandwidth; a caller runs blocks of a tensor in parallel.
use crate::Real;

/// Factors of a step of [`adam_update`].
#[derive(Debug, Clone, Copy)]
pub struct AdamFactors {
    /// Factor of the gradient.
    pub scale: f32,
    /// Decay β₁ of the first moment.
    pub beta1: f32,
    /// Decay β₂ of the second moment.
    pub beta2: f32,
    /// Learning rate, divided by `1 - β₁ˢ`.
    pub rate: f32,
    /// `1 / (1 - β₂ˢ)`
    pub correction2: f32,
    /// ε, added to the root of the second moment.
    pub eps: f32,
    /// Fraction of a weight that decay keeps.
    pub retention: f32,
}

/// Updates weights and moments: `w ← retention w - rate m / (√(v correction2) + ε)`.
///
/// # Panics
/// If the lengths differ.
pub fn adam_update(
    weights: &mut [f32],
    gradient: &[f32],
    first_moment: &mut [f32],
    second_moment: &mut [f32],
    factors: &AdamFactors,
) {
    check_lengths(weights.len(), &[gradient.len(), first_moment.len(), second_moment.len()]);
    let moments = first_moment.iter_mut().zip(second_moment);
    for ((w, &g), (m, v)) in weights.iter_mut().zip(gradient).zip(moments) {
        let g = g * factors.scale;
        *m = factors.beta1 * *m + (1.0 - factors.beta1) * g;
        *v = factors.beta2 * *v + (1.0 - factors.beta2) * g * g;
        *w = factors.retention * *w - factors.rate * *m / ((*v * factors.correction2).sqrt() + factors.eps);
    }
}

/// Factors of a step of LAMB.
#[derive(Debug, Clone, Copy)]
pub struct LambFactors<F> {
    /// Factor of the gradient.
    pub scale: F,
    /// Decay β₁ of the first moment, and 1 - β₁.
    pub beta1: [F; 2],
    /// Decay β₂ of the second moment, and 1 - β₂.
    pub beta2: [F; 2],
    /// `1 / (1 - βˢ)` of both, or 1.
    pub corrections: [F; 2],
    /// ε, added to the root of the second moment.
    pub eps: F,
    /// λ, the weight decay.
    pub decay: F,
}

impl<F: Real> LambFactors<F> {
    /// Returns `u = m correction1 / (√(v correction2) + ε) + λw` of one weight.
    #[inline(always)]
    fn raw_update(&self, w: F, m: F, v: F) -> F {
        m * self.corrections[0] / ((v * self.corrections[1]).sqrt() + self.eps) + self.decay * w
    }
}

/// Updates the moments; returns `[Σ w², Σ u²]` of weights and updates u.
///
/// The sums are `f64`, in a fixed order. `lamb_update` computes u again.
///
/// # Panics
/// If the lengths differ.
pub fn lamb_moments<F: Real>(
    weights: &[F],
    gradient: &[F],
    first_moment: &mut [F],
    second_moment: &mut [F],
    factors: &LambFactors<F>,
) -> [f64; 2] {
    check_lengths(weights.len(), &[gradient.len(), first_moment.len(), second_moment.len()]);
    F::lamb_moments(weights, gradient, first_moment, second_moment, factors)
}

/// Updates the weights: `w ← w - rate u`.
///
/// # Panics
/// If the lengths differ.
pub fn lamb_update<F: Real>(
    weights: &mut [F],
    first_moment: &[F],
    second_moment: &[F],
    rate: F,
    factors: &LambFactors<F>,
) {
    check_lengths(weights.len(), &[first_moment.len(), second_moment.len()]);
    F::lamb_update(weights, first_moment, second_moment, rate, factors);
}

/// Moves an average toward values: `a ← a + rate (w - a)`.
///
/// # Panics
/// If the lengths differ.
pub fn move_average<F: Real>(average: &mut [F], values: &[F], rate: F) {
    assert_eq!(average.len(), values.len(), "move_average: slices of different lengths");
    F::move_average(average, values, rate);
}

/// Returns `Σ x²` in `f64`, in a fixed order.
pub fn sum_of_squares(values: &[f32]) -> f64 {
    let mut sums = [0.0; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    let rest_sum: f64 = rest.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    for values in chunks {
        for (sum, &x) in sums.iter_mut().zip(values) {
            *sum += f64::from(x) * f64::from(x);
        }
    }
    rest_sum + sums.iter().sum::<f64>()
}

/// Panics unless all lengths are the expected one.
fn check_lengths(expected: usize, lengths: &[usize]) {
    let fits = lengths.iter().all(|&length| length == expected);
    assert!(fits, "weight update: expected slices of length {expected}, found {lengths:?}");
}

/// Number of interleaved sums of squares: one vector instruction, and a fixed order.
const LANES: usize = 8;
/// Updates that are stored until their squares are added; they fit into the first cache.
const UPDATES_PER_BLOCK: usize = 512;

/// Portable version of [`lamb_moments`].
pub(crate) fn moments<F: Real>(
    w: &[F],
    g: &[F],
    m: &mut [F],
    v: &mut [F],
    factors: &LambFactors<F>,
) -> [f64; 2] {
    let ([beta1, one_minus_beta1], [beta2, one_minus_beta2]) = (factors.beta1, factors.beta2);
    let (mut weight_squares, mut update_squares) = ([0.0; LANES], [0.0; LANES]);
    let mut updates = [F::ZERO; UPDATES_PER_BLOCK];
    let moments = m.chunks_mut(UPDATES_PER_BLOCK).zip(v.chunks_mut(UPDATES_PER_BLOCK));
    let blocks = w.chunks(UPDATES_PER_BLOCK).zip(g.chunks(UPDATES_PER_BLOCK)).zip(moments);
    for ((w, g), (m, v)) in blocks {
        let u = &mut updates[..w.len()];
        for ((((u, &w), &g), m), v) in u.iter_mut().zip(w).zip(g).zip(m).zip(v) {
            let g = g * factors.scale;
            *m = beta1 * *m + one_minus_beta1 * g;
            *v = beta2 * *v + one_minus_beta2 * g * g;
            *u = factors.raw_update(w, *m, *v);
        }
        add_squares(&mut weight_squares, w);
        add_squares(&mut update_squares, u);
    }
    [weight_squares.iter().sum(), update_squares.iter().sum()]
}

/// Portable version of [`lamb_update`].
pub(crate) fn update<F: Real>(w: &mut [F], m: &[F], v: &[F], rate: F, factors: &LambFactors<F>) {
    for ((w, &m), &v) in w.iter_mut().zip(m).zip(v) {
        *w = *w - rate * factors.raw_update(*w, m, v);
    }
}

/// Portable version of [`move_average`].
pub(crate) fn average<F: Real>(average: &mut [F], values: &[F], rate: F) {
    average.iter_mut().zip(values).for_each(|(a, &w)| *a += rate * (w - *a));
}

/// Adds each square to the sum of its lane.
#[inline(always)]
fn add_squares<F: Real>(sums: &mut [f64; LANES], values: &[F]) {
    let (chunks, rest) = values.as_chunks::<LANES>();
    for values in chunks {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += value.to_f64() * value.to_f64();
        }
    }
    for (sum, value) in sums.iter_mut().zip(rest) {
        *sum += value.to_f64() * value.to_f64();
    }
}
