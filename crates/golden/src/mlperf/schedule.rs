//! Step sizes over epochs, as a recipe with `decay = "mlperf"` has them.
use std::collections::BTreeMap;

use rnnt_loss::Element;
use serde::Deserialize;
use serde_json::json;
use training::optimizer::OptimizerConfig;
use training::schedule::{StepPosition, learning_rate};

use super::check::{Bar, Check};
use crate::error::Stop;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScheduleCase {
    base_lr: f64,
    warmup_epochs: u64,
    hold_epochs: u64,
    gamma: f64,
    steps_per_epoch: u64,
    min_lr: f64,
    epochs: u64,
}

pub fn run<F: Element>(check: &mut Check) -> Result<(), Stop> {
    let settings: BTreeMap<String, ScheduleCase> = check.file.field("options")?;
    let bar = Bar::Relative(if size_of::<F>() == size_of::<f32>() { 3e-7 } else { 1e-12 });
    for (name, setting) in &settings {
        let config: OptimizerConfig = serde_json::from_value(json!({
            "learning_rate": setting.base_lr,
            "decay": "mlperf",
            "warmup_epochs": setting.warmup_epochs,
            "hold_epochs": setting.hold_epochs,
            "gamma": setting.gamma,
            "min_rate": setting.min_lr,
        }))
        .map_err(|error| Stop::Refused(error.to_string()))?;
        let (steps, epochs) = (check.whole(&format!("{name}.step"))?, check.whole(&format!("{name}.epoch"))?);
        let mut rates = Vec::new();
        for (&step, &epoch) in steps.iter().zip(&epochs) {
            let epochs = 1..=setting.epochs as usize;
            if step == 0 || !epochs.contains(&epoch) {
                let found = format!("step {step} of epoch {epoch}");
                return Err(check.file.wrong(name, "steps from 1 in epochs from 1", &found).into());
            }
            let moment = StepPosition {
                step: step as u64 - 1,
                epoch: epoch as u64 - 1,
                steps_per_epoch: setting.steps_per_epoch,
                progress: (epoch - 1) as f64 / setting.epochs as f64,
            };
            rates.push(F::from_f64(learning_rate(&config, moment)));
        }
        check.compare(&format!("{name}.lr"), &rates, bar)?;
    }
    Ok(())
}
