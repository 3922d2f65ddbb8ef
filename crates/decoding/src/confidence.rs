//! How sure a model was of a label: seven measures of a distribution, each 0 where all classes are alike and 1 where one has all.
use kernels::Excerpt;
use serde::{Deserialize, Serialize};

/// A measure of confidence from the whole distribution `p` over `v` classes, with exponent `a`.
///
/// ```text
/// S = Σ p^a     G = Σ p^a ln p     terms with p = 0 count 0; for a = 1 every entropy is Shannon's, H = -Σ p ln p
/// max_prob      (pmax^a v^a - 1) / (v^a - 1)
/// gibbs_lin     1 + G / (ln v · v^(1-a))           gibbs_exp     (e^(aG) - e0) / (1 - e0)     e0 = v^(-a v^(1-a))
/// tsallis_lin   1 + (1 - S) / (v^(1-a) - 1)        tsallis_exp   (e^((1-S)/(1-a)) - e0) / (1 - e0)     e0 = e^((1-v^(1-a))/(1-a))
/// renyi_lin     1 + log2 S / ((a-1) log2 v)        renyi_exp     (S^(1/(a-1)) v - 1) / (v - 1)
/// ```
/// Laptev and Ginsburg, "Fast entropy-based methods of word-level confidence estimation for end-to-end automatic speech
/// recognition" (arXiv 2212.08703), equations 5 to 14.
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
    /// All seven.
    pub const ALL: [ConfidenceMeasure; 7] = [
        ConfidenceMeasure::MaxProb,
        ConfidenceMeasure::GibbsLin,
        ConfidenceMeasure::GibbsExp,
        ConfidenceMeasure::TsallisLin,
        ConfidenceMeasure::TsallisExp,
        ConfidenceMeasure::RenyiLin,
        ConfidenceMeasure::RenyiExp,
    ];

    /// As it is written in options.
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
        let found = Self::ALL.into_iter().find(|measure| measure.name() == name);
        found.ok_or_else(|| {
            format!("expected one of {}, found {}", Self::ALL.map(Self::name).join(", "), Excerpt(name))
        })
    }
}

/// A measure and its exponent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Confidence {
    /// The measure.
    pub measure: ConfidenceMeasure,
    /// Its exponent `a`, above 0 and at most 10: below 1, unlikely classes count for more. Gibbs' measures leave [0, 1] above 1, and
    /// far below 1/2, where classes that are all but impossible are counted above what a uniform distribution has.
    pub exponent: f64,
}

/// Tsallis entropy, exponentially normalised, with exponent 0.33.
impl Default for Confidence {
    fn default() -> Self {
        Self { measure: ConfidenceMeasure::default(), exponent: 0.33 }
    }
}

impl Confidence {
    /// The confidence of a distribution, from scores (logits) of its classes; 1 for a single class.
    ///
    /// ```
    /// let measure = decoding::Confidence::default();
    /// assert!(measure.score(&[0.0, 0.0, 0.0]).abs() < 1e-12);
    /// assert!((measure.score(&[0.0, -200.0, -200.0]) - 1.0).abs() < 1e-12);
    /// ```
    pub fn score(self, scores: &[f32]) -> f64 {
        let v = scores.len() as f64;
        if scores.len() < 2 {
            return 1.0;
        }
        let max = scores.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
        let exp = |score: f32| f64::from(score - max).exp();
        let log_sum = scores.iter().map(|&score| exp(score)).sum::<f64>().ln();
        let log_probs = || scores.iter().map(|&score| f64::from(score - max) - log_sum);
        let a = self.exponent;
        // Near 1 the general forms lose their digits.
        if (a - 1.0).abs() < 1e-6 {
            let terms = log_probs().filter(|lp| lp.is_finite()).map(|lp| lp.exp() * lp);
            return match self.measure {
                ConfidenceMeasure::MaxProb => ((-log_sum).exp() * v - 1.0) / (v - 1.0),
                ConfidenceMeasure::GibbsLin | ConfidenceMeasure::TsallisLin | ConfidenceMeasure::RenyiLin => {
                    1.0 + terms.sum::<f64>() / v.ln()
                }
                _ => (terms.sum::<f64>().exp() * v - 1.0) / (v - 1.0),
            };
        }
        let (mut s, mut g) = (0.0, 0.0);
        for lp in log_probs().filter(|lp| lp.is_finite()) {
            let power = (a * lp).exp();
            s += power;
            g += power * lp;
        }
        let rest = v.powf(1.0 - a);
        // (e^x - e^x0) / (1 - e^x0), also where both exponents are next to 0, or far below it.
        let above = |x: f64, x0: f64| 1.0 - x.exp_m1() / x0.exp_m1();
        match self.measure {
            ConfidenceMeasure::MaxProb => (a * (v.ln() - log_sum)).exp_m1() / (a * v.ln()).exp_m1(),
            ConfidenceMeasure::GibbsLin => 1.0 + g / (v.ln() * rest),
            ConfidenceMeasure::GibbsExp => above(a * g, -a * rest * v.ln()),
            ConfidenceMeasure::TsallisLin => 1.0 + (1.0 - s) / (rest - 1.0),
            ConfidenceMeasure::TsallisExp => above((1.0 - s) / (1.0 - a), (1.0 - rest) / (1.0 - a)),
            ConfidenceMeasure::RenyiLin => 1.0 + s.log2() / ((a - 1.0) * v.log2()),
            ConfidenceMeasure::RenyiExp => (s.powf(1.0 / (a - 1.0)) * v - 1.0) / (v - 1.0),
        }
    }
}

