//! How close is close enough. The bars are never loosened; where they need judgement, it is written out here.
//!
//! | run | loss | gradient |
//! |---|---|---|
//! | f64 | 1e-9 relative | 1e-9 absolute |
//! | f32 | 2e-6 relative | 2e-5 relative L2 of each tensor |
//!
//! - Some cases store a gradient in f32. There an f64 error counts from the nearest edge of the interval that
//!   rounds to the stored value, half a unit of its last place away.
//! - Where a sidecar *proves* every f32 peer worse than an f32 bar, being no worse than the best peer is enough.
//!   Peers are on record with `|loss - stored| / max(1, |stored|)` and a largest absolute gradient error. The latter
//!   divided by the L2 norm of the stored gradient is a lower bound of a relative L2 error, hence a proof.
//! - On a hard case (see [`LossOutcome::hard`]) the f32 run must besides be strictly closer to the stored answer than the
//!   best f32 peer, in loss and in gradient, by the peers' own measures.
use super::case::Peers;
use super::outcome::{Comparison, LossOutcome};

/// The type of the rows in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// `f32`.
    Single,
    /// `f64`.
    Double,
}

/// What a run came to.
#[derive(Debug)]
pub struct Verdict {
    /// Largest relative error of a loss.
    pub loss: f64,
    /// Largest error of a gradient, in the measure of the run's bar.
    pub gradient: f64,
    /// Reasons to fail; none is a pass.
    pub failures: Vec<String>,
    /// What a reader should know about a pass.
    pub notes: Vec<String>,
}

const DOUBLE: f64 = 1e-9;
const SINGLE_LOSS: f64 = 2e-6;
const SINGLE_GRADIENT: f64 = 2e-5;

/// Judges an outcome.
pub fn judge(outcome: &LossOutcome, peers: Option<Peers>, width: Width) -> Verdict {
    let mut verdict = Verdict { loss: 0.0, gradient: 0.0, failures: Vec::new(), notes: Vec::new() };
    for leak in &outcome.leaks {
        verdict.failures.push(format!("{leak} is not exactly 0 in padding"));
    }
    for what in &outcome.different {
        verdict.failures.push(format!("{what} differ"));
    }
    for pair in &outcome.losses {
        let error = relative(pair);
        verdict.loss = verdict.loss.max(error);
        let bar = if width == Width::Double { DOUBLE } else { SINGLE_LOSS };
        // Peers are on record for the plain loss alone.
        let best = peers.filter(|p| width == Width::Single && pair.what == "loss" && p.loss > bar);
        verdict.weigh(pair.what, error, bar, best.map(|p| (by_peers_loss(pair), p.loss)));
    }
    let largest = outcome.gradients.iter().map(|pair| norm(&pair.stored.values)).fold(0.0, f64::max);
    for pair in &outcome.gradients {
        let (error, bar) = match width {
            Width::Double => (absolute(pair), DOUBLE),
            Width::Single => (relative_l2(pair), SINGLE_GRADIENT),
        };
        verdict.gradient = verdict.gradient.max(error);
        let best = peers.filter(|p| width == Width::Single && p.gradient / largest > bar);
        verdict.weigh(pair.what, error, bar, best.map(|p| (by_peers_gradient(pair), p.gradient)));
        if width == Width::Double && pair.stored.single {
            verdict.note("stored in f32");
        }
    }
    if let (true, Width::Single, Some(peers)) = (outcome.hard, width, peers) {
        let loss = worst(outcome.losses.iter().filter(|p| p.what == "loss").map(by_peers_loss));
        let gradient = worst(outcome.gradients.iter().map(by_peers_gradient));
        for (what, ours, best) in [("loss", loss, peers.loss), ("gradient", gradient, peers.gradient)] {
            let line = format!("{what} {ours:.1e}, best f32 peer {best:.1e}");
            if ours < best {
                verdict.notes.push(line);
            } else {
                verdict.failures.push(format!("hard case, must beat every f32 peer: {line}"));
            }
        }
    }
    verdict
}

impl Verdict {
    /// Whether no quantity is beyond its bar.
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }

    /// Fails a quantity beyond its bar, unless it is as good as the best of peers that are all beyond it too.
    fn weigh(&mut self, what: &str, error: f64, bar: f64, best: Option<(f64, f64)>) {
        // Written so that a NaN fails.
        if error <= bar {
            return;
        }
        match best {
            Some((ours, best)) if ours <= best => {
                self.note(&format!(
                    "{what}: every f32 peer is beyond {bar:.0e}; ours {ours:.1e}, best {best:.1e}"
                ));
            }
            _ => self.failures.push(format!("{what}: {error:.2e} is beyond {bar:.0e}")),
        }
    }

    fn note(&mut self, note: &str) {
        if !self.notes.iter().any(|known| known == note) {
            self.notes.push(note.into());
        }
    }
}

/// `|found - stored|`; equal infinities agree, NaN never does.
fn distance(found: f64, stored: f64) -> f64 {
    if found == stored {
        return 0.0;
    }
    let distance = (found - stored).abs();
    if distance.is_nan() { f64::INFINITY } else { distance }
}

fn over(pair: &Comparison, error: impl Fn(f64, f64) -> f64) -> f64 {
    worst(pair.found.iter().zip(&pair.stored.values).map(|(&found, &stored)| error(found, stored)))
}

fn worst(errors: impl Iterator<Item = f64>) -> f64 {
    errors.fold(0.0, |worst, error| if error.is_nan() { f64::INFINITY } else { worst.max(error) })
}

fn relative(pair: &Comparison) -> f64 {
    over(pair, |found, stored| match distance(found, stored) {
        0.0 => 0.0,
        // A stored zero or infinity has no relative error; it counts in absolute terms.
        distance if stored == 0.0 || stored.is_infinite() => distance,
        distance => distance / stored.abs(),
    })
}

fn absolute(pair: &Comparison) -> f64 {
    let single = pair.stored.single;
    over(pair, |found, stored| {
        let slack = if single { half_unit(stored) } else { 0.0 };
        (distance(found, stored) - slack).max(0.0)
    })
}

fn relative_l2(pair: &Comparison) -> f64 {
    let squares =
        pair.found.iter().zip(&pair.stored.values).map(|(&f, &s)| distance(f, s).powi(2)).sum::<f64>();
    if squares == 0.0 { 0.0 } else { worst(std::iter::once(squares.sqrt() / norm(&pair.stored.values))) }
}

fn by_peers_loss(pair: &Comparison) -> f64 {
    over(pair, |found, stored| distance(found, stored) / stored.abs().max(1.0))
}

fn by_peers_gradient(pair: &Comparison) -> f64 {
    over(pair, distance)
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|v| v * v).sum::<f64>().sqrt()
}

/// Half the distance from an f32 to the next one away from zero.
fn half_unit(stored: f64) -> f64 {
    let magnitude = stored.abs() as f32;
    let unit = f64::from(magnitude.next_up()) - f64::from(magnitude);
    if unit.is_finite() { unit / 2.0 } else { 0.0 }
}
