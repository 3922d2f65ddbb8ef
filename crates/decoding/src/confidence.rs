//! Confidence of decoded labels, from the distribution over all classes.
//!
//! Each of the seven measures is 0 for a uniform distribution and 1 for a one-hot distribution.
use kernels::Excerpt;
use serde::{Deserialize, Serialize};

/// A confidence measure: distribution `p`, `v` classes, exponent `a`.
///
/// ```text
/// S = Σ p^a     G = Σ p^a ln p     (terms with p = 0 are 0)
/// for a = 1 every entropy is Shannon's, H = -Σ p ln p
/// max_prob      (pmax^a v^a - 1) / (v^a - 1)
/// gibbs_lin     1 + G / (ln v · v^(1-a))
/// gibbs_exp     (e^(aG) - e0) / (1 - e0)               e0 = v^(-a v^(1-a))
/// tsallis_lin   1 + (1 - S) / (v^(1-a) - 1)
/// tsallis_exp   (e^((1-S)/(1-a)) - e0) / (1 - e0)      e0 = e^((1-v^(1-a))/(1-a))
/// renyi_lin     1 + log2 S / ((a-1) log2 v)
/// renyi_exp     (S^(1/(a-1)) v - 1) / (v - 1)
/// ```
/// Laptev and Ginsburg, "Fast entropy-based methods of word-level confidence estimation for
/// end-to-end automatic speech recognition" (arXiv 2212.08703), equations 5 to 14.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum ConfidenceMeasure {
    MaxProb,
    GibbsLin,
    GibbsExp,
    TsallisLin,
    #[default]
    TsallisExp,
    RenyiLin,
    RenyiExp,
}

impl ConfidenceMeasure {
    /// All measures.
    pub const ALL: [ConfidenceMeasure; 7] = [
        ConfidenceMeasure::MaxProb,
        ConfidenceMeasure::GibbsLin,
        ConfidenceMeasure::GibbsExp,
        ConfidenceMeasure::TsallisLin,
        ConfidenceMeasure::TsallisExp,
        ConfidenceMeasure::RenyiLin,
        ConfidenceMeasure::RenyiExp,
    ];

    /// Name in options.
    pub fn name(self) -> &'static str {
        match self {
            ConfidenceMeasure::MaxProb => "max-prob",
            ConfidenceMeasure::GibbsLin => "gibbs-lin",
            ConfidenceMeasure::GibbsExp => "gibbs-exp",
            ConfidenceMeasure::TsallisLin => "tsallis-lin",
            ConfidenceMeasure::TsallisExp => "tsallis-exp",
            ConfidenceMeasure::RenyiLin => "renyi-lin",
            ConfidenceMeasure::RenyiExp => "renyi-exp",
        }
    }
}

impl std::str::FromStr for ConfidenceMeasure {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let measure = Self::ALL.into_iter().find(|measure| measure.name() == name);
        measure.ok_or_else(|| {
            format!("expected one of {}, found {}", Self::ALL.map(Self::name).join(", "), Excerpt(name))
        })
    }
}

/// A confidence measure with its exponent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Confidence {
    /// The measure.
    pub measure: ConfidenceMeasure,
    /// Exponent `a`, above 0 and at most 10; below 1, unlikely classes count for more.
    ///
    /// The Gibbs measures leave [0, 1] above 1 and far below 1/2, where nearly impossible classes
    /// contribute more than in a uniform distribution.
    pub exponent: f64,
}

/// Exponents this close to 1 use Shannon's entropy, as the general forms cancel.
const SHANNON_TOLERANCE: f64 = 1e-6;

/// Tsallis entropy, exponentially normalized, with exponent 0.33.
impl Default for Confidence {
    fn default() -> Self {
        Self { measure: ConfidenceMeasure::default(), exponent: 0.33 }
    }
}

