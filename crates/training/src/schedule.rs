//! The step size over a run.
use crate::recipe::{Decay, OptimiserConfig};

/// Step size of optimiser step `step` (from 0) when the share `progress` of the run is over.
///
/// ```text
/// rate · min(1, (step+1)/warmup) · shape(progress)
/// cosine: floor + (1 - floor) (1 + cos(π p)) / 2      exponential: floor^p      hold: 1
/// ```
pub fn learning_rate(config: &OptimiserConfig, step: u64, progress: f64) -> f64 {
    let warm = match config.warmup_steps {
        0 => 1.0,
        steps => ((step + 1) as f64 / steps as f64).min(1.0),
    };
    let floor = config.floor;
    let shape = match config.decay {
        Decay::Cosine => floor + (1.0 - floor) * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
        Decay::Exponential => floor.powf(progress),
        Decay::Hold => 1.0,
    };
    config.learning_rate * warm * shape
}
