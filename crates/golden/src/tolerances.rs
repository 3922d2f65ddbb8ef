//! Tolerances of golden losses and gradients, and the verdict on a case.
//!
//! | run | loss | gradient |
//! |---|---|---|
//! | f64 | 1e-9 relative | 1e-9 absolute |
//! | f32 | 2e-6 relative | 2e-5 relative L2 of each tensor |
//!
//! The tolerances are never loosened. Exceptions:
//!
//! - Some cases store a gradient in f32. The error of an f64 run is then the distance to the
//!   interval that rounds to the stored value: the stored value plus or minus half a unit in the
//!   last place.
//! - If the sidecar *proves* that all f32 peers exceed an f32 tolerance, an error no larger than
//!   that of the best peer is enough. Sidecars contain the peers' `|loss - stored| / max(1,
//!   |stored|)` and their largest absolute gradient error. The latter divided by the L2 norm of the
//!   stored gradient is a lower bound of the relative L2 error.
//! - On an ill-conditioned case (see [`LossOutcome::is_ill_conditioned`]) the errors of the f32 run
//!   must also be smaller than those of the best f32 peer, in loss and in gradient, in the norms of
//!   the peers.
use super::case::PeerErrors;
use super::outcome::{Comparison, LossOutcome};

/// Floating-point type of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloatType {
    /// `f32`.
    F32,
    /// `f64`.
    F64,
}

/// Errors of a run, and the reasons to fail it.
#[derive(Debug)]
pub struct Verdict {
    /// Largest relative error of a loss.
    pub loss: f64,
    /// Largest error of a gradient, in the norm of the run's tolerance.
    pub gradient: f64,
    /// Reasons to fail; empty for a pass.
    pub failures: Vec<String>,
    /// Exceptions that a pass relies on.
    pub notes: Vec<String>,
}

/// Tolerance in f64: relative for losses, absolute for gradients.
const F64_TOLERANCE: f64 = 1e-9;
/// Relative tolerance of losses in f32.
const F32_LOSS_TOLERANCE: f64 = 2e-6;
/// Relative tolerance of gradients in f32, in the L2 norm.
const F32_GRADIENT_TOLERANCE: f64 = 2e-5;

/// Compares an outcome with the tolerances.
pub fn evaluate(outcome: &LossOutcome, peers: Option<PeerErrors>, float_type: FloatType) -> Verdict {
    let mut verdict = Verdict { loss: 0.0, gradient: 0.0, failures: Vec::new(), notes: Vec::new() };
    for name in &outcome.nonzero_padding {
        verdict.failures.push(format!("{name} is not exactly 0 in padding"));
    }
    for name in &outcome.mismatches {
        verdict.failures.push(format!("{name} differ"));
    }
    // Losses.
    for pair in &outcome.losses {
        let error = relative_error(pair);
        verdict.loss = verdict.loss.max(error);
        let tolerance = if float_type == FloatType::F64 { F64_TOLERANCE } else { F32_LOSS_TOLERANCE };
        // Sidecars contain peers only for the plain loss.
        let best_peer =
            peers.filter(|p| float_type == FloatType::F32 && pair.name == "loss" && p.loss > tolerance);
        verdict.check(pair.name, error, tolerance, best_peer.map(|p| (peer_loss_error(pair), p.loss)));
    }
    // Gradients.
    let largest_norm = outcome.gradients.iter().map(|pair| l2_norm(&pair.stored.values)).fold(0.0, f64::max);
    for pair in &outcome.gradients {
        let (error, tolerance) = match float_type {
            FloatType::F64 => (absolute_error(pair), F64_TOLERANCE),
            FloatType::F32 => (relative_l2_error(pair), F32_GRADIENT_TOLERANCE),
        };
        verdict.gradient = verdict.gradient.max(error);
        let best_peer =
            peers.filter(|p| float_type == FloatType::F32 && p.gradient / largest_norm > tolerance);
        verdict.check(
            pair.name,
            error,
            tolerance,
            best_peer.map(|p| (peer_gradient_error(pair), p.gradient)),
        );
        if float_type == FloatType::F64 && pair.stored.is_stored_in_f32 {
            verdict.note("stored in f32");
        }
    }
    // Ill-conditioned cases.
    if let (true, FloatType::F32, Some(peers)) = (outcome.is_ill_conditioned, float_type, peers) {
        let loss = max_or_infinity(outcome.losses.iter().filter(|p| p.name == "loss").map(peer_loss_error));
        let gradient = max_or_infinity(outcome.gradients.iter().map(peer_gradient_error));
        for (name, error, best_peer) in [("loss", loss, peers.loss), ("gradient", gradient, peers.gradient)] {
            let line = format!("{name} {error:.1e}, best f32 peer {best_peer:.1e}");
            if error < best_peer {
                verdict.notes.push(line);
            } else {
                verdict.failures.push(format!("hard case, must beat every f32 peer: {line}"));
            }
        }
    }
    verdict
}

