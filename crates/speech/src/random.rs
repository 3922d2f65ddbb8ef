//! Random numbers that the generators' library has not.

use std::f64::consts::TAU;

use rand::{Rng, RngExt};

/// Two independent standard normal numbers (Box and Muller 1958).
pub(crate) fn gaussians(rng: &mut (impl Rng + ?Sized)) -> [f64; 2] {
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    let (sin, cos) = (TAU * rng.random::<f64>()).sin_cos();
    [radius * cos, radius * sin]
}
