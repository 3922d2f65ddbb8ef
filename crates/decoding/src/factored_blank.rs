//! Factored blank of the hybrid autoregressive transducer (HAT), for decoding.
use kernels::Real;

/// Converts the scores of a factored blank (HAT) to log-probabilities in place.
///
/// The blank is a sigmoid of its score; the labels share the rest by a softmax (Variani et al.,
/// arXiv 2003.07705, equations 8-10).
///
/// ```text
/// log p(blank) = log σ(z_blank)
/// log p(c)     = log σ(-z_blank) + z_c - log Σ_{k ≠ blank} exp(z_k)
/// ```
///
/// The probabilities sum to 1, so that decoding treats them as the scores of a plain model. NaN
/// stays NaN; labels that are all -inf become NaN.
///
/// # Panics
/// If the blank is not a class.
///
/// ```
/// let mut scores = [0.0f32, 0.0, 0.0, 0.0]; // four equal classes; the last is the blank
/// decoding::factor_blank(&mut scores, 3);
/// let probabilities = scores.map(f32::exp);
/// assert!((probabilities[3] - 0.5).abs() < 1e-6 && (probabilities[0] - 0.5 / 3.0).abs() < 1e-6);
/// ```
pub fn factor_blank(scores: &mut [f32], blank: u32) {
    let blank = blank as usize;
    let z_blank = f64::from(std::mem::replace(&mut scores[blank], f32::NEG_INFINITY));
    let (max, sum) = f32::row_statistics(scores);
    // Term that all labels share.
    let label_term = log_sigmoid(-z_blank) - (f64::from(max) + sum.ln());
    for score in &mut *scores {
        *score = (f64::from(*score) + label_term) as f32;
    }
    scores[blank] = log_sigmoid(z_blank) as f32;
}

/// `log(1 / (1 + exp(-z)))`, stable for large |z|.
fn log_sigmoid(z: f64) -> f64 {
    z.min(0.0) - (-z.abs()).exp().ln_1p()
}

#[cfg(test)]
mod tests {
    use approx::assert_relative_eq;

    use super::*;

    #[test]
    fn probabilities_match_the_definition() {
        for (scores, blank) in
            [(vec![0.3f32, -1.2, 2.0, 0.7], 1), (vec![90.0, -90.0, 0.0], 0), (vec![5.0, 1.0], 1)]
        {
            let mut actual = scores.clone();
            factor_blank(&mut actual, blank as u32);
            let sigmoid = |z: f32| 1.0 / (1.0 + (-f64::from(z)).exp());
            let labels: f64 =
                (0..scores.len()).filter(|&c| c != blank).map(|c| f64::from(scores[c]).exp()).sum();
            for (class, &actual) in actual.iter().enumerate() {
                let expected = match class == blank {
                    true => sigmoid(scores[class]),
                    false => sigmoid(-scores[blank]) * f64::from(scores[class]).exp() / labels,
                };
                assert_relative_eq!(f64::from(actual), expected.ln(), max_relative = 1e-6, epsilon = 1e-12);
            }
            assert_relative_eq!(
                actual.iter().map(|&p| f64::from(p).exp()).sum::<f64>(),
                1.0,
                max_relative = 1e-6
            );
        }
    }

    #[test]
    fn masked_labels_and_nan_are_preserved() {
        let mut scores = [1.0, f32::NEG_INFINITY, 0.0];
        factor_blank(&mut scores, 0);
        assert!(scores[1] == f32::NEG_INFINITY && scores[2].is_finite());
        for bad in [[f32::NAN, 0.0, 0.0], [0.0, f32::NAN, 0.0], [0.0, f32::NEG_INFINITY, f32::NEG_INFINITY]] {
            let mut scores = bad;
            factor_blank(&mut scores, 0);
            assert!(scores.iter().any(|score| score.is_nan()), "{bad:?} {scores:?}");
        }
    }
}
