//! Local normalization of the arcs from one lattice state.
//!
//! The arc weights become log-probabilities. b, l: weights of the blank and of the labels; b', l':
//! their log-probabilities; gb, gl: adjoints of b' and l'; g: both; d: gradient; σ: sigmoid.
//!
//! ```text
//! hat          b' = log σ(b)      l' = log softmax(l) + log σ(-b)
//!              db = gb σ(-b) - G σ(b)      dl = gl - G softmax(l),  G = Σ gl
//! log softmax  (b', l') = log softmax(b, l)      d = g - softmax · (gb + G)
//! ```
//! Sums and the blank are f64. A weight of -inf has probability 0 and no gradient, also if all
//! weights are -inf. A blank of +inf has probability 1.
use kernels::Real;

/// How the arcs from a state become log-probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Normalize {
    /// Hybrid autoregressive transducer (arXiv 2003.07705): a blank probability, then a softmax
    /// over labels.
    Hat,
    /// One softmax over blank and labels.
    LogSoftmax,
}

/// Statistics that turn the weights of one state into log-probabilities.
#[derive(Clone, Copy)]
pub struct NormalizedState {
    /// `b'`
    pub blank: f64,
    labels: LogSum,
    /// `log σ(-b)`, or 0.
    log_emission: f64,
}

/// `log Σ exp w`, such that `log p(w) = (w - max) - log_sum`.
///
/// `log_sum` is +inf if all weights are -inf.
#[derive(Clone, Copy)]
struct LogSum {
    max: f64,
    log_sum: f64,
}

impl LogSum {
    fn new((max, sum): (f64, f64)) -> Self {
        Self { max, log_sum: if max == f64::NEG_INFINITY { f64::INFINITY } else { sum.ln() } }
    }

    fn log_probability(&self, weight: f64) -> f64 {
        // The difference of equal infinities is 0 here.
        if weight == self.max { -self.log_sum } else { (weight - self.max) - self.log_sum }
    }
}

/// Returns `log σ(x) = -log(1 + exp(-x))`.
pub(super) fn log_sigmoid(x: f64) -> f64 {
    x.min(0.0) - (-x.abs()).exp().ln_1p()
}

/// Returns `σ(x)`.
pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

impl NormalizedState {
    /// Returns `l'` of a weight.
    pub fn label_log_probability(&self, weight: f64) -> f64 {
        self.labels.log_probability(weight) + self.log_emission
    }
}

impl Normalize {
    /// Computes the statistics of the weights of a state.
    pub fn state<F: Real>(self, blank: F, label_arcs: &[F]) -> NormalizedState {
        let blank = blank.to_f64();
        let (max, sum) = F::row_statistics(label_arcs);
        let max = max.to_f64();
        match self {
            Self::Hat => {
                let (blank, log_emission) = (log_sigmoid(blank), log_sigmoid(-blank));
                NormalizedState { blank, labels: LogSum::new((max, sum)), log_emission }
            }
            Self::LogSoftmax => {
                let statistics = if blank > max {
                    (blank, sum * (max - blank).exp() + 1.0)
                } else if blank == max {
                    (max, sum + 1.0)
                } else {
                    (max, sum + (blank - max).exp())
                };
                let labels = LogSum::new(statistics);
                NormalizedState { blank: labels.log_probability(blank), labels, log_emission: 0.0 }
            }
        }
    }

    /// Replaces weights by log-probabilities.
    pub fn forward<F: Real>(self, blank: &mut F, label_arcs: &mut [F]) {
        let state = self.state(*blank, label_arcs);
        *blank = F::from_f64(state.blank);
        label_arcs.iter_mut().for_each(|w| *w = F::from_f64(state.label_log_probability(w.to_f64())));
    }

