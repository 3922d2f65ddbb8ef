//! Activation of the joint network: tanh or ReLU.
//!
//! A new activation needs a variant here and a name in the recipe files.
use crate::Real;

/// The function `act` of a hidden row `h = act(encoded + predicted)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activation {
    /// `tanh(x)`
    #[default]
    Tanh,
    /// `max(x, 0)`, with derivative 0 at 0.
    Relu,
}

impl Activation {
    /// Computes `out = act(a + b)`; NaN stays NaN.
    ///
    /// # Shapes
    /// Three slices of equal length.
    pub fn forward<F: Real>(self, out: &mut [F], a: &[F], b: &[F]) {
        match self {
            Self::Tanh => F::tanh_sum(out, a, b),
            Self::Relu => {
                for (h, (a, b)) in out.iter_mut().zip(a.iter().zip(b)) {
                    let sum = *a + *b;
                    // Not `max`, which maps NaN to 0.
                    *h = if sum < F::ZERO { F::ZERO } else { sum };
                }
            }
        }
    }

    /// Multiplies `gradient` by `act'(x)`, computed from `hidden = act(x)`.
    ///
    /// # Shapes
    /// Two slices of equal length.
    pub fn backward<F: Real>(self, gradient: &mut [F], hidden: &[F]) {
        match self {
            Self::Tanh => F::tanh_slope(gradient, hidden),
            Self::Relu => {
                let pairs = gradient.iter_mut().zip(hidden);
                pairs.for_each(|(g, &h)| *g = if h > F::ZERO { *g } else { F::ZERO });
            }
        }
    }

    /// Returns a bound on `|act(x)|` for `|x| <= largest()`.
    ///
    /// `largest` is called only if the bound depends on it. All slopes are at most 1.
    pub fn bound(self, largest: impl FnOnce() -> f64) -> f64 {
        match self {
            Self::Tanh => 1.0,
            Self::Relu => largest(),
        }
    }
}