/// How the confidences of its tokens make that of a word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConfidenceAggregation {
    /// The lowest.
    #[default]
    Min,
    /// Their mean.
    Mean,
    /// The highest.
    Max,
    /// Their product.
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
    /// One number of many; 1 of none.
    pub fn combine(self, confidences: impl IntoIterator<Item = f64>) -> f64 {
        let (mut count, mut found) = (0, if self == Self::Mean { 0.0 } else { 1.0 });
        for confidence in confidences {
            found = match (self, count) {
                (Self::Mean, _) => found + confidence,
                (Self::Product, _) => found * confidence,
                (_, 0) => confidence,
                (Self::Min, _) => confidence.min(found),
                (Self::Max, _) => confidence.max(found),
            };
            count += 1;
        }
        match self {
            Self::Mean if count > 0 => found / f64::from(count),
            Self::Mean => 1.0,
            _ => found,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents_next_to_0_have_their_limits() {
        // p = 0.7, 0.2, 0.1; of the powers of the first and of all the first terms in a are left.
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
                let found = Confidence { measure, exponent }.score(&scores);
                assert!((found - limit).abs() < 1e-6, "{measure:?} {exponent}: {found}, {limit}");
            }
        }
    }

    #[test]
    fn large_vocabularies_have_confidences() {
        for (measure, exponent, classes) in ConfidenceMeasure::ALL
            .into_iter()
            .flat_map(|measure| [(measure, 0.33, 5_000), (measure, 0.33, 20_000), (measure, 0.1, 2_000)])
        {
            let confidence = Confidence { measure, exponent };
            let mut scores = vec![0.0; classes];
            assert!(confidence.score(&scores).abs() < 1e-6, "{measure:?} {classes}");
            // So far above the others that their powers are nothing, too.
            scores[7] = 1000.0;
            assert!((confidence.score(&scores) - 1.0).abs() < 1e-6, "{measure:?} {classes}");
        }
    }

    #[test]
    fn every_measure_goes_from_0_to_1_with_the_sharpness() {
        for measure in ConfidenceMeasure::ALL {
            for exponent in [0.33, 0.5, 1.0, 2.0] {
                let confidence = Confidence { measure, exponent };
                let at = |sharpness: f32| {
                    let scores: Vec<f32> = (0..40).map(|i| if i == 7 { sharpness } else { 0.0 }).collect();
                    confidence.score(&scores)
                };
                let found: Vec<f64> = [0.0, 1.0, 3.0, 8.0, 200.0].map(at).to_vec();
                assert!(found[0].abs() < 1e-6 && (found[4] - 1.0).abs() < 1e-6, "{measure:?} {found:?}");
                // Gibbs' entropy is not concave above 1.
                assert!(found.is_sorted() || exponent > 1.0, "{measure:?} {exponent} {found:?}");
                let masked = [0.0, f32::NEG_INFINITY, 1.0];
                assert!((0.0..=1.0).contains(&confidence.score(&masked)), "{measure:?}");
                assert_eq!(confidence.score(&[3.0]), 1.0);
            }
        }
    }

    #[test]
    fn words_take_one_number_of_their_tokens() {
        let of = |aggregate: ConfidenceAggregation| aggregate.combine([0.5, 0.25, 1.0]);
        assert_eq!(
            [
                of(ConfidenceAggregation::Min),
                of(ConfidenceAggregation::Max),
                of(ConfidenceAggregation::Product)
            ],
            [0.25, 1.0, 0.125]
        );
        assert!((of(ConfidenceAggregation::Mean) - 1.75 / 3.0).abs() < 1e-12);
        assert_eq!(ConfidenceAggregation::Mean.combine([]), 1.0);
    }
}
