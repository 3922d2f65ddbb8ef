//! Golden test of the exponential moving average (EMA) of weights.
//!
//! The average is updated from exact weights and from weights rounded to f16.
use rnnt_loss::Element;
use serde::Deserialize;
use training::ema::update_average;

use super::check::{MlPerfCheck, Tolerance};
use crate::error::RunError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    decays: Vec<f64>,
    steps: usize,
}

/// Updates the averages of all decays and compares each step.
pub(super) fn compare<F: Element>(check: &mut MlPerfCheck) -> Result<(), RunError> {
    let options: Options = check.file.field("options")?;
    let is_f32 = size_of::<F>() == size_of::<f32>();
    let tolerance = Tolerance::Absolute(if is_f32 { 2e-6 } else { 1e-12 });
    let weights = check.input_rows::<F>("weights", options.steps + 1)?;
    let f16_weights = check.input_rows::<F>("weights_f16", options.steps + 1)?;
    let rounded_weights: Vec<f64> =
        weights.iter().flatten().map(|w| half::f16::from_f64(w.to_f64()).to_f64()).collect();
    check.compare("weights_f16", &rounded_weights, Tolerance::Exact)?;
    for decay in options.decays {
        let averages_of = |rows: &[Vec<F>]| {
            // The average over f16 weights also starts from the unrounded weights.
            let (mut average, mut averages) = (weights[0].clone(), weights[0].clone());
            for row in &rows[1..] {
                update_average(&mut average, row, decay);
                averages.extend_from_slice(&average);
            }
            averages
        };
        let averages = averages_of(&weights);
        check.compare(&format!("decay{decay}.ema"), &averages, tolerance)?;
        check.compare(&format!("decay{decay}.ema_from_f16"), &averages_of(&f16_weights), tolerance)?;
        let name = format!("decay{decay}.ema_f32");
        if is_f32 {
            check.compare(&name, &averages, tolerance)?;
        } else {
            check.ignore(|other| other == name);
        }
    }
    Ok(())
}