impl Verdict {
    /// Returns true if no quantity exceeds its tolerance.
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }

    /// Fails a quantity that exceeds its tolerance.
    ///
    /// `best_peer` is given if all peers exceed the tolerance too: the error in the norm of the
    /// peers, and the error of the best one. An error up to that of the best peer passes.
    fn check(&mut self, name: &str, error: f64, tolerance: f64, best_peer: Option<(f64, f64)>) {
        // A NaN fails this comparison.
        if error <= tolerance {
            return;
        }
        match best_peer {
            Some((error, best_peer)) if error <= best_peer => {
                self.note(&format!(
                    "{name}: every f32 peer exceeds {tolerance:.0e}; error {error:.1e}, best peer {best_peer:.1e}"
                ));
            }
            _ => self.failures.push(format!("{name}: {error:.2e} exceeds {tolerance:.0e}")),
        }
    }

    fn note(&mut self, note: &str) {
        if !self.notes.iter().any(|other| other == note) {
            self.notes.push(note.into());
        }
    }
}

/// Returns `|actual - stored|`: 0 for equal infinities, infinite for NaN.
fn distance(actual: f64, stored: f64) -> f64 {
    if actual == stored {
        return 0.0;
    }
    let distance = (actual - stored).abs();
    if distance.is_nan() { f64::INFINITY } else { distance }
}

/// Returns the largest error of the values of a quantity.
fn max_error(pair: &Comparison, error: impl Fn(f64, f64) -> f64) -> f64 {
    max_or_infinity(
        pair.actual.iter().zip(&pair.stored.values).map(|(&actual, &stored)| error(actual, stored)),
    )
}

/// Returns the largest error; infinite if one is NaN.
fn max_or_infinity(errors: impl Iterator<Item = f64>) -> f64 {
    errors.fold(0.0, |largest, error| if error.is_nan() { f64::INFINITY } else { largest.max(error) })
}

/// Returns the largest `|actual - stored| / |stored|`.
fn relative_error(pair: &Comparison) -> f64 {
    max_error(pair, |actual, stored| match distance(actual, stored) {
        0.0 => 0.0,
        // The error of a stored zero or infinity is absolute.
        distance if stored == 0.0 || stored.is_infinite() => distance,
        distance => distance / stored.abs(),
    })
}

/// Returns the largest `|actual - stored|`, less the rounding of the stored value.
fn absolute_error(pair: &Comparison) -> f64 {
    let is_f32 = pair.stored.is_stored_in_f32;
    max_error(pair, |actual, stored| {
        let rounding = if is_f32 { half_ulp(stored) } else { 0.0 };
        (distance(actual, stored) - rounding).max(0.0)
    })
}

/// Returns `|actual - stored|_2 / |stored|_2`.
fn relative_l2_error(pair: &Comparison) -> f64 {
    let squares = pair
        .actual
        .iter()
        .zip(&pair.stored.values)
        .map(|(&actual, &stored)| distance(actual, stored).powi(2))
        .sum::<f64>();
    if squares == 0.0 {
        0.0
    } else {
        max_or_infinity(std::iter::once(squares.sqrt() / l2_norm(&pair.stored.values)))
    }
}

/// Error of a loss in the norm of the peers.
fn peer_loss_error(pair: &Comparison) -> f64 {
    max_error(pair, |actual, stored| distance(actual, stored) / stored.abs().max(1.0))
}

/// Error of a gradient in the norm of the peers.
fn peer_gradient_error(pair: &Comparison) -> f64 {
    max_error(pair, distance)
}

fn l2_norm(values: &[f64]) -> f64 {
    values.iter().map(|v| v * v).sum::<f64>().sqrt()
}

/// Returns half a unit in the last place of an f32.
fn half_ulp(stored: f64) -> f64 {
    let magnitude = stored.abs() as f32;
    let ulp = f64::from(magnitude.next_up()) - f64::from(magnitude);
    if ulp.is_finite() { ulp / 2.0 } else { 0.0 }
}
