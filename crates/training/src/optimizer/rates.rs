//! `[optimizer] rates`: factors on the learning rate of parts of a model.
use std::cmp::Reverse;
use std::collections::BTreeMap;

use model::config::values::{check_positive, ensure};
use model::config::{covers, number_range};
use model::{Parameters, Result};

/// Factors on the learning rate by the names of parameters or modules.
///
/// The factor of a parameter is that of the most specific name that covers it: of the name with the
/// most parts, and of these a single one before a range, such as `encoder.layers.0..4`. Parameters
/// that no name covers have a factor of 1.
#[derive(Debug, Clone, Default)]
pub(crate) struct RateFactors(BTreeMap<String, f64>);

impl RateFactors {
    pub(crate) fn new(rates: &BTreeMap<String, f64>) -> Self {
        RateFactors(rates.clone())
    }

    /// Returns the learning rate of a parameter; without a factor, `rate` itself.
    pub(super) fn rate_of(&self, parameter: &str, rate: f64) -> f64 {
        let covering = self.0.iter().filter(|(name, _)| covers(name, parameter));
        let factor = covering.max_by_key(|(name, _)| specificity(name)).map(|(_, factor)| factor);
        factor.map_or(rate, |factor| rate * factor)
    }

    /// Checks that each name covers a trained parameter.
    ///
    /// No two names may be equally specific for one.
    ///
    /// # Errors
    /// [`model::Error::RecipeValue`].
    pub(crate) fn check_names(&self, parameters: &Parameters) -> Result<()> {
        for name in self.0.keys() {
            let is_known = parameters.iter_trained().any(|(parameter, _)| covers(name, parameter));
            let expected =
                "names of trained parameters or modules (`panda info RECIPE` lists the parameters)";
            ensure("optimizer.rates", expected, is_known, format!("{name:?}"))?;
        }
        for (parameter, _) in parameters.iter_trained() {
            let covering = self.0.keys().filter(|name| covers(name, parameter));
            let mut names: Vec<&String> = covering.collect();
            names.sort_by_key(|name| Reverse(specificity(name)));
            if let [first, second, ..] = names[..]
                && specificity(first) == specificity(second)
            {
                let expected = format!("one range that covers {parameter}");
                ensure("optimizer.rates", &expected, false, format!("{first:?} and {second:?}"))?;
            }
        }
        Ok(())
    }
}

/// Checks that all factors are positive and finite.
///
/// # Errors
/// [`model::Error::RecipeValue`].
pub(super) fn check(rates: &BTreeMap<String, f64>) -> Result<()> {
    for (name, &factor) in rates {
        let key = format!("optimizer.rates.{name:?}");
        ensure(
            &key,
            "a factor above 0; init.frozen excludes parameters from training",
            factor != 0.0,
            factor,
        )?;
        check_positive(&key, factor)?;
    }
    Ok(())
}

/// Returns the number of parts, and true for a single name.
fn specificity(name: &str) -> (usize, bool) {
    match number_range(name) {
        Some((module, _)) => (module.split('.').count() + 1, false),
        None => (name.split('.').count(), true),
    }
}

#[cfg(test)]
mod tests {
    use model::GradientSum;

    use super::*;
    use crate::optimizer::{self, OptimizerConfig};

    fn factors(rates: &[(&str, f64)]) -> RateFactors {
        RateFactors::new(&rates.iter().map(|&(name, factor)| (name.to_owned(), factor)).collect())
    }

    fn parameters() -> Parameters {
        let names = ["encoder.layers.0.w", "encoder.layers.1.w", "encoder.layers.12.w", "joint.head.weight"];
        let make = |vb: candle_nn::VarBuilder| {
            names
                .iter()
                .try_for_each(|name| Ok(vb.get_with_hints(2, name, candle_nn::Init::Const(0.0)).map(drop)?))
        };
        Parameters::build(1, make).unwrap().0
    }

