//! The nonlinearity of the joint network: a new one touches this file, and its name in recipes.
use panda_core::Real;

/// `act` of `h = act(encoded + predicted)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activation {
    /// `tanh(x)`
    #[default]
    Tanh,
    /// `max(x, 0)`, with derivative 0 at 0.
    Relu,
}

impl Activation {
    /// `out = act(a + b)`; a NaN stays one.
    ///
    /// # Shapes
    /// Three slices of one length.
    pub fn apply<F: Real>(self, out: &mut [F], a: &[F], b: &[F]) {
        match self {
            Self::Tanh => F::tanh_sum(out, a, b),
            Self::Relu => {
                for (h, (a, b)) in out.iter_mut().zip(a.iter().zip(b)) {
                    let sum = *a + *b;
                    // Not `max`, which would take NaN for 0.
                    *h = if sum < F::ZERO { F::ZERO } else { sum };
                }
            }
        }
    }

    /// `gradient *= act'`, from the value `hidden = act(x)`.
    pub(crate) fn slope<F: Real>(self, gradient: &mut [F], hidden: &[F]) {
        match self {
            Self::Tanh => F::tanh_slope(gradient, hidden),
            Self::Relu => {
                let pairs = gradient.iter_mut().zip(hidden);
                pairs.for_each(|(g, &h)| *g = if h > F::ZERO { *g } else { F::ZERO });
            }
        }
    }

    /// A bound on `|act(x)|` where `|x|` is at most `largest()`, which not every one asks. Every slope is at most 1.
    pub(crate) fn bound(self, largest: impl FnOnce() -> f64) -> f64 {
        match self {
            Self::Tanh => 1.0,
            Self::Relu => largest(),
        }
    }
}