impl Confidence {
    /// Returns the confidence of a distribution given as logits; 1 for a single class.
    ///
    /// Classes of -inf, which are masked, are not part of the distribution.
    ///
    /// ```
    /// let confidence = decoding::Confidence::default();
    /// assert!(confidence.score(&[0.0, 0.0, 0.0]).abs() < 1e-12);
    /// assert!((confidence.score(&[0.0, -200.0, -200.0]) - 1.0).abs() < 1e-12);
    /// ```
    pub fn score(self, scores: &[f32]) -> f64 {
        // Symbols as in the table of `ConfidenceMeasure`.
        let num_classes = scores.iter().filter(|&&score| score != f32::NEG_INFINITY).count();
        let v = num_classes as f64;
        if num_classes < 2 {
            return 1.0;
        }
        let max = scores.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
        let relative_exp = |score: f32| f64::from(score - max).exp();
        let log_sum = scores.iter().map(|&score| relative_exp(score)).sum::<f64>().ln();
        let log_probs = || scores.iter().map(|&score| f64::from(score - max) - log_sum);
        let a = self.exponent;
        if (a - 1.0).abs() < SHANNON_TOLERANCE {
            let terms =
                log_probs().filter(|log_prob| log_prob.is_finite()).map(|log_prob| log_prob.exp() * log_prob);
            return match self.measure {
                ConfidenceMeasure::MaxProb => ((-log_sum).exp() * v - 1.0) / (v - 1.0),
                ConfidenceMeasure::GibbsLin | ConfidenceMeasure::TsallisLin | ConfidenceMeasure::RenyiLin => {
                    1.0 + terms.sum::<f64>() / v.ln()
                }
                _ => (terms.sum::<f64>().exp() * v - 1.0) / (v - 1.0),
            };
        }
        // S and G, the sums over all classes.
        let (mut s, mut g) = (0.0, 0.0);
        for log_prob in log_probs().filter(|log_prob| log_prob.is_finite()) {
            let power = (a * log_prob).exp();
            s += power;
            g += power * log_prob;
        }
        // v^(1-a), the sum Σ p^a of a uniform distribution.
        let uniform_s = v.powf(1.0 - a);
        // (e^x - e^x0) / (1 - e^x0), stable for exponents near 0 and far below it.
        let normalized = |x: f64, x0: f64| 1.0 - x.exp_m1() / x0.exp_m1();
        match self.measure {
            ConfidenceMeasure::MaxProb => (a * (v.ln() - log_sum)).exp_m1() / (a * v.ln()).exp_m1(),
            ConfidenceMeasure::GibbsLin => 1.0 + g / (v.ln() * uniform_s),
            ConfidenceMeasure::GibbsExp => normalized(a * g, -a * uniform_s * v.ln()),
            ConfidenceMeasure::TsallisLin => 1.0 + (1.0 - s) / (uniform_s - 1.0),
            ConfidenceMeasure::TsallisExp => normalized((1.0 - s) / (1.0 - a), (1.0 - uniform_s) / (1.0 - a)),
            ConfidenceMeasure::RenyiLin => 1.0 + s.log2() / ((a - 1.0) * v.log2()),
            ConfidenceMeasure::RenyiExp => (s.powf(1.0 / (a - 1.0)) * v - 1.0) / (v - 1.0),
        }
    }
}

/// Combines the confidences of tokens into that of a word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConfidenceAggregation {
    /// The minimum.
    #[default]
    Min,
    /// The mean.
    Mean,
    /// The maximum.
    Max,
    /// The product.
    Product,
}

impl std::str::FromStr for ConfidenceAggregation {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "min" => Ok(Self::Min),
            "mean" => Ok(Self::Mean),
            "max" => Ok(Self::Max),
            "product" => Ok(Self::Product),
            _ => Err(format!("expected one of min, mean, max, product, found {}", Excerpt(name))),
        }
    }
}

