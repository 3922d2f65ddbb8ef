//! What frames are multiplied by.

use std::f64::consts::{PI, TAU};

use serde::{Deserialize, Serialize};

/// Weights w of the L samples of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Window {
    /// `w[n] = (1 - cos(2 π n / L)) / 2`
    #[default]
    Hann,
    /// The same, sampled in the middle between its points: `w[n] = (1 - cos(2 π (n + 1/2) / L)) / 2`
    HannMidpoint,
    /// Kaldi's: `w[n] = ((1 - cos(2 π n / (L - 1))) / 2)^0.85`
    Povey,
}

impl Window {
    /// The weights, in order.
    pub(super) fn weights(self, length: usize) -> Vec<f64> {
        let hann = |phase: f64| 0.5 - 0.5 * phase.cos();
        let weight = |n: usize| match self {
            Window::Hann => hann(TAU * n as f64 / length as f64),
            Window::HannMidpoint => (PI * (n as f64 + 0.5) / length as f64).sin().powi(2),
            Window::Povey => hann(TAU * n as f64 / (length.max(2) - 1) as f64).powf(0.85),
        };
        (0..length).map(weight).collect()
    }
}