    /// Replaces weights by gradients, without the adjoints of the labels.
    ///
    /// The arguments are the adjoint of `b'` and the sum of the adjoints of `l'`. The caller adds
    /// the adjoints of `l'`.
    pub fn backward<F: Real>(
        self,
        blank_adjoint: f64,
        label_adjoint: f64,
        blank: &mut F,
        label_arcs: &mut [F],
    ) {
        let NormalizedState { blank: log_blank, labels, .. } = self.state(*blank, label_arcs);
        let (blank_gradient, softmax_factor) = match self {
            Self::Hat => {
                let b = blank.to_f64();
                (blank_adjoint * sigmoid(-b) - label_adjoint * sigmoid(b), label_adjoint)
            }
            Self::LogSoftmax => {
                let total = blank_adjoint + label_adjoint;
                (blank_adjoint - log_blank.exp() * total, total)
            }
        };
        *blank = F::from_f64(blank_gradient);
        if labels.max.is_finite() {
            let softmax_factor = F::from_f64(-softmax_factor * (-labels.log_sum).exp());
            F::row_softmax(label_arcs, None, None, F::from_f64(labels.max), softmax_factor);
        } else {
            // No label has a probability: all weights are -inf, or the blank is +inf.
            label_arcs.fill(F::ZERO);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKED: f64 = f64::NEG_INFINITY;
    const NORMALIZATIONS: [Normalize; 2] = [Normalize::Hat, Normalize::LogSoftmax];

    fn forward(normalize: Normalize, mut blank: f64, label_arcs: &[f64]) -> (f64, Vec<f64>) {
        let mut label_arcs = label_arcs.to_vec();
        normalize.forward(&mut blank, &mut label_arcs);
        (blank, label_arcs)
    }

    /// Computes gradients in both types, which must match.
    fn backward(
        normalize: Normalize,
        blank: f64,
        label_arcs: &[f64],
        blank_adjoint: f64,
        label_adjoint: f64,
    ) -> (f64, Vec<f64>) {
        let (mut blank_f64, mut label_arcs_f64) = (blank, label_arcs.to_vec());
        normalize.backward(blank_adjoint, label_adjoint, &mut blank_f64, &mut label_arcs_f64);
        let (mut blank_f32, mut label_arcs_f32) =
            (blank as f32, label_arcs.iter().map(|&l| l as f32).collect::<Vec<_>>());
        normalize.backward(blank_adjoint, label_adjoint, &mut blank_f32, &mut label_arcs_f32);
        for (a, b) in label_arcs_f64.iter().chain([&blank_f64]).zip(label_arcs_f32.iter().chain([&blank_f32]))
        {
            assert!((a - f64::from(*b)).abs() < 1e-6, "{a} against {b}");
        }
        (blank_f64, label_arcs_f64)
    }

    #[test]
    fn probabilities_sum_to_one_for_any_weights() {
        for normalize in NORMALIZATIONS {
            for blank in [-1e300, -1e4, -800.0, -3.0, 0.0, 50.0, 1e4, 1e300] {
                for label_arcs in
                    [[0.0, 1.0, -2.0], [1e4, 9999.0, -1e4], [1e300, 1e300, 0.0], [BLOCKED, 2.0, BLOCKED]]
                {
                    let (b, l) = forward(normalize, blank, &label_arcs);
                    let sum = b.exp() + l.iter().map(|l| l.exp()).sum::<f64>();
                    assert!((sum - 1.0).abs() < 1e-14, "{normalize:?} of {blank} and {label_arcs:?}: {sum}");
                    assert!(l.iter().zip(label_arcs).all(|(l, w)| w > BLOCKED || *l == BLOCKED));
                }
            }
        }
    }

    #[test]
    fn blocked_weights_have_no_probability_and_no_gradient() {
        for normalize in NORMALIZATIONS {
            // Only the blank; with hat, half of the probability is lost.
            let (b, l) = forward(normalize, 0.0, &[BLOCKED; 3]);
            assert_eq!(b, if normalize == Normalize::Hat { 0.5f64.ln() } else { 0.0 });
            assert_eq!(l, [BLOCKED; 3]);
            let (b, l) = backward(normalize, 0.0, &[BLOCKED; 3], 2.0, 0.0);
            assert_eq!((b, l), (if normalize == Normalize::Hat { 1.0 } else { 0.0 }, vec![0.0; 3]));

            let (b, l) = forward(normalize, BLOCKED, &[BLOCKED; 2]);
            assert_eq!((b, l), (BLOCKED, vec![BLOCKED; 2]));
            let (b, l) = backward(normalize, BLOCKED, &[BLOCKED; 2], 0.0, 0.0);
            assert_eq!((b, l), (0.0, vec![0.0; 2]));

            let (b, l) = forward(normalize, BLOCKED, &[1.0, 1.0]);
            assert_eq!((b, l), (BLOCKED, vec![0.5f64.ln(); 2]));
            let (b, l) = backward(normalize, BLOCKED, &[1.0, 1.0], 0.0, 4.0);
            assert_eq!((b, l), (0.0, vec![-2.0; 2]));

            let (b, l) = forward(normalize, f64::INFINITY, &[1.0, BLOCKED]);
            assert_eq!((b, l), (0.0, vec![BLOCKED; 2]));
            let (b, _) = backward(normalize, f64::INFINITY, &[1.0, BLOCKED], 3.0, 0.0);
            assert_eq!(b, 0.0);
        }
    }

    #[test]
    fn invalid_weights_propagate() {
        for normalize in NORMALIZATIONS {
            assert!(forward(normalize, 0.0, &[f64::INFINITY, 0.0]).1.iter().any(|l| l.is_nan()));
            assert!(forward(normalize, 0.0, &[f64::NAN, 0.0]).1.iter().all(|l| l.is_nan()));
            assert!(forward(normalize, f64::NAN, &[0.0]).0.is_nan());
        }
    }

    #[test]
    fn a_probable_blank_is_accurate() {
        let (b, _) = forward(Normalize::Hat, 40.0, &[0.0]);
        assert!((b / -(-40f64).exp() - 1.0).abs() < 1e-15);
        let (b, _) = forward(Normalize::LogSoftmax, 30.0, &[0.0]);
        assert!((b / -(-30f64).exp() - 1.0).abs() < 1e-2);
    }
}
