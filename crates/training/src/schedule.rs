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

#[cfg(test)]
mod tests {
    use approx::assert_relative_eq;

    use super::*;

    fn config(decay: &str) -> OptimiserConfig {
        let text = format!("learning_rate = 2.0\nwarmup_steps = 4\nfloor = 0.01\ndecay = \"{decay}\"");
        toml::from_str(&text).unwrap()
    }

    #[test]
    fn the_rate_grows_linearly_and_then_follows_its_shape() {
        for decay in ["cosine", "exponential", "hold"] {
            let rates = [0, 1, 2, 3, 4, 100].map(|step| learning_rate(&config(decay), step, 0.0));
            assert_eq!(rates, [0.5, 1.0, 1.5, 2.0, 2.0, 2.0], "{decay}");
        }
        let at = |decay, progress| learning_rate(&config(decay), 100, progress);
        assert_relative_eq!(at("cosine", 0.5), 2.0 * 0.505, max_relative = 1e-12);
        assert_relative_eq!(at("cosine", 1.0), 2.0 * 0.01, max_relative = 1e-12);
        assert_relative_eq!(at("exponential", 0.5), 2.0 * 0.1, max_relative = 1e-12);
        assert_relative_eq!(at("exponential", 1.0), 2.0 * 0.01, max_relative = 1e-12);
        assert_eq!(at("hold", 1.0), 2.0);
    }
}
