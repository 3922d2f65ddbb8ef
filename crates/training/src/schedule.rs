//! Learning rate schedules: cosine, exponential, hold, Noam, MLPerf.
//!
//! s: step from 0; S = s + 1; p: fraction of the run that is over; rate, warmup, floor and width
//! are the keys `learning_rate`, `warmup_steps`, `floor` and `model_width` of `[optimizer]`.
//!
//! | `decay` | learning rate |
//! |---|---|
//! | `cosine` | rate · min(1, S/warmup) · (floor + (1 - floor) (1 + cos πp) / 2) |
//! | `exponential` | rate · min(1, S/warmup) · floor^p |
//! | `hold` | rate · min(1, S/warmup) |
//! | `noam` | rate · width^-½ · min(S^-½, S · warmup^-1½) |
//! | `mlperf` | max(rate · f, min_rate) with f = (S+1)/(W+1) for S < W, then 1 for S < W + H, then gamma^(e - warmup_epochs - hold_epochs) |
//!
//! Noam: Vaswani and others, "Attention is all you need", arXiv 1706.03762, section 5.3; its
//! largest value, at the end of the warm-up, is rate / √(width · warmup). MLPerf: e is the epoch
//! from 1, W and H are `warmup_epochs` and `hold_epochs` in steps, with as many steps in an epoch
//! as in this one. The rate is at its largest from step W to step W + H.
use crate::optimizer::{Decay, MIN_RATE, OptimizerConfig};

/// The position of a step in its run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepPosition {
    /// Optimizer step, from 0.
    pub step: u64,
    /// Epoch, from 0.
    pub epoch: u64,
    /// Steps of this epoch.
    pub steps_per_epoch: u64,
    /// Fraction of the run that is over.
    pub progress: f64,
}

/// Returns the learning rate of an optimizer step.
pub fn learning_rate(config: &OptimizerConfig, position: StepPosition) -> f64 {
    let StepPosition { step, progress, .. } = position;
    let (rate, floor) = (config.learning_rate, config.floor);
    let warmup_factor = match config.warmup_steps {
        0 => 1.0,
        steps => ((step + 1) as f64 / steps as f64).min(1.0),
    };
    match config.decay {
        Decay::Cosine => {
            let shape = floor + (1.0 - floor) * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos());
            rate * warmup_factor * shape
        }
        Decay::Exponential => rate * warmup_factor * floor.powf(progress),
        Decay::Hold => rate * warmup_factor,
        Decay::Noam => noam_rate(config, step + 1),
        Decay::MlPerf => (rate * mlperf_factor(config, position)).max(config.min_rate.unwrap_or(MIN_RATE)),
    }
}

/// Returns the learning rate of Noam's schedule; `step` counts from 1.
fn noam_rate(config: &OptimizerConfig, step: u64) -> f64 {
    let (step, warmup_steps) = (step as f64, config.warmup_steps.max(1) as f64);
    let width = config.model_width.unwrap_or(1).max(1) as f64;
    config.learning_rate / width.sqrt() * (1.0 / step.sqrt()).min(step / (warmup_steps * warmup_steps.sqrt()))
}

/// Returns MLPerf's factor, which is at most 1.
fn mlperf_factor(config: &OptimizerConfig, position: StepPosition) -> f64 {
    let (warmup_epochs, hold_epochs) = (config.warmup_epochs.unwrap_or(0), config.hold_epochs.unwrap_or(0));
    let steps = |epochs: u64| epochs.saturating_mul(position.steps_per_epoch);
    let (step, epoch) = (position.step + 1, position.epoch + 1);
    if step < steps(warmup_epochs) {
        (step + 1) as f64 / (steps(warmup_epochs) as f64 + 1.0)
    } else if step < steps(warmup_epochs.saturating_add(hold_epochs)) {
        1.0
    } else {
        // Not negative if earlier epochs had more steps than this one.
        let decay_epochs = epoch.saturating_sub(warmup_epochs.saturating_add(hold_epochs));
        config.gamma.unwrap_or(1.0).powf(decay_epochs as f64)
    }
}

