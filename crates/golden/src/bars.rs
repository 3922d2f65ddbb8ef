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
pub(super) enum Width {
    Single,
    Double,
}

/// What a run came to.
#[derive(Debug)]
pub(super) struct Verdict {
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
pub(super) fn judge(outcome: &LossOutcome, peers: Option<Peers>, width: Width) -> Verdict {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Stored;

    fn outcome(found: f64, gradient: f64) -> LossOutcome {
        let pair = |what, found, stored| Comparison {
            what,
            found: vec![found],
            stored: Stored { shape: vec![1], values: vec![stored], single: false },
        };
        LossOutcome {
            losses: vec![pair("loss", found, 2.0)],
            gradients: vec![pair("grad_logits", gradient, 0.5)],
            ..LossOutcome::default()
        }
    }

    #[test]
    fn double_bars_are_1e_9() {
        assert!(judge(&outcome(2.0 + 1.9e-9, 0.5 - 0.9e-9), None, Width::Double).passed());
        assert!(!judge(&outcome(2.0 + 2.1e-9, 0.5), None, Width::Double).passed());
        assert!(!judge(&outcome(2.0, 0.5 - 1.1e-9), None, Width::Double).passed());
    }

    #[test]
    fn nan_and_infinity_never_pass() {
        for width in [Width::Single, Width::Double] {
            for bad in [f64::NAN, f64::INFINITY] {
                assert!(!judge(&outcome(bad, 0.5), None, width).passed());
                assert!(!judge(&outcome(2.0, bad), None, width).passed());
            }
        }
    }

    #[test]
    fn an_infinite_answer_must_be_found_as_such() {
        for width in [Width::Single, Width::Double] {
            let mut endless = outcome(f64::INFINITY, 0.5);
            endless.losses[0].stored.values[0] = f64::INFINITY;
            assert!(judge(&endless, None, width).passed());
            endless.losses[0].found[0] = 1e300;
            assert!(!judge(&endless, None, width).passed());
            let mut stored = outcome(2.0, 0.5);
            stored.gradients[0].stored = Stored { shape: vec![1], values: vec![f64::INFINITY], single: true };
            assert!(!judge(&stored, None, width).passed());
        }
    }

    #[test]
    fn single_bars_are_relative() {
        assert!(judge(&outcome(2.0 + 3.9e-6, 0.5 + 0.9e-5), None, Width::Single).passed());
        assert!(!judge(&outcome(2.0 + 4.1e-6, 0.5), None, Width::Single).passed());
        assert!(!judge(&outcome(2.0, 0.5 + 1.1e-5), None, Width::Single).passed());
    }

    #[test]
    fn peers_excuse_only_when_all_are_proven_worse() {
        let off = outcome(2.0, 0.5 + 2e-5);
        let peers = |gradient| Some(Peers { loss: 1e-8, gradient });
        // 0.9e-5 / 0.5 is within 2e-5: the best peer may be good enough, so we must be too.
        assert!(!judge(&off, peers(0.9e-5), Width::Single).passed());
        // Beyond the bar, but better than ours.
        assert!(!judge(&off, peers(1.9e-5), Width::Single).passed());
        assert!(judge(&off, peers(2.1e-5), Width::Single).passed());
        // f64 has no such excuse.
        assert!(!judge(&off, peers(1.0), Width::Double).passed());
    }

    #[test]
    fn hard_cases_must_beat_every_peer() {
        let mut hard = outcome(2.0 + 2e-7, 0.5 + 2e-7);
        hard.hard = true;
        let peers = |loss, gradient| Some(Peers { loss, gradient });
        assert!(judge(&hard, peers(1.1e-7, 2.1e-7), Width::Single).passed());
        assert!(!judge(&hard, peers(0.9e-7, 2.1e-7), Width::Single).passed());
        assert!(!judge(&hard, peers(1.1e-7, 1.9e-7), Width::Single).passed());
    }

    #[test]
    fn storage_in_f32_allows_half_a_unit() {
        let mut stored = outcome(2.0, 0.1);
        stored.gradients[0].stored = Stored { shape: vec![1], values: vec![f64::from(0.1f32)], single: true };
        let verdict = judge(&stored, None, Width::Double);
        assert!(verdict.passed() && verdict.notes == ["stored in f32"], "{verdict:?}");
        stored.gradients[0].found[0] = 0.1 + 1e-8;
        assert!(!judge(&stored, None, Width::Double).passed());
    }

    #[test]
    fn leaks_fail() {
        let mut leaky = outcome(2.0, 0.5);
        leaky.leaks.push("grad_logits");
        assert!(!judge(&leaky, None, Width::Double).passed());
    }
}
