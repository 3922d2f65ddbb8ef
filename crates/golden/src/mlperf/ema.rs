//! Moving averages of weights over a run, of numbers in f32 and of the same rounded to f16.
use rnnt_loss::Element;
use serde::Deserialize;
use training::ema::update_average;

use super::check::{Bar, Check};
use crate::error::Stop;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    decays: Vec<f64>,
    steps: usize,
}

pub fn run<F: Element>(check: &mut Check) -> Result<(), Stop> {
    let options: Options = check.file.field("options")?;
    let single = size_of::<F>() == size_of::<f32>();
    let bar = Bar::Absolute(if single { 2e-6 } else { 1e-12 });
    let weights = check.rows::<F>("weights", options.steps + 1)?;
    let halves = check.rows::<F>("weights_f16", options.steps + 1)?;
    let rounded: Vec<f64> =
        weights.iter().flatten().map(|w| half::f16::from_f64(w.to_f64()).to_f64()).collect();
    check.compare("weights_f16", &rounded, Bar::Same)?;
    for decay in options.decays {
        let average = |rows: &[Vec<F>]| {
            // Both begin with the weights that nothing has rounded.
            let (mut average, mut all) = (weights[0].clone(), weights[0].clone());
            for row in &rows[1..] {
                update_average(&mut average, row, decay);
                all.extend_from_slice(&average);
            }
            all
        };
        let found = average(&weights);
        check.compare(&format!("decay{decay}.ema"), &found, bar)?;
        check.compare(&format!("decay{decay}.ema_from_f16"), &average(&halves), bar)?;
        let name = format!("decay{decay}.ema_f32");
        if single {
            check.compare(&name, &found, bar)?;
        } else {
            check.leave_out(|other| other == name);
        }
    }
    Ok(())
}