#[cfg(test)]
mod tests {
    use approx::assert_relative_eq;
    use proptest::prelude::*;

    use super::*;

    fn config(decay: &str, keys: &str) -> OptimizerConfig {
        toml::from_str(&format!("learning_rate = 2.0\ndecay = \"{decay}\"\n{keys}")).unwrap()
    }

    fn position_at(step: u64, progress: f64) -> StepPosition {
        StepPosition { step, epoch: 0, steps_per_epoch: 1000, progress }
    }

    #[test]
    fn the_rate_grows_linearly_and_then_follows_its_shape() {
        let common = "warmup_steps = 4\nfloor = 0.01";
        for decay in ["cosine", "exponential", "hold"] {
            let config = config(decay, common);
            let rates = [0, 1, 2, 3, 4, 100].map(|step| learning_rate(&config, position_at(step, 0.0)));
            assert_eq!(rates, [0.5, 1.0, 1.5, 2.0, 2.0, 2.0], "{decay}");
        }
        let late = |decay, progress| learning_rate(&config(decay, common), position_at(100, progress));
        assert_relative_eq!(late("cosine", 0.5), 2.0 * 0.505, max_relative = 1e-12);
        assert_relative_eq!(late("cosine", 1.0), 2.0 * 0.01, max_relative = 1e-12);
        assert_relative_eq!(late("exponential", 0.5), 2.0 * 0.1, max_relative = 1e-12);
        assert_relative_eq!(late("exponential", 1.0), 2.0 * 0.01, max_relative = 1e-12);
        assert_eq!(late("hold", 1.0), 2.0);
    }

    #[test]
    fn noam_has_the_values_computed_by_hand() {
        let config = config("noam", "warmup_steps = 16\nmodel_width = 4");
        // 2 / √4 = 1: steps 1, 4 and 8 of 16 · √16 = 64, then 1/√16, 1/√64 and 1/√100.
        let rates = [0, 3, 7, 15, 63, 99].map(|step| learning_rate(&config, position_at(step, 0.0)));
        let expected = [1.0 / 64.0, 4.0 / 64.0, 8.0 / 64.0, 0.25, 0.125, 0.1];
        assert_relative_eq!(rates[..], expected[..], max_relative = 1e-12);
    }

    #[test]
    fn mlperf_has_the_values_computed_by_hand() {
        let config = config("mlperf", "warmup_epochs = 2\nhold_epochs = 1\ngamma = 0.5\nmin_rate = 0.3");
        let rate = |step: u64| {
            let position = StepPosition { step, epoch: step / 2, steps_per_epoch: 2, progress: 0.0 };
            learning_rate(&config, position)
        };
        // W = 4, H = 2: 2/5, 3/5, 4/5, then 1 in steps 4 to 6, 1/2 in 7 and 8, 1/4 in 9 and 10, and
        // then the smallest rate.
        let expected = [0.8, 1.2, 1.6, 2.0, 2.0, 2.0, 1.0, 1.0, 0.5, 0.5, 0.3, 0.3];
        let rates: Vec<f64> = (0..12).map(rate).collect();
        assert_relative_eq!(rates[..], expected[..], max_relative = 1e-12);
    }

    proptest! {
        #[test]
        fn mlperf_is_between_its_smallest_and_its_largest_rate(
            warmup_epochs in 0u64..5, hold_epochs in 0u64..5, gamma in 0.01f64..1.0,
            step in any::<u32>(), epoch in 0u64..100, steps_per_epoch in 0u64..50,
        ) {
            let epochs = format!("warmup_epochs = {warmup_epochs}\nhold_epochs = {hold_epochs}");
            let keys = format!("{epochs}\ngamma = {gamma}\nmin_rate = 0.001");
            let position = StepPosition { step: step.into(), epoch, steps_per_epoch, progress: 0.5 };
            let rate = learning_rate(&config("mlperf", &keys), position);
            prop_assert!((0.001..=2.0).contains(&rate), "{rate}");
        }
    }
}