impl ConfidenceAggregation {
    /// Combines confidences into one; 1 for an empty list.
    pub fn combine(self, confidences: impl IntoIterator<Item = f64>) -> f64 {
        let (mut count, mut combined) = (0, if self == Self::Mean { 0.0 } else { 1.0 });
        for confidence in confidences {
            combined = match (self, count) {
                (Self::Mean, _) => combined + confidence,
                (Self::Product, _) => combined * confidence,
                (_, 0) => confidence,
                (Self::Min, _) => confidence.min(combined),
                (Self::Max, _) => confidence.max(combined),
            };
            count += 1;
        }
        match self {
            Self::Mean if count > 0 => combined / f64::from(count),
            Self::Mean => 1.0,
            _ => combined,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents_near_0_approach_the_limit() {
        // p = 0.7, 0.2, 0.1; only first-order terms in a remain.
        let scores = [0.7f32.ln(), 0.2f32.ln(), 0.1f32.ln()];
        let logs = scores.iter().map(|&lp| f64::from(lp)).sum::<f64>();
        let limits = [
            (ConfidenceMeasure::MaxProb, 1.0 + f64::from(scores[0]) / 3f64.ln()),
            (ConfidenceMeasure::GibbsLin, 1.0 + logs / (3.0 * 3f64.ln())),
            (ConfidenceMeasure::GibbsExp, 1.0 + logs / (3.0 * 3f64.ln())),
            (ConfidenceMeasure::TsallisLin, 0.0),
            (ConfidenceMeasure::TsallisExp, 0.0),
            (ConfidenceMeasure::RenyiLin, 0.0),
            (ConfidenceMeasure::RenyiExp, 0.0),
        ];
        for (measure, limit) in limits {
            for exponent in [1e-9, 1e-17, 1e-300, f64::MIN_POSITIVE] {
                let actual = Confidence { measure, exponent }.score(&scores);
                assert!((actual - limit).abs() < 1e-6, "{measure:?} {exponent}: {actual}, {limit}");
            }
        }
    }

    #[test]
    fn large_vocabularies_give_0_and_1() {
        for (measure, exponent, classes) in ConfidenceMeasure::ALL
            .into_iter()
            .flat_map(|measure| [(measure, 0.33, 5_000), (measure, 0.33, 20_000), (measure, 0.1, 2_000)])
        {
            let confidence = Confidence { measure, exponent };
            let mut scores = vec![0.0; classes];
            assert!(confidence.score(&scores).abs() < 1e-6, "{measure:?} {classes}");
            // The powers of the other classes underflow.
            scores[7] = 1000.0;
            assert!((confidence.score(&scores) - 1.0).abs() < 1e-6, "{measure:?} {classes}");
        }
    }

    #[test]
    fn measures_grow_from_0_to_1_with_sharpness() {
        for measure in ConfidenceMeasure::ALL {
            for exponent in [0.33, 0.5, 1.0, 2.0] {
                let confidence = Confidence { measure, exponent };
                let score_of = |sharpness: f32| {
                    let scores: Vec<f32> = (0..40).map(|i| if i == 7 { sharpness } else { 0.0 }).collect();
                    confidence.score(&scores)
                };
                let values: Vec<f64> = [0.0, 1.0, 3.0, 8.0, 200.0].map(score_of).to_vec();
                assert!(values[0].abs() < 1e-6 && (values[4] - 1.0).abs() < 1e-6, "{measure:?} {values:?}");
                // Gibbs' entropy is not concave above 1.
                assert!(values.is_sorted() || exponent > 1.0, "{measure:?} {exponent} {values:?}");
                let masked = [0.0, f32::NEG_INFINITY, 1.0];
                let is_valid = (0.0..=1.0).contains(&confidence.score(&masked));
                // Gibbs' entropy of two classes may exceed that of equal probabilities.
                let is_gibbs = measure.name().starts_with("gibbs");
                assert!(is_valid || is_gibbs, "{measure:?} {exponent}");
                assert_eq!(confidence.score(&[3.0]), 1.0);
            }
        }
    }

    #[test]
    fn aggregations_combine_token_confidences() {
        let combine = |aggregate: ConfidenceAggregation| aggregate.combine([0.5, 0.25, 1.0]);
        assert_eq!(
            [
                combine(ConfidenceAggregation::Min),
                combine(ConfidenceAggregation::Max),
                combine(ConfidenceAggregation::Product)
            ],
            [0.25, 1.0, 0.125]
        );
        assert!((combine(ConfidenceAggregation::Mean) - 1.75 / 3.0).abs() < 1e-12);
        assert_eq!(ConfidenceAggregation::Mean.combine([]), 1.0);
    }
}
