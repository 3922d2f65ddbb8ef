//! What a door says about a case, beside what is stored.
use rnnt_loss::Element;
use rnnt_loss::{Options, Targets};

use super::case::{self, LossCase, Stored};
use super::error::Error;

/// Found and stored values of one quantity.
#[derive(Debug)]
pub struct Comparison {
    /// Name of the quantity.
    pub what: &'static str,
    /// What this workspace computes.
    pub found: Vec<f64>,
    /// What the file holds.
    pub stored: Stored,
}

/// Everything of a case that can be compared.
#[derive(Debug, Default)]
pub struct LossOutcome {
    /// Log-probabilities: losses, reductions, forward and backward sums.
    pub losses: Vec<Comparison>,
    /// Gradients of inputs and parameters.
    pub gradients: Vec<Comparison>,
    /// Gradients that are not exactly zero in padding.
    pub leaks: Vec<&'static str>,
    /// What should be the very same and is not.
    pub different: Vec<&'static str>,
    /// Scores of about 1e3 or a loss near zero: here f32 programs lose their digits, and we must not.
    pub hard: bool,
}

impl LossOutcome {
    pub(super) fn loss<F: Element>(
        &mut self,
        case: &LossCase,
        what: &'static str,
        found: &[F],
    ) -> Result<(), Error> {
        pair(case, what, found).map(|pair| self.losses.extend(pair))
    }

    pub(super) fn gradient<F: Element>(
        &mut self,
        case: &LossCase,
        what: &'static str,
        found: &[F],
    ) -> Result<(), Error> {
        pair(case, what, found).map(|pair| self.gradients.extend(pair))
    }

    /// Notes a gradient that is not exactly zero where no utterance has a row.
    pub(super) fn sealed<F: Element>(
        &mut self,
        what: &'static str,
        gradient: &[F],
        width: usize,
        real: &[bool],
    ) {
        let mut padding = gradient.chunks_exact(width).zip(real).filter(|(_, real)| !**real);
        if padding.any(|(row, _)| row.iter().any(|&g| g != F::ZERO)) {
            self.leaks.push(what);
        }
    }
}

/// Lines up a quantity if the case stores it.
fn pair<F: Element>(case: &LossCase, what: &'static str, found: &[F]) -> Result<Option<Comparison>, Error> {
    let Some(stored) = case.find(what) else { return Ok(None) };
    if stored.values.len() != found.len() {
        let expected = format!("{} values", found.len());
        return Err(case.wrong(what, &expected, &format!("{:?}", stored.shape)));
    }
    let found = found.iter().map(|value| value.to_f64()).collect();
    Ok(Some(Comparison { what, found, stored: stored.clone() }))
}

/// What every kind has.
pub(super) fn options(case: &LossCase) -> Options {
    let case::Options { fastemit_lambda: fastemit, clamp, delay_penalty, .. } = case.options;
    Options { fastemit, clamp, delay_penalty, ..Options::default() }
}

/// Which rows of a padded batch of sites are real.
pub(super) fn real_rows(targets: &Targets, frames: usize, positions: usize) -> Vec<bool> {
    let site = |i: usize| (i / positions / frames, i / positions % frames, i % positions);
    let real = |(b, t, u): (usize, usize, usize)| t < targets.frames(b) && u <= targets.labels(b).len();
    (0..targets.batch() * frames * positions).map(|i| real(site(i))).collect()
}