    #[test]
    fn the_most_specific_name_wins() {
        let factors = factors(&[
            ("encoder", 0.5),
            ("encoder.layers.0..2", 0.25),
            ("encoder.layers.1", 4.0),
            ("joint.head.weight", 8.0),
        ]);
        for (parameter, expected) in [
            ("encoder.layers.0.w", 0.25),
            ("encoder.layers.1.w", 4.0),
            ("encoder.layers.12.w", 0.5),
            ("encoder.pre_encode.w", 0.5),
            ("joint.head.weight", 8.0),
            ("joint.head.bias", 1.0),
            ("encoders", 1.0),
        ] {
            assert_eq!(factors.rate_of(parameter, 3.0), 3.0 * expected, "{parameter}");
        }
        factors.check_names(&parameters()).unwrap();
        // Without a factor, the rate has the same bits.
        assert_eq!(RateFactors::default().rate_of("encoder", 0.1).to_bits(), 0.1f64.to_bits());
    }

    #[test]
    fn names_without_a_parameter_and_ambiguous_ranges_are_errors() {
        for (rates, expected) in [
            (&[("encodr", 1.0)][..], "expected names of trained parameters or modules"),
            (&[("joint.head.bias", 1.0)], "found \"joint.head.bias\""),
            (
                &[("encoder.layers.0..2", 1.0), ("encoder.layers.1..9", 1.0)],
                "expected one range that covers encoder.layers.1.w",
            ),
        ] {
            let error = factors(rates).check_names(&parameters()).unwrap_err().to_string();
            assert!(error.starts_with("recipe key optimizer.rates: ") && error.contains(expected), "{error}");
        }
        factors(&[("encoder.layers.0..1", 1.0), ("encoder.layers.1..9", 1.0)])
            .check_names(&parameters())
            .unwrap();
    }

    #[test]
    fn factors_are_positive_and_finite() {
        for (factor, expected) in [
            (0.0, "expected a factor above 0; init.frozen excludes parameters from training, found 0"),
            (-1.0, "expected a positive number of at most 1e38, found -1"),
            (f64::NAN, "found NaN"),
            (f64::INFINITY, "found inf"),
        ] {
            let error = check(&[("joint.head".to_owned(), factor)].into()).unwrap_err().to_string();
            assert!(error.starts_with("recipe key optimizer.rates.\"joint.head\": "), "{error}");
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_step_with_a_factor_is_a_step_with_another_rate() {
        for kind in ["adamw", "lamb"] {
            let text =
                format!("kind = \"{kind}\"\nlearning_rate = 0.1\nweight_decay = 0.5\nclip_norm = 0.0\n");
            let step = |rates: &str, rate: f64| {
                let config: OptimizerConfig = toml::from_str(&(text.clone() + rates)).unwrap();
                let make = |vb: candle_nn::VarBuilder| {
                    let start = candle_nn::Init::Uniform { lo: -1.0, up: 1.0 };
                    let names = ["a.weight", "b.weight"];
                    names.iter().try_for_each(|name| Ok(vb.get_with_hints((2, 3), name, start).map(drop)?))
                };
                let parameters = Parameters::build(3, make).unwrap().0;
                let mut optimizer = optimizer::build(&config, &parameters);
                for _ in 0..2 {
                    let squares = parameters.iter().map(|(_, w)| w.sqr().unwrap().sum_all().unwrap());
                    let loss = squares.reduce(|a, b| (a + b).unwrap()).unwrap();
                    let mut gradients = GradientSum::new(&parameters);
                    gradients.backward(&loss, None).unwrap();
                    optimizer.step(&parameters, &gradients.into_gradients(), rate).unwrap();
                }
                parameters.values().unwrap()
            };
            let (whole, quarter) = (step("", 0.1), step("", 0.1 * 0.25));
            let with_factor = step("rates = { a = 0.25 }", 0.1);
            assert_ne!(with_factor["a.weight"], whole["a.weight"], "{kind}");
            assert_eq!(with_factor["a.weight"], quarter["a.weight"], "{kind}");
            assert_eq!(with_factor["b.weight"], whole["b.weight"], "{kind}");
        }
    }
}
