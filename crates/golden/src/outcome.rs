//! Results of one golden loss case, each paired with its stored values.
//!
//! `losses`, `duration_losses` and `pruned` fill a [`LossOutcome`]; `tolerances` evaluates it.
use rnnt_loss::Element;
use rnnt_loss::{Options, Targets};

use super::case::{self, LossCase, StoredTensor};
use super::error::Error;

/// Computed and stored values of one quantity.
#[derive(Debug)]
pub struct Comparison {
    /// Name of the quantity.
    pub name: &'static str,
    /// Values of this workspace.
    pub actual: Vec<f64>,
    /// Values of the file.
    pub stored: StoredTensor,
}

/// Results of a case, paired with the values that they must match.
#[derive(Debug, Default)]
pub struct LossOutcome {
    /// Log-probabilities: losses, reductions, forward and backward sums.
    pub losses: Vec<Comparison>,
    /// Gradients of inputs and parameters.
    pub gradients: Vec<Comparison>,
    /// Names of gradients that are not exactly zero in padding.
    pub nonzero_padding: Vec<&'static str>,
    /// Names of quantities that must be equal and are not.
    pub mismatches: Vec<&'static str>,
    /// True for scores of about 1e3 or a loss near zero.
    ///
    /// f32 programs lose precision on these cases.
    pub is_ill_conditioned: bool,
}

impl LossOutcome {
    /// Adds losses, if the case stores values of this name.
    pub(super) fn add_loss<F: Element>(
        &mut self,
        case: &LossCase,
        name: &'static str,
        actual: &[F],
    ) -> Result<(), Error> {
        pair_with_stored(case, name, actual).map(|pair| self.losses.extend(pair))
    }

    /// Adds a gradient, if the case stores values of this name.
    pub(super) fn add_gradient<F: Element>(
        &mut self,
        case: &LossCase,
        name: &'static str,
        actual: &[F],
    ) -> Result<(), Error> {
        pair_with_stored(case, name, actual).map(|pair| self.gradients.extend(pair))
    }

    /// Records a gradient that is not exactly zero in padding.
    ///
    /// The gradient has rows of `width` values; `is_real` is false for rows of padding.
    pub(super) fn expect_zero_padding<F: Element>(
        &mut self,
        name: &'static str,
        gradient: &[F],
        width: usize,
        is_real: &[bool],
    ) {
        let mut padding = gradient.chunks_exact(width).zip(is_real).filter(|(_, is_real)| !**is_real);
        if padding.any(|(row, _)| row.iter().any(|&g| g != F::ZERO)) {
            self.nonzero_padding.push(name);
        }
    }
}

/// Pairs a quantity with its stored values, if the case stores it.
fn pair_with_stored<F: Element>(
    case: &LossCase,
    name: &'static str,
    actual: &[F],
) -> Result<Option<Comparison>, Error> {
    let Some(stored) = case.find(name) else { return Ok(None) };
    if stored.values.len() != actual.len() {
        let expected = format!("{} values", actual.len());
        return Err(case.error(name, &expected, &format!("{:?}", stored.shape)));
    }
    let actual = actual.iter().map(|value| value.to_f64()).collect();
    Ok(Some(Comparison { name, actual, stored: stored.clone() }))
}

/// Returns the loss options that all kinds of cases have.
pub(super) fn common_options(case: &LossCase) -> Options {
    let case::Options { fastemit_lambda: fastemit, clamp, delay_penalty, .. } = case.options;
    Options { fastemit, clamp, delay_penalty, ..Options::default() }
}

/// Returns, per row of a padded batch, whether it is a site.
///
/// A site is a lattice node (t, u) of an utterance; the batch is `[B, T, U+1]`.
pub(super) fn real_row_mask(targets: &Targets, frames: usize, positions: usize) -> Vec<bool> {
    let is_site = |row: usize| {
        let (b, t, u) = (row / positions / frames, row / positions % frames, row % positions);
        t < targets.frames(b) && u <= targets.labels(b).len()
    };
    (0..targets.batch() * frames * positions).map(is_site).collect()
}
