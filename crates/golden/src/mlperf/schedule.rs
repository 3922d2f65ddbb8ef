//! Golden test of MLPerf's learning rate schedule: `decay = "mlperf"` in recipes.
use std::collections::BTreeMap;

use rnnt_loss::Element;
use serde::Deserialize;
use serde_json::json;
use training::optimizer::OptimizerConfig;
use training::schedule::{StepPosition, learning_rate};

use super::check::{MlPerfCheck, Tolerance};
use crate::error::RunError;

/// Settings of a schedule in the sidecar.
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

/// Compares the rates of all steps with those of the reference.
pub(super) fn compare<F: Element>(check: &mut MlPerfCheck) -> Result<(), RunError> {
    let settings: BTreeMap<String, ScheduleCase> = check.file.field("options")?;
    let tolerance = Tolerance::Relative(if size_of::<F>() == size_of::<f32>() { 3e-7 } else { 1e-12 });
    for (name, setting) in &settings {
        let config: OptimizerConfig = serde_json::from_value(json!({
            "learning_rate": setting.base_lr,
            "decay": "mlperf",
            "warmup_epochs": setting.warmup_epochs,
            "hold_epochs": setting.hold_epochs,
            "gamma": setting.gamma,
            "min_rate": setting.min_lr,
        }))
        .map_err(|error| RunError::Failed(error.to_string()))?;
        let (steps, epochs) =
            (check.input_integers(&format!("{name}.step"))?, check.input_integers(&format!("{name}.epoch"))?);
        let mut rates = Vec::new();
        for (&step, &epoch) in steps.iter().zip(&epochs) {
            let epochs = 1..=setting.epochs as usize;
            if step == 0 || !epochs.contains(&epoch) {
                let invalid = format!("step {step} of epoch {epoch}");
                return Err(check.file.error(name, "steps from 1 in epochs from 1", &invalid).into());
            }
            let position = StepPosition {
                step: step as u64 - 1,
                epoch: epoch as u64 - 1,
                steps_per_epoch: setting.steps_per_epoch,
                progress: (epoch - 1) as f64 / setting.epochs as f64,
            };
            rates.push(F::from_f64(learning_rate(&config, position)));
        }
        check.compare(&format!("{name}.lr"), &rates, tolerance)?;
    }
    Ok(())
}
